//! The runtimes that are loaded in this process, each at its place.
//!
//! A place is given to a runtime when a call or a look-up first comes to it, and to another one when that runtime has
//! been unloaded. What calls an entry of a place was bound to the runtime that had it then, so it is gone as well.

use super::bind::generation;
use super::table::{COUNT, Node, name_of};
use crate::hooks::lookup::elf::{dynamic_section, each_library, library_of, own_base, path_of};
use crate::hooks::lookup::symbols::{Dyn, definition};
use crate::policy::versions::runtime::identify;
use crate::stack::cudart;
use crate::tracking::askers;
use crate::tracking::runtimes::MOST_LOADED;
use core::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The number of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number(pub u8);

/// A loaded library that has one of our nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    base: u64,
    dynamic: *const Dyn,
    pub node: Node,
}

impl Candidate {
    /// Its function of a row.
    pub(super) fn function(&self, call: usize) -> Option<*const c_void> {
        let address = definition(self.base, self.dynamic, name_of(call)?, Some(self.node.name()))?;
        Some(address as *const c_void)
    }
}

struct Instance {
    /// 0 = free. Written last.
    base: AtomicU64,
    dynamic: AtomicU64,
    node: AtomicU64,
    functions: [AtomicPtr<c_void>; COUNT],
}

static INSTANCES: [Instance; MOST_LOADED] = [const {
    Instance {
        base: AtomicU64::new(0),
        dynamic: AtomicU64::new(0),
        node: AtomicU64::new(0),
        functions: [const { AtomicPtr::new(std::ptr::null_mut()) }; COUNT],
    }
}; MOST_LOADED];

/// The generation for which the places were looked through.
static LOOKED: AtomicU64 = AtomicU64::new(0);

/// The process whose thread gives places; 0 = none does. A forked child may find its parent's number, whose thread it
/// does not have.
static GIVER: AtomicU32 = AtomicU32::new(0);

/// The right to give places.
struct Giving;

impl Giving {
    /// `None`: another thread takes too long.
    fn begin() -> Option<Giving> {
        let pid = std::process::id();
        for _ in 0..1000 {
            let giver = GIVER.load(Ordering::Relaxed);
            // Acquire pairs with the Release in `drop`.
            if giver != pid
                && GIVER.compare_exchange(giver, pid, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Some(Giving);
            }
            std::thread::yield_now();
        }
        None
    }
}

impl Drop for Giving {
    fn drop(&mut self) {
        GIVER.store(0, Ordering::Release);
    }
}

/// The function of a row in a runtime.
#[inline(always)]
pub(super) fn function(number: Number, call: usize) -> Option<*const c_void> {
    let instance = INSTANCES.get(usize::from(number.0))?;
    // Relaxed: the address of code that was there before.
    let known = instance.functions.get(call)?.load(Ordering::Relaxed);
    if known.is_null() { look_for(instance, call) } else { Some(known) }
}

#[cold]
#[inline(never)]
fn look_for(instance: &Instance, call: usize) -> Option<*const c_void> {
    let function = candidate(instance)?.function(call)?;
    instance.functions.get(call)?.store(function.cast_mut(), Ordering::Relaxed);
    Some(function)
}

fn candidate(instance: &Instance) -> Option<Candidate> {
    // Acquire pairs with the Release in `give`.
    let base = instance.base.load(Ordering::Acquire);
    let dynamic = instance.dynamic.load(Ordering::Relaxed) as *const Dyn;
    let node = Node::from_u8(instance.node.load(Ordering::Relaxed) as u8)?;
    (base != 0).then_some(Candidate { base, dynamic, node })
}

/// All loaded libraries that have a node, in load order, without our own.
pub(super) fn candidates(wanted: Option<Node>) -> Vec<Candidate> {
    let mut found = Vec::new();
    each_library(&mut |info| {
        let base = info.dlpi_addr;
        if base == own_base() {
            return false;
        }
        let Some(dynamic) = dynamic_section(info) else { return false };
        let nodes = Node::all().filter(|node| wanted.is_none_or(|wanted| *node == wanted));
        for node in nodes {
            let candidate = Candidate { base, dynamic, node };
            // Every runtime has this one.
            if candidate.function(super::table::Id::cudaFree as usize).is_some() {
                found.push(candidate);
            }
        }
        false
    });
    found
}

/// The place of a runtime; `None`: there is none left, or another thread takes too long to give one.
pub(super) fn place_of(runtime: Candidate) -> Option<Number> {
    let _giving = Giving::begin()?;
    // Relaxed: whoever gives places reads and writes it.
    let now = generation();
    if LOOKED.swap(now, Ordering::Relaxed) != now {
        // Something was unloaded: what lies at the same place may be another library.
        let loaded = candidates(None);
        for instance in &INSTANCES {
            if candidate(instance).is_some_and(|known| !loaded.contains(&known)) {
                instance.base.store(0, Ordering::Release);
            }
            instance.functions.iter().for_each(|known| known.store(std::ptr::null_mut(), Ordering::Relaxed));
        }
    }
    let known = INSTANCES.iter().position(|instance| candidate(instance) == Some(runtime));
    let at = known.or_else(|| {
        let free = INSTANCES.iter().position(|instance| instance.base.load(Ordering::Relaxed) == 0)?;
        give(INSTANCES.get(free)?, runtime);
        Some(free)
    })?;
    u8::try_from(at).ok().map(Number)
}

fn give(instance: &Instance, runtime: Candidate) {
    instance.dynamic.store(runtime.dynamic as u64, Ordering::Relaxed);
    instance.node.store(runtime.node as u64, Ordering::Relaxed);
    // Release pairs with the Acquire in `candidate`.
    instance.base.store(runtime.base, Ordering::Release);
}

/// The node of a runtime.
pub(super) fn node(number: Number) -> Option<Node> {
    candidate(INSTANCES.get(usize::from(number.0))?).map(|runtime| runtime.node)
}

/// The file of a runtime, as the loader knows it.
pub(super) fn path(number: Number) -> Option<String> {
    Some(path_of(function(number, super::table::Id::cudaFree as usize)?))
}

/// The file of a runtime of a major version that is loaded.
pub(super) fn path_of_major(major: u32) -> Option<String> {
    let runtime = candidates(None).into_iter().find(|runtime| runtime.node.major() == major)?;
    Some(path_of(runtime.function(super::table::Id::cudaFree as usize)?))
}

/// The runtime whose function of a row this is.
pub(super) fn holding(function: *const c_void, call: usize) -> Option<Number> {
    let runtime = candidates(None).into_iter().find(|runtime| runtime.function(call) == Some(function))?;
    place_of(runtime)
}

/// True for an address in our own library.
pub(super) fn is_own(address: *const c_void) -> bool {
    library_of(address).is_some_and(|(base, _)| base == own_base())
}

/// A runtime's version as CUDA numbers it.
pub(super) fn version(number: Number) -> Option<u32> {
    let code = function(number, super::table::Id::cudaFree as usize)? as u64;
    let found = cudart::holding(code, None)?;
    let asked = askers::of(found.text.start);
    identify(&found, asked).map(|identified| identified.version.number())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_in_a_child_whose_parent_was_at_it() {
        let giving = Giving::begin().unwrap();
        assert!(Giving::begin().is_none(), "one thread at a time");
        // SAFETY: the child looks at memory, and leaves at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(Giving::begin().is_none());
            // SAFETY: no destructors, no locks.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        drop(giving);
        assert!(Giving::begin().is_some());
    }
}
