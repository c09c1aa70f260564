//! The simulated GPU and a container of its own for each test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::artefacts::{root, shim, target_dir};
use super::process::run;
use super::temp::TempDir;

/// One machine with simulated GPUs, one shared directory of cuwarden, one place for events and reports.
///
/// Children that one `Sim` starts share the machine and the directory: they are one container.
pub struct Sim {
    /// Everything of this test; also a place for its own files.
    pub temp: TempDir,
    libraries: PathBuf,
}

impl Sim {
    pub fn new() -> Self {
        let temp = TempDir::new();
        for folder in ["gpu", "shared", "reports"] {
            temp.folder(folder);
        }
        Self { temp, libraries: build() }
    }

    /// The same with other libraries, a real driver's for example, in the simulator's place; there are no books.
    pub fn over(libraries: &Path) -> Self {
        let temp = TempDir::new();
        for folder in ["shared", "reports"] {
            temp.folder(folder);
        }
        Self { temp, libraries: libraries.to_path_buf() }
    }

    /// A child over the simulated GPU, under the shim, with events and reports where [`Sim::events`] and
    /// [`Sim::reports`] read them.
    pub fn shimmed(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.bare(program);
        // Most tests are about what a program allocates, to the byte.
        command
            .env("CUWARDEN_COUNT_CONTEXT", "0")
            .env("LD_PRELOAD", shim())
            .env("CUWARDEN_DIR", self.shared_dir())
            .env("CUWARDEN_REPORT", self.temp.join("reports"))
            .env("CUWARDEN_LOG_FILE", self.temp.join("events.jsonl"));
        command
    }

    /// The same child without the shim.
    pub fn bare(&self, program: impl AsRef<Path>) -> Command {
        let mut command = clean(program);
        command.env("LD_LIBRARY_PATH", &self.libraries).env("CUWARDEN_SIM_DIR", self.temp.join("gpu"));
        command
    }

    /// `CUWARDEN_DIR`.
    pub fn shared_dir(&self) -> PathBuf {
        self.temp.join("shared")
    }

    /// The folder of the simulator's libraries.
    pub fn libraries(&self) -> &Path {
        &self.libraries
    }

    /// All events so far, in order of writing.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.temp.join("events.jsonl")).unwrap_or_default();
        let parse =
            |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("no JSON: {line:?}: {e}"));
        text.lines().map(parse).collect()
    }

    /// The events of one kind.
    #[track_caller]
    pub fn events_named(&self, kind: &str) -> Vec<Value> {
        self.events().into_iter().filter(|event| event["event"] == kind).collect()
    }

    /// The leak reports of all children so far, by file name.
    #[track_caller]
    pub fn reports(&self) -> Vec<Value> {
        let folder = std::fs::read_dir(self.temp.join("reports")).expect("the folder is ours");
        let mut paths: Vec<PathBuf> = folder.map(|entry| entry.expect("it can be read").path()).collect();
        paths.sort();
        paths.iter().map(|path| json_file(path)).collect()
    }

    /// The one report.
    #[track_caller]
    pub fn report(&self) -> Value {
        let mut reports = self.reports();
        assert_eq!(reports.len(), 1, "one report was expected: {reports:#?}");
        reports.remove(0)
    }

    /// What the simulated driver has in its books: sim-books' JSON, described in sim/README.md.
    #[track_caller]
    pub fn books(&self) -> Value {
        let out = run(clean(self.libraries.join("sim-books")).arg(self.temp.join("gpu"))).succeeded();
        serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("no JSON: {e}: {}", out.told()))
    }

    /// The books of one process, dead or alive.
    #[track_caller]
    pub fn process_books(&self, pid: &Value) -> Value {
        let books = self.books();
        let mut processes = books["processes"].as_array().into_iter().flatten();
        processes
            .find(|process| process["pid"] == *pid)
            .unwrap_or_else(|| panic!("no {pid} in {books:#}"))
            .clone()
    }

    /// How often the processes of this machine called a function of the driver, all together.
    #[track_caller]
    pub fn calls(&self, function: &str) -> u64 {
        let books = self.books();
        let processes = books["processes"].as_array().unwrap_or_else(|| panic!("no processes: {books:#}"));
        processes.iter().filter_map(|process| process["calls"][function].as_u64()).sum()
    }
}

/// A command in whose environment nothing of ours, of CUDA or of the loader is set.
pub fn clean(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    let ours =
        |name: &str| ["CUWARDEN_", "CUDA_", "NVIDIA_", "LD_"].iter().any(|prefix| name.starts_with(prefix));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_none_or(ours) {
            command.env_remove(name);
        }
    }
    // Sanitizers and valgrind apart, the tests mean the documented defaults.
    command.env("LC_ALL", "C.UTF-8");
    command
}

#[track_caller]
pub fn json_file(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}: {text}", path.display()))
}

/// Builds the simulator under target/, once for each state of its sources. Tests run in many processes at once, so a
/// file lock makes the others wait for the first.
fn build() -> PathBuf {
    let sources = root().join("sim");
    let libraries = target_dir().join(format!("sim-{:016x}", hash_of_folder(&sources)));
    let lock = File::create(target_dir().join("sim.lock")).expect("target/ can be written");
    lock.lock().expect("the file can be locked");
    if !libraries.exists() {
        let fresh = target_dir().join(format!("sim-new-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&fresh);
        std::fs::create_dir_all(&fresh).expect("target/ can be written");
        run(Command::new(sources.join("build")).arg(&fresh)).succeeded();
        std::fs::rename(&fresh, &libraries).expect("both are in target/");
    }
    libraries
}

fn hash_of_folder(folder: &Path) -> u64 {
    let mut files: Vec<(PathBuf, Vec<u8>)> = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.expect("it can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push((path.clone(), std::fs::read(&path).expect("it can be read")));
            }
        }
    }
    files.sort();
    super::cc::hash(&files)
}
