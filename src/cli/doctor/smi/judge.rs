//! From what `nvidia-smi` said to verdicts, by the rules that hold for a machine which is looked at itself.

use super::super::judge as by_machine;
use super::super::model::{Line, Verdict};
use super::{Gpu, Kind, Smi};
use crate::diagnose::causes::weighed;
use crate::diagnose::chain::{Chain, Device};
use crate::diagnose::machine::Machine;
use crate::diagnose::{Case, Failure, Known};
use crate::policy::versions::CudaVersion;
use crate::policy::versions::matrix::Matrix;
use crate::policy::versions::release::Release;
use crate::report::size::bytes as size;
use crate::report::text::plural;

/// Less than a context takes.
const LITTLE: u64 = 700 << 20;
/// Causes that the cards alone show; the others are about libraries and nodes, which the text does not tell.
const OF_CARDS: [&str; 3] = ["exclusive_mode", "mig_without_instance", "vgpu_unlicensed"];
/// Clocks that are lowered because something is wrong, and not because there is little to do.
const SLOWED: [&str; 4] =
    ["HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "SW Thermal Slowdown"];

/// The driver's CUDA version: as it says itself, else by its release.
pub fn cuda(smi: &Smi) -> Option<CudaVersion> {
    smi.cuda.or_else(|| Matrix::built_in().cuda_of(smi.driver.as_ref()?))
}

/// Says it.
pub fn judge(smi: &Smi) -> Vec<Line> {
    let mut lines = messages(smi);
    let has_failed = lines.iter().any(|line| line.verdict == Verdict::Failed);
    lines.extend(summary(smi, has_failed));
    lines.extend(driver(smi));
    lines.extend(runtimes(smi));
    for (index, gpu) in smi.gpus.iter().enumerate() {
        lines.push(Line::ok("gpu", about(index, gpu)));
        lines.extend(card(index, gpu));
    }
    let (failure, known, machine) = (Failure::default(), Known::default(), Machine::default());
    let chain = chain(smi);
    let case = Case { failure: &failure, known: &known, machine: &machine, chain: Some(&chain) };
    lines.extend(
        weighed(case)
            .into_iter()
            .filter(|(_, cause)| OF_CARDS.contains(&cause.id))
            .map(|(weight, cause)| by_machine::cause_line(weight, cause)),
    );
    lines
}

/// In the form that NVML's answers have.
fn chain(smi: &Smi) -> Chain {
    let device = |(index, gpu): (usize, &Gpu)| Device {
        index: u32::try_from(index).unwrap_or(u32::MAX),
        uuid: gpu.uuid.clone().unwrap_or_else(|| gpu.bus.clone()),
        name: gpu.name.clone().unwrap_or_default(),
        compute_mode: gpu.compute_mode,
        mig: gpu.mig,
        instances: vec![String::new(); usize::try_from(gpu.instances).unwrap_or(0).min(64)],
        processes: gpu.processes.iter().map(|one| (one.pid, one.bytes)).collect(),
        is_licensed: gpu.is_licensed,
        ..Device::default()
    };
    Chain {
        driver: smi.driver.as_ref().map(ToString::to_string),
        count: u32::try_from(smi.gpus.len()).ok(),
        devices: smi.gpus.iter().enumerate().map(device).collect(),
        ..Chain::default()
    }
}

fn messages(smi: &Smi) -> Vec<Line> {
    let line = |message: &super::Message| {
        let (check, verdict, action) = match message.kind {
            Kind::VersionMismatch => (
                "version_mismatch",
                Verdict::Failed,
                "The driver was updated while its old kernel module stayed loaded: restart the machine, or unload and load \
                 the nvidia modules. In a container, restart the container, and do not install a driver in the image.",
            ),
            Kind::NoDriver => (
                "kernel_module_missing",
                Verdict::Failed,
                "Load the kernel module on the host: modprobe nvidia. If that fails, dmesg says why: Secure Boot, a kernel \
                 that the module was not built for, or no NVIDIA card.",
            ),
            Kind::NoDevices => (
                "no_devices",
                Verdict::Failed,
                "Give this machine or container a card. If there is one, look for NVRM and RmInitAdapter lines in the \
                 kernel's log.",
            ),
            Kind::Lost => ("gpu_lost", Verdict::Failed, LOST),
            Kind::NoPermission => (
                "no_permission",
                Verdict::Failed,
                "Give the user access to the device nodes: the group that owns them, or NVreg_DeviceFileMode=0666 for the \
                 nvidia module.",
            ),
            Kind::Blocked => (
                "blocked_by_system",
                Verdict::Failed,
                "The system keeps this process from the driver: look at seccomp, AppArmor, SELinux and the device cgroup.",
            ),
            Kind::NotStarted => (
                "nvml",
                Verdict::Failed,
                "In a container that worked before, the device cgroup was rewritten (systemd's daemon-reload): restart the \
                 container. Else run cuwarden doctor there; it tells which step fails.",
            ),
            Kind::CorruptInforom => (
                "inforom",
                Verdict::Warning,
                "Settings that the card keeps itself may be lost. Ask the card's vendor; computing goes on.",
            ),
            Kind::NoProgram => (
                "nvidia_smi",
                Verdict::Unknown,
                "Install nvidia-smi of the driver's release there; in a container, set \
                 NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
            ),
        };
        Line::new(check, verdict, format!("nvidia-smi says: {}", message.text), action)
    };
    smi.messages.iter().map(line).collect()
}

const LOST: &str = "The card has fallen off the bus or its firmware does not answer. Look for Xid 79 and RmInitAdapter in the \
                    kernel's log; drain the node and restart it.";

fn summary(smi: &Smi, has_failed: bool) -> Option<Line> {
    let Some(driver) = &smi.driver else {
        // A message says more.
        if !smi.messages.is_empty() {
            return None;
        }
        return Some(Line::new(
            "nvidia_smi",
            Verdict::Unknown,
            "the text names no driver version: it is not what nvidia-smi prints, or its first lines are missing",
            "Take the whole text on that machine: nvidia-smi -q > FILE 2>&1",
        ));
    };
    let named = smi.gpus.iter().map(|gpu| gpu.name.as_deref().unwrap_or(&gpu.bus));
    let names: Vec<&str> = named.collect();
    let cuda = cuda(smi).map(|cuda| format!(", CUDA {cuda}")).unwrap_or_default();
    let text = format!(
        "driver {driver}{cuda}; devices: {}",
        if names.is_empty() { "none are described".to_owned() } else { names.join(", ") }
    );
    let described = u32::try_from(names.len()).unwrap_or(u32::MAX);
    if let Some(attached) = smi.attached.filter(|attached| *attached != described) {
        return Some(Line::new(
            "nvidia_smi",
            Verdict::Unknown,
            format!("{text}; {attached} are attached, so a part of the text is missing"),
            "Take the whole text on that machine: nvidia-smi -q > FILE 2>&1",
        ));
    }
    if names.is_empty() && !has_failed {
        return Some(Line::new(
            "nvidia_smi",
            Verdict::Unknown,
            text,
            "Take nvidia-smi -q, which describes each card.",
        ));
    }
    Some(Line::ok("nvidia_smi", text))
}

/// The libcuda that nvidia-smi found, against the driver's release.
fn driver(smi: &Smi) -> Option<Line> {
    let release = smi.driver.as_ref()?;
    if smi.has_no_cuda {
        return Some(Line::new(
            "driver_library",
            Verdict::Warning,
            "nvidia-smi shows no CUDA version: it finds no libcuda.so.1",
            "Install the driver's libraries as a whole; in a container, set NVIDIA_DRIVER_CAPABILITIES with compute in it.",
        ));
    }
    let of_release = Matrix::built_in().cuda_of(release)?;
    let shown = smi.cuda.filter(|shown| *shown != of_release)?;
    Some(Line::new(
        "driver_library",
        Verdict::Warning,
        format!(
            "driver {release} is of CUDA {of_release}, and nvidia-smi shows CUDA {shown}: its libcuda.so.1 is of another release"
        ),
        "If a cuda-compat folder is meant to be in the loader's path there, nothing is wrong. Else take it out of \
         LD_LIBRARY_PATH and ld.so.conf.d.",
    ))
}

/// Which runtimes may be used there.
fn runtimes(smi: &Smi) -> Vec<Line> {
    let Some(cuda) = cuda(smi) else {
        return smi.driver.iter().map(unknown_release).collect();
    };
    let matrix = Matrix::built_in();
    let next = matrix.family_of(CudaVersion::new(cuda.major + 1, 0)).and_then(|row| row.driver.clone());
    let beyond = next.map_or_else(String::new, |first| {
        format!("; CUDA {}.x needs driver {first} or newer", cuda.major + 1)
    });
    let mut lines = vec![Line::ok(
        "runtime",
        format!(
            "runtimes up to CUDA {cuda} fit; newer ones of CUDA {} start by minor-version compatibility{beyond}",
            cuda.major
        ),
    )];
    if let Some(release) = &smi.driver
        && let Some(lowest) = matrix.family_of(cuda).and_then(|row| row.driver.clone())
        && *release < lowest
    {
        lines.push(Line::new(
            "runtime",
            Verdict::Warning,
            format!(
                "driver {release} is older than {lowest}, the lowest release with minor-version compatibility for CUDA {}.x",
                cuda.major
            ),
            format!("Update the driver to {lowest} or newer."),
        ));
    }
    lines
}

fn unknown_release(release: &Release) -> Line {
    Line::new(
        "runtime",
        Verdict::Unknown,
        format!(
            "the text names no CUDA version, and the table of versions does not tell that of driver {release}"
        ),
        "Take nvidia-smi -q on that machine, which shows it.",
    )
}

fn about(index: usize, gpu: &Gpu) -> String {
    let mut parts = vec![format!("{index}: {}", gpu.name.as_deref().unwrap_or("of an unknown product"))];
    parts.push(gpu.uuid.clone().unwrap_or_else(|| gpu.bus.clone()));
    match gpu.mig {
        Some(true) => parts.push(format!("MIG on, {}", plural(gpu.instances.into(), "instance"))),
        Some(false) => parts.push("MIG off".to_owned()),
        None => {}
    }
    if let Some(total) = gpu.total_bytes {
        let free = free(gpu).map_or_else(|| "of".to_owned(), |free| format!("{} free of", size(free)));
        parts.push(format!("{free} {}", size(total)));
    }
    if let Some(on) = gpu.persistence {
        parts.push(format!("persistence {}", if on { "on" } else { "off" }));
    }
    let holders: Vec<String> = gpu
        .processes
        .iter()
        .take(8)
        .map(|one| match one.bytes {
            Some(bytes) => format!("pid {} {}", one.pid, size(bytes)),
            None => format!("pid {}", one.pid),
        })
        .collect();
    if !holders.is_empty() {
        let more = gpu.processes.len() - holders.len();
        let rest = if more == 0 { String::new() } else { format!(" and {more} more") };
        parts.push(format!("processes: {}{rest}", holders.join("; ")));
    }
    parts.join(", ")
}

fn free(gpu: &Gpu) -> Option<u64> {
    gpu.free_bytes.or_else(|| gpu.total_bytes?.checked_sub(gpu.used_bytes?))
}

/// What is wrong with one card.
fn card(index: usize, gpu: &Gpu) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut say = |check: &str, verdict, what: String, action: &str| {
        lines.push(Line::new(check, verdict, format!("device {index} ({}): {what}", gpu.bus), action));
    };
    if let Some(lost) =
        gpu.errors.iter().find(|one| one.error == "GPU is lost" || one.error == "GPU requires reset")
    {
        let action = if lost.error == "GPU is lost" {
            LOST
        } else {
            "End its processes and run nvidia-smi -r, or restart the node."
        };
        say(
            "gpu_lost",
            Verdict::Failed,
            format!("\"{}\" stands in the place of {}", lost.error, lost.field),
            action,
        );
    } else if let Some(first) = gpu.errors.first() {
        // One sensor may be broken; a card that answers little will not compute.
        let verdict = if gpu.errors.len() > 1 { Verdict::Failed } else { Verdict::Warning };
        let what = format!(
            "\"{}\" stands in the place of {}",
            first.error,
            plural(gpu.errors.len() as u64, "field")
        );
        say(
            "gpu_error",
            verdict,
            what,
            "Look for NVRM and Xid lines in the kernel's log; reset the card or restart the node.",
        );
    }
    if let Some(action) = gpu.recovery.as_deref().filter(|action| !action.is_empty()) {
        let what = format!("the driver asks for this to recover it: {action}");
        say(
            "gpu_recovery",
            Verdict::Failed,
            what,
            "Drain the node, and reset the card or restart the node as it says.",
        );
    }
    if let Some(count) = gpu.uncorrected.filter(|count| *count > 0) {
        let what = format!(
            "{} that ECC could not correct since the driver was loaded",
            plural(count, "memory error")
        );
        say(
            "ecc",
            Verdict::Warning,
            what,
            "Results of jobs in this time may be wrong. Reset the card; if it comes again, have it replaced.",
        );
    }
    if gpu.has_remapping_failed == Some(true) {
        let what = "rows of its memory could not be replaced by spare ones".to_owned();
        say("memory_repair", Verdict::Failed, what, "Take the card out of service and have it replaced.");
    } else if gpu.is_repair_pending == Some(true) {
        let what = "a part of its memory is taken out of use at the next reset".to_owned();
        say(
            "memory_repair",
            Verdict::Warning,
            what,
            "Reset the card when no job runs: nvidia-smi -r, or restart the node.",
        );
    }
    let slowed: Vec<&str> =
        gpu.throttled_by.iter().map(String::as_str).filter(|reason| SLOWED.contains(reason)).collect();
    if !slowed.is_empty() {
        let what = format!("clocks are lowered: {}", slowed.join(", "));
        say(
            "throttled",
            Verdict::Warning,
            what,
            "CUDA starts and is slow. Look at the cooling and the power supply.",
        );
    }
    if let Some(state) = gpu.fabric.as_deref().filter(|state| matches!(*state, "In Progress" | "Not Started"))
    {
        let what = format!("its part in the NVLink fabric is \"{state}\"");
        say(
            "fabric_manager",
            Verdict::Failed,
            what,
            "Start nvidia-fabricmanager of the driver's release on the host; its log says why it does not finish.",
        );
    }
    // Of a split card nearly all is given away.
    if let Some(free) = free(gpu).filter(|free| *free < LITTLE && gpu.mig != Some(true)) {
        let what = format!("{} of memory are free, and a context alone takes hundreds of MiB", size(free));
        say("memory_full", Verdict::Warning, what, "End a process that is not needed, or use another card.");
    }
    lines
}
