//! CUDA's libraries that the loader can reach, and the packages that bring some. Only reads.

use std::ffi::OsString;

use super::model::{Library, Package};
use super::{cache, ld_conf, runtime};
use crate::diagnose::machine::{Place, folders};
use crate::policy::versions::release::Release;

/// glibc's own, on Debian and elsewhere.
pub const DEFAULTS: [&str; 8] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// Folders that hold site-packages, with a Python's folder between.
const PYTHONS: [&str; 4] = ["/usr/lib", "/usr/local/lib", "/opt/conda/lib", "/opt/venv/lib"];

/// More than any machine has; a fake one must not hold us up.
const MOST: usize = 500;

type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// What was found.
#[derive(Default)]
pub struct Found {
    /// In the loader's order.
    pub libraries: Vec<Library>,
    pub packages: Vec<Package>,
    /// In a folder that ld.so.conf names, and not in the cache.
    pub not_in_cache: Vec<String>,
}

impl Found {
    /// What a program that asks for this name gets.
    pub fn first(&self, name: &str) -> Option<&Library> {
        self.libraries.iter().find(|library| library.is_first && library.name == name)
    }
}

/// Looks around. `first`: folders of a program's RPATH, which come before all others.
pub fn look(place: &Place, variable: Variable, first: &[String]) -> Found {
    let mut found = Found::default();
    for folder in first {
        add_folder(place, folder, "RPATH", &mut found.libraries);
    }
    let path = variable("LD_LIBRARY_PATH").unwrap_or_default();
    for folder in searched(&path) {
        add_folder(place, &folder, "LD_LIBRARY_PATH", &mut found.libraries);
    }
    for (name, path) in cache::read(&place.bytes("/etc/ld.so.cache").unwrap_or_default()) {
        if is_of_interest(&name) {
            add(place, &name, path, "ld.so.cache", &mut found.libraries);
        }
    }
    for folder in DEFAULTS {
        add_folder(place, folder, "the loader's own folders", &mut found.libraries);
    }
    let reached = found.libraries.len();
    let mut configured = Vec::new();
    for folder in ld_conf::folders(place) {
        add_folder(place, &folder, "ld.so.conf", &mut configured);
    }
    let is_new = |one: &Library| found.libraries.iter().all(|known| known.file != one.file);
    found.not_in_cache = configured.into_iter().filter(is_new).map(|one| one.path).collect();
    mark_first(&mut found.libraries);
    for site in sites(place, variable) {
        look_at_site(place, &site, &mut found);
    }
    if let Some(prefix) = variable("CONDA_PREFIX").map(|value| value.to_string_lossy().into_owned()) {
        add_folder(place, &format!("{prefix}/lib"), "conda", &mut found.libraries);
        conda_packages(place, &prefix, &mut found.packages);
    }
    // The loader does not look there by itself: nothing in them is the first of its name.
    found.libraries.iter_mut().skip(reached).for_each(|one| one.is_first = false);
    found.packages.sort();
    found.packages.dedup();
    found
}

/// Folders of LD_LIBRARY_PATH. The loader takes relative ones from the working directory.
pub fn searched(path: &OsString) -> Vec<String> {
    let whole = folders(path).map(|folder| std::path::absolute(&folder).unwrap_or(folder));
    whole.map(|folder| folder.to_string_lossy().into_owned()).collect()
}

fn is_of_interest(name: &str) -> bool {
    name == "libcuda.so.1"
        || name == "libnvidia-ml.so.1"
        // libcudart.so.12, and no libcudart.so.12.9.79, which nobody asks for.
        || name.strip_prefix("libcudart.so.").is_some_and(|rest| rest == "11.0" || !rest.contains('.'))
}

fn add_folder(place: &Place, folder: &str, found_by: &'static str, to: &mut Vec<Library>) {
    let folder = folder.trim_end_matches('/');
    for name in place.names(folder).into_iter().filter(|name| is_of_interest(name)) {
        add(place, &name, format!("{folder}/{name}"), found_by, to);
    }
}

fn add(place: &Place, name: &str, path: String, found_by: &'static str, to: &mut Vec<Library>) {
    let Some(file) = place.real(&path) else { return };
    if to.len() < MOST && to.iter().all(|known| known.file != file || known.name != name) {
        let is_runtime = name.starts_with("libcudart");
        let runtime = if is_runtime { runtime::shared(&place.path(&path), &file) } else { None };
        to.push(Library { name: name.to_owned(), path, file, found_by, is_first: false, runtime });
    }
}

fn mark_first(libraries: &mut [Library]) {
    let mut seen: Vec<String> = Vec::new();
    for library in libraries {
        library.is_first = !seen.contains(&library.name);
        if library.is_first {
            seen.push(library.name.clone());
        }
    }
}

fn sites(place: &Place, variable: Variable) -> Vec<String> {
    let text = |name: &str| variable(name).map(|value| value.to_string_lossy().into_owned());
    let mut parents: Vec<String> = PYTHONS.map(str::to_owned).to_vec();
    parents.extend(["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| Some(text(name)? + "/lib")));
    parents.extend(text("HOME").map(|home| home + "/.local/lib"));
    let mut sites: Vec<String> = variable("PYTHONPATH").as_ref().map_or_else(Vec::new, |paths| {
        folders(paths).map(|path| path.to_string_lossy().into_owned()).collect()
    });
    for parent in parents {
        for python in place.names(&parent).into_iter().filter(|name| name.starts_with("python3")) {
            sites.extend(["site-packages", "dist-packages"].map(|kind| format!("{parent}/{python}/{kind}")));
        }
    }
    sites.dedup();
    sites
}

fn look_at_site(place: &Place, site: &str, found: &mut Found) {
    for part in place.names(&format!("{site}/nvidia")) {
        add_folder(place, &format!("{site}/nvidia/{part}/lib"), "pip", &mut found.libraries);
    }
    for name in place.names(site) {
        let Some((package, version)) = name.strip_suffix(".dist-info").and_then(|name| name.rsplit_once('-'))
        else {
            continue;
        };
        if package.starts_with("nvidia_cuda_runtime") || ["torch", "jaxlib", "tensorflow"].contains(&package)
        {
            found.packages.push(Package {
                name: package.replace('_', "-"),
                version: version.to_owned(),
                path: format!("{site}/{name}"),
            });
        }
    }
}

fn conda_packages(place: &Place, prefix: &str, packages: &mut Vec<Package>) {
    let folder = format!("{prefix}/conda-meta");
    for name in place.names(&folder) {
        // cuda-cudart-12.9.79-h5888daf_0.json
        let parts = name.strip_suffix(".json").and_then(|rest| rest.rsplit_once('-'));
        let Some((package, version)) = parts.and_then(|(rest, _build)| rest.rsplit_once('-')) else {
            continue;
        };
        if ["cuda-cudart", "cuda-version", "cudatoolkit", "pytorch"].contains(&package) {
            packages.push(Package {
                name: package.to_owned(),
                version: version.to_owned(),
                path: format!("{folder}/{name}"),
            });
        }
    }
}

/// The release in the name of a driver's file, as in libcuda.so.535.183.01.
pub fn release(file: &str) -> Option<String> {
    let (_, rest) = file.rsplit('/').next()?.split_once(".so.")?;
    Release::parse_whole(rest).map(|release| release.to_string())
}
