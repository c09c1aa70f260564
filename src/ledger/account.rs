//! What a process does with one device's account.

use super::cell::{give_spare, spare_in, take_spare};
use super::layout::{CELLS, Cell};
use super::protocol::{self, Book, Denied, Not};
use super::slots::Entered;
use super::view::Holder;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

/// In bytes. What is asked for beyond that is no damage of the ledger.
const MOST_OF_ANY_DEVICE: u64 = 1 << 46;

/// A request that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Reserved {
    /// All that this process holds or has in flight with it, in bytes, if that is more than ever: for
    /// [`Account::granted`].
    pub peak: Option<u64>,
}

impl Reserved {
    /// Nothing was reserved.
    pub const NOTHING: Reserved = Reserved { peak: None };
}

/// One device's account, for one thread.
#[derive(Clone, Copy)]
pub struct Account<'a> {
    /// This process's part in it.
    pub entered: &'a Entered,
    /// The highest that this process held at a time, in bytes; lies in the record file.
    pub peak: &'a AtomicU64,
    /// Any number that few threads share: it chooses the cell.
    pub thread: u32,
}

impl Account<'_> {
    /// Takes `bytes` if they fit. To be given back by [`Account::release`] when the driver refuses.
    #[inline]
    pub fn reserve(&self, bytes: u64) -> Result<Reserved, Denied> {
        // Relaxed: the peak orders nothing. While no more is charged than was ever held, spare bytes make no new peak.
        if self.charged() <= self.peak.load(Ordering::Relaxed) && take_spare(self.cell(), bytes) {
            return Ok(Reserved::NOTHING);
        }
        self.reserve_shared(bytes)
    }

    /// Gives `bytes` back.
    #[inline]
    pub fn release(&self, bytes: u64) {
        if bytes != 0 && !give_spare(self.cell(), bytes) {
            self.release_shared(bytes);
        }
    }

    /// Takes `bytes` without asking: the driver has taken them already.
    pub fn force(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let _ = protocol::add(self.entered, &self.entered.me, bytes, true);
        self.peak.fetch_max(self.held(), Ordering::Relaxed);
    }

    /// Takes what a context costs, if it fits. It counts like anything else, but not for the peak.
    pub fn reserve_context(&self, bytes: u64) -> Result<(), Denied> {
        self.entered.mine.contexts.fetch_add(bytes, Ordering::Relaxed);
        self.add(bytes).map(|_| ()).inspect_err(|_| self.forget_context(bytes))
    }

    /// Takes what a context costs that is there already.
    pub fn force_context(&self, bytes: u64) {
        self.entered.mine.contexts.fetch_add(bytes, Ordering::Relaxed);
        let _ = protocol::add(self.entered, &self.entered.me, bytes, true);
    }

    /// Gives back what a context cost.
    pub fn release_context(&self, bytes: u64) {
        let _ = protocol::sub(self.entered, &self.entered.me, bytes);
        self.forget_context(bytes);
    }

    /// The driver has granted a reservation.
    #[inline]
    pub fn granted(&self, reserved: Reserved) {
        if let Some(peak) = reserved.peak {
            self.peak.fetch_max(peak, Ordering::Relaxed);
        }
    }

    /// Granted and in flight, in bytes, of all living processes.
    pub fn used(&self) -> u64 {
        protocol::reap_dead(self.entered, &self.entered.me, &mut self.entered.judge());
        let (charged, spare) = protocol::sum(self.entered);
        charged.saturating_sub(spare)
    }

    /// Granted and in flight, in bytes, of this process alone, contexts not included.
    pub fn held(&self) -> u64 {
        let lanes = self.entered.mine;
        let look = || {
            let cells = lanes.cells.each_ref().map(|Cell(cell)| cell.load(Ordering::Acquire));
            (lanes.charged.load(), cells)
        };
        // Twice the same is a moment at which it was so.
        let mut seen = look();
        for _ in 0..16 {
            let again = look();
            if again == seen {
                break;
            }
            seen = again;
        }
        let ([charged, _], cells) = seen;
        let spare = cells.iter().map(|cell| spare_in(*cell)).fold(0, u64::saturating_add);
        charged.saturating_sub(spare).saturating_sub(self.contexts())
    }

    /// What the contexts of this process are charged, in bytes.
    #[inline]
    pub fn contexts(&self) -> u64 {
        self.entered.mine.contexts.load(Ordering::Relaxed)
    }

    /// The living processes that hold something, largest first.
    pub fn holders(&self) -> Vec<Holder> {
        let mut holders = self.entered.holders();
        holders.retain(|holder| holder.is_alive && holder.bytes != 0);
        // A heap of numbers: sorting the holders themselves takes 5 KB of code.
        let order: BinaryHeap<(u64, Reverse<usize>)> =
            holders.iter().enumerate().map(|(at, holder)| (holder.bytes, Reverse(at))).collect();
        let largest_first = order.into_sorted_vec().into_iter().rev();
        largest_first.filter_map(|(_, Reverse(at))| holders.get(at).cloned()).collect()
    }

    /// The quota in bytes, 0 = none.
    pub fn limit(&self) -> u64 {
        self.entered.limit()
    }

    #[inline(never)]
    fn reserve_shared(&self, bytes: u64) -> Result<Reserved, Denied> {
        if bytes == 0 {
            return Ok(Reserved::NOTHING);
        }
        let (book, me) = (self.entered, &self.entered.me);
        let peak = self.peak.load(Ordering::Relaxed);
        if self.charged().saturating_add(bytes) > peak {
            // A new peak is noted without what is spare.
            protocol::drain_own(book, me);
        }
        let charged = self.add(bytes)?.saturating_sub(self.contexts());
        Ok(Reserved { peak: (charged > peak).then(|| self.held()) })
    }

    fn add(&self, bytes: u64) -> Result<u64, Denied> {
        let (book, me) = (self.entered, &self.entered.me);
        let denied = match protocol::add(book, me, bytes, false) {
            Ok(charged) => return Ok(charged),
            Err(Not::Over(_)) => match protocol::add_or_refuse(book, me, bytes, book.judge()) {
                Ok(charged) => return Ok(charged),
                Err(denied) => denied,
            },
            Err(_) => Denied { used: protocol::sum(book).0, limit: self.limit() },
        };
        // Without a limit it can only be that the ledger's bytes make no sense any more, or that no device has so much.
        let unlimited = denied.limit == 0 && book.told == 0;
        if unlimited && bytes < MOST_OF_ANY_DEVICE { Ok(0) } else { Err(denied) }
    }

    fn forget_context(&self, bytes: u64) {
        let less = |now: u64| Some(now.saturating_sub(bytes));
        let _ = self.entered.mine.contexts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    #[inline(never)]
    fn release_shared(&self, bytes: u64) {
        let (book, me) = (self.entered, &self.entered.me);
        let _ = protocol::sub(book, me, bytes);
        protocol::open_own(book, me, self.thread as usize % CELLS);
    }

    /// Charged to this process, in bytes, contexts not included.
    #[inline]
    fn charged(&self) -> u64 {
        let charged = self.entered.mine.charged.glance();
        charged.saturating_sub(self.contexts())
    }

    #[inline]
    fn cell(&self) -> &Cell {
        // Always in range; the first is never missing.
        let [first, ..] = &self.entered.mine.cells;
        self.entered.mine.cells.get(self.thread as usize % CELLS).unwrap_or(first)
    }
}
