//! A store in memory, for tests and for trying things: exact capacity, atomic batches, and power cuts on demand.
//!
//! # Fault model
//! Plain writes that were not synced survive a power cut one grain at a time, in any combination, each grain in any of
//! the versions it had since it was last durable. Batches and synced writes survive; of relaxed batches since the last
//! sync or batch a prefix does, and no write that came after one that does not. [`MemStore::cut_power_after`]
//! stops the store in the middle of an operation: calls after the n-th mutating one fail and change nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ftl::{AccountId, AccountUse, AtomicBatch, GRAIN_BYTES, Lba, LbaRange, Remap, Space};

use crate::store::{BlockStore, ByteAddr, StoreError};

/// Grains that go along with a batch. A volume lets more go, or fewer, as it happens.
const ALONG_MAX: usize = 4;

/// Content of a mapped grain; `None` is reserved zeros.
type Grain = Option<Box<[u8; GRAIN_BYTES]>>;

/// The store.
#[derive(Debug)]
pub struct MemStore {
    state: Mutex<State>,
}

#[derive(Clone, Debug)]
struct State {
    capacity: u64,
    grains: BTreeMap<u64, Grain>,
    /// What differs on media: for each grain written since it was last durable, the versions it had, oldest first;
    /// the first is the durable one. Unmapped is `None`.
    unsynced: BTreeMap<u64, Vec<Option<Grain>>>,
    /// How it was before each relaxed batch that may be lost.
    relaxed: Vec<Before>,
    /// Mutating calls until the power fails.
    calls_left: Option<u64>,
    calls: u64,
    /// Who is charged, as told; the last one that names a grain counts.
    owners: Vec<(LbaRange, Option<AccountId>)>,
    limits: BTreeMap<AccountId, u64>,
    /// What can not be read.
    damaged: BTreeSet<u64>,
    /// Instead of what the device gives errors.
    unreadable: BTreeSet<u64>,
}

/// The content before a batch.
#[derive(Clone, Debug)]
struct Before {
    grains: BTreeMap<u64, Grain>,
    unsynced: BTreeMap<u64, Vec<Option<Grain>>>,
}

impl MemStore {
    /// An empty store of this many grains.
    pub fn new(capacity_grains: u64) -> Self {
        Self::with_state(State {
            capacity: capacity_grains,
            grains: BTreeMap::new(),
            unsynced: BTreeMap::new(),
            relaxed: Vec::new(),
            calls_left: None,
            calls: 0,
            owners: Vec::new(),
            limits: BTreeMap::new(),
            damaged: BTreeSet::new(),
            unreadable: BTreeSet::new(),
        })
    }

    fn with_state(state: State) -> Self {
        Self {
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A second store with the same content and the same durable content.
    pub fn duplicate(&self) -> Self {
        Self::with_state(self.lock().clone())
    }

    /// Lets `calls` more writes, syncs and batches happen; the ones after that fail and change nothing.
    pub fn cut_power_after(&self, calls: u64) {
        self.lock().calls_left = Some(calls);
    }

    /// Mutating calls (writes, syncs, batches) so far.
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// What a power cut now leaves. `choose(n)` answers a number below `n`: which version of a grain survives, and before
    /// that how many relaxed batches.
    pub fn after_power_cut(&self, mut choose: impl FnMut(usize) -> usize) -> Self {
        let mut state = self.lock().clone();
        let mut relaxed = std::mem::take(&mut state.relaxed);
        if !relaxed.is_empty() {
            // How many of them survive.
            let choice = choose(relaxed.len() + 1);
            if choice < relaxed.len() {
                let before = relaxed.swap_remove(choice);
                (state.grains, state.unsynced) = (before.grains, before.unsynced);
            }
        }
        for (lba, mut versions) in std::mem::take(&mut state.unsynced) {
            versions.push(state.grains.get(&lba).cloned());
            let choice = choose(versions.len());
            match versions.swap_remove(choice) {
                Some(grain) => state.grains.insert(lba, grain),
                None => state.grains.remove(&lba),
            };
        }
        state.calls_left = None;
        // Not on the media.
        state.owners.clear();
        state.limits.clear();
        Self::with_state(state)
    }

    /// Changes one byte behind the back of the file system, durably: damaged or crafted media.
    pub fn poke(&self, at: ByteAddr, change: impl FnOnce(u8) -> u8) {
        let mut state = self.lock();
        let grain = state.grains.entry(at.lba().0).or_default();
        let byte = &mut grain.get_or_insert_with(zeros)[at.in_grain()];
        *byte = change(*byte);
    }

    /// Reads of a grain, and batches that change a part of it, fail from now on, until a batch writes it whole.
    pub fn damage(&self, lba: Lba) {
        self.lock().damaged.insert(lba.0);
    }

    /// Whether the device gives an error instead of a grain from now on.
    pub fn set_unreadable(&self, lba: Lba, is_unreadable: bool) {
        let mut state = self.lock();
        match is_unreadable {
            true => state.unreadable.insert(lba.0),
            false => state.unreadable.remove(&lba.0),
        };
    }

    /// All mapped grains, ascending.
    pub fn mapped(&self) -> Vec<Lba> {
        self.lock().grains.keys().copied().map(Lba).collect()
    }
}

fn zeros() -> Box<[u8; GRAIN_BYTES]> {
    Box::new([0; GRAIN_BYTES])
}

/// Pieces of a byte range that lie in one grain each: (grain, offset in it, part of the buffer).
fn pieces(at: ByteAddr, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < len).then(|| {
            let here = ByteAddr(at.0 + done as u64);
            let n = (GRAIN_BYTES - here.in_grain()).min(len - done);
            done += n;
            (here.lba().0, here.in_grain(), done - n..done)
        })
    })
}

/// What happens to the old names of a range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rename {
    /// They go.
    Remap,
    /// They stay.
    Clone,
}

/// What a batch remaps or clones has nothing in common with anything else in it.
fn assert_apart(batch: &AtomicBatch) {
    let renamed = batch.remaps.iter().chain(&batch.clones);
    let moved: Vec<LbaRange> = renamed
        .flat_map(|remap| [remap.source(), remap.target()])
        .collect();
    let patched = batch.patches.iter().map(|patch| LbaRange::new(patch.0, 1));
    let ranges = batch.trims.iter().chain(&batch.zeros).copied();
    let others: Vec<LbaRange> = ranges.chain(patched).collect();
    for (n, range) in moved.iter().enumerate() {
        for other in moved[n + 1..].iter().chain(&others) {
            assert!(
                range.end() <= other.start || other.end() <= range.start,
                "a batch remaps or clones {range:?}, and uses {other:?}"
            );
        }
    }
}

impl State {
    fn spend_call(&mut self) -> Result<(), StoreError> {
        self.calls += 1;
        match &mut self.calls_left {
            Some(0) => return Err(StoreError::Failed),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }

    fn owner(&self, lba: u64) -> Option<AccountId> {
        let mut owners = self.owners.iter().rev();
        let last = owners.find(|(range, _)| range.contains(Lba(lba)));
        last.and_then(|&(_, account)| account)
    }

    fn used(&self, account: AccountId, mapped: impl Iterator<Item = u64>) -> u64 {
        mapped
            .filter(|&lba| self.owner(lba) == Some(account))
            .count() as u64
    }

    /// Whether no account grows beyond its limit when these grains are mapped.
    fn admits(&self, after: &BTreeSet<u64>) -> bool {
        self.limits.iter().all(|(&account, &limit)| {
            let before = self.used(account, self.grains.keys().copied());
            let after = self.used(account, after.iter().copied());
            after <= before || after <= limit
        })
    }

    /// What is mapped after a batch.
    fn mapped_after(&self, batch: &AtomicBatch) -> BTreeSet<u64> {
        let mut after: BTreeSet<u64> = self.grains.keys().copied().collect();
        for range in &batch.trims {
            after.retain(|&lba| !range.contains(Lba(lba)));
        }
        for range in &batch.zeros {
            after.extend(range.start.0..range.end().0);
        }
        after.extend(batch.patches.iter().map(|patch| patch.0.0));
        for (renaming, keeps) in (batch.remaps.iter().map(|remap| (remap, false)))
            .chain(batch.clones.iter().map(|clone| (clone, true)))
        {
            let source = renaming.source();
            let moved: Vec<u64> = after
                .range(source.start.0..source.end().0)
                .copied()
                .collect();
            after.retain(|&lba| {
                !renaming.target().contains(Lba(lba)) && (keeps || !source.contains(Lba(lba)))
            });
            after.extend(moved.iter().map(|&lba| renaming.renamed(Lba(lba)).0));
        }
        after
    }

    /// Mapped grains of a range.
    fn count(&self, range: LbaRange) -> u64 {
        self.grains.range(range.start.0..range.end().0).count() as u64
    }

    /// Gives the grains of a range another name, or one more. A remapped grain is as durable as it was; a clone is
    /// durable under its new name.
    fn rename(&mut self, remap: Remap, how: Rename) {
        let lbas = |range: LbaRange| range.start.0..range.end().0;
        let target = lbas(remap.target());
        self.grains
            .extract_if(target.clone(), |_, _| true)
            .for_each(drop);
        self.unsynced.extract_if(target, |_, _| true).for_each(drop);
        let renamed = |lba| remap.renamed(Lba(lba)).0;
        if how == Rename::Clone {
            let grains: Vec<_> = self
                .grains
                .range(lbas(remap.source()))
                .map(|(&lba, grain)| (renamed(lba), grain.clone()))
                .collect();
            self.grains.extend(grains);
            return;
        }
        let grains: Vec<_> = self
            .grains
            .extract_if(lbas(remap.source()), |_, _| true)
            .collect();
        self.grains
            .extend(grains.into_iter().map(|(lba, grain)| (renamed(lba), grain)));
        let unsynced: Vec<_> = self
            .unsynced
            .extract_if(lbas(remap.source()), |_, _| true)
            .collect();
        self.unsynced
            .extend(unsynced.into_iter().map(|(lba, old)| (renamed(lba), old)));
    }

    /// Applies a batch, or changes nothing.
    fn carry_out(&mut self, batch: AtomicBatch) -> Result<(), StoreError> {
        let mut patched: Vec<u64> = batch.patches.iter().map(|patch| patch.0.0).collect();
        patched.sort_unstable();
        patched.dedup();
        let renamed = || batch.remaps.iter().chain(&batch.clones);
        let ranges = batch.trims.len() + batch.zeros.len() + renamed().count();
        let moved: u64 = renamed().map(|remap| remap.count).sum();
        if patched.len() > AtomicBatch::GRAINS_MAX
            || ranges > AtomicBatch::RANGES_MAX
            || moved > AtomicBatch::MOVED_MAX
        {
            return Err(StoreError::BatchTooLarge);
        }
        assert_apart(&batch);
        let ranges = batch.trims.iter().chain(&batch.zeros);
        assert!(
            ranges
                .clone()
                .all(|range| !patched.iter().any(|&lba| range.contains(Lba(lba)))),
            "a batch patches a grain that it trims or reserves"
        );
        let mut fresh = patched
            .iter()
            .filter(|lba| !self.grains.contains_key(lba))
            .count() as u64;
        let mut freed = 0;
        for range in &batch.trims {
            freed += self.grains.range(range.start.0..range.end().0).count() as u64;
        }
        for remap in renamed() {
            freed += self.count(remap.target());
        }
        for clone in &batch.clones {
            fresh += self.count(clone.source());
        }
        for range in &batch.zeros {
            let stay = self
                .grains
                .range(range.start.0..range.end().0)
                .filter(|&(&lba, _)| !batch.trims.iter().any(|trim| trim.contains(Lba(lba))));
            fresh += range.count - stay.count() as u64;
        }
        if fresh > 0 && self.grains.len() as u64 + fresh - freed > self.capacity {
            return Err(StoreError::NoSpace);
        }
        if !self.limits.is_empty() && !self.admits(&self.mapped_after(&batch)) {
            return Err(StoreError::Quota);
        }
        let is_whole = |bytes: &[u8]| bytes.len() == GRAIN_BYTES;
        for (lba, _, bytes) in &batch.patches {
            if !is_whole(bytes) && self.damaged.contains(&lba.0) {
                return Err(StoreError::Damaged { lba: *lba });
            }
        }
        for (lba, _, bytes) in &batch.patches {
            if is_whole(bytes) {
                self.damaged.remove(&lba.0);
            }
        }
        for (lba, offset, bytes) in &batch.patches {
            self.put(lba.0, usize::from(*offset), bytes);
            self.unsynced.remove(&lba.0);
        }
        for range in &batch.trims {
            let lbas = range.start.0..range.end().0;
            self.grains
                .extract_if(lbas.clone(), |_, _| true)
                .for_each(drop);
            self.unsynced.extract_if(lbas, |_, _| true).for_each(drop);
        }
        for range in &batch.zeros {
            for lba in range.start.0..range.end().0 {
                let lost_if_cut = self
                    .unsynced
                    .get(&lba)
                    .is_some_and(|versions| versions[0].is_none());
                if lost_if_cut && let Some(versions) = self.unsynced.get_mut(&lba) {
                    versions[0] = Some(None);
                }
                self.grains.entry(lba).or_default();
            }
        }
        for &remap in &batch.remaps {
            self.rename(remap, Rename::Remap);
        }
        for &clone in &batch.clones {
            self.rename(clone, Rename::Clone);
        }
        Ok(())
    }

    fn put(&mut self, lba: u64, offset: usize, bytes: &[u8]) {
        let grain = self
            .grains
            .entry(lba)
            .or_default()
            .get_or_insert_with(zeros);
        grain[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

impl BlockStore for MemStore {
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
        let state = self.lock();
        for (lba, offset, part) in pieces(at, buf.len()) {
            if state.damaged.contains(&lba) {
                return Err(StoreError::Damaged { lba: Lba(lba) });
            }
            if state.unreadable.contains(&lba) {
                return Err(StoreError::Unreadable { lba: Lba(lba) });
            }
            let n = part.len();
            match state.grains.get(&lba) {
                Some(Some(grain)) => buf[part].copy_from_slice(&grain[offset..offset + n]),
                _ => buf[part].fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.spend_call()?;
        for (lba, offset, part) in pieces(at, data.len()) {
            let before = state.grains.get(&lba).cloned();
            if before.is_none() && state.grains.len() as u64 >= state.capacity {
                return Err(StoreError::NoSpace);
            }
            let owner = state.owner(lba).filter(|_| before.is_none());
            if let Some(account) = owner
                && let Some(&limit) = state.limits.get(&account)
                && state.used(account, state.grains.keys().copied()) >= limit
            {
                return Err(StoreError::Quota);
            }
            state.unsynced.entry(lba).or_default().push(before);
            state.put(lba, offset, &data[part]);
        }
        Ok(())
    }

    fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.spend_call()?;
        let along = batch.along.unwrap_or(LbaRange::new(Lba(0), 0));
        let along = along.start.0..along.end().0;
        if state.unsynced.range(along.clone()).count() > ALONG_MAX {
            return Err(StoreError::ManyAlong);
        }
        state.carry_out(batch)?;
        state.unsynced.extract_if(along, |_, _| true).for_each(drop);
        state.relaxed.clear();
        Ok(())
    }

    fn commit_relaxed(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.spend_call()?;
        let before = Before {
            grains: state.grains.clone(),
            unsynced: state.unsynced.clone(),
        };
        state.carry_out(batch)?;
        state.relaxed.push(before);
        Ok(())
    }

    fn sync(&self, range: LbaRange) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.spend_call()?;
        state.relaxed.clear();
        state
            .unsynced
            .extract_if(range.start.0..range.end().0, |_, _| true)
            .for_each(drop);
        Ok(())
    }

    fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        let state = self.lock();
        let mut mapped = state.grains.range(range.start.0..range.end().0);
        mapped.next().map(|(&lba, _)| Lba(lba))
    }

    fn space(&self) -> Space {
        let state = self.lock();
        let mapped = state.grains.len() as u64;
        Space {
            capacity: state.capacity,
            mapped,
            available: state.capacity.saturating_sub(mapped),
        }
    }

    fn mapped_count(&self, range: LbaRange) -> u64 {
        self.lock()
            .grains
            .range(range.start.0..range.end().0)
            .count() as u64
    }

    fn assign(&self, ranges: &[LbaRange], account: Option<AccountId>) {
        let mut state = self.lock();
        for &range in ranges {
            let inside =
                |other: &LbaRange| range.start <= other.start && other.end() <= range.end();
            state.owners.retain(|(other, _)| !inside(other));
            let meets = |other: &LbaRange| other.start < range.end() && range.start < other.end();
            if account.is_some() || state.owners.iter().any(|(other, _)| meets(other)) {
                state.owners.push((range, account));
            }
        }
    }

    fn assign_if_room(&self, ranges: &[LbaRange], account: AccountId) -> bool {
        let state = self.lock();
        let more = state.grains.keys().filter(|&&lba| {
            ranges.iter().any(|range| range.contains(Lba(lba))) && state.owner(lba) != Some(account)
        });
        let more = more.count() as u64;
        let used = state.used(account, state.grains.keys().copied());
        let limit = state.limits.get(&account).copied().unwrap_or(u64::MAX);
        drop(state);
        let fits = more == 0 || used + more <= limit;
        if fits {
            self.assign(ranges, Some(account));
        }
        fits
    }

    fn limit_account(&self, account: AccountId, limit: Option<u64>) {
        let limits = &mut self.lock().limits;
        match limit {
            Some(limit) => limits.insert(account, limit),
            None => limits.remove(&account),
        };
    }

    fn account(&self, account: AccountId) -> AccountUse {
        let state = self.lock();
        AccountUse {
            used: state.used(account, state.grains.keys().copied()),
            limit: state.limits.get(&account).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I1, I2: synced writes survive, unsynced ones may be lost, batches survive; reads see everything at once.
    #[test]
    fn power_cut_keeps_what_was_durable() {
        let store = MemStore::new(10);
        let at = |lba| ByteAddr::new(Lba(lba), 4090);
        store.write(at(1), b"durable data").unwrap();
        store.sync(LbaRange::new(Lba(1), 2)).unwrap();
        store.write(at(1), b"volatile").unwrap();
        store
            .commit(AtomicBatch {
                patches: vec![(Lba(5), 0, vec![9])],
                ..Default::default()
            })
            .unwrap();
        let mut buf = [0; 12];
        let old = store.after_power_cut(|_| 0);
        old.read(at(1), &mut buf).unwrap();
        assert_eq!(&buf, b"durable data");
        assert_eq!(old.mapped(), [Lba(1), Lba(2), Lba(5)]);
        let new = store.after_power_cut(|n| n - 1);
        new.read(at(1), &mut buf).unwrap();
        assert_eq!(&buf, b"volatiledata");
    }

    /// A remapped grain is as durable as it was, a clone is durable; and names count against the capacity.
    #[test]
    fn remaps_and_clones() {
        let store = MemStore::new(3);
        let at = |lba| ByteAddr::new(Lba(lba), 0);
        let byte = |store: &MemStore, lba| {
            let mut buf = [0];
            store.read(at(lba), &mut buf).unwrap();
            buf[0]
        };
        store.write(at(1), b"d").unwrap();
        store.sync(LbaRange::ALL).unwrap();
        store.write(at(1), b"v").unwrap();
        let mut batch = AtomicBatch::new();
        batch.remap(Lba(1), Lba(7), 2);
        store.commit(batch).unwrap();
        assert_eq!(byte(&store, 7), b'v');
        let cut = store.after_power_cut(|_| 0);
        assert_eq!((cut.mapped(), byte(&cut, 7)), (vec![Lba(7)], b'd'));
        let mut batch = AtomicBatch::new();
        batch.clone_range(Lba(7), Lba(9), 1);
        store.commit(batch.clone()).unwrap();
        let cut = store.after_power_cut(|_| 0);
        assert_eq!((byte(&cut, 7), byte(&cut, 9)), (b'd', b'v'));
        store.write(at(20), b"x").unwrap();
        // Onto a mapped grain it needs nothing, onto another one there is no space.
        store.commit(batch).unwrap();
        let mut batch = AtomicBatch::new();
        batch.clone_range(Lba(7), Lba(10), 1);
        assert_eq!(store.commit(batch), Err(StoreError::NoSpace));
    }

    #[test]
    fn capacity_is_exact() {
        let store = MemStore::new(3);
        store
            .commit(AtomicBatch {
                zeros: vec![LbaRange::new(Lba(7), 2)],
                ..Default::default()
            })
            .unwrap();
        store.write(ByteAddr::new(Lba(9), 0), b"x").unwrap();
        assert_eq!(
            store.write(ByteAddr::new(Lba(10), 0), b"x"),
            Err(StoreError::NoSpace)
        );
        store.write(ByteAddr::new(Lba(8), 0), b"x").unwrap();
        let full = AtomicBatch {
            zeros: vec![LbaRange::new(Lba(6), 3)],
            ..Default::default()
        };
        assert_eq!(store.commit(full), Err(StoreError::NoSpace));
        store
            .commit(AtomicBatch {
                trims: vec![LbaRange::ALL],
                ..Default::default()
            })
            .unwrap();
        assert_eq!(store.space().mapped, 0);
    }
}
