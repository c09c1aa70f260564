//! Why a file cannot be read as a record file.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::record::layout::{HEADER_BYTES, VERSION};

/// A file that cannot be read as a record file at all.
#[derive(Debug)]
pub struct SnapshotError {
    /// The file; none when it was in memory.
    pub file: Option<PathBuf>,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a file.
#[derive(Debug)]
pub enum Fault {
    /// The operating system refused.
    Io(io::Error),
    /// A folder, a pipe or a device.
    NotAFile,
    /// It ends within the header, after this many bytes.
    CutShort(usize),
    /// It begins with other bytes than a record file.
    NotARecordFile,
    /// It is still all zero: the process died, or has not come further.
    NotBegun,
    /// It was written by another version of cuwarden.
    Version(u32),
    /// The header says that it has this size.
    HeaderSize(u32),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(path) => write!(f, "{}: {}", path.display().to_string().escape_debug(), self.fault),
            None => write!(f, "record file in memory: {}", self.fault),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Io(error) => write!(f, "cannot be read: {error}"),
            Fault::NotAFile => {
                write!(
                    f,
                    "is not a regular file. Name a record file (DIR/proc/…), a report or a folder of them"
                )
            }
            Fault::CutShort(bytes) => write!(
                f,
                "is cut short: {bytes} bytes, and a record file begins with {HEADER_BYTES} bytes of header. \
                 Nothing in it can be read; copy it again if it came from elsewhere"
            ),
            Fault::NotARecordFile => write!(
                f,
                "is not a record file of cuwarden. Record files lie in the folder proc of CUWARDEN_DIR"
            ),
            Fault::NotBegun => write!(
                f,
                "is empty so far: its process ended before its first CUDA call was done, or is in it now. \
                 There is nothing to report"
            ),
            Fault::Version(found) => write!(
                f,
                "has format version {found}, and this cuwarden reads version {VERSION}. \
                 Use the cuwarden that the program ran with"
            ),
            Fault::HeaderSize(found) => write!(
                f,
                "is damaged: its header claims {found} bytes instead of {HEADER_BYTES}. Nothing in it can be trusted"
            ),
        }
    }
}

impl std::error::Error for SnapshotError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            Fault::Io(error) => Some(error),
            _ => None,
        }
    }
}
