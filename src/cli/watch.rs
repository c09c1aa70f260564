//! `cuwarden watch`

mod process;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::error::{Failure, INTERNAL, NO_INPUT};
use super::load;
use super::ps::places;
use super::terminal::{self, say};
use crate::policy::drift::{self, Settings};
use crate::record::snapshot::{Liveness, Observer, Snapshot};
use crate::report::symbols::Symbolizer;
use crate::report::text::{Style, Tone, clean, suspect};
use crate::report::time::rfc3339;
use crate::report::{Report, Termination};
use process::Watched;

/// Watch what processes hold, and say whose memory grows without an end.
///
/// It judges from outside what a process judges itself: a leak_suspect event has the same rules. It sees processes that
/// were started with CUWARDEN_DRIFT=0 or other numbers, and it names functions and lines.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cuwarden watch                                             all processes of this user
  cuwarden watch /run/containers/7                           one container
  cuwarden watch --for 10m --drift every=30s,percent=5 DIR   a soak test: exit status 1 where something grew
  cuwarden watch --while-running --json DIR | jq .stacks

A process is suspicious where its memory on a device was at --drift's times comparisons in a row at least percent above the \
comparison before, and never fell in between; or where it grows slowly and would fill the device within the horizon. Each \
call stack is named once.

As JSON: one object a line, with the fields of the event leak_suspect and dir, pid and exe.

Exit status: 0 nothing was suspicious; 1 something was; 64 used wrongly; 66 DIR cannot be read.")]
pub struct Arguments {
    /// The CUWARDEN_DIR of the processes
    dir: Option<PathBuf>,
    /// What is suspicious, as in CUWARDEN_DRIFT
    #[arg(long, value_name = "SPEC", value_parser = settings, default_value = "")]
    drift: Settings,
    /// End after this time, such as 90s, 10m or 2h
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    until: Option<Duration>,
    /// End when no process runs any more
    #[arg(long)]
    while_running: bool,
    /// For scripts: one object a line
    #[arg(long)]
    json: bool,
}

fn settings(text: &str) -> Result<Settings, String> {
    let wrong = |(part, reason)| format!("{part:?}: {reason}. Allowed: {}", drift::ALLOWED);
    drift::parse(text)
        .map_err(wrong)?
        .ok_or("0 looks for nothing, and there would be nothing to do".to_owned())
}

fn time(text: &str) -> Result<Duration, String> {
    let seconds = drift::seconds(text).ok_or("not a time. Allowed: 90s, 10m, 2h or the like")?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "too long a time".to_owned())
}

pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    if let Some(dir) = &arguments.dir {
        fs::read_dir(dir).map_err(|error| Failure::path(NO_INPUT, "read the directory", dir, &error))?;
    }
    let since = Instant::now();
    let mut watch = Watch {
        settings: arguments.drift,
        observer: Observer::here(),
        symbolizer: Symbolizer::default(),
        processes: HashMap::new(),
        unreadable: HashMap::new(),
        style: terminal::style(),
        json: arguments.json,
        found: false,
    };
    let pace = Duration::try_from_secs_f64(arguments.drift.every_s / 5.0).unwrap_or(Duration::MAX);
    let mut told = None;
    loop {
        let directories = match &arguments.dir {
            Some(dir) => vec![dir.clone()],
            None => places::find().directories,
        };
        let running = watch.look(&directories)?;
        if told != Some(running) {
            told = Some(running);
            let what = match (&arguments.dir, directories.len()) {
                (Some(dir), _) => clean(&dir.display().to_string()),
                (None, 1) => "1 directory".to_owned(),
                (None, count) => format!("{count} directories"),
            };
            let run = if running == 1 { "process runs" } else { "processes run" };
            say(&format!("watching {what}: {running} {run}"));
        }
        let left = arguments.until.map_or(Duration::MAX, |until| until.saturating_sub(since.elapsed()));
        if left.is_zero() || (arguments.while_running && running == 0) {
            return Ok(ExitCode::from(u8::from(watch.found)));
        }
        std::thread::sleep(pace.min(left));
    }
}

struct Watch {
    settings: Settings,
    observer: Observer,
    symbolizer: Symbolizer,
    /// By record file.
    processes: HashMap<PathBuf, Watched>,
    /// What has been said of files.
    unreadable: HashMap<PathBuf, String>,
    style: Style,
    json: bool,
    found: bool,
}

impl Watch {
    /// Looks at all processes once; how many run.
    fn look(&mut self, directories: &[PathBuf]) -> Result<usize, Failure> {
        let mut seen: HashMap<PathBuf, Watched> = HashMap::new();
        for directory in directories {
            let mut here = Vec::new();
            for path in load::entries(&directory.join("proc"), Path::is_file).unwrap_or_default() {
                match Snapshot::open(&path) {
                    Ok(snapshot) if self.observer.liveness(&snapshot) == Liveness::Running => {
                        here.push((path, snapshot));
                    }
                    Ok(_) => {}
                    Err(error) => {
                        let message = error.to_string();
                        if self.unreadable.get(&path) != Some(&message) {
                            say(&message);
                            self.unreadable.insert(path, message);
                        }
                    }
                }
            }
            let used = process::used(here.iter().map(|(_, snapshot)| snapshot));
            for (path, snapshot) in here {
                let mut watched = self.processes.remove(&path).unwrap_or_else(|| Watched::new(self.settings));
                for fields in watched.see(&snapshot, now_ns(), &used) {
                    self.say(directory, &snapshot, fields)?;
                }
                seen.insert(path, watched);
            }
        }
        self.processes = seen;
        Ok(self.processes.len())
    }

    fn say(&mut self, directory: &Path, snapshot: &Snapshot, fields: Value) -> Result<(), Failure> {
        self.found = true;
        // A report knows the modules by their build-ids, and so whose names are right.
        let mut report = Report::from_snapshot(snapshot, Termination::Running, now_ns());
        report.leaks.clear();
        report.leak_suspects = vec![fields];
        self.symbolizer.resolve(&mut report);
        let Some(mut fields) = report.leak_suspects.pop() else { return Ok(()) };
        let at = rfc3339(now_ns()).unwrap_or_default();
        if self.json {
            if let Some(fields) = fields.as_object_mut() {
                fields.insert("ts".to_owned(), at.into());
                fields.insert("event".to_owned(), "leak_suspect".into());
                fields.insert("dir".to_owned(), directory.display().to_string().into());
                fields.insert("pid".to_owned(), snapshot.pid.into());
                fields.insert("exe".to_owned(), snapshot.exe.clone().into());
            }
            let line = serde_json::to_string(&fields)
                .map_err(|error| Failure::new(INTERNAL, format!("cannot write JSON: {error}")))?;
            return terminal::answer(&(line + "\n"));
        }
        let command =
            if snapshot.cmdline.is_empty() { snapshot.exe.clone() } else { snapshot.cmdline.join(" ") };
        let who = format!("{at}  process {}: {}", snapshot.pid, clean(&command));
        let mut text = self.style.paint(Tone::Strong, &self.style.fit(&who, 0)) + "\n";
        suspect(&mut text, &fields, &self.style);
        terminal::answer(&text)
    }
}

fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
