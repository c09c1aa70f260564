//! Causes in the state of cards and processes: modes, licences, memory, forks.

use super::{Case, Found, Row, Weight};
use crate::diagnose::nvml;
use crate::report::size::bytes as size;

pub(super) const ROWS: &[Row] = &[
    Row { id: "exclusive_mode", look: exclusive_mode },
    Row { id: "vgpu_unlicensed", look: vgpu_unlicensed },
    Row { id: "fabric_manager", look: fabric_manager },
    Row { id: "confidential_computing", look: confidential_computing },
    Row { id: "memory_full", look: memory_full },
    Row { id: "address_sanitizer", look: address_sanitizer },
    Row { id: "after_fork", look: after_fork },
    Row { id: "open_module_hmm", look: open_module_hmm },
    Row { id: "vgpu_without_vmm", look: vgpu_without_vmm },
    Row { id: "blocked_by_system", look: blocked_by_system },
    Row { id: "vgpu_host", look: vgpu_host },
];

/// Less than a context takes.
const LITTLE: u64 = 700 << 20;
/// NVML_GPU_VIRTUALIZATION_MODE_VGPU
const VGPU: u32 = 2;

/// DIGITS#2005, TensorRT#1173
fn exclusive_mode(case: Case) -> Option<Found> {
    let device = case.cards().find(|device| device.compute_mode.is_some_and(|mode| mode != 0))?;
    if !case.code_is(&[0, 46, 100, 101]) {
        return None;
    }
    let mode = device.compute_mode.unwrap_or(0);
    let prohibited = mode == 2;
    let holders: Vec<String> = device.processes.iter().map(|(pid, _)| pid.to_string()).collect();
    // Alone in exclusive mode one would have got it.
    let held = !holders.is_empty();
    let weight = match (case.code(), prohibited || held) {
        (46, true) => Weight::Certain,
        (46, false) | (_, true) => Weight::Likely,
        (_, false) => Weight::Aside,
    };
    let by = match (held, prohibited) {
        (true, _) => format!(", and pid {} has it", holders.join(", ")),
        (false, true) => String::new(),
        (false, false) => "; who has it cannot be seen from here".to_owned(),
    };
    Some(Found {
        weight,
        evidence: format!("device {} is in compute mode \"{}\"{by}", device.index, nvml::compute_mode(mode)),
        action: format!(
            "{}nvidia-smi -i {} -c DEFAULT on the host lets processes share it.",
            if held { "End the process that has it, use MPS, or share the device: " } else { "" },
            device.index
        ),
    })
}

/// AKS#4869, gpu-operator#220, llama.cpp#11841
fn vgpu_unlicensed(case: Case) -> Option<Found> {
    let device = case.chain?.devices.iter().find(|device| device.is_licensed == Some(false))?;
    Some(Found {
        weight: if case.code() == 46 { Weight::Certain } else { Weight::Aside },
        evidence: format!("device {} ({}) is a vGPU without a licence", device.index, device.name),
        action: "Check gridd.conf, the client token and the way to the licence server (nvidia-smi -q shows the licence)."
            .to_owned(),
    })
}

/// pytorch#35710, ollama#12136
fn fabric_manager(case: Case) -> Option<Found> {
    const NOT_STARTED: u32 = 1;
    const IN_PROGRESS: u32 = 2;
    if case.code() != 802 {
        return None;
    }
    let waiting = case.chain.and_then(|chain| {
        chain
            .devices
            .iter()
            .find(|d| d.fabric.is_some_and(|(state, _)| matches!(state, NOT_STARTED | IN_PROGRESS)))
    });
    let absent = case.machine.has_nvswitch && !case.machine.has_fabric_manager;
    let evidence = match (waiting, absent) {
        (Some(device), _) => format!("device {} waits for its part in the NVLink fabric", device.index),
        (None, true) => {
            "there are NVSwitches, and nothing in /run says that a fabric manager runs".to_owned()
        }
        (None, false) if case.machine.has_nvswitch => {
            "there are NVSwitches, and the system is not ready".to_owned()
        }
        (None, false) => return None,
    };
    let release =
        case.machine.kernel_module.as_ref().map(|module| format!(" of the same release, {module},"));
    Some(Found {
        weight: Weight::Certain,
        evidence,
        action: format!(
            "Start nvidia-fabricmanager{} on the host: systemctl status nvidia-fabricmanager says why it does not run.",
            release.unwrap_or_default()
        ),
    })
}

/// nvtrust#37
fn confidential_computing(case: Case) -> Option<Found> {
    let chain = case.chain.filter(|chain| chain.confidential_ready == Some(false))?;
    (case.code() == 802 && chain.count.is_some()).then(|| Found {
        weight: Weight::Certain,
        evidence: "confidential computing is on, and its ready state is off".to_owned(),
        action: "Attest the card and set it ready: nvidia-smi conf-compute -srs 1.".to_owned(),
    })
}

fn memory_full(case: Case) -> Option<Found> {
    if case.code() != 2 {
        return None;
    }
    let device = case.cards().find(|device| device.memory.is_some_and(|(free, _)| free < LITTLE))?;
    let (free, total) = device.memory?;
    let holders: Vec<String> = device
        .processes
        .iter()
        .map(|(pid, bytes)| {
            bytes.map_or_else(|| format!("pid {pid}"), |bytes| format!("pid {pid} {}", size(bytes)))
        })
        .collect();
    let who = match holders.len() {
        0 => "; who has it cannot be seen from here".to_owned(),
        _ => format!(": {}", holders.join(", ")),
    };
    Some(Found {
        weight: Weight::Certain,
        evidence: format!("device {} has {} free of {}{who}", device.index, size(free), size(total)),
        action: "Free memory on that device, or use another one. A context alone takes hundreds of MiB."
            .to_owned(),
    })
}

/// google/sanitizers#629
fn address_sanitizer(case: Case) -> Option<Found> {
    (case.machine.has_asan && case.code_is(&[2, 3, 999])).then(|| Found {
        weight: Weight::Likely,
        evidence: "AddressSanitizer is in this process, and its shadow memory lies where the driver maps"
            .to_owned(),
        action: "Set ASAN_OPTIONS=protect_shadow_gap=0.".to_owned(),
    })
}

/// vllm#32611, pycuda#137, pytorch#40403
fn after_fork(case: Case) -> Option<Found> {
    let parent = case.machine.forked_from.filter(|_| case.code_is(&[3, 46, 100, 201, 709, 999]))?;
    Some(Found {
        weight: Weight::Certain,
        evidence: format!("process {parent} had initialised CUDA before this one was forked from it"),
        action: "Start workers by spawn or forkserver (Python: multiprocessing.set_start_method(\"spawn\")), or do not touch \
                 CUDA before the fork."
            .to_owned(),
    })
}

/// open-gpu-kernel-modules#797, #901
fn open_module_hmm(case: Case) -> Option<Found> {
    let on = case.machine.is_open_module && case.machine.hmm_is_disabled == Some(false);
    (on && case.code() == 3 && case.machine.forked_from.is_none()).then(|| Found {
        weight: Weight::Possible,
        evidence: "the open kernel modules are in use, with heterogeneous memory management on".to_owned(),
        action:
            "On the host, try options nvidia_uvm uvm_disable_hmm=1 in modprobe.d, and load nvidia_uvm anew."
                .to_owned(),
    })
}

/// xgboost#12217
fn vgpu_without_vmm(case: Case) -> Option<Found> {
    let vgpu = case.chain?.devices.iter().find(|device| device.virtualization == Some(VGPU))?;
    (case.code() == 801).then(|| Found {
        weight: Weight::Certain,
        evidence: format!("device {} ({}) is a vGPU whose profile lacks what was asked for", vgpu.index, vgpu.name),
        action: "Use a profile with unified and virtual memory management, or turn such allocators off in the framework."
            .to_owned(),
    })
}

fn blocked_by_system(case: Case) -> Option<Found> {
    (case.may_be_the_card() && case.nvml_said(nvml::OPERATING_SYSTEM)).then(|| Found {
        weight: Weight::Likely,
        evidence: "NVML says NVML_ERROR_OPERATING_SYSTEM (17)".to_owned(),
        action: "The system keeps this process from the driver: look at seccomp, AppArmor, SELinux and the device cgroup."
            .to_owned(),
    })
}

/// vgpu_unlock-rs#10
fn vgpu_host(case: Case) -> Option<Found> {
    let vgpu = case.chain?.devices.iter().find(|device| device.virtualization == Some(VGPU))?;
    (case.code() != 0).then(|| Found {
        weight: Weight::Aside,
        evidence: format!("device {} is a vGPU; what its host's manager allows is unknown from here", vgpu.index),
        action: "Compare the guest's driver with the host's vGPU manager, which must not be older; the host's log says it."
            .to_owned(),
    })
}
