//! The modules of the process, for turning addresses into module and offset.

use super::loader::{Loaded, visit};
use core::ops::{ControlFlow, Range};

/// A module as the loader has it. Borrowed for the time of the call: copy what is to be kept.
#[derive(Clone, Debug)]
pub struct ModuleInfo<'a> {
    /// The path by which the loader knows it. Empty for the main program, which is `/proc/self/exe`.
    pub path: &'a [u8],
    /// The main program?
    pub is_main: bool,
    /// What the loader added to the addresses in the file: address − `bias` is the address within the module.
    pub bias: u64,
    /// From the first to the last executable segment, in memory.
    pub text: Range<u64>,
    /// The linker's build id; empty if there is none.
    pub build_id: &'a [u8],
}

/// Calls `f` for each module that has code, main program first. Returns whether the loader could be asked.
///
/// `f` runs under the loader's lock: it must not load or unload anything, nor wait for a thread that does.
pub fn each_module(f: &mut dyn FnMut(ModuleInfo<'_>)) -> bool {
    visit(&mut |module, _| {
        if let Some(info) = describe(module) {
            f(info);
        }
        ControlFlow::Continue(())
    })
}

fn describe<'a>(module: &Loaded<'a>) -> Option<ModuleInfo<'a>> {
    let text = module
        .segments(libc::PT_LOAD)
        .filter(|segment| segment.p_flags & libc::PF_X != 0)
        .filter_map(|segment| module.range(segment))
        .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
    Some(ModuleInfo {
        path: module.name,
        is_main: module.is_main,
        bias: module.bias,
        text: text.0..text.1,
        build_id: build_id(module).unwrap_or(&[]),
    })
}

fn build_id<'a>(module: &Loaded<'a>) -> Option<&'a [u8]> {
    module.segments(libc::PT_NOTE).find_map(|segment| {
        let (start, end) = module.range(segment)?;
        let length = usize::try_from(end.checked_sub(start)?).ok()?;
        let notes = module.constant_data(start)?.get(..length)?;
        let align = if segment.p_align == 8 { 8 } else { 4 };
        build_id_in(notes, align)
    })
}

/// The build id among the notes of a segment: each is three numbers, a name and a description, both padded.
fn build_id_in(notes: &[u8], align: usize) -> Option<&[u8]> {
    const NT_GNU_BUILD_ID: u32 = 3;
    const LONGEST: usize = 64;
    const MOST_NOTES: usize = 64;
    let mut rest = notes;
    for _ in 0..MOST_NOTES {
        let (name_size, tail) = number(rest)?;
        let (size, tail) = number(tail)?;
        let (kind, tail) = number(tail)?;
        let name = tail.get(..usize::try_from(name_size).ok()?)?;
        let size = usize::try_from(size).ok()?;
        // The header has 12 bytes, so the padding counts from the note's start, not from the name's.
        let from = name.len().checked_add(12)?.checked_next_multiple_of(align)?;
        let end = from.checked_add(size)?;
        let content = rest.get(from..end)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" && (1..=LONGEST).contains(&size) {
            return Some(content);
        }
        rest = rest.get(end.checked_next_multiple_of(align)?..)?;
    }
    None
}

fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use super::build_id_in;

    fn note(kind: u32, name: &[u8], content: &[u8], align: usize) -> Vec<u8> {
        let mut note = Vec::new();
        for number in [name.len() as u32, content.len() as u32, kind] {
            note.extend(number.to_le_bytes());
        }
        for part in [name, content] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(align), 0);
        }
        note
    }

    #[test]
    fn finds_the_build_id_behind_other_notes() {
        for align in [4, 8] {
            let mut notes = note(5, b"GNU\0", &[1; 16], align);
            notes.extend(note(3, b"Other\0", &[2; 20], align));
            notes.extend(note(3, b"GNU\0", &[3; 20], align));
            assert_eq!(build_id_in(&notes, align), Some(&[3; 20][..]));
            for length in 0..notes.len() - 4 {
                assert_eq!(build_id_in(&notes[..length], align), None);
            }
        }
    }

    #[test]
    fn impossible_sizes_end_the_search() {
        let mut notes = note(3, b"GNU\0", &[3; 20], 4);
        notes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(build_id_in(&notes, 4), None);
        assert_eq!(build_id_in(&note(3, b"GNU\0", &[], 4), 4), None);
    }
}
