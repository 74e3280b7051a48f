//! The layout on media: raw structs as they lie there, and parsed types that can only hold legal values.
//!
//! `docs/layout.md` has the byte diagrams and the crash argument. Every parser here is total: whatever bytes it gets,
//! it answers with a value or a [`Corruption`](crate::error::Corruption), never with a panic.

mod dirent;
mod inode;
mod project;
mod relocation;
mod root;
mod xattr;

pub(crate) use dirent::{
    DIRENT_UNIT, Dirent, GRAIN_UNITS, UNITS_MAX, parse_grain, parse_unit, units_for,
};
pub(crate) use inode::{
    COLD_BYTES, COLD_PER_GRAIN, COLD_PROJECT, HOT_BYTES, HOT_PER_GRAIN, HotRecord, InodeRecord,
    LOST_RECORD, Range, TableRecord,
};
pub(crate) use project::{
    PROJECT_BYTES, PROJECTS_MAX, PROJECTS_PER_GRAIN, ProjectRecord, project_place,
};
pub(crate) use relocation::{Relocation, Splice};
pub(crate) use root::{Features, RootRecord};
pub(crate) use xattr::{
    XATTR_BYTES_MAX, emit_xattrs, parse_xattrs, set_bytes, xattr_grain, xattr_grains, xattr_head,
    xattr_owner, xattr_rest,
};

use ftl::{GRAIN_BYTES, Lba};

use crate::buddy::Order;

/// Bytes of a grain.
pub(crate) const GRAIN: u64 = GRAIN_BYTES as u64;
/// Where the root record lies.
pub(crate) const ROOT_LBA: Lba = Lba(0);
/// Metadata (root record and inode table) live below this address; the buddy allocator never hands it out.
pub(crate) const METADATA_ORDER: Order = Order(32);
/// Where its second copy lies; neither is ever changed.
pub(crate) const ROOT_COPY_LBA: Lba = Lba(1);
/// The table of projects with limits: 2^16 of 64 bytes.
pub(crate) const PROJECT_RANGE: Range = Range {
    start: Lba(1 << 20),
    order: Order(10),
};
/// The hot records of the inode table: 2^32 of 32 bytes.
pub(crate) const HOT_RANGE: Range = Range {
    start: Lba(1 << 26),
    order: Order(25),
};
/// The cold records of the inode table: 2^32 of 128 bytes.
pub(crate) const COLD_RANGE: Range = Range {
    start: Lba(1 << 28),
    order: Order(27),
};
/// Where the root directory lies, always: its record can be made up when it is damaged.
pub(crate) const ROOT_DIR_RANGE: Range = Range {
    start: Lba(1 << 32),
    order: Order(20),
};
/// Where extended attributes lie: the last 2^39 grains of the space. The buddy allocator hands out low ranges first, so
/// it never came this far on volumes that were made before there were attributes.
pub(crate) const XATTR_SPACE: Range = Range {
    start: Lba((1 << 52) - (1 << 39)),
    order: Order(39),
};
/// First grains of the attributes, one for each inode number.
pub(crate) const XATTR_HEADS: Range = Range {
    start: XATTR_SPACE.start,
    order: Order(32),
};
/// What does not fit there: 64 grains for each inode number.
pub(crate) const XATTR_RESTS: Range = Range {
    start: Lba((1 << 52) - (1 << 38)),
    order: Order(38),
};
/// Most inodes a file system can have.
pub(crate) const INODES_MAX: u64 = 1 << 32;
/// Longest name, in bytes.
pub(crate) const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub(crate) const TARGET_MAX: usize = 4095;

const _: () = assert!(HOT_RANGE.start.0.is_multiple_of(1 << 25));
const _: () = assert!(COLD_RANGE.start.0.is_multiple_of(1 << 27));
const _: () = assert!(HOT_RANGE.start.0 + (1 << 25) <= COLD_RANGE.start.0);
const _: () = assert!(COLD_RANGE.start.0 + (1 << 27) <= ROOT_DIR_RANGE.start.0);
const _: () = assert!(ROOT_DIR_RANGE.start.0 == METADATA_ORDER.grains());
const _: () = assert!(XATTR_SPACE.start.0 + (1 << 39) == 1 << 52);
const _: () = assert!(XATTR_HEADS.start.0 + INODES_MAX <= XATTR_RESTS.start.0);
const _: () = assert!(INODES_MAX * HOT_BYTES as u64 == (1 << 25) * 4096);
const _: () = assert!(INODES_MAX * COLD_BYTES as u64 == (1 << 27) * 4096);
