//! What the shim asks NVML by itself.
//!
//! NVML counts who uses it, so to start and end it for a question does not disturb the application's own use. Its
//! library is never unloaded: a process that did so with NVML started cannot be checkpointed.

use super::guard::shielded;
use super::lookup::Library;
use crate::diagnose::chain::{self, Call, Chain};
use crate::diagnose::nvml::{LIBRARY_NOT_FOUND, Nvml, code_name};
use crate::event::cancel::Undisturbed;
use crate::process::Process;
use core::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What NVML says of a device at a moment. Bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Of this process, where it is in the list.
    pub ours: Option<u64>,
    /// The others in the list, in order.
    pub others: Vec<u32>,
    /// Of all.
    pub used: u64,
}

/// Asks about a device by its UUID, as `GPU-…` or `MIG-…`. `load`: NVML may be loaded for it.
pub(super) fn usage(process: &Process, uuid: &str, load: bool) -> Option<Usage> {
    if process.is_forked() {
        return None;
    }
    let library = Library::nvml(load)?;
    let find = |name: &CStr| library.address(name);
    // SAFETY: the library's own functions.
    let nvml = unsafe { Nvml::new(&find) };
    let _session = nvml.start().ok()?;
    let device = nvml.device_by_uuid(uuid).ok()?;
    let (free, total) = nvml.memory(device).ok()?;
    let processes = nvml.processes(device).unwrap_or_default();
    let me = std::process::id();
    let ours = processes.iter().find(|(pid, _)| *pid == me).and_then(|(_, bytes)| *bytes);
    let mut others: Vec<u32> = processes.iter().map(|(pid, _)| *pid).filter(|pid| *pid != me).collect();
    crate::order::sort(&mut others, |a, b| a < b);
    Some(Usage { ours, others, used: total.saturating_sub(free) })
}

/// A call into a driver that is broken may never come back; nobody waits for it longer than this.
const PATIENCE: Duration = Duration::from_secs(2);

/// The chain of calls that shows why CUDA does not start. Asked by a thread of its own, which is left behind where NVML
/// does not answer in time; what it had learned until then is told.
pub(super) fn failure_chain(process: &Process, wanted: Option<u32>) -> Option<Chain> {
    if process.is_forked() {
        return None;
    }
    // Here, not there: the loader's lock may be held by this thread, in a library's constructor.
    let Some(library) = Library::nvml(true) else { return Some(no_library()) };
    let known = Arc::new(Mutex::new(Chain::default()));
    let (done, answer) = crossbeam_channel::bounded(1);
    let progress = Arc::clone(&known);
    let ask = move || {
        let find = |name: &CStr| library.address(name);
        // SAFETY: the library's own functions.
        let nvml = unsafe { Nvml::new(&find) };
        let mut step = |so_far: &Chain| {
            progress.lock().unwrap_or_else(PoisonError::into_inner).clone_from(so_far);
        };
        // Marked, since NVML calls functions of its own through our exports: those are not the application's.
        shielded(|| {
            // Nobody may be waiting any more.
            let _ = done.send(chain::run(&nvml, wanted, &mut step));
        });
    };
    let started = {
        // The thread inherits this: no handler of the application runs in it.
        let _undisturbed = Undisturbed::new();
        std::thread::Builder::new().name("cuwarden-nvml".to_owned()).stack_size(512 << 10).spawn(ask)
    };
    let learned = || known.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let answered = started.ok().and_then(|_| answer.recv_timeout(PATIENCE).ok());
    Some(answered.unwrap_or_else(|| Chain { timed_out: true, ..learned() }))
}

fn no_library() -> Chain {
    let call = Call {
        call: "dlopen".to_owned(),
        args: "libnvidia-ml.so.1".to_owned(),
        code: LIBRARY_NOT_FOUND,
        name: code_name(LIBRARY_NOT_FOUND),
        result: "the loader finds no such library".to_owned(),
    };
    Chain { calls: vec![call], ..Chain::default() }
}
