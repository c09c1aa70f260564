//! Memory of a file, and the blocks behind it.

use super::writer::WORD;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// Takes the blocks now: writing to a hole of a full disk through a mapping would end the process by SIGBUS.
pub(crate) fn reserve_blocks(file: &OwnedFd, offset: u64, bytes: u64) -> io::Result<()> {
    may_reach(offset.saturating_add(bytes))?;
    // SAFETY: a valid descriptor and plain numbers.
    let taken = retried(|| unsafe {
        libc::fallocate(file.as_raw_fd(), 0, offset as libc::off_t, bytes as libc::off_t) as isize
    });
    match taken {
        Ok(_) => return Ok(()),
        Err(error) if !matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
            return Err(error);
        }
        Err(_) => {}
    }
    let zeros = [0u8; 512];
    let end = offset.saturating_add(bytes);
    let mut at = offset;
    while at < end {
        let most = zeros.len().min((end - at) as usize);
        // SAFETY: the buffer is valid for its length.
        let written = retried(|| unsafe {
            libc::pwrite(file.as_raw_fd(), zeros.as_ptr().cast(), most, at as libc::off_t)
        })?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        at += written as u64;
    }
    Ok(())
}

/// A stopped process that goes on finds its system calls interrupted, although no handler may run.
pub(crate) fn retried(mut call: impl FnMut() -> isize) -> io::Result<isize> {
    loop {
        let answer = call();
        if answer >= 0 {
            return Ok(answer);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Whether a file may have so many bytes (`ulimit -f`). To try would be answered with a signal that ends the process.
pub fn may_reach(bytes: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a place for the answer; on failure it stays without a limit.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    if bytes > limit.rlim_cur { Err(io::Error::from_raw_os_error(libc::EFBIG)) } else { Ok(()) }
}

/// A directory that a group shares: writable for it, and what is made in it belongs to it.
pub(crate) fn is_shared(mode: u32) -> bool {
    mode & 0o2020 == 0o2020
}

pub(crate) fn map_shared(file: &OwnedFd, offset: u64, bytes: u64) -> io::Result<*mut u8> {
    map(bytes, libc::MAP_SHARED, file.as_raw_fd(), offset)
}

pub(super) fn map_private(bytes: u64) -> io::Result<*mut u8> {
    map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
}

fn map(bytes: u64, flags: i32, fd: i32, offset: u64) -> io::Result<*mut u8> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            fd,
            offset as libc::off_t,
        )
    };
    if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base.cast()) }
}

pub(crate) fn status_of(file: &OwnedFd) -> io::Result<libc::stat> {
    // SAFETY: stat is plain data; zero is valid.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a valid descriptor and a place for the answer.
    if unsafe { libc::fstat(file.as_raw_fd(), &mut status) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(status)
}

/// Copies memory that others may be writing, a word at a time.
pub(super) fn copy_of_shared(base: *mut u8, bytes: usize) -> Vec<u8> {
    let mut copy = Vec::with_capacity(bytes);
    for word in 0..bytes / WORD {
        // SAFETY: within a mapping of `bytes` bytes that starts page-aligned and is never removed; atomic, since
        // other threads may write meanwhile.
        let value = unsafe { (*base.cast::<AtomicU32>().add(word)).load(Ordering::Acquire) };
        copy.extend_from_slice(&value.to_ne_bytes());
    }
    copy
}
