//! Replay: from the headers that count to the map.
//!
//! What the headers say is carried out in order of version, wherever they lie; of copies of one version the youngest
//! header has the last word, because older copies may have been overwritten. Trims kill what is there, zero records
//! reserve what is unmapped, remaps and clones rename; what has the version of one was said after it (`docs/remap.md`).

use super::scan::Found;
use crate::addr::{Lba, LbaRange, Pba, SegmentId};
use crate::format::{HeaderNo, RecordKind, Version};
use crate::geometry::Geometry;
use crate::log::Log;
use crate::map::{LeafIndex, Location, MapTable, State, ZeroId};
use crate::placement::Heat;
use crate::planted::Bug;
use crate::records::{Fate, Home, LiveRecords, Tombstone};
use crate::remap::Renaming;
use crate::segment::{SegmentUse, Segments};
use std::collections::BTreeMap;

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

/// Something a record says.
#[derive(Clone, Copy, Debug)]
enum Said {
    Trim(LbaRange),
    Rename(Renaming),
    Zero(LbaRange),
    Data { lba: Lba, pba: Pba, crc: u32 },
}

/// When something takes effect. Remaps and clones come before what has their version; of several copies of a zero
/// record the youngest comes first and takes what it speaks of, of several copies of a grain it comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    version: Version,
    is_content: bool,
    copy: u64,
}

/// Replays headers, all of which count, into `table`.
pub(crate) fn replay(
    geometry: &Geometry,
    headers: &BTreeMap<HeaderNo, Found>,
    last: HeaderNo,
    table: &MapTable,
    planted: Option<Bug>,
) -> Replayed {
    let mut segments = Segments::new(&geometry.places);
    let mut statements: Vec<(Moment, Said, Home)> = Vec::new();
    // Of trims and remaps, the youngest copy.
    let mut tombstones: BTreeMap<Version, (Said, Home)> = BTreeMap::new();
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
            let (lba, version) = (record.lba, record.version);
            let range = |count| LbaRange::new(lba, u64::from(count));
            let (said, copy) = match record.kind {
                RecordKind::Data { crc } => {
                    pba = Pba(pba.0 + 1);
                    (Said::Data { lba, pba, crc }, header.no.0)
                }
                RecordKind::Zero { count } => (Said::Zero(range(count)), u64::MAX - header.no.0),
                RecordKind::Trim { count } => {
                    tombstones.insert(version, (Said::Trim(range(count)), home));
                    continue;
                }
                RecordKind::Alias { crc, .. } => (Said::Data { lba, pba, crc }, header.no.0),
                RecordKind::Remap { .. } | RecordKind::Clone { .. } => {
                    let renaming = record.renaming().expect("one that renames");
                    tombstones.insert(version, (Said::Rename(renaming), home));
                    continue;
                }
            };
            let moment = Moment {
                version,
                is_content: true,
                copy,
            };
            statements.push((moment, said, home));
        }
    }
    statements.extend(tombstones.into_iter().map(|(version, (said, home))| {
        let moment = Moment {
            version,
            is_content: false,
            copy: 0,
        };
        (moment, said, home)
    }));
    let statements = without_impossible(statements, geometry.capacity_grains);
    let mut replayed = Replayed {
        segments,
        records: LiveRecords::default(),
        index: LeafIndex::default(),
        mapped: 0,
        log: Log::new(last, headers.get(&last).map(|f| f.at)),
        changed: Vec::new(),
    };
    let oldest = replayed.segments.oldest_life(last);
    let oldest_wins = planted == Some(Bug::WrongSequenceWins);
    for (moment, said, home) in statements {
        let version = moment.version;
        let fate = match said {
            Said::Data { lba, pba, crc } => {
                if !oldest_wins || !replayed.is_on_media(lba) {
                    replayed.set(table, lba, Location::Media(pba), crc);
                }
                continue;
            }
            Said::Zero(range) => {
                replayed.reserve(table, range, version, home);
                continue;
            }
            Said::Trim(range) => {
                replayed.unmap(table, range);
                Fate::Trimmed(range)
            }
            Said::Rename(renaming) => {
                replayed.rename(table, renaming);
                Fate::Renamed(renaming)
            }
        };
        if oldest.is_some_and(|oldest| version.header() >= oldest) {
            let records = &mut replayed.records;
            records.add_tombstone(version, Tombstone { fate, home });
            replayed.segments.get_mut(home.segment).records += 1;
        }
    }
    replayed.settle(geometry);
    replayed
}

/// In order of effect. A volume reserves no more than it has room for; one that was larger once may have, and has given
/// up the rest since. What remains of more is crafted, and passed over, before it takes memory for each grain.
fn without_impossible(
    mut all: Vec<(Moment, Said, Home)>,
    capacity: u64,
) -> Vec<(Moment, Said, Home)> {
    all.sort_unstable_by_key(|&(moment, ..)| moment);
    let zeros = all
        .iter()
        .enumerate()
        .filter_map(|(at, (_, said, _))| match said {
            Said::Zero(range) if range.count > capacity => Some((at, *range)),
            _ => None,
        });
    let large: Vec<(usize, LbaRange)> = zeros.collect();
    for (at, range) in large.into_iter().rev() {
        let (moment, _, home) = all[at];
        let later = all[at + 1..].iter().filter_map(|(_, said, _)| match said {
            Said::Trim(range) => Some(*range),
            _ => None,
        });
        let left = still_reserved(range, later, capacity);
        let left = left
            .into_iter()
            .map(|range| (moment, Said::Zero(range), home));
        all.splice(at..=at, left);
    }
    all
}

/// What remains of a reservation that is larger than a volume, after later trims; nothing, if that is more than there is
/// room for.
pub(super) fn still_reserved(
    range: LbaRange,
    later: impl Iterator<Item = LbaRange>,
    capacity: u64,
) -> Vec<LbaRange> {
    let left = range.without(later);
    if left.iter().map(|range| range.count).sum::<u64>() > capacity {
        tracing::warn!(?range, "a header reserves more than there is room for");
        return Vec::new();
    }
    left
}

impl Replayed {
    fn is_on_media(&self, lba: Lba) -> bool {
        let state = self.index.leaf(lba).map(|leaf| leaf.state(lba));
        matches!(state, Some(State::Away(Location::Media(_))))
    }

    fn set(&mut self, table: &MapTable, lba: Lba, at: Location, crc: u32) {
        let leaf = self.index.leaf_or_new(table, lba);
        leaf.put(lba, at, Heat::UNKNOWN, crc);
    }

    fn unmap(&mut self, table: &MapTable, range: LbaRange) {
        let dead: Vec<Lba> = self.index.mapped(range).map(|(lba, _)| lba).collect();
        for lba in dead {
            let leaf = self.index.leaf(lba).expect("leaf of a mapped grain");
            leaf.entry(lba).replace(State::UNMAPPED);
            self.index.prune(table, lba);
        }
    }

    fn rename(&mut self, table: &MapTable, renaming: Renaming) {
        let ranges = renaming.ranges();
        self.unmap(table, ranges.target());
        let named: Vec<(Lba, State)> = self.index.mapped(ranges.source()).collect();
        for &(lba, state) in &named {
            let crc = self.index.leaf(lba).map_or(0, |leaf| leaf.crc(lba));
            if let State::Away(at) = state {
                self.set(table, ranges.renamed(lba), at, crc);
            }
        }
        if renaming.empties_source() {
            self.unmap(table, ranges.source());
        }
    }

    fn reserve(&mut self, table: &MapTable, range: LbaRange, version: Version, home: Home) {
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

    /// Counts everything.
    fn settle(&mut self, geometry: &Geometry) {
        for (_, state) in self.index.mapped(LbaRange::SPACE) {
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

    /// Whether no count is too low for the map, all of which is here. Those of a checkpoint may be crafted.
    pub(super) fn are_counted(&self, geometry: &Geometry) -> bool {
        let mut mapped = 0;
        let mut live: BTreeMap<SegmentId, u32> = BTreeMap::new();
        let mut zeros: BTreeMap<ZeroId, u64> = BTreeMap::new();
        for (_, state) in self.index.mapped(LbaRange::SPACE) {
            mapped += 1;
            match state {
                State::Away(Location::Zero(id)) => *zeros.entry(id).or_default() += 1,
                State::Away(Location::Media(pba)) => {
                    *live.entry(geometry.segment_of(pba)).or_default() += 1;
                }
                _ => unreachable!("nothing is resident during recovery"),
            }
        }
        let segments = (0..).map(SegmentId).zip(self.segments.iter());
        let is_live = |id: SegmentId| live.get(&id).copied().unwrap_or(0);
        let is_zero = |id: ZeroId| zeros.get(&id).copied().unwrap_or(0);
        self.mapped >= mapped
            && segments.into_iter().all(|(id, s)| s.live >= is_live(id))
            && self.records.zeros().all(|(id, z)| z.live >= is_zero(id))
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
