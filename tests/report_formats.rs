//! Folded stacks, pprof's profile and the page: what other programs read.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod cli_support;

#[path = "cli_support/wire.rs"]
mod wire;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use cli_support::record_file::{Allocation, RecordFile};
use cli_support::{Temp, must};
use cuwarden::record::snapshot::Snapshot;
use cuwarden::report::judged::{Judge, Judged};
use cuwarden::report::model::{Device, Frame, Leak, LeakClass, Module, Report, Termination};
use cuwarden::report::pattern::Pattern;
use cuwarden::report::{folded, html, pprof};
use wire::Message;

const APP: &str = "/opt/app/trainer";
const LIBRARY: &str = "/opt/app/libnet.so";

fn frame(function: &str, module: &str, offset: u64, line: u32) -> Frame {
    Frame {
        module: Some(module.to_owned()),
        offset,
        function: Some(function.to_owned()),
        file: Some("src/net.cc".to_owned()),
        line: Some(line),
        ..Frame::default()
    }
}

fn leak(bytes: u64, count: u64, stack: Vec<Frame>) -> Leak {
    let api = "cudaMalloc".to_owned();
    Leak { api: api.clone(), driver_api: api, count, bytes, stack, ..Leak::default() }
}

fn sample() -> Report {
    let main = frame("main", APP, 0x1010, 9);
    let inlined = Frame { inlined: true, ..frame("grow", LIBRARY, 0x2020, 4) };
    let load = frame("net::load(int)", LIBRARY, 0x2020, 5);
    let unnamed = Frame { module: Some(LIBRARY.to_owned()), offset: 0x3030, ..Frame::default() };
    Report {
        schema: "cuwarden.report/1".to_owned(),
        pid: 42,
        exe: APP.to_owned(),
        termination: Termination::Exit,
        devices: vec![Device::default()],
        labels: BTreeMap::from([("arm".to_owned(), "A".to_owned())]),
        modules: vec![
            Module { path: LIBRARY.to_owned(), build_id: "beef".to_owned() },
            Module { path: APP.to_owned(), build_id: String::new() },
        ],
        leaks: vec![
            leak(4096, 3, vec![inlined, load, main.clone()]),
            leak(2048, 2, vec![unnamed, main.clone()]),
            Leak { class: LeakClass::PoolReserve, held_by_driver: true, ..leak(1024, 1, vec![main]) },
            leak(512, 1, Vec::new()),
        ],
        ..Report::default()
    }
}

/// The sample with an entry that a pattern leaves out.
fn judged() -> Judged {
    let mut report = sample();
    report.leaks[0].stack[2].function = Some("run".to_owned());
    report.leaks[1].stack.truncate(1);
    report.leaks.push(leak(256, 1, vec![frame("main", APP, 0x1018, 10)]));
    Judge::new(vec![Pattern::parse("function:main").unwrap()], Vec::new()).judge(report)
}

#[test]
fn folded_stacks() {
    let expected = "\
trainer;[held by the driver];main;cudaMalloc 1024
trainer;[suppressed];main;cudaMalloc 256
trainer;cudaMalloc 512
trainer;libnet.so+0x3030;cudaMalloc 2048
trainer;run;net::load(int);grow;cudaMalloc 4096
";
    assert_eq!(folded::folded(&[judged()]), expected);
    // Two processes of a program are one graph; what is on several devices is told apart.
    let twice = folded::folded(&[judged(), judged()]);
    assert!(twice.contains("trainer;run;net::load(int);grow;cudaMalloc 8192\n"), "{twice}");
    let mut two = sample();
    two.devices.push(Device { ordinal: 1, ..Device::default() });
    two.leaks[0].device = 1;
    assert!(folded::folded(&[Judged::plain(two)]).contains("trainer;GPU 1;main;"));
}

#[test]
fn a_name_cannot_break_a_folded_line() {
    let mut report = sample();
    report.leaks.truncate(1);
    report.leaks[0].stack[0].function = Some("a;b\nc \u{1b}[2J".to_owned());
    report.exe = "/x/p;q\n1".to_owned();
    let text = folded::folded(&[Judged::plain(report)]);
    assert_eq!(text.lines().count(), 1);
    assert_eq!(text, "p:q\\u{a}1;main;net::load(int);a:b\\u{a}c \\u{1b}[2J;cudaMalloc 4096\n");
}

fn unzipped(temp: &Temp, bytes: &[u8]) -> Vec<u8> {
    let file = temp.write("profile.pb.gz", bytes);
    let out = Command::new("gzip").arg("-dc").arg(file).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

/// A profile as a reader has it: field numbers are those of pprof's profile.proto.
struct Profile {
    message: Message,
    strings: Vec<String>,
}

impl Profile {
    fn read(bytes: &[u8]) -> Profile {
        let message = Message::read(bytes);
        let strings: Vec<String> = message.texts(6);
        assert_eq!(strings[0], "", "the first string must be empty");
        Profile { message, strings }
    }

    fn string(&self, message: &Message, field: u32) -> &str {
        &self.strings[message.number(field) as usize]
    }

    fn by_id(&self, field: u32, id: u64) -> Message {
        let mut found = self.message.messages(field).into_iter().filter(|message| message.number(1) == id);
        let one = found.next().unwrap_or_else(|| panic!("there is no {field} {id}"));
        assert!(found.next().is_none(), "{field} {id} is there twice");
        one
    }

    /// `function file:line` of every line of a stack, innermost first.
    fn stack(&self, sample: &Message) -> Vec<String> {
        let mut names = Vec::new();
        for id in sample.numbers(1) {
            let location = self.by_id(4, id);
            if location.number(2) == 0 {
                let function = self.by_id(5, location.messages(4)[0].number(1));
                names.push(self.string(&function, 2).to_owned());
                continue;
            }
            let mapping = self.by_id(3, location.number(2));
            let address = location.number(3);
            assert!((mapping.number(2)..mapping.number(3)).contains(&address), "{address:#x} is in its file");
            let lines = location.messages(4);
            if lines.is_empty() {
                let place = address - mapping.number(2);
                names.push(format!("{}+{place:#x}", self.string(&mapping, 5)));
            }
            for line in lines {
                let function = self.by_id(5, line.number(1));
                let (name, file) = (self.string(&function, 2), self.string(&function, 4));
                names.push(format!("{name} {file}:{}", line.number(2)));
            }
        }
        names
    }

    fn labels(&self, sample: &Message) -> BTreeMap<&str, &str> {
        sample.messages(3).iter().map(|label| (self.string(label, 1), self.string(label, 2))).collect()
    }
}

#[test]
fn the_profile_is_what_pprof_reads() {
    let temp = Temp::new("formats-pprof");
    let bytes = pprof::pprof(&[judged()]).unwrap();
    let profile = Profile::read(&unzipped(&temp, &bytes));
    let types: Vec<_> = profile.message.messages(1);
    let named: Vec<_> = types.iter().map(|t| (profile.string(t, 1), profile.string(t, 2))).collect();
    assert_eq!(named, [("live_count", "count"), ("live_bytes", "bytes")]);
    assert_eq!(profile.string(&profile.message, 14), "live_bytes");

    let samples = profile.message.messages(2);
    let values: Vec<_> = samples.iter().map(|sample| sample.numbers(2)).collect();
    assert_eq!(values, [vec![3, 4096], vec![2, 2048], vec![1, 1024], vec![1, 512], vec![1, 256]]);
    // An inlined call is a line of the place that it is in.
    assert_eq!(samples[0].numbers(1).len(), 3);
    assert_eq!(
        profile.stack(&samples[0]),
        ["cudaMalloc", "grow src/net.cc:4", "net::load(int) src/net.cc:5", "run src/net.cc:9"]
    );
    // The call, not what follows it.
    assert_eq!(profile.stack(&samples[1]), ["cudaMalloc".to_owned(), format!("{LIBRARY}+0x302f")]);
    assert_eq!(profile.stack(&samples[3]), ["cudaMalloc"]);
    let labels = profile.labels(&samples[0]);
    for (key, value) in [
        ("state", "leak"),
        ("library", "libnet"),
        ("api", "cudaMalloc"),
        ("device", "0"),
        ("pid", "42"),
        ("arm", "A"),
    ] {
        assert_eq!(labels.get(key), Some(&value), "{key}");
    }
    assert_eq!(profile.labels(&samples[2])["state"], "held_by_driver");
    assert_eq!(profile.labels(&samples[4])["state"], "suppressed");

    // The program is the main file. Where names are missing, that is said, and the build-id tells which file it was.
    let mappings = profile.message.messages(3);
    let files: Vec<_> =
        mappings.iter().map(|m| (profile.string(m, 5), profile.string(m, 6), m.number(7))).collect();
    assert_eq!(files, [(APP, "", 1), (LIBRARY, "beef", 0)]);
    assert!(mappings[0].number(3) <= mappings[1].number(2), "files do not lie on each other");

    // pprof itself, where there is one.
    let file = temp.write("profile.pb.gz", &bytes);
    if Command::new("go").arg("version").output().is_ok_and(|out| out.status.success()) {
        let text = must(Command::new("go").args(["tool", "pprof", "-symbolize=none", "-top"]).arg(&file));
        for words in ["Type: live_bytes", "net::load(int)", "4kB"] {
            assert!(text.contains(words), "{words:?} is missing in:\n{text}");
        }
    } else {
        eprintln!("not tested: there is no go tool pprof");
    }
}

#[test]
fn numbers_beyond_the_format_are_kept_within() {
    let mut report = sample();
    report.leaks[0].bytes = u64::MAX;
    report.leaks[0].stack[1].offset = u64::MAX;
    report.leaks[1].stack[0].offset = u64::MAX - 1;
    let temp = Temp::new("formats-numbers");
    let profile = Profile::read(&unzipped(&temp, &pprof::pprof(&[Judged::plain(report)]).unwrap()));
    assert_eq!(profile.message.messages(2)[0].numbers(2)[1], i64::MAX as u64);
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let once = || {
        let reports = [judged(), Judged::plain(sample())];
        (folded::folded(&reports), pprof::pprof(&reports).unwrap(), html::html(&reports).unwrap())
    };
    let first = once();
    for _ in 0..5 {
        assert!(once() == first);
    }
}

/// What browsers compute of the parts of a page that may run.
#[test]
fn the_page_lets_its_own_script_run_and_no_other() {
    let temp = Temp::new("formats-hashes");
    let page = temp.write("page.html", html::html(&[judged()]).unwrap());
    let script = "\
import base64, hashlib, re, sys
page = open(sys.argv[1], encoding='utf-8').read()
policy = re.search(r'Content-Security-Policy\" content=\"([^\"]*)\"', page).group(1)
assert policy.startswith(\"default-src 'none';\") and 'unsafe' not in policy, policy
for tag in ('style', 'script'):
    text = re.search(rf'<{tag}>(.*?)</{tag}>', page, re.S).group(1)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    assert f\"{tag}-src 'sha256-{digest}'\" in policy, f'src/report/html.rs must say sha256-{digest} for {tag}'
";
    must(Command::new("python3").args(["-c", script]).arg(page));
}

#[test]
fn names_stay_text_in_the_page() {
    let evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u{202e}&\"'";
    let mut report = sample();
    report.exe = format!("/x/{evil}");
    report.cmdline = vec![evil.to_owned()];
    report.labels.insert(evil.to_owned(), evil.to_owned());
    report.leaks[0].api = evil.to_owned();
    report.leaks[0].stack[0].function = Some(evil.to_owned());
    report.leaks[0].stack[0].file = Some(evil.to_owned());
    let page = html::html(&[Judged::plain(report)]).unwrap();
    assert_eq!(page.matches("<script").count(), 2);
    assert_eq!(page.matches("</script").count(), 2);
    assert!(!page.contains("<img") && !page.contains('\u{202e}'));
    // Nothing of another address.
    let outside = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!outside.contains("http:") && !outside.contains("https:") && !outside.contains("src=\""));
}

/// `stacks` call stacks of 24 frames with `allocations` between them. `module` is a file in which addresses have names.
fn large(allocations: u64, stacks: u64, module: &Path, build_id: &[u8]) -> RecordFile {
    let mut file = RecordFile::new();
    file.module(1, module.to_str().unwrap(), build_id);
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let numbers: Vec<u32> = (0..stacks)
        .map(|_| {
            // As in programs: few places far out, many far in.
            let frames: Vec<(u64, u64)> =
                (0..24).map(|depth| (1, 0x200_000 + 64 * (random() % (20_000 >> (depth / 2))))).collect();
            file.stack(&frames)
        })
        .collect();
    for i in 0..allocations {
        let stack = numbers[(i % stacks) as usize];
        file.allocation(Allocation {
            address: i << 8,
            bytes: 1 + random() % (1 << 20),
            stack,
            ..Allocation::default()
        });
    }
    file.ended(1_796_090_594_567_000_000);
    file
}

#[test]
fn every_allocation_is_in_every_format() {
    let file = large(20_000, 500, Path::new("/nowhere/libnet.so"), &[]);
    let snapshot = Snapshot::from_bytes(&file.bytes()).unwrap();
    let report = Report::from_snapshot(&snapshot, Termination::Exit, 0);
    let (bytes, count) = report.leaked();
    assert_eq!((report.leaks.len(), count), (500, 20_000));
    let reports = [Judged::plain(report)];
    let text = folded::folded(&reports);
    let sum: u64 = text.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(sum, bytes);
    let temp = Temp::new("formats-large");
    let profile = Profile::read(&unzipped(&temp, &pprof::pprof(&reports).unwrap()));
    let values: Vec<Vec<u64>> = profile.message.messages(2).iter().map(|sample| sample.numbers(2)).collect();
    assert_eq!(values.iter().map(|value| value[0]).sum::<u64>(), count);
    assert_eq!(values.iter().map(|value| value[1]).sum::<u64>(), bytes);
    assert!(html::html(&reports).unwrap().contains("libnet.so+0x"));
}
