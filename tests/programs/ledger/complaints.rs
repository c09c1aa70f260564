//! What is said of a ledger that cannot be used.

// Each test binary compiles all of this and uses a part of it.
#![allow(dead_code)]

use std::fs::File;
use std::process::Command;

use serde_json::Value;

use crate::support::{LIMIT, NOT_PERMITTED, Stage, until};

pub fn without_limit(command: &mut Command) {
    command.env_remove("CUWARDEN_MEMORY_LIMIT");
}

/// The one event since the last look, refusals apart, about this file. Whoever says it may be at it still.
#[track_caller]
pub fn said(stage: &Stage, told: &str) -> Value {
    let path = stage.ledger();
    until("something is said", || !stage.complaints().is_empty());
    let mut events = stage.complaints();
    forget(stage);
    assert_eq!(events.len(), 1, "{told}: {events:#?}");
    let event = events.remove(0);
    assert_eq!(event["event"], "config_error", "{told}: {event:#}");
    assert_eq!(event["variable"], "CUWARDEN_DIR", "{told}: {event:#}");
    assert_eq!(event["value"], path.display().to_string(), "{told}: {event:#}");
    let message = event["message"].as_str().expect("there is a message");
    let reason = event["reason"].as_str().expect("there is a reason");
    assert!(message.contains(&path.display().to_string()) && message.contains(reason), "{told}: {event:#}");
    event
}

/// Begins anew with the same file, to which others may have to write.
pub fn forget(stage: &Stage) {
    let _ = File::options().write(true).truncate(true).open(stage.sim.temp.join("events.jsonl"));
}

#[track_caller]
pub fn contains(event: &Value, field: &str, text: &str) {
    assert!(event[field].as_str().is_some_and(|whole| whole.contains(text)), "{text} in {field}: {event:#}");
}

/// Whoever comes now with a quota is refused; what was said about it.
#[track_caller]
pub fn refused(stage: &Stage, change: impl Fn(&mut Command)) -> Value {
    let mut limited = stage.puppet_with(change);
    assert_eq!(limited.code("init"), NOT_PERMITTED);
    assert_eq!(limited.code("init"), NOT_PERMITTED, "once more");
    assert_eq!(limited.finish(), 0);
    let event = said(stage, "with a quota");
    assert_eq!(event["level"], "error", "{event:#}");
    contains(&event, "message", "CUDA is not started");
    event
}

/// Whoever comes now without one runs, and nobody counts it; what was said about it.
#[track_caller]
pub fn untracked(stage: &Stage, change: impl Fn(&mut Command)) -> Value {
    let mut free = stage.puppet_with(|command| {
        change(command);
        without_limit(command);
    });
    free.has_context();
    free.gets(2 * LIMIT);
    free.ok("free");
    assert_eq!(free.finish(), 0);
    let event = said(stage, "without a quota");
    assert_eq!(event["level"], "warn", "{event:#}");
    contains(&event, "message", "untracked");
    event
}

/// With a quota CUDA does not start, without one the process runs: `change` makes both of them.
#[track_caller]
pub fn cannot_be_used_by(stage: &Stage, reason: &str, way_out: &str, change: impl Fn(&mut Command)) {
    for event in [refused(stage, &change), untracked(stage, &change)] {
        contains(&event, "reason", reason);
        contains(&event, "message", way_out);
    }
    assert_eq!(stage.said(), "");
}

#[track_caller]
pub fn cannot_be_used(stage: &Stage, reason: &str) {
    cannot_be_used_by(stage, reason, "remove the file", |_| {});
}

/// Works with the ledger that is there or is made now.
#[track_caller]
pub fn works(stage: &Stage) {
    let mut puppet = stage.holder(0);
    puppet.could_get(LIMIT);
    assert_eq!(puppet.finish(), 0);
    assert_eq!(stage.sim.events_named("config_error").len(), 0);
    forget(stage);
}
