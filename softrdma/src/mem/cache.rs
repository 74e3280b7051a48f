//! The regions that one connection used last, so that the table's lock stays off the hot path.
//!
//! A cached region is only a shortcut to the region itself; whether it is alive is asked at each access through its
//! gate. A deregistration bumps the table's generation, which empties the caches at their next use.

use std::sync::Arc;

use crate::addr::Stag;
use crate::mem::region::{Region, RegionTable};

const SLOTS: usize = 8;

/// A small cache in front of a [`RegionTable`].
#[derive(Debug)]
pub(crate) struct RegionCache {
    table: Arc<RegionTable>,
    generation: u64,
    slots: [Option<Arc<Region>>; SLOTS],
}

impl RegionCache {
    pub(crate) fn new(table: &Arc<RegionTable>) -> Self {
        Self {
            table: Arc::clone(table),
            generation: table.generation(),
            slots: Default::default(),
        }
    }

    pub(crate) fn table(&self) -> &Arc<RegionTable> {
        &self.table
    }

    /// The region that answers to `stag`.
    pub(crate) fn find(&mut self, stag: Stag) -> Option<&Arc<Region>> {
        let generation = self.table.generation();
        if generation != self.generation {
            self.slots = Default::default();
            self.generation = generation;
        }
        let slot = &mut self.slots[stag.index() as usize % SLOTS];
        if !slot.as_ref().is_some_and(|region| region.answers_to(stag)) {
            *slot = Some(self.table.find(stag)?);
        }
        slot.as_ref()
    }
}
