//! The map from logical to physical addresses: leaves of 256 entries, present only where something is or was.
//!
//! Readers find a leaf without the core's lock and pin pages in it by compare-and-swap. Leaves are added, filled and
//! removed only by the holder of the core's lock. A reader may hold a leaf that has just been removed: it finds all
//! of it unmapped, which was true, unless a part of the map is not in memory or names are changing (see `map/moves.rs`):
//! then it asks the core.

mod entry;
mod moves;

pub use entry::{Entry, FrameId, Location, Resident, State, Unpinned, Word, ZeroId};
pub(crate) use entry::{FRAME_BITS, PBA_BITS};
pub(crate) use moves::Moves;

use crate::addr::{Lba, LbaRange};
use crate::placement::Heat;
use std::collections::BTreeMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};

/// Entries of one leaf. More would save little: besides its entries a leaf costs a place in two indexes, two counters, and
/// what the allocator adds.
pub(crate) const LEAF_GRAINS: u64 = 256;

const ENTRIES: usize = LEAF_GRAINS as usize;
/// Entries of the first part of a leaf: files begin where leaves do, and most files are small.
const FIRST: usize = 16;
/// Entries of the first two parts.
const SECOND: usize = 64;

/// Neighbouring entries, and of each the CRC-32 of the grain where it lies on the media: 11 bytes to a grain. The lowest
/// byte of a checksum is the check byte of its entry, unless some grain of the leaf is so far away that its entry has no
/// room for one; then there is a plane of them.
///
/// Its second and third part are there once something in them is or was. A part stays where it is: readers hold entries of it.
///
/// Checksums are read and written, grains get places on the media, and parts are added, by the holder of the core's lock only.
#[derive(Debug)]
pub(crate) struct Leaf {
    first: Part<FIRST>,
    second: OnceLock<Box<Part<{ SECOND - FIRST }>>>,
    third: OnceLock<Box<Part<{ ENTRIES - SECOND }>>>,
    /// Bits 0 to 7, once an entry has had no room for them.
    lows: OnceLock<Box<[AtomicU8; ENTRIES]>>,
}

/// Some of the entries of a leaf.
#[derive(Debug)]
struct Part<const N: usize> {
    entries: [Entry; N],
    /// Bits 8 to 23 of the checksums, and 24 to 31.
    middles: [AtomicU16; N],
    tops: [AtomicU8; N],
}

/// What a part has of one grain.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    entry: &'a Entry,
    middle: &'a AtomicU16,
    top: &'a AtomicU8,
}

impl<const N: usize> Part<N> {
    fn new() -> Self {
        Self {
            entries: std::array::from_fn(|_| Entry::default()),
            middles: std::array::from_fn(|_| AtomicU16::new(0)),
            tops: std::array::from_fn(|_| AtomicU8::new(0)),
        }
    }

    fn boxed() -> Box<Self> {
        Box::new(Self::new())
    }

    fn place(&self, at: usize) -> Place<'_> {
        Place {
            entry: &self.entries[at],
            middle: &self.middles[at],
            top: &self.tops[at],
        }
    }
}

impl Leaf {
    fn new() -> Self {
        Self {
            first: Part::new(),
            second: OnceLock::new(),
            third: OnceLock::new(),
            lows: OnceLock::new(),
        }
    }

    const fn number(lba: Lba) -> usize {
        (lba.0 % LEAF_GRAINS) as usize
    }

    /// Where the part of an entry is there.
    fn find(&self, at: usize) -> Option<Place<'_>> {
        match at {
            0..FIRST => Some(self.first.place(at)),
            FIRST..SECOND => Some(self.second.get()?.place(at - FIRST)),
            _ => Some(self.third.get()?.place(at - SECOND)),
        }
    }

    /// With its part, which is made if need be.
    fn own(&self, at: usize) -> Place<'_> {
        match at {
            0..FIRST => self.first.place(at),
            FIRST..SECOND => self.second.get_or_init(Part::boxed).place(at - FIRST),
            _ => self.third.get_or_init(Part::boxed).place(at - SECOND),
        }
    }

    /// The entry of `lba`, which belongs to this leaf; to be changed, or of a page that there is. Lock held, or page pinned.
    pub(crate) fn entry(&self, lba: Lba) -> &Entry {
        self.own(Self::number(lba)).entry
    }

    /// The same, to be looked at; where there is none, nothing is mapped.
    pub(crate) fn found(&self, lba: Lba) -> Option<&Entry> {
        self.find(Self::number(lba)).map(|place| place.entry)
    }

    /// What `lba`, which belongs to this leaf, is now.
    pub(crate) fn state(&self, lba: Lba) -> State {
        self.found(lba).map_or(State::UNMAPPED, Entry::state)
    }

    /// The same, and what its entry remembers of its updates.
    pub(crate) fn known(&self, lba: Lba) -> (State, Heat) {
        let unmapped = (State::UNMAPPED, Heat::UNKNOWN);
        self.found(lba).map_or(unmapped, Entry::known)
    }

    /// Checksum of the grain of `lba` on the media. Lock held.
    pub(crate) fn crc(&self, lba: Lba) -> u32 {
        let at = Self::number(lba);
        let Some(place) = self.find(at) else {
            return 0;
        };
        let low = match self.lows.get() {
            Some(lows) => lows[at].load(Ordering::Relaxed),
            None => place.entry.check_byte().unwrap_or(0),
        };
        let middle = place.middle.load(Ordering::Relaxed).to_le_bytes();
        let top = place.top.load(Ordering::Relaxed);
        u32::from_le_bytes([low, middle[0], middle[1], top])
    }

    /// The grain of `lba`, which has a page, is another one on the media. Lock held.
    pub(crate) fn set_crc(&self, lba: Lba, crc: u32) {
        let is_whole = self.keep_crc(lba, crc);
        assert!(is_whole, "{lba} has room for a checksum");
    }

    /// Says whether all of it is kept.
    fn keep_crc(&self, lba: Lba, crc: u32) -> bool {
        let at = Self::number(lba);
        let place = self.own(at);
        let [low, middle @ .., top] = crc.to_le_bytes();
        place
            .middle
            .store(u16::from_le_bytes(middle), Ordering::Relaxed);
        place.top.store(top, Ordering::Relaxed);
        match self.lows.get() {
            Some(lows) => {
                lows[at].store(low, Ordering::Relaxed);
                true
            }
            None => place.entry.set_check_byte(low),
        }
    }

    /// The grain of `lba` is at `location`, and if that is on the media, with this past and checksum. Lock held.
    pub(crate) fn put(&self, lba: Lba, location: Location, heat: Heat, crc: u32) {
        self.settle(lba, location, heat);
        // What is nowhere on the media needs none.
        self.keep_crc(lba, crc);
    }

    /// The same grain is at `location`, and on the media with this past. Lock held.
    pub(crate) fn settle(&self, lba: Lba, location: Location, heat: Heat) {
        self.make_room(location);
        self.entry(lba).settle(location, heat);
    }

    /// As [`Entry::evict`]. Lock held.
    pub(crate) fn evict(
        &self,
        lba: Lba,
        frame: FrameId,
        location: Location,
        heat: Heat,
        force: bool,
    ) -> bool {
        self.make_room(location);
        self.entry(lba).evict(frame, location, heat, force)
    }

    /// Before an entry says `location`: whether or not it has room for a check byte then.
    fn make_room(&self, location: Location) {
        if !location.is_far() || self.lows.get().is_some() {
            return;
        }
        let low = |at: usize| {
            let byte = self.find(at).and_then(|place| place.entry.check_byte());
            AtomicU8::new(byte.unwrap_or(0))
        };
        self.lows.get_or_init(|| Box::new(std::array::from_fn(low)));
    }

    /// Whether nothing is left, looking behind `lba` first: ranges are unmapped in ascending order.
    fn is_empty(&self, lba: Lba) -> bool {
        let at = Self::number(lba);
        let mut all = (at..ENTRIES).chain(0..at).filter_map(|at| self.find(at));
        all.all(|place| place.entry.state() == State::UNMAPPED)
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
        self.with(lba, |leaf| leaf.known(lba))
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
                    .map(move |lba| (lba, leaf.state(lba)))
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
                .map(move |lba| (lba, leaf.state(lba)))
                .filter(|&(_, state)| state != State::UNMAPPED)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Pba;

    /// A leaf keeps every checksum, before, while and after one of its grains is beyond 2^32, in whatever state (I4).
    #[test]
    fn checksums_near_and_far() {
        let leaf = Leaf::new();
        let crc = |n: u64| (n as u32).wrapping_mul(0x9e37_79b9) ^ 0x5a;
        let (near, far) = (
            |n| Location::Media(Pba(n)),
            |n: u64| Location::Media(Pba((1 << 32) + n)),
        );
        let heat = Heat::new(0x15_5555);
        for n in 0..LEAF_GRAINS {
            leaf.put(Lba(n), near(n), heat, crc(n));
        }
        let fits = |leaf: &Leaf| (0..LEAF_GRAINS).all(|n| leaf.crc(Lba(n)) == crc(n));
        assert!(fits(&leaf) && leaf.lows.get().is_none());
        // A page of a grain that was near, written far away, and relocated.
        let (page, frame) = (Lba(7), FrameId(1));
        leaf.entry(page).replace(State::resident(frame, 0, false));
        leaf.set_crc(page, 1);
        leaf.set_crc(page, crc(7));
        assert!(fits(&leaf));
        assert!(leaf.evict(page, frame, far(7), heat, true));
        assert!(fits(&leaf) && leaf.lows.get().is_some());
        assert_eq!(leaf.entry(page).known(), (State::Away(far(7)), heat));
        leaf.settle(Lba(8), far(8), heat);
        leaf.settle(page, near(7), heat);
        leaf.entry(Lba(9)).replace(State::UNMAPPED);
        leaf.put(Lba(9), far(9), heat, crc(9));
        leaf.entry(Lba(8)).replace(State::InFlight(frame));
        assert!(fits(&leaf));
    }

    /// A part that nothing was ever put into is not there, whoever looks; what is put somewhere is found there and nowhere else (I4).
    #[test]
    fn parts_are_made_when_something_is_put_there() {
        let (table, mut index) = (MapTable::default(), LeafIndex::default());
        let base = 7 * LEAF_GRAINS;
        let is_there = |leaf: &Leaf| (leaf.second.get().is_some(), leaf.third.get().is_some());
        let leaf = index.leaf_or_new(&table, Lba(base));
        for (n, parts) in [
            (3, (false, false)),
            (15, (false, false)),
            (64, (false, true)),
            (16, (true, true)),
            (63, (true, true)),
            (255, (true, true)),
        ] {
            let lba = Lba(base + n);
            assert_eq!(table.state(lba), State::UNMAPPED);
            assert_eq!((leaf.crc(lba), leaf.known(lba).0), (0, State::UNMAPPED));
            leaf.put(lba, Location::Media(Pba(1000 + n)), Heat::UNKNOWN, n as u32);
            assert_eq!(is_there(&leaf), parts, "with {n}");
        }
        let found = index.mapped(LbaRange::ALL).map(|(lba, state)| {
            let State::Away(Location::Media(pba)) = state else {
                panic!("{state:?}");
            };
            assert_eq!(u64::from(leaf.crc(lba)), lba.0 - base);
            (lba.0 - base, pba.0 - 1000)
        });
        let all = [3, 15, 16, 63, 64, 255].map(|n| (n, n));
        assert_eq!(found.collect::<Vec<_>>(), all);
        assert!(
            all.iter()
                .rev()
                .map(|&(n, _)| Lba(base + n))
                .eq(index.mapped_back(LbaRange::ALL).map(|(lba, _)| lba))
        );
        for (n, _) in all {
            index.prune(&table, Lba(base + n));
            assert!(table.leaf(Lba(base)).is_some());
            leaf.entry(Lba(base + n)).replace(State::UNMAPPED);
        }
        index.prune(&table, Lba(base));
        assert!(table.leaf(Lba(base)).is_none());
    }

    /// A lone grain at the beginning of a file costs little, and a leaf that is full not much more than its entries. What the
    /// allocator adds is in neither.
    #[test]
    fn a_leaf_takes_little_memory() {
        let arc = 2 * size_of::<usize>();
        let first = arc + size_of::<Leaf>();
        let more = size_of::<Part<{ SECOND - FIRST }>>() + size_of::<Part<{ ENTRIES - SECOND }>>();
        assert!(first <= 256, "{first}");
        assert!(first + more <= 11 * ENTRIES + 80, "{}", first + more);
    }

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
