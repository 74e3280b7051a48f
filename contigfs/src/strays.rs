//! Strays: grains that are mapped outside of all ranges.
//!
//! A crash leaves them at the old place of a file that was collapsed, and so does a repair that is cut off, where it clones;
//! a mount trims them. But a hot record that has come back from the past leaves them, too: it names the place that its file
//! had then, or a smaller one, and what the file has now seems to be nobody's. No checksum tells that. What tells it is that
//! the file misses something, or could have had them if it had grown, or that the volume is known to be
//! damaged, as one is whose log has lost headers. Then
//! they are kept until a repair has made files of them.

use ftl::Lba;

use crate::buddy::Buddy;
use crate::format::{METADATA_ORDER, ROOT_LBA, Range, XATTR_SPACE};
use crate::store::BlockStore;

/// What no file claims, nor the metadata.
pub(crate) fn free_space(claimed: impl Iterator<Item = Range>) -> Buddy {
    let metadata = Range {
        start: ROOT_LBA,
        order: METADATA_ORDER,
    };
    let mut all: Vec<Range> = claimed.chain([metadata, XATTR_SPACE]).collect();
    // The largest first: what lies inside another one is taken with it.
    all.sort_by_key(|range| (std::cmp::Reverse(range.order), range.start));
    let mut buddy = Buddy::new();
    for range in all {
        buddy.reserve(range);
    }
    buddy
}

/// The first of the strays, and how many there are.
pub(crate) fn strays(store: &impl BlockStore, free: &Buddy) -> Option<(Lba, u64)> {
    let blocks = || free.free_blocks().map(Range::lbas);
    let first = blocks()
        .filter_map(|block| store.next_mapped(block))
        .min()?;
    let counts = blocks().map(|block| store.mapped_count(block));
    Some((first, counts.sum()))
}

/// Whether strays, of which there are some, may belong to a file. `files` are places and sizes of those that are not on
/// their way to another place, or to be freed.
pub(crate) fn are_missed(
    store: &impl BlockStore,
    free: &Buddy,
    mut files: impl Iterator<Item = (Range, u64)>,
) -> bool {
    let is_mapped = |range: Range| store.next_mapped(range.lbas()).is_some();
    let misses = |(range, size): (Range, u64)| {
        size > 0 && !is_mapped(range) || free.room_behind(range).any(is_mapped)
    };
    is_suspect(store) || files.any(misses)
}

/// Whether the volume is known to be damaged: then some of it may be of the past.
fn is_suspect(store: &impl BlockStore) -> bool {
    let host = store.snapshot_host();
    host.is_some_and(|host| host.engine().is_suspect())
}
