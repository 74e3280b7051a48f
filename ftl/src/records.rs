//! Live trim and zero records: what must survive of the log besides data.
//!
//! A trim record (tombstone) keeps older versions of its grains dead. They can only lie in headers with a lower
//! number than the one that first carried the trim, so it is needed while a scan could still find such a life of a
//! segment. A zero record is needed while some grain is in the Zero state because of it; relocation takes only those
//! grains along (splitting the record), so that a copy never has a higher header number than a trim that killed
//! part of it.

use crate::addr::{Lba, LbaRange, SegmentId};
use crate::format::{HeaderNo, Version};
use crate::map::ZeroId;
use std::collections::{BTreeMap, HashMap};

/// Where the youngest copy of a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) header: HeaderNo,
    pub(crate) segment: SegmentId,
}

/// A tombstone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tombstone {
    pub(crate) range: LbaRange,
    pub(crate) home: Home,
}

/// A zero record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ZeroRecord {
    pub(crate) range: LbaRange,
    /// Grains in the Zero state because of it.
    pub(crate) live: u64,
    /// Its version and place; none while the forming group holds it.
    pub(crate) home: Option<(Version, Home)>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct LiveRecords {
    pub(crate) trims: BTreeMap<Version, Tombstone>,
    zeros: Vec<Option<ZeroRecord>>,
    free: Vec<ZeroId>,
    /// By version, first grain and header of the youngest copy.
    by_place: HashMap<(Version, Lba, HeaderNo), ZeroId>,
}

impl LiveRecords {
    pub(crate) fn add_zero(&mut self, range: LbaRange) -> ZeroId {
        let record = ZeroRecord {
            range,
            live: 0,
            home: None,
        };
        if let Some(id) = self.free.pop() {
            self.zeros[id.0 as usize] = Some(record);
            return id;
        }
        self.zeros.push(Some(record));
        ZeroId(self.zeros.len() as u32 - 1)
    }

    /// Adds a record that had this id before; no other has it.
    pub(crate) fn add_zero_as(&mut self, id: ZeroId, range: LbaRange, live: u64) {
        let index = id.0 as usize;
        while self.zeros.len() <= index {
            self.free.push(ZeroId(self.zeros.len() as u32));
            self.zeros.push(None);
        }
        self.free.retain(|&free| free != id);
        self.zeros[index] = Some(ZeroRecord {
            range,
            live,
            home: None,
        });
    }

    /// Whether a record has this id.
    pub(crate) fn has_zero(&self, id: ZeroId) -> bool {
        self.zeros.get(id.0 as usize).is_some_and(Option::is_some)
    }

    pub(crate) fn zero(&self, id: ZeroId) -> &ZeroRecord {
        self.zeros[id.0 as usize]
            .as_ref()
            .expect("live zero record")
    }

    pub(crate) fn zero_mut(&mut self, id: ZeroId) -> &mut ZeroRecord {
        self.zeros[id.0 as usize]
            .as_mut()
            .expect("live zero record")
    }

    /// The record has (another) place; returns the one before.
    pub(crate) fn settle_zero(&mut self, id: ZeroId, version: Version, home: Home) -> Option<Home> {
        let zero = self.zero_mut(id);
        let start = zero.range.start;
        let old = zero.home.replace((version, home)).map(|(_, old)| old);
        if let Some(old) = old {
            self.by_place.remove(&(version, start, old.header));
        }
        self.by_place.insert((version, start, home.header), id);
        old
    }

    /// Forgets a record that no grain needs.
    pub(crate) fn remove_zero(&mut self, id: ZeroId) -> ZeroRecord {
        let record = self.zeros[id.0 as usize].take().expect("live zero record");
        assert_eq!(record.live, 0, "zero record in use");
        if let Some((version, home)) = record.home {
            let place = (version, record.range.start, home.header);
            self.by_place.remove(&place);
        }
        self.free.push(id);
        record
    }

    /// The live record whose youngest copy is the one of `version` at `start` in `header`.
    pub(crate) fn zero_at(&self, version: Version, start: Lba, header: HeaderNo) -> Option<ZeroId> {
        self.by_place.get(&(version, start, header)).copied()
    }

    /// Every live zero record.
    pub(crate) fn zeros(&self) -> impl Iterator<Item = (ZeroId, &ZeroRecord)> {
        let numbered = self.zeros.iter().enumerate();
        numbered.filter_map(|(i, z)| Some((ZeroId(i as u32), z.as_ref()?)))
    }

    /// Takes out the tombstones that nothing on the media needs any more: their first header is older than the
    /// oldest life a scan could find.
    pub(crate) fn expire(&mut self, oldest_life: HeaderNo) -> Vec<Tombstone> {
        let mut expired = Vec::new();
        while let Some(first) = self.trims.first_entry() {
            if first.key().header() >= oldest_life {
                break;
            }
            expired.push(first.remove());
        }
        expired
    }
}
