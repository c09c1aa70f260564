//! Live bytes of each call stack through time, in bounded memory.
//!
//! The records are looked through from time to time by one thread, so that allocations pay nothing for it. A sample has its
//! place in every series and is never moved: when all places are taken, every other one is used again, and samples are
//! taken half as often. Whenever the process dies, what the file says is true, but for one sample at most.

use crate::growth::Point;
use crate::record::layout::{Class, MAX_DEVICES, RecordState, SAMPLES, Series};
use crate::record::writer::Writer;
use cuwarden_table::Table;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// From the first sample to the second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Takes samples. One thread's.
pub struct Sampler {
    /// Places in the file's list of series, by what they have in common.
    known: Table,
    live: Vec<u64>,
    devices: Vec<u8>,
    /// Places for samples that are to be used next, in this order.
    free: Vec<usize>,
    pause: Duration,
    next: Duration,
}

/// As in [`Series`].
#[derive(Clone, Copy, PartialEq)]
struct Key {
    stack: u32,
    place: u32,
    kind: u32,
}

impl Sampler {
    /// Nothing seen yet.
    pub fn new() -> Sampler {
        Sampler {
            known: Table::default(),
            live: Vec::new(),
            devices: Vec::new(),
            free: (0..SAMPLES).rev().collect(),
            pause: FIRST_PAUSE,
            next: Duration::ZERO,
        }
    }

    /// Live bytes by number of a series.
    pub fn live(&self) -> &[u64] {
        &self.live
    }

    /// CUDA ordinal by number of a series.
    pub fn devices(&self) -> &[u8] {
        &self.devices
    }

    /// When the next sample is to be taken, on the clock of [`Sampler::keep`].
    pub fn next(&self) -> Duration {
        self.next
    }

    /// Sums up what is live now. What the driver holds on its own is not followed.
    pub fn look(&mut self, writer: &Writer) {
        self.live.fill(0);
        let mut last: Option<(Key, usize)> = None;
        for index in 0..writer.records() {
            let Some(record) = writer.record(index) else { break };
            // Acquire pairs with the Release of whoever filled it.
            let kind = record.kind.load(Ordering::Acquire);
            if kind as u8 != RecordState::Live as u8 || !is_followed(kind) {
                continue;
            }
            let key = Key {
                stack: record.stack.load(Ordering::Relaxed),
                place: record.place.load(Ordering::Relaxed),
                kind,
            };
            let bytes = record.bytes.load(Ordering::Relaxed);
            // Neighbours often come from one place.
            let series = match last {
                Some((same, series)) if same == key => Some(series),
                _ => self.series(writer, key),
            };
            let Some(series) = series else { continue };
            last = Some((key, series));
            if let Some(live) = self.live.get_mut(series) {
                *live = live.saturating_add(bytes);
            }
        }
    }

    fn series(&mut self, writer: &Writer, key: Key) -> Option<usize> {
        let key_of = |index: u32| writer.series(index).map(Key::of);
        let hash = key.hash();
        if let Some(index) = self.known.find(hash, &|index| key_of(index) == Some(key)) {
            return Some(index as usize);
        }
        let index = u32::try_from(self.live.len()).ok()?;
        let series = writer.add_series(index)?;
        series.stack.store(key.stack, Ordering::Relaxed);
        series.place.store(key.place, Ordering::Relaxed);
        // Release pairs with the Acquire of a reader of the file: the entry is whole.
        series.kind.store(key.kind, Ordering::Release);
        self.known.insert(hash, index, &|_| false, &|other| key_of(other).map_or(0, Key::hash));
        self.live.push(0);
        self.devices.push((key.place as u8).min(MAX_DEVICES as u8 - 1));
        Some(index as usize)
    }

    /// Keeps what [`Sampler::look`] found, if it is time for that. `now`: since the record file was made. True if it did.
    pub fn keep(&mut self, writer: &Writer, now: Duration) -> bool {
        if now < self.next {
            return false;
        }
        let times = &writer.header().sample_ns;
        let Some(place) = self.free.pop().or_else(|| self.thin_out(writer)) else { return false };
        let Some(time) = times.get(place) else { return false };
        // Release: whoever sees one of the new values sees that the old sample is gone.
        time.store(0, Ordering::Release);
        for (index, bytes) in self.live.iter().enumerate() {
            let series = u32::try_from(index).ok().and_then(|index| writer.series(index));
            if let Some(value) = series.and_then(|series| series.bytes.get(place)) {
                // Release: as above, the time is zero by then.
                value.store(*bytes, Ordering::Release);
            }
        }
        // Release pairs with a reader's Acquire: the sample is whole.
        time.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).max(1), Ordering::Release);
        self.next = now.saturating_add(self.pause);
        true
    }

    /// Gives up every other sample, and takes them half as often from now on. The place to be used next.
    fn thin_out(&mut self, writer: &Writer) -> Option<usize> {
        self.pause = self.pause.saturating_mul(2);
        let order = order(writer);
        // The latest stays, and of those before it every other one.
        self.free = order.iter().rev().skip(1).step_by(2).copied().collect();
        self.free.pop()
    }

    /// What a call stack had through time, oldest first.
    pub fn course(&self, writer: &Writer, series: usize) -> Vec<Point> {
        let Some(series) = u32::try_from(series).ok().and_then(|index| writer.series(index)) else {
            return Vec::new();
        };
        let point = |place: usize| {
            let at = writer.header().sample_ns.get(place)?.load(Ordering::Relaxed);
            let bytes = series.bytes.get(place)?.load(Ordering::Relaxed);
            Some(Point { at_s: at as f64 / 1e9, bytes })
        };
        order(writer).into_iter().filter_map(point).collect()
    }
}

impl Default for Sampler {
    fn default() -> Self {
        Sampler::new()
    }
}

/// The places of the samples that are there, oldest first.
fn order(writer: &Writer) -> Vec<usize> {
    let times = &writer.header().sample_ns;
    let time = |place: usize| times.get(place).map_or(0, |time| time.load(Ordering::Relaxed));
    let mut order: Vec<usize> = (0..SAMPLES).filter(|place| time(*place) != 0).collect();
    crate::order::sort(&mut order, |a, b| time(*a) < time(*b));
    order
}

fn is_followed(kind: u32) -> bool {
    let class = Class::from_u8((kind >> 8) as u8);
    class.is_some_and(|class| !class.is_held_by_driver())
}

impl Key {
    fn of(series: &Series) -> Key {
        Key {
            stack: series.stack.load(Ordering::Relaxed),
            place: series.place.load(Ordering::Relaxed),
            kind: series.kind.load(Ordering::Relaxed),
        }
    }

    fn hash(self) -> u64 {
        let mut h = u64::from(self.stack) << 32 | u64::from(self.place);
        h = (h ^ u64::from(self.kind) << 7).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        h ^ (h >> 33)
    }
}
