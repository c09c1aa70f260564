//! Virtual memory management: a physical allocation is memory until it is released as often as it was created
//! or retained, and unmapped everywhere.

use std::collections::{BTreeMap, HashMap};

/// Identifies a physical allocation for its whole life; the driver may reuse handles.
pub type PhysicalId = u64;

/// Handles and mappings of the physical allocations that this process created.
#[derive(Default)]
pub struct MemoryMap {
    next_id: PhysicalId,
    by_handle: HashMap<u64, PhysicalId>,
    physical: HashMap<PhysicalId, Uses>,
    /// Start address → end, and what is mapped there.
    ranges: BTreeMap<u64, (u64, PhysicalId)>,
    /// Parts of sparse arrays that have memory.
    array_parts: HashMap<ArrayPart, PhysicalId>,
}

/// A part of a sparse array, as cuMemMapArrayAsync names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArrayPart {
    /// Handle of the array or mipmapped array.
    pub resource: u64,
    /// Level or mip tail.
    pub kind: u32,
    /// The driver's description of the part.
    pub part: [u64; 4],
}

/// A handle or a mapping that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whose it was.
    pub id: PhysicalId,
    /// True when it was the last: the memory is gone with it.
    pub gone: bool,
    place: u64,
    end: u64,
}

#[derive(Debug, Default)]
struct Uses {
    handles: u64,
    mappings: u64,
}

impl MemoryMap {
    /// cuMemCreate: one handle.
    pub fn create(&mut self, handle: u64) -> PhysicalId {
        self.next_id += 1;
        let id = self.next_id;
        // An older allocation whose handles are all released may still be mapped; it lives on without a handle.
        self.by_handle.insert(handle, id);
        self.physical.insert(id, Uses { handles: 1, mappings: 0 });
        id
    }

    /// cuMemRetainAllocationHandle at `address` gave `handle`; or an import of our own export gave it again.
    pub fn retain(&mut self, handle: u64, address: Option<u64>) {
        let at_address = |(start, (end, id)): (&u64, &(u64, PhysicalId))| {
            address.is_some_and(|a| a >= *start && a < *end).then_some(*id)
        };
        let mapped = address.and_then(|a| self.ranges.range(..=a).next_back()).and_then(at_address);
        let Some(id) = mapped.or_else(|| self.by_handle.get(&handle).copied()) else { return };
        if let Some(uses) = self.physical.get_mut(&id) {
            uses.handles += 1;
            self.by_handle.insert(handle, id);
        }
    }

    /// cuMemRelease, before the driver is called: afterwards it may give the handle to another thread.
    pub fn release(&mut self, handle: u64) -> Option<Ended> {
        let id = *self.by_handle.get(&handle)?;
        let uses = self.physical.get_mut(&id)?;
        uses.handles = uses.handles.saturating_sub(1);
        if uses.handles == 0 {
            self.by_handle.remove(&handle);
        }
        Some(Ended { id, place: handle, end: 0, gone: self.drop_if_unused(id).is_some() })
    }

    /// The driver refused the release.
    pub fn undo_release(&mut self, ended: Ended) {
        let uses = self.physical.entry(ended.id).or_default();
        uses.handles += 1;
        self.by_handle.insert(ended.place, ended.id);
    }

    /// cuMemMap. Memory that is not ours is not noted.
    #[cfg(test)]
    fn map(&mut self, address: u64, bytes: u64, handle: u64) {
        if let Some(id) = self.begin_map(handle) {
            self.mapped(address, bytes, id);
        }
    }

    /// cuMemMap, before the driver is called: from then on the memory outlives a release of its handle. `None`:
    /// it is not ours, and the mapping is not noted.
    pub fn begin_map(&mut self, handle: u64) -> Option<PhysicalId> {
        let id = self.by_handle.get(&handle).copied()?;
        self.physical.get_mut(&id)?.mappings += 1;
        Some(id)
    }

    /// The driver has mapped it.
    pub fn mapped(&mut self, address: u64, bytes: u64, id: PhysicalId) {
        self.ranges.insert(address, (address.saturating_add(bytes), id));
    }

    /// The driver refused to map it. The id when the memory is gone: its handle was released meanwhile.
    pub fn undo_map(&mut self, id: PhysicalId) -> Option<PhysicalId> {
        self.unmapped(id)
    }

    /// cuMemUnmap, before the driver is called: every mapping inside the range ends.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Vec<Ended> {
        let end = address.saturating_add(bytes);
        if address >= end {
            return Vec::new();
        }
        let inside: Vec<(u64, u64, PhysicalId)> = self
            .ranges
            .range(address..end)
            .filter(|(_, (range_end, _))| *range_end <= end)
            .map(|(start, (range_end, id))| (*start, *range_end, *id))
            .collect();
        let ended = |(start, range_end, id)| {
            self.ranges.remove(&start);
            Ended { id, place: start, end: range_end, gone: self.unmapped(id).is_some() }
        };
        inside.into_iter().map(ended).collect()
    }

    /// The driver refused to unmap.
    pub fn undo_unmap(&mut self, ended: Vec<Ended>) {
        for mapping in ended {
            self.physical.entry(mapping.id).or_default().mappings += 1;
            self.ranges.insert(mapping.place, (mapping.end, mapping.id));
        }
    }

    /// cuMemMapArrayAsync, one part mapped.
    pub fn map_array(&mut self, part: ArrayPart, handle: u64) -> Option<PhysicalId> {
        let before = self.unmap_array(part);
        if let Some(id) = self.by_handle.get(&handle).copied()
            && let Some(uses) = self.physical.get_mut(&id)
        {
            uses.mappings += 1;
            self.array_parts.insert(part, id);
        }
        before
    }

    /// cuMemMapArrayAsync, one part unmapped.
    pub fn unmap_array(&mut self, part: ArrayPart) -> Option<PhysicalId> {
        let id = self.array_parts.remove(&part)?;
        self.unmapped(id)
    }

    /// An array was destroyed, and with it what was mapped into it.
    pub fn array_destroyed(&mut self, resource: u64) -> Vec<PhysicalId> {
        let parts: Vec<ArrayPart> =
            self.array_parts.keys().filter(|p| p.resource == resource).copied().collect();
        parts.into_iter().filter_map(|part| self.unmap_array(part)).collect()
    }

    fn unmapped(&mut self, id: PhysicalId) -> Option<PhysicalId> {
        let uses = self.physical.get_mut(&id)?;
        uses.mappings = uses.mappings.saturating_sub(1);
        self.drop_if_unused(id)
    }

    fn drop_if_unused(&mut self, id: PhysicalId) -> Option<PhysicalId> {
        let uses = self.physical.get(&id)?;
        if uses.handles != 0 || uses.mappings != 0 {
            return None;
        }
        self.physical.remove(&id);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(ended: impl IntoIterator<Item = Ended>) -> Vec<PhysicalId> {
        ended.into_iter().filter(|e| e.gone).map(|e| e.id).collect()
    }

    #[test]
    fn released_but_mapped_is_still_memory() {
        let mut map = MemoryMap::default();
        let id = map.create(10);
        map.map(0x1000, 0x1000, 10);
        assert!(gone(map.release(10)).is_empty());
        assert_eq!(gone(map.unmap(0x1000, 0x1000)), [id]);
    }

    #[test]
    fn released_while_it_is_being_mapped() {
        let mut map = MemoryMap::default();
        let id = map.create(10);
        let mapping = map.begin_map(10).unwrap();
        assert!(gone(map.release(10)).is_empty());
        assert_eq!(map.undo_map(mapping), Some(id));
    }

    #[test]
    fn retained_through_an_address() {
        let mut map = MemoryMap::default();
        let id = map.create(10);
        map.map(0x1000, 0x1000, 10);
        assert!(gone(map.release(10)).is_empty());
        map.retain(11, Some(0x1800));
        assert!(gone(map.unmap(0x1000, 0x1000)).is_empty());
        assert_eq!(gone(map.release(11)), [id]);
    }

    #[test]
    fn a_reused_handle_is_another_allocation() {
        let mut map = MemoryMap::default();
        let first = map.create(10);
        map.map(0x1000, 0x1000, 10);
        map.release(10);
        let second = map.create(10);
        assert_eq!(gone(map.release(10)), [second]);
        assert_eq!(gone(map.unmap(0x1000, 0x1000)), [first]);
    }

    #[test]
    fn mapped_twice_and_unmapped_together() {
        let mut map = MemoryMap::default();
        let id = map.create(10);
        map.map(0x1000, 0x1000, 10);
        map.map(0x2000, 0x1000, 10);
        assert!(gone(map.release(10)).is_empty());
        assert_eq!(gone(map.unmap(0x1000, 0x2000)), [id]);
        assert!(map.unmap(0x1000, 0x2000).is_empty());
    }

    #[test]
    fn what_the_driver_refused_is_undone() {
        let mut map = MemoryMap::default();
        let id = map.create(10);
        let release = map.release(10).unwrap();
        assert!(release.gone);
        map.undo_release(release);
        map.map(0x1000, 0x1000, 10);
        map.release(10);
        let unmap = map.unmap(0x1000, 0x1000);
        assert_eq!(gone(unmap.clone()), [id]);
        map.undo_unmap(unmap);
        assert_eq!(gone(map.unmap(0x1000, 0x1000)), [id]);
    }

    #[test]
    fn foreign_memory_is_not_noted() {
        let mut map = MemoryMap::default();
        map.map(0x1000, 0x1000, 99);
        assert!(map.unmap(0x1000, 0x1000).is_empty());
        assert_eq!(map.release(99), None);
        assert!(map.unmap(0x1000, u64::MAX).is_empty());
        assert!(map.unmap(0x1000, 0).is_empty());
    }

    #[test]
    fn sparse_arrays_hold_memory() {
        let mut map = MemoryMap::default();
        let id = map.create(10);
        let part = ArrayPart { resource: 5, kind: 0, part: [0; 4] };
        map.map_array(part, 10);
        assert!(gone(map.release(10)).is_empty());
        assert!(map.array_destroyed(6).is_empty());
        assert_eq!(map.array_destroyed(5), [id]);
    }
}
