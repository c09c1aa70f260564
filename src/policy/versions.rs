//! Which CUDA runtime may run on which driver, and under which vGPU baseline.
//!
//! "Driver" is what `cuDriverGetVersion` answers, never the release of the kernel module. The rules without a
//! baseline are NVIDIA's own promises; with one they are strict, because the host of a vGPU was made for that version.

pub mod exceptions;
#[cfg(feature = "cli")]
pub mod matrix;
pub mod naming;
pub mod release;
pub mod runtime;

use std::fmt;

/// A version of CUDA, as in 12.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaVersion {
    /// The first number.
    pub major: u32,
    /// The second.
    pub minor: u32,
}

/// What may stand where a version is wanted.
pub const VERSION_ALLOWED: &str = "a CUDA version such as 12.4";

impl CudaVersion {
    /// For tests and tables.
    pub const fn new(major: u32, minor: u32) -> CudaVersion {
        CudaVersion { major, minor }
    }

    /// `12.4`, or CUDA's own number for it, `12040`. Nothing else: 12 could be meant as 12.0 or as any 12.
    pub fn parse(text: &str) -> Option<CudaVersion> {
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        match text.split_once('.') {
            Some((major, minor)) => {
                let short = |part: &str| (1..=2).contains(&part.len()) && digits(part);
                if !short(major) || !short(minor) || major.starts_with('0') {
                    return None;
                }
                Some(CudaVersion { major: major.parse().ok()?, minor: minor.parse().ok()? })
            }
            None if digits(text) && (4..=5).contains(&text.len()) => {
                CudaVersion::from_number(text.parse().ok()?)
            }
            None => None,
        }
    }

    /// As CUDA's functions give it: 12040 is 12.4.
    pub fn from_number(number: u32) -> Option<CudaVersion> {
        let version = CudaVersion { major: number / 1000, minor: number % 1000 / 10 };
        (1..=99).contains(&version.major).then_some(version)
    }

    /// As CUDA's functions give it.
    pub fn number(self) -> u32 {
        self.major.saturating_mul(1000).saturating_add(self.minor.saturating_mul(10))
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What is to be judged.
#[derive(Clone, Copy, Debug)]
pub struct Versions {
    /// cuDriverGetVersion.
    pub driver: CudaVersion,
    /// Of libcudart; `None` for a program that uses the driver alone.
    pub runtime: Option<CudaVersion>,
    /// The vGPU baseline in force. A whole card has none: it is held to the plain rules.
    pub baseline: Option<CudaVersion>,
    /// The executable may use this runtime although its major is below the baseline's.
    pub is_exempt: bool,
    /// The driver's minor version counts too.
    pub strict: bool,
}

/// How grave it is. The order is that of gravity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Nothing to say.
    Fine,
    /// It may run.
    Warning,
    /// It must not run.
    Blocked,
}

impl Outcome {
    /// As written in events and answers.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Fine => "fine",
            Outcome::Warning => "warning",
            Outcome::Blocked => "blocked",
        }
    }
}

/// A rule that was broken. No two say the same of the same versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The runtime's major is above the driver's.
    RuntimeMajor,
    /// Same major, and the runtime's minor is above the driver's.
    RuntimeMinor,
    /// The driver is more than one major above the runtime.
    MajorGap,
    /// The same as `RuntimeMinor`, under a baseline.
    BaselineDriver,
    /// The runtime is above the baseline.
    BaselineRuntime,
    /// The driver's major is not the baseline's.
    BaselineDriverMajor,
    /// The runtime's major is below the baseline's.
    BaselineRuntimeMajor,
    /// The same, and it is an exception.
    BaselineException,
}

/// What is the same of a rule whatever the versions are.
struct Text {
    rule: Rule,
    id: &'static str,
    outcome: Outcome,
    /// What is wrong and the way out. See [`fill`].
    reason: &'static str,
    action: &'static str,
}

/// In the order in which they are told.
static TABLE: [Text; 8] = [
    Text {
        rule: Rule::RuntimeMajor,
        id: "runtime-major",
        outcome: Outcome::Blocked,
        reason: "CUDA runtime {runtime} needs a driver of CUDA {runtime major}, and this one is of CUDA {driver}: the runtime refuses to start (cudaErrorInsufficientDriver, 35).",
        action: "Update the driver, or use a build for CUDA {driver major}.",
    },
    Text {
        rule: Rule::BaselineDriver,
        id: "baseline-driver",
        outcome: Outcome::Blocked,
        reason: "CUDA runtime {runtime} is newer than the driver's CUDA {driver}, and under a baseline the driver must not be older than the runtime.",
        action: "Use a build for CUDA {lower} or older of CUDA {baseline major}.",
    },
    Text {
        rule: Rule::BaselineRuntime,
        id: "baseline-runtime",
        outcome: Outcome::Blocked,
        reason: "CUDA runtime {runtime} is newer than the baseline {baseline}.",
        action: "Use a build for CUDA {baseline} or older of CUDA {baseline major}, or a whole card, to which the baseline does not apply.",
    },
    Text {
        rule: Rule::BaselineDriverMajor,
        id: "baseline-driver-major",
        outcome: Outcome::Blocked,
        reason: "The driver is of CUDA {driver}, and the baseline {baseline} allows CUDA {baseline major} only.",
        action: "Give the program a driver library of CUDA {baseline major}: in a container, look for a cuda-compat folder that takes the place of the host's; on the host, install a driver of CUDA {baseline major}.",
    },
    Text {
        rule: Rule::BaselineRuntimeMajor,
        id: "baseline-runtime-major",
        outcome: Outcome::Blocked,
        reason: "CUDA runtime {runtime} is below the baseline {baseline}, which allows CUDA {baseline major} only.",
        action: "Use a build for CUDA {baseline major}, or let the operator add an exception: CUWARDEN_BASELINE_ALLOW=EXE={runtime}.",
    },
    Text {
        rule: Rule::BaselineException,
        id: "baseline-exception",
        outcome: Outcome::Warning,
        reason: "CUDA runtime {runtime} is below the baseline {baseline}, and this executable may use it.",
        action: "Move it to a build for CUDA {baseline major} when there is one.",
    },
    Text {
        rule: Rule::RuntimeMinor,
        id: "runtime-minor",
        outcome: Outcome::Warning,
        reason: "CUDA runtime {runtime} is newer than the driver's CUDA {driver}. NVIDIA's minor-version compatibility holds, but PTX that is compiled at load and new features need the newer driver.",
        action: "If the program loads PTX, or a call fails with cudaErrorCallRequiresNewerDriver (36), update the driver to CUDA {runtime}, or use a build for CUDA {driver} or older.",
    },
    Text {
        rule: Rule::MajorGap,
        id: "major-gap",
        outcome: Outcome::Warning,
        reason: "CUDA runtime {runtime} is {gap} major versions older than the driver's CUDA {driver}: unstable and not supported.",
        action: "Use a build for CUDA {driver major} or the major version before it.",
    },
];

impl Rule {
    /// By which scripts know it; never changes.
    pub fn id(self) -> &'static str {
        TABLE.iter().find(|text| text.rule == self).map_or("", |text| text.id)
    }

    fn is_broken_by(self, versions: &Versions) -> bool {
        let Versions { driver, runtime, baseline, is_exempt, .. } = *versions;
        // Above the driver within its major, which minor-version compatibility is about.
        let newer_minor = runtime.is_some_and(|r| r.major == driver.major && r.minor > driver.minor);
        let below_baseline = || runtime.zip(baseline).is_some_and(|(r, b)| r.major < b.major);
        match self {
            Rule::RuntimeMajor => runtime.is_some_and(|r| r.major > driver.major),
            Rule::RuntimeMinor => newer_minor && baseline.is_none(),
            Rule::MajorGap => runtime.is_some_and(|r| driver.major.saturating_sub(r.major) > 1),
            Rule::BaselineDriver => newer_minor && baseline.is_some(),
            Rule::BaselineRuntime => runtime.zip(baseline).is_some_and(|(r, b)| r > b),
            Rule::BaselineDriverMajor => baseline.is_some_and(|b| driver.major != b.major),
            Rule::BaselineRuntimeMajor => below_baseline() && !is_exempt,
            Rule::BaselineException => below_baseline() && is_exempt,
        }
    }
}

/// A broken rule, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which one.
    pub rule: Rule,
    /// How grave it is here.
    pub outcome: Outcome,
    /// What is wrong: a sentence.
    pub reason: String,
    /// The way out: a sentence.
    pub action: String,
}

/// Every rule that the versions break, the gravest kinds first; empty: all is fine.
pub fn judge(versions: &Versions) -> Vec<Finding> {
    let broken = TABLE.iter().filter(|text| text.rule.is_broken_by(versions));
    broken.map(|text| finding(text, versions)).collect()
}

/// The gravest outcome.
pub fn verdict(findings: &[Finding]) -> Outcome {
    findings.iter().map(|finding| finding.outcome).max().unwrap_or(Outcome::Fine)
}

fn finding(text: &Text, versions: &Versions) -> Finding {
    let outcome = match text.rule {
        Rule::RuntimeMinor if versions.strict => Outcome::Blocked,
        _ => text.outcome,
    };
    Finding {
        rule: text.rule,
        outcome,
        reason: fill(text.reason, versions),
        action: fill(text.action, versions),
    }
}

/// Puts the versions in the place of their names in braces.
fn fill(template: &str, versions: &Versions) -> String {
    let driver = versions.driver;
    // Rules about either are broken only where it is there.
    let runtime = versions.runtime.unwrap_or(driver);
    let baseline = versions.baseline.unwrap_or(driver);
    let mut filled = String::with_capacity(template.len());
    for part in template.split('{') {
        let Some((name, rest)) = part.split_once('}') else {
            filled.push_str(part);
            continue;
        };
        let (version, number) = match name {
            "runtime" => (Some(runtime), 0),
            "driver" => (Some(driver), 0),
            "baseline" => (Some(baseline), 0),
            "lower" => (Some(driver.min(baseline)), 0),
            "runtime major" => (None, runtime.major),
            "driver major" => (None, driver.major),
            "baseline major" => (None, baseline.major),
            _ => (None, driver.major.saturating_sub(runtime.major)),
        };
        filled.push_str(&version.map_or_else(|| number.to_string(), |version| version.to_string()));
        filled.push_str(rest);
    }
    filled
}

/// The release of the kernel module in the text of /proc/driver/nvidia/version, such as 535.183.01.
pub fn kernel_module(text: &str) -> Option<&str> {
    text.lines().next()?.split_whitespace().find(|word| {
        let mut parts = word.split('.');
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let branch = parts.next().is_some_and(|part| part.len() == 3 && is_number(part));
        let rest = parts.clone().count();
        branch && (1..=2).contains(&rest) && parts.all(is_number)
    })
}

#[cfg(test)]
mod tests;
