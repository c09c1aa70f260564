//! Stand-ins for libcudart and libraries that are linked with them, for the tests of several runtimes.

// Each test file uses a part of it.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;
use crate::common::cc;
use crate::common::process::{Finished, run};
use crate::common::sim::Sim;

pub const PROGRAMS: &str = "tests/programs/runtimes";

/// A folder of stand-ins and of the libraries that are linked with them.
pub struct Stage {
    pub sim: Sim,
    pub folder: PathBuf,
}

impl Stage {
    pub fn new() -> Stage {
        let sim = Sim::new();
        let folder = sim.temp.folder("stage");
        Stage { sim, folder }
    }

    /// A stand-in of a major version, by its own name: `place/file`, with the soname `soname`.
    pub fn standin(&self, place: &str, soname: &str, major: u32, instance: u32) -> PathBuf {
        let node = if major == 11 { "libcudart.so.11.0".to_owned() } else { format!("libcudart.so.{major}") };
        let map = self.folder.join(format!("{node}.map"));
        fs::write(&map, format!("{node} {{ global: cuda*; local: *; }};\n")).expect("the folder is ours");
        let script = format!("-Wl,--version-script={}", map.display());
        self.library("standin.c", place, soname, &[&era(major), &format!("-DINSTANCE={instance}"), &script])
    }

    /// A library that is linked with a stand-in and finds it by its own path.
    pub fn caller(&self, name: &str, runtime: &Path, major: u32) -> PathBuf {
        let rpath = format!(
            "-Wl,--disable-new-dtags,-rpath,{}",
            runtime.parent().expect("it has a folder").display()
        );
        let define = format!("-DCALLER={name}");
        let runtime = runtime.display().to_string();
        self.library("caller.c", "", &format!("lib{name}.so"), &[&era(major), &define, &runtime, &rpath])
    }

    pub fn library(&self, source: &str, place: &str, soname: &str, arguments: &[&str]) -> PathBuf {
        let folder = self.folder.join(place);
        fs::create_dir_all(&folder).expect("the folder is ours");
        let path = folder.join(soname);
        // Not by the cache of tests: what is linked has the path of this test's folder.
        let mut command = Command::new("cc");
        command.args(["-std=gnu11", "-O1", "-Wall", "-shared", "-fPIC", "-I", PROGRAMS, "-o"]).arg(&path);
        command.arg(format!("{PROGRAMS}/{source}")).arg(format!("-Wl,-soname,{soname}")).args(arguments);
        run(command.current_dir(common::artefacts::root())).succeeded();
        path
    }

    /// The same run without the shim and with it: what the program prints must be the same.
    #[track_caller]
    pub fn same(&self, arguments: &[&str]) -> (Finished, Finished) {
        let program = cc::program(&format!("{PROGRAMS}/host.c"), &[]);
        let [bare, shimmed] = [self.sim.bare(&program), self.sim.shimmed(&program)]
            .map(|mut command| run(command.args(arguments)).succeeded());
        assert_eq!(bare.stdout, shimmed.stdout, "{}", shimmed.told());
        (bare, shimmed)
    }

    /// Which library each reference to a runtime's function was bound to, by the loader's own account.
    pub fn bindings(&self, arguments: &[&str]) -> Vec<String> {
        let program = cc::program(&format!("{PROGRAMS}/host.c"), &[]);
        let out = run(self.sim.shimmed(&program).args(arguments).env("LD_DEBUG", "bindings")).succeeded();
        let lines = out.stderr.lines().filter(|line| line.contains("symbol `cuda"));
        lines.filter_map(|line| Some(line.split_once("binding file ")?.1.to_owned())).collect()
    }
}

pub fn era(major: u32) -> String {
    match major {
        11 => "-DBEFORE_12",
        12 => "-DAT_12",
        _ => "-DFROM_13",
    }
    .to_owned()
}

pub fn named(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}
