//! Replay: from the headers that count to the map.
//!
//! For each grain the highest version wins, wherever its header lies; of copies of one version the youngest header
//! wins, because older copies may have been overwritten. Trims kill lower versions. Zero records reserve what is
//! unmapped at their version.

use super::scan::Found;
use crate::addr::{Lba, LbaRange, Pba};
use crate::format::{HeaderNo, RecordKind, Version};
use crate::geometry::Geometry;
use crate::log::Log;
use crate::map::{LeafIndex, Location, MapTable, State};
use crate::planted::Bug;
use crate::records::{Home, LiveRecords, Tombstone};
use crate::segment::{SegmentUse, Segments};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// The books after recovery.
#[derive(Debug)]
pub(crate) struct Replayed {
    pub(crate) segments: Segments,
    pub(crate) records: LiveRecords,
    pub(crate) index: LeafIndex,
    pub(crate) mapped: u64,
    pub(crate) log: Log,
    /// Grains of which a checkpoint says something else.
    pub(crate) changed: Vec<Lba>,
}

#[derive(Clone, Copy, Debug)]
struct Best {
    version: Version,
    header: HeaderNo,
    pba: Pba,
    crc: u32,
}

/// Trims and zero records by version; of the copies of one version the youngest comes first.
type RangedRecords = BTreeMap<(Version, Reverse<HeaderNo>, Lba), (LbaRange, Ranged, Home)>;

#[derive(Clone, Copy, Debug)]
enum Ranged {
    Trim,
    Zero,
}

/// Replays headers, all of which count, into `table`.
pub(crate) fn replay(
    geometry: &Geometry,
    headers: &BTreeMap<HeaderNo, Found>,
    last: HeaderNo,
    table: &MapTable,
    planted: Option<Bug>,
) -> Replayed {
    let mut segments = Segments::new(geometry.segment_count);
    let mut best: HashMap<Lba, Best> = HashMap::new();
    let mut ranged = RangedRecords::new();
    for found in headers.values() {
        let header = &found.header;
        let segment = segments.get_mut(header.segment);
        segment.usage = SegmentUse::Closed;
        segment.epoch = header.epoch;
        segment.used = segment.used.max(header.position + header.grains());
        let home = Home {
            header: header.no,
            segment: header.segment,
        };
        let mut pba = found.at;
        for record in &header.records {
            let (kind, count) = match record.kind {
                RecordKind::Data { crc } => {
                    pba = Pba(pba.0 + 1);
                    let new = Best {
                        version: record.version,
                        header: header.no,
                        pba,
                        crc,
                    };
                    let old = best.entry(record.lba).or_insert(new);
                    let mut wins = (new.version, new.header) > (old.version, old.header);
                    if planted == Some(Bug::WrongSequenceWins) {
                        wins = new.version < old.version;
                    }
                    if wins {
                        *old = new;
                    }
                    continue;
                }
                RecordKind::Trim { count } => (Ranged::Trim, count),
                RecordKind::Zero { count } => (Ranged::Zero, count),
            };
            let range = LbaRange::new(record.lba, u64::from(count));
            let place = (record.version, Reverse(header.no), record.lba);
            ranged.insert(place, (range, kind, home));
        }
    }
    let mut replayed = Replayed {
        segments,
        records: LiveRecords::default(),
        index: LeafIndex::default(),
        mapped: 0,
        log: Log::new(last, headers.get(&last).map(|f| f.at)),
        changed: Vec::new(),
    };
    replayed.install(table, &best);
    replayed.kill(table, &best, &ranged);
    drop(best);
    replayed.settle(geometry, table, &ranged);
    replayed
}

impl Replayed {
    fn install(&mut self, table: &MapTable, best: &HashMap<Lba, Best>) {
        for (&lba, found) in best {
            let leaf = self.index.leaf_or_new(table, lba);
            let there = Location::Media(found.pba);
            leaf.entry(lba).replace(State::Away(there));
            leaf.set_crc(lba, found.crc);
        }
    }

    /// Trims kill data of lower versions.
    fn kill(&mut self, table: &MapTable, best: &HashMap<Lba, Best>, ranged: &RangedRecords) {
        for ((version, ..), (range, kind, _)) in ranged {
            if let Ranged::Trim = kind {
                let mapped = self.index.mapped(*range).map(|(lba, _)| lba);
                let dead: Vec<Lba> = mapped.filter(|l| best[l].version < *version).collect();
                for lba in dead {
                    self.unmap(table, lba);
                }
            }
        }
    }

    fn unmap(&mut self, table: &MapTable, lba: Lba) {
        let leaf = self.index.leaf(lba).expect("leaf of a mapped grain");
        leaf.entry(lba).replace(State::UNMAPPED);
        self.index.prune(table, lba);
    }

    /// Replays zero records, and the trims among them, on what data leaves free; then counts everything.
    fn settle(&mut self, geometry: &Geometry, table: &MapTable, ranged: &RangedRecords) {
        let oldest = self.segments.oldest_life(self.log.durable());
        for (&(version, ..), &(range, kind, home)) in ranged {
            match kind {
                Ranged::Trim => {
                    let mapped = self.index.mapped(range);
                    let zeros: Vec<Lba> = mapped
                        .filter(|(_, s)| matches!(s, State::Away(Location::Zero(_))))
                        .map(|(lba, _)| lba)
                        .collect();
                    for lba in zeros {
                        self.unmap(table, lba);
                    }
                    let needed = oldest.is_some_and(|oldest| version.header() >= oldest);
                    if needed && !self.records.trims.contains_key(&version) {
                        self.records
                            .trims
                            .insert(version, Tombstone { range, home });
                        self.segments.get_mut(home.segment).records += 1;
                    }
                }
                Ranged::Zero => {
                    let id = self.records.add_zero(range);
                    self.records.settle_zero(id, version, home);
                    for lba in (range.start.0..range.end().0).map(Lba) {
                        let leaf = self.index.leaf_or_new(table, lba);
                        if leaf.entry(lba).state() == State::UNMAPPED {
                            let there = Location::Zero(id);
                            leaf.entry(lba).replace(State::Away(there));
                        }
                    }
                }
            }
        }
        for (_, state) in self.index.mapped(LbaRange::ALL) {
            self.mapped += 1;
            match state {
                State::Away(Location::Zero(id)) => self.records.zero_mut(id).live += 1,
                State::Away(Location::Media(pba)) => {
                    let id = geometry.segment_of(pba);
                    self.segments.get_mut(id).live += 1;
                }
                _ => unreachable!("nothing is resident during recovery"),
            }
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

    /// Frees the segments in which nothing is needed.
    pub(super) fn free_empty(&mut self) {
        for segment in self.segments.iter_mut() {
            if segment.usage == SegmentUse::Closed && segment.live == 0 && segment.records == 0 {
                segment.usage = SegmentUse::Free;
                segment.used = 0;
            }
        }
        self.segments.rebuild_free();
    }
}
