//! What is written, and where.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::cli::error::{Failure, INTERNAL, NO_OUTPUT, USED_WRONGLY};
use crate::cli::terminal;
use crate::report::judged::Judged;
use crate::report::text::{self, Extent, Style};
use crate::report::{folded, html, json, pprof};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For scripts: schema cuwarden.report/1
    Json,
    /// For a browser: one file, with a flame graph
    Html,
    /// For flamegraph.pl, inferno and speedscope: a call stack a line, and its bytes
    Folded,
    /// For pprof and speedscope: gzip'd profile.proto with live_bytes and live_count
    Pprof,
}

const ENDINGS: [(&str, Format); 7] = [
    (".txt", Format::Text),
    (".text", Format::Text),
    (".json", Format::Json),
    (".html", Format::Html),
    (".folded", Format::Folded),
    (".pb.gz", Format::Pprof),
    (".pprof", Format::Pprof),
];

/// One thing to write: to stdout where there is no file.
#[derive(Debug)]
pub struct To {
    format: Format,
    file: Option<PathBuf>,
}

/// What the options ask for.
pub fn answers(format: Option<Format>, files: &[PathBuf]) -> Result<Vec<To>, Failure> {
    let wrong = |message: String| Failure::new(USED_WRONGLY, message);
    match (format, files) {
        (Some(Format::Pprof), []) if io::stdout().is_terminal() => {
            Err(wrong("pprof's format is not text. Name a file: --output leaks.pb.gz".to_owned()))
        }
        (format, []) => Ok(vec![To { format: format.unwrap_or(Format::Text), file: None }]),
        (Some(format), [file]) => Ok(vec![To { format, file: Some(file.clone()) }]),
        (Some(_), _) => Err(wrong(
            "--format is for one file. With several, leave it out: the ending of each says its format"
                .to_owned(),
        )),
        (None, files) => files
            .iter()
            .map(|file| match by_ending(file) {
                Some(format) => Ok(To { format, file: Some(file.clone()) }),
                None => {
                    let known = ENDINGS.map(|(ending, _)| ending).join(", ");
                    let file = file.display();
                    Err(wrong(format!("{file}: its ending is none of {known}. Say the format: --format")))
                }
            })
            .collect(),
    }
}

fn by_ending(file: &Path) -> Option<Format> {
    let name = file.file_name()?.to_string_lossy().to_ascii_lowercase();
    ENDINGS.iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| *format)
}

/// What there is to say.
pub struct Answer<'a> {
    pub reports: &'a [Judged],
    /// PATH is one report, not a folder.
    pub one: bool,
    pub extent: Extent,
    pub path: &'a Path,
}

impl Answer<'_> {
    pub fn write(&self, to: &To) -> Result<(), Failure> {
        let style = if to.file.is_some() { Style::PLAIN } else { terminal::style() };
        let bytes = match to.format {
            Format::Text => self.text(&style).into_bytes(),
            Format::Json => self.json()?,
            Format::Html => html::html(self.reports).map_err(internal)?.into_bytes(),
            Format::Folded => folded::folded(self.reports).into_bytes(),
            Format::Pprof => pprof::pprof(self.reports).map_err(internal)?,
        };
        match &to.file {
            None => terminal::answer_bytes(&bytes),
            Some(file) => {
                replace(file, &bytes).map_err(|error| Failure::path(NO_OUTPUT, "write", file, &error))
            }
        }
    }

    fn text(&self, style: &Style) -> String {
        match self.reports {
            [one] if self.one => text::judged(one, self.extent, style),
            [] => format!(
                "There is no report in {}.\nEither no program has used CUDA there, or none has ended yet.\n",
                text::clean(&self.path.display().to_string())
            ),
            reports => text::many(reports, self.extent, style),
        }
    }

    fn json(&self) -> Result<Vec<u8>, Failure> {
        let shown: Vec<_> = self.reports.iter().map(json::shown).collect();
        let text = match shown.as_slice() {
            [one] if self.one => serde_json::to_vec_pretty(one),
            list => serde_json::to_vec_pretty(list),
        };
        let mut text = text.map_err(internal)?;
        text.push(b'\n');
        Ok(text)
    }
}

fn internal(error: impl std::fmt::Display) -> Failure {
    Failure::new(INTERNAL, format!("cannot make the report: {error}"))
}

/// Puts the file into its place in one step, so that nobody finds half of it. What is no regular file (/dev/stdout, a
/// pipe) is written to as it is.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let there = fs::symlink_metadata(path);
    if there.is_ok_and(|metadata| !metadata.is_file()) {
        return File::options().write(true).truncate(true).open(path)?.write_all(bytes);
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let unfinished = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = File::create_new(&unfinished)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}
