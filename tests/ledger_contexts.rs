//! Contexts cost memory of the device, and the quota is for all that a process costs.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/ledger/support.rs"]
mod support;

use std::process::Command;

use support::{LIMIT, MIB, Puppet, REFUSED, Stage};

/// What a context costs here.
const CONTEXT: u64 = 10 * MIB;

fn counting(command: &mut Command) {
    command.env_remove("CUWARDEN_COUNT_CONTEXT").env("CUWARDEN_SIM_CONTEXT", "10m");
}

fn puppet(stage: &Stage) -> Puppet {
    let mut puppet = stage.puppet_with(counting);
    puppet.ok("init");
    puppet
}

#[test]
fn a_context_is_a_part_of_the_quota() {
    for make in ["context 0", "create 0"] {
        let stage = Stage::new();
        let mut one = puppet(&stage);
        one.ok(make);
        one.could_get(LIMIT - CONTEXT);
        one.gets(LIMIT - CONTEXT);
        assert_eq!(stage.peak_of_all(0), LIMIT);

        // There is no room for another one's, until some is made.
        let mut other = puppet(&stage);
        assert_eq!(other.code(make), REFUSED, "{make}");
        one.ok("free");
        other.ok(make);
        one.could_get(LIMIT - 2 * CONTEXT);
        other.could_get(LIMIT - 2 * CONTEXT);
        other.kill();
        one.could_get(LIMIT - CONTEXT);
        assert_eq!(stage.peak_of_all(0), LIMIT);
        assert_eq!(stage.said(), "");
    }
}

/// One byte decides.
#[test]
fn a_context_that_just_fits() {
    let stage = Stage::new();
    let mut one = puppet(&stage);
    one.ok("context 0");
    one.gets(LIMIT - 2 * CONTEXT + 1);
    let mut other = puppet(&stage);
    assert_eq!(other.code("context 0"), REFUSED);
    one.ok("free");
    one.gets(LIMIT - 2 * CONTEXT);
    other.ok("context 0");
    other.is_refused(1);
    assert_eq!(stage.peak_of_all(0), LIMIT);
    // What a context cost is there again when it ends, by itself or with its process.
    other.ok("release 0");
    one.could_get(CONTEXT);
    other.ok("context 0");
    one.is_refused(1);
    other.kill();
    one.could_get(CONTEXT);
}

#[test]
fn contexts_that_are_refused_are_said_to_be() {
    let stage = Stage::new();
    let mut one = puppet(&stage);
    one.ok("context 0");
    one.gets(LIMIT - CONTEXT);
    let mut other = puppet(&stage);
    for _ in 0..3 {
        assert_eq!(other.code("context 0"), REFUSED);
    }
    let denied = stage.sim.events_named("quota_denied");
    assert_eq!(denied.len(), 1, "{denied:#?}");
    assert_eq!(denied[0]["api"], "cuDevicePrimaryCtxRetain", "{denied:#?}");
    assert_eq!(other.finish(), 0);
}

#[test]
fn contexts_are_not_counted_where_that_is_not_wanted() {
    let stage = Stage::new();
    let not_counting = |command: &mut Command| {
        counting(command);
        command.env("CUWARDEN_COUNT_CONTEXT", "0");
    };
    let mut one = stage.holder_with(LIMIT, not_counting);
    let mut other = stage.holder_with(0, not_counting);
    one.is_refused(1);
    other.is_refused(1);
    assert_eq!(stage.peak_of_all(0), LIMIT + 2 * CONTEXT);
}

/// Once somebody's context was seen, no other one takes more than there is.
#[test]
fn never_over_with_contexts_and_all() {
    let stage = Stage::new();
    let mut first = puppet(&stage);
    first.ok("context 0");
    stage.race("contexts", 6, 200, "cuMemAlloc_v2", 1, counting);
    assert_eq!(first.finish(), 0);
    stage.race("contexts", 6, 200, "cuMemAlloc_v2", 1, counting);
    assert!(stage.peak_of_all(0) > LIMIT / 2, "{}", stage.peak_of_all(0));
    assert!(stage.peak_of_all(0) <= LIMIT, "{} bytes were granted under {LIMIT}", stage.peak_of_all(0));
    puppet(&stage).ok("context 0");
    assert_eq!(stage.said(), "");
}

/// The dead leave their contexts too: so many would not fit beside each other.
#[test]
fn the_contexts_of_the_dead_are_free() {
    let stage = Stage::new();
    for round in 0..12 {
        let mut dying = puppet(&stage);
        assert_eq!(dying.code("context 0"), 0, "round {round}");
        dying.gets(LIMIT - CONTEXT);
        dying.kill();
    }
    assert!(stage.peak_of_all(0) <= LIMIT, "{}", stage.peak_of_all(0));
}

/// What the driver says beyond the books is said by the one who was refused, to those who want to know.
#[test]
fn what_the_driver_has_beyond_the_books_is_said() {
    const LARGE: u64 = 1 << 30;
    for counted in [false, true] {
        let stage = Stage::limited(&(2 * LARGE).to_string());
        let mut holder = stage.holder_with(MIB, |command| {
            let count = if counted { "1" } else { "0" };
            command
                .env("CUWARDEN_COUNT_CONTEXT", count)
                .env("CUWARDEN_SIM_CONTEXT", "1g")
                .env("CUWARDEN_LOG", "debug");
        });
        holder.is_refused(2 * LARGE);
        assert_eq!(holder.finish(), 0);
        let said = stage.sim.events_named("unaccounted");
        if counted {
            assert_eq!(said.len(), 0, "{said:#?}");
        } else {
            let [one] = &said[..] else { panic!("{said:#?}") };
            assert_eq!((&one["level"], &one["unaccounted_bytes"]), (&"debug".into(), &LARGE.into()), "{one}");
            assert_eq!(one["charged_bytes"], MIB, "{one}");
        }
    }
}
