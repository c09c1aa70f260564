//! The index from an address or handle to its record.
//!
//! Split into stripes so that threads seldom meet. A stripe's lock is held for one look-up in a hash table,
//! never across a call of the driver.

use crate::record::layout::{Class, Counts, MAX_DEVICES, Record, RecordState, STRIPES};
use crate::record::writer::Writer;
use cuwarden_table::Table;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::{Guard, Lock};

/// Records that a stripe takes from the file at a time.
const BATCH: u32 = 32;

/// What is known of one allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Allocation {
    /// Device pointer or handle.
    pub address: u64,
    /// What kind of thing it is.
    pub class: Class,
    /// What it takes, in bytes.
    pub bytes: u64,
    /// CUDA ordinal of its device.
    pub device: u8,
    /// Index in [`crate::record::api::APIS`].
    pub api: u16,
    /// The CUcontext it ends with, or the CUmemoryPool it comes from; 0 = neither.
    pub owner: u64,
    /// Id of its call stack; 0 = none.
    pub stack: u32,
    /// The runtime and the call of it that it came through, as in [`Record::place`] above the device.
    pub runtime: u32,
    /// Thread that made it.
    pub tid: u32,
    /// Nanoseconds since the record file's start.
    pub born_ns: u64,
}

impl Allocation {
    /// A place to be filled.
    pub const EMPTY: Allocation = Allocation {
        address: 0,
        class: Class::Pointer,
        bytes: 0,
        device: 0,
        api: 0,
        owner: 0,
        stack: 0,
        runtime: 0,
        tid: 0,
        born_ns: 0,
    };
}

/// All live allocations of the process.
pub struct Index {
    stripes: [Stripe; STRIPES],
}

#[repr(align(64))]
struct Stripe {
    inner: Lock<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Indices of records; the key is read from the record itself.
    table: Table,
    /// Empty records that belong to this stripe.
    empty: Stack,
}

/// Numbers, the last of which are at hand.
#[derive(Default)]
struct Stack {
    near: [u32; BATCH as usize],
    count: usize,
    more: Vec<u32>,
}

impl Stack {
    #[inline(always)]
    fn push(&mut self, number: u32) {
        match self.near.get_mut(self.count) {
            Some(place) => {
                *place = number;
                self.count += 1;
            }
            None => self.spill(number),
        }
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<u32> {
        let Some(last) = self.count.checked_sub(1) else { return self.more.pop() };
        self.count = last;
        self.near.get(last).copied()
    }

    #[cold]
    fn spill(&mut self, number: u32) {
        self.more.push(number);
    }
}

impl Default for Index {
    fn default() -> Self {
        Index { stripes: std::array::from_fn(|_| Stripe { inner: Lock::default() }) }
    }
}

impl Index {
    /// Adds an allocation. An older one at the same place is answered: the driver gave the address out again,
    /// so the older one has ended without our seeing it. `Err`: there was no memory for a record.
    #[inline]
    pub fn insert(&self, writer: &Writer, new: &Allocation) -> Result<Option<Allocation>, NoRecord> {
        let hash = hash_of(new.address, new.class);
        let stripe_number = stripe_of(hash);
        let mut inner = self.lock(stripe_number).ok_or(NoRecord)?;
        count(writer, stripe_number, new, |counts| &counts.alloc);
        let index = inner.empty_record(writer);
        let Some(record) = index.and_then(|index| writer.record(index)) else {
            return inner.without_record(writer, stripe_number, hash, new);
        };
        store(record, new);
        let older = inner.put(writer, hash, index.unwrap_or(0), new);
        Ok(older.and_then(|older| inner.let_go(writer, stripe_number, older)))
    }

    /// Removes an allocation, before the driver frees it: from then on the driver may give the address to
    /// another thread. [`Index::restore`] puts it back when the driver refuses.
    pub fn remove(&self, writer: &Writer, address: u64, class: Class) -> Option<Allocation> {
        let mut taken = Allocation::EMPTY;
        self.remove_into(writer, address, class, &mut taken).then_some(taken)
    }

    /// [`Index::remove`] for the path that every free takes: false where there is none.
    #[inline]
    pub fn remove_into(&self, writer: &Writer, address: u64, class: Class, taken: &mut Allocation) -> bool {
        let hash = hash_of(address, class);
        let stripe_number = stripe_of(hash);
        let Some(mut inner) = self.lock(stripe_number) else { return false };
        let found = inner.take(writer, hash, address, class, taken);
        if found {
            count(writer, stripe_number, taken, |counts| &counts.free);
        }
        found
    }

    /// Puts back what [`Index::remove`] took.
    pub fn restore(&self, writer: &Writer, old: &Allocation) -> Result<(), NoRecord> {
        let hash = hash_of(old.address, old.class);
        let stripe_number = stripe_of(hash);
        let mut inner = self.lock(stripe_number).ok_or(NoRecord)?;
        let index = inner.empty_record(writer).ok_or(NoRecord)?;
        store(writer.record(index).ok_or(NoRecord)?, old);
        if let Some(older) = inner.put(writer, hash, index, old) {
            // Who was given the address meanwhile has lost it again.
            let _ = inner.let_go(writer, stripe_number, older);
        }
        uncount_free(writer, stripe_number, old);
        Ok(())
    }

    /// The allocation at an address.
    pub fn find(&self, writer: &Writer, address: u64, class: Class) -> Option<Allocation> {
        let hash = hash_of(address, class);
        let inner = self.lock(stripe_of(hash))?;
        let index = inner.table.find(hash, &|i| is_at(writer, i, address, class))?;
        load(writer.record(index)?)
    }

    /// Changes what an allocation takes; answers what it took before.
    pub fn resize(&self, writer: &Writer, address: u64, class: Class, bytes: u64) -> Option<u64> {
        let hash = hash_of(address, class);
        let inner = self.lock(stripe_of(hash))?;
        let index = inner.table.find(hash, &|i| is_at(writer, i, address, class))?;
        Some(writer.record(index)?.bytes.swap(bytes, Ordering::Relaxed))
    }

    /// Every allocation that `wanted` chooses.
    pub fn select(&self, writer: &Writer, wanted: &dyn Fn(&Allocation) -> bool) -> Vec<Allocation> {
        let mut selected = Vec::new();
        for stripe in &self.stripes {
            let inner = stripe.inner.lock();
            let allocations = inner.table.iter().filter_map(|index| load(writer.record(index)?));
            selected.extend(allocations.filter(|allocation| wanted(allocation)));
        }
        selected
    }

    /// Removes every allocation that `wanted` chooses.
    pub fn remove_where(&self, writer: &Writer, wanted: &dyn Fn(&Allocation) -> bool) -> Vec<Allocation> {
        let mut removed = Vec::new();
        for stripe_number in 0..STRIPES {
            let Some(mut inner) = self.lock(stripe_number) else { continue };
            let Inner { table, empty } = &mut *inner;
            table.retain(&mut |index| {
                let Some(record) = writer.record(index) else { return false };
                let Some(allocation) = load(record) else { return false };
                if !wanted(&allocation) {
                    return true;
                }
                clear(record);
                empty.push(index);
                count(writer, stripe_number, &allocation, |counts| &counts.free);
                removed.push(allocation);
                false
            });
        }
        removed
    }

    /// Allocations and frees of a device so far: two equal figures mean that nothing happened in between.
    pub fn calls(&self, writer: &Writer, device: u8) -> u64 {
        let stripes = writer.header().counts.iter().filter_map(|stripe| stripe.get(device as usize));
        stripes.map(calls_in).fold(0, u64::wrapping_add)
    }

    /// The same of all devices together.
    pub fn all_calls(&self, writer: &Writer) -> u64 {
        writer.header().counts.iter().flatten().map(calls_in).fold(0, u64::wrapping_add)
    }

    #[inline(always)]
    fn lock(&self, stripe: usize) -> Option<Guard<'_, Inner>> {
        Some(self.stripes.get(stripe)?.inner.lock())
    }
}

/// There is neither disk nor memory for another record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRecord;

impl Inner {
    #[inline(always)]
    fn take(
        &mut self,
        writer: &Writer,
        hash: u64,
        address: u64,
        class: Class,
        into: &mut Allocation,
    ) -> bool {
        let Some(index) = self.table.take(hash, &|i| is_at(writer, i, address, class)) else { return false };
        let Some(record) = writer.record(index) else { return false };
        let known = load_into(record, into);
        clear(record);
        self.empty.push(index);
        known
    }

    /// Enters a record; an older one of the same address is answered.
    #[inline(always)]
    fn put(&mut self, writer: &Writer, hash: u64, index: u32, new: &Allocation) -> Option<u32> {
        let is_other = |i| i != index && is_at(writer, i, new.address, new.class);
        self.table.insert(hash, index, &is_other, &|other| hash_of_record(writer, other))
    }

    /// Empties the record of an allocation that has ended without our seeing it.
    #[cold]
    fn let_go(&mut self, writer: &Writer, stripe: usize, index: u32) -> Option<Allocation> {
        let record = writer.record(index)?;
        let known = load(record);
        clear(record);
        self.empty.push(index);
        if let Some(older) = &known {
            count(writer, stripe, older, |counts| &counts.free);
        }
        known
    }

    /// No record is to be had; an older one of the same address is not kept for it.
    #[cold]
    fn without_record(
        &mut self,
        writer: &Writer,
        stripe: usize,
        hash: u64,
        new: &Allocation,
    ) -> Result<Option<Allocation>, NoRecord> {
        let mut older = Allocation::EMPTY;
        if self.take(writer, hash, new.address, new.class, &mut older) {
            count(writer, stripe, &older, |counts| &counts.free);
        }
        Err(NoRecord)
    }

    #[inline(always)]
    fn empty_record(&mut self, writer: &Writer) -> Option<u32> {
        if let Some(index) = self.empty.pop() {
            return Some(index);
        }
        // Reversed, so that the lowest is used first.
        writer.new_records(BATCH)?.rev().for_each(|index| self.empty.push(index));
        self.empty.pop()
    }
}

/// Device pointers of every kind share one name space; handles of each class are another.
#[inline(always)]
fn hash_of(address: u64, class: Class) -> u64 {
    // The finaliser of MurmurHash3: every bit of the key reaches the low bits, the high 7 that hashbrown
    // compares, and the stripe's.
    let mut h = address ^ ((class as u64) << 56);
    h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ (h >> 33)
}

fn hash_of_record(writer: &Writer, index: u32) -> u64 {
    let Some(record) = writer.record(index) else { return 0 };
    let class = Class::from_u8((record.kind.load(Ordering::Relaxed) >> 8) as u8).unwrap_or(Class::Pointer);
    hash_of(record.address.load(Ordering::Relaxed), class)
}

#[inline(always)]
fn stripe_of(hash: u64) -> usize {
    (hash >> 40) as usize % STRIPES
}

#[inline(always)]
fn is_at(writer: &Writer, index: u32, address: u64, class: Class) -> bool {
    writer.record(index).is_some_and(|record| {
        record.address.load(Ordering::Relaxed) == address
            && (record.kind.load(Ordering::Relaxed) >> 8) as u8 == class as u8
    })
}

#[inline(always)]
fn store(record: &Record, a: &Allocation) {
    record.address.store(a.address, Ordering::Relaxed);
    record.bytes.store(a.bytes, Ordering::Relaxed);
    record.born_ns.store(a.born_ns, Ordering::Relaxed);
    record.owner.store(a.owner, Ordering::Relaxed);
    record.stack.store(a.stack, Ordering::Relaxed);
    record.tid.store(a.tid, Ordering::Relaxed);
    record.place.store(u32::from(a.device) | a.runtime, Ordering::Relaxed);
    let kind = RecordState::Live as u32 | (a.class as u32) << 8 | u32::from(a.api) << 16;
    // Release pairs with the Acquire of readers of the file: a live record is whole.
    record.kind.store(kind, Ordering::Release);
}

#[inline(always)]
fn clear(record: &Record) {
    // Release: a reader that sees another allocation in this place sees that this one is gone.
    record.kind.store(RecordState::Empty as u32, Ordering::Release);
}

fn load(record: &Record) -> Option<Allocation> {
    let mut allocation = Allocation::EMPTY;
    load_into(record, &mut allocation).then_some(allocation)
}

#[inline(always)]
fn load_into(record: &Record, into: &mut Allocation) -> bool {
    let kind = record.kind.load(Ordering::Relaxed);
    let Some(class) = Class::from_u8((kind >> 8) as u8) else { return false };
    into.address = record.address.load(Ordering::Relaxed);
    into.class = class;
    into.bytes = record.bytes.load(Ordering::Relaxed);
    // The file could have been written to by somebody else.
    let place = record.place.load(Ordering::Relaxed);
    into.device = (place as u8).min(MAX_DEVICES as u8 - 1);
    into.runtime = place & !0xff;
    into.api = (kind >> 16) as u16;
    into.owner = record.owner.load(Ordering::Relaxed);
    into.stack = record.stack.load(Ordering::Relaxed);
    into.tid = record.tid.load(Ordering::Relaxed);
    into.born_ns = record.born_ns.load(Ordering::Relaxed);
    true
}

/// Only the holder of the stripe's lock writes its counters, so no read-modify-write is needed. What the driver
/// holds of its own is no allocation of the application.
#[inline(always)]
fn count(writer: &Writer, stripe: usize, what: &Allocation, field: fn(&Counts) -> &AtomicU64) {
    if let Some(counts) = counts_of(writer, stripe, what) {
        let word = field(counts);
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

fn calls_in(counts: &Counts) -> u64 {
    counts.alloc.load(Ordering::Relaxed).wrapping_add(counts.free.load(Ordering::Relaxed))
}

fn uncount_free(writer: &Writer, stripe: usize, what: &Allocation) {
    if let Some(counts) = counts_of(writer, stripe, what) {
        let free = counts.free.load(Ordering::Relaxed);
        counts.free.store(free.saturating_sub(1), Ordering::Relaxed);
    }
}

#[inline(always)]
fn counts_of(writer: &Writer, stripe: usize, what: &Allocation) -> Option<&'static Counts> {
    if matches!(what.class, Class::PoolReserve | Class::GraphReserve) {
        return None;
    }
    writer.header().counts.get(stripe)?.get(what.device as usize)
}
