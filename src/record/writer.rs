//! Writing a record file: a shared mapping that grows by extents and never moves.
//!
//! Growing needs a descriptor only for a moment. None is kept: daemons close descriptors that they do not
//! know. Where the file cannot grow (disk full, removed, replaced) the extent is private memory: the process
//! keeps exact books and reports them at exit, only a post-mortem misses that part.

use super::identity::Identity;
use super::layout::{
    self, AREAS, Area, Extent, Header, MAX_EXTENTS, MAX_SERIES, RECORD_BYTES, Record, SERIES_BYTES, Series,
};
use super::mapping::{
    copy_of_shared, is_shared, map_private, map_shared, reserve_blocks, retried, status_of,
};
use crate::event::cancel::Undisturbed;
use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

const RECORDS_IN_FIRST_EXTENT: u32 = (Area::Records.first_extent_bytes() / RECORD_BYTES as u64) as u32;
const SERIES_IN_FIRST_EXTENT: u32 = (Area::Series.first_extent_bytes() / SERIES_BYTES as u64) as u32;
/// An area that doubled this often would not fit in a u32 of records.
const MAX_EXTENTS_OF_AREA: usize = 22;

/// The record file of this process.
pub struct Writer {
    header: &'static Header,
    path: PathBuf,
    /// Device and inode: a path that names something else by now is left alone.
    file_id: (u64, u64),
    areas: [Extents; AREAS],
    next_record: AtomicU32,
    next_module: AtomicU32,
    grow: Mutex<Grow>,
    file_is_complete: AtomicBool,
}

struct Extents {
    bases: [AtomicPtr<u8>; MAX_EXTENTS_OF_AREA],
}

struct Grow {
    file_bytes: u64,
    extents: usize,
}

impl Writer {
    /// Makes the file `DIR/proc/<pid>-<start>.rec` for this process.
    pub fn create(directory: &Path, identity: &Identity) -> io::Result<Writer> {
        let _undisturbed = Undisturbed::new();
        let folder = directory.join("proc");
        let shared = is_shared(std::fs::metadata(directory)?.mode());
        make_directory(&folder, shared)?;
        // The directory itself may be behind a link that an operator made. Nobody has a reason to make one of this.
        if std::fs::symlink_metadata(&folder)?.is_symlink() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "proc in it is a symbolic link"));
        }
        let (path, file) = create_exclusive(&folder, identity)?;
        if shared {
            // Who shares the account sees whose bytes are whose, and who still uses a ledger that was removed.
            // SAFETY: a valid descriptor. On failure it stays private.
            unsafe { libc::fchmod(file.as_raw_fd(), 0o640) };
        }
        let made = Self::map_new(&path, &file);
        match made {
            Ok(writer) => {
                identity.write_to(writer.header);
                // Pairs with the Acquire of readers: whoever sees the magic sees the header.
                writer.header.magic.store(layout::MAGIC, Ordering::Release);
                Ok(writer)
            }
            Err(error) => {
                // Best effort: an empty file would be reported as damaged.
                let _ = std::fs::remove_file(&path);
                Err(error)
            }
        }
    }

    fn map_new(path: &Path, file: &OwnedFd) -> io::Result<Writer> {
        let bytes = layout::HEADER_BYTES as u64;
        reserve_blocks(file, 0, bytes)?;
        let base = map_shared(file, 0, bytes)?;
        let status = status_of(file)?;
        // SAFETY: the mapping is HEADER_BYTES long, page-aligned, zeroed and never unmapped; every field of Header
        // is valid when zero, and all that changes later is atomic.
        let header: &'static Header = unsafe { &*base.cast::<Header>() };
        header.version.store(layout::VERSION, Ordering::Relaxed);
        header.header_bytes.store(layout::HEADER_BYTES as u32, Ordering::Relaxed);
        Ok(Writer {
            header,
            path: path.to_owned(),
            file_id: (status.st_dev, status.st_ino),
            areas: std::array::from_fn(|_| Extents { bases: Default::default() }),
            next_record: AtomicU32::new(0),
            next_module: AtomicU32::new(1),
            grow: Mutex::new(Grow { file_bytes: bytes, extents: 0 }),
            file_is_complete: AtomicBool::new(true),
        })
    }

    /// The header, shared with every reader.
    #[inline]
    pub fn header(&self) -> &'static Header {
        self.header
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// False once a part of the books is in private memory only.
    pub fn file_is_complete(&self) -> bool {
        self.file_is_complete.load(Ordering::Relaxed)
    }

    /// The record with this index, if one was handed out.
    #[inline]
    pub fn record(&self, index: u32) -> Option<&'static Record> {
        let place = self.place(Area::Records, index, RECORDS_IN_FIRST_EXTENT, RECORD_BYTES)?;
        // SAFETY: a record's whole place in a mapping that is never removed; a Record is all atomics.
        Some(unsafe { &*place.cast::<Record>() })
    }

    /// The series with this index, if one was handed out.
    pub fn series(&self, index: u32) -> Option<&'static Series> {
        let place = self.place(Area::Series, index, SERIES_IN_FIRST_EXTENT, SERIES_BYTES)?;
        // SAFETY: as for a record.
        Some(unsafe { &*place.cast::<Series>() })
    }

    /// Where an entry of an area of equal entries lies: `in_first` of `bytes` each are in the first extent.
    #[inline(always)]
    fn place(&self, area: Area, index: u32, in_first: u32, bytes: usize) -> Option<*mut u8> {
        let extent = (index / in_first + 1).ilog2();
        let first = ((1u32 << extent) - 1).wrapping_mul(in_first);
        // Acquire pairs with the Release that published the extent: its bytes are mapped and zero.
        let base = self.areas[area.index()].bases.get(extent as usize)?.load(Ordering::Acquire);
        if base.is_null() {
            return None;
        }
        // SAFETY: the extent holds `in_first << extent` entries from `first` on, and `index` is among them by the choice
        // of `extent`.
        Some(unsafe { base.add((index - first) as usize * bytes) })
    }

    /// Number of records that were handed out.
    pub fn records(&self) -> u32 {
        // Relaxed: a record that is not filled yet is empty.
        self.next_record.load(Ordering::Relaxed)
    }

    /// Adds the series with this index; indices count from 0, and one thread alone adds them. `None`: no memory for it,
    /// or there are [`MAX_SERIES`].
    pub fn add_series(&self, index: u32) -> Option<&'static Series> {
        let extent = (index / SERIES_IN_FIRST_EXTENT + 1).ilog2() as usize;
        (index < MAX_SERIES).then(|| self.ensure_extent(Area::Series, extent))??;
        let used = u64::from(index + 1) * SERIES_BYTES as u64;
        // Release pairs with a reader's Acquire: the extent is in the table.
        self.header.used[Area::Series.index()].store(used, Ordering::Release);
        self.series(index)
    }

    /// Hands out `count` empty records, at most one extent's worth. `None`: no memory for more.
    pub fn new_records(&self, count: u32) -> Option<Range<u32>> {
        let mut start = self.next_record.load(Ordering::Relaxed);
        let end = loop {
            let end = start.checked_add(count)?;
            let last_extent = (end.checked_sub(1)? / RECORDS_IN_FIRST_EXTENT + 1).ilog2() as usize;
            // Before they are taken: what there is no room for stays to be had later.
            self.ensure_extent(Area::Records, last_extent)?;
            // Relaxed: the index is only a ticket.
            match self.next_record.compare_exchange_weak(start, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break end,
                Err(now) => start = now,
            }
        };
        self.header.used[Area::Records.index()]
            .fetch_max(u64::from(end) * RECORD_BYTES as u64, Ordering::Release);
        Some(start..end)
    }

    /// An id for one more module: 16 bits of a frame, 0 excluded.
    pub fn next_module_id(&self) -> Option<u32> {
        // Relaxed: only a ticket.
        let next = |id: u32| (id < 1 << 16).then_some(id + 1);
        self.next_module.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }

    /// Appends `entry` to an area whose entries have no fixed size and answers its offset in the area. Entries never
    /// straddle extents; what is skipped stays zero. `publish` is the offset in the entry of the u32 that
    /// is written last, so that a reader never sees half an entry.
    pub fn append(&self, area: Area, entry: &[u8], publish: usize) -> Option<u64> {
        let used = &self.header.used[area.index()];
        let length = (entry.len() as u64).checked_next_multiple_of(8)?;
        let whole = publish.is_multiple_of(WORD) && publish.checked_add(WORD)? <= entry.len();
        let published = word_at(entry, publish).filter(|_| whole)?;
        // A handler that came back here would find the lock taken.
        let _undisturbed = Undisturbed::new();
        let mut grow = self.grow.lock().unwrap_or_else(PoisonError::into_inner);
        let mut start = used.load(Ordering::Relaxed);
        let (mut extent, mut within) = locate(area, start);
        while within.checked_add(length)? > area.first_extent_bytes() << extent {
            extent += 1;
            within = 0;
            start = area.first_extent_bytes() * ((1 << extent) - 1);
        }
        let base = self.extent_base(&mut grow, area, extent as usize)?;
        // SAFETY: `within + length` lies inside the extent (checked above), which is mapped for good; both are
        // multiples of a word.
        let to = |at: usize| unsafe { &*base.add(within as usize + at).cast::<AtomicU32>() };
        // Word by word, since `area_copy` may read meanwhile. Relaxed: readers look at the published word first.
        for at in (0..entry.len()).step_by(WORD).filter(|at| *at != publish) {
            to(at).store(word_at(entry, at)?, Ordering::Relaxed);
        }
        // Release pairs with the reader's Acquire of `used` and of this word.
        to(publish).store(published, Ordering::Release);
        used.store(start + length, Ordering::Release);
        Some(start)
    }

    /// Notes an orderly end, in ns of CLOCK_REALTIME.
    pub fn mark_ended(&self, now_ns: u64) {
        self.header.ended_ns.store(now_ns, Ordering::Release);
    }

    /// The bytes of all extents of an area, in order. What other threads write meanwhile may or may not be in it.
    pub fn area_copy(&self, area: Area) -> Vec<Vec<u8>> {
        let bases = &self.areas[area.index()].bases;
        let mut extents = Vec::new();
        for (k, base) in bases.iter().enumerate() {
            let base = base.load(Ordering::Acquire);
            if base.is_null() {
                break;
            }
            let bytes = (area.first_extent_bytes() << k) as usize;
            extents.push(copy_of_shared(base, bytes));
        }
        extents
    }

    /// The header's bytes.
    pub fn header_copy(&self) -> Vec<u8> {
        copy_of_shared(std::ptr::from_ref(self.header).cast::<u8>().cast_mut(), size_of::<Header>())
    }

    fn ensure_extent(&self, area: Area, extent: usize) -> Option<()> {
        let base = self.areas[area.index()].bases.get(extent)?;
        // Acquire pairs with the Release in `add_extent`.
        if base.load(Ordering::Acquire).is_null() {
            let _undisturbed = Undisturbed::new();
            let mut grow = self.grow.lock().unwrap_or_else(PoisonError::into_inner);
            // Earlier ones first: a thread whose ticket lies in one of them may not have come here yet.
            for k in 0..=extent {
                self.extent_base(&mut grow, area, k)?;
            }
        }
        Some(())
    }

    fn extent_base(&self, grow: &mut Grow, area: Area, extent: usize) -> Option<*mut u8> {
        let slot = self.areas[area.index()].bases.get(extent)?;
        let known = slot.load(Ordering::Acquire);
        if !known.is_null() {
            return Some(known);
        }
        let bytes = area.first_extent_bytes() << extent;
        let base = match self.map_in_file(grow, area, bytes) {
            Ok(base) => base,
            Err(_) => {
                self.file_is_complete.store(false, Ordering::Relaxed);
                map_private(bytes).ok()?
            }
        };
        // Release pairs with the Acquire in `record` and `ensure_extent`.
        slot.store(base, Ordering::Release);
        Some(base)
    }

    fn map_in_file(&self, grow: &mut Grow, area: Area, bytes: u64) -> io::Result<*mut u8> {
        let entry: &Extent = self
            .header
            .extents
            .get(grow.extents)
            .filter(|_| grow.extents < MAX_EXTENTS)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let file = open_existing(&self.path)?;
        let status = status_of(&file)?;
        if (status.st_dev, status.st_ino) != self.file_id {
            return Err(io::ErrorKind::NotFound.into());
        }
        let offset = grow.file_bytes;
        reserve_blocks(&file, offset, bytes)?;
        let base = map_shared(&file, offset, bytes)?;
        entry.offset.store(offset, Ordering::Relaxed);
        entry.bytes.store(bytes, Ordering::Relaxed);
        // Release pairs with a reader's Acquire: an entry with an area is whole.
        entry.area.store(area as u32, Ordering::Release);
        grow.file_bytes = offset + bytes;
        grow.extents += 1;
        Ok(base)
    }
}

pub(super) const WORD: usize = size_of::<u32>();

/// Four bytes of an entry; what is beyond its end is zero.
fn word_at(entry: &[u8], at: usize) -> Option<u32> {
    let bytes = entry.get(at..).filter(|bytes| !bytes.is_empty())?;
    let mut word = [0; WORD];
    word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    Some(u32::from_ne_bytes(word))
}

fn locate(area: Area, offset: u64) -> (u32, u64) {
    let first = area.first_extent_bytes();
    let extent = (offset / first + 1).ilog2();
    (extent, offset - first * ((1 << extent) - 1))
}

/// Makes a directory of mode 0700 if there is none.
pub fn make_private_directory(path: &Path) -> io::Result<()> {
    make_directory(path, false)
}

/// The same, or in a directory that a group shares one that the group shares.
fn make_directory(path: &Path, shared: bool) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(if shared { 0o770 } else { 0o700 }).create(path) {
        // The umask may have taken the group's part away.
        Ok(()) if shared => std::fs::set_permissions(path, PermissionsExt::from_mode(0o2770)),
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ if path.is_dir() => Ok(()),
        _ => Err(io::ErrorKind::NotADirectory.into()),
    }
}

fn create_exclusive(folder: &Path, identity: &Identity) -> io::Result<(PathBuf, OwnedFd)> {
    let mut stamp = identity.started_ns;
    loop {
        let path = folder.join(format!("{}-{stamp:x}.rec", identity.pid));
        match open(&path, libc::O_CREAT | libc::O_EXCL, 0o600) {
            // Two pid namespaces can meet on one name.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => stamp = stamp.wrapping_add(1),
            Err(e) => return Err(e),
            Ok(file) => return Ok((path, file)),
        }
    }
}

fn open_existing(path: &Path) -> io::Result<OwnedFd> {
    open(path, 0, 0)
}

fn open(path: &Path, flags: i32, mode: libc::mode_t) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = flags | libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: a NUL-terminated path.
    let fd = retried(|| unsafe { libc::open(path.as_ptr(), flags, mode) as isize })? as i32;
    // SAFETY: open returned it just now; it is ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer() -> (Writer, PathBuf) {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let dir = std::env::temp_dir().join(format!(
            "cuwarden-writer-{}-{}",
            std::process::id(),
            COUNTER.fetch_add(1, Ordering::Relaxed)
        ));
        std::fs::create_dir(&dir).unwrap();
        (Writer::create(&dir, &Identity::of_this_process()).unwrap(), dir)
    }

    #[test]
    fn records_grow_and_never_move() {
        let (writer, dir) = writer();
        let first = writer.new_records(1).unwrap().start;
        let place = std::ptr::from_ref(writer.record(first).unwrap());
        for _ in 0..200 {
            let range = writer.new_records(64).unwrap();
            for index in range {
                writer.record(index).unwrap().address.store(u64::from(index) + 1, Ordering::Relaxed);
            }
        }
        assert_eq!(place, std::ptr::from_ref(writer.record(first).unwrap()));
        let copy = writer.area_copy(Area::Records).concat();
        for index in 1..200u64 * 64 {
            let at = index as usize * RECORD_BYTES;
            assert_eq!(u64::from_ne_bytes(copy[at..at + 8].try_into().unwrap()), index + 1);
        }
        assert!(writer.record(u32::MAX).is_none());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn entries_do_not_straddle_extents() {
        let (writer, dir) = writer();
        assert_eq!(writer.append(Area::Notes, &[7; 6], 4), None, "no word there");
        assert_eq!(writer.append(Area::Notes, &[7; 16], 2), None, "no aligned word there");
        let entry = [7u8; 5000];
        let offsets: Vec<u64> = (0..20).map(|_| writer.append(Area::Notes, &entry, 4).unwrap()).collect();
        for offset in offsets {
            let (extent, within) = locate(Area::Notes, offset);
            assert!(within + 5000 <= Area::Notes.first_extent_bytes() << extent);
            let bytes = writer.area_copy(Area::Notes).concat();
            assert_eq!(&bytes[offset as usize..offset as usize + 5000], &entry);
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn records_are_never_handed_out_twice() {
        let (writer, dir) = writer();
        writer.next_record.store(u32::MAX - 40, Ordering::Relaxed);
        for _ in 0..4 {
            assert_eq!(writer.new_records(64), None);
        }
        assert_eq!(writer.next_record.load(Ordering::Relaxed), u32::MAX - 40, "a failure takes none");
        writer.next_module.store(u32::from(u16::MAX), Ordering::Relaxed);
        assert_eq!(writer.next_module_id(), Some(u32::from(u16::MAX)));
        for _ in 0..4 {
            assert_eq!(writer.next_module_id(), None);
        }
        assert_eq!(writer.next_module.load(Ordering::Relaxed), 1 << 16);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn no_records_through_a_link() {
        let (writer, dir) = writer();
        drop(writer);
        std::fs::rename(dir.join("proc"), dir.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(dir.join("elsewhere"), dir.join("proc")).unwrap();
        let error = Writer::create(&dir, &Identity::of_this_process()).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
        assert_eq!(std::fs::read_dir(dir.join("elsewhere")).unwrap().count(), 1);
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// A timer that is quicker than the file system would otherwise interrupt it for ever.
    #[test]
    fn signals_do_not_disturb() {
        extern "C" fn handler(_: i32) {}
        let (writer, dir) = writer();
        let stop = AtomicBool::new(false);
        // SAFETY: a handler that does nothing, for a signal that nobody else here uses.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as extern "C" fn(i32) as usize;
            libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
        }
        // SAFETY: no arguments.
        let me = unsafe { libc::pthread_self() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: the thread waits for this one.
                    unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                }
            });
            let made = (0..60_000).all(|_| writer.new_records(16).is_some());
            stop.store(true, Ordering::Relaxed);
            assert!(made && writer.file_is_complete());
        });
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_cancelled_thread_writes_on() {
        assert!(crate::event::cancel::tests::survives_cancel(|| {
            let (writer, dir) = writer();
            assert!((0..100).all(|_| writer.new_records(64).is_some()));
            assert!((0..100).all(|_| writer.append(Area::Notes, &[7; 5000], 4).is_some()));
            let _no_cancel = crate::event::cancel::NoCancel::new();
            std::fs::remove_dir_all(dir).unwrap();
        }));
    }

    #[test]
    fn a_removed_file_costs_nothing_but_the_post_mortem() {
        let (writer, dir) = writer();
        std::fs::remove_dir_all(dir).unwrap();
        let range = writer.new_records(5000).unwrap();
        writer.record(range.end - 1).unwrap().bytes.store(9, Ordering::Relaxed);
        assert!(!writer.file_is_complete());
    }
}
