//! What people watch GPUs with shows the quota as the card, and the container's processes as all there are.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/ledger/support.rs"]
mod support;

use std::process::Command;

use common::process::run;
use common::{artefacts, clients};
use serde_json::{Value, json};
use support::{MIB, Puppet, Stage};

const GIB: u64 = 1 << 30;
const CARD: u64 = 16 * GIB;
const QUOTA: u64 = GIB;
/// One context of the simulated driver.
const CONTEXT: u64 = MIB;
/// What the container's two processes hold, and what somebody else does.
const HELD: [u64; 2] = [256 * MIB, 128 * MIB];
const ELSEWHERE: u64 = 2 * GIB;

/// A container of 1 GiB with two processes, and a neighbour on the same card.
struct Scene {
    stage: Stage,
    ours: [Puppet; 2],
    other: Puppet,
}

impl Scene {
    fn new() -> Self {
        let stage = Stage::limited("1g");
        let elsewhere = stage.sim.temp.folder("elsewhere");
        let other = stage.holder_with(ELSEWHERE, |command| {
            command.env("CUWARDEN_DIR", &elsewhere).env_remove("CUWARDEN_MEMORY_LIMIT");
        });
        let ours = HELD.map(|bytes| stage.holder(bytes));
        Self { stage, ours, other }
    }

    fn python(&self, mut command: Command, arguments: &[&str]) -> Command {
        command.arg("-B").args(arguments).env("PYTHONPATH", clients::monitors());
        command.env("CUWARDEN_MEMORY_LIMIT", "1g").env("TERM", "dumb").env("COLUMNS", "120");
        command
    }

    /// What a client says without the shim and under it. It never uses CUDA, and leaves nothing behind.
    #[track_caller]
    fn asked(&self, arguments: &[&str]) -> [String; 2] {
        let python = clients::python().interpreter;
        let records =
            || std::fs::read_dir(self.stage.sim.shared_dir().join("proc")).expect("there are two").count();
        let said = [self.stage.sim.bare(&python), self.stage.sim.shimmed(&python)]
            .map(|command| run(&mut self.python(command, arguments)).succeeded().stdout);
        assert_eq!(records(), 2, "{arguments:?}");
        assert!(self.stage.sim.reports().is_empty() && self.stage.sim.events().is_empty());
        said
    }

    /// Pid → bytes.
    fn ours(&self) -> Value {
        self.ours.iter().zip(HELD).map(|(puppet, bytes)| (puppet.pid.to_string(), json!(bytes))).collect()
    }

    fn all(&self) -> Value {
        let pairs = self.ours.iter().zip(HELD).chain([(&self.other, ELSEWHERE)]);
        pairs.map(|(puppet, bytes)| (puppet.pid.to_string(), json!(bytes + CONTEXT))).collect()
    }
}

#[test]
fn nvidia_ml_py_and_nvitop_s_interface() {
    let scene = Scene::new();
    let script = artefacts::root().join("tests/clients/python/figures.py").display().to_string();
    let said = scene
        .asked(&[&script])
        .map(|text| serde_json::from_str::<Value>(&text).unwrap_or_else(|e| panic!("no JSON: {e}: {text}")));
    let held = HELD[0] + HELD[1];
    let everything = held + ELSEWHERE + 3 * CONTEXT;
    let figures = [(CARD, everything, scene.all()), (QUOTA, held, scene.ours())];
    for (said, (total, used, processes)) in said.iter().zip(figures) {
        let free = total - used;
        let expected = json!({
            "first": [total, free, used], "second": [total, free, used, 0], "nvitop": [total, free, used],
            "processes": processes, "processes_v2": processes, "details": processes, "nvitop_processes": processes,
            "graphics": {}, "mps": {},
        });
        assert_eq!(*said, expected, "{said:#}\n{expected:#}");
    }
}

#[test]
fn gpustat() {
    let scene = Scene::new();
    let [bare, shimmed] = scene.asked(&["-m", "gpustat", "--json"]).map(|text| {
        let said: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("no JSON: {e}: {text}"));
        let device = &said["gpus"][0];
        let list = device["processes"].as_array().unwrap_or_else(|| panic!("no processes: {said:#}"));
        let process = |one: &Value| (one["pid"].to_string(), json!(one["gpu_memory_usage"]));
        let processes: Value = list.iter().map(process).collect();
        let second = &said["gpus"][1];
        json!([
            device["memory.total"],
            device["memory.used"],
            processes,
            second["memory.total"],
            second["processes"]
        ])
    });
    let in_mib = |processes: Value| -> Value {
        let pairs = processes.as_object().expect("it has pairs").clone();
        pairs.into_iter().map(|(pid, bytes)| (pid, json!(bytes.as_u64().expect("bytes") / MIB))).collect()
    };
    assert_eq!(bare, json!([CARD / MIB, 384 + 2048 + 3, in_mib(scene.all()), CARD / MIB, []]));
    assert_eq!(shimmed, json!([QUOTA / MIB, 384, in_mib(scene.ours()), QUOTA / MIB, []]));
}

#[test]
fn nvitop_s_screen() {
    let scene = Scene::new();
    let [bare, shimmed] = scene.asked(&["-m", "nvitop", "-1", "--ascii"]);
    assert!(bare.contains("2435MiB / 16384MiB"), "{bare}");
    assert!(shimmed.contains("384.0MiB / 1024MiB"), "{shimmed}");
    assert!(!shimmed.contains("16384MiB"), "{shimmed}");
    let is_listed = |screen: &str, puppet: &Puppet| screen.contains(&format!(" {} ", puppet.pid));
    assert!(is_listed(&bare, &scene.other) && !is_listed(&shimmed, &scene.other), "{shimmed}");
    for (puppet, size) in scene.ours.iter().zip(["256.0MiB", "128.0MiB"]) {
        assert!(is_listed(&shimmed, puppet) && shimmed.contains(size), "{shimmed}");
    }
}
