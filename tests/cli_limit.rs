//! `cuwarden limit` beyond tests/ledger_limits.rs: taking it back, its answers, devices by number, and other users.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/ledger/support.rs"]
mod support;

use std::os::unix::fs::MetadataExt;

use common::artefacts;
use common::process::run;
use common::sim::clean;
use serde_json::{Value, json};
use support::{LIMIT, MIB, Puppet, Stage, uuid};

const SMALL: u64 = LIMIT / 2;

fn json_of(stage: &Stage, arguments: &[&str]) -> Value {
    let out = stage.set_limit(&[&["--json"], arguments].concat()).succeeded();
    serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", out.told()))
}

/// One that was told this limit.
fn told(stage: &Stage, limit: &str) -> Puppet {
    stage.holder_with(0, |command| {
        command.env("CUWARDEN_MEMORY_LIMIT", limit);
    })
}

#[test]
fn what_processes_were_told_holds_again() {
    let stage = Stage::new();
    let mut one = stage.holder(MIB);
    stage.set_limit(&["1g"]).succeeded();
    one.could_get(1023 * MIB);
    let out = stage.set_limit(&["--forget"]).succeeded();
    assert!(out.stdout.contains("64.0 MiB (was 1.00 GiB)"), "{}", out.told());
    // At once, for those that run; and for those to come.
    one.could_get(LIMIT - MIB);
    stage.holder(0).could_get(LIMIT - MIB);
    // There is nothing to forget any more.
    stage.set_limit(&["--forget"]).succeeded();
    one.could_get(LIMIT - MIB);
    assert_eq!(stage.said(), "");
}

/// Different ones: the strictest of those that run.
#[test]
fn the_strictest_of_those_that_run_holds_again() {
    let stage = Stage::unlimited();
    stage.holder(0).kill();
    stage.set_limit(&["1g"]).succeeded();
    let mut one = told(&stage, "0=48m,*=1m");
    let mut gone = told(&stage, "8m");
    let by_uuid = format!("{}=40m,1=2m", uuid(0));
    let mut other = told(&stage, &by_uuid);
    gone.kill();
    stage.set_limit(&["--forget"]).succeeded();
    for puppet in [&mut one, &mut other] {
        puppet.could_get(40 * MIB);
    }
}

#[test]
fn nobody_was_told_anything() {
    let stage = Stage::unlimited();
    let mut one = stage.holder(0);
    stage.set_limit(&["8m"]).succeeded();
    one.could_get(8 * MIB);
    let value = json_of(&stage, &["--forget"]);
    assert_eq!(value["devices"][0]["limit_by"], "none");
    assert_eq!(value["devices"][0]["previous_limit_bytes"], 8 * MIB);
    one.gets(100 * MIB);
    let mut next = told(&stage, "200m");
    next.could_get(100 * MIB);
}

#[test]
fn what_was_done_is_said() {
    let stage = Stage::new();
    let mut puppet = stage.holder(40 * MIB);
    let lines = |arguments: &[&str]| stage.set_limit(arguments).succeeded().stdout;
    let device = uuid(0);
    for (spec, expected) in [
        ("1g", "1.00 GiB (was 64.0 MiB); 40.0 MiB are in use, 984 MiB are free."),
        (
            "24m",
            "24.0 MiB (was 1.00 GiB); 40.0 MiB are in use, so nothing new is granted until 16.0 MiB are freed.",
        ),
        ("0", "no limit (was 24.0 MiB); 40.0 MiB are in use."),
        ("4194304t", "4.00 EiB (was no limit); 40.0 MiB are in use, 4.00 EiB are free."),
    ] {
        let said = lines(&[spec]);
        assert!(said.starts_with(&format!("{device}: {expected}\n")), "{said}");
        assert!(said.contains("Devices that nobody has used yet: "), "{said}");
    }
    assert_eq!(
        lines(&["0=64m"]),
        format!("{device}: 64.0 MiB (was 4.00 EiB); 40.0 MiB are in use, 24.0 MiB are free.\n")
    );
    let unknown = "GPU-00000000-0000-0000-0000-0000000000ff";
    let said = lines(&[&format!("{unknown}=1g")]);
    assert_eq!(said, format!("{unknown}: 1.00 GiB (was no limit); nobody has used it yet.\n"));
    puppet.ok("free");

    let value = json_of(&stage, &["0=32m"]);
    assert_eq!(value["schema"], "cuwarden.limit/1");
    assert_eq!(value["path"], stage.sim.shared_dir().to_string_lossy().as_ref());
    assert_eq!(value["default_limit_bytes"], Value::Null);
    let expected = json!({
        "uuid": device, "limit_bytes": 32 * MIB, "limit_by": "operator", "previous_limit_bytes": LIMIT,
        "previous_limit_by": "operator", "used_bytes": 0,
    });
    assert_eq!(value["devices"], json!([expected]));
    assert_eq!(json_of(&stage, &["*=1g"])["default_limit_bytes"], 1024 * MIB);
}

/// A device that nobody has used when the limit is set, and the others.
#[test]
fn exceptions_from_the_rule() {
    let stage = Stage::new();
    let mut puppet = stage.holder(0);
    let spec = format!("*=8m,{}=16m,0=24m", uuid(1));
    stage.set_limit(&[&spec]).succeeded();
    puppet.could_get(24 * MIB);
    puppet.ok("context 1");
    puppet.could_get(16 * MIB);
    // Its product and its memory are known all the same.
    let out =
        run(clean(artefacts::cli()).args(["ps", "--json", "--dir"]).arg(stage.sim.shared_dir())).succeeded();
    let value: Value = serde_json::from_str(&out.stdout).unwrap();
    for device in value["directories"][0]["devices"].as_array().unwrap() {
        assert_eq!(device["total_bytes"], 16u64 << 30, "{value:#}");
    }
    // The UUID wins.
    let spec = format!("{}=4m,0=24m", uuid(0));
    stage.set_limit(&[&spec]).succeeded();
    puppet.ok("use 0");
    puppet.could_get(4 * MIB);
    // What is set for all is for those with exceptions too.
    stage.set_limit(&["12m"]).succeeded();
    puppet.could_get(12 * MIB);
    puppet.ok("use 1");
    puppet.could_get(12 * MIB);
}

/// The same spec again and again, as configuration management does it: no device has another's limit meanwhile.
#[test]
fn an_exception_holds_while_it_is_set_again() {
    let stage = Stage::unlimited();
    stage.holder(0).kill();
    let spec = format!("*=1g,{}=64m", uuid(0));
    stage.set_limit(&[&spec]).succeeded();
    let worker = stage.worker("wild", 7, |_| {});
    for _ in 0..30 {
        stage.set_limit(&[&spec]).succeeded();
    }
    assert!(!support::is_dead(worker), "{}", stage.said());
    assert!(stage.peak(0) <= LIMIT, "{}", stage.peak(0));
}

#[test]
fn devices_by_number_need_nvml() {
    let stage = Stage::new();
    let mut puppet = stage.holder(0);
    let mut command = clean(artefacts::cli());
    let out = run(command.args(["limit", "--dir"]).arg(stage.sim.shared_dir()).arg("0=8m,*=4m")).exited(66);
    assert!(out.stderr.contains("NVML") && out.stderr.contains("UUID"), "{}", out.told());
    assert!(out.stderr.contains("cuwarden ps") && out.stdout.is_empty(), "{}", out.told());
    puppet.could_get(LIMIT);
    let out = stage.set_limit(&["0=8m,9=4m"]).exited(64);
    assert!(out.stderr.contains("no device 9"), "{}", out.told());
    puppet.could_get(LIMIT);
    let mut command = clean(artefacts::cli());
    run(command.args(["limit", "--dir"]).arg(stage.sim.shared_dir()).arg("8m")).succeeded();
    puppet.could_get(8 * MIB);
}

#[test]
fn a_card_in_instances_has_no_limit_of_its_own() {
    let stage = Stage::new();
    let instances = ["MIG-00000000-0000-0000-0000-000000000001", "MIG-00000000-0000-0000-0000-000000000002"];
    let mut puppet = stage.holder_with(0, |command| {
        command.env("CUWARDEN_SIM_UUIDS", instances.join(","));
    });
    let out = stage.set_limit(&["0=8m"]).exited(64);
    assert!(out.stderr.contains("MIG"), "{}", out.told());
    let out = stage.set_limit(&[&format!("{}=8m", instances[0])]).succeeded();
    assert!(out.stdout.starts_with(instances[0]), "{}", out.told());
    puppet.could_get(8 * MIB);
}

#[test]
fn what_is_no_device_is_refused() {
    let stage = Stage::new();
    let mut puppet = stage.holder(0);
    let zero = "GPU-00000000-0000-0000-0000-000000000000=1g";
    for spec in [zero, "GPU-12=1g", "GPU-xyz=1g", "gpu0=1g", "1g,2g", "--forget=1", "-1", "-1=1g"] {
        let out = stage.set_limit(&[spec]).exited(64);
        assert!(!out.stderr.is_empty() && out.stdout.is_empty(), "{}", out.told());
    }
    stage.set_limit(&["--forget", "1g"]).exited(64);
    puppet.could_get(LIMIT);
}

#[test]
fn without_a_ledger_nothing_is_made() {
    let stage = Stage::new();
    let empty = stage.sim.temp.folder("empty");
    for arguments in [&["1g"][..], &["--forget"], &["0=1g"]] {
        for folder in [&empty, &empty.join("none")] {
            let out = stage.set_limit_in(folder, arguments).exited(66);
            assert!(out.stderr.contains(&*folder.to_string_lossy()), "{}", out.told());
        }
    }
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0);
    std::fs::write(empty.join("ledger"), "no ledger").unwrap();
    let out = stage.set_limit_in(&empty, &["1g"]).exited(66);
    assert!(out.stderr.contains("empty/ledger"), "{}", out.told());
}

/// The directory that a container's shell has in its environment.
#[test]
fn the_directory_of_the_environment() {
    let stage = Stage::new();
    let mut puppet = stage.holder(0);
    run(clean(artefacts::cli()).args(["limit", "32m"]).env("CUWARDEN_DIR", stage.sim.shared_dir()))
        .succeeded();
    puppet.could_get(SMALL);
}

#[test]
fn root_changes_another_users() {
    let stage = Stage::new();
    let user = 64_321;
    if !stage.give_to(user) {
        assert!(std::env::var_os("CI").is_none(), "another user cannot be had, and CI must test this");
        eprintln!("NOT TESTED: another user cannot be had here");
        return;
    }
    use std::os::unix::process::CommandExt;
    let mut puppet = stage.puppet_with(|command| {
        command.uid(user).gid(user);
    });
    puppet.has_context();
    let before = std::fs::metadata(stage.ledger()).unwrap();
    assert_eq!(before.uid(), user);
    stage.set_limit(&["32m"]).succeeded();
    let after = std::fs::metadata(stage.ledger()).unwrap();
    assert_eq!((after.uid(), after.mode(), after.ino()), (before.uid(), before.mode(), before.ino()));
    puppet.could_get(SMALL);
    stage.set_limit(&["--forget"]).succeeded();
    puppet.could_get(LIMIT);
    let mut next = stage.puppet_with(|command| {
        command.uid(user).gid(user);
    });
    next.has_context();
    next.could_get(LIMIT);
    assert_eq!(stage.said(), "");
}
