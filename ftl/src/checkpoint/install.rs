//! Installing a unit of the cold map: its entries into the map, and the counts from estimates to what is true.

use super::change::{Change, Grain};
use super::cold::UnitContent;
use crate::account::Accounts;
use crate::geometry::Geometry;
use crate::map::{LeafIndex, Location, MapTable, ZeroId};
use crate::records::LiveRecords;
use crate::segment::Segments;

/// What is counted about the map, and the map.
pub(crate) struct Books<'a> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) table: &'a MapTable,
    pub(crate) index: &'a mut LeafIndex,
    pub(crate) segments: &'a mut Segments,
    pub(crate) records: &'a mut LiveRecords,
    pub(crate) mapped: &'a mut u64,
    /// While the volume is open.
    pub(crate) accounts: Option<&'a mut Accounts>,
}

impl Books<'_> {
    /// Counts a change of the tail before its unit is known: the new place, not the old one. So counts are too high
    /// at most. `sign` -1 takes that back.
    pub(crate) fn estimate(&mut self, change: &Change, sign: i64) {
        match *change {
            Change::Set { at, .. } => self.count(at, sign),
            Change::Unmap(_) | Change::Rename(_) => {}
            Change::Reserve(range, id) | Change::Rehome(range, id) => {
                let count = range.count as i64 * sign;
                self.count_zeros(id, count);
                *self.mapped = self.mapped.wrapping_add_signed(count);
            }
        }
    }

    /// Whether every place makes sense; what comes from the media may not.
    pub(crate) fn are_sane(&self, content: &UnitContent) -> bool {
        let all = content.before.values().chain(content.after.values());
        all.into_iter().all(|grain| match grain.at {
            Location::Media(pba) => self.geometry.locate(pba).is_some(),
            Location::Zero(id) => self.records.has_zero(id),
            Location::Nowhere => false,
        })
    }

    /// Installs what a unit holds and corrects the counts. Returns the places that may have become empty.
    pub(crate) fn install(&mut self, content: &UnitContent) -> Vec<Location> {
        for change in &content.changes {
            self.estimate(change, -1);
        }
        let mut left = Vec::new();
        for (lba, &Grain { at, .. }) in &content.before {
            self.count(at, -1);
            if content.after.get(lba).is_none_or(|now| now.at != at) {
                left.push(at);
            }
        }
        for change in &content.changes {
            match *change {
                Change::Set { at, .. } => left.push(at),
                Change::Reserve(_, id) | Change::Rehome(_, id) => left.push(Location::Zero(id)),
                Change::Unmap(_) | Change::Rename(_) => {}
            }
        }
        for (&lba, &Grain { at, crc, heat }) in &content.after {
            self.count(at, 1);
            if let Some(accounts) = &mut self.accounts {
                accounts.charge(lba);
            }
            let leaf = self.index.leaf_or_new(self.table, lba);
            leaf.put(lba, at, heat, crc);
        }
        left
    }

    fn count(&mut self, at: Location, by: i64) {
        match at {
            Location::Nowhere => return,
            Location::Media(pba) => {
                let id = self.geometry.segment_of(pba);
                let segment = self.segments.get_mut(id);
                segment.live = segment.live.wrapping_add_signed(by as i32);
            }
            Location::Zero(id) => self.count_zeros(id, by),
        }
        *self.mapped = self.mapped.wrapping_add_signed(by);
    }

    fn count_zeros(&mut self, id: ZeroId, by: i64) {
        let zero = self.records.zero_mut(id);
        zero.live = zero.live.wrapping_add_signed(by);
    }
}
