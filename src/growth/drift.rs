//! Suspicion while a process runs: memory that grows by a part of itself again and again, and memory that grows slowly and
//! would fill the device.

use super::{Point, class};
use crate::order::sort;
use crate::policy::drift::Settings;
use std::collections::VecDeque;

/// Call stacks named at a time.
const MOST_NAMED: usize = 5;
/// What a call stack must have of the growth to be named.
const SHARE: f64 = 0.1;
/// What the later half must have added for the slow rule, as a part of what is there: it is the pace that counts.
const WORTH_A_LOOK: f64 = 0.001;
/// Samples that the slow rule asks for.
const ENOUGH: usize = 20;

/// By which rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Several comparisons in a row.
    Drift,
    /// The slope, which would fill the device.
    Slow,
}

impl Rule {
    /// As in events.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Drift => "drift",
            Rule::Slow => "slow",
        }
    }
}

/// What grew on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Suspicion {
    /// By which rule.
    pub rule: Rule,
    /// CUDA ordinal.
    pub device: u8,
    /// What was live when it began, in bytes.
    pub before_bytes: u64,
    /// What is live now, in bytes.
    pub now_bytes: u64,
    /// The time between, in seconds.
    pub over_s: f64,
    /// The pace, in bytes a minute.
    pub bytes_a_minute: f64,
    /// How long the device lasts at this pace, in seconds; the slow rule's.
    pub full_in_s: Option<f64>,
    /// The call stacks that grew, most first, each named for the first time.
    pub grown: Vec<Grown>,
}

/// What one call stack added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grown {
    /// Its number.
    pub series: usize,
    /// What it had when it began, in bytes.
    pub before_bytes: u64,
    /// What it has now, in bytes.
    pub now_bytes: u64,
}

/// What is live at a moment, by call stack. A number stays with its call stack; new ones come at the end.
#[derive(Clone, Copy)]
pub struct Live<'a> {
    /// Seconds since the first context.
    pub at_s: f64,
    /// In bytes.
    pub bytes: &'a [u64],
    /// CUDA ordinal of each.
    pub devices: &'a [u8],
}

/// Looks at one process.
pub struct Detector {
    settings: Settings,
    next_s: f64,
    devices: Vec<Device>,
    /// The last comparisons: when, and what was live.
    history: VecDeque<(f64, Vec<u64>)>,
    named: Vec<bool>,
}

#[derive(Clone, Copy, Default)]
struct Device {
    compared: u64,
    last: u64,
    fell: bool,
    in_a_row: u32,
}

impl Detector {
    /// Nothing seen yet.
    pub fn new(settings: Settings) -> Detector {
        Detector {
            next_s: settings.after_s,
            settings,
            devices: Vec::new(),
            history: VecDeque::new(),
            named: Vec::new(),
        }
    }

    /// How often it wants to see what is live, in seconds: a fall between two comparisons must not be missed.
    pub fn pace_s(&self) -> f64 {
        self.settings.every_s / 5.0
    }

    /// Takes what is live now. To be called more often than comparisons are made.
    pub fn see(&mut self, live: Live) -> Vec<Suspicion> {
        let mut totals: Vec<u64> = Vec::new();
        for (bytes, device) in live.bytes.iter().zip(live.devices) {
            let device = usize::from(*device);
            if totals.len() <= device {
                totals.resize(device + 1, 0);
            }
            if let Some(total) = totals.get_mut(device) {
                *total = total.saturating_add(*bytes);
            }
        }
        if self.devices.len() < totals.len() {
            self.devices.resize(totals.len(), Device::default());
        }
        for (device, total) in self.devices.iter_mut().zip(&totals) {
            device.fell |= *total < device.last;
            device.last = *total;
        }
        if live.at_s < self.next_s {
            return Vec::new();
        }
        self.next_s = live.at_s + self.settings.every_s;
        self.history.push_back((live.at_s, live.bytes.to_vec()));
        let kept = self.settings.times as usize + 1;
        if self.history.len() > kept {
            self.history.pop_front();
        }
        let mut found = Vec::new();
        for number in 0..totals.len() {
            if let Some(suspicion) = self.compare(number, live) {
                found.push(suspicion);
            }
        }
        found
    }

    fn compare(&mut self, number: usize, live: Live) -> Option<Suspicion> {
        let device = self.devices.get_mut(number)?;
        let wanted = device.compared as f64 * (1.0 + self.settings.percent / 100.0);
        let grew = device.compared > 0 && !device.fell && device.last as f64 >= wanted;
        device.in_a_row = if grew { device.in_a_row.saturating_add(1) } else { 0 };
        device.compared = device.last;
        device.fell = false;
        if device.in_a_row < self.settings.times {
            return None;
        }
        let ordinal = u8::try_from(number).ok()?;
        let (since, before) = self.history.front()?;
        let grown = live.of(ordinal).map(|series| Grown {
            series,
            before_bytes: before.get(series).copied().unwrap_or(0),
            now_bytes: live.bytes.get(series).copied().unwrap_or(0),
        });
        let over_s = live.at_s - since;
        suspect(&mut self.named, Rule::Drift, ordinal, over_s, grown.collect())
    }

    /// The slow rule, for one device of which `room` bytes are left. `course` answers what a call stack had through time; to
    /// be called when that has something new.
    pub fn look_back(
        &mut self,
        live: Live,
        device: u8,
        room: u64,
        course: &dyn Fn(usize) -> Vec<Point>,
    ) -> Option<Suspicion> {
        if live.at_s < self.settings.slow_after_s {
            return None;
        }
        let mut pace = 0.0;
        let mut over_s: f64 = 0.0;
        let mut grown = Vec::new();
        for series in live.of(device) {
            let course = course(series);
            let begin = course.iter().position(|point| point.bytes > 0).and_then(|at| course.get(at..));
            let Some(begin) = begin.filter(|course| course.len() >= ENOUGH) else { continue };
            let (Some(first), Some(last)) = (begin.first(), begin.last()) else { continue };
            let Some(slope) = class::growing(begin, WORTH_A_LOOK) else { continue };
            pace += slope;
            over_s = over_s.max(last.at_s - first.at_s);
            grown.push(Grown { series, before_bytes: first.bytes, now_bytes: last.bytes });
        }
        if pace <= 0.0 || room as f64 / pace > self.settings.horizon_s {
            return None;
        }
        let mut suspicion = suspect(&mut self.named, Rule::Slow, device, over_s, grown)?;
        suspicion.bytes_a_minute = pace * 60.0;
        suspicion.full_in_s = Some(room as f64 / pace);
        Some(suspicion)
    }
}

impl Live<'_> {
    /// The numbers of a device's call stacks.
    fn of(&self, device: u8) -> impl Iterator<Item = usize> + '_ {
        self.devices.iter().enumerate().filter(move |(_, of)| **of == device).map(|(series, _)| series)
    }
}

/// `None` where all that grew has been named before.
fn suspect(
    named: &mut Vec<bool>,
    rule: Rule,
    device: u8,
    over_s: f64,
    mut grown: Vec<Grown>,
) -> Option<Suspicion> {
    let before_bytes = grown.iter().fold(0, |sum: u64, one| sum.saturating_add(one.before_bytes));
    let now_bytes = grown.iter().fold(0, |sum: u64, one| sum.saturating_add(one.now_bytes));
    let growth = now_bytes.saturating_sub(before_bytes);
    grown.retain(|one| one.added() > 0 && one.added() as f64 >= growth as f64 * SHARE);
    sort(&mut grown, |a, b| a.added() > b.added());
    grown.truncate(MOST_NAMED);
    grown.retain(|one| named.get(one.series) != Some(&true));
    for one in &grown {
        if named.len() <= one.series {
            named.resize(one.series.checked_add(1)?, false);
        }
        if let Some(place) = named.get_mut(one.series) {
            *place = true;
        }
    }
    let bytes_a_minute = if over_s > 0.0 { growth as f64 * 60.0 / over_s } else { 0.0 };
    (!grown.is_empty()).then_some(Suspicion {
        rule,
        device,
        before_bytes,
        now_bytes,
        over_s,
        bytes_a_minute,
        full_in_s: None,
        grown,
    })
}

impl Grown {
    /// In bytes.
    pub fn added(&self) -> u64 {
        self.now_bytes.saturating_sub(self.before_bytes)
    }
}
