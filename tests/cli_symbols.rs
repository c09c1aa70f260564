//! Names and source lines of real programs, as the compiler on this machine makes them.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod cli_support;

use std::path::{Path, PathBuf};
use std::process::Command;

use cli_support::{Temp, compile, must};
use cuwarden::report::Report;
use cuwarden::report::model::{Frame, Leak, Module};
use cuwarden::report::symbols::Symbolizer;

/// Prints the return address inside `keep_weights`, as an address of the ELF file: what the shim records.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
static ElfW(Addr) bias_of(void *address) {
    struct link_map *map;
    Dl_info info;
    dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP);
    return map->l_addr;
}
__attribute__((noinline)) void allocate(void) {
    void *address = __builtin_return_address(0);
    printf("%lx\n", (unsigned long)address - bias_of(address));
}
static inline __attribute__((always_inline)) void load_layer(void) {
    allocate(); /* inner */
    __asm__ volatile("");
}
__attribute__((noinline)) void keep_weights(void) {
    load_layer(); /* outer */
    __asm__ volatile("");
}
"#;
const MAIN: &str = "int main(void) { keep_weights(); return 0; }\n";

fn source(temp: &Temp, name: &str, main: bool) -> PathBuf {
    temp.write(name, format!("{PROGRAM}{}", if main { MAIN } else { "" }))
}

fn offset(program: &Path) -> u64 {
    u64::from_str_radix(must(&mut Command::new(program)).trim(), 16).unwrap()
}

fn build_id(file: &Path) -> String {
    let notes = must(Command::new("readelf").arg("-n").arg(file));
    notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).unwrap_or_default().to_owned()
}

/// What is said of one return address.
fn resolve(symbolizer: &mut Symbolizer, module: &Path, build_id: &str, offset: u64) -> Vec<Frame> {
    let path = module.display().to_string();
    let mut report = Report {
        // Long after the programs of this test were compiled.
        started_at: Some("2200-01-01T00:00:00.000Z".to_owned()),
        modules: vec![Module { path: path.clone(), build_id: build_id.to_owned() }],
        leaks: vec![Leak {
            stack: vec![Frame { module: Some(path), offset, ..Frame::default() }],
            ..Leak::default()
        }],
        ..Report::default()
    };
    symbolizer.resolve(&mut report);
    report.leaks.remove(0).stack
}

/// The two calls of `PROGRAM`, where its text has them.
fn calls() -> [String; 2] {
    let line = |mark: &str| 1 + PROGRAM.lines().position(|line| line.contains(mark)).unwrap();
    [
        format!("load_layer train.c:{} inlined", line("/* inner */")),
        format!("keep_weights train.c:{}", line("/* outer */")),
    ]
}

fn names(frames: &[Frame]) -> Vec<String> {
    let name = |frame: &Frame| {
        let file = frame.file.as_deref().and_then(|f| Path::new(f).file_name()).unwrap_or_default();
        let function = frame.function.as_deref().unwrap_or("?");
        let inlined = if frame.inlined { " inlined" } else { "" };
        format!("{function} {}:{}{inlined}", file.display(), frame.line.unwrap_or(0))
    };
    frames.iter().map(name).collect()
}

#[test]
fn position_independent_or_not_with_or_without_frame_pointers() {
    let temp = Temp::new("symbols-plain");
    let source = source(&temp, "train.c", true);
    for (index, flags) in [
        ["-O2", "-pie", "-fPIE"],
        ["-O2", "-no-pie", "-fno-pie"],
        ["-O2", "-fomit-frame-pointer", "-pie"],
        ["-O1", "-gdwarf-4", "-pie"],
        ["-O1", "-gdwarf-5", "-gz"],
    ]
    .into_iter()
    .enumerate()
    {
        let program = temp.join(&format!("train-{index}"));
        compile(&source, &program, &flags);
        let frames = resolve(&mut Symbolizer::default(), &program, &build_id(&program), offset(&program));
        assert_eq!(names(&frames), calls(), "{flags:?}");
    }
}

#[test]
fn shared_libraries() {
    let temp = Temp::new("symbols-shared");
    let library = temp.join("libtrain.so");
    compile(&source(&temp, "train.c", false), &library, &["-O2", "-shared", "-fPIC", "-Wl,--build-id"]);
    let main =
        temp.write("main.c", "void keep_weights(void); int main(void) { keep_weights(); return 0; }\n");
    let program = temp.join("main");
    compile(&main, &program, &["-O2", library.to_str().unwrap()]);
    let frames = resolve(&mut Symbolizer::default(), &library, &build_id(&library), offset(&program));
    assert_eq!(names(&frames), calls());
}

#[test]
fn a_call_that_ends_its_function_belongs_to_it() {
    // abort() does not return, so the return address is the first of the next function.
    let temp = Temp::new("symbols-last");
    let source = temp.write(
        "last.c",
        "#include <stdlib.h>\n__attribute__((noinline)) void gives_up(void) {\n    abort();\n}\n\
         __attribute__((noinline)) void next(void) { __asm__ volatile(\"nop\"); }\n\
         int main(int n, char **v) { if (n > 1) gives_up(); next(); return 0; }\n",
    );
    let program = temp.join("last");
    compile(&source, &program, &["-O2", "-fno-reorder-functions", "-no-pie", "-falign-functions=1"]);
    let symbols = must(Command::new("nm").arg("-S").arg(&program));
    let row = symbols.lines().find(|line| line.ends_with(" gives_up")).unwrap();
    let number = |field: usize| u64::from_str_radix(row.split_whitespace().nth(field).unwrap(), 16).unwrap();
    let end = number(0) + number(1);
    let frames = resolve(&mut Symbolizer::default(), &program, &build_id(&program), end);
    assert_eq!(names(&frames), ["gives_up last.c:3"]);
}

#[test]
fn a_stripped_program_gets_its_lines_from_the_file_with_its_build_id() {
    let temp = Temp::new("symbols-stripped");
    let program = temp.join("train");
    compile(&source(&temp, "train.c", true), &program, &["-O2", "-Wl,--build-id"]);
    let (id, offset) = (build_id(&program), offset(&program));
    let debug = temp.join("train.debug");
    must(Command::new("objcopy").arg("--only-keep-debug").arg(&program).arg(&debug));
    must(Command::new("strip").arg(&program));

    // Nothing is left but an address, and no name is invented.
    let frames = resolve(&mut Symbolizer::default(), &program, &id, offset);
    assert_eq!(names(&frames), ["? :0"]);
    assert_eq!(frames[0].problem.as_deref(), Some("no symbol"));

    // Where the distribution puts it.
    let root = temp.join("debug-root");
    let folder = root.join(".build-id").join(&id[..2]);
    std::fs::create_dir_all(&folder).unwrap();
    let installed = folder.join(format!("{}.debug", &id[2..]));
    std::fs::copy(&debug, &installed).unwrap();
    let frames = resolve(&mut Symbolizer::new(root.clone()), &program, &id, offset);
    assert_eq!(names(&frames), calls());

    // A file of that name for another build is not believed.
    compile(&source(&temp, "other.c", true), &installed, &["-O0", "-Wl,--build-id"]);
    let frames = resolve(&mut Symbolizer::new(root), &program, &id, offset);
    assert_eq!(names(&frames), ["? :0"]);

    // Where a debug link points.
    let link = format!("--add-gnu-debuglink={}", debug.display());
    must(Command::new("objcopy").arg(link).arg(&program));
    let frames = resolve(&mut Symbolizer::default(), &program, &id, offset);
    assert_eq!(names(&frames), calls());
}

#[test]
fn without_debug_information_the_symbol_table_names_the_function() {
    let temp = Temp::new("symbols-table");
    let program = temp.join("train");
    compile(&source(&temp, "train.c", true), &program, &["-O2", "-g0"]);
    let frames = resolve(&mut Symbolizer::default(), &program, &build_id(&program), offset(&program));
    assert_eq!(names(&frames), ["keep_weights :0"]);
    assert_eq!(frames[0].problem.as_deref(), Some("no line information"));
    // A stripped library still has the names that it exports.
    let library = temp.join("libtrain.so");
    compile(&source(&temp, "train2.c", false), &library, &["-O2", "-shared", "-fPIC", "-s"]);
    let main =
        temp.write("main.c", "void keep_weights(void); int main(void) { keep_weights(); return 0; }\n");
    let user = temp.join("main");
    compile(&main, &user, &[library.to_str().unwrap()]);
    let frames = resolve(&mut Symbolizer::default(), &library, &build_id(&library), offset(&user));
    assert_eq!(names(&frames), ["keep_weights :0"]);
}

#[test]
fn a_replaced_file_gives_no_wrong_names() {
    let temp = Temp::new("symbols-replaced");
    let source = source(&temp, "train.c", true);
    let program = temp.join("train");
    compile(&source, &program, &["-O2", "-Wl,--build-id"]);
    let (id, offset) = (build_id(&program), offset(&program));
    compile(&source, &program, &["-O0", "-Wl,--build-id"]);
    assert_ne!(build_id(&program), id);
    let frames = resolve(&mut Symbolizer::default(), &program, &id, offset);
    assert_eq!(names(&frames), ["? :0"]);
    assert_eq!(frames[0].problem.as_deref(), Some("the file was replaced since"));
    // The one that ran had no build-id, this one has.
    let frames = resolve(&mut Symbolizer::default(), &program, "", offset);
    assert_eq!(frames[0].problem.as_deref(), Some("the file was replaced since"));

    std::fs::remove_file(&program).unwrap();
    let frames = resolve(&mut Symbolizer::default(), &program, &id, offset);
    assert_eq!(frames[0].problem.as_deref(), Some("the file is gone"));
}

#[test]
fn without_a_build_id_the_age_of_the_file_decides() {
    let temp = Temp::new("symbols-age");
    let program = temp.join("train");
    compile(&source(&temp, "train.c", true), &program, &["-O2", "-Wl,--build-id=none"]);
    let offset = offset(&program);
    assert_eq!(build_id(&program), "");
    let frames = resolve(&mut Symbolizer::default(), &program, "", offset);
    assert_eq!(names(&frames).len(), 2);
    // A clock that the process did not live to see.
    let path = program.display().to_string();
    let mut report = Report {
        started_at: Some("2001-01-01T00:00:00.000Z".to_owned()),
        modules: vec![Module { path: path.clone(), build_id: String::new() }],
        leaks: vec![Leak {
            stack: vec![Frame { module: Some(path), offset, ..Frame::default() }],
            ..Leak::default()
        }],
        ..Report::default()
    };
    Symbolizer::default().resolve(&mut report);
    let problem = report.leaks[0].stack[0].problem.as_deref().unwrap();
    assert!(problem.contains("changed since"), "{problem}");
}

#[test]
fn what_is_no_elf_file_is_no_danger() {
    let temp = Temp::new("symbols-bad");
    must(Command::new("mkfifo").arg(temp.join("pipe")));
    let text = temp.write("text", "not an ELF file");
    let program = temp.join("train");
    compile(&source(&temp, "train.c", true), &program, &["-O2"]);
    let good = std::fs::read(&program).unwrap();
    let mut paths = vec![
        temp.join("pipe"),
        temp.path().to_owned(),
        text,
        PathBuf::from("/dev/zero"),
        PathBuf::from("[vdso]"),
    ];
    // Cut short, and with bytes changed all over.
    for (index, length) in [64, 1000, good.len() / 2, good.len() - 1].into_iter().enumerate() {
        paths.push(temp.write(&format!("cut-{index}"), &good[..length]));
    }
    for index in 0..40 {
        let mut bad = good.clone();
        for at in (index * 7..bad.len()).step_by(61) {
            bad[at] = bad[at].wrapping_mul(31).wrapping_add(index as u8);
        }
        bad[..20].copy_from_slice(&good[..20]);
        paths.push(temp.write(&format!("bad-{index}"), bad));
    }
    for path in paths {
        let frames = resolve(&mut Symbolizer::default(), &path, "", 0x1160);
        assert!(!frames.is_empty());
        // Once more without a recorded build-id check in the way.
        let mut report = Report {
            leaks: vec![Leak {
                stack: vec![Frame {
                    module: Some(path.display().to_string()),
                    offset: 0x1160,
                    ..Frame::default()
                }],
                ..Leak::default()
            }],
            ..Report::default()
        };
        Symbolizer::default().resolve(&mut report);
    }
}

#[test]
fn cpp_names_are_demangled() {
    let temp = Temp::new("symbols-cpp");
    let text = PROGRAM.replace("void keep_weights(void)", "void keep_weights_c(void)");
    let source = temp.write(
        "train.cc",
        format!("{text}\nnamespace net {{ template <class T> struct Layer {{ __attribute__((noinline)) void load(T) {{ allocate(); __asm__ volatile(\"\"); }} }}; }}\nint main() {{ net::Layer<int>().load(1); }}\n"),
    );
    let program = temp.join("train");
    if Command::new("c++").arg("--version").output().is_err() {
        eprintln!("not tested: there is no C++ compiler");
        return;
    }
    must(Command::new("c++").args(["-g", "-O2", "-w", "-o"]).arg(&program).arg(&source));
    let frames = resolve(&mut Symbolizer::default(), &program, &build_id(&program), offset(&program));
    let name = frames[0].function.as_deref().unwrap();
    assert!(name.contains("net::Layer<int>::load"), "{name}");
}

/// Looks up with a limit in time: a pipe that somebody opens does not come back.
fn resolve_in_time(module: &Path, offset: u64) -> Vec<String> {
    let (module, (to, from)) = (module.to_owned(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        let frames = resolve(&mut Symbolizer::default(), &module, &build_id(&module), offset);
        let _ = to.send(names(&frames));
    });
    from.recv_timeout(std::time::Duration::from_secs(60)).expect("it does not come back")
}

fn parts_of(temp: &Temp) -> Vec<PathBuf> {
    let files = std::fs::read_dir(temp.path()).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|ending| ending == "dwo")).collect()
}

#[test]
fn debug_information_that_was_split_off() {
    let temp = Temp::new("symbols-split");
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let program = temp.join("train");
        let source = source(&temp, "train.c", true);
        compile(&source, &program, &["-O2", "-gsplit-dwarf", version, "-Wl,--build-id"]);
        let offset = offset(&program);
        let parts = parts_of(&temp);
        assert!(!parts.is_empty(), "{version}: nothing was split off");
        assert_eq!(resolve_in_time(&program, offset), calls(), "{version}");

        // All parts in one file.
        let package = temp.join("train.dwp");
        let packed = Command::new("dwp").arg("-e").arg(&program).arg("-o").arg(&package).status();
        parts.iter().for_each(|part| std::fs::remove_file(part).unwrap());
        if packed.is_ok_and(|status| status.success()) {
            assert_eq!(resolve_in_time(&program, offset), calls(), "{version}, in a package");
        } else {
            eprintln!("not tested: there is no dwp for {version}");
        }
        let _ = std::fs::remove_file(&package);

        // What the program itself has is still known: the function, and perhaps the line.
        let rest = resolve_in_time(&program, offset);
        assert!(rest.last().is_some_and(|name| name.starts_with("keep_weights ")), "{version}: {rest:?}");
        // Where the parts should be is something that does not end.
        for pipe in parts.iter().chain([&package]) {
            must(Command::new("mkfifo").arg(pipe));
            assert_eq!(resolve_in_time(&program, offset), rest, "{version}: {}", pipe.display());
            std::fs::remove_file(pipe).unwrap();
            std::os::unix::fs::symlink("/dev/zero", pipe).unwrap();
            assert_eq!(resolve_in_time(&program, offset), rest, "{version}: {}", pipe.display());
            std::fs::remove_file(pipe).unwrap();
        }
    }
}

#[test]
fn debug_information_that_a_link_names() {
    let temp = Temp::new("symbols-links");
    let pipe = temp.join("pipe");
    must(Command::new("mkfifo").arg(&pipe));
    let program = temp.join("train");
    compile(&source(&temp, "train.c", true), &program, &["-O2", "-Wl,--build-id"]);
    let offset = offset(&program);
    let link = [pipe.as_os_str().as_encoded_bytes(), b"\0", &[7; 20]].concat();
    let link = format!(".gnu_debugaltlink={}", temp.write("link", link).display());
    must(Command::new("objcopy").arg("--add-section").arg(link).arg(&program));
    assert_eq!(resolve_in_time(&program, offset), calls());

    // The same for a program that has none itself, and says where it is: beside it.
    let other = temp.write("other.debug", "");
    must(Command::new("objcopy").arg("--strip-all").arg("--remove-section=.gnu_debugaltlink").arg(&program));
    must(Command::new("objcopy").arg(format!("--add-gnu-debuglink={}", other.display())).arg(&program));
    std::fs::remove_file(&other).unwrap();
    must(Command::new("mkfifo").arg(&other));
    assert_eq!(resolve_in_time(&program, offset), ["? :0"]);
}

/// The most memory that this process ever mapped, in bytes.
fn most_mapped() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// A few bytes that say they become gigabytes.
#[test]
fn what_a_compressed_section_claims_is_not_believed() {
    use object::{Object, ObjectSection};
    let temp = Temp::new("symbols-claims");
    let source = source(&temp, "train.c", true);
    for flag in ["-gz=zlib", "-gz=zstd"] {
        let program = temp.join("train");
        let made =
            Command::new("cc").args(["-g", "-O2", "-w", flag, "-o"]).arg(&program).arg(&source).status();
        if !made.is_ok_and(|status| status.success()) {
            eprintln!("not tested: this compiler has no {flag}");
            continue;
        }
        let offset = offset(&program);
        assert_eq!(resolve_in_time(&program, offset), calls(), "{flag}");
        let bytes = std::fs::read(&program).unwrap();
        let elf = object::File::parse(&*bytes).unwrap();
        let (at, packed) = elf.section_by_name(".debug_info").unwrap().file_range().unwrap();
        for claimed in [3 << 30, packed * 2000, 1 << 40, u64::MAX] {
            let mut bad = bytes.clone();
            // Kind, nothing, size.
            bad[at as usize + 8..][..8].copy_from_slice(&claimed.to_le_bytes());
            let bad = temp.write("bad", bad);
            let before = most_mapped();
            assert_eq!(resolve_in_time(&bad, offset), ["keep_weights :0"], "{flag} {claimed}");
            let grown = most_mapped() - before;
            assert!(grown < 1 << 30, "{flag}: {grown} bytes were mapped for {packed}");
        }
    }
}
