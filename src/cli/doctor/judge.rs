//! From what was read to verdicts. Reads nothing.

use super::libraries::{Found, release};
use super::model::{Library, Line, Verdict};
use crate::diagnose::causes::{Weight, weighed};
use crate::diagnose::chain::Chain;
use crate::diagnose::machine::Machine;
use crate::diagnose::{Case, Cause, Failure, Known};

/// What NVML said; `Err`: it could not be asked, why, in words.
pub type Asked = Result<Chain, String>;

const DRIVER: &str = "libcuda.so.1";

pub fn machine(machine: &Machine, asked: &Asked, found: &Found) -> Vec<Line> {
    let chain = asked.as_ref().ok();
    let mut lines = Vec::new();
    lines.extend(driver(found, machine));
    lines.extend(shadowed(found));
    lines.extend(kernel_module(machine, chain));
    lines.extend(nodes(machine, chain));
    let known = Known { driver_version: chain.and_then(driver_version), ..Known::default() };
    let failure = Failure::default();
    let case = Case { failure: &failure, known: &known, machine, chain };
    let causes: Vec<Line> =
        weighed(case).into_iter().map(|(weight, cause)| cause_line(weight, cause)).collect();
    lines.extend(nvml(asked, causes.iter().any(|line| line.verdict == Verdict::Failed)));
    lines.extend(causes);
    lines
}

/// A cause as a verdict.
pub fn cause_line(weight: Weight, cause: Cause) -> Line {
    let verdict = if weight >= Weight::Likely { Verdict::Failed } else { Verdict::Warning };
    Line::new(cause.id, verdict, cause.evidence, cause.action)
}

/// Of the driver that NVML talks to, as 12020.
pub fn driver_version(chain: &Chain) -> Option<u32> {
    let call = chain.calls.iter().find(|call| call.call.starts_with("nvmlSystemGetCudaDriverVersion"))?;
    let (major, minor) = call.result.split_once('.').filter(|_| call.code == 0)?;
    Some(major.parse::<u32>().ok()? * 1000 + minor.parse::<u32>().ok()? * 10)
}

fn driver(found: &Found, machine: &Machine) -> Option<Line> {
    let Some(library) = found.first(DRIVER) else {
        // Where there is none at all, a cause says so.
        let there = machine.installed.first()?;
        return Some(Line::new(
            "driver_library",
            Verdict::Failed,
            format!("the loader finds no {DRIVER}, although there is {there}"),
            "Run ldconfig, or put its folder into LD_LIBRARY_PATH.",
        ));
    };
    let of = release(&library.file).map(|release| format!(", release {release}")).unwrap_or_default();
    Some(Line::ok("driver_library", format!("{} ({}){of}", library.path, library.found_by)))
}

/// Libraries that somebody's path has put before the system's.
fn shadowed(found: &Found) -> Vec<Line> {
    let others = |first: &Library| {
        let mut rest = found.libraries.iter().filter(|one| !one.is_first && one.name == first.name);
        rest.find(|one| !matches!(one.found_by, "pip" | "conda")).cloned()
    };
    let set = |library: &&Library| matches!(library.found_by, "LD_LIBRARY_PATH" | "RPATH");
    let first = found.libraries.iter().filter(|one| one.is_first).filter(set);
    let mut lines: Vec<Line> = first
        .filter_map(|first| {
            let other = others(first)?;
            let folder = first.path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let is_runtime = first.name.starts_with("libcudart");
            Some(Line::new(
                "shadowed",
                if is_runtime { Verdict::Ok } else { Verdict::Warning },
                format!(
                    "{} comes from {}, by {}, and hides {}",
                    first.name, first.path, first.found_by, other.path
                ),
                if is_runtime { String::new() } else { format!("Take {folder} out of {}.", first.found_by) },
            ))
        })
        .collect();
    lines.extend(found.not_in_cache.iter().map(|path| {
        Line::new(
            "ld_so_cache",
            Verdict::Warning,
            format!("{path} is in a folder of /etc/ld.so.conf, and not in /etc/ld.so.cache"),
            "Run ldconfig.",
        )
    }));
    lines
}

fn kernel_module(machine: &Machine, chain: Option<&Chain>) -> Option<Line> {
    let answers = chain.is_some_and(|chain| chain.start_code() == Some(0));
    match &machine.kernel_module {
        Some(release) => {
            let open = if machine.is_open_module { " (the open one)" } else { "" };
            Some(Line::ok("kernel_module", format!("{release}{open}")))
        }
        None if answers => {
            Some(Line::ok("kernel_module", "none is loaded here, and NVML answers without it"))
        }
        // A cause says more.
        None => None,
    }
}

fn nodes(machine: &Machine, chain: Option<&Chain>) -> Option<Line> {
    let good: Vec<&str> =
        machine.nodes.iter().filter(|node| node.opens.is_ok()).map(|node| node.path.as_str()).collect();
    let odd = machine.nodes.iter().find_map(|node| {
        Some((node, node.opens.err().filter(|e| ![libc::ENOENT, libc::EPERM, libc::EACCES].contains(e))?))
    });
    if let Some((node, error)) = odd {
        // The node was made, by hand or for a container, and no driver is behind it.
        let is_dead = matches!(error, libc::ENXIO | libc::ENODEV);
        let action = if is_dead {
            "Load the kernel module on the host: modprobe nvidia. If that fails, dmesg says why."
        } else {
            "Look into the kernel's log for NVRM and Xid lines; load the nvidia modules anew or restart the host."
        };
        return Some(Line::new(
            "device_nodes",
            Verdict::Failed,
            format!("{} cannot be opened: {}", node.path, std::io::Error::from_raw_os_error(error)),
            action,
        ));
    }
    let answers = chain.and_then(|chain| chain.count).is_some();
    match good.len() {
        0 if answers => Some(Line::ok("device_nodes", "none is here, and NVML answers without them")),
        0 => None,
        _ if machine.nodes.iter().all(|node| node.opens.is_ok()) => {
            Some(Line::ok("device_nodes", format!("{} can be opened", good.join(", "))))
        }
        // A cause says more of those that are missing.
        _ => None,
    }
}

fn nvml(asked: &Asked, is_explained: bool) -> Option<Line> {
    let chain = match asked {
        Err(_) if is_explained => return None,
        Err(why) => {
            return Some(Line::new(
                "nvml",
                Verdict::Unknown,
                format!("NVML could not be asked: {why}"),
                "Install libnvidia-ml.so.1 of the driver's release; in a container, set \
                 NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
            ));
        }
        Ok(chain) => chain,
    };
    if chain.timed_out {
        return Some(Line::new(
            "nvml",
            Verdict::Failed,
            "NVML has not answered in time, which points to the driver or a card",
            "Look into the kernel's log for NVRM and Xid lines.",
        ));
    }
    let failed = chain.calls.iter().rev().find(|call| !crate::diagnose::nvml::is_harmless(call.code));
    if let Some(call) = failed {
        return Some(Line::new(
            "nvml",
            Verdict::Failed,
            format!("{}({}) gives {} ({})", call.call, call.args, call.name, call.code),
            if is_explained { "" } else { "Look into the kernel's log for NVRM and Xid lines." },
        ));
    }
    let names: Vec<&str> = chain.devices.iter().map(|device| device.name.as_str()).collect();
    let cuda = driver_version(chain).map(|v| format!(", CUDA {}", version(v))).unwrap_or_default();
    let driver = chain.driver.as_deref().unwrap_or("of an unknown release");
    let text = format!(
        "driver {driver}{cuda}; devices: {}",
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    );
    if chain.count == Some(0) {
        return Some(Line::new("nvml", Verdict::Failed, text, "Give this machine or container a card."));
    }
    Some(Line::ok("nvml", text))
}

pub fn version(number: u32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}
