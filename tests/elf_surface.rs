//! What the loader sees of `libcuwarden.so`; and the command exports nothing.
//!
//! `cshim/exports.list` is the committed list of exports, a line each: `name` for the base version, `name@node` for
//! a version that look-ups by name do not see, `name@@node` for a node's default.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _, Sym as _};
use object::{Endianness, StringTable};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const SONAME: &str = "libcuwarden.so";
const FIRST_NODE: &str = "CUWARDEN";
const NEEDED: [&str; 2] = ["ld-linux-x86-64.so.2", "libc.so.6"];
const BASELINE: [u32; 3] = [2, 17, 0];
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// `scripts/release` strips; the build here keeps names and lines, so only what is loaded counts.
const MAX_LOADED_BYTES: u64 = 1 << 20;

/// The parts of an ELF file that these tests read.
struct Elf {
    exports: Vec<Export>,
    imports: Vec<Import>,
    needed: BTreeSet<String>,
    soname: Option<String>,
    flags: u64,
    flags_1: u64,
    text_relocations: bool,
    executable_stack: bool,
    loaded_bytes: u64,
}

struct Export {
    /// As in the list.
    shown: String,
    /// The first node has number 2.
    node: u16,
    first_bytes: Vec<u8>,
}

struct Import {
    name: String,
    version: Option<String>,
    weak: bool,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

impl Elf {
    fn read(path: &Path) -> Self {
        let data = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let data = data.as_slice();
        let header = FileHeader64::<Endianness>::parse(data).unwrap();
        let endian = header.endian().unwrap();
        let segments = header.program_headers(endian, data).unwrap();
        let sections = header.sections(endian, data).unwrap();
        let versions = sections.versions(endian, data).unwrap();
        let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM).unwrap();
        let strings: StringTable<'_> = symbols.strings();
        let dynamic = sections.dynamic_table(endian, data).unwrap();

        let mut file = Self {
            exports: Vec::new(),
            imports: Vec::new(),
            needed: BTreeSet::new(),
            soname: None,
            flags: 0,
            flags_1: 0,
            text_relocations: false,
            executable_stack: true, // So it is where no segment says otherwise.
            loaded_bytes: 0,
        };
        for entry in dynamic.iter() {
            let string = || text(dynamic.string(entry).unwrap());
            match entry.tag {
                elf::DT_NEEDED => drop(file.needed.insert(string())),
                elf::DT_SONAME => file.soname = Some(string()),
                elf::DT_FLAGS => file.flags = entry.val,
                elf::DT_FLAGS_1 => file.flags_1 = entry.val,
                elf::DT_TEXTREL => file.text_relocations = true,
                _ => {}
            }
        }
        for segment in segments {
            match segment.p_type(endian) {
                elf::PT_GNU_STACK => file.executable_stack = segment.p_flags(endian).contains(elf::PF_X),
                elf::PT_LOAD => file.loaded_bytes += segment.p_filesz(endian),
                _ => {}
            }
        }
        for (index, symbol) in symbols.enumerate().filter(|(_, s)| !s.is_local()) {
            let name = text(symbol.name(endian, strings).unwrap());
            let node = versions.as_ref().map(|v| v.version_index(endian, index));
            let version =
                node.and_then(|n| versions.as_ref()?.version(n.into()).unwrap()).map(|v| text(v.name()));
            if symbol.is_undefined(endian) {
                let weak = symbol.st_bind() == elf::STB_WEAK;
                file.imports.push(Import { name, version, weak });
                continue;
            }
            let shown = match (version, node) {
                // The base version is named by the soname.
                (Some(version), Some(node)) if file.soname.as_ref() != Some(&version) => {
                    format!("{name}{}{version}", if node.is_hidden() { "@" } else { "@@" })
                }
                _ => name,
            };
            let address = symbol.st_value(endian);
            let first_bytes = segments
                .iter()
                .find_map(|s| s.data_range(endian, data, address, 4).unwrap())
                .unwrap_or_default()
                .to_vec();
            let node = node.map_or(0, |n| elf::VersionIndex::from(n).0);
            file.exports.push(Export { shown, node, first_bytes });
        }
        file
    }
}

/// `target/<profile>`: this test lies in its `deps`.
fn profile_dir() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).expect("target/<profile>/deps/<test>").to_owned()
}

fn library() -> Elf {
    let path = profile_dir().join(SONAME);
    assert!(
        path.exists(),
        "{} is not built; run: cargo build{} -p cuwarden-cshim",
        path.display(),
        match profile_dir().file_name().and_then(|n| n.to_str()) {
            Some("debug") => String::new(),
            Some(profile) => format!(" --profile {profile}"),
            None => String::new(),
        }
    );
    Elf::read(&path)
}

#[test]
fn the_exports_are_exactly_those_of_the_committed_list() {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("cshim/exports.list");
    let listed = fs::read_to_string(&list).unwrap_or_else(|e| panic!("{}: {e}", list.display()));
    let listed: BTreeSet<String> = listed
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    let exported: BTreeSet<String> = library().exports.into_iter().map(|e| e.shown).collect();
    let missing: Vec<_> = listed.difference(&exported).collect();
    let unlisted: Vec<_> = exported.difference(&listed).collect();
    assert!(
        missing.is_empty() && unlisted.is_empty(),
        "{}\n  listed but not exported: {missing:?}\n  exported but not listed: {unlisted:?}",
        list.display()
    );
}

#[test]
fn entries_of_the_driver_are_in_the_first_node_where_unversioned_references_find_them() {
    let suffix = format!("@{FIRST_NODE}");
    let exports = library().exports;
    let of_the_driver = |e: &&Export| {
        e.shown.starts_with("cu") && !e.shown.starts_with("cuda") || e.shown.starts_with("nvml")
    };
    assert!(exports.iter().any(|e| of_the_driver(&e)), "no entry of the driver at all");
    for export in exports.iter().filter(of_the_driver) {
        assert!(
            export.shown.ends_with(&suffix) && !export.shown.contains("@@") && export.node == 2,
            "{}: node {}, not the hidden first node",
            export.shown,
            export.node
        );
    }
}

#[test]
fn every_entry_may_be_the_target_of_an_indirect_call_under_cet() {
    for export in library().exports {
        assert_eq!(export.first_bytes, ENDBR64, "{}", export.shown);
    }
}

#[test]
fn nothing_but_libc_is_needed_and_nothing_newer_than_2_17() {
    let library = library();
    assert_eq!(library.needed, BTreeSet::from(NEEDED.map(str::to_owned)));
    for Import { name, version, weak } in library.imports {
        match version {
            // Without a version: taken where the C library has it, else NULL.
            None => assert!(weak, "{name}: neither a version nor weak"),
            Some(version) => assert!(is_baseline(&version), "{name}@{version}"),
        }
    }
}

fn is_baseline(version: &str) -> bool {
    let mut parts = [0; 3];
    let Some(numbers) = version.strip_prefix("GLIBC_") else {
        return false;
    };
    for (index, number) in numbers.split('.').enumerate() {
        match (parts.get_mut(index), number.parse()) {
            (Some(part), Ok(number)) => *part = number,
            _ => return false,
        }
    }
    parts <= BASELINE
}

#[test]
fn the_file_is_what_a_preloaded_library_must_be() {
    let library = library();
    assert_eq!(library.soname.as_deref(), Some(SONAME));
    assert_ne!(library.flags_1 & elf::DF_1_NODELETE.0, 0, "could be unloaded");
    assert_ne!(library.flags & elf::DF_BIND_NOW.0, 0, "binds lazily");
    assert!(!library.text_relocations && library.flags & elf::DF_TEXTREL.0 == 0, "text relocations");
    assert!(!library.executable_stack, "executable stack");
    if !cfg!(debug_assertions) {
        assert!(library.loaded_bytes < MAX_LOADED_BYTES, "{} bytes", library.loaded_bytes);
    }
}

#[test]
fn the_command_exports_nothing() {
    let Some(command) = option_env!("CARGO_BIN_EXE_cuwarden") else {
        panic!("built without the feature cli, so there is no command to look at");
    };
    let exports: Vec<String> = Elf::read(Path::new(command)).exports.into_iter().map(|e| e.shown).collect();
    assert_eq!(exports, [""; 0]);
}
