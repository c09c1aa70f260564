//! The processes of this machine, as far as /proc shows them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::record::identity::{boot_id, pid_namespace};

/// Inode of the pid namespace that a machine starts with: PROC_PID_INIT_INO of the kernel.
const FIRST_NAMESPACE: u64 = 0xefff_fffc;

/// Which process: more than a number, which is given out again and means another one in another namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// In its own pid namespace.
    pub pid: u32,
    /// In clock ticks since boot.
    pub start_ticks: u64,
    /// Inode of its pid namespace; 0 = not known.
    pub pid_namespace: u64,
}

/// A process that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its number here.
    pub pid: u32,
    /// A signal or a debugger stopped it.
    pub is_stopped: bool,
}

/// What became of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// It is there.
    Here(Seen),
    /// It is dead.
    Gone,
    /// It is or was in a pid namespace of which nothing can be seen.
    Unseen,
}

/// All of them at a moment.
#[derive(Debug, Default)]
pub struct Processes {
    seen: HashMap<Identity, Seen>,
    namespace: u64,
    boot_id: [u8; 16],
}

impl Processes {
    /// Looks at all of them.
    pub fn look() -> Processes {
        let mut all = Processes {
            seen: HashMap::new(),
            namespace: pid_namespace("self").unwrap_or(0),
            boot_id: boot_id().unwrap_or_default(),
        };
        all.seen = numbers().filter_map(|pid| all.of(pid)).collect();
        all
    }

    /// What became of a process of this boot, or of another one; zero = not known.
    pub fn find(&self, identity: &Identity, boot_id: &[u8; 16]) -> Sight {
        let known = |id: &[u8; 16]| *id != [0; 16];
        if known(boot_id) && known(&self.boot_id) && *boot_id != self.boot_id {
            return Sight::Gone;
        }
        match self.seen.get(identity) {
            Some(seen) => Sight::Here(*seen),
            None if identity.pid_namespace == self.namespace && self.namespace != 0 => Sight::Gone,
            None => Sight::Unseen,
        }
    }

    /// True in the pid namespace that all others are in: its numbers are those that the driver uses.
    pub fn are_of_whole_machine() -> bool {
        pid_namespace("self") == Some(FIRST_NAMESPACE)
    }

    /// True for a process of the namespace from which they were looked at.
    pub fn is_neighbour(&self, identity: &Identity) -> bool {
        identity.pid_namespace == self.namespace
    }

    fn of(&self, pid: u32) -> Option<(Identity, Seen)> {
        let stat = Stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)?;
        if stat.is_over() {
            return None;
        }
        let seen = Seen { pid, is_stopped: matches!(stat.state, b'T' | b't') };
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let own_pids: Vec<u32> = status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))
            .map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
            .unwrap_or_default();
        let namespace = pid_namespace(&pid.to_string())
            // Other users' may not be asked for. With one number it is in the namespace of this /proc.
            .or_else(|| (own_pids.len() <= 1).then_some(self.namespace))
            .unwrap_or(0);
        let own_pid = own_pids.last().copied().unwrap_or(pid);
        Some((Identity { pid: own_pid, start_ticks: stat.start_ticks, pid_namespace: namespace }, seen))
    }
}

/// A variable of the environment that a process was started with; `None`: it has none, or may not be asked.
pub struct Environ(Vec<u8>);

impl Environ {
    /// Of a process that this user may look into.
    pub fn of(pid: u32) -> Option<Environ> {
        fs::read(format!("/proc/{pid}/environ")).ok().map(Environ)
    }

    /// As `std::env::var_os` answers.
    pub fn var(&self, name: &str) -> Option<OsString> {
        let value = |entry: &[u8]| {
            let rest = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(OsString::from_vec(rest.to_vec()))
        };
        self.0.split(|byte| *byte == 0).find_map(value)
    }
}

/// The CUWARDEN_DIR of all processes of this user, as they are reached from here: where a process has another root, it
/// is gone through.
pub fn directories_in_use() -> Vec<PathBuf> {
    // SAFETY: no arguments, cannot fail.
    let user = unsafe { libc::geteuid() };
    let ours = |pid: &u32| fs::metadata(format!("/proc/{pid}")).is_ok_and(|m| m.uid() == user);
    let directories = numbers().filter(ours).filter_map(|pid| {
        let path = PathBuf::from(Environ::of(pid)?.var("CUWARDEN_DIR").filter(|path| !path.is_empty())?);
        if !path.is_absolute() {
            return None;
        }
        let mut through = OsString::from(format!("/proc/{pid}/root"));
        through.push(path.as_os_str());
        let through = PathBuf::from(through);
        let id = |path: &PathBuf| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
        // Its own root's is meant. Where that is not to be reached, another place of the same name would be a mistake.
        match id(&through)? {
            there if id(&path) == Some(there) => Some(path),
            _ => Some(through),
        }
    });
    let mut directories: Vec<PathBuf> = directories.collect();
    directories.sort();
    directories.dedup();
    directories
}

fn numbers() -> impl Iterator<Item = u32> {
    let number = |name: &OsStr| {
        let digits = name.as_bytes().iter().all(u8::is_ascii_digit);
        name.to_str().filter(|_| digits)?.parse().ok()
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(move |entry| number(&entry.file_name()))
}

struct Stat {
    state: u8,
    threads: u64,
    start_ticks: u64,
}

impl Stat {
    fn parse(text: &[u8]) -> Option<Stat> {
        // The name is in parentheses and may hold anything, parentheses and blanks too.
        let name_ends = text.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(text.get(name_ends + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // The state is field 3.
        let field = |number: usize| fields.get(number - 3);
        Some(Stat {
            state: *field(3)?.as_bytes().first()?,
            threads: field(20)?.parse().ok()?,
            start_ticks: field(22)?.parse().ok()?,
        })
    }

    fn is_over(&self) -> bool {
        // The main thread may have ended before the others.
        matches!(self.state, b'Z' | b'X' | b'x') && self.threads <= 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen() {
        let processes = Processes::look();
        let me = Identity {
            pid: std::process::id(),
            start_ticks: crate::record::identity::start_ticks("self").unwrap(),
            pid_namespace: pid_namespace("self").unwrap(),
        };
        let here = Sight::Here(Seen { pid: me.pid, is_stopped: false });
        assert_eq!(processes.find(&me, &[0; 16]), here);
        assert_eq!(processes.find(&me, &boot_id().unwrap()), here);
        assert_eq!(processes.find(&me, &[1; 16]), Sight::Gone, "another boot");
        let later = Identity { start_ticks: me.start_ticks + 1, ..me };
        assert_eq!(processes.find(&later, &[0; 16]), Sight::Gone, "its number is another one's");
        let elsewhere = Identity { pid_namespace: 1, ..me };
        assert_eq!(processes.find(&elsewhere, &[0; 16]), Sight::Unseen);
        assert!(processes.is_neighbour(&me) && !processes.is_neighbour(&elsewhere));
    }

    #[test]
    fn variables_are_found_by_their_whole_name() {
        let environ = Environ(b"A=1\0CUWARDEN_DIRS=/x\0CUWARDEN_DIR=/a=b\0\0".to_vec());
        assert_eq!(environ.var("CUWARDEN_DIR").unwrap(), "/a=b");
        assert_eq!(environ.var("CUWARDEN"), None);
    }
}
