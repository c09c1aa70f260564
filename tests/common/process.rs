//! Runs children that cannot hang the tests.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Long enough for a slow, busy machine: it ends what hangs, and measures nothing.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// What a child left behind.
pub struct Finished {
    pub command: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// Fails the test, with all that the child said, unless it exited with 0.
    #[track_caller]
    pub fn succeeded(self) -> Self {
        self.exited(0)
    }

    #[track_caller]
    pub fn exited(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{}", self.told());
        self
    }

    #[track_caller]
    pub fn killed_by(self, signal: i32) -> Self {
        assert_eq!(self.status.signal(), Some(signal), "{}", self.told());
        self
    }

    /// The lines of stdout.
    pub fn lines(&self) -> Vec<&str> {
        self.stdout.lines().collect()
    }

    /// Everything, for the message of a failed assertion.
    pub fn told(&self) -> String {
        format!("{}\n{}\n--- stdout\n{}\n--- stderr\n{}", self.command, self.status, self.stdout, self.stderr)
    }
}

/// A child with its output in files in memory: they cannot fill up as pipes do, and nobody has to read them for the child to
/// go on.
pub struct Running {
    pub child: Child,
    command: String,
    stdout: File,
    stderr: File,
}

/// Runs the command to its end; a child that takes longer than [`PATIENCE`] is killed with its whole process group,
/// and the test fails with what it said.
#[track_caller]
pub fn run(command: &mut Command) -> Finished {
    start(command).finish()
}

/// Starts the command as the leader of a process group. Its standard input is empty unless the caller set one.
#[track_caller]
pub fn start(command: &mut Command) -> Running {
    let (stdout, stderr) = (unnamed_file(), unnamed_file());
    let told = format!("{command:?}");
    command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().expect("a descriptor is free"))
        .stderr(stderr.try_clone().expect("a descriptor is free"))
        .process_group(0);
    let child = command.spawn().unwrap_or_else(|e| panic!("{told}: {e}"));
    Running { child, command: told, stdout, stderr }
}

impl Running {
    /// Waits for the end, as [`run`] does.
    #[track_caller]
    pub fn finish(mut self) -> Finished {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the child is ours") {
                return self.finished(status);
            }
            if since.elapsed() > PATIENCE {
                let status = self.kill();
                panic!("hung, and was killed after {PATIENCE:?}: {}", self.finished(status).told());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends the child and all that it started which stayed in its group.
    pub fn kill(&mut self) -> ExitStatus {
        let group = -i32::try_from(self.child.id()).expect("pids are small");
        // SAFETY: kill touches no memory of ours; the group is the one that `start` made, and its leader has not been
        // waited for, so the number cannot belong to another.
        unsafe { libc::kill(group, libc::SIGKILL) };
        self.child.wait().expect("the child is ours")
    }

    fn finished(mut self, status: ExitStatus) -> Finished {
        let (stdout, stderr) = (whole(&mut self.stdout), whole(&mut self.stderr));
        Finished { command: self.command, status, stdout, stderr }
    }
}

fn whole(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("a file of ours can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// In memory: not every file system has files without a name.
fn unnamed_file() -> File {
    use std::os::fd::FromRawFd;
    // SAFETY: the name is a C string, and the call touches nothing else of ours.
    let fd = unsafe { libc::memfd_create(c"output".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor was just made and belongs to nobody else.
    unsafe { File::from_raw_fd(fd) }
}
