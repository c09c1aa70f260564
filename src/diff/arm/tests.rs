//! Grouping to runs, and what an arm must not mix.

use super::*;
use crate::report::model::Device;

fn report(pid: u32, labels: &str) -> Report {
    Report {
        pid,
        ppid: 1,
        exe: "/opt/train".to_owned(),
        started_at: Some(format!("2026-12-01T00:00:{pid:02}.000Z")),
        labels: crate::report::labels(labels),
        termination: Termination::Exit,
        driver_version: Some("13.0".to_owned()),
        runtime_versions: vec!["12.9".to_owned()],
        devices: vec![Device { alloc_count: 1, ..Device::default() }],
        ..Report::default()
    }
}

fn of(reports: Vec<Report>) -> Vec<Input> {
    reports.into_iter().map(|report| Input { report, folder: None }).collect()
}

fn arm(inputs: Vec<Input>) -> Result<Arm, String> {
    Arm::new("A", "runs".to_owned(), inputs, &Options::default())
}

fn sizes(arm: &Arm) -> Vec<usize> {
    arm.runs.iter().map(Vec::len).collect()
}

#[test]
fn a_run_is_a_label_or_a_folder_or_a_report() {
    let inputs = |reverse: bool| {
        let mut inputs = of(vec![
            report(1, "run=1,arm=A"),
            report(2, "run=1,arm=A"),
            report(3, "run=2,arm=A"),
            report(4, "arm=A"),
            report(5, "arm=A"),
        ]);
        // In a folder, but the label says more: this is a part of run 1.
        inputs.push(Input { report: report(6, "run=1,arm=A"), folder: Some("7".to_owned()) });
        inputs.push(Input { report: report(7, "arm=A"), folder: Some("7".to_owned()) });
        inputs.push(Input { report: report(8, "arm=A"), folder: Some("7".to_owned()) });
        if reverse {
            inputs.reverse();
        }
        inputs
    };
    let arm_of = |reverse| arm(inputs(reverse)).unwrap();
    assert_eq!(sizes(&arm_of(false)), [3, 1, 2, 1, 1]);
    assert_eq!(arm_of(false).runs, arm_of(true).runs);
    assert_eq!(arm_of(false).labels, BTreeMap::from([("arm".to_owned(), "A".to_owned())]));
    assert!(arm_of(false).notes.is_empty());
}

#[test]
fn the_same_process_counts_once() {
    let arm = arm(of(vec![report(1, ""), report(2, ""), report(1, "")])).unwrap();
    assert_eq!(sizes(&arm), [1, 1]);
    assert!(arm.notes[0].contains("1 report of a process that is there already"), "{:?}", arm.notes);
    // In containers every program may be process 1.
    let other = Report { started_at: Some("2026-12-01T00:00:09.000Z".to_owned()), ..report(1, "") };
    assert_eq!(
        sizes(
            &super::Arm::new("A", String::new(), of(vec![report(1, ""), other]), &Options::default())
                .unwrap()
        ),
        [1, 1]
    );
}

#[test]
fn what_an_arm_mixes_is_named_with_the_way_out() {
    let fails = |reports: Vec<Report>, words: &[&str]| {
        let error = arm(of(reports)).err().unwrap();
        for word in words {
            assert!(error.contains(word), "{word} is missing in: {error}");
        }
    };
    fails(
        vec![report(1, "arm=A"), report(2, "arm=B"), report(3, "arm=B")],
        &["A mixes labels: arm=A (1), arm=B (2)", "--label-a arm=VALUE", "--vary arm"],
    );
    fails(vec![report(1, "arm=A"), report(2, "")], &["no arm (1), arm=A (1)"]);
    let old = Report { driver_version: Some("12.4".to_owned()), ..report(2, "") };
    fails(vec![report(1, ""), old], &["mixes drivers: CUDA 12.4 (1), CUDA 13.0 (1)", "runs"]);
    let new = Report { runtime_versions: vec!["13.5".to_owned()], ..report(2, "") };
    fails(vec![report(1, ""), new], &["mixes CUDA runtimes: runtime 12.9 (1), runtime 13.5 (1)"]);
    let hostile = report(1, "arm=\u{1b}[2J");
    fails(vec![hostile, report(2, "")], &["\\u{1b}[2J"]);
}

#[test]
fn labels_choose_reports_and_may_be_said_to_vary() {
    let mixed = || of(vec![report(1, "arm=A,host=x"), report(2, "arm=B,host=x"), report(3, "arm=A,host=y")]);
    let options = Options { only: vec![("arm".to_owned(), "A".to_owned())], vary: vec!["host".to_owned()] };
    let arm = Arm::new("A", String::new(), mixed(), &options).unwrap();
    assert_eq!(sizes(&arm), [1, 1]);
    assert_eq!(arm.labels.keys().collect::<Vec<_>>(), ["arm"]);
}

#[test]
fn processes_without_a_runtime_do_not_mix_versions() {
    let launcher = |pid| Report { runtime_versions: vec![], driver_version: None, ..report(pid, "run=1") };
    let arm = arm(of(vec![report(1, "run=1"), launcher(2), report(3, "run=2")])).unwrap();
    assert_eq!(
        (arm.driver_version.as_deref(), arm.runtime_versions),
        (Some("13.0"), vec!["12.9".to_owned()])
    );
}

#[test]
fn runs_that_say_nothing_about_leaks_are_left_out() {
    let running = Report { termination: Termination::Running, ..report(1, "") };
    let failed = Report {
        init_failures: vec![serde_json::json!({"event": "init_failure"})],
        devices: vec![],
        ..report(2, "")
    };
    let killed = Report { termination: Termination::Killed, lost_records: 1, ..report(3, "") };
    let arm = arm(of(vec![running, failed, killed, report(4, "")])).unwrap();
    assert_eq!(sizes(&arm), [1, 1]);
    let notes = arm.notes.join("\n");
    for words in
        ["1 run left out, still running", "CUDA did not start", "1 of 2 processes killed", "incomplete"]
    {
        assert!(notes.contains(words), "{words} is missing in: {notes}");
    }
}

#[test]
fn a_family_of_processes_is_noticed() {
    let child = Report { ppid: 5, ..report(6, "") };
    let notes = |inputs| arm(inputs).unwrap().notes;
    assert!(notes(of(vec![report(5, ""), child.clone()]))[0].contains("process 6 was started by process 5"));
    let gone = Report { ended_at: Some("2026-12-01T00:00:05.500Z".to_owned()), ..report(5, "") };
    assert!(notes(of(vec![gone, child.clone()])).is_empty());
    let labelled = Report { labels: crate::report::labels("run=1"), ..child };
    assert!(notes(of(vec![report(5, "run=1"), labelled])).is_empty());
}
