//! Who sets the limit, what a second opinion does, and how it is changed while everybody runs.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/ledger/support.rs"]
mod support;

use support::{MIB, Puppet, REFUSED, Stage, uuid};

const LARGE: u64 = 64 * MIB;
const SMALL: u64 = 32 * MIB;

/// A process that was told this limit, or none.
fn told(stage: &Stage, limit: Option<&str>) -> Puppet {
    let mut puppet = stage.puppet_with(|command| {
        match limit {
            Some(limit) => command.env("CUWARDEN_MEMORY_LIMIT", limit),
            None => command.env_remove("CUWARDEN_MEMORY_LIMIT"),
        };
    });
    puppet.has_context();
    puppet
}

/// The number is in the text, in any of the ways that numbers of bytes are written.
fn names(text: &str, bytes: u64) -> bool {
    let mib = bytes / MIB;
    let ways = [
        bytes.to_string(),
        format!("{mib} MiB"),
        format!("{mib}.0 MiB"),
        format!("{mib}MiB"),
        format!("{mib}m"),
    ];
    ways.iter().any(|way| text.contains(way))
}

// ---- two opinions -------------------------------------------------------------------------------------------------

#[test]
fn another_limit_is_named_once_and_the_stricter_one_holds() {
    for (first, second) in [(LARGE, SMALL), (SMALL, LARGE)] {
        let stage = Stage::unlimited();
        let mut one = told(&stage, Some(&first.to_string()));
        one.gets(MIB);
        assert_eq!(stage.complaints().len(), 0, "{:#?}", stage.complaints());
        let mut other = told(&stage, Some(&second.to_string()));
        other.is_refused(SMALL - MIB + 1);
        other.gets(SMALL - MIB);
        other.is_refused(1);
        other.ok("free");
        for _ in 0..20 {
            other.gets(MIB);
        }
        let complaints = stage.complaints();
        let [warning] = &complaints[..] else { panic!("one warning was expected: {complaints:#?}") };
        let text = warning.to_string();
        assert_eq!(warning["level"], "warn", "{text}");
        assert!(text.contains("CUWARDEN_MEMORY_LIMIT"), "{text}");
        assert!(names(&text, LARGE) && names(&text, SMALL), "{text}");
        // A third one that agrees with the stricter one is told nothing new.
        let before = stage.complaints().len();
        let mut third = told(&stage, Some(&SMALL.to_string()));
        third.is_refused(SMALL - 21 * MIB + 1);
        third.gets(SMALL - 21 * MIB);
        assert!(first == LARGE || stage.complaints().len() == before, "{:#?}", stage.complaints());
        assert!(stage.peak(0) <= SMALL);
    }
}

#[test]
fn the_same_limit_in_other_words_is_the_same() {
    let stage = Stage::unlimited();
    let mut one = told(&stage, Some("64m"));
    for words in ["67108864", "64MiB", "65536k", "*=64m", "0=64m,1=64m", "0.0625g"] {
        let mut other = told(&stage, Some(words));
        other.could_get(LARGE);
    }
    let by_uuid = format!("{}=64m,{}=64m", uuid(0), uuid(1));
    told(&stage, Some(&by_uuid)).could_get(LARGE);
    one.could_get(LARGE);
    assert_eq!(stage.complaints().len(), 0, "{:#?}", stage.complaints());
}

/// HAMi's names for it are names for the same.
#[test]
fn the_other_name_of_the_variable_is_the_same() {
    let stage = Stage::unlimited();
    let mut one = told(&stage, Some("64m"));
    one.gets(LARGE / 2);
    let mut other = stage.puppet_with(|command| {
        command.env("CUDA_DEVICE_MEMORY_LIMIT", "64m");
    });
    other.has_context();
    other.could_get(LARGE / 2);
    assert_eq!(stage.complaints().len(), 0, "{:#?}", stage.complaints());
}

/// A process that was told nothing belongs to the container like any other.
#[test]
fn who_was_told_nothing_is_held_as_well() {
    let stage = Stage::unlimited();
    let mut one = told(&stage, Some(&LARGE.to_string()));
    one.gets(LARGE / 2);
    let mut other = told(&stage, None);
    other.could_get(LARGE / 2);
    other.gets(LARGE / 2);
    one.is_refused(1);
    assert!(stage.peak(0) <= LARGE, "{}", stage.peak(0));
}

/// It came first, when there was no limit: what it has is counted, and stays its own.
#[test]
fn what_was_taken_before_there_was_a_limit_counts() {
    let stage = Stage::unlimited();
    let mut early = told(&stage, None);
    early.gets(LARGE / 2);
    let mut other = told(&stage, Some(&LARGE.to_string()));
    other.could_get(LARGE / 2);
    early.gets(LARGE / 4);
    other.could_get(LARGE / 4);
    early.kill();
    other.could_get(LARGE);
}

#[test]
fn more_than_the_limit_was_taken_before_there_was_one() {
    let stage = Stage::unlimited();
    let mut early = told(&stage, None);
    early.gets(LARGE);
    early.gets(LARGE);
    let mut other = told(&stage, Some(&LARGE.to_string()));
    other.is_refused(1);
    early.ok("free");
    other.is_refused(1);
    early.ok("free");
    other.gets(LARGE);
}

/// The last process took the limit along, or it did not: whoever comes next gets what he was told.
#[test]
fn a_container_that_starts_anew() {
    let stage = Stage::unlimited();
    let mut one = told(&stage, Some(&LARGE.to_string()));
    one.gets(LARGE);
    assert_eq!(one.finish(), 0);
    let mut next = told(&stage, Some(&SMALL.to_string()));
    next.could_get(SMALL);
    next.kill();
    told(&stage, Some(&LARGE.to_string())).is_refused(LARGE + 1);
}

// ---- cuwarden limit -----------------------------------------------------------------------------------------------

#[test]
fn the_command_changes_it_for_all() {
    let stage = Stage::limited(&LARGE.to_string());
    let mut one = stage.holder(LARGE / 4);
    let mut other = stage.holder(0);
    let by_uuid = format!("{}=40m", uuid(0));
    for (words, limit) in [
        ("96m", 96 * MIB),
        ("48MiB", 48 * MIB),
        ("0=32m", 32 * MIB),
        (&by_uuid, 40 * MIB),
        ("0=1g,1=2g", 1024 * MIB),
        ("*=20m", 20 * MIB),
        (&LARGE.to_string(), LARGE),
    ] {
        stage.set_limit(&[words]).succeeded();
        for puppet in [&mut one, &mut other] {
            assert_eq!(puppet.numbers("total 0"), [0, limit], "{words}");
            puppet.could_get(limit - LARGE / 4);
        }
        // Whoever comes now was told something else, and is held to what holds.
        let mut coming = stage.puppet();
        coming.has_context();
        coming.is_refused(limit - LARGE / 4 + 1);
    }
    assert_eq!(stage.said(), "");
}

/// Nothing is taken away from anybody; nothing new is given.
#[test]
fn the_command_can_go_below_what_is_used() {
    let stage = Stage::limited(&LARGE.to_string());
    let mut one = stage.holder(LARGE / 2);
    let mut other = stage.holder(LARGE / 4);
    stage.set_limit(&["16MiB"]).succeeded();
    for puppet in [&mut one, &mut other] {
        puppet.is_refused(1);
        let info = puppet.numbers("info");
        assert_eq!((info[0], info[2]), (0, 16 * MIB));
        assert_eq!(info[1], 0, "free memory");
    }
    other.ok("free");
    one.is_refused(1);
    one.ok("free");
    other.could_get(16 * MIB);
    one.could_get(16 * MIB);
    stage.set_limit(&[&LARGE.to_string()]).succeeded();
    one.could_get(LARGE);
}

/// What it freed is kept at hand for it, and is asked for no limit: not by what it asks for after the command.
#[test]
fn the_command_reaches_what_is_kept_at_hand() {
    let stage = Stage::limited(&LARGE.to_string());
    let mut one = stage.holder(LARGE / 4);
    (0..4).for_each(|_| one.gets(MIB));
    (0..4).for_each(|_| one.ok("free"));
    stage.set_limit(&["8m"]).succeeded();
    one.is_refused(1);
    one.is_refused(MIB);
    assert_eq!(stage.figure(0, "allocated"), LARGE / 4);
}

#[test]
fn the_command_is_for_the_device_that_it_names() {
    let stage = Stage::limited(&LARGE.to_string());
    let mut puppet = stage.holder(0);
    puppet.ok("context 1");
    stage.set_limit(&["1=8m"]).succeeded();
    puppet.could_get(8 * MIB);
    puppet.ok("use 0");
    puppet.could_get(LARGE);
    stage.set_limit(&[&format!("{}=12m", uuid(0))]).succeeded();
    puppet.could_get(12 * MIB);
    puppet.ok("use 1");
    puppet.could_get(8 * MIB);
}

#[test]
fn the_command_refuses_what_makes_no_sense() {
    let stage = Stage::limited(&LARGE.to_string());
    let mut puppet = stage.holder(0);
    for words in ["4Q", "-1", "", "0=1g,0=2g", "GPU-=1g", "1e9", " 4g"] {
        let out = stage.set_limit(&[words]);
        assert_eq!(out.status.code(), Some(64), "{words:?}: {}", out.told());
        assert!(!out.stderr.is_empty(), "{words:?}: {}", out.told());
        puppet.could_get(LARGE);
    }
    let none = stage.set_limit(&[]);
    assert_eq!(none.status.code(), Some(64), "{}", none.told());
    let nowhere = stage.sim.temp.join("nowhere");
    let out = stage.set_limit_in(&nowhere, &["1g"]);
    assert!(out.status.code().is_some_and(|code| code != 0), "{}", out.told());
    assert!(out.stderr.contains("nowhere"), "{}", out.told());
    puppet.could_get(LARGE);
}

/// It is changed all the time while others allocate: nobody crashes or hangs, and the highest of them is never passed.
#[test]
fn the_command_beside_a_storm() {
    let stage = Stage::limited(&LARGE.to_string());
    let workers: Vec<i32> = (0..3).map(|seed| stage.worker("wild", seed, |_| {})).collect();
    for round in 0..30 {
        stage.set_limit(&[["16m", "48m", "0=64m", "8m"][round % 4]]).succeeded();
    }
    for worker in workers {
        assert!(!support::is_dead(worker), "{}", stage.said());
        support::kill_and_leave_unreaped(worker);
    }
    assert!(stage.peak(0) <= LARGE, "{}", stage.peak(0));
    stage.set_limit(&[&LARGE.to_string()]).succeeded();
    let mut last = stage.holder(LARGE);
    assert_eq!(last.code("alloc 1"), REFUSED);
    assert_eq!(stage.said(), "");
}
