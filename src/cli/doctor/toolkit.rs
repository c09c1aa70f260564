//! NVIDIA's container toolkit, and the driver's parts that it mounts.

use std::ffi::OsString;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::libraries::release;
use super::model::{Line, Verdict};
use super::program::find;
use crate::diagnose::machine::{Machine, Mapped, Place};
use crate::policy::versions::matrix::Matrix;
use crate::policy::versions::release::Release;

const PACKAGES: [&str; 2] = ["nvidia-container-toolkit", "nvidia-container-toolkit-base"];
const PROGRAMS: [&str; 2] = ["nvidia-ctk", "nvidia-container-cli"];
/// By which the table of versions knows it.
const NAME: &str = "NVIDIA Container Toolkit";
/// They only print their version.
const PATIENCE: Duration = Duration::from_secs(2);

/// The toolkit's version and where it was read.
pub fn find_toolkit(place: &Place, path: Option<&OsString>) -> Option<(String, String)> {
    packaged(place).or_else(|| {
        PROGRAMS.iter().find_map(|name| {
            let program = find(place, name, path.cloned())?;
            let said = asked(Command::new(place.path(&program)).arg("--version"))?;
            Some((version_in(&said)?, program.display().to_string()))
        })
    })
}

/// By dpkg's list.
fn packaged(place: &Place) -> Option<(String, String)> {
    let path = "/var/lib/dpkg/status";
    // Longer than other files that are read here.
    let text = std::fs::read(place.path(path)).ok().filter(|bytes| bytes.len() < 64 << 20)?;
    let text = String::from_utf8_lossy(&text);
    text.split("\n\n").find_map(|entry| {
        let field = |name: &str| entry.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let is_it = PACKAGES.contains(&field("Package")?) && field("Status")?.ends_with(" installed");
        let version = field("Version").filter(|_| is_it)?;
        Some((version_in(version)?, format!("{path}, {}", field("Package")?)))
    })
}

/// What a program prints, if it does in time.
fn asked(command: &mut Command) -> Option<String> {
    // It is no program of CUDA, and nobody's library is to speak in it.
    command.env_remove("LD_PRELOAD").stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let began = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if began.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut bytes = Vec::new();
    // What it left behind may hold the other end open; what is there by now is enough.
    let mut out = child.stdout.take()?;
    let mut part = [0; 4096];
    let length = out.read(&mut part).ok()?;
    bytes.extend_from_slice(part.get(..length)?);
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The first word that is a version: `1.17.8-1`, `version 1.14.3`, `cli-version: 1.14.3`.
fn version_in(text: &str) -> Option<String> {
    let words = text.split(|c: char| !c.is_ascii_digit() && c != '.');
    let is_version =
        |word: &&str| word.split('.').count() >= 2 && word.split('.').all(|part| !part.is_empty());
    words.filter(|word| !word.is_empty()).find(is_version).map(str::to_owned)
}

/// The toolkit against the driver, by the table of versions.
pub fn judge(toolkit: &(String, String), driver: Option<&Release>) -> Line {
    let (version, found_in) = toolkit;
    let text = format!("{NAME} {version} ({found_in})");
    let Some(driver) = driver else { return Line::ok("container_toolkit", text) };
    let numbers = |text: &str| text.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>();
    let matrix = Matrix::built_in();
    let rows = matrix.tools_beyond(driver).filter(|row| row.name == NAME);
    let row = rows.filter(|row| numbers(&row.version) <= numbers(version)).last();
    match row.and_then(|row| row.driver.as_ref()) {
        Some(needed) => Line::new(
            "container_toolkit",
            Verdict::Warning,
            format!("{text} needs driver {needed} or newer, and this is {driver}"),
            "Update the driver, or use an older toolkit.",
        ),
        None => Line::ok("container_toolkit", format!("{text} may be used with driver {driver}")),
    }
}

/// Parts of the driver that libcuda loads by itself, and that lie beside it where all is well.
pub fn parts(place: &Place, machine: &Machine) -> Vec<Line> {
    let Some(libcuda) = machine.libcuda() else { return Vec::new() };
    let capabilities = machine.variable("NVIDIA_DRIVER_CAPABILITIES");
    let told = capabilities.map(|value| format!(" (NVIDIA_DRIVER_CAPABILITIES={value})")).unwrap_or_default();
    let action = if machine.is_container {
        "Set NVIDIA_DRIVER_CAPABILITIES=compute,utility and start the container anew."
    } else {
        "Install the driver's libraries as a whole."
    };
    let mut lines = Vec::new();
    for name in &machine.missing_siblings {
        let without = if name.contains("ptxjit") {
            "PTX cannot be compiled at load (221, CUDA_ERROR_JIT_COMPILER_NOT_FOUND)"
        } else {
            "nobody can ask the driver what is wrong"
        };
        let text = format!("{name} is missing beside {}{told}: {without}", libcuda.path);
        lines.push(Line::new("driver_parts", Verdict::Warning, text, action));
    }
    let folder = libcuda.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let others = place
        .names(folder)
        .into_iter()
        .filter(|name| name.starts_with("libnvidia-") && name.ends_with(".so.1"));
    for name in others {
        let real = place.real(format!("{folder}/{name}")).and_then(|file| release(&file));
        let ours = Mapped::release(libcuda);
        if let Some((real, ours)) = real.zip(ours).filter(|(real, ours)| *real != ours.to_string()) {
            let text = format!("{folder}/{name} is of release {real}, and {} of {ours}", libcuda.name());
            lines.push(Line::new("driver_parts", Verdict::Warning, text, action));
        }
    }
    lines
}
