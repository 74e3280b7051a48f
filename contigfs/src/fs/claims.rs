//! Places that more than one inode says are its own.

use ftl::{GRAIN_BYTES, Lba};

use super::records::{hot_grains, target_of};
use crate::format::{HOT_BYTES, HOT_PER_GRAIN, HOT_RANGE, HotRecord, Range};
use crate::inode::InodeNo;
use crate::store::{BlockStore, ByteAddr};

/// Who claims a part of what two claim. Each of them may be a record that has come back from the past, and writing to its
/// place, or freeing it, would be at the cost of the other one.
pub(super) fn claimants(
    store: &impl BlockStore,
    grains: u64,
    disputed: &[(Lba, Lba)],
) -> Vec<InodeNo> {
    let mut found = Vec::new();
    if disputed.is_empty() {
        return found;
    }
    for number in hot_grains(store, grains) {
        let mut bytes = [0; GRAIN_BYTES];
        let lba = HOT_RANGE.start.offset(number);
        if store.read(ByteAddr::new(lba, 0), &mut bytes).is_err() {
            continue;
        }
        let (records, _) = bytes.as_chunks::<HOT_BYTES>();
        let numbers = (number * HOT_PER_GRAIN..).map(InodeNo);
        for (ino, hot) in numbers.zip(records) {
            let Ok(Some(record)) = HotRecord::parse(ino, hot) else {
                continue;
            };
            let target = record.relocating.then(|| target_of(store, ino, hot));
            let mut places = record.range.into_iter().chain(target.flatten());
            if places.any(|place| is_in(disputed, place)) {
                found.push(ino);
            }
        }
    }
    found
}

/// Whether part of a range is in one of these stretches, which are ascending.
pub(super) fn is_in(stretches: &[(Lba, Lba)], range: Range) -> bool {
    let next = stretches.partition_point(|(_, end)| *end <= range.start);
    let next = stretches.get(next);
    next.is_some_and(|(first, _)| *first < range.lbas().end())
}

/// The same grains, in ascending stretches that do not touch each other: first, and first behind.
pub(super) fn merged(mut ranges: Vec<Range>) -> Vec<(Lba, Lba)> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<(Lba, Lba)> = Vec::new();
    for range in ranges.into_iter().map(Range::lbas) {
        match merged.last_mut() {
            Some((_, end)) if range.start <= *end => *end = range.end().max(*end),
            _ => merged.push((range.start, range.end())),
        }
    }
    merged
}
