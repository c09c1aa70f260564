//! The statistics of a comparison. Pure: no files, no chance, no clock.
//!
//! Leaked bytes are nothing like normally distributed: most runs leak the same to the byte, a few leak another buffer.
//! So only the order of the values is used.
//!
//! - Is there a difference? The rank test of Wilcoxon, and of Mann and Whitney (Ann. Math. Stat. 18, 1947), two-sided.
//!   Up to [`EXACT_UP_TO`] runs its probability is counted, given the ties that are there: the shift algorithm of
//!   Streitberg and Röhmel (Stat. Software Newsletter 12, 1986). Beyond, the normal approximation with corrections for
//!   ties and continuity (Lehmann, Nonparametrics, 1975, chapter 1).
//! - How large is it? The estimate of Hodges and Lehmann (Ann. Math. Stat. 34, 1963): the median of all differences
//!   between a run of B and a run of A; and its interval, which is the rank test turned round (Hollander and Wolfe,
//!   Nonparametric Statistical Methods, section 4.3). With ties it holds at least what it promises.
//! - Of many stacks some differ by chance: Holm's correction (Scand. J. Stat. 6, 1979).
//!
//! Not the bootstrap: with five or ten runs it draws from so few medians that its interval promises too much. No crate:
//! those that are well kept (statrs, hypors) count without ties only or not at all, and give no interval.

use std::cmp::Ordering;

/// The fewest runs of each side. With three of each, all of B lie above all of A by chance in 2 of 20 orders: no result
/// could ever be beyond noise. With four it is 2 of 70, which is 2.9 %.
pub const MIN_RUNS: usize = 4;

/// What an interval promises, at least.
pub const CONFIDENCE: f64 = 0.95;

/// Runs of both sides together up to which probabilities are counted.
pub const EXACT_UP_TO: usize = 50;

/// The chance of an error that is accepted.
const ALPHA: f64 = 1.0 - CONFIDENCE;

/// The 97.5 % point of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// How B differs from A.
#[derive(Clone, Debug, PartialEq)]
pub struct Shift {
    /// Median of A, of B; the mean of the two in the middle, rounded down.
    pub medians: (u64, u64),
    /// B minus A, as Hodges and Lehmann estimate it; rounded towards zero.
    pub estimate: i128,
    /// Where the true difference lies; none: too few runs.
    pub interval: Option<Interval>,
    /// How likely ranks as far apart are where nothing differs; none: too few runs.
    pub p: Option<f64>,
    /// Whether the values of B rank above those of A.
    pub direction: Ordering,
}

/// A confidence interval, both ends included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: i128,
    /// Upper end.
    pub high: i128,
    /// What it holds: [`CONFIDENCE`] or more, since there are only so many orders of runs.
    pub confidence: f64,
}

/// Compares sides of two given sizes, any number of times.
pub struct RankTest {
    sizes: (usize, usize),
    /// How many of the sorted differences lie below the interval, and what it holds.
    cut: Option<(usize, f64)>,
}

impl RankTest {
    /// For so many runs of A and of B.
    pub fn new(a: usize, b: usize) -> RankTest {
        let cut = (a >= MIN_RUNS && b >= MIN_RUNS).then(|| cut(a, b));
        RankTest { sizes: (a, b), cut }
    }

    /// Whether a difference could be told from noise at all.
    pub fn has_enough_runs(&self) -> bool {
        self.cut.is_some()
    }

    /// None where a side is empty, or has another size than was said.
    pub fn compare(&self, a: &[u64], b: &[u64]) -> Option<Shift> {
        if a.is_empty() || b.is_empty() || self.sizes != (a.len(), b.len()) {
            return None;
        }
        let mut differences: Vec<i128> =
            b.iter().flat_map(|b| a.iter().map(|a| i128::from(*b) - i128::from(*a))).collect();
        differences.sort_unstable();
        let interval = self.cut.and_then(|(below, confidence)| {
            let high = differences.len().checked_sub(below + 1)?;
            Some(Interval { low: *differences.get(below)?, high: *differences.get(high)?, confidence })
        });
        let above = differences.iter().filter(|difference| **difference > 0).count();
        let under = differences.iter().filter(|difference| **difference < 0).count();
        Some(Shift {
            medians: (median(a)?, median(b)?),
            estimate: middle(&differences)?,
            interval,
            p: self.cut.map(|_| probability(a, b)),
            direction: above.cmp(&under),
        })
    }
}

/// The mean of the two in the middle is rounded down.
pub fn median(values: &[u64]) -> Option<u64> {
    let mut sorted: Vec<i128> = values.iter().map(|value| i128::from(*value)).collect();
    sorted.sort_unstable();
    u64::try_from(middle(&sorted)?).ok()
}

fn middle(sorted: &[i128]) -> Option<i128> {
    let last = sorted.len().checked_sub(1)?;
    Some((*sorted.get(last / 2)? + *sorted.get(last.div_ceil(2))?) / 2)
}

/// Holm's correction: what each probability comes to beside the others.
pub fn corrected(all: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..all.len()).collect();
    let p = |place: &usize| all.get(*place).copied().unwrap_or(1.0);
    order.sort_by(|a, b| p(a).total_cmp(&p(b)));
    let mut out = vec![1.0; all.len()];
    let mut highest = 0f64;
    for (rank, place) in order.iter().enumerate() {
        highest = highest.max(p(place) * (all.len() - rank) as f64).min(1.0);
        if let Some(slot) = out.get_mut(*place) {
            *slot = highest;
        }
    }
    out
}

/// Whether a probability, corrected or not, is beyond noise.
pub fn beyond_noise(p: f64) -> bool {
    p <= ALPHA
}

/// How many of the sorted differences are cut off at each end, and what is held by what is left.
fn cut(a: usize, b: usize) -> (usize, f64) {
    let pairs = (a * b) as f64;
    if a + b > EXACT_UP_TO {
        let deviation = (pairs * (a + b + 1) as f64 / 12.0).sqrt();
        let below = (pairs / 2.0 - Z * deviation - 0.5).floor().max(0.0);
        return (below as usize, CONFIDENCE);
    }
    let ways = orders(a, b);
    let all: i128 = ways.iter().sum();
    let (mut tail, mut below, mut held) = (0, 0, 1.0);
    for (statistic, count) in ways.iter().enumerate() {
        tail += count;
        let outside = 2.0 * tail as f64 / all as f64;
        if outside > ALPHA {
            break;
        }
        (below, held) = (statistic, 1.0 - outside);
    }
    (below, held)
}

/// In how many orders of the runs each number of pairs has its run of B below that of A: the coefficients of
/// `(1-q^(b+1))…(1-q^(b+a)) / (1-q)…(1-q^a)`.
fn orders(a: usize, b: usize) -> Vec<i128> {
    let most = a * b;
    let mut ways = vec![0i128; most + 1];
    if let Some(first) = ways.first_mut() {
        *first = 1;
    }
    for factor in 1..=a {
        for place in (b + factor..=most).rev() {
            ways[place] -= ways[place - b - factor];
        }
        for place in factor..=most {
            ways[place] += ways[place - factor];
        }
    }
    ways
}

/// Of ranks as far apart as these, or further, to either side, where nothing differs.
fn probability(a: &[u64], b: &[u64]) -> f64 {
    let (doubled_ranks, tied) = ranks(a, b);
    // The smaller side has fewer sums to count; the other one's follows from it.
    let (small, sum): (usize, usize) = if a.len() <= b.len() {
        (a.len(), doubled_ranks.iter().take(a.len()).sum())
    } else {
        (b.len(), doubled_ranks.iter().skip(a.len()).sum())
    };
    let all = doubled_ranks.len();
    if tied.contains(&all) {
        return 1.0;
    }
    if all <= EXACT_UP_TO {
        counted(&doubled_ranks, small, sum)
    } else {
        approximate(&doubled_ranks, small, sum, &tied)
    }
}

/// Twice the rank of each value, those of A first: a rank between two places is a half. And how many values share each
/// rank.
fn ranks(a: &[u64], b: &[u64]) -> (Vec<usize>, Vec<usize>) {
    let values: Vec<u64> = a.iter().chain(b).copied().collect();
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by_key(|place| values.get(*place));
    let (mut ranks, mut tied, mut from) = (vec![0; values.len()], Vec::new(), 0);
    for group in order.chunk_by(|one, two| values.get(*one) == values.get(*two)) {
        for place in group {
            // Places from + 1 to from + length: twice their mean.
            ranks[*place] = 2 * from + group.len() + 1;
        }
        from += group.len();
        tied.push(group.len());
    }
    (ranks, tied)
}

/// Counts all ways to choose `size` of the ranks whose sum lies as far out as `sum`, or further.
fn counted(ranks: &[usize], size: usize, sum: usize) -> f64 {
    let lowest = ranks.iter().min().copied().unwrap_or(0);
    // Less to count: what all sums have in common is taken off.
    let (ranks, sum): (Vec<usize>, usize) =
        (ranks.iter().map(|rank| rank - lowest).collect(), sum - size * lowest);
    let most: usize = size * ranks.iter().max().copied().unwrap_or(0);
    let mut ways = vec![vec![0u64; most + 1]; size + 1];
    ways[0][0] = 1;
    for (seen, rank) in ranks.iter().enumerate() {
        for chosen in (1..=size.min(seen + 1)).rev() {
            let (fewer, more) = ways.split_at_mut(chosen);
            let (from, to) = (&fewer[chosen - 1], &mut more[0]);
            for (slot, count) in to.iter_mut().skip(*rank).zip(from) {
                *slot += count;
            }
        }
    }
    let sums = &ways[size];
    let all: u64 = sums.iter().sum();
    let below: u64 = sums.iter().take(sum + 1).sum();
    let above: u64 = sums.iter().skip(sum).sum();
    (2.0 * below.min(above) as f64 / all as f64).min(1.0)
}

fn approximate(doubled_ranks: &[usize], size: usize, doubled_sum: usize, tied: &[usize]) -> f64 {
    let all = doubled_ranks.len();
    let (n, m, all) = (size as f64, (all - size) as f64, all as f64);
    // The sums are steps apart, far ones where most values are tied: half a step belongs to each.
    let lowest = doubled_ranks.iter().min().copied().unwrap_or(0);
    let step = doubled_ranks.iter().fold(0, |step, rank| common_divisor(step, rank - lowest)) as f64 / 2.0;
    let cubes: f64 = tied.iter().map(|group| (*group as f64).powi(3) - *group as f64).sum();
    let variance = n * m / 12.0 * (all + 1.0 - cubes / (all * (all - 1.0)));
    let distance = (doubled_sum as f64 / 2.0 - n * (all + 1.0) / 2.0).abs() - step / 2.0;
    libm::erfc(distance.max(0.0) / (2.0 * variance).sqrt())
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests;
