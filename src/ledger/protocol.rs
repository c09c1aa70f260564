//! How processes share one quota without a lock, whatever dies and wherever it stops.
//!
//! # The word
//! One pair of words a device decides: the bytes charged to all processes, and the name of the last operation
//! (slot and sequence number). Whoever wants to change anything that is shared writes down all of it as an *intent* in
//! its own lanes, and then exchanges the word. The exchange is the operation: it succeeds only if no other came since
//! the word was read, so everything that was read after the word still holds. Before that, each operation *completes*
//! the one that the word names: it carries out the intent, step by step, each from an exact state that never comes
//! again (versions only grow), so that it does not matter how many do it at the same time or one after the other.
//!
//! - A process that dies or stops before the exchange has changed nothing.
//! - One that dies or stops after it has an intent that the next one completes. Nobody waits for it.
//! - So at any moment the word says what all slots together are charged, but for at most one operation that the word
//!   itself names. Adding is refused by the same exchange: the sum never passes the limit.
//!
//! # Spare bytes
//! Processes would hand the word's cache line to and fro for every allocation. So what is freed stays charged as
//! *spare* in one of the process's *cells*, up to [`super::cell::MOST_SPARE`], and is taken from there again: one
//! exchange on a line that few others use. A cell is *open* or *closed*. Only an open one is changed directly; a
//! closed one by operations alone. Anybody may close any cell.
//!
//! A request that does not fit closes all cells of the device, takes their spare bytes back (an operation on the slot
//! that has them), removes the charges of the dead, and reads the word again. If nothing was left to take back, no cell
//! was opened meanwhile (operations that open one are counted in the word) and the sum is still too high, then at
//! that moment nothing was spare and the request did not fit: it is refused. Cells are opened again when the use is
//! well below the limit and nobody was refused for a while.
//!
//! # Orderings
//! Exchanges of pairs are full barriers and their loads Acquire. An intent is a seqlock: `sequence` is stored with
//! Release after the fields and loaded with Acquire before them; the fences in `write` and `read` pair with each
//! other for the other end. Who finds an intent overwritten synchronises with its author likewise. `done` is
//! exchanged with AcqRel: who sees an operation done sees all its steps.

use super::atomic::{AtomicU64, Ordering, Pair, fence};
use super::cell::{exchange, is_open, next, spare_in};
use super::layout::{CELLS, Cell, Intent, Lanes};
use crate::sync::Lock;
use std::sync::Arc;

/// What is charged stays below this, in bytes.
const MOST_CHARGED: u64 = if cfg!(loom) { 1 << 16 } else { 1 << 48 };
/// Cells stay closed for this long after something was refused.
const CLOSED_FOR_MS: u64 = 100;
/// An exchange fails only where another succeeded. More often than this in a row, somebody tampers with the memory.
const MOST_TRIES: u32 = 1 << 20;

const TARGET_OPENS: u64 = 1 << 24;
const SEQUENCE: u64 = u64::MAX >> 16;

/// A device as the ledger keeps it.
pub trait Book {
    /// The word.
    fn word(&self) -> &Pair;
    /// Bytes that may be charged; 0 = any number.
    fn limit(&self) -> u64;
    /// When the cells were last closed, in ms.
    fn closed_ms(&self) -> &AtomicU64;
    /// The time, in ms.
    fn now_ms(&self) -> u64;
    /// What a slot has; `None` for a number that is none, or of one without lanes.
    fn lanes(&self, slot: u16) -> Option<&Lanes>;
    /// Who has a slot: another number for every owner. Odd: nobody has, what is charged is a dead one's; this comes
    /// before anybody can look like its owner, and ends before he is charged anything.
    fn owner(&self, slot: u16) -> u64;
    /// Slots that have lanes.
    fn slots(&self) -> impl Iterator<Item = u16>;
}

/// A process's right to write intents on a device.
pub struct Me {
    /// Its slot.
    pub slot: u16,
    /// Among its threads: every `Me` of the same slot and device has the same one.
    pub writing: Arc<Lock<()>>,
}

/// What the word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    raw: [u64; 2],
}

impl Seen {
    /// Bytes charged to all slots.
    pub fn charged(self) -> u64 {
        self.raw[0] & (u64::MAX >> 16)
    }

    /// Counts operations that open a cell.
    fn openings(self) -> u16 {
        (self.raw[0] >> 48) as u16
    }

    fn slot(self) -> u16 {
        (self.raw[1] >> 48) as u16
    }

    fn sequence(self) -> u64 {
        self.raw[1] & SEQUENCE
    }

    fn new(charged: u64, openings: u16, slot: u16, sequence: u64) -> Seen {
        Seen { raw: [charged | u64::from(openings) << 48, u64::from(slot) << 48 | sequence] }
    }
}

/// An operation that cannot be: what it would need is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Not {
    /// Too much is charged.
    Over(u64),
    /// There is nothing to do.
    Needed,
    /// Somebody was quicker: what was planned has to be looked at anew.
    Ready,
    /// The ledger's bytes make no sense.
    Sane,
}

/// A request that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Granted and in flight, of all processes, in bytes.
    pub used: u64,
    /// The quota, in bytes.
    pub limit: u64,
}

struct Step {
    target: u16,
    charge: Charge,
    cell: Option<CellStep>,
}

enum Charge {
    Add(u64),
    Sub(u64),
    All,
}

struct CellStep {
    index: usize,
    before: u64,
    opens: bool,
    /// Counted in the word.
    is_opening: bool,
}

/// Charges `bytes` to `me` if they fit, or in any case where `forced`. Answers what is charged to `me` with them.
pub fn add<B: Book>(book: &B, me: &Me, bytes: u64, forced: bool) -> Result<u64, Not> {
    commit(book, me, |seen| {
        if !forced && is_over(seen, bytes, book.limit()) {
            return Err(Not::Over(seen.charged()));
        }
        Ok(Step { target: me.slot, charge: Charge::Add(bytes), cell: None })
    })
}

fn is_over(seen: Seen, bytes: u64, limit: u64) -> bool {
    let sum = seen.charged().saturating_add(bytes);
    (limit != 0 && sum > limit) || sum >= MOST_CHARGED
}

/// Gives `bytes` of `me` back.
pub fn sub<B: Book>(book: &B, me: &Me, bytes: u64) -> Result<u64, Not> {
    commit(book, me, |_| Ok(Step { target: me.slot, charge: Charge::Sub(bytes), cell: None }))
}

/// Changes nothing but the word: whatever others planned before is planned anew.
pub fn touch<B: Book>(book: &B, me: &Me) -> Result<u64, Not> {
    sub(book, me, 0)
}

/// To be called after the limit was changed: whatever begins when it has come back is decided under the new one.
pub fn limit_changed<B: Book>(book: &B, me: &Me) {
    let _ = touch(book, me);
    // What a cell has is taken without a look at the limit. One that opens after the touch was decided under the new
    // limit and above it is charged nothing from then on; one that is closed and empty opens in no other way.
    close_all(book, me);
}

/// Takes all that a slot is charged away, if it is still that of `owner`, who must be dead, or be `me` before its first
/// charge.
pub fn reap<B: Book>(book: &B, me: &Me, slot: u16, owner: u64) -> Result<u64, Not> {
    commit(book, me, |_| {
        // Between the judgement and now somebody may have taken the slot over, and charged something: that is an
        // operation, so either it is seen here that the owner is another one, or the exchange of the word fails.
        if book.owner(slot) != owner {
            return Err(Not::Needed);
        }
        let [charged, _] = book.lanes(slot).ok_or(Not::Sane)?.charged.load();
        if charged == 0 {
            return Err(Not::Needed);
        }
        Ok(Step { target: slot, charge: Charge::All, cell: None })
    })
}

/// Closes a cell and takes what is spare in it back. It is `open` afterwards, or stays closed. `Not::Needed`: it is
/// closed and empty already.
fn take_back<B: Book>(book: &B, me: &Me, slot: u16, index: usize, open: bool) -> Result<u64, Not> {
    let Cell(cell) = book.lanes(slot).and_then(|lanes| lanes.cells.get(index)).ok_or(Not::Sane)?;
    for _ in 0..MOST_TRIES {
        let now = cell.load(Ordering::Acquire);
        if is_open(now) {
            // Whether it succeeds or not, the next look tells.
            let _ = exchange(cell, now, next(now, spare_in(now), false));
            continue;
        }
        let taken = commit(book, me, |_| match cell.load(Ordering::Acquire) {
            before if is_open(before) => Err(Not::Ready),
            before if spare_in(before) == 0 => Err(Not::Needed),
            // Closed and not empty: nobody relies on that, so it need not be counted if it opens.
            before => Ok(Step {
                target: slot,
                charge: Charge::Sub(spare_in(before)),
                cell: Some(CellStep { index, before, opens: open, is_opening: false }),
            }),
        });
        if taken != Err(Not::Ready) || open {
            return taken;
        }
    }
    Err(Not::Sane)
}

/// Opens a cell of `me` if the device is not tight.
fn open<B: Book>(book: &B, me: &Me, index: usize) -> Result<u64, Not> {
    let cell = &book.lanes(me.slot).and_then(|lanes| lanes.cells.get(index)).ok_or(Not::Sane)?.0;
    commit(book, me, |seen| {
        let before = cell.load(Ordering::Acquire);
        if is_open(before) || is_tight(book, seen.charged()) {
            return Err(Not::Needed);
        }
        let step = CellStep { index, before, opens: true, is_opening: true };
        Ok(Step { target: me.slot, charge: Charge::Sub(spare_in(before)), cell: Some(step) })
    })
}

/// Near the limit, or where something was refused just now, spare bytes would only have to be taken back.
fn is_tight<B: Book>(book: &B, charged: u64) -> bool {
    let limit = book.limit();
    // Relaxed: an opening that was planned before the cells were closed is seen in the word by who closed them.
    let closed = book.closed_ms().load(Ordering::Relaxed);
    limit != 0
        && (charged.saturating_add(limit / 8) > limit
            || (closed != 0 && book.now_ms().wrapping_sub(closed) < CLOSED_FOR_MS))
}

fn commit<B: Book>(book: &B, me: &Me, mut plan: impl FnMut(Seen) -> Result<Step, Not>) -> Result<u64, Not> {
    let mine = book.lanes(me.slot).ok_or(Not::Sane)?;
    let _writing = me.writing.lock();
    for _ in 0..MOST_TRIES {
        let seen = Seen { raw: book.word().load() };
        complete(book, seen);
        // From here on everything is read after the word, so the exchange proves that it still held.
        let step = plan(seen)?;
        let target = book.lanes(step.target).ok_or(Not::Sane)?;
        let before = target.charged.load();
        let (after, sum) = match step.charge {
            Charge::Add(bytes) => (before[0].saturating_add(bytes), seen.charged().saturating_add(bytes)),
            Charge::Sub(bytes) => {
                let bytes = bytes.min(before[0]);
                (before[0].saturating_sub(bytes), seen.charged().saturating_sub(bytes))
            }
            Charge::All => (0, seen.charged().saturating_sub(before[0])),
        };
        let opening = step.cell.as_ref().is_some_and(|cell| cell.is_opening);
        // Acquire pairs with the AcqRel of whoever completed the last one.
        let sequence = mine.done.load(Ordering::Acquire).wrapping_add(1) & SEQUENCE;
        write(&mine.intent, sequence, &step, before, after);
        let next = Seen::new(
            sum.min(u64::MAX >> 16),
            seen.openings().wrapping_add(u16::from(opening)),
            me.slot,
            sequence,
        );
        if book.word().exchange(seen.raw, next.raw).is_ok() {
            complete(book, next);
            return Ok(after);
        }
    }
    Err(Not::Sane)
}

/// Carries out what is left of the operation that the word names.
fn complete<B: Book>(book: &B, seen: Seen) {
    let Some(lanes) = book.lanes(seen.slot()) else { return };
    // Acquire: as in `commit`. As there, only what the word has of it counts: what was begun must be done.
    let (sequence, done) = (seen.sequence(), lanes.done.load(Ordering::Acquire));
    if done & SEQUENCE != sequence.wrapping_sub(1) & SEQUENCE {
        return;
    }
    // `None`: it was completed meanwhile, and its author is at the next one already.
    let Some(intent) = read(&lanes.intent, sequence) else { return };
    if let Some(target) = book.lanes(intent.target as u16) {
        let [_, version] = intent.charged_before;
        // Both exchanges fail where another one has done it already: versions never come again.
        let _ =
            target.charged.exchange(intent.charged_before, [intent.charged_after, version.wrapping_add(1)]);
        let index = (intent.target >> 16 & 0xff) as usize;
        if let Some(Cell(cell)) = index.checked_sub(1).and_then(|index| target.cells.get(index)) {
            let opens = intent.target & TARGET_OPENS != 0;
            let _ = exchange(cell, intent.cell_before, next(intent.cell_before, 0, opens));
        }
    }
    // AcqRel: Release for those that see it done, Acquire is not needed here but the exchange has no weaker form.
    let _ = lanes.done.compare_exchange(done, sequence, Ordering::AcqRel, Ordering::Relaxed);
}

struct Plain {
    target: u64,
    charged_before: [u64; 2],
    charged_after: u64,
    cell_before: u64,
}

fn write(intent: &Intent, sequence: u64, step: &Step, before: [u64; 2], after: u64) {
    let (cell, cell_before, opens) = match &step.cell {
        Some(cell) => (cell.index as u64 + 1, cell.before, u64::from(cell.opens) * TARGET_OPENS),
        None => (0, 0, 0),
    };
    // Release pairs with both Acquire loads in `read`: who finds 0 knows the last operation done, and sees its steps.
    intent.sequence.store(0, Ordering::Release);
    // Pairs with the fence in `read`: who reads one of these fields reads the 0 or something later afterwards.
    fence(Ordering::Release);
    intent.target.store(u64::from(step.target) | cell << 16 | opens, Ordering::Relaxed);
    store_pair(&intent.charged_before, before);
    intent.charged_after.store(after, Ordering::Relaxed);
    intent.cell_before.store(cell_before, Ordering::Relaxed);
    // Pairs with the Acquire in `read`.
    intent.sequence.store(sequence, Ordering::Release);
}

fn read(intent: &Intent, sequence: u64) -> Option<Plain> {
    if intent.sequence.load(Ordering::Acquire) != sequence {
        return None;
    }
    let plain = Plain {
        target: intent.target.load(Ordering::Relaxed),
        charged_before: load_pair(&intent.charged_before),
        charged_after: intent.charged_after.load(Ordering::Relaxed),
        cell_before: intent.cell_before.load(Ordering::Relaxed),
    };
    fence(Ordering::Acquire);
    (intent.sequence.load(Ordering::Acquire) == sequence).then_some(plain)
}

fn store_pair(words: &[AtomicU64; 2], values: [u64; 2]) {
    words.iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
}

fn load_pair(words: &[AtomicU64; 2]) -> [u64; 2] {
    words.each_ref().map(|word| word.load(Ordering::Relaxed))
}

/// Takes `bytes` that do not fit at once: whatever is spare or of the dead is taken back first. `is_dead` is asked of
/// slots that are charged something.
pub fn add_or_refuse<B: Book>(
    book: &B,
    me: &Me,
    bytes: u64,
    mut is_dead: impl FnMut(u16) -> bool,
) -> Result<u64, Denied> {
    let denied = |used| Denied { used, limit: book.limit() };
    let mut used = 0;
    // Each round takes something back or sees somebody open a cell, which stops while `closed_ms` is young.
    for _ in 0..MOST_TRIES {
        match add(book, me, bytes, false) {
            Ok(charged) => return Ok(charged),
            Err(Not::Over(charged)) => used = charged,
            Err(_) => break,
        }
        // Relaxed: see `is_tight`.
        book.closed_ms().store(book.now_ms().max(1), Ordering::Relaxed);
        let before = Seen { raw: book.word().load() };
        complete(book, before);
        if close_all(book, me) || reap_dead(book, me, &mut is_dead) {
            continue;
        }
        let after = Seen { raw: book.word().load() };
        complete(book, after);
        if after.openings() == before.openings() && is_over(after, bytes, book.limit()) {
            return Err(denied(after.charged()));
        }
    }
    Err(denied(used))
}

/// Closes the cells of all slots; true when there was anything in one of them.
pub fn close_all<B: Book>(book: &B, me: &Me) -> bool {
    let mut any = false;
    for slot in book.slots() {
        for index in 0..CELLS {
            any |= take_back(book, me, slot, index, false).is_ok();
        }
    }
    any
}

/// Takes the charges of the dead away; true when there was one, or somebody became a slot's owner meanwhile.
pub fn reap_dead<B: Book>(book: &B, me: &Me, is_dead: &mut impl FnMut(u16) -> bool) -> bool {
    let mut any = false;
    for slot in book.slots().filter(|slot| *slot != me.slot) {
        // Before the judgement, which is about this one.
        let owner = book.owner(slot);
        if book.lanes(slot).is_none_or(|lanes| lanes.charged.load()[0] == 0) {
            continue;
        }
        // Whoever claims it may be stopped, and has the lock that says that somebody lives.
        let nobodys = owner % 2 == 1;
        let reaped = (nobodys || is_dead(slot)) && reap(book, me, slot, owner).is_ok();
        // Another owner after it: it was not about him.
        any |= reaped || book.owner(slot) != owner;
    }
    any
}

/// Takes the spare bytes of `me` back, and leaves the cells as they were: with them its charge is what it holds.
pub fn drain_own<B: Book>(book: &B, me: &Me) {
    let Some(lanes) = book.lanes(me.slot) else { return };
    for (index, Cell(cell)) in lanes.cells.iter().enumerate() {
        let now = cell.load(Ordering::Acquire);
        if spare_in(now) != 0 {
            let _ = take_back(book, me, me.slot, index, is_open(now));
        }
    }
}

/// Opens one of the cells of `me` again, if it is closed and there is no reason for that any more.
pub fn open_own<B: Book>(book: &B, me: &Me, index: usize) {
    let Some(Cell(cell)) = book.lanes(me.slot).and_then(|lanes| lanes.cells.get(index)) else { return };
    if !is_open(cell.load(Ordering::Acquire)) && !is_tight(book, Seen { raw: book.word().load() }.charged()) {
        let _ = open(book, me, index);
    }
}

/// What is charged to all slots, and what of it is spare, in bytes.
pub fn sum<B: Book>(book: &B) -> (u64, u64) {
    let charged = Seen { raw: book.word().load() }.charged();
    let spare = book.slots().filter_map(|slot| book.lanes(slot)).map(spare).fold(0, u64::saturating_add);
    (charged, spare)
}

/// What a slot has spare, in bytes.
pub fn spare(lanes: &Lanes) -> u64 {
    lanes.cells.iter().map(|Cell(cell)| spare_in(cell.load(Ordering::Acquire))).fold(0, u64::saturating_add)
}

/// What a dead owner of the slot of `me` was charged goes, and with it what others were about to do to it. For a new
/// owner, before it is one: until then [`Book::owner`] is odd, and whoever comes does the same if this stops anywhere.
pub fn inherit<B: Book>(book: &B, me: &Me) {
    // Whatever the word names may be the dead owner's.
    let _ = touch(book, me);
    let Some(lanes) = book.lanes(me.slot) else { return };
    // Others may still plan to take the cells back: when the charge is gone, that is refused or changes nothing.
    for Cell(cell) in &lanes.cells {
        let mut now = cell.load(Ordering::Acquire);
        for _ in 0..MOST_TRIES {
            match exchange(cell, now, next(now, 0, false)) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
    }
    if reap(book, me, me.slot, book.owner(me.slot)).is_err() {
        let _ = touch(book, me);
    }
}
