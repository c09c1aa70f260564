//! What the loader would load for a program, and from where. It follows ld.so(8).

use std::collections::{HashSet, VecDeque};
use std::ffi::OsString;
use std::path::Path;

use super::cache;
use super::elf::{self, Elf};
use super::libraries::{DEFAULTS, searched};
use crate::diagnose::machine::Place;

const MOST_LIBRARIES: usize = 2000;

/// A file that is loaded.
#[derive(Clone, Debug)]
pub struct Object {
    /// As the loader names it.
    pub path: String,
    pub elf: Elf,
    /// How it was found; empty for the program.
    pub found_by: &'static str,
    /// Folders of its own DT_RPATH and of those that loaded it.
    rpath: Vec<String>,
    /// Folders of its DT_RUNPATH, which counts for what it asks for itself.
    runpath: Vec<String>,
}

/// All that is loaded.
pub struct Closure {
    /// The program first, then in the loader's order.
    pub objects: Vec<Object>,
    /// Names that would not be found.
    pub missing: Vec<String>,
}

/// Where the loader of a program searches.
pub struct Loader<'a> {
    place: &'a Place,
    variable: Vec<String>,
    cache: Vec<(String, String)>,
}

impl<'a> Loader<'a> {
    pub fn new(place: &'a Place, library_path: &OsString) -> Loader<'a> {
        let variable = searched(library_path);
        let cache = cache::read(&place.bytes("/etc/ld.so.cache").unwrap_or_default());
        Loader { place, variable, cache }
    }

    /// All that the program needs, and what that needs.
    pub fn closure(&self, program: &Path, elf: Elf) -> Closure {
        // The kernel names the program by its real path, a library is known by the one that it was found at.
        let real = self.place.real(program).unwrap_or_else(|| program.to_string_lossy().into_owned());
        let first = object(real, elf, "", &[]);
        let mut closure = Closure { objects: vec![first.clone()], missing: Vec::new() };
        let mut seen: HashSet<String> = HashSet::new();
        let mut waiting = VecDeque::from([first]);
        while let Some(parent) = waiting.pop_front() {
            for name in &parent.elf.needed {
                if seen.len() >= MOST_LIBRARIES || !seen.insert(name_of(name).to_owned()) {
                    continue;
                }
                match self.search(name, &parent) {
                    Some(found) => {
                        closure.objects.push(found.clone());
                        waiting.push_back(found);
                    }
                    None => closure.missing.push(name.clone()),
                }
            }
        }
        closure
    }

    /// What this object gets when it asks for a name, by DT_NEEDED or dlopen.
    pub fn search(&self, name: &str, by: &Object) -> Option<Object> {
        let candidate = |path: String, found_by: &'static str| {
            let elf = elf::read(&self.place.path(&path)).ok().filter(|elf| elf.is_native)?;
            Some(object(path, elf, found_by, &by.rpath))
        };
        if name.contains('/') {
            return candidate(name.to_owned(), "its path");
        }
        let in_folders = |folders: &[String], found_by| {
            folders
                .iter()
                .find_map(|folder| candidate(format!("{}/{name}", folder.trim_end_matches('/')), found_by))
        };
        // A RUNPATH makes the loader forget every RPATH.
        let rpath: &[String] = if by.runpath.is_empty() { &by.rpath } else { &[] };
        let cached = || self.cache.iter().filter(|(known, _)| known == name);
        in_folders(rpath, "RPATH")
            .or_else(|| in_folders(&self.variable, "LD_LIBRARY_PATH"))
            .or_else(|| in_folders(&by.runpath, "RUNPATH"))
            .or_else(|| cached().find_map(|(_, path)| candidate(path.clone(), "ld.so.cache")))
            .or_else(|| in_folders(&DEFAULTS.map(str::to_owned), "the loader's own folders"))
    }
}

fn object(path: String, elf: Elf, found_by: &'static str, inherited: &[String]) -> Object {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
    let expand = |list: &[String]| list.iter().flat_map(|one| expanded(one, &folder)).collect::<Vec<_>>();
    let runpath = expand(&elf.runpath);
    let rpath = expand(&elf.rpath).into_iter().chain(inherited.iter().cloned()).collect();
    Object { path, elf, found_by, rpath, runpath }
}

/// With $ORIGIN, $LIB and $PLATFORM as the loader replaces them. Distributions differ in $LIB, so both are tried.
fn expanded(folder: &str, origin: &str) -> Vec<String> {
    let token = |text: &str, name: &str, with: &str| {
        text.replace(&format!("${{{name}}}"), with).replace(&format!("${name}"), with)
    };
    let here = token(&token(folder, "ORIGIN", origin), "PLATFORM", std::env::consts::ARCH);
    let debian = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    let mut both: Vec<String> = ["lib64", &debian].iter().map(|lib| token(&here, "LIB", lib)).collect();
    both.dedup();
    both
}

pub fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens() {
        assert_eq!(expanded("$ORIGIN/../lib:x", "/opt/a"), ["/opt/a/../lib:x"]);
        assert_eq!(expanded("${ORIGIN}", "/opt/a"), ["/opt/a"]);
        let lib = expanded("/x/$LIB", "/");
        assert_eq!((lib.len(), lib[0].as_str()), (2, "/x/lib64"));
        assert!(lib[1].starts_with("/x/lib/") && lib[1].ends_with("-linux-gnu"));
    }
}
