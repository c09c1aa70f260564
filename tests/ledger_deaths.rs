//! What the dead held is there for the first who asks; what the stopped hold is theirs; and nobody waits for either.
//!
//! Reported of others: a lock in shared memory whose owner was killed, on which every process of the container then
//! hung; counters that a killed process never took back; a cure that ended the whole container.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/ledger/support.rs"]
mod support;

use std::process::Command;
use std::time::Duration;

use support::{LIMIT, MIB, Puppet, Stage, is_dead, kill_and_leave_unreaped, signal, state_of, stop, until};

/// Different in every run: moments are what this is about.
struct Chance(u64);

impl Chance {
    fn new() -> Self {
        let since = std::time::UNIX_EPOCH.elapsed().map_or(1, |time| u64::from(time.subsec_nanos()));
        Self(since << 20 | u64::from(std::process::id()))
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn sleep(&mut self, most_micros: u64) {
        std::thread::sleep(Duration::from_micros(self.below(most_micros)));
    }
}

fn driver_without_books(command: &mut Command) {
    command.env("CUWARDEN_SIM_NULL", "1");
}

// ---- deaths -------------------------------------------------------------------------------------------------------

/// One process has everything and goes; two that were there before and one that comes then may have it.
#[track_caller]
fn frees_everything(way: &str, go: impl Fn(&Stage, &mut Puppet)) {
    let stage = Stage::new();
    let mut first = stage.holder(0);
    let mut second = stage.holder(0);
    let mut dying = stage.holder(LIMIT);
    first.is_refused(1);
    go(&stage, &mut dying);
    assert_eq!(first.code(&format!("alloc {LIMIT}")), 0, "after {way}");
    second.is_refused(1);
    first.ok("free");
    second.gets(LIMIT);
    second.kill();
    stage.holder(LIMIT).is_refused(1);
    stage.never_over();
}

#[test]
fn ends_of_all_kinds_free_what_was_held() {
    for order in ["exit 0", "exit 7", "_exit 0", "quick_exit 0", "abort"] {
        frees_everything(order, |_, puppet| puppet.ends_by(order));
    }
    // As an operator does it, with nobody to wait for it: a zombie holds nothing.
    for number in [libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV, libc::SIGQUIT] {
        frees_everything(&format!("signal {number}"), |_, puppet| {
            signal(puppet.pid, number);
            until("it dies", || is_dead(puppet.pid));
        });
    }
    // And one that was waited for.
    frees_everything("being reaped", |_, puppet| {
        puppet.kill();
        puppet.status();
    });
}

#[test]
fn another_program_in_its_place_holds_nothing() {
    for threads in [0, 3] {
        frees_everything("exec of a program without CUDA", |_, puppet| {
            for _ in 0..threads {
                puppet.ok("thread");
            }
            puppet.tell("exec /bin/sleep 100000");
            let name = format!("/proc/{}/comm", puppet.pid);
            // It has the name already while the kernel still closes what was open. Then it sleeps.
            until("the other program runs", || {
                std::fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n")
                    && matches!(state_of(puppet.pid), Some(('S', _)))
            });
        });
        frees_everything("exec of a program that does not use CUDA yet", |_, puppet| {
            puppet.tell("again");
            assert!(puppet.answer().is_some_and(|line| line.starts_with("ready ")));
        });
    }
}

/// The main thread ends first: the process lives and holds what it holds, until it is killed.
#[test]
fn a_process_without_its_main_thread_is_alive_until_it_is_not() {
    frees_everything("the end of the main thread and a kill", |stage, puppet| {
        assert_eq!(puppet.ask("leave"), "left");
        assert!(matches!(state_of(puppet.pid), Some(('Z', 2..))), "{:?}", state_of(puppet.pid));
        stage.holder(0).is_refused(1);
        puppet.ok("free");
        puppet.gets(LIMIT);
        stage.holder(0).is_refused(1);
        puppet.kill();
    });
    frees_everything("the end of the main thread and of the last one", |_, puppet| {
        assert_eq!(puppet.ask("leave"), "left");
        puppet.ends_by("_exit 0");
    });
}

#[test]
fn a_process_that_is_killed_while_it_is_stopped() {
    frees_everything("a stop and a kill", |stage, puppet| {
        stop(puppet.pid);
        stage.holder(0).is_refused(1);
        puppet.kill();
    });
}

/// At any instruction, in the middle of whatever it is that the shim does then, and also at its start.
#[test]
fn a_kill_at_any_moment_loses_nothing() {
    for how in ["wild", "half"] {
        let stage = Stage::new();
        let mut chance = Chance::new();
        let mut survivor = stage.holder(0);
        for round in 0..30 {
            let worker = stage.worker(how, round, |_| {});
            chance.sleep(4000);
            kill_and_leave_unreaped(worker);
            assert_eq!(
                survivor.code(&format!("alloc {LIMIT}")),
                0,
                "{how}, round {round}: the dead hold something"
            );
            survivor.ok("free");
        }
        stage.never_over();
    }
}

#[test]
fn a_kill_while_it_starts_loses_nothing() {
    let stage = Stage::new();
    let mut chance = Chance::new();
    let mut survivor = stage.holder(0);
    for round in 0..60 {
        let mut command = stage.program("work");
        command.args(["half", &LIMIT.to_string(), "1"]).stdout(std::process::Stdio::null());
        let pid = stage.group.start(command.stdin(std::process::Stdio::null()));
        chance.sleep(12_000);
        kill_and_leave_unreaped(pid);
        assert_eq!(survivor.code(&format!("alloc {LIMIT}")), 0, "round {round}: the dead hold something");
        survivor.ok("free");
        if round % 10 == 0 {
            stage.holder(LIMIT);
        }
    }
    stage.never_over();
}

/// Several at once, and the first request after that is one of a process that was just started.
#[test]
fn a_kill_of_several_at_once_loses_nothing() {
    for null in [false, true] {
        let stage = Stage::new();
        let change = |command: &mut Command| {
            if null {
                driver_without_books(command);
            }
        };
        let mut chance = Chance::new();
        for round in 0..12 {
            let workers: Vec<i32> = (0..4).map(|one| stage.worker("wild", round * 4 + one, change)).collect();
            chance.sleep(20_000);
            workers.iter().for_each(|worker| signal(*worker, libc::SIGKILL));
            workers.iter().for_each(|worker| until("it dies", || is_dead(*worker)));
            stage.holder_with(LIMIT, change).is_refused(1);
        }
        if !null {
            stage.never_over();
        }
    }
}

/// Half of them are killed, and those that are left never see a refusal: what all of them want always fits.
#[test]
fn the_death_of_others_refuses_nobody() {
    let stage = Stage::new();
    let mut chance = Chance::new();
    let mut survivor = stage.holder(0);
    for round in 0..20 {
        let worker = stage.worker("half", round, |_| {});
        for _ in 0..chance.below(20) {
            survivor.gets(LIMIT / 2);
            survivor.ok("free");
        }
        signal(worker, libc::SIGKILL);
        // Dying, not dead yet: its half is not needed for this.
        for _ in 0..20 {
            survivor.gets(LIMIT / 2);
            survivor.ok("free");
        }
        until("it dies", || is_dead(worker));
        survivor.gets(LIMIT);
        survivor.ok("free");
    }
    stage.never_over();
}

// ---- stops --------------------------------------------------------------------------------------------------------

/// While somebody is stopped, whoever is there goes on, and whoever comes can start and end.
#[track_caller]
fn others_go_on(stage: &Stage, there: &mut Puppet, free: u64, change: fn(&mut Command)) {
    for _ in 0..5 {
        there.gets(free);
        there.ok("free");
    }
    let mut coming = stage.puppet_with(change);
    coming.has_context();
    coming.gets(free);
    coming.ok("free");
    coming.gets(MIB);
    coming.kill();
    let mut coming = stage.puppet_with(change);
    coming.has_context();
    coming.gets(free);
    assert_eq!(coming.finish(), 0);
}

#[test]
fn what_the_stopped_hold_is_theirs() {
    let stage = Stage::new();
    let mut there = stage.holder(0);
    let mut stopped = stage.holder(LIMIT / 2);
    stop(stopped.pid);
    others_go_on(&stage, &mut there, LIMIT / 2, |_| {});
    there.could_get(LIMIT / 2);
    signal(stopped.pid, libc::SIGCONT);
    there.gets(LIMIT / 2);
    stopped.is_refused(1);
    stopped.ok("free");
    there.gets(LIMIT / 2);
    stage.never_over();
}

/// Stops the worker at a moment at which it is in no lock of the simulated driver: all others are idle, so one that is
/// taken is the worker's.
fn stop_outside_the_driver(there: &mut Puppet, worker: i32, chance: &mut Chance) {
    loop {
        stop(worker);
        if there.ask("quiet") == "quiet" {
            return;
        }
        signal(worker, libc::SIGCONT);
        chance.sleep(300);
    }
}

#[test]
fn nobody_waits_for_one_that_was_stopped_at_any_moment() {
    let stage = Stage::new();
    let mut chance = Chance::new();
    let mut there = stage.holder(0);
    let worker = stage.worker("half", 1, |_| {});
    for _ in 0..25 {
        stop_outside_the_driver(&mut there, worker, &mut chance);
        others_go_on(&stage, &mut there, LIMIT / 2, |_| {});
        signal(worker, libc::SIGCONT);
        chance.sleep(3000);
    }
    stop(worker);
    kill_and_leave_unreaped(worker);
    there.could_get(LIMIT);
    stage.never_over();
}

/// With a driver that shares nothing, all of the time is spent where this test wants it.
#[test]
fn nobody_waits_for_one_that_was_stopped_in_the_account() {
    let stage = Stage::new();
    let mut chance = Chance::new();
    let mut there = stage.holder_with(0, driver_without_books);
    let worker = stage.worker("half", 1, driver_without_books);
    for _ in 0..40 {
        stop(worker);
        others_go_on(&stage, &mut there, LIMIT / 2, driver_without_books);
        signal(worker, libc::SIGCONT);
        chance.sleep(2000);
    }
    kill_and_leave_unreaped(worker);
    there.could_get(LIMIT);
    assert_eq!(stage.said(), "");
}

#[test]
fn nobody_waits_for_one_that_was_stopped_while_it_started() {
    let stage = Stage::new();
    let mut chance = Chance::new();
    let mut there = stage.holder(0);
    for _ in 0..25 {
        let mut starting = stage.program("work");
        starting.args(["half", &LIMIT.to_string(), "1"]).stdout(std::process::Stdio::null());
        let pid = stage.group.start(starting.stdin(std::process::Stdio::null()));
        chance.sleep(10_000);
        stop_outside_the_driver(&mut there, pid, &mut chance);
        // It may have got up to a half by now.
        others_go_on(&stage, &mut there, LIMIT / 2, |_| {});
        kill_and_leave_unreaped(pid);
        there.could_get(LIMIT);
    }
    stage.never_over();
}

/// The first process of all, which makes what is shared, is stopped while it does.
#[test]
fn nobody_waits_for_the_first_one() {
    let mut chance = Chance::new();
    for round in 0..40 {
        let stage = Stage::new();
        let mut first = stage.program("work");
        first.args(["half", &LIMIT.to_string(), "1"]).stdout(std::process::Stdio::null());
        let pid = stage.group.start(first.stdin(std::process::Stdio::null()));
        let mut idle = stage.puppet();
        chance.sleep(8000);
        stop_outside_the_driver(&mut idle, pid, &mut chance);
        idle.has_context();
        others_go_on(&stage, &mut idle, LIMIT / 2, |_| {});
        if round % 2 == 0 {
            kill_and_leave_unreaped(pid);
            stage.holder(LIMIT);
        }
        stage.never_over();
    }
}
