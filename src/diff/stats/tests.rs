//! Known values, and properties over many experiments from a fixed seed.

use super::*;

/// A linear congruential generator (Knuth's MMIX), of which the upper bits are used.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn arm(&mut self, runs: usize, kinds: u64, unit: u64) -> Vec<u64> {
        (0..runs).map(|_| self.below(kinds) * unit).collect()
    }
}

fn compare(a: &[u64], b: &[u64]) -> Shift {
    RankTest::new(a.len(), b.len()).compare(a, b).unwrap()
}

fn is_worse(shift: &Shift) -> bool {
    shift.p.is_some_and(beyond_noise) && shift.direction == Ordering::Greater
}

#[test]
fn orders_of_runs_are_counted() {
    assert_eq!(orders(2, 2), [1, 1, 2, 1, 1]);
    assert_eq!(orders(3, 4).iter().sum::<i128>(), 35);
    assert_eq!(orders(25, 25).iter().sum::<i128>(), 126_410_606_437_752);
    // Tables of the statistic's critical values, two-sided at 5 %: Mann and Whitney; Hollander and Wolfe, table A.6.
    for (a, b, critical) in [(4, 4, 0), (5, 5, 2), (6, 8, 8), (8, 8, 13), (10, 10, 23), (20, 20, 127)] {
        assert_eq!(cut(a, b).0, critical, "{a} {b}");
        assert_eq!(cut(b, a), cut(a, b));
        assert!(cut(a, b).1 >= CONFIDENCE);
    }
    // Where counting ends the approximation is as near as it can be.
    let counted = orders(26, 26);
    let all: i128 = counted.iter().sum();
    let tail: i128 = counted.iter().take(cut(26, 26).0 + 1).sum();
    assert!(2.0 * tail as f64 / all as f64 <= 0.0505);
}

#[test]
fn probabilities_are_those_of_the_books() {
    // Fully apart: 2 of 70 orders, 2 of 252.
    assert!((compare(&[1, 2, 3, 4], &[5, 6, 7, 8]).p.unwrap() - 2.0 / 70.0).abs() < 1e-12);
    assert!((compare(&[5, 5, 5, 5, 5], &[1, 1, 1, 1, 1]).p.unwrap() - 2.0 / 252.0).abs() < 1e-12);
    // Permeability of the membrane, Hollander and Wolfe's example 4.1: W = 30, one-sided 0.1272; estimate -0.305 and
    // interval -0.76 to 0.15 of the difference, at 96 %.
    let a = [80, 83, 189, 104, 145, 138, 191, 164, 73, 146];
    let b = [115, 88, 90, 74, 121];
    let shift = compare(&a, &b);
    assert!((shift.p.unwrap() - 2.0 * 0.1272).abs() < 2e-4, "{shift:?}");
    assert_eq!((shift.medians, shift.estimate), ((141, 90), -30));
    let interval = shift.interval.unwrap();
    assert_eq!((interval.low, interval.high), (-76, 15));
    assert!((interval.confidence - 0.96).abs() < 0.005);
}

#[test]
fn counting_and_approximation_agree() {
    let mut chance = Chance(7);
    for kinds in [2, 5, 1000] {
        for _ in 0..50 {
            let (a, b) = (chance.arm(24, kinds, 1), chance.arm(25, kinds, 1));
            let (ranks, tied) = ranks(&a, &b);
            let sum = ranks.iter().take(a.len()).sum();
            let (exact, near) = (counted(&ranks, 24, sum), approximate(&ranks, 24, sum, &tied));
            assert!((exact - near).abs() < 0.03, "{kinds}: {exact} {near}");
        }
    }
}

#[test]
fn sides_of_one_kind_are_rarely_called_different() {
    let mut chance = Chance(1);
    let experiments = 4000;
    // Many values, few values and hardly any other than zero; few runs, unequal sides, and too many to count.
    for (a, b, kinds) in [(4, 4, 1000), (10, 10, 1000), (10, 10, 3), (5, 17, 2), (10, 10, 1), (26, 30, 4)] {
        let (mut worse, mut different, mut missed) = (0, 0, 0);
        for _ in 0..experiments {
            let shift = compare(&chance.arm(a, kinds, 1 << 20), &chance.arm(b, kinds, 1 << 20));
            worse += usize::from(is_worse(&shift));
            different += usize::from(shift.p.is_some_and(beyond_noise));
            let interval = shift.interval.unwrap();
            missed += usize::from(interval.low > 0 || interval.high < 0);
        }
        // Three standard deviations of chance above the nominal 2.5 % and 5 %.
        assert!(worse <= experiments * 33 / 1000, "{a} {b} {kinds}: {worse}");
        assert!(different <= experiments * 61 / 1000, "{a} {b} {kinds}: {different}");
        assert!(missed <= experiments * 61 / 1000, "{a} {b} {kinds}: {missed}");
    }
}

#[test]
fn a_known_shift_is_found_and_its_interval_holds_it() {
    let mut chance = Chance(2);
    let (mut found, mut held) = (0, 0);
    for _ in 0..1000 {
        let a = chance.arm(10, 1000, 1);
        let b: Vec<u64> = chance.arm(10, 1000, 1).iter().map(|value| value + 700).collect();
        let shift = compare(&a, &b);
        found += usize::from(is_worse(&shift));
        let interval = shift.interval.unwrap();
        held += usize::from((interval.low..=interval.high).contains(&700));
        assert!((interval.low..=interval.high).contains(&shift.estimate));
    }
    assert!(found > 990 && held > 935, "{found} {held}");
}

#[test]
fn a_larger_shift_never_looks_smaller() {
    let mut chance = Chance(3);
    for _ in 0..200 {
        let (a, b) = (chance.arm(6, 50, 1), chance.arm(7, 50, 1));
        let mut before: Option<Shift> = None;
        for more in 0..80 {
            let shift = compare(&a, &b.iter().map(|value| value + more).collect::<Vec<u64>>());
            if let Some(before) = &before {
                assert!(shift.estimate >= before.estimate && shift.direction >= before.direction);
                let (now, then) = (shift.interval.unwrap(), before.interval.unwrap());
                assert!(now.low >= then.low && now.high >= then.high);
                assert!(!is_worse(before) || is_worse(&shift), "{a:?} {b:?} {more}");
            }
            before = Some(shift);
        }
        assert!(is_worse(&before.unwrap()));
    }
}

#[test]
fn the_order_of_runs_and_of_sides_does_not_matter() {
    let mut chance = Chance(4);
    for _ in 0..200 {
        let (mut a, b) = (chance.arm(5, 9, 3), chance.arm(8, 9, 3));
        let (there, back) = (compare(&a, &b), compare(&b, &a));
        assert_eq!((there.estimate, there.direction), (-back.estimate, back.direction.reverse()));
        assert_eq!(there.p, back.p);
        a.reverse();
        assert_eq!(compare(&a, &b), there);
    }
}

#[test]
fn what_never_varies_is_never_noise_and_never_different() {
    for value in [0, 1, u64::MAX] {
        for runs in [1, 4, 60] {
            let shift = compare(&vec![value; runs], &vec![value; runs]);
            assert_eq!((shift.estimate, shift.direction), (0, Ordering::Equal));
            assert_eq!((shift.p, shift.interval.is_some()), ((runs >= 4).then_some(1.0), runs >= 4));
        }
    }
}

#[test]
fn a_leak_in_some_runs_only_is_found_by_the_test_before_the_interval_tells_its_size() {
    let shift = compare(&[0; 10], &[0, 0, 0, 9, 9, 9, 9, 9, 9, 9]);
    assert!(is_worse(&shift) && shift.p.unwrap() < 0.01, "{shift:?}");
    assert_eq!((shift.estimate, shift.interval.unwrap().low), (9, 0));
    let rare = compare(&[0; 10], &[0, 0, 0, 0, 0, 0, 0, 9, 9, 9]);
    assert!(!is_worse(&rare));
}

#[test]
fn one_run_and_too_few_give_a_difference_and_no_interval() {
    let one = compare(&[3], &[10]);
    assert_eq!((one.medians, one.estimate, one.interval, one.p), ((3, 10), 7, None, None));
    assert!(!RankTest::new(3, 100).has_enough_runs() && RankTest::new(4, 4).has_enough_runs());
    assert_eq!(RankTest::new(0, 1).compare(&[], &[1]), None);
    assert_eq!(RankTest::new(2, 1).compare(&[1], &[1]), None);
}

#[test]
fn huge_values_do_not_overflow() {
    let (none, all) = ([0; 5], [u64::MAX, u64::MAX - 1, u64::MAX, u64::MAX - 3, u64::MAX]);
    let shift = compare(&none, &all);
    assert_eq!((shift.medians, shift.estimate), ((0, u64::MAX), i128::from(u64::MAX)));
    assert!(is_worse(&shift));
    assert_eq!(compare(&all, &none).estimate, -i128::from(u64::MAX));
    assert_eq!(median(&[u64::MAX, u64::MAX - 1]), Some(u64::MAX - 1));
    assert_eq!(median(&[]), None);
}

#[test]
fn many_probabilities_are_corrected_by_holm() {
    let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
    assert!(near(&corrected(&[0.01, 0.04, 0.03, 0.005]), &[0.03, 0.06, 0.06, 0.02]));
    assert!(near(&corrected(&[0.9, 0.8]), &[1.0, 1.0]));
    assert!(corrected(&[]).is_empty());
}
