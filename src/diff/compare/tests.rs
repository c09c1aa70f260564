//! Whole comparisons of made-up reports.

use super::*;
use crate::diff::arm::{Input, Options};
use crate::diff::{html, text, words};
use crate::report::Termination;
use crate::report::model::Device;
use crate::report::text::Style;

const MIB: u64 = 1 << 20;

fn leak(function: &str, bytes: u64) -> Leak {
    let frame = |function: &str| Frame {
        module: Some("/opt/train".to_owned()),
        function: Some(function.to_owned()),
        file: Some(format!("src/{function}.cc")),
        line: Some(7),
        ..Frame::default()
    };
    Leak {
        api: "cudaMalloc".to_owned(),
        bytes,
        count: 1,
        stack: vec![frame(function), frame("main")],
        ..Leak::default()
    }
}

/// One process a run; each run is its leaks.
fn arm(name: &str, runs: Vec<Vec<Leak>>) -> Arm {
    let inputs = runs.into_iter().enumerate().map(|(place, leaks)| Input {
        folder: None,
        report: Report {
            pid: 10 + place as u32,
            exe: "/opt/train".to_owned(),
            started_at: Some(format!("2026-12-01T00:00:{place:02}.000Z")),
            termination: Termination::Exit,
            devices: vec![Device { peak_bytes: 64 * MIB, alloc_count: 1, ..Device::default() }],
            leaks,
            ..Report::default()
        },
    });
    Arm::new(name, name.to_ascii_lowercase(), inputs.collect(), &Options::default()).unwrap()
}

/// So many runs in which one function leaks this.
fn steady(name: &str, runs: usize, function: &str, bytes: u64) -> Arm {
    arm(name, vec![vec![leak(function, bytes)]; runs])
}

fn rules(threshold_percent: f64) -> Rules {
    Rules { threshold_percent, each_stack: false }
}

fn shown(diff: &Diff) -> String {
    text::text(diff, &Style::PLAIN)
}

#[test]
fn a_leak_that_grew_fails_beyond_the_threshold_only() {
    let (a, b) = (steady("A", 10, "grow", 4 * MIB), steady("B", 10, "grow", 5 * MIB));
    for (threshold, failed) in [(0.0, true), (24.9, true), (25.0, false), (1000.0, false)] {
        let diff = compare(&a, &b, rules(threshold));
        assert_eq!((diff.total.verdict, diff.failed), (Verdict::Worse, failed), "{threshold}");
        assert_eq!((diff.total.difference, diff.total.percent), (i128::from(MIB), Some(25.0)));
    }
    let back = compare(&b, &a, rules(0.0));
    assert_eq!((back.total.verdict, back.failed), (Verdict::Better, false));
    let same = compare(&a, &a, rules(0.0));
    assert_eq!((same.total.verdict, same.failed), (Verdict::Same, false));
    // No percentage of nothing is a leak.
    let diff = compare(&steady("A", 4, "grow", 0), &steady("B", 4, "grow", 1), rules(1e9));
    assert!(diff.failed && diff.total.percent.is_none());
}

#[test]
fn too_few_runs_have_no_verdict_and_say_why() {
    let diff = compare(&steady("A", 3, "grow", MIB), &steady("B", 40, "grow", 9 * MIB), rules(0.0));
    assert_eq!((diff.total.verdict, diff.failed), (Verdict::TooFewRuns, false));
    assert!(diff.total.interval.is_none() && diff.total.p.is_none());
    let text = shown(&diff);
    for words in ["Too few runs", "+8.00 MiB", "A has 3 runs and B 40 runs", "4 of each", "2 of 20 orders"] {
        assert!(text.contains(words), "{words} is missing in:\n{text}");
    }
    assert!(!text.contains("interval 0"));
}

#[test]
fn the_worst_comes_first_and_one_sided_stacks_are_said_to_be_so() {
    let runs = |leaks: Vec<Leak>| vec![leaks; 8];
    let a = arm(
        "A",
        runs(vec![leak("steady", MIB), leak("gone", 8 * MIB), leak("little", MIB), leak("much", MIB)]),
    );
    let b = arm(
        "B",
        runs(vec![
            leak("steady", MIB),
            leak("fresh", 4 * MIB),
            leak("little", 2 * MIB),
            leak("much", 9 * MIB),
        ]),
    );
    let diff = compare(&a, &b, rules(0.0));
    let rows: Vec<_> = diff
        .stacks
        .iter()
        .map(|one| (one.example[0].function.as_deref().unwrap(), one.comparison.verdict, one.only_in))
        .collect();
    assert_eq!(
        rows,
        [
            ("much", Verdict::Worse, None),
            ("fresh", Verdict::Worse, Some("b")),
            ("little", Verdict::Worse, None),
            ("gone", Verdict::Better, Some("a")),
            ("steady", Verdict::Same, None),
        ]
    );
    let text = shown(&diff);
    assert!(text.contains("worse, only in B") && text.contains("better, only in A"), "{text}");
    assert!(text.contains("1 call stack is the same in all runs of A and B: 1.00 MiB together"), "{text}");
}

#[test]
fn a_stack_that_is_worse_within_a_total_that_is_not_fails_on_demand() {
    let runs = |one: u64, other: u64| vec![vec![leak("one", one), leak("other", other)]; 8];
    let (a, b) = (arm("A", runs(MIB, 9 * MIB)), arm("B", runs(2 * MIB, MIB)));
    let diff = compare(&a, &b, rules(0.0));
    assert_eq!((diff.total.verdict, diff.failed), (Verdict::Better, false));
    let text = shown(&diff).replace('\n', " ");
    assert!(text.contains("But 1 call stack of B is worse"), "{text}");
    let diff = compare(&a, &b, Rules { each_stack: true, ..rules(0.0) });
    assert!(diff.failed && shown(&diff).contains("B is worse in 1 call stack, though not in total"));
}

#[test]
fn of_many_stacks_a_few_differ_by_chance() {
    // Four runs of each: alone, each stack would be beyond noise, and 20 of them are not.
    let runs = |bytes: u64| vec![(0..20).map(|i| leak(&format!("f{i:02}"), bytes)).collect::<Vec<_>>(); 4];
    let diff =
        compare(&arm("A", runs(MIB)), &arm("B", runs(2 * MIB)), Rules { each_stack: true, ..rules(0.0) });
    assert_eq!(diff.total.verdict, Verdict::Worse);
    assert!(diff.stacks.iter().all(|one| one.comparison.verdict == Verdict::Suspect));
    assert!(shown(&diff).contains("perhaps worse") && shown(&diff).contains("10 call stacks more"));
    // Alone it is.
    let one = compare(&steady("A", 4, "f", 1), &steady("B", 4, "f", 2), rules(0.0));
    assert_eq!(one.stacks[0].comparison.verdict, Verdict::Worse);
}

#[test]
fn a_leak_in_some_runs_of_b_is_worse_where_it_is_in_most() {
    let b = |leaking: usize| {
        arm("B", (0..20).map(|run| if run < leaking { vec![leak("f", MIB)] } else { vec![] }).collect())
    };
    let a = arm("A", vec![vec![]; 20]);
    for (leaking, verdict) in [(2, Verdict::Noise), (7, Verdict::Suspect), (14, Verdict::Worse)] {
        let diff = compare(&a, &b(leaking), rules(0.0));
        assert_eq!(diff.total.verdict, verdict, "{leaking}");
        assert_eq!(diff.failed, verdict == Verdict::Worse);
        assert!(shown(&diff).contains(&format!("in {leaking} of 20")));
    }
}

#[test]
fn the_runs_that_the_documents_ask_for_are_enough() {
    // docs/diff.md: how many runs, how many stacks, and in how many of ten runs.
    let stacks = |runs: usize, stacks: usize| {
        let arm_of = |name, bytes| {
            arm(name, vec![(0..stacks).map(|i| leak(&format!("f{i}"), bytes)).collect::<Vec<_>>(); runs])
        };
        let diff = compare(&arm_of("A", 1), &arm_of("B", 2), rules(0.0));
        diff.stacks.iter().all(|one| one.comparison.verdict == Verdict::Worse)
    };
    assert!(stacks(5, 6) && !stacks(5, 7) && stacks(6, 23) && !stacks(6, 24) && stacks(10, 2000));
    let leaking = |count: u64| {
        let b = arm("B", (0..10).map(|run| vec![leak("f", u64::from(run < count) * MIB)]).collect());
        compare(&steady("A", 10, "f", 0), &b, rules(0.0)).total.verdict
    };
    assert_eq!((leaking(4), leaking(5)), (Verdict::Noise, Verdict::Worse));
}

#[test]
fn what_the_driver_holds_is_shown_and_not_judged() {
    let held = |bytes| Leak { held_by_driver: true, ..leak("pool", bytes) };
    let (a, b) = (arm("A", vec![vec![held(MIB)]; 6]), arm("B", vec![vec![held(9 * MIB)]; 6]));
    let diff = compare(&a, &b, rules(0.0));
    assert_eq!((diff.total.verdict, diff.failed, diff.stacks.len()), (Verdict::Same, false, 0));
    assert_eq!(diff.others["held_by_driver_bytes"].verdict, Verdict::Worse);
    assert!(shown(&diff).contains("Neither A nor B leaks") && shown(&diff).contains("held by driver"));
}

#[test]
fn the_order_of_runs_changes_no_byte() {
    let runs: Vec<Vec<Leak>> =
        (0..9).map(|i| vec![leak("x", i * 1000), leak(&format!("y{}", i % 3), 5)]).collect();
    let all = |runs: Vec<Vec<Leak>>| {
        let (a, b) = (arm("A", runs.clone()), arm("B", runs.into_iter().rev().collect()));
        let diff = compare(&a, &b, rules(0.0));
        (serde_json::to_string(&diff).unwrap(), html::page(&diff), shown(&diff))
    };
    let mut other = runs.clone();
    other.reverse();
    other.swap(0, 4);
    assert_eq!(all(runs), all(other));
}

#[test]
fn huge_sizes_neither_overflow_nor_mislead() {
    let (a, b) = (steady("A", 5, "f", 1), arm("B", vec![vec![leak("f", u64::MAX), leak("g", u64::MAX)]; 5]));
    let diff = compare(&a, &b, rules(5.0));
    assert!(diff.failed);
    assert_eq!(diff.total.difference, i128::from(u64::MAX) - 1);
    assert!(shown(&diff).contains("+16.0 EiB a run (more than +1000 %)"), "{}", shown(&diff));
    let json = serde_json::to_string(&compare(&b, &a, rules(0.0))).unwrap();
    assert!(json.contains("\"difference\":-18446744073709551614"), "{json}");
}

#[test]
fn no_names_on_one_side_is_said_to_spoil_the_comparison() {
    let mut nameless = leak("f", MIB);
    nameless.stack.iter_mut().for_each(|frame| frame.function = None);
    let diff = compare(&arm("A", vec![vec![nameless]; 4]), &steady("B", 4, "f", MIB), rules(0.0));
    assert_eq!(diff.stacks.len(), 2);
    assert_eq!(diff.stacks[1].by_module_alone, ["train"]);
    assert!(
        diff.notes.iter().any(|note| note.contains("A has no function names of train")),
        "{:?}",
        diff.notes
    );
    assert!(shown(&diff).contains("Matched by library alone in train"));
}

#[test]
fn text_fits_80_columns_and_nothing_in_it_is_obeyed() {
    let evil = "<script>alert(1)</script>\u{1b}[2J\"'&\u{202e}";
    let long = format!("{evil}{}", "very_long_name_".repeat(30));
    let (mut a, mut b) = (steady("A", 4, &long, MIB), steady("B", 4, &long, 3 * MIB));
    for arm in [&mut a, &mut b] {
        arm.path = format!("/{long}");
        arm.labels.insert("arm".to_owned(), long.clone());
        arm.devices = vec![long.clone()];
    }
    let diff = compare(&a, &b, rules(0.0));
    let text = text::text(&diff, &Style { colour: false, width: 80 });
    assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'));
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let page = html::page(&diff);
    assert!(!page.contains("<script") && !page.contains('\u{1b}') && page.contains("&lt;script&gt;"));
    assert!(
        !page.contains("http:") && !page.contains("https:") && !page.contains("src="),
        "it needs nothing else"
    );
    assert!(text::text(&diff, &Style { colour: true, width: 80 }).contains('\u{1b}'));
}

#[test]
fn differences_have_signs_and_units() {
    for (difference, text) in
        [(0, "0 bytes"), (1, "+1 byte"), (-4 << 20, "-4.00 MiB"), (1 << 40, "+1.00 TiB")]
    {
        assert_eq!(words::signed(difference), text);
    }
}
