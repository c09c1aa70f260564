//! The commands as a user or a script sees them: exit status, messages, environment, files left behind.
//!
//! The shim here is a stand-in of a few lines that notes what it was given, so that these tests say something
//! about the command line alone.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod cli_support;

use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cli_support::record_file::{Allocation, RecordFile};
use cli_support::{Temp, compile, must};
use cuwarden::record::layout::*;
use cuwarden::record::snapshot::Observer;

/// Notes its environment at load, and leaves a record file behind if it was given one.
const STAND_IN: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
int cuInit(unsigned flags) { return 0; }
extern char **environ;
static void copy(const char *from, const char *to) {
    FILE *in = fopen(from, "r"), *out = fopen(to, "w");
    int c;
    while (in && out && (c = getc(in)) != EOF) putc(c, out);
    if (in) fclose(in);
    if (out) fclose(out);
}
__attribute__((constructor)) static void loaded(void) {
    const char *notes = getenv("STAND_IN_NOTES"), *record = getenv("STAND_IN_RECORD");
    if (notes) {
        FILE *out = fopen(notes, "w");
        for (char **e = environ; *e; e++) fprintf(out, "%s\n", *e);
        struct stat s;
        if (!stat(getenv("CUWARDEN_DIR"), &s)) fprintf(out, "mode=%o\n", s.st_mode & 07777);
        fclose(out);
    }
    if (record && !getenv("STAND_IN_DONE")) {
        char path[4096];
        setenv("STAND_IN_DONE", "1", 1);
        snprintf(path, sizeof path, "%s/proc", getenv("CUWARDEN_DIR"));
        mkdir(path, 0700);
        strcat(path, "/1.rec");
        copy(record, path);
    }
}
"#;

struct Setup {
    temp: Temp,
    program: PathBuf,
}

impl Setup {
    fn new(name: &str) -> Setup {
        let temp = Temp::new(name);
        let program = temp.join("cuwarden");
        let built = Path::new(env!("CARGO_BIN_EXE_cuwarden"));
        // A copy has no libcuwarden.so beside it but the one that is put there.
        if std::fs::hard_link(built, &program).is_err() {
            std::fs::copy(built, &program).unwrap();
        }
        let source = temp.write("stand-in.c", STAND_IN);
        compile(&source, &temp.join("libcuwarden.so"), &["-shared", "-fPIC"]);
        Setup { temp, program }
    }

    /// The command line in a clean environment.
    fn cuwarden(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).current_dir(self.temp.path()).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.as_bytes().starts_with(b"CUWARDEN_") || name == "LD_PRELOAD" {
                command.env_remove(name);
            }
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.cuwarden(arguments).output().unwrap()
    }

    /// What the stand-in found in the environment of the program.
    fn environment(&self, command: &mut Command) -> Vec<String> {
        let notes = self.temp.join("notes");
        let out = command.env("STAND_IN_NOTES", &notes).output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", err(&out));
        std::fs::read_to_string(notes).unwrap().lines().map(str::to_owned).collect()
    }
}

fn err(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn value<'a>(environment: &'a [String], name: &str) -> Option<&'a str> {
    environment.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

#[track_caller]
fn fails(out: &Output, status: i32, words: &[&str]) {
    let text = err(out);
    assert_eq!(out.status.code(), Some(status), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
    assert!(out.stdout.is_empty(), "messages belong to stderr");
}

/// Directories of runs that were left behind by these tests' own processes.
fn left_behind(before: &[PathBuf]) -> Vec<PathBuf> {
    run_directories().into_iter().filter(|path| !before.contains(path)).collect()
}

fn run_directories() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/tmp").unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.to_string_lossy().contains("-run-")).collect()
}

#[test]
fn the_exit_status_is_the_programs_own() {
    let setup = Setup::new("exit");
    for status in [0, 1, 3, 64, 255] {
        let out = setup.run(&["run", "--", "sh", "-c", &format!("exit {status}")]);
        assert_eq!((out.status.code(), err(&out).as_str()), (Some(status), ""));
    }
    for (signal, number) in [("TERM", 15), ("KILL", 9), ("SEGV", 11)] {
        let out = setup.run(&["run", "--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(out.status.code(), Some(128 + number), "{signal}");
    }
}

#[test]
fn what_cannot_be_started() {
    let setup = Setup::new("start");
    fails(&setup.run(&["run", "--", "no-such-program"]), 127, &["no-such-program", "PATH"]);
    fails(&setup.run(&["run", "--", "/no/such/file"]), 127, &["/no/such/file", "no such file"]);
    let text = setup.temp.write("text", "hello");
    fails(&setup.run(&["run", "--", text.to_str().unwrap()]), 126, &["text", "chmod +x"]);
    std::fs::set_permissions(&text, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(&text, "\x7fELF and no more").unwrap();
    let out = setup.run(&["run", "--", text.to_str().unwrap()]);
    assert!(matches!(out.status.code(), Some(126 | 127 | 2)), "{:?} {}", out.status, err(&out));
}

#[test]
fn input_and_output_are_untouched() {
    use std::io::Write;
    let setup = Setup::new("streams");
    let mut child = setup
        .cuwarden(&["run", "--", "sh", "-c", "cat; echo to-stderr >&2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"\x00\xffbytes").unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.stdout, b"\x00\xffbytes");
    assert_eq!(err(&out), "to-stderr\n");
}

#[test]
fn the_environment_says_what_the_options_say() {
    let setup = Setup::new("environment");
    let mut command = setup.cuwarden(&[
        "run",
        "--memory-limit",
        "0=4GiB,*=2g",
        "--baseline",
        "12.4",
        "--report",
        "out/reports",
        "--label",
        "arm=A",
        "--label",
        "cuda=12.4",
        "--",
        "true",
    ]);
    command.env("CUWARDEN_LABELS", "team=x,arm=B").env("UNRELATED", "kept");
    let environment = setup.environment(&mut command);
    let shim = setup.temp.join("libcuwarden.so");
    assert_eq!(value(&environment, "LD_PRELOAD"), shim.to_str());
    assert_eq!(value(&environment, "CUWARDEN_MEMORY_LIMIT"), Some("0=4GiB,*=2g"));
    assert_eq!(value(&environment, "CUWARDEN_BASELINE"), Some("12.4"));
    assert_eq!(value(&environment, "CUWARDEN_LABELS"), Some("team=x,arm=A,cuda=12.4"));
    assert_eq!(value(&environment, "CUWARDEN_REPORT"), setup.temp.join("out/reports").to_str());
    assert_eq!(value(&environment, "UNRELATED"), Some("kept"));
    assert_eq!(value(&environment, "mode"), Some("700"));
    // Nothing that was not asked for.
    let environment = setup.environment(&mut setup.cuwarden(&["run", "--", "true"]));
    let names: Vec<&str> =
        environment.iter().filter_map(|line| line.split_once('=')?.0.strip_prefix("CUWARDEN_")).collect();
    assert_eq!(names, ["DIR"]);
}

#[test]
fn a_preload_list_is_kept_and_ours_comes_last() {
    let setup = Setup::new("preload");
    let source = setup.temp.write("other.c", "int other_library(void) { return 1; }\n");
    let other = setup.temp.join("libother.so");
    compile(&source, &other, &["-shared", "-fPIC"]);
    let mut command = setup.cuwarden(&["run", "--", "true"]);
    let environment = setup.environment(command.env("LD_PRELOAD", &other));
    let expected = format!("{}:{}", other.display(), setup.temp.join("libcuwarden.so").display());
    assert_eq!(value(&environment, "LD_PRELOAD"), Some(expected.as_str()));
}

#[test]
fn processes_share_a_directory_only_when_told() {
    let setup = Setup::new("directory");
    let before = run_directories();
    let private = |_| {
        let environment = setup.environment(&mut setup.cuwarden(&["run", "--", "true"]));
        value(&environment, "CUWARDEN_DIR").unwrap().to_owned()
    };
    let (first, second) = (private(1), private(2));
    assert_ne!(first, second);
    assert!(!Path::new(&first).exists(), "it had nothing to say");
    let environment = setup.environment(&mut setup.cuwarden(&["run", "--dir", "shared/here", "--", "true"]));
    assert_eq!(value(&environment, "CUWARDEN_DIR"), setup.temp.join("shared/here").to_str());
    assert_eq!(std::fs::metadata(setup.temp.join("shared/here")).unwrap().mode() & 0o777, 0o700);
    // A program that outlives the one that was run needs the directory.
    let out = setup.run(&["run", "--", "sh", "-c", "sleep 30 > /dev/null 2>&1 & echo $! $CUWARDEN_DIR"]);
    let text = String::from_utf8(out.stdout).unwrap();
    let (pid, kept) = text.trim().split_once(' ').unwrap();
    assert!(Path::new(kept).is_dir());
    must(Command::new("kill").arg(pid));
    std::fs::remove_dir_all(kept).unwrap();
    let ours = [first, second].map(PathBuf::from);
    assert!(!left_behind(&before).iter().any(|path| ours.contains(path)));
}

#[test]
fn signals_reach_the_program() {
    let setup = Setup::new("signals");
    for (signal, expected) in [("TERM", 7), ("HUP", 8), ("INT", 9), ("USR1", 10)] {
        let script = "trap 'exit 7' TERM; trap 'exit 8' HUP; trap 'exit 9' INT; trap 'exit 10' USR1; \
                      echo ready; while :; do sleep 0.05; done";
        let mut child =
            setup.cuwarden(&["run", "--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        must(Command::new("kill").arg(format!("-{signal}")).arg(child.id().to_string()));
        assert_eq!(child.wait().unwrap().code(), Some(expected), "{signal}");
    }
}

#[test]
fn the_program_starts_with_the_signal_mask_of_the_caller() {
    let setup = Setup::new("mask");
    let blocked = ["grep", "SigBlk", "/proc/self/status"];
    let plain = must(Command::new(blocked[0]).args(&blocked[1..]));
    let out = setup.run(&[&["run", "--"], &blocked[..]].concat());
    assert_eq!(String::from_utf8(out.stdout).unwrap(), plain);
}

#[test]
fn the_shim_is_checked_before_anything_starts() {
    let setup = Setup::new("shim");
    let shim = setup.temp.join("libcuwarden.so");
    let good = std::fs::read(&shim).unwrap();
    let try_with = |bytes: &[u8]| {
        std::fs::write(&shim, bytes).unwrap();
        setup.run(&["run", "--", "sh", "-c", "echo started"])
    };
    fails(&try_with(b"#!/bin/sh\n"), 125, &["libcuwarden.so", "not an ELF file"]);
    fails(&try_with(b""), 125, &["not an ELF file"]);
    fails(&try_with(&good[..40]), 125, &["not an ELF file"]);
    let mut foreign = good.clone();
    foreign[18] = 8; // MIPS
    fails(&try_with(&foreign), 125, &["another machine"]);
    fails(&try_with(&std::fs::read("/proc/self/exe").unwrap()), 125, &["the shim"]);
    std::fs::remove_file(&shim).unwrap();
    std::fs::create_dir(&shim).unwrap();
    fails(&setup.run(&["run", "--", "true"]), 125, &["not a regular file"]);
    std::fs::remove_dir(&shim).unwrap();
    fails(&setup.run(&["run", "--", "true"]), 125, &["libcuwarden.so was not found", "CUWARDEN_LIB"]);

    // Elsewhere, by name; and in ../lib, which goes first.
    let named = setup.temp.write("named.so", &good);
    let mut command = setup.cuwarden(&["run", "--", "true"]);
    let environment = setup.environment(command.env("CUWARDEN_LIB", &named));
    assert_eq!(value(&environment, "LD_PRELOAD"), named.to_str());
    let bin = setup.temp.join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::fs::create_dir(setup.temp.join("lib")).unwrap();
    std::fs::rename(&setup.program, bin.join("cuwarden")).unwrap();
    std::fs::write(setup.temp.join("lib/libcuwarden.so"), &good).unwrap();
    let moved = Setup { program: bin.join("cuwarden"), temp: setup.temp };
    let mut command = moved.cuwarden(&["run", "--", "true"]);
    let environment = moved.environment(command.env("CUWARDEN_LIB", &named));
    assert_eq!(value(&environment, "LD_PRELOAD"), moved.temp.join("lib/libcuwarden.so").to_str());
}

#[test]
fn wrong_use_is_64_and_says_what_is_right() {
    let setup = Setup::new("usage");
    for (arguments, words) in [
        (&["frobnicate"][..], &["frobnicate"][..]),
        (&[], &["Usage"]),
        (&["run"], &["CMD"]),
        (&["run", "--memory-limit", "4Q", "--", "true"], &["4Q", "4GiB"]),
        (&["run", "--memory-limit", "-1", "--", "true"], &["-1"]),
        (&["run", "--baseline", "twelve", "--", "true"], &["twelve", "12.4"]),
        (&["run", "--label", "arm", "--", "true"], &["arm", "NAME=VALUE"]),
        (&["run", "--label", "a=b,c=d", "--", "true"], &["comma"]),
        (&["run", "--memroy-limit", "4g", "--", "true"], &["--memroy-limit", "--memory-limit"]),
        (&["report"], &["PATH"]),
        (&["report", "x", "--format", "xml"], &["xml", "json"]),
    ] {
        let out = setup.run(arguments);
        let text = err(&out);
        assert_eq!(out.status.code(), Some(64), "{arguments:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{arguments:?}: {word:?} is missing in: {text}");
        }
        assert!(out.stdout.is_empty());
    }
}

#[test]
fn every_help_text_has_an_example() {
    let setup = Setup::new("help");
    for command in [&["--help"][..], &["run", "--help"], &["report", "--help"], &["demo", "--help"]] {
        let out = setup.run(command);
        let text = String::from_utf8(out.stdout).unwrap();
        assert_eq!(out.status.code(), Some(0));
        assert!(text.contains("  cuwarden "), "{command:?}: {text}");
    }
    let version = setup.run(&["--version"]);
    assert_eq!(
        String::from_utf8(version.stdout).unwrap(),
        format!("cuwarden {}\n", env!("CARGO_PKG_VERSION"))
    );
}

/// A record file of a process of this pid namespace that is not there any more.
fn of_dead_process() -> RecordFile {
    let mut file = RecordFile::new();
    file.u64(offset_of!(Header, pid_namespace), Observer::here().pid_namespace.unwrap());
    file
}

fn leaking(mut file: RecordFile) -> RecordFile {
    file.allocation(Allocation::default());
    file
}

fn ended(mut file: RecordFile) -> RecordFile {
    file.ended(1_796_090_594_567_000_000);
    file
}

#[test]
fn a_summary_is_written_where_there_is_something_to_say() {
    let setup = Setup::new("summary");
    let run = |file: &RecordFile, options: &[&str]| {
        let record = setup.temp.write("record", file.bytes());
        let mut command = setup.cuwarden(&[&["run"], options, &["--", "true"]].concat());
        let out = command.env("STAND_IN_RECORD", record).output().unwrap();
        assert_eq!(out.status.code(), Some(0));
        assert!(out.stdout.is_empty());
        err(&out)
    };
    assert_eq!(run(&ended(of_dead_process()), &[]), "");

    let text = run(&ended(leaking(of_dead_process())), &[]);
    assert!(text.contains("trainer (pid 4242): leaked 1.00 MiB in 1 allocation"), "{text}");
    let (_, path) = text.trim_end().rsplit_once("cuwarden report ").unwrap();
    // The command that it names works.
    let shown = setup.run(&["report", path]);
    assert!(String::from_utf8(shown.stdout).unwrap().contains("1.00 MiB"));
    std::fs::remove_dir_all(path).unwrap();

    let mut denied = ended(of_dead_process());
    denied.device_field(1, offset_of!(Device, denied_count), 3);
    denied.device_field(1, offset_of!(Device, limit_bytes), 64 << 20);
    let text = run(&denied, &["--report", "reports"]);
    assert!(text.contains("the quota of 64.0 MiB on GPU 1 refused 3 requests"), "{text}");
    assert!(text.contains("cuwarden report"), "{text}");

    let mut failure = ended(of_dead_process());
    failure.note(1, r#"{"event":"init_failure","api":"cuInit","code":100,"name":"CUDA_ERROR_NO_DEVICE"}"#);
    let text = run(&failure, &["--report", "reports"]);
    assert!(text.contains("cuInit failed with CUDA_ERROR_NO_DEVICE"), "{text}");
}

#[test]
fn a_killed_process_gets_its_report() {
    let setup = Setup::new("killed");
    let record = setup.temp.write("record", leaking(of_dead_process()).bytes());
    let mut command = setup.cuwarden(&["run", "--report", "reports", "--", "true"]);
    let out = command.env("STAND_IN_RECORD", record).output().unwrap();
    assert!(err(&out).contains("was killed and held 1.00 MiB"), "{}", err(&out));
    let path = setup.temp.join("reports/cuwarden-4242.json");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(report["schema"], "cuwarden.report/1");
    assert_eq!(report["termination"], "killed");
    assert_eq!(report["leaks"][0]["bytes"], 1 << 20);
    let names: Vec<_> = std::fs::read_dir(setup.temp.join("reports")).unwrap().flatten().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn report_shows_files_folders_and_directories() {
    let setup = Setup::new("report");
    let record = setup.temp.write("4242.rec", ended(leaking(of_dead_process())).bytes());
    let text = |arguments: &[&str]| {
        let out = setup.run(arguments);
        assert_eq!(out.status.code(), Some(0), "{}", err(&out));
        String::from_utf8(out.stdout).unwrap()
    };
    let record = record.to_str().unwrap();
    assert!(text(&["report", record]).contains("Leak: 1.00 MiB"));
    let json = text(&["report", record, "--format", "json"]);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((value["pid"].as_u64(), value["termination"].as_str()), (Some(4242), Some("exit")));

    // What it wrote, it reads; and the same comes out.
    let saved = setup.temp.write("saved.json", &json);
    assert_eq!(text(&["report", saved.to_str().unwrap(), "--format", "json"]), json);

    // A CUWARDEN_DIR, with files that are none of ours.
    let directory = setup.temp.join("container");
    std::fs::create_dir_all(directory.join("proc")).unwrap();
    std::fs::write(directory.join("ledger"), "binary").unwrap();
    std::fs::copy(record, directory.join("proc/1-a.rec")).unwrap();
    let mut other = ended(of_dead_process());
    other.u32(offset_of!(Header, pid), 5);
    std::fs::write(directory.join("proc/2-b.rec"), other.bytes()).unwrap();
    let listing = text(&["report", directory.to_str().unwrap()]);
    assert!(listing.contains("2 processes: 1.00 MiB not freed in 1 allocation"), "{listing}");
    let list: serde_json::Value = serde_json::from_str(&text(&[
        "report",
        directory.join("proc").to_str().unwrap(),
        "--format",
        "json",
    ]))
    .unwrap();
    let pids: Vec<_> =
        list.as_array().unwrap().iter().map(|report| report["pid"].as_u64().unwrap()).collect();
    assert_eq!(pids, [4242, 5]);

    let empty = setup.temp.join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert!(text(&["report", empty.to_str().unwrap()]).contains("There is no report in"));
    assert_eq!(text(&["report", empty.to_str().unwrap(), "--format", "json"]).trim(), "[]");
}

#[test]
fn what_cannot_be_read_is_66_and_says_why() {
    let setup = Setup::new("unreadable");
    let mut of_version_nine = RecordFile::new();
    of_version_nine.u32(offset_of!(Header, version), 9);
    for (name, bytes, words) in [
        ("empty", Vec::new(), "is empty"),
        ("text", b"hello".to_vec(), "neither a report"),
        ("json", b"{\"a\": 1}".to_vec(), "no schema"),
        ("other", b"{\"schema\": \"cuwarden.report/9\"}".to_vec(), "cuwarden.report/9"),
        ("damaged", b"{\"schema\": \"cuwarden.report/1\"}".to_vec(), "is damaged"),
        ("cut", b"{\"schema\": \"cuwarden.rep".to_vec(), "cut short"),
        ("short", RecordFile::new().bytes()[..700].to_vec(), "is cut short: 700 bytes"),
        ("version", of_version_nine.bytes(), "format version 9"),
    ] {
        let path = setup.temp.write(name, bytes);
        fails(&setup.run(&["report", path.to_str().unwrap()]), 66, &[name, words]);
    }
    fails(&setup.run(&["report", "nowhere"]), 66, &["nowhere", "No such file"]);
    // In a folder the others are still shown.
    setup.temp.write("good.rec", ended(of_dead_process()).bytes());
    std::fs::create_dir(setup.temp.join("folder")).unwrap();
    std::fs::copy(setup.temp.join("text"), setup.temp.join("folder/text")).unwrap();
    fails(&setup.run(&["report", "folder"]), 66, &["folder/text", "nothing in folder"]);
    std::fs::copy(setup.temp.join("good.rec"), setup.temp.join("folder/good")).unwrap();
    let out = setup.run(&["report", "folder"]);
    assert_eq!(out.status.code(), Some(0));
    assert!(err(&out).contains("folder/text") && !out.stdout.is_empty());
}

#[test]
fn the_gate_can_fail() {
    let setup = Setup::new("gate");
    let gate = |name: &str, file: &RecordFile| {
        let path = setup.temp.write(name, file.bytes());
        setup.run(&["report", "--fail-on-leak", path.to_str().unwrap()]).status.code()
    };
    assert_eq!(gate("clean", &ended(of_dead_process())), Some(0));
    assert_eq!(gate("leak", &ended(leaking(of_dead_process()))), Some(1));
    assert_eq!(gate("killed", &leaking(of_dead_process())), Some(1));
    let mut pool = ended(of_dead_process());
    pool.allocation(Allocation { class: Class::PoolReserve as u8, ..Allocation::default() });
    assert_eq!(gate("pool", &pool), Some(0));
    // A gate with nothing to look at must not pass.
    std::fs::create_dir(setup.temp.join("empty")).unwrap();
    fails_status(&setup.run(&["report", "--fail-on-leak", "empty"]), 66, "nothing to judge");
    std::fs::create_dir(setup.temp.join("half")).unwrap();
    std::fs::copy(setup.temp.join("clean"), setup.temp.join("half/clean")).unwrap();
    std::fs::write(setup.temp.join("half/broken"), "x").unwrap();
    fails_status(&setup.run(&["report", "--fail-on-leak", "half"]), 66, "not every file");
}

#[track_caller]
fn fails_status(out: &Output, status: i32, words: &str) {
    assert_eq!(out.status.code(), Some(status), "{}", err(out));
    assert!(err(out).contains(words), "{}", err(out));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let setup = Setup::new("pipe");
    let mut file = of_dead_process();
    for address in 0..5000 {
        let stack = file.stack(&[(0, address)]);
        file.allocation(Allocation { address, stack, ..Allocation::default() });
    }
    setup.temp.write("big", ended(file).bytes());
    let script = format!("set -o pipefail; {} report big --format json | head -c 1", setup.program.display());
    let out = Command::new("bash").args(["-c", &script]).current_dir(setup.temp.path()).output().unwrap();
    assert_eq!((out.status.code(), err(&out).as_str()), (Some(0), ""));
    let mut command = setup.cuwarden(&["report", "big"]);
    command.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap()).stderr(Stdio::piped());
    let out = command.spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(74), "{}", err(&out));
}
