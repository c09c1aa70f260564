//! Virtual memory management: physical allocations, their handles and mappings.

use super::allocate::{Got, Wanted, allocate, uncharge};
use super::devices::device_number;
use super::guard::{Before, around};
use super::table::{Id, hook};
use crate::cuda::abi::*;
use crate::cuda::error::CUDA_SUCCESS;
use crate::policy::sizes;
use crate::process::Process;
use crate::record::layout::Class;
use crate::tracking::memory_map::{ArrayPart, PhysicalId};
use core::ffi::c_void;

hook! {
    fn cuMemCreate(handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: u64) |real| {
        allocate::<false>(
            Id::cuMemCreate,
            Class::Physical,
            |_| {
                // SAFETY: the driver reads the same structure; null is checked.
                let prop = unsafe { prop.as_ref() }.filter(|_| !handle.is_null() && size != 0)?;
                if !sizes::is_possible(size as u64) {
                    return None;
                }
                Some(Wanted { device: located_on(prop.location)?, bytes: size as u64, owner: 0 })
            },
            real,
            |wanted| {
                // SAFETY: not null, and written by the driver when it succeeds.
                let handle = unsafe { *handle };
                // Handles are reused while the memory is still mapped; the books need a name that is not.
                let id = Process::current().map_or(0, |p| p.memory_map().create(handle));
                Got { address: id, bytes: wanted.bytes }
            },
            |_| {},
        )
    }
    fn cuMemRelease(handle: CUmemGenericAllocationHandle) |real| {
        around(
            |process| match process.memory_map().release(handle) {
                Some(ended) => Before::Then(ended),
                None => Before::Pass,
            },
            real,
            |process, ended, code| {
                if code != CUDA_SUCCESS {
                    process.memory_map().undo_release(*ended);
                } else if ended.gone {
                    gone(process, ended.id);
                }
                code
            },
        )
    }
    fn cuMemMap(ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64) |real| {
        around(
            |process| match process.memory_map().begin_map(handle) {
                Some(id) => Before::Then(id),
                None => Before::Pass,
            },
            real,
            |process, &id, code| {
                if code == CUDA_SUCCESS {
                    process.memory_map().mapped(ptr, size as u64, id);
                } else {
                    let ended = process.memory_map().undo_map(id);
                    if let Some(id) = ended {
                        gone(process, id);
                    }
                }
                code
            },
        )
    }
    fn cuMemUnmap(ptr: CUdeviceptr, size: usize) |real| {
        around(
            |process| {
                let ended = process.memory_map().unmap(ptr, size as u64);
                if ended.is_empty() { Before::Pass } else { Before::Then(ended) }
            },
            real,
            |process, ended, code| {
                if code != CUDA_SUCCESS {
                    process.memory_map().undo_unmap(ended.clone());
                } else {
                    for mapping in ended.iter().filter(|m| m.gone) {
                        gone(process, mapping.id);
                    }
                }
                code
            },
        )
    }
    fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void) |real| {
        around(
            |_| if handle.is_null() { Before::Pass } else { Before::Then(()) },
            real,
            |process, (), code| {
                if code == CUDA_SUCCESS {
                    // SAFETY: not null, and written by the driver, which succeeded.
                    process.memory_map().retain(unsafe { *handle }, Some(addr as u64));
                }
                code
            },
        )
    }
    fn cuMemImportFromShareableHandle(handle: *mut CUmemGenericAllocationHandle, osHandle: *mut c_void, shHandleType: u32) |real| {
        around(
            |_| if handle.is_null() { Before::Pass } else { Before::Then(()) },
            real,
            |process, (), code| {
                if code == CUDA_SUCCESS {
                    // Another process's memory is not ours. Our own export coming back is one more handle.
                    // SAFETY: as above.
                    process.memory_map().retain(unsafe { *handle }, None);
                }
                code
            },
        )
    }
    fn cuMemMapArrayAsync(mapInfoList: *mut CUarrayMapInfo, count: u32, hStream: CUstream) |real| {
        map_arrays(mapInfoList, count, real)
    }
    fn cuMemMapArrayAsync_ptsz(mapInfoList: *mut CUarrayMapInfo, count: u32, hStream: CUstream) |real| {
        map_arrays(mapInfoList, count, real)
    }
}

/// The device of a location; `None` for host memory, which is not ours to count.
pub(super) fn located_on(location: CUmemLocation) -> Option<u8> {
    match location.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => device_number(location.id),
        CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => device_number(location.id & 0xff),
        _ => None,
    }
}

fn map_arrays(list: *mut CUarrayMapInfo, count: u32, real: impl FnOnce() -> CUresult) -> CUresult {
    around(
        |_| {
            if list.is_null() || count == 0 {
                return Before::Pass;
            }
            // SAFETY: the driver reads the same `count` entries; copied, since they are the application's to change.
            Before::Then(unsafe { std::slice::from_raw_parts(list, count as usize) }.to_vec())
        },
        real,
        |process, entries, code| {
            if code == CUDA_SUCCESS {
                for entry in entries {
                    let part = part_of(entry);
                    let ended = if entry.memOperationType == CU_MEM_OPERATION_TYPE_MAP {
                        process.memory_map().map_array(part, entry.memHandle)
                    } else {
                        process.memory_map().unmap_array(part)
                    };
                    if let Some(id) = ended {
                        gone(process, id);
                    }
                }
            }
            code
        },
    )
}

fn part_of(entry: &CUarrayMapInfo) -> ArrayPart {
    const CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL: u32 = 1;
    let mut part = entry.subresource;
    if entry.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL {
        // { u32 layer; u64 offset; u64 size; }: what lies between and behind is whatever the application left there.
        part = [part[0] & 0xffff_ffff, part[1], part[2], 0];
    }
    ArrayPart { resource: entry.resource, kind: entry.subresourceType, part }
}

/// An array was destroyed: what was mapped into it may be gone with it.
pub(super) fn array_destroyed(process: &Process, array: u64) {
    let ended = process.memory_map().array_destroyed(array);
    for id in ended {
        gone(process, id);
    }
}

fn gone(process: &Process, id: PhysicalId) {
    if let Some(allocation) = process.index.remove(&process.writer, id, Class::Physical) {
        uncharge(process, &allocation);
    }
}
