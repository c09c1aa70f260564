//! Whether what a call stack allocated grows, stays, or was there once.

use super::{Point, trend};
use serde::{Deserialize, Serialize};

/// How the live bytes of a call stack went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrowthClass {
    /// They rose all the time, to the end.
    Growing,
    /// They changed, and did not grow to the end: a cache that is full, a pool, work that comes and goes.
    Steady,
    /// Allocated in one go, and nothing has changed since.
    OneOff,
    /// A kind that a later cuwarden knows.
    #[default]
    #[serde(other)]
    Other,
}

/// A class, with the pace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// The class.
    pub class: GrowthClass,
    /// Theil and Sen's slope over the later half, in bytes a minute; 0 unless it is growing.
    pub bytes_a_minute: f64,
}

/// When what is live now was allocated.
#[derive(Clone, Copy, Debug)]
pub struct Births {
    /// Allocations.
    pub count: u64,
    /// The first of them, in the seconds of the points.
    pub oldest_s: f64,
    /// The last of them.
    pub newest_s: f64,
}

/// Fewer samples say nothing about a course.
const FEWEST: usize = 8;
/// Standard deviations by which chance is ruled out: of a thousand call stacks that only go up and down, three.
const CERTAIN: f64 = 3.0;
/// What the later half must have added, as a part of what is there at the end.
const WORTH_SAYING: f64 = 0.02;
/// What is allocated within this part of the time since counts as in one go.
const ONE_GO: f64 = 0.1;

/// Judges a course. `points` are in order of time, from before the first allocation or from the first sample on; the last
/// is the end. `None`: it is too short to tell.
pub fn classify(points: &[Point], births: Births) -> Option<Growth> {
    let class = |class| Some(Growth { class, bytes_a_minute: 0.0 });
    let end = points.last()?;
    // Zeros from before the first allocation say nothing about its course.
    let first = points.iter().position(|point| point.bytes > 0)?;
    let course = points.get(first..)?;
    let started = course.first().map_or(end.at_s, |point| point.at_s.min(births.oldest_s));
    let since = end.at_s - started;
    let in_one_go = births.count == 1 || births.newest_s - births.oldest_s <= since * ONE_GO;
    // What is there now is not what was there first: it came and went.
    let replaced = births.oldest_s - started > since * ONE_GO;
    let after = course.iter().filter(|point| point.at_s > births.newest_s);
    if in_one_go && !replaced && after.clone().all(|point| point.bytes == end.bytes) {
        // A number of them in the last moment could be the begin of anything.
        return if births.count == 1 || after.count() > 2 { class(GrowthClass::OneOff) } else { None };
    }
    if course.len() < FEWEST {
        return None;
    }
    match growing(course, WORTH_SAYING) {
        Some(slope) if births.count > 2 => {
            Some(Growth { class: GrowthClass::Growing, bytes_a_minute: slope * 60.0 })
        }
        _ => class(GrowthClass::Steady),
    }
}

/// The slope of a course that rises to its end, in bytes a second. `worth` is what the later half must have added, as a part
/// of what is there at the end.
pub(super) fn growing(course: &[Point], worth: f64) -> Option<f64> {
    let (first, last) = (course.first()?, course.last()?);
    let since = |part: f64| {
        let from = last.at_s - (last.at_s - first.at_s) * part;
        course.iter().position(|point| point.at_s >= from).and_then(|at| course.get(at..)).unwrap_or(&[])
    };
    let (half, quarter) = (since(0.5), since(0.25));
    let slope = trend::slope(half);
    let added = slope * (last.at_s - half.first()?.at_s);
    let rises = quarter.windows(2).any(|pair| matches!(pair, [a, b] if b.bytes > a.bytes));
    let highest_before = half.iter().rev().skip(1).map(|point| point.bytes).max()?;
    (course.len() >= FEWEST
        && slope > 0.0
        && added >= last.bytes as f64 * worth
        && rises
        // Most of it is still there: what comes and goes ends anywhere between nothing and its highest.
        && last.bytes as f64 >= highest_before as f64 * 0.9
        && trend::certainty(course) >= CERTAIN)
        .then_some(slope)
}
