//! Tiny ELF files, for processors and C libraries that no compiler here builds for.

#![allow(dead_code, reason = "each test binary uses its own part")]

/// What is in the file.
#[derive(Clone, Default)]
pub struct Elf<'a> {
    pub interpreter: Option<&'a str>,
    pub needed: &'a [&'a str],
    pub rpath: Option<&'a str>,
    pub runpath: Option<&'a str>,
    /// A part of the file that is neither code nor a name.
    pub data: &'a [u8],
    /// Machine code, in an executable segment.
    pub code: &'a [u8],
}

pub const X86_64: u16 = 62;
pub const AARCH64: u16 = 183;
pub const I386: u16 = 3;

/// A program for x86-64.
pub fn program(elf: &Elf) -> Vec<u8> {
    for_machine(elf, X86_64)
}

/// The code that cudaRuntimeGetVersion ends in.
pub fn answer(version: u32) -> Vec<u8> {
    let [a, b, c, d] = version.to_le_bytes();
    vec![0x48, 0x85, 0xff, 0x74, 0x0b, 0xc7, 0x07, a, b, c, d, 0x31, 0xc0, 0xc3]
}

/// Header, four segments, and after them what they hold; addresses are places in the file.
pub fn for_machine(elf: &Elf, machine: u16) -> Vec<u8> {
    const HEADER: usize = 64;
    const SEGMENT: usize = 56;
    let start = HEADER + 4 * SEGMENT;
    let mut body: Vec<u8> = Vec::new();
    let at = |body: &Vec<u8>| (start + body.len()) as u64;
    let (text, text_size) = (at(&body), elf.code.len() as u64);
    body.extend_from_slice(elf.code);
    let interpreter = at(&body);
    let name = elf.interpreter.map(|path| [path.as_bytes(), b"\0"].concat()).unwrap_or_default();
    body.extend_from_slice(&name);
    let strings_at = at(&body);
    let mut strings = vec![0];
    let mut entries: Vec<(u64, u64)> = Vec::new();
    let tagged = elf.needed.iter().map(|name| (1, *name));
    for (tag, text) in
        tagged.chain(elf.rpath.map(|list| (15, list))).chain(elf.runpath.map(|list| (29, list)))
    {
        entries.push((tag, strings.len() as u64));
        strings.extend_from_slice(text.as_bytes());
        strings.push(0);
    }
    entries.extend([(5, strings_at), (10, strings.len() as u64), (0, 0)]);
    body.extend_from_slice(&strings);
    body.resize(body.len().next_multiple_of(8), 0);
    let dynamic = at(&body);
    for (tag, value) in &entries {
        body.extend_from_slice(&tag.to_le_bytes());
        body.extend_from_slice(&value.to_le_bytes());
    }
    body.extend_from_slice(elf.data);
    let whole = at(&body);
    let segments: [(u32, u32, u64, u64); 4] = [
        (1, 4, 0, whole),
        (1, 5, text, text_size),
        (if elf.interpreter.is_some() { 3 } else { 0 }, 4, interpreter, name.len() as u64),
        (if elf.needed.is_empty() { 0 } else { 2 }, 6, dynamic, entries.len() as u64 * 16),
    ];
    let mut out = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    out.extend_from_slice(&3u16.to_le_bytes());
    out.extend_from_slice(&machine.to_le_bytes());
    out.extend_from_slice(&1u32.to_le_bytes());
    for word in [text, HEADER as u64, 0] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(&0u32.to_le_bytes());
    for half in [HEADER as u16, SEGMENT as u16, 4, 0, 0, 0] {
        out.extend_from_slice(&half.to_le_bytes());
    }
    for (kind, flags, offset, size) in segments {
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        for word in [offset, offset, offset, size, size, 8] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }
    out.extend_from_slice(&body);
    out
}

/// The header of a 32-bit program, and nothing.
pub fn of_32_bits(machine: u16) -> Vec<u8> {
    let mut out = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    out.extend_from_slice(&2u16.to_le_bytes());
    out.extend_from_slice(&machine.to_le_bytes());
    out.resize(84, 0);
    out
}
