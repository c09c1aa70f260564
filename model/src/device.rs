//! A device of which a few processes have a part, and what the model knows of it besides.

use crate::atomic::{AtomicU64, Ordering};
use crate::ledger::atomic::Pair;
use crate::ledger::cell;
use crate::ledger::layout::Lanes;
use crate::ledger::protocol::{self, Book, Me, Not};
use crate::sync::Lock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as Plain, Ordering::Relaxed};

const SLOTS: usize = 3;

/// The book, in memory. What is `Plain` is no part of the protocol: one operation of the model's runs at a time, so it is
/// exact, and adds no orders to explore.
pub struct Device {
    word: Pair,
    limit: AtomicU64,
    closed_ms: AtomicU64,
    now_ms: Plain,
    /// How far the clock goes on at each look.
    tick_ms: u64,
    slots: [Slot; SLOTS],
    used: u16,
    /// All that is held stays within this.
    pub most: u64,
}

#[derive(Default)]
struct Slot {
    lanes: Lanes,
    owner: AtomicU64,
    is_dead: AtomicU64,
    is_claimed: Plain,
    held: Plain,
}

impl Device {
    /// With `used` slots. Where `is_slow`, no time passes.
    pub fn new(used: u16, limit: u64, is_slow: bool) -> Arc<Device> {
        assert!(usize::from(used) <= SLOTS);
        Arc::new(Device {
            word: Pair::default(),
            limit: AtomicU64::new(limit),
            closed_ms: AtomicU64::default(),
            now_ms: Plain::new(1),
            // Longer than cells stay closed.
            tick_ms: if is_slow { 0 } else { 1000 },
            slots: Default::default(),
            used,
            most: limit,
        })
    }

    fn slot(&self, slot: u16) -> &Slot {
        &self.slots[usize::from(slot)]
    }

    fn held(&self) -> u64 {
        self.slots.iter().map(|slot| slot.held.load(Relaxed)).sum()
    }

    /// As the operator does it, but for the touch.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Release);
    }

    /// The owner of a slot has died: the driver has what it held.
    pub fn bury(&self, slot: u16) {
        self.slot(slot).held.store(0, Relaxed);
        self.slot(slot).is_dead.store(1, Ordering::Release);
    }

    /// What a process judges of another's slot.
    pub fn is_dead(&self, slot: u16) -> bool {
        self.slot(slot).is_dead.load(Ordering::Acquire) == 1
    }
}

impl Book for Device {
    fn word(&self) -> &Pair {
        &self.word
    }

    fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }

    fn closed_ms(&self) -> &AtomicU64 {
        &self.closed_ms
    }

    fn now_ms(&self) -> u64 {
        self.now_ms.fetch_add(self.tick_ms, Relaxed)
    }

    fn lanes(&self, slot: u16) -> Option<&Lanes> {
        (slot < self.used).then(|| &self.slot(slot).lanes)
    }

    fn owner(&self, slot: u16) -> u64 {
        self.slot(slot).owner.load(Ordering::Acquire)
    }

    fn slots(&self) -> impl Iterator<Item = u16> {
        0..self.used
    }
}

/// The owner of a slot.
pub struct Process {
    /// Where it has a part.
    pub device: Arc<Device>,
    /// Its right to change that.
    pub me: Me,
}

impl Process {
    /// The first owner of a slot.
    pub fn new(device: &Arc<Device>, slot: u16) -> Process {
        Process { device: device.clone(), me: Me { slot, writing: Arc::new(Lock::default()) } }
    }

    /// Takes the slot of a dead owner over, if nobody else does. As `slots::try_claim` and `inherit`, which are bound to a
    /// file and cannot be compiled here.
    pub fn claim(device: &Arc<Device>, slot: u16) -> Option<Process> {
        let taken = device.slot(slot);
        // The lock for claiming.
        if !device.is_dead(slot) || taken.is_claimed.swap(1, Relaxed) == 1 {
            return None;
        }
        taken.owner.store(device.owner(slot) | 1, Ordering::Release);
        // The lock of the slot: from here on somebody lives.
        taken.is_dead.store(0, Ordering::Release);
        let process = Process::new(device, slot);
        let (book, me) = (&**device, &process.me);
        protocol::inherit(book, me);
        taken.owner.store(book.owner(slot) + 1, Ordering::Release);
        taken.is_claimed.store(0, Relaxed);
        Some(process)
    }

    fn lanes(&self) -> &Lanes {
        &self.device.slot(self.me.slot).lanes
    }

    /// Takes bytes as `Account::reserve` does: what is spare first. False: it was refused.
    pub fn reserve(&self, cell: usize, bytes: u64) -> bool {
        let fits = cell::take_spare(&self.lanes().cells[cell], bytes) || self.add(bytes);
        if fits {
            self.hold(bytes);
        }
        fits
    }

    /// Takes bytes without a look at what is spare in its own cell.
    pub fn reserve_shared(&self, bytes: u64) -> bool {
        let fits = self.add(bytes);
        if fits {
            self.hold(bytes);
        }
        fits
    }

    fn add(&self, bytes: u64) -> bool {
        let (book, me) = (&*self.device, &self.me);
        match protocol::add(book, me, bytes, false) {
            Ok(_) => true,
            Err(Not::Over(_)) => protocol::add_or_refuse(book, me, bytes, |slot| book.is_dead(slot)).is_ok(),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn hold(&self, bytes: u64) {
        self.device.slot(self.me.slot).held.fetch_add(bytes, Relaxed);
        let (held, most) = (self.device.held(), self.device.most);
        assert!(held <= most, "{held} of {most} bytes are held");
    }

    /// Gives bytes back as `Account::release` does.
    pub fn release(&self, cell: usize, bytes: u64) {
        self.device.slot(self.me.slot).held.fetch_sub(bytes, Relaxed);
        if !cell::give_spare(&self.lanes().cells[cell], bytes) {
            protocol::sub(&*self.device, &self.me, bytes).expect("giving back cannot fail");
            self.reopen(cell);
        }
    }

    /// Opens a cell again, if it may be.
    pub fn reopen(&self, cell: usize) {
        protocol::open_own(&*self.device, &self.me, cell);
    }

    /// Gives back what is spare.
    pub fn drain(&self) {
        protocol::drain_own(&*self.device, &self.me);
    }

    /// Takes away what the dead were charged.
    pub fn reap(&self) {
        let device = &*self.device;
        protocol::reap_dead(device, &self.me, &mut |slot| device.is_dead(slot));
    }

    /// For the beginning: holds something, and has something spare in one open cell.
    pub fn with(self, held: u64, cell: usize, spare: u64) -> Process {
        self.reopen(cell);
        assert!(self.reserve_shared(held + spare));
        self.release(cell, spare);
        assert_eq!(protocol::spare(self.lanes()), spare);
        self
    }

    /// For the end: whether the books say what is held, of each slot and of all.
    pub fn audit(&self) {
        let book = &*self.device;
        // Whatever somebody has not completed.
        protocol::touch(book, &self.me).expect("a touch cannot fail");
        let mut all = 0;
        for slot in book.slots() {
            let Slot { lanes, held, .. } = book.slot(slot);
            let ([charged, _], spare) = (lanes.charged.load(), protocol::spare(lanes));
            let held = held.load(Relaxed);
            assert_eq!(charged, held + spare, "slot {slot}: charged, but {held} held and {spare} spare");
            all += charged;
        }
        assert_eq!(protocol::sum(book).0, all, "the sum, and the slots'");
    }

    /// For the end: all that nobody else holds can be had at once, and no byte more.
    pub fn take_the_rest(&self) {
        let rest = self.device.most - self.device.held();
        assert!(!self.reserve_shared(rest + 1), "more than there is");
        assert!(self.reserve_shared(rest), "{rest} bytes are free, and refused");
        self.audit();
    }

    /// As [`Process::take_the_rest`], beside a process that stopped anywhere and lives: it counts what that one holds,
    /// and at most `in_flight` more.
    pub fn take_the_rest_beside(&self, stopped: u16, in_flight: u64) {
        let book = &*self.device;
        protocol::touch(book, &self.me).expect("a touch cannot fail");
        let Slot { lanes, held, .. } = book.slot(stopped);
        let counted = lanes.charged.load()[0] - protocol::spare(lanes);
        let known = held.load(Relaxed);
        assert!((known..=known + in_flight).contains(&counted), "{counted} counted, {known} held");
        // Whatever it has in flight is its own from here on.
        held.store(counted, Relaxed);
        self.take_the_rest();
    }
}
