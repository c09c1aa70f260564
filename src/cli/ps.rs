//! `cuwarden ps`

mod join;
mod model;
pub(super) mod places;
mod table;
mod unaccounted;

use std::cell::RefCell;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::error::{Failure, INTERNAL, NO_INPUT};
use super::nvml::asked;
use super::processes::Processes;
use super::records::{self, Progress, Record};
use super::terminal::{self, say};
use crate::diagnose::nvml::Nvml;
use crate::ledger::view::{DeviceView, View};
use crate::report::text::clean;
use join::{Surroundings, join};
use model::{Device, Directory, Listing, SCHEMA, State};

/// How long NVML may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Files that cannot be read, of one directory, of which something is said; the others are counted.
const MAX_PROBLEMS: usize = 5;

/// Show who holds what, per device and process, of those who run and of those who died.
///
/// Without --dir: every directory of this user. These are the default one, those that `cuwarden run` made, and those that
/// running processes have in CUWARDEN_DIR. All processes of a directory share one quota for each device.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cuwarden ps                                      all of this user
  cuwarden ps --dir /run/containers/7              one container, also one whose processes are dead
  cuwarden ps --json | jq '.directories[].devices[] | {uuid, used_bytes, limit_bytes}'

Columns: LIVE is what a process holds, contexts left out; of a dead one what it held at its death. PEAK is the most that \
it held at a time. DENIED counts requests that the quota refused. UNACCOUNTED is NVML's figure for the process less what \
is charged to it, where they are further apart than one context's share. - means not known.

As JSON: schema cuwarden.ps/1, {directories: [{path, problems, devices: [{uuid, name, total_bytes, limit_bytes (0 = \
none), limit_by (operator, environment, none), used_bytes, context_cost_bytes, denied_count, processes: [{pid, host_pid, \
exe, labels, state (running, stopped, other_namespace, dead), live_bytes, context_bytes, peak_bytes, denied_count, \
unaccounted_bytes, started_at}]}]}]}. null means not known. The dead do not count in used_bytes.

Exit status: 0, also where nothing is found; 64 used wrongly; 66 a directory or its ledger cannot be read.")]
pub struct Arguments {
    /// The CUWARDEN_DIR of the processes
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Also the dead that held nothing, and directories in which nobody runs any more
    #[arg(long)]
    all: bool,
    /// For scripts: schema cuwarden.ps/1
    #[arg(long)]
    json: bool,
}

pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let found = match &arguments.dir {
        Some(path) => only(path)?,
        None => places::find(),
    };
    let mut progress = Progress::new();
    let books: Vec<Books> = found.directories.iter().map(|path| Books::read(path, &mut progress)).collect();
    // Who is there is asked last: whoever lives in the books has been there.
    let processes = Processes::look();
    let mut read: Vec<Read> =
        books.into_iter().map(|books| books.join(&processes, arguments.all, &mut progress)).collect();
    ask_nvml(&mut read);
    let is_damaged = read.iter().any(|read| read.is_damaged);
    let directories: Vec<Directory> = read.into_iter().map(|read| read.directory).collect();
    for directory in &directories {
        tell_problems(&directory.problems);
    }
    if directories.iter().all(|directory| directory.devices.is_empty()) && !is_damaged {
        say(&format!(
            "nothing was found: no process has used a device in {}",
            clean(&found.looked_at.join(", "))
        ));
    }
    if arguments.json {
        let listing = Listing { schema: SCHEMA, directories };
        let text = serde_json::to_string_pretty(&listing)
            .map_err(|error| Failure::new(INTERNAL, format!("cannot write JSON: {error}")))?;
        terminal::answer(&(text + "\n"))?;
    } else {
        let (shown, left_out) = worth_showing(directories, arguments.all || arguments.dir.is_some());
        terminal::answer(&table::text(&shown, &terminal::style()))?;
        if left_out > 0 {
            let directories = if left_out == 1 {
                "1 more directory has"
            } else {
                &format!("{left_out} more directories have")
            };
            say(&format!("{directories} dead processes only: cuwarden ps --all shows them"));
        }
    }
    Ok(ExitCode::from(if is_damaged { NO_INPUT } else { 0 }))
}

fn only(path: &Path) -> Result<places::Found, Failure> {
    // Reading it says more than looking at it.
    fs::read_dir(path).map_err(|error| Failure::path(NO_INPUT, "read the directory", path, &error))?;
    let directories = if places::is_one(path) { vec![path.to_owned()] } else { Vec::new() };
    Ok(places::Found { directories, looked_at: vec![path.display().to_string()] })
}

/// What lies in a directory.
struct Books {
    path: PathBuf,
    records: Vec<Record>,
    ledger: Option<Vec<DeviceView>>,
    problems: Vec<String>,
    /// The ledger, or the folder of the record files, cannot be used.
    is_damaged: bool,
}

struct Read {
    directory: Directory,
    is_damaged: bool,
}

impl Books {
    fn read(path: &Path, progress: &mut Progress) -> Books {
        // The ledger after the record files: who is in those and lives has entered it.
        let (records, mut problems, unreadable) = match records::read(path, progress) {
            Ok((records, problems)) => (records, problems, None),
            Err(problem) => (Vec::new(), Vec::new(), Some(problem)),
        };
        let (ledger, damage) = ledger_of(path);
        if fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            // Its run ended and took it along.
            return Books::none(path);
        }
        let is_damaged = damage.is_some() || unreadable.is_some();
        problems.splice(0..0, damage.into_iter().chain(unreadable));
        Books { path: path.to_owned(), records, ledger, problems, is_damaged }
    }

    fn none(path: &Path) -> Books {
        let (path, records) = (path.to_owned(), Vec::new());
        Books { path, records, ledger: None, problems: Vec::new(), is_damaged: false }
    }

    fn join(self, processes: &Processes, all: bool, progress: &mut Progress) -> Read {
        let progress = RefCell::new(progress);
        let around = Surroundings {
            sight: &|identity, boot_id| processes.find(identity, boot_id),
            is_neighbour: &|identity| processes.is_neighbour(identity),
            live: &|record| {
                progress.borrow_mut().step();
                record.live()
            },
            exe: &|pid| {
                let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
                Some(path.to_string_lossy().into_owned())
            },
            all,
        };
        let devices = join(self.ledger.as_deref(), &self.records, &around);
        let path = self.path.display().to_string();
        Read { directory: Directory { path, devices, problems: self.problems }, is_damaged: self.is_damaged }
    }
}

fn ledger_of(path: &Path) -> (Option<Vec<DeviceView>>, Option<String>) {
    match View::open(path) {
        Ok(view) => (view.map(|view| view.devices()), None),
        Err(error) => {
            let file = crate::ledger::file::path_in(path);
            let rest = "What follows is from the record files alone";
            (None, Some(format!("the ledger {} cannot be used: {error}. {rest}", file.display())))
        }
    }
}

/// Compares with what the driver knows, where there is one and somebody to ask about.
fn ask_nvml(read: &mut [Read]) {
    let is_asked_about = |device: &Device| {
        device.limit_bytes.is_some() && device.processes.iter().any(|p| p.state != State::Dead)
    };
    let devices = read.iter_mut().flat_map(|read| &mut read.directory.devices);
    let mut devices: Vec<&mut Device> = devices.filter(|device| is_asked_about(device)).collect();
    let mut uuids: Vec<String> = devices.iter().map(|device| device.uuid.clone()).collect();
    uuids.sort();
    uuids.dedup();
    if uuids.is_empty() {
        return;
    }
    let ask = move |nvml: &Nvml<'_>| {
        let list = |uuid: &str| nvml.processes(nvml.device_by_uuid(uuid).ok()?).ok();
        uuids.into_iter().map(|uuid| (list(&uuid), uuid)).collect::<Vec<_>>()
    };
    let began = Instant::now();
    let Ok(lists) = asked(PATIENCE, ask) else {
        // Without a driver, or without the right to ask it, there is nothing to know. Who has waited is told why.
        if began.elapsed() >= PATIENCE {
            say("NVML does not answer, so nothing is known of what is unaccounted for");
        }
        return;
    };
    let is_whole_machine = Processes::are_of_whole_machine();
    for (list, uuid) in lists {
        let Some(list) = list else { continue };
        let known: Vec<(u32, u64)> = list.iter().filter_map(|(pid, bytes)| Some((*pid, (*bytes)?))).collect();
        for device in devices.iter_mut().filter(|device| device.uuid == uuid) {
            unaccounted::fill(device, &known, is_whole_machine);
        }
    }
}

fn tell_problems(problems: &[String]) {
    for problem in problems.iter().take(MAX_PROBLEMS) {
        say(&clean(problem));
    }
    if problems.len() > MAX_PROBLEMS {
        say(&format!("{} more files cannot be read", problems.len() - MAX_PROBLEMS));
    }
}

/// Runs leave directories behind for those who want to read them; who asks who holds what does not.
fn worth_showing(directories: Vec<Directory>, all: bool) -> (Vec<Directory>, u64) {
    let used = directories.into_iter().filter(|directory| !directory.devices.is_empty());
    let somebody_runs = |directory: &Directory| {
        let mut processes = directory.devices.iter().flat_map(|device| &device.processes);
        processes.any(|process| process.state != State::Dead)
    };
    let (shown, left_out): (Vec<_>, Vec<_>) = used.partition(|directory| all || somebody_runs(directory));
    (shown, left_out.len() as u64)
}
