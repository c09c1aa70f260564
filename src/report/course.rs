//! The time axis of a report: what each entry held when samples were taken, and its class.

use super::model::Leak;
use crate::growth::{Births, Point, classify};
use crate::record::snapshot::{SeriesOf, Snapshot};

/// Live bytes through time, by origin.
pub(super) struct Courses {
    /// When they were taken, in seconds since the start.
    times_s: Vec<f64>,
    /// Places of the samples, oldest first.
    order: Vec<usize>,
    end_s: f64,
}

impl Courses {
    /// `end_ns`: when what is live now was live, in nanoseconds since the start.
    pub fn of(snapshot: &Snapshot, end_ns: u64) -> Courses {
        let time = |place: &usize| snapshot.sample_ns.get(*place).copied().unwrap_or(0);
        let mut order: Vec<usize> = (0..snapshot.sample_ns.len()).collect();
        // What lies after the end was not taken in this life.
        order.retain(|place| (1..=end_ns).contains(&time(place)));
        crate::order::sort(&mut order, |a, b| time(a) < time(b));
        let times_s = order.iter().map(|place| seconds(time(place))).collect();
        Courses { times_s, order, end_s: seconds(end_ns) }
    }

    /// When the samples were taken, in seconds since the start, oldest first.
    pub fn times_s(&self) -> &[f64] {
        &self.times_s
    }

    /// When what is live now was live, in seconds since the start.
    pub fn end_s(&self) -> f64 {
        self.end_s
    }

    /// Adds its course to an entry, which is that of `series` together. `oldest_ns` and `newest_ns`: when the first and the last
    /// of it were allocated.
    pub fn add(&self, leak: &mut Leak, series: &[&SeriesOf], oldest_ns: u64, newest_ns: u64) {
        if leak.held_by_driver {
            return;
        }
        for place in self.order.iter().filter(|_| !series.is_empty()) {
            let at = |one: &&SeriesOf| one.bytes.get(*place).copied().unwrap_or(0);
            leak.timeline.push(series.iter().map(at).fold(0, u64::saturating_add));
        }
        let mut points: Vec<Point> = Vec::with_capacity(self.times_s.len() + 1);
        for (at_s, bytes) in self.times_s.iter().zip(&leak.timeline) {
            points.push(Point { at_s: *at_s, bytes: *bytes });
        }
        points.push(Point { at_s: self.end_s, bytes: leak.bytes });
        let births = Births { count: leak.count, oldest_s: seconds(oldest_ns), newest_s: seconds(newest_ns) };
        leak.growth = classify(&points, births);
    }
}

/// Milliseconds are what a reader can use, and keep the text short.
fn seconds(ns: u64) -> f64 {
    (ns / 1_000_000) as f64 / 1000.0
}
