//! Which device a handle of NVML's means, and what the limit of that device is.

use crate::diagnose::nvml::{Handle, Nvml};
use crate::hooks::lookup::{Library, Owner};
use crate::ledger::limit::{Limit, if_told};
use crate::ledger::view::{DeviceView, Holder};
use crate::policy::limit::Limits;
use crate::policy::listed::NO_INSTANCE;
use crate::policy::ordinal::{self, Card, Place};
use crate::process::observer::{Accounts, Sight};
use crate::report::uuid;
use core::ffi::CStr;

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
        let text = asking(|nvml| nvml.uuid(handle).ok())?;
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
        match ordinal::of(&self.text, &asking(cards)?, visible, by_bus)? {
            Place::At(number) => Some(limits.of(number, &self.text)),
            // No number names it.
            Place::Hidden => Some(limits.of(u32::MAX, &self.text)),
        }
    }

    /// GPU instance and compute instance.
    pub(super) fn instance(&self) -> [u32; 2] {
        asking(|nvml| nvml.instance_ids(self.handle).ok()).unwrap_or(NO_INSTANCE)
    }

    /// The instances of a card in MIG mode; none of any other device. `None`: one of them is not known.
    pub(super) fn instances(&self) -> Option<Vec<Device>> {
        if !self.is_in_mig_mode() {
            return Some(Vec::new());
        }
        asking(|nvml| Some(nvml.instance_handles(self.handle)))?.into_iter().map(Device::of).collect()
    }

    fn is_in_mig_mode(&self) -> bool {
        asking(|nvml| nvml.mig_mode(self.handle).ok()) == Some(1)
    }
}

/// All cards, in the order of the bus.
fn cards(nvml: &Nvml<'_>) -> Option<Vec<Card>> {
    let card = |index| {
        let handle = nvml.device(index)?;
        Ok::<Card, i32>(Card { uuid: nvml.uuid(handle)?, product: nvml.name(handle)? })
    };
    (0..nvml.count().ok()?).map(|index| card(index).ok()).collect()
}

/// Asks NVML itself, which the application has loaded and started.
fn asking<T>(ask: impl FnOnce(&Nvml<'_>) -> Option<T>) -> Option<T> {
    let library = Library::loaded(Owner::Nvml)?;
    let find = |name: &CStr| library.address(name);
    // SAFETY: the library's own functions.
    ask(&unsafe { Nvml::new(&find) })
}
