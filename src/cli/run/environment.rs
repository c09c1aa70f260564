//! What the program finds in its environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

/// Variables that are set for the program, over what it inherits.
pub struct Environment {
    set: Vec<(&'static str, OsString)>,
}

impl Environment {
    /// The shim is preloaded, and its processes share `directory`.
    pub fn new(shim: &Path, directory: &Path) -> Environment {
        let preload = with_preload(std::env::var_os("LD_PRELOAD").as_deref(), shim);
        let mut environment = Environment { set: Vec::new() };
        environment.set("LD_PRELOAD", preload);
        environment.set("CUWARDEN_DIR", directory);
        environment
    }

    pub fn set(&mut self, name: &'static str, value: impl AsRef<OsStr>) {
        self.set.push((name, value.as_ref().to_owned()));
    }

    /// Adds to labels that are set already; a label that is given again is replaced.
    pub fn add_labels(&mut self, labels: &[String]) {
        if labels.is_empty() {
            return;
        }
        let key = |pair: &str| pair.split('=').next().unwrap_or_default().trim().to_owned();
        let inherited = std::env::var("CUWARDEN_LABELS").unwrap_or_default();
        let kept = inherited
            .split(',')
            .filter(|pair| !pair.trim().is_empty() && !labels.iter().any(|new| key(new) == key(pair)))
            .map(str::to_owned);
        let all: Vec<String> = kept.chain(labels.iter().cloned()).collect();
        self.set("CUWARDEN_LABELS", all.join(","));
    }

    /// Puts a folder before all others in which libraries are looked for.
    pub fn search_first(&mut self, folder: &Path) {
        let mut path = folder.as_os_str().to_owned();
        if let Some(rest) = std::env::var_os("LD_LIBRARY_PATH").filter(|rest| !rest.is_empty()) {
            path.push(":");
            path.push(rest);
        }
        self.set("LD_LIBRARY_PATH", path);
    }

    pub fn apply(&self, command: &mut Command) {
        command.envs(self.set.iter().map(|(name, value)| (name, value)));
    }
}

/// `LD_PRELOAD` with the shim at its end: sanitizers insist on the first place, and what is there already
/// keeps its order. Entries are separated by colons or blanks.
fn with_preload(existing: Option<&OsStr>, shim: &Path) -> OsString {
    let existing = existing.unwrap_or_default();
    let mut entries = existing.as_bytes().split(|byte| matches!(byte, b':' | b' ' | b'\t' | b'\n'));
    if entries.any(|entry| entry == shim.as_os_str().as_bytes()) {
        return existing.to_owned();
    }
    let mut preload = existing.to_owned();
    if !preload.is_empty() {
        preload.push(":");
    }
    preload.push(shim);
    preload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_keep_their_place_in_the_preload_list() {
        let with = |existing: &str| with_preload(Some(existing.as_ref()), Path::new("/l/libcuwarden.so"));
        assert_eq!(with_preload(None, Path::new("/l/libcuwarden.so")), "/l/libcuwarden.so");
        assert_eq!(with(""), "/l/libcuwarden.so");
        assert_eq!(with("libasan.so.8"), "libasan.so.8:/l/libcuwarden.so");
        assert_eq!(with("/a.so b.so"), "/a.so b.so:/l/libcuwarden.so");
        assert_eq!(with("/l/libcuwarden.so:/b.so"), "/l/libcuwarden.so:/b.so");
        assert_eq!(with("/b.so /l/libcuwarden.so"), "/b.so /l/libcuwarden.so");
        assert_eq!(with("/l/libcuwarden.so.old"), "/l/libcuwarden.so.old:/l/libcuwarden.so");
    }
}
