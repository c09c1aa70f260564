//! When a change of the limit has come back, whatever begins later is decided under it.
#![cfg(loom)]

use cuwarden_model::device::{Device, Process};
use cuwarden_model::ledger::protocol::{limit_changed, sum};
use cuwarden_model::{Bounds, explore};
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The change, and whether it has come back. Nothing orders the answer but that it is so: what it tells is the strictest.
/// The thread answers what was charged then.
fn changed(device: &Arc<Device>, operator: Process, to: u64) -> (thread::JoinHandle<u64>, Arc<AtomicBool>) {
    let is_back = Arc::new(AtomicBool::new(false));
    let (device, back) = (device.clone(), is_back.clone());
    let thread = thread::spawn(move || {
        device.set_limit(to);
        limit_changed(&*device, &operator.me);
        back.store(true, Ordering::Relaxed);
        sum(&*device).0
    });
    (thread, is_back)
}

#[test]
fn lowered() {
    explore(Bounds { strong: 3, weak: 2 }, || {
        let device = Device::new(3, 10, true);
        let [one, two, operator] = [0, 1, 2].map(|slot| Process::new(&device, slot));
        let (thread, is_back) = changed(&device, operator, 5);
        let ask = |process: &Process| {
            let is_later = is_back.load(Ordering::Relaxed);
            let fits = process.reserve_shared(3);
            assert!(!fits || !is_later || sum(&*device).0 <= 5, "passed the new limit");
        };
        [&one, &two, &one].into_iter().for_each(ask);
        // What began before the change and was decided after it keeps to it, too.
        let then = thread.join().unwrap();
        assert!(sum(&*device).0 <= then.max(5), "passed the new limit with what was decided by the old one");
        ask(&two);
        one.audit();
    });
}

/// What is spare is taken without a look at the limit, and moves while that is lowered.
#[test]
fn lowered_beside_what_is_spare() {
    explore(Bounds { strong: 3, weak: 1 }, || {
        let device = Device::new(2, 16, false);
        let one = Process::new(&device, 0).with(4, 0, 3);
        let operator = Process::new(&device, 1);
        let (thread, is_back) = changed(&device, operator, 3);
        one.drain();
        one.release(0, 1);
        let is_later = is_back.load(Ordering::Relaxed);
        let fits = one.reserve(0, 1);
        assert!(!fits || !is_later, "passed the new limit");
        thread.join().unwrap();
        assert!(!one.reserve(0, 1), "passed the new limit");
        one.audit();
    });
}

#[test]
fn raised() {
    explore(Bounds { strong: 3, weak: 2 }, || {
        let mut device = Device::new(2, 5, true);
        // The model's own look at what is held.
        Arc::get_mut(&mut device).unwrap().most = 10;
        let [one, operator] = [0, 1].map(|slot| Process::new(&device, slot));
        let (thread, is_back) = changed(&device, operator, 10);
        let is_later = is_back.load(Ordering::Relaxed);
        let fits = one.reserve_shared(7);
        assert!(fits || !is_later, "refused by the old limit");
        thread.join().unwrap();
        assert!(fits || one.reserve_shared(7));
        one.audit();
    });
}
