//! The rules for versions of CUDA, on what was found: the driver, the runtimes, and the baseline of a vGPU.

use std::ffi::OsString;

use super::libraries::Found;
use super::limits;
use super::model::{Line, Package, Verdict};
use super::runtime::{Used, shown};
use crate::policy::config::{BaselineMode, Config};
use crate::policy::versions::exceptions::Exceptions;
use crate::policy::versions::runtime::Identified;
use crate::policy::versions::{self, CudaVersion, Finding, Outcome, Rule, Versions};

/// What holds here.
pub struct Rules {
    /// Of the driver; `None`: it is not known, and nothing can be judged.
    pub driver: Option<CudaVersion>,
    /// In force. A whole card is held to none.
    baseline: Option<CudaVersion>,
    /// Set, whether it is in force or not.
    set: Option<CudaVersion>,
    mode: BaselineMode,
    exceptions: Exceptions,
}

impl Rules {
    /// By the variables, as a process would read them.
    pub fn new(driver: Option<CudaVersion>, variable: &dyn Fn(&str) -> Option<OsString>) -> Rules {
        let (config, _) = Config::parse(variable);
        Rules {
            driver,
            baseline: config.baseline.in_force().filter(|_| !limits::is_whole_card(&config)),
            set: config.baseline.version,
            mode: config.baseline.mode,
            exceptions: config.baseline.exceptions,
        }
    }

    /// The baseline against the driver, which concerns every program.
    pub fn baseline(&self) -> Vec<Line> {
        let Some(set) = self.set else { return Vec::new() };
        let Some(baseline) = self.baseline else {
            let why = if self.mode == BaselineMode::Off {
                "CUWARDEN_BASELINE_MODE is off"
            } else {
                "no memory limit is set, so a program has a whole card"
            };
            return vec![Line::ok("baseline", format!("CUWARDEN_BASELINE={set} does not apply: {why}"))];
        };
        let Some(driver) = self.driver else {
            return vec![Line::new(
                "baseline",
                Verdict::Unknown,
                format!("the baseline {baseline} is in force, and the driver's CUDA version is not known"),
                "Let NVML be asked: see the line about it.",
            )];
        };
        let findings = versions::judge(&self.versions(driver, None, false));
        if findings.is_empty() {
            let mode = self.mode.name();
            return vec![Line::ok(
                "baseline",
                format!("{baseline} is in force ({mode}); the driver's CUDA {driver} keeps it"),
            )];
        }
        findings.iter().map(|finding| self.line("baseline", "", finding, true)).collect()
    }

    /// Runtimes that lie here. None of them is in use yet, so none of them makes anything fail. `used`: of the program, of
    /// which more is said.
    pub fn lying_here(&self, found: &Found, used: &[Used]) -> Vec<Line> {
        let is_used = |file: &str| used.iter().any(|one| one.path == file);
        let others = found.libraries.iter().filter(|one| !is_used(&one.file));
        let libraries = others.filter_map(|one| Some((one.runtime?, one.path.as_str())));
        let packages = found.packages.iter().filter_map(|one| Some((of_package(one)?, one.path.as_str())));
        let mut seen: Vec<CudaVersion> = Vec::new();
        let mut lines = Vec::new();
        // What is exact says more than the name of all minor versions.
        let mut all: Vec<(Identified, &str)> = libraries.chain(packages).collect();
        all.sort_by_key(|(known, _)| !known.is_exact);
        for (known, path) in all {
            let is_told = |other: &CudaVersion| {
                *other == known.version || (!known.is_exact && other.major == known.version.major)
            };
            if !seen.iter().any(is_told) {
                seen.push(known.version);
                lines.extend(self.of(known, path, None));
            }
        }
        lines
    }

    /// Runtimes that a program would use.
    pub fn used(&self, runtimes: &[Used], executable: &str) -> Vec<Line> {
        let known = runtimes.iter().filter_map(|used| Some((used.version?, used.path.as_str())));
        known.flat_map(|(known, path)| self.of(known, path, Some(executable))).collect()
    }

    fn of(&self, known: Identified, path: &str, executable: Option<&str>) -> Vec<Line> {
        let text = format!("CUDA {} in {path}", shown(known));
        let Some(driver) = self.driver else { return vec![Line::ok("runtime", text)] };
        let is_exempt = executable.is_some_and(|path| self.exceptions.allow(path, known.version));
        let findings = versions::judge(&self.versions(driver, Some(known.version), is_exempt));
        // That one is told of the driver, once.
        let mut broken =
            findings.iter().filter(|finding| finding.rule != Rule::BaselineDriverMajor).peekable();
        if broken.peek().is_none() {
            let baseline =
                self.baseline.map(|baseline| format!(" and the baseline {baseline}")).unwrap_or_default();
            return vec![Line::ok("runtime", format!("{text} fits the driver's CUDA {driver}{baseline}"))];
        }
        broken
            .map(|finding| {
                let mut line = self.line("runtime", &format!("{text}: "), finding, executable.is_some());
                let allowed = self.exceptions.patterns_for(known.version);
                if finding.rule == Rule::BaselineRuntimeMajor && !allowed.is_empty() {
                    line.evidence +=
                        &format!(". CUWARDEN_BASELINE_ALLOW lets these use it: {}", allowed.join(", "));
                }
                line
            })
            .collect()
    }

    fn versions(&self, driver: CudaVersion, runtime: Option<CudaVersion>, is_exempt: bool) -> Versions {
        Versions { driver, runtime, baseline: self.baseline, is_exempt, strict: false }
    }

    fn line(&self, check: &str, about: &str, finding: &Finding, is_used: bool) -> Line {
        let is_said_only = self.mode == BaselineMode::Warn && is_of_baseline(finding.rule);
        let verdict = if is_used && finding.outcome == Outcome::Blocked && !is_said_only {
            Verdict::Failed
        } else {
            Verdict::Warning
        };
        let mode =
            if is_said_only { " CUDA starts all the same: CUWARDEN_BASELINE_MODE is warn." } else { "" };
        let text = format!("{about}{}{mode} [{}]", finding.reason, finding.rule.id());
        Line::new(check, verdict, text, finding.action.clone())
    }
}

fn is_of_baseline(rule: Rule) -> bool {
    matches!(
        rule,
        Rule::BaselineDriver | Rule::BaselineRuntime | Rule::BaselineDriverMajor | Rule::BaselineRuntimeMajor
    )
}

fn of_package(package: &Package) -> Option<Identified> {
    let is_runtime = package.name.starts_with("nvidia-cuda-runtime") || package.name == "cuda-cudart";
    let mut numbers = package.version.split('.').filter(|_| is_runtime);
    let version = CudaVersion::parse(&format!("{}.{}", numbers.next()?, numbers.next()?))?;
    Some(Identified { version, is_exact: true })
}
