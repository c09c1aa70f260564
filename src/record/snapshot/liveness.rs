//! Is the process of a record file still there?

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Snapshot;

/// State of the process that wrote a record file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It runs.
    Running,
    /// It ended in an orderly way.
    Exited,
    /// It is gone without having said so.
    Killed,
    /// It is or was in a pid namespace into which this process cannot see.
    Unknown,
}

/// The place from which processes are looked at.
#[derive(Clone, Debug)]
pub struct Observer {
    /// The running boot; none: not known.
    pub boot_id: Option<[u8; 16]>,
    /// Inode of the observer's pid namespace; none: not known.
    pub pid_namespace: Option<u64>,
    /// Where procfs is mounted.
    pub proc: PathBuf,
}

impl Observer {
    /// This process.
    pub fn here() -> Observer {
        let proc = PathBuf::from("/proc");
        Observer {
            boot_id: fs::read_to_string(proc.join("sys/kernel/random/boot_id"))
                .ok()
                .and_then(|text| parse_boot_id(&text)),
            pid_namespace: fs::metadata(proc.join("self/ns/pid")).ok().map(|m| m.ino()),
            proc,
        }
    }

    /// Tells from its record file whether a process is still there.
    pub fn liveness(&self, snapshot: &Snapshot) -> Liveness {
        if snapshot.ended_ns != 0 {
            return Liveness::Exited;
        }
        if self.boot_id.is_some_and(|here| snapshot.boot_id != [0; 16] && here != snapshot.boot_id) {
            // The machine has been started anew since; nothing of then runs now.
            return Liveness::Killed;
        }
        let Some(namespace) = self.pid_namespace else {
            return Liveness::Unknown;
        };
        if namespace == snapshot.pid_namespace {
            return match self.process(&self.proc.join(snapshot.pid.to_string()), snapshot.start_ticks) {
                true => Liveness::Running,
                false => Liveness::Killed,
            };
        }
        // From a host one sees into its containers: there the process has another number.
        let found = fs::read_dir(&self.proc).into_iter().flatten().flatten().any(|entry| {
            let path = entry.path();
            entry.file_name().to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()))
                && fs::metadata(path.join("ns/pid")).is_ok_and(|m| m.ino() == snapshot.pid_namespace)
                && innermost_pid(&path) == Some(snapshot.pid)
                && self.process(&path, snapshot.start_ticks)
        });
        // Not to see it proves nothing: the namespace may be one that is out of sight.
        if found { Liveness::Running } else { Liveness::Unknown }
    }

    /// Does this folder of procfs show a process that started then and is no zombie?
    fn process(&self, folder: &Path, start_ticks: u64) -> bool {
        let Ok(stat) = fs::read(folder.join("stat")) else {
            return false;
        };
        // The name is in parentheses and may hold anything, parentheses and blanks too.
        let Some(end) = stat.iter().rposition(|&byte| byte == b')') else {
            return false;
        };
        let text = String::from_utf8_lossy(&stat[end + 1..]);
        let mut fields = text.split_ascii_whitespace();
        let state = fields.next().unwrap_or("X");
        // The state is field 3, the start time field 22.
        let started = fields.nth(18).and_then(|field| field.parse::<u64>().ok());
        !matches!(state, "Z" | "X" | "x") && started == Some(start_ticks)
    }
}

/// Number of a process in its own pid namespace.
fn innermost_pid(folder: &Path) -> Option<u32> {
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().next_back()?.parse().ok()
}

fn parse_boot_id(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut id = [0; 16];
    if digits.len() != 32 {
        return None;
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(id)
}
