//! Quotas: exact for every way to get memory, also where the driver fails, where threads race at the edge, and beside a
//! stream capture.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;

use common::process::{Finished, run};
use common::sim::Sim;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 64 * MIB;
/// What the simulated driver takes for a context.
const CONTEXT: u64 = 256 * MIB;

/// Every allocating function with its smallest step, in bytes, in the order of kinds.h.
const KINDS: [(&str, u64); 19] = [
    ("cuMemAlloc", 1),
    ("cuMemAlloc_v2", 1),
    ("cuMemAllocManaged", 1),
    ("cuMemAllocPitch", 512),
    ("cuMemAllocPitch_v2", 512),
    ("cuMemAllocAsync", 2 * MIB),
    ("cuMemAllocAsync_ptsz", 2 * MIB),
    ("cuMemAllocFromPoolAsync", 2 * MIB),
    ("cuMemAllocFromPoolAsync_ptsz", 2 * MIB),
    ("cuMemCreate", 2 * MIB),
    ("cuArrayCreate", 4096),
    ("cuArrayCreate_v2", 4096),
    ("cuArray3DCreate", 4096),
    ("cuArray3DCreate_v2", 4096),
    ("cuMipmappedArrayCreate", 4096),
    ("cuGraphLaunch", 2 * MIB),
    ("cuGraphLaunch_ptsz", 2 * MIB),
    ("cuGraphUpload", 2 * MIB),
    ("cuGraphUpload_ptsz", 2 * MIB),
];

/// Runs a program of tests/programs/quota to its end under a quota.
#[track_caller]
fn limited(sim: &Sim, program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Finished {
    let program = books::program(sim, &format!("quota/{program}.c"));
    let mut command = sim.shimmed(&program);
    command.args(arguments).env("CUWARDEN_MEMORY_LIMIT", LIMIT.to_string());
    command.envs(environment.iter().copied());
    run(&mut command).succeeded()
}

#[track_caller]
fn edge(sim: &Sim, mode: &str, more: &[&str], environment: &[(&str, &str)]) -> Finished {
    let limit = LIMIT.to_string();
    let arguments: Vec<&str> = [mode, &limit].iter().chain(more).copied().collect();
    limited(sim, "edge", &arguments, environment)
}

/// The most that the first device ever had in use, contexts included.
fn peak(sim: &Sim) -> u64 {
    sim.books()["devices"][0]["peak"].as_u64().expect("the books have a peak")
}

#[test]
fn exact_at_the_edge_for_every_way() {
    let sim = Sim::new();
    edge(&sim, "edge", &[], &[]);
    let report = sim.report();
    books::agree(&sim, &report);
    assert_eq!(report["devices"][0]["denied_count"], 3 * KINDS.len() as u64, "{report:#}");
    assert_eq!(report["devices"][0]["peak_bytes"], LIMIT, "{report:#}");
    assert_eq!(peak(&sim), LIMIT + CONTEXT);

    // One line a kind, with the numbers of the first refusal.
    let events = sim.events_named("quota_denied");
    assert_eq!(events.len(), KINDS.len(), "{events:#?}");
    assert_eq!(sim.events().len(), events.len(), "{:#?}", sim.events());
    for (event, (api, grain)) in events.iter().zip(KINDS) {
        let (requested, used) =
            if api.starts_with("cuGraphUpload") { (LIMIT + grain, 0) } else { (grain, LIMIT) };
        for (key, value) in [
            ("api", json!(api)),
            ("device", json!(0)),
            ("uuid", report["devices"][0]["uuid"].clone()),
            ("requested_bytes", json!(requested)),
            ("used_bytes", json!(used)),
            ("limit_bytes", json!(LIMIT)),
        ] {
            assert_eq!(event[key], value, "{event:#}");
        }
    }
    // Refusals did not reach the driver.
    for (api, _) in KINDS {
        let granted = if api.starts_with("cuGraphUpload") { 1 } else { 3 };
        assert_eq!(sim.calls(api), granted, "{api}");
    }
}

#[test]
fn what_is_kept_for_later_gives_way() {
    let sim = Sim::new();
    edge(&sim, "kept", &[], &[]);
    assert_eq!(peak(&sim), LIMIT + CONTEXT);
    assert_eq!(sim.events(), Vec::<Value>::new());
}

#[test]
fn a_launched_graph_can_be_launched_again() {
    let sim = Sim::new();
    edge(&sim, "again", &[], &[]);
    assert_eq!(peak(&sim), LIMIT + CONTEXT);
    assert_eq!(sim.events(), Vec::<Value>::new());
}

#[test]
fn a_graph_that_is_uploaded_when_it_is_made_is_counted_then() {
    let sim = Sim::new();
    edge(&sim, "uploaded", &[], &[]);
    assert_eq!(peak(&sim), LIMIT + CONTEXT);
    assert_eq!(sim.events_named("quota_denied").len(), 1);
}

#[test]
fn modules_count() {
    let sim = Sim::new();
    edge(&sim, "modules", &[], &[]);
    let apis: Vec<Value> =
        sim.events_named("quota_denied").iter().map(|event| event["api"].clone()).collect();
    assert_eq!(apis, ["cuModuleLoadData", "cuMemAlloc_v2", "cuLibraryLoadData"]);
}

/// The code is passed on, nothing is written, and what was reserved is given back.
#[test]
fn a_failing_allocation_costs_nothing() {
    for (api, _) in KINDS {
        let sim = Sim::new();
        edge(&sim, "failed", &[api, "719"], &[("CUWARDEN_SIM_FAIL", &format!("{api}=719@1"))]);
        assert_eq!(sim.calls(api), 2, "{api}");
        assert_eq!(sim.events(), Vec::<Value>::new(), "{api}");
    }
}

#[test]
fn a_failing_free_keeps_the_record() {
    for (api, free) in [
        ("cuMemAlloc", "cuMemFree"),
        ("cuMemAlloc_v2", "cuMemFree_v2"),
        ("cuMemAllocManaged", "cuMemFree_v2"),
        ("cuMemAllocPitch", "cuMemFree"),
        ("cuMemAllocPitch_v2", "cuMemFree_v2"),
        ("cuMemAllocAsync", "cuMemFreeAsync"),
        ("cuMemAllocFromPoolAsync_ptsz", "cuMemFreeAsync"),
        ("cuMemCreate", "cuMemRelease"),
        ("cuArrayCreate_v2", "cuArrayDestroy"),
        ("cuMipmappedArrayCreate", "cuMipmappedArrayDestroy"),
    ] {
        let sim = Sim::new();
        edge(&sim, "failed-free", &[api, "719"], &[("CUWARDEN_SIM_FAIL", &format!("{free}=719@1"))]);
        assert_eq!(sim.calls(free), 2, "{free}");
        books::agree(&sim, &sim.report());
    }
}

/// NULL, nothing, far too much, and pointers and handles that are nobody's.
#[test]
fn odd_arguments_get_the_driver_s_own_answers() {
    let sim = Sim::new();
    let program = books::program(&sim, "quota/odd.c");
    let bare = run(&mut sim.bare(&program)).succeeded();
    let shimmed = run(&mut sim.shimmed(&program)).succeeded();
    assert_eq!(bare.stdout, shimmed.stdout);
    assert!(bare.lines().len() > 80, "{}", bare.told());
    let report = sim.report();
    books::agree(&sim, &report);
    assert_eq!(report["devices"][0]["live_bytes"], 4096, "{report:#}");
}

#[test]
fn limits_by_device_whatever_the_order() {
    const FIRST: &str = "GPU-1f0e3dad-51a7-4ed0-8000-000000000000";
    const SECOND: &str = "GPU-3e1c7b5a-51a7-4ed0-8000-000000000001";
    let (gib, all) = (1u64 << 30, 16u64 << 30);
    let by_uuid = format!("{FIRST}=1g,{SECOND}=3g,0=5g");
    let upper = format!("gpu{}=1g", FIRST[3..].to_uppercase());
    for (limits, visible, expected) in [
        ("2g", None, [2 * gib, 2 * gib]),
        ("0=1g,1=3g", None, [gib, 3 * gib]),
        ("1=3g", None, [all, 3 * gib]),
        ("*=1g,0=6g", None, [6 * gib, gib]),
        (&by_uuid, None, [gib, 3 * gib]),
        (&by_uuid, Some("1,0"), [3 * gib, gib]),
        ("0=1g,1=3g", Some("1,0"), [gib, 3 * gib]),
        ("0=0,*=1g", Some("1,0"), [all, gib]),
        ("64g", None, [all, all]),
    ] {
        let sim = Sim::new();
        let program = books::program(&sim, "quota/edge.c");
        let mut command = sim.shimmed(&program);
        command.args(["totals", "2"]).env("CUWARDEN_MEMORY_LIMIT", limits);
        if let Some(visible) = visible {
            command.env("CUDA_VISIBLE_DEVICES", visible);
        }
        let out = run(&mut command).succeeded();
        let said: Value = serde_json::from_str(&out.stdout).expect("the program says JSON");
        for (ordinal, limit) in expected.into_iter().enumerate() {
            let device = &said[ordinal];
            let (old, told) = (limit.min(u64::from(u32::MAX)), format!("{limits}: {}", out.told()));
            assert_eq!(device["total"], limit, "{told}");
            assert_eq!(device["device"], limit, "{told}");
            assert_eq!(device["old_total"], old, "{told}");
            assert_eq!(device["device_old"], old, "{told}");
            let free = if limit >= all { all - CONTEXT } else { limit };
            assert_eq!(device["free"], free, "{told}");
            assert_eq!(device["old_free"], free.min(u64::from(u32::MAX)), "{told}");
            // Under a quota the first fits exactly; without one the context has taken a part of the card.
            let fits = if limit >= all { json!([2, 0]) } else { json!([0, 2]) };
            assert_eq!(device["fits"], fits, "{told}");
        }
    }
    // Case matters to the prefix alone.
    let sim = Sim::new();
    let program = books::program(&sim, "quota/edge.c");
    let mut command = sim.shimmed(&program);
    let out = run(command.args(["totals", "1"]).env("CUWARDEN_MEMORY_LIMIT", &upper));
    assert_ne!(out.status.code(), Some(0), "{}", out.told());
    assert_eq!(sim.events_named("config_error").len(), 1);
}

/// One race; whatever happens, the quota is never passed and the books are even at the end.
#[track_caller]
fn race(mode: &str, threads: u32, rounds: u32, kind: &str) {
    let sim = Sim::new();
    let (threads, rounds, limit) = (threads.to_string(), rounds.to_string(), LIMIT.to_string());
    limited(&sim, "race", &[mode, &threads, &rounds, &limit, kind], &[("CUWARDEN_STACKS", "4")]);
    let report = sim.report();
    books::agree(&sim, &report);
    assert_eq!(report["devices"][0]["live_bytes"], 0, "{report:#}");
    // In the third mode contexts come and go, one at a time.
    let contexts = if mode == "reuse" { 2 } else { 1 };
    assert!(peak(&sim) <= LIMIT + contexts * CONTEXT, "{mode} {kind}: {}", peak(&sim));
}

const RACING: [&str; 6] = [
    "cuMemAlloc_v2",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemCreate",
    "cuArrayCreate_v2",
    "cuGraphLaunch",
];

#[test]
fn what_fits_together_is_served_to_all() {
    for kind in RACING {
        race("fit", 4, 300, kind);
        race("fit", 8, 100, kind);
    }
}

#[test]
fn threads_at_the_edge_never_pass_it() {
    for kind in RACING.into_iter().chain(["all"]) {
        race("over", 6, 400, kind);
    }
}

#[test]
fn addresses_that_are_given_out_again_are_booked_right() {
    for kind in RACING.into_iter().chain(["all"]) {
        race("reuse", 6, 500, kind);
    }
}

#[test]
fn a_capture_is_not_broken() {
    let sim = Sim::new();
    limited(&sim, "capture", &[&LIMIT.to_string()], &[]);
    books::agree(&sim, &sim.report());
    assert!(peak(&sim) <= LIMIT + CONTEXT, "{}", peak(&sim));
}
