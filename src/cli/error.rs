//! Why a command could not do its work.

use std::fmt::Display;
use std::io;
use std::path::Path;

/// Used wrongly: an argument makes no sense.
pub const USED_WRONGLY: u8 = 64;
/// Input cannot be read.
pub const NO_INPUT: u8 = 66;
/// Something is wrong that no argument can change.
pub const INTERNAL: u8 = 70;
/// The answer cannot be written.
pub const NO_OUTPUT: u8 = 74;
/// `run` itself could not do its part; the program was not started.
pub const NOT_RUN: u8 = 125;
/// The program is there and cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// There is no such program.
pub const NOT_FOUND: u8 = 127;

/// A message that names the thing, the value and the way out; and the exit status.
#[derive(Debug)]
pub struct Failure {
    /// Exit status of the process.
    pub status: u8,
    /// For stderr; empty = there is nothing to say.
    pub message: String,
}

impl Failure {
    /// The command cannot go on.
    pub fn new(status: u8, message: impl Display) -> Failure {
        Failure { status, message: message.to_string() }
    }

    /// A file or folder could not be worked with.
    pub fn path(status: u8, what: &str, path: &Path, error: &io::Error) -> Failure {
        Failure::new(status, format!("cannot {what} {}: {error}", path.display()))
    }
}
