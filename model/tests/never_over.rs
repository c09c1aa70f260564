//! However they meet, what processes hold stays within the limit, and the books say what they hold.
#![cfg(loom)]

use cuwarden_model::device::{Device, Process};
use cuwarden_model::{Bounds, explore};
use loom::thread;

/// A place for spare bytes is used by its owner while another process wants what is spare there.
#[test]
fn one_has_what_another_wants() {
    explore(Bounds { strong: 4, weak: 2 }, || {
        let device = Device::new(2, 10, true);
        let one = Process::new(&device, 0).with(0, 0, 6);
        let two = Process::new(&device, 1);
        let thread = thread::spawn(move || {
            if one.reserve(0, 6) {
                one.release(0, 6);
            }
        });
        if two.reserve(0, 6) {
            two.release(0, 6);
        }
        thread.join().unwrap();
        two.audit();
        two.take_the_rest();
    });
}

/// Without spare bytes.
#[test]
fn two_want_more_than_half() {
    explore(Bounds { strong: 4, weak: 2 }, || {
        let device = Device::new(2, 10, true);
        let [one, two] = [0, 1].map(|slot| Process::new(&device, slot));
        let thread = thread::spawn(move || {
            if one.reserve(0, 6) {
                one.release(0, 6);
            }
        });
        if two.reserve(0, 5) {
            two.release(0, 5);
        }
        thread.join().unwrap();
        two.audit();
        two.take_the_rest();
    });
}

/// Places are closed by the other one, and opened again by their owners.
#[test]
fn both_keep_and_open_again() {
    explore(Bounds { strong: 3, weak: 1 }, || {
        let device = Device::new(2, 16, false);
        let one = Process::new(&device, 0).with(2, 0, 4);
        let two = Process::new(&device, 1).with(1, 0, 5);
        let thread = thread::spawn(move || {
            let fits = one.reserve(0, 6);
            one.reopen(0);
            one.release(0, if fits { 5 } else { 1 });
            one.drain();
        });
        let fits = two.reserve(0, 7);
        two.reopen(0);
        two.release(0, if fits { 6 } else { 1 });
        two.drain();
        thread.join().unwrap();
        two.audit();
        two.take_the_rest();
    });
}

/// Each completes operations of two others.
#[test]
fn three_at_once() {
    explore(Bounds { strong: 2, weak: 1 }, || {
        let device = Device::new(3, 10, true);
        let two = Process::new(&device, 1).with(0, 0, 3);
        let [one, three] = [0, 2].map(|slot| Process::new(&device, slot));
        let threads = [(one, 4), (two, 6)].map(|(process, bytes)| {
            thread::spawn(move || {
                if process.reserve(0, bytes) {
                    process.release(0, bytes);
                }
            })
        });
        if three.reserve(0, 5) {
            three.release(0, 5);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        three.audit();
        three.take_the_rest();
    });
}

/// Whoever is slow in completing an operation finds its place for spare bytes as it was before, by all but the version.
#[test]
fn a_place_looks_as_before() {
    explore(Bounds { strong: 4, weak: 2 }, || {
        let device = Device::new(2, 8, false);
        let one = Process::new(&device, 0).with(2, 0, 2);
        let two = Process::new(&device, 1);
        let thread = thread::spawn(move || {
            one.reopen(0);
            one.release(0, 2);
            one.drain();
        });
        let _ = two.reserve_shared(5);
        thread.join().unwrap();
        two.audit();
        two.take_the_rest();
    });
}

/// As short as it can be, to look farther: one takes the other's spare bytes back, and writes its next operation while
/// the other one reads that.
#[test]
fn the_next_over_the_last() {
    explore(Bounds { strong: 6, weak: 5 }, || {
        let device = Device::new(2, 8, true);
        let one = Process::new(&device, 0);
        let two = Process::new(&device, 1).with(0, 0, 2);
        let thread = thread::spawn(move || assert!(one.reserve_shared(7)));
        assert!(two.reserve_shared(1));
        thread.join().unwrap();
        two.audit();
    });
}
