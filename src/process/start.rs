//! The first CUDA call of a process: configuration, the shared directory, the record file.

use super::{CURRENT, Process, alive::Alive, coarse_ns};
use crate::event::Events;
use crate::event::cancel::NoCancel;
use crate::event::fields::fields;
use crate::ledger::{Ledger, Unusable};
use crate::policy::config::{self, Config, Level};
use crate::record::identity::Identity;
use crate::record::predecessor;
use crate::record::users;
use crate::record::writer::{Writer, make_private_directory};
use crate::tracking::stacks::Stacks;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// What the shim does in this process.
#[derive(Clone, Copy)]
pub enum Verdict {
    /// Books are kept.
    On(&'static Process),
    /// Every call is handed through.
    Off,
    /// The configuration cannot be kept: CUDA must not start.
    Refused,
    /// This thread is at it, further up its stack.
    Busy,
}

/// Low half: one of the states below. High half: the process that wrote it, since a fork copies it.
static STATE: AtomicU64 = AtomicU64::new(0);
const STARTING: u64 = 1;
const ON: u64 = 2;
const OFF: u64 = 3;
const REFUSED: u64 = 4;

/// This process was forked from one that had come here: what its other threads held at that moment stays held.
static FORKED: AtomicBool = AtomicBool::new(false);

/// The process in which cuInit succeeded. A child has it from its parent, until it begins books of its own.
static INITIALISED: AtomicU32 = AtomicU32::new(0);

/// cuInit has succeeded in this process.
pub fn note_initialised() {
    // Relaxed: read in a forked child, which begins with all of it.
    INITIALISED.store(std::process::id(), Ordering::Relaxed);
}

/// How long a second thread waits for the first, which makes two files and nothing else. One that has not come back
/// by then may be a thread that a fork left in the parent.
const PATIENCE: Duration = Duration::from_secs(10);

/// The verdict for this process, reached at the first call. Never calls the driver.
#[cold]
pub fn start() -> Verdict {
    let _no_cancel = NoCancel::new();
    let pid = u64::from(std::process::id());
    let mut waited = Duration::ZERO;
    loop {
        // Acquire pairs with the Release below: with ON, CURRENT is set.
        let state = STATE.load(Ordering::Acquire);
        match (state >> 32 == pid, state & 0xffff_ffff) {
            (true, STARTING) => {
                if waited >= PATIENCE {
                    return Verdict::Refused;
                }
                let nap = Duration::from_micros(50).max(waited / 8);
                std::thread::sleep(nap);
                waited += nap;
            }
            (true, REFUSED) => return Verdict::Refused,
            (true, OFF) => return Verdict::Off,
            // Another process's, from which this one was forked: in a pid namespace of its own it may have the
            // same number.
            (same, reached) => {
                if let (true, ON, Some(process)) = (same, reached, Process::current()) {
                    return Verdict::On(process);
                }
                let mine = pid << 32 | STARTING;
                if STATE.compare_exchange(state, mine, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                    // Relaxed: read further down by this very thread.
                    FORKED.store(state != 0, Ordering::Relaxed);
                    return reach(pid);
                }
            }
        }
    }
}

fn reach(pid: u64) -> Verdict {
    /// Also when the way there panics: whoever waits must not wait for ever.
    struct Store {
        pid: u64,
        reached: u64,
    }
    impl Drop for Store {
        fn drop(&mut self) {
            STATE.store(self.pid << 32 | self.reached, Ordering::Release);
        }
    }
    let mut store = Store { pid, reached: REFUSED };
    let verdict = decide();
    store.reached = match verdict {
        Verdict::On(_) => ON,
        Verdict::Refused => REFUSED,
        Verdict::Off | Verdict::Busy => OFF,
    };
    verdict
}

fn decide() -> Verdict {
    let var = |name: &str| std::env::var_os(name);
    if config::is_disabled(var("CUWARDEN_DISABLE").as_deref()) {
        return Verdict::Off;
    }
    let (config, errors) = Config::parse(&var);
    let events = Events::new(&config);
    if !errors.is_empty() {
        for error in &errors {
            events.emit(
                Level::Error,
                "config_error",
                fields! {
                    "variable": &*error.variable, "value": &*error.value, "reason": &*error.reason,
                    "allowed": error.allowed,
                    "message": format!(
                        "{}=\"{}\" cannot be used: {}. Allowed: {}. CUDA is not started until it is corrected.",
                        error.variable, error.value, error.reason, error.allowed
                    ),
                },
            );
        }
        return Verdict::Refused;
    }
    let directory = config.dir.clone().unwrap_or_else(default_directory);
    match open_books(&directory, &config) {
        Ok(books) => Verdict::On(begin(config, events, books)),
        Err(problem) => without_books(&config, &events, &problem),
    }
}

struct Books {
    ledger: Ledger,
    writer: Writer,
}

/// What of the shared directory cannot be used.
struct Problem {
    path: PathBuf,
    what: String,
    way_out: &'static str,
}

fn open_books(directory: &Path, config: &Config) -> Result<Books, Problem> {
    let of_directory = |error: io::Error| Problem {
        path: directory.to_owned(),
        what: error.to_string(),
        way_out: "Make it writable, or name another one in CUWARDEN_DIR.",
    };
    prepare(directory, config).map_err(of_directory)?;
    let mut identity = Identity::of_this_process();
    identity.labels = config.labels_text.clone();
    // Before the record file, which says that somebody uses a ledger.
    let ledger = Ledger::join(directory, || users::of(directory, &identity))
        .map_err(|error| problem_of_ledger(directory, &error))?;
    let writer = Writer::create(directory, &identity).map_err(of_directory)?;
    predecessor::mark_ended(writer.path(), &identity);
    Ok(Books { ledger, writer })
}

fn problem_of_ledger(directory: &Path, error: &Unusable) -> Problem {
    Problem {
        path: crate::ledger::file::path_in(directory),
        what: error.to_string(),
        way_out: match error {
            Unusable::Io(_) => "Make the directory writable, or name another one in CUWARDEN_DIR.",
            Unusable::Wrong(_) => {
                "End the processes that use the directory and remove the file, or name another directory in CUWARDEN_DIR."
            }
            Unusable::Removed(_) => "End these processes, or name another directory in CUWARDEN_DIR.",
            Unusable::Full => "Give a part of the processes another directory in CUWARDEN_DIR.",
        },
    }
}

fn prepare(directory: &Path, config: &Config) -> io::Result<()> {
    make_private_directory(directory)?;
    if config.dir.is_none() {
        check_owner(directory)?;
        let records = directory.join("proc");
        make_private_directory(&records)?;
        check_owner(&records)?;
    }
    Ok(())
}

/// The default place is in a folder that everybody may write to.
pub(super) fn check_owner(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let status = std::fs::symlink_metadata(directory)?;
    // SAFETY: no arguments, cannot fail.
    let user = unsafe { libc::geteuid() };
    if !status.is_dir() || status.uid() != user || status.mode() & 0o022 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it must be a directory of this user that nobody else may write to",
        ));
    }
    Ok(())
}

/// `/tmp/cuwarden-<uid>`
pub fn default_directory() -> PathBuf {
    // SAFETY: no arguments, cannot fail.
    PathBuf::from(format!("/tmp/cuwarden-{}", unsafe { libc::geteuid() }))
}

fn without_books(config: &Config, events: &Events, problem: &Problem) -> Verdict {
    let quota = !config.limits.is_unlimited();
    let Problem { path, what, way_out } = problem;
    let shown = path.display();
    let consequence = if quota {
        "A memory limit is set and cannot be kept without it, so CUDA is not started."
    } else {
        "This process runs untracked."
    };
    events.emit(
        if quota { Level::Error } else { Level::Warn },
        "config_error",
        fields! {
            "variable": "CUWARDEN_DIR", "value": shown.to_string(), "reason": &**what,
            "allowed": "an absolute path of a directory that this process may write to",
            "message": format!(
                "{shown} cannot be used: {what}. {consequence} {way_out}"
            ),
        },
    );
    if quota { Verdict::Refused } else { Verdict::Off }
}

fn begin(config: Config, events: Events, Books { ledger, writer }: Books) -> &'static Process {
    writer.header().stack_depth.store(config.stack_depth, Ordering::Relaxed);
    let process = Box::leak(Box::new(Process {
        config,
        writer,
        events,
        index: Default::default(),
        stacks: Stacks::new(),
        contexts: Default::default(),
        pools: Default::default(),
        graphs: Default::default(),
        ledger,
        entered: std::array::from_fn(|_| OnceLock::new()),
        entering: Default::default(),
        shut: Default::default(),
        memory_map: Default::default(),
        runtimes: Default::default(),
        runtime_places: Default::default(),
        denials: Default::default(),
        failures: Default::default(),
        pid: std::process::id(),
        alive: Alive::new(),
        started_coarse_ns: coarse_ns(),
        is_forked: FORKED.load(Ordering::Relaxed),
        growth_started: Default::default(),
        forked_from: Some(INITIALISED.swap(0, Ordering::Relaxed)).filter(|pid| *pid != 0),
    }));
    // Release pairs with the Acquire in `current`.
    CURRENT.store(process, Ordering::Release);
    process
}
