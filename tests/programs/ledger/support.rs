//! What the tests of the shared quota have in common: a container with processes that do what they are told.

// Each test binary compiles all of this and uses a part of it.
#![allow(dead_code)]

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::books;
use crate::common::artefacts;
use crate::common::process::{Finished, PATIENCE, run};
use crate::common::sim::{Sim, clean};

pub const MIB: u64 = 1 << 20;
pub const LIMIT: u64 = 64 * MIB;
pub const REFUSED: i32 = 2;
pub const NOT_PERMITTED: i32 = 800;

/// The UUIDs that the simulated devices have where nothing else is said.
pub fn uuid(device: u32) -> String {
    format!("GPU-{:08x}-51a7-4ed0-8000-{device:012x}", 0x1f0e_3dad_u32.wrapping_mul(device + 1))
}

// ---- processes ----------------------------------------------------------------------------------------------------

/// All processes that a test starts, and those that they start. Nobody of them is there any more when this is dropped,
/// whatever became of the test.
pub struct Group {
    /// A process that does nothing but keep the group's number from becoming somebody else's.
    holder: i32,
}

impl Group {
    pub fn new() -> Self {
        // SAFETY: changes one attribute of this process: orphans come to it, so that it can wait for them.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
        let mut sleep = Command::new("/bin/sleep");
        sleep.arg("1000000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Waited for with all others of the group, at its end.
        #[allow(clippy::zombie_processes)]
        let child = ends_with_us(sleep.process_group(0)).spawn().expect("sleep can be started");
        Self { holder: child.id().cast_signed() }
    }

    /// Starts a process in the group; its number.
    #[track_caller]
    pub fn start(&self, command: &mut Command) -> i32 {
        let child = ends_with_us(command.process_group(self.holder)).spawn();
        child.unwrap_or_else(|e| panic!("{command:?}: {e}")).id().cast_signed()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: kill touches no memory of ours; the group is ours as long as its holder is not waited for.
        unsafe { libc::kill(-self.holder, signal) };
    }

    /// Takes the status of a process that has ended, if there is one: its own children and orphans alike.
    pub fn ended(&self) -> Option<(i32, i32)> {
        let mut status = 0;
        // SAFETY: a place for the status.
        let pid = unsafe { libc::waitpid(-self.holder, &mut status, libc::WNOHANG) };
        (pid > 0).then_some((pid, status))
    }

    /// Kills all of them, and waits until the last is gone.
    pub fn end(&self) {
        loop {
            // Again and again: somebody may have been forking.
            self.signal(libc::SIGKILL);
            let mut status = 0;
            // SAFETY: a place for the status.
            let pid = unsafe { libc::waitpid(-self.holder, &mut status, 0) };
            if pid < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                return;
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

/// The test process itself may be killed, by a runner that has no patience any more.
fn ends_with_us(command: &mut Command) -> &mut Command {
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            Ok(())
        })
    }
}

/// Waits for something that happens sooner or later.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let since = Instant::now();
    while !condition() {
        assert!(since.elapsed() < PATIENCE, "it did not happen: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// State and number of threads, as /proc/PID/stat has them.
pub fn state_of(pid: i32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(16)?.parse().ok()?))
}

/// Dead, waited for or not: it has no thread any more.
pub fn is_dead(pid: i32) -> bool {
    state_of(pid).is_none_or(|(state, threads)| "ZX".contains(state) && threads <= 1)
}

/// It holds nothing any more, though it may not be dead: the first one of a namespace waits for the statuses of the others.
fn has_left_its_memory(pid: i32) -> bool {
    std::fs::read(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.is_empty())
}

pub fn signal(pid: i32, signal: i32) {
    // SAFETY: kill touches no memory of ours. The process is one of the group's that was not waited for, as only the
    // end of the group waits.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "kill: {}", std::io::Error::last_os_error());
}

#[track_caller]
pub fn kill_and_leave_unreaped(pid: i32) {
    signal(pid, libc::SIGKILL);
    until("the killed process dies", || is_dead(pid));
}

#[track_caller]
pub fn stop(pid: i32) {
    signal(pid, libc::SIGSTOP);
    until("the process stops", || state_of(pid).is_none_or(|(state, _)| "TZX".contains(state)));
}

// ---- a container --------------------------------------------------------------------------------------------------

/// A machine with one container on it, and the processes in it.
pub struct Stage {
    // Before the machine: its folder goes when nobody writes to it any more.
    pub group: Group,
    pub sim: Sim,
    limit: Option<String>,
}

impl Stage {
    /// Every process has [`LIMIT`] in its environment, and contexts are not counted.
    pub fn new() -> Self {
        Self::limited(&LIMIT.to_string())
    }

    pub fn limited(limit: &str) -> Self {
        Self { group: Group::new(), sim: Sim::new(), limit: Some(limit.to_owned()) }
    }

    pub fn unlimited() -> Self {
        Self { group: Group::new(), sim: Sim::new(), limit: None }
    }

    /// A program of tests/programs/ledger in the container.
    pub fn program(&self, name: &str) -> Command {
        let mut command = self.sim.shimmed(books::program(&self.sim, &format!("ledger/{name}.c")));
        command.env("CUWARDEN_COUNT_CONTEXT", "0").env("CUWARDEN_SIM_CONTEXT", "1m");
        command.env_remove("CUWARDEN_REPORT").current_dir(&*self.sim.temp);
        if let Some(limit) = &self.limit {
            command.env("CUWARDEN_MEMORY_LIMIT", limit);
        }
        command
    }

    pub fn puppet(&self) -> Puppet {
        self.puppet_with(|_| {})
    }

    #[track_caller]
    pub fn puppet_with(&self, change: impl FnOnce(&mut Command)) -> Puppet {
        let mut command = self.program("puppet");
        change(&mut command);
        self.puppet_from(&mut command).expect("a puppet starts")
    }

    /// One that has a context and holds so many bytes.
    #[track_caller]
    pub fn holder(&self, bytes: u64) -> Puppet {
        self.holder_with(bytes, |_| {})
    }

    #[track_caller]
    pub fn holder_with(&self, bytes: u64, change: impl FnOnce(&mut Command)) -> Puppet {
        let mut puppet = self.puppet_with(change);
        puppet.has_context();
        if bytes > 0 {
            puppet.gets(bytes);
        }
        puppet
    }

    /// In a pid namespace of its own, where the system allows that; its number in there is 1.
    #[track_caller]
    pub fn puppet_in_namespace(&self, own_proc: bool, change: impl FnOnce(&mut Command)) -> Option<Puppet> {
        let mut command = self.program("puppet");
        command.arg(if own_proc { "namespace" } else { "namespace-alone" });
        change(&mut command);
        let puppet = self.puppet_from(&mut command);
        if puppet.is_none() {
            assert!(std::env::var_os("CI").is_none(), "no pid namespace can be made, and CI must test them");
            eprintln!("NOT TESTED: no pid namespace can be made here");
        }
        puppet
    }

    fn puppet_from(&self, command: &mut Command) -> Option<Puppet> {
        let (orders, to) = pipe();
        let (from, answers) = pipe();
        command.stdin(orders).stdout(answers).stderr(self.stderr());
        let pid = self.group.start(command);
        // The child's ends stay in the command otherwise, and the end of the child is not seen.
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Puppet::ready(pid, to.into(), from.into(), self.stderr_path())
    }

    /// Lets a puppet make another one by `order`, `fork` or `spawn`.
    #[track_caller]
    pub fn child_of(&self, parent: &mut Puppet, order: &str) -> Puppet {
        let path = self.sim.temp.join(format!("strings-{}", self.count("strings-")));
        let fifo = |end: &str| {
            let path = path.with_extension(end);
            let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
            // SAFETY: the name is a C string.
            assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0, "mkfifo {}", path.display());
            path
        };
        let (to, from) = (fifo("in"), fifo("out"));
        // Neither open waits for the other end.
        let from = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(from).expect("a fifo");
        let to = File::options().read(true).write(true).open(to).expect("a fifo");
        let pid = parent.ask(&format!("{order} {}", path.display()));
        let pid = pid.parse().unwrap_or_else(|_| panic!("{order} gave {pid}"));
        Puppet::ready(pid, to, from, self.stderr_path()).expect("a puppet starts")
    }

    fn count(&self, prefix: &str) -> usize {
        let entries = std::fs::read_dir(&*self.sim.temp).expect("the folder is ours");
        let names = entries.map(|entry| entry.expect("it can be read").file_name());
        names.filter(|name| name.to_string_lossy().starts_with(prefix)).count()
    }

    pub fn stderr_path(&self) -> PathBuf {
        self.sim.temp.join("stderr.txt")
    }

    /// All processes of the container write to one file.
    pub fn stderr(&self) -> File {
        File::options()
            .append(true)
            .create(true)
            .mode(0o666)
            .open(self.stderr_path())
            .expect("the folder is ours")
    }

    /// What processes said that have nothing to say.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.stderr_path()).unwrap_or_default()
    }

    /// One race; see race.c. The limit is never passed, and nobody says anything.
    #[track_caller]
    pub fn race(
        &self,
        mode: &str,
        processes: u32,
        rounds: u32,
        kind: &str,
        extra: u32,
        change: impl FnOnce(&mut Command),
    ) {
        let numbers = [processes.to_string(), rounds.to_string(), LIMIT.to_string()];
        let mut command = self.program("race");
        command.arg(mode).args(numbers).arg(kind).arg(extra.to_string());
        change(&mut command);
        run(&mut command).succeeded();
    }

    /// A process that works on and on; see work.c. Returns when it does.
    #[track_caller]
    pub fn worker(&self, how: &str, seed: u32, change: impl FnOnce(&mut Command)) -> i32 {
        let mut command = self.program("work");
        let (from, answers) = pipe();
        command.args([how, &LIMIT.to_string(), &seed.to_string()]).stdin(Stdio::null());
        command.stdout(answers).stderr(self.stderr());
        change(&mut command);
        let pid = self.group.start(&mut command);
        command.stdout(Stdio::null());
        let said = read_line(&from.into(), &self.stderr_path());
        assert_eq!(said.as_deref(), Some("running"), "{}", self.said());
        pid
    }

    /// The most that was ever granted to living processes on a device, contexts left out.
    #[track_caller]
    pub fn peak(&self, device: u32) -> u64 {
        self.figure(device, "peak_allocated")
    }

    /// The same with contexts.
    #[track_caller]
    pub fn peak_of_all(&self, device: u32) -> u64 {
        self.figure(device, "peak")
    }

    #[track_caller]
    pub fn figure(&self, device: u32, name: &str) -> u64 {
        let books = self.sim.books();
        let all = books["devices"].as_array().expect("the books have devices");
        let one = all.iter().find(|entry| entry["uuid"] == uuid(device).as_str());
        one.and_then(|entry| entry[name].as_u64()).unwrap_or_else(|| panic!("no {name}: {books:#}"))
    }

    /// Never over, and nothing was said.
    #[track_caller]
    pub fn never_over(&self) {
        assert!(self.peak(0) <= LIMIT, "{} bytes were granted under {LIMIT}", self.peak(0));
        assert_eq!(self.said(), "");
    }

    /// The shared account's file.
    pub fn ledger(&self) -> PathBuf {
        self.sim.shared_dir().join("ledger")
    }

    /// `cuwarden limit` for this container.
    pub fn set_limit(&self, arguments: &[&str]) -> Finished {
        self.set_limit_in(&self.sim.shared_dir(), arguments)
    }

    pub fn set_limit_in(&self, folder: &Path, arguments: &[&str]) -> Finished {
        let mut command = clean(artefacts::cli());
        command.arg("limit").arg("--dir").arg(folder).args(arguments);
        run(command
            .env("LD_LIBRARY_PATH", self.sim.libraries())
            .env("CUWARDEN_SIM_DIR", self.sim.temp.join("gpu")))
    }

    /// Events other than refusals, which belong to normal life.
    #[track_caller]
    pub fn complaints(&self) -> Vec<Value> {
        self.sim.events().into_iter().filter(|event| event["event"] != "quota_denied").collect()
    }

    /// Gives everything to another user. False where that is not possible, or where that user cannot run what was built.
    pub fn give_to(&self, user: u32) -> bool {
        // SAFETY: asks for a number.
        if unsafe { libc::geteuid() } != 0 {
            return false;
        }
        let mut places = vec![self.sim.temp.to_path_buf()];
        while let Some(place) = places.pop() {
            std::os::unix::fs::chown(&place, Some(user), Some(user)).expect("root may");
            if place.is_dir() {
                places.extend(
                    std::fs::read_dir(&place)
                        .expect("it is ours")
                        .map(|entry| entry.expect("readable").path()),
                );
            }
        }
        let mut command = self.program("puppet");
        command.uid(user).gid(user).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let quiet = |out: std::process::Output| out.status.success() && out.stderr.is_empty();
        // The loader says on stderr where it cannot read the shim.
        command.output().is_ok_and(quiet)
    }
}

// ---- puppets ------------------------------------------------------------------------------------------------------

/// A process that does what it is told; see puppet.c.
pub struct Puppet {
    /// Here, not in its own namespace.
    pub pid: i32,
    /// In its own namespace.
    pub own_pid: i32,
    orders: File,
    answers: File,
    stderr: PathBuf,
}

/// What it held is free when this returns. A process whose orders end leaves too, but some time later.
impl Drop for Puppet {
    fn drop(&mut self) {
        // SAFETY: as in `signal`. One that has ended by itself stays dead.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        // Not `until`: this may be the way out of a failed test.
        let since = Instant::now();
        while !is_dead(self.pid) && !has_left_its_memory(self.pid) && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

impl Puppet {
    fn ready(pid: i32, orders: File, answers: File, stderr: PathBuf) -> Option<Self> {
        let line = read_line(&answers, &stderr)?;
        let numbers: Vec<i32> = line.split(' ').skip(1).filter_map(|word| word.parse().ok()).collect();
        let [own_pid, outside] = numbers[..] else { panic!("a puppet said {line:?}") };
        Some(Self { pid: if outside == 0 { pid } else { outside }, own_pid, orders, answers, stderr })
    }

    pub fn tell(&mut self, order: &str) {
        self.orders.write_all(format!("{order}\n").as_bytes()).expect("a pipe has room for a line");
    }

    /// The next answer, or nothing when the process has ended.
    #[track_caller]
    pub fn answer(&mut self) -> Option<String> {
        read_line(&self.answers, &self.stderr)
    }

    #[track_caller]
    pub fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer().unwrap_or_else(|| {
            let said = std::fs::read_to_string(&self.stderr).unwrap_or_default();
            panic!("{} ended at {order:?}, state {:?}: {said}", self.pid, state_of(self.pid))
        })
    }

    /// What a call of the driver gave.
    #[track_caller]
    pub fn code(&mut self, order: &str) -> i32 {
        let answer = self.ask(order);
        answer.parse().unwrap_or_else(|_| panic!("{order:?} gave {answer:?}"))
    }

    #[track_caller]
    pub fn ok(&mut self, order: &str) {
        assert_eq!(self.code(order), 0, "{order}");
    }

    #[track_caller]
    pub fn numbers(&mut self, order: &str) -> Vec<u64> {
        let answer = self.ask(order);
        answer
            .split(' ')
            .map(|word| word.parse().unwrap_or_else(|_| panic!("{order:?} gave {answer:?}")))
            .collect()
    }

    #[track_caller]
    pub fn has_context(&mut self) {
        self.ok("init");
        self.ok("context 0");
    }

    #[track_caller]
    pub fn gets(&mut self, bytes: u64) {
        assert_eq!(self.code(&format!("alloc {bytes}")), 0, "alloc {bytes} of {}", self.pid);
    }

    #[track_caller]
    pub fn is_refused(&mut self, bytes: u64) {
        assert_eq!(self.code(&format!("alloc {bytes}")), REFUSED, "alloc {bytes} of {}", self.pid);
    }

    /// Exactly so many bytes are left for it, and it leaves them.
    #[track_caller]
    pub fn could_get(&mut self, bytes: u64) {
        self.is_refused(bytes + 1);
        if bytes > 0 {
            self.gets(bytes);
            self.is_refused(1);
            self.ok("free");
        }
    }

    #[track_caller]
    pub fn kill(&mut self) {
        kill_and_leave_unreaped(self.pid);
    }

    /// Ends it by an order that has no answer.
    #[track_caller]
    pub fn ends_by(&mut self, order: &str) {
        self.tell(order);
        until("the process ends", || is_dead(self.pid));
    }

    /// The status of a process that has ended, for children of the test alone.
    #[track_caller]
    pub fn status(&self) -> i32 {
        until("the process ends", || is_dead(self.pid));
        let mut status = 0;
        // SAFETY: a place for the status.
        let pid = unsafe { libc::waitpid(self.pid, &mut status, 0) };
        assert_eq!(pid, self.pid, "waitpid: {}", std::io::Error::last_os_error());
        status
    }

    /// Lets it end by itself: its status, as waitpid has it.
    #[track_caller]
    pub fn finish(mut self) -> i32 {
        self.tell("exit 0");
        self.status()
    }
}

/// Reads one line, waiting as long as a slow machine may need. Nothing at the end of the file.
#[track_caller]
fn read_line(from: &File, stderr: &Path) -> Option<String> {
    let since = Instant::now();
    let mut line = Vec::new();
    loop {
        let mut poll = libc::pollfd { fd: from.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure that is ours.
        let ready = unsafe { libc::poll(&mut poll, 1, 1000) };
        if ready <= 0 {
            let said = std::fs::read_to_string(stderr).unwrap_or_default();
            assert!(since.elapsed() < PATIENCE, "no answer after {PATIENCE:?}: {said}");
            continue;
        }
        let mut byte = [0u8];
        // A fifo can become readable by its writer's end as well: then there is nothing in it.
        match std::io::Read::read(&mut &*from, &mut byte) {
            Ok(0) => return None,
            Ok(_) if byte[0] == b'\n' => return Some(String::from_utf8_lossy(&line).into_owned()),
            Ok(_) => line.push(byte[0]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => panic!("an answer cannot be read: {e}"),
        }
    }
}

/// The end to read from, and the end to write to.
fn pipe() -> (OwnedFd, OwnedFd) {
    use std::os::fd::FromRawFd;
    let mut ends = [0; 2];
    // SAFETY: a place for two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: both were just made and are nobody else's.
    let [read, write] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    (read, write)
}
