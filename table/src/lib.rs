//! Hash tables of 4-byte numbers: [`Table`] finds them by a hash and a question, [`Ids`] by a hash alone.
//!
//! Who keeps the keys is not this crate's affair: it asks with the functions that it is given. They are `dyn` so that
//! everything here is compiled in this crate, for speed, where the rest of the shim is compiled for size.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// Indices of records; the keys are in the records.
#[derive(Default)]
pub struct Table(HashTable<u32>);

impl Table {
    /// The index of this hash for which `is_it` says yes.
    pub fn find(&self, hash: u64, is_it: &dyn Fn(u32) -> bool) -> Option<u32> {
        self.0.find(hash, |index| is_it(*index)).copied()
    }

    /// Takes out the index of this hash for which `is_it` says yes.
    pub fn take(&mut self, hash: u64, is_it: &dyn Fn(u32) -> bool) -> Option<u32> {
        let found = self.0.find_entry(hash, |index| is_it(*index)).ok()?;
        Some(found.remove().0)
    }

    /// Adds an index, or puts it in the place of the one for which `is_it` says yes, which is answered. `hash_of` is asked
    /// when the table has to grow.
    pub fn insert(
        &mut self,
        hash: u64,
        index: u32,
        is_it: &dyn Fn(u32) -> bool,
        hash_of: &dyn Fn(u32) -> u64,
    ) -> Option<u32> {
        match self.0.entry(hash, |other| is_it(*other), |other| hash_of(*other)) {
            Entry::Occupied(mut there) => Some(std::mem::replace(there.get_mut(), index)),
            Entry::Vacant(place) => {
                place.insert(index);
                None
            }
        }
    }

    /// Every index, in no order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// Takes out every index for which `stays` says no.
    pub fn retain(&mut self, stays: &mut dyn FnMut(u32) -> bool) {
        self.0.retain(|index| stays(*index));
    }
}

/// 4-byte ids by hashes that are their own keys.
#[derive(Default)]
pub struct Ids(HashTable<(u64, u32)>);

impl Ids {
    /// The id of a hash.
    pub fn find(&self, hash: u64) -> Option<u32> {
        self.0.find(hash, |(known, _)| *known == hash).map(|(_, id)| *id)
    }

    /// Adds a hash that is not there yet.
    pub fn insert(&mut self, hash: u64, id: u32) {
        self.0.insert_unique(hash, (hash, id), |(hash, _)| *hash);
    }
}

#[cfg(test)]
mod tests {
    use super::{Ids, Table};

    #[test]
    fn finds_what_is_in_it_and_nothing_else() {
        let keys: Vec<u64> = (0..10_000).map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        // Many keys to a hash, so that the question decides.
        let hash_of = |index: u32| keys[index as usize] >> 55;
        let mut table = Table::default();
        for index in 0..10_000 {
            let key = keys[index as usize];
            assert_eq!(
                table.insert(hash_of(index), index, &|other| keys[other as usize] == key, &hash_of),
                None
            );
        }
        for index in (0..10_000).step_by(2) {
            let key = keys[index as usize];
            assert_eq!(table.take(hash_of(index), &|other| keys[other as usize] == key), Some(index));
        }
        for index in 0..10_000u32 {
            let key = keys[index as usize];
            let found = table.find(hash_of(index), &|other| keys[other as usize] == key);
            assert_eq!(found, (index % 2 == 1).then_some(index));
        }
        let key = keys[1];
        assert_eq!(table.insert(key >> 55, 1, &|other| keys[other as usize] == key, &hash_of), Some(1));
        table.retain(&mut |index| index % 4 == 1);
        assert_eq!(table.iter().count(), 2_500);
        assert!(table.iter().all(|index| index % 4 == 1));
    }

    #[test]
    fn each_hash_has_its_id() {
        let mut ids = Ids::default();
        (1..1_000).for_each(|n| ids.insert(n << 32, n as u32));
        assert!((1..1_000).all(|n| ids.find(n << 32) == Some(n as u32)));
        assert_eq!(ids.find(1_000 << 32), None);
    }
}
