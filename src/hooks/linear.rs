//! cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged and cuMemFree.

use super::allocate::{Got, Wanted, allocate, free};
use super::driver;
use super::refuse::current;
use super::table::{Id, hook};
use crate::cuda::abi::{CUdeviceptr, CUdeviceptr_v1, CUresult};
use crate::policy::sizes;
use crate::process::Process;
use crate::record::layout::Class;

/// The least pitch alignment of any device so far: the driver's own choice is read after the call.
const LEAST_PITCH_ALIGNMENT: u64 = 32;

hook! {
    fn cuMemAlloc(dptr: *mut CUdeviceptr_v1, bytesize: u32) |real| {
        // SAFETY: read after success only, when the driver has written it.
        linear::<false>(Id::cuMemAlloc, dptr.is_null(), bytesize.into(), real, || unsafe { *dptr }.into())
    }
    fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) |real| {
        // SAFETY: as above.
        linear::<true>(Id::cuMemAlloc_v2, dptr.is_null(), bytesize as u64, real, || unsafe { *dptr })
    }
    fn cuMemAllocManaged(dptr: *mut CUdeviceptr, bytesize: usize, flags: u32) |real| {
        // SAFETY: as above.
        linear::<false>(Id::cuMemAllocManaged, dptr.is_null(), bytesize as u64, real, || unsafe { *dptr })
    }
    fn cuMemAllocPitch(dptr: *mut CUdeviceptr_v1, pPitch: *mut u32, WidthInBytes: u32, Height: u32, ElementSizeBytes: u32) |real| {
        let null = dptr.is_null() || pPitch.is_null();
        // SAFETY: as above.
        let out = || unsafe { (u64::from(*dptr), u64::from(*pPitch)) };
        pitched(Id::cuMemAllocPitch, null, WidthInBytes.into(), Height.into(), real, out)
    }
    fn cuMemAllocPitch_v2(dptr: *mut CUdeviceptr, pPitch: *mut usize, WidthInBytes: usize, Height: usize, ElementSizeBytes: u32) |real| {
        let null = dptr.is_null() || pPitch.is_null();
        // SAFETY: as above.
        let out = || unsafe { (*dptr, *pPitch as u64) };
        pitched(Id::cuMemAllocPitch_v2, null, WidthInBytes as u64, Height as u64, real, out)
    }
    fn cuMemFree(dptr: CUdeviceptr_v1) |real| {
        free(Class::Pointer, dptr.into(), real)
    }
    fn cuMemFree_v2(dptr: CUdeviceptr) |real| {
        free(Class::Pointer, dptr, real)
    }
}

#[inline(always)]
fn linear<const HOT: bool>(
    api: Id,
    null: bool,
    bytes: u64,
    real: impl FnOnce() -> CUresult,
    address: impl FnOnce() -> u64,
) -> CUresult {
    allocate::<HOT>(
        api,
        Class::Pointer,
        |process| wanted(process, null, bytes),
        real,
        |wanted| Got { address: address(), bytes: wanted.bytes },
        |_| {},
    )
}

fn pitched(
    api: Id,
    null: bool,
    width: u64,
    height: u64,
    real: impl FnOnce() -> CUresult,
    out: impl FnOnce() -> (u64, u64),
) -> CUresult {
    let least = width.checked_next_multiple_of(LEAST_PITCH_ALIGNMENT).unwrap_or(u64::MAX);
    allocate::<false>(
        api,
        Class::Pointer,
        |process| wanted(process, null, sizes::pitched(least, height)),
        real,
        |_| {
            let (address, pitch) = out();
            Got { address, bytes: sizes::pitched(pitch, height) }
        },
        |got| driver::free(got.address),
    )
}

#[inline(always)]
fn wanted(process: &Process, null: bool, bytes: u64) -> Option<Wanted> {
    if null || bytes == 0 || !sizes::is_possible(bytes) {
        return None;
    }
    let (context, device) = current(process)?;
    Some(Wanted { device, bytes, owner: context as u64 })
}
