//! Machines that are made for `cuwarden doctor`.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod elf;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use serde_json::Value;

use super::common::artefacts;
use super::common::process::run;
use super::common::sim::Sim;

/// A machine that lies in a folder, and the simulated NVML beside it.
pub struct Machine {
    pub sim: Sim,
    variables: Vec<(String, String)>,
}

impl Machine {
    pub fn empty() -> Machine {
        let sim = Sim::new();
        sim.temp.folder("root");
        Machine { sim, variables: Vec::new() }
    }

    /// The simulated driver's release, with one library and three nodes.
    pub fn working() -> Machine {
        let machine = Machine::empty();
        machine.module("535.183.01");
        machine.driver("usr/lib/x86_64-linux-gnu", "535.183.01");
        for node in ["nvidiactl", "nvidia-uvm", "nvidia0"] {
            machine.write(&format!("dev/{node}"), b"");
        }
        machine.write("sys/module/nvidia_uvm/refcnt", b"0");
        machine
    }

    pub fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.sim.temp.join("root").join(path);
        fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("the folder is ours");
        fs::write(path, bytes).expect("the folder is ours");
    }

    pub fn module(&self, release: &str) {
        let text = format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {release}  Wed Jul  3 2024\n");
        self.write("proc/driver/nvidia/version", text.as_bytes());
    }

    pub fn driver(&self, folder: &str, release: &str) {
        for name in ["libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"] {
            self.write(&format!("{folder}/{name}.so.{release}"), b"");
            let link = self.sim.temp.join("root").join(folder).join(format!("{name}.so.1"));
            symlink(format!("{name}.so.{release}"), link).expect("the folder is ours");
        }
    }

    /// A program that prints something.
    pub fn script(&self, path: &str, text: &str) {
        self.write(path, format!("#!/bin/sh\n{text}\n").as_bytes());
        let path = self.sim.temp.join("root").join(path);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("the folder is ours");
    }

    pub fn set(mut self, name: &str, value: &str) -> Machine {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Where NVML is the simulated one; its folder is not in the root that doctor looks at.
    pub fn command(&self) -> Command {
        let path = format!("{}", self.sim.libraries().display());
        let mut command = self.sim.bare(artefacts::cli());
        let mine = self.variables.iter().find(|(name, _)| name == "LD_LIBRARY_PATH");
        let path = mine.map_or(path.clone(), |(_, first)| format!("{first}:{path}"));
        command
            .arg("doctor")
            .env("CUWARDEN_TEST_ROOT", self.sim.temp.join("root"))
            .env("CUWARDEN_DIR", self.sim.shared_dir())
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env("LD_LIBRARY_PATH", path);
        command
    }

    #[track_caller]
    pub fn doctor(&self, status: i32) -> Value {
        json(self.command().arg("--json"), status)
    }

    /// The same without any NVML.
    #[track_caller]
    pub fn doctor_without_nvml(&self, status: i32) -> Value {
        json(self.command().arg("--json").env("LD_LIBRARY_PATH", "/none"), status)
    }
}

#[track_caller]
pub fn json(command: &mut Command, status: i32) -> Value {
    let out = run(command).exited(status);
    serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("no JSON: {e}: {}", out.told()))
}

/// The verdicts of all lines of a check, and what they say.
pub fn lines<'a>(answer: &'a Value, check: &str) -> Vec<(&'a str, &'a str)> {
    let lines = answer["lines"].as_array().expect("a list");
    let text = |line: &'a Value, key: &str| line[key].as_str().expect("a text");
    let of = lines.iter().filter(|line| line["check"] == check);
    of.map(|line| (text(line, "verdict"), text(line, "evidence"))).collect()
}

#[track_caller]
pub fn says(answer: &Value, check: &str, verdict: &str, words: &str) {
    let found = lines(answer, check);
    assert!(found.iter().any(|(v, text)| *v == verdict && text.contains(words)), "{check}: {answer:#}");
}
