//! What the tail of the log says of the map, and what a piece of the map is after it.

use crate::addr::{Lba, LbaRange};
use crate::map::{Location, ZeroId};
use crate::placement::Heat;
use crate::remap::Renaming;
use std::collections::BTreeMap;

/// A grain, as far as the map knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grain {
    pub(super) at: Location,
    pub(super) crc: u32,
    pub(super) heat: Heat,
}

/// Grains of a piece of the map.
pub(crate) type Grains = BTreeMap<Lba, Grain>;

/// Something that a header above the checkpoint says; changes take effect in their order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// The grain is here now, with this checksum.
    Set { lba: Lba, at: Location, crc: u32 },
    /// All of it is unmapped.
    Unmap(LbaRange),
    /// What is unmapped in it reads as zeros because of this record.
    Reserve(LbaRange, ZeroId),
    /// What reads as zeros in it does so because of this record.
    Rehome(LbaRange, ZeroId),
    /// A range has another name, or one more.
    Rename(Renaming),
}

/// A change takes effect.
pub(super) fn carry_out(change: Change, map: &mut Grains) {
    match change {
        Change::Set { lba, at, crc } => {
            // What was remembered of it at the checkpoint is not far from what would be now.
            let heat = map.get(&lba).map_or(Heat::UNKNOWN, |grain| grain.heat);
            map.insert(lba, Grain { at, crc, heat });
        }
        Change::Unmap(range) => remove(map, range),
        Change::Rename(renaming) => {
            let ranges = renaming.ranges();
            remove(map, ranges.target());
            let source = ranges.source();
            let named = map.range(source.start..source.end());
            let named: Vec<(Lba, Grain)> = named.map(|(&l, &grain)| (l, grain)).collect();
            if renaming.empties_source() {
                remove(map, source);
            }
            let renamed = named.into_iter();
            map.extend(renamed.map(|(l, grain)| (ranges.renamed(l), grain)));
        }
        Change::Reserve(range, id) => {
            for lba in (range.start.0..range.end().0).map(Lba) {
                map.entry(lba).or_insert(Grain {
                    at: Location::Zero(id),
                    crc: 0,
                    heat: Heat::UNKNOWN,
                });
            }
        }
        Change::Rehome(range, id) => {
            for (_, grain) in map.range_mut(range.start..range.end()) {
                if let Location::Zero(_) = grain.at {
                    grain.at = Location::Zero(id);
                }
            }
        }
    }
}

/// Takes a range out.
pub(super) fn remove(map: &mut Grains, range: LbaRange) {
    if range.count == 0 || map.is_empty() {
        return;
    }
    let gone: Vec<Lba> = map
        .range(range.start..range.end())
        .map(|(&l, _)| l)
        .collect();
    for lba in gone {
        map.remove(&lba);
    }
}

/// What two ranges have in common.
pub(super) fn cut(a: LbaRange, b: LbaRange) -> LbaRange {
    let start = a.start.max(b.start);
    let end = a.end().min(b.end());
    LbaRange::new(start, end.0.saturating_sub(start.0))
}
