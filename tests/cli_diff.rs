//! `cuwarden diff` as a user or a script sees it: what it reads, what it prints, how it ends.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod cli_support;
mod common;

use std::mem::offset_of;
use std::process::{Command, Output, Stdio};

use cli_support::Temp;
use cli_support::record_file::{Allocation, RecordFile};
use common::artefacts::{cli, root, shim};
use common::process::run;
use cuwarden::record::layout::Header;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

fn diff(temp: &Temp, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cuwarden"));
    command.arg("diff").args(arguments).current_dir(temp.path()).stdin(Stdio::null()).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn ends(output: &Output, status: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{text}{}", out(output));
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
}

fn report(number: u32, labels: Value, runtime: &str, bytes: u64) -> Value {
    let frame = |function: &str| {
        json!({"module": format!("/cuda-{runtime}/libtrain.so.{runtime}"), "offset": 7 * number, "function": function,
            "file": "train.cc", "line": number})
    };
    json!({
        "schema": "cuwarden.report/1", "pid": 100 + number, "ppid": 1, "exe": "/opt/train", "cmdline": ["train"],
        "labels": labels, "started_at": format!("2026-12-01T00:00:{number:02}.000Z"), "ended_at": null,
        "termination": "exit", "driver_version": "13.5", "runtime_versions": [runtime],
        "devices": [{"ordinal": 0, "uuid": "GPU-0", "name": "Card", "limit_bytes": 0, "live_bytes": bytes,
            "peak_bytes": bytes, "alloc_count": 1, "free_count": 0, "denied_count": 0}],
        "leaks": [{"device": 0, "api": "cudaMalloc", "count": 1, "bytes": bytes, "oldest_age_s": 1.0,
            "stack": [frame("grow"), frame("main")]}],
        "init_failures": [],
    })
}

fn put(temp: &Temp, path: &str, report: &Value) {
    let path = temp.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, report.to_string()).unwrap();
}

/// One report for each of these sizes, in a folder.
fn arm(temp: &Temp, folder: &str, arm: &str, runtime: &str, sizes: &[u64]) {
    for (place, bytes) in sizes.iter().enumerate() {
        let number = place as u32 + 1;
        let report = report(number, json!({"arm": arm}), runtime, *bytes);
        put(temp, &format!("{folder}/cuwarden-{}.json", 100 + number), &report);
    }
}

/// Both arms in `a` and `b`: B leaks twice as much.
fn twice(name: &str) -> Temp {
    let temp = Temp::new(name);
    arm(&temp, "a", "A", "12.9", &[MIB; 6]);
    arm(&temp, "b", "B", "13.5", &[2 * MIB; 6]);
    temp
}

fn parsed(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", out(output)))
}

#[test]
fn a_worse_arm_ends_with_1_beyond_the_threshold_only() {
    let temp = twice("diff-gate");
    ends(&diff(&temp, &["a", "b"]), 1, &[]);
    ends(&diff(&temp, &["a", "b", "--threshold", "99"]), 1, &[]);
    ends(&diff(&temp, &["a", "b", "--threshold", "100%"]), 0, &[]);
    ends(&diff(&temp, &["b", "a"]), 0, &[]);
    ends(&diff(&temp, &["a", "a"]), 0, &[]);
    let text = out(&diff(&temp, &["a", "b"]));
    for words in [
        "B leaks more than A: +1.00 MiB a run (+100 %), beyond noise.",
        "arm=A",
        "driver 13.5, runtime 12.9; 6 runs",
        "driver 13.5, runtime 13.5; 6 runs",
        "grow",
        "95 % interval",
    ] {
        assert!(text.contains(words), "{words} is missing in:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // One stack, though addresses, lines and the library's file differ.
    let stacks = parsed(&diff(&temp, &["a", "b", "--format", "json"]))["stacks"].clone();
    assert_eq!(stacks.as_array().unwrap().len(), 1, "{stacks}");
    assert_eq!(stacks[0]["only_in"], Value::Null);
}

#[test]
fn the_json_has_the_fields_of_the_schema() {
    let temp = twice("diff-json");
    let value = parsed(&diff(&temp, &["a", "b", "--format", "json", "--threshold", "5"]));
    assert_eq!((&value["schema"], &value["failed"]), (&json!("cuwarden.diff/1"), &json!(true)));
    assert_eq!(value["threshold_percent"], 5.0);
    assert_eq!(
        value["method"],
        json!({"test": "mann-whitney-exact", "difference": "hodges-lehmann", "correction": "holm", "confidence": 0.95,
            "min_runs": 4})
    );
    assert_eq!(
        value["b"],
        json!({"path": "b", "labels": {"arm": "B"}, "driver_version": "13.5", "runtime_versions": ["13.5"],
            "devices": ["Card"], "runs": 6, "processes": 6})
    );
    let total = &value["total"];
    assert_eq!(total["measure"], "bytes_per_run");
    assert_eq!(total["a"], json!({"median": MIB, "runs_above_zero": 6, "values": vec![MIB; 6]}));
    assert_eq!((&total["difference"], &total["percent"]), (&json!(MIB), &json!(100.0)));
    assert_eq!((&total["interval"]["low"], &total["interval"]["high"]), (&json!(MIB), &json!(MIB)));
    assert!(total["interval"]["confidence"].as_f64().unwrap() >= 0.95);
    assert_eq!((&total["verdict"], &total["beyond_threshold"]), (&json!("worse"), &json!(true)));
    let stack = &value["stacks"][0];
    assert_eq!(
        stack["stack"][0],
        json!({"matched_by": "function", "module": "libtrain.so", "function": "grow", "offset": null})
    );
    assert_eq!((&stack["apis"], &stack["by_module_alone"]), (&json!(["cudaMalloc"]), &json!([])));
    assert!(stack["p_corrected"].as_f64().unwrap() <= 0.05 && stack["example"][0]["file"] == "train.cc");
    for other in ["peak_bytes", "context_bytes", "held_by_driver_bytes"] {
        assert!(value["others"][other]["verdict"].is_string(), "{other}");
    }
    assert!(value["notes"].is_array());
}

#[test]
fn the_same_input_gives_the_same_bytes_whatever_the_files_are_called() {
    let temp = twice("diff-order");
    for (place, entry) in std::fs::read_dir(temp.join("b")).unwrap().enumerate() {
        let name = format!("other/{:02}.json", 20 - place);
        std::fs::create_dir_all(temp.join("other")).unwrap();
        std::fs::copy(entry.unwrap().path(), temp.join(&name)).unwrap();
    }
    for format in ["text", "json", "html"] {
        let print = |b: &str| out(&diff(&temp, &["a", b, "--format", format])).replace("other", "b");
        assert_eq!(print("b"), print("other"), "{format}");
        assert_eq!(print("b"), print("b"), "{format}");
    }
}

#[test]
fn hostile_names_are_shown_and_not_obeyed() {
    let temp = Temp::new("diff-hostile");
    let evil = "</style><script>alert(1)</script>\u{1b}[2J&";
    for folder in ["a", "b"] {
        for number in 1..=4 {
            let mut report = report(number, json!({evil: evil}), "13.5", MIB);
            report["leaks"][0]["stack"][0]["function"] = json!(evil);
            report["leaks"][0]["stack"][0]["file"] = json!(evil);
            report["leaks"][0]["api"] = json!(evil);
            report["devices"][0]["name"] = json!(evil);
            put(&temp, &format!("{folder}/{number}.json"), &report);
        }
    }
    let page = out(&diff(&temp, &["a", "b", "--format", "html"]));
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    assert!(
        !page.contains("<script") && !page.contains('\u{1b}') && page.contains("&lt;script&gt;"),
        "{page}"
    );
    assert!(!out(&diff(&temp, &["a", "b"])).contains('\u{1b}'));
}

#[test]
fn folders_within_an_arm_and_the_label_run_make_runs() {
    let temp = Temp::new("diff-runs");
    for folder in ["a", "b"] {
        for number in 1..=8 {
            let report = report(number, json!({}), "13.5", MIB);
            // In containers all processes have one number, and so their reports one name.
            put(&temp, &format!("{folder}/{}/cuwarden-{}.json", number / 2, number % 2), &report);
        }
        temp.write(&format!("{folder}/1/stdout.log"), "epoch 1\n");
    }
    let value = parsed(&diff(&temp, &["a", "b", "--format", "json"]));
    assert_eq!((&value["a"]["runs"], &value["a"]["processes"]), (&json!(5), &json!(8)));
    assert_eq!(value["total"]["a"]["median"], 2 * MIB);
    // An arm in one file, as `cuwarden report --format json` writes it.
    let list = |run: fn(u32) -> u32| -> Vec<Value> {
        (1..=8).map(|number| report(number, json!({"run": run(number).to_string()}), "13.5", MIB)).collect()
    };
    put(&temp, "one.json", &json!(list(|number| number % 4)));
    let value = parsed(&diff(&temp, &["one.json", "b", "--format", "json"]));
    assert_eq!((&value["a"]["runs"], &value["a"]["processes"]), (&json!(4), &json!(8)));
}

#[test]
fn both_arms_may_lie_in_one_folder_and_be_chosen_by_label() {
    let temp = Temp::new("diff-labels");
    arm(&temp, "all/x", "A", "12.9", &[MIB; 5]);
    arm(&temp, "all/y", "B", "13.5", &[MIB; 5]);
    let one_folder_a_run = ["all", "all", "--label-a", "arm=A", "--label-b", "arm=B"];
    ends(&diff(&temp, &one_folder_a_run), 0, &["too few runs for a verdict: A has 1, B has 1"]);
    for number in 1..=5 {
        put(
            &temp,
            &format!("flat/a{number}.json"),
            &report(number, json!({"arm": "A", "host": number.to_string()}), "12.9", MIB),
        );
        put(&temp, &format!("flat/b{number}.json"), &report(number, json!({"arm": "B"}), "13.5", 3 * MIB));
    }
    ends(
        &diff(&temp, &["flat", "flat"]),
        64,
        &["A mixes labels: arm=A (5), arm=B (5)", "--label-a arm=VALUE"],
    );
    let chosen = ["flat", "flat", "--label-a", "arm=A", "--label-b", "arm=B"];
    ends(&diff(&temp, &chosen), 64, &["A mixes labels: host=1 (1)", "--vary host"]);
    ends(&diff(&temp, &[&chosen[..], &["--vary", "host"]].concat()), 1, &[]);
    ends(&diff(&temp, &["flat", "flat", "--label-a", "arm=C"]), 66, &["none has the label of --label-a"]);
}

#[test]
fn mixed_versions_are_no_arm() {
    let temp = twice("diff-mixed");
    put(&temp, "a/late.json", &report(40, json!({"arm": "A"}), "13.5", MIB));
    ends(&diff(&temp, &["a", "b"]), 64, &["A mixes CUDA runtimes: runtime 12.9 (6), runtime 13.5 (1)"]);
    let mut old = report(41, json!({"arm": "B"}), "13.5", MIB);
    old["driver_version"] = json!("12.4");
    put(&temp, "b/old.json", &old);
    std::fs::remove_file(temp.join("a/late.json")).unwrap();
    ends(&diff(&temp, &["a", "b"]), 64, &["B mixes drivers: CUDA 12.4 (1), CUDA 13.5 (6)"]);
}

#[test]
fn too_few_runs_are_no_verdict() {
    let temp = twice("diff-few");
    let few = diff(&temp, &["a/cuwarden-101.json", "b/cuwarden-101.json"]);
    ends(&few, 0, &["too few runs for a verdict: A has 1, B has 1, and 4 of each are needed"]);
    let text = out(&few);
    assert!(text.contains("Too few runs for a verdict. What was seen: +1.00 MiB a run (+100 %)"), "{text}");
    assert!(!text.contains("95 % interval"), "{text}");
}

#[test]
fn record_files_are_read_as_reports_are() {
    let temp = Temp::new("diff-records");
    for (folder, bytes) in [("a", MIB), ("b", 2 * MIB)] {
        std::fs::create_dir_all(temp.join(&format!("{folder}/proc"))).unwrap();
        // What a CUWARDEN_DIR has beside its records is not looked at.
        std::fs::create_dir_all(temp.join(&format!("{folder}/sim"))).unwrap();
        temp.write(&format!("{folder}/sim/other.json"), "{}");
        temp.write(&format!("{folder}/ledger"), "no report");
        for number in 0..5 {
            let mut file = RecordFile::new();
            let stack = file.stack(&[(1, 0x10)]);
            file.module(1, "/gone/train", &[0xab; 20]);
            file.allocation(Allocation { stack, bytes, ..Allocation::default() });
            file.u64(offset_of!(Header, started_ns), 1_796_090_584_000_000_000 + number * 1_000_000_000);
            file.ended(1_796_090_684_000_000_000);
            temp.write(&format!("{folder}/proc/{number}.rec"), file.bytes());
        }
    }
    let output = diff(&temp, &["a", "b", "--format", "json"]);
    ends(&output, 1, &[]);
    let value = parsed(&output);
    assert_eq!((&value["a"]["runs"], &value["total"]["difference"]), (&json!(5), &json!(MIB)));
    // The file is gone, but it was the same build: frames are known by address.
    assert_eq!(value["stacks"][0]["stack"][0]["matched_by"], "offset");
    assert!(value["notes"].to_string().contains("label arm=A"), "{}", value["notes"]);
}

#[test]
fn what_cannot_be_read_is_66_and_wrong_use_64() {
    let temp = twice("diff-unreadable");
    ends(&diff(&temp, &["a", "nowhere"]), 66, &["cannot read B, nowhere"]);
    std::fs::create_dir_all(temp.join("empty")).unwrap();
    ends(&diff(&temp, &["empty", "b"]), 66, &["A, empty: there is no report in it", "--report DIR"]);
    temp.write("text", "nothing of ours");
    ends(&diff(&temp, &["text", "b"]), 66, &["neither a report"]);
    let mut running = report(1, json!({}), "13.5", MIB);
    running["termination"] = json!("running");
    put(&temp, "running.json", &running);
    ends(&diff(&temp, &["a", "running.json"]), 66, &["still running", "no run that can be judged"]);
    for arguments in [
        &["a"][..],
        &["a", "b", "--threshold", "-1"],
        &["a", "b", "--threshold", "nan"],
        &["a", "b", "--threshold", "much"],
        &["a", "b", "--label-a", "arm"],
        &["a", "b", "--format", "pdf"],
    ] {
        ends(&diff(&temp, arguments), 64, &[]);
    }
    // A gate must not pass on half of the files; what is worse is worse all the same.
    temp.write("a/cut.json", "{\"schema\":");
    ends(&diff(&temp, &["b", "a"]), 66, &["cut.json", "1 file could not be read"]);
    ends(&diff(&temp, &["a", "b"]), 1, &["cut.json"]);
}

#[test]
fn what_is_known_is_left_out_and_allocators_can_be_folded() {
    let temp = twice("diff-known");
    temp.write("known.txt", "function:gro*\nfunction:nobody\n");
    let output = diff(&temp, &["a", "b", "--suppressions", "known.txt"]);
    ends(&output, 0, &["known.txt:2: no leak fits"]);
    let text = out(&output);
    assert!(text.contains("Neither A nor B leaks"), "{text}");
    assert!(text.contains("B: suppressions left out 6 allocations, 12.0 MiB"), "{text}");
    ends(&diff(&temp, &["a", "b", "--suppressions", "nowhere"]), 66, &["nowhere"]);
    ends(&diff(&temp, &["a", "b", "--fold", "api:x"]), 64, &[]);
    // An allocator that has another name in each version stands between what is the same.
    for (folder, name) in [("a", "old_alloc"), ("b", "new_alloc")] {
        for number in 1..=4 {
            let mut report = report(number, json!({}), "13.5", MIB);
            report["leaks"][0]["stack"][0]["function"] = json!(name);
            put(&temp, &format!("fold/{folder}/{number}.json"), &report);
        }
    }
    let stacks = |more: &[&str]| {
        let arguments = [&["fold/a", "fold/b", "--format", "json"], more].concat();
        parsed(&diff(&temp, &arguments))["stacks"].as_array().unwrap().len()
    };
    assert_eq!((stacks(&[]), stacks(&["--fold", "function:*_alloc"])), (2, 1));
}

#[test]
fn help_has_an_example() {
    let text = out(&diff(&Temp::new("diff-help"), &["--help"]));
    assert!(text.contains("cuwarden diff --threshold 5 a b"), "{text}");
}

#[test]
fn the_example_experiment_gives_what_the_documents_show() {
    shim();
    let done = run(Command::new(root().join("scripts/ab-example")).arg("--check").env("CUWARDEN", cli()));
    done.succeeded();
}

#[test]
fn the_readme_shows_what_the_example_prints() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let example = std::fs::read_to_string(root().join("docs/ab-example.txt")).unwrap();
    let (_, shown) =
        readme.split_once("$ cuwarden diff --threshold 5 a b\nB ").expect("the README has the command");
    let (shown, _) = shown.split_once("\n  …\n").expect("it is cut short");
    assert!(example.contains(shown), "README.md shows:\n{shown}\nand docs/ab-example.txt has:\n{example}");
}
