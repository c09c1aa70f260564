//! A program: what it links, what it would load, and whether cuwarden's library would be in it.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::cache;
use super::elf::{self, Elf, NotOne};
use super::libraries::DEFAULTS;
use super::model::{Line, Verdict};
use crate::diagnose::machine::{Place, folders};

/// A static runtime names these; a program that uses the driver alone has no use for the first.
const STATIC_RUNTIME: [&[u8]; 2] = [b"cudaErrorInsufficientDriver", b"cuGetProcAddress"];
/// Of a program that is searched for them.
const MOST_BYTES: u64 = 512 << 20;
const MOST_LIBRARIES: usize = 2000;

/// Where a command lies; `None`: there is no such program.
pub fn find(place: &Place, name: &str, path: Option<OsString>) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        fs::metadata(place.path(path)).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return std::path::absolute(name).ok().filter(is_program);
    }
    folders(&path?).map(|folder| folder.join(name)).find(is_program)
}

/// What was seen.
#[derive(Default)]
pub struct Seen {
    pub lines: Vec<Line>,
    /// The shared runtime's file, links resolved.
    pub runtime: Option<String>,
}

/// Looks at it.
pub fn look(place: &Place, program: &Path, library_path: &OsString) -> Seen {
    let mut seen = Seen::default();
    seen.lines = lines(place, program, library_path, &mut seen.runtime);
    seen
}

fn lines(place: &Place, program: &Path, library_path: &OsString, used: &mut Option<String>) -> Vec<Line> {
    let shown = program.display();
    let failed = |evidence: String, action: &str| Line::new("program", Verdict::Failed, evidence, action);
    let elf = match elf::read(&place.path(program)) {
        Ok(elf) => elf,
        Err(NotOne::Is32Bit) => {
            return vec![failed(
                format!("{shown} is a 32-bit program, which is not covered"),
                "Use a 64-bit build.",
            )];
        }
        Err(_) => {
            let what = format!("{shown} is a script or no ELF file: what it starts is not known");
            return vec![Line::new(
                "program",
                Verdict::Unknown,
                what,
                "Name the interpreter: cuwarden doctor -- python3",
            )];
        }
    };
    let mut lines = Vec::new();
    if !elf.is_native {
        lines.push(failed(format!("{shown} is for another processor"), "Use a build for this one."));
    } else if elf.interpreter.is_none() {
        let what = format!("{shown} is linked statically: no library can be preloaded into it");
        lines.push(failed(what, "Link it dynamically."));
    } else if elf.interpreter.as_deref().is_some_and(|path| path.contains("ld-musl")) {
        let what = format!("{shown} is made for musl, which is not covered");
        lines.push(failed(what, "Use a build for glibc."));
    }
    let mode = fs::metadata(place.path(program)).map_or(0, |meta| meta.permissions().mode());
    if mode & 0o6000 != 0 {
        let what = format!("{shown} is setuid or setgid: the loader ignores LD_PRELOAD and LD_LIBRARY_PATH");
        lines.push(failed(what, "Take the bit away, or name the library in /etc/ld.so.preload."));
    }
    if !lines.is_empty() {
        return lines;
    }
    let (loaded, missing) = closure(place, program, elf, library_path);
    lines.push(Line::ok("program", format!("{shown} links {} libraries", loaded.len())));
    lines.extend(missing.iter().map(|name| {
        let what = format!("the loader finds no {name}, which {shown} needs");
        Line::new("program", Verdict::Failed, what, "Install it, or put its folder into LD_LIBRARY_PATH.")
    }));
    let runtime = loaded.iter().find(|path| name_of(path).starts_with("libcudart"));
    let real = |path: &String| Some(fs::canonicalize(place.path(path)).ok()?.to_string_lossy().into_owned());
    *used = runtime.and_then(real);
    lines.push(match runtime {
        Some(path) => Line::ok("program_runtime", format!("the CUDA runtime is shared: {path}")),
        None if has_static_runtime(&place.path(program)) => {
            Line::ok("program_runtime", "the CUDA runtime is linked into the program")
        }
        None => Line::ok("program_runtime", "it links no CUDA runtime; it may load one later"),
    });
    lines
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// All that the loader would load, and names that it would not find.
fn closure(place: &Place, program: &Path, elf: Elf, library_path: &OsString) -> (Vec<String>, Vec<String>) {
    let cache = cache::read(&place.bytes("/etc/ld.so.cache").unwrap_or_default());
    let variable: Vec<String> =
        folders(library_path).map(|path| path.to_string_lossy().into_owned()).collect();
    // An RPATH holds for what its libraries need as well.
    let inherited = with_origin(&elf.rpath, program);
    let mut seen: HashSet<String> = HashSet::new();
    let (mut loaded, mut missing) = (Vec::new(), Vec::new());
    let mut waiting = vec![(program.to_owned(), elf)];
    while let Some((path, elf)) = waiting.pop() {
        let own = with_origin(&elf.rpath, &path);
        let runpath = with_origin(&elf.runpath, &path);
        for name in &elf.needed {
            if seen.len() > MOST_LIBRARIES || !seen.insert(name_of(name).to_owned()) {
                continue;
            }
            let before: &[String] = if elf.runpath.is_empty() { &inherited } else { &[] };
            let searched = own.iter().chain(before).chain(&variable).chain(&runpath);
            let cached = cache.iter().filter(|(known, _)| known == name).map(|(_, path)| path.clone());
            let candidates: Vec<String> = if name.contains('/') {
                vec![name.clone()]
            } else {
                let usual = DEFAULTS.iter().map(|folder| format!("{folder}/{name}"));
                searched.map(|folder| format!("{folder}/{name}")).chain(cached).chain(usual).collect()
            };
            let found = candidates.into_iter().find_map(|path| {
                let elf = elf::read(&place.path(&path)).ok().filter(|elf| elf.is_native)?;
                Some((path, elf))
            });
            match found {
                Some((path, elf)) => {
                    loaded.push(path.clone());
                    waiting.push((PathBuf::from(path), elf));
                }
                None => missing.push(name.clone()),
            }
        }
    }
    (loaded, missing)
}

fn with_origin(list: &[String], of: &Path) -> Vec<String> {
    let real = fs::canonicalize(of).unwrap_or_else(|_| of.to_owned());
    let folder = real.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
    list.iter().map(|one| one.replace("${ORIGIN}", &folder).replace("$ORIGIN", &folder)).collect()
}

fn has_static_runtime(path: &Path) -> bool {
    let Ok(file) = fs::File::open(path) else { return false };
    let mut bytes = Vec::new();
    let _ = file.take(MOST_BYTES).read_to_end(&mut bytes);
    STATIC_RUNTIME.iter().all(|words| bytes.windows(words.len()).any(|window| window == *words))
}
