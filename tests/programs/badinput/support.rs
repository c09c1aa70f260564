//! What the tests of bad input share: the program that allocates steadily, and odd places for its stderr.

// Each test binary compiles all of this and uses a part of it.
#![allow(dead_code)]

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::books;
use crate::common::artefacts;
use crate::common::process::{Running, run, start};
use crate::common::sim::{Sim, clean};

pub fn steady(sim: &Sim) -> PathBuf {
    books::program(sim, "badinput/steady.c")
}

/// What `steady N` leaves: 512 bytes for each that it does not free.
pub fn left_by(count: u64) -> u64 {
    (count - count / 3) * 512
}

#[track_caller]
pub fn assert_left(sim: &Sim, report: &Value, count: u64) {
    books::agree(sim, report);
    assert_eq!(report["devices"][0]["live_bytes"], left_by(count), "{report:#}");
}

/// What `cuwarden report` makes of the one record file in a shared directory.
#[track_caller]
pub fn post_mortem(shared: &Path) -> Value {
    let mut cli = clean(artefacts::cli());
    let out = run(cli.args(["report", "--format", "json"]).arg(shared.join("proc"))).succeeded();
    let told: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", out.told()));
    match told.as_array().map(Vec::as_slice) {
        Some([report]) => report.clone(),
        Some(reports) => panic!("one report was expected: {reports:#?}"),
        None => told,
    }
}

pub fn pipe() -> [std::fs::File; 2] {
    use std::os::fd::FromRawFd;
    let mut ends = [0; 2];
    // SAFETY: a place for two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: both were just made and are nobody else's.
    ends.map(|fd| unsafe { std::fs::File::from_raw_fd(fd) })
}

/// Starts the command with this as its stderr, or with none.
pub fn start_with_stderr(command: &mut Command, stderr: Option<&std::fs::File>) -> Running {
    let fd = stderr.map(AsRawFd::as_raw_fd);
    // SAFETY: between fork and exec; plain system calls on descriptors that are there.
    unsafe {
        command.pre_exec(move || {
            match fd {
                Some(fd) => libc::dup2(fd, 2),
                None => libc::close(2),
            };
            Ok(())
        });
    }
    start(command)
}
