//! What both `report` and `run` judge leaks by: suppressions, and how much is let pass.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::{Failure, NO_INPUT, USED_WRONGLY};
use super::terminal;
use crate::policy::limit::parse_bytes;
use crate::report::judged::{Judge, Sum};
use crate::report::pattern::{self, Pattern, parse_file};
use crate::report::text::{bytes, clean, plural};

/// A suppression file is written by hand, and has a few hundred bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Which leaks are known.
#[derive(clap::Args)]
pub struct Known {
    /// Leave out the leaks that a pattern in FILE fits; may be repeated. A line is function:GLOB, module:GLOB, api:GLOB
    /// or a # comment
    #[arg(long, value_name = "FILE")]
    suppressions: Vec<PathBuf>,
}

/// The options of both.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    known: Known,
    /// How much is no failure yet, of all processes together: a size such as 16MiB, or a number of allocations, count=10,
    /// or both, 16MiB,count=10
    #[arg(long, value_name = "SPEC", value_parser = MaxLeak::parse)]
    pub max_leak: Option<MaxLeak>,
}

/// Suppressions that were read, and where each stands.
pub struct Suppressions {
    judge: Judge,
    places: Vec<(PathBuf, usize, String)>,
}

impl Options {
    /// Reads the files of patterns.
    pub fn read(&self, fold: Vec<Pattern>) -> Result<Suppressions, Failure> {
        self.known.read(fold)
    }
}

impl Known {
    /// Reads the files. `fold`: frames that are taken out of call stacks.
    pub fn read(&self, fold: Vec<Pattern>) -> Result<Suppressions, Failure> {
        let (mut patterns, mut places) = (Vec::new(), Vec::new());
        for path in &self.suppressions {
            for (line, pattern) in file(path)? {
                places.push((path.clone(), line, pattern.text.to_string()));
                patterns.push(pattern);
            }
        }
        Ok(Suppressions { judge: Judge::new(patterns, fold), places })
    }
}

fn file(path: &Path) -> Result<Vec<(usize, Pattern)>, Failure> {
    let cannot = |error| Failure::path(NO_INPUT, "read the suppressions in", path, &error);
    let size = fs::metadata(path).map_err(cannot)?.len();
    if size > MAX_FILE_BYTES {
        let message = format!("{}: has {}: that is no suppression file", path.display(), bytes(size));
        return Err(Failure::new(NO_INPUT, message));
    }
    let text = fs::read(path).map_err(cannot)?;
    parse_file(&text).map_err(|bad| {
        let message =
            format!("{}:{}: {}. Allowed: {}", path.display(), bad.line, bad.problem, pattern::ALLOWED);
        Failure::new(USED_WRONGLY, clean(&message))
    })
}

impl Suppressions {
    /// What judges reports by them.
    pub fn judge(&mut self) -> &mut Judge {
        &mut self.judge
    }

    /// Names the patterns that fitted nothing: what they were for may be fixed, or spelt otherwise.
    pub fn say_unused(&self) {
        for (path, line, pattern) in self.judge.unused().filter_map(|place| self.places.get(place)) {
            let message = format!("{}:{line}: no leak fits \"{pattern}\"", path.display());
            terminal::say(&clean(&message));
        }
    }
}

/// How much may leak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaxLeak {
    bytes: Option<u64>,
    count: Option<u64>,
}

impl MaxLeak {
    fn parse(text: &str) -> Result<MaxLeak, String> {
        const ALLOWED: &str = "a size such as 16MiB, count=10, or both: 16MiB,count=10";
        let mut most = MaxLeak::default();
        for part in text.split(',') {
            let (place, value) = match part.strip_prefix("count=") {
                Some(count) => {
                    let digits = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
                    let count = count.parse().ok().filter(|_| digits);
                    (
                        &mut most.count,
                        count.ok_or_else(|| format!("\"{part}\" is no count. Allowed: {ALLOWED}"))?,
                    )
                }
                None => {
                    let size = parse_bytes(part).map_err(|error| format!("{error}. Allowed: {ALLOWED}"))?;
                    (&mut most.bytes, size)
                }
            };
            if place.replace(value).is_some() {
                return Err(format!("\"{text}\" says the same thing twice. Allowed: {ALLOWED}"));
            }
        }
        Ok(most)
    }

    /// Why this is too much; none: it is not.
    pub fn exceeded(self, leaked: Sum) -> Option<String> {
        let what = format!("{} leaked in {}", bytes(leaked.bytes), plural(leaked.count, "allocation"));
        match (self.bytes, self.count) {
            (None, None) => (leaked.count > 0).then_some(what),
            (Some(most), _) if leaked.bytes > most => Some(format!("{what}: more than {}", bytes(most))),
            (_, Some(most)) if leaked.count > most => Some(format!("{what}: more than {most}")),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_much_may_leak() {
        let of = |text| MaxLeak::parse(text);
        assert_eq!(of("16MiB"), Ok(MaxLeak { bytes: Some(16 << 20), count: None }));
        assert_eq!(of("count=10"), Ok(MaxLeak { bytes: None, count: Some(10) }));
        assert_eq!(of("count=0,1.5k"), Ok(MaxLeak { bytes: Some(1536), count: Some(0) }));
        for text in
            ["", "16MiB,", "count=", "count=-1", "count=+1", "1,2", "count=1,count=1", "10%", "-1", "0x10"]
        {
            assert!(of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_exceeded() {
        let sum = |bytes, count| Sum { bytes, count, stacks: 1 };
        let over = |text: Option<&str>, bytes, count| {
            let most = text.map(|text| MaxLeak::parse(text).unwrap()).unwrap_or_default();
            most.exceeded(sum(bytes, count)).is_some()
        };
        assert!(!over(None, 0, 0) && over(None, 1, 1) && over(None, 0, 1));
        assert!(!over(Some("1k"), 1024, 99) && over(Some("1k"), 1025, 1));
        assert!(!over(Some("count=2"), 1 << 40, 2) && over(Some("count=2"), 1, 3));
        assert!(
            !over(Some("1k,count=2"), 1024, 2)
                && over(Some("1k,count=2"), 1, 3)
                && over(Some("1k,count=2"), 1025, 1)
        );
        assert!(over(Some("0"), 1, 1) && !over(Some("0"), 0, 0));
    }
}
