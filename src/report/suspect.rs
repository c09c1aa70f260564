//! A `leak_suspect` event: the same whether the process itself noticed or somebody who watches it.

use super::grouped;
use super::size::bytes;
use crate::event::fields::{self, fields};
use crate::growth::drift::{Grown, Rule, Suspicion};
use crate::record::snapshot::{Origin, Snapshot};
use serde_json::Value;

/// Which call stack a number of a suspicion means.
pub type OriginOf<'a> = &'a dyn Fn(usize) -> Option<Origin>;

/// The fields of the event.
pub fn fields(snapshot: &Snapshot, suspicion: &Suspicion, origin_of: OriginOf) -> Value {
    let device = snapshot.devices.iter().find(|device| device.ordinal == u32::from(suspicion.device));
    let mut stacks = Vec::new();
    for grown in &suspicion.grown {
        stacks.push(stack(snapshot, grown, origin_of));
    }
    fields! {
        "rule": suspicion.rule.name(),
        "device": suspicion.device,
        "uuid": device.map(|device| device.uuid.as_str()),
        "before_bytes": suspicion.before_bytes,
        "live_bytes": suspicion.now_bytes,
        "over_s": (suspicion.over_s * 1000.0) as u64 as f64 / 1000.0,
        "bytes_a_minute": suspicion.bytes_a_minute as u64,
        "limit_bytes": device.map_or(0, |device| device.limit_bytes),
        "stacks": stacks,
        "message": message(snapshot, suspicion, origin_of),
    }
}

fn stack(snapshot: &Snapshot, grown: &Grown, origin_of: OriginOf) -> Value {
    let (mut api, mut frames) = (String::new(), Vec::new());
    if let Some(origin) = origin_of(grown.series) {
        api = grouped::api_of(origin);
        for frame in grouped::frames(snapshot, origin) {
            frames.push(fields::frame(frame.module, frame.offset));
        }
    }
    fields! {
        "api": api, "before_bytes": grown.before_bytes, "bytes": grown.now_bytes, "stack": frames,
    }
}

fn message(snapshot: &Snapshot, suspicion: &Suspicion, origin_of: OriginOf) -> String {
    let Suspicion { rule, device, before_bytes, now_bytes, .. } = suspicion;
    let over = duration(suspicion.over_s);
    let grows = format!(
        "Device memory grows on device {device}: from {} to {} within {over}",
        bytes(*before_bytes),
        bytes(*now_bytes)
    );
    let why = match (rule, suspicion.full_in_s) {
        (Rule::Slow, Some(left)) => {
            format!(", without an end. At this pace the device is full in {}", duration(left))
        }
        _ => ", more at each comparison".to_owned(),
    };
    let most = suspicion.grown.first().and_then(|grown| {
        let origin = origin_of(grown.series)?;
        let place = grouped::frames(snapshot, origin).next().map(|frame| {
            let module = frame.module.unwrap_or_default();
            format!(" from {}+{:#x}", module.rsplit('/').next().unwrap_or_default(), frame.offset)
        });
        let (added, api) = (bytes(grown.added()), grouped::api_of(origin));
        Some(format!(" Most was added by {api}{}: {added}.", place.unwrap_or_default()))
    });
    let most = most.unwrap_or_default();
    format!("{grows}{why}.{most} `cuwarden report` names functions and lines of this process.")
}

/// In whole numbers: formatting a float takes 15 KB of code.
fn duration(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0 => "a second".to_owned(),
        1..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
