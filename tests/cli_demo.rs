//! The demo and `run --sim`, with the real shim on the simulated GPU.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod cli_support;
mod common;
#[path = "cli_support/simulated.rs"]
mod simulated;

use std::path::{Path, PathBuf};

use cli_support::Temp;
use common::artefacts::root;
use common::process::run;
use serde_json::Value;
use simulated::{cuwarden, program};

fn reports(temp: &Temp) -> Vec<Value> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(temp.join("reports")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect()
}

/// The line of demo/forgetful.c that holds these words.
fn line_of(words: &str) -> usize {
    let source = std::fs::read_to_string(root().join("demo/forgetful.c")).unwrap();
    1 + source.lines().position(|line| line.contains(words)).unwrap()
}

#[test]
fn the_demo_shows_three_results() {
    let temp = Temp::new("demo");
    let mut command = cuwarden(&temp, &["demo"]);
    // What is set for other programs does not change it.
    command.env("CUWARDEN_MEMORY_LIMIT", "1").env("CUDA_VISIBLE_DEVICES", "").env("CUWARDEN_DISABLE", "1");
    let out = run(&mut command).succeeded();
    assert_eq!(out.stderr, "");
    for words in [
        "simulated",
        "Leak: 16.0 MiB not freed, in 7 allocations from 2 call stacks",
        &format!("load_weights  demo/forgetful.c:{}", line_of("cudaMalloc(&weights")),
        &format!("remember_gradients  demo/forgetful.c:{}", line_of("cudaMalloc(&history")),
        "cudaError_t error = cudaMalloc(&weights[layer], 4 * MIB);",
        "cudaMalloc(24 MiB): out of memory",
        "quota_denied",
        "25165824 (24.0 MiB)",
        "335544320 (320 MiB)",
        "init_failure",
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "cudaFree(NULL): initialization error",
        &format!("make_context  demo/forgetful.c:{}", line_of("error = cudaFree(NULL)")),
    ] {
        assert!(out.stdout.contains(words), "{words:?} is missing in:\n{}", out.stdout);
    }
    assert!(!out.stdout.contains('\x1b'), "no colour outside a terminal");
    // Its directory, whose name is in the report, is gone.
    let pid = out.stdout.lines().find_map(|line| line.trim().strip_prefix("process")).unwrap();
    assert!(pid.contains("ended by itself"));
    assert!(!out.stdout.contains("What is shown is"), "no damage");
}

#[test]
fn a_leak_is_reported_at_exit_and_told_on_stderr() {
    let temp = Temp::new("sim-leak");
    let program = program(&temp, "keep(1 << 20); keep(3 << 20); cudaFree(keep(5 << 20)); return 7;");
    let arguments =
        ["run", "--sim", "--report", "reports", "--label", "arm=A", "--", program.to_str().unwrap()];
    let out = run(&mut cuwarden(&temp, &arguments)).exited(7);
    assert!(out.stderr.contains("leaked 4.00 MiB in 2 allocations, most from keep"), "{}", out.stderr);
    let report = &reports(&temp)[0];
    assert_eq!(report["termination"], "exit");
    assert_eq!(report["labels"]["arm"], "A");
    assert_eq!(report["devices"][0]["live_bytes"], 4 << 20);
    assert_eq!(report["devices"][0]["peak_bytes"], 9 << 20);
    let sizes: Vec<_> =
        report["leaks"].as_array().unwrap().iter().map(|leak| leak["bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [3 << 20, 1 << 20]);
    run(&mut cuwarden(&temp, &["report", "reports", "--fail-on-leak"])).exited(1);

    // Without a folder for reports the record file stays, and nothing else.
    let out = run(&mut cuwarden(&temp, &["run", "--sim", "--", program.to_str().unwrap()])).exited(7);
    let kept = Path::new(out.stderr.trim_end().rsplit(' ').next().unwrap());
    assert!(kept.join("proc").is_dir() && !kept.join("sim").exists(), "{}", out.stderr);
    let shown = run(&mut cuwarden(&temp, &["report", kept.to_str().unwrap()])).succeeded();
    assert!(shown.stdout.contains("program.c:"), "{}", shown.stdout);
    std::fs::remove_dir_all(kept).unwrap();
}

#[test]
fn a_program_that_frees_all_leaves_nothing_behind() {
    let temp = Temp::new("sim-clean");
    let program = program(&temp, "cudaFree(keep(1 << 20)); return puts(getenv(\"CUWARDEN_DIR\")) < 0;");
    let out =
        run(&mut cuwarden(&temp, &["run", "--sim", "--report", "reports", "--", program.to_str().unwrap()]));
    let out = out.succeeded();
    assert_eq!(out.stderr, "");
    assert!(!Path::new(out.stdout.trim()).exists());
    run(&mut cuwarden(&temp, &["report", "reports", "--fail-on-leak"])).succeeded();
}

#[test]
fn a_killed_program_gets_an_exact_report() {
    let temp = Temp::new("sim-killed");
    let program = program(
        &temp,
        "for (int i = 0; i < 5000; i++) { void *p = keep(4096); if (i % 3) cudaFree(p); }\n    kill(getpid(), SIGKILL);",
    );
    let arguments = ["run", "--sim", "--report", "reports", "--", program.to_str().unwrap()];
    let out = run(&mut cuwarden(&temp, &arguments)).exited(128 + 9);
    assert!(out.stderr.contains("was killed and held 6.51 MiB in 1667 allocations"), "{}", out.stderr);
    let report = &reports(&temp)[0];
    assert_eq!(report["termination"], "killed");
    assert_eq!(report["leaks"][0]["count"], 1667);
    assert_eq!(report["leaks"][0]["bytes"], 1667 * 4096);
    let names: Vec<_> =
        report["leaks"][0]["stack"].as_array().unwrap().iter().map(|f| f["function"].clone()).collect();
    assert!(names.contains(&"keep".into()), "{names:?}");
}

#[test]
fn the_quota_of_the_option_is_kept() {
    let temp = Temp::new("sim-quota");
    let program = program(&temp, "return keep(3 << 20) && !keep(3 << 20) ? 0 : 1;");
    let arguments =
        ["run", "--sim", "--memory-limit", "260MiB", "--report", "reports", "--", program.to_str().unwrap()];
    let out = run(&mut cuwarden(&temp, &arguments)).succeeded();
    assert!(out.stderr.contains("the quota of 260 MiB on GPU 0 refused 1 request"), "{}", out.stderr);
    assert_eq!(reports(&temp)[0]["devices"][0]["denied_count"], 1);
}
