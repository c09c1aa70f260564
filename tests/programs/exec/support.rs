//! What the tests of children share.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::cc;
use crate::common::process::Finished;
use crate::common::sim::Sim;

pub fn program() -> PathBuf {
    cc::program("tests/programs/exec/start.c", &[])
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are plain")
}

/// The program under the shim, with a limit.
pub fn shimmed(sim: &Sim) -> Command {
    let mut command = sim.shimmed(program());
    command.env("CUWARDEN_MEMORY_LIMIT", "64m");
    command
}

/// What the program was started with of that which children keep, and nothing else. Sorted.
pub fn kept(sim: &Sim) -> Vec<String> {
    let mut kept: Vec<String> = shimmed(sim)
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_str()?, value?.to_str()?)))
        .filter(|(name, _)| *name == "LD_PRELOAD" || name.starts_with("CUWARDEN_"))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    kept.sort();
    kept
}

/// The variables that a program which shows them has. Sorted.
#[track_caller]
pub fn variables(shown: &Finished) -> Vec<String> {
    let mut variables: Vec<String> =
        shown.lines().iter().filter_map(|line| line.strip_prefix("variable ")).map(str::to_owned).collect();
    variables.sort();
    variables
}

#[track_caller]
pub fn sorted(mut list: Vec<String>) -> Vec<String> {
    list.sort();
    list
}

#[track_caller]
pub fn preload_list(out: &Finished) -> String {
    let all = variables(out);
    let lists: Vec<&str> = all.iter().filter_map(|variable| variable.strip_prefix("LD_PRELOAD=")).collect();
    assert_eq!(lists.len(), 1, "{}", out.told());
    lists[0].to_owned()
}
