//! The inode table as it is on media, before it is known what of it counts.

use ftl::{GRAIN_BYTES, LbaRange};

use super::txn::{cold_place, hot_place};
use crate::format::{
    COLD_BYTES, COLD_PER_GRAIN, COLD_RANGE, HOT_BYTES, HOT_PER_GRAIN, HOT_RANGE, HotRecord,
    InodeRecord, Range, TableRecord,
};
use crate::inode::InodeNo;
use crate::store::{BlockStore, ByteAddr};

/// How long the inode table is.
pub(super) struct TableLength {
    /// Hot grains in use.
    pub(super) grains: u64,
    /// The table's record can be read, and says less.
    pub(super) is_more_than_recorded: bool,
}

/// All grains of the table up to what its record says, and to the last that is mapped: the record grows with the first
/// inode that lies behind, in one batch, and never shrinks, so when it is too short it is wrong.
pub(super) fn table_length(store: &impl BlockStore) -> TableLength {
    let mut bytes = [0; HOT_BYTES];
    let (lba, offset) = hot_place(InodeNo::TABLE);
    let read = store.read(ByteAddr::new(lba, u64::from(offset)), &mut bytes);
    let recorded = match read.map(|()| TableRecord::parse(&bytes)) {
        Ok(Ok(table)) => Some(table.grains),
        _ => None,
    };
    let cold_per_hot = HOT_PER_GRAIN / COLD_PER_GRAIN;
    // The record itself is in the first.
    let first = recorded.unwrap_or(1);
    let hot = grains_used(store, HOT_RANGE, first);
    let cold = grains_used(store, COLD_RANGE, first * cold_per_hot).div_ceil(cold_per_hot);
    let grains = hot.max(cold);
    TableLength {
        grains,
        is_more_than_recorded: recorded.is_some_and(|recorded| recorded < grains),
    }
}

/// Number of grains of a range up to the last that is mapped, and no less than `grains`.
pub(super) fn grains_used(store: &impl BlockStore, range: Range, mut grains: u64) -> u64 {
    let all = range.lbas();
    while grains < all.count {
        let rest = LbaRange::new(all.start.offset(grains), all.count - grains);
        let Some(lba) = store.next_mapped(rest) else {
            break;
        };
        grains = lba.0 - all.start.0 + 1;
    }
    grains
}

/// The records of a grain that can be read; that of the table is none.
pub(crate) fn hot_records(store: &impl BlockStore, number: u64) -> Vec<(InodeNo, HotRecord)> {
    let mut bytes = [0; GRAIN_BYTES];
    let at = ByteAddr::new(HOT_RANGE.start.offset(number), 0);
    let is_read = store.read(at, &mut bytes).is_ok();
    let (records, _) = bytes.as_chunks::<HOT_BYTES>();
    let numbers = (number * HOT_PER_GRAIN..).map(InodeNo);
    let parse = |(ino, hot)| Some((ino, HotRecord::parse(ino, hot).ok()??));
    let all = numbers.zip(records).filter(|_| is_read);
    all.filter(|(ino, _)| *ino != InodeNo::TABLE)
        .filter_map(parse)
        .collect()
}

/// Which of the first so many grains of hot records are there.
pub(crate) fn hot_grains(store: &impl BlockStore, grains: u64) -> impl Iterator<Item = u64> {
    let next = move |from: u64| {
        let rest = LbaRange::new(HOT_RANGE.start.offset(from), grains.checked_sub(from)?);
        Some(store.next_mapped(rest)?.0 - HOT_RANGE.start.0)
    };
    std::iter::successors(next(0), move |number| next(number + 1))
}

/// The range that a file is on its way to; `None` when the cold record does not say.
pub(super) fn target_of(
    store: &impl BlockStore,
    ino: InodeNo,
    hot: &[u8; HOT_BYTES],
) -> Option<Range> {
    Some(read_whole(store, ino, hot)?.relocation?.to)
}

/// What both records say together; `None` when the cold one can not be read.
pub(super) fn read_whole(
    store: &impl BlockStore,
    ino: InodeNo,
    hot: &[u8; HOT_BYTES],
) -> Option<InodeRecord> {
    let mut cold = [0; COLD_BYTES];
    let (lba, offset) = cold_place(ino);
    store
        .read(ByteAddr::new(lba, u64::from(offset)), &mut cold)
        .ok()?;
    InodeRecord::parse(ino, hot, &cold).ok()?
}
