//! Contexts: which there are, what ends with them, and failures to make one.

use super::allocate::{freed, take_owned};
use super::driver;
use super::guard::{Before, around};
use super::refuse::{self, context_device, device_number};
use super::table::{Id, hook};
use super::vmm;
use crate::cuda::abi::*;
use crate::cuda::error::CUDA_SUCCESS;
use crate::process::Process;
use crate::record::layout::Class;
use crate::tracking::contexts::{Context, Origin};
use crate::tracking::index::Allocation;
use core::ffi::c_void;

hook! {
    fn cuCtxCreate(pctx: *mut CUcontext, flags: u32, dev: CUdevice) |real| {
        create(Id::cuCtxCreate, pctx, dev, real)
    }
    fn cuCtxCreate_v2(pctx: *mut CUcontext, flags: u32, dev: CUdevice) |real| {
        create(Id::cuCtxCreate_v2, pctx, dev, real)
    }
    fn cuCtxCreate_v3(pctx: *mut CUcontext, paramsArray: *mut c_void, numParams: i32, flags: u32, dev: CUdevice) |real| {
        create(Id::cuCtxCreate_v3, pctx, dev, real)
    }
    fn cuCtxCreate_v4(pctx: *mut CUcontext, ctxCreateParams: *mut c_void, flags: u32, dev: CUdevice) |real| {
        create(Id::cuCtxCreate_v4, pctx, dev, real)
    }
    fn cuCtxDestroy(ctx: CUcontext) |real| {
        end_created(ctx, real)
    }
    fn cuCtxDestroy_v2(ctx: CUcontext) |real| {
        end_created(ctx, real)
    }
    fn cuCtxAttach(pctx: *mut CUcontext, flags: u32) |real| {
        around(
            |_| if pctx.is_null() { Before::Pass } else { Before::Then(()) },
            real,
            |process, (), code| {
                if code == CUDA_SUCCESS {
                    // SAFETY: not null, and written by the driver, which succeeded.
                    process.contexts.attach(unsafe { *pctx } as usize);
                }
                code
            },
        )
    }
    fn cuCtxDetach(ctx: CUcontext) |real| {
        around(
            |process| {
                let last = process.contexts.detach(ctx as usize);
                Before::Then(if last { take_owned(process, &[ctx as usize]) } else { Vec::new() })
            },
            real,
            |process, owned, code| {
                if code != CUDA_SUCCESS {
                    process.contexts.attach(ctx as usize);
                } else {
                    process.contexts.remove_if_unused(ctx as usize);
                }
                settle_owned(process, owned, code);
                code
            },
        )
    }
    fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) |real| {
        around(
            |_| if pctx.is_null() { Before::Pass } else { Before::Then(()) },
            real,
            |process, (), code| {
                if code == CUDA_SUCCESS {
                    // SAFETY: not null, and written by the driver, which succeeded.
                    made(process, unsafe { *pctx }, dev, Origin::Primary);
                } else {
                    refuse::init_failure(process, Id::cuDevicePrimaryCtxRetain.name(), code, Some(dev));
                }
                code
            },
        )
    }
    fn cuDevicePrimaryCtxRelease(dev: CUdevice) |real| {
        end_primary(dev, real)
    }
    fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) |real| {
        end_primary(dev, real)
    }
    fn cuDevicePrimaryCtxReset(dev: CUdevice) |real| {
        end_primary(dev, real)
    }
    fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) |real| {
        end_primary(dev, real)
    }
    fn cuGreenCtxCreate(phCtx: *mut CUcontext, desc: *mut c_void, dev: CUdevice, flags: u32) |real| {
        around(
            |_| if phCtx.is_null() { Before::Pass } else { Before::Then(()) },
            real,
            |process, (), code| {
                if code == CUDA_SUCCESS {
                    // SAFETY: not null, and written by the driver, which succeeded.
                    made(process, unsafe { *phCtx }, dev, Origin::Green);
                } else {
                    refuse::init_failure(process, Id::cuGreenCtxCreate.name(), code, Some(dev));
                }
                code
            },
        )
    }
    fn cuGreenCtxDestroy(hCtx: CUcontext) |real| {
        // The primary context that it held may go with it.
        let device = Process::current().and_then(|process| process.contexts.remove(hCtx as usize));
        end_primary(device.map_or(-1, |green| CUdevice::from(green.device)), real)
    }
}

fn create(api: Id, out: *mut CUcontext, device: CUdevice, real: impl FnOnce() -> CUresult) -> CUresult {
    around(
        |_| if out.is_null() { Before::Pass } else { Before::Then(()) },
        real,
        |process, (), code| {
            if code == CUDA_SUCCESS {
                // SAFETY: not null, and written by the driver, which succeeded.
                made(process, unsafe { *out }, device, Origin::Created);
            } else {
                refuse::init_failure(process, api.name(), code, Some(device));
            }
            code
        },
    )
}

/// A context has been made: what it is for, and that a thread may be started.
pub(super) fn made(process: &Process, context: CUcontext, device: CUdevice, origin: Origin) {
    if let Some(device) = device_number(device) {
        process.contexts.add(context as usize, Context { device, origin });
        refuse::account(process, device);
        process.events.allow_thread();
    }
}

fn end_created(context: CUcontext, real: impl FnOnce() -> CUresult) -> CUresult {
    let handle = context as usize;
    around(
        |process| {
            let known = process.contexts.remove(handle);
            Before::Then((known, take_owned(process, &[handle])))
        },
        real,
        |process, (known, owned), code| {
            if code != CUDA_SUCCESS
                && let Some(context) = *known
            {
                process.contexts.add(handle, context);
            }
            settle_owned(process, owned, code);
            code
        },
    )
}

/// A release ends the primary context only when it was the last; the driver alone knows. So the books are
/// cleared after the call. Should another thread make the context anew meanwhile, its allocations of the same
/// addresses replace ours in the index, and the rest is older than the call.
fn end_primary(device: CUdevice, real: impl FnOnce() -> CUresult) -> CUresult {
    around(
        |process| {
            let Some(number) = device_number(device) else { return Before::Pass };
            // A context that was made through the private table is known only once it is used.
            if let Some(handle) = driver::current_context() {
                context_device(process, handle);
            }
            Before::Then((number, process.age_ns()))
        },
        real,
        |process, &(number, before), code| {
            if code == CUDA_SUCCESS {
                primary_may_have_ended(process, number, before);
            }
            code
        },
    )
}

fn primary_may_have_ended(process: &Process, device: u8, before: u64) {
    if driver::primary_is_active(device.into()) == Some(true) {
        return;
    }
    let handles = process.contexts.primaries(device);
    let owned = process.index.remove_where(&process.writer, &|allocation| {
        !super::pool::is_from_pool(allocation)
            && handles.contains(&(allocation.owner as usize))
            && allocation.born_ns <= before
    });
    for handle in handles {
        process.contexts.remove(handle);
    }
    settle_owned(process, &owned, CUDA_SUCCESS);
    super::pool::refresh_all(process, device);
}

fn settle_owned(process: &Process, owned: &[Allocation], code: CUresult) {
    for allocation in owned {
        freed(process, allocation, code);
        if code == CUDA_SUCCESS && matches!(allocation.class, Class::Array | Class::MipmappedArray) {
            // What was mapped into a sparse array may be gone with it.
            vmm::array_destroyed(process, allocation.address);
        }
    }
}
