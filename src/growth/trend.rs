//! Statistics that a few odd samples do not move: Theil and Sen's slope, Mann and Kendall's test.

use super::Point;
use crate::order::sort;

/// The median of the slopes of all pairs (Theil 1950, Sen 1968), in bytes a second; 0 where there are no pairs.
pub(super) fn slope(points: &[Point]) -> f64 {
    let mut slopes: Vec<f64> = pairs(points).filter_map(|(a, b)| slope_of(a, b)).collect();
    sort(&mut slopes, |a, b| a < b);
    let (lower, upper) = (slopes.get(slopes.len().saturating_sub(1) / 2), slopes.get(slopes.len() / 2));
    lower.zip(upper).map_or(0.0, |(lower, upper)| (lower + upper) / 2.0)
}

fn slope_of(a: Point, b: Point) -> Option<f64> {
    let seconds = b.at_s - a.at_s;
    (seconds > 0.0).then(|| (b.bytes as f64 - a.bytes as f64) / seconds)
}

/// How sure it is that the values rise (Mann 1945, Kendall 1975, with the correction for ties): the sum of all pairs'
/// signs in standard deviations of what chance gives. 0 where all are the same.
pub(super) fn certainty(points: &[Point]) -> f64 {
    let sum: i64 =
        pairs(points).map(|(a, b)| i64::from(b.bytes > a.bytes) - i64::from(b.bytes < a.bytes)).sum();
    let spread = |n: f64| n * (n - 1.0) * (2.0 * n + 5.0);
    let mut bytes: Vec<u64> = points.iter().map(|point| point.bytes).collect();
    sort(&mut bytes, |a, b| a < b);
    let ties: f64 = bytes.chunk_by(u64::eq).map(|same| spread(same.len() as f64)).sum();
    let variance = (spread(points.len() as f64) - ties) / 18.0;
    if variance > 0.0 { (sum - sum.signum()) as f64 / variance.sqrt() } else { 0.0 }
}

fn pairs(points: &[Point]) -> impl Iterator<Item = (Point, Point)> {
    points.iter().enumerate().flat_map(|(at, a)| points.iter().skip(at + 1).map(|b| (*a, *b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(bytes: &[u64]) -> Vec<Point> {
        bytes.iter().enumerate().map(|(i, &bytes)| Point { at_s: i as f64, bytes }).collect()
    }

    #[test]
    fn the_slope_is_that_of_most() {
        assert_eq!(slope(&points(&[0, 10, 20, 30, 40])), 10.0);
        assert_eq!(slope(&points(&[0, 10, 20, 9000, 40, 50, 60])), 10.0);
        assert_eq!(slope(&points(&[5, 5, 5, 5, 9])), 0.0);
        assert_eq!(slope(&points(&[0, 1, 4])), 2.0);
        assert_eq!(slope(&points(&[40, 30, 20])), -10.0);
        assert_eq!(slope(&points(&[7])), 0.0);
        assert_eq!(slope(&[]), 0.0);
    }

    /// Worked out from the formula by hand.
    #[test]
    fn certainty_is_mann_s_and_kendall_s() {
        let close = |bytes: &[u64], expected: f64| {
            let got = certainty(&points(bytes));
            assert!((got - expected).abs() < 1e-6, "{bytes:?}: {got} is not {expected}");
        };
        close(&[1, 2, 3, 4, 5, 6, 7, 8], 27.0 / (8.0 * 7.0 * 21.0 / 18.0f64).sqrt());
        close(&[8, 7, 6, 5, 4, 3, 2, 1], -27.0 / (8.0 * 7.0 * 21.0 / 18.0f64).sqrt());
        // S = 6, ties of 2, 3: (5·4·15 − 2·1·9 − 3·2·11)/18 = 12.
        close(&[1, 1, 2, 2, 2], 5.0 / 12f64.sqrt());
        close(&[4, 4, 4, 4], 0.0);
        close(&[], 0.0);
    }
}
