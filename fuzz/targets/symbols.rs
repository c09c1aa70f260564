//! An ELF file in which a report's frames lie: it is the user's program, and may be anything by now.
//!
//! Input: where to look (u32), what is known of the file (u8), then the file.

#![no_main]

use cuwarden::report::Report;
use cuwarden::report::model::{Frame, Leak, Module, SCHEMA};
use cuwarden::report::symbols::Symbolizer;
use cuwarden_fuzz::{memory_file::MemoryFile, show, style_for, take::Take};
use libfuzzer_sys::fuzz_target;

thread_local!(static FILE: MemoryFile = MemoryFile::new(c"program"));

fuzz_target!(|input: &[u8]| {
    let mut take = Take(input);
    let (offset, known) = (u64::from(take.u32()), take.u8());
    let elf = take.0;
    FILE.with(|file| {
        file.set(elf.len() as u64, [(0, elf)]);
        let path = file.path().to_string_lossy().into_owned();
        let frame = |offset| Frame { module: Some(path.clone()), offset, ..Frame::default() };
        let stack: Vec<Frame> = [offset, offset.wrapping_mul(3), 0, u64::MAX, offset << 32].map(frame).into();
        let modules = match known % 3 {
            0 => vec![],
            1 => vec![Module { path: path.clone(), build_id: String::new() }],
            _ => vec![Module { path: path.clone(), build_id: "00112233".to_owned() }],
        };
        let mut report = Report {
            schema: SCHEMA.to_owned(),
            leaks: vec![Leak { stack, ..Leak::default() }],
            modules,
            ..Report::default()
        };
        Symbolizer::new("/nowhere".into()).resolve(&mut report);
        let frames = &report.leaks[0].stack;
        assert!((5..=5 * 32).contains(&frames.len()), "{} frames of 5", frames.len());
        assert!(frames.iter().all(|frame| frame.module.as_deref() == Some(&path)));
        show(&[report], &style_for(input));
    });
});
