//! Graph memory: taken when a graph with allocation nodes is launched, kept by the driver until it is trimmed.

use super::guard::{Before, around};
use super::pool::{GRAPH_POOL, charge, note_unused};
use super::refuse::{self, deny, device_number};
use super::table::{Id, hook, real as real_function};
use super::{driver, vmm};
use crate::cuda::abi::*;
use crate::cuda::error::CUDA_SUCCESS;
use crate::process::Process;
use crate::record::layout::Class;
use crate::tracking::graphs::Needs;
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
        instantiate(phGraphExec, hGraph, real)
    }
    fn cuGraphInstantiate_v2(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, phErrorNode: *mut CUgraphNode, logBuffer: *mut c_char, bufferSize: usize) |real| {
        instantiate(phGraphExec, hGraph, real)
    }
    fn cuGraphInstantiateWithFlags(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, flags: u64) |real| {
        instantiate(phGraphExec, hGraph, real)
    }
    fn cuGraphInstantiateWithParams(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, instantiateParams: *mut c_void) |real| {
        instantiate(phGraphExec, hGraph, real)
    }
    fn cuGraphInstantiateWithParams_ptsz(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, instantiateParams: *mut c_void) |real| {
        instantiate(phGraphExec, hGraph, real)
    }
    fn cuGraphExecDestroy(hGraphExec: CUgraphExec) |real| {
        around(
            // After the call the handle may be another graph's.
            |process| match process.graphs.remove(hGraphExec as u64) {
                Some(needs) => Before::Then(needs),
                None => Before::Pass,
            },
            real,
            |process, needs, code| {
                for (device, _) in needs {
                    settle(process, Id::cuGraphLaunch, *device, 0);
                }
                if code != CUDA_SUCCESS {
                    process.graphs.add(hGraphExec as u64, needs.clone());
                }
                code
            },
        )
    }
    fn cuGraphUpload(hGraphExec: CUgraphExec, hStream: CUstream) |real| {
        launch(Id::cuGraphUpload, hGraphExec, hStream, false, real)
    }
    fn cuGraphUpload_ptsz(hGraphExec: CUgraphExec, hStream: CUstream) |real| {
        launch(Id::cuGraphUpload_ptsz, hGraphExec, hStream, true, real)
    }
    fn cuDeviceGraphMemTrim(device: CUdevice) |real| {
        around(
            |process| match device_number(device).filter(|_| process.graphs.may_exist()) {
                Some(device) => Before::Then(device),
                None => Before::Pass,
            },
            real,
            |process, &device, code| {
                settle(process, Id::cuGraphLaunch, device, 0);
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
        launch(api, executable, stream, per_thread, real)
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

fn instantiate(out: *mut CUgraphExec, graph: CUgraph, real: impl FnOnce() -> CUresult) -> CUresult {
    around(
        |process| {
            if out.is_null() || !process.graphs.may_exist() {
                return Before::Pass;
            }
            let mut needs = Needs::new();
            driver::while_relaxed(|| add_needs(graph, &mut needs, 0));
            Before::Then(needs)
        },
        real,
        |process, needs, code| {
            if code == CUDA_SUCCESS {
                // SAFETY: not null, and written by the driver, which succeeded.
                process.graphs.add(unsafe { *out } as u64, needs.clone());
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

/// What one launch may make the driver take, by device: reserved in the account until it is known.
type Growth = Vec<(u8, u64)>;

fn launch(
    api: Id,
    executable: CUgraphExec,
    stream: CUstream,
    per_thread: bool,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    around(
        |process| {
            let Some(needs) = process.graphs.needs(executable as u64) else { return Before::Pass };
            if driver::is_capturing(stream, per_thread) {
                return Before::Pass;
            }
            let mut growth = Growth::new();
            for (device, bytes) in needs {
                match reserve(process, api, device, bytes) {
                    Ok(reserved) => growth.push((device, reserved)),
                    Err(denied) => {
                        for (device, reserved) in growth {
                            if let Some(account) = process.account(device) {
                                account.release(reserved);
                            }
                        }
                        return Before::Answer(deny(process, api, device, bytes, denied));
                    }
                }
            }
            Before::Then(growth)
        },
        real,
        |process, growth, code| {
            for (device, reserved) in growth {
                settle(process, api, *device, *reserved);
            }
            code
        },
    )
}

/// Reserves what a launch of `bytes` may add to what the driver has reserved already.
fn reserve(process: &Process, api: Id, device: u8, bytes: u64) -> Result<u64, crate::ledger::Denied> {
    if refuse::account(process, device).is_none() {
        return Ok(0);
    }
    let growth = || {
        let (reserved, used) =
            driver::while_relaxed(|| driver::graph_memory(device.into())).unwrap_or((0, 0));
        let growth = bytes.saturating_sub(reserved.saturating_sub(used));
        // The driver reserves in whole blocks.
        growth.checked_next_multiple_of(BLOCK).unwrap_or(growth)
    };
    settle(process, api, device, 0);
    let wanted = growth();
    refuse::reserve(process, device, wanted).map(|_| wanted)
}

/// The granularity of graph memory on the drivers known.
const BLOCK: u64 = 2 << 20;

/// Gives unused graph memory back, when the quota would refuse otherwise.
pub(super) fn trim(process: &Process, device: u8) {
    if process.graphs.may_exist() {
        driver::while_relaxed(|| driver::trim_graphs(device.into()));
        settle(process, Id::cuGraphLaunch, device, 0);
    }
}

fn settle(process: &Process, api: Id, device: u8, reserved: u64) {
    let pool = GRAPH_POOL | u64::from(device);
    let ticket = process.pools.ticket(pool, device);
    let held = driver::while_relaxed(|| driver::graph_memory(device.into())).map(|(held, _)| held);
    if let Some(change) = process.pools.settle(pool, ticket, held, 0, 0) {
        charge(process, device, change.before, change.after, reserved);
        note_unused(process, api, Class::GraphReserve, pool, device, change.unused);
    }
}
