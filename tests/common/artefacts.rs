//! Where the things under test are.
//!
//! Tests run on what `cargo build --workspace` put into the profile's folder, so build and test with the same
//! profile: `cargo build --release --workspace && cargo test --release` (scripts/test does both).

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `target/release`, or wherever cargo was told to put it: the folder above the one that holds this test.
pub fn profile_dir() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    test.parent().and_then(Path::parent).expect("a test lies in deps/").to_path_buf()
}

/// For what the tests build themselves; kept between runs.
pub fn target_dir() -> PathBuf {
    profile_dir().parent().expect("the profile lies in the target folder").to_path_buf()
}

/// `libcuwarden.so`, checked to be no older than its sources: a test of yesterday's library proves nothing.
pub fn shim() -> PathBuf {
    let shim = built("libcuwarden.so");
    let made = modified(&shim);
    let listing = std::fs::read_to_string(shim.with_extension("d")).unwrap_or_default();
    let sources = listing.split_once(": ").map_or("", |(_, sources)| sources);
    for source in sources.split_whitespace().map(Path::new).filter(|source| source.exists()) {
        assert!(modified(source) <= made, "{} is newer than {}: {BUILD}", source.display(), shim.display());
    }
    shim
}

/// The command line, `cuwarden`.
pub fn cli() -> PathBuf {
    built("cuwarden")
}

const BUILD: &str = "run `cargo build --release --workspace`, then the tests with --release";

fn built(name: &str) -> PathBuf {
    let path = profile_dir().join(name);
    assert!(path.exists(), "{} does not exist: {BUILD}", path.display());
    path
}

fn modified(path: &Path) -> SystemTime {
    let meta = std::fs::metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    meta.modified().expect("Linux keeps modification times")
}
