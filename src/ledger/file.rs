//! The file `DIR/ledger`: made once, checked before use, mapped.

use super::layout::{
    self, DEVICES_AT, Device, FILE_BYTES, Header, LANES_AT, LANES_BYTES, Lanes, SLOTS_AT, Slot,
};
use crate::event::cancel::Undisturbed;
use crate::record::identity::realtime_ns;
use crate::record::mapping::{is_shared, map_shared, reserve_blocks, status_of};
use std::ffi::{CString, OsStr};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a ledger cannot be used. Says what is wrong; whoever shows it names the file.
#[derive(Debug)]
pub enum Unusable {
    /// The system says so.
    Io(io::Error),
    /// The file is not what it should be: what is wrong with it.
    Wrong(String),
    /// The ledger was removed, and these processes still use the old one.
    Removed(Vec<u32>),
    /// As many processes as there are slots.
    Full,
}

impl fmt::Display for Unusable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::Io(error) => write!(out, "{error}"),
            Unusable::Wrong(what) => write!(out, "{what}"),
            Unusable::Removed(pids) => {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                write!(
                    out,
                    "it was removed while processes use it (pid {}); their memory could not be counted in a new one",
                    pids.join(", ")
                )
            }
            Unusable::Full => {
                write!(out, "{} processes use it, which is as many as it has room for", layout::SLOTS)
            }
        }
    }
}

impl From<io::ErrorKind> for Unusable {
    fn from(kind: io::ErrorKind) -> Unusable {
        Unusable::Io(kind.into())
    }
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Unusable {
        Unusable::Io(error)
    }
}

/// A mapped ledger. Never unmapped.
#[derive(Clone, Copy)]
pub struct Map {
    base: *mut u8,
    /// Of each slot, bit n: its lanes on device n lie in the file. Of this process alone: a slot may claim any.
    there: NonNull<[AtomicU64]>,
}

// SAFETY: the mapping is never removed, and everything in it is atomic.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn new(base: *mut u8) -> Map {
        let there: Box<[AtomicU64]> = (0..layout::SLOTS).map(|_| AtomicU64::default()).collect();
        Map { base, there: NonNull::from(Box::leak(there)) }
    }

    /// For the fuzzer, which has many one after the other.
    ///
    /// # Safety
    /// Nothing that came from it, or from a copy of it, is used any more.
    #[doc(hidden)]
    pub unsafe fn unmap(self) {
        // SAFETY: our own mapping, whole, and the caller's promise.
        unsafe { libc::munmap(self.base.cast(), FILE_BYTES) };
        // SAFETY: leaked in `new`, and the caller's promise.
        drop(unsafe { Box::from_raw(self.there.as_ptr()) });
    }

    /// The header.
    pub fn header(self) -> &'static Header {
        // SAFETY: the mapping is FILE_BYTES long, page-aligned and never removed; every field is atomic.
        unsafe { &*self.base.cast::<Header>() }
    }

    /// A device's entry, if there is one of this number.
    #[inline]
    pub fn device(self, index: usize) -> Option<&'static Device> {
        if index >= layout::DEVICES {
            return None;
        }
        // SAFETY: in range, aligned to its size from an aligned base, and as in `header`.
        Some(unsafe { &*self.base.add(DEVICES_AT + index * size_of::<Device>()).cast::<Device>() })
    }

    /// A slot, if there is one of this number.
    #[inline]
    pub fn slot(self, index: u16) -> Option<&'static Slot> {
        let index = usize::from(index);
        if index >= layout::SLOTS {
            return None;
        }
        // SAFETY: as in `device`.
        Some(unsafe { &*self.base.add(SLOTS_AT + index * size_of::<Slot>()).cast::<Slot>() })
    }

    /// What a slot has on a device, if it has anything there: otherwise no blocks may be behind it.
    #[inline]
    pub fn lanes(self, device: usize, slot: u16) -> Option<&'static Lanes> {
        // Acquire pairs with the Release of `Ledger::lanes_on`: the blocks are there.
        let entered = self.slot(slot)?.devices.load(Ordering::Acquire);
        if device >= layout::DEVICES || entered >> device & 1 == 0 {
            return None;
        }
        // SAFETY: within the mapping by the two checks.
        let lanes = unsafe { self.base.add(lanes_at(device, slot) as usize) }.cast::<Lanes>();
        // SAFETY: leaked in `new`, and never changed but by atomic means.
        let there = unsafe { self.there.as_ref() }.get(usize::from(slot))?;
        // Relaxed: the file never gets shorter.
        if there.load(Ordering::Relaxed) >> device & 1 == 0 {
            if !is_there(lanes) {
                return None;
            }
            there.fetch_or(1 << device, Ordering::Relaxed);
        }
        // SAFETY: in the mapping and in the file, aligned, and as in `header`.
        Some(unsafe { &*lanes })
    }

    /// Slots that were ever used.
    pub fn slots(self) -> impl Iterator<Item = u16> {
        // Acquire pairs with the AcqRel of whoever took the last one.
        let end = self.header().slots_end.load(Ordering::Acquire).min(layout::SLOTS as u32);
        (0..end).map(|slot| slot as u16)
    }

    /// Devices that have an entry.
    pub fn devices(self) -> impl Iterator<Item = (usize, &'static Device)> {
        (0..layout::DEVICES)
            .filter_map(move |index| Some((index, self.device(index)?)))
            .take_while(|(_, device)| device.uuid.load() != [0, 0])
    }
}

/// False where the file ends before: to touch that would be answered with a signal, and a system call answers without.
/// This one reads a set of signals and then finds that there is no such operation.
#[cold]
fn is_there(lanes: *const Lanes) -> bool {
    const NO_SUCH_OPERATION: libc::c_long = -1;
    let nothing = std::ptr::null_mut::<u8>();
    // SAFETY: reads eight bytes by the kernel's checked copy and changes nothing.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NO_SUCH_OPERATION, lanes, nothing, 8usize) };
    io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

/// Where a slot's lanes on a device lie in the file.
pub fn lanes_at(device: usize, slot: u16) -> u64 {
    (LANES_AT + device * LANES_BYTES + usize::from(slot) * size_of::<Lanes>()) as u64
}

/// An open ledger and which file it is.
pub struct Opened {
    /// Readable and, unless asked for otherwise, writable.
    pub file: OwnedFd,
    /// Device and inode.
    pub id: (u64, u64),
}

/// `DIR/ledger`
pub fn path_in(directory: &Path) -> PathBuf {
    directory.join("ledger")
}

/// Opens the ledger of a directory after checking what it is. `None`: there is none.
pub fn open(path: &Path, write: bool) -> Result<Option<Opened>, Unusable> {
    let _undisturbed = Undisturbed::new();
    let access = if write { libc::O_RDWR } else { libc::O_RDONLY };
    let file = match open_raw(path, access, 0) {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(wrong("it is a symbolic link"));
        }
        // A directory, a socket: what can be opened is asked what it is.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EISDIR | libc::ENXIO)) => {
            return Err(wrong("it is not a regular file"));
        }
        Err(error) => return Err(error.into()),
    };
    let status = status_of(&file)?;
    if status.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(wrong("it is not a regular file"));
    }
    let directory = path.parent().map(std::fs::metadata).transpose()?;
    if !may_trust(&status, directory.as_ref()) {
        return Err(Unusable::Wrong(format!(
            "it belongs to user {} with mode {:04o}, and others could write to it",
            status.st_uid,
            status.st_mode & 0o7777
        )));
    }
    let file = File::from(file);
    check(&file, status.st_size)?;
    Ok(Some(Opened { file: file.into(), id: (status.st_dev, status.st_ino) }))
}

/// A ledger of this user or of root, which nobody else may write to; or one that a group shares, in a directory that
/// the operator made for that: with the group's set-group-id bit.
fn may_trust(file: &libc::stat, directory: Option<&std::fs::Metadata>) -> bool {
    // SAFETY: no arguments, cannot fail.
    let user = unsafe { libc::geteuid() };
    let shared = directory.is_some_and(|d| is_shared(d.mode()) && d.gid() == file.st_gid);
    let owned = file.st_uid == user || file.st_uid == 0 || user == 0;
    let forbidden = if shared { 0o002 } else { 0o022 };
    (owned || shared) && file.st_mode & forbidden == 0
}

fn check(file: &File, bytes: i64) -> Result<(), Unusable> {
    if !(LANES_AT as i64..=FILE_BYTES as i64).contains(&bytes) {
        return Err(Unusable::Wrong(format!("it is {bytes} bytes long, which no ledger is")));
    }
    let mut head = [0; 32];
    file.read_exact_at(&mut head, 0)?;
    let word = |at: usize| head.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
    if u64::from(word(0)) | u64::from(word(4)) << 32 != layout::MAGIC {
        return Err(wrong("it is not a ledger"));
    }
    if word(8) != layout::VERSION {
        return Err(Unusable::Wrong(format!(
            "it is a ledger of version {}, and this cuwarden writes version {}",
            word(8),
            layout::VERSION
        )));
    }
    let shape = [word(12), word(16), word(20)];
    if shape != [layout::SLOTS as u32, layout::DEVICES as u32, layout::CELLS as u32] {
        return Err(wrong("its numbers of slots and devices are not those of its version"));
    }
    let needed = bytes_in_use(file)?;
    // Asked after that: meanwhile others take lanes at its end.
    let bytes = file.metadata()?.len();
    if needed > bytes {
        return Err(Unusable::Wrong(format!("it was cut: {bytes} bytes are left of at least {needed}")));
    }
    Ok(())
}

/// How long the file must be for all lanes that its slots claim: to touch what is not there would end the process.
fn bytes_in_use(file: &File) -> io::Result<u64> {
    let mut slots = vec![0; SLOTS_BYTES];
    file.read_exact_at(&mut slots, SLOTS_AT as u64)?;
    let claimed = |slot: &[u8]| {
        let at = std::mem::offset_of!(Slot, devices);
        slot.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
    };
    let ends = slots.chunks_exact(size_of::<Slot>()).zip(0u16..).filter_map(|(bytes, slot)| {
        let last = claimed(bytes).checked_ilog2()? as usize;
        Some(lanes_at(last, slot) + size_of::<Lanes>() as u64)
    });
    Ok(ends.max().unwrap_or(0))
}

const SLOTS_BYTES: usize = layout::SLOTS * size_of::<Slot>();

fn wrong(what: &str) -> Unusable {
    Unusable::Wrong(what.to_owned())
}

/// Makes the ledger of a directory, whole or not at all. Another process may make it at the same time: then theirs
/// stays.
pub fn create(path: &Path) -> Result<(), Unusable> {
    let _undisturbed = Undisturbed::new();
    let directory = path.parent().ok_or(io::ErrorKind::NotFound)?;
    let shared = is_shared(std::fs::metadata(directory)?.mode());
    let mode = if shared { 0o660 } else { 0o600 };
    let name = format!(".ledger-{}-{:x}", std::process::id(), realtime_ns());
    let partial = directory.join(name);
    let file = open_raw(&partial, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, mode)?;
    let made = fill(&file, mode).and_then(|()| match std::fs::hard_link(&partial, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    });
    // Best effort: a name that is left behind is in nobody's way.
    let _ = std::fs::remove_file(&partial);
    Ok(made?)
}

fn fill(file: &OwnedFd, mode: u32) -> io::Result<()> {
    // SAFETY: a valid descriptor. The umask may have taken the group's part away.
    if unsafe { libc::fchmod(file.as_raw_fd(), mode) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Lanes follow as they are taken.
    reserve_blocks(file, 0, LANES_AT as u64)?;
    let mut head = Vec::with_capacity(64);
    head.extend_from_slice(&layout::MAGIC.to_le_bytes());
    for word in [layout::VERSION, layout::SLOTS as u32, layout::DEVICES as u32, layout::CELLS as u32, 0, 0] {
        head.extend_from_slice(&word.to_le_bytes());
    }
    head.extend_from_slice(&realtime_ns().to_le_bytes());
    File::from(file.try_clone()?).write_all_at(&head, 0)
}

/// Maps it, all that it may grow to. A forked child does not get the mapping: with it goes the lock that says that its parent lives.
pub fn map(file: &OwnedFd) -> io::Result<Map> {
    let base = map_shared(file, 0, FILE_BYTES as u64)?;
    // SAFETY: our own mapping, whole.
    if unsafe { libc::madvise(base.cast(), FILE_BYTES, libc::MADV_DONTFORK) } != 0 {
        let error = io::Error::last_os_error();
        // SAFETY: our own mapping, which nobody has seen yet.
        unsafe { libc::munmap(base.cast(), FILE_BYTES) };
        return Err(error);
    }
    Ok(Map::new(base))
}

/// Maps it for somebody who changes nothing, and may have no right to.
pub fn map_to_read(file: &OwnedFd) -> io::Result<Map> {
    let bytes = FILE_BYTES;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe {
        let flags = libc::MAP_SHARED;
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, flags, file.as_raw_fd(), 0)
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(Map::new(base.cast()))
}

fn open_raw(path: &Path, flags: i32, mode: u32) -> io::Result<OwnedFd> {
    let name = CString::new(OsStr::as_bytes(path.as_os_str()))?;
    // SAFETY: a NUL-terminated path. O_NONBLOCK: a FIFO would block.
    let fd = unsafe {
        libc::open(name.as_ptr(), flags | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK, mode)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let path = std::env::temp_dir().join(format!("cuwarden-ledger-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
            Dir(path)
        }

        fn ledger(&self) -> PathBuf {
            path_in(&self.0)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn made_once_and_whole() {
        let dir = Dir::new("made");
        assert!(open(&dir.ledger(), true).unwrap().is_none());
        create(&dir.ledger()).unwrap();
        let first = open(&dir.ledger(), true).unwrap().unwrap().id;
        create(&dir.ledger()).unwrap();
        let opened = open(&dir.ledger(), true).unwrap().unwrap();
        assert_eq!(opened.id, first, "the first one stays");
        assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 1, "nothing is left behind");
        let mode = std::fs::metadata(dir.ledger()).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o600);
        let map = map(&opened.file).unwrap();
        assert_eq!(map.header().slots.load(Ordering::Relaxed), layout::SLOTS as u32);
        assert!(map.lanes(0, 0).is_none() && map.device(layout::DEVICES).is_none());
    }

    #[test]
    fn what_is_no_ledger_is_said() {
        let dir = Dir::new("wrong");
        let path = dir.ledger();
        let refused = |what: &str| {
            let error = open(&path, true).err().expect(what).to_string();
            assert!(error.contains(what), "{error} instead of {what}");
            let _ = std::fs::remove_file(&path);
        };
        symlink("/dev/null", &path).unwrap();
        refused("symbolic link");
        std::fs::create_dir(&path).unwrap();
        assert!(open(&path, true).is_err());
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, b"short").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        refused("5 bytes long");
        let spoil = |at: u64, bytes: &[u8]| {
            create(&path).unwrap();
            File::options().write(true).open(&path).unwrap().write_all_at(bytes, at).unwrap();
        };
        spoil(0, &[0; 8]);
        refused("not a ledger");
        spoil(8, &[9, 0, 0, 0]);
        refused("version 9");
        spoil(16, &[1, 0, 0, 0]);
        refused("numbers of slots");
        create(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o620)).unwrap();
        refused("others could write");
    }

    #[test]
    fn what_was_cut_is_said() {
        let dir = Dir::new("cut");
        create(&dir.ledger()).unwrap();
        let file = File::options().write(true).open(dir.ledger()).unwrap();
        let last = SLOTS_AT + 3 * size_of::<Slot>() + std::mem::offset_of!(Slot, devices);
        file.write_all_at(&5u64.to_le_bytes(), last as u64).unwrap();
        let end = lanes_at(2, 3) + 1024;
        file.set_len(end - 1).unwrap();
        let error = open(&dir.ledger(), true).err().unwrap().to_string();
        assert!(error.contains(&format!("at least {end}")), "{error}");
        file.set_len(end).unwrap();
        assert!(open(&dir.ledger(), true).is_ok());
    }

    /// Whoever looks while others take lanes at its end must not think that it was cut.
    #[test]
    fn what_grows_was_not_cut() {
        let dir = Dir::new("grows");
        create(&dir.ledger()).unwrap();
        let file = File::options().read(true).write(true).open(dir.ledger()).unwrap();
        let file: OwnedFd = file.into();
        let map = map(&file).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (device, slot) in
                    (0..16).flat_map(|device| (0..layout::SLOTS as u16).map(move |slot| (device, slot)))
                {
                    reserve_blocks(&file, lanes_at(device, slot), size_of::<Lanes>() as u64).unwrap();
                    map.slot(slot).unwrap().devices.fetch_or(1 << device, Ordering::Release);
                }
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                open(&dir.ledger(), true).unwrap();
            }
        });
    }

    #[test]
    fn a_group_shares_what_the_operator_gave_it() {
        let dir = Dir::new("group");
        std::fs::set_permissions(&dir.0, std::fs::Permissions::from_mode(0o2770)).unwrap();
        create(&dir.ledger()).unwrap();
        assert_eq!(std::fs::metadata(dir.ledger()).unwrap().mode() & 0o7777, 0o660);
        assert!(open(&dir.ledger(), true).unwrap().is_some());
    }
}
