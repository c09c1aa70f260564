//! NVML's lists have the processes of the directory, with what the ledger has of them, and nobody else.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/ledger/support.rs"]
mod support;

use std::collections::BTreeMap;
use std::process::Command;

use common::cc;
use common::process::{Finished, run};
use support::{MIB, Puppet, Stage, until, uuid};

const INSUFFICIENT_SIZE: i32 = 7;
/// One context of the simulated driver.
const CONTEXT: u64 = MIB;

/// The same as `nvmlDeviceGetComputeRunningProcesses_v3` has it.
#[track_caller]
fn listed(puppet: &mut Puppet, device: u32) -> BTreeMap<i32, u64> {
    let answer = puppet.ask(&format!("nvml-processes {device}"));
    let numbers: Vec<u64> = answer.split(' ').map(|word| word.parse().expect("a number")).collect();
    let (code, pairs) = numbers.split_first().expect("a code");
    assert_eq!(*code, 0, "{answer}");
    pairs.chunks(2).map(|pair| (i32::try_from(pair[0]).expect("a pid"), pair[1])).collect()
}

#[track_caller]
fn comes_to<const N: usize>(puppet: &mut Puppet, expected: [(i32, u64); N]) {
    let expected = BTreeMap::from(expected);
    until("the list is what it should be", || listed(puppet, 0) == expected);
}

fn client(stage: &Stage) -> std::path::PathBuf {
    let nvml = stage.sim.libraries().join("libnvidia-ml.so.1").display().to_string();
    cc::program("tests/programs/nvml/client.c", &["-Wl,--no-as-needed", &nvml])
}

/// All lists with all these rooms.
#[track_caller]
fn ask(mut command: Command, device: &str, rooms: &[String]) -> Finished {
    run(command.args(["linked", device]).args(rooms)).succeeded()
}

/// The lines of lists alone.
fn lists(out: &Finished) -> Vec<&str> {
    out.lines().into_iter().filter(|line| line.contains("Running") || line.starts_with("details")).collect()
}

// ---- the protocol of sizes ----------------------------------------------------------------------------------------

/// What NVML answers for its processes is what is answered for those that are shown, with any room. Others hold the card
/// too, so that NVML's own list is longer.
#[test]
fn every_list_keeps_to_nvml_s_protocol_of_sizes() {
    let stage = Stage::new();
    let elsewhere = stage.sim.temp.folder("elsewhere");
    let others: Vec<Puppet> = (0..4)
        .map(|_| {
            stage.holder_with(MIB, |command| {
                command.env("CUWARDEN_DIR", &elsewhere);
            })
        })
        .collect();
    let ours: Vec<Puppet> = (1..4).map(|number| stage.holder(number * MIB)).collect();
    let rooms: Vec<String> =
        ["null", "0", "1", "2", "3", "4", "6", "7", "100", "5000"].map(str::to_owned).to_vec();
    let out = ask(stage.sim.shimmed(client(&stage)), &uuid(0), &rooms);
    let mut held: Vec<(i32, u64)> =
        ours.iter().zip(1..).map(|(one, number)| (one.pid, number * MIB)).collect();
    held.sort_unstable();
    let entries: String = held.iter().map(|(pid, bytes)| format!(" {pid}:{bytes}:-1:-1")).collect();
    let mut expected = Vec::new();
    for room in &rooms {
        let fits = room.parse::<u32>().unwrap_or(0) >= 3;
        let compute = if fits { format!("0 3{entries}") } else { format!("{INSUFFICIENT_SIZE} 3") };
        for kind in ["Compute", "Graphics", "MPSCompute"] {
            for version in ["", "_v2", "_v3"] {
                let answer = if kind == "Compute" { compute.as_str() } else { "0 0" };
                expected.push(format!("{kind}RunningProcesses{version} {answer}"));
            }
        }
        expected.push(format!("details-0 {compute}"));
        expected.extend(["details-1 0 0".to_owned(), "details-2 0 0".to_owned()]);
        // A mode that NVML does not know.
        expected.push(format!("details-3 2 {}", room.parse::<u32>().unwrap_or(0)));
    }
    assert_eq!(lists(&out), expected, "{}", out.told());
    assert_eq!(stage.said(), "");
    drop((others, ours));
}

/// What NVML refuses is refused in the same words, and the count stays as NVML leaves it.
#[test]
fn what_nvml_refuses_stays_refused() {
    let stage = Stage::new();
    let _holder = stage.holder(MIB);
    let rooms = ["null", "0", "1", "9"].map(str::to_owned);
    for fail in [
        "nvmlDeviceGetComputeRunningProcesses_v3=3,nvmlDeviceGetRunningProcessDetailList=4",
        "nvmlDeviceGetComputeRunningProcesses=15,nvmlDeviceGetMPSComputeRunningProcesses_v2=999",
        // Without the device's name nothing is known of it.
        "nvmlDeviceGetUUID=999",
    ] {
        let both = [stage.sim.bare(client(&stage)), stage.sim.shimmed(client(&stage))].map(|mut command| {
            command.env("CUWARDEN_SIM_FAIL", fail);
            ask(command, &uuid(0), &rooms)
        });
        let refused = |out: &Finished| {
            let lines = out.lines().into_iter().filter(|line| {
                line.starts_with("no ")
                    || line.starts_with("other list")
                    || [" 3 ", " 4 ", " 15 ", " 999 "].iter().any(|code| line.contains(code))
            });
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(refused(&both[0]), refused(&both[1]), "{fail}");
        assert!(refused(&both[0]).len() > 3, "{}", both[0].told());
        if fail.starts_with("nvmlDeviceGetUUID") {
            assert_eq!(both[0].stdout, both[1].stdout);
        }
    }
}

// ---- who is in it -------------------------------------------------------------------------------------------------

#[test]
fn only_the_living_of_the_directory_with_what_the_ledger_has() {
    for limited in [true, false] {
        let stage = if limited { Stage::new() } else { Stage::unlimited() };
        let elsewhere = stage.sim.temp.folder("elsewhere");
        let there = |command: &mut Command| {
            command.env("CUWARDEN_DIR", &elsewhere);
        };
        let mut far = stage.holder_with(7 * MIB, there);
        let mut looker = stage.puppet();
        // Nothing is known of this directory yet.
        assert_eq!(listed(&mut looker, 0), BTreeMap::from([(far.pid, 7 * MIB + CONTEXT)]));
        let (mut one, mut other) = (stage.holder(2 * MIB), stage.holder(3 * MIB));
        comes_to(&mut looker, [(one.pid, 2 * MIB), (other.pid, 3 * MIB)]);
        assert_eq!(listed(&mut looker, 1), BTreeMap::new(), "nobody of the directory uses it");
        assert_eq!(listed(&mut one, 0), listed(&mut looker, 0));
        assert_eq!(listed(&mut far, 0), BTreeMap::from([(far.pid, 7 * MIB)]));
        other.gets(MIB);
        assert_eq!(listed(&mut looker, 0)[&other.pid], 4 * MIB, "at once");
        one.kill();
        assert_eq!(listed(&mut looker, 0), BTreeMap::from([(other.pid, 4 * MIB)]));
        // It holds nothing that is counted, and still has its context.
        other.ok("free-all");
        assert_eq!(listed(&mut looker, 0), BTreeMap::from([(other.pid, 0)]));
        other.ok("release 0");
        assert_eq!(listed(&mut looker, 0), BTreeMap::new());
    }
}

#[test]
fn contexts_are_in_what_a_process_has() {
    let stage = Stage::new();
    let count = |command: &mut Command| {
        command.env("CUWARDEN_COUNT_CONTEXT", "1");
    };
    let holder = stage.holder_with(2 * MIB, count);
    assert_eq!(listed(&mut stage.puppet_with(count), 0), BTreeMap::from([(holder.pid, 2 * MIB + CONTEXT)]));
}

/// Pids of another namespace mean nothing here: their bytes are in the memory figures and nowhere else.
#[test]
fn who_has_no_number_here_is_left_out() {
    let stage = Stage::new();
    let mut outside = stage.holder(2 * MIB);
    let Some(mut inside) = stage.puppet_in_namespace(true, |_| {}) else { return };
    inside.ok(&format!("begin {}", 3 * MIB));
    assert_eq!(listed(&mut outside, 0), BTreeMap::from([(outside.pid, 2 * MIB)]));
    assert_eq!(listed(&mut inside, 0), BTreeMap::from([(inside.own_pid, 3 * MIB)]));
    for puppet in [&mut outside, &mut inside] {
        let answer = puppet.ask("nvml 0");
        assert!(answer.ends_with(&format!(" {}", 5 * MIB)), "{answer}");
    }
}

#[test]
fn a_forked_child_asks_for_the_list() {
    let stage = Stage::new();
    let mut holder = stage.holder(2 * MIB);
    let mut child = stage.child_of(&mut holder, "fork");
    assert_eq!(listed(&mut child, 0), BTreeMap::from([(holder.pid, 2 * MIB)]));
    holder.kill();
    assert_eq!(listed(&mut child, 0), BTreeMap::new());
}

/// The list of a card in MIG mode has the processes of all its instances, each with its instance.
#[test]
fn slices_are_in_the_list_of_their_card() {
    let slices = ["MIG-11111111-51a7-4ed0-8000-00000000000a", "MIG-22222222-51a7-4ed0-8000-00000000000b"];
    let stage = Stage::limited("1g");
    let see = |slice: usize| {
        move |command: &mut Command| {
            command.env("CUWARDEN_SIM_UUIDS", slices.join(",")).env("CUDA_VISIBLE_DEVICES", slices[slice]);
        }
    };
    let elsewhere = stage.sim.temp.folder("elsewhere");
    let _far = stage.holder_with(MIB, |command| {
        see(0)(command);
        command.env("CUWARDEN_DIR", &elsewhere);
    });
    let holders = [0, 1].map(|slice| stage.holder_with((2 + slice as u64) * MIB, see(slice)));
    let compute = |device: &str| {
        let mut command = stage.sim.shimmed(client(&stage));
        see(0)(&mut command);
        let out = ask(command, device, &["9".to_owned()]);
        let line = out.lines().into_iter().find(|line| line.starts_with("ComputeRunningProcesses_v3 "));
        line.expect("the list was asked for").split_once(' ').expect("it has an answer").1.to_owned()
    };
    let entry = |slice: usize| format!("{}:{}:{}:0", holders[slice].pid, (2 + slice as u64) * MIB, slice + 1);
    assert_eq!(compute(slices[0]), format!("0 1 {}", entry(0)));
    assert_eq!(compute(slices[1]), format!("0 1 {}", entry(1)));
    let mut both = [entry(0), entry(1)];
    if holders[0].pid > holders[1].pid {
        both.reverse();
    }
    assert_eq!(compute(&uuid(0)), format!("0 2 {} {}", both[0], both[1]));
}

// ---- another NVML -------------------------------------------------------------------------------------------------

/// Entries of another length, and a function that is not there.
#[test]
fn a_few_drivers_have_longer_entries() {
    let stage = Stage::new();
    let holders = [2 * MIB, 3 * MIB].map(|bytes| stage.holder(bytes));
    let old = cc::library(
        "tests/programs/nvml/old_nvml.c",
        "libnvidia-ml.so.1",
        &["-Wl,-soname,libnvidia-ml.so.1"],
    );
    let client = cc::program("tests/programs/nvml/old_nvml_client.c", &[]);
    let [bare, shimmed] = [stage.sim.bare(&client), stage.sim.shimmed(&client)].map(|mut command| {
        command.env("LD_LIBRARY_PATH", old.parent().expect("it lies in a folder"));
        run(&mut command).succeeded()
    });
    assert_eq!(
        bare.stdout,
        "0 1000000000:5:-1:9 1000000001:5:-1:9\nlacking and said so\n",
        "{}",
        bare.told()
    );
    let mut held = [(holders[0].pid, 2 * MIB), (holders[1].pid, 3 * MIB)];
    held.sort_unstable();
    let entries: String = held.iter().map(|(pid, bytes)| format!(" {pid}:{bytes}:-1:-1")).collect();
    // A reference that the program can do without binds to the shim; then the library's lack is its answer.
    let linked = "linked 13\n";
    assert_eq!(shimmed.stdout, format!("0{entries}\nlacking and said so\n{linked}"), "{}", shimmed.told());
}

#[test]
fn turned_off_the_list_is_nvml_s() {
    let stage = Stage::new();
    let holder = stage.holder(2 * MIB);
    let mut looker = stage.puppet_with(|command| {
        command.env("CUWARDEN_DISABLE", "1");
    });
    assert_eq!(listed(&mut looker, 0), BTreeMap::from([(holder.pid, 2 * MIB + CONTEXT)]));
}
