//! `cuwarden check`: verdicts, exit status, and what is said.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod cli_support;

use std::process::{Command, Output};

use cli_support::Temp;
use serde_json::{Value, json};

fn check(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cuwarden")).arg("check").args(arguments).output().unwrap()
}

/// Arguments in one string, for tables.
#[track_caller]
fn says(arguments: &str, status: i32, words: &[&str]) {
    let out = check(&arguments.split(' ').collect::<Vec<_>>());
    let [stdout, stderr] =
        [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let told = format!("{arguments}\n{}\n{stdout}\n{stderr}", out.status);
    assert_eq!(out.status.code(), Some(status), "{told}");
    let text = if status < 64 { &stdout } else { &stderr };
    for word in words {
        assert!(text.contains(word), "{word:?} is missing: {told}");
    }
    assert!(status >= 64 || stderr.is_empty(), "{told}");
    assert!(status < 64 || stdout.is_empty(), "{told}");
}

#[track_caller]
fn json_of(arguments: &str) -> Value {
    let out = check(&format!("{arguments} --json").split(' ').collect::<Vec<_>>());
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{arguments}: {e}: {out:?}"))
}

#[test]
fn the_plain_rules() {
    says(
        "--driver 12.4 --runtime 12.4",
        0,
        &["driver CUDA 12.4 (release 550.54.14", "runtime 12.4", "fine:"],
    );
    says("--driver 13.0 --runtime 12.9", 0, &["fine:"]);
    says(
        "--driver 12.2 --runtime 12.8",
        1,
        &["warning: ", "[runtime-minor]", "driver 570.26 or newer", "PyTorch 2.5 (CUDA 12.1)"],
    );
    says("--driver 12.2 --runtime 12.8 --strict", 2, &["blocked: ", "[runtime-minor]"]);
    says(
        "--driver 12.2 --runtime 13.0",
        2,
        &["blocked: ", "[runtime-major]", "CUDA 13.x: driver 580.65.06 or newer"],
    );
    says("--driver 13.0 --runtime 11.8", 1, &["warning: ", "[major-gap]"]);
    says("--driver 13000 --runtime 12090", 0, &["driver CUDA 13.0", "runtime 12.9"]);
}

#[test]
fn the_rules_of_a_baseline() {
    says("--driver 12.4 --runtime 12.4 --baseline 12.4", 0, &["baseline 12.4", "fine:"]);
    says("--driver 12.9 --runtime 12.8 --baseline 12.4", 2, &["[baseline-runtime]"]);
    says("--driver 12.2 --runtime 12.4 --baseline 12.4", 2, &["[baseline-driver]"]);
    says(
        "--driver 12.4 --runtime 11.8 --baseline 12.4",
        2,
        &["[baseline-runtime-major]", "CUWARDEN_BASELINE_ALLOW=EXE=11.8"],
    );
    says("--driver 13.0 --runtime 12.4 --baseline 12.4", 2, &["[baseline-driver-major]"]);
    // Each broken rule has a line.
    let out = check(&["--driver", "13.0", "--runtime", "13.0", "--baseline", "12.4"]);
    assert_eq!(String::from_utf8_lossy(&out.stdout).lines().count(), 3, "{out:?}");
}

#[test]
fn exceptions_of_the_baseline() {
    let with = |allow: &str, exe: &[&str]| {
        let arguments = ["check", "--driver", "12.4", "--runtime", "11.8", "--baseline", "12.4"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_cuwarden"));
        let out = command.args(arguments).args(exe).env("CUWARDEN_BASELINE_ALLOW", allow).output().unwrap();
        let told =
            [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (out.status.code(), told)
    };
    let (status, told) = with("trainer*=11.8,old=11.7", &["--exe", "/opt/trainer2"]);
    assert!(status == Some(1) && told.contains("[baseline-exception]"), "{told}");
    let (status, told) = with("trainer*=11.8", &["--exe", "/opt/other"]);
    assert!(status == Some(2) && told.contains("lets these use it: trainer*. ["), "{told}");
    let (status, told) = with("trainer*=11.8", &[]);
    assert!(status == Some(2) && told.contains("Name the program with --exe"), "{told}");
    let (status, told) = with("trainer", &[]);
    assert!(status == Some(64) && told.contains("CUWARDEN_BASELINE_ALLOW=\"trainer\""), "{told}");
    assert_eq!(with("", &["--exe", "/opt/trainer"]).0, Some(2));
    says("--driver 12.4 --runtime 11.8 --exe /x", 64, &["--baseline"]);
}

#[test]
fn a_whole_card() {
    says("--driver 12.9 --runtime 12.8 --baseline 12.4 --whole-card", 0, &["a whole card", "fine:"]);
    says("--driver 12.4 --runtime 12.8 --baseline 12.4 --whole-card", 1, &["[runtime-minor]"]);
}

#[test]
fn a_driver_by_its_release() {
    says("--driver 535.183.01 --runtime 12.2", 0, &["driver 535.183.01 (CUDA 12.2), runtime 12.2", "fine:"]);
    // As measured: the runtime of 13.5 answers 35 over libcuda 535, those of 11.8 and 12.9 start.
    says("--driver 535.261.03 --runtime 13.5", 2, &["[runtime-major]", "(cudaErrorInsufficientDriver, 35)"]);
    says("--driver 535.261.03 --runtime 12.9", 1, &["[runtime-minor]"]);
    says("--driver 535.261.03 --runtime 11.8", 0, &["fine:"]);
    says("--driver 450.51.05 --runtime 11.8", 1, &["[runtime-minor]", "[driver-release]", "450.80.02"]);
    says("--driver 999.10 --runtime 12.4", 3, &["unknown: ", "[driver-unknown]", "--matrix"]);
    says("--driver 440.33 --runtime 10.2", 3, &["[driver-unknown]"]);
}

#[test]
fn as_json() {
    let fine = json_of("--driver 550.163.01 --runtime 12.4 --baseline 12.4");
    assert_eq!(fine["schema"], "cuwarden.check/1");
    assert_eq!(fine["verdict"], "fine");
    assert_eq!(fine["driver"], json!({ "cuda": "12.4", "release": "550.163.01" }));
    assert_eq!((&fine["runtime"], &fine["baseline"]), (&json!("12.4"), &json!("12.4")));
    assert_eq!(fine["findings"], json!([]));
    assert_eq!(fine["toolkit"]["driver"], "550.54.14");
    assert!(fine["toolkit"]["source"].as_str().unwrap().contains("Release Notes"));
    assert_eq!(fine["family"]["driver"], "525.60.13");
    let blocked = json_of("--driver 12.4 --runtime 13.0 --baseline 12.4");
    assert_eq!(blocked["verdict"], "blocked");
    let rules: Vec<&str> = blocked["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["rule"].as_str().unwrap())
        .collect();
    assert_eq!(rules, ["runtime-major", "baseline-runtime"]);
    for key in ["outcome", "reason", "action"] {
        assert!(blocked["findings"][0][key].is_string(), "{key}");
    }
    let unknown = json_of("--driver 999.10 --runtime 12.4");
    assert_eq!((&unknown["verdict"], &unknown["driver"]["cuda"]), (&json!("unknown"), &Value::Null));
}

#[test]
fn a_sites_own_table() {
    let temp = Temp::new("check");
    let path = temp.write(
        "own.tsv",
        "# ours\ntoolkit\tCUDA Toolkit\t14.0\t14.0\t700.10\tnotes of ours, 1\ntool\tour agent\t2\t-\t700.50\tnotes of ours, 1\n",
    );
    let path = path.display();
    says(
        &format!("--driver 700.60 --runtime 14.0 --matrix {path}"),
        0,
        &["driver 700.60 (CUDA 14.0)", "fine:"],
    );
    says(&format!("--driver 700.20 --runtime 14.0 --matrix {path}"), 1, &["[tool-driver]", "our agent 2"]);
    says(&format!("--driver 535.54.03 --runtime 12.2 --matrix {path}"), 3, &["[driver-unknown]"]);
    let broken = temp.write("broken.tsv", "toolkit\tCUDA Toolkit\t14.0\t14.0\n");
    says(
        &format!("--driver 12.4 --runtime 12.4 --matrix {}", broken.display()),
        66,
        &["line 1", "4 columns"],
    );
    says("--driver 12.4 --runtime 12.4 --matrix /no/such/file", 66, &["/no/such/file"]);
    // The one that comes with cuwarden is such a file.
    let built_in = concat!(env!("CARGO_MANIFEST_DIR"), "/src/policy/versions/matrix.tsv");
    says(&format!("--driver 535.54.03 --runtime 12.2 --matrix {built_in}"), 0, &["(CUDA 12.2)"]);
}

#[test]
fn used_wrongly() {
    for (arguments, words) in [
        ("--driver 12 --runtime 12.4", "535.183.01"),
        ("--driver 12.4", "--runtime"),
        ("--driver 12.4 --runtime twelve", "12.4"),
        ("--driver 12.4 --runtime 535.183.01", "12.4"),
        ("--driver 12.4 --runtime 12.4 --baseline 12.4.1", "12.4"),
        ("--driver 12.4 --runtime 12.4 --sideways", "--sideways"),
    ] {
        says(arguments, 64, &[words]);
    }
    let help = check(&["--help"]);
    assert!(help.status.success());
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    for words in ["Examples:", "Exit status:", "--whole-card", "535.183.01"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}
