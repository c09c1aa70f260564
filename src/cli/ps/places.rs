//! Where directories of this user are.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::cli::processes::directories_in_use;
use crate::process::default_directory;

/// Where it was looked, and what is there.
pub struct Found {
    /// Directories with a ledger or record files, each once.
    pub directories: Vec<PathBuf>,
    /// All places, for people.
    pub looked_at: Vec<String>,
}

/// The default directory, those that `cuwarden run` made, and those that running processes name.
pub fn find() -> Found {
    // SAFETY: no arguments, cannot fail.
    let user = unsafe { libc::geteuid() };
    let default = default_directory();
    let mut looked_at = vec![default.display().to_string()];
    let mut candidates = vec![default];
    let prefix = format!("cuwarden-{user}-run-");
    let mut parents = vec![PathBuf::from("/tmp"), std::env::temp_dir()];
    parents.dedup();
    for parent in parents {
        looked_at.push(parent.join(format!("{prefix}*")).display().to_string());
        let mut runs: Vec<PathBuf> = fs::read_dir(&parent)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
            .map(|entry| entry.path())
            .collect();
        runs.sort();
        candidates.extend(runs);
    }
    // In a folder where everybody may write, somebody else's means nothing.
    candidates.retain(|path| fs::symlink_metadata(path).is_ok_and(|m| m.is_dir() && m.uid() == user));
    looked_at.push("CUWARDEN_DIR of this and of all running processes of this user".to_owned());
    let named = std::env::var_os("CUWARDEN_DIR").filter(|path| !path.is_empty()).map(PathBuf::from);
    candidates.extend(named.into_iter().chain(directories_in_use()));
    Found { directories: each_once(candidates.into_iter().filter(|path| is_one(path))), looked_at }
}

/// Has it what processes leave in a CUWARDEN_DIR?
pub fn is_one(path: &Path) -> bool {
    path.join("ledger").symlink_metadata().is_ok() || path.join("proc").is_dir()
}

/// By device and inode: the same directory has many names.
fn each_once(paths: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let mut seen = HashSet::new();
    let is_new = |path: &PathBuf| fs::metadata(path).is_ok_and(|m| seen.insert((m.dev(), m.ino())));
    let mut paths: Vec<PathBuf> = paths.filter(is_new).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_two_names_is_one() {
        let temp = std::env::temp_dir().join(format!("cuwarden-places-{}", std::process::id()));
        fs::create_dir_all(temp.join("a/proc")).unwrap();
        std::os::unix::fs::symlink(temp.join("a"), temp.join("b")).unwrap();
        let names = ["a", "b", "a/../a", "none"].map(|name| temp.join(name));
        assert_eq!(each_once(names.into_iter()), [temp.join("a")]);
        assert!(is_one(&temp.join("a")) && is_one(&temp.join("b")) && !is_one(&temp));
        fs::remove_dir_all(temp).unwrap();
    }
}
