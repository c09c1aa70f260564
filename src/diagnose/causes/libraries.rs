//! Causes in the libraries: which libcuda was loaded, and whether it fits the kernel module and the runtime.

use super::{Case, Found, Row, Weight, cuda};
use crate::diagnose::image::{self, Image};
use crate::diagnose::machine::{Mapped, folders};
use crate::diagnose::nvml;
use std::path::Path;

pub(super) const ROWS: &[Row] = &[
    Row { id: "stub_library", look: stub_library },
    Row { id: "no_driver_library", look: no_driver_library },
    Row { id: "version_mismatch", look: version_mismatch },
    Row { id: "compat_unusable", look: compat_unusable },
    Row { id: "driver_too_old", look: driver_too_old },
    Row { id: "library_path", look: library_path },
    Row { id: "missing_siblings", look: missing_siblings },
    Row { id: "wrong_image", look: wrong_image },
];

/// warp#219, numba#8985
fn stub_library(case: Case) -> Option<Found> {
    let stub = case.machine.libcuda().filter(|lib| lib.path.contains("/stubs/"));
    if stub.is_none() && case.code() != 34 {
        return None;
    }
    let from = stub.map_or_else(
        || "the loaded libcuda.so.1 says that it is a stub".to_owned(),
        |stub| format!("libcuda was loaded from {}, which is for linking only", stub.path),
    );
    let folder =
        stub.and_then(|stub| stub.path.rsplit_once('/')).map_or("the stubs folder", |(folder, _)| folder);
    Some(Found {
        weight: Weight::Certain,
        evidence: from,
        action: format!("Take {folder} out of LD_LIBRARY_PATH and RPATH. {}", right_one(case)),
    })
}

fn no_driver_library(case: Case) -> Option<Found> {
    if case.machine.libcuda().is_some() || !case.code_is(&[0, 35, 100, 500, 999]) {
        return None;
    }
    let installed = &case.machine.installed;
    let (evidence, weight) = match installed.first() {
        None => ("there is no libcuda.so.1 in the loader's usual folders".to_owned(), Weight::Certain),
        // Nobody has asked for it yet.
        Some(_) if case.code() == 0 => return None,
        Some(path) => (format!("libcuda.so.1 is not loaded, although there is {path}"), Weight::Likely),
    };
    let action = if case.machine.is_container {
        "Start the container with the GPU: --gpus all, a CDI device, or the nvidia runtime, and \
         NVIDIA_DRIVER_CAPABILITIES with compute in it."
    } else {
        "Install NVIDIA's driver, or let the loader find its libraries (ldconfig)."
    };
    Some(Found { weight, evidence, action: action.to_owned() })
}

/// gpu-operator#898, dask-cuda#949, nixl#441, nvidia-container-toolkit#234
fn version_mismatch(case: Case) -> Option<Found> {
    let library = case.machine.libcuda()?;
    if is_compat(&library.path) {
        return None;
    }
    let said = case.code() == 803 || case.nvml_said(nvml::VERSION_MISMATCH);
    let module = case.machine.kernel_module.as_ref();
    // NVML's own library may be the one that does not fit.
    let of_driver =
        |one: &&Mapped| ["libcuda.so", "libnvidia-ml.so"].iter().any(|name| one.name().starts_with(name));
    let other = case.machine.mapped.iter().filter(of_driver).find_map(|one| {
        let (module, release) = module.zip(one.release())?;
        (*module != release)
            .then(|| format!("the kernel module is {module}, and {} is of {release}", one.path))
    });
    let evidence = match other {
        Some(evidence) => evidence,
        None if said => format!(
            "the driver says that its parts do not fit together; kernel module {}, {}",
            module.map_or("not known".to_owned(), ToString::to_string),
            library.path
        ),
        None => return None,
    };
    let action = if case.machine.is_container {
        "The container has libraries of another driver than the host's kernel module. Do not install a driver in the \
         image; restart the container, so that the host's libraries are mounted anew."
    } else {
        "The driver was updated while its old kernel module stayed loaded. Restart the machine, or unload and load the \
         nvidia modules."
    };
    Some(Found {
        weight: if said { Weight::Certain } else { Weight::Likely },
        evidence,
        action: action.to_owned(),
    })
}

/// nvidia-docker#1515, TensorRT-LLM#1806
fn compat_unusable(case: Case) -> Option<Found> {
    let compat = case.machine.libcuda().filter(|lib| is_compat(&lib.path));
    if case.code() != 804 && !(case.code() == 803 && compat.is_some()) {
        return None;
    }
    let path = compat.map_or("a compatibility package", |lib| lib.path.as_str());
    let card = case.chain.and_then(|chain| chain.devices.first()).map(|device| device.name.clone());
    let module = case.machine.kernel_module.as_ref().map_or("not known".to_owned(), ToString::to_string);
    Some(Found {
        weight: Weight::Certain,
        evidence: format!(
            "libcuda comes from {path}, and the kernel module is {module}{}",
            card.map(|name| format!(", the card {name}")).unwrap_or_default()
        ),
        action: format!(
            "Forward compatibility works on data-centre cards only, and with kernel modules that the package names. Take \
             its folder out of LD_LIBRARY_PATH and ld.so.conf.d, or update the host's driver. {}",
            right_one(case)
        ),
    })
}

/// nvidia-docker#399, gpu-operator#1947
fn driver_too_old(case: Case) -> Option<Found> {
    let driver = case.known.driver_version.or_else(|| {
        let text =
            case.chain?.calls.iter().find(|call| call.call.starts_with("nvmlSystemGetCudaDriverVersion"))?;
        let (major, minor) = text.result.split_once('.')?;
        Some(major.parse::<u32>().ok()? * 1000 + minor.parse::<u32>().ok()? * 10)
    })?;
    let runtime = case.known.runtimes.iter().copied().max()?;
    let too_new = runtime / 1000 > driver / 1000 || (case.code_is(&[35, 222]) && runtime > driver);
    if !too_new {
        return None;
    }
    Some(Found {
        weight: if case.code_is(&[35, 222, 0]) { Weight::Certain } else { Weight::Possible },
        evidence: format!(
            "the runtime is CUDA {}, and the driver supports CUDA {}{}",
            cuda(runtime),
            cuda(driver),
            mapped_runtime(case, runtime)
                .map(|lib| format!("; the runtime is {}", lib.path))
                .unwrap_or_default()
        ),
        action: format!(
            "Update the driver to one for CUDA {} or newer, or use a build for CUDA {} or older. cuwarden check --driver \
             {} --runtime {} tells what fits.",
            cuda(runtime),
            cuda(driver),
            cuda(driver),
            cuda(runtime)
        ),
    })
}

/// The library that was loaded is not the driver's own, or not the program's own runtime, because somebody's path comes
/// first.
fn library_path(case: Case) -> Option<Found> {
    let paths = case.machine.variable("LD_LIBRARY_PATH")?.into();
    let has = |library: &Mapped| {
        let (folder, _) = library.path.rsplit_once('/')?;
        folders(&paths).any(|path| path == Path::new(folder)).then(|| folder.to_owned())
    };
    let of_driver = || {
        let library = case.machine.libcuda().filter(|_| case.code_is(&[3, 34, 35, 100, 803, 804, 999]))?;
        let folder = has(library)?;
        let usual = case.machine.installed.iter().find(|path| !path.starts_with(&folder))?;
        Some((folder, format!("{} was loaded instead of {usual}", library.path)))
    };
    let of_runtime = || {
        let newest = case.known.runtimes.iter().copied().max().filter(|_| case.code_is(&[35, 222]))?;
        let library = mapped_runtime(case, newest)?;
        Some((
            has(library)?,
            format!("{} was loaded, and not a runtime that the program brings", library.path),
        ))
    };
    let (folder, what) = of_driver().or_else(of_runtime)?;
    Some(Found {
        weight: Weight::Likely,
        evidence: format!("LD_LIBRARY_PATH has {folder}, so {what}"),
        action: format!("Take {folder} out of LD_LIBRARY_PATH."),
    })
}

/// The shared runtime of that version's major.
fn mapped_runtime(case: Case<'_>, version: u32) -> Option<&Mapped> {
    let start = format!("libcudart.so.{}", version / 1000);
    case.machine.mapped.iter().find(|one| {
        one.name().strip_prefix(&start).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// NVIDIA_DRIVER_CAPABILITIES without "compute", or libraries that were copied one by one.
fn missing_siblings(case: Case) -> Option<Found> {
    if !case.code_is(&[3, 100, 221, 500, 803, 999]) {
        return None;
    }
    let capabilities = case.machine.variable("NVIDIA_DRIVER_CAPABILITIES");
    let no_compute = capabilities
        .as_deref()
        .filter(|value| !value.split(',').any(|one| matches!(one.trim(), "compute" | "all")));
    let missing = &case.machine.missing_siblings;
    let named = capabilities.as_deref().map(|value| format!("NVIDIA_DRIVER_CAPABILITIES={value}"));
    let evidence = match (missing.is_empty(), no_compute) {
        (true, None) => return None,
        // To start, CUDA needs none of them.
        (false, None) if case.code() != 221 => return None,
        (true, Some(_)) => named.unwrap_or_default(),
        (false, _) => {
            let folder = case.machine.libcuda().map_or("libcuda", |lib| lib.path.as_str());
            let rest = named.map(|text| format!(" ({text})")).unwrap_or_default();
            format!("{} is missing beside {folder}{rest}", missing.join(" and "))
        }
    };
    let jit = missing.iter().any(|name| name.contains("ptxjit"));
    Some(Found {
        weight: if case.code() == 221 && jit { Weight::Certain } else { Weight::Possible },
        evidence,
        action: "Set NVIDIA_DRIVER_CAPABILITIES=compute,utility and start the container anew, or install the driver's \
                 libraries as a whole."
            .to_owned(),
    })
}

/// A module for another architecture, or PTX that this driver cannot compile.
fn wrong_image(case: Case) -> Option<Found> {
    if !case.code_is(&[200, 209, 218, 222]) {
        return None;
    }
    let card = case.known.architecture.map(|sm| format!("sm_{sm}"));
    let holds = case.known.image.as_ref().map(Image::describe);
    let evidence = match (&card, &holds) {
        (Some(card), Some(holds)) => format!("the card is {card}, and the module holds {holds}"),
        (Some(card), None) => format!("the card is {card}; what the module holds could not be read"),
        (None, Some(holds)) => format!("the module holds {holds}"),
        (None, None) => return None,
    };
    let fits =
        case.known.image.as_ref().zip(case.known.architecture).map(|(image, sm)| image::fits(image, sm));
    let action = match (case.code(), &card) {
        (222, _) => "The PTX is of a newer CUDA than the driver. Update the driver, or build with the driver's CUDA version \
                     or for this architecture."
            .to_owned(),
        (_, Some(card)) => {
            format!("Build it for {card} too, for example nvcc -gencode arch=compute_XX,code=sm_XX, or ship PTX.")
        }
        (_, None) => "Build it for this card's architecture, or ship PTX.".to_owned(),
    };
    Some(Found {
        weight: if fits == Some(false) || case.code() == 222 { Weight::Certain } else { Weight::Likely },
        evidence,
        action,
    })
}

fn is_compat(path: &str) -> bool {
    path.contains("/compat/")
}

fn right_one(case: Case) -> String {
    case.machine.installed.iter().find(|path| !path.contains("/stubs/") && !is_compat(path)).map_or_else(
        || "The driver's own was not found.".to_owned(),
        |path| format!("The driver's own is {path}."),
    )
}
