//! What an application is told of the device's memory: the quota is the card.

use super::devices::{account, device_number};
use super::guard::{Before, around};
use super::refuse::current;
use super::table::hook;
use crate::cuda::abi::*;
use crate::cuda::error::CUDA_SUCCESS;
use crate::ledger::Account;
use crate::policy::quota::shown;

hook! {
    fn cuMemGetInfo(free: *mut u32, total: *mut u32) |real| {
        // SAFETY: not null (checked by `memory_info`), and written by the driver, which succeeded.
        let read = || unsafe { (u64::from(*free), u64::from(*total)) };
        memory_info(free.is_null() || total.is_null(), real, read, |f, t| {
            // SAFETY: as above. Both are at most what the driver wrote, so they fit.
            unsafe { (*free, *total) = (f as u32, t as u32) }
        })
    }
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |real| {
        // SAFETY: as above.
        let read = || unsafe { (*free as u64, *total as u64) };
        memory_info(free.is_null() || total.is_null(), real, read, |f, t| {
            // SAFETY: as above.
            unsafe { (*free, *total) = (f as usize, t as usize) }
        })
    }
    fn cuDeviceTotalMem(bytes: *mut u32, dev: CUdevice) |real| {
        // SAFETY: not null (checked by `total_memory`), and written by the driver, which succeeded.
        total_memory(bytes.is_null(), dev, real, || unsafe { *bytes }.into(), |t| unsafe { *bytes = t as u32 })
    }
    fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) |real| {
        // SAFETY: as above.
        total_memory(bytes.is_null(), dev, real, || unsafe { *bytes as u64 }, |t| unsafe { *bytes = t as usize })
    }
}

#[inline(always)]
fn memory_info(
    null: bool,
    real: impl FnOnce() -> CUresult,
    read: impl FnOnce() -> (u64, u64),
    write: impl FnOnce(u64, u64),
) -> CUresult {
    around(
        |process| match current(process)
            .filter(|_| !null)
            .and_then(|(_, device)| limited(account(process, device)))
        {
            Some(account) => Before::Then(account),
            None => Before::Pass,
        },
        real,
        |_, account, code| {
            if code == CUDA_SUCCESS {
                let (free, total) = read();
                let shown = shown(free, total, account.used(), account.limit());
                write(shown.free, shown.total);
            }
            code
        },
    )
}

fn total_memory(
    null: bool,
    device: CUdevice,
    real: impl FnOnce() -> CUresult,
    read: impl FnOnce() -> u64,
    write: impl FnOnce(u64),
) -> CUresult {
    around(
        |process| match device_number(device).filter(|_| !null).and_then(|d| limited(account(process, d))) {
            Some(account) => Before::Then(account),
            None => Before::Pass,
        },
        real,
        |_, account, code| {
            if code == CUDA_SUCCESS {
                let real_total = read();
                write(shown(real_total, real_total, 0, account.limit()).total);
            }
            code
        },
    )
}

fn limited(account: Option<Account<'_>>) -> Option<Account<'_>> {
    account.filter(|account| account.limit() != 0)
}
