//! Debug information of a file: functions, inlined calls and source lines by address.
//!
//! The file is somebody's program and may be anything by now: no size that it claims is believed beyond what its bytes can
//! hold, and of the files that it names only regular ones are opened.

use super::model::Frame;
use addr2line::gimli::{Dwarf, DwarfPackage, EndianSlice, RunTimeEndian};
use addr2line::{Context, LookupContinuation, LookupResult, SplitDwarfLoad};
use memmap2::Mmap;
use object::{Object, ObjectSection};
use std::borrow::Cow;
use std::cell::RefCell;
use std::error::Error;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most inlined frames that are shown for one address.
const MAX_INLINED: usize = 32;

/// zlib makes no more bytes of one. zstd could, but not of debug information. What a section is said to become is taken
/// as memory at once, whatever is in it.
const MOST_DENSE: u64 = 1032;

/// Of one file, and of those that it was split into.
pub(super) struct DebugInfo {
    // Borrowed from `files`, and dropped before them.
    context: Context<Bytes>,
    package: Option<DwarfPackage<Bytes>>,
    files: RefCell<Vec<Sections>>,
    path: PathBuf,
}

/// Of one of the [`Sections`] of a [`DebugInfo`], which never lets them out of its hands.
type Bytes = EndianSlice<'static, RunTimeEndian>;

impl DebugInfo {
    pub(super) fn open(path: PathBuf) -> Option<DebugInfo> {
        let mut sections = Sections::open(&path)?;
        let mut dwarf = Dwarf::load(|id| sections.load(Some(id.name()))).ok()?;
        dwarf.populate_abbreviations_cache(addr2line::gimli::AbbreviationsCacheStrategy::Duplicates);
        let context = Context::from_dwarf(dwarf).ok()?;
        let mut debug = DebugInfo { context, package: None, files: RefCell::new(vec![sections]), path };
        debug.package = debug.open_package();
        Some(debug)
    }

    /// The functions that an address lies in, innermost first: copies of `plain` with names and lines.
    pub(super) fn frames(&self, probe: u64, plain: &Frame) -> Vec<Frame> {
        let mut frames = Vec::new();
        let mut lookup = self.context.find_frames(probe);
        let found = loop {
            match lookup {
                LookupResult::Output(found) => break found,
                LookupResult::Load { load, continuation } => lookup = continuation.resume(self.part(&load)),
            }
        };
        let Ok(mut found) = found else { return frames };
        while let Ok(Some(frame)) = found.next() {
            let function = frame.function.as_ref().and_then(|f| {
                let demangled = f.demangle().ok().map(Cow::into_owned);
                demangled.or_else(|| f.raw_name().ok().map(Cow::into_owned))
            });
            let location = frame.location.as_ref();
            frames.push(Frame {
                function,
                file: location.and_then(|l| l.file).map(str::to_owned),
                // Line 0 stands for code that belongs to no line.
                line: location.and_then(|l| l.line).filter(|&line| line != 0),
                ..plain.clone()
            });
            if frames.len() == MAX_INLINED {
                break;
            }
        }
        frames
    }

    /// What `-gsplit-dwarf` left in another file.
    fn part(&self, load: &SplitDwarfLoad<Bytes>) -> Option<Arc<Dwarf<Bytes>>> {
        if let Some(package) = &self.package
            && let Ok(Some(part)) = package.find_cu(load.dwo_id, &load.parent)
        {
            return Some(Arc::new(part));
        }
        let folder = load.comp_dir.as_ref().map_or(Path::new(""), |folder| path_of(folder));
        let mut sections = Sections::open(&folder.join(path_of(load.path.as_ref()?)))?;
        let mut part = Dwarf::load(|id| sections.load(id.dwo_name())).ok()?;
        let header = part.units().next().ok()??;
        if part.unit(header).ok()?.dwo_id != Some(load.dwo_id) {
            return None;
        }
        part.make_dwo(&load.parent);
        self.files.borrow_mut().push(sections);
        Some(Arc::new(part))
    }

    /// All such parts in one file beside this one.
    fn open_package(&self) -> Option<DwarfPackage<Bytes>> {
        let mut name = self.path.file_name()?.to_owned();
        name.push(".dwp");
        let mut sections = Sections::open(&self.path.with_file_name(name))?;
        let nothing = EndianSlice::new(&[][..], sections.endian);
        let package = DwarfPackage::load(|id| sections.load(id.dwo_name()), nothing).ok()?;
        self.files.borrow_mut().push(sections);
        Some(package)
    }
}

fn path_of(bytes: &Bytes) -> &Path {
    Path::new(OsStr::from_bytes(bytes.slice()))
}

/// Opens a file unless it is something else: a pipe would block, a device may do anything.
pub(super) fn open_regular(path: &Path) -> Option<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

/// A file's sections.
struct Sections {
    // Borrowed from `map`, and dropped before it.
    object: object::File<'static>,
    endian: RunTimeEndian,
    /// Those that were compressed.
    inflated: Vec<Vec<u8>>,
    /// How much they may still be: sections may lie on top of each other.
    left: u64,
    _map: Mmap,
}

impl Sections {
    fn open(path: &Path) -> Option<Sections> {
        let file = open_regular(path)?;
        // SAFETY: read only. That somebody cuts the file meanwhile would end the command, as with every reader of mappings.
        let map = unsafe { Mmap::map(&file) }.ok()?;
        // SAFETY: the mapping stays where it is until it is dropped, and it is dropped after all that borrows from it: see
        // the orders of fields here and in `DebugInfo`.
        let bytes: &'static [u8] = unsafe { std::slice::from_raw_parts(map.as_ptr(), map.len()) };
        let object = object::File::parse(bytes).ok()?;
        let endian = if object.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        let left = MOST_DENSE.saturating_mul(bytes.len() as u64);
        Some(Sections { object, endian, inflated: Vec::new(), left, _map: map })
    }

    /// Nothing, where there is no such section.
    fn load(&mut self, name: Option<&str>) -> Result<Bytes, Box<dyn Error>> {
        let Some(section) = name.and_then(|name| self.object.section_by_name(name)) else {
            return Ok(EndianSlice::new(&[], self.endian));
        };
        let packed = section.compressed_data()?;
        if packed.format != object::CompressionFormat::None {
            let most = MOST_DENSE.saturating_mul(packed.data.len() as u64).min(self.left);
            self.left -= Some(packed.uncompressed_size).filter(|size| *size <= most).ok_or("too large")?;
        }
        let bytes = match packed.decompress()? {
            Cow::Borrowed(bytes) => bytes,
            Cow::Owned(bytes) => {
                // SAFETY: the bytes stay where they are when the vector that has them moves, nobody changes it, and it is
                // dropped after all that borrows from it, as above.
                let lasting = unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
                self.inflated.push(bytes);
                lasting
            }
        };
        Ok(EndianSlice::new(bytes, self.endian))
    }
}
