//! A sign of life where an answer takes long.

use std::time::{Duration, Instant};

use crate::cli::terminal::say;

/// Says once that it takes a while, after a second.
pub struct Progress {
    began: Instant,
    files: u64,
    has_spoken: bool,
}

impl Progress {
    /// Begins now.
    pub fn new() -> Progress {
        Progress { began: Instant::now(), files: 0, has_spoken: false }
    }

    /// One more file is about to be read.
    pub fn step(&mut self) {
        self.files += 1;
        if !self.has_spoken && self.began.elapsed() > Duration::from_secs(1) {
            self.has_spoken = true;
            say(&format!("reading record files, {} so far …", self.files));
        }
    }
}
