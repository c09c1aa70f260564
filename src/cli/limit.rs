//! `cuwarden limit`

mod told;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use super::error::{Failure, INTERNAL, NO_INPUT, USED_WRONGLY};
use super::nvml::{self, NoDevice, asked};
use super::terminal::{self, say};
use crate::diagnose::nvml::Nvml;
use crate::ledger::limit::Limit;
use crate::ledger::slots::DeviceKey;
use crate::ledger::view::{DeviceView, View};
use crate::ledger::{Ledger, Unusable};
use crate::policy::limit::{ALLOWED, Limits, Selector};
use crate::process::default_directory;
use crate::report::size::bytes;
use crate::report::text::clean;
use crate::report::uuid;

/// How long NVML may take to answer; without a daemon that keeps it awake, a card takes seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Change the quota of all processes of a directory, those that run and those to come.
///
/// It holds from this moment on, whatever processes were told, until another one is set or it is taken back. Nothing is
/// taken from anybody: above the limit nothing new is granted.
#[derive(clap::Args)]
#[command(
    override_usage = "cuwarden limit [OPTIONS] <SPEC>\n       cuwarden limit [OPTIONS] --forget",
    after_help = "\
Examples:
  cuwarden limit 4GiB                                   every device, also those to come
  cuwarden limit --dir /run/containers/7 0=4GiB         the device that nvidia-smi shows as 0
  cuwarden limit '*=2GiB,GPU-1f0e3dad-51a7-4ed0-8000-000000000000=8GiB'
  cuwarden limit 0                                      no limit
  cuwarden limit --forget                               what processes were told holds again

As JSON: schema cuwarden.limit/1, {path, default_limit_bytes (of devices that nobody has used yet; null = it was not \
changed, or taken back), devices: [{uuid, limit_bytes, limit_by, previous_limit_bytes, previous_limit_by, used_bytes}]}. \
A limit of 0 is none; who set it is operator, environment or none.

Exit status: 0; 64 used wrongly; 66 there is no ledger in DIR, it cannot be used, or the \
device's number cannot be looked up."
)]
pub struct Arguments {
    /// 4GiB for every device, or by number or UUID: 0=4GiB,GPU-<uuid>=8GiB,*=2GiB; 0 = no limit
    #[arg(
        value_name = "SPEC",
        value_parser = spec,
        required_unless_present = "forget",
        conflicts_with = "forget",
        allow_negative_numbers = true
    )]
    spec: Option<Limits>,
    /// Take back what was set on all devices
    #[arg(long)]
    forget: bool,
    /// The CUWARDEN_DIR of the processes; default: CUWARDEN_DIR as it is set here, else /tmp/cuwarden-<uid>
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// For scripts: schema cuwarden.limit/1
    #[arg(long)]
    json: bool,
}

pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let named = || std::env::var_os("CUWARDEN_DIR").filter(|path| !path.is_empty()).map(PathBuf::from);
    let directory = arguments.dir.or_else(named).unwrap_or_else(default_directory);
    let view = View::open(&directory).map_err(|error| unusable(&directory, &error))?;
    let view = view.ok_or_else(|| no_ledger(&directory))?;
    let plan = match &arguments.spec {
        Some(limits) => Plan::of(limits)?,
        None => Plan::default(),
    };
    // Where it was removed since, none is made.
    let ledger = Ledger::join(&directory, || vec![0]).map_err(|error| match error {
        Unusable::Removed(_) => no_ledger(&directory),
        error => unusable(&directory, &error),
    })?;
    let before = view.devices();
    let changed =
        if arguments.forget { forget(&ledger, &directory, &before) } else { plan.apply(&ledger, &before) };
    changed.map_err(|error| match error {
        // The ledger's words for it are about processes.
        Unusable::Full => Failure::new(
            NO_INPUT,
            format!("the ledger in {} has no room for another device", directory.display()),
        ),
        error => unusable(&directory, &error),
    })?;
    let devices = (view.devices().iter())
        .filter(|device| arguments.forget || plan.is_for(&device.uuid))
        .map(|device| Changed::of(device, before.iter().find(|known| known.uuid == device.uuid)))
        .collect();
    let done = Done {
        schema: "cuwarden.limit/1",
        path: directory.display().to_string(),
        default_limit_bytes: plan.any,
        devices,
    };
    terminal::answer(&if arguments.json { done.json()? } else { done.text(arguments.forget) })?;
    Ok(ExitCode::SUCCESS)
}

fn spec(text: &str) -> Result<Limits, String> {
    let limits = Limits::parse(text).map_err(|error| format!("{error}. Allowed: {ALLOWED}"))?;
    for (selector, _) in limits.entries() {
        if let Selector::Uuid(named) = selector
            && uuid::parse(named).is_none_or(|uuid| uuid == [0; 16])
        {
            return Err(format!(
                "\"{named}\": not a whole UUID. `cuwarden ps` and `nvidia-smi -L` show them"
            ));
        }
    }
    Ok(limits)
}

/// What is to be set.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// For all that `devices` does not name.
    any: Option<u64>,
    devices: Vec<(DeviceKey, u64)>,
}

impl Plan {
    fn of(limits: &Limits) -> Result<Plan, Failure> {
        let mut plan = Plan::default();
        let mut numbered = Vec::new();
        for (selector, bytes) in limits.entries() {
            match selector {
                Selector::Any => plan.any = Some(bytes),
                Selector::Uuid(text) => plan.add(text, bytes)?,
                Selector::Ordinal(number) => numbered.push((*number, bytes)),
            }
        }
        // A UUID wins over a number, as in the environment of a process.
        let numbers = numbered.iter().map(|(number, _)| *number).collect();
        for (text, (_, bytes)) in uuids_of(numbers)?.into_iter().zip(&numbered) {
            plan.add(&text, *bytes)?;
        }
        Ok(plan)
    }

    fn add(&mut self, text: &str, bytes: u64) -> Result<(), Failure> {
        let uuid = uuid::parse(text).ok_or_else(|| {
            Failure::new(NO_INPUT, format!("NVML gives a device the UUID \"{}\", which is none", clean(text)))
        })?;
        if !self.names(&uuid) {
            let key = DeviceKey { uuid, is_mig: text.starts_with("MIG-"), ..DeviceKey::default() };
            self.devices.push((key, bytes));
        }
        Ok(())
    }

    fn names(&self, uuid: &[u8; 16]) -> bool {
        self.devices.iter().any(|(key, _)| key.uuid == *uuid)
    }

    fn is_for(&self, uuid: &[u8; 16]) -> bool {
        self.any.is_some() || self.names(uuid)
    }

    /// In an order in which no device has, not for a moment, a limit that was meant for others.
    fn apply(&self, ledger: &Ledger, before: &[DeviceView]) -> Result<(), Unusable> {
        for (key, bytes) in &self.devices {
            let known = before.iter().find(|device| device.uuid == key.uuid);
            let is_mig = known.map_or(key.is_mig, |device| device.is_mig);
            ledger.set_limit(&DeviceKey { is_mig, ..key.clone() }, Some(*bytes))?;
        }
        let Some(any) = self.any else { return Ok(()) };
        // First for those that come from now on, so that none is missed.
        ledger.set_default_limit(Some(any));
        for key in keys(ledger).filter(|key| !self.names(&key.uuid)) {
            ledger.set_limit(&key, Some(any))?;
        }
        Ok(())
    }
}

/// Devices as nvidia-smi numbers them.
fn uuids_of(numbers: Vec<u32>) -> Result<Vec<String>, Failure> {
    let Some(first) = numbers.first().copied() else { return Ok(Vec::new()) };
    let ask = move |nvml: &Nvml<'_>| {
        let one = |number| nvml::uuid_of(nvml, number).map_err(|why| (number, why));
        numbers.into_iter().map(one).collect::<Result<Vec<_>, _>>()
    };
    let answer = asked(PATIENCE, ask).unwrap_or_else(|why| Err((first, NoDevice::Failed(why))));
    answer.map_err(|(number, why)| match why {
        NoDevice::OfThisNumber => {
            Failure::new(USED_WRONGLY, format!("there is no device {number}: `nvidia-smi -L` shows those that there are"))
        }
        NoDevice::Split => Failure::new(
            USED_WRONGLY,
            format!(
                "device {number} is split into MIG instances, which have a limit each. Name them by UUID, as \
                 `cuwarden ps` and `nvidia-smi -L` show it"
            ),
        ),
        NoDevice::Failed(why) => Failure::new(
            NO_INPUT,
            format!(
                "which device is number {number} is known to NVML alone, and that cannot be asked: {}. Name the device \
                 by its UUID, as `cuwarden ps` shows it",
                clean(&why)
            ),
        ),
    })
}

/// Every device in the ledger.
fn keys(ledger: &Ledger) -> impl Iterator<Item = DeviceKey> {
    ledger.map().devices().map(|(_, device)| {
        let [low, high] = device.uuid.load();
        let uuid = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
        DeviceKey { uuid, ..DeviceKey::default() }
    })
}

fn forget(ledger: &Ledger, directory: &Path, before: &[DeviceView]) -> Result<(), Unusable> {
    let told = told::Told::of_processes(directory, before);
    if told.unknown > 0 {
        let who =
            if told.unknown == 1 { "1 process".to_owned() } else { format!("{} processes", told.unknown) };
        say(&format!("what limit {who} were told cannot be seen from here, and is left out"));
    }
    ledger.set_default_limit(None);
    for device in before.iter().filter(|device| matches!(device.limit, Limit::Operators(_))) {
        let key = DeviceKey { uuid: device.uuid, ..DeviceKey::default() };
        ledger.forget_limit(&key, told.strictest(&device.uuid))?;
    }
    Ok(())
}

fn no_ledger(directory: &Path) -> Failure {
    Failure::new(
        NO_INPUT,
        format!(
            "there is no ledger in {}: no process has used CUDA under cuwarden there. Name the CUWARDEN_DIR of the \
             processes with --dir",
            directory.display()
        ),
    )
}

fn unusable(directory: &Path, error: &Unusable) -> Failure {
    let path = crate::ledger::file::path_in(directory);
    Failure::new(NO_INPUT, format!("the ledger {} cannot be used: {error}", path.display()))
}

#[derive(Serialize)]
struct Done {
    schema: &'static str,
    path: String,
    default_limit_bytes: Option<u64>,
    devices: Vec<Changed>,
}

#[derive(Serialize)]
struct Changed {
    uuid: String,
    limit_bytes: u64,
    limit_by: &'static str,
    previous_limit_bytes: u64,
    previous_limit_by: &'static str,
    used_bytes: u64,
    #[serde(skip)]
    is_new: bool,
}

impl Changed {
    fn of(device: &DeviceView, before: Option<&DeviceView>) -> Changed {
        let previous = before.map_or(Limit::Unset, |device| device.limit);
        let kind = if device.is_mig { "MIG" } else { "GPU" };
        Changed {
            uuid: format!("{kind}-{}", uuid::text(&device.uuid)),
            limit_bytes: device.limit.bytes(),
            limit_by: by(device.limit),
            previous_limit_bytes: previous.bytes(),
            previous_limit_by: by(previous),
            used_bytes: device.used(),
            is_new: before.is_none(),
        }
    }

    fn line(&self) -> String {
        let limit = |bytes_: u64| if bytes_ == 0 { "no limit".to_owned() } else { bytes(bytes_) };
        let used = bytes(self.used_bytes);
        let usage = match (self.limit_bytes, self.used_bytes) {
            _ if self.is_new => "nobody has used it yet".to_owned(),
            (_, 0) => "nothing is in use".to_owned(),
            (0, _) => format!("{used} are in use"),
            (limit, in_use) if in_use > limit => {
                format!(
                    "{used} are in use, so nothing new is granted until {} are freed",
                    bytes(in_use - limit)
                )
            }
            (limit, in_use) => format!("{used} are in use, {} are free", bytes(limit - in_use)),
        };
        let now = limit(self.limit_bytes);
        let was = limit(self.previous_limit_bytes);
        format!("{}: {now} (was {was}); {usage}.", self.uuid)
    }
}

impl Done {
    fn json(&self) -> Result<String, Failure> {
        let text = serde_json::to_string_pretty(self);
        text.map(|text| text + "\n")
            .map_err(|error| Failure::new(INTERNAL, format!("cannot write JSON: {error}")))
    }

    fn text(&self, is_forgotten: bool) -> String {
        let mut lines: Vec<String> = self.devices.iter().map(Changed::line).collect();
        match self.default_limit_bytes {
            Some(0) => lines.push("Devices that nobody has used yet: no limit.".to_owned()),
            Some(limit) => lines.push(format!("Devices that nobody has used yet: {}.", bytes(limit))),
            None if is_forgotten => lines.push("From now on what processes are told holds.".to_owned()),
            None => {}
        }
        lines.join("\n") + "\n"
    }
}

fn by(limit: Limit) -> &'static str {
    match limit {
        Limit::Unset => "none",
        Limit::Told(_) => "environment",
        Limit::Operators(_) => "operator",
    }
}
