//! Causes in the devices: nodes, permissions, kernel modules, and what is hidden.

use super::{Case, Found, Row, Weight};
use crate::diagnose::machine::{Machine, Node};
use crate::diagnose::nvml;
use crate::diagnose::visible::{self, Devices, Visible};

pub(super) const ROWS: &[Row] = &[
    Row { id: "device_cgroup", look: device_cgroup },
    Row { id: "no_permission", look: no_permission },
    Row { id: "kernel_module_missing", look: kernel_module_missing },
    Row { id: "no_device_nodes", look: no_device_nodes },
    Row { id: "uvm_missing", look: uvm_missing },
    Row { id: "gpu_lost", look: gpu_lost },
    Row { id: "reset_required", look: reset_required },
    Row { id: "visible_devices", look: visible_devices },
    Row { id: "nothing_exposed", look: nothing_exposed },
    Row { id: "mig_without_instance", look: mig_without_instance },
    Row { id: "no_such_device", look: no_such_device },
];

/// nvidia-container-toolkit#251, #1227, nvidia-docker#1671, #1730
fn device_cgroup(case: Case) -> Option<Found> {
    let (node, weight) = closed(case, libc::EPERM)?;
    Some(Found {
        weight,
        evidence: format!("{} is there, and opening it is not permitted (EPERM): a rule of the device cgroup", node.path),
        action: "Restart the container. If it worked before, the host's systemd has rewritten the device rules \
                 (daemon-reload): name the devices with --device or CDI, or use the cgroupfs driver, so that they stay."
            .to_owned(),
    })
}

fn no_permission(case: Case) -> Option<Found> {
    let (weight, evidence) = match closed(case, libc::EACCES) {
        Some((node, weight)) => (weight, format!("this user may not open {} (EACCES)", node.path)),
        None if case.chain?.start_code() == Some(nvml::NO_PERMISSION) => {
            (Weight::Likely, "NVML does not start: NVML_ERROR_NO_PERMISSION (4)".to_owned())
        }
        None => return None,
    };
    Some(Found {
        weight,
        evidence,
        action: "Give the user access to the device nodes: the group that owns them, or NVreg_DeviceFileMode=0666 for the \
                 nvidia module."
            .to_owned(),
    })
}

/// A node that does not open, and how well that explains the failure. One card of several may be closed to a process that
/// uses another.
fn closed<'a>(case: Case<'a>, error: i32) -> Option<(&'a Node, Weight)> {
    let machine = case.machine;
    let node = machine.nodes.iter().find(|node| node.opens == Err(error))?;
    let is_card = machine.cards().any(|card| card == node);
    let leaves_some = is_card && machine.cards().any(|card| card.opens.is_ok());
    match leaves_some {
        false => case.may_be_the_card().then_some((node, Weight::Certain)),
        true => case.code_is(&[0, 46, 100, 101, 999]).then_some((node, Weight::Possible)),
    }
}

fn kernel_module_missing(case: Case) -> Option<Found> {
    let said = case.nvml_said(nvml::DRIVER_NOT_LOADED);
    let absent = case.machine.kernel_module.is_none() && absent(case.machine, "/dev/nvidiactl");
    if !(case.may_be_the_card()
        && absent
        && (said || case.chain.is_none() || case.chain?.start_code().is_none()))
    {
        return None;
    }
    Some(Found {
        weight: Weight::Certain,
        evidence: format!(
            "there is no /proc/driver/nvidia/version and no /dev/nvidiactl{}",
            if said { ", and NVML says NVML_ERROR_DRIVER_NOT_LOADED (9)" } else { "" }
        ),
        action: "Load the kernel module on the host: modprobe nvidia. If that fails, dmesg says why: Secure Boot, a kernel \
                 that the module was not built for, or no NVIDIA card."
            .to_owned(),
    })
}

/// The host has the module, and this container was not given the devices.
fn no_device_nodes(case: Case) -> Option<Found> {
    let module = case.machine.kernel_module.as_ref()?;
    let control = absent(case.machine, "/dev/nvidiactl");
    let cards = case.machine.cards().next().is_none();
    if !case.may_be_the_card() || (!control && !cards) {
        return None;
    }
    let what = if control { "/dev/nvidiactl" } else { "/dev/nvidia0 or any other card" };
    Some(Found {
        weight: Weight::Certain,
        evidence: format!("the kernel module {module} is loaded, and there is no {what} here"),
        action: if case.machine.is_container {
            "Start the container with the GPU: --gpus all, a CDI device, or a Kubernetes resource limit nvidia.com/gpu."
        } else {
            "Make the device nodes: nvidia-modprobe -c 0, or nvidia-smi as root, or the nvidia-persistenced service."
        }
        .to_owned(),
    })
}

/// llama.cpp#7218, ollama#8638, libnvidia-container#103
fn uvm_missing(case: Case) -> Option<Found> {
    // Without the control node there is a larger problem.
    case.machine.node("/dev/nvidiactl").filter(|node| node.opens.is_ok())?;
    let error = case
        .machine
        .node("/dev/nvidia-uvm")?
        .opens
        .err()
        .filter(|error| *error != libc::EPERM && *error != libc::EACCES);
    let evidence = match error {
        Some(libc::ENOENT) => "there is no /dev/nvidia-uvm, which CUDA needs and NVML does not".to_owned(),
        Some(error) => format!("/dev/nvidia-uvm cannot be opened (error {error}), while the other nodes can"),
        None if !case.machine.has_uvm_module && case.code_is(&[3, 999]) => {
            "the module nvidia_uvm is not loaded".to_owned()
        }
        None => return None,
    };
    Some(Found {
        weight: Weight::Certain,
        evidence,
        action: "On the host: nvidia-modprobe -u -c 0, or rmmod nvidia_uvm and modprobe nvidia_uvm after a suspend. Give \
                 /dev/nvidia-uvm to the container."
            .to_owned(),
    })
}

/// gpu-operator#1278
fn gpu_lost(case: Case) -> Option<Found> {
    if !case.may_be_the_card() {
        return None;
    }
    let evidence = match case.nvml_call(nvml::GPU_IS_LOST) {
        Some(lost) => lost,
        None => {
            let card = case.machine.cards().find(|card| card.opens == Err(libc::EIO))?;
            format!("{} is there, and opening it gives an input/output error (EIO)", card.path)
        }
    };
    Some(Found {
        weight: Weight::Certain,
        evidence,
        action: "The card has fallen off the bus or its firmware does not answer. Look for Xid 79 and RmInitAdapter in the \
                 kernel's log; drain the node and restart it."
            .to_owned(),
    })
}

fn reset_required(case: Case) -> Option<Found> {
    let evidence = case.nvml_call(nvml::RESET_REQUIRED).filter(|_| case.may_be_the_card())?;
    Some(Found {
        weight: Weight::Certain,
        evidence,
        action: "End all processes on the card and reset it, nvidia-smi --gpu-reset on the host, or restart the node. Look \
                 for Xid lines in the kernel's log."
            .to_owned(),
    })
}

/// pytorch#104152, mlcommons/training#442
fn visible_devices(case: Case) -> Option<Found> {
    let value = case.machine.variable("CUDA_VISIBLE_DEVICES")?;
    let devices = devices(case);
    let read = visible::read(Some(&value), devices.as_ref());
    let (what, weight) = match &read {
        Visible::Nothing => ("is empty, which hides all devices".to_owned(), Weight::Certain),
        Visible::FirstIsWrong(wrong) => {
            (format!("hides all devices: \"{}\": {}", wrong.entry, wrong.why), Weight::Certain)
        }
        Visible::CutAt { seen, wrong } => (
            format!("ends after {seen}: \"{}\": {}", wrong.entry, wrong.why),
            if case.code() == 101 { Weight::Certain } else { Weight::Possible },
        ),
        Visible::All | Visible::Some(_) => return None,
    };
    if !case.code_is(&[0, 100, 101]) {
        return None;
    }
    let has = match &devices {
        Some(Devices { cards, .. }) if !cards.is_empty() => {
            format!(" This machine has the indices 0 to {}.", cards.len() - 1)
        }
        _ => String::new(),
    };
    Some(Found {
        weight,
        evidence: format!("CUDA_VISIBLE_DEVICES=\"{value}\" {what}"),
        action: format!("Correct CUDA_VISIBLE_DEVICES or unset it.{has}"),
    })
}

/// nvidia-docker#1060, #709, gpu-feature-discovery#11
fn nothing_exposed(case: Case) -> Option<Found> {
    let value = case.machine.variable("NVIDIA_VISIBLE_DEVICES");
    let hides = value.as_deref().is_some_and(|value| matches!(value.trim(), "" | "void" | "none"));
    let unset = value.is_none() && case.machine.is_container;
    // As under WSL, where cards have no nodes.
    if case.chain.and_then(|chain| chain.count).is_some_and(|count| count > 0) {
        return None;
    }
    if !case.code_is(&[0, 100]) || case.machine.cards().next().is_some() || !(hides || unset) {
        return None;
    }
    Some(Found {
        weight: Weight::Likely,
        evidence: match &value {
            Some(value) => format!("NVIDIA_VISIBLE_DEVICES=\"{value}\" and no card's device node"),
            None => "NVIDIA_VISIBLE_DEVICES is not set and there is no card's device node".to_owned(),
        },
        action: "Start the container with NVIDIA_VISIBLE_DEVICES=all, --gpus all or a CDI device; under Kubernetes ask for \
                 nvidia.com/gpu."
            .to_owned(),
    })
}

fn mig_without_instance(case: Case) -> Option<Found> {
    let device = case.chain?.devices.iter().find(|d| d.mig == Some(true) && d.instances.is_empty())?;
    if !case.code_is(&[0, 100, 101]) {
        return None;
    }
    Some(Found {
        weight: Weight::Certain,
        evidence: format!("device {} ({}) is in MIG mode and has no instance", device.index, device.uuid),
        action: "Make one on the host, nvidia-smi mig -cgi … -C, or turn MIG mode off.".to_owned(),
    })
}

/// The application asked for a device that it cannot see.
fn no_such_device(case: Case) -> Option<Found> {
    let asked = usize::try_from(case.failure.device?).ok()?;
    let all = case.chain?.count? as usize;
    let value = case.machine.variable("CUDA_VISIBLE_DEVICES");
    let sees = match visible::read(value.as_deref(), devices(case).as_ref()) {
        Visible::All => all,
        Visible::Some(seen) | Visible::CutAt { seen, .. } => seen,
        Visible::Nothing | Visible::FirstIsWrong(_) => 0,
    };
    if case.code() != 101 || asked < sees {
        return None;
    }
    let limited = value.map(|value| format!(" (CUDA_VISIBLE_DEVICES=\"{value}\")")).unwrap_or_default();
    Some(Found {
        weight: Weight::Certain,
        evidence: format!("device {asked} was asked for, and this process sees {sees} of {all}{limited}"),
        action: match sees {
            0 => "Let the process see a device.".to_owned(),
            1 => "Ask for device 0, or let the process see more.".to_owned(),
            _ => format!("Ask for a device from 0 to {}, or let the process see more.", sees - 1),
        },
    })
}

fn devices(case: Case) -> Option<Devices> {
    let chain = case.chain.filter(|chain| chain.count.is_some())?;
    Some(Devices {
        cards: chain.devices.iter().map(|device| device.uuid.clone()).collect(),
        instances: chain.devices.iter().flat_map(|device| device.instances.clone()).collect(),
    })
}

fn absent(machine: &Machine, path: &str) -> bool {
    machine.node(path).is_none_or(|node| node.opens == Err(libc::ENOENT))
}
