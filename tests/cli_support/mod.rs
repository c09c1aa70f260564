//! Shared by the tests of record files, reports and the command line.

// Each test binary compiles all of this and uses a part of it.
#![allow(dead_code)]
// And fails by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

pub mod record_file;

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder that is removed at the end.
pub struct Temp(PathBuf);

impl Temp {
    pub fn new(name: &str) -> Temp {
        let path = std::env::temp_dir().join(format!("cuwarden-test-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Temp(path.canonicalize().unwrap())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// Runs a command that must succeed, and answers its stdout.
#[track_caller]
pub fn must(command: &mut Command) -> String {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Compiles C source text.
#[track_caller]
pub fn compile(source: &Path, output: &Path, flags: &[&str]) {
    must(Command::new("cc").args(["-g", "-w", "-o"]).arg(output).arg(source).args(flags));
}
