//! Small disks.

use std::path::PathBuf;
use std::process::Command;

/// A file system of a size, in memory, until it is dropped.
pub struct SmallDisk(pub PathBuf);

impl SmallDisk {
    /// `None`: nothing can be mounted here.
    pub fn new(at: PathBuf, bytes: u64) -> Option<Self> {
        std::fs::create_dir(&at).expect("the folder is ours");
        let size = format!("size={bytes},mode=0700");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&at).status();
        mount.is_ok_and(|status| status.success()).then_some(Self(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}
