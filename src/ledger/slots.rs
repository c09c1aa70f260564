//! How a process takes part: a slot of its own in the ledger, and lanes on each device that it uses.

use super::atomic::{AtomicU64, Ordering, Pair};
use super::file::{self, Map, Opened, Unusable, lanes_at};
use super::layout::{self, Device, Lanes, SLOTS, Slot};
use super::limit::{self, Limit, Outcome};
use super::liveness::{Hold, Judge, Who, claiming, is_locked, lock, unlock};
use super::protocol::{self, Book, Me};
use super::view::{Holder, view_of};
use crate::event::cancel::Undisturbed;
use crate::record::identity::realtime_ns;
use crate::record::mapping::{reserve_blocks, status_of};
use crate::sync::Lock;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, fence};

/// The ledger of a directory, with a slot of this process in it.
pub struct Ledger {
    map: Map,
    slot: u16,
    who: Who,
    path: PathBuf,
    id: (u64, u64),
    /// For the right to write intents, one a device: whatever enters one again is the same author.
    writing: [Arc<Lock<()>>; layout::DEVICES],
    /// Where the slot's lock lives on it.
    _descriptor: Option<OwnedFd>,
}

/// How a device is told from others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceKey {
    /// As the driver gives it; not zero.
    pub uuid: [u8; 16],
    /// A MIG instance.
    pub is_mig: bool,
    /// The product, see [`model`].
    pub model: u32,
    /// Memory, in bytes; 0 = not known.
    pub total_bytes: u64,
}

/// Used slots that are tried before a new one is taken.
const TRIES: u32 = 8;
/// Descriptors that applications count on, or close by number, are lower.
const DESCRIPTOR_FROM: i32 = 512;

/// The descriptor that a parent kept, and its child got with everything else.
static KEPT: AtomicI32 = AtomicI32::new(-1);

impl Ledger {
    /// Takes a slot in the ledger of a directory, which is made if there is none. `users` names the processes that still
    /// use one which was removed; asked only where one would be made.
    pub fn join(directory: &Path, users: impl FnOnce() -> Vec<u32>) -> Result<Ledger, Unusable> {
        let _undisturbed = Undisturbed::new();
        let path = file::path_in(directory);
        let opened = match file::open(&path, true)? {
            Some(opened) => opened,
            None => {
                let pids = users();
                if !pids.is_empty() {
                    return Err(Unusable::Removed(pids));
                }
                file::create(&path)?;
                file::open(&path, true)?.ok_or(std::io::ErrorKind::NotFound)?
            }
        };
        let map = file::map(&opened.file)?;
        let Opened { file, id } = opened;
        close_inherited(id);
        let who = Who::this_process();
        // Another description: what the mapping keeps can only have the lock that is to stay.
        let claims = file::open(&path, true)?.filter(|opened| opened.id == id);
        let claims = claims.ok_or_else(|| Unusable::Wrong("it was replaced just now".to_owned()))?.file;
        let slot = claim(map, &file, &claims, &mut Judge::new(who, path.clone(), id))?;
        drop(file);
        let descriptor = keep_lock(claims, map.slot(slot).ok_or(Unusable::Full)?, slot, &who)?;
        let writing = std::array::from_fn(|_| Arc::default());
        Ok(Ledger { map, slot, who, path, id, writing, _descriptor: descriptor })
    }

    /// Takes part on a device. `told`: the limit that this process was told, in bytes, 0 = none.
    pub fn enter(&self, key: &DeviceKey, told: u64) -> Result<(Entered, Outcome), Unusable> {
        let _undisturbed = Undisturbed::new();
        let index = entry_of(self.map, key).ok_or_else(|| {
            Unusable::Wrong(format!(
                "{} devices are in use with it, and it has no room for more",
                layout::DEVICES
            ))
        })?;
        let mut entered = self.lanes_on(index)?;
        entered.told = told;
        // Acquire pairs with the Release in `set_default_limit`. Nothing else is ever written there, and must not
        // take the place of what others were told.
        if let operators @ Limit::Operators(_) =
            Limit::of(self.map.header().default_limit.load(Ordering::Acquire))
        {
            entered.take_operators(operators);
        }
        let (outcome, changed) = limit::tell(&entered.device.limit, told, || !entered.others_live());
        if changed {
            protocol::limit_changed(&entered, &entered.me);
        }
        Ok((entered, outcome))
    }

    /// Sets the operator's limit of a device, in bytes, 0 = none; `None` hands it back to what processes are told.
    pub fn set_limit(&self, key: &DeviceKey, bytes: Option<u64>) -> Result<(), Unusable> {
        let index = entry_of(self.map, key).ok_or(Unusable::Full)?;
        self.set_limit_at(index, bytes.map_or(Limit::Unset, Limit::Operators))
    }

    /// As [`Ledger::set_limit`], for all devices, and for those that nobody has used yet.
    pub fn set_limit_of_all(&self, bytes: Option<u64>) -> Result<(), Unusable> {
        self.set_default_limit(bytes);
        let limit = bytes.map_or(Limit::Unset, Limit::Operators);
        self.map.devices().try_for_each(|(index, _)| self.set_limit_at(index, limit))
    }

    /// The operator's limit of devices that nobody has used yet, in bytes, 0 = none; `None`: there is none.
    pub fn set_default_limit(&self, bytes: Option<u64>) {
        let word = bytes.map_or(0, |bytes| Limit::Operators(bytes).word());
        self.map.header().default_limit.store(word, Ordering::Release);
        // Pairs with the exchange that makes a device's entry: it is found afterwards, or finds this.
        fence(Ordering::SeqCst);
    }

    /// Takes the operator's limit of a device back. `told`: what its processes were told, in bytes, 0 = nothing: that
    /// holds again.
    pub fn forget_limit(&self, key: &DeviceKey, told: u64) -> Result<(), Unusable> {
        let index = entry_of(self.map, key).ok_or(Unusable::Full)?;
        self.set_limit_at(index, if told == 0 { Limit::Unset } else { Limit::Told(told) })
    }

    fn set_limit_at(&self, index: usize, limit: Limit) -> Result<(), Unusable> {
        let entered = self.lanes_on(index)?;
        // Release pairs with the Acquire in `limit::of`.
        entered.device.limit.store(limit.word(), Ordering::Release);
        protocol::limit_changed(&entered, &entered.me);
        Ok(())
    }

    /// Where the ledger lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which file it is: device and inode.
    pub(super) fn id(&self) -> (u64, u64) {
        self.id
    }

    /// For those who look at all of it.
    pub fn map(&self) -> Map {
        self.map
    }

    /// Who is dead, as far as this process can tell.
    pub fn judge(&self) -> Judge {
        Judge::new(self.who, self.path.clone(), self.id)
    }

    fn lanes_on(&self, index: usize) -> Result<Entered, Unusable> {
        let device = self.map.device(index).ok_or(Unusable::Full)?;
        if self.map.lanes(index, self.slot).is_none() {
            let opened = file::open(&self.path, true)?.filter(|opened| opened.id == self.id);
            let opened = opened.ok_or_else(|| Unusable::Wrong("it was removed or replaced".to_owned()))?;
            // Nobody has touched them, so they are zero, also where taking blocks means to write zeros.
            reserve_blocks(&opened.file, lanes_at(index, self.slot), size_of::<Lanes>() as u64)?;
            if let Some(slot) = self.map.slot(self.slot) {
                // Release pairs with the Acquire in `Map::lanes`: the blocks are there.
                slot.devices.fetch_or(1 << index, Ordering::Release);
            }
        }
        let mine = self.map.lanes(index, self.slot).ok_or(Unusable::Full)?;
        let me = Me { slot: self.slot, writing: self.writing.get(index).ok_or(Unusable::Full)?.clone() };
        let judged_by = (self.who, self.path.clone(), self.id);
        Ok(Entered { map: self.map, index, device, mine, me, told: 0, judged_by })
    }
}

/// A process's part in the account of one device.
pub struct Entered {
    map: Map,
    index: usize,
    /// Shared with all processes.
    pub device: &'static Device,
    /// Of this process.
    pub mine: &'static Lanes,
    /// The right to change something.
    pub me: Me,
    /// The limit that this process was told, in bytes, 0 = none.
    pub told: u64,
    judged_by: (Who, PathBuf, (u64, u64)),
}

impl Entered {
    /// Who is dead, as far as this process can tell.
    pub fn judge(&self) -> impl FnMut(u16) -> bool + use<> {
        let (who, path, id) = self.judged_by.clone();
        let (mut judge, map) = (Judge::new(who, path, id), self.map);
        move |slot| judge.is_dead(map, slot)
    }

    /// All that have lanes on the device, the dead too.
    pub fn holders(&self) -> Vec<Holder> {
        let (who, path, id) = self.judged_by.clone();
        view_of(self.map, self.index, self.device, &mut Judge::new(who, path, id)).holders
    }

    /// What one context of this device takes, in bytes, where somebody has measured it on this or on an equal one.
    pub fn context_cost(&self) -> Option<u64> {
        let cost = |device: &Device| device.context_cost.load(Ordering::Relaxed).checked_sub(1);
        cost(self.device).or_else(|| {
            let model = self.device.model.load(Ordering::Relaxed);
            let is_equal = |other: &Device| model != 0 && other.model.load(Ordering::Relaxed) == model;
            self.map.devices().filter(|(_, other)| is_equal(other)).find_map(|(_, other)| cost(other))
        })
    }

    /// Shares what was measured; the first measurement stays.
    pub fn set_context_cost(&self, bytes: u64) {
        let word = bytes.saturating_add(1);
        let _ = self.device.context_cost.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn others_live(&self) -> bool {
        let mut is_dead = self.judge();
        self.slots().any(|slot| slot != self.me.slot && !is_dead(slot))
    }

    fn take_operators(&self, limit: Limit) {
        // As in `limit::tell`.
        let now = self.device.limit.load(Ordering::Acquire);
        if let Limit::Operators(_) = Limit::of(now) {
            return;
        }
        let taken = self
            .device
            .limit
            .compare_exchange(now, limit.word(), Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if taken {
            protocol::limit_changed(self, &self.me);
        }
    }
}

impl Book for Entered {
    fn word(&self) -> &Pair {
        &self.device.word.0
    }

    fn limit(&self) -> u64 {
        limit::of(self.device)
    }

    fn closed_ms(&self) -> &AtomicU64 {
        &self.device.closed_ms
    }

    fn now_ms(&self) -> u64 {
        // Not a clock that time namespaces shift. Where it jumps, cells open earlier or later.
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a place for the answer; on failure it stays zero.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &mut now) };
        (now.tv_sec as u64).wrapping_mul(1000).wrapping_add(now.tv_nsec as u64 / 1_000_000)
    }

    fn lanes(&self, slot: u16) -> Option<&Lanes> {
        self.map.lanes(self.index, slot)
    }

    fn owner(&self, slot: u16) -> u64 {
        // Acquire pairs with the Release in `Who::store`.
        self.map.slot(slot).map_or(0, |slot| slot.generation.load(Ordering::Acquire))
    }

    fn slots(&self) -> impl Iterator<Item = u16> {
        self.map.slots().filter(|slot| self.map.lanes(self.index, *slot).is_some())
    }
}

/// A product's number, from its name.
pub fn model(name: &[u8]) -> u32 {
    name.iter().fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193)) | 1
}

/// The place of a device, taken at first use.
fn entry_of(map: Map, key: &DeviceKey) -> Option<usize> {
    let (first, second) = key.uuid.split_at(8);
    let word = |half: &[u8]| half.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    let wanted = [word(second), word(first)];
    for index in 0..layout::DEVICES {
        let device = map.device(index)?;
        let mut found = device.uuid.load();
        if found == [0, 0] {
            found = match device.uuid.exchange([0, 0], wanted) {
                Ok(()) => wanted,
                Err(other) => other,
            };
        }
        if found == wanted {
            // Relaxed, and by whoever comes: all write the same, but for an operator, who knows no more than the UUID.
            let is_known = key.total_bytes != 0;
            if is_known || key.is_mig {
                device.is_mig.store(key.is_mig.into(), Ordering::Relaxed);
            }
            if is_known {
                device.model.store(key.model, Ordering::Relaxed);
                device.total_bytes.store(key.total_bytes, Ordering::Relaxed);
            }
            return Some(index);
        }
    }
    None
}

/// A slot of which nobody is the owner.
fn claim(map: Map, file: &OwnedFd, claims: &OwnedFd, judge: &mut Judge) -> Result<u16, Unusable> {
    let header = map.header();
    // Relaxed: only a ticket, so that processes which start together do not all try the same ones.
    let ticket = header.next_slot.fetch_add(1, Ordering::Relaxed);
    // Acquire: as in `Map::slots`.
    let end = header.slots_end.load(Ordering::Acquire).min(SLOTS as u32);
    for n in 0..TRIES.min(end) {
        let slot = (ticket.wrapping_mul(0x9e37_79b1) >> 8).wrapping_add(n) % end;
        if try_claim(map, file, claims, slot as u16, judge)? {
            return Ok(slot as u16);
        }
    }
    // AcqRel: Release pairs with the Acquire in `Map::slots`.
    let next = |end: u32| (end < SLOTS as u32).then_some(end + 1);
    while let Ok(slot) = header.slots_end.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
        if try_claim(map, file, claims, slot as u16, judge)? {
            return Ok(slot as u16);
        }
    }
    for slot in 0..SLOTS as u16 {
        if try_claim(map, file, claims, slot, judge)? {
            return Ok(slot);
        }
    }
    Err(Unusable::Full)
}

fn try_claim(
    map: Map,
    file: &OwnedFd,
    claims: &OwnedFd,
    slot: u16,
    judge: &mut Judge,
) -> Result<bool, Unusable> {
    let Some(entry) = map.slot(slot) else { return Ok(false) };
    // Acquire pairs with the Release in `Who::store`.
    let generation = entry.generation.load(Ordering::Acquire);
    let nobodys = generation == 0 || generation % 2 == 1;
    if !(nobodys || judge.is_dead(map, slot)) || !lock(claims, claiming(slot))? {
        return Ok(false);
    }
    // From here on nobody else changes the number or takes the slot's own lock.
    if entry.generation.load(Ordering::Acquire) != generation || is_locked(file, slot)? {
        unlock(claims, claiming(slot));
        return Ok(false);
    }
    // Before the lock, with which the dead owner would look alive. Release pairs with the Acquire in `owner`, though
    // nothing comes before it that anybody relies on.
    entry.generation.store(generation | 1, Ordering::Release);
    if !lock(file, slot)? {
        unlock(claims, claiming(slot));
        return Ok(false);
    }
    inherit(map, slot);
    Ok(true)
}

/// What a dead owner was charged goes, and with it what others were about to do to it.
fn inherit(map: Map, slot: u16) {
    for (index, device) in map.devices() {
        let Some(mine) = map.lanes(index, slot) else { continue };
        // Nobody else writes there: an owner comes after this.
        let me = Me { slot, writing: Arc::default() };
        let who = Who { pid: 0, start_ticks: 0, stack_start: 0, pid_namespace: 0, boot_id: [0; 16] };
        let judged_by = (who, PathBuf::new(), (0, 0));
        let entered = Entered { map, index, device, mine, me, told: 0, judged_by };
        protocol::inherit(&entered, &entered.me);
        mine.contexts.store(0, Ordering::Relaxed);
    }
}

/// Lets the slot's lock live on the mapping, or where that is not possible on a descriptor, which is answered. With that
/// the slot is ours.
fn keep_lock(claims: OwnedFd, entry: &Slot, slot: u16, who: &Who) -> Result<Option<OwnedFd>, Unusable> {
    let hold = if is_locked(&claims, slot)? {
        Hold::Mapping
    } else if lock(&claims, slot)? {
        Hold::Descriptor
    } else {
        return Err(Unusable::Wrong("its locks do not hold".to_owned()));
    };
    who.store(entry, hold, realtime_ns());
    unlock(&claims, claiming(slot));
    if hold == Hold::Mapping {
        return Ok(None);
    }
    // SAFETY: a valid descriptor; the copy is a new one that nobody else owns.
    let copy = unsafe { libc::fcntl(claims.as_raw_fd(), libc::F_DUPFD_CLOEXEC, DESCRIPTOR_FROM) };
    let kept = if copy < 0 {
        claims
    } else {
        // SAFETY: as above.
        unsafe { OwnedFd::from_raw_fd(copy) }
    };
    KEPT.store(kept.as_raw_fd(), Ordering::Relaxed);
    Ok(Some(kept))
}

/// A child that uses CUDA itself gives back what it got of its parent: the parent would look alive as long as it lives.
fn close_inherited(id: (u64, u64)) {
    let kept = KEPT.swap(-1, Ordering::Relaxed);
    if kept < 0 {
        return;
    }
    // SAFETY: if the number is still that of this file, it is the inherited one: only we open it and keep it.
    let inherited = unsafe { OwnedFd::from_raw_fd(kept) };
    let is_ours = status_of(&inherited).is_ok_and(|status| (status.st_dev, status.st_ino) == id);
    if !is_ours {
        // Somebody else's by now.
        std::mem::forget(inherited);
    }
}

#[cfg(test)]
mod tests;
