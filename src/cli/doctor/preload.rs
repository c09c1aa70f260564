//! Whether cuwarden's library is, or would be, in the processes that are started from here.

use std::ffi::OsString;

use super::elf::{self, NotOne};
use super::model::{Line, Verdict};
use crate::diagnose::machine::Place;

const NAME: &str = "libcuwarden.so";

/// What was read.
pub struct Preload {
    /// Each library that is to be preloaded, and by what.
    pub entries: Vec<Entry>,
    /// There is musl's loader and not glibc's.
    pub is_musl: bool,
    /// There is a quota to be kept.
    pub has_quota: bool,
}

/// A library that is to be preloaded.
pub struct Entry {
    pub path: String,
    pub named_in: &'static str,
    pub state: State,
}

/// What the loader would make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Good,
    Missing,
    OtherArchitecture,
    Musl,
    NoLibrary,
    /// A name without a folder, which the loader searches.
    Searched,
}

pub fn look(place: &Place, variable: &dyn Fn(&str) -> Option<OsString>) -> Preload {
    let file = place.text("/etc/ld.so.preload").unwrap_or_default();
    let value = variable("LD_PRELOAD").unwrap_or_default().to_string_lossy().into_owned();
    let of_file = file.lines().map(|line| line.split('#').next().unwrap_or_default());
    let of_file =
        of_file.flat_map(|line| line.split([' ', '\t', ':'])).map(|path| (path, "/etc/ld.so.preload"));
    let all = value.split([' ', ':']).map(|path| (path, "LD_PRELOAD")).chain(of_file);
    let entries = all.filter(|(path, _)| !path.is_empty()).map(|(path, named_in)| Entry {
        path: path.to_owned(),
        named_in,
        state: state(place, path),
    });
    let loaders = |folder: &str, start: &str| place.names(folder).iter().any(|name| name.starts_with(start));
    let has_glibc = ["/lib64", "/lib", "/usr/lib64", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu"];
    Preload {
        entries: entries.collect(),
        is_musl: loaders("/lib", "ld-musl-") && !has_glibc.iter().any(|folder| loaders(folder, "ld-linux-")),
        has_quota: ["CUWARDEN_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT"]
            .iter()
            .any(|name| variable(name).is_some_and(|value| !value.is_empty())),
    }
}

fn state(place: &Place, path: &str) -> State {
    if !path.contains('/') {
        return State::Searched;
    }
    match elf::read(&place.path(path)) {
        Err(NotOne::Unreadable) => State::Missing,
        Err(NotOne::Is32Bit(_)) => State::OtherArchitecture,
        Err(NotOne::NoElf) => State::NoLibrary,
        Ok(elf) if !elf.is_native => State::OtherArchitecture,
        Ok(elf) if elf.needed.iter().any(|name| name.starts_with("libc.musl")) => State::Musl,
        Ok(elf) if !elf.is_dynamic => State::NoLibrary,
        Ok(_) => State::Good,
    }
}

/// Says it.
pub fn judge(preload: &Preload) -> Vec<Line> {
    let mut lines = Vec::new();
    if preload.is_musl {
        lines.push(Line::new(
            "libc",
            Verdict::Failed,
            "the C library here is musl: NVIDIA's libraries and cuwarden need glibc",
            "Use an image that is based on glibc, such as Debian, Ubuntu or UBI.",
        ));
    }
    let ours = |entry: &&Entry| entry.path.rsplit('/').next() == Some(NAME);
    for entry in &preload.entries {
        let what = match entry.state {
            State::Good | State::Searched => continue,
            State::Missing => "is not there, or may not be read",
            State::OtherArchitecture => "is for another processor",
            State::Musl => "is made for musl",
            State::NoLibrary => "is not a shared library",
        };
        let is_ours = ours(&entry);
        lines.push(Line::new(
            "preload",
            if is_ours { Verdict::Failed } else { Verdict::Warning },
            format!(
                "{} names {}, which {what}: the loader says so and goes on without it",
                entry.named_in, entry.path
            ),
            if is_ours {
                format!("Put the right {NAME} there, or start programs with cuwarden run.")
            } else {
                format!("Correct {}.", entry.named_in)
            },
        ));
    }
    let found = preload.entries.iter().find(ours);
    match found {
        Some(entry) if entry.state == State::Good => {
            lines.push(Line::ok("preload", format!("{} names {}, which can be loaded", entry.named_in, entry.path)));
        }
        Some(entry) if entry.state == State::Searched => lines.push(Line::new(
            "preload",
            Verdict::Unknown,
            format!("{} names {} without a folder", entry.named_in, entry.path),
            "Name it with its whole path.",
        )),
        Some(_) => {}
        None if preload.has_quota => lines.push(Line::new(
            "preload",
            Verdict::Warning,
            format!("a memory limit is set, and neither LD_PRELOAD nor /etc/ld.so.preload names {NAME}: nobody keeps it"),
            "Start programs with cuwarden run, or set LD_PRELOAD.",
        )),
        None => lines.push(Line::ok("preload", format!("{NAME} is not preloaded here; cuwarden run does that"))),
    }
    lines
}
