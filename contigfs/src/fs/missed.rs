//! Inodes that a mount would miss: their hot record reads as zeros, which says that they do not exist, but their cold
//! record is there.
//!
//! Both records of an inode come and go in one batch, so a crash never leaves this; the loss of a grain of hot records
//! does. Taken for free, such an inode would lose its data to the trim of what nobody owns, and its cold record, which
//! tells a repair that it exists, to the next inode that gets its number.
//!
//! The cold records are four times what a mount reads otherwise, so it does not read them all. It reads
//!
//! 1. always: cold grains that are mapped although none of their inodes has a hot record. A lost grain of hot records leaves
//!    four of them. A healthy volume has next to none: the last inode of a cold grain takes the grain with it, and where a
//!    crash or an error has kept it from doing so, there are zeros;
//! 2. if grains are mapped that nobody owns: all cold grains that are mapped and have an inode without a hot record. That is
//!    before they are trimmed, and what is trimmed is not found again by the next mount. No operation leaves such grains.
//!
//! What this does not find is an inode that owns no data, and whose hot record alone is gone while others in its cold grain
//! have theirs. The checker finds it.

use ftl::{GRAIN_BYTES, LbaRange};

use crate::format::{COLD_BYTES, COLD_PER_GRAIN, COLD_RANGE, HOT_PER_GRAIN};
use crate::inode::InodeNo;
use crate::store::{BlockStore, ByteAddr};
use crate::table::Table;

/// Which cold grains are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// Those of which no inode has a hot record.
    Deserted,
    /// Those of which some inode has none.
    All,
}

/// Inodes without a hot record that have a cold one, or one that can not be read. `table` knows all hot records, which lie
/// in the first `grains` grains.
pub(super) fn missed_inodes(
    store: &impl BlockStore,
    table: &Table,
    grains: u64,
    search: Search,
) -> Vec<InodeNo> {
    let mut missed = Vec::new();
    let end = grains * HOT_PER_GRAIN / COLD_PER_GRAIN;
    let mut next = 0;
    while next < end {
        let rest = LbaRange::new(COLD_RANGE.start.offset(next), end - next);
        let Some(lba) = store.next_mapped(rest) else {
            break;
        };
        let number = lba.0 - COLD_RANGE.start.0;
        next = number + 1;
        let inodes = (number * COLD_PER_GRAIN..next * COLD_PER_GRAIN).map(InodeNo);
        // These two are known without records.
        let is_told = |ino: InodeNo| ino > InodeNo::ROOT && table.has(ino);
        let passed_over = match search {
            Search::Deserted => inodes.clone().any(is_told),
            Search::All => inodes.clone().all(|ino| table.has(ino)),
        };
        if passed_over {
            continue;
        }
        let mut bytes = [0; GRAIN_BYTES];
        let is_read = store.read(ByteAddr::new(lba, 0), &mut bytes).is_ok();
        let (records, _) = bytes.as_chunks::<COLD_BYTES>();
        for (ino, cold) in inodes.zip(records) {
            let is_free = is_read && cold == &[0; COLD_BYTES];
            if !is_free && !table.has(ino) {
                missed.push(ino);
            }
        }
    }
    missed
}
