//! Makes the seeds in corpus/ anew: what the fuzzer begins with. Needs cc, c++, strip and objcopy.
//!
//!     cargo run --example seeds
//!
//! They are in the repository, so this is needed only when a format changes or a target is added.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cuwarden::record::layout::{Class, FRAME_MODULE_SHIFT, RECORD_BYTES};
use cuwarden::record::snapshot::Snapshot;
use cuwarden::report::{Report, Termination};
use cuwarden_fuzz::image;

fn main() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let records = records();
    for (name, seed) in &records {
        write(&corpus.join("record"), name, seed);
    }
    for (name, seed) in reports(&records) {
        write(&corpus.join("report_file"), &name, &seed);
    }
    for (n, text) in CONFIGURATIONS.iter().enumerate() {
        write(&corpus.join("config"), &format!("{n:02}"), text.as_bytes());
    }
    for (name, steps) in ledgers() {
        write(&corpus.join("ledger"), name, &steps);
    }
    let work = std::env::temp_dir().join(format!("cuwarden-seeds-{}", std::process::id()));
    fs::create_dir_all(&work).expect("a working directory");
    unwind(&corpus.join("unwind"), &work);
    symbols(&corpus.join("symbols"), &work);
    fs::remove_dir_all(work).expect("the working directory goes");
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    fs::create_dir_all(folder).expect("a folder for seeds");
    fs::write(folder.join(name), bytes).expect("a seed");
}

// ---------------------------------------------------------------------------------------------- record files

/// The steps of [`image`].
#[derive(Default)]
struct Steps(Vec<u8>);

impl Steps {
    fn header(mut self, offset: usize, bytes: &[u8]) -> Steps {
        self.0.push(0);
        self.0.extend((offset as u16).to_le_bytes());
        self.0.push(bytes.len() as u8);
        self.0.extend(bytes);
        self
    }

    fn number(self, offset: usize, value: u32) -> Steps {
        self.header(offset, &value.to_le_bytes())
    }

    fn area(mut self, area: u8, bytes: &[u8]) -> Steps {
        self.0.push(area);
        self.0.extend((bytes.len() as u16).to_le_bytes());
        self.0.extend(bytes);
        self
    }

    fn process(self) -> Steps {
        use cuwarden::record::layout::Header;
        use std::mem::offset_of;
        let texts: [(usize, &[u8]); 3] = [
            (offset_of!(Header, exe), b"/opt/app/trainer"),
            (offset_of!(Header, cmdline), b"trainer\0--epochs\x003\0"),
            (offset_of!(Header, labels), b"arm=A,cuda=12.9,odd"),
        ];
        let mut steps = self
            .number(offset_of!(Header, pid), 4242)
            .header(offset_of!(Header, started_ns), &1_796_090_584_567_000_000u64.to_le_bytes())
            .number(offset_of!(Header, driver_version), 13000)
            .number(offset_of!(Header, stack_depth), 24)
            .number(offset_of!(Header, runtime_versions), 12090);
        for (n, (offset, text)) in texts.into_iter().enumerate() {
            steps = steps
                .header(offset, text)
                .number(offset_of!(Header, text_lengths) + n * 4, text.len() as u32);
        }
        steps
    }

    fn device(self, ordinal: usize, limit: u64) -> Steps {
        use cuwarden::record::layout::{Counts, Device, Header};
        use std::mem::offset_of;
        let at = offset_of!(Header, devices) + ordinal * size_of::<Device>();
        let (uuid, name) = (b"GPU-00", b"Simulated GPU");
        self.number(at + offset_of!(Device, present), 1)
            .number(at + offset_of!(Device, text_lengths), (uuid.len() | name.len() << 16) as u32)
            .header(at + offset_of!(Device, uuid), uuid)
            .header(at + offset_of!(Device, name), name)
            .header(at + offset_of!(Device, limit_bytes), &limit.to_le_bytes())
            .header(at + offset_of!(Device, peak_bytes), &(3u64 << 30).to_le_bytes())
            .header(at + offset_of!(Device, denied_count), &1u64.to_le_bytes())
            .number(offset_of!(Header, counts) + ordinal * size_of::<Counts>(), 9)
    }

    fn record(self, class: Class, bytes: u64, stack: u32, device: u8) -> Steps {
        let mut record = Vec::with_capacity(RECORD_BYTES);
        for word in [0x7f00_0000_0000 + bytes, bytes, 1_000_000_007, 0x1234_5670] {
            record.extend(u64::to_le_bytes(word));
        }
        let kind = 1 | (class as u32) << 8 | 2 << 16;
        let place = u32::from(device) | 1 << 8 | 27 << 16;
        for word in [stack, 4243, kind, place] {
            record.extend(u32::to_le_bytes(word));
        }
        self.area(1, &record)
    }

    fn stack(self, frames: &[u64]) -> Steps {
        let mut stack = 77u64.to_le_bytes().to_vec();
        stack.extend((frames.len() as u64).to_le_bytes());
        frames.iter().for_each(|frame| stack.extend(frame.to_le_bytes()));
        self.area(2, &stack)
    }

    fn module(self, id: u32, path: &[u8], build_id: &[u8]) -> Steps {
        let mut entry = Vec::new();
        let whole = (24 + path.len() + build_id.len()).next_multiple_of(8);
        for number in [id, path.len() as u32, build_id.len() as u32, whole as u32] {
            entry.extend(number.to_le_bytes());
        }
        entry.extend(0x5555_0000_0000u64.to_le_bytes());
        entry.extend(path);
        entry.extend(build_id);
        entry.resize(whole, 0);
        self.area(3, &entry)
    }

    /// The live bytes of one call stack in the first places, and when they were taken.
    fn course(mut self, class: Class, stack: u32, samples: &[(u64, u64)]) -> Steps {
        use cuwarden::record::layout::{Header, SERIES_BYTES, Series};
        use std::mem::offset_of;
        let mut entry = vec![0; SERIES_BYTES];
        let mut put = |at: usize, value: &[u8]| entry[at..at + value.len()].copy_from_slice(value);
        put(offset_of!(Series, stack), &stack.to_le_bytes());
        put(offset_of!(Series, place), &(1u32 << 8 | 27 << 16).to_le_bytes());
        put(offset_of!(Series, kind), &(1 | (class as u32) << 8 | 2 << 16).to_le_bytes());
        for (n, (at_ns, bytes)) in samples.iter().enumerate() {
            put(offset_of!(Series, bytes) + n * 8, &bytes.to_le_bytes());
            self = self.header(offset_of!(Header, sample_ns) + n * 8, &at_ns.to_le_bytes());
        }
        self.area(5, &entry)
    }

    fn note(self, json: &str) -> Steps {
        let mut entry = 1u32.to_le_bytes().to_vec();
        entry.extend((json.len() as u32).to_le_bytes());
        entry.extend(json.as_bytes());
        entry.resize(entry.len().next_multiple_of(8), 0);
        self.area(4, &entry)
    }
}

const FAILURE: &str = r#"{"event":"init_failure","api":"cuInit","name":"CUDA_ERROR_SYSTEM_NOT_READY","code":802,
"device":0,"stack":[{"module":"/opt/app/trainer","offset":4096,"function":null,"file":null,"line":null}],
"nvml_chain":[{"call":"nvmlInit_v2","args":"","name":"NVML_SUCCESS","result":0}],
"causes":[{"id":"fabric","evidence":"it is not running","action":"start it"}]}"#;

fn records() -> Vec<(&'static str, Vec<u8>)> {
    let classes = [
        Class::Pointer,
        Class::Array,
        Class::MipmappedArray,
        Class::Physical,
        Class::PoolReserve,
        Class::GraphReserve,
        Class::Module,
    ];
    let frame = |module: u64, address: u64| module << FRAME_MODULE_SHIFT | address;
    let with_stacks = || {
        Steps::default()
            .process()
            .device(0, 1 << 30)
            .module(1, b"/opt/app/trainer", &[7; 20])
            .module(2, b"/opt/app/libcudart.so.12\x1b[2J", &[])
            .stack(&[frame(2, 0x100), frame(1, 0x1234), frame(1, 0x99), frame(0, 0xdead_beef)])
            .stack(&[frame(3, 0x100), frame(1, 0x1235)])
            .record(Class::Pointer, 1 << 20, 1, 0)
            .record(Class::Pointer, 1 << 20, 1, 0)
            .record(Class::Pointer, 512, 7, 0)
    };
    let of_each = classes
        .iter()
        .enumerate()
        .fold(Steps::default().process().device(0, 0).device(1, 0), |steps, (n, &class)| {
            steps.record(class, 4096 << n, 0, n as u8 % 2)
        });
    let mut grown = with_stacks().0;
    grown.extend([8, 0, 8, 1, 8, 2]);
    let grown = Steps(grown).record(Class::Array, 77, 1, 0).module(9, b"later", &[1; 64]);
    let mut cut = with_stacks().note(FAILURE).0;
    cut.extend([7]);
    cut.extend(70_000u32.to_le_bytes());
    let samples: Vec<(u64, u64)> = (1..20u64).map(|n| (n * 20_000_000, n << 19)).collect();
    vec![
        ("course", with_stacks().course(Class::Pointer, 1, &samples).0),
        ("empty", Vec::new()),
        ("process", Steps::default().process().0),
        ("classes", of_each.0),
        ("stacks", with_stacks().0),
        ("grown", grown.0),
        ("failure", Steps::default().process().note(FAILURE).0),
        ("cut", cut),
    ]
}

fn reports(records: &[(&str, Vec<u8>)]) -> Vec<(String, Vec<u8>)> {
    let mut seeds = vec![
        ("array-of-none".to_owned(), b"[]".to_vec()),
        ("other-schema".to_owned(), b"{\"schema\":\"cuwarden.report/2\"}".to_vec()),
        ("no-report".to_owned(), b"# notes".to_vec()),
        ("not-begun".to_owned(), vec![0; 16]),
        ("short-record-file".to_owned(), b"cuwarden\x01\0\0\0\0\0\0\0".to_vec()),
    ];
    for (name, seed) in records {
        let snapshot = Snapshot::from_bytes(&image::unpack(seed).bytes()).expect("a seed that is readable");
        let mut report = Report::from_snapshot(&snapshot, Termination::Killed, u64::MAX);
        // A name that is not there: the fuzzer need not read the machine's files.
        report.modules.iter_mut().for_each(|module| module.path.insert_str(0, "/proc/self/fd/none"));
        let json = serde_json::to_vec(&report).expect("JSON");
        seeds.push(((*name).to_owned(), json.clone()));
        if *name == "stacks" {
            seeds.push(("array".to_owned(), [b"[", &json[..], b",\n", &json[..], b"]"].concat()));
        }
    }
    seeds
}

// --------------------------------------------------------------------------------------------------- ledgers

/// The steps of targets/ledger.rs.
#[derive(Clone, Default)]
struct Ledger(Vec<u8>);

impl Ledger {
    fn shared(mut self, field: u8, value: u64) -> Ledger {
        self.0.extend([0, field]);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// `kind`: 1 = of a slot, 2 = of its lanes.
    fn of_slot(mut self, kind: u8, slot: u16, field: u8, value: u64) -> Ledger {
        self.0.push(kind);
        self.0.extend(slot.to_le_bytes());
        self.0.push(field);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn length(mut self, bytes: u32) -> Ledger {
        self.0.push(4);
        self.0.extend(bytes.to_le_bytes());
        self
    }

    fn operation(mut self, kind: u8, bytes: u32) -> Ledger {
        self.0.extend([5, kind]);
        self.0.extend(bytes.to_le_bytes());
        self
    }
}

fn ledgers() -> Vec<(&'static str, Vec<u8>)> {
    use cuwarden::ledger::layout::LANES_AT;
    let mib = 1 << 20;
    let joined = || Ledger::default().operation(0, 0);
    // Of the kinds of operations those whose number is a multiple of 3 have the size that is given.
    let at_work = |ledger: Ledger| {
        let ledger = ledger.operation(3, 40 * mib).operation(0, 3 * mib).operation(21, 3 * mib);
        ledger.operation(0, 30 * mib).operation(6, mib).operation(4, mib).operation(15, 0)
    };
    // Slots of the dead, with lanes that hold something: fields as in the target's lists.
    let with_dead = |ledger: Ledger| {
        let ledger = ledger.length(LANES_AT as u32 + 4096).shared(6, 3).shared(8, 1).shared(14, 9 << 20);
        (1..3).fold(ledger, |ledger, slot| {
            let ledger =
                ledger.of_slot(1, slot, 0, 2).of_slot(1, slot, 1, 1).of_slot(1, slot, 2, 0x7fff_fff0);
            ledger.of_slot(2, slot, 0, 4 << 20).of_slot(2, slot, 9, 1 << 23 | 1 << 20)
        })
    };
    vec![
        ("joined", at_work(joined()).0),
        (
            "limits",
            joined().operation(12, mib).operation(3, 2).operation(13, 9).operation(11, 5).operation(9, 0).0,
        ),
        ("contexts", joined().operation(7, 1).operation(14, 77).operation(8, 1).operation(10, 0).0),
        ("cut", at_work(Ledger::default().length(LANES_AT as u32 - 1)).0),
        ("version", Ledger::default().shared(1, 2).operation(0, 0).0),
        ("dead", at_work(with_dead(Ledger::default()).operation(0, 0)).0),
        ("absent-lanes", at_work(joined().shared(6, 1024).of_slot(1, 900, 1, 1)).0),
        ("done", at_work(joined().operation(3, mib).of_slot(2, 0, 2, 1 << 60)).0),
        ("word", at_work(joined().shared(14, u64::MAX)).0),
    ]
}

// -------------------------------------------------------------------------------------------- configurations

const CONFIGURATIONS: [&str; 12] = [
    "4GiB",
    "1.5g",
    "0",
    "18446744073709551615",
    "16383.999999999t",
    "0=4GiB,GPU-ab=8GiB,*=2GiB",
    "MIG-ab=1g,3=0.5m",
    "CUWARDEN_MEMORY_LIMIT=0=4GiB,*=2GiB\nCUWARDEN_STACKS=24\nCUWARDEN_LOG=debug",
    "CUWARDEN_LABELS=arm=A,cuda=12.4\nCUWARDEN_DIR=/d\nCUWARDEN_REPORT=r\nCUWARDEN_LOG_FILE=./e",
    "CUDA_DEVICE_MEMORY_LIMIT_0=3000m\nCUDA_DEVICE_MEMORY_LIMIT=1g",
    "CUWARDEN_DISABLE=yes\nCUWARDEN_PRIVATE_TABLES=2\nCUWARDEN_DIR=here",
    "CUWARDEN_BASELINE=12.4\nCUWARDEN_BASELINE_MODE=off\nCUWARDEN_STACKS=129",
];

// ------------------------------------------------------------------------------------------------- ELF files

/// Frames of many shapes: none, pushed registers, a frame pointer, a realigned stack, calls through a PLT.
const SHAPES: &str = r"
int elsewhere(void *);
__attribute__((noinline)) int leaf(int a) { return a * 3; }
int plain(int a) { char room[40]; elsewhere(room); return leaf(a) + room[3]; }
int deep(int a, int b, int c) { return plain(a) + plain(b) * plain(c) - plain(a + b); }
int variable(int a) { char room[a]; elsewhere(room); return room[0]; }
int realigned(int a) { char room[100] __attribute__((aligned(64))); char more[a]; elsewhere(room); elsewhere(more);
    return room[5] + more[0]; }
";

/// What only hand-written code says.
const BY_HAND: &str = r"
    .text
    .globl trampoline
trampoline:
    .cfi_startproc
    .cfi_signal_frame
    .cfi_escape 0x0f, 4, 0x77, 0xa0, 1, 0x06
    nop
    nop
    .cfi_endproc
expressions:
    .cfi_startproc
    .cfi_escape 0x0f, 2, 0x77, 8
    push %rbp
    .cfi_escape 0x10, 6, 2, 0x76, 0
    nop
    .cfi_remember_state
    .cfi_escape 0x0f, 3, 0x76, 0x78, 0x06
    nop
    .cfi_restore_state
    nop
    .cfi_undefined rip
    nop
    .cfi_endproc
outermost:
    .cfi_startproc simple
    .cfi_def_cfa rsp, 16
    .cfi_undefined rip
    nop
    .cfi_endproc
";

fn compile(work: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let ending = flags.iter().find_map(|flag| flag.strip_prefix("-x"));
    let (compiler, ending) = match ending {
        Some("assembler") => ("cc", "s"),
        Some("c++") => ("c++", "cc"),
        _ => ("cc", "c"),
    };
    let input = work.join(format!("source.{ending}"));
    fs::write(&input, source).expect("source text");
    let output = work.join(name);
    let fixed = ["-shared", "-fPIC", "-nostdlib", "-w", "-Wl,-z,noseparate-code,-z,norelro"];
    let done = Command::new(compiler)
        .args(fixed)
        .args(flags.iter().filter(|flag| !flag.starts_with("-x")))
        .arg("-o")
        .arg(&output)
        .arg("source.".to_owned() + ending)
        // Else its path would be in the debug information.
        .current_dir(work)
        .env("SOURCE_DATE_EPOCH", "0")
        .status();
    assert!(done.is_ok_and(|status| status.success()), "{compiler} {flags:?}");
    output
}

fn unwind(folder: &Path, work: &Path) {
    let sources = [
        ("sp", SHAPES, &["-O2", "-fomit-frame-pointer"][..]),
        ("bp", SHAPES, &["-O0"][..]),
        ("plt", SHAPES, &["-O2", "-fcf-protection=none", "-Wl,-z,lazy,--hash-style=sysv"][..]),
        ("hand", BY_HAND, &["-xassembler"][..]),
    ];
    for (name, source, flags) in sources {
        // Read-only data apart from the code, as the target has it.
        let separate = [flags, &["-Wl,-z,separate-code", "-Wl,--build-id=sha1"]].concat();
        let elf = fs::read(compile(work, name, source, &separate)).expect("what was compiled");
        let module = Module::of(&elf);
        for n in 0..3 {
            let pc = module.code_bytes * (2 * n + 1) / 6;
            write(folder, &format!("{name}-{n}"), &module.seed(&elf, pc));
        }
    }
}

struct Module {
    code: u64,
    code_bytes: u64,
    index: u64,
    notes: u64,
    notes_bytes: u64,
    /// The segment that holds the index: address, place and length in the file.
    data: (u64, usize, usize),
}

impl Module {
    fn of(elf: &[u8]) -> Module {
        let word = |at: usize| u64::from_le_bytes(elf[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u32::from_le_bytes(elf[at..at + 4].try_into().expect("four bytes"));
        // Kind, flags, place, address, length.
        let headers: Vec<(u32, u32, u64, u64, u64)> = (0..usize::from(elf[56]))
            .map(|n| word(32) as usize + n * 56)
            .map(|at| (half(at), half(at + 4), word(at + 8), word(at + 16), word(at + 32)))
            .collect();
        let find = |kind: u32, flags: u32| headers.iter().find(|h| h.0 == kind && h.1 & flags == flags);
        let code = find(1, 1).expect("code");
        let index = find(0x6474_e550, 0).expect("an index of unwind data");
        let notes = find(4, 0).map_or((0, 0), |h| (h.3, h.4));
        let data = headers.iter().find(|h| h.0 == 1 && (h.3..h.3 + h.4).contains(&index.3));
        let &(_, _, place, address, length) = data.expect("a segment for it");
        Module {
            code: code.3,
            code_bytes: code.4,
            index: index.3,
            notes: notes.0,
            notes_bytes: notes.1,
            data: (address, place as usize, length as usize),
        }
    }

    fn seed(&self, elf: &[u8], pc: u64) -> Vec<u8> {
        let (address, place, length) = self.data;
        let mut seed = Vec::new();
        seed.extend((self.code as u32).to_le_bytes());
        seed.extend((self.code_bytes as u16).to_le_bytes());
        // From the index on: what is before it in the segment is not read. The notes, which may lie in another
        // segment, come behind.
        let skipped = (self.index - address) as usize;
        let data = &elf[place + skipped..place + length];
        let notes = &elf[self.notes as usize..][..self.notes_bytes as usize];
        let padding = data.len().next_multiple_of(8) - data.len();
        let notes_at = self.index + (data.len() + padding) as u64;
        for number in [self.index, self.index, notes_at, self.notes_bytes] {
            seed.extend((number as u32).to_le_bytes());
        }
        seed.push(0);
        seed.extend((pc as u16).to_le_bytes());
        seed.extend(data);
        seed.resize(seed.len() + padding, 0);
        seed.extend(notes);
        seed
    }
}

const INLINED: &str = r"
int elsewhere(void *);
static inline __attribute__((always_inline)) int inner(int a) { return elsewhere(&a) + 1; }
static inline __attribute__((always_inline)) int middle(int a) { return inner(a) * inner(a + 1); }
int outer(int a) { return middle(a) + 2; }
";

const MANGLED: &str = r"
int elsewhere(void *);
namespace space { template <typename T> struct Pair { T a, b; int call(T, T *); };
template <typename T> int Pair<T>::call(T x, T *y) { return elsewhere(y) + (int)(long)x; }
template int Pair<Pair<int> *>::call(Pair<int> *, Pair<int> **); }
int operator+(space::Pair<int> p, int n) { return elsewhere(&p) + n; }
";

fn symbols(folder: &Path, work: &Path) {
    let sources = [
        ("dwarf5", INLINED, &["-g", "-O1", "-gdwarf-5"][..]),
        ("dwarf4", INLINED, &["-g", "-O1", "-gdwarf-4", "-Wl,--build-id=none"][..]),
        ("compressed", INLINED, &["-g", "-O1", "-gz=zlib"][..]),
        ("split", INLINED, &["-g", "-O1", "-gsplit-dwarf"][..]),
        ("mangled", MANGLED, &["-g1", "-O1", "-xc++"][..]),
        ("names-only", MANGLED, &["-O1", "-xc++", "-Wl,--build-id=0x00112233"][..]),
    ];
    let prefix = format!("-ffile-prefix-map={}=/src", work.display());
    for (name, source, flags) in sources {
        let path = compile(work, name, source, &[flags, &[&prefix[..]]].concat());
        let link = ["-R", ".comment", "--add-gnu-debuglink"].map(str::to_owned);
        if name == "names-only" {
            let linked = Command::new("objcopy").args(link).arg(work.join("dwarf5")).arg(&path).status();
            assert!(linked.is_ok_and(|status| status.success()), "objcopy");
        }
        let elf = fs::read(&path).expect("what was compiled");
        let code = Module::of(&elf);
        let start = u16::from_le_bytes([elf[24], elf[25]]);
        let at = if start != 0 { u32::from(start) } else { address_in(&path) };
        assert!(u64::from(at) < code.code + code.code_bytes);
        let mut seed = at.to_le_bytes().to_vec();
        seed.push(match name {
            "dwarf4" => 1,
            "names-only" => 2,
            _ => 0,
        });
        seed.extend(&elf);
        write(folder, name, &seed);
    }
}

/// An address in the first function of the dynamic symbol table.
fn address_in(path: &Path) -> u32 {
    let out = Command::new("nm").args(["-D", "--defined-only"]).arg(path).output().expect("nm");
    let text = String::from_utf8_lossy(&out.stdout);
    let line = text.lines().find(|line| line.contains(" T ") || line.contains(" W "));
    let address = line.and_then(|line| u32::from_str_radix(line.split(' ').next()?, 16).ok());
    address.expect("a function") + 6
}
