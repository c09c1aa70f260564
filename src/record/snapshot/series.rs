//! Live bytes through time, and what allocations have in common to be counted together.

use std::mem::offset_of;

use super::header::HeaderView;
use super::{LiveRecord, Problems};
use crate::record::layout::{Class, MAX_DEVICES, Record, RecordState, SAMPLES, SERIES_BYTES, Series};

/// What allocations must have in common to be one entry of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// CUDA ordinal.
    pub device: u8,
    /// What kind of thing it is.
    pub class: Class,
    /// Driver function, a place in [`crate::record::api::APIS`].
    pub api: u16,
    /// Runtime function on whose behalf, a place in [`crate::record::api::APIS`]; 0 = none.
    pub runtime_api: u16,
    /// Place in [`super::Snapshot::runtime_versions`].
    pub runtime: Option<u8>,
    /// Place in [`super::Snapshot::stacks`].
    pub stack: Option<u32>,
}

/// The live bytes of one origin at each moment of [`super::Snapshot::sample_ns`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesOf {
    /// Of what.
    pub origin: Origin,
    /// In the order of the moments, in bytes.
    pub bytes: Vec<u64>,
}

impl LiveRecord {
    /// What it is counted with.
    pub fn origin(&self) -> Origin {
        let &LiveRecord { device, class, api, runtime_api, runtime, stack, .. } = self;
        Origin { device, class, api, runtime_api, runtime, stack }
    }
}

/// [`Record::kind`] and [`Record::place`].
pub(super) enum Kind {
    Empty,
    Damaged,
    /// The stack is still to be looked up.
    Live(Origin),
}

pub(super) fn parse_kind(kind: u32, place: u32, runtimes: usize) -> Kind {
    match kind as u8 {
        s if s == RecordState::Empty as u8 => return Kind::Empty,
        s if s == RecordState::Live as u8 => {}
        _ => return Kind::Damaged,
    }
    let Some(class) = Class::from_u8((kind >> 8) as u8) else { return Kind::Damaged };
    if (place & 0xff) as usize >= MAX_DEVICES {
        return Kind::Damaged;
    }
    Kind::Live(Origin {
        device: place as u8,
        class,
        api: (kind >> 16) as u16,
        runtime_api: (place >> 16) as u16,
        runtime: ((place >> 8) as u8).checked_sub(1).filter(|&runtime| usize::from(runtime) < runtimes),
        stack: None,
    })
}

/// The series of an area, each with the number of its stack, which is not looked up yet.
pub(super) fn parse_series(area: &[u8], runtimes: usize, problems: &mut Problems) -> Vec<(SeriesOf, u32)> {
    let mut bad = 0;
    let mut list = Vec::new();
    for raw in area.chunks_exact(SERIES_BYTES) {
        let view = HeaderView(raw);
        let kind = view.u32(offset_of!(Series, kind));
        match parse_kind(kind, view.u32(offset_of!(Series, place)), runtimes) {
            // It was being added.
            Kind::Empty => {}
            Kind::Damaged => bad += 1,
            Kind::Live(origin) => {
                let bytes = (0..SAMPLES).map(|i| view.u64(offset_of!(Series, bytes) + i * 8)).collect();
                list.push((SeriesOf { origin, bytes }, view.u32(offset_of!(Series, stack))));
            }
        }
    }
    problems.add_many(bad, || format!("{bad} time lines with impossible values"));
    list
}

/// A live record without its stack, whose number stands beside it; `None` = damaged.
pub(super) fn parse_record(raw: &[u8], runtimes: usize) -> Option<Option<(LiveRecord, u32)>> {
    let view = HeaderView(raw);
    let kind = view.u32(offset_of!(Record, kind));
    let origin = match parse_kind(kind, view.u32(offset_of!(Record, place)), runtimes) {
        Kind::Empty => return Some(None),
        Kind::Damaged => return None,
        Kind::Live(origin) => origin,
    };
    let Origin { device, class, api, runtime_api, runtime, stack } = origin;
    let record = LiveRecord {
        address: view.u64(offset_of!(Record, address)),
        bytes: view.u64(offset_of!(Record, bytes)),
        born_ns: view.u64(offset_of!(Record, born_ns)),
        owner: view.u64(offset_of!(Record, owner)),
        stack,
        tid: view.u32(offset_of!(Record, tid)),
        class,
        api,
        runtime_api,
        runtime,
        device,
    };
    Some(Some((record, view.u32(offset_of!(Record, stack)))))
}
