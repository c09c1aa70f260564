//! `cuwarden doctor -- CMD`: what a program would load, on machines that are made for it.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod cli_doctor_support;
mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use cli_doctor_support::elf::{self, Elf};
use cli_doctor_support::{Machine, json, lines, says};
use common::process::run;
use serde_json::Value;

const GLIBC: Option<&str> = Some("/lib64/ld-linux-x86-64.so.2");
/// A static runtime has these among its texts.
const STATIC: &[u8] = b"cudaErrorInsufficientDriver\0cuGetProcAddress\0";

/// A machine with a C library, on which a program can be looked at.
fn machine() -> Machine {
    let machine = Machine::working();
    library(&machine, "lib/x86_64-linux-gnu/libc.so.6", &Elf::default());
    machine
}

fn library(machine: &Machine, path: &str, of: &Elf) {
    machine.write(path, &elf::program(&Elf { needed: &["libc.so.6"], ..of.clone() }));
}

fn executable(machine: &Machine, path: &str, bytes: &[u8]) {
    machine.write(path, bytes);
    let path = machine.sim.temp.join("root").join(path);
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("the folder is ours");
}

fn program(machine: &Machine, path: &str, of: &Elf) {
    executable(machine, path, &elf::program(&Elf { interpreter: GLIBC, ..of.clone() }));
}

/// The driver's library as an ELF file, for the loader that looks into it.
fn driver(machine: &Machine, folder: &str, release: &str) {
    for name in ["libcuda", "libnvidia-ml"] {
        let _ = fs::remove_file(machine.sim.temp.join("root").join(folder).join(format!("{name}.so.1")));
        library(machine, &format!("{folder}/{name}.so.{release}"), &Elf::default());
        if release != "1" {
            let link = machine.sim.temp.join("root").join(folder).join(format!("{name}.so.1"));
            symlink(format!("{name}.so.{release}"), link).expect("the folder is ours");
        }
    }
}

#[track_caller]
fn of(machine: &Machine, command: &[&str], status: i32) -> Value {
    json(machine.command().env("PATH", "/usr/bin:/bin").args(["--json", "--"]).args(command), status)
}

#[test]
fn programs_that_cannot_be_covered() {
    let machine = machine();
    let musl = Elf { interpreter: Some("/lib/ld-musl-x86_64.so.1"), needed: &["libc.so"], ..Elf::default() };
    executable(&machine, "opt/musl", &elf::program(&musl));
    let linked = Elf { interpreter: GLIBC, needed: &["libc.musl-x86_64.so.1"], ..Elf::default() };
    executable(&machine, "opt/musl2", &elf::program(&linked));
    executable(&machine, "opt/fixed", &elf::program(&Elf::default()));
    executable(&machine, "opt/32", &elf::of_32_bits(elf::I386));
    executable(&machine, "opt/arm", &elf::for_machine(&musl, elf::AARCH64));
    executable(&machine, "opt/odd", &elf::for_machine(&musl, 4711));
    executable(&machine, "opt/text", b"echo hello\n");
    for (path, words) in [
        ("/opt/musl", "/opt/musl is made for musl"),
        ("/opt/musl2", "/opt/musl2 is made for musl"),
        ("/opt/fixed", "/opt/fixed is linked statically"),
        ("/opt/32", "/opt/32 is a 32-bit program (i386)"),
        ("/opt/arm", "/opt/arm is for another processor (aarch64)"),
        ("/opt/odd", "another processor (machine 4711)"),
    ] {
        says(&of(&machine, &[path], 2), "program", "failed", words);
    }
    says(&of(&machine, &["/opt/text"], 3), "program", "unknown", "neither an ELF file nor a script");
    run(machine.command().args(["--", "/opt/none"])).exited(66);
}

/// A runtime in a static program is judged all the same: it would use a driver, and nobody counts for it.
#[test]
fn a_static_program_with_a_runtime() {
    let machine = machine();
    let fixed = Elf { data: STATIC, code: &elf::answer(99010), ..Elf::default() };
    executable(&machine, "opt/fixed", &elf::program(&fixed));
    let answer = of(&machine, &["/opt/fixed"], 2);
    says(&answer, "runtime", "failed", "CUDA 99.1 in /opt/fixed");
}

#[test]
fn rpath_and_runpath_with_origin() {
    for (name, rpath, runpath) in
        [("RPATH", Some("$ORIGIN/../lib"), None), ("RUNPATH", None, Some("${ORIGIN}/../lib:/none"))]
    {
        let machine = machine();
        library(
            &machine,
            "opt/app/lib/libcudart.so.12",
            &Elf { code: &elf::answer(12010), ..Elf::default() },
        );
        program(
            &machine,
            "opt/app/bin/train",
            &Elf { needed: &["libcudart.so.12", "libc.so.6"], rpath, runpath, ..Elf::default() },
        );
        // A link to the program has no say in $ORIGIN.
        fs::create_dir_all(machine.sim.temp.join("root/usr/bin")).expect("the folder is ours");
        symlink("../../opt/app/bin/train", machine.sim.temp.join("root/usr/bin/train"))
            .expect("the folder is ours");
        let answer = of(&machine, &["train"], 0);
        let words = format!("/opt/app/bin/../lib/libcudart.so.12 ({name}), CUDA 12.1");
        says(&answer, "program_runtime", "ok", &words);
        says(&answer, "runtime", "ok", "CUDA 12.1 in /opt/app/lib/libcudart.so.12 fits");
        assert!(lines(&answer, "program_driver").is_empty(), "{answer:#}");
    }
    let machine = machine();
    program(&machine, "opt/app/train", &Elf { needed: &["libcudart.so.12", "libc.so.6"], ..Elf::default() });
    says(&of(&machine, &["/opt/app/train"], 2), "program", "failed", "finds no libcudart.so.12");
}

#[test]
fn ld_library_path_stands_between_rpath_and_runpath() {
    let with = |rpath, runpath| {
        let machine = machine().set("LD_LIBRARY_PATH", "/opt/var");
        for (folder, version) in [("own", 12010), ("var", 12020)] {
            let code = elf::answer(version);
            library(
                &machine,
                &format!("opt/{folder}/libcudart.so.12"),
                &Elf { code: &code, ..Elf::default() },
            );
        }
        program(
            &machine,
            "opt/train",
            &Elf { needed: &["libcudart.so.12"], rpath, runpath, ..Elf::default() },
        );
        of(&machine, &["/opt/train"], 0)
    };
    says(
        &with(Some("/opt/own"), None),
        "program_runtime",
        "ok",
        "/opt/own/libcudart.so.12 (RPATH), CUDA 12.1",
    );
    says(
        &with(None, Some("/opt/own")),
        "program_runtime",
        "ok",
        "/opt/var/libcudart.so.12 (LD_LIBRARY_PATH), CUDA 12.2",
    );
    // With both, RPATH does not count.
    let both = with(Some("/opt/own"), Some("/none"));
    says(&both, "program_runtime", "ok", "(LD_LIBRARY_PATH), CUDA 12.2");
}

#[test]
fn a_driver_that_the_programs_paths_lead_to() {
    let with = |folder: &str, release: &str| {
        let machine = machine();
        driver(&machine, folder, release);
        let runpath = format!("/{folder}");
        program(
            &machine,
            "opt/train",
            &Elf { needed: &["libcuda.so.1"], runpath: Some(&runpath), ..Elf::default() },
        );
        machine
    };
    let stub = with("usr/local/cuda/lib64/stubs", "1");
    says(&of(&stub, &["/opt/train"], 2), "program_driver", "failed", "for linking only");
    let old = with("opt/old", "470.256.02");
    says(
        &of(&old, &["/opt/train"], 2),
        "program_driver",
        "failed",
        "is of release 470.256.02, and the kernel module is 535.183.01",
    );
    let copy = with("opt/copy", "535.183.01");
    says(
        &of(&copy, &["/opt/train"], 1),
        "program_driver",
        "warning",
        "and not from /usr/lib/x86_64-linux-gnu/libcuda.so.535.183.01",
    );
    let own = with("usr/lib/x86_64-linux-gnu", "535.183.01");
    says(
        &of(&own, &["/opt/train"], 0),
        "program_driver",
        "ok",
        "libcuda.so.1 comes from /usr/lib/x86_64-linux-gnu",
    );
}

/// The runtime opens the driver by itself, and then its own paths count and not the program's RUNPATH.
#[test]
fn a_driver_that_the_runtimes_paths_lead_to() {
    let with = |of_program, of_runtime| {
        let machine = machine();
        driver(&machine, "usr/lib/x86_64-linux-gnu", "535.183.01");
        driver(&machine, "opt/stubs", "1");
        library(
            &machine,
            "opt/rt/libcudart.so.12",
            &Elf { runpath: of_runtime, code: &elf::answer(12000), ..Elf::default() },
        );
        program(
            &machine,
            "opt/train",
            &Elf { needed: &["libcudart.so.12"], runpath: of_program, ..Elf::default() },
        );
        machine
    };
    let bad = with(Some("/opt/rt"), Some("/opt/stubs"));
    let answer = of(&bad, &["/opt/train"], 2);
    says(&answer, "program_driver", "failed", "by the RUNPATH of /opt/rt/libcudart.so.12");
    assert_eq!(lines(&answer, "program_driver").len(), 2, "NVML's library too: {answer:#}");
    let good = with(Some("/opt/rt:/opt/stubs"), None);
    assert!(lines(&of(&good, &["/opt/train"], 0), "program_driver").is_empty());
}

#[test]
fn a_runtime_that_is_linked_into_the_program_or_its_library() {
    let machine = machine();
    let held = Elf { data: STATIC, code: &elf::answer(12020), needed: &["libc.so.6"], ..Elf::default() };
    program(&machine, "opt/fixed", &held);
    library(&machine, "opt/lib/libours.so", &held);
    program(
        &machine,
        "opt/uses",
        &Elf { needed: &["libours.so"], runpath: Some("$ORIGIN/lib"), ..Elf::default() },
    );
    let two = [elf::answer(12020), elf::answer(11080)].concat();
    program(&machine, "opt/two", &Elf { code: &two, ..held.clone() });
    program(&machine, "opt/none", &Elf { data: b"", ..held.clone() });
    let told = |path: &str| of(&machine, &[path], 0);
    says(&told("/opt/fixed"), "program_runtime", "ok", "is linked into the program: CUDA 12.2");
    says(&told("/opt/fixed"), "runtime", "ok", "CUDA 12.2 in /opt/fixed fits");
    says(&told("/opt/uses"), "program_runtime", "ok", "is linked into /opt/lib/libours.so: CUDA 12.2");
    let two = told("/opt/two");
    says(&two, "program_runtime", "ok", "is linked into the program");
    assert!(lines(&two, "runtime").is_empty(), "what disagrees tells no version: {two:#}");
    says(&told("/opt/none"), "program_runtime", "ok", "it links no CUDA runtime");
}

#[test]
fn scripts() {
    let machine = machine();
    library(&machine, "usr/lib/libcudart.so.12", &Elf { code: &elf::answer(12030), ..Elf::default() });
    program(&machine, "usr/bin/python3", &Elf { needed: &["libcudart.so.12"], ..Elf::default() });
    for name in ["usr/bin/env", "bin/sh"] {
        program(&machine, name, &Elf { needed: &["libc.so.6"], ..Elf::default() });
    }
    for (name, line) in [
        ("direct", "#!/usr/bin/python3 -u"),
        ("env", "#!/usr/bin/env python3"),
        ("split", "#!/usr/bin/env -S python3 -u"),
    ] {
        executable(&machine, &format!("opt/{name}"), format!("{line}\nimport x\n").as_bytes());
        let answer = of(&machine, &[&format!("/opt/{name}")], 0);
        says(&answer, "program", "ok", &format!("/opt/{name} is run by /usr/bin/python3"));
        says(&answer, "program_runtime", "ok", "CUDA 12.3");
    }
    says(
        &of(&machine, &["env", "A=1", "python3", "x.py"], 0),
        "program",
        "ok",
        "/usr/bin/env is run by /usr/bin/python3",
    );
    executable(&machine, "opt/shell", b"#!/bin/sh\nexec python3\n");
    let answer = of(&machine, &["/opt/shell"], 3);
    says(&answer, "program", "unknown", "is a script for /bin/sh: what it starts is not known");
    assert!(lines(&answer, "program_runtime").is_empty(), "{answer:#}");
    executable(&machine, "opt/gone", b"#!/usr/bin/env ruby\n");
    says(&of(&machine, &["/opt/gone"], 2), "program", "failed", "there is no ruby");
    executable(&machine, "opt/windows", b"#!/bin/sh\r\n");
    says(&of(&machine, &["/opt/windows"], 2), "program", "failed", "CR LF");
}

#[test]
fn exceptions_of_the_baseline() {
    let with = |allow: &str, mode: &str| {
        let machine = machine()
            .set("CUWARDEN_SIM_DRIVER", "12.2")
            .set("CUWARDEN_BASELINE", "12.2")
            .set("CUWARDEN_BASELINE_MODE", mode)
            .set("CUWARDEN_MEMORY_LIMIT", "4GiB");
        let machine = if allow.is_empty() { machine } else { machine.set("CUWARDEN_BASELINE_ALLOW", allow) };
        library(&machine, "usr/lib/libcudart.so.11.0", &Elf { code: &elf::answer(11080), ..Elf::default() });
        program(&machine, "opt/bin/trainer", &Elf { needed: &["libcudart.so.11.0"], ..Elf::default() });
        machine
    };
    let used = |allow: &str, mode: &str, status| of(&with(allow, mode), &["/opt/bin/trainer"], status);
    says(&used("", "enforce", 2), "runtime", "failed", "[baseline-runtime-major]");
    says(&used("trainer=11.8", "enforce", 1), "runtime", "warning", "[baseline-exception]");
    says(&used("/opt/*=11.8", "enforce", 1), "runtime", "warning", "[baseline-exception]");
    let other = used("trainer=11.7,other=11.8", "enforce", 2);
    says(&other, "runtime", "failed", "CUWARDEN_BASELINE_ALLOW lets these use it: other");
    says(
        &used("", "warn", 1),
        "runtime",
        "warning",
        "CUDA starts all the same: CUWARDEN_BASELINE_MODE is warn",
    );
    says(&used("", "off", 1), "baseline", "ok", "does not apply: CUWARDEN_BASELINE_MODE is off");
    says(&used("trainer", "enforce", 2), "configuration", "failed", "CUWARDEN_BASELINE_ALLOW");
}
