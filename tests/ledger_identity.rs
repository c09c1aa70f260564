//! Who is who: numbers that are given out again, namespaces in which everybody is number 1, and copies of a process.
//!
//! Reported of others: HAMi keys its slots by the pid in the container, which a new process gets again; a process in
//! another namespace counted as dead, or for ever as alive; a child's exit took its parent's bytes along.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/ledger/support.rs"]
mod support;

use support::{LIMIT, Puppet, Stage, is_dead, kill_and_leave_unreaped, until};

const NOT_INITIALIZED: i32 = 3;
const HALF: u64 = LIMIT / 2;

fn with_context(mut puppet: Puppet) -> Puppet {
    puppet.has_context();
    puppet
}

// ---- numbers that are given out again -----------------------------------------------------------------------------

/// The first process of a namespace that gives its children the numbers that this test wants.
struct Numbers<'a> {
    stage: &'a Stage,
    first: Puppet,
}

impl Numbers<'_> {
    /// Makes a process with this number; none, where the system does not allow to say so.
    #[track_caller]
    fn make(&mut self, own_pid: i32, order: &str) -> Option<Puppet> {
        if self.first.code(&format!("next-pid {own_pid}")) != 0 {
            assert!(std::env::var_os("CI").is_none(), "ns_last_pid cannot be written, and CI must test this");
            eprintln!("NOT TESTED: ns_last_pid cannot be written here");
            return None;
        }
        let mut child = self.stage.child_of(&mut self.first, order);
        assert_eq!(child.own_pid, own_pid);
        child.pid = outer_pid(&self.first, own_pid);
        Some(child)
    }

    fn kill_and_reap(&mut self, child: &Puppet) {
        // Its parent waits at once, and its number is free again.
        support::signal(child.pid, libc::SIGKILL);
        assert_ne!(self.first.code(&format!("reap {}", child.own_pid)), -1);
    }
}

/// What the outside calls a child of a namespace's first process.
#[track_caller]
fn outer_pid(first: &Puppet, own_pid: i32) -> i32 {
    let mut found = None;
    for entry in std::fs::read_dir("/proc").expect("there is a /proc") {
        let name = entry.expect("it can be read").file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
        let inner = field("NSpid:").split_whitespace().next_back().and_then(|text| text.parse().ok());
        if inner == Some(own_pid) && field("PPid:").trim() == first.pid.to_string() {
            found = Some(pid);
        }
    }
    found.unwrap_or_else(|| panic!("{own_pid} is not to be found"))
}

fn numbers(stage: &Stage) -> Option<Numbers<'_>> {
    let first = stage.puppet_in_namespace(true, |_| {})?;
    assert_eq!(first.own_pid, 1);
    Some(Numbers { stage, first })
}

/// A process of another program has the dead one's number, and within one clock tick its time of start too.
#[test]
fn a_stranger_with_a_dead_one_s_number_holds_nothing() {
    let stage = Stage::new();
    let Some(mut numbers) = numbers(&stage) else { return };
    let mut there = stage.holder(0);
    let Some(mut inside) = numbers.make(200, "spawn").map(with_context) else { return };
    for _ in 0..25 {
        let Some(mut dying) = numbers.make(100, "spawn") else { return };
        dying.ok(&format!("begin {LIMIT}"));
        there.is_refused(1);
        inside.is_refused(1);
        numbers.kill_and_reap(&dying);
        let Some(stranger) = numbers.make(100, "fork") else { return };
        inside.gets(LIMIT);
        there.is_refused(1);
        inside.ok("free");
        there.gets(LIMIT);
        there.ok("free");
        numbers.kill_and_reap(&stranger);
    }
    stage.never_over();
}

/// The same, and the new one uses CUDA itself: it begins with nothing, and what it takes is its own.
#[test]
fn a_successor_with_the_same_number_begins_with_nothing() {
    let stage = Stage::new();
    let Some(mut numbers) = numbers(&stage) else { return };
    let mut there = stage.holder(0);
    for _ in 0..25 {
        let Some(mut dying) = numbers.make(100, "spawn") else { return };
        dying.ok(&format!("begin {LIMIT}"));
        numbers.kill_and_reap(&dying);
        let Some(mut successor) = numbers.make(100, "spawn") else { return };
        successor.ok(&format!("begin {HALF}"));
        there.could_get(HALF);
        successor.could_get(HALF);
        successor.gets(HALF);
        there.is_refused(1);
        numbers.kill_and_reap(&successor);
        there.could_get(LIMIT);
    }
    stage.never_over();
}

// ---- namespaces ---------------------------------------------------------------------------------------------------

/// Everybody is number 1, and a kill in each frees that one's bytes and nobody else's.
#[test]
fn containers_with_one_directory_share_one_account() {
    for proc_of in [[true, true], [false, false], [true, false]] {
        let stage = Stage::new();
        let mut outside = stage.holder(0);
        let Some(mut one) = stage.puppet_in_namespace(proc_of[0], |_| {}).map(with_context) else { return };
        let Some(mut other) = stage.puppet_in_namespace(proc_of[1], |_| {}).map(with_context) else { return };
        assert_eq!((one.own_pid, other.own_pid), (1, 1));
        one.gets(LIMIT / 4);
        other.gets(LIMIT / 4);
        for puppet in [&mut one, &mut other, &mut outside] {
            puppet.could_get(HALF);
        }
        // The bytes of one inside are those of the other's, and of the outside's.
        one.kill();
        other.could_get(HALF + LIMIT / 4);
        outside.could_get(HALF + LIMIT / 4);
        let Some(mut third) = stage.puppet_in_namespace(proc_of[0], |_| {}).map(with_context) else { return };
        third.could_get(HALF + LIMIT / 4);
        third.gets(HALF);
        other.is_refused(HALF);
        other.kill();
        third.could_get(HALF);
        outside.could_get(HALF);
        // And the other way round.
        outside.gets(HALF);
        third.is_refused(1);
        outside.kill();
        third.gets(HALF);
        third.ok("free-all");
        third.could_get(LIMIT);
        stage.never_over();
    }
}

/// An end that nobody outside sees as a kill.
#[test]
fn containers_that_end_by_themselves_leave_nothing() {
    for own_proc in [true, false] {
        let stage = Stage::new();
        let mut outside = stage.holder(0);
        for order in ["exit 0", "_exit 3", "abort"] {
            let Some(mut inside) = stage.puppet_in_namespace(own_proc, |_| {}) else { return };
            inside.ok(&format!("begin {LIMIT}"));
            outside.is_refused(1);
            inside.ends_by(order);
            outside.could_get(LIMIT);
        }
        stage.never_over();
    }
}

/// Two in one namespace, seen from another one: the death of the second is not the death of the first.
#[test]
fn one_of_two_in_a_container_dies() {
    let stage = Stage::new();
    let mut outside = stage.holder(0);
    let Some(mut first) = stage.puppet_in_namespace(true, |_| {}) else { return };
    let mut second = stage.child_of(&mut first, "spawn");
    let outer = outer_pid(&first, second.own_pid);
    first.ok(&format!("begin {HALF}"));
    second.ok(&format!("begin {HALF}"));
    outside.is_refused(1);
    kill_and_leave_unreaped(outer);
    outside.could_get(HALF);
    first.could_get(HALF);
    first.gets(HALF);
    outside.is_refused(1);
    stage.never_over();
}

// ---- copies -------------------------------------------------------------------------------------------------------

/// A child that does nothing has all that its parent had, descriptors and memory; the parent's bytes are not among it.
#[test]
fn a_child_that_lives_on_holds_nothing() {
    for order in ["sleeper", "sleeper exec"] {
        let stage = Stage::new();
        let mut there = stage.holder(0);
        let mut parent = stage.holder(LIMIT);
        let child = parent.code(order);
        there.is_refused(1);
        parent.kill();
        assert!(!is_dead(child));
        there.could_get(LIMIT);
        stage.holder(LIMIT);
        assert!(!is_dead(child));
        stage.never_over();
    }
}

#[test]
fn a_child_s_end_takes_nothing_along() {
    for (make, end) in [("fork", "exit 0"), ("fork", "_exit 0"), ("fork", "abort"), ("spawn", "exit 0")] {
        let stage = Stage::new();
        let mut there = stage.holder(0);
        let mut parent = stage.holder(HALF);
        for _ in 0..3 {
            let mut child = stage.child_of(&mut parent, make);
            if make == "fork" {
                // After its parent's cuInit a child gets nothing of the driver.
                assert_eq!(child.code("alloc 4096"), NOT_INITIALIZED);
                assert_eq!(child.code("init"), NOT_INITIALIZED);
            }
            there.could_get(HALF);
            child.ends_by(end);
            there.could_get(HALF);
            parent.could_get(HALF);
        }
        parent.kill();
        there.could_get(LIMIT);
        stage.never_over();
    }
}

/// A child that calls the driver and is refused changes nothing for its parent and for others, alive or dead.
#[test]
fn a_child_that_may_not_use_cuda_changes_nothing() {
    let stage = Stage::new();
    let mut there = stage.holder(0);
    let mut parent = stage.holder(HALF);
    let mut child = stage.child_of(&mut parent, "fork");
    for order in ["init", "alloc 4096", "context 0", "info", "alloc 1"] {
        let answer = child.ask(order);
        assert!(answer.starts_with('3'), "{order}: {answer}");
    }
    parent.kill();
    // The child still lives.
    there.could_get(LIMIT);
    child.ok("free-all");
    assert_eq!(child.code("alloc 4096"), NOT_INITIALIZED);
    there.could_get(LIMIT);
    child.kill();
    there.could_get(LIMIT);
    stage.never_over();
}

/// Forked before anybody used CUDA: two processes like any others.
#[test]
fn a_child_with_cuda_of_its_own_has_books_of_its_own() {
    for (make, parent_first) in [("fork", true), ("fork", false), ("spawn", true), ("spawn", false)] {
        for parent_dies in [true, false] {
            let stage = Stage::new();
            let mut there = stage.holder(0);
            let mut parent = stage.puppet();
            let mut child = stage.child_of(&mut parent, make);
            let order = if parent_first { [&mut parent, &mut child] } else { [&mut child, &mut parent] };
            for puppet in order {
                puppet.ok(&format!("begin {}", LIMIT / 4));
            }
            there.could_get(HALF);
            let (dying, living) =
                if parent_dies { (&mut parent, &mut child) } else { (&mut child, &mut parent) };
            dying.kill();
            there.could_get(HALF + LIMIT / 4);
            living.could_get(HALF + LIMIT / 4);
            living.ok("free");
            there.could_get(LIMIT);
            living.could_get(LIMIT);
            stage.never_over();
        }
    }
}

/// The parent's bytes stay the parent's while its child becomes a program with bytes of its own.
#[test]
fn a_forked_child_that_becomes_another_program() {
    for make in ["fork", "spawn"] {
        let stage = Stage::new();
        let mut there = stage.holder(0);
        let mut parent = stage.holder(LIMIT / 4);
        let mut child = stage.child_of(&mut parent, make);
        if make == "fork" {
            child.tell("again");
            assert!(child.answer().is_some_and(|line| line.starts_with("ready ")));
        }
        child.ok(&format!("begin {HALF}"));
        there.could_get(LIMIT / 4);
        parent.kill();
        there.could_get(HALF);
        child.could_get(HALF);
        child.kill();
        there.could_get(LIMIT);
        stage.never_over();
    }
}

#[test]
fn a_program_in_the_same_process_begins_with_nothing() {
    for threads in [0, 2] {
        let stage = Stage::new();
        let mut there = stage.holder(0);
        let mut puppet = stage.holder(0);
        for _ in 0..4 {
            puppet.gets(LIMIT);
            for _ in 0..threads {
                puppet.ok("thread");
            }
            puppet.tell("again");
            assert!(puppet.answer().is_some_and(|line| line.starts_with("ready ")));
            puppet.has_context();
            puppet.could_get(LIMIT);
            there.could_get(LIMIT);
            puppet.gets(HALF);
            there.could_get(HALF);
            puppet.ok("free");
        }
        puppet.gets(HALF);
        puppet.kill();
        there.could_get(LIMIT);
        stage.never_over();
    }
}

/// A child that has its parent's memory ends: the parent has not.
#[test]
fn the_end_of_a_vforked_child_takes_nothing_along() {
    let stage = Stage::new();
    let mut there = stage.holder(0);
    let mut parent = stage.holder(HALF);
    for _ in 0..3 {
        assert_eq!(parent.code("vfork"), 0);
        there.could_get(HALF);
        parent.could_get(HALF);
    }
    parent.ok("free");
    there.gets(LIMIT);
    parent.is_refused(1);
    stage.never_over();
}

// ---- the living, who look like something else ---------------------------------------------------------------------

/// As daemons do: all descriptors closed, whatever they are. What the process holds is still held.
#[test]
fn a_process_that_closed_all_its_descriptors_lives() {
    let stage = Stage::new();
    let mut there = stage.holder(0);
    let mut daemon = stage.holder(HALF);
    daemon.ok("close");
    there.could_get(HALF);
    stage.holder(0).could_get(HALF);
    daemon.could_get(HALF);
    daemon.gets(LIMIT / 4);
    there.could_get(LIMIT / 4);
    daemon.kill();
    there.could_get(LIMIT);
    stage.never_over();
}

/// The others may not send it a signal any more, nor read all of its /proc.
#[test]
fn a_process_that_became_another_user_lives() {
    let stage = Stage::new();
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("NOT TESTED: only root can become another user");
        return;
    }
    // For the driver, whose books are in there: an x bit is enough to look for a death by name.
    open_to_all(&stage);
    let mut there = stage.holder(0);
    let mut other = stage.holder(HALF);
    other.ok("setuid 65534");
    there.could_get(HALF);
    other.could_get(HALF);
    let mut third = stage.holder(0);
    third.ok("setuid 65533");
    other.could_get(HALF);
    third.could_get(HALF);
    there.kill();
    other.kill();
    until("the driver's books know of it", || stage.figure(0, "allocated") == 0);
    third.could_get(LIMIT);
    stage.never_over();
}

fn open_to_all(stage: &Stage) {
    use std::os::unix::fs::PermissionsExt;
    // Events are written when there is one: then as the other user.
    std::fs::File::create(stage.sim.temp.join("events.jsonl")).expect("the folder is ours");
    for folder in ["", "gpu", "shared", "events.jsonl"] {
        let path = stage.sim.temp.join(folder);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("the folder is ours");
    }
}
