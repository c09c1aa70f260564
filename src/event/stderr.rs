//! Whether descriptor 2 still is a stderr.
//!
//! An application that closes it and opens a file or a connection gets the number again, and our lines would end up
//! among its data. No copy of the descriptor is kept: daemons close those that they do not know.

/// Which file a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
    mode: u32,
}

impl FileId {
    /// `None`: it is closed.
    pub fn of(fd: i32) -> Option<FileId> {
        // SAFETY: stat is plain data; zero is valid.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: a place for the answer; a descriptor that is closed gives an error.
        let known = unsafe { libc::fstat(fd, &mut status) } == 0;
        known.then_some(FileId { device: status.st_dev, inode: status.st_ino, mode: status.st_mode })
    }

    /// S_IFREG, S_IFIFO, …
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }

    fn is(&self, other: Option<FileId>) -> bool {
        other.is_some_and(|other| {
            (self.device, self.inode, self.kind()) == (other.device, other.inode, other.kind())
        })
    }
}

/// What descriptor 2 was when cuwarden began.
pub struct Stderr {
    was: Option<FileId>,
}

impl Stderr {
    /// As it is now.
    pub fn now() -> Stderr {
        // One that ends with an exec did not come from one: the application opened it.
        // SAFETY: no memory is touched.
        let flags = unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_GETFD) };
        let inherited = flags >= 0 && flags & libc::FD_CLOEXEC == 0;
        Stderr { was: FileId::of(libc::STDERR_FILENO).filter(|_| inherited) }
    }

    /// True when it may be written to: it is what it was, or a terminal or the like, or what stdout is too, as
    /// after the usual redirection of both to a log file.
    pub fn is_there(&self) -> bool {
        let Some(now) = FileId::of(libc::STDERR_FILENO) else { return false };
        now.is(self.was) || now.kind() == libc::S_IFCHR || now.is(FileId::of(libc::STDOUT_FILENO))
    }
}
