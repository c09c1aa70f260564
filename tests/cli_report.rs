//! Reports: grouping, the schema, the text.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod cli_support;

use std::mem::offset_of;

use cli_support::record_file::{Allocation, RecordFile};
use cuwarden::record::layout::*;
use cuwarden::record::snapshot::Snapshot;
use cuwarden::report::model::{Frame, LeakClass};
use cuwarden::report::text::{self, Style};
use cuwarden::report::{Report, Termination};

const STARTED: u64 = 1_796_090_584_567_000_000;
const SECOND: u64 = 1_000_000_000;

fn report(file: &RecordFile, termination: Termination) -> Report {
    let snapshot = Snapshot::from_bytes(&file.bytes()).unwrap();
    Report::from_snapshot(&snapshot, termination, STARTED + 10 * SECOND)
}

/// Three stacks: small and often, large and once, and the reserve of a pool.
fn sample() -> RecordFile {
    let mut file = RecordFile::new();
    file.module(1, "/opt/app/trainer", &[0xab; 20]);
    file.module(9, "/opt/app/unused.so", &[]);
    let small = file.stack(&[(1, 0x10), (1, 0x20)]);
    let large = file.stack(&[(1, 0x30)]);
    for i in 0..4 {
        file.allocation(Allocation {
            stack: small,
            bytes: 100,
            born_ns: (i + 1) * SECOND,
            ..Allocation::default()
        });
        file.freed();
    }
    file.allocation(Allocation { stack: large, bytes: 5000, born_ns: 4 * SECOND, ..Allocation::default() });
    file.allocation(Allocation {
        stack: large,
        bytes: 7000,
        class: Class::PoolReserve as u8,
        api: 16,
        runtime_api: 0,
        ..Allocation::default()
    });
    file.ended(STARTED + 10 * SECOND);
    file
}

#[test]
fn allocations_are_grouped_by_stack_largest_first() {
    let report = report(&sample(), Termination::Exit);
    let rows: Vec<_> =
        report.leaks.iter().map(|l| (l.bytes, l.count, l.api.as_str(), l.oldest_age_s)).collect();
    assert_eq!(
        rows,
        [(7000, 1, "cuMemPoolCreate", 9.0), (5000, 1, "cudaMalloc", 6.0), (400, 4, "cudaMalloc", 9.0)]
    );
    assert_eq!(report.leaks[1].driver_api, "cuMemAlloc_v2");
    assert_eq!(report.leaks[1].runtime.as_deref(), Some("12.9"));
    assert_eq!(report.leaks[2].stack.len(), 2);
    assert_eq!(report.leaks[2].stack[0].module.as_deref(), Some("/opt/app/trainer"));
    assert_eq!(report.leaks[2].stack[0].offset, 0x10);
}

#[test]
fn what_the_driver_holds_is_listed_and_is_no_leak() {
    let report = report(&sample(), Termination::Exit);
    assert_eq!((report.leaks[0].class, report.leaks[0].held_by_driver), (LeakClass::PoolReserve, true));
    assert_eq!(report.leaked(), (5400, 5));
    assert_eq!(report.held(), (7000, 1));
}

#[test]
fn what_differs_in_any_part_is_apart() {
    let mut file = RecordFile::new();
    let stack = file.stack(&[(0, 1)]);
    // The same frames once more, as two threads may record them at the same moment.
    let same = file.stack(&[(0, 1)]);
    let base = Allocation { stack, ..Allocation::default() };
    for allocation in [
        base,
        Allocation { stack: same, ..base },
        Allocation { device: 1, ..base },
        Allocation { api: 6, runtime_api: 34, ..base },
        Allocation { class: Class::Array as u8, ..base },
        Allocation { runtime: 0, ..base },
    ] {
        file.allocation(allocation);
    }
    let report = report(&file, Termination::Exit);
    assert_eq!(report.leaks.len(), 5);
    assert_eq!(report.leaks[0].count, 2);
}

#[test]
fn the_order_of_the_file_does_not_matter() {
    let build = |backwards: bool| {
        let mut file = RecordFile::new();
        let stacks: Vec<u32> = (0..50).map(|i| file.stack(&[(0, i)])).collect();
        let mut list: Vec<Allocation> =
            stacks.iter().map(|&stack| Allocation { stack, bytes: 64, ..Allocation::default() }).collect();
        if backwards {
            list.reverse();
        }
        list.into_iter().for_each(|allocation| file.allocation(allocation));
        serde_json::to_string(&report(&file, Termination::Exit)).unwrap()
    };
    assert_eq!(build(false), build(true));
}

#[test]
fn the_json_has_the_fields_of_the_schema() {
    let mut file = sample();
    file.note(1, r#"{"event":"init_failure","api":"cuInit","code":100}"#);
    file.note(7, r#"{"event":"of a later version"}"#);
    file.device_field(0, offset_of!(Device, limit_bytes), 64 << 20);
    let value = serde_json::to_value(report(&file, Termination::Exit)).unwrap();
    assert_eq!(value["schema"], "cuwarden.report/1");
    assert_eq!(value["pid"], 4242);
    assert_eq!(value["cmdline"], serde_json::json!(["trainer", "--epochs", "3"]));
    assert_eq!(value["labels"], serde_json::json!({"arm": "A", "cuda": "12.9"}));
    assert_eq!(value["started_at"], "2026-12-01T02:03:04.567Z");
    assert_eq!(value["ended_at"], "2026-12-01T02:03:14.567Z");
    assert_eq!(value["termination"], "exit");
    assert_eq!(value["driver_version"], "13.0");
    assert_eq!(value["runtime_versions"], serde_json::json!(["12.9"]));
    assert_eq!(value["init_failures"].as_array().unwrap().len(), 1);
    for key in [
        "ordinal",
        "uuid",
        "name",
        "limit_bytes",
        "live_bytes",
        "peak_bytes",
        "alloc_count",
        "free_count",
        "denied_count",
    ] {
        assert!(!value["devices"][0][key].is_null(), "{key}");
    }
    for key in ["device", "api", "count", "bytes", "oldest_age_s", "stack"] {
        assert!(!value["leaks"][0][key].is_null(), "{key}");
    }
    let frame = value["leaks"][0]["stack"][0].as_object().unwrap();
    for key in ["module", "offset", "function", "file", "line"] {
        assert!(frame.contains_key(key), "{key}");
    }
    let again: Report = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&again).unwrap(), value);
}

#[test]
fn a_report_of_an_older_or_later_cuwarden_is_read() {
    let mut value = serde_json::to_value(report(&sample(), Termination::Killed)).unwrap();
    let object = value.as_object_mut().unwrap();
    for added in ["modules", "lost_records", "damaged_parts", "damages"] {
        object.remove(added);
    }
    object.insert("new_field".to_owned(), serde_json::json!([1, 2]));
    object.insert("termination".to_owned(), serde_json::json!("evaporated"));
    let report: Report = serde_json::from_value(value).unwrap();
    assert_eq!(report.termination, Termination::Unknown);
}

#[test]
fn the_text_says_sums_places_and_what_to_do() {
    let mut report = report(&sample(), Termination::Exit);
    report.leaks[1].stack[0] = Frame {
        module: Some("/opt/app/trainer".to_owned()),
        function: Some("load_weights".to_owned()),
        file: Some("src/train.c".to_owned()),
        line: Some(31),
        ..Frame::default()
    };
    let text = text::one(&report, &Style::PLAIN);
    for words in [
        "Leak: 5.27 KiB not freed, in 5 allocations from 2 call stacks",
        "trainer --epochs 3",
        "arm=A, cuda=12.9",
        "load_weights",
        "src/train.c:31",
        "Held by the driver",
        "Start with load_weights (src/train.c:31)",
        "cudaMemPoolTrimTo",
    ] {
        assert!(text.contains(words), "{words} is missing in:\n{text}");
    }
    assert!(!text.contains('\x1b'));
    assert!(text::one(&report, &Style { colour: true, width: 80 }).contains('\x1b'));
}

#[test]
fn every_state_has_words_of_its_own() {
    let empty = RecordFile::new();
    let line = |file: &RecordFile, termination| text::headline(&report(file, termination), &Style::PLAIN);
    assert!(line(&empty, Termination::Exit).starts_with("No leak"));
    assert!(line(&empty, Termination::Running).contains("at this moment"));
    assert!(line(&sample(), Termination::Running).contains("allocated now"));
    assert!(line(&sample(), Termination::Killed).contains("when it was killed"));
    let unknown = text::one(&report(&sample(), Termination::Unknown), &Style::PLAIN);
    assert!(unknown.contains("another pid namespace"), "{unknown}");
}

#[test]
fn lines_fit_the_terminal_and_names_cannot_rewrite_it() {
    let mut report = report(&sample(), Termination::Exit);
    report.cmdline = vec!["x".repeat(300), "\x1b]0;title\x07".to_owned()];
    for leak in &mut report.leaks {
        for frame in &mut leak.stack {
            frame.function = Some(format!("std::vector<{}>::\x1b[2J", "int,".repeat(100)));
            frame.file = Some(format!("/very/{}/file.cc", "long/".repeat(60)));
            frame.line = Some(7);
        }
    }
    let text = text::one(&report, &Style { colour: false, width: 72 });
    assert!(!text.contains('\x1b') && !text.contains('\x07'));
    for line in text.lines() {
        assert!(line.chars().count() <= 72, "{line}");
    }
    assert!(text.contains("file.cc:7"), "{text}");
}

#[test]
fn a_large_report_is_grouped() {
    let mut file = RecordFile::new();
    let stacks: Vec<u32> = (0..1000).map(|i| file.stack(&[(0, i), (0, 1), (0, 2)])).collect();
    for i in 0..100_000u64 {
        let stack = stacks[(i % 1000) as usize];
        file.allocation(Allocation { address: i, bytes: 1 + i % 1000, stack, ..Allocation::default() });
    }
    let report = report(&file, Termination::Killed);
    assert_eq!(report.leaks.len(), 1000);
    assert_eq!(report.leaks[0].bytes, 1000 * 100);
    assert_eq!(report.leaks.iter().map(|leak| leak.count).sum::<u64>(), 100_000);
}
