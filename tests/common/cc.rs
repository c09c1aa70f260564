//! Compiles the C programs of the tests.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::artefacts::{root, target_dir};

/// Compiles a C file (a path below the repository's root) into a program. The result is kept under target/ by the
/// hash of the file and the arguments, so that it is compiled once, whichever test asks first.
#[track_caller]
pub fn program(source: &str, arguments: &[&str]) -> PathBuf {
    compile(source, "", arguments)
}

/// The same for a shared library with the given file name.
#[track_caller]
pub fn library(source: &str, file_name: &str, arguments: &[&str]) -> PathBuf {
    let arguments: Vec<&str> = ["-shared", "-fPIC"].iter().chain(arguments).copied().collect();
    compile(source, file_name, &arguments)
}

#[track_caller]
fn compile(source: &str, file_name: &str, arguments: &[&str]) -> PathBuf {
    let path = root().join(source);
    let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("sources have plain names");
    let folder = target_dir().join("test-programs").join(format!("{stem}-{:016x}", hash(&(text, arguments))));
    let result = folder.join(if file_name.is_empty() { stem } else { file_name });
    if result.exists() {
        return result;
    }
    std::fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    // Several tests may get here at once; each compiles into a file of its own, and a rename is atomic.
    let fresh = folder.join(format!("new-{}-{:?}", std::process::id(), std::thread::current().id()));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Werror", "-pthread", "-o"]).arg(&fresh);
    // The program's own folder is in reach of #include; the source goes before the libraries that it needs.
    cc.arg("-I").arg(path.parent().unwrap_or(Path::new("/"))).arg(&path).args(arguments).arg("-ldl");
    super::process::run(&mut cc).succeeded();
    std::fs::rename(&fresh, &result).unwrap_or_else(|e| panic!("{}: {e}", result.display()));
    result
}

pub(super) fn hash(content: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}
