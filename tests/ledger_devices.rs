//! The account of a device is the device's, whatever number a process has for it.
//!
//! Reported of others: HAMi-core checked the limit of one index and booked under another, which let 50 GB through under
//! 1 GB; NVML's order taken for CUDA's.

// The helpers of tests fail by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

mod common;

#[path = "programs/ways/books.rs"]
mod books;
#[path = "programs/ledger/support.rs"]
mod support;

use support::{MIB, Puppet, REFUSED, Stage, uuid};

const GIB: u64 = 1 << 30;

/// Device 0 has 1 GiB, device 1 has 3 GiB, in the order of the bus.
const LIMITS: [u64; 2] = [GIB, 3 * GIB];

fn by_uuid() -> String {
    format!("{}=1g,{}=3g", uuid(0), uuid(1))
}

type Environment = Vec<(&'static str, String)>;

/// How a process is told which devices there are, and which device, in the order of the bus, is which number then.
fn views() -> Vec<(Environment, Vec<u32>)> {
    let visible = |list: &str| ("CUDA_VISIBLE_DEVICES", list.to_owned());
    vec![
        (vec![], vec![0, 1]),
        (vec![visible("0,1")], vec![0, 1]),
        (vec![visible("1,0")], vec![1, 0]),
        (vec![visible("1")], vec![1]),
        (vec![visible("0")], vec![0]),
        (vec![visible(&format!("{},{}", uuid(1), uuid(0)))], vec![1, 0]),
        (vec![visible(&uuid(1))], vec![1]),
        (vec![visible(&uuid(0)[..12])], vec![0]),
        (vec![("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()), visible("1,0")], vec![1, 0]),
    ]
}

fn puppet(stage: &Stage, environment: &[(&'static str, String)]) -> Puppet {
    stage.puppet_with(|command| {
        command.envs(environment.iter().map(|(name, value)| (name, value)));
    })
}

/// Takes bytes on the device that has this number in the process.
fn take(puppet: &mut Puppet, number: usize, bytes: u64) -> i32 {
    puppet.ok(&format!("use {number}"));
    puppet.code(&format!("alloc {bytes}"))
}

fn begin(puppet: &mut Puppet, devices: usize) {
    puppet.ok("init");
    for number in 0..devices {
        puppet.ok(&format!("context {number}"));
    }
}

#[test]
fn every_view_of_the_devices_leads_to_the_same_accounts() {
    let views = views();
    for (environment, devices) in &views {
        let stage = Stage::limited(&by_uuid());
        // One process fills all but 64 MiB of each device, seen in its own way.
        let mut one = puppet(&stage, environment);
        begin(&mut one, devices.len());
        for (number, device) in devices.iter().enumerate() {
            let limit = LIMITS[*device as usize];
            assert_eq!(one.numbers(&format!("total {number}")), [0, limit], "{environment:?}");
            assert_eq!(take(&mut one, number, limit + 1), REFUSED, "{environment:?} {number}");
            assert_eq!(take(&mut one, number, limit - 64 * MIB), 0, "{environment:?} {number}");
        }
        // Whatever way the others see them, 64 MiB are left there, and all on a device that was not touched.
        for (other_environment, others) in &views {
            let mut other = puppet(&stage, other_environment);
            begin(&mut other, others.len());
            for (number, device) in others.iter().enumerate() {
                let taken = devices.contains(device);
                let left = if taken { 64 * MIB } else { LIMITS[*device as usize] };
                let told = format!("{environment:?}, then {other_environment:?}, number {number}");
                assert_eq!(take(&mut other, number, left + 1), REFUSED, "{told}");
                assert_eq!(take(&mut other, number, left), 0, "{told}");
                assert_eq!(take(&mut other, number, 1), REFUSED, "{told}");
                other.ok("free");
            }
            assert_eq!(other.finish(), 0);
        }
        for device in 0..2 {
            assert!(stage.peak(device) <= LIMITS[device as usize], "{environment:?}: {}", stage.peak(device));
        }
        assert_eq!(stage.said(), "");
    }
}

/// CUDA puts the fastest device first unless it is told otherwise, and NVML never does.
#[test]
fn the_order_of_cuda_is_not_that_of_the_bus() {
    let fastest_last = |command: &mut std::process::Command| {
        command.env("CUWARDEN_SIM_ORDER", "1,0");
    };
    let stage = Stage::limited(&by_uuid());
    let mut by_speed = stage.puppet_with(fastest_last);
    let mut by_bus = stage.puppet_with(|command| {
        fastest_last(command);
        command.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    });
    begin(&mut by_speed, 2);
    begin(&mut by_bus, 2);
    assert_eq!(by_speed.numbers("total 0"), [0, 3 * GIB]);
    assert_eq!(by_bus.numbers("total 0"), [0, GIB]);
    assert_eq!(take(&mut by_speed, 0, 2 * GIB), 0);
    assert_eq!(take(&mut by_bus, 1, GIB + 1), REFUSED);
    assert_eq!(take(&mut by_bus, 1, GIB), 0);
    assert_eq!(take(&mut by_speed, 0, 1), REFUSED);
    assert_eq!(take(&mut by_bus, 0, GIB), 0);
    assert_eq!(take(&mut by_speed, 1, 1), REFUSED);
    assert_eq!([stage.peak(0), stage.peak(1)], LIMITS);
}

/// What NVML is asked, before CUDA starts or later, changes nothing about which account is whose.
#[test]
fn nvml_changes_nothing() {
    for before in [true, false] {
        for (environment, devices) in views() {
            let stage = Stage::limited(&by_uuid());
            let mut one = puppet(&stage, &environment);
            let ask = |puppet: &mut Puppet| {
                for index in 0..2 {
                    let answer = puppet.ask(&format!("nvml {index}"));
                    assert!(answer.starts_with(&format!("0 {} ", uuid(index))), "{answer}");
                }
            };
            if before {
                ask(&mut one);
            }
            begin(&mut one, devices.len());
            ask(&mut one);
            let mut other = puppet(&stage, &[]);
            begin(&mut other, 2);
            ask(&mut other);
            for (number, device) in devices.iter().enumerate() {
                let (device, limit) = (*device as usize, LIMITS[*device as usize]);
                let told = format!("{environment:?}, NVML before: {before}, number {number}");
                assert_eq!(take(&mut one, number, limit + 1), REFUSED, "{told}");
                assert_eq!(take(&mut one, number, limit / 2), 0, "{told}");
                assert_eq!(take(&mut other, device, limit / 2 + 1), REFUSED, "{told}");
                assert_eq!(take(&mut other, device, limit / 2), 0, "{told}");
                assert_eq!(take(&mut one, number, 1), REFUSED, "{told}");
            }
            for device in 0..2 {
                assert!(
                    stage.peak(device) <= LIMITS[device as usize],
                    "{environment:?}: {}",
                    stage.peak(device)
                );
            }
        }
    }
}

/// 50 GB under 1 GB, on one of four devices, whichever it is and wherever the process sees it.
#[test]
fn a_large_card_under_a_small_limit() {
    for limited in 0..4u32 {
        for visible in ["0,1,2,3", "3,2,1,0", "2,0,3,1", "1,3"] {
            let stage = Stage::limited(&format!("{}=1g", uuid(limited)));
            let mut puppet = stage.puppet_with(|command| {
                command.env("CUWARDEN_SIM_DEVICES", "4").env("CUWARDEN_SIM_MEMORY", "64g");
                command.env("CUDA_VISIBLE_DEVICES", visible);
            });
            let devices: Vec<u32> = visible.split(',').filter_map(|index| index.parse().ok()).collect();
            begin(&mut puppet, devices.len());
            for (number, device) in devices.iter().enumerate() {
                let expected = if *device == limited { REFUSED } else { 0 };
                assert_eq!(take(&mut puppet, number, 50 * GIB), expected, "{limited} in {visible}: {number}");
                if *device == limited {
                    assert_eq!(take(&mut puppet, number, GIB), 0, "{limited} in {visible}: {number}");
                    assert_eq!(take(&mut puppet, number, 1), REFUSED, "{limited} in {visible}: {number}");
                }
            }
            assert!(stage.peak(limited) <= GIB, "{limited} in {visible}: {}", stage.peak(limited));
        }
    }
}

/// One process fills one device, the other one the other; neither takes anything from the other's device.
#[test]
fn devices_have_nothing_to_do_with_each_other() {
    let stage = Stage::limited("*=1g");
    let mut one = stage.puppet();
    let mut other = puppet(&stage, &[("CUDA_VISIBLE_DEVICES", "1".to_owned())]);
    begin(&mut one, 2);
    begin(&mut other, 1);
    assert_eq!(take(&mut one, 0, GIB), 0);
    assert_eq!(take(&mut other, 0, GIB), 0);
    assert_eq!(take(&mut one, 0, 1), REFUSED);
    assert_eq!(take(&mut one, 1, 1), REFUSED);
    one.kill();
    assert_eq!(take(&mut other, 0, 1), REFUSED);
    let mut third = stage.puppet();
    begin(&mut third, 2);
    assert_eq!(take(&mut third, 0, GIB), 0);
    assert_eq!(take(&mut third, 1, 1), REFUSED);
    assert_eq!([stage.peak(0), stage.peak(1)], [GIB, GIB]);
}

/// Slices of one card are devices of their own: a process sees one of them, and calls it number 0.
#[test]
fn slices_of_a_card_have_accounts_of_their_own() {
    let slices = ["MIG-11111111-51a7-4ed0-8000-00000000000a", "MIG-22222222-51a7-4ed0-8000-00000000000b"];
    let stage = Stage::limited(&format!("{}=1g,{}=2g", slices[0], slices[1]));
    let start = |slice: usize| {
        let mut puppet = stage.puppet_with(|command| {
            command.env("CUWARDEN_SIM_UUIDS", slices.join(",")).env("CUDA_VISIBLE_DEVICES", slices[slice]);
        });
        begin(&mut puppet, 1);
        puppet
    };
    let (mut small, mut large) = (start(0), start(1));
    assert_eq!(take(&mut small, 0, GIB + 1), REFUSED);
    assert_eq!(take(&mut large, 0, 2 * GIB), 0);
    assert_eq!(take(&mut small, 0, GIB), 0);
    for puppet in [&mut small, &mut large, &mut start(0), &mut start(1)] {
        assert_eq!(take(puppet, 0, 1), REFUSED);
    }
    large.kill();
    assert_eq!(take(&mut start(0), 0, 1), REFUSED);
    assert_eq!(take(&mut start(1), 0, 2 * GIB), 0);
}
