//! NVML's memory figures are CUDA's: the quota is the card, for a process that never uses CUDA as well.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/ledger/support.rs"]
mod support;

use std::path::Path;
use std::process::Command;

use common::cc;
use common::process::run;
use common::sim::Sim;
use cuwarden::ledger::Ledger;
use support::{LIMIT, MIB, Puppet, Stage, until, uuid};

const GIB: u64 = 1 << 30;
const CARD: u64 = 16 * GIB;
const HALF: u64 = LIMIT / 2;
/// One context of the simulated driver.
const CONTEXT: u64 = MIB;

/// Total and use of a device, by its place on the bus.
#[track_caller]
fn memory(puppet: &mut Puppet, device: u32) -> [u64; 2] {
    let answer = puppet.ask(&format!("nvml {device}"));
    let words: Vec<&str> = answer.split(' ').collect();
    let ["0", _, total, used] = words[..] else { panic!("nvml {device} gave {answer:?}") };
    [total, used].map(|word| word.parse().expect("a number"))
}

fn observer(stage: &Stage, change: impl FnOnce(&mut Command)) -> Puppet {
    stage.puppet_with(change)
}

/// A ledger that came or went is seen within a second or so.
#[track_caller]
fn comes_to(puppet: &mut Puppet, expected: [u64; 2]) {
    until(&format!("total and use become {expected:?}"), || memory(puppet, 0) == expected);
}

/// The operator's word, for all devices.
#[track_caller]
fn set_limit(stage: &Stage, bytes: u64) {
    let ledger = Ledger::join(&stage.sim.shared_dir(), Vec::new).expect("there is a ledger");
    ledger.set_limit_of_all(Some(bytes)).expect("it has room");
}

fn entries(folder: &Path) -> Vec<String> {
    let folder = std::fs::read_dir(folder).expect("the folder is ours");
    let mut names: Vec<String> =
        folder.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

// ---- however the functions are found ------------------------------------------------------------------------------

#[test]
fn every_way_to_the_functions_leads_to_the_quota() {
    let stage = Stage::new();
    let holder = stage.holder(MIB);
    let nvml = stage.sim.libraries().join("libnvidia-ml.so.1").display().to_string();
    let client = cc::program("tests/programs/nvml/client.c", &["-Wl,--no-as-needed", &nvml]);
    for how in ["linked", "handle", "default", "next", "program"] {
        let ask = |mut command: Command| {
            command.args([how, &uuid(0)]).env("CUWARDEN_MEMORY_LIMIT", LIMIT.to_string());
            run(&mut command).succeeded()
        };
        let (bare, shimmed) = (ask(stage.sim.bare(&client)), ask(stage.sim.shimmed(&client)));
        let of = |line: &str, figures: [u64; 3], reserved: bool| {
            let [total, free, used] = figures;
            format!("{line} 0 {total} {free} {used}{}", if reserved { " 0" } else { "" })
        };
        let held = MIB + CONTEXT;
        let real = [CARD, CARD - held, held];
        let shown = [LIMIT, LIMIT - MIB, MIB];
        for (out, figures) in [(&bare, real), (&shimmed, shown)] {
            let lines = out.lines();
            assert_eq!(lines[1], of("memory", figures, false), "{how}: {}", out.told());
            assert_eq!(lines[2], of("memory_v2", figures, true), "{how}: {}", out.told());
        }
        let rest = |lines: Vec<&str>| lines.iter().skip(3).map(|line| (*line).to_owned()).collect::<Vec<_>>();
        assert_eq!(bare.lines()[0], "uninitialized 1", "{}", bare.told());
        assert_eq!(shimmed.lines()[0], "uninitialized 1", "{}", shimmed.told());
        assert_eq!(rest(bare.lines()), rest(shimmed.lines()), "{how}");
    }
    drop(holder);
}

/// The version that look-ups see is NVML's: without NVML there is nothing, as without the shim.
#[test]
fn without_nvml_nothing_is_found() {
    let sim = Sim::new();
    let program = cc::program("tests/programs/lookups/every_name.c", &["-rdynamic"]);
    let names: Vec<&str> = common::hooked::nvml_names().collect();
    assert_eq!(names.len(), 32);
    let list = sim.temp.join("names");
    std::fs::write(&list, names.join("\n")).expect("the folder is ours");
    for mut command in [sim.bare(&program), sim.shimmed(&program)] {
        let out = run(command.arg(&list).arg("libcuwarden.so")).succeeded();
        assert_eq!(out.stdout, "0 names\n", "{}", out.told());
    }
}

// ---- a process that only looks ------------------------------------------------------------------------------------

#[test]
fn who_never_uses_cuda_sees_the_quota_and_leaves_nothing_behind() {
    let stage = Stage::new();
    let shared = stage.sim.shared_dir();
    let mut looker = stage.puppet();
    assert_eq!(memory(&mut looker, 0), [LIMIT, 0], "before anybody used CUDA");
    assert_eq!(memory(&mut looker, 1), [LIMIT, 0]);
    assert_eq!(entries(&shared), [""; 0]);
    let mut holder = stage.holder(HALF);
    comes_to(&mut looker, [LIMIT, HALF]);
    assert_eq!(memory(&mut looker, 1), [LIMIT, 0]);
    holder.gets(MIB);
    assert_eq!(memory(&mut looker, 0), [LIMIT, HALF + MIB], "at once");
    assert_eq!(memory(&mut holder, 0), [LIMIT, HALF + MIB], "whoever uses CUDA sees the same");
    let threads = std::fs::read_dir(format!("/proc/{}/task", looker.pid)).expect("it lives").count();
    assert_eq!(threads, 1);
    let records = entries(&shared.join("proc"));
    assert_eq!(records.len(), 1, "{records:?}");
    assert!(records[0].contains(&holder.pid.to_string()), "{records:?}");
    assert_eq!(stage.sim.events().len(), 0, "{:#?}", stage.sim.events());
    assert_eq!(stage.said(), "");
}

#[test]
fn what_a_dead_process_had_is_free() {
    let stage = Stage::new();
    let mut looker = stage.puppet();
    let (mut one, other) = (stage.holder(HALF), stage.holder(MIB));
    comes_to(&mut looker, [LIMIT, HALF + MIB]);
    one.kill();
    assert_eq!(memory(&mut looker, 0), [LIMIT, MIB]);
    assert_eq!(other.finish(), 0);
    assert_eq!(memory(&mut looker, 0), [LIMIT, 0]);
}

#[test]
fn each_container_sees_its_own() {
    let stage = Stage::new();
    let elsewhere = stage.sim.temp.folder("elsewhere");
    let there = |command: &mut Command| {
        command.env("CUWARDEN_DIR", &elsewhere).env("CUWARDEN_MEMORY_LIMIT", "1g");
    };
    let (mut here, mut far) = (stage.holder(HALF), stage.holder_with(100 * MIB, there));
    let (mut one, mut other) = (stage.puppet(), stage.puppet_with(there));
    for puppet in [&mut here, &mut one] {
        assert_eq!(memory(puppet, 0), [LIMIT, HALF]);
    }
    for puppet in [&mut far, &mut other] {
        assert_eq!(memory(puppet, 0), [GIB, 100 * MIB]);
    }
}

/// Contexts are a part of the quota where they are counted.
#[test]
fn contexts_are_in_what_is_used() {
    let stage = Stage::new();
    let count = |command: &mut Command| {
        command.env("CUWARDEN_COUNT_CONTEXT", "1");
    };
    let mut holder = stage.holder_with(HALF, count);
    let mut looker = stage.puppet_with(count);
    assert_eq!(memory(&mut looker, 0), [LIMIT, HALF + CONTEXT]);
    holder.ok("free");
    assert_eq!(memory(&mut looker, 0), [LIMIT, CONTEXT]);
}

// ---- children -----------------------------------------------------------------------------------------------------

#[test]
fn a_forked_child_sees_the_same() {
    let stage = Stage::new();
    let mut looker = stage.puppet();
    assert_eq!(memory(&mut looker, 0), [LIMIT, 0]);
    let mut holder = stage.holder(HALF);
    // A child of a process that looks, and of one that uses CUDA.
    let mut children = [stage.child_of(&mut looker, "fork"), stage.child_of(&mut holder, "fork")];
    for child in &mut children {
        assert_eq!(memory(child, 0), [LIMIT, HALF]);
        let mut grandchild = stage.child_of(child, "fork");
        assert_eq!(memory(&mut grandchild, 0), [LIMIT, HALF]);
    }
    holder.kill();
    for child in &mut children {
        assert_eq!(memory(child, 0), [LIMIT, 0], "the child lives, and holds nothing");
    }
    assert_eq!(stage.said(), "");
}

/// A lock that a thread has at the moment of a fork is not one that the child waits for.
#[test]
fn threads_ask_while_the_process_forks() {
    let stage = Stage::new();
    let nvml = stage.sim.libraries().join("libnvidia-ml.so.1").display().to_string();
    let program = cc::program("tests/programs/nvml/threads.c", &["-Wl,--no-as-needed", &nvml]);
    for holds in [false, true] {
        let _holder = holds.then(|| stage.holder(MIB));
        let mut command = stage.sim.shimmed(&program);
        run(command.arg(LIMIT.to_string()).env("CUWARDEN_MEMORY_LIMIT", LIMIT.to_string())).succeeded();
    }
}

// ---- what the limit is --------------------------------------------------------------------------------------------

/// Before anybody used CUDA the environment alone says what the limit is.
#[test]
fn the_environment_s_limit_before_anybody_uses_cuda() {
    let visible = |list: &str| vec![("CUDA_VISIBLE_DEVICES", list.to_owned())];
    let by_bus = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned());
    for (limit, environment, expected) in [
        ("1g".to_owned(), vec![], [GIB, GIB]),
        (format!("{}=1g", uuid(1)), vec![], [CARD, GIB]),
        (format!("{}=1g,*=2g", uuid(1)), vec![], [2 * GIB, GIB]),
        ("32g".to_owned(), vec![], [CARD, CARD]),
        ("0".to_owned(), vec![], [CARD, CARD]),
        ("0=1g,1=2g".to_owned(), vec![], [GIB, 2 * GIB]),
        ("0=1g,1=2g".to_owned(), vec![by_bus], [GIB, 2 * GIB]),
        ("0=1g,1=2g".to_owned(), visible("1,0"), [2 * GIB, GIB]),
        ("0=1g,1=2g".to_owned(), visible(&uuid(1)), [CARD, GIB]),
        ("0=1g,*=2g".to_owned(), visible("1"), [2 * GIB, GIB]),
        // Which of them this means is for CUDA to say.
        ("0=1g,*=2g".to_owned(), visible(&format!("1,{}", uuid(0))), [CARD, CARD]),
    ] {
        let stage = Stage::limited(&limit);
        let mut looker = stage.puppet_with(|command| {
            command.envs(environment.iter().map(|(name, value)| (name, value)));
        });
        let seen = [0, 1].map(|device| memory(&mut looker, device)[0]);
        assert_eq!(seen, expected, "{limit} {environment:?}");
    }
}

/// The same that CUDA shows, whatever the numbers mean.
#[test]
fn the_ledger_knows_devices_by_their_uuid() {
    let stage = Stage::limited("0=1g,1=2g");
    let mut holder = stage.puppet_with(|command| {
        command.env("CUDA_VISIBLE_DEVICES", "1,0");
    });
    holder.has_context();
    holder.gets(MIB);
    // Its number 0 is the second card on the bus.
    let mut looker = stage.puppet_with(|command| {
        command.env("CUDA_VISIBLE_DEVICES", format!("1,{}", uuid(0)));
    });
    assert_eq!(memory(&mut looker, 1), [GIB, MIB]);
    assert_eq!(memory(&mut holder, 1), [GIB, MIB]);
    assert_eq!(memory(&mut looker, 0), [CARD, 0], "nobody has used it, and its number is not known");
}

#[test]
fn the_operator_s_limit_holds_here_too() {
    let stage = Stage::new();
    let mut looker = stage.puppet();
    let mut holder = stage.holder(MIB);
    comes_to(&mut looker, [LIMIT, MIB]);
    set_limit(&stage, 32 * MIB);
    for puppet in [&mut looker, &mut holder] {
        assert_eq!(memory(puppet, 0), [32 * MIB, MIB]);
        assert_eq!(memory(puppet, 1), [32 * MIB, 0], "nobody has used it yet");
    }
    set_limit(&stage, 0);
    assert_eq!(memory(&mut looker, 0), [CARD, MIB + CONTEXT], "no quota, so what NVML says");
    assert_eq!(memory(&mut looker, 1), [CARD, 0]);
}

/// What is left of a container that has ended is not what a new one is told.
#[test]
fn a_limit_of_the_dead_holds_for_nobody() {
    let stage = Stage::new();
    stage.holder(MIB).kill();
    let told = |limit: &str| {
        let mut looker = observer(&stage, |command| {
            command.env("CUWARDEN_MEMORY_LIMIT", limit);
        });
        memory(&mut looker, 0)
    };
    assert_eq!(told("128m"), [2 * LIMIT, 0]);
    assert_eq!(told("0")[0], CARD);
    let _holder = stage.holder(MIB);
    assert_eq!(told("128m"), [LIMIT, MIB], "the stricter one of two opinions");
    assert_eq!(told("0"), [LIMIT, MIB]);
    assert_eq!(told("32m"), [HALF, MIB]);
}

/// A limit below what is used: nothing is free, and no figure is larger than the total.
#[test]
fn a_limit_below_the_use() {
    let stage = Stage::new();
    let mut holder = stage.holder(HALF);
    set_limit(&stage, 16 * MIB);
    assert_eq!(memory(&mut holder, 0), [16 * MIB, 16 * MIB]);
}

/// Others have most of the card: what is shown as free can be had, and the figures still make up the total.
#[test]
fn a_card_that_others_have_filled() {
    let stage = Stage::new();
    let mut other = stage.puppet_with(|command| {
        command.env("CUWARDEN_DISABLE", "1");
    });
    other.has_context();
    other.gets(CARD - 2 * CONTEXT - HALF);
    let _holder = stage.holder(MIB);
    let client = cc::program(
        "tests/programs/nvml/client.c",
        &[&stage.sim.libraries().join("libnvidia-ml.so.1").display().to_string()],
    );
    let mut command = stage.sim.shimmed(&client);
    let out = run(command.args(["handle", &uuid(0)]).env("CUWARDEN_MEMORY_LIMIT", LIMIT.to_string()));
    let lines = out.lines();
    let free = HALF - MIB;
    assert_eq!(lines[1], format!("memory 0 {LIMIT} {free} {MIB}"), "{}", out.told());
    let reserved = LIMIT - free - MIB;
    assert_eq!(lines[2], format!("memory_v2 0 {LIMIT} {free} {MIB} {reserved}"), "{}", out.told());
}

// ---- slices -------------------------------------------------------------------------------------------------------

#[test]
fn a_slice_has_its_own_quota_and_its_card_none() {
    let slices = ["MIG-11111111-51a7-4ed0-8000-00000000000a", "MIG-22222222-51a7-4ed0-8000-00000000000b"];
    let stage = Stage::limited(&format!("{}=1g,*=2g", slices[0]));
    let start = |slice: &str| {
        stage.puppet_with(|command| {
            command.env("CUWARDEN_SIM_UUIDS", slices.join(",")).env("CUDA_VISIBLE_DEVICES", slice);
        })
    };
    let mut holder = start(slices[0]);
    holder.has_context();
    holder.gets(MIB);
    let mut looker = start(slices[1]);
    let mut of_slice = |slice: &str| {
        let answer = looker.ask(&format!("nvml-of {slice}"));
        answer.split(' ').skip(1).map(|word| word.parse().expect("a number")).collect::<Vec<u64>>()
    };
    assert_eq!(of_slice(slices[0]), [GIB, MIB]);
    assert_eq!(of_slice(slices[1]), [2 * GIB, 0]);
    let whole = memory(&mut looker, 0);
    assert_eq!(whole, [2 * CARD, MIB + CONTEXT], "what NVML says");
}

// ---- nothing to say -----------------------------------------------------------------------------------------------

#[test]
fn everything_is_handed_through_where_it_is_turned_off_or_wrong() {
    let stage = Stage::new();
    let holder = stage.holder(MIB);
    let real = [CARD, MIB + CONTEXT];
    for (name, value) in
        [("CUWARDEN_DISABLE", "1"), ("CUWARDEN_MEMORY_LIMIT", "lots"), ("CUWARDEN_STACKS", "many")]
    {
        let mut looker = observer(&stage, |command| {
            command.env(name, value);
        });
        assert_eq!(memory(&mut looker, 0), real, "{name}={value}");
    }
    assert_eq!(stage.sim.events().len(), 0, "who only looks complains about nothing");
    assert_eq!(stage.said(), "");
    drop(holder);
}

#[test]
fn without_a_quota_the_figures_are_nvml_s() {
    let stage = Stage::unlimited();
    let mut holder = stage.holder(MIB);
    let mut looker = stage.puppet();
    for puppet in [&mut holder, &mut looker] {
        assert_eq!(memory(puppet, 0), [CARD, MIB + CONTEXT]);
    }
}

#[test]
fn a_directory_without_a_ledger_or_with_a_broken_one() {
    let stage = Stage::new();
    let _holder = stage.puppet_with(|command| {
        command.env("CUWARDEN_DISABLE", "1");
    });
    for spoil in ["nothing", "text", "folder", "link", "missing"] {
        let folder = stage.sim.temp.folder(spoil);
        let ledger = folder.join("ledger");
        match spoil {
            "text" => std::fs::write(&ledger, "no ledger").expect("the folder is ours"),
            "folder" => std::fs::create_dir(&ledger).expect("the folder is ours"),
            "link" => std::os::unix::fs::symlink("/dev/zero", &ledger).expect("the folder is ours"),
            "missing" => std::fs::remove_dir(&folder).expect("the folder is ours"),
            _ => {}
        }
        let mut looker = observer(&stage, |command| {
            command.env("CUWARDEN_DIR", &folder);
        });
        assert_eq!(memory(&mut looker, 0), [LIMIT, 0], "{spoil}");
        let mut untold = observer(&stage, |command| {
            command.env("CUWARDEN_DIR", &folder).env_remove("CUWARDEN_MEMORY_LIMIT");
        });
        assert_eq!(memory(&mut untold, 0), [CARD, 0], "{spoil}");
    }
    assert_eq!(stage.said(), "");
}

/// One that looks follows the directory; one that takes part stays with what it takes part in.
#[test]
fn a_ledger_that_is_removed_and_made_anew() {
    let stage = Stage::new();
    let mut looker = stage.puppet();
    let mut old = stage.holder(HALF);
    comes_to(&mut looker, [LIMIT, HALF]);
    std::fs::remove_dir_all(stage.sim.shared_dir()).expect("the folder is ours");
    comes_to(&mut looker, [LIMIT, 0]);
    assert_eq!(memory(&mut old, 0), [LIMIT, HALF]);
    stage.sim.temp.folder("shared");
    let new = stage.holder(MIB);
    comes_to(&mut looker, [LIMIT, MIB]);
    assert_eq!(memory(&mut old, 0), [LIMIT, HALF]);
    assert_eq!(new.finish(), 0);
}

/// The answer of an injected second call shows that NVML's function was called once for each of ours.
#[test]
fn nvml_is_asked_exactly_once() {
    let stage = Stage::new();
    let _holder = stage.holder(MIB);
    let mut looker = observer(&stage, |command| {
        command.env(
            "CUWARDEN_SIM_FAIL",
            "nvmlDeviceGetMemoryInfo=15@2,nvmlDeviceGetComputeRunningProcesses_v3=15@2",
        );
    });
    for order in ["nvml 0", "nvml-processes 0"] {
        assert!(looker.ask(order).starts_with("0 "), "{order}");
        assert_eq!(looker.ask(order), "15", "{order}");
        assert!(looker.ask(order).starts_with("0 "), "{order}");
    }
}
