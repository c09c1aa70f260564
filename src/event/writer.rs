//! Where event lines end up.

use super::cancel::{NoCancel, Undisturbed};
use super::stderr::{FileId, Stderr};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Lines that may wait; more are counted and dropped.
const WAITING: usize = 256;

/// Takes lines and writes them, directly or through a thread.
pub struct Sink {
    shared: Arc<Shared>,
    sender: Sender<String>,
    thread_allowed: AtomicBool,
    thread_started: AtomicBool,
}

struct Shared {
    file: Option<CString>,
    stderr: Stderr,
    file_failed: AtomicBool,
    waiting: Receiver<String>,
    /// Lines that were handed over and are not written yet.
    pending: AtomicU32,
    dropped: AtomicU64,
    /// Somebody has waited in vain: nobody but the thread waits again.
    stuck: AtomicBool,
}

/// How long the application's own threads wait, all together, for a pipe that nobody empties. In milliseconds.
const PATIENCE_MS: i32 = 100;
const WITHOUT_END: i32 = -1;

impl Sink {
    /// To a file, or to stderr.
    pub fn new(file: Option<PathBuf>) -> Sink {
        let (sender, waiting) = bounded(WAITING);
        let file = file.and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
        let shared = Shared {
            file,
            stderr: Stderr::now(),
            file_failed: AtomicBool::new(false),
            waiting,
            pending: AtomicU32::new(0),
            dropped: AtomicU64::new(0),
            stuck: AtomicBool::new(false),
        };
        Sink {
            shared: Arc::new(shared),
            sender,
            thread_allowed: AtomicBool::new(false),
            thread_started: AtomicBool::new(false),
        }
    }

    /// From now on a thread may be started.
    pub fn allow_thread(&self) {
        self.thread_allowed.store(true, Ordering::Relaxed);
    }

    /// Writes a line, or hands it to the thread.
    pub fn write(&self, line: String) {
        let _no_cancel = NoCancel::new();
        if !self.thread_allowed.load(Ordering::Relaxed) || !self.thread_runs() {
            self.shared.write_soon(&line);
            return;
        }
        // Before the line can be taken, so that flush() never misses one that is in the thread's hands.
        self.shared.pending.fetch_add(1, Ordering::Relaxed);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.sender.try_send(line) {
            self.shared.pending.fetch_sub(1, Ordering::Relaxed);
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Leaves the thread a moment for what is waiting, which keeps the order, and writes what it has not taken then.
    pub fn flush(&self) {
        let _no_cancel = NoCancel::new();
        for _ in 0..1000 {
            // Acquire pairs with the Release after the write. Who has waited in vain does not wait again.
            if self.shared.pending.load(Ordering::Acquire) == 0 || self.shared.stuck.load(Ordering::Relaxed) {
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        while let Ok(line) = self.shared.waiting.try_recv() {
            self.shared.write_soon(&line);
        }
        // Whatever is said from here on is said at once.
        self.thread_allowed.store(false, Ordering::Relaxed);
        self.shared.say_dropped();
    }

    fn thread_runs(&self) -> bool {
        if !self.thread_started.swap(true, Ordering::Relaxed) {
            let shared = Arc::clone(&self.shared);
            // A thread inherits the mask: none of the application's signals must be delivered to ours.
            let undisturbed = Undisturbed::new();
            let started = std::thread::Builder::new()
                .name("cuwarden".into())
                .stack_size(128 << 10)
                .spawn(move || shared.run());
            drop(undisturbed);
            if started.is_err() {
                // No thread to be had: the application writes its own lines, now and later.
                self.thread_allowed.store(false, Ordering::Relaxed);
                return false;
            }
        }
        true
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let Ok(line) = self.waiting.recv() else { return };
            if self.write(&line, WITHOUT_END) != Outcome::Written {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
            self.pending.fetch_sub(1, Ordering::Release);
            self.say_dropped();
        }
    }

    fn say_dropped(&self) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let line = format!("{{\"level\":\"warn\",\"event\":\"events_dropped\",\"count\":{dropped}}}\n");
            if self.write(&line, 0) != Outcome::Written {
                self.dropped.fetch_add(dropped, Ordering::Relaxed);
            }
        }
    }

    /// Writes from a thread that has better things to do than to wait.
    fn write_soon(&self, line: &str) {
        let patience = if self.stuck.load(Ordering::Relaxed) { 0 } else { PATIENCE_MS };
        let outcome = self.write(line, patience);
        if outcome == Outcome::NoRoom {
            self.stuck.store(true, Ordering::Relaxed);
        }
        if outcome != Outcome::Written {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One write of the whole line, so that lines of several processes do not mix.
    fn write(&self, line: &str, patience_ms: i32) -> Outcome {
        let Some(path) = self.file.as_ref().filter(|_| !self.file_failed.load(Ordering::Relaxed)) else {
            return self.write_to_stderr(line, patience_ms);
        };
        let flags = libc::O_WRONLY
            | libc::O_APPEND
            | libc::O_CREAT
            | libc::O_CLOEXEC
            | libc::O_NOCTTY
            | libc::O_NONBLOCK;
        // SAFETY: a NUL-terminated path. The file is opened for each line: a descriptor that is kept could be closed
        // by the application and become something else.
        let fd = unsafe { libc::open(path.as_ptr(), flags, 0o600 as libc::c_uint) };
        let mut outcome =
            Outcome::Failed(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
        if fd >= 0 {
            outcome = write_to(fd, line, patience_ms);
            // SAFETY: opened above, used by nobody else.
            unsafe { libc::close(fd) };
        }
        let Outcome::Failed(error) = outcome else { return outcome };
        if !self.file_failed.swap(true, Ordering::Relaxed) {
            let reason = std::io::Error::from_raw_os_error(error);
            let text = format!("CUWARDEN_LOG_FILE {}: {reason}; events go to stderr", path.to_string_lossy());
            let text = serde_json::Value::from(text);
            self.write_to_stderr(
                &format!("{{\"level\":\"warn\",\"event\":\"log_file_unusable\",\"message\":{text}}}\n"),
                patience_ms,
            );
        }
        self.write_to_stderr(line, patience_ms)
    }

    fn write_to_stderr(&self, line: &str, patience_ms: i32) -> Outcome {
        if self.stderr.is_there() {
            write_to(libc::STDERR_FILENO, line, patience_ms)
        } else {
            Outcome::Failed(libc::EBADF)
        }
    }
}

/// What became of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Written,
    /// Nobody empties the pipe.
    NoRoom,
    /// With this error.
    Failed(i32),
}

fn write_to(fd: i32, line: &str, patience_ms: i32) -> Outcome {
    let kind = FileId::of(fd).map(|id| id.kind());
    // What a pipe with any room takes without waiting. A file has no such limit, and its lines stay whole.
    let most = if kind == Some(libc::S_IFREG) { usize::MAX } else { libc::PIPE_BUF };
    // The thread may wait. For others the descriptor must not block, whatever other processes do between a look
    // at it and the write; but its flags are shared with them, and not ours to change.
    let own = match kind {
        Some(libc::S_IFIFO | libc::S_IFCHR) if patience_ms != WITHOUT_END => reopened(fd),
        _ => None,
    };
    let fd = own.as_ref().map_or(fd, AsRawFd::as_raw_fd);
    let mut outcome = Outcome::Written;
    let mut left_ms = patience_ms;
    without_signals(|| {
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            if !has_room(fd, left_ms) {
                outcome = Outcome::NoRoom;
                return None;
            }
            let length = rest.len().min(most);
            // SAFETY: the buffer is valid for its length.
            let written = unsafe {
                match kind {
                    Some(libc::S_IFSOCK) if patience_ms != WITHOUT_END => {
                        libc::send(fd, rest.as_ptr().cast(), length, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
                    }
                    _ => libc::write(fd, rest.as_ptr().cast(), length),
                }
            };
            let error = std::io::Error::last_os_error().raw_os_error();
            match usize::try_from(written) {
                Ok(0) => return None,
                Ok(written) => rest = rest.get(written..).unwrap_or(&[]),
                Err(_) if error == Some(libc::EINTR) => {}
                // Somebody else was quicker.
                Err(_) if error == Some(libc::EAGAIN) && left_ms != 0 => {
                    std::thread::sleep(Duration::from_millis(1));
                    left_ms = if left_ms == WITHOUT_END { left_ms } else { left_ms - 1 };
                }
                Err(_) if error == Some(libc::EAGAIN) => {
                    outcome = Outcome::NoRoom;
                    return None;
                }
                Err(_) => {
                    outcome = Outcome::Failed(error.unwrap_or(libc::EIO));
                    return error;
                }
            }
        }
        None
    });
    outcome
}

/// The same pipe or terminal through a description of our own. `None`: it may not be opened, or nobody reads it.
fn reopened(fd: i32) -> Option<OwnedFd> {
    let path = CString::new(format!("/proc/self/fd/{fd}")).ok()?;
    let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: a NUL-terminated path.
    let own = unsafe { libc::open(path.as_ptr(), flags) };
    // SAFETY: open returned it just now; it is ours alone.
    (own >= 0).then(|| unsafe { OwnedFd::from_raw_fd(own) })
}

/// Waits for room. An error or a hang-up counts as room: the write says what it is.
fn has_room(fd: i32, patience_ms: i32) -> bool {
    let mut asked = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry, valid for the call.
    unsafe { libc::poll(&mut asked, 1, patience_ms) != 0 }
}

/// Runs `write`, which answers the error that it met, without the signal that would end an application for a line
/// that it did not write: SIGPIPE where nobody reads any more, SIGXFSZ where the file may not grow.
fn without_signals(write: impl FnOnce() -> Option<i32>) {
    // SAFETY: sigset_t is plain data; the mask is put back as it was, and only a signal that this write caused is
    // taken away.
    unsafe {
        let mut both: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut both);
        libc::sigaddset(&mut both, libc::SIGPIPE);
        libc::sigaddset(&mut both, libc::SIGXFSZ);
        libc::sigpending(&mut pending);
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &both, &mut before) == 0;
        let caused = match write() {
            Some(libc::EPIPE) => Some(libc::SIGPIPE),
            Some(libc::EFBIG) => Some(libc::SIGXFSZ),
            _ => None,
        };
        if let Some(signal) = caused.filter(|signal| blocked && libc::sigismember(&pending, *signal) != 1) {
            let mut one: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut one);
            libc::sigaddset(&mut one, signal);
            let no_wait = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&one, std::ptr::null_mut(), &no_wait);
        }
        if blocked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_thread_says_all() {
        assert!(super::super::cancel::tests::survives_cancel(|| {
            let path = std::env::temp_dir().join(format!("cuwarden-events-{}", std::process::id()));
            let sink = Sink::new(Some(path.clone()));
            sink.write("directly\n".into());
            sink.allow_thread();
            sink.write("through the thread\n".into());
            sink.flush();
            let _no_cancel = NoCancel::new();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "directly\nthrough the thread\n");
            std::fs::remove_file(&path).unwrap();
        }));
    }

    #[test]
    fn the_application_never_waits_for_long() {
        let mut ends = [0; 2];
        // SAFETY: a place for two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        // SAFETY: both were just made and are nobody else's.
        let [_reader, writer] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        let line = "x".repeat(200 << 10);
        let since = std::time::Instant::now();
        assert_eq!(write_to(writer.as_raw_fd(), &line, PATIENCE_MS), Outcome::NoRoom);
        assert_eq!(write_to(writer.as_raw_fd(), "more\n", 0), Outcome::NoRoom);
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    }
}
