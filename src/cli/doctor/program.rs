//! A program: what it links, what it would load, and whether cuwarden's library would be in it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::closure::{Closure, Loader, Object, name_of};
use super::elf::{self, Elf, NotOne};
use super::libraries::release;
use super::model::{Line, Verdict};
use super::runtime::{self, Used};
use super::script::{self, Followed};
use crate::diagnose::machine::{Place, folders};
use crate::policy::versions::release::Release;

/// Libraries that a program or its runtime opens by name.
const DRIVERS: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

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
    /// The runtimes that it would use.
    pub runtimes: Vec<Used>,
    /// The file that runs, links resolved: /proc/self/exe of the process.
    pub executable: String,
}

/// What is known of the machine besides.
pub struct Around<'a> {
    pub library_path: OsString,
    pub path: Option<OsString>,
    /// The driver's library that a program without paths of its own gets, links resolved.
    pub libcuda: Option<&'a str>,
    pub kernel_module: Option<&'a Release>,
}

/// Looks at a command: a program, or a script that one runs. `arguments`: what stands after it.
pub fn look(place: &Place, command: &Path, arguments: &[OsString], around: &Around) -> Seen {
    let followed = script::follow(place, command, arguments, around.path.as_ref());
    let mut seen = Seen::default();
    seen.lines.extend(way(&followed));
    if followed.broken.is_none() && !is_for_a_shell(&followed) {
        let program = &followed.program;
        seen.executable = place.real(program).unwrap_or_else(|| program.to_string_lossy().into_owned());
        of_file(place, program, around, &mut seen);
    }
    seen
}

fn way(followed: &Followed) -> Vec<Line> {
    let program = followed.program.display();
    let Some(first) = followed.through.first() else {
        return followed.broken.iter().map(|why| broken(why)).collect();
    };
    if let Some(why) = &followed.broken {
        return vec![broken(why)];
    }
    if is_for_a_shell(followed) {
        return vec![Line::new(
            "program",
            Verdict::Unknown,
            format!("{} is a script for {program}: what it starts is not known", first.display()),
            "Name the program that it starts: cuwarden doctor -- PROGRAM",
        )];
    }
    vec![Line::ok("program", format!("{} is run by {program}", first.display()))]
}

/// Which libraries a shell has says nothing about what it starts.
fn is_for_a_shell(followed: &Followed) -> bool {
    let is_script = followed.through.iter().any(|path| path.file_name().is_none_or(|name| name != "env"));
    is_script && script::is_shell(&followed.program)
}

fn broken(why: &str) -> Line {
    Line::new(
        "program",
        Verdict::Failed,
        why,
        "Correct the first line of the script, or install its interpreter.",
    )
}

fn of_file(place: &Place, program: &Path, around: &Around, seen: &mut Seen) {
    let shown = program.display();
    let failed = |evidence: String, action: &str| Line::new("program", Verdict::Failed, evidence, action);
    let elf = match elf::read(&place.path(program)) {
        Ok(elf) => elf,
        Err(NotOne::Is32Bit(machine)) => {
            let what =
                format!("{shown} is a 32-bit program ({}), which is not covered", elf::processor(machine));
            return seen.lines.push(failed(what, "Use a 64-bit build."));
        }
        Err(_) => {
            return seen.lines.push(Line::new(
                "program",
                Verdict::Unknown,
                format!("{shown} is neither an ELF file nor a script with an interpreter: what it starts is not known"),
                "Name the interpreter: cuwarden doctor -- python3",
            ));
        }
    };
    let wrong = cannot_be_covered(place, program, &elf);
    if !wrong.is_empty() {
        // A static program can hold a runtime all the same.
        if elf.is_native {
            seen.runtimes.extend(linked_in(place, &seen.executable));
        }
        return seen.lines.extend(wrong);
    }
    let loader = Loader::new(place, &around.library_path);
    let closure = loader.closure(program, elf);
    seen.lines.push(Line::ok("program", format!("{shown} links {} libraries", closure.objects.len() - 1)));
    seen.lines.extend(closure.missing.iter().map(|name| {
        let what = format!("the loader finds no {name}, which {shown} needs");
        Line::new("program", Verdict::Failed, what, "Install it, or put its folder into LD_LIBRARY_PATH.")
    }));
    let shared = closure.objects.iter().find(|one| name_of(&one.path).starts_with("libcudart"));
    seen.lines.extend(runtimes(place, &closure, shared, &mut seen.runtimes));
    let asker = shared.or(closure.objects.first());
    seen.lines
        .extend(DRIVERS.iter().filter_map(|name| driver(place, &loader, &closure, name, asker?, around)));
}

/// Why no library can be preloaded into it.
fn cannot_be_covered(place: &Place, program: &Path, elf: &Elf) -> Vec<Line> {
    let shown = program.display();
    let failed = |evidence: String, action: &str| Line::new("program", Verdict::Failed, evidence, action);
    let mut lines = Vec::new();
    let is_musl = elf.interpreter.as_deref().is_some_and(|path| path.contains("ld-musl"))
        || elf.needed.iter().any(|name| name.starts_with("libc.musl"));
    if !elf.is_native {
        let (its, ours) = (elf::processor(elf.machine), std::env::consts::ARCH);
        let what = format!("{shown} is for another processor ({its}), and this command is for {ours}");
        lines.push(failed(what, "Use a build for this processor."));
    } else if is_musl {
        let what = format!("{shown} is made for musl: NVIDIA's libraries and cuwarden need glibc");
        lines.push(failed(what, "Use a build for glibc, and an image that is based on it."));
    } else if elf.interpreter.is_none() {
        let what = format!("{shown} is linked statically: no library can be preloaded into it");
        lines.push(failed(what, "Link it dynamically."));
    }
    let mode = fs::metadata(place.path(program)).map_or(0, |meta| meta.permissions().mode());
    if mode & 0o6000 != 0 {
        let what = format!("{shown} is setuid or setgid: the loader ignores LD_PRELOAD and LD_LIBRARY_PATH");
        lines.push(failed(what, "Take the bit away, or name the library in /etc/ld.so.preload."));
    }
    lines
}

/// The shared runtime, and those that are linked into the program and its libraries.
fn runtimes(place: &Place, closure: &Closure, shared: Option<&Object>, used: &mut Vec<Used>) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(one) = shared {
        let real = place.real(&one.path).unwrap_or_else(|| one.path.clone());
        let version = runtime::shared(&place.path(&one.path), &real);
        let of = version.map(|known| format!(", CUDA {}", runtime::shown(known))).unwrap_or_default();
        let text = format!("the CUDA runtime is shared: {} ({}){of}", one.path, one.found_by);
        lines.push(Line::ok("program_runtime", text));
        used.push(Used { path: real, version });
    }
    for (index, one) in closure.objects.iter().enumerate().filter(|(_, one)| may_hold_one(one)) {
        let Some(found) = linked_in(place, &one.path) else { continue };
        let of = found.version.map(|known| format!(": CUDA {}", runtime::shown(known))).unwrap_or_default();
        let into = if index == 0 { "the program" } else { &one.path };
        lines.push(Line::ok("program_runtime", format!("the CUDA runtime is linked into {into}{of}")));
        used.push(found);
    }
    if used.is_empty() {
        lines.push(Line::ok("program_runtime", "it links no CUDA runtime; it may load one later"));
    }
    lines
}

fn linked_in(place: &Place, path: &str) -> Option<Used> {
    Some(Used { path: path.to_owned(), version: runtime::linked_in(&place.path(path))? })
}

/// The system's libraries hold none, and NVIDIA's own go with their toolkit.
fn may_hold_one(one: &Object) -> bool {
    let name = name_of(&one.path);
    let is_nvidias = ["libcu", "libnv", "libnpp", "libnccl"].iter().any(|start| name.starts_with(start));
    !is_nvidias && !matches!(one.found_by, "ld.so.cache" | "the loader's own folders")
}

/// Where the program's own paths lead it to another driver's library than the system's.
fn driver(
    place: &Place,
    loader: &Loader,
    closure: &Closure,
    name: &str,
    asker: &Object,
    around: &Around,
) -> Option<Line> {
    let linked = closure.objects.iter().find(|one| name_of(&one.path) == name);
    let found = linked.cloned().or_else(|| loader.search(name, asker))?;
    if !matches!(found.found_by, "RPATH" | "RUNPATH") {
        return None;
    }
    let real = place.real(&found.path).unwrap_or_else(|| found.path.clone());
    let by = found.found_by;
    let whose = if linked.is_some() { "a file that it loads" } else { asker.path.as_str() };
    let text = format!("{name} comes from {}, by the {by} of {whose}", found.path);
    let folder = found.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let out =
        format!("Take {folder} out of the {by}: patchelf --print-rpath shows it, --set-rpath changes it.");
    if found.path.contains("/stubs/") {
        let text = format!("{text}: it is for linking only, and CUDA fails with it (34)");
        return Some(Line::new("program_driver", Verdict::Failed, text, out));
    }
    let module = around.kernel_module.filter(|_| !found.path.contains("/compat/"));
    if let Some((module, of)) = module.zip(release(&real)).filter(|(module, of)| module.to_string() != *of) {
        let text = format!("{text}; it is of release {of}, and the kernel module is {module}");
        return Some(Line::new("program_driver", Verdict::Failed, text, out));
    }
    match around.libcuda.filter(|system| name == "libcuda.so.1" && *system != real) {
        Some(system) => {
            Some(Line::new("program_driver", Verdict::Warning, format!("{text}, and not from {system}"), out))
        }
        None => Some(Line::ok("program_driver", text)),
    }
}
