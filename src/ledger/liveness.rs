//! Who is dead.
//!
//! A pid is given out again, means another process in another pid namespace, and survives an exec. What tells the truth
//! is a lock on one byte of the ledger a slot: the kernel keeps an open file description's lock for as long as something
//! refers to the description, and here that is the mapping alone. So it goes with the address space: at exec, at any
//! death, never earlier, and it is not inherited, since a child does not get the mapping. What a lock cannot tell, /proc
//! does, where it is that of our pid namespace.
//!
//! overlayfs maps the file below it, and there the lock would end with the descriptor: then the descriptor is kept
//! ([`Hold::Descriptor`]). Somebody may close it, so within a pid namespace its absence proves nothing.

use super::file::{self, Map};
use super::layout::{SLOTS, Slot};
use crate::record::identity::{boot_id, pid_namespace};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// What a slot's lock lives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Hold {
    /// A descriptor.
    Descriptor = 0,
    /// The mapping.
    Mapping = 1,
}

/// A process, as a slot names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// In its own pid namespace.
    pub pid: u32,
    /// Field 22 of /proc/PID/stat, in clock ticks since boot; 0 = not known.
    pub start_ticks: u64,
    /// Field 28: where its stack begins; 0 = not known.
    pub stack_start: u64,
    /// Inode of its pid namespace; 0 = not known.
    pub pid_namespace: u64,
    /// Of its boot; zero = not known.
    pub boot_id: [u8; 16],
}

impl Who {
    /// This process.
    pub fn this_process() -> Who {
        let stat = Stat::of("self").unwrap_or_default();
        Who {
            pid: std::process::id(),
            start_ticks: stat.start_ticks,
            stack_start: stat.stack_start,
            pid_namespace: pid_namespace("self").unwrap_or(0),
            boot_id: boot_id().unwrap_or_default(),
        }
    }

    /// The process of a slot; `None` while it is written.
    pub fn of(slot: &Slot) -> Option<(Who, Hold)> {
        // Acquire pairs with the Release in `store`; the second look with the fence there.
        let generation = slot.generation.load(Ordering::Acquire);
        if generation % 2 == 1 {
            return None;
        }
        let who = Who {
            pid: slot.pid.load(Ordering::Relaxed),
            start_ticks: slot.start_ticks.load(Ordering::Relaxed),
            stack_start: slot.stack_start.load(Ordering::Relaxed),
            pid_namespace: slot.pid_namespace.load(Ordering::Relaxed),
            boot_id: slot.boot_id.each_ref().map(|byte| byte.load(Ordering::Relaxed)),
        };
        let hold = slot.hold.load(Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Acquire);
        let hold = if hold == Hold::Mapping as u32 { Hold::Mapping } else { Hold::Descriptor };
        (slot.generation.load(Ordering::Relaxed) == generation).then_some((who, hold))
    }

    /// Writes it into a slot that is ours.
    pub fn store(&self, slot: &Slot, hold: Hold, since_ns: u64) {
        let generation = slot.generation.load(Ordering::Relaxed) | 1;
        slot.generation.store(generation, Ordering::Relaxed);
        // Pairs with the fence in `of`: who reads one of these fields finds the odd number or a later one.
        std::sync::atomic::fence(Ordering::Release);
        slot.pid.store(self.pid, Ordering::Relaxed);
        slot.start_ticks.store(self.start_ticks, Ordering::Relaxed);
        slot.stack_start.store(self.stack_start, Ordering::Relaxed);
        slot.pid_namespace.store(self.pid_namespace, Ordering::Relaxed);
        slot.since_ns.store(since_ns, Ordering::Relaxed);
        slot.hold.store(hold as u32, Ordering::Relaxed);
        slot.boot_id.iter().zip(self.boot_id).for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
        // Release pairs with the Acquire in `of`, and with that in `Entered::owner`: whatever we are charged comes later.
        slot.generation.store(generation.wrapping_add(1), Ordering::Release);
    }

    /// The same process, before or after an exec.
    pub fn is_same_process(&self, other: &Who) -> bool {
        self.is_neighbour(other) && self.pid == other.pid && self.start_ticks == other.start_ticks
    }

    fn is_neighbour(&self, other: &Who) -> bool {
        self.pid_namespace != 0 && self.pid_namespace == other.pid_namespace && !self.is_of_other_boot(other)
    }

    fn is_of_other_boot(&self, other: &Who) -> bool {
        self.boot_id != [0; 16] && other.boot_id != [0; 16] && self.boot_id != other.boot_id
    }
}

/// What /proc/PID/stat says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    pid: u32,
    state: u8,
    threads: u64,
    /// Field 22.
    pub start_ticks: u64,
    address_space: u64,
    /// Field 28; 0 for who may not know it.
    pub stack_start: u64,
}

impl Stat {
    /// Of a pid or `self`.
    pub fn of(process: &str) -> Option<Stat> {
        Stat::parse(&std::fs::read(format!("/proc/{process}/stat")).ok()?)
    }

    fn parse(text: &[u8]) -> Option<Stat> {
        // The second field is the name in parentheses, which may hold spaces and parentheses itself.
        let name_ends = text.iter().rposition(|b| *b == b')')?;
        let rest = std::str::from_utf8(text.get(name_ends + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        let pid = text.split(|b| *b == b' ').next()?;
        Some(Stat {
            pid: std::str::from_utf8(pid).ok()?.parse().ok()?,
            state: *fields.first()?.as_bytes().first()?,
            threads: field(20)?,
            start_ticks: field(22)?,
            address_space: field(23)?,
            stack_start: field(28).unwrap_or(0),
        })
    }

    fn is_over(&self) -> bool {
        // The main thread may have ended before the others.
        matches!(self.state, b'Z' | b'X' | b'x') && self.threads <= 1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockState {
    Held,
    Free,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// No process of this number.
    Nobody,
    /// What /proc says, unless it is not ours to trust.
    Somebody(Option<Stat>),
}

/// Judges slots of one ledger.
pub struct Judge {
    me: Who,
    path: PathBuf,
    id: (u64, u64),
    /// Opened when a lock is asked for; `Some(None)`: it cannot be.
    file: Option<Option<OwnedFd>>,
    trusts_proc: Option<bool>,
}

impl Judge {
    /// `me` asks about the ledger at `path`, which must still be the file `id`.
    pub fn new(me: Who, path: PathBuf, id: (u64, u64)) -> Judge {
        Judge { me, path, id, file: None, trusts_proc: None }
    }

    /// True when the process of a slot is dead, so that what it was charged is nobody's. False for what is not known:
    /// it may be alive.
    pub fn is_dead(&mut self, map: Map, slot: u16) -> bool {
        let Some(entry) = map.slot(slot) else { return false };
        let Some((who, hold)) = Who::of(entry) else {
            // Whoever writes it has the lock. What is charged is from before him, see `protocol::reap_dead`.
            return self.lock(slot) == LockState::Free;
        };
        if self.me.is_of_other_boot(&who) {
            return true;
        }
        if !self.me.is_neighbour(&who) {
            return self.lock(slot) == LockState::Free;
        }
        let known = self.look_up(who.pid);
        if known == Known::Nobody {
            return true;
        }
        let lock = self.lock(slot);
        if let (Hold::Mapping, LockState::Held) = (hold, lock) {
            return false;
        }
        let stat = match known {
            Known::Somebody(None) if self.trusts_proc() => Known::Somebody(Stat::of(&who.pid.to_string())),
            other => other,
        };
        is_dead(&who, hold, lock, stat)
    }

    fn look_up(&self, pid: u32) -> Known {
        match i32::try_from(pid) {
            Ok(pid) if pid > 0 => {
                // SAFETY: signal 0 is sent to nobody.
                let there = unsafe { libc::kill(pid, 0) } == 0
                    || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH);
                if there { Known::Somebody(None) } else { Known::Nobody }
            }
            _ => Known::Nobody,
        }
    }

    fn lock(&mut self, slot: u16) -> LockState {
        let (path, id) = (&self.path, self.id);
        let file = self.file.get_or_insert_with(|| {
            let opened = file::open(path, false).ok().flatten()?;
            (opened.id == id).then_some(opened.file)
        });
        match file.as_ref().map(|file| is_locked(file, slot)) {
            Some(Ok(true)) => LockState::Held,
            Some(Ok(false)) => LockState::Free,
            Some(Err(_)) | None => LockState::Unknown,
        }
    }

    /// False in a pid namespace that still sees the /proc of another one.
    fn trusts_proc(&mut self) -> bool {
        let me = self.me.pid;
        *self.trusts_proc.get_or_insert_with(|| Stat::of("self").is_some_and(|stat| stat.pid == me))
    }
}

/// What the evidence says of a process of our own pid namespace whose number is taken.
fn is_dead(who: &Who, hold: Hold, lock: LockState, known: Known) -> bool {
    match known {
        Known::Nobody => true,
        // Hidden, or another namespace's /proc: the lock alone.
        Known::Somebody(None) => hold == Hold::Mapping && lock == LockState::Free,
        Known::Somebody(Some(stat)) if stat.start_ticks != who.start_ticks && who.start_ticks != 0 => true,
        Known::Somebody(Some(stat)) if stat.is_over() => true,
        // Dying, or in the middle of an exec: its files, the driver's among them, are closed after its address space
        // is gone, and a new one has a page for its arguments by then and nothing else.
        Known::Somebody(Some(stat)) if stat.address_space < SMALLEST_PROGRAM => false,
        // Alive, with an address space that is not the one which had the lock: another program.
        Known::Somebody(Some(stat)) => match hold {
            Hold::Mapping => lock == LockState::Free,
            Hold::Descriptor => {
                lock != LockState::Held
                    && stat.stack_start != 0
                    && who.stack_start != 0
                    && stat.stack_start != who.stack_start
            }
        },
    }
}

/// In bytes. A program that was loaded has 128 KiB for its stack alone.
const SMALLEST_PROGRAM: u64 = 64 << 10;

/// Beyond the end of every ledger.
const LOCKS_AT: i64 = 1 << 40;

/// The lock of those who want to become a slot's owner. With it alone is the number of its owner changed, and the slot's own
/// lock taken while that number is odd: so who has the slot's lock is the one that the slot names, or the slot names nobody.
pub fn claiming(slot: u16) -> u16 {
    slot | SLOTS as u16
}

const _: () = assert!(SLOTS.is_power_of_two() && SLOTS < 1 << 16);

/// Takes a slot's lock for an open file description, if nobody has it. False: somebody has.
pub fn lock(file: &OwnedFd, slot: u16) -> std::io::Result<bool> {
    let mut byte = lock_of(slot, libc::F_WRLCK);
    match lock_call(file, libc::F_OFD_SETLK, &mut byte) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives it back.
pub fn unlock(file: &OwnedFd, slot: u16) {
    // Closing the description does it too.
    let _ = lock_call(file, libc::F_OFD_SETLK, &mut lock_of(slot, libc::F_UNLCK));
}

/// True when another open file description has a slot's lock.
pub fn is_locked(file: &OwnedFd, slot: u16) -> std::io::Result<bool> {
    let mut byte = lock_of(slot, libc::F_WRLCK);
    lock_call(file, libc::F_OFD_GETLK, &mut byte)?;
    Ok(i32::from(byte.l_type) != libc::F_UNLCK)
}

fn lock_of(slot: u16, kind: i32) -> libc::flock {
    // SAFETY: plain data, valid when zero; l_pid must be 0.
    let mut byte: libc::flock = unsafe { std::mem::zeroed() };
    byte.l_type = kind as libc::c_short;
    byte.l_whence = libc::SEEK_SET as libc::c_short;
    byte.l_start = LOCKS_AT + i64::from(slot);
    byte.l_len = 1;
    byte
}

fn lock_call(file: &OwnedFd, command: i32, byte: &mut libc::flock) -> std::io::Result<()> {
    // SAFETY: a valid descriptor, and a place of the type that these commands take. None of them waits.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(byte)) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who() -> Who {
        Who { pid: 7, start_ticks: 100, stack_start: 5000, pid_namespace: 1, boot_id: [1; 16] }
    }

    fn stat() -> Stat {
        Stat { pid: 7, state: b'S', threads: 1, start_ticks: 100, address_space: 1 << 20, stack_start: 5000 }
    }

    fn judged(hold: Hold, lock: LockState, stat: Option<Stat>) -> bool {
        is_dead(&who(), hold, lock, Known::Somebody(stat))
    }

    #[test]
    fn the_right_dead() {
        use Hold::*;
        use LockState::*;
        for hold in [Mapping, Descriptor] {
            assert!(is_dead(&who(), hold, Unknown, Known::Nobody));
            let reused = Stat { start_ticks: 101, ..stat() };
            assert!(judged(hold, Free, Some(reused)), "another process of the same number");
            assert!(judged(hold, Unknown, Some(reused)));
            let zombie = Stat { state: b'Z', address_space: 0, ..stat() };
            assert!(judged(hold, Free, Some(zombie)));
            assert!(!judged(hold, Free, Some(Stat { threads: 2, ..zombie })), "only its main thread ended");
            assert!(!judged(hold, Free, Some(Stat { state: b'R', address_space: 0, ..stat() })), "dying");
            let in_exec = Stat { address_space: 4096, stack_start: 0, ..stat() };
            assert!(!judged(hold, Free, Some(in_exec)), "files that close at exec are not closed yet");
            assert!(!judged(hold, Unknown, Some(stat())), "the file was removed");
        }
        assert!(judged(Mapping, Free, Some(stat())), "another program in the same process");
        assert!(judged(Mapping, Free, None), "no /proc: the lock tells");
        assert!(!judged(Mapping, Unknown, None));
        assert!(!judged(Descriptor, Free, Some(stat())), "somebody closed the descriptor");
        assert!(!judged(Descriptor, Free, None));
        let other_program = Stat { stack_start: 6000, ..stat() };
        assert!(judged(Descriptor, Free, Some(other_program)));
        assert!(!judged(Descriptor, Free, Some(Stat { stack_start: 0, ..stat() })), "not for us to know");
    }

    #[test]
    fn a_stat_with_any_name() {
        let text =
            "42 (a) b (c) d) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 3 0 777 4096 20 21 22 23 99999 25";
        let stat = Stat::parse(text.as_bytes()).unwrap();
        let expected = Stat {
            pid: 42,
            state: b'S',
            threads: 3,
            start_ticks: 777,
            address_space: 4096,
            stack_start: 99999,
        };
        assert_eq!(stat, expected);
        assert_eq!(Stat::parse(b"42 (x) S 1"), None);
        assert_eq!(Stat::parse(b""), None);
        let me = Stat::of("self").unwrap();
        assert!(me.pid == std::process::id() && me.threads > 0 && me.address_space > 0 && me.stack_start > 0);
    }
}
