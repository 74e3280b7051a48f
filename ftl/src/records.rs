//! Live trim, remap and zero records: what must survive of the log besides data.
//!
//! A trim record (tombstone) keeps older versions of its grains dead. They can only lie in headers with a lower number
//! than the one that first carried the trim, so it is needed while a scan could still find such a life of a segment. A
//! remap or clone is a tombstone of both of its ranges, and says under which names an older grain is found now
//! (`docs/remap.md`). A zero record is needed while some grain is in the Zero state because of it; relocation takes
//! only those grains along (splitting the record), so that a copy never has a higher header number than a trim that
//! killed part of it.

use crate::addr::{Lba, LbaRange, SegmentId};
use crate::format::{HeaderNo, Record, RecordKind, Version};
use crate::map::ZeroId;
use crate::remap::Renaming;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

/// Grains of a part of the address space, in the index of what renames: of large ranges (a batch moves 2^16 grains at most),
/// and of small ones, of which there may be as many as there are grains.
const PART_LARGE: u64 = 1 << 12;
const PART_SMALL: u64 = 1 << 3;
/// Grains of a small range at most.
const SMALL: u64 = 1 << 6;

/// Where the youngest copy of a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) header: HeaderNo,
    pub(crate) segment: SegmentId,
}

/// What a tombstone says about older versions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// They are dead.
    Trimmed(LbaRange),
    /// They have another name, or one more, and what had that name is dead.
    Renamed(Renaming),
}

impl Fate {
    /// The record that says so.
    pub(crate) fn record(self, version: Version) -> Record {
        let (lba, kind) = match self {
            Self::Trimmed(range) => {
                let count = range.count as u32;
                (range.start, RecordKind::Trim { count })
            }
            Self::Renamed(renaming) => (renaming.ranges().from, RecordKind::of(renaming)),
        };
        Record { lba, version, kind }
    }
}

/// A tombstone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tombstone {
    pub(crate) fate: Fate,
    pub(crate) home: Home,
}

/// Grains that a record was written about, and what has become of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traced {
    /// Their name and version for a record that is assembled now.
    pub(crate) name: LbaRange,
    pub(crate) version: Version,
    /// Their name in the map: that with the remaps of the forming group, which have no version yet.
    pub(crate) now: LbaRange,
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

/// A part of the address space, of one of the two sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Part {
    grains: u64,
    number: u64,
}

impl Part {
    fn of(lba: Lba, grains: u64) -> Self {
        let number = lba.0 / grains;
        Self { grains, number }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct LiveRecords {
    tombstones: BTreeMap<Version, Tombstone>,
    /// Those of them that rename, to be found quickly.
    renamings: BTreeMap<Version, Renaming>,
    /// The same by the parts of the address space that their ranges have to do with.
    by_part: HashMap<Part, BTreeSet<Version>>,
    zeros: Vec<Option<ZeroRecord>>,
    free: Vec<ZeroId>,
    /// By version, first grain and header of the youngest copy.
    by_place: HashMap<(Version, Lba, HeaderNo), ZeroId>,
}

impl LiveRecords {
    /// Adds a tombstone, or says where its youngest copy lies.
    pub(crate) fn add_tombstone(&mut self, version: Version, tombstone: Tombstone) {
        self.tombstones.insert(version, tombstone);
        if let Fate::Renamed(renaming) = tombstone.fate
            && self.renamings.insert(version, renaming).is_none()
        {
            for part in parts(renaming) {
                self.by_part.entry(part).or_default().insert(version);
            }
        }
    }

    pub(crate) fn tombstone(&self, version: Version) -> Option<&Tombstone> {
        self.tombstones.get(&version)
    }

    /// Every tombstone.
    pub(crate) fn tombstones(&self) -> impl ExactSizeIterator<Item = (Version, &Tombstone)> {
        self.tombstones.iter().map(|(&version, t)| (version, t))
    }

    /// What has become of the grains of a record of `version`. `forming`: the remaps and clones of the forming group.
    ///
    /// Every one that matters is live: the record lies in a header below its birth, hence in an older life.
    pub(crate) fn trace(
        &self,
        range: LbaRange,
        version: Version,
        forming: &[Renaming],
    ) -> Vec<Traced> {
        let mut traced = vec![Traced {
            name: range,
            version,
            now: range,
        }];
        let above = (Bound::Excluded(version), Bound::Unbounded);
        for (&version, &renaming) in self.renamings.range(above) {
            traced = carry(&traced, renaming, Some(version));
        }
        for &renaming in forming {
            traced = carry(&traced, renaming, None);
        }
        traced
    }

    /// Whether something that renames is live.
    pub(crate) fn renames(&self) -> bool {
        !self.renamings.is_empty()
    }

    /// The same of a single grain, for a record that is assembled now: its names and versions are added to `names`.
    /// Every grain of every victim is asked for.
    pub(crate) fn trace_one(&self, lba: Lba, version: Version, names: &mut Vec<(Lba, Version)>) {
        let first = names.len();
        names.push((lba, version));
        let mut done = version;
        // One that has to do with none of the names changes none of them.
        while let Some((later, renaming)) = self.next_about(&names[first..], done) {
            renaming.follow(names, first, |n| n.0, |_, lba| (lba, later));
            done = later;
        }
    }

    /// The first renaming above a version that may have to do with one of these names.
    fn next_about(&self, names: &[(Lba, Version)], above: Version) -> Option<(Version, Renaming)> {
        let above = (Bound::Excluded(above), Bound::Unbounded);
        let parts = names
            .iter()
            .flat_map(|&(lba, _)| [PART_LARGE, PART_SMALL].map(|grains| Part::of(lba, grains)));
        let next = parts.filter_map(|part| self.by_part.get(&part)?.range(above).next());
        let version = *next.min()?;
        Some((version, self.renamings[&version]))
    }

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
        while let Some(first) = self.tombstones.first_entry() {
            if first.key().header() >= oldest_life {
                break;
            }
            if let Some(renaming) = self.renamings.remove(first.key()) {
                for part in parts(renaming) {
                    if let Some(about) = self.by_part.get_mut(&part) {
                        about.remove(first.key());
                        if about.is_empty() {
                            self.by_part.remove(&part);
                        }
                    }
                }
            }
            expired.push(first.remove());
        }
        expired
    }
}

/// The parts of the address space that the ranges of a renaming have to do with.
fn parts(renaming: Renaming) -> impl Iterator<Item = Part> {
    let ranges = renaming.ranges();
    let both = [ranges.source(), ranges.target()];
    let grains = match ranges.count <= SMALL {
        true => PART_SMALL,
        false => PART_LARGE,
    };
    both.into_iter()
        .filter(|range| range.count > 0)
        .flat_map(move |range| range.start.0 / grains..=(range.end().0 - 1) / grains)
        .map(move |number| Part { grains, number })
}

/// Carries a remap or clone out on what has been traced so far: cuts out what it kills, and renames what it moves.
/// Without a version a record can not name what it does.
fn carry(traced: &[Traced], renaming: Renaming, version: Option<Version>) -> Vec<Traced> {
    let mut out = Vec::with_capacity(traced.len());
    let ranges = renaming.ranges();
    let (source, target) = (ranges.source(), ranges.target());
    for &old in traced {
        if !old.now.meets(source) && !old.now.meets(target) {
            out.push(old);
            continue;
        }
        let mut edges = vec![old.now.start, old.now.end()];
        let inner = [source.start, source.end(), target.start, target.end()];
        edges.extend(inner.into_iter().filter(|&e| old.now.contains(e)));
        edges.sort_unstable();
        edges.dedup();
        for pair in edges.windows(2) {
            let (start, count) = (pair[0], pair[1].0 - pair[0].0);
            if target.contains(start) {
                continue;
            }
            let name = old.name.start.offset(start.0 - old.now.start.0);
            let part = Traced {
                name: LbaRange::new(name, count),
                now: LbaRange::new(start, count),
                version: old.version,
            };
            if !source.contains(start) {
                out.push(part);
                continue;
            }
            // The source of a clone gets its version too: no older record of it is written any more (`docs/remap.md`).
            let named = |now: LbaRange| match version {
                Some(version) => Traced {
                    name: now,
                    now,
                    version,
                },
                None => Traced { now, ..part },
            };
            if !renaming.empties_source() {
                out.push(named(part.now));
            }
            out.push(named(LbaRange::new(ranges.renamed(start), count)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remap::Remap;

    fn ranges(from: u64, to: u64, count: u64) -> Remap {
        let (from, to) = (Lba(from), Lba(to));
        Remap { from, to, count }
    }

    fn remap(from: u64, to: u64, count: u64) -> Renaming {
        Renaming::Remap(ranges(from, to, count))
    }

    fn records(renamings: &[(u64, Renaming)]) -> LiveRecords {
        let mut records = LiveRecords::default();
        for &(no, renaming) in renamings {
            let home = Home {
                header: HeaderNo(no),
                segment: SegmentId(0),
            };
            let fate = Fate::Renamed(renaming);
            records.add_tombstone(version(no), Tombstone { fate, home });
        }
        records
    }

    fn version(no: u64) -> Version {
        Version::new(HeaderNo(no), 0)
    }

    /// A range is followed through remaps in the order of their versions, is cut where they cut it, and ends where
    /// something else was put (I4: what is relocated keeps the name it has).
    #[test]
    fn tracing() {
        let records = records(&[
            (5, remap(0, 100, 4)),
            (9, remap(102, 0, 8)),
            (7, remap(50, 6, 1)),
        ]);
        let trace = |start, count, no, forming: &[Renaming]| -> Vec<(u64, u64, u64, u64)> {
            let range = LbaRange::new(Lba(start), count);
            let traced = records.trace(range, version(no), forming);
            let show = |t: &Traced| {
                (
                    t.name.start.0,
                    t.now.start.0,
                    t.now.count,
                    t.version.header().0,
                )
            };
            traced.iter().map(show).collect()
        };
        assert_eq!(trace(0, 9, 9, &[]), [(0, 0, 9, 9)]);
        // Two of the first four are moved once, two of them twice; of the rest all is killed but the last.
        assert_eq!(
            trace(0, 9, 4, &[]),
            [(100, 100, 2, 5), (0, 0, 2, 9), (8, 8, 1, 4)]
        );
        assert_eq!(trace(50, 1, 6, &[]), []);
        assert_eq!(
            trace(100, 2, 5, &[remap(101, 7, 1)]),
            [(100, 100, 1, 5), (101, 7, 1, 5)]
        );
    }

    /// Names found by the index are those that come of carrying everything out in order, also behind what has expired
    /// (R2 to R4, R8).
    #[test]
    fn tracing_by_index() {
        let mut seed = 1_u64;
        let mut below = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % bound
        };
        for _ in 0..50 {
            let mut all = Vec::new();
            for no in 1..40 {
                let most = [9, 64, 65, 9000][below(4) as usize];
                let (from, count) = (below(40) * 1000, 1 + below(most));
                let to = (1 << 52) * below(3) + 100_000 + below(40) * 1000;
                let ranges = ranges(from, to, count);
                all.push(match below(3) {
                    0 => (no, Renaming::Remap(ranges)),
                    _ => (no, Renaming::Clone(ranges)),
                });
            }
            let mut records = records(&all);
            let expired = below(20);
            records.expire(HeaderNo(expired));
            assert_eq!(
                records.renamings.len() as u64,
                39 - expired.saturating_sub(1).min(39)
            );
            for _ in 0..50 {
                let (lba, no) = (Lba(below(50_000)), below(40).max(1));
                let mut found = Vec::new();
                records.trace_one(lba, version(no), &mut found);
                let mut want = vec![(lba, version(no))];
                for (&later, renaming) in records.renamings.range(version(no)..) {
                    if later > version(no) {
                        renaming.follow(&mut want, 0, |n| n.0, |_, lba| (lba, later));
                    }
                }
                assert_eq!(found, want);
            }
        }
    }

    /// A clone adds a name and gives both its version, a clone of a clone adds to both; a grain traced alone has the
    /// names that its range has.
    #[test]
    fn tracing_clones() {
        let clone = |from, to, count| Renaming::Clone(ranges(from, to, count));
        let records = records(&[
            (5, clone(0, 100, 4)),
            (7, clone(2, 50, 8)),
            (9, remap(100, 2, 1)),
        ]);
        let one = |lba, no| {
            let mut names = Vec::new();
            records.trace_one(Lba(lba), version(no), &mut names);
            let mut names: Vec<(u64, u64)> =
                names.iter().map(|n| (n.0.0, n.1.header().0)).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(one(0, 4), [(0, 5), (2, 9)]);
        assert_eq!(one(2, 4), [(50, 7), (102, 5)]);
        assert_eq!(one(3, 4), [(3, 7), (51, 7), (103, 5)]);
        assert_eq!(one(3, 5), [(3, 7), (51, 7)]);
        assert_eq!(one(100, 4), []);
        let traced = records.trace(LbaRange::new(Lba(0), 5), version(4), &[clone(103, 0, 1)]);
        let mut all = Vec::new();
        for part in traced {
            for n in 0..part.now.count {
                let (name, now) = (part.name.start.0 + n, part.now.start.0 + n);
                all.push((name, now, part.version.header().0));
            }
        }
        all.sort_unstable();
        let want = [
            (1, 1, 5),
            (2, 2, 9),
            (3, 3, 7),
            (4, 4, 7),
            (50, 50, 7),
            (51, 51, 7),
            (52, 52, 7),
            (101, 101, 5),
            (102, 102, 5),
            (103, 0, 5),
            (103, 103, 5),
        ];
        assert_eq!(all, want);
    }
}
