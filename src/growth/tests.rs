use super::*;
use crate::policy::drift::Settings;

/// A value each second, the last one being the end.
fn course(bytes: impl IntoIterator<Item = u64>) -> Vec<Point> {
    bytes.into_iter().enumerate().map(|(at, bytes)| Point { at_s: at as f64, bytes }).collect()
}

fn births(count: u64, oldest_s: f64, newest_s: f64) -> Births {
    Births { count, oldest_s, newest_s }
}

fn class(points: &[Point], births: Births) -> Option<GrowthClass> {
    classify(points, births).map(|growth| growth.class)
}

const MIB: u64 = 1 << 20;

#[test]
fn a_leak_grows_at_its_pace() {
    let growth = classify(&course((0..40).map(|i| i * MIB)), births(39, 1.0, 39.0)).unwrap();
    assert_eq!(growth, Growth { class: GrowthClass::Growing, bytes_a_minute: 60.0 * MIB as f64 });
    // In steps, with something that comes and goes beside it, and beside much that stays.
    let noisy = course((0..40).map(|i| 500 * MIB + (i / 4) * 40 * MIB + (i * 7919 % 5) * MIB));
    let growth = classify(&noisy, births(9, 0.0, 38.0)).unwrap();
    assert_eq!(growth.class, GrowthClass::Growing);
    assert!((8.0..12.0).contains(&(growth.bytes_a_minute / 60.0 / MIB as f64)), "{growth:?}");
}

#[test]
fn what_stops_growing_is_steady() {
    let cache = course((0..40).map(|i| i.min(20) * MIB));
    assert_eq!(class(&cache, births(20, 1.0, 20.0)), Some(GrowthClass::Steady));
    assert_eq!(classify(&cache, births(20, 1.0, 20.0)).unwrap().bytes_a_minute, 0.0);
    let late = course((0..40).map(|i| i.min(30) * MIB));
    assert_eq!(class(&late, births(30, 1.0, 30.0)), Some(GrowthClass::Steady));
}

#[test]
fn what_comes_and_goes_is_steady() {
    let ring = course((0..40).map(|i| i.min(8) * MIB));
    assert_eq!(class(&ring, births(8, 32.0, 39.0)), Some(GrowthClass::Steady));
    for phase in 0..12 {
        // Up to twelve and down to nothing again, ended anywhere.
        let saw = course((0..60).map(|i| 10 * MIB + (i + phase) % 12 * MIB));
        let full = births(3, 40.0, 59.0);
        assert_eq!(class(&saw, full), Some(GrowthClass::Steady), "{phase}");
    }
    let shrinking = course((0..40).map(|i| (100 - i) * MIB));
    assert_eq!(class(&shrinking, births(60, 0.0, 20.0)), Some(GrowthClass::Steady));
}

/// Of ten thousand call stacks that go up and down by chance, hardly one is said to grow.
#[test]
fn chance_does_not_grow() {
    let mut state = 12345u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 54
    };
    let grown = (0..10_000)
        .filter(|_| {
            let points = course((0..46).map(|_| 10_000 + random()));
            class(&points, births(50, 0.0, 45.0)) == Some(GrowthClass::Growing)
        })
        .count();
    assert!(grown <= 10, "{grown} of 10000");
}

#[test]
fn what_was_allocated_once_is_one_off() {
    let weights = course(std::iter::once(0).chain(std::iter::repeat_n(700 * MIB, 30)));
    assert_eq!(class(&weights, births(1, 0.5, 0.5)), Some(GrowthClass::OneOff));
    assert_eq!(class(&weights, births(300, 0.5, 0.9)), Some(GrowthClass::OneOff));
    // One alone needs no samples, nor much time.
    assert_eq!(class(&course([MIB]), births(1, 0.0, 0.0)), Some(GrowthClass::OneOff));
    // The same amount, but a new one each time.
    assert_eq!(class(&weights, births(1, 29.5, 29.5)), Some(GrowthClass::Steady));
}

#[test]
fn too_short_is_not_judged() {
    assert_eq!(class(&course([0, 0, 5 * MIB]), births(5, 1.6, 1.9)), None);
    assert_eq!(class(&course((0..6).map(|i| i * MIB)), births(5, 1.0, 5.0)), None);
    assert_eq!(classify(&[], births(1, 0.0, 0.0)), None);
    assert_eq!(class(&course([0, 0, 0]), births(1, 0.0, 0.0)), None);
}

// ---- while it runs ------------------------------------------------------------------------------------------------

/// Sees one device each second.
fn watch(settings: Settings, series: &[&dyn Fn(u64) -> u64], until: u64) -> Vec<(u64, Suspicion)> {
    let mut detector = Detector::new(settings);
    let mut found = Vec::new();
    for second in 0..until {
        let bytes: Vec<u64> = series.iter().map(|of| of(second)).collect();
        let devices = vec![0; bytes.len()];
        let live = Live { at_s: second as f64, bytes: &bytes, devices: &devices };
        found.extend(detector.see(live).into_iter().map(|suspicion| (second, suspicion)));
    }
    found
}

use drift::{Grown, Live};

#[test]
fn growth_by_a_part_again_and_again_is_drift() {
    let leak = |s: u64| 100 * MIB + s * 10 * MIB;
    let rest = |_| 20 * MIB;
    // 30 s: 420; then 470 (+12 %): not yet suspicious at 15 %.
    assert_eq!(watch(Settings::default(), &[&leak, &rest], 200), []);
    let settings = Settings { percent: 8.0, ..Settings::default() };
    let found = watch(settings, &[&rest, &leak], 200);
    let [(at, suspicion)] = &found[..] else { panic!("{found:?}") };
    // The first comparison at 30 s has nothing before it; three more follow.
    assert_eq!((*at, suspicion.rule, suspicion.device), (45, Rule::Drift, 0));
    assert_eq!((suspicion.before_bytes, suspicion.now_bytes, suspicion.over_s), (420 * MIB, 570 * MIB, 15.0));
    assert_eq!(suspicion.bytes_a_minute, 600.0 * MIB as f64);
    let grown = Grown { series: 1, before_bytes: 400 * MIB, now_bytes: 550 * MIB };
    assert_eq!(suspicion.grown, [grown]);
}

#[test]
fn a_fall_in_between_ends_the_row() {
    let settings = Settings { percent: 5.0, ..Settings::default() };
    let leak = |s: u64| 100 * MIB + s * 10 * MIB;
    assert_eq!(watch(settings, &[&leak], 120).len(), 1);
    let falls = |s: u64| leak(s) - if s % 7 == 3 { 60 * MIB } else { 0 };
    assert_eq!(watch(settings, &[&falls], 120), []);
}

#[test]
fn a_call_stack_is_named_once_and_another_one_later() {
    let settings = Settings { after_s: 5.0, percent: 5.0, ..Settings::default() };
    let first = |s: u64| 10 * MIB + s.min(60) * 10 * MIB;
    let second = |s: u64| 10 * MIB + s.saturating_sub(60) * 50 * MIB;
    let found = watch(settings, &[&first, &second], 150);
    let named: Vec<Vec<usize>> = found
        .iter()
        .map(|(_, suspicion)| suspicion.grown.iter().map(|grown| grown.series).collect())
        .collect();
    assert_eq!(named, [vec![0], vec![1]]);
}

#[test]
fn nothing_to_begin_with_is_no_growth() {
    let settings = Settings { after_s: 0.0, ..Settings::default() };
    let late = |s: u64| if s < 50 { 0 } else { 500 * MIB };
    assert_eq!(watch(settings, &[&late], 100), []);
    assert_eq!(watch(settings, &[], 100), []);
}

#[test]
fn a_slow_leak_is_one_that_fills_the_device_within_the_horizon() {
    let look = |pace: u64, room: u64, at_s: f64| {
        let mut detector = Detector::new(Settings::default());
        let leak = course((0..46).map(|i| 1000 * MIB + i * pace)).into_iter();
        // One sample in twenty seconds.
        let leak: Vec<Point> = leak.map(|p| Point { at_s: p.at_s * 20.0, ..p }).collect();
        let rest = course((0..46).map(|_| 500 * MIB));
        let live = Live { at_s, bytes: &[500 * MIB, 1000 * MIB + 45 * pace], devices: &[0, 0] };
        let of = |series: usize| if series == 1 { leak.clone() } else { rest.clone() };
        let first = detector.look_back(live, 0, room, &of);
        assert_eq!(detector.look_back(live, 0, room, &of), None, "named twice");
        assert_eq!(detector.look_back(live, 1, room, &of), None, "another device");
        first
    };
    // 1 MiB in 20 s fills 10 GiB in 2.4 days.
    let found = look(MIB, 10 << 30, 900.0).unwrap();
    assert_eq!((found.rule, found.bytes_a_minute), (Rule::Slow, 3.0 * MIB as f64));
    assert_eq!(found.full_in_s.map(f64::round), Some(204_800.0));
    assert_eq!(found.grown.iter().map(|grown| grown.series).collect::<Vec<_>>(), [1]);
    // 80 GiB take 19 days, and before ten minutes nobody looks back.
    assert_eq!(look(MIB, 80 << 30, 900.0), None);
    assert_eq!(look(MIB, 10 << 30, 599.0), None);
    assert_eq!(look(0, 10 << 30, 900.0), None);
}
