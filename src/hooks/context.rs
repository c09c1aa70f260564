//! Contexts: which there are, what ends with them, and failures to make one.

use super::allocate::{freed, is_owned, take_owned};
use super::context_cost::{self, Coming};
use super::devices::{self, device_number};
use super::driver;
use super::guard::{Before, around};
use super::init_failure::init_failure;
use super::refuse::context_device;
use super::table::{Id, hook};
use super::vmm;
use crate::cuda::abi::*;
use crate::cuda::error::CUDA_SUCCESS;
use crate::process::Process;
use crate::record::layout::Class;
use crate::tracking::contexts::{Context, Costly, Origin};
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
                } else if let Some(context) = process.contexts.remove_if_unused(ctx as usize) {
                    context_cost::ended(process, context.device, Costly::Handle(ctx as usize));
                }
                settle_owned(process, owned, code);
                code
            },
        )
    }
    fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) |real| {
        around(
            |process| {
                if pctx.is_null() {
                    return Before::Pass;
                }
                context_cost::primary_coming(process, dev).map_or_else(Before::Answer, Before::Then)
            },
            real,
            |process, coming, code| {
                if code == CUDA_SUCCESS {
                    // SAFETY: not null, and written by the driver, which succeeded.
                    made(process, unsafe { *pctx }, dev, Origin::Primary);
                } else {
                    init_failure(process, Id::cuDevicePrimaryCtxRetain.name(), code, Some(dev));
                }
                if let Some(coming) = coming {
                    context_cost::primary_answered(process, coming, code);
                }
                code
            },
        )
    }
    fn cuDevicePrimaryCtxRelease(dev: CUdevice) |real| {
        release_primary(dev, real)
    }
    fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) |real| {
        release_primary(dev, real)
    }
    fn cuDevicePrimaryCtxReset(dev: CUdevice) |real| {
        reset_primary(dev, real)
    }
    fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) |real| {
        reset_primary(dev, real)
    }
    fn cuGreenCtxCreate(phCtx: *mut CUcontext, desc: *mut c_void, dev: CUdevice, flags: u32) |real| {
        around(
            |process| before_new(process, phCtx, dev),
            real,
            |process, coming, code| {
                after_new(process, Id::cuGreenCtxCreate, phCtx, dev, Origin::Green, coming, code);
                code
            },
        )
    }
    fn cuGreenCtxDestroy(hCtx: CUcontext) |real| {
        around(
            |process| match process.contexts.remove(hCtx as usize) {
                // The primary context that it held may go with it.
                Some(green) => Before::Then((green, Ending::of_primary(process, green.device))),
                None => Before::Pass,
            },
            real,
            |process, (green, ending), code| {
                if code == CUDA_SUCCESS {
                    context_cost::ended(process, green.device, Costly::Handle(hCtx as usize));
                    ending.finish_if_inactive(process);
                } else {
                    process.contexts.add(hCtx as usize, *green);
                }
                code
            },
        )
    }
}

fn create(api: Id, out: *mut CUcontext, device: CUdevice, real: impl FnOnce() -> CUresult) -> CUresult {
    around(
        |process| before_new(process, out, device),
        real,
        |process, coming, code| {
            after_new(process, api, out, device, Origin::Created, coming, code);
            code
        },
    )
}

fn before_new(process: &Process, out: *mut CUcontext, device: CUdevice) -> Before<Coming> {
    if out.is_null() {
        return Before::Pass;
    }
    context_cost::coming(process, device).map_or_else(Before::Answer, Before::Then)
}

/// `out` is not null.
fn after_new(
    process: &Process,
    api: Id,
    out: *mut CUcontext,
    device: CUdevice,
    origin: Origin,
    coming: &Coming,
    code: CUresult,
) {
    let mut handle = 0;
    if code == CUDA_SUCCESS {
        // SAFETY: not null, and written by the driver, which succeeded.
        let context = unsafe { *out };
        handle = context as usize;
        made(process, context, device, origin);
    } else {
        init_failure(process, api.name(), code, Some(device));
    }
    context_cost::answered(process, coming, Costly::Handle(handle), code);
}

/// A context has been made: what it is for, and that a thread may be started.
pub(super) fn made(process: &Process, context: CUcontext, device: CUdevice, origin: Origin) {
    if let Some(device) = device_number(device) {
        process.contexts.add(context as usize, Context { device, origin });
        devices::account(process, device);
        process.has_context();
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
            match *known {
                Some(context) if code == CUDA_SUCCESS => {
                    context_cost::ended(process, context.device, Costly::Handle(handle));
                }
                Some(context) => process.contexts.add(handle, context),
                None => {}
            }
            settle_owned(process, owned, code);
            code
        },
    )
}

fn reset_primary(device: CUdevice, real: impl FnOnce() -> CUresult) -> CUresult {
    with_ending(device, real, |ending, process| {
        // Who retained it still may use it: then the driver makes it anew.
        process
            .contexts
            .await_primary(ending.device, process.config.count_contexts && !ending.contexts.is_empty());
        ending.finish(process);
    })
}

/// A release ends the primary context only when it was the last; the driver alone knows.
fn release_primary(device: CUdevice, real: impl FnOnce() -> CUresult) -> CUresult {
    with_ending(device, real, |ending, process| ending.finish_if_inactive(process))
}

fn with_ending(
    device: CUdevice,
    real: impl FnOnce() -> CUresult,
    finish: impl FnOnce(&Ending, &Process),
) -> CUresult {
    around(
        |process| match device_number(device) {
            Some(device) => Before::Then(Ending::of_primary(process, device)),
            None => Before::Pass,
        },
        real,
        |process, ending, code| {
            if code == CUDA_SUCCESS {
                finish(ending, process);
            }
            code
        },
    )
}

/// What ends with a device's primary context, as it was before the call: another thread may make the context anew
/// and allocate before we come to take it out of the books.
struct Ending {
    device: u8,
    contexts: Vec<usize>,
    /// In order.
    owned: Vec<Allocation>,
}

impl Ending {
    fn of_primary(process: &Process, device: u8) -> Ending {
        // A context that was made through the private table is known only once it is used.
        if let Some(handle) = driver::current_context() {
            context_device(process, handle);
        }
        let contexts = process.contexts.primaries(device);
        let mut owned = process.index.select(&process.writer, &|allocation| is_owned(allocation, &contexts));
        crate::order::sort(&mut owned, |a, b| place(a) < place(b));
        Ending { device, contexts, owned }
    }

    fn had(&self, allocation: &Allocation) -> bool {
        let found = self.owned.binary_search_by_key(&place(allocation), place);
        found.ok().and_then(|at| self.owned.get(at)) == Some(allocation)
    }

    fn finish_if_inactive(&self, process: &Process) {
        if driver::primary_is_active(self.device.into()) == Some(false) {
            self.finish(process);
        }
    }

    fn finish(&self, process: &Process) {
        let owned = process.index.remove_where(&process.writer, &|allocation| self.had(allocation));
        for handle in &self.contexts {
            process.contexts.remove(*handle);
        }
        context_cost::ended(process, self.device, Costly::Primary);
        settle_owned(process, &owned, CUDA_SUCCESS);
        super::pool::refresh_all(process, self.device);
    }
}

/// By which the books tell allocations apart.
fn place(allocation: &Allocation) -> (u64, u8) {
    (allocation.address, allocation.class as u8)
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
