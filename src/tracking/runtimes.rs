//! The CUDA runtimes that were seen in this process.

use crate::record::layout::Header;
use core::ops::Range;
use std::sync::atomic::Ordering;

/// Shared runtimes that are loaded at a time; more are handed through.
pub const MOST_LOADED: usize = 8;

/// A runtime: libcudart, or a module that it is linked into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// Its code.
    pub text: Range<u64>,
    /// The file; empty for the main program.
    pub path: Vec<u8>,
    /// Its version as CUDA numbers it.
    pub version: u32,
    /// False: it may be newer.
    pub is_exact: bool,
    /// Looked at when it called by itself, after all of its look-ups: no more can be known.
    pub is_final: bool,
}

/// All that are loaded, as far as somebody looked.
#[derive(Debug, Default)]
pub struct Runtimes {
    known: Vec<Runtime>,
    /// Code of modules that call cuInit and are no runtimes.
    others: Vec<Range<u64>>,
    /// The loader's count of unloaded modules at that time.
    unloads: u64,
    said: Vec<(Vec<u8>, u32)>,
    /// The driver's cuInit succeeded.
    pub is_driver_started: bool,
}

impl Runtimes {
    /// Forgets them when a module was unloaded since: another may lie in its place.
    pub fn check(&mut self, unloads: u64) {
        if self.unloads != unloads {
            self.known.clear();
            self.others.clear();
            self.unloads = unloads;
        }
    }

    /// The runtime that holds this code.
    pub fn holding(&self, code: u64) -> Option<&Runtime> {
        self.known.iter().find(|runtime| runtime.text.contains(&code))
    }

    /// Notes a runtime. What was known of that module is replaced.
    pub fn add(&mut self, runtime: Runtime) {
        self.known.retain(|known| known.text.start != runtime.text.start);
        self.known.push(runtime);
    }

    /// Notes the code of a module that is no runtime.
    pub fn add_other(&mut self, text: Range<u64>) {
        if !self.others.contains(&text) {
            self.others.push(text);
        }
    }

    /// True for code of a module that is known to be no runtime.
    pub fn is_other(&self, code: u64) -> bool {
        self.others.iter().any(|text| text.contains(&code))
    }

    /// True when nothing has been said of this one yet.
    pub fn is_news(&mut self, path: &[u8], version: u32) -> bool {
        let is_news = !self.said.iter().any(|said| (&*said.0, said.1) == (path, version));
        if is_news {
            self.said.push((path.to_vec(), version));
        }
        is_news
    }
}

/// Notes a version in the record file, once; answers its place there. `None`: there is no room.
pub fn note_version(header: &Header, version: u32) -> Option<usize> {
    for (at, place) in header.runtime_versions.iter().enumerate() {
        // Relaxed: the number is all there is. Another thread may have been quicker, with this version or another.
        match place.compare_exchange(0, version, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(at),
            Err(known) if known == version => return Some(at),
            Err(_) => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime(start: u64, version: u32) -> Runtime {
        Runtime { text: start..start + 10, path: vec![b'x'], version, is_exact: true, is_final: true }
    }

    #[test]
    fn what_was_unloaded_is_forgotten_and_what_was_said_is_not() {
        let mut runtimes = Runtimes::default();
        runtimes.check(3);
        runtimes.add(runtime(100, 12090));
        runtimes.add(runtime(200, 11080));
        runtimes.check(3);
        assert_eq!(runtimes.holding(109).map(|known| known.version), Some(12090));
        assert_eq!(runtimes.holding(110), None);
        runtimes.add(runtime(100, 12080));
        assert_eq!(runtimes.holding(100).map(|known| known.version), Some(12080));
        assert!(
            runtimes.is_news(b"x", 12080) && !runtimes.is_news(b"x", 12080) && runtimes.is_news(b"y", 12080)
        );
        runtimes.check(4);
        assert_eq!(runtimes.holding(200), None);
        assert!(!runtimes.is_other(305));
        assert!(!runtimes.is_news(b"x", 12080));
    }
}
