//! A file that `cuwarden report` is given: by its first bytes a record file, a report, or neither.

#![no_main]

// The command's own reader, which the library does not offer to others.
#[path = "."]
mod cli {
    #[path = "../../src/cli/error.rs"]
    #[allow(dead_code)]
    pub mod error;
    #[path = "../../src/cli/load.rs"]
    pub mod load;
}

use cli::load::{Loaded, load};
use cuwarden::{record, report};
use cuwarden_fuzz::{is_report, memory_file::MemoryFile, show, style_for};
use libfuzzer_sys::{Corpus, fuzz_target};

thread_local!(static FILE: MemoryFile = MemoryFile::new(c"report"));

fuzz_target!(|input: &[u8]| -> Corpus {
    let loaded = FILE.with(|file| {
        file.set(input.len() as u64, [(0, input)]);
        load(file.path())
    });
    let reports = match loaded {
        Ok(Loaded::One(report)) => vec![*report],
        Ok(Loaded::Folder { reports, unreadable }) => {
            assert_eq!(unreadable, [""; 0], "a file is no folder");
            reports
        }
        Err(failure) => {
            assert!(!failure.message.is_empty(), "a failure without a word");
            return Corpus::Keep;
        }
    };
    assert!(reports.iter().all(is_report));
    show(&reports, &style_for(input));
    Corpus::Keep
});
