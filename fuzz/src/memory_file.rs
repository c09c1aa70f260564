//! A file that is nowhere on a disk, used again for each input.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

pub struct MemoryFile {
    file: File,
    path: PathBuf,
}

impl MemoryFile {
    pub fn new(name: &CStr) -> MemoryFile {
        // SAFETY: a NUL-terminated name; the descriptor is ours alone.
        let file = unsafe {
            let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
            File::from_raw_fd(fd)
        };
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        MemoryFile { file, path }
    }

    /// Sets length and contents; what no piece covers is zero.
    pub fn set<'a>(&self, length: u64, pieces: impl IntoIterator<Item = (u64, &'a [u8])>) {
        self.file.set_len(0).expect("cut");
        self.file.set_len(length).expect("grow");
        for (offset, bytes) in pieces {
            let room = usize::try_from(length.saturating_sub(offset)).unwrap_or(usize::MAX);
            self.file.write_all_at(&bytes[..bytes.len().min(room)], offset).expect("write");
        }
    }

    /// A name for as long as this lives.
    pub fn path(&self) -> &PathBuf {
        &self.path
    }
}
