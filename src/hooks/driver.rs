//! What the shim asks of the real driver by itself: questions only, never cuInit, and nothing that a stream
//! capture forbids.

use crate::cuda::abi::*;
use crate::cuda::error::CUDA_SUCCESS;
use core::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

macro_rules! questions {
    ($($name:ident($($type:ty),*);)*) => {
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        #[repr(usize)]
        enum Question { $($name),* }

        static QUESTION_NAMES: &[&CStr] = &[$(
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) { Ok(n) => n, Err(_) => c"" }
        ),*];

        static QUESTION_ADDRESSES: [AtomicPtr<c_void>; QUESTION_NAMES.len()] =
            [const { AtomicPtr::new(std::ptr::null_mut()) }; QUESTION_NAMES.len()];

        #[allow(non_snake_case)]
        mod ask {
            use super::*;
            $(pub(super) fn $name() -> Option<unsafe extern "C" fn($($type),*) -> CUresult> {
                let address = super::address(super::Question::$name)?;
                // SAFETY: the type is that of the driver's headers for this exported name.
                Some(unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> CUresult>(address) })
            })*
        }
    };
}

questions! {
    cuDriverGetVersion(*mut i32);
    cuCtxGetCurrent(*mut CUcontext);
    cuCtxGetDevice(*mut CUdevice);
    cuDeviceGetAttribute(*mut i32, i32, CUdevice);
    cuDeviceGetCount(*mut i32);
    cuDeviceGetName(*mut u8, i32, CUdevice);
    cuDeviceGetUuid(*mut CUuuid, CUdevice);
    cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDeviceGetMemPool(*mut CUmemoryPool, CUdevice);
    cuDeviceGetDefaultMemPool(*mut CUmemoryPool, CUdevice);
    cuDevicePrimaryCtxGetState(CUdevice, *mut u32, *mut i32);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuDeviceGetGraphMemAttribute(CUdevice, u32, *mut u64);
    cuDeviceGraphMemTrim(CUdevice);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemPoolGetAttribute(CUmemoryPool, u32, *mut u64);
    cuMemPoolTrimTo(CUmemoryPool, usize);
    cuStreamIsCapturing(CUstream, *mut u32);
    cuStreamIsCapturing_ptsz(CUstream, *mut u32);
    cuStreamGetCtx(CUstream, *mut CUcontext);
    cuStreamGetCtx_ptsz(CUstream, *mut CUcontext);
    cuThreadExchangeStreamCaptureMode(*mut u32);
    cuGraphGetNodes(CUgraph, *mut CUgraphNode, *mut usize);
    cuGraphNodeGetType(CUgraphNode, *mut u32);
    cuGraphChildGraphNodeGetGraph(CUgraphNode, *mut CUgraph);
    cuGraphMemAllocNodeGetParams(CUgraphNode, *mut CUDA_MEM_ALLOC_NODE_PARAMS);
}

#[inline(always)]
fn address(question: Question) -> Option<*mut c_void> {
    // Relaxed: the address of code that was there before.
    let address = QUESTION_ADDRESSES.get(question as usize)?.load(Ordering::Relaxed);
    if address.is_null() { find(question) } else { Some(address) }
}

#[cold]
fn find(question: Question) -> Option<*mut c_void> {
    let address = super::lookup::driver_symbol(QUESTION_NAMES.get(question as usize)?);
    QUESTION_ADDRESSES.get(question as usize)?.store(address, Ordering::Relaxed);
    (!address.is_null()).then_some(address)
}

/// The answer of a question with one out-parameter.
macro_rules! answer {
    ($name:ident, $initial:expr, |$out:ident| ($($arg:expr),*)) => {{
        let function = ask::$name()?;
        let mut value = $initial;
        let $out = &mut value;
        // SAFETY: the function's own argument types, and a valid place for the answer.
        let code = unsafe { function($($arg),*) };
        (code == CUDA_SUCCESS).then_some(value)
    }};
}

/// CUDA version of the driver, 13000 for 13.0.
pub(super) fn version() -> Option<u32> {
    let version = answer!(cuDriverGetVersion, 0i32, |out| (out))?;
    u32::try_from(version).ok()
}

/// The calling thread's context, if it has one.
#[inline(always)]
pub(super) fn current_context() -> Option<usize> {
    let context = answer!(cuCtxGetCurrent, std::ptr::null_mut(), |out| (out))?;
    (!context.is_null()).then_some(context as usize)
}

/// The device of the calling thread's context.
pub(super) fn current_device() -> Option<CUdevice> {
    answer!(cuCtxGetDevice, -1i32, |out| (out))
}

/// The context of a stream.
pub(super) fn stream_context(stream: CUstream, per_thread: bool) -> Option<usize> {
    let context = if per_thread {
        answer!(cuStreamGetCtx_ptsz, std::ptr::null_mut(), |out| (stream, out))
    } else {
        answer!(cuStreamGetCtx, std::ptr::null_mut(), |out| (stream, out))
    }?;
    (!context.is_null()).then_some(context as usize)
}

/// True when work on the stream is being recorded and not done. A question that fails (a legacy stream while
/// another one captures) is answered with true: the call itself will fail as well, or record.
pub(super) fn is_capturing(stream: CUstream, per_thread: bool) -> bool {
    fn status(stream: CUstream, per_thread: bool) -> Option<u32> {
        if per_thread {
            answer!(cuStreamIsCapturing_ptsz, 0u32, |out| (stream, out))
        } else {
            answer!(cuStreamIsCapturing, 0u32, |out| (stream, out))
        }
    }
    status(stream, per_thread) != Some(CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Runs questions that a capture elsewhere could forbid, with this thread's capture mode relaxed.
pub(super) fn while_relaxed<T>(questions: impl FnOnce() -> T) -> T {
    let Some(exchange) = ask::cuThreadExchangeStreamCaptureMode() else { return questions() };
    let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: a valid place; concerns this thread alone.
    let changed = unsafe { exchange(&mut mode) } == CUDA_SUCCESS;
    let result = questions();
    if changed {
        // SAFETY: as above; puts back what was there.
        unsafe { exchange(&mut mode) };
    }
    result
}

/// Devices that this process sees.
pub(super) fn device_count() -> Option<CUdevice> {
    answer!(cuDeviceGetCount, 0i32, |out| (out))
}

/// The UUID of a MIG instance, or of the card where there are none. Drivers before 11.4 do not know the question.
pub(super) fn instance_uuid(device: CUdevice) -> Option<CUuuid> {
    answer!(cuDeviceGetUuid_v2, CUuuid { bytes: [0; 16] }, |out| (out, device))
}

/// The card's UUID.
pub(super) fn card_uuid(device: CUdevice) -> Option<CUuuid> {
    answer!(cuDeviceGetUuid, CUuuid { bytes: [0; 16] }, |out| (out, device))
}

/// Compute capability, as 90 for 9.0.
pub(super) fn architecture(device: CUdevice) -> Option<u32> {
    const MAJOR: i32 = 75;
    const MINOR: i32 = 76;
    let major = answer!(cuDeviceGetAttribute, 0i32, |out| (out, MAJOR, device))?;
    let minor = answer!(cuDeviceGetAttribute, 0i32, |out| (out, MINOR, device))?;
    u32::try_from(major.checked_mul(10)?.checked_add(minor)?).ok()
}

/// The product name.
pub(super) fn name(device: CUdevice) -> Option<Vec<u8>> {
    let text = answer!(cuDeviceGetName, [0u8; 96], |out| (out.as_mut_ptr(), 95, device))?;
    Some(text.iter().copied().take_while(|b| *b != 0).collect())
}

/// Memory of a device, in bytes.
pub(super) fn total_memory(device: CUdevice) -> Option<u64> {
    answer!(cuDeviceTotalMem_v2, 0usize, |out| (out, device)).map(|bytes| bytes as u64)
}

/// Free memory of the current context's device, in bytes.
pub(super) fn free_memory() -> Option<u64> {
    let mut total = 0usize;
    answer!(cuMemGetInfo_v2, 0usize, |out| (out, &mut total)).map(|bytes| bytes as u64)
}

/// The pool that cuMemAllocAsync takes from on a device.
pub(super) fn current_pool(device: CUdevice) -> Option<CUmemoryPool> {
    answer!(cuDeviceGetMemPool, std::ptr::null_mut(), |out| (out, device))
}

/// A device's default pool.
pub(super) fn default_pool(device: CUdevice) -> Option<CUmemoryPool> {
    answer!(cuDeviceGetDefaultMemPool, std::ptr::null_mut(), |out| (out, device))
}

/// What a pool has reserved, in bytes.
pub(super) fn pool_reserved(pool: CUmemoryPool) -> Option<u64> {
    answer!(cuMemPoolGetAttribute, 0u64, |out| (pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, out))
}

/// An attribute of a pool by number.
pub(super) fn pool_attribute(pool: CUmemoryPool, attribute: u32) -> Option<u64> {
    answer!(cuMemPoolGetAttribute, 0u64, |out| (pool, attribute, out))
}

/// Gives the unused part of a pool back.
pub(super) fn trim_pool(pool: CUmemoryPool) {
    if let Some(trim) = ask::cuMemPoolTrimTo() {
        // SAFETY: a pool that the driver named.
        unsafe { trim(pool, 0) };
    }
}

/// What a device has reserved for graphs, and how much of it is in use, in bytes.
pub(super) fn graph_memory(device: CUdevice) -> Option<(u64, u64)> {
    let reserved = answer!(cuDeviceGetGraphMemAttribute, 0u64, |out| (
        device,
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
        out
    ))?;
    let used =
        answer!(cuDeviceGetGraphMemAttribute, 0u64, |out| (device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, out))?;
    Some((reserved, used))
}

/// Gives the unused part of a device's graph memory back.
pub(super) fn trim_graphs(device: CUdevice) {
    if let Some(trim) = ask::cuDeviceGraphMemTrim() {
        // SAFETY: a plain ordinal.
        unsafe { trim(device) };
    }
}

/// True while a device's primary context is alive.
pub(super) fn primary_is_active(device: CUdevice) -> Option<bool> {
    let mut flags = 0u32;
    answer!(cuDevicePrimaryCtxGetState, 0i32, |out| (device, &mut flags, out)).map(|active| active != 0)
}

/// Gives back a use of a device's primary context that nobody has been told of.
pub(super) fn release_primary(device: CUdevice) {
    if let Some(release) = ask::cuDevicePrimaryCtxRelease_v2() {
        // SAFETY: a plain ordinal.
        unsafe { release(device) };
    }
}

/// Takes back an allocation that turned out not to fit.
pub(super) fn free(address: CUdeviceptr) {
    if let Some(free) = ask::cuMemFree_v2() {
        // SAFETY: allocated a moment ago, and the application has not been told of it.
        unsafe { free(address) };
    }
}

/// The nodes of a graph, or `None` where the driver does not say.
pub(super) fn graph_nodes(graph: CUgraph) -> Option<Vec<CUgraphNode>> {
    let function = ask::cuGraphGetNodes()?;
    let mut count = 0usize;
    // SAFETY: no array asks for the number alone.
    if unsafe { function(graph, std::ptr::null_mut(), &mut count) } != CUDA_SUCCESS {
        return None;
    }
    let mut nodes = vec![std::ptr::null_mut(); count];
    // SAFETY: an array of `count` places.
    if count != 0 && unsafe { function(graph, nodes.as_mut_ptr(), &mut count) } != CUDA_SUCCESS {
        return None;
    }
    nodes.truncate(count);
    Some(nodes)
}

/// `CU_GRAPH_NODE_TYPE_…`
pub(super) fn node_type(node: CUgraphNode) -> Option<u32> {
    answer!(cuGraphNodeGetType, 0u32, |out| (node, out))
}

/// The graph inside a node of type graph.
pub(super) fn child_graph(node: CUgraphNode) -> Option<CUgraph> {
    answer!(cuGraphChildGraphNodeGetGraph, std::ptr::null_mut(), |out| (node, out))
}

/// Where an allocation node allocates, and how many bytes.
pub(super) fn allocation_node(node: CUgraphNode) -> Option<(CUmemLocation, u64)> {
    // Room for what later drivers may add to the structure.
    #[repr(C)]
    struct Padded(CUDA_MEM_ALLOC_NODE_PARAMS, [u64; 16]);
    let function = ask::cuGraphMemAllocNodeGetParams()?;
    // SAFETY: plain data, valid when zero.
    let mut params: Padded = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place for the answer.
    let code = unsafe { function(node, &mut params.0) };
    (code == CUDA_SUCCESS).then_some((params.0.poolProps.location, params.0.bytesize as u64))
}
