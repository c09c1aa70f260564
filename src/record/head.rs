//! The first words of a record file: whose it is, and whether it has ended. For those who look at many.

use super::identity::Identity;
use super::layout::{self, Header};
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// What they say. Hostile like everything in the file.
pub struct Head {
    /// In its own pid namespace.
    pub pid: u32,
    start_ticks: u64,
    pid_namespace: u64,
    boot_id: [u8; 16],
    /// CLOCK_REALTIME at an orderly end, in ns; 0 = none.
    pub ended_ns: u64,
}

impl Head {
    /// Reads them. `write`: the file is to be written to as well.
    pub fn read(path: &Path, write: bool) -> io::Result<(File, Head)> {
        // A FIFO would block, a link may lead anywhere.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).write(write).custom_flags(flags).open(path)?;
        let is_whole = file.metadata()?.is_file()
            && word(&file, offset_of!(Header, magic))? == layout::MAGIC
            && u32::from_le_bytes(bytes(&file, offset_of!(Header, version))?) == layout::VERSION;
        if !is_whole {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let head = Head {
            pid: u32::from_le_bytes(bytes(&file, offset_of!(Header, pid))?),
            start_ticks: word(&file, offset_of!(Header, start_ticks))?,
            pid_namespace: word(&file, offset_of!(Header, pid_namespace))?,
            boot_id: bytes(&file, offset_of!(Header, boot_id))?,
            ended_ns: word(&file, offset_of!(Header, ended_ns))?,
        };
        Ok((file, head))
    }

    /// True when a process of `identity`'s boot and pid namespace wrote it.
    pub fn is_neighbour(&self, identity: &Identity) -> bool {
        self.pid_namespace == identity.pid_namespace && self.boot_id == identity.boot_id
    }

    /// True when it is the file of this process, or of the program that it was before an exec.
    pub fn is_of(&self, identity: &Identity) -> bool {
        self.is_neighbour(identity) && self.pid == identity.pid && self.start_ticks == identity.start_ticks
    }

    /// When its process started, in clock ticks since boot.
    pub fn start_ticks(&self) -> u64 {
        self.start_ticks
    }
}

fn word(file: &File, offset: usize) -> io::Result<u64> {
    bytes(file, offset).map(u64::from_le_bytes)
}

fn bytes<const N: usize>(file: &File, offset: usize) -> io::Result<[u8; N]> {
    let mut buffer = [0; N];
    file.read_exact_at(&mut buffer, offset as u64)?;
    Ok(buffer)
}
