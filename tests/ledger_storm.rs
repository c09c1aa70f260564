//! Many processes at once that come, allocate, stop, die and leave children behind, with no order in it: never over, and
//! in the end nothing is lost.
//!
//! A few seconds; `CUWARDEN_STORM_SECONDS` makes it longer, and `CUWARDEN_STORM_SEED` begins it with another number.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/ledger/support.rs"]
mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{Group, LIMIT, Stage, is_dead, signal, until};

/// A number from the environment.
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// For all storms together.
fn time() -> Duration {
    Duration::from_secs(setting("CUWARDEN_STORM_SECONDS").unwrap_or(6))
}

struct Storm<'a> {
    stage: &'a Stage,
    group: Group,
    living: Vec<i32>,
    stopped: Vec<i32>,
    state: u64,
    started: u32,
}

impl Storm<'_> {
    fn below(&mut self, end: usize) -> usize {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % end
    }

    fn start(&mut self) {
        let mut command = self.stage.program("work");
        let seed = self.below(1 << 30).to_string();
        command.args(["storm", &LIMIT.to_string(), &seed]).stdin(Stdio::null()).stdout(Stdio::null());
        // Some have call stacks to take, and some write a report at their end.
        match self.below(4) {
            0 => command.env("CUWARDEN_STACKS", "0"),
            1 => command.env("CUWARDEN_REPORT", self.stage.sim.temp.join("reports")),
            _ => &mut command,
        };
        self.living.push(self.group.start(command.stderr(self.stage.stderr())));
        self.started += 1;
    }

    /// Nobody may end in a way that is not its own.
    fn reap(&mut self, seed: u64) {
        while let Some((pid, status)) = self.group.ended() {
            self.living.retain(|living| *living != pid);
            self.stopped.retain(|stopped| *stopped != pid);
            let by = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
            let right = status == 0 || by == Some(libc::SIGKILL) || by == Some(libc::SIGABRT);
            assert!(right, "{pid} ended with {status:#x}, seed {seed}: {}", self.stage.said());
        }
    }

    fn one_of_the_living(&mut self) -> Option<i32> {
        let index = self.below(self.living.len().max(1));
        self.living.get(index).copied()
    }

    fn act(&mut self) {
        match self.below(8) {
            0..=2 => {
                if let Some(pid) = self.one_of_the_living() {
                    signal(pid, libc::SIGKILL);
                }
            }
            3..=5 => {
                if let Some(pid) = self.one_of_the_living() {
                    signal(pid, libc::SIGSTOP);
                    self.stopped.push(pid);
                }
            }
            // Not for long: where one was stopped inside the simulated driver, nobody gets anything meanwhile.
            _ => self.stopped.drain(..).for_each(|pid| signal(pid, libc::SIGCONT)),
        }
    }

    fn rage(&mut self, processes: usize, time: Duration, seed: u64) {
        let since = Instant::now();
        while since.elapsed() < time {
            while self.living.len() < processes {
                self.start();
            }
            self.act();
            std::thread::sleep(Duration::from_micros(500 + self.below(4000) as u64));
            self.reap(seed);
        }
    }
}

/// The most processes there are at once, and how much of the time it takes.
fn storm(processes: usize, part: u32) {
    let seed = setting("CUWARDEN_STORM_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let stage = Stage::new();
    let mut survivor = stage.holder(0);
    let mut storm = Storm {
        stage: &stage,
        group: Group::new(),
        living: vec![],
        stopped: vec![],
        state: seed,
        started: 0,
    };
    // On a busy machine it takes longer until they get to the edge.
    let since = Instant::now();
    loop {
        storm.rage(processes, time() / part, seed);
        if stage.peak(0) > LIMIT / 2 || since.elapsed() > Duration::from_secs(60) {
            break;
        }
    }
    let started = storm.started;
    storm.stopped.drain(..).for_each(|pid| signal(pid, libc::SIGCONT));
    storm.reap(seed);
    storm.group.end();

    let told =
        format!("{processes} at once, {started} in all, seed {seed}: {:#}", stage.sim.books()["devices"]);
    assert_eq!(stage.said(), "", "{told}");
    assert_eq!(survivor.code(&format!("alloc {LIMIT}")), 0, "something is lost: {told}");
    survivor.is_refused(1);
    survivor.ok("free");
    let mut fresh = stage.holder(LIMIT);
    survivor.is_refused(1);
    fresh.kill();
    survivor.could_get(LIMIT);
    assert!(stage.peak(0) <= LIMIT, "{told}");
    assert!(stage.peak(0) > LIMIT / 2, "they did not get to the edge: {told}");
    assert!(stage.figure(0, "grants") > u64::from(started), "they did not get to work: {told}");
    let complaints = stage.complaints();
    assert_eq!(complaints.len(), 0, "{told}: {complaints:#?}");
}

#[test]
fn a_storm_of_eight() {
    storm(8, 3);
}

#[test]
fn a_storm_of_twenty_four() {
    storm(24, 3);
}

#[test]
fn a_storm_of_sixty_four() {
    storm(64, 3);
}

/// Four threads in each of two processes want somewhat more than there is, until each of the eight got it many times.
#[test]
fn all_make_progress_at_the_edge() {
    let stage = Stage::new();
    for kind in ["cuMemAlloc_v2", "cuMemCreate"] {
        stage.race("edge", 2, 200, kind, 4, |_| {});
    }
    assert!(stage.peak(0) > LIMIT / 2, "{}", stage.peak(0));
    stage.never_over();
    // A driver that does nothing: they meet nowhere but in the account.
    stage.race("edge", 2, 3000, "cuMemAlloc_v2", 4, |command: &mut Command| {
        command.env("CUWARDEN_SIM_NULL", "1");
    });
}

#[test]
fn many_processes_at_the_edge() {
    let stage = Stage::new();
    stage.race("edge", 12, 60, "cuMemAlloc_v2", 2, |_| {});
    stage.never_over();
}

#[test]
fn three_hundred_start_at_once() {
    let stage = Stage::new();
    stage.race("start", 300, 1, "cuMemAlloc_v2", 1, |_| {});
    assert!(stage.peak(0) > LIMIT - 300, "{}", stage.peak(0));
    stage.never_over();
    let complaints = stage.complaints();
    assert_eq!(complaints.len(), 0, "{complaints:#?}");
    stage.holder(LIMIT).is_refused(1);
}

/// Each is a program of its own, none waits for another, and the first ones are gone when the last ones come.
#[test]
fn three_hundred_come_and_go() {
    let stage = Stage::new();
    let mut living = Vec::new();
    for number in 0..300 {
        living.push(stage.puppet());
        let puppet = living.last_mut().expect("it was just put there");
        puppet.tell(&format!("begin {}", LIMIT / 16));
        if number >= 15 {
            let mut first = living.remove(0);
            assert_eq!(first.answer().as_deref(), Some("0"));
            if number % 2 == 0 {
                signal(first.pid, libc::SIGKILL);
            } else {
                first.tell("exit 0");
            }
            until("it dies", || is_dead(first.pid));
        }
    }
    for puppet in &mut living {
        assert_eq!(puppet.answer().as_deref(), Some("0"));
    }
    stage.never_over();
}
