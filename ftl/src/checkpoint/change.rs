//! What the tail of the log says of the map, and what a piece of the map is after it.

use crate::addr::{Lba, LbaRange};
use crate::map::{Location, ZeroId};
use crate::remap::Renaming;
use std::collections::BTreeMap;

/// A place and a checksum.
pub(super) type Grain = (Location, u32);

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
            map.insert(lba, (at, crc));
        }
        Change::Unmap(range) => remove(map, range),
        Change::Rename(renaming) => {
            let ranges = renaming.ranges();
            remove(map, ranges.target());
            let source = ranges.source();
            let named = map.range(source.start..source.end());
            let named: Vec<(Lba, Grain)> = named.map(|(&l, &at)| (l, at)).collect();
            if renaming.empties_source() {
                remove(map, source);
            }
            map.extend(named.into_iter().map(|(l, at)| (ranges.renamed(l), at)));
        }
        Change::Reserve(range, id) => {
            for lba in (range.start.0..range.end().0).map(Lba) {
                map.entry(lba).or_insert((Location::Zero(id), 0));
            }
        }
        Change::Rehome(range, id) => {
            for (_, (at, _)) in map.range_mut(range.start..range.end()) {
                if let Location::Zero(_) = at {
                    *at = Location::Zero(id);
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
