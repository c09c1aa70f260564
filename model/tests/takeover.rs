//! The charges of the dead are taken away once, whoever does it, and from nobody else.
#![cfg(loom)]

use cuwarden_model::device::{Device, Process};
use cuwarden_model::{Bounds, explore};
use loom::thread;

const DEAD: u16 = 2;

fn dead(device: &std::sync::Arc<Device>) {
    let _ = Process::new(device, DEAD).with(3, 0, 2);
    device.bury(DEAD);
}

/// Both can only have what they want when it is gone.
#[test]
fn two_reap_one() {
    explore(Bounds { strong: 3, weak: 1 }, || {
        let device = Device::new(3, 8, true);
        dead(&device);
        let [one, two] = [0, 1].map(|slot| Process::new(&device, slot));
        let thread = thread::spawn(move || assert!(one.reserve_shared(4)));
        assert!(two.reserve_shared(4));
        thread.join().unwrap();
        two.audit();
    });
}

/// One is about to take back what is spare of the dead one, and to reap it, while a new owner takes the slot over.
#[test]
fn taken_over_and_reaped() {
    explore(Bounds { strong: 3, weak: 1 }, || {
        let device = Device::new(3, 8, true);
        dead(&device);
        let one = Process::new(&device, 0);
        let there = device.clone();
        let thread = thread::spawn(move || {
            let new = Process::claim(&there, DEAD).expect("nobody else wants it");
            assert!(new.reserve(0, 2));
        });
        assert!(one.reserve_shared(6), "2 of 8 are held at most");
        thread.join().unwrap();
        one.audit();
        one.take_the_rest();
    });
}

/// The new owner opens its place and keeps something there, while two others are at the dead one's.
#[test]
fn taken_over_between_two() {
    explore(Bounds { strong: 2, weak: 1 }, || {
        let device = Device::new(3, 8, false);
        dead(&device);
        let [one, two] = [0, 1].map(|slot| Process::new(&device, slot));
        let there = device.clone();
        let threads = [
            thread::spawn(move || {
                let new = Process::claim(&there, DEAD).expect("nobody else wants it");
                assert!(new.reserve(0, 2));
                new.reopen(0);
                new.release(0, 1);
            }),
            thread::spawn(move || {
                let _ = two.reserve_shared(2);
            }),
        ];
        let _ = one.reserve_shared(4);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        one.audit();
        one.take_the_rest();
    });
}
