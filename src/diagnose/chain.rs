//! The chain of NVML calls that shows why CUDA does not start, each with arguments, code and result.
//!
//! It goes on as long as calls succeed or their failure explains nothing, and ends at the first failure that explains
//! the rest: without a started NVML there is nothing more to ask.

use super::nvml::{self, Nvml};
use serde::Serialize;

/// One call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Call {
    /// The function's name.
    pub call: String,
    /// Its arguments, as a person writes them.
    pub args: String,
    /// What it returned.
    pub code: i32,
    /// The name of that.
    pub name: String,
    /// What it answered, or what the failure means for the arguments.
    pub result: String,
}

/// What the chain found out, for the causes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// In order.
    pub calls: Vec<Call>,
    /// Of the driver that NVML talks to.
    pub driver: Option<String>,
    /// Cards that NVML counts.
    pub count: Option<u32>,
    /// What it says of each, as far as it was asked.
    pub devices: Vec<Device>,
    /// With confidential computing: whether the cards may be used yet.
    pub confidential_ready: Option<bool>,
    /// The chain was given up: a call did not come back in time.
    pub timed_out: bool,
}

/// A card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// NVML's index.
    pub index: u32,
    /// `GPU-…`
    pub uuid: String,
    /// The product.
    pub name: String,
    /// NVML_COMPUTEMODE_…
    pub compute_mode: Option<u32>,
    /// In MIG mode.
    pub mig: Option<bool>,
    /// UUIDs of its instances.
    pub instances: Vec<String>,
    /// Free and total memory, in bytes.
    pub memory: Option<(u64, u64)>,
    /// Processes on it, with the memory that each has, where the driver says that.
    pub processes: Vec<(u32, Option<u64>)>,
    /// The first call on it that failed with a code that matters: NVML's code.
    pub failed: Option<i32>,
    /// State of its part in the NVLink fabric: NVML_GPU_FABRIC_STATE_…, and the code.
    pub fabric: Option<(u32, i32)>,
    /// NVML_GPU_VIRTUALIZATION_MODE_…
    pub virtualization: Option<u32>,
    /// A vGPU that must be licensed, and is.
    pub is_licensed: Option<bool>,
}

impl Chain {
    /// What NVML's first call returned.
    pub fn start_code(&self) -> Option<i32> {
        self.calls.iter().find(|call| call.call.starts_with("nvmlInit")).map(|call| call.code)
    }

    /// True when one of the calls returned this.
    pub fn has_code(&self, code: i32) -> bool {
        self.calls.iter().any(|call| call.code == code)
    }

    /// The last failure of the chain.
    pub fn last_failure(&self) -> Option<&Call> {
        self.calls.iter().rev().find(|call| call.code != nvml::SUCCESS && call.code != nvml::NOT_SUPPORTED)
    }

    /// Processes on any device, each once.
    pub fn holders(&self) -> Vec<(u32, Option<u64>)> {
        let mut holders: Vec<(u32, Option<u64>)> =
            self.devices.iter().flat_map(|d| d.processes.clone()).collect();
        crate::order::sort(&mut holders, |a, b| a < b);
        holders.dedup_by_key(|(pid, _)| *pid);
        holders
    }
}

/// Cards that are asked about; the chain of a larger machine would fill the screen.
const MOST_DEVICES: u32 = 16;

/// Runs the chain. `wanted`: a device index that the application asked for, to be tried even where it is out of range.
/// `step` is told of every call as it is made, so that a chain which hangs is known up to there.
pub fn run(nvml: &Nvml, wanted: Option<u32>, step: &mut dyn FnMut(&Chain)) -> Chain {
    let mut chain = Runner { chain: Chain::default(), step };
    chain.all(nvml, wanted);
    chain.chain
}

struct Runner<'a> {
    chain: Chain,
    step: &'a mut dyn FnMut(&Chain),
}

impl Runner<'_> {
    fn all(&mut self, nvml: &Nvml, wanted: Option<u32>) {
        let Some(_session) = self.note("nvmlInit_v2", "", nvml.start(), |_| "started".to_owned()) else {
            return;
        };
        self.chain.driver = self.note("nvmlSystemGetDriverVersion", "", nvml.driver_version(), Clone::clone);
        self.note("nvmlSystemGetNVMLVersion", "", nvml.nvml_version(), Clone::clone);
        self.note("nvmlSystemGetCudaDriverVersion_v2", "", nvml.cuda_version(), |version| {
            super::causes::cuda(u32::try_from(*version).unwrap_or(0))
        });
        let count = self.note("nvmlDeviceGetCount_v2", "", nvml.count(), |count| match count {
            1 => "1 device".to_owned(),
            count => format!("{count} devices"),
        });
        self.chain.count = count;
        let Some(count) = count else { return };
        self.chain.confidential_ready = nvml.confidential_ready();
        let mut indices: Vec<u32> = (0..count.min(MOST_DEVICES)).collect();
        indices.extend(wanted.filter(|index| *index >= count));
        for index in indices {
            if !self.device(nvml, index, count) {
                return;
            }
        }
    }

    /// False: the failure explains the rest.
    fn device(&mut self, nvml: &Nvml, index: u32, count: u32) -> bool {
        let args = format!("index={index}");
        let handle = nvml.device(index);
        let range = match count {
            0 => "there is no device".to_owned(),
            1 => "the valid range is 0".to_owned(),
            _ => format!("the valid range is 0 to {}", count - 1),
        };
        if index >= count {
            self.note_with("nvmlDeviceGetHandleByIndex_v2", &args, handle, |_| "a device".to_owned(), &range);
            return true;
        }
        let Some(handle) =
            self.note("nvmlDeviceGetHandleByIndex_v2", &args, handle, |_| "a device".to_owned())
        else {
            return false;
        };
        let mut device = Device { index, ..Device::default() };
        let args = format!("device={index}");
        let failed = self.ask_all(nvml, handle, &args, &mut device);
        device.failed = failed;
        self.chain.devices.push(device);
        failed.is_none_or(|code| !nvml::explains_the_rest(code))
    }

    /// The first code that matters.
    fn ask_all(&mut self, nvml: &Nvml, handle: nvml::Handle, args: &str, device: &mut Device) -> Option<i32> {
        let from = self.chain.calls.len();
        let plain = |text: &String| text.clone();
        device.uuid = self.note("nvmlDeviceGetUUID", args, nvml.uuid(handle), plain).unwrap_or_default();
        device.name = self.note("nvmlDeviceGetName", args, nvml.name(handle), plain).unwrap_or_default();
        device.compute_mode =
            self.note("nvmlDeviceGetComputeMode", args, nvml.compute_mode(handle), |mode| {
                nvml::compute_mode(*mode)
            });
        device.mig = self
            .note("nvmlDeviceGetMigMode", args, nvml.mig_mode(handle), |mode| on_off(*mode))
            .map(|mode| mode != 0);
        if device.mig == Some(true) {
            device.instances = nvml.instances(handle);
        }
        device.memory = self.note("nvmlDeviceGetMemoryInfo", args, nvml.memory(handle), |(free, total)| {
            let size = crate::report::size::bytes;
            format!("{} free of {}", size(*free), size(*total))
        });
        device.processes = self
            .note("nvmlDeviceGetComputeRunningProcesses_v3", args, nvml.processes(handle), |all| {
                describe(all)
            })
            .unwrap_or_default();
        self.note(
            "nvmlDeviceGetTotalEccErrors",
            &format!("{args}, uncorrected, volatile"),
            nvml.ecc(handle),
            |count| format!("{count} errors"),
        );
        self.note("nvmlDeviceGetRetiredPagesPendingStatus", args, nvml.retired_pending(handle), |pending| {
            if *pending == 0 {
                "no pages to retire".to_owned()
            } else {
                "pages to retire at the next reset".to_owned()
            }
        });
        self.note("nvmlDeviceGetCurrentClocksThrottleReasons", args, nvml.throttle(handle), |reasons| {
            nvml::throttle_reasons(*reasons)
        });
        self.note("nvmlDeviceGetPersistenceMode", args, nvml.persistence(handle), |mode| on_off(*mode));
        device.fabric = nvml.fabric(handle).ok();
        device.virtualization = nvml.virtualization(handle).ok();
        device.is_licensed = nvml.is_licensed(handle);
        let made = self.chain.calls.get(from..).unwrap_or_default();
        made.iter().map(|call| call.code).find(|code| !nvml::is_harmless(*code))
    }

    fn note<T>(
        &mut self,
        call: &str,
        args: &str,
        answer: Result<T, i32>,
        shown: impl Fn(&T) -> String,
    ) -> Option<T> {
        self.note_with(call, args, answer, shown, "")
    }

    fn note_with<T>(
        &mut self,
        call: &str,
        args: &str,
        answer: Result<T, i32>,
        shown: impl Fn(&T) -> String,
        on_failure: &str,
    ) -> Option<T> {
        let (code, result) = match &answer {
            Ok(value) => (nvml::SUCCESS, shown(value)),
            Err(code) => (*code, on_failure.to_owned()),
        };
        self.push(call, args, code, result);
        answer.ok()
    }

    // Once, not in each of the questions.
    #[inline(never)]
    fn push(&mut self, call: &str, args: &str, code: i32, result: String) {
        let (call, args) = (call.to_owned(), args.to_owned());
        self.chain.calls.push(Call { call, args, code, name: nvml::code_name(code), result });
        (self.step)(&self.chain);
    }
}

/// In words.
pub(crate) fn on_off(value: u32) -> String {
    if value == 0 { "off" } else { "on" }.to_owned()
}

fn describe(processes: &[(u32, Option<u64>)]) -> String {
    if processes.is_empty() {
        return "none".to_owned();
    }
    let size = crate::report::size::bytes;
    let one = |(pid, bytes): &(u32, Option<u64>)| match bytes {
        Some(bytes) => format!("pid {pid} {}", size(*bytes)),
        None => format!("pid {pid}"),
    };
    processes.iter().take(8).map(one).collect::<Vec<_>>().join(", ")
}
