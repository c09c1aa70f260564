//! CUDA arrays and mipmapped arrays.

use super::allocate::{Got, Wanted, allocate, freed};
use super::guard::{Before, around};
use super::refuse::current;
use super::table::{Id, hook};
use super::vmm;
use crate::cuda::abi::*;
use crate::cuda::error::CUDA_SUCCESS;
use crate::policy::sizes;
use crate::process::Process;
use crate::record::layout::Class;

hook! {
    fn cuArrayCreate(pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY_DESCRIPTOR_v1) |real| {
        // SAFETY: the driver reads the same structure; null is checked.
        let flat = unsafe { pAllocateArray.as_ref() };
        let descriptor = flat.map(|d| solid(d.Width as usize, d.Height as usize, 0, d.Format, d.NumChannels, 0));
        create(Id::cuArrayCreate, Class::Array, pHandle, descriptor, real, sizes::array)
    }
    fn cuArrayCreate_v2(pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY_DESCRIPTOR) |real| {
        // SAFETY: as above.
        let flat = unsafe { pAllocateArray.as_ref() };
        let descriptor = flat.map(|d| solid(d.Width, d.Height, 0, d.Format, d.NumChannels, 0));
        create(Id::cuArrayCreate_v2, Class::Array, pHandle, descriptor, real, sizes::array)
    }
    fn cuArray3DCreate(pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY3D_DESCRIPTOR_v1) |real| {
        // SAFETY: as above.
        let old = unsafe { pAllocateArray.as_ref() };
        let descriptor = old.map(|d| {
            solid(d.Width as usize, d.Height as usize, d.Depth as usize, d.Format, d.NumChannels, d.Flags)
        });
        create(Id::cuArray3DCreate, Class::Array, pHandle, descriptor, real, sizes::array)
    }
    fn cuArray3DCreate_v2(pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY3D_DESCRIPTOR) |real| {
        // SAFETY: as above.
        let descriptor = unsafe { pAllocateArray.as_ref() }.copied();
        create(Id::cuArray3DCreate_v2, Class::Array, pHandle, descriptor, real, sizes::array)
    }
    fn cuMipmappedArrayCreate(pHandle: *mut CUmipmappedArray, pMipmappedArrayDesc: *const CUDA_ARRAY3D_DESCRIPTOR, numMipmapLevels: u32) |real| {
        // SAFETY: as above.
        let descriptor = unsafe { pMipmappedArrayDesc.as_ref() }.copied();
        create(Id::cuMipmappedArrayCreate, Class::MipmappedArray, pHandle, descriptor, real, |d| {
            sizes::mipmapped_array(d, numMipmapLevels)
        })
    }
    fn cuArrayDestroy(hArray: CUarray) |real| {
        destroy(Class::Array, hArray as u64, real)
    }
    fn cuMipmappedArrayDestroy(hMipmappedArray: CUmipmappedArray) |real| {
        destroy(Class::MipmappedArray, hMipmappedArray as u64, real)
    }
}

fn solid(
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: width,
        Height: height,
        Depth: depth,
        Format: format,
        NumChannels: channels,
        Flags: flags,
    }
}

fn create(
    api: Id,
    class: Class,
    handle: *mut CUarray,
    descriptor: Option<CUDA_ARRAY3D_DESCRIPTOR>,
    real: impl FnOnce() -> CUresult,
    size: impl FnOnce(&CUDA_ARRAY3D_DESCRIPTOR) -> u64,
) -> CUresult {
    allocate::<false>(
        api,
        class,
        |process: &'static Process| {
            let descriptor = descriptor.filter(|d| !handle.is_null() && d.Width != 0)?;
            let bytes = Some(size(&descriptor)).filter(|bytes| sizes::is_possible(*bytes))?;
            let (context, device) = current(process)?;
            Some(Wanted { device, bytes, owner: context as u64 })
        },
        real,
        // SAFETY: not null, and written by the driver when it succeeds.
        |wanted| Got { address: unsafe { *handle } as u64, bytes: wanted.bytes },
        |_| {},
    )
}

fn destroy(class: Class, handle: u64, real: impl FnOnce() -> CUresult) -> CUresult {
    around(
        |process| match process.index.remove(&process.writer, handle, class) {
            Some(array) => Before::Then(array),
            None => Before::Pass,
        },
        real,
        |process, array, code| {
            freed(process, array, code);
            if code == CUDA_SUCCESS {
                vmm::array_destroyed(process, handle);
            }
            code
        },
    )
}
