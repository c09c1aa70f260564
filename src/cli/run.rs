//! `cuwarden run`

mod child;
mod directory;
mod environment;
mod shim;
mod summary;
mod within;

use std::ffi::{OsStr, OsString};
use std::io;
use std::num::NonZeroU8;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::SystemTime;

use super::bundle;
use super::error::{Failure, NOT_EXECUTABLE, NOT_FOUND, USED_WRONGLY};
use super::gate;
use super::terminal::say;
use crate::policy::versions::{CudaVersion, VERSION_ALLOWED};
pub use directory::{Directory, make_folder};
pub use environment::Environment;
pub use shim::find as find_shim;
use within::Outer;

/// Run a program, and all that it starts, tracked and within a quota.
///
/// All processes of the run share one set of quotas. Its exit status, input and output are the program's own.
/// A summary goes to stderr where there is something to say: a leak, a refused request, a process that was
/// killed, CUDA that did not start.
#[derive(clap::Args)]
#[command(
    override_usage = "cuwarden run [OPTIONS] -- <CMD>...",
    after_help = "\
Examples:
  cuwarden run -- python train.py
  cuwarden run --memory-limit 4GiB --report reports -- ./app --input data
  cuwarden run --memory-limit '0=4GiB,*=2GiB' --label arm=A --label cuda=12.4 -- ./app
  cuwarden run --leak-exitcode 23 --max-leak 16MiB --suppressions known.txt -- pytest
  cuwarden run --sim -- ./app          on a simulated GPU, where there is none

The shim is libcuwarden.so: beside cuwarden, in ../lib, or where CUWARDEN_LIB says. It is appended to LD_PRELOAD, so \
what is there already keeps its place. A program with AddressSanitizer needs that first: \
LD_PRELOAD=$(cc -print-file-name=libasan.so) cuwarden run -- ./app

A program that changes or clears the environment of those that it starts does not lose the shim, nor the CUWARDEN_ \
variables that it was started with: their values hold for all that follow, for a cuwarden run within as well. \
CUWARDEN_FOLLOW=0 leaves the environment of children alone.

Preloading is cooperative: it does not reach setuid, statically linked or 32-bit programs.

--leak-exitcode judges all processes of the run that have ended, those that were killed too. A program that failed keeps \
its own exit status. Where what a process held cannot be read, the status is N as well: a gate that cannot see does not pass.

Exit status: the program's; 128+N when signal N ended it; 127 no such program; 126 it cannot be executed; 125 cuwarden \
could not do its part; 64 used wrongly."
)]
pub struct Arguments {
    /// Quota: 4GiB for every device, or by CUDA ordinal or UUID, 0=4GiB,GPU-<uuid>=8GiB,*=2GiB
    #[arg(long, value_name = "SPEC", value_parser = memory_limit)]
    memory_limit: Option<String>,
    /// CUDA version of the vGPU baseline, such as 12.4: where driver or runtime do not keep it, CUDA does not start
    #[arg(long, value_name = "V", value_parser = baseline)]
    baseline: Option<String>,
    /// Write one leak report for each process into this folder, as cuwarden-PID.json
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Share quotas and accounting with all that name the same directory; default: one of its own
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// A label for reports, events and metrics; may be repeated
    #[arg(long = "label", value_name = "K=V", value_parser = label)]
    labels: Vec<String>,
    /// Exit with N (1 to 255) where the program ended with 0 and memory was leaked, or more than --max-leak. What the driver
    /// holds for a process (pools, graphs, code) does not count
    #[arg(long, value_name = "N")]
    leak_exitcode: Option<NonZeroU8>,
    #[command(flatten)]
    gate: gate::Options,
    /// Put the bundled simulated GPU in the place of the driver
    #[arg(long)]
    sim: bool,
    /// The program and its arguments, after --
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    if arguments.gate.max_leak.is_some() && arguments.leak_exitcode.is_none() {
        let message = "--max-leak says how much --leak-exitcode lets pass: give both";
        return Err(Failure::new(USED_WRONGLY, message));
    }
    let mut suppressions = arguments.gate.read(Vec::new())?;
    let shim = find_shim()?;
    let mut outer = Outer::here();
    let held = outer.as_ref().and_then(Outer::directory);
    let mut directory = match held.as_ref().or(arguments.dir.as_ref()) {
        Some(path) => Directory::shared(path)?,
        None => Directory::private()?,
    };
    let mut environment = Environment::new(&shim, directory.path());
    let mut has_effect = |option: &str, variable: &str, value: &OsStr| {
        outer.as_mut().is_none_or(|outer| outer.lets(option, variable, value))
    };
    if let Some(path) = &arguments.dir {
        has_effect("--dir", "CUWARDEN_DIR", std::path::absolute(path).as_ref().unwrap_or(path).as_os_str());
    }
    if let Some(limit) = &arguments.memory_limit
        && has_effect("--memory-limit", "CUWARDEN_MEMORY_LIMIT", limit.as_ref())
    {
        environment.set("CUWARDEN_MEMORY_LIMIT", limit);
    }
    if let Some(baseline) = &arguments.baseline
        && has_effect("--baseline", "CUWARDEN_BASELINE", baseline.as_ref())
    {
        environment.set("CUWARDEN_BASELINE", baseline);
    }
    let mut reports = arguments.report.as_deref().map(make_folder).transpose()?;
    if let Some(folder) = &reports {
        if has_effect("--report", "CUWARDEN_REPORT", folder.as_ref()) {
            environment.set("CUWARDEN_REPORT", folder);
        } else {
            reports = std::env::var_os("CUWARDEN_REPORT").map(PathBuf::from);
        }
    }
    let labels = arguments.labels.join(",");
    if !labels.is_empty() && has_effect("--label", "CUWARDEN_LABELS", labels.as_ref()) {
        environment.add_labels(&arguments.labels);
    }
    if let Some(message) = outer.and_then(|outer| outer.message()) {
        say(&message);
    }
    if arguments.sim {
        bundle::install(directory.path(), &mut environment)?;
    }

    let began = SystemTime::now();
    let (program, rest) = arguments.command.split_first().ok_or_else(|| {
        Failure::new(USED_WRONGLY, "no program was named. Example: cuwarden run -- python train.py")
    })?;
    let mut command = Command::new(program);
    command.args(rest);
    environment.apply(&mut command);
    let ended = child::run(&mut command).map_err(|error| cannot_start(program, &error))?;

    let said = summary::write(&directory, reports.as_deref(), began, &mut suppressions);
    // Who is still running needs the directory, and so does a reader of the summary.
    if said.keeps_directory || ended.others_run {
        directory.keep();
        if directory.is_private() && !ended.others_run {
            bundle::remove(directory.path());
        }
    }
    let status = ended.exit_status();
    Ok(ExitCode::from(match arguments.leak_exitcode {
        // Why the program itself failed matters more.
        Some(code) if leaks(&said, arguments.gate.max_leak.unwrap_or_default()) && status == 0 => code.get(),
        _ => status,
    }))
}

/// The verdict of --leak-exitcode, with a word on why.
fn leaks(said: &summary::Said, most: gate::MaxLeak) -> bool {
    let why = match most.exceeded(said.leaked) {
        Some(why) => Some(why),
        None if said.hidden => {
            Some("what a process held is not known in full, so leaks may be hidden".to_owned())
        }
        None => None,
    };
    if let Some(why) = &why {
        say(&format!("--leak-exitcode: {why}"));
    } else if said.judged == 0 {
        // A gate that saw nothing must not look like one that passed.
        say("--leak-exitcode: no process that has ended used CUDA, so there was nothing to judge");
    }
    why.is_some()
}

fn cannot_start(program: &OsString, error: &io::Error) -> Failure {
    let name = program.display();
    match error.kind() {
        io::ErrorKind::NotFound if !name.to_string().contains('/') => {
            Failure::new(NOT_FOUND, format!("cannot start {name}: there is no such program in PATH"))
        }
        io::ErrorKind::NotFound => Failure::new(
            NOT_FOUND,
            format!("cannot start {name}: there is no such file, or its interpreter is missing"),
        ),
        io::ErrorKind::PermissionDenied => Failure::new(
            NOT_EXECUTABLE,
            format!("cannot start {name}: it may not be executed (chmod +x, or a folder mounted noexec?)"),
        ),
        _ => Failure::new(NOT_EXECUTABLE, format!("cannot start {name}: {error}")),
    }
}

fn memory_limit(text: &str) -> Result<String, String> {
    match crate::policy::limit::Limits::parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}. Allowed: {}", crate::policy::limit::ALLOWED)),
    }
}

fn baseline(text: &str) -> Result<String, String> {
    match CudaVersion::parse(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(format!("expected {VERSION_ALLOWED}")),
    }
}

fn label(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((key, _)) if key.trim().is_empty() => Err("the name before = is empty".to_owned()),
        None => Err("expected NAME=VALUE, such as arm=A".to_owned()),
        Some(_) if text.contains(',') => {
            Err("a comma separates labels, so it cannot be part of one; repeat --label instead".to_owned())
        }
        Some(_) if text.chars().any(char::is_control) => Err("control characters are not allowed".to_owned()),
        Some(_) => Ok(text.to_owned()),
    }
}
