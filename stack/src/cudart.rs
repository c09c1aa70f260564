//! Which CUDA runtime lies in a module, read from its bytes. Nothing of it is called: in 11.7 and 11.8
//! `cudaRuntimeGetVersion` starts CUDA first, and called from within cuInit it waits for itself for ever.
//!
//! `cudaRuntimeGetVersion` ends in a function that stores a constant and answers 0; its code is the same in the eight
//! releases of libcudart from 11.7 to 13.5 that were looked at, shared and static, and says the version to the digit.

use super::arch;
use super::loader::{Loaded, visit};
use core::ops::{ControlFlow, Range};

/// What a module says of the runtime in it. Each part is there or not, and none is certain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The path by which the loader knows the module; empty for the main program.
    pub path: Vec<u8>,
    /// From the first to the last executable segment, in memory.
    pub text: Range<u64>,
    /// It is called libcudart.
    pub is_shared_runtime: bool,
    /// What its cudaRuntimeGetVersion answers.
    pub answers: Option<u32>,
    /// The digits of libcudart.so.11.0, the node of its symbols.
    pub node: Option<Vec<u8>>,
}

/// The shared runtimes of the process.
pub fn shared() -> Vec<Found> {
    let mut found = Vec::new();
    visit(&mut |module, _| {
        if is_called_cudart(module.name) {
            found.extend(text_of(module).map(|text| describe(module, text.clone(), Some(text))));
        }
        ControlFlow::Continue(())
    });
    found
}

/// The module that holds this code. In one that is not called libcudart a runtime is looked for near `near`, if that is
/// known.
pub fn holding(code: u64, near: Option<u64>) -> Option<Found> {
    /// A static runtime is half a MiB, in one piece.
    const NEAR: u64 = 1 << 20;
    let mut found = None;
    visit(&mut |module, _| {
        if !module.holds_code(code) {
            return ControlFlow::Continue(());
        }
        found = text_of(module).map(|text| {
            let around =
                |at: u64| at.saturating_sub(NEAR).max(text.start)..at.saturating_add(NEAR).min(text.end);
            let look_in = if is_called_cudart(module.name) { Some(text.clone()) } else { near.map(around) };
            describe(module, text, look_in)
        });
        ControlFlow::Break(())
    });
    found
}

/// The executable part of the module that holds this code.
pub fn text_holding(code: u64) -> Option<Range<u64>> {
    let mut found = None;
    visit(&mut |module, _| {
        if !module.holds_code(code) {
            return ControlFlow::Continue(());
        }
        found = text_of(module);
        ControlFlow::Break(())
    });
    found
}

/// True for `libcudart.so.12`, `libcudart.so.11.8.89`, and `libcudart-d0da41ae.so.11.0` as wheels rename it.
pub fn is_called_cudart(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let rest = name.strip_prefix(b"libcudart");
    rest.is_some_and(|rest| {
        matches!(rest.first(), Some(b'.' | b'-')) && rest.windows(3).any(|part| part == b".so")
    })
}

fn text_of(module: &Loaded<'_>) -> Option<Range<u64>> {
    module
        .segments(libc::PT_LOAD)
        .filter(|segment| segment.p_flags & libc::PF_X != 0)
        .filter_map(|segment| module.range(segment))
        .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
        .map(|(start, end)| start..end)
}

fn describe(module: &Loaded<'_>, text: Range<u64>, look_in: Option<Range<u64>>) -> Found {
    let is_shared_runtime = is_called_cudart(module.name);
    Found {
        path: module.name.to_vec(),
        text,
        is_shared_runtime,
        answers: look_in.and_then(|range| answers_in(module, range)),
        node: if is_shared_runtime { node_of(module) } else { None },
    }
}

fn answers_in(module: &Loaded<'_>, range: Range<u64>) -> Option<u32> {
    let code = module.constant_data(range.start)?;
    let length = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
    one_version(arch::stored_answers(code.get(..length).unwrap_or(code)))
}

/// The one version among the constants; several different ones are none.
fn one_version(answers: impl Iterator<Item = u32>) -> Option<u32> {
    // Other functions store small constants in the same way.
    let mut versions = answers.filter(|number| (5_000..100_000).contains(number) && number % 10 == 0);
    let first = versions.next()?;
    versions.all(|other| other == first).then_some(first)
}

/// What cudaRuntimeGetVersion in this code answers, if there is one: for files that are not loaded.
pub fn answers_of(code: &[u8]) -> Option<u32> {
    one_version(arch::stored_answers(code))
}

/// The digits of libcudart.so.11.0 among the first bytes of a file that is not loaded.
pub fn node_of_file(bytes: &[u8]) -> Option<Vec<u8>> {
    node_in(bytes.get(..FIRST).unwrap_or(bytes))
}

/// Names of symbol versions lie within so many bytes.
const FIRST: usize = 256 << 10;

/// The names of a library's symbol versions are among its first bytes, which are for reading only.
fn node_of(module: &Loaded<'_>) -> Option<Vec<u8>> {
    let start = module.segments(libc::PT_LOAD).filter_map(|segment| module.range(segment)).next()?.0;
    let bytes = module.constant_data(start)?;
    node_in(bytes.get(..FIRST).unwrap_or(bytes))
}

fn node_in(bytes: &[u8]) -> Option<Vec<u8>> {
    const NAME: &[u8] = b"\0libcudart.so.";
    let at = bytes.windows(NAME.len()).position(|part| part == NAME)?;
    let rest = bytes.get(at.checked_add(NAME.len())?..)?;
    let length = rest.iter().position(|byte| *byte == 0)?;
    rest.get(..length).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_runtimes() {
        for name in [
            "libcudart.so",
            "/a/libcudart.so.12",
            "/usr/local/cuda/lib64/libcudart.so.11.8.89",
            "x/libcudart-d0da41ae.so.11.0",
        ] {
            assert!(is_called_cudart(name.as_bytes()), "{name}");
        }
        for name in [
            "",
            "libcudart",
            "libcudart_static.a",
            "libcudarts.so",
            "libcuda.so.1",
            "/libcudart.so/x",
            "mylibcudart.so",
        ] {
            assert!(!is_called_cudart(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn several_versions_are_none() {
        let of = |numbers: &[u32]| one_version(numbers.iter().copied());
        assert_eq!(of(&[12090, 1, 12090, 0]), Some(12090));
        assert_eq!(of(&[12090, 11080]), None);
        assert_eq!(of(&[12095, 7, u32::MAX]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn the_node_of_symbols() {
        assert_eq!(node_in(b"abc\0libcudart.so.11.0\0x").as_deref(), Some(&b"11.0"[..]));
        for bytes in [&b""[..], b"libcudart.so.12\0", b"\0libcudart.so.12", b"\0libcudart.s"] {
            assert_eq!(node_in(bytes), None);
        }
    }

    #[test]
    fn this_program_is_found_by_its_code() {
        let code = this_program_is_found_by_its_code as *const () as u64;
        let found = holding(code, Some(code)).unwrap();
        assert!(found.text.contains(&code) && !found.is_shared_runtime && found.node.is_none());
        assert_eq!(text_holding(code), Some(found.text));
        assert_eq!(holding(0, None), None);
        assert_eq!(shared(), []);
    }
}
