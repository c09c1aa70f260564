//! `cuwarden diff`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;

use super::error::{Failure, INTERNAL, NO_INPUT, USED_WRONGLY};
use super::gate;
use super::load;
use super::report::fold;
use super::terminal;
use crate::diff::arm::{Arm, Input, Options};
use crate::diff::compare::{Rules, compare};
use crate::diff::model::Verdict;
use crate::diff::stats::MIN_RUNS;
use crate::diff::{html, text};
use crate::record::snapshot::Observer;
use crate::report::judged::{State, Sum};
use crate::report::pattern::{self, Pattern};
use crate::report::symbols::Symbolizer;
use crate::report::text::{bytes, plural};

/// Compare what two arms of an experiment leak.
///
/// A and B are each a report, a file with several, a process's record file, or a folder. Call stacks are matched by function
/// and library, so that builds for two versions of CUDA can be compared. The difference is that of a run, with an interval
/// of confidence.
///
/// Every report is a run. The processes of one run have the same label run=, or a folder of their own within A or B.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  for i in 1 2 3 4 5 6 7 8 9 10; do
    cuwarden run --report a/$i --label arm=A --label cuda=12.9 -- ./train-cu129
    cuwarden run --report b/$i --label arm=B --label cuda=13.5 -- ./train-cu135
  done
  cuwarden diff --threshold 5 a b || exit 1
  cuwarden diff --format html a b > diff.html

Names are looked up in the files that ran. Where those are on another machine, let that one write the arm: \
cuwarden report --format json DIR > arm.json

With fewer than 4 runs of A or of B there is no verdict, and the exit status is 0: see the message on stderr.

Exit status: 0; 1 where B is worse by more than the threshold and more than noise; 64 used wrongly, or an arm mixes \
versions or labels; 66 A or B cannot be read, or has no run that has ended.")]
pub struct Arguments {
    /// The first arm: what B is compared with
    a: PathBuf,
    /// The second arm
    b: PathBuf,
    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// How much more B may leak, in percent of the median of A. Where A leaks nothing, any leak of B is more
    #[arg(long, value_name = "PCT", default_value = "0", value_parser = threshold)]
    threshold: f64,
    /// Exit with 1 also where a single call stack is worse, though the total is not
    #[arg(long)]
    each_stack: bool,
    /// Of A, take only reports with this label; may be repeated
    #[arg(long, value_name = "K=V", value_parser = label)]
    label_a: Vec<(String, String)>,
    /// Of B, take only reports with this label; may be repeated
    #[arg(long, value_name = "K=V", value_parser = label)]
    label_b: Vec<(String, String)>,
    /// A label in which the runs of an arm may differ, such as host; may be repeated. The label run always may
    #[arg(long, value_name = "K")]
    vary: Vec<String>,
    #[command(flatten)]
    known: gate::Known,
    /// Take the frames that a pattern fits out of all call stacks, function:GLOB or module:GLOB; may be repeated
    #[arg(long, value_name = "PATTERN", value_parser = fold)]
    fold: Vec<Pattern>,
    /// The same for the allocators of PyTorch, TensorFlow, ONNX Runtime, RMM, CUB and others, which differ from version to
    /// version
    #[arg(long)]
    fold_allocators: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// For scripts: schema cuwarden.diff/1
    Json,
    /// For people: one page that needs nothing else
    Html,
}

pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let mut patterns = arguments.fold;
    if arguments.fold_allocators {
        patterns.extend(pattern::allocators());
    }
    let mut reader = Reader {
        symbolizer: Symbolizer::default(),
        observer: Observer::here(),
        suppressions: arguments.known.read(patterns)?,
        unreadable: 0,
    };
    let a = reader.arm("A", &arguments.a, arguments.label_a, &arguments.vary)?;
    let b = reader.arm("B", &arguments.b, arguments.label_b, &arguments.vary)?;
    let rules = Rules { threshold_percent: arguments.threshold, each_stack: arguments.each_stack };
    let diff = compare(&a, &b, rules);
    terminal::answer(&match arguments.format {
        Format::Text => text::text(&diff, &terminal::style()),
        Format::Html => html::page(&diff),
        Format::Json => serde_json::to_string_pretty(&diff)
            .map(|text| text + "\n")
            .map_err(|error| Failure::new(INTERNAL, format!("cannot write JSON: {error}")))?,
    })?;
    reader.suppressions.say_unused();
    if diff.failed {
        return Ok(ExitCode::from(1));
    }
    if reader.unreadable > 0 {
        return Err(Failure::new(
            NO_INPUT,
            format!(
                "{} could not be read, so the comparison may be wrong",
                plural(reader.unreadable, "file")
            ),
        ));
    }
    if diff.total.verdict == Verdict::TooFewRuns {
        terminal::say(&format!(
            "too few runs for a verdict: A has {}, B has {}, and {MIN_RUNS} of each are needed. The exit status says nothing",
            diff.a.runs, diff.b.runs
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads both sides, so that what is in both is looked up once.
struct Reader {
    symbolizer: Symbolizer,
    observer: Observer,
    suppressions: gate::Suppressions,
    unreadable: u64,
}

impl Reader {
    fn arm(
        &mut self,
        name: &str,
        path: &Path,
        only: Vec<(String, String)>,
        vary: &[String],
    ) -> Result<Arm, Failure> {
        let mut inputs = self.inputs(name, path)?;
        let options = Options { only, vary: vary.to_vec() };
        let found = inputs.len() as u64;
        inputs.retain(|input| options.wants(&input.report));
        let known = self.without_known(&mut inputs);
        let mut arm = Arm::new(name, path.display().to_string(), inputs, &options)
            .map_err(|mixed| Failure::new(USED_WRONGLY, mixed))?;
        if known.count > 0 {
            let allocations = plural(known.count, "allocation");
            arm.notes.push(format!("{name}: suppressions left out {allocations}, {}.", bytes(known.bytes)));
        }
        if !arm.runs.is_empty() {
            return Ok(arm);
        }
        arm.notes.iter().for_each(|note| terminal::say(note));
        let why = match found {
            0 => "there is no report in it. cuwarden run --report DIR writes them".to_owned(),
            _ if !options.only.is_empty() && arm.notes.is_empty() => {
                format!(
                    "of {}, none has the label of --label-{}",
                    plural(found, "report"),
                    name.to_ascii_lowercase()
                )
            }
            _ => format!("{} in it, but no run that can be judged", plural(found, "report")),
        };
        Err(Failure::new(NO_INPUT, format!("{name}, {}: {why}", path.display())))
    }

    /// Looks names up, and takes out of the reports what patterns fit; how much that was.
    fn without_known(&mut self, inputs: &mut [Input]) -> Sum {
        let mut known = Sum::default();
        for input in inputs {
            self.symbolizer.resolve(&mut input.report);
            let mut judged = self.suppressions.judge().judge(std::mem::take(&mut input.report));
            known.merge(judged.sum(State::Suppressed));
            let kept = judged.entries().filter(|(.., state)| *state != State::Suppressed);
            let kept = kept.map(|(leak, ..)| leak.clone()).collect();
            judged.report.leaks = kept;
            input.report = judged.report;
        }
        known
    }

    fn inputs(&mut self, name: &str, path: &Path) -> Result<Vec<Input>, Failure> {
        let metadata = std::fs::metadata(path).map_err(|error| {
            Failure::new(
                NO_INPUT,
                format!(
                    "cannot read {name}, {}: {error}. Name a report, a record file, or a folder of them",
                    path.display()
                ),
            )
        })?;
        if !metadata.is_dir() {
            let reports =
                load::file(path, &self.observer).map_err(|message| Failure::new(NO_INPUT, message))?;
            return Ok(reports.into_iter().map(|report| Input { report, folder: None }).collect());
        }
        let mut inputs = self.folder(path, None)?;
        // Beside its records, a CUWARDEN_DIR has folders of other kinds.
        if !path.join("proc").is_dir() {
            for folder in load::entries(path, Path::is_dir)? {
                let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                inputs.extend(self.folder(&folder, Some(&name))?);
            }
        }
        Ok(inputs)
    }

    fn folder(&mut self, path: &Path, run: Option<&str>) -> Result<Vec<Input>, Failure> {
        let mut inputs = Vec::new();
        for file in load::files(path)? {
            match load::file(&file, &self.observer) {
                Ok(reports) => inputs.extend(
                    reports.into_iter().map(|report| Input { report, folder: run.map(str::to_owned) }),
                ),
                // Logs and the like lie in folders of runs too; what is named as ours is ours.
                Err(message) if file.extension().is_some_and(|end| end == "json" || end == "rec") => {
                    self.unreadable += 1;
                    terminal::say(&message);
                }
                Err(_) => {}
            }
        }
        Ok(inputs)
    }
}

fn threshold(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent),
        _ => Err("expected a percentage of 0 or more, such as 5 or 2.5".to_owned()),
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err("expected NAME=VALUE, such as arm=A".to_owned()),
    }
}
