//! Who starts programs with another environment: Python, shells, perl, and cuwarden itself; see also exec.rs.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;
#[path = "programs/exec/support.rs"]
#[allow(dead_code)]
mod support;

use std::process::Command;

use common::artefacts;
use common::process::run;
use common::sim::Sim;
use support::{kept, program, text, variables};

/// As people do it.
#[test]
fn pythons_and_shells() {
    let sim = Sim::new();
    let this = program();
    let this = text(&this);
    let kept = kept(&sim);
    let python =
        |code: &str| ("python3", vec!["-c".to_owned(), code.replace("THIS", &format!("'{this}', 'show'"))]);
    let shell = |program: &'static str, code: &str| {
        (program, vec!["-c".to_owned(), code.replace("THIS", &format!("{this} show"))])
    };
    let ways = [
        python("import subprocess; subprocess.run([THIS], env={})"),
        python("import subprocess; subprocess.run([THIS], env={}, close_fds=False)"),
        python("import subprocess; subprocess.run([THIS], env={}, preexec_fn=lambda: None)"),
        python(
            "import subprocess, threading\nfor _ in range(3): threading.Thread(target=lambda: subprocess.run([THIS], env={}), daemon=True).start() or None\nimport time; time.sleep(0.3)",
        ),
        python("import os; os.execve(*(lambda p, *a: (p, [p, *a], {}))(THIS))"),
        python("import os; os.waitpid(os.posix_spawn(*(lambda p, *a: (p, [p, *a], {}))(THIS)), 0)"),
        python(
            "import os\nfor name in list(os.environ): del os.environ[name]\nos.execv(*(lambda p, *a: (p, [p, *a]))(THIS))",
        ),
        python("import os, subprocess; os.environ.clear(); subprocess.run([THIS])"),
        python(
            "import multiprocessing as m, subprocess; m.set_start_method('spawn')\nimport os; os.environ.clear(); subprocess.run([THIS])",
        ),
        ("/usr/bin/env", ["-i", this, "show"].map(str::to_owned).to_vec()),
        shell("/bin/sh", "exec env -i THIS"),
        shell("/bin/sh", "unset LD_PRELOAD CUWARDEN_DIR CUWARDEN_MEMORY_LIMIT; THIS"),
        shell("/bin/sh", "LD_PRELOAD= CUWARDEN_MEMORY_LIMIT=1g THIS"),
        shell("/bin/bash", "exec -c THIS"),
        shell("/bin/bash", "env -i /bin/sh -c 'env -i THIS'; true"),
        ("/usr/bin/perl", vec!["-e".to_owned(), format!("%ENV = (); exec '{this}', 'show'")]),
        (
            "/usr/bin/xargs",
            ["-a", "/dev/null", "/usr/bin/env", "-i", this, "show"].map(str::to_owned).to_vec(),
        ),
    ];
    for (program, arguments) in ways {
        let mut command = sim.shimmed(program);
        let out = run(command.env("CUWARDEN_MEMORY_LIMIT", "64m").args(&arguments)).succeeded();
        let mut seen = variables(&out);
        seen.dedup();
        let told = out.told();
        for variable in &kept {
            assert!(seen.contains(variable), "{variable}: {told}");
        }
        let of_ours =
            |variable: &&String| variable.starts_with("CUWARDEN_") || variable.starts_with("LD_PRELOAD");
        assert_eq!(seen.iter().filter(of_ours).count(), kept.len(), "{told}");
    }
}

/// Within a shell that cuwarden runs, another run says which of its options have no effect, and tells of what it started
/// where that is.
#[test]
fn a_run_within_a_run() {
    let sim = Sim::new();
    let (this, command) = (program(), artefacts::cli());
    let inner = format!(
        "{} run --memory-limit 1g --dir {} --label a=b",
        text(&command),
        text(&sim.temp.join("mine"))
    );
    let outer = |limit: &[&str], variables: &[(&str, &str)]| {
        let mut run_it = sim.bare(&command);
        run_it.args(["run", "--dir", text(&sim.shared_dir())]).args(limit).envs(variables.iter().copied());
        let inner = format!("{inner} -- {} show", text(&this));
        run(run_it.args(["--", "/bin/sh", "-c", &inner])).succeeded()
    };
    let out = outer(&["--memory-limit", "64m"], &[]);
    let seen = variables(&out);
    let shared = format!("CUWARDEN_DIR={}", text(&sim.shared_dir()));
    for expected in ["CUWARDEN_MEMORY_LIMIT=64m", "CUWARDEN_LABELS=a=b", &shared] {
        assert!(seen.contains(&expected.to_owned()), "{expected}: {}", out.told());
    }
    for expected in ["--memory-limit has no effect, CUWARDEN_MEMORY_LIMIT is 64m", "--dir has no effect"] {
        assert!(out.stderr.contains(expected), "{expected}: {}", out.told());
    }
    assert!(!out.stderr.contains("--label"), "{}", out.told());
    // Without a quota only what is set already holds.
    let out = outer(&[], &[]);
    assert!(variables(&out).contains(&"CUWARDEN_MEMORY_LIMIT=1g".to_owned()), "{}", out.told());
    assert!(
        variables(&out).contains(&shared) && out.stderr.contains("--dir has no effect"),
        "{}",
        out.told()
    );
    let out = outer(&["--memory-limit", "64m"], &[("CUWARDEN_FOLLOW", "0")]);
    assert!(variables(&out).contains(&"CUWARDEN_MEMORY_LIMIT=1g".to_owned()), "{}", out.told());
    assert!(!variables(&out).contains(&shared) && out.stderr.is_empty(), "{}", out.told());
}

/// What libc starts by itself is out of reach: its own environment is what it takes. As the README says.
#[test]
fn system_has_what_the_program_left() {
    let sim = Sim::new();
    let code = format!("import os; os.environ.pop('LD_PRELOAD'); os.system('{} show')", text(&program()));
    let out = run(shimmed_python(&sim).args(["-c", &code])).succeeded();
    assert!(!out.stdout.contains("LD_PRELOAD"), "{}", out.told());
    let code = format!("import os; os.system('env -i {} show')", text(&program()));
    let out = run(shimmed_python(&sim).args(["-c", &code])).succeeded();
    assert_eq!(variables(&out).iter().filter(|variable| variable.starts_with("LD_PRELOAD=")).count(), 1);
}

fn shimmed_python(sim: &Sim) -> Command {
    let mut command = sim.shimmed("python3");
    command.env("CUWARDEN_MEMORY_LIMIT", "64m");
    command
}
