//! What an ELF file is and needs, read from its segments: stripped files have no sections to rely on.

use std::fs::File;
use std::path::Path;

use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, ReadRef};

/// What matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elf {
    /// Of the processor that this command is built for.
    pub is_native: bool,
    /// EM_…
    pub machine: u16,
    /// The loader that it asks for.
    pub interpreter: Option<String>,
    /// DT_NEEDED, in order.
    pub needed: Vec<String>,
    /// DT_RPATH, unless there is a RUNPATH.
    pub rpath: Vec<String>,
    /// DT_RUNPATH.
    pub runpath: Vec<String>,
    /// It has a dynamic section.
    pub is_dynamic: bool,
}

/// Why it is none that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOne {
    /// It cannot be opened.
    Unreadable,
    /// For 32-bit processes, of this EM_….
    Is32Bit(u16),
    /// No ELF file, or damaged.
    NoElf,
}

const NATIVE: u16 = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64.0 } else { elf::EM_X86_64.0 };

/// Reads it.
pub fn read(path: &Path) -> Result<Elf, NotOne> {
    let is_file = std::fs::metadata(path).is_ok_and(|meta| meta.is_file());
    let file = File::open(path).ok().filter(|_| is_file).ok_or(NotOne::Unreadable)?;
    parse(&ReadCache::new(file))
}

/// The executable segments of a file.
pub fn code(bytes: &[u8]) -> Vec<&[u8]> {
    let Ok(header) = FileHeader64::<Endianness>::parse(bytes) else { return Vec::new() };
    let Ok(endian) = header.endian() else { return Vec::new() };
    let segments = header.program_headers(endian, bytes).unwrap_or_default();
    let of_code = segments.iter().filter(|segment| {
        segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian).0 & elf::PF_X.0 != 0
    });
    of_code.filter_map(|segment| segment.data(endian, bytes).ok()).collect()
}

/// A processor by the name that people know it by.
pub fn processor(machine: u16) -> String {
    let known = [
        (elf::EM_386, "i386"),
        (elf::EM_X86_64, "x86-64"),
        (elf::EM_ARM, "32-bit ARM"),
        (elf::EM_AARCH64, "aarch64"),
        (elf::EM_PPC64, "ppc64"),
        (elf::EM_RISCV, "RISC-V"),
        (elf::EM_S390, "s390"),
    ];
    let name = known.iter().find(|(number, _)| number.0 == machine);
    name.map_or_else(|| format!("machine {machine}"), |(_, name)| (*name).to_owned())
}

fn parse<'data, R: ReadRef<'data>>(data: R) -> Result<Elf, NotOne> {
    let ident = data.read_bytes_at(0, 16).map_err(|()| NotOne::NoElf)?;
    if !ident.starts_with(b"\x7fELF") {
        return Err(NotOne::NoElf);
    }
    if ident.get(4) == Some(&1) {
        let is_big = ident.get(5) == Some(&2);
        let machine = data.read_bytes_at(18, 2).ok().and_then(|bytes| <[u8; 2]>::try_from(bytes).ok());
        let machine = machine.map(if is_big { u16::from_be_bytes } else { u16::from_le_bytes });
        return Err(NotOne::Is32Bit(machine.unwrap_or(0)));
    }
    whole(data).map_err(|_| NotOne::NoElf)
}

fn whole<'data, R: ReadRef<'data>>(data: R) -> object::read::Result<Elf> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let machine = header.e_machine(endian).0;
    let mut found = Elf { is_native: machine == NATIVE, machine, ..Elf::default() };
    let segments = header.program_headers(endian, data)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for segment in segments {
        if let Some(interpreter) = segment.interpreter(endian, data)? {
            found.interpreter = Some(text(interpreter));
        }
        let Some(entries) = segment.dynamic(endian, data)? else { continue };
        found.is_dynamic = true;
        let value = |wanted| {
            entries.iter().find(|entry| entry.d_tag(endian) == wanted).map(|entry| entry.d_val(endian))
        };
        let (Some(at), Some(size)) = (value(elf::DT_STRTAB), value(elf::DT_STRSZ)) else { continue };
        let mut strings: &[u8] = &[];
        for load in segments {
            if let Ok(Some(bytes)) = load.data_range(endian, data, at, size) {
                strings = bytes;
            }
        }
        let name = |at: u64| {
            let rest = usize::try_from(at).ok().and_then(|at| strings.get(at..)).unwrap_or_default();
            text(rest.split(|byte| *byte == 0).next().unwrap_or_default())
        };
        let folders =
            |list: String| list.split(':').filter(|one| !one.is_empty()).map(str::to_owned).collect();
        for entry in entries {
            let (tag, value) = (entry.d_tag(endian), entry.d_val(endian));
            if tag == elf::DT_NEEDED {
                found.needed.push(name(value));
            } else if tag == elf::DT_RPATH {
                found.rpath = folders(name(value));
            } else if tag == elf::DT_RUNPATH {
                found.runpath = folders(name(value));
            }
        }
    }
    if !found.runpath.is_empty() {
        found.rpath.clear();
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_and_what_is_no_elf() {
        let this = read(&std::env::current_exe().unwrap()).unwrap();
        assert!(this.is_native && this.is_dynamic, "{this:?}");
        assert!(this.needed.iter().any(|name| name.starts_with("libc.so")), "{this:?}");
        assert!(this.interpreter.is_some_and(|path| path.contains("ld-")));
        assert_eq!(read(Path::new("/etc/passwd")), Err(NotOne::NoElf));
        assert_eq!(read(Path::new("/none")), Err(NotOne::Unreadable));
        assert_eq!(parse(&b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0"[..]), Err(NotOne::Is32Bit(0)));
        assert_eq!(parse(&b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0"[..]), Err(NotOne::NoElf));
    }
}
