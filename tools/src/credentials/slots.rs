//! Which slot holds what, in memory: living registrations by STag, file and range, and retired ones in the order of their
//! retirement. Pure bookkeeping; what is written when is decided by the registry.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use softrdma::{BackingId, ProtectionDomain, Stag};

use super::record::{RECORD_BYTES, Record, SLOTS};

/// Registrations that live at a time.
pub(super) const LIVING_MAX: usize = SLOTS / 2;
/// The same of one tenant.
pub(super) const LIVING_OF_TENANT_MAX: usize = LIVING_MAX / 2;

/// A registration that is asked for: the same one is not made twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wanted {
    pub(super) domain: ProtectionDomain,
    pub(super) inode: u64,
    pub(super) generation: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) writable: bool,
}

impl Wanted {
    fn of(record: &Record) -> Self {
        Self {
            domain: record.domain,
            inode: record.inode,
            generation: record.generation,
            offset: record.offset,
            length: record.length,
            writable: record.writable,
        }
    }
}

/// A living registration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Living {
    pub(super) record: Record,
    /// Connections that have it open.
    pub(super) attached: u32,
    /// What its region is backed by; none before it is registered.
    pub(super) backing: Option<BackingId>,
}

impl Living {
    /// Nobody has it open, and its time is over.
    pub(super) fn is_over(&self, now: u64) -> bool {
        self.attached == 0 && self.record.expires <= now
    }
}

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSlot {
    /// This tenant has its share.
    Tenant,
    /// All together have theirs.
    All,
}

/// All slots.
#[derive(Debug, Default)]
pub(super) struct Slots {
    living: BTreeMap<usize, Living>,
    by_index: HashMap<u32, usize>,
    by_file: HashMap<u64, Vec<usize>>,
    by_range: HashMap<Wanted, usize>,
    of_tenant: HashMap<ProtectionDomain, usize>,
    /// By sequence.
    retired: BTreeMap<u64, (usize, Stag)>,
    free: Vec<usize>,
    sequence: u64,
}

impl Slots {
    /// All free but those `used`.
    pub(super) fn free_but(&mut self, used: &[usize]) {
        let mut is_free = vec![true; SLOTS];
        for &slot in used {
            is_free[slot] = false;
        }
        // The first is taken first, so that a few are in a few grains.
        self.free = (0..SLOTS).rev().filter(|&slot| is_free[slot]).collect();
    }

    /// Whether there will be a slot for a new registration when those of a file have ended.
    pub(super) fn may_take(
        &self,
        domain: ProtectionDomain,
        without: Option<u64>,
    ) -> Result<(), NoSlot> {
        let of_file = without.and_then(|inode| self.by_file.get(&inode));
        let ended = of_file.into_iter().flatten();
        let ended = ended.filter_map(|slot| self.living.get(slot));
        let (mut of_tenant, mut all) = (self.of_tenant.get(&domain).copied(), self.living.len());
        for living in ended {
            all -= 1;
            of_tenant = of_tenant.map(|n| n - usize::from(living.record.domain == domain));
        }
        if of_tenant.unwrap_or(0) >= LIVING_OF_TENANT_MAX {
            return Err(NoSlot::Tenant);
        }
        if all >= LIVING_MAX {
            return Err(NoSlot::All);
        }
        Ok(())
    }

    /// A slot for a new registration, and the STag that is forgotten for it.
    pub(super) fn take(
        &mut self,
        domain: ProtectionDomain,
    ) -> Result<(usize, Option<Stag>), NoSlot> {
        self.may_take(domain, None)?;
        if let Some(slot) = self.free.pop() {
            return Ok((slot, None));
        }
        let (_, (slot, stag)) = self.retired.pop_first().ok_or(NoSlot::All)?;
        Ok((slot, Some(stag)))
    }

    /// Gives back a slot that was taken and not used.
    pub(super) fn untake(&mut self, slot: usize) {
        self.free.push(slot);
    }

    /// A registration lives in `slot`.
    pub(super) fn insert(&mut self, slot: usize, living: Living) {
        let record = &living.record;
        self.by_index.insert(record.stag.index(), slot);
        self.by_file.entry(record.inode).or_default().push(slot);
        self.by_range.insert(Wanted::of(record), slot);
        *self.of_tenant.entry(record.domain).or_default() += 1;
        self.living.insert(slot, living);
    }

    /// Remembers a retired one that was read.
    pub(super) fn remember(&mut self, slot: usize, record: &Record) {
        // Two of the same sequence were written by a crash in the middle of a retirement; both are remembered.
        let mut sequence = record.sequence;
        while self.retired.contains_key(&sequence) {
            sequence += 1;
        }
        self.sequence = self.sequence.max(sequence);
        self.retired.insert(sequence, (slot, record.stag));
    }

    /// Retires the registration in `slot`; returns what is to be written there, and what its region was backed by.
    pub(super) fn retire(&mut self, slot: usize) -> Option<(Record, Option<BackingId>)> {
        let living = self.living.remove(&slot)?;
        let mut record = living.record;
        self.by_index.remove(&record.stag.index());
        self.by_range.remove(&Wanted::of(&record));
        if let Some(slots) = self.by_file.get_mut(&record.inode) {
            slots.retain(|&other| other != slot);
            if slots.is_empty() {
                self.by_file.remove(&record.inode);
            }
        }
        if let Some(count) = self.of_tenant.get_mut(&record.domain) {
            *count -= 1;
        }
        self.sequence += 1;
        record.lives = false;
        record.sequence = self.sequence;
        self.retired.insert(self.sequence, (slot, record.stag));
        Some((record, living.backing))
    }

    /// What is to be written in these slots, as far as it is known: of retired ones no more than what is remembered.
    pub(super) fn emit(&self, slots: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; slots.len() * RECORD_BYTES];
        let living = self.living.range(slots.clone());
        let living = living.map(|(&slot, living)| (slot, living.record));
        let retired = self.retired.iter();
        let retired = retired.map(|(&sequence, &(slot, stag))| (slot, retired_of(sequence, stag)));
        for (slot, record) in living.chain(retired) {
            if slots.contains(&slot) {
                let at = (slot - slots.start) * RECORD_BYTES;
                bytes[at..at + RECORD_BYTES].copy_from_slice(&record.emit(slot));
            }
        }
        bytes
    }

    /// The slot of the living registration that has this STag, of either flavour.
    pub(super) fn by_stag(&self, stag: Stag) -> Option<usize> {
        let slot = *self.by_index.get(&stag.index())?;
        let record = &self.living.get(&slot)?.record;
        (record.stag == stag || record.sync_stag == stag).then_some(slot)
    }

    /// The slot of the living registration of this range.
    pub(super) fn by_range(&self, wanted: &Wanted) -> Option<usize> {
        self.by_range.get(wanted).copied()
    }

    /// Slots of the living registrations of a file.
    pub(super) fn by_file(&self, inode: u64) -> Vec<usize> {
        self.by_file.get(&inode).cloned().unwrap_or_default()
    }

    /// A living registration.
    pub(super) fn get(&self, slot: usize) -> Option<&Living> {
        self.living.get(&slot)
    }

    /// The same, to be changed; what it is found by stays.
    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Living> {
        self.living.get_mut(&slot)
    }

    /// All that live.
    pub(super) fn living(&self) -> impl Iterator<Item = (usize, &Living)> {
        self.living.iter().map(|(&slot, living)| (slot, living))
    }

    /// How many are retired and remembered.
    pub(super) fn retired(&self) -> usize {
        self.retired.len()
    }
}

/// What is remembered of a retired registration.
fn retired_of(sequence: u64, stag: Stag) -> Record {
    Record {
        lives: false,
        writable: false,
        sequence,
        stag,
        sync_stag: stag,
        inode: 0,
        generation: 0,
        offset: 0,
        length: 0,
        base: 0,
        epoch: 0,
        exports: 0,
        expires: 0,
        domain: ProtectionDomain(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who has as many as there may be is told so before he empties a file for one more; those of that file make room for it when they
    /// end, others' do not.
    #[test]
    fn whether_there_will_be_a_slot() {
        let mut slots = Slots::default();
        slots.free_but(&[]);
        let (own, other) = (ProtectionDomain(2), ProtectionDomain(3));
        for n in 0..LIVING_MAX {
            let domain = if n < LIVING_OF_TENANT_MAX { own } else { other };
            assert_eq!(slots.may_take(domain, None), Ok(()));
            let (slot, _) = slots.take(domain).unwrap();
            let record = Record {
                lives: true,
                inode: 7 + u64::from(domain.0),
                domain,
                ..retired_of(0, Stag((n as u32) << 8))
            };
            let living = Living {
                record,
                attached: 0,
                backing: None,
            };
            slots.insert(slot, living);
        }
        assert_eq!(slots.may_take(own, None), Err(NoSlot::Tenant));
        assert_eq!(slots.may_take(own, Some(10)), Err(NoSlot::Tenant));
        assert_eq!(slots.may_take(own, Some(9)), Ok(()));
        let third = ProtectionDomain(4);
        assert_eq!(slots.may_take(third, None), Err(NoSlot::All));
        assert_eq!(slots.may_take(third, Some(10)), Ok(()));
        assert_eq!(slots.take(own), Err(NoSlot::Tenant));
    }

    /// I5: what was found under a number that another one has is remembered under the next, which is given to nobody then.
    #[test]
    fn nobody_remembered_is_lost_to_a_number() {
        let mut slots = Slots::default();
        let stag = |n: u32| Stag(n << 8);
        for n in 0..3 {
            let record = retired_of(7, stag(n));
            slots.remember(n as usize, &record);
        }
        for n in 3..6 {
            let record = Record {
                lives: true,
                ..retired_of(0, stag(n))
            };
            let living = Living {
                record,
                attached: 0,
                backing: None,
            };
            slots.insert(n as usize, living);
            slots.retire(n as usize).unwrap();
        }
        assert_eq!(slots.retired(), 6);
    }
}
