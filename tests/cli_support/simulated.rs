//! The command line with the real shim, and programs that it runs on the bundled simulated GPU.

use std::path::PathBuf;
use std::process::Command;

use crate::cli_support::{Temp, compile};
use crate::common::artefacts::{cli, root, shim};
use crate::common::process::run;

pub fn cuwarden(temp: &Temp, arguments: &[&str]) -> Command {
    // Fails the test where the shim is missing or older than its sources.
    shim();
    let mut command = Command::new(cli());
    command.args(arguments).current_dir(temp.path());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CUWARDEN_") || name.starts_with("CUDA_") || name == "LD_PRELOAD" {
            command.env_remove(&*name);
        }
    }
    command
}

/// A program over the bundled runtime, which gets what it needs from `run --sim`.
pub fn program(temp: &Temp, main: &str) -> PathBuf {
    run(&mut cuwarden(temp, &["run", "--sim", "--dir", "libraries", "--", "true"])).succeeded();
    let text = format!(
        "#include \"cudart.h\"\n#include <signal.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
         static void *keep(size_t bytes) {{\n    void *p = 0;\n    cudaMalloc(&p, bytes);\n    return p;\n}}\n\
         int main(void) {{\n{main}\n}}\n"
    );
    let source = temp.write("program.c", text);
    let include = format!("-I{}", root().join("sim").display());
    let libraries = temp.join("libraries/sim/lib");
    let runtime = libraries.join("libcudart.so.12");
    let beside = format!("-Wl,-rpath-link,{}", libraries.display());
    compile(&source, &temp.join("program"), &[&include, runtime.to_str().unwrap(), &beside]);
    temp.join("program")
}
