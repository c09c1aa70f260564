//! `cuwarden report`

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;

use super::error::{Failure, INTERNAL, NO_INPUT};
use super::load::{Loaded, load};
use super::terminal;
use crate::report::{Report, Termination, text};

/// Show what a process has not freed, or holds now.
///
/// PATH is a report (cuwarden-PID.json), a process's record file (CUWARDEN_DIR/proc/…, of a process that was
/// killed too), a folder of either, or a CUWARDEN_DIR.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cuwarden report /tmp/reports                        every process of a run
  cuwarden report --format json cuwarden-4242.json    with names and source lines, for scripts
  cuwarden report --fail-on-leak reports || exit 1    a gate for CI

As JSON, a folder gives an array.

Exit status: 0; 1 with --fail-on-leak where a process that has ended left memory allocated; 64 used wrongly; 66 PATH \
cannot be read.")]
pub struct Arguments {
    /// A report, a record file, or a folder of them
    path: PathBuf,
    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Exit with 1 where a process that has ended left memory allocated, and with 66 where there is no
    /// process to judge. What the driver holds for a process (pools, graphs, code) does not count
    #[arg(long)]
    fail_on_leak: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// For scripts: schema cuwarden.report/1
    Json,
}

pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let loaded = load(&arguments.path)?;
    let reports = match &loaded {
        Loaded::One(report) => std::slice::from_ref(&**report),
        Loaded::Folder { reports, unreadable } => {
            unreadable.iter().for_each(|message| terminal::say(message));
            if reports.is_empty() && !unreadable.is_empty() {
                let message = format!("nothing in {} can be read", arguments.path.display());
                return Err(Failure::new(NO_INPUT, message));
            }
            reports
        }
    };
    let style = terminal::style();
    terminal::answer(&match (arguments.format, &loaded) {
        (Format::Json, Loaded::One(report)) => json(&**report)?,
        (Format::Json, Loaded::Folder { reports, .. }) => json(reports)?,
        (Format::Text, Loaded::One(report)) => text::one(report, &style),
        (Format::Text, Loaded::Folder { reports, .. }) if reports.is_empty() => format!(
            "There is no report in {}.\nEither no program has used CUDA there, or none has ended yet.\n",
            text::clean(&arguments.path.display().to_string())
        ),
        (Format::Text, Loaded::Folder { reports, .. }) => text::many(reports, &style),
    })?;
    if !arguments.fail_on_leak {
        return Ok(ExitCode::SUCCESS);
    }
    let ended = |report: &&Report| report.termination != Termination::Running;
    if reports.iter().filter(ended).any(|report| report.leaked().1 > 0) {
        return Ok(ExitCode::from(1));
    }
    if !reports.iter().any(|report| ended(&report)) {
        // A gate that passes because it saw nothing would never fail.
        let message =
            format!("no process in {} has ended: there is nothing to judge", arguments.path.display());
        return Err(Failure::new(NO_INPUT, message));
    }
    if let Loaded::Folder { unreadable, .. } = &loaded
        && !unreadable.is_empty()
    {
        return Err(Failure::new(NO_INPUT, "not every file could be read, so leaks may be hidden"));
    }
    Ok(ExitCode::SUCCESS)
}

fn json(value: &(impl serde::Serialize + ?Sized)) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n")
        .map_err(|error| Failure::new(INTERNAL, format!("cannot write JSON: {error}")))
}
