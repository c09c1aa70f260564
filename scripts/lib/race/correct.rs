//! Correct ways of sharing, through all of std that our code uses: nothing may be reported.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, OnceLock, RwLock, mpsc};
use std::thread;
use std::time::Duration;

struct Shared(UnsafeCell<u64>);
// SAFETY: each place is used under the lock that its test has.
unsafe impl Sync for Shared {}

impl Shared {
    const fn new() -> Shared {
        Shared(UnsafeCell::new(0))
    }

    fn add(&self) {
        // SAFETY: as above.
        unsafe { *self.0.get() += 1 }
    }

    fn get(&self) -> u64 {
        // SAFETY: as above.
        unsafe { *self.0.get() }
    }
}

fn mutex() {
    let (place, lock) = (Shared::new(), Mutex::new(()));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50_000 {
                    let _held = lock.lock().unwrap();
                    place.add();
                }
            });
        }
    });
    // After the scope, without the lock.
    assert_eq!(place.get(), 200_000);
}

fn rwlock() {
    let (place, lock) = (Shared::new(), RwLock::new(()));
    thread::scope(|scope| {
        for n in 0..4 {
            let (place, lock) = (&place, &lock);
            scope.spawn(move || {
                for _ in 0..50_000 {
                    if n < 2 {
                        let _held = lock.write().unwrap();
                        place.add();
                    } else {
                        let _held = lock.read().unwrap();
                        assert!(place.get() <= 100_000);
                    }
                }
            });
        }
    });
}

fn condvar() {
    let (place, turn, changed) = (Shared::new(), Mutex::new(0), Condvar::new());
    thread::scope(|scope| {
        for me in 0..2 {
            let (place, turn, changed) = (&place, &turn, &changed);
            scope.spawn(move || {
                for _ in 0..5_000 {
                    let mut now = turn.lock().unwrap();
                    while *now != me {
                        now = if me == 0 {
                            changed.wait(now).unwrap()
                        } else {
                            changed.wait_timeout(now, Duration::from_secs(5)).unwrap().0
                        };
                    }
                    place.add();
                    *now = 1 - me;
                    changed.notify_all();
                }
            });
        }
    });
}

fn once() {
    for _ in 0..1000 {
        let once: OnceLock<Box<u64>> = OnceLock::new();
        let barrier = Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    **once.get_or_init(|| Box::new(7))
                });
            }
        });
        assert_eq!(once.get().map(|seven| **seven), Some(7));
    }
}

fn channel() {
    let (sender, receiver) = mpsc::channel::<Box<u64>>();
    let sum = thread::spawn(move || receiver.into_iter().map(|number| *number).sum::<u64>());
    for number in 0..10_000 {
        sender.send(Box::new(number)).unwrap();
    }
    drop(sender);
    assert_eq!(sum.join().unwrap(), 49_995_000);
}

fn arc() {
    for _ in 0..200 {
        let shared = Arc::new((AtomicU32::new(0), vec![1, 2, 3]));
        for _ in 0..3 {
            let shared = Arc::clone(&shared);
            // Not joined: whoever is the last frees it.
            thread::spawn(move || {
                shared.0.fetch_add(shared.1[0], Ordering::Relaxed);
            });
        }
        let parent = shared;
        assert!(parent.0.load(Ordering::Relaxed) <= 3);
    }
}

fn main() {
    mutex();
    rwlock();
    condvar();
    once();
    channel();
    arc();
}
