//! Races that must be found: each in a function of its own, which the report has to name.

use std::cell::UnsafeCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

struct Shared(UnsafeCell<u64>);
// SAFETY: none at all, that is the point.
unsafe impl Sync for Shared {}

#[inline(never)]
fn add(place: &Shared) {
    // SAFETY: as above.
    unsafe { *place.0.get() += 1 }
}

#[inline(never)]
fn without_any_order() {
    static PLACE: Shared = Shared(UnsafeCell::new(0));
    let threads = [(); 2].map(|()| thread::spawn(|| (0..1000).for_each(|_| add(&PLACE))));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// The flag says that the value is there, and orders nothing.
#[inline(never)]
fn published_relaxed() {
    static PLACE: Shared = Shared(UnsafeCell::new(0));
    static READY: AtomicBool = AtomicBool::new(false);
    let writer = thread::spawn(|| {
        add(&PLACE);
        READY.store(true, Ordering::Relaxed);
    });
    while !READY.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    add(&PLACE);
    writer.join().unwrap();
}

/// Many take the lock and wait for each other, and one does not.
#[inline(never)]
fn one_without_the_lock() {
    static PLACE: Shared = Shared(UnsafeCell::new(0));
    static LOCK: Mutex<()> = Mutex::new(());
    let careless = thread::spawn(|| (0..10_000).for_each(|_| add(&PLACE)));
    let careful = [(); 3].map(|()| {
        thread::spawn(|| {
            for _ in 0..10_000 {
                let _held = LOCK.lock().unwrap();
                add(&PLACE);
            }
        })
    });
    careful.into_iter().for_each(|thread| thread.join().unwrap());
    careless.join().unwrap();
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("without_any_order") => without_any_order(),
        Some("published_relaxed") => published_relaxed(),
        Some("one_without_the_lock") => one_without_the_lock(),
        _ => panic!("which one?"),
    }
}
