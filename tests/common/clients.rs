//! The real clients that scripts/fetch-clients brought.

use std::path::{Path, PathBuf};

use super::artefacts::root;

/// The runtimes that are fetched, by version.
pub const CUDART_VERSIONS: [&str; 3] = ["11.8", "12.9", "13.5"];

/// A real CUDA runtime.
pub struct Cudart {
    /// Holds cuda.h and cuda_runtime_api.h.
    pub include: PathBuf,
    /// The shared library.
    pub library: PathBuf,
    /// The static library; the wheel of 11.8 has none.
    pub static_library: Option<PathBuf>,
}

pub fn cudart(version: &str) -> Cudart {
    let part = part(&format!("cudart-{version}"));
    let soname = match version.split_once('.') {
        Some(("11", _)) => "libcudart.so.11.0".to_owned(),
        Some((major, _)) => format!("libcudart.so.{major}"),
        None => panic!("{version} is no version"),
    };
    let static_library = part.join("lib/libcudart_static.a");
    Cudart {
        include: part.join("include"),
        library: existing(part.join("lib").join(soname)),
        static_library: static_library.exists().then_some(static_library),
    }
}

/// The Python packages and the interpreter that they were chosen for.
pub struct Python {
    pub interpreter: PathBuf,
    /// For PYTHONPATH.
    pub packages: PathBuf,
}

pub fn python() -> Python {
    let packages = part("python");
    let interpreter =
        std::fs::read_to_string(packages.join("interpreter")).expect("the interpreter was recorded");
    Python { interpreter: existing(PathBuf::from(interpreter.trim())), packages }
}

/// For PYTHONPATH: nvitop and gpustat, with nvidia-ml-py, which they share with the other clients in Python.
pub fn monitors() -> String {
    format!("{}:{}", part("monitors").display(), python().packages.display())
}

/// NVIDIA's driver libraries and nvidia-smi, from Debian.
pub struct Driver {
    /// For LD_LIBRARY_PATH.
    pub lib: PathBuf,
    pub libcuda: PathBuf,
    pub nvidia_smi: PathBuf,
}

pub fn driver() -> Driver {
    let part = part("driver");
    Driver {
        libcuda: existing(part.join("lib/libcuda.so.1")),
        nvidia_smi: existing(part.join("bin/nvidia-smi")),
        lib: part.join("lib"),
    }
}

/// There is no quiet way out: a test whose client is missing fails. scripts/test leaves these tests out, and says so,
/// where the clients cannot be had.
fn part(name: &str) -> PathBuf {
    let part = root().join(".clients").join(name);
    assert!(part.join(".stamp").exists(), "the client {name} is missing: run scripts/fetch-clients");
    part
}

fn existing(path: PathBuf) -> PathBuf {
    assert!(Path::exists(&path), "{} is missing: run scripts/fetch-clients", path.display());
    path
}

/// A browser without a window, from Debian.
pub struct Browser {
    pub program: PathBuf,
    /// For LD_LIBRARY_PATH.
    pub lib: PathBuf,
}

pub fn browser() -> Browser {
    let part = part("browser");
    Browser { program: existing(part.join("chromium/chromium-headless-shell")), lib: part.join("lib") }
}
