//! What is on the media: superblock copies, header grains, roots and pages of checkpoints. See `docs/format.md` and
//! `docs/checkpoint.md` for diagrams and arguments.
//!
//! Each structure has a raw layer (a `zerocopy` struct, no judgement) and a parsed one that only holds legal
//! values. `parse` is total on arbitrary bytes, `emit` can not fail.

mod fresh;
mod header;
mod label;
mod map_entry;
mod map_page;
mod record;
mod root;
mod sessions;
mod superblock;

pub use fresh::{FRESH_MAX, Fresh, FreshFrom};
pub use header::{Header, HeaderFlaw, HeaderNo, RECORDS_MAX, Stream};
pub(crate) use label::LABEL_GRAINS;
pub use label::{Label, LabelledDevice};
pub(crate) use map_entry::MapEntry;
pub(crate) use map_page::{
    Fence, OPENED_UNIT, PageEntry, PageKind, PageName, SavedKind, SavedRecord, SavedSegment,
};
pub use record::{Record, RecordKind, Version};
pub(crate) use root::{PIECES_MAX, Piece, ROOT_SLOTS, Root, root_slot};
pub use sessions::{SESSIONS_MAX, SessionEnd, Sessions};
pub(crate) use superblock::has_heat;
pub use superblock::{Superblock, SuperblockFlaw};

use crate::addr::GRAIN_BYTES;

/// What counts sessions, checkpoints and the like never comes so far; media that say so are crafted, and leave no room to
/// count on.
pub(crate) const COUNTER_END: u64 = 1 << 60;

/// One grain of bytes.
pub(crate) type GrainBytes = [u8; GRAIN_BYTES];

/// CRC-32 of a grain with the four bytes at `hole` taken as zero.
pub(crate) fn crc_without(bytes: &GrainBytes, hole: usize) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..hole]);
    hasher.update(&[0; 4]);
    hasher.update(&bytes[hole + 4..]);
    hasher.finalize()
}
