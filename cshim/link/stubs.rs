//! Stand-ins for the C library to link against, so that every reference binds as it would on glibc 2.17.
//!
//! The linker binds a reference to the default version of the library it sees. So it gets to see libraries made
//! here: the names of the C library of this machine, each at its newest version up to 2.17, nothing newer. On a
//! later glibc those versions still exist. A name that came after 2.17 is missing here: a weak reference to it
//! stays open and without a version (found at run time where the C library has it), any other fails the link.
//!
//! libpthread and libdl have no stand-in: `c/late.S` reaches their functions without needing them. From glibc 2.34
//! on libc has them too, and at old versions, so those names are left out here and an unlisted one fails the link.

use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, Sym as _, VersionTable};
use object::{Endianness, StringTable};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest glibc that the library must load in.
const BASELINE: Version = Version([2, 17, 0]);

/// Where libpthread, libdl, librt, libutil, libanl and libresolv went into libc. Their functions have this default
/// version or a later one, and in an older glibc they are not in libc. Some of libpthread's moved earlier.
const MERGE: Version = Version([2, 34, 0]);
const MOVED_EARLIER: &str = "pthread_";

/// File of the C library, name of the stand-in.
const LIBRARIES: [(&str, &str); 3] = [
    ("libc.so.6", "libcuwarden_c.so"),
    ("ld-linux-x86-64.so.2", "libcuwarden_ld.so"),
    ("libm.so.6", "libm.so"),
];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version([u32; 3]);

impl Version {
    /// `GLIBC_2.2.5`; anything else, such as `GLIBC_PRIVATE`, is none.
    fn parse(name: &str) -> Option<Self> {
        let mut parts = [0; 3];
        let mut fields = name.strip_prefix("GLIBC_")?.split('.');
        for (part, field) in parts.iter_mut().zip(&mut fields) {
            *part = field.parse().ok()?;
        }
        fields.next().is_none().then_some(Self(parts))
    }
}

struct Symbol {
    version: (Version, String),
    default: Option<Version>,
    data: Option<u64>,
}

/// Writes the stand-ins into `dir`, under the names that `-lc` and its like look for.
pub(crate) fn write(compiler: &cc::Tool, linker: &[String], dir: &Path) -> Result<(), String> {
    fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    for (file, stub) in LIBRARIES {
        let path = locate(compiler, file)?;
        println!("cargo::rerun-if-changed={}", path.display());
        let symbols = read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        link(compiler, linker, dir, file, stub, &symbols)?;
    }
    let script = |name: &str, text: String| {
        fs::write(dir.join(name), text).map_err(|e| format!("{}: {e}", dir.join(name).display()))
    };
    script(
        "libc.so",
        format!("INPUT({0}/libcuwarden_c.so AS_NEEDED({0}/libcuwarden_ld.so))\n", dir.display()),
    )?;
    // The unwinder goes into the library: a process without C++ does not load libgcc_s.
    script("libgcc_s.so", format!("INPUT({})\n", locate(compiler, "libgcc_eh.a")?.display()))?;
    // Named by Rust's std and its guests, and not needed.
    ["libpthread.so", "libdl.so", "librt.so", "libutil.so"]
        .into_iter()
        .try_for_each(|name| script(name, "/* nothing */\n".to_owned()))
}

/// The C compiler's idea of where a library is.
fn locate(compiler: &cc::Tool, file: &str) -> Result<PathBuf, String> {
    let output = compiler
        .to_command()
        .arg(format!("-print-file-name={file}"))
        .output()
        .map_err(|e| format!("{}: {e}", compiler.path().display()))?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if path.is_absolute() && path.exists() {
        return Ok(path);
    }
    Err(format!("{} does not know {file}", compiler.path().display()))
}

/// The library's names, each with its newest version up to the baseline.
fn read(path: &Path) -> Result<BTreeMap<String, Symbol>, Box<dyn std::error::Error>> {
    let data = fs::read(path)?;
    let data = data.as_slice();
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let versions: VersionTable<'_, FileHeader64<Endianness>> =
        sections.versions(endian, data)?.ok_or("no symbol versions: not glibc")?;
    let dynsym = sections.symbols(endian, data, elf::SHT_DYNSYM)?;
    let strings: StringTable<'_> = dynsym.strings();
    let mut found: BTreeMap<String, Symbol> = BTreeMap::new();
    let mut defaults: BTreeMap<String, Version> = BTreeMap::new();

    for (index, symbol) in dynsym.enumerate() {
        if symbol.is_undefined(endian) || symbol.is_local() {
            continue;
        }
        let name = std::str::from_utf8(symbol.name(endian, strings)?)?;
        let node = versions.version_index(endian, index);
        let Some(node_name) = versions.version(node.into())?.map(|v| v.name()) else {
            continue;
        };
        let node_name = std::str::from_utf8(node_name)?;
        let Some(version) = Version::parse(node_name) else {
            continue;
        };
        if !node.is_hidden() {
            defaults.insert(name.to_owned(), version);
        }
        let kind = symbol.st_type();
        if version > BASELINE
            || kind == elf::STT_TLS
            || found.get(name).is_some_and(|s| s.version.0 > version)
        {
            continue;
        }
        let entry = Symbol {
            version: (version, node_name.to_owned()),
            default: None,
            data: (kind == elf::STT_OBJECT).then(|| symbol.st_size(endian)),
        };
        found.insert(name.to_owned(), entry);
    }
    found.retain(|name, symbol| {
        symbol.default = defaults.get(name).copied();
        match symbol.default {
            // Only kept for old programs: no compiler can have meant it.
            None => false,
            Some(default) => default < MERGE && (default <= BASELINE || !name.starts_with(MOVED_EARLIER)),
        }
    });
    Ok(found)
}

/// Assembles a library that has these names at these versions, and no code.
fn link(
    compiler: &cc::Tool,
    linker: &[String],
    dir: &Path,
    soname: &str,
    stub: &str,
    symbols: &BTreeMap<String, Symbol>,
) -> Result<(), String> {
    let mut code = String::from(".section .note.GNU-stack,\"\",@progbits\n.bss\n");
    let mut nodes: BTreeMap<&str, String> = BTreeMap::new();
    for (name, symbol) in symbols {
        let (kind, size) = symbol.data.map_or(("function", 1), |size| ("object", size.max(1)));
        let _ = writeln!(code, ".globl {name}\n.type {name},@{kind}\n.size {name},{size}\n{name}: .zero 1");
        let _ = write!(nodes.entry(&symbol.version.1).or_default(), " {name};");
    }
    let map: String = if nodes.is_empty() {
        "{ local: *; };\n".to_owned()
    } else {
        nodes.iter().fold(String::new(), |mut map, (node, names)| {
            let _ = writeln!(map, "{node} {{ global:{names} }};");
            map
        })
    };
    let source = dir.join(stub).with_extension("s");
    let script = dir.join(stub).with_extension("map");
    for (path, text) in [(&source, &code), (&script, &map)] {
        fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let mut command: Command = compiler.to_command();
    command
        .args(linker)
        .args(["-shared", "-nostdlib", "-o"])
        .arg(dir.join(stub))
        .arg(&source)
        .arg(format!("-Wl,-soname,{soname}"))
        .arg(format!("-Wl,--version-script={}", script.display()));
    let output = command.output().map_err(|e| format!("{}: {e}", compiler.path().display()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("cannot make a stand-in for {soname}: {}", String::from_utf8_lossy(&output.stderr)))
}
