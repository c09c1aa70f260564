//! What this machine, or container, says about its driver: read from /proc, /sys, /dev and the environment.
//!
//! Reading changes nothing: device nodes are opened and closed again. Whatever cannot be read is `None` or empty.

use crate::policy::versions::kernel_module;
use crate::policy::versions::release::Release;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Where things are looked for.
#[derive(Clone, Debug)]
pub struct Place {
    /// `/`, or a folder that stands for it.
    pub root: PathBuf,
}

impl Place {
    /// The machine itself; tests put a folder in its place by `CUWARDEN_TEST_ROOT`.
    pub fn here() -> Place {
        let root = std::env::var_os("CUWARDEN_TEST_ROOT").filter(|root| !root.is_empty());
        Place { root: root.map_or_else(|| PathBuf::from("/"), PathBuf::from) }
    }

    /// An absolute path of the machine, where it lies here.
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let path = absolute.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// An absolute path with its links resolved; `None`: there is nothing.
    pub fn real(&self, absolute: impl AsRef<Path>) -> Option<String> {
        let real = fs::canonicalize(self.path(absolute)).ok()?;
        let root = fs::canonicalize(&self.root).unwrap_or_else(|_| self.root.clone());
        let inside = real.strip_prefix(&root).unwrap_or(&real);
        Some(Path::new("/").join(inside).to_string_lossy().into_owned())
    }

    /// The text of a file, cut at a MiB.
    pub fn text(&self, absolute: &str) -> Option<String> {
        Some(String::from_utf8_lossy(&self.bytes(absolute)?).into_owned())
    }

    /// A file, cut at a MiB.
    pub fn bytes(&self, absolute: &str) -> Option<Vec<u8>> {
        use std::io::Read;
        // A FIFO in a fake root, or a driver's file that never ends, must not hold us up.
        let file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(self.path(absolute))
            .ok()?;
        let mut bytes = Vec::new();
        file.take(1 << 20).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// True when there is something of this name.
    pub fn exists(&self, absolute: &str) -> bool {
        fs::symlink_metadata(self.path(absolute)).is_ok()
    }

    /// Names in a folder, in order.
    pub fn names(&self, absolute: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(absolute)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).take(4096).collect();
        crate::order::sort(&mut names, |a, b| a < b);
        names
    }
}

/// A device node, and what happened when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// As `/dev/nvidia0`.
    pub path: String,
    /// `Err`: the system's error number.
    pub opens: Result<(), i32>,
}

impl Node {
    fn try_open(place: &Place, path: &str) -> Node {
        // Both ways, as the driver opens it.
        let opened = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(place.path(path));
        let opens = opened.map(|_| ()).map_err(|error: io::Error| error.raw_os_error().unwrap_or(0));
        Node { path: path.to_owned(), opens }
    }
}

/// A library that is mapped into this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// As /proc/self/maps has it, links resolved by the kernel.
    pub path: String,
}

impl Mapped {
    /// The last part of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The release in the file's name, as in libcuda.so.535.183.01.
    pub fn release(&self) -> Option<Release> {
        Release::parse_whole(self.name().split_once(".so.")?.1)
    }
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Of the loaded kernel module.
    pub kernel_module: Option<Release>,
    /// NVIDIA's open kernel modules.
    pub is_open_module: bool,
    /// /sys/module has nvidia_uvm.
    pub has_uvm_module: bool,
    /// nvidiactl, nvidia-uvm, and one a card.
    pub nodes: Vec<Node>,
    /// Cards that the kernel module knows: entries of /proc/driver/nvidia/gpus.
    pub gpus: Vec<String>,
    /// CUDA's and NVIDIA's libraries in this process.
    pub mapped: Vec<Mapped>,
    /// Copies of libcuda.so.1 in the loader's usual folders.
    pub installed: Vec<String>,
    /// libnvidia-* that libcuda needs and that are not beside it.
    pub missing_siblings: Vec<&'static str>,
    /// There are NVSwitches, so a fabric manager is needed.
    pub has_nvswitch: bool,
    /// A fabric manager has left its mark in /run.
    pub has_fabric_manager: bool,
    /// `uvm_disable_hmm`, where the parameter exists.
    pub hmm_is_disabled: Option<bool>,
    /// In a container.
    pub is_container: bool,
    /// AddressSanitizer is in this process.
    pub has_asan: bool,
    /// Variables that matter.
    pub environment: Vec<(&'static str, OsString)>,
    /// The process that had initialised CUDA before this one was forked from it.
    pub forked_from: Option<u32>,
}

const VARIABLES: [&str; 9] = [
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_REQUIRE_CUDA",
    "NVIDIA_DISABLE_REQUIRE",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "CUDA_MPS_PIPE_DIRECTORY",
];

/// Where distributions, container toolkits and WSL put libcuda.so.1.
const FOLDERS: [&str; 8] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/usr/local/nvidia/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/wsl/lib",
];

/// libcuda loads these by itself.
const SIBLINGS: [&str; 2] = ["libnvidia-ptxjitcompiler.so.1", "libnvidia-ml.so.1"];

impl Machine {
    /// Looks around. `variable` answers like `std::env::var_os`.
    pub fn look(place: &Place, variable: &dyn Fn(&str) -> Option<OsString>) -> Machine {
        let module = place.text("/proc/driver/nvidia/version").unwrap_or_default();
        let mapped = mapped(&place.text("/proc/self/maps").unwrap_or_default());
        let missing_siblings = missing_siblings(place, &mapped);
        Machine {
            kernel_module: module_release(&module),
            is_open_module: module.contains("Open Kernel Module"),
            has_uvm_module: place.exists("/sys/module/nvidia_uvm"),
            nodes: nodes(place),
            gpus: place.names("/proc/driver/nvidia/gpus"),
            installed: installed(place),
            missing_siblings,
            has_nvswitch: place.exists("/dev/nvidia-nvswitchctl")
                || !place.names("/proc/driver/nvidia-nvswitch/devices").is_empty(),
            has_fabric_manager: !place.names("/run/nvidia-fabricmanager").is_empty()
                || place.exists("/run/nvidia-fabricmanager.pid"),
            hmm_is_disabled: place
                .text("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
                .map(|text| text.trim_start().starts_with(['Y', '1'])),
            is_container: place.exists("/.dockerenv") || place.exists("/run/.containerenv"),
            has_asan: mapped.iter().any(|one| one.name().starts_with("libasan.so")),
            mapped: mapped.into_iter().filter(|one| is_nvidias(one.name())).collect(),
            environment: VARIABLES.iter().filter_map(|name| Some((*name, variable(name)?))).collect(),
            forked_from: None,
        }
    }

    /// A variable's value.
    pub fn variable(&self, name: &str) -> Option<String> {
        let found = self.environment.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.to_string_lossy().into_owned())
    }

    /// The driver's library in this process.
    pub fn libcuda(&self) -> Option<&Mapped> {
        self.mapped.iter().find(|one| one.name().starts_with("libcuda.so"))
    }

    /// A device node by its path.
    pub fn node(&self, path: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.path == path)
    }

    /// Nodes of cards.
    pub fn cards(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| is_card(node.path.trim_start_matches("/dev/")))
    }
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  …`
fn module_release(text: &str) -> Option<Release> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    kernel_module(line).and_then(Release::parse_whole)
}

fn nodes(place: &Place) -> Vec<Node> {
    let cards = place.names("/dev").into_iter().filter(|name| is_card(name));
    let mut names: Vec<String> = ["nvidiactl", "nvidia-uvm"].map(str::to_owned).to_vec();
    names.extend(cards);
    names.iter().map(|name| Node::try_open(place, &format!("/dev/{name}"))).collect()
}

fn is_card(name: &str) -> bool {
    name.strip_prefix("nvidia")
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
}

fn mapped(maps: &str) -> Vec<Mapped> {
    let mut found: Vec<Mapped> = Vec::new();
    for line in maps.lines() {
        let Some(at) = line.find('/') else { continue };
        let path = line.get(at..).unwrap_or("").trim_end_matches(" (deleted)");
        let name = path.rsplit('/').next().unwrap_or("");
        if (is_nvidias(name) || name.starts_with("libasan.so")) && found.iter().all(|one| one.path != path) {
            found.push(Mapped { path: path.to_owned() });
        }
    }
    found
}

fn is_nvidias(name: &str) -> bool {
    ["libcuda.so", "libcudart", "libnvidia-"].iter().any(|start| name.starts_with(start))
        && name.contains(".so")
}

fn installed(place: &Place) -> Vec<String> {
    let mut found: Vec<(PathBuf, String)> = Vec::new();
    for folder in FOLDERS {
        let path = format!("{folder}/libcuda.so.1");
        // /lib is often a link to /usr/lib.
        if let Ok(real) = fs::canonicalize(place.path(&path))
            && found.iter().all(|(known, _)| *known != real)
        {
            found.push((real, path));
        }
    }
    found.into_iter().map(|(_, path)| path).collect()
}

/// Of the libcuda among these.
pub fn missing_siblings(place: &Place, mapped: &[Mapped]) -> Vec<&'static str> {
    let Some(libcuda) = mapped.iter().find(|one| one.name().starts_with("libcuda.so")) else {
        return Vec::new();
    };
    let Some((folder, _)) = libcuda.path.rsplit_once('/') else { return Vec::new() };
    let anywhere = |name: &str| {
        std::iter::once(folder).chain(FOLDERS).any(|folder| place.exists(&format!("{folder}/{name}")))
    };
    SIBLINGS.into_iter().filter(|name| !anywhere(name)).collect()
}

/// Folders of a search path, empty ones left out.
pub fn folders(value: &OsString) -> impl Iterator<Item = PathBuf> {
    let bytes = value.as_bytes();
    bytes
        .split(|b| matches!(b, b':' | b';'))
        .filter(|part| !part.is_empty())
        .map(|part| PathBuf::from(std::ffi::OsStr::from_bytes(part)))
}

#[cfg(test)]
mod tests {
    use super::super::fake::Fake;
    use super::*;

    #[test]
    fn a_machine_that_works() {
        let fake = Fake::working();
        let machine = fake.look();
        assert_eq!(machine.kernel_module, Release::parse("535.183.01"));
        assert!(machine.nodes.iter().all(|node| node.opens.is_ok()), "{:?}", machine.nodes);
        assert_eq!(machine.cards().count(), 1);
        assert_eq!(machine.gpus, ["0000:17:00.0"]);
        let libcuda = machine.libcuda().unwrap();
        assert_eq!(libcuda.release(), machine.kernel_module);
        assert!(machine.missing_siblings.is_empty() && machine.has_uvm_module && !machine.is_container);
        assert_eq!(machine.installed, ["/usr/lib/x86_64-linux-gnu/libcuda.so.1"]);
    }

    #[test]
    fn an_empty_machine() {
        let fake = Fake::empty();
        let machine = fake.look();
        assert_eq!(machine.kernel_module, None);
        let errors: Vec<_> = machine.nodes.iter().map(|node| node.opens).collect();
        assert_eq!(errors, [Err(libc::ENOENT), Err(libc::ENOENT)]);
        assert!(machine.mapped.is_empty() && machine.installed.is_empty());
    }

    #[test]
    fn the_open_module_says_it_otherwise() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (…)\n";
        assert_eq!(module_release(text), Release::parse("550.54.14"));
        assert_eq!(module_release("GCC version:  12.2.0\n"), None);
    }
}
