//! The map from logical to physical addresses: leaves of 256 entries, present only where something is or was.
//!
//! Readers find a leaf without the core's lock and pin pages in it by compare-and-swap. Leaves are added, filled and
//! removed only by the holder of the core's lock. A reader may hold a leaf that has just been removed: it finds all
//! of it unmapped, which was true, unless a part of the map is not in memory or names are changing (see `map/moves.rs`):
//! then it asks the core.

mod entry;
mod moves;

pub(crate) use entry::PBA_BITS;
pub use entry::{Entry, FrameId, Location, Resident, State, Unpinned, Word, ZeroId};
pub(crate) use moves::Moves;

use crate::addr::{Lba, LbaRange};
use crate::placement::Heat;
use std::collections::BTreeMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Entries of one leaf. More would save little: besides its entries a leaf costs a place in two indexes, two counters, and
/// what the allocator adds. A lone mapped grain costs a whole leaf.
pub(crate) const LEAF_GRAINS: u64 = 256;

/// Neighbouring entries, and of each the CRC-32 of the grain where it lies on the media: 12 bytes to a grain.
///
/// Checksums are read and written by the holder of the core's lock only.
#[derive(Debug)]
pub(crate) struct Leaf {
    entries: [Entry; LEAF_GRAINS as usize],
    crcs: [AtomicU32; LEAF_GRAINS as usize],
}

impl Leaf {
    fn new() -> Self {
        Self {
            entries: std::array::from_fn(|_| Entry::default()),
            crcs: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// The entry of `lba`, which belongs to this leaf.
    pub(crate) fn entry(&self, lba: Lba) -> &Entry {
        &self.entries[(lba.0 % LEAF_GRAINS) as usize]
    }

    /// Checksum of the grain of `lba` on the media. Lock held.
    pub(crate) fn crc(&self, lba: Lba) -> u32 {
        self.crcs[(lba.0 % LEAF_GRAINS) as usize].load(Ordering::Relaxed)
    }

    /// The grain of `lba` on the media is another one. Lock held.
    pub(crate) fn set_crc(&self, lba: Lba, crc: u32) {
        self.crcs[(lba.0 % LEAF_GRAINS) as usize].store(crc, Ordering::Relaxed);
    }

    /// Whether nothing is left, looking behind `lba` first: ranges are unmapped in ascending order.
    fn is_empty(&self, lba: Lba) -> bool {
        let (before, behind) = self.entries.split_at((lba.0 % LEAF_GRAINS) as usize);
        let mut entries = behind.iter().chain(before);
        entries.all(|e| e.state() == State::UNMAPPED)
    }
}

/// Multiplicative hash: keys are leaf numbers, dense inside files and regular between them.
#[derive(Default)]
pub(crate) struct LeafHasher(u64);

impl Hasher for LeafHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, key: u64) {
        let mixed = (self.0 ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }
}

type Leaves = papaya::HashMap<u64, Arc<Leaf>, BuildHasherDefault<LeafHasher>>;

/// The half of the map that is read without a lock.
#[derive(Default)]
pub(crate) struct MapTable {
    leaves: Leaves,
}

impl std::fmt::Debug for MapTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MapTable({} leaves)", self.leaves.len())
    }
}

impl MapTable {
    /// The leaf that covers `lba`, if there is one.
    pub(crate) fn leaf(&self, lba: Lba) -> Option<Arc<Leaf>> {
        let leaves = self.leaves.pin();
        leaves.get(&(lba.0 / LEAF_GRAINS)).cloned()
    }

    /// Forgets everything; nobody uses it yet.
    pub(crate) fn clear(&self) {
        self.leaves.pin().clear();
    }

    /// What `lba` is now.
    pub(crate) fn state(&self, lba: Lba) -> State {
        self.known(lba).0
    }

    /// What `lba` is now, and what its entry remembers of its updates.
    pub(crate) fn known(&self, lba: Lba) -> (State, Heat) {
        self.with(lba, |leaf| leaf.entry(lba).known())
            .unwrap_or((State::UNMAPPED, Heat::UNKNOWN))
    }

    /// Runs `f` on the leaf that covers `lba`, if there is one.
    pub(crate) fn with<R>(&self, lba: Lba, f: impl FnOnce(&Leaf) -> R) -> Option<R> {
        let leaves = self.leaves.pin();
        leaves.get(&(lba.0 / LEAF_GRAINS)).map(|leaf| f(leaf))
    }
}

/// The leaves in order of address; belongs to the core and keeps the table in step with itself.
#[derive(Debug, Default)]
pub(crate) struct LeafIndex {
    ordered: BTreeMap<u64, Arc<Leaf>>,
}

impl LeafIndex {
    /// The leaf that covers `lba`, made if need be.
    pub(crate) fn leaf_or_new(&mut self, table: &MapTable, lba: Lba) -> Arc<Leaf> {
        let key = lba.0 / LEAF_GRAINS;
        let leaf = self.ordered.entry(key).or_insert_with(|| {
            let leaf = Arc::new(Leaf::new());
            table.leaves.pin().insert(key, Arc::clone(&leaf));
            leaf
        });
        Arc::clone(leaf)
    }

    /// The leaf that covers `lba`, if there is one.
    pub(crate) fn leaf(&self, lba: Lba) -> Option<&Arc<Leaf>> {
        self.ordered.get(&(lba.0 / LEAF_GRAINS))
    }

    /// Removes the leaf of `lba` if nothing is left in it.
    pub(crate) fn prune(&mut self, table: &MapTable, lba: Lba) {
        let key = lba.0 / LEAF_GRAINS;
        if self
            .ordered
            .get(&key)
            .is_some_and(|leaf| leaf.is_empty(lba))
        {
            self.ordered.remove(&key);
            table.leaves.pin().remove(&key);
        }
    }

    /// Every LBA of `range` that is not unmapped, descending.
    pub(crate) fn mapped_back(&self, range: LbaRange) -> impl Iterator<Item = (Lba, State)> + '_ {
        let last = range.start.0.max(range.end().0.saturating_sub(1));
        let keys = range.start.0 / LEAF_GRAINS..=last / LEAF_GRAINS;
        self.ordered
            .range(keys)
            .rev()
            .flat_map(move |(&key, leaf)| {
                let first = (key * LEAF_GRAINS).max(range.start.0);
                let end = ((key + 1) * LEAF_GRAINS).min(range.end().0);
                (first..end)
                    .rev()
                    .map(Lba)
                    .map(move |lba| (lba, leaf.entry(lba).state()))
                    .filter(|&(_, state)| state != State::UNMAPPED)
            })
    }

    /// Every LBA of `range` that is not unmapped, ascending.
    pub(crate) fn mapped(&self, range: LbaRange) -> impl Iterator<Item = (Lba, State)> + '_ {
        // Of an empty range one leaf is looked at, and nothing of it.
        let last = range.start.0.max(range.end().0.saturating_sub(1));
        let keys = range.start.0 / LEAF_GRAINS..=last / LEAF_GRAINS;
        self.ordered.range(keys).flat_map(move |(&key, leaf)| {
            let first = (key * LEAF_GRAINS).max(range.start.0);
            let end = ((key + 1) * LEAF_GRAINS).min(range.end().0);
            (first..end)
                .map(Lba)
                .map(move |lba| (lba, leaf.entry(lba).state()))
                .filter(|&(_, state)| state != State::UNMAPPED)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sparse neighbours 2^24 apart cost one leaf each, are found in order and vanish when emptied.
    #[test]
    fn sparse_leaves() {
        let (table, mut index) = (MapTable::default(), LeafIndex::default());
        let lbas = [
            Lba(0),
            Lba(LEAF_GRAINS - 1),
            Lba(1 << 24),
            Lba((1 << 52) - 1),
        ];
        for lba in lbas {
            let leaf = index.leaf_or_new(&table, lba);
            leaf.entry(lba)
                .replace(State::InFlight(FrameId(lba.0 as u32)));
        }
        assert_eq!(table.leaves.len(), 3);
        let found: Vec<Lba> = index.mapped(LbaRange::ALL).map(|(lba, _)| lba).collect();
        assert_eq!(found, lbas);
        let next = index
            .mapped(LbaRange::new(Lba(LEAF_GRAINS), 1 << 24))
            .next();
        assert_eq!(next.map(|f| f.0), Some(lbas[2]));
        assert_eq!(index.mapped(LbaRange::new(Lba(0), 0)).count(), 0);
        for lba in lbas {
            table
                .leaf(lba)
                .expect("leaf")
                .entry(lba)
                .replace(State::UNMAPPED);
            index.prune(&table, lba);
        }
        assert_eq!(table.leaves.len(), 0);
    }
}
