//! Ends of registrations: for ever, and durably before anybody relies on it.

use contigfs::{BlockStore, FsError, InodeNo, StoreError};
use softrdma::{ProtectionDomain, Stag};
use tracing::warn;

use super::super::planted::Bug;
use super::super::record::{Record, SLOTS_PER_GRAIN};
use super::super::slots::Slots;
use super::{Registry, State, lock};

impl<S: BlockStore> Registry<S> {
    /// Retires a slot, on media too but not durably. Its file goes to `ended`, for [`Hooks::ended`], if it was registered.
    pub(super) fn retire(
        &self,
        state: &mut State,
        slot: usize,
        ended: &mut Vec<InodeNo>,
    ) -> Result<(), StoreError> {
        let Some((record, backing)) = state.slots.retire(slot) else {
            return Ok(());
        };
        if backing.is_some() {
            self.stags.deregister(record.stag);
            ended.push(InodeNo(record.inode));
        }
        let Some(media) = self.media.get() else {
            return Ok(());
        };
        match media.write_in_any_case(Record::place(slot), &record.emit(slot)) {
            // It may be read again some day, and nobody may come to life then.
            Err(StoreError::Damaged { .. } | StoreError::Unreadable { .. }) => {
                let first = slot - slot % SLOTS_PER_GRAIN;
                let grain = state.slots.emit(first..first + SLOTS_PER_GRAIN);
                media.write_in_any_case(Record::place(first), &grain)
            }
            written => written,
        }
    }

    /// Retires a registration for ever (C2). When this returns, no access through it happens any more. False if there is
    /// none.
    pub fn revoke(&self, stag: Stag, domain: ProtectionDomain) -> Result<bool, FsError> {
        let retired = self.retire_matching(|slots| {
            let slot = slots.by_stag(stag);
            let own = |slot: &usize| slots.get(*slot).is_some_and(|l| l.record.domain == domain);
            slot.filter(own).into_iter().collect()
        });
        Ok(retired? > 0)
    }

    /// Retires what `choose` chooses, and answers how many; durable on return.
    pub(super) fn retire_matching(
        &self,
        choose: impl FnOnce(&Slots) -> Vec<usize>,
    ) -> Result<usize, StoreError> {
        let mut count = 0;
        let (ended, result) = self.retire_chosen(|slots| {
            let chosen = choose(slots);
            count = chosen.len();
            chosen
        });
        // Not under the lock: it waits for the reactors.
        self.hooks.ended(&ended);
        result.map(|()| count)
    }

    /// The same, and answers the files of those that it has ended, for [`Hooks::ended`], also if the volume fails.
    pub(super) fn retire_chosen(
        &self,
        choose: impl FnOnce(&Slots) -> Vec<usize>,
    ) -> (Vec<InodeNo>, Result<(), StoreError>) {
        let (mut ended, mut result) = (Vec::new(), Ok(()));
        let mut state = lock(&self.state);
        let chosen = choose(&state.slots);
        for &slot in &chosen {
            result = result.and(self.retire(&mut state, slot, &mut ended));
        }
        drop(state);
        if let Some(media) = self.media.get()
            && !chosen.is_empty()
            && !self.has_bug(Bug::RetiredUnsynced)
        {
            let places: Vec<u64> = chosen.iter().map(|&slot| Record::place(slot)).collect();
            result = result.and_then(|()| media.sync(&places));
        }
        (ended, result)
    }
}

/// Called inside of changes of files: may call nothing but the store (C5). The answers have the number of the file once for each
/// registration that has ended, for who watches the file to tell [`Hooks::ended`](super::Hooks::ended) of when nobody has anything of
/// it any more.
impl<S: BlockStore> Registry<S> {
    /// The file is about to end at `size`: retires, durably, what reaches beyond.
    #[must_use]
    pub fn shrinks(&self, ino: InodeNo, size: u64) -> Vec<InodeNo> {
        self.end_of_file(ino, |record| record.end().is_none_or(|end| end > size))
    }

    /// The file is about to go away: retires, durably, all that there is of it.
    #[must_use]
    pub fn frees(&self, ino: InodeNo) -> Vec<InodeNo> {
        self.end_of_file(ino, |_| true)
    }

    fn end_of_file(&self, ino: InodeNo, ends: impl Fn(&Record) -> bool) -> Vec<InodeNo> {
        let (ended, result) = self.retire_chosen(|slots| {
            let mut of_file = slots.by_file(ino.0);
            of_file.retain(|&slot| slots.get(slot).is_some_and(|l| ends(&l.record)));
            of_file
        });
        if let Err(error) = result {
            warn!(%error, %ino, "the end of registrations cannot be written");
        }
        ended
    }
}
