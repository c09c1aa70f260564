//! The JSON schema `cuwarden.diff/1`.
//!
//! Fields and values of `measure`, `verdict` and `matched_by` may be added; none is renamed or removed without a new
//! schema number. Readers pass over what they do not know.

use std::collections::BTreeMap;

use serde::Serialize;

use super::stack::Step;
use crate::report::model::Frame;

/// The value of [`Diff::schema`].
pub const SCHEMA: &str = "cuwarden.diff/1";

/// The whole answer.
#[derive(Debug, Serialize)]
pub struct Diff {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// How it was computed.
    pub method: Method,
    /// How much worse B may be, in percent of the median of A.
    pub threshold_percent: f64,
    /// Whether a single stack decides too, or the total alone.
    pub each_stack: bool,
    /// B is worse by more than the threshold and more than noise: the exit status is 1.
    pub failed: bool,
    /// The first side.
    pub a: Side,
    /// The second side.
    pub b: Side,
    /// All that counts as leaked in a run.
    pub total: Comparison,
    /// Each call stack that leaked on either side. Worse ones first, by how much; then `suspect`, `too_few_runs`,
    /// `better`, `noise` and `same`.
    pub stacks: Vec<StackComparison>,
    /// What is no leak and decides nothing, but differs between versions of CUDA: `peak_bytes`, `context_bytes`,
    /// `held_by_driver_bytes`.
    pub others: BTreeMap<&'static str, Comparison>,
    /// What the reader should know, in words.
    pub notes: Vec<String>,
}

/// How differences are computed.
#[derive(Debug, Serialize)]
pub struct Method {
    /// `mann-whitney`, two-sided; `-exact` where its probabilities were counted.
    pub test: &'static str,
    /// `hodges-lehmann`: the median of all differences between a run of B and a run of A.
    pub difference: &'static str,
    /// `holm`: how the test of one stack is corrected for their number.
    pub correction: &'static str,
    /// What the intervals promise.
    pub confidence: f64,
    /// The fewest runs of each side with which anything could be beyond noise.
    pub min_runs: usize,
}

/// What a side consists of.
#[derive(Debug, Serialize)]
pub struct Side {
    /// As the user wrote it.
    pub path: String,
    /// Labels that all its processes have.
    pub labels: BTreeMap<String, String>,
    /// CUDA version of the driver.
    pub driver_version: Option<String>,
    /// CUDA versions of the runtimes.
    pub runtime_versions: Vec<String>,
    /// Product names of the devices.
    pub devices: Vec<String>,
    /// Runs that count.
    pub runs: usize,
    /// Processes of these runs.
    pub processes: usize,
}

/// What is compared. Where reports come to tell that a stack grows, `bytes_per_minute` will stand here for that stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// What a run has not freed at its end.
    BytesPerRun,
}

/// One number of every run, compared.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// What the number is.
    pub measure: Measure,
    /// Of the first side.
    pub a: Values,
    /// Of the second side.
    pub b: Values,
    /// B minus A.
    pub difference: i128,
    /// The same in percent of A's median; null where that is 0.
    pub percent: Option<f64>,
    /// Where the true difference lies; null: too few runs.
    pub interval: Option<Bounds>,
    /// How likely ranks as far apart are where nothing differs; null: too few runs.
    pub p: Option<f64>,
    /// The same, corrected for the number of stacks; the same as `p` for what is no stack.
    pub p_corrected: Option<f64>,
    /// What it comes to.
    pub verdict: Verdict,
    /// The difference is more than the threshold allows.
    pub beyond_threshold: bool,
}

/// The numbers of one side.
#[derive(Clone, Debug, Serialize)]
pub struct Values {
    /// The mean of the two in the middle where their number is even.
    pub median: u64,
    /// Runs in which the number is not 0.
    pub runs_above_zero: usize,
    /// One for each run, in rising order.
    pub values: Vec<u64>,
}

/// A confidence interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bounds {
    /// Lower end.
    pub low: i128,
    /// Upper end.
    pub high: i128,
    /// What it holds; a little more than promised, since there are only so many orders of runs.
    pub confidence: f64,
}

/// What a comparison comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// B is above A, beyond noise.
    Worse,
    /// B seems above A, but not beyond what one of so many stacks would show by chance, or in fewer than half of its
    /// runs.
    Suspect,
    /// Nothing can be said.
    TooFewRuns,
    /// B is below A, beyond noise.
    Better,
    /// What differs may be chance.
    Noise,
    /// All runs of both sides have the same number.
    Same,
}

/// One call stack.
#[derive(Clone, Debug, Serialize)]
pub struct StackComparison {
    /// What it is known by on both sides, innermost first.
    pub stack: Vec<Step>,
    /// The functions of CUDA that were called from it.
    pub apis: Vec<String>,
    /// The side that alone has it.
    pub only_in: Option<&'static str>,
    /// Libraries of which not more than the name could be compared, because there were no function names and the builds
    /// differ. Several stacks may be one here.
    pub by_module_alone: Vec<String>,
    /// The frames of one such stack as they were on one side, B where it has them.
    pub example: Vec<Frame>,
    /// The numbers.
    #[serde(flatten)]
    pub comparison: Comparison,
}
