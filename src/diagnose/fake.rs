//! Machines for tests: a folder in the place of `/`.

use super::machine::{Machine, Place};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Fake {
    root: PathBuf,
    variables: Vec<(String, OsString)>,
}

impl Fake {
    pub fn empty() -> Fake {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("cuwarden-machine-{}-{number}", std::process::id()));
        std::fs::create_dir(&root).unwrap();
        Fake { root, variables: Vec::new() }
    }

    /// Driver 535.183.01 with one card.
    pub fn working() -> Fake {
        let fake = Fake::empty();
        fake.module("535.183.01");
        for node in ["nvidiactl", "nvidia-uvm", "nvidia0"] {
            fake.write(&format!("dev/{node}"), "");
        }
        fake.write("proc/driver/nvidia/gpus/0000:17:00.0/information", "");
        fake.write("sys/module/nvidia_uvm/refcnt", "0");
        fake.library("/usr/lib/x86_64-linux-gnu", "535.183.01");
        fake.maps(&["/usr/lib/x86_64-linux-gnu/libcuda.so.535.183.01"]);
        fake
    }

    /// The kernel module's release.
    pub fn module(&self, release: &str) {
        let text = format!(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {release}  Wed Jul  3 00:00:00 UTC 2024\nGCC version:  12\n"
        );
        self.write("proc/driver/nvidia/version", &text);
    }

    /// The driver's libraries in a folder.
    pub fn library(&self, folder: &str, release: &str) {
        let folder = folder.trim_start_matches('/');
        self.write(&format!("{folder}/libcuda.so.{release}"), "");
        let link = self.root.join(folder).join("libcuda.so.1");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(format!("libcuda.so.{release}"), link).unwrap();
        for sibling in ["libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"] {
            self.write(&format!("{folder}/{sibling}"), "");
        }
    }

    /// What is mapped into the process.
    pub fn maps(&self, paths: &[&str]) {
        let lines: String = paths
            .iter()
            .map(|path| format!("7f0000000000-7f0000001000 r-xp 00000000 08:01 1234    {path}\n"))
            .collect();
        self.write("proc/self/maps", &lines);
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub fn remove(&self, path: &str) {
        let path = self.root.join(path);
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap()
        } else {
            std::fs::remove_file(path).unwrap()
        }
    }

    pub fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.into()));
    }

    pub fn place(&self) -> Place {
        Place { root: self.root.clone() }
    }

    pub fn look(&self) -> Machine {
        let variable = |name: &str| {
            self.variables.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        };
        Machine::look(&self.place(), &variable)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}
