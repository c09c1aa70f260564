//! Which process this is: more than a pid, which the kernel gives out again.

use super::layout::Header;
use crate::event::cancel::NoCancel;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU8, Ordering};

/// The process that a record file belongs to.
#[derive(Clone, Debug)]
pub struct Identity {
    /// In its own pid namespace.
    pub pid: u32,
    /// Its parent now.
    pub ppid: u32,
    /// Field 22 of /proc/<pid>/stat, clock ticks since boot.
    pub start_ticks: u64,
    /// Inode of /proc/self/ns/pid.
    pub pid_namespace: u64,
    /// Of this boot.
    pub boot_id: [u8; 16],
    /// CLOCK_REALTIME now, in ns.
    pub started_ns: u64,
    /// Target of /proc/self/exe.
    pub exe: Vec<u8>,
    /// Arguments, each ended by a NUL byte.
    pub cmdline: Vec<u8>,
    /// As given.
    pub labels: String,
}

impl Identity {
    /// Reads it from /proc; what cannot be read is left zero or empty.
    pub fn of_this_process() -> Identity {
        let _no_cancel = NoCancel::new();
        Identity {
            pid: std::process::id(),
            ppid: std::os::unix::process::parent_id(),
            start_ticks: start_ticks("self").unwrap_or(0),
            pid_namespace: pid_namespace("self").unwrap_or(0),
            boot_id: boot_id().unwrap_or_default(),
            started_ns: realtime_ns(),
            exe: std::fs::read_link("/proc/self/exe")
                .map(|p| p.into_os_string().into_vec())
                .unwrap_or_default(),
            cmdline: std::fs::read("/proc/self/cmdline").unwrap_or_default(),
            labels: String::new(),
        }
    }

    /// Fills the header of a new file, whose magic is not written yet.
    pub fn write_to(&self, header: &Header) {
        header.pid.store(self.pid, Ordering::Relaxed);
        header.ppid.store(self.ppid, Ordering::Relaxed);
        header.start_ticks.store(self.start_ticks, Ordering::Relaxed);
        header.pid_namespace.store(self.pid_namespace, Ordering::Relaxed);
        header.started_ns.store(self.started_ns, Ordering::Relaxed);
        store_bytes(&header.boot_id, &self.boot_id);
        let lengths = [
            store_bytes(&header.exe, &self.exe),
            store_bytes(&header.cmdline, &self.cmdline),
            store_bytes(&header.labels, self.labels.as_bytes()),
        ];
        for (field, length) in header.text_lengths.iter().zip(lengths) {
            field.store(length, Ordering::Relaxed);
        }
    }
}

/// Copies text into a fixed field of a header, cut to fit; answers the length. It is written once, before a
/// word that readers load with Acquire says that it is valid.
pub fn store_bytes(field: &[AtomicU8], text: &[u8]) -> u32 {
    let length = text.len().min(field.len());
    for (place, byte) in field.iter().zip(text) {
        place.store(*byte, Ordering::Relaxed);
    }
    length as u32
}

/// Start of a process in clock ticks since boot; `process` is a pid or `self`.
pub fn start_ticks(process: &str) -> Option<u64> {
    stat_field(&stat_of(process)?, 22)?.parse().ok()
}

/// The same of one that has not ended. Those have that nobody has waited for: a zombie is a number and nothing else.
pub fn running_since(process: &str) -> Option<u64> {
    let stat = stat_of(process)?;
    let is_zombie = stat_field(&stat, 3).is_some_and(|state| matches!(state, "Z" | "X" | "x"));
    // The main thread may have ended before the others.
    let is_alone = stat_field(&stat, 20).is_some_and(|threads| matches!(threads, "0" | "1"));
    stat_field(&stat, 22)?.parse().ok().filter(|_| !(is_zombie && is_alone))
}

fn stat_of(process: &str) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{process}/stat")).ok()
}

/// A field of /proc/PID/stat by its number in the manual, from 3 on.
fn stat_field(stat: &[u8], number: usize) -> Option<&str> {
    // The second field is the name in parentheses, which may hold spaces and parentheses itself.
    let after_name = stat.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(stat.get(after_name + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

/// Inode of the pid namespace of a process; `process` is a pid or `self`.
pub fn pid_namespace(process: &str) -> Option<u64> {
    std::fs::metadata(format!("/proc/{process}/ns/pid")).ok().map(|m| m.ino())
}

/// The boot's random id.
pub fn boot_id() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

/// CLOCK_REALTIME in ns.
pub fn realtime_ns() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process() {
        let me = Identity::of_this_process();
        assert_eq!(Some(me.start_ticks), start_ticks(&me.pid.to_string()));
        assert!(me.start_ticks > 0 && me.pid_namespace > 0 && me.boot_id != [0; 16]);
        assert_eq!(start_ticks("4294967295"), None);
        assert_eq!(running_since("self"), start_ticks("self"));
        // One that nobody has waited for yet.
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let process = child.id().to_string();
        while running_since(&process).is_some() {
            std::thread::yield_now();
        }
        assert!(start_ticks(&process).is_some());
        child.wait().unwrap();
    }
}
