//! Graph memory: taken when a graph with allocation nodes is launched, kept by the driver until it is trimmed.

use super::devices::device_number;
use super::guard::{Before, around};
use super::pool::{GRAPH_POOL, begin, charge, note_unused};
use super::refuse::deny;
use super::table::{Id, hook, real as real_function};
use super::{driver, vmm};
use crate::cuda::abi::*;
use crate::cuda::error::CUDA_SUCCESS;
use crate::ledger::Denied;
use crate::policy::sizes;
use crate::process::Process;
use crate::record::layout::Class;
use crate::tracking::graphs::{Executable, Needs};
use crate::tracking::pools::Done;
use core::ffi::{c_char, c_void};

/// Child graphs inside child graphs deeper than this are not looked into.
const DEEPEST: u32 = 16;

hook! {
    fn cuGraphAddMemAllocNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *mut CUDA_MEM_ALLOC_NODE_PARAMS) |real| {
        note_node(real)
    }
    fn cuGraphAddNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *mut u32) |real| {
        add_node(nodeParams, real)
    }
    fn cuGraphAddNode_v2(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, dependencyData: *const c_void, numDependencies: usize, nodeParams: *mut u32) |real| {
        add_node(nodeParams, real)
    }
    fn cuGraphAddNode_v3(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, dependencyData: *const c_void, numDependencies: usize, nodeParams: *mut u32) |real| {
        add_node(nodeParams, real)
    }
    fn cuGraphInstantiate(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, phErrorNode: *mut CUgraphNode, logBuffer: *mut c_char, bufferSize: usize) |real| {
        instantiate(Id::cuGraphInstantiate, phGraphExec, hGraph, 0, &real)
    }
    fn cuGraphInstantiate_v2(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, phErrorNode: *mut CUgraphNode, logBuffer: *mut c_char, bufferSize: usize) |real| {
        instantiate(Id::cuGraphInstantiate_v2, phGraphExec, hGraph, 0, &real)
    }
    fn cuGraphInstantiateWithFlags(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, flags: u64) |real| {
        instantiate(Id::cuGraphInstantiateWithFlags, phGraphExec, hGraph, flags, &real)
    }
    fn cuGraphInstantiateWithParams(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, instantiateParams: *mut u64) |real| {
        // SAFETY: the driver reads the same structure, which begins with the flags; null is checked.
        let flags = unsafe { instantiateParams.as_ref() }.copied().unwrap_or(0);
        instantiate(Id::cuGraphInstantiateWithParams, phGraphExec, hGraph, flags, &real)
    }
    fn cuGraphInstantiateWithParams_ptsz(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, instantiateParams: *mut u64) |real| {
        // SAFETY: as above.
        let flags = unsafe { instantiateParams.as_ref() }.copied().unwrap_or(0);
        instantiate(Id::cuGraphInstantiateWithParams_ptsz, phGraphExec, hGraph, flags, &real)
    }
    fn cuGraphExecDestroy(hGraphExec: CUgraphExec) |real| {
        around(
            // After the call the handle may be another graph's.
            |process| match process.graphs.remove(hGraphExec as u64) {
                Some(executable) => Before::Then(executable),
                None => Before::Pass,
            },
            real,
            |process, executable, code| {
                for (device, _) in &executable.needs {
                    settle(process, Id::cuGraphLaunch, *device, 0);
                }
                if code != CUDA_SUCCESS {
                    process.graphs.add(hGraphExec as u64, executable.clone());
                }
                code
            },
        )
    }
    fn cuGraphUpload(hGraphExec: CUgraphExec, hStream: CUstream) |real| {
        launch(Id::cuGraphUpload, hGraphExec, hStream, false, &real)
    }
    fn cuGraphUpload_ptsz(hGraphExec: CUgraphExec, hStream: CUstream) |real| {
        launch(Id::cuGraphUpload_ptsz, hGraphExec, hStream, true, &real)
    }
    fn cuDeviceGraphMemTrim(device: CUdevice) |real| {
        around(
            |process| match device_number(device).filter(|_| process.graphs.may_exist()) {
                Some(device) => Before::Then((device, process.graphs.one_at_a_time(process.thread_id()))),
                None => Before::Pass,
            },
            real,
            |process, (device, _turn), code| {
                process.graphs.note_trim(*device);
                settle(process, Id::cuGraphLaunch, *device, 0);
                code
            },
        )
    }
}

/// Stands for `cuGraphLaunch`: the one hook on a path that an application may take every few microseconds.
///
/// # Safety
/// As the driver's function.
#[allow(non_snake_case)]
pub unsafe extern "C" fn cuGraphLaunch(hGraphExec: CUgraphExec, hStream: CUstream) -> CUresult {
    // SAFETY: as for every hook.
    unsafe { any_launch(Id::cuGraphLaunch, hGraphExec, hStream, false) }
}

/// Stands for `cuGraphLaunch_ptsz`.
///
/// # Safety
/// As the driver's function.
#[allow(non_snake_case)]
pub unsafe extern "C" fn cuGraphLaunch_ptsz(hGraphExec: CUgraphExec, hStream: CUstream) -> CUresult {
    // SAFETY: as for every hook.
    unsafe { any_launch(Id::cuGraphLaunch_ptsz, hGraphExec, hStream, true) }
}

#[inline(always)]
unsafe fn any_launch(api: Id, executable: CUgraphExec, stream: CUstream, per_thread: bool) -> CUresult {
    type Real = unsafe extern "C" fn(CUgraphExec, CUstream) -> CUresult;
    // SAFETY: Real is the type of both rows' functions.
    let Some(function) = (unsafe { real_function::<Real>(api) }) else { return super::table::NOT_IN_DRIVER };
    // SAFETY: the caller's own arguments.
    let real = move || unsafe { function(executable, stream) };
    if Process::current().is_some_and(|process| process.graphs.any()) {
        launch(api, executable, stream, per_thread, &real)
    } else {
        real()
    }
}

fn note_node(real: impl FnOnce() -> CUresult) -> CUresult {
    around(
        |process| {
            process.graphs.note_allocation_node();
            Before::<()>::Pass
        },
        real,
        |_, (), code| code,
    )
}

fn add_node(params: *const u32, real: impl FnOnce() -> CUresult) -> CUresult {
    // SAFETY: the driver reads the same structure, which begins with the node's type; null is checked.
    if unsafe { params.as_ref() } == Some(&CU_GRAPH_NODE_TYPE_MEM_ALLOC) { note_node(real) } else { real() }
}

/// The graph is uploaded as well: that takes its memory.
const CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD: u64 = 2;

fn instantiate(
    api: Id,
    out: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
    real: &dyn Fn() -> CUresult,
) -> CUresult {
    let uploads = flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD != 0;
    around(
        |process| {
            if out.is_null() || !process.graphs.may_exist() {
                return Before::Pass;
            }
            let mut needs = Needs::new();
            driver::while_relaxed(|| add_needs(graph, &mut needs, 0));
            let executable = Executable { needs, resident: uploads };
            let nothing = Needs::new();
            match reserve_all(process, api, if uploads { &executable.needs } else { &nothing }, false) {
                Ok(pending) => Before::Then((executable, pending)),
                Err((device, bytes, denied)) => Before::Answer(deny(process, api, device, bytes, denied)),
            }
        },
        real,
        |process, (executable, pending), code| {
            settle_all(process, api, pending);
            if code == CUDA_SUCCESS {
                // SAFETY: not null, and written by the driver, which succeeded.
                process.graphs.add(unsafe { *out } as u64, executable.clone());
            }
            code
        },
    )
}

fn add_needs(graph: CUgraph, needs: &mut Needs, depth: u32) {
    for node in driver::graph_nodes(graph).unwrap_or_default() {
        match driver::node_type(node) {
            Some(CU_GRAPH_NODE_TYPE_GRAPH) if depth < DEEPEST => {
                if let Some(child) = driver::child_graph(node) {
                    add_needs(child, needs, depth + 1);
                }
            }
            Some(CU_GRAPH_NODE_TYPE_MEM_ALLOC) => {
                let Some((location, bytes)) = driver::allocation_node(node) else { continue };
                let Some(device) = vmm::located_on(location) else { continue };
                match needs.iter_mut().find(|(known, _)| *known == device) {
                    Some((_, sum)) => *sum = sum.saturating_add(bytes),
                    None => needs.push((device, bytes)),
                }
            }
            _ => {}
        }
    }
}

fn launch(
    api: Id,
    executable: CUgraphExec,
    stream: CUstream,
    per_thread: bool,
    real: &dyn Fn() -> CUresult,
) -> CUresult {
    around(
        |process| {
            let Some(Executable { needs, resident }) = process.graphs.find(executable as u64) else {
                return Before::Pass;
            };
            if driver::is_capturing(stream, per_thread) {
                return Before::Pass;
            }
            let turn = process.graphs.one_at_a_time(process.thread_id());
            match reserve_all(process, api, &needs, resident) {
                Ok(pending) => Before::Then((pending, turn)),
                Err((device, bytes, denied)) => Before::Answer(deny(process, api, device, bytes, denied)),
            }
        },
        real,
        |process, (pending, _turn), code| {
            settle_all(process, api, pending);
            if code == CUDA_SUCCESS {
                process.graphs.note_resident(executable as u64);
            }
            code
        },
    )
}

/// Charges what a launch may add to what the driver has reserved already, on all devices or on none; answers what
/// is pending of it.
fn reserve_all(
    process: &Process,
    api: Id,
    needs: &Needs,
    resident: bool,
) -> Result<Needs, (u8, u64, Denied)> {
    let mut pending = Needs::new();
    for &(device, bytes) in needs.iter().filter(|(_, bytes)| sizes::is_possible(*bytes)) {
        match reserve(process, api, device, bytes, resident) {
            Ok(bytes) => pending.push((device, bytes)),
            Err(denied) => {
                settle_all(process, api, &pending);
                return Err((device, bytes, denied));
            }
        }
    }
    Ok(pending)
}

fn settle_all(process: &Process, api: Id, pending: &Needs) {
    for (device, bytes) in pending {
        settle(process, api, *device, *bytes);
    }
}

/// How often a launch that does not fit looks whether another one's answer, which is on its way, makes room.
const PATIENCE: u32 = 100;

fn reserve(process: &Process, api: Id, device: u8, bytes: u64, resident: bool) -> Result<u64, Denied> {
    let pool = GRAPH_POOL | u64::from(device);
    settle(process, api, device, 0);
    if resident {
        // What a launch maps stays mapped for the next one, although the driver may call it used: to refuse for
        // want of more would refuse what fits. Should it have gone elsewhere, the answer after the launch says so.
        let free = |growth| if growth == 0 { Ok(()) } else { Err(()) };
        return Ok(process.pools.begin(pool, device, bytes, free).map_or(0, |()| bytes));
    }
    let mut result = begin(process, pool, device, bytes);
    for _ in 0..PATIENCE {
        if result.is_ok() || process.pools.pending(pool) == 0 {
            break;
        }
        std::thread::yield_now();
        settle(process, api, device, 0);
        result = begin(process, pool, device, bytes);
    }
    result.map(|()| bytes)
}

/// Gives unused graph memory back, when the quota would refuse otherwise.
pub(super) fn trim(process: &Process, device: u8) {
    if process.graphs.may_exist() {
        let _turn = process.graphs.one_at_a_time(process.thread_id());
        driver::while_relaxed(|| driver::trim_graphs(device.into()));
        process.graphs.note_trim(device);
        settle(process, Id::cuGraphLaunch, device, 0);
    }
}

/// `pending`: what was reserved for a launch that the driver has answered, in bytes.
fn settle(process: &Process, api: Id, device: u8, pending: u64) {
    let pool = GRAPH_POOL | u64::from(device);
    let ticket = process.pools.ticket(pool, device);
    let memory = driver::while_relaxed(|| driver::graph_memory(device.into()));
    let done = Done { pending, reserved: memory.map(|m| m.0), used: memory.map(|m| m.1), ..Done::default() };
    process.pools.settle(pool, ticket, done, |change| {
        charge(process, change);
        // Pointers from graphs have no records of their own: the reserve stands for them.
        note_unused(process, api, Class::GraphReserve, pool, device, change.after);
    });
}
