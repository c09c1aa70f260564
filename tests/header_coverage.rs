//! No way to get device memory is forgotten.
//!
//! Every function of cuda.h 11.8, 12.9 and 13.5 and of a real libcuda that may change who holds device memory
//! (headers/rule.rs) has a hook, or a reason for having none in headers/not-hooked.tsv.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

#[path = "headers/prototypes.rs"]
mod prototypes;
#[path = "headers/rule.rs"]
mod rule;

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::clients;
use prototypes::{base, exported_names};

/// Function → reason; see the head of the file itself.
fn reasons() -> BTreeMap<&'static str, &'static str> {
    reasons_in(include_str!("headers/not-hooked.tsv"))
}

fn reasons_in(list: &'static str) -> BTreeMap<&'static str, &'static str> {
    let mut reasons = BTreeMap::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let (function, reason) = line.split_once('\t').unwrap_or_else(|| panic!("no tab in {line:?}"));
        assert!(reason.trim().len() >= 10, "{function}: a reason is a sentence");
        assert_eq!(reasons.insert(function, reason), None, "{function} is there twice");
    }
    reasons
}

fn hooked() -> BTreeSet<&'static str> {
    common::hooked::names().collect()
}

/// The names in each header, by version.
fn headers() -> BTreeMap<&'static str, BTreeSet<String>> {
    clients::CUDART_VERSIONS
        .iter()
        .map(|&version| {
            let path = clients::cudart(version).include.join("cuda.h");
            let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            (version, exported_names(&String::from_utf8_lossy(&bytes)))
        })
        .collect()
}

/// Functions of the driver library's own table, without the debugger's (`cudbg…`).
fn libcuda_exports() -> BTreeSet<String> {
    let exports = common::elf::exports(&clients::driver().libcuda);
    exports.into_iter().filter(|name| name.starts_with("cu") && !name.starts_with("cudbg")).collect()
}

fn all_names() -> BTreeSet<String> {
    headers().into_values().flatten().chain(libcuda_exports()).collect()
}

#[test]
fn every_function_that_concerns_memory_is_hooked_or_has_a_reason() {
    let (hooked, reasons) = (hooked(), reasons());
    let missing: Vec<String> = all_names()
        .into_iter()
        .filter(|name| rule::concerns_memory(base(name)))
        .filter(|name| !hooked.contains(name.as_str()))
        .filter(|name| !reasons.contains_key(name.as_str()) && !reasons.contains_key(base(name)))
        .collect();
    assert!(
        missing.is_empty(),
        "neither a hook nor a reason in tests/headers/not-hooked.tsv: {}",
        missing.join(" ")
    );
}

#[test]
fn every_hooked_name_exists() {
    let known = all_names();
    let unknown: Vec<_> = hooked().into_iter().filter(|name| !known.contains(*name)).collect();
    assert!(unknown.is_empty(), "in no cuda.h and in no libcuda: {}", unknown.join(" "));
}

/// A caller that reaches one variant and not another would be counted by luck.
#[test]
fn every_variant_of_a_hooked_function_is_hooked() {
    let (hooked, reasons) = (hooked(), reasons());
    let bases: BTreeSet<&str> = hooked.iter().map(|name| base(name)).collect();
    let missing: Vec<String> = all_names()
        .into_iter()
        .filter(|name| bases.contains(base(name)))
        .filter(|name| !hooked.contains(name.as_str()) && !reasons.contains_key(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "variants without a hook: {}", missing.join(" "));
}

/// The list stays true: it names functions that exist, that a test above asks about, and that have no hook.
#[test]
fn no_reason_is_left_over() {
    let (hooked, known) = (hooked(), all_names());
    let bases: BTreeSet<&str> = known.iter().map(|name| base(name)).collect();
    for function in reasons().into_keys() {
        assert!(known.contains(function) || bases.contains(function), "{function}: no such function");
        let variant_of_hooked = hooked.iter().any(|name| base(name) == base(function));
        assert!(
            rule::concerns_memory(base(function)) || variant_of_hooked,
            "{function}: nobody asks about it"
        );
        assert!(!hooked.contains(function), "{function}: it is hooked");
    }
}

/// The parser is checked on what it must not miss: a parser that finds nothing would pass every test above.
#[test]
fn the_headers_are_read_whole() {
    let headers = headers();
    for (version, least) in [("11.8", 500), ("12.9", 600), ("13.5", 600)] {
        let names = &headers[version];
        assert!(names.len() >= least, "{version}: only {} names", names.len());
        for name in
            ["cuMemAlloc", "cuMemAlloc_v2", "cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuCtxCreate_v2"]
        {
            assert!(names.contains(name), "{version}: {name} was not found");
        }
    }
    assert!(headers["13.5"].contains("cuGraphAddNode_v3"));
    assert!(libcuda_exports().contains("cuMemAllocFromPoolAsync_ptsz"));
}

// ---- NVML ---------------------------------------------------------------------------------------------------------

/// What the real library exports, and what NVIDIA's Python module for the newest one asks for by name.
fn nvml_names() -> BTreeSet<String> {
    let exports = common::elf::exports(&clients::driver().lib.join("libnvidia-ml.so.1"));
    let module = clients::python().packages.join("pynvml.py");
    let text = std::fs::read_to_string(&module).unwrap_or_else(|e| panic!("{}: {e}", module.display()));
    let asked = text.split("_nvmlGetFunctionPointer(").skip(1).filter_map(|rest| {
        let quoted = rest.strip_prefix(['"', '\''])?;
        quoted.split(['"', '\'']).next().map(str::to_owned)
    });
    exports.into_iter().chain(asked).filter(|name| name.starts_with("nvml")).collect()
}

#[test]
fn every_function_of_nvml_that_tells_of_memory_is_hooked_or_has_a_reason() {
    let (names, hooked) = (nvml_names(), common::hooked::nvml_names().collect::<BTreeSet<_>>());
    assert!(names.len() > 400, "only {} names", names.len());
    let reasons = reasons_in(include_str!("headers/nvml-not-hooked.tsv"));
    let (mut missing, mut left_over) = (Vec::new(), Vec::new());
    for name in names.iter().map(String::as_str).filter(|name| rule::tells_of_memory(name)) {
        match (hooked.contains(name), reasons.contains_key(name)) {
            (false, false) => missing.push(name),
            (true, true) => left_over.push(name),
            _ => {}
        }
    }
    assert_eq!(missing, [""; 0], "neither a hook nor a reason in tests/headers/nvml-not-hooked.tsv");
    left_over.extend(reasons.into_keys().filter(|name| !names.contains(*name)));
    assert_eq!(left_over, [""; 0], "a reason for a function that is hooked, or that there is not");
    let unknown: Vec<&str> = hooked.into_iter().filter(|name| !names.contains(*name)).collect();
    assert_eq!(unknown, [""; 0], "hooked, and no function of NVML");
}
