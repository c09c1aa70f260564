//! `cuwarden doctor --bundle`: what is in the archive, and what is not.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod cli_doctor_support;
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use cli_doctor_support::Machine;
use common::process::run;
use serde_json::Value;

/// Texts by name.
fn unpack(path: &Path) -> BTreeMap<String, String> {
    let file = fs::File::open(path).expect("it was written");
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let read = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.expect("it is whole");
        let name = entry.path().expect("it has a name").display().to_string();
        assert_eq!(entry.header().mode().expect("it has a mode"), 0o600);
        let mut text = String::new();
        entry.read_to_string(&mut text).expect("it is text");
        (name.strip_prefix("cuwarden-doctor/").expect("all are in one folder").to_owned(), text)
    };
    archive.entries().expect("it can be read").map(read).collect()
}

fn planted() -> Machine {
    let machine = Machine::working();
    machine.write("etc/hostname", b"ada-host-42.lab.example\n");
    machine.write("etc/hosts", b"10.20.30.40 filer7.lab.example filer7\n");
    machine
        .write("etc/passwd", b"root:x:0:0::/root:/bin/sh\nlovelace:x:1815:1815:Ada:/data/lovelace:/bin/sh\n");
    machine.write("etc/ld.so.conf", b"include /etc/ld.so.conf.d/*.conf\n# of lovelace on ada-host-42\n");
    machine.write("etc/ld.so.conf.d/cuda.conf", b"/data/lovelace/cuda/lib64\n");
    machine
        .set("CUDA_VISIBLE_DEVICES", "0")
        .set("NVIDIA_API_KEY", "plantedkey0")
        .set("CUWARDEN_LABELS", "owner=lovelace,token=plantedtoken1")
        .set("CUDA_CACHE_PATH", "/data/lovelace/cache")
        .set("NVIDIA_PROXY", "http://lovelace:plantedpass2@10.20.30.41:3128")
        .set("CUDA_MODULE_DATA_FILE", "nvapi-planted3planted3planted3")
        .set("AWS_SESSION_TOKEN", "planted4")
        .set("DATABASE_HOST", "planted5.lab.example")
        .set("LD_LIBRARY_PATH", "/home/lovelace/lib")
        .set("CUDA_NET", "aa:bb:cc:00:11:22 2001:db8::17")
}

const SECRETS: [&str; 11] = [
    "planted",
    "lovelace",
    "ada-host-42",
    "lab.example",
    "filer7",
    "10.20.30",
    "aa:bb:cc",
    "2001:db8",
    "/home/",
    "/data/",
    "nvapi-",
];

#[test]
fn what_is_in_it_and_what_is_not() {
    let machine = planted();
    let file = machine.sim.temp.join("help.tar.gz");
    let shared = machine.sim.shared_dir();
    let mut command = machine.command();
    let out = run(command.args(["--json", "--bundle"]).arg(&file).arg("--dir").arg(&shared));
    assert!(
        out.stderr.contains("help.tar.gz") && out.stderr.contains("before you send it"),
        "{}",
        out.told()
    );
    assert_eq!(fs::metadata(&file).expect("it is there").mode() & 0o777, 0o600);
    let parts = unpack(&file);
    for (name, text) in &parts {
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret} is in {name}: {text}");
        }
    }
    let json = |name: &str| -> Value { serde_json::from_str(&parts[name]).expect("it is JSON") };
    // What is told to whoever sits there is told whole; the rest is the same.
    let told: Value = serde_json::from_str(&out.stdout).expect("it is JSON");
    assert_eq!(
        (&json("doctor.json")["verdict"], &json("doctor.json")["schema"]),
        (&told["verdict"], &told["schema"])
    );
    assert_eq!(json("nvml.json")[0]["call"], "nvmlInit_v2");
    let environment = &parts["environment.txt"];
    for line in [
        "CUDA_VISIBLE_DEVICES=0",
        "NVIDIA_API_KEY=[secret]",
        "CUWARDEN_LABELS=owner=[user],token=[secret]",
        "CUDA_CACHE_PATH=[home]/cache",
        "NVIDIA_PROXY=http://[secret]@[ip]:3128",
        "CUDA_MODULE_DATA_FILE=[secret]",
        "AWS_SESSION_TOKEN",
        "DATABASE_HOST",
        "CUDA_NET=[mac] [ip]",
    ] {
        assert!(environment.lines().any(|one| one == line), "{line}: {environment}");
    }
    assert!(parts["doctor.txt"].contains("release 535.183.01"), "{}", parts["doctor.txt"]);
    assert!(parts["driver.txt"].starts_with("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01"));
    assert!(parts["devices.txt"].contains("/dev/nvidia0 -"), "{}", parts["devices.txt"]);
    let conf = &parts["ld.so.conf.txt"];
    assert!(conf.contains("==> /etc/ld.so.conf.d/cuda.conf <==\n[home]/cuda/lib64"), "{conf}");
    assert!(conf.contains("# of [user] on [host]"), "{conf}");
    assert_eq!(json("ledger.json")["there"], false);
    assert_eq!(json("records.json")["records"], Value::Array(vec![]));
    assert!(parts["README.txt"].contains("environment.txt"));
}

#[test]
fn accounts_only_where_a_directory_is_named() {
    let machine = Machine::working();
    let file = machine.sim.temp.join("help.tar.gz");
    run(machine.command().arg("--bundle").arg(&file)).succeeded();
    assert!(!unpack(&file).contains_key("ledger.json"));
    run(machine.command().args(["--dir", "/tmp"])).exited(64);
    run(machine.command().args(["--smi", "-", "--bundle", "x"])).exited(64);
}

#[test]
fn a_name_that_is_taken_is_left_alone() {
    let machine = Machine::working();
    let refused = |path: &Path| {
        let out = run(machine.command().arg("--bundle").arg(path)).exited(74);
        assert!(out.stdout.is_empty() && out.stderr.contains(&path.display().to_string()), "{}", out.told());
    };
    let [taken, link, dangling] = ["taken", "link", "dangling"].map(|name| machine.sim.temp.join(name));
    fs::write(&taken, "mine").expect("the folder is ours");
    symlink(&taken, &link).expect("the folder is ours");
    symlink(machine.sim.temp.join("nowhere"), &dangling).expect("the folder is ours");
    refused(&taken);
    refused(&link);
    refused(&dangling);
    refused(&machine.sim.temp.join("no/folder/x"));
    assert_eq!(fs::read_to_string(&taken).expect("it is there"), "mine");
    assert!(!machine.sim.temp.join("nowhere").exists());
}
