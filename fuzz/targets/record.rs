//! A record file, from its bytes to the report's text and JSON.

#![no_main]

use cuwarden::record::layout::Header;
use cuwarden::record::snapshot::Snapshot;
use cuwarden::report::{Report, Termination};
use cuwarden_fuzz::{image, memory_file::MemoryFile, show, style_for};
use libfuzzer_sys::{Corpus, fuzz_target};

/// A file may claim 1 GiB, and is read as far. That takes a second, in which the fuzzer can try thousands of others.
const MOST_CLAIMED: u64 = 2 << 20;

thread_local!(static FILE: MemoryFile = MemoryFile::new(c"record"));

fuzz_target!(|input: &[u8]| -> Corpus {
    let image = image::unpack(input);
    if image.claimed() > MOST_CLAIMED {
        return Corpus::Reject;
    }
    let in_memory = Snapshot::from_bytes(&image.bytes());
    let in_file = FILE.with(|file| {
        file.set(image.length, image.pieces());
        Snapshot::open(file.path())
    });
    // As the shim has them at its own exit.
    let parts: Vec<_> = image.extents.iter().map(|(area, _, bytes)| (*area, &bytes[..])).collect();
    let in_parts = Snapshot::from_parts(&image.header[..size_of::<Header>()], &parts);

    // Not only is either readable or not: they are the same.
    match (&in_memory, &in_file) {
        (Ok(a), Ok(b)) => assert_eq!(format!("{a:?}"), format!("{b:?}")),
        (Err(a), Err(b)) => assert_eq!(a.fault.to_string(), b.fault.to_string()),
        (a, b) => panic!("in memory {a:?}, in a file {b:?}"),
    }
    // As the command line has it, and as the shim has it.
    for (snapshot, termination, as_of) in [
        (&in_file, Termination::Killed, u64::from(input.len() as u32) << 32),
        (&in_parts, Termination::Exit, u64::MAX),
    ] {
        let Ok(snapshot) = snapshot else { continue };
        let report = Report::from_snapshot(snapshot, termination, as_of);
        let count: u64 = report.leaks.iter().map(|leak| leak.count).sum();
        assert_eq!(count, snapshot.records.len() as u64, "each record is in one entry");
        assert!(report.leaks.is_sorted_by(|a, b| a.bytes >= b.bytes), "the largest first");
        show(&[report], &style_for(input));
    }
    Corpus::Keep
});
