//! A request that fits is granted.
#![cfg(loom)]

use cuwarden_model::device::{Device, Process};
use cuwarden_model::{Bounds, explore};
use loom::thread;

/// Both have something spare, and want everything.
#[test]
fn one_of_two_gets_everything() {
    explore(Bounds { strong: 3, weak: 1 }, || {
        let device = Device::new(2, 8, true);
        let one = Process::new(&device, 0).with(0, 0, 3);
        let two = Process::new(&device, 1).with(0, 0, 2);
        let thread = thread::spawn(move || one.reserve(0, 8));
        let second = two.reserve(0, 8);
        let first = thread.join().unwrap();
        assert!(first != second, "granted: {first} and {second}");
        two.audit();
    });
}

/// What is spare of a third, idle process has to be taken back for either.
#[test]
fn both_fit() {
    explore(Bounds { strong: 4, weak: 2 }, || {
        let device = Device::new(3, 8, true);
        let _idle = Process::new(&device, 2).with(0, 0, 6);
        let [one, two] = [0, 1].map(|slot| Process::new(&device, slot));
        let thread = thread::spawn(move || assert!(one.reserve(0, 4)));
        assert!(two.reserve(0, 4));
        thread.join().unwrap();
        two.audit();
    });
}

/// The other one holds 3 at most at any time, but what it has spare moves between its places, which open again.
#[test]
fn fits_beside_what_moves() {
    explore(Bounds { strong: 4, weak: 1 }, || {
        let device = Device::new(2, 8, false);
        let one = Process::new(&device, 0).with(3, 0, 1);
        one.reopen(1);
        let two = Process::new(&device, 1);
        let thread = thread::spawn(move || {
            one.release(1, 1);
            assert!(one.reserve(0, 1));
            one.reopen(0);
            one.release(0, 1);
            assert!(one.reserve(1, 1));
        });
        assert!(two.reserve_shared(5), "refused beside 3 of 8");
        thread.join().unwrap();
        two.audit();
    });
}

/// As above, with operations on the word instead.
#[test]
fn fits_beside_what_is_drained() {
    explore(Bounds { strong: 3, weak: 1 }, || {
        let device = Device::new(2, 8, false);
        let one = Process::new(&device, 0).with(2, 0, 2);
        let two = Process::new(&device, 1);
        let thread = thread::spawn(move || {
            one.drain();
            assert!(one.reserve_shared(1));
            one.release(0, 2);
            one.reopen(0);
            assert!(one.reserve(0, 1));
        });
        assert!(two.reserve_shared(5), "refused beside 3 of 8");
        thread.join().unwrap();
        two.audit();
    });
}
