//! Which device a context belongs to, and what ends with it.
//!
//! A context that cuCtxCreate made is known from then on. Any other context that is seen current is the
//! primary context of its device, or a green context on top of it, whose memory is the primary's.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// How a context came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// By cuCtxCreate: ends with cuCtxDestroy.
    Created,
    /// The device's primary context: ends with its last release, or a reset.
    Primary,
    /// By cuGreenCtxCreate, under its own handle: holds the primary context of its device.
    Green,
}

/// A context that is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// CUDA ordinal.
    pub device: u8,
    /// How it came to be.
    pub origin: Origin,
}

/// What of a context costs memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Costly {
    /// A context of its own, by its handle: created, or green.
    Handle(usize),
    /// The primary context of a device, whoever retained it.
    Primary,
}

/// More contexts than this at a time are looked up under the lock.
const FAST: usize = 8;

/// The contexts of this process.
#[derive(Default)]
pub struct Contexts {
    /// The first few without a lock: handle, then [`pack`]ed context.
    fast: [(AtomicUsize, AtomicU64); FAST],
    all: Mutex<Vec<(usize, Context, u32)>>,
    /// Bytes that the quota is charged, by CUDA ordinal. A list, since it stays short.
    costs: Mutex<Vec<(u8, Costly, u64)>>,
    /// Bit n: the driver makes device n's primary context at its first use, and we have not seen that yet.
    to_come: AtomicU64,
}

impl Contexts {
    /// The context with this handle.
    #[inline(always)]
    pub fn find(&self, handle: usize) -> Option<Context> {
        for (known, packed) in &self.fast {
            // Acquire pairs with the Release in `refill`: the packed word belongs to this handle or a later one.
            if known.load(Ordering::Acquire) == handle {
                let context = unpack(packed.load(Ordering::Acquire));
                if known.load(Ordering::Relaxed) == handle {
                    return context;
                }
            }
        }
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|(known, _, _)| *known == handle).map(|(_, context, _)| *context)
    }

    /// Notes a context. An older one of the same handle is forgotten: the driver gave the handle out again.
    pub fn add(&self, handle: usize, context: Context) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(known, _, _)| *known != handle);
        all.push((handle, context, 1));
        self.refill(&all);
    }

    /// cuCtxAttach: one more use.
    pub fn attach(&self, handle: usize) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, _, uses)) = all.iter_mut().find(|(known, _, _)| *known == handle) {
            *uses = uses.saturating_add(1);
        }
    }

    /// cuCtxDetach: one use less. True when it was the last: the context has ended.
    pub fn detach(&self, handle: usize) -> bool {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((_, _, uses)) = all.iter_mut().find(|(known, _, _)| *known == handle) else { return false };
        *uses = uses.saturating_sub(1);
        *uses == 0
    }

    /// Forgets a context if its last use has been given back; answers it then.
    pub fn remove_if_unused(&self, handle: usize) -> Option<Context> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|(known, _, uses)| *known == handle && *uses == 0)?;
        let (_, context, _) = all.swap_remove(at);
        self.refill(&all);
        Some(context)
    }

    /// Forgets a context that has ended.
    pub fn remove(&self, handle: usize) -> Option<Context> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|(known, _, _)| *known == handle)?;
        let (_, context, _) = all.swap_remove(at);
        self.refill(&all);
        Some(context)
    }

    /// The handles by which the primary context of a device is known.
    pub fn primaries(&self, device: u8) -> Vec<usize> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let is_primary = |context: &Context| context.device == device && context.origin == Origin::Primary;
        all.iter().filter(|(_, context, _)| is_primary(context)).map(|(handle, _, _)| *handle).collect()
    }

    /// Notes what a context is charged, in bytes. False: it is charged already.
    pub fn note_cost(&self, device: u8, of: Costly, bytes: u64) -> bool {
        let mut costs = self.costs.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !costs.iter().any(|cost| (cost.0, cost.1) == (device, of));
        if is_new {
            costs.push((device, of, bytes));
        }
        is_new
    }

    /// A context has ended: what it was charged, in bytes.
    pub fn end_cost(&self, device: u8, of: Costly) -> u64 {
        let mut costs = self.costs.lock().unwrap_or_else(PoisonError::into_inner);
        let found = costs.iter().position(|cost| (cost.0, cost.1) == (device, of));
        found.map_or(0, |at| costs.swap_remove(at).2)
    }

    /// The device's primary context will come, or has come or is not awaited any more.
    pub fn await_primary(&self, device: u8, awaited: bool) {
        let bit = 1u64.checked_shl(device.into()).unwrap_or(0);
        // Relaxed: concerns this bit alone.
        if awaited {
            self.to_come.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.to_come.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// True while the device's primary context is awaited.
    #[inline(always)]
    pub fn is_primary_awaited(&self, device: u8) -> bool {
        self.to_come.load(Ordering::Relaxed).checked_shr(device.into()).unwrap_or(0) & 1 != 0
    }

    fn refill(&self, all: &[(usize, Context, u32)]) {
        for (slot, (known, packed)) in self.fast.iter().enumerate() {
            match all.get(slot) {
                Some((handle, context, _)) => {
                    // The handle is withdrawn while its word changes.
                    if known.load(Ordering::Relaxed) != *handle {
                        known.store(0, Ordering::Release);
                    }
                    packed.store(pack(*context), Ordering::Release);
                    known.store(*handle, Ordering::Release);
                }
                None => known.store(0, Ordering::Release),
            }
        }
    }
}

fn pack(context: Context) -> u64 {
    1 << 16 | (context.origin as u64) << 8 | u64::from(context.device)
}

#[inline(always)]
fn unpack(word: u64) -> Option<Context> {
    if word == 0 {
        return None;
    }
    let origin = match word >> 8 & 0xff {
        0 => Origin::Created,
        1 => Origin::Primary,
        _ => Origin::Green,
    };
    Some(Context { device: word as u8, origin })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_come_and_go() {
        let contexts = Contexts::default();
        let created = |device| Context { device, origin: Origin::Created };
        for handle in 1..=20 {
            contexts.add(handle, created(handle as u8));
        }
        for handle in 1..=20 {
            assert_eq!(contexts.find(handle), Some(created(handle as u8)));
        }
        assert_eq!(contexts.remove(3), Some(created(3)));
        assert_eq!(contexts.find(3), None);
        assert_eq!(contexts.find(20), Some(created(20)));
        contexts.add(20, Context { device: 1, origin: Origin::Primary });
        assert_eq!(contexts.find(20), Some(Context { device: 1, origin: Origin::Primary }));
        assert_eq!(contexts.primaries(1), [20]);
        assert_eq!(contexts.find(0), None, "no context");
    }

    #[test]
    fn attached_contexts_end_with_the_last_detach() {
        let contexts = Contexts::default();
        contexts.add(7, Context { device: 0, origin: Origin::Created });
        contexts.attach(7);
        assert!(!contexts.detach(7));
        contexts.remove_if_unused(7);
        assert!(contexts.find(7).is_some());
        assert!(contexts.detach(7));
        contexts.remove_if_unused(7);
        assert_eq!(contexts.find(7), None);
        assert!(!contexts.detach(8));
    }
}
