//! Where event lines end up.

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::ffi::CString;
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
    file_failed: AtomicBool,
    waiting: Receiver<String>,
    /// Lines that a thread has taken and not written yet.
    in_hand: AtomicU32,
    dropped: AtomicU64,
}

impl Sink {
    /// To a file, or to stderr.
    pub fn new(file: Option<PathBuf>) -> Sink {
        let (sender, waiting) = bounded(WAITING);
        let file = file.and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
        let shared = Shared {
            file,
            file_failed: AtomicBool::new(false),
            waiting,
            in_hand: AtomicU32::new(0),
            dropped: AtomicU64::new(0),
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
        if !self.thread_allowed.load(Ordering::Relaxed) || !self.thread_runs() {
            self.shared.write(&line);
            return;
        }
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.sender.try_send(line) {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes what is waiting in this thread, and waits a moment for a line that the other one has in hand.
    pub fn flush(&self) {
        while let Ok(line) = self.shared.waiting.try_recv() {
            self.shared.write(&line);
        }
        for _ in 0..100 {
            // Acquire pairs with the Release after the write.
            if self.shared.in_hand.load(Ordering::Acquire) == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // Whatever is said from here on is said at once.
        self.thread_allowed.store(false, Ordering::Relaxed);
        self.shared.say_dropped();
    }

    fn thread_runs(&self) -> bool {
        if !self.thread_started.swap(true, Ordering::Relaxed) {
            let shared = Arc::clone(&self.shared);
            let started = with_signals_blocked(|| {
                std::thread::Builder::new()
                    .name("cuwarden".into())
                    .stack_size(128 << 10)
                    .spawn(move || shared.run())
            });
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
        // Lets flush() see that a line is neither waiting nor written.
        loop {
            let Ok(line) = self.waiting.recv() else { return };
            self.in_hand.store(1, Ordering::Relaxed);
            self.write(&line);
            self.in_hand.store(0, Ordering::Release);
            self.say_dropped();
        }
    }

    fn say_dropped(&self) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            self.write(&format!("{{\"level\":\"warn\",\"event\":\"events_dropped\",\"count\":{dropped}}}\n"));
        }
    }

    /// One write of the whole line, so that lines of several processes do not mix.
    fn write(&self, line: &str) {
        let Some(path) = self.file.as_ref().filter(|_| !self.file_failed.load(Ordering::Relaxed)) else {
            write_to(libc::STDERR_FILENO, line);
            return;
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
        if fd < 0 {
            if !self.file_failed.swap(true, Ordering::Relaxed) {
                let reason = std::io::Error::last_os_error();
                let text =
                    format!("CUWARDEN_LOG_FILE {}: {reason}; events go to stderr", path.to_string_lossy());
                let text = serde_json::Value::from(text);
                write_to(
                    libc::STDERR_FILENO,
                    &format!("{{\"level\":\"warn\",\"event\":\"log_file_unusable\",\"message\":{text}}}\n"),
                );
            }
            write_to(libc::STDERR_FILENO, line);
            return;
        }
        write_to(fd, line);
        // SAFETY: opened above, used by nobody else.
        unsafe { libc::close(fd) };
    }
}

fn write_to(fd: i32, line: &str) {
    without_sigpipe(|| {
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            // SAFETY: the buffer is valid for its length.
            let written = unsafe { libc::write(fd, rest.as_ptr().cast(), rest.len()) };
            let error = std::io::Error::last_os_error().raw_os_error();
            match usize::try_from(written) {
                Ok(0) => return false,
                Ok(written) => rest = rest.get(written..).unwrap_or(&[]),
                Err(_) if error == Some(libc::EINTR) => {}
                Err(_) => return error == Some(libc::EPIPE),
            }
        }
        false
    });
}

/// Runs `write`, which answers whether it met a broken pipe, without the signal that would end an application
/// for a line that it did not write.
fn without_sigpipe(write: impl FnOnce() -> bool) {
    // SAFETY: sigset_t is plain data; the mask is put back as it was, and only a SIGPIPE that this write caused is
    // taken away.
    unsafe {
        let mut pipe: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::sigpending(&mut pending);
        let already = libc::sigismember(&pending, libc::SIGPIPE) == 1;
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before) == 0;
        let broken = write();
        if broken && blocked && !already {
            let no_wait = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&pipe, std::ptr::null_mut(), &no_wait);
        }
        if blocked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
    }
}

/// A thread inherits the mask: none of the application's signals must be delivered to ours.
fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: sigset_t is plain data that sigfillset and pthread_sigmask write; the old mask is put back.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before) == 0;
        let result = work();
        if blocked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
        result
    }
}
