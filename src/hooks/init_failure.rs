//! CUDA, a context or a module could not be had: said once for each kind, with the reason.

use super::{nvml, nvml_ask, runtime};
use crate::cuda::abi::{CUdevice, CUresult};
use crate::cuda::error;
use crate::diagnose::image::Image;
use crate::diagnose::machine::{Machine, Place};
use crate::diagnose::{Case, Cause, Failure, Known, explain};
use crate::event::fields::{fields, frame};
use crate::policy::config::{DEFAULT_STACK_DEPTH, Level};
use crate::process::Process;
use crate::record::snapshot::NOTE_INIT_FAILURE;
use serde::Serialize;
use serde_json::Value;
use std::sync::atomic::Ordering;

/// Notes that a call failed with `code`. The call that fails first pays for the look around; the same failure of the
/// same call on the same device is not looked at again.
#[cold]
pub(super) fn init_failure(process: &Process, api: &'static str, code: CUresult, device: Option<CUdevice>) {
    report(process, api, code, device, None, None);
}

/// The same for a module that does not fit. `architecture`: of the device, as 90.
#[cold]
pub(super) fn module_failure(
    process: &Process,
    api: &'static str,
    code: CUresult,
    device: Option<CUdevice>,
    image: Option<Image>,
    architecture: Option<u32>,
) {
    report(process, api, code, device, image, architecture);
}

fn report(
    process: &Process,
    api: &'static str,
    code: CUresult,
    device: Option<CUdevice>,
    image: Option<Image>,
    architecture: Option<u32>,
) {
    runtime::note_failure();
    if !process.first_failure(api, code, device.unwrap_or(-1)) {
        return;
    }
    let stack = stack(process);
    // NVML first: where its library was loaded from is part of what the machine says.
    let chain = nvml_ask::failure_chain(process, device.and_then(|device| u32::try_from(device).ok()));
    let mut machine = Machine::look(&Place::here(), &|name| std::env::var_os(name));
    machine.forked_from = process.forked_from();
    let known = known(process, image, architecture);
    let failure = Failure { api: api.to_owned(), code, device };
    let causes = explain(Case { failure: &failure, known: &known, machine: &machine, chain: chain.as_ref() });
    let message = message(api, code, device, &causes);
    let fields = fields! {
        "api": api, "runtime_api": runtime::calling(), "code": code, "name": name(api, code), "device": device, "stack": stack,
        "nvml_chain": shown(&chain.map(|chain| chain.calls).unwrap_or_default()), "app_nvml_calls": shown(&nvml::last_calls()), "causes": shown(&causes),
        "message": message,
    };
    process.keep_note(NOTE_INIT_FAILURE, &fields);
    process.events.emit(Level::Error, "init_failure", fields);
}

fn shown(list: &impl Serialize) -> Value {
    serde_json::to_value(list).unwrap_or_default()
}

/// The runtime's codes have the driver's numbers, but their own names.
fn name(api: &str, code: CUresult) -> &'static str {
    if api.starts_with("cuda") { error::runtime_name(code) } else { error::name(code) }
}

fn stack(process: &Process) -> Vec<Value> {
    let depth = process.config.stack_depth.max(DEFAULT_STACK_DEPTH);
    let frames = process.stacks.describe(&process.writer, depth).into_iter();
    frames.map(|(module, offset)| frame(Some(module), offset)).collect()
}

fn known(process: &Process, image: Option<Image>, architecture: Option<u32>) -> Known {
    let header = process.writer.header();
    let driver_version = header.driver_version.load(Ordering::Relaxed);
    let runtimes = header.runtime_versions.iter().map(|version| version.load(Ordering::Acquire));
    Known {
        driver_version: Some(driver_version).filter(|version| *version != 0).or_else(super::driver::version),
        runtimes: runtimes.take_while(|version| *version != 0).collect(),
        image,
        architecture,
    }
}

fn message(api: &str, code: CUresult, device: Option<CUdevice>, causes: &[Cause]) -> String {
    let on_device = device.map(|device| format!(" on device {device}")).unwrap_or_default();
    let failed = format!("{api} failed{on_device}: {} ({code}).", name(api, code));
    match causes.first() {
        Some(cause) => format!("{failed} Most likely {}: {}. {}", cause.id, cause.evidence, cause.action),
        None => failed,
    }
}
