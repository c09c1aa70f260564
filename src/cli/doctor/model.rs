//! What doctor answers.

use serde::Serialize;

use crate::diagnose::chain::Call;
use crate::policy::versions::runtime::Identified;

/// Its form; fields may be added.
pub const SCHEMA: &str = "cuwarden.doctor/1";

/// How it stands with one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    Warning,
    Failed,
    Unknown,
}

impl Verdict {
    /// As people read it.
    pub fn shown(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Failed => "FAILED",
            Verdict::Unknown => "unknown",
        }
    }
}

/// A verdict, a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Its name; fixed.
    pub check: String,
    /// How it stands.
    pub verdict: Verdict,
    /// What was read that shows it.
    pub evidence: String,
    /// What to do; empty where there is nothing to do.
    pub action: String,
}

impl Line {
    pub fn ok(check: &str, evidence: impl Into<String>) -> Line {
        Line::new(check, Verdict::Ok, evidence, "")
    }

    pub fn new(
        check: &str,
        verdict: Verdict,
        evidence: impl Into<String>,
        action: impl Into<String>,
    ) -> Line {
        Line { check: check.to_owned(), verdict, evidence: evidence.into(), action: action.into() }
    }
}

/// A library that the loader can reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Library {
    /// What programs ask for, as libcuda.so.1.
    pub name: String,
    /// Where it was found.
    pub path: String,
    /// With links resolved.
    pub file: String,
    /// How the loader comes there.
    pub found_by: &'static str,
    /// It is the first of its name. False: another one is loaded instead.
    pub is_first: bool,
    /// CUDA version of a runtime; not exact = the lowest that it can be.
    #[serde(rename = "cuda", serialize_with = "shown", skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Identified>,
}

fn shown<S: serde::Serializer>(known: &Option<Identified>, to: S) -> Result<S::Ok, S::Error> {
    known.map(super::runtime::shown).serialize(to)
}

/// A package that brings CUDA, by its metadata.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Package {
    pub name: String,
    pub version: String,
    pub path: String,
}

/// The whole answer.
#[derive(Serialize)]
pub struct Answer {
    pub schema: &'static str,
    pub verdict: Verdict,
    pub kernel_module: Option<String>,
    pub driver: Option<String>,
    pub is_container: bool,
    pub lines: Vec<Line>,
    pub libraries: Vec<Library>,
    pub packages: Vec<Package>,
    pub nvml_chain: Vec<Call>,
    /// What nvidia-smi said, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smi: Option<super::smi::Smi>,
}

/// The gravest. What could not be told may be worse than a warning.
pub fn overall(lines: &[Line]) -> Verdict {
    let has = |verdict| lines.iter().any(|line| line.verdict == verdict);
    let order = [Verdict::Failed, Verdict::Unknown, Verdict::Warning];
    order.into_iter().find(|verdict| has(*verdict)).unwrap_or(Verdict::Ok)
}

/// The exit status that says it.
pub fn status(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Ok => 0,
        Verdict::Warning => 1,
        Verdict::Failed => 2,
        Verdict::Unknown => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_told_may_be_worse_than_a_warning() {
        let lines = |verdicts: &[Verdict]| -> Vec<Line> {
            verdicts.iter().map(|verdict| Line::new("x", *verdict, "", "")).collect()
        };
        let told = |verdicts: &[Verdict]| status(overall(&lines(verdicts)));
        assert_eq!(told(&[]), 0);
        assert_eq!(told(&[Verdict::Ok, Verdict::Warning]), 1);
        assert_eq!(told(&[Verdict::Warning, Verdict::Unknown]), 3);
        assert_eq!(told(&[Verdict::Unknown, Verdict::Failed]), 2);
    }
}
