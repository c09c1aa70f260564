//! The command line.
//!
//! Data goes to stdout, messages to stderr. Exit status: what the command says, and everywhere 64 = used
//! wrongly, 66 = input cannot be read, 74 = the answer could not be written.

mod bundle;
mod check;
mod demo;
mod diff;
mod doctor;
mod error;
mod gate;
mod limit;
mod load;
mod nvml;
mod processes;
mod ps;
mod records;
mod report;
mod run;
mod terminal;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use error::{Failure, USED_WRONGLY};

/// Tracks and limits the CUDA device memory of programs, and reports what they leak.
#[derive(Parser)]
#[command(name = "cuwarden", version, max_term_width = 100, after_help = FIRST_STEPS)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const FIRST_STEPS: &str = "\
First steps:
  cuwarden demo                               see what it does; needs no GPU
  cuwarden run -- python train.py             run a program, hear of its leaks
  cuwarden run --memory-limit 4GiB -- ./app   the same with a quota
  cuwarden ps                                 see who holds what
  cuwarden limit 8GiB                         change the quota of all that run
  cuwarden doctor                             why CUDA does or would not start here";

#[derive(Subcommand)]
enum Command {
    Run(run::Arguments),
    Demo(demo::Arguments),
    Report(report::Arguments),
    Diff(diff::Arguments),
    Ps(ps::Arguments),
    Watch(watch::Arguments),
    Limit(limit::Arguments),
    Check(check::Arguments),
    Doctor(doctor::Arguments),
}

/// Runs the command that the process's arguments name.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are answers and go to stdout; where that is closed nobody wants them.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USED_WRONGLY } else { 0 });
        }
    };
    let done = match arguments.command {
        Command::Run(arguments) => run::main(arguments),
        Command::Demo(arguments) => demo::main(arguments),
        Command::Report(arguments) => report::main(arguments),
        Command::Diff(arguments) => diff::main(arguments),
        Command::Ps(arguments) => ps::main(arguments),
        Command::Watch(arguments) => watch::main(arguments),
        Command::Limit(arguments) => limit::main(arguments),
        Command::Check(arguments) => check::main(arguments),
        Command::Doctor(arguments) => doctor::main(arguments),
    };
    done.unwrap_or_else(|failure: Failure| {
        if !failure.message.is_empty() {
            terminal::say(&failure.message);
        }
        ExitCode::from(failure.status)
    })
}
