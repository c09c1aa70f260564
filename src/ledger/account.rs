//! What a process does with one device's account.

use super::layout::{CELLS, Cell};
use super::protocol::{self, Book, Denied, Not};
use super::slots::Entered;
use std::sync::atomic::{AtomicU64, Ordering};

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
        let [charged, _] = self.entered.mine.charged.load();
        // Relaxed: the peak orders nothing. While no more is charged than was ever held, spare bytes make no new peak.
        if charged <= self.peak.load(Ordering::Relaxed) && protocol::take_spare(self.cell(), bytes) {
            return Ok(Reserved::NOTHING);
        }
        self.reserve_shared(bytes)
    }

    /// Gives `bytes` back.
    #[inline]
    pub fn release(&self, bytes: u64) {
        if bytes != 0 && !protocol::give_spare(self.cell(), bytes) {
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

    /// Granted and in flight, in bytes, of this process alone.
    pub fn held(&self) -> u64 {
        let lanes = self.entered.mine;
        let look = || {
            let cells = lanes.cells.each_ref().map(|Cell(cell)| cell.load());
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
        charged.saturating_sub(cells.iter().map(|[spare, _]| *spare).fold(0, u64::saturating_add))
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
        let [charged, _] = book.mine.charged.load();
        if charged.saturating_add(bytes) > peak {
            // A new peak is noted without what is spare.
            protocol::drain_own(book, me);
        }
        let charged = match protocol::add(book, me, bytes, false) {
            Ok(charged) => charged,
            Err(Not::Over(_)) => protocol::add_or_refuse(book, me, bytes, book.judge())?,
            Err(_) => return Err(Denied { used: protocol::sum(book).0, limit: self.limit() }),
        };
        Ok(Reserved { peak: (charged > peak).then(|| self.held()) })
    }

    #[inline(never)]
    fn release_shared(&self, bytes: u64) {
        let (book, me) = (self.entered, &self.entered.me);
        let _ = protocol::sub(book, me, bytes);
        protocol::open_own(book, me, self.thread as usize % CELLS);
    }

    #[inline]
    fn cell(&self) -> &Cell {
        // Always in range; the first is never missing.
        let [first, ..] = &self.entered.mine.cells;
        self.entered.mine.cells.get(self.thread as usize % CELLS).unwrap_or(first)
    }
}
