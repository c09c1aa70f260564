//! One process stops before each of its operations in turn. The other one is not held up, dead or alive.
#![cfg(loom)]

use cuwarden_model::atomic::stop_before;
use cuwarden_model::device::{Device, Process};
use cuwarden_model::{Bounds, stop_everywhere};
use loom::thread;

const LIMIT: u64 = 16;
/// In its slot when everything begins.
const STOPS: u16 = 0;

/// `run` is stopped. It may hold or ask for up to 8 bytes, so that what the other one asks for fits beside it.
fn stops(dies: bool, bounds: Bounds, run: impl Fn(&Process) + Send + Sync + Copy + 'static) {
    stop_everywhere(bounds, move |most| {
        let device = Device::new(3, LIMIT, false);
        let stopped = Process::new(&device, STOPS).with(2, 0, 3);
        let other = Process::new(&device, 1).with(0, 0, 4);
        // One more, which has died: its bytes are in the way.
        let _ = Process::new(&device, 2).with(3, 0, 2);
        device.bury(2);
        let thread = {
            let device = device.clone();
            thread::spawn(move || {
                let is_done = stop_before(most, || run(&stopped));
                if dies {
                    device.bury(STOPS);
                }
                !is_done
            })
        };
        assert!(other.reserve(0, 8), "8 of 16 are held at most");
        other.release(0, 8);
        let is_stopped = thread.join().unwrap();
        if dies {
            other.take_the_rest();
        } else {
            other.take_the_rest_beside(STOPS, 6);
        }
        is_stopped
    });
}

/// Takes and gives back by its own place and by the word.
fn takes_and_gives(process: &Process) {
    let _ = process.reserve(0, 3);
    process.release(0, 3);
    let _ = process.reserve_shared(3);
    process.release(0, 3);
}

/// Asks for what makes it close the other's places, and reap the dead one.
fn closes_and_reaps(process: &Process) {
    let _ = process.reserve_shared(6);
}

/// Closes and opens its own places.
fn drains_and_opens(process: &Process) {
    process.drain();
    process.reopen(0);
    process.reopen(1);
    process.release(1, 2);
}

/// Takes the dead one's slot over, and dies of it too.
#[test]
fn claiming_dead() {
    claiming(true);
}

/// As above, but it lives and never goes on: what the dead one held is in nobody's way.
#[test]
fn claiming_alive() {
    claiming(false);
}

fn claiming(dies: bool) {
    stop_everywhere(Bounds { strong: 2, weak: 0 }, move |most| {
        let device = Device::new(3, LIMIT, false);
        let other = Process::new(&device, 1).with(0, 0, 4);
        let _ = Process::new(&device, 2).with(3, 0, 2);
        device.bury(2);
        let thread = {
            let device = device.clone();
            thread::spawn(move || {
                let is_done = stop_before(most, || {
                    let new = Process::claim(&device, 2).expect("nobody else wants it");
                    assert!(new.reserve(0, 2));
                });
                if dies {
                    device.bury(2);
                }
                !is_done
            })
        };
        assert!(other.reserve(0, LIMIT - 2), "2 of 16 are held at most");
        other.release(0, LIMIT - 2);
        let is_stopped = thread.join().unwrap();
        if dies {
            other.take_the_rest();
        } else {
            other.reap();
            other.take_the_rest_beside(2, 2);
        }
        is_stopped
    });
}

#[test]
fn taking_and_giving_dead() {
    stops(true, Bounds { strong: 2, weak: 0 }, takes_and_gives);
}

#[test]
fn taking_and_giving_alive() {
    stops(false, Bounds { strong: 2, weak: 0 }, takes_and_gives);
}

#[test]
fn closing_and_reaping_dead() {
    stops(true, Bounds { strong: 2, weak: 0 }, closes_and_reaps);
}

#[test]
fn closing_and_reaping_alive() {
    stops(false, Bounds { strong: 2, weak: 0 }, closes_and_reaps);
}

#[test]
fn draining_and_opening_dead() {
    stops(true, Bounds { strong: 2, weak: 0 }, drains_and_opens);
}

#[test]
fn draining_and_opening_alive() {
    stops(false, Bounds { strong: 2, weak: 0 }, drains_and_opens);
}
