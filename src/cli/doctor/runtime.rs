//! Which CUDA runtime lies in a file that is not loaded.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::elf;
use crate::policy::versions::CudaVersion;
use crate::policy::versions::runtime::{Identified, identify};
use crate::stack::cudart::{self, Found};

/// A static runtime names these; a program that uses the driver alone has no use for the first.
const STATIC: [&[u8]; 2] = [b"cudaErrorInsufficientDriver", b"cuGetProcAddress"];
/// Of a file that is searched.
const MOST_BYTES: u64 = 512 << 20;

/// A runtime that would be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    /// The file that it is or lies in.
    pub path: String,
    /// `None`: it is there, and which one could not be read.
    pub version: Option<Identified>,
}

/// Of a libcudart, by its code, its name or the node of its symbols.
pub fn shared(here: &Path, real: &str) -> Option<Identified> {
    let bytes = read(here)?;
    let found = Found {
        path: real.as_bytes().to_vec(),
        is_shared_runtime: true,
        answers: answers(&bytes),
        node: cudart::node_of_file(&bytes),
        ..Found::default()
    };
    identify(&found, None)
}

/// In a program or another library. `None`: there is none in it. `Some(None)`: its version cannot be told.
pub fn linked_in(here: &Path) -> Option<Option<Identified>> {
    let bytes = read(here)?;
    let has = |words: &[u8]| bytes.windows(words.len()).any(|window| window == words);
    STATIC.iter().all(|words| has(words)).then(|| {
        let version = answers(&bytes).and_then(CudaVersion::from_number);
        version.map(|version| Identified { version, is_exact: true })
    })
}

/// As people read it: a version that is not exact is the lowest that it can be.
pub fn shown(known: Identified) -> String {
    if known.is_exact { known.version.to_string() } else { format!("{} or newer", known.version) }
}

fn read(here: &Path) -> Option<Vec<u8>> {
    let file = File::open(here).ok().filter(|file| file.metadata().is_ok_and(|meta| meta.is_file()))?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Segments that disagree tell nothing.
fn answers(bytes: &[u8]) -> Option<u32> {
    let mut found: Vec<u32> = elf::code(bytes).into_iter().filter_map(cudart::answers_of).collect();
    found.dedup();
    match found[..] {
        [one] => Some(one),
        _ => None,
    }
}
