//! The atomics that processes share. Under `cfg(loom)` they are the model checker's, see `model/`.

#[cfg(not(loom))]
pub use real::Pair;
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
pub use crate::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use model::Pair;

#[cfg(not(loom))]
mod real {
    use std::cell::UnsafeCell;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Two words that change together. The high one must differ after every change: by that a reader knows that the
    /// low one belongs to it.
    #[derive(Debug, Default)]
    #[repr(C, align(16))]
    pub struct Pair(UnsafeCell<[u64; 2]>);

    // SAFETY: the words are reached by atomic means only.
    unsafe impl Sync for Pair {}

    impl Pair {
        /// The words, low one first. Acquire: pairs with the exchange that put them there.
        #[inline]
        pub fn load(&self) -> [u64; 2] {
            let mut seen = self.high().load(Ordering::Acquire);
            // A writer would have to come between every two loads; memory that somebody tampers with could do so for
            // ever, and a mixed pair is refused by the next exchange.
            for _ in 0..1000 {
                let low = self.low().load(Ordering::Acquire);
                let again = self.high().load(Ordering::Acquire);
                if again == seen {
                    return [low, seen];
                }
                seen = again;
            }
            [self.low().load(Ordering::Acquire), seen]
        }

        /// The low word alone.
        #[inline]
        pub fn glance(&self) -> u64 {
            self.low().load(Ordering::Acquire)
        }

        /// Puts `new` there if the words are `old`; otherwise answers what they are. A full barrier either way.
        #[inline]
        pub fn exchange(&self, old: [u64; 2], new: [u64; 2]) -> Result<(), [u64; 2]> {
            // SAFETY: aligned by its type; the words are reached by atomic means only.
            unsafe { cuwarden_arch::compare_exchange_pair(self.0.get(), old, new) }
        }

        fn low(&self) -> &AtomicU64 {
            // SAFETY: the first word, aligned, alive as long as self.
            unsafe { AtomicU64::from_ptr(self.0.get().cast()) }
        }

        fn high(&self) -> &AtomicU64 {
            // SAFETY: the second word, as above.
            unsafe { AtomicU64::from_ptr(self.0.get().cast::<u64>().add(1)) }
        }
    }
}

#[cfg(loom)]
mod model {
    use crate::atomic::{AtomicU64, Ordering};

    /// loom has no 128-bit atomics: each word keeps its top and its bottom 16 bits, which is all that a model fills.
    #[derive(Debug, Default)]
    pub struct Pair(AtomicU64);

    impl Pair {
        pub fn load(&self) -> [u64; 2] {
            unpack(self.0.load(Ordering::Acquire))
        }

        pub fn glance(&self) -> u64 {
            self.load()[0]
        }

        pub fn exchange(&self, old: [u64; 2], new: [u64; 2]) -> Result<(), [u64; 2]> {
            self.0
                .compare_exchange(pack(old), pack(new), Ordering::SeqCst, Ordering::SeqCst)
                .map(|_| ())
                .map_err(unpack)
        }
    }

    fn pack([low, high]: [u64; 2]) -> u64 {
        half(low) << 32 | half(high)
    }

    fn half(word: u64) -> u64 {
        assert_eq!(word & 0x0000_ffff_ffff_0000, 0, "too large for the model: {word:#x}");
        word >> 48 << 16 | word & 0xffff
    }

    fn unpack(both: u64) -> [u64; 2] {
        let word = |half: u64| half >> 16 << 48 | half & 0xffff;
        [word(both >> 32), word(both & 0xffff_ffff)]
    }
}
