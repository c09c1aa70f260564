//! `cuwarden report`

mod output;

use std::path::PathBuf;
use std::process::ExitCode;

use super::error::{Failure, NO_INPUT};
use super::gate;
use super::load::{Loaded, load};
use super::terminal;
use crate::report::Termination;
use crate::report::judged::{Judged, State, Sum};
use crate::report::pattern::{self, Pattern};
use crate::report::text::Extent;
use output::{Answer, Format};

/// Show what a process has not freed, or holds now: whose it is, where it was allocated, what to do.
///
/// PATH is a report (cuwarden-PID.json), a process's record file (CUWARDEN_DIR/proc/…, of a process that was
/// killed too), a folder of either, or a CUWARDEN_DIR.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cuwarden report /tmp/reports                        every process of a run
  cuwarden report --format json cuwarden-4242.json    with names and source lines, for scripts
  cuwarden report --fail-on-leak reports || exit 1    a gate for CI
  cuwarden report --output leaks.html --output leaks.pb.gz reports
  cuwarden report --format folded reports | flamegraph.pl --countname bytes > leaks.svg
  go tool pprof -http : leaks.pb.gz                   speedscope reads it too
  cuwarden report --fail-on-leak --suppressions known.txt --max-leak 16MiB reports

known.txt has a pattern a line; a leak is left out where the call or any frame of its call stack fits one:
  # what NCCL keeps until the process ends
  module:libnccl*
  function:cache::*::grow
  api:cuMemAllocHost*

As JSON, a folder gives an array.

Exit status: 0; 1 with --fail-on-leak where a process that has ended left memory allocated; 64 used wrongly, or a \
pattern that is none; 66 PATH or a suppression file cannot be read; 74 the answer cannot be written.")]
pub struct Arguments {
    /// A report, a record file, or a folder of them
    path: PathBuf,
    /// What to make; default: text, or what the ending of --output's FILE says
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Write to FILE instead of stdout; may be repeated. The ending says the format: .txt, .json, .html, .folded,
    /// .pb.gz or .pprof
    #[arg(long, short, value_name = "FILE")]
    output: Vec<PathBuf>,
    /// Call stacks that the text shows of each kind
    #[arg(long, value_name = "N", default_value_t = Extent::default().stacks)]
    top: usize,
    /// Show all call stacks, all their frames and all processes in the text
    #[arg(long, conflicts_with = "top")]
    all: bool,
    /// Take the frames that a pattern fits out of all call stacks, function:GLOB or module:GLOB; may be repeated. What
    /// then is the same becomes one entry, and whoever called them is who asked
    #[arg(long, value_name = "PATTERN", value_parser = fold)]
    fold: Vec<Pattern>,
    /// The same for the allocators of PyTorch, TensorFlow, ONNX Runtime, RMM, CUB and others
    #[arg(long)]
    fold_allocators: bool,
    /// Exit with 1 where a process that has ended left memory allocated, and with 66 where there is no
    /// process to judge. What the driver holds for a process (pools, graphs, code) does not count
    #[arg(long)]
    fail_on_leak: bool,
    #[command(flatten)]
    gate: gate::Options,
}

pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    // What is wrong with the arguments is said before minutes are spent on the report.
    let answers = output::answers(arguments.format, &arguments.output)?;
    if arguments.gate.max_leak.is_some() && !arguments.fail_on_leak {
        let message = "--max-leak says how much --fail-on-leak lets pass: give both";
        return Err(Failure::new(super::error::USED_WRONGLY, message));
    }
    let mut patterns = arguments.fold;
    if arguments.fold_allocators {
        patterns.extend(pattern::allocators());
    }
    let mut suppressions = arguments.gate.read(patterns)?;

    let (list, unreadable, one) = match load(&arguments.path)? {
        Loaded::One(report) => (vec![*report], Vec::new(), true),
        Loaded::Folder { reports, unreadable } => (reports, unreadable, false),
    };
    unreadable.iter().for_each(|message| terminal::say(message));
    if list.is_empty() && !unreadable.is_empty() {
        let message = format!("nothing in {} can be read", arguments.path.display());
        return Err(Failure::new(NO_INPUT, message));
    }
    let reports: Vec<Judged> = list.into_iter().map(|report| suppressions.judge().judge(report)).collect();
    let extent = match arguments.all {
        true => Extent::ALL,
        false => Extent { stacks: arguments.top, ..Extent::default() },
    };
    let answer = Answer { reports: &reports, one, extent, path: &arguments.path };
    answers.iter().try_for_each(|to| answer.write(to))?;
    suppressions.say_unused();
    match arguments.fail_on_leak {
        true => verdict(&reports, &unreadable, arguments.gate.max_leak.unwrap_or_default(), &arguments.path),
        false => Ok(ExitCode::SUCCESS),
    }
}

fn verdict(
    reports: &[Judged],
    unreadable: &[String],
    most: gate::MaxLeak,
    path: &std::path::Path,
) -> Result<ExitCode, Failure> {
    let mut leaked = Sum::default();
    let ended = |judged: &&Judged| judged.report.termination != Termination::Running;
    reports.iter().filter(ended).for_each(|judged| leaked.merge(judged.sum(State::Leak)));
    if let Some(why) = most.exceeded(leaked) {
        terminal::say(&why);
        return Ok(ExitCode::from(1));
    }
    if !reports.iter().any(|judged| ended(&judged)) {
        // A gate that passes because it saw nothing would never fail.
        let message = format!("no process in {} has ended: there is nothing to judge", path.display());
        return Err(Failure::new(NO_INPUT, message));
    }
    if !unreadable.is_empty() {
        return Err(Failure::new(NO_INPUT, "not every file could be read, so leaks may be hidden"));
    }
    let in_part = |judged: &&Judged| judged.report.lost_records > 0 || judged.report.damaged_parts > 0;
    if reports.iter().filter(ended).any(|judged| in_part(&judged)) {
        let message = "what a process held is not known in full, so leaks may be hidden";
        return Err(Failure::new(NO_INPUT, message));
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn fold(text: &str) -> Result<Pattern, String> {
    let allowed = format!("Allowed: {}", pattern::ALLOWED);
    let pattern = Pattern::parse(text).map_err(|problem| format!("{problem}. {allowed}"))?;
    if pattern.is_of_call() {
        return Err("a frame has a function and a module; api: names a call".to_owned());
    }
    Ok(pattern)
}
