//! A child whose environment was scrubbed keeps the shim and its settings, however it was started, and everything else is
//! as without the shim.
//!
//! Reported of others: NVBit#72, ant-ray#553, AReaL#1482 (a launcher rewrites LD_PRELOAD), nocache#5, s2i-dotnetcore#321 (it is
//! overwritten by a wrapper).

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;
#[path = "programs/exec/support.rs"]
mod support;

use std::path::Path;
use std::process::Command;

use common::process::{Finished, run};
use common::sim::Sim;
use common::{artefacts, cc};
use support::{kept, preload_list, program, shimmed, sorted, text, variables};

const FUNCTIONS: [&str; 11] = [
    "execve",
    "execvpe",
    "execv",
    "execvp",
    "execl",
    "execlp",
    "execle",
    "fexecve",
    "execveat",
    "posix_spawn",
    "posix_spawnp",
];
const SEARCHING: [&str; 4] = ["execvp", "execvpe", "execlp", "posix_spawnp"];
const PLACES: [&str; 4] = ["main", "thread", "fork", "vfork"];
const LIMIT: &str = "CUWARDEN_MEMORY_LIMIT=64m";

/// Starts the program that shows its environment, with this one.
#[track_caller]
fn show(command: &mut Command, function: &str, from: &str, environment: &[&str]) -> Finished {
    let this = program();
    command.args([function, from]).args(environment).args(["--", text(&this), "show", "a", "b b", ""]);
    let out = run(command).succeeded();
    let of_arguments: Vec<&str> =
        out.lines().into_iter().filter(|line| !line.starts_with("variable ")).collect();
    let expected = ["argument show", "argument a", "argument b b", "argument "];
    assert_eq!(of_arguments, expected, "{function} {from}: {}", out.told());
    assert_eq!(out.stderr, "", "{function} {from}");
    out
}

#[test]
fn every_function_from_everywhere() {
    let sim = Sim::new();
    let kept = kept(&sim);
    for function in FUNCTIONS {
        for from in PLACES {
            let told = format!("{function} from {from}");
            let empty = show(&mut shimmed(&sim), function, from, &[]);
            assert_eq!(variables(&empty), kept, "{told}");

            let given =
                ["A=b", "CUWARDEN_LOG=debug", "CUWARDEN_DIR=/mine", "CUWARDEN_DISABLE=1", "LD_PRELOAD="];
            let changed = show(&mut shimmed(&sim), function, from, &given);
            let mut expected = kept.clone();
            expected.extend(["A=b".to_owned(), "CUWARDEN_LOG=debug".to_owned()]);
            assert_eq!(variables(&changed), sorted(expected), "{told}");

            let full = show(&mut shimmed(&sim), function, from, &["="]);
            let bare = show(&mut sim.bare(program()), function, from, &["="]);
            let mut expected = sorted([variables(&bare), kept.clone()].concat());
            expected.dedup(); // CUWARDEN_SIM_DIR, which the simulated GPU needs without the shim as well
            assert_eq!(variables(&full), expected, "{told}");

            if function != "fexecve" {
                let null = show(&mut shimmed(&sim), function, from, &["0"]);
                assert_eq!(variables(&null), kept, "{told}");
            }
        }
    }
}

/// Variable arguments: in registers, on the stack, and none.
#[test]
fn however_many_arguments() {
    let sim = Sim::new();
    let this = program();
    for function in ["execl", "execle", "execlp", "execve"] {
        for environment in [&["="][..], &[], &["A=b"]] {
            for count in 0..7 {
                let words: Vec<String> = (0..count).map(|number| format!("word {number}")).collect();
                let outs = [sim.bare(&this), shimmed(&sim)].map(|mut command| {
                    command.args([function, "main"]).args(environment).args(["--", text(&this), "show"]);
                    run(command.args(&words)).succeeded()
                });
                let [bare, with] = outs.map(|out| {
                    let lines = out.lines().into_iter().filter(|line| line.starts_with("argument "));
                    lines.map(str::to_owned).collect::<Vec<_>>()
                });
                assert_eq!(bare.len(), count + 1, "{function} {environment:?} {count}");
                assert_eq!(bare, with, "{function} {environment:?} {count}");
            }
        }
    }
}

/// What was given, whatever follows from it: the same text on both outputs and the same end.
#[track_caller]
fn assert_same(sim: &Sim, arguments: &[&str], with: impl Fn(&mut Command)) -> Finished {
    let outs = [sim.bare(program()), shimmed(sim)].map(|mut command| {
        with(&mut command);
        run(command.args(arguments))
    });
    let [bare, shimmed] = outs;
    assert_eq!(bare.stdout, shimmed.stdout, "{}", shimmed.told());
    assert_eq!(bare.stderr, shimmed.stderr, "{}", shimmed.told());
    assert_eq!(bare.status.code(), shimmed.status.code(), "{}", shimmed.told());
    shimmed
}

#[test]
fn errors_are_those_without_the_shim() {
    let sim = Sim::new();
    let folder = sim.temp.folder("files");
    let plain = folder.join("plain");
    std::fs::write(&plain, "neither a program nor executable\n").expect("the folder is ours");
    let missing = folder.join("missing");
    let inside = plain.join("inside");
    for function in FUNCTIONS {
        for environment in [&["="][..], &[], &["A=b", "LD_PRELOAD=/x.so"]] {
            for from in ["main", "vfork"] {
                let failed = |path: &Path| {
                    let all = [&[function, from][..], environment, &["--", text(path)]].concat();
                    assert_same(&sim, &all, |_| {}).stdout
                };
                for (path, error) in
                    [(&missing, "ENOENT"), (&folder, "EACCES"), (&plain, "EACCES"), (&inside, "ENOTDIR")]
                {
                    let said = failed(path);
                    let expected = if function == "fexecve" && error != "EACCES" { "EINVAL" } else { error };
                    assert!(said.starts_with(&format!("{function}: -1 {expected}")), "{said}");
                }
                failed(Path::new(""));
                failed(Path::new("no-such-program-anywhere"));
            }
        }
    }
}

/// More than the kernel takes fails as without the shim; what just needs much room does not.
#[test]
fn large_environments() {
    let sim = Sim::new();
    let kept = kept(&sim);
    for function in FUNCTIONS {
        for from in PLACES {
            for large in ["@5000,10", "@10,100000", "@700,1"] {
                let out = show(&mut shimmed(&sim), function, from, &["A=b", large]);
                let mut seen = variables(&out);
                let before = seen.len();
                seen.retain(|variable| !variable.starts_with('V'));
                let many: usize = large[1..].split(',').next().expect("a number").parse().expect("a number");
                assert_eq!(before - seen.len(), many, "{function} {from}");
                assert_eq!(
                    seen,
                    sorted([kept.clone(), vec!["A=b".to_owned()]].concat()),
                    "{function} {from}"
                );
            }
            let too_much = assert_same(&sim, &[function, from, "@100,100000", "--", "/bin/true"], |_| {});
            assert!(too_much.stdout.contains(": -1 E2BIG"), "{}", too_much.told());
        }
    }
}

/// What execvp and its kin do beyond execve is libc's: the search in this process's PATH, and a shell for what has no
/// format.
#[test]
fn the_search_and_the_shell_are_libcs() {
    let sim = Sim::new();
    let (first, second) = (sim.temp.folder("first"), sim.temp.folder("second"));
    let executable = |path: &Path, content: &str| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(path, content).expect("the folder is ours");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("the file is ours");
    };
    // Not executable, so the second one is found.
    std::fs::write(first.join("tool"), "echo wrong").expect("the folder is ours");
    executable(&second.join("tool"), "echo \"$0 | $@ | $A\"\n");
    executable(&second.join("found"), "#!/bin/sh\necho \"found $A\"\n");
    let search = format!("PATH={}:{}:/usr/bin:/bin", text(&first), text(&second));
    for function in FUNCTIONS {
        for environment in [&["A=b", search.as_str()][..], &["A=b", "PATH=/nowhere", "LD_PRELOAD=  "]] {
            for from in ["main", "fork", "vfork"] {
                let tried = |file: &str| {
                    let all =
                        [&[function, from][..], environment, &["--", file, "one", "two three"]].concat();
                    let (name, path) = search.split_once('=').expect("a pair");
                    assert_same(&sim, &all, |command| {
                        command.env(name, path);
                    })
                };
                let by_path = tried(text(&second.join("tool")));
                let (missing, tool, found) = (tried("no-such-tool"), tried("tool"), tried("found"));
                if !SEARCHING.contains(&function) {
                    continue;
                }
                let own_path = ["execvpe", "posix_spawnp"].contains(&function) || environment.len() == 2;
                let error = match function {
                    "posix_spawnp" => format!("{function}: -1 ENOENT, errno ENOENT\n"),
                    _ => format!("{function}: -1 ENOENT\n"),
                };
                // In a child of vfork libc's does not say so.
                assert!(
                    missing.stdout == error || (function, from) == ("posix_spawnp", "vfork"),
                    "{function}"
                );
                assert_eq!(found.stdout, if own_path { "found b\n" } else { &error }, "{function}");
                if function != "posix_spawnp" {
                    let shown = format!("{} | one two three | b\n", text(&second.join("tool")));
                    assert_eq!(&tool.stdout, if own_path { &shown } else { &error }, "{function}");
                    assert_eq!(by_path.stdout, shown, "{function}");
                }
            }
        }
    }
}

/// A child without an environment is held to what its parent has left of the quota, in the same books.
#[test]
fn a_child_allocates_within_the_same_quota() {
    for function in FUNCTIONS {
        for from in ["fork", "vfork"] {
            let sim = Sim::new();
            let driver = sim.libraries().join("libcuda.so.1");
            let this = program();
            let allocate = |bytes: &str, environment: &[&str]| {
                let mut command = shimmed(&sim);
                // The program counts its mappings, and a thread that starts meanwhile makes some.
                command.env("CUWARDEN_DRIFT", "0");
                command.args(["hold", text(&driver), "0x2000000", function, from]).args(environment);
                command.args(["--", text(&this), "allocate", text(&driver), bytes]);
                let out = run(&mut command).succeeded();
                assert_eq!(out.stderr, "", "{}", out.told());
                out.stdout
            };
            let raised =
                ["CUWARDEN_MEMORY_LIMIT=1g", "CUWARDEN_DIR=/tmp", "CUWARDEN_DISABLE=1", "LD_PRELOAD="];
            for environment in [&[][..], &raised] {
                let fits = allocate("0x2000000", environment);
                assert_eq!(fits, "allocated: 0\nallocated: 0\n", "{function} {from}");
                let denied = allocate("0x2000001", environment);
                assert_eq!(denied, "allocated: 0\nallocated: 2\n", "{function} {from}");
            }
            // Both of each pair wrote a report, and the refusal is in the child's.
            let reports = sim.reports();
            assert_eq!(reports.len(), 8, "{function} {from}");
            assert!(reports.iter().all(|report| report["devices"][0]["limit_bytes"] == 64 << 20));
            assert_eq!(sim.events_named("quota_denied").len(), 2, "{function} {from}");
        }
    }
}

/// CUWARDEN_FOLLOW=0, or a shim that is told to do nothing: the child has what it was given.
#[test]
fn who_is_not_followed() {
    let sim = Sim::new();
    for off in ["CUWARDEN_FOLLOW=0", "CUWARDEN_DISABLE=1"] {
        for function in FUNCTIONS {
            for from in PLACES {
                let (name, value) = off.split_once('=').expect("a pair");
                let given = ["A=b", "CUWARDEN_MEMORY_LIMIT=1g", "LD_PRELOAD= "];
                let out = show(shimmed(&sim).env(name, value), function, from, &given);
                assert_eq!(variables(&out), given, "{off} {function} {from}");
            }
        }
    }
    // A program cannot say it for its children, where there is a limit.
    let out = show(&mut shimmed(&sim), "execve", "main", &["CUWARDEN_FOLLOW=0"]);
    assert_eq!(variables(&out), kept(&sim));
    // HAMi's limit is kept like ours.
    let mut command = sim.shimmed(program());
    let out = show(
        command.env("CUDA_DEVICE_MEMORY_LIMIT_0", "64m"),
        "execv",
        "main",
        &["CUDA_DEVICE_MEMORY_LIMIT=1g"],
    );
    assert!(variables(&out).contains(&"CUDA_DEVICE_MEMORY_LIMIT_0=64m".to_owned()), "{}", out.told());
    assert!(!out.stdout.contains("1g"), "{}", out.told());
}

/// As setproctitle does it: the memory that the process found its environment in holds something else now.
#[test]
fn a_title_over_the_first_environment() {
    let sim = Sim::new();
    for function in FUNCTIONS {
        let out = show(shimmed(&sim).arg("title"), function, "vfork", &[]);
        assert_eq!(variables(&out), kept(&sim), "{function}");
    }
}

/// A process that goes on, and starts others by vfork with environments that lack the shim, keeps no memory of it.
#[test]
fn nothing_is_left_behind_in_the_parent() {
    let sim = Sim::new();
    for function in ["execve", "execlp"] {
        let mut command = shimmed(&sim);
        let out = run(command.args([function, "many", "A=b", "@100,10", "--", "/bin/true"])).succeeded();
        assert_eq!((out.stdout.as_str(), out.stderr.as_str()), ("", ""), "{function}");
    }
}

/// What the application has in LD_PRELOAD stays, in its order and with its separators.
#[test]
fn other_entries_of_the_preload_list() {
    let sim = Sim::new();
    let shim = artefacts::shim();
    let shim = text(&shim);
    let library = |name: &str| {
        let source = cc::library("tests/programs/exec/other.c", "libother.so", &["-Wl,-soname,libother.so"]);
        let path = sim.temp.join(name);
        std::fs::copy(source, &path).expect("the folder is ours");
        text(&path).to_owned()
    };
    let (a, b, c) = (library("a.so"), library("b.so"), library("c.so"));
    for (at_start, given, made) in [
        (shim.to_owned(), format!("{a}:{b}"), format!("{a}:{b}:{shim}")),
        (shim.to_owned(), format!("{a} {b}"), format!("{a} {b}:{shim}")),
        (format!("{a} {shim}:{b}"), format!("{a}:{c} {b}"), format!("{a}:{shim}:{c} {b}")),
        (format!("{shim} {b}"), format!("{c}:{b}"), format!("{c}:{shim}:{b}")),
        (format!("{a}:{shim}"), String::new(), shim.to_owned()),
        (shim.to_owned(), format!("{shim} {a}"), format!("{shim} {a}")),
    ] {
        for function in ["execve", "execlp", "posix_spawnp"] {
            let mut command = sim.shimmed(program());
            command.env("LD_PRELOAD", &at_start).args([
                function,
                "main",
                &format!("LD_PRELOAD={given}"),
                "--",
            ]);
            let out = run(command.args([text(&program()), "show"])).succeeded();
            assert_eq!(preload_list(&out), made, "{function} {at_start} {given}");
        }
    }
}

/// Another preloaded library that hooks the same functions gets its calls, in either order, and nothing is added twice.
#[test]
fn another_library_that_hooks_the_same() {
    let sim = Sim::new();
    let other = cc::library("tests/programs/exec/other.c", "libother.so", &["-Wl,-soname,libother.so"]);
    let shim = artefacts::shim();
    for list in [[&shim, &other], [&other, &shim]] {
        let list = list.map(|path| text(path)).join(":");
        for function in ["execve", "execv", "execl", "execvpe", "posix_spawn"] {
            for environment in ["=", "A=b"] {
                let mut command = shimmed(&sim);
                command.env("LD_PRELOAD", &list).args([function, "main", environment, "--"]);
                let out = run(command.args([text(&program()), "show"])).succeeded();
                // Where something is missing, the shim asks the next library for execve in the place of execv and execl.
                let is_first = list.starts_with(text(&shim));
                let seen = match (environment, function) {
                    ("A=b", "execv" | "execl") if is_first => "execve",
                    _ => function,
                };
                assert_eq!(out.stderr, format!("saw {seen}\n"), "{function} {environment} {list}");
                let preload = preload_list(&out);
                assert_eq!(preload.matches(text(&shim)).count(), 1, "{preload}");
                assert!(variables(&out).contains(&LIMIT.to_owned()), "{}", out.told());
            }
        }
    }
}
