//! Which device a handle of NVML's means, and what the limit of that device is.

use super::{Handle, SUCCESS};
use crate::hooks::lookup::Library;
use crate::ledger::limit::{Limit, if_told};
use crate::ledger::view::{DeviceView, Holder};
use crate::policy::limit::Limits;
use crate::policy::listed::NO_INSTANCE;
use crate::policy::ordinal::{self, Card, Place};
use crate::process::observer::{Accounts, Sight};
use crate::report::uuid;
use core::ffi::{CStr, c_char, c_int, c_uint};

/// NVML_DEVICE_UUID_V2_BUFFER_SIZE and NVML_DEVICE_NAME_V2_BUFFER_SIZE
const TEXT: usize = 96;

/// A card, or an instance of one.
pub(super) struct Device {
    handle: Handle,
    /// `GPU-…` or `MIG-…`, as NVML prints it.
    text: String,
    uuid: [u8; 16],
}

impl Device {
    /// `None`: NVML does not say, or not in the form that CUDA knows, as drivers before R470 do of instances.
    pub(super) fn of(handle: Handle) -> Option<Device> {
        let text = text_of(c"nvmlDeviceGetUUID", handle)?;
        let uuid = uuid::parse(&text)?;
        Some(Device { handle, text, uuid })
    }

    /// What the ledger has of it.
    pub(super) fn account<'a>(&self, accounts: &'a Accounts) -> Option<&'a DeviceView> {
        accounts.devices.iter().find(|device| device.uuid == self.uuid)
    }

    /// The limit that holds for this process, or would if it used CUDA, in bytes; 0 = none. `None`: cannot be known.
    pub(super) fn limit(&self, sight: &Sight) -> Option<u64> {
        let accounts = sight.ledger.as_ref();
        let account = accounts.and_then(|accounts| self.account(accounts));
        if account.is_none() && self.is_in_mig_mode() {
            // Its instances have limits, each its own.
            return None;
        }
        let set = account.map(|account| account.limit);
        let living =
            || account.into_iter().flat_map(|account| &account.holders).filter(|holder| holder.is_alive);
        let is_me = |holder: &Holder| {
            accounts.zip(holder.who).is_some_and(|(accounts, who)| who.is_same_process(&accounts.me))
        };
        if living().any(is_me) {
            return set.map(Limit::bytes);
        }
        // What is left of an earlier limit holds for nobody.
        let is_first = living().next().is_none();
        match sight.limits.of_uuid(&self.text).or_else(|| self.told_by_ordinal(&sight.limits)) {
            Some(told) => {
                let set = set.or(accounts.map(|accounts| accounts.default_limit)).unwrap_or(Limit::Unset);
                Some(if_told(set, told, is_first))
            }
            None => set.map(Limit::bytes),
        }
    }

    fn told_by_ordinal(&self, limits: &Limits) -> Option<u64> {
        let visible = std::env::var_os("CUDA_VISIBLE_DEVICES");
        let visible = visible.as_ref().map(|list| list.to_str().ok_or(())).transpose().ok()?;
        let by_bus = std::env::var_os("CUDA_DEVICE_ORDER").is_some_and(|order| order == "PCI_BUS_ID");
        match ordinal::of(&self.text, &cards()?, visible, by_bus)? {
            Place::At(number) => Some(limits.of(number, &self.text)),
            // No number names it.
            Place::Hidden => Some(limits.of(u32::MAX, &self.text)),
        }
    }

    /// GPU instance and compute instance.
    pub(super) fn instance(&self) -> [u32; 2] {
        let ask = |name: &CStr| number_of(name, self.handle);
        match (ask(c"nvmlDeviceGetGpuInstanceId"), ask(c"nvmlDeviceGetComputeInstanceId")) {
            (Some(gpu), Some(compute)) => [gpu, compute],
            _ => NO_INSTANCE,
        }
    }

    /// The instances of a card in MIG mode; none of any other device. `None`: one of them is not known.
    pub(super) fn instances(&self) -> Option<Vec<Device>> {
        type ByIndex = unsafe extern "C" fn(Handle, c_uint, *mut Handle) -> c_int;
        if !self.is_in_mig_mode() {
            return Some(Vec::new());
        }
        // SAFETY: the function's type by nvml.h.
        let by_index: ByIndex =
            unsafe { Library::nvml(false)?.function(c"nvmlDeviceGetMigDeviceHandleByIndex") }?;
        let most = number_of(c"nvmlDeviceGetMaxMigDeviceCount", self.handle)?;
        let handles = (0..most).filter_map(|index| {
            let mut instance: Handle = std::ptr::null_mut();
            // SAFETY: a handle that NVML knows, and a place for the answer.
            (unsafe { by_index(self.handle, index, &mut instance) } == SUCCESS).then_some(instance)
        });
        handles.map(Device::of).collect()
    }

    fn is_in_mig_mode(&self) -> bool {
        type Mode = unsafe extern "C" fn(Handle, *mut c_uint, *mut c_uint) -> c_int;
        // SAFETY: the function's type by nvml.h.
        let ask: Option<Mode> =
            Library::nvml(false).and_then(|nvml| unsafe { nvml.function(c"nvmlDeviceGetMigMode") });
        let (mut current, mut pending) = (0, 0);
        // SAFETY: a handle that NVML knows, and places for the answers.
        ask.is_some_and(|ask| unsafe { ask(self.handle, &mut current, &mut pending) } == SUCCESS)
            && current == 1
    }
}

/// All cards, in the order of the bus.
fn cards() -> Option<Vec<Card>> {
    let nvml = Library::nvml(false)?;
    // SAFETY: the functions' types by nvml.h.
    let (count_of, by_index) = unsafe {
        let count: unsafe extern "C" fn(*mut c_uint) -> c_int = nvml.function(c"nvmlDeviceGetCount_v2")?;
        let by_index: unsafe extern "C" fn(c_uint, *mut Handle) -> c_int =
            nvml.function(c"nvmlDeviceGetHandleByIndex_v2")?;
        (count, by_index)
    };
    let mut count = 0;
    // SAFETY: a place for the answer.
    if unsafe { count_of(&mut count) } != SUCCESS {
        return None;
    }
    let card = |index: c_uint| {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a place for the answer.
        if unsafe { by_index(index, &mut handle) } != SUCCESS {
            return None;
        }
        Some(Card {
            uuid: text_of(c"nvmlDeviceGetUUID", handle)?,
            product: text_of(c"nvmlDeviceGetName", handle)?,
        })
    };
    (0..count).map(card).collect()
}

fn text_of(name: &CStr, handle: Handle) -> Option<String> {
    type Text = unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int;
    // SAFETY: the function's type by nvml.h.
    let ask: Text = unsafe { Library::nvml(false)?.function(name) }?;
    let mut text = [0u8; TEXT];
    // SAFETY: the application's handle, which NVML checks as it does for the application, and room for the answer.
    if unsafe { ask(handle, text.as_mut_ptr().cast(), TEXT as c_uint) } != SUCCESS {
        return None;
    }
    CStr::from_bytes_until_nul(&text).ok()?.to_str().ok().map(str::to_owned)
}

fn number_of(name: &CStr, handle: Handle) -> Option<u32> {
    // SAFETY: the function's type by nvml.h.
    let ask: unsafe extern "C" fn(Handle, *mut c_uint) -> c_int =
        unsafe { Library::nvml(false)?.function(name) }?;
    let mut number = 0;
    // SAFETY: as above.
    (unsafe { ask(handle, &mut number) } == SUCCESS).then_some(number)
}
