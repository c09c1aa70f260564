//! However they meet, what processes hold stays within the limit, and the books say what they hold.
#![cfg(loom)]

use cuwarden_model::device::{Device, Process};
use cuwarden_model::explore;
fn memory() -> cuwarden_model::atomic::Memory {
    use cuwarden_model::atomic::Memory;
    match std::env::var("WEAK") { Ok(n) => Memory::Weak(n.parse().unwrap()), _ => Memory::Strong }
}
use loom::thread;

/// One spare place is used by its owner while another process wants what is spare there.
#[test]
fn two_at_the_edge() {
    explore(memory(), 2, || {
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
fn two_by_the_word() {
    explore(memory(), 2, || {
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
