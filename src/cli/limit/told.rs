//! What processes were told, for when the operator's word is taken back: they were told it once, and the ledger has
//! kept the operator's since.

use std::collections::HashMap;
use std::path::Path;

use crate::cli::processes::{Environ, Identity, Processes, Sight};
use crate::cli::records::{self, Key, Progress, Record};
use crate::ledger::view::DeviceView;
use crate::policy::config::Config;

/// The strictest limits that running processes have in their environments.
#[derive(Default)]
pub struct Told {
    limits: HashMap<[u8; 16], u64>,
    /// Processes whose environments cannot be read.
    pub unknown: u64,
}

impl Told {
    /// Asks all that run and use a device.
    pub fn of_processes(directory: &Path, devices: &[DeviceView]) -> Told {
        // They only say which number a device has in a process.
        let (records, _) = records::read(directory, &mut Progress::new()).unwrap_or_default();
        let processes = Processes::look();
        let mut told = Told::default();
        let mut unknown = Vec::new();
        for device in devices {
            let alive =
                device.holders.iter().filter(|holder| holder.is_alive).filter_map(|holder| holder.who);
            for who in alive {
                let identity =
                    Identity { pid: who.pid, start_ticks: who.start_ticks, pid_namespace: who.pid_namespace };
                let environ = match processes.find(&identity, &who.boot_id) {
                    Sight::Here(seen) => Environ::of(seen.pid),
                    Sight::Gone => continue,
                    Sight::Unseen => None,
                };
                match environ {
                    Some(environ) => told.add(device, ordinal_of(&records, &identity, device), &environ),
                    None => unknown.push(identity),
                }
            }
        }
        unknown.sort_by_key(|identity| (identity.pid_namespace, identity.pid, identity.start_ticks));
        unknown.dedup();
        told.unknown = unknown.len() as u64;
        told
    }

    /// In bytes; 0 = nobody was told one.
    pub fn strictest(&self, device: &[u8; 16]) -> u64 {
        self.limits.get(device).copied().unwrap_or(0)
    }

    fn add(&mut self, device: &DeviceView, ordinal: Option<u32>, environ: &Environ) {
        let (config, _) = Config::parse(&|name| environ.var(name));
        let kind = if device.is_mig { "MIG" } else { "GPU" };
        let uuid = format!("{kind}-{}", crate::report::uuid::text(&device.uuid));
        // Without a place in the process's list only its UUID and * are for it.
        let bytes = config.limits.of(ordinal.unwrap_or(u32::MAX), &uuid);
        if bytes != 0 {
            let strictest = self.limits.entry(device.uuid).or_insert(bytes);
            *strictest = bytes.min(*strictest);
        }
    }
}

/// The device's number in a process.
fn ordinal_of(records: &[Record], identity: &Identity, device: &DeviceView) -> Option<u32> {
    let key = Key::Uuid(device.uuid);
    let of_it = records.iter().filter(|record| record.identity == *identity && !record.has_ended);
    of_it.flat_map(|record| &record.devices).find(|on| on.key == key).map(|on| on.state.ordinal)
}
