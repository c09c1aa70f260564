//! Starting the program, passing signals on to it, and waiting for it.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, pid_t, sigset_t};

/// Signals that ask the program to do something; who sends them to us means the program.
const PASSED_ON: [c_int; 7] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM];

/// How the program ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    status: c_int,
    /// Processes that it started, or that those started, still run.
    pub others_run: bool,
}

impl Ended {
    /// The program's exit status; 128+N when signal N ended it.
    pub fn exit_status(&self) -> u8 {
        let status = match libc::WIFSIGNALED(self.status) {
            true => 128 + libc::WTERMSIG(self.status),
            false => libc::WEXITSTATUS(self.status),
        };
        status as u8
    }
}

/// Runs the program to its end.
pub fn run(command: &mut Command) -> io::Result<Ended> {
    // What the program starts and leaves behind becomes our child, so that we know whether any of it runs.
    // SAFETY: PR_SET_CHILD_SUBREAPER takes plain numbers.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    let signals = signal_set();
    let mut before = MaybeUninit::<sigset_t>::zeroed();
    // Blocked before the program starts, so that none is lost or kills us; the thread below takes them.
    // SAFETY: both sets are valid, and a zeroed sigset_t is an empty one.
    let before = unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, before.as_mut_ptr());
        before.assume_init()
    };
    // SAFETY: pthread_sigmask is async-signal-safe and `before` is a copy: the program starts with the signal
    // mask that we were started with.
    unsafe {
        command.pre_exec(move || {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
            Ok(())
        });
    }
    let child = command.spawn()?.id() as pid_t;
    let done = Arc::new(AtomicBool::new(false));
    let is_done = Arc::clone(&done);
    // Where there is no thread to be had, signals stay blocked and the program ends when it ends.
    let _ = std::thread::Builder::new().spawn(move || pass_on(&signals, child, &is_done));

    let status = wait_for(child)?;
    done.store(true, Ordering::Relaxed);
    Ok(Ended { status, others_run: others_run() })
}

fn signal_set() -> sigset_t {
    let mut set = MaybeUninit::<sigset_t>::zeroed();
    // SAFETY: the set is initialised by sigemptyset before it is used.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in PASSED_ON {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

fn pass_on(signals: &sigset_t, child: pid_t, done: &AtomicBool) {
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: a valid set, and a place for the answer.
        let signal = unsafe { libc::sigwaitinfo(signals, info.as_mut_ptr()) };
        if signal < 0 {
            continue;
        }
        // SAFETY: sigwaitinfo has filled it in, and zero is valid too.
        let code = unsafe { info.assume_init() }.si_code;
        // From the kernel it is Ctrl-C or a closed terminal, which the program's process group got as well:
        // twice would look like a second Ctrl-C.
        if code <= 0 && !done.load(Ordering::Relaxed) {
            // SAFETY: plain numbers; the child has not been waited for, so the number is still its own.
            unsafe { libc::kill(child, signal) };
        }
    }
}

/// Waits for `child`, and collects whatever else ends meanwhile.
fn wait_for(child: pid_t) -> io::Result<c_int> {
    loop {
        let mut status = 0;
        // SAFETY: a place for the answer.
        let ended = unsafe { libc::waitpid(-1, &mut status, 0) };
        if ended == child {
            return Ok(status);
        }
        if ended < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

fn others_run() -> bool {
    loop {
        // SAFETY: no status is asked for.
        match unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } {
            0 => return true,
            ended if ended < 0 => return false,
            _ => {}
        }
    }
}
