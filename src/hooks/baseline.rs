//! Which CUDA runtimes are in the process, and whether they keep the baseline: asked at each cuInit.
//!
//! Every runtime calls cuInit by itself, before anything else, so its own call is where it can be refused. Until the
//! driver's cuInit has succeeded, all runtimes that are loaded are judged, whoever calls; a runtime that comes later is
//! judged at its own call, and the others go on.

use super::{driver, init_failure, runtime};
use crate::cuda::abi::CUresult;
use crate::cuda::error::{self, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH};
use crate::event::cancel::NoCancel;
use crate::event::fields::Fields;
use crate::ledger::limit::Limit;
use crate::policy::config::{BaselineMode, Level};
use crate::policy::versions::runtime::identify;
use crate::policy::versions::{self, CudaVersion, Finding, Outcome, Versions};
use crate::process::Process;
use crate::record::snapshot::NOTE_INIT_FAILURE;
use crate::stack::{self, cudart};
use crate::tracking::askers;
use crate::tracking::runtimes::{Runtime, note_version};
use serde_json::Value;
use std::sync::atomic::Ordering;

/// What cuInit answers to this caller in the driver's place; `None`: the driver is called.
#[cold]
#[inline(never)]
pub(super) fn answer(process: &Process, caller: u64) -> Option<CUresult> {
    let _no_cancel = NoCancel::new();
    let verdict = judge(process, &look(process, caller)?)?;
    let is_refused = verdict == Outcome::Blocked && process.config.baseline.mode == BaselineMode::Enforce;
    if is_refused {
        runtime::note_failure();
    }
    is_refused.then_some(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
}

/// A module has looked up its first function: if a runtime has, it is judged here for the first time.
#[cold]
#[inline(never)]
pub(super) fn looked_up(process: &Process, caller: u64) {
    let _no_cancel = NoCancel::new();
    // What is not exact yet will be known better when all look-ups are done.
    if let Some(runtime) = runtime_holding(caller).filter(|runtime| runtime.is_exact) {
        let _ = note_version(process.writer.header(), runtime.version);
        judge(process, &[runtime]);
    }
}

/// The version of a runtime that looks up its first function, if its major version is newer than the driver's.
#[cold]
#[inline(never)]
pub(super) fn too_new(caller: u64) -> Option<u32> {
    let _no_cancel = NoCancel::new();
    let runtime = runtime_holding(caller).filter(|runtime| runtime.is_exact)?;
    (runtime.version / 1000 > driver::version()? / 1000).then_some(runtime.version)
}

/// Such a runtime answers its program by itself: without a call to the driver that would fail.
#[cold]
pub(super) fn gives_up(process: &Process, version: u32) {
    let _no_cancel = NoCancel::new();
    let _ = note_version(process.writer.header(), version);
    if runtime::is_in_call() {
        // Its answer is seen, with the function that the program called.
        return;
    }
    init_failure::init_failure(process, "cudart", error::RUNTIME_INSUFFICIENT_DRIVER, None);
}

/// The gravest verdict on any of them; without one, on a program that uses the driver alone. What is wrong is said.
fn judge(process: &Process, runtimes: &[Runtime]) -> Option<Outcome> {
    let baseline = process.config.baseline.in_force()?;
    let number = process.writer.header().driver_version.load(Ordering::Relaxed);
    // Without an answer to cuDriverGetVersion nothing will come of cuInit either.
    let driver = CudaVersion::from_number(number)?;
    let baseline = Some(baseline).filter(|_| !is_whole_card(process));
    let executable = executable();
    let judge_one = |runtime: Option<&Runtime>| {
        let version = runtime.and_then(|runtime| CudaVersion::from_number(runtime.version));
        let is_exempt =
            version.is_some_and(|version| process.config.baseline.exceptions.allow(&executable, version));
        let of = Versions { driver, runtime: version, baseline, is_exempt, strict: false };
        let findings = versions::judge(&of);
        say(process, &of, runtime, &findings, &executable);
        versions::verdict(&findings)
    };
    if runtimes.is_empty() {
        return Some(judge_one(None));
    }
    runtimes.iter().map(|runtime| judge_one(Some(runtime))).max()
}

/// The driver's cuInit has succeeded.
pub(super) fn started(process: &Process) {
    process.runtimes().is_driver_started = true;
}

/// Notes the runtimes that can be seen now and answers those that this call is about. `None`: a call that is about nothing
/// new.
///
/// Programs call cuInit over and over, from every library for itself, and fork beside that: once the driver has started, a
/// caller that is known is not looked at again, since that takes the loader's lock.
#[inline(never)]
fn look(process: &Process, caller: u64) -> Option<Vec<Runtime>> {
    let is_driver_started = {
        let mut runtimes = process.runtimes();
        runtimes.check(stack::unloads_seen());
        if runtimes.is_driver_started {
            match runtimes.holding(caller) {
                Some(known) if known.is_final => return Some(vec![known.clone()]),
                None if runtimes.is_other(caller) => return None,
                _ => {}
            }
        }
        runtimes.is_driver_started
    };
    let asked = askers::of(caller);
    let calling = cudart::holding(caller, asked.map(|asked| asked.caller));
    let text = calling.as_ref().map(|found| found.text.clone());
    runtime::notices::say_conflicts(process);
    runtime::notices::say_missing(process);
    calling.iter().for_each(|found| runtime::notices::say(process, found));
    let calling = calling.and_then(|found| runtime_of(found, asked));
    let mut found: Vec<Runtime> =
        calling.into_iter().map(|runtime| Runtime { is_final: true, ..runtime }).collect();
    if !is_driver_started {
        for shared in cudart::shared() {
            runtime::notices::say(process, &shared);
            let asked = askers::of(shared.text.start);
            if found.iter().all(|known| known.text.start != shared.text.start) {
                found.extend(runtime_of(shared, asked));
            }
        }
    }
    let mut runtimes = process.runtimes();
    runtimes.check(stack::unloads_seen());
    for runtime in &found {
        let _ = note_version(process.writer.header(), runtime.version);
        runtimes.add(runtime.clone());
    }
    if let Some(text) = text.filter(|_| runtimes.holding(caller).is_none()) {
        runtimes.add_other(text);
    }
    (!found.is_empty() || !is_driver_started).then_some(found)
}

fn runtime_holding(caller: u64) -> Option<Runtime> {
    let asked = askers::of(caller);
    runtime_of(cudart::holding(caller, asked.map(|asked| asked.caller))?, asked)
}

fn runtime_of(found: cudart::Found, asked: Option<askers::Asked>) -> Option<Runtime> {
    let identified = identify(&found, asked)?;
    Some(Runtime {
        text: found.text,
        path: found.path,
        version: identified.version.number(),
        is_exact: identified.is_exact,
        is_final: false,
    })
}

/// No memory limit: the baseline is for parts of a card.
fn is_whole_card(process: &Process) -> bool {
    let by_operator = || {
        let mut devices = process.ledger.map().devices();
        devices.any(|(_, device)| {
            // Acquire pairs with the Release of whoever set it.
            matches!(Limit::of(device.limit.load(Ordering::Acquire)), Limit::Operators(bytes) if bytes != 0)
        })
    };
    process.config.limits.is_unlimited() && !by_operator()
}

#[inline(never)]
fn executable() -> String {
    let path = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let path = path.to_string_lossy();
    path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned()
}

#[inline(never)]
fn say(process: &Process, of: &Versions, runtime: Option<&Runtime>, findings: &[Finding], executable: &str) {
    let Some(first) = findings.first() else { return };
    let path = runtime.map_or(&[][..], |runtime| &runtime.path);
    if !process.runtimes().is_news(path, runtime.map_or(0, |runtime| runtime.version)) {
        return;
    }
    let mode = process.config.baseline.mode;
    let is_refused = first.outcome == Outcome::Blocked && mode == BaselineMode::Enforce;
    let consequence = match first.outcome {
        Outcome::Blocked if is_refused => " CUDA is not started. ",
        Outcome::Blocked => " CUDA is started all the same: CUWARDEN_BASELINE_MODE is warn. ",
        _ => " ",
    };
    let mut fields = Fields::default();
    let event = &mut fields;
    add_version(event, "baseline", process.config.baseline.version);
    add_version(event, "driver_version", Some(of.driver));
    add_version(event, "runtime_version", of.runtime);
    if let Some(runtime) = runtime {
        let path = String::from_utf8_lossy(path);
        event.text("runtime_file", if path.is_empty() { executable } else { &path });
        event.put("runtime_is_exact", Value::Bool(runtime.is_exact));
    }
    let module = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    if let Some(release) = versions::kernel_module(&module) {
        event.text("kernel_module", release);
    }
    event.text("exe", executable);
    event.text("mode", mode.name());
    event.put("whole_card", Value::Bool(of.baseline.is_none()));
    event.text("outcome", versions::verdict(findings).name());
    event.text("rule", first.rule.id());
    event.put("rules", findings.iter().map(|finding| finding.rule.id()).collect());
    event.text("reason", &first.reason);
    event.text("action", &first.action);
    event.text("message", &[&first.reason, consequence, &first.action].concat());
    if !is_refused {
        process.events.emit(Level::Warn, "baseline_violation", Value::from(fields));
        return;
    }
    // The same as a failure to start, which it is for the program.
    let code = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    let mut cause = Fields::default();
    cause.text("id", first.rule.id());
    cause.text("evidence", &first.reason);
    cause.text("action", &first.action);
    event.text("api", "cuInit");
    event.text("name", error::name(code));
    event.put("code", code.into());
    event.put("causes", Value::Array(vec![Value::from(cause)]));
    let fields = Value::from(fields);
    process.keep_note(NOTE_INIT_FAILURE, &fields);
    process.events.emit(Level::Error, "baseline_violation", fields);
}

fn add_version(fields: &mut Fields, name: &str, version: Option<CudaVersion>) {
    if let Some(version) = version {
        fields.text(name, &version.to_string());
    }
}
