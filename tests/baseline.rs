//! Version baselines over the simulated GPU: what cuInit answers, what is said of it, and what the report has.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

use std::process::Command;

use common::process::{Finished, run};
use common::sim::Sim;
use common::{artefacts, cc};
use serde_json::{Value, json};

const OK: &str = " 0";
/// CUDA_ERROR_SYSTEM_DRIVER_MISMATCH.
const REFUSED: &str = " 803";
/// CUDA_ERROR_NOT_PERMITTED.
const MISCONFIGURED: &str = " 800";
/// The simulated runtime's answer when cuInit failed, whatever the code: cudaErrorInitializationError.
const NOT_STARTED: &str = " 3";

/// A part of a card, with a baseline and a driver.
struct Case {
    sim: Sim,
    driver: &'static str,
    variables: Vec<(&'static str, String)>,
}

impl Case {
    fn new(driver: &'static str, baseline: &str) -> Case {
        let variables =
            vec![("CUWARDEN_BASELINE", baseline.to_owned()), ("CUWARDEN_MEMORY_LIMIT", "4GiB".to_owned())];
        Case { sim: Sim::new(), driver, variables }
    }

    fn with(mut self, name: &'static str, value: &str) -> Case {
        self.variables.retain(|(known, _)| *known != name);
        self.variables.push((name, value.to_owned()));
        self
    }

    fn command(&self, steps: &[&str]) -> Command {
        let mut command = self.sim.shimmed(cc::program("tests/programs/baseline/steps.c", &[]));
        command.args(steps).env("CUWARDEN_SIM_DRIVER", self.driver);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Goes through the steps; each must answer as it says here.
    #[track_caller]
    fn goes(&self, steps: &[(&str, &str)]) -> Finished {
        let names: Vec<&str> = steps.iter().map(|(step, _)| *step).collect();
        let out = run(&mut self.command(&names)).succeeded();
        let expected: Vec<String> = steps
            .iter()
            .map(|(step, answer)| step.split('=').next().unwrap_or(step).to_owned() + answer)
            .collect();
        assert_eq!(out.lines(), expected, "{}", out.told());
        out
    }

    #[track_caller]
    fn violations(&self) -> Vec<Value> {
        self.sim.events_named("baseline_violation")
    }

    #[track_caller]
    fn violation(&self) -> Value {
        let mut all = self.violations();
        assert_eq!(all.len(), 1, "one event was expected: {all:#?}");
        all.remove(0)
    }
}

#[track_caller]
fn assert_fields(event: &Value, expected: &[(&str, Value)]) {
    for (name, value) in expected {
        assert_eq!(&event[*name], value, "{name} in {event:#}");
    }
}

#[test]
fn a_runtime_that_keeps_the_baseline_starts() {
    let case = Case::new("12.9", "12.9");
    case.goes(&[("count=libcudart.so.12", OK), ("init", OK)]);
    assert!(case.sim.events().iter().all(|event| event["level"] != "warn" && event["level"] != "error"));
    assert_eq!(case.sim.report()["runtime_versions"], json!(["12.9"]));
}

#[test]
fn a_runtime_above_the_baseline_is_refused_and_the_event_says_all() {
    let case = Case::new("12.9", "12.4");
    case.goes(&[("count=libcudart.so.12", NOT_STARTED), ("init", REFUSED), ("init", REFUSED)]);
    let event = case.violation();
    assert_fields(
        &event,
        &[
            ("level", "error".into()),
            ("baseline", "12.4".into()),
            ("driver_version", "12.9".into()),
            ("runtime_version", "12.9".into()),
            ("runtime_is_exact", true.into()),
            ("rule", "baseline-runtime".into()),
            ("rules", json!(["baseline-runtime"])),
            ("outcome", "blocked".into()),
            ("mode", "enforce".into()),
            ("whole_card", false.into()),
        ],
    );
    let text = |name: &str| event[name].as_str().unwrap_or_else(|| panic!("no {name}: {event:#}")).to_owned();
    assert!(text("runtime_file").ends_with("/libcudart.so.12"), "{event:#}");
    assert!(text("exe").ends_with("/steps"), "{event:#}");
    assert!(
        text("message").contains("newer than the baseline 12.4") && text("action").contains("whole card")
    );
    let books = case.sim.temp.join("gpu/sim-books.bin");
    assert!(!books.exists(), "the driver makes its books in cuInit, which was not to be called");

    let report = case.sim.report();
    assert_eq!((&report["driver_version"], &report["runtime_versions"]), (&json!("12.9"), &json!(["12.9"])));
    let failure = &report["init_failures"][0];
    assert_fields(
        failure,
        &[
            ("api", "cuInit".into()),
            ("code", 803.into()),
            ("name", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH".into()),
        ],
    );
    assert_eq!(failure["causes"][0]["id"], "baseline-runtime");
    assert_eq!((&failure["baseline"], &failure["runtime_version"]), (&json!("12.4"), &json!("12.9")));
}

#[test]
fn the_driver_must_be_of_the_baselines_major_and_not_older_than_the_runtime() {
    let case = Case::new("12.8", "12.9");
    case.goes(&[("count=libcudart.so.12", NOT_STARTED)]);
    assert_fields(
        &case.violation(),
        &[("rule", "baseline-driver".into()), ("driver_version", "12.8".into())],
    );
    let case = Case::new("13.0", "12.9");
    case.goes(&[("count=libcudart.so.12", NOT_STARTED)]);
    assert_fields(&case.violation(), &[("rule", "baseline-driver-major".into())]);
    let case = Case::new("13.0", "13.0");
    case.goes(&[("count=libcudart.so.12", NOT_STARTED)]);
    assert_fields(&case.violation(), &[("rule", "baseline-runtime-major".into())]);
}

#[test]
fn a_program_without_a_runtime_is_held_to_the_driver() {
    let case = Case::new("12.2", "12.4");
    case.goes(&[("init", OK)]);
    assert_eq!(case.violations(), [Value::Null; 0]);
    let case = Case::new("13.0", "12.4");
    case.goes(&[("init", REFUSED)]);
    assert_fields(
        &case.violation(),
        &[
            ("runtime_version", Value::Null),
            ("runtime_file", Value::Null),
            ("rule", "baseline-driver-major".into()),
        ],
    );
}

#[test]
fn warn_only_says_it_and_off_does_not() {
    let case = Case::new("12.9", "12.4").with("CUWARDEN_BASELINE_MODE", "warn");
    case.goes(&[("count=libcudart.so.12", OK), ("init", OK)]);
    let event = case.violation();
    assert_fields(
        &event,
        &[
            ("level", "warn".into()),
            ("mode", "warn".into()),
            ("outcome", "blocked".into()),
            ("rule", "baseline-runtime".into()),
        ],
    );
    assert_eq!(case.sim.report()["init_failures"], json!([]));
    let case = Case::new("12.9", "12.4").with("CUWARDEN_BASELINE_MODE", "off");
    case.goes(&[("count=libcudart.so.12", OK)]);
    assert_eq!(case.violations(), [Value::Null; 0]);
    assert_eq!(case.sim.report()["runtime_versions"], json!(["12.9"]), "they are noted all the same");
}

#[test]
fn without_a_baseline_nothing_is_judged() {
    let case = Case::new("13.5", "");
    case.goes(&[
        ("count=libcudart.so.11.0", OK),
        ("count=libcudart.so.12", OK),
        ("count=libcudart.so.13", OK),
    ]);
    assert_eq!(case.violations(), [Value::Null; 0]);
    assert_eq!(case.sim.report()["runtime_versions"], json!(["11.8", "12.9", "13.5"]));
}

#[test]
fn an_exception_by_executable() {
    let case = Case::new("12.9", "12.4").with("CUWARDEN_BASELINE_ALLOW", "other=11.8,st?ps*=11.8");
    case.goes(&[("count=libcudart.so.11.0", OK)]);
    let event = case.violation();
    assert_fields(
        &event,
        &[
            ("level", "warn".into()),
            ("outcome", "warning".into()),
            ("rule", "baseline-exception".into()),
            ("runtime_version", "11.8".into()),
        ],
    );
    for allow in ["steps=11.7", "other=11.8", "/steps=11.8"] {
        let case = Case::new("12.9", "12.4").with("CUWARDEN_BASELINE_ALLOW", allow);
        case.goes(&[("count=libcudart.so.11.0", NOT_STARTED)]);
        assert_fields(&case.violation(), &[("rule", "baseline-runtime-major".into())]);
    }
    // It is for a major below the baseline's and for nothing else.
    let case = Case::new("12.9", "12.4").with("CUWARDEN_BASELINE_ALLOW", "steps=12.9");
    case.goes(&[("count=libcudart.so.12", NOT_STARTED)]);
}

#[test]
fn a_whole_card_is_held_to_the_plain_rules() {
    let whole = |driver| Case::new(driver, "12.4").with("CUWARDEN_MEMORY_LIMIT", "");
    let case = whole("12.9");
    case.goes(&[("count=libcudart.so.12", OK)]);
    assert_eq!(case.violations(), [Value::Null; 0]);
    let case = whole("12.2");
    case.goes(&[("count=libcudart.so.12", OK)]);
    let event = case.violation();
    assert_fields(
        &event,
        &[
            ("level", "warn".into()),
            ("rule", "runtime-minor".into()),
            ("whole_card", true.into()),
            ("baseline", "12.4".into()),
        ],
    );
    let case = whole("13.0");
    case.goes(&[("count=libcudart.so.11.0", OK)]);
    assert_fields(&case.violation(), &[("rule", "major-gap".into()), ("outcome", "warning".into())]);
    // A limit of 0 is none.
    let case = Case::new("12.9", "12.4").with("CUWARDEN_MEMORY_LIMIT", "0");
    case.goes(&[("count=libcudart.so.12", OK)]);
}

/// The runtime sees by itself that the driver is too old, and never calls cuInit; the reason is said nevertheless.
#[test]
fn a_runtime_that_gives_up_by_itself_is_explained() {
    for limit in ["4GiB", ""] {
        let case = Case::new("12.4", "12.4").with("CUWARDEN_MEMORY_LIMIT", limit);
        case.goes(&[("count=libcudart.so.13", " 35")]);
        let event = case.violation();
        assert_fields(&event, &[("rule", "runtime-major".into()), ("runtime_version", "13.5".into())]);
        assert_eq!(case.sim.report()["runtime_versions"], json!(["13.5"]));
    }
}

#[test]
fn a_runtime_that_is_loaded_later_is_refused_and_the_others_go_on() {
    let case = Case::new("12.9", "12.9");
    case.goes(&[
        ("count=libcudart.so.12", OK),
        ("init", OK),
        ("count=libcudart.so.11.0", NOT_STARTED),
        ("init", OK),
        ("count=libcudart.so.12", OK),
    ]);
    assert_fields(
        &case.violation(),
        &[("rule", "baseline-runtime-major".into()), ("runtime_version", "11.8".into())],
    );
    assert_eq!(case.sim.report()["runtime_versions"], json!(["12.9", "11.8"]));
}

#[test]
fn before_the_start_every_runtime_that_is_loaded_counts() {
    let case = Case::new("12.9", "12.9");
    case.goes(&[
        ("open=libcudart.so.11.0", " 1"),
        ("init", REFUSED),
        ("close=libcudart.so.11.0", " 1"),
        ("init", OK),
    ]);
    assert_fields(&case.violation(), &[("runtime_version", "11.8".into())]);
}

#[test]
fn values_that_cannot_be_read_stop_cuda() {
    for (name, value) in [
        ("CUWARDEN_BASELINE", "twelve"),
        ("CUWARDEN_BASELINE_MODE", "strict"),
        ("CUWARDEN_BASELINE_ALLOW", "steps"),
    ] {
        let case = Case::new("12.9", "12.9").with(name, value);
        case.goes(&[("init", MISCONFIGURED)]);
        let errors = case.sim.events_named("config_error");
        assert_eq!(errors.len(), 1, "{errors:#?}");
        assert_fields(&errors[0], &[("variable", name.into()), ("value", value.into())]);
    }
}

#[test]
fn cuwarden_run_with_a_baseline() {
    let case = Case::new("12.9", "");
    let program = cc::program("tests/programs/baseline/steps.c", &[]);
    let reports = case.sim.temp.folder("run");
    let mut command = case.sim.bare(artefacts::cli());
    command
        .args(["run", "--baseline", "12.4", "--memory-limit", "4GiB", "--report"])
        .arg(&reports)
        .arg("--")
        .arg(&program)
        .args(["count=libcudart.so.12", "init"])
        .env("CUWARDEN_SIM_DRIVER", case.driver);
    let out = run(&mut command).succeeded();
    assert_eq!(out.lines(), ["count 3", "init 803"], "{}", out.told());
    assert!(out.stderr.contains("\"event\":\"baseline_violation\""), "{}", out.told());
    assert!(out.stderr.contains("CUDA did not start"), "{}", out.told());
}
