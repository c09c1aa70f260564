//! Builds the simulated GPU and the demo program, which the command line carries inside itself.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CLI").is_none() {
        // The shim carries none of this.
        return;
    }
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let (mut gpu, mut demo) = (Vec::new(), Vec::new());
    if root.join("sim/build").is_file() {
        println!("cargo::rerun-if-changed=sim");
        println!("cargo::rerun-if-changed=demo");
        println!("cargo::rerun-if-env-changed=CC");
        let folder = out.join("sim");
        let _ = fs::remove_dir_all(&folder);
        run(Command::new(root.join("sim/build")).arg(&folder), "build the simulated GPU");
        gpu = libraries(&folder);
        demo = build_demo(&root, &folder, &out);
    } else {
        println!("cargo::warning=sim/build is not there: this cuwarden will have no --sim and no demo");
    }
    let mut text = String::new();
    list(&mut text, "SIMULATED_GPU", "The stand-in for the driver and its libraries.", &gpu);
    list(
        &mut text,
        "DEMO",
        "The program that the demo runs, with its debug information and its source.",
        &demo,
    );
    if let Err(error) = fs::write(out.join("bundle.rs"), text) {
        fail(&format!("cannot write to {}: {error}", out.display()));
    }
}

/// The shared libraries in a folder, in an order that does not change.
fn libraries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.to_string_lossy().contains(".so.")).collect();
    found.sort();
    if found.is_empty() {
        fail("sim/build made no libraries");
    }
    found
}

fn build_demo(root: &Path, libraries: &Path, out: &Path) -> Vec<PathBuf> {
    let program = out.join("forgetful");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut prefix = std::ffi::OsString::from("-ffile-prefix-map=");
    prefix.push(root);
    prefix.push("=.");
    run(
        Command::new(compiler)
            .current_dir(root)
            // Without optimisation every function keeps its frame, and the report can name it.
            .args(["-std=c11", "-D_GNU_SOURCE", "-g", "-O0", "-Wall", "-Wextra", "-fno-omit-frame-pointer"])
            .args(["-Wl,--build-id"])
            .arg(prefix)
            .args(["-Isim", "demo/forgetful.c", "-o"])
            .arg(&program)
            .args([libraries.join("libcudart.so.12"), libraries.join("libcuda.so.1")]),
        "build the demo program",
    );
    vec![program, root.join("demo/forgetful.c")]
}

fn list(text: &mut String, name: &str, what: &str, files: &[PathBuf]) {
    let _ = writeln!(text, "/// {what}\npub static {name}: &[Bundled] = &[");
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let _ =
            writeln!(text, "    Bundled {{ name: {name:?}, bytes: include_bytes!({:?}) }},", file.display());
    }
    let _ = writeln!(text, "];");
}

fn run(command: &mut Command, what: &str) {
    let done = command.status();
    if !done.as_ref().is_ok_and(|status| status.success()) {
        fail(&format!("could not {what}: {done:?}. A C compiler (cc, or what CC names) is needed"));
    }
}

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    std::process::exit(1)
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| fail(&format!("cargo has not set {name}")))
}
