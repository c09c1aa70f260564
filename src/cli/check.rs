//! `cuwarden check`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};

use super::error::{Failure, INTERNAL, NO_INPUT, USED_WRONGLY};
use super::terminal;
use crate::policy::versions::exceptions::{self, Exceptions};
use crate::policy::versions::matrix::{Matrix, Row};
use crate::policy::versions::release::Release;
use crate::policy::versions::{CudaVersion, Outcome, Rule, VERSION_ALLOWED, Versions, judge};
use crate::report::text::{Style, clean};

/// Tell whether a CUDA runtime may run on a driver, and under a vGPU baseline.
///
/// The rules: a runtime of a newer major version than the driver is blocked. A newer minor version is a warning, since
/// NVIDIA's minor-version compatibility holds. A driver two or more major versions newer than the runtime is a
/// warning. Under a baseline the driver and the baseline must not be older than the runtime, and all three must have
/// the same major version.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cuwarden check --driver 12.2 --runtime 12.8               by the driver's CUDA version, as nvidia-smi shows it
  cuwarden check --driver 535.183.01 --runtime 13.0         by its release
  cuwarden check --driver 12.4 --runtime 12.4 --baseline 12.4
  cuwarden check --driver 12.4 --runtime 12.8 --baseline 12.4 --whole-card
  CUWARDEN_BASELINE_ALLOW=trainer=11.8 cuwarden check --driver 12.4 --runtime 11.8 --baseline 12.4 --exe /opt/trainer
  cuwarden check --driver 12.4 --runtime 12.8 --strict || exit 1     a gate for CI

Exit status: 0 fine; 1 warnings; 2 blocked; 3 could not tell; 64 used wrongly; 66 FILE cannot be read.")]
pub struct Arguments {
    /// The driver's CUDA version (12.2) or its release (535.183.01)
    #[arg(long, value_name = "V", value_parser = driver)]
    driver: Driver,
    /// CUDA version of the runtime (libcudart): that of the toolkit, or of the wheel
    #[arg(long, value_name = "V", value_parser = version)]
    runtime: CudaVersion,
    /// CUDA version of the vGPU baseline
    #[arg(long, value_name = "V", value_parser = version)]
    baseline: Option<CudaVersion>,
    /// Path of the program: CUWARDEN_BASELINE_ALLOW may let it use a runtime below the baseline's major version
    #[arg(long, value_name = "PATH", requires = "baseline")]
    exe: Option<String>,
    /// A driver of an older minor version than the runtime blocks
    #[arg(long)]
    strict: bool,
    /// The program has a whole card: a baseline does not apply
    #[arg(long)]
    whole_card: bool,
    /// A table of drivers, toolkits and frameworks in the place of the built-in one
    #[arg(long, value_name = "FILE")]
    matrix: Option<PathBuf>,
    /// Answer as JSON, schema cuwarden.check/1
    #[arg(long)]
    json: bool,
}

/// As it was given.
#[derive(Clone, Debug)]
enum Driver {
    Cuda(CudaVersion),
    Release(Release),
}

/// What the rules and the table say, the gravest first.
struct Answer {
    outcome: Option<Outcome>,
    lines: Vec<Line>,
}

struct Line {
    outcome: &'static str,
    rule: &'static str,
    reason: String,
    action: String,
}

pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let matrix = match &arguments.matrix {
        Some(path) => read(path)?,
        None => Matrix::built_in(),
    };
    let (cuda, release) = match &arguments.driver {
        Driver::Cuda(cuda) => (Some(*cuda), None),
        Driver::Release(release) => (matrix.cuda_of(release), Some(release)),
    };
    let answer = match cuda {
        Some(cuda) => judged(&arguments, &matrix, cuda, release, &exceptions()?),
        None => unknown(release),
    };
    terminal::answer(&if arguments.json {
        as_json(&arguments, &matrix, cuda, release, &answer)?
    } else {
        as_text(&arguments, &matrix, cuda, release, &answer, &terminal::style())
    })?;
    Ok(ExitCode::from(match answer.outcome {
        Some(Outcome::Fine) => 0,
        Some(Outcome::Warning) => 1,
        Some(Outcome::Blocked) => 2,
        None => 3,
    }))
}

fn read(path: &Path) -> Result<Matrix, Failure> {
    let text = fs::read_to_string(path).map_err(|error| Failure::path(NO_INPUT, "read", path, &error))?;
    Matrix::parse(&text).map_err(|problem| {
        Failure::new(NO_INPUT, format!("{} is not a table of versions: {problem}", path.display()))
    })
}

/// Of the environment, as a process would read them.
fn exceptions() -> Result<Exceptions, Failure> {
    const VARIABLE: &str = "CUWARDEN_BASELINE_ALLOW";
    let Some(text) = std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) else {
        return Ok(Exceptions::default());
    };
    let text = text.to_string_lossy();
    Exceptions::parse(&text).map_err(|reason| {
        let allowed = exceptions::ALLOWED;
        Failure::new(USED_WRONGLY, format!("{VARIABLE}=\"{text}\": {reason}. Allowed: {allowed}"))
    })
}

fn judged(
    arguments: &Arguments,
    matrix: &Matrix,
    cuda: CudaVersion,
    release: Option<&Release>,
    exceptions: &Exceptions,
) -> Answer {
    let runtime = arguments.runtime;
    let of = Versions {
        driver: cuda,
        runtime: Some(runtime),
        baseline: arguments.baseline.filter(|_| !arguments.whole_card),
        is_exempt: arguments.exe.as_deref().is_some_and(|path| exceptions.allow(path, runtime)),
        strict: arguments.strict,
    };
    let findings = judge(&of);
    let mut outcome = findings.iter().map(|finding| finding.outcome).max().unwrap_or(Outcome::Fine);
    let mut lines: Vec<Line> = findings
        .into_iter()
        .map(|finding| {
            let mut action = with_facts(finding.rule, finding.action, &of, matrix);
            let allowed = exceptions.patterns_for(runtime);
            if finding.rule == Rule::BaselineRuntimeMajor && !allowed.is_empty() {
                action += &format!(" CUWARDEN_BASELINE_ALLOW lets these use it: {}.", allowed.join(", "));
                if arguments.exe.is_none() {
                    action += " Name the program with --exe.";
                }
            }
            Line { outcome: finding.outcome.name(), rule: finding.rule.id(), reason: finding.reason, action }
        })
        .collect();
    for line in release.map(|release| of_release(matrix, release, cuda, runtime)).unwrap_or_default() {
        outcome = outcome.max(Outcome::Warning);
        lines.push(line);
    }
    Answer { outcome: Some(outcome), lines }
}

/// The action, and what the table knows of drivers and builds.
fn with_facts(rule: Rule, action: String, of: &Versions, matrix: &Matrix) -> String {
    let Some(runtime) = of.runtime else { return action };
    let mut facts = action;
    let driver = match rule {
        Rule::RuntimeMajor => matrix.family_of(runtime),
        Rule::RuntimeMinor => matrix.release_of(runtime),
        _ => None,
    };
    if let Some(release) = driver.and_then(|row| row.driver.as_ref()) {
        let what =
            if rule == Rule::RuntimeMajor { format!("{}.x", runtime.major) } else { runtime.to_string() };
        facts += &format!(" CUDA {what}: driver {release} or newer.");
    }
    let limit = match rule {
        Rule::RuntimeMajor | Rule::RuntimeMinor => Some(of.driver),
        Rule::BaselineRuntime | Rule::BaselineDriver => of.baseline.map(|baseline| baseline.min(of.driver)),
        _ => None,
    };
    let builds = limit.map(|limit| matrix.builds_up_to(limit)).unwrap_or_default();
    if !builds.is_empty() {
        let name = |row: &&Row| {
            let cuda = row.cuda.map(|cuda| format!(" (CUDA {cuda})")).unwrap_or_default();
            format!("{} {}{cuda}", row.name, row.version)
        };
        facts += &format!(
            " The newest builds that fit: {}.",
            builds.iter().map(name).collect::<Vec<_>>().join(", ")
        );
    }
    facts
}

/// What only the release says.
fn of_release(matrix: &Matrix, release: &Release, cuda: CudaVersion, runtime: CudaVersion) -> Vec<Line> {
    let mut lines = Vec::new();
    let family = matrix.family_of(runtime).filter(|_| runtime.major == cuda.major);
    if let Some(lowest) = family.and_then(|row| row.driver.as_ref()).filter(|lowest| *lowest > release) {
        lines.push(Line {
            outcome: Outcome::Warning.name(),
            rule: "driver-release",
            reason: format!(
                "Driver {release} is older than {lowest}, the lowest release with minor-version compatibility for CUDA {}.x.",
                runtime.major
            ),
            action: format!("Update the driver to {lowest} or newer."),
        });
    }
    lines.extend(matrix.tools_beyond(release).map(|row| {
        let needed = row.driver.as_ref().map(ToString::to_string).unwrap_or_default();
        Line {
            outcome: Outcome::Warning.name(),
            rule: "tool-driver",
            reason: format!(
                "{} {} needs driver {needed} or newer, and this is {release}.",
                row.name, row.version
            ),
            action: format!("Update the driver, if {} is used here.", row.name),
        }
    }));
    lines
}

fn unknown(release: Option<&Release>) -> Answer {
    let release = release.map(ToString::to_string).unwrap_or_default();
    let line = Line {
        outcome: "unknown",
        rule: "driver-unknown",
        reason: format!("The table does not tell the CUDA version of driver {release}."),
        action:
            "Give its CUDA version, which nvidia-smi shows, or a table that has the release: --matrix FILE."
                .to_owned(),
    };
    Answer { outcome: None, lines: vec![line] }
}

fn as_text(
    arguments: &Arguments,
    matrix: &Matrix,
    cuda: Option<CudaVersion>,
    release: Option<&Release>,
    answer: &Answer,
    style: &Style,
) -> String {
    let mut out = format!("driver {}, runtime {}", driver_text(matrix, cuda, release), arguments.runtime);
    if let Some(baseline) = arguments.baseline {
        out += &format!(", baseline {baseline}");
        out += if arguments.whole_card { " (a whole card: it does not apply)" } else { "" };
    }
    out.push('\n');
    if answer.lines.is_empty() {
        out += "fine: all rules are kept.\n";
    }
    for line in &answer.lines {
        let text = format!("{}: {} {} [{}]", line.outcome, line.reason, line.action, line.rule);
        out += &clean(&text);
        out.push('\n');
    }
    if style.width == Style::PLAIN.width {
        return out;
    }
    let wrapped: Vec<String> = out.lines().flat_map(|line| style.wrap(line, 2)).collect();
    wrapped.join("\n") + "\n"
}

/// Both, where both are known.
fn driver_text(matrix: &Matrix, cuda: Option<CudaVersion>, release: Option<&Release>) -> String {
    match (cuda, release) {
        (Some(cuda), Some(release)) => format!("{release} (CUDA {cuda})"),
        (None, Some(release)) => release.to_string(),
        (Some(cuda), None) => match matrix.release_of(cuda).and_then(|row| row.driver.as_ref()) {
            Some(first) => format!("CUDA {cuda} (release {first} or another of {})", first.branch()),
            None => format!("CUDA {cuda}"),
        },
        (None, None) => String::new(),
    }
}

fn as_json(
    arguments: &Arguments,
    matrix: &Matrix,
    cuda: Option<CudaVersion>,
    release: Option<&Release>,
    answer: &Answer,
) -> Result<String, Failure> {
    let text = |version: CudaVersion| version.to_string();
    let row = |row: Option<&Row>| {
        row.map(|row| json!({ "driver": row.driver.as_ref().map(ToString::to_string), "source": row.source }))
    };
    let runtime = arguments.runtime;
    let findings: Vec<Value> = answer
        .lines
        .iter()
        .map(|line| json!({ "rule": line.rule, "outcome": line.outcome, "reason": line.reason, "action": line.action }))
        .collect();
    let value = json!({
        "schema": "cuwarden.check/1", "verdict": answer.outcome.map_or("unknown", Outcome::name),
        "driver": { "cuda": cuda.map(text), "release": release.map(ToString::to_string) },
        "runtime": text(runtime), "baseline": arguments.baseline.map(text),
        "exe": arguments.exe, "whole_card": arguments.whole_card, "strict": arguments.strict, "findings": findings,
        "toolkit": row(matrix.release_of(runtime)), "family": row(matrix.family_of(runtime)),
    });
    let text = serde_json::to_string_pretty(&value);
    text.map(|text| text + "\n")
        .map_err(|error| Failure::new(INTERNAL, format!("cannot write JSON: {error}")))
}

fn version(text: &str) -> Result<CudaVersion, String> {
    CudaVersion::parse(text).ok_or_else(|| format!("expected {VERSION_ALLOWED}"))
}

fn driver(text: &str) -> Result<Driver, String> {
    let release = || Release::parse(text).map(Driver::Release);
    CudaVersion::parse(text)
        .map(Driver::Cuda)
        .or_else(release)
        .ok_or_else(|| format!("expected {VERSION_ALLOWED}, or a driver release such as 535.183.01"))
}
