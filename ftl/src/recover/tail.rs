//! Replay of the tail: what the headers above a checkpoint say, in the order of their numbers.
//!
//! Order of numbers is order of effect (`docs/checkpoint.md`, C1), so no versions are compared: every record sets an
//! absolute state, but for remaps and clones: none of those is in the checkpoint already. They, trims and zero records
//! take effect where they were born, also when only a relocated copy is left.

use super::replay::{Replayed, still_reserved};
use super::saved::Saved;
use super::scan::Found;
use crate::addr::{LbaRange, Pba};
use crate::checkpoint::{Books, Change};
use crate::format::{HeaderNo, OPENED_UNIT, RecordKind, SavedKind, Version};
use crate::geometry::Geometry;
use crate::log::Log;
use crate::map::{LeafIndex, Location, MapTable};
use crate::records::{Fate, Home, LiveRecords, Tombstone};
use crate::remap::Renaming;
use crate::segment::{SegmentUse, Segments};
use std::collections::BTreeMap;

/// Replays the headers above the checkpoint, all of which count. The map stays cold; counts are estimates.
pub(super) fn replay_tail(
    geometry: &Geometry,
    saved: &mut Saved,
    headers: &BTreeMap<HeaderNo, Found>,
    end: HeaderNo,
    table: &MapTable,
) -> Replayed {
    let root = &saved.root;
    let last_at = headers.get(&end).map(|f| f.at);
    let last_at = last_at.or_else(|| root.last_at.filter(|_| root.last == end));
    let mut replayed = Replayed {
        segments: Segments::new(&geometry.places),
        records: LiveRecords::default(),
        index: LeafIndex::default(),
        mapped: root.mapped,
        log: Log::new(end, last_at),
        changed: Vec::new(),
    };
    replayed.restore(saved);
    let after = root.replay_from;
    let records = headers.values().map(|found| found.header.records.len());
    let mut changes: Vec<(Version, Change)> = Vec::with_capacity(records.sum());
    let mut renamings: BTreeMap<Version, Renaming> = BTreeMap::new();
    for found in headers.values() {
        let header = &found.header;
        let segment = replayed.segments.get_mut(header.segment);
        if segment.epoch != header.epoch {
            segment.epoch = header.epoch;
            segment.used = 0;
            segment.opened_at = root.time;
        }
        segment.usage = SegmentUse::Closed;
        segment.used = segment.used.max(header.position + header.grains());
        let home = Home {
            header: header.no,
            segment: header.segment,
        };
        let mut pba = found.at;
        for (index, record) in header.records.iter().enumerate() {
            let place = Version::new(header.no, index);
            let is_known = record.version.header() <= after;
            let range = |count| LbaRange::new(record.lba, u64::from(count));
            match record.kind {
                RecordKind::Data { crc } => {
                    pba = Pba(pba.0 + 1);
                    let (lba, at) = (record.lba, Location::Media(pba));
                    changes.push((place, Change::Set { lba, at, crc }));
                }
                RecordKind::Trim { count } => {
                    let range = range(count);
                    let fate = Fate::Trimmed(range);
                    let records = &mut replayed.records;
                    records.add_tombstone(record.version, Tombstone { fate, home });
                    if !is_known {
                        changes.push((record.version, Change::Unmap(range)));
                    }
                }
                RecordKind::Alias { crc, .. } => {
                    let (lba, at) = (record.lba, Location::Media(pba));
                    changes.push((place, Change::Set { lba, at, crc }));
                }
                RecordKind::Remap { .. } | RecordKind::Clone { .. } => {
                    let renaming = record.renaming().expect("one that renames");
                    let fate = Fate::Renamed(renaming);
                    let records = &mut replayed.records;
                    records.add_tombstone(record.version, Tombstone { fate, home });
                    if !is_known {
                        renamings.insert(record.version, renaming);
                    }
                }
                RecordKind::Zero { count } => {
                    let range = range(count);
                    let records = &mut replayed.records;
                    let known = records.zero_at(record.version, record.lba, header.no);
                    let id = known.unwrap_or_else(|| {
                        let id = records.add_zero(range);
                        records.settle_zero(id, record.version, home);
                        id
                    });
                    if !is_known {
                        changes.push((record.version, Change::Reserve(range, id)));
                    }
                    if record.version != place {
                        changes.push((place, Change::Rehome(range, id)));
                    }
                }
            }
        }
    }
    // However many copies of one there are, it took effect once. What has its version was said after it.
    let renamings = renamings.into_iter().map(|(v, r)| (v, Change::Rename(r)));
    changes.splice(0..0, renamings);
    changes.sort_by_key(|&(place, _)| place);
    let changes = without_impossible(changes, geometry.capacity_grains);
    for (_, change) in &changes {
        if let Change::Rename(renaming) = change {
            saved.cold.tie(renaming.ranges().source());
            saved.cold.tie(renaming.ranges().target());
        }
    }
    for (_, change) in changes {
        replayed.books(geometry, table).estimate(&change, 1);
        saved.cold.change(change);
    }
    replayed
}

/// As of a full replay; `changes` are in order of effect.
fn without_impossible(changes: Vec<(Version, Change)>, capacity: u64) -> Vec<(Version, Change)> {
    let reserved = |change: &Change| match *change {
        Change::Reserve(range, _) | Change::Rehome(range, _) => Some(range),
        Change::Set { .. } | Change::Unmap(_) | Change::Rename(_) => None,
    };
    let is_large = |(_, change): &(Version, Change)| {
        reserved(change).is_some_and(|range| range.count > capacity)
    };
    if !changes.iter().any(is_large) {
        return changes;
    }
    let mut possible = Vec::with_capacity(changes.len());
    for (at, &(version, change)) in changes.iter().enumerate() {
        let Some(range) = reserved(&change).filter(|range| range.count > capacity) else {
            possible.push((version, change));
            continue;
        };
        let later = changes[at + 1..]
            .iter()
            .filter_map(|(_, change)| match *change {
                Change::Unmap(range) => Some(range),
                _ => None,
            });
        let left = still_reserved(range, later, capacity).into_iter();
        possible.extend(left.map(|range| match change {
            Change::Rehome(_, id) => (version, Change::Rehome(range, id)),
            Change::Reserve(_, id) => (version, Change::Reserve(range, id)),
            Change::Set { .. } | Change::Unmap(_) | Change::Rename(_) => (version, change),
        }));
    }
    possible
}

impl Replayed {
    /// Takes over the tables of a checkpoint.
    fn restore(&mut self, saved: &Saved) {
        for (segment, known) in self.segments.iter_mut().zip(&saved.segments) {
            segment.epoch = known.epoch;
            segment.live = known.live;
            segment.opened_at = u64::from(known.opened) * OPENED_UNIT;
            segment.used = known.walk_from.unwrap_or(known.used);
            if known.epoch != HeaderNo(0) {
                segment.usage = SegmentUse::Closed;
            }
        }
        for known in &saved.records {
            let (version, home) = (known.version, known.home);
            let fate = match known.what {
                SavedKind::Trim(range) => Fate::Trimmed(range),
                SavedKind::Rename(renaming) => Fate::Renamed(renaming),
                SavedKind::Zero { id, range, live } => {
                    self.records.add_zero_as(id, range, live);
                    self.records.settle_zero(id, version, home);
                    continue;
                }
            };
            self.records
                .add_tombstone(version, Tombstone { fate, home });
        }
    }

    pub(super) fn books<'a>(
        &'a mut self,
        geometry: &'a Geometry,
        table: &'a MapTable,
    ) -> Books<'a> {
        Books {
            geometry,
            table,
            index: &mut self.index,
            segments: &mut self.segments,
            records: &mut self.records,
            mapped: &mut self.mapped,
            accounts: None,
        }
    }

    /// Lets go of the records that nothing needs, and frees the segments that are certainly empty. Tombstones above
    /// `floor` are needed by a checkpoint.
    pub(super) fn finish_tail(&mut self, floor: HeaderNo) {
        let oldest = self.segments.oldest_life(self.log.durable());
        let oldest = oldest.unwrap_or(HeaderNo(u64::MAX)).min(floor.next());
        self.records.expire(oldest);
        let homes: Vec<Home> = self.records.tombstones().map(|(_, t)| t.home).collect();
        for home in homes {
            self.segments.get_mut(home.segment).records += 1;
        }
        let zeros: Vec<_> = self.records.zeros().map(|(id, z)| (id, *z)).collect();
        for (id, zero) in zeros {
            if zero.live == 0 {
                self.records.remove_zero(id);
            } else if let Some((_, home)) = zero.home {
                self.segments.get_mut(home.segment).records += 1;
            }
        }
        self.free_empty();
    }
}
