//! ContigFS: files contiguous in a 64-bit LBA space.
//!
//! Every file is one run of LBAs, taken from a space so large that each file gets far more than it needs; the store
//! below maps only what is written. So the place of byte `n` of a file is an addition, and registering a file for
//! remote access takes no look at its size. There is no journal: the store commits a batch of changes all or nothing,
//! and each metadata operation is one batch, durable when the call returns.
//!
//! # Invariants (numbers as in the project's reliability notes)
//! - I9. Metadata operations are atomic and durable when they return; a file never shows bytes of another file or of
//!   its own past.
//! - Running out of space, or into the limit of a project (`docs/quotas.md`), changes nothing, and deleting never needs
//!   space.
//!
//! # Module map
//! - [`store`](BlockStore): what is needed from below; [`MemStore`] is one in memory, for tests
//! - `format`: the layout on media; `docs/layout.md` has the diagrams and the crash argument
//! - `buddy`, `table`, `dir`, `room`: free ranges, free inode numbers, the index of a directory and its free places; all
//!   in memory
//! - `xattr`, `acl`: extended attributes, and what those with access control lists mean for the mode
//! - `fs`: the file system, [`Fs`]; its module has the rules of locking
//! - `snapshot`: the volume as it was, as a store, so that a snapshot is an [`Fs`] as well (`docs/snapshots.md`)
//! - [`check()`]: a separate reader that judges a volume; [`repair()`] puts in order what it finds; [`check_volume()`] and
//!   [`repair_volume()`] do so with the log as well
//! - [`fuse`]: the thin adapter that mounts an [`Fs`]

mod acl;
mod buddy;
mod check;
mod dir;
mod error;
mod format;
mod fs;
pub mod fuse;
#[doc(hidden)]
pub mod fuzz;
mod inode;
mod lost_root;
mod mem_store;
mod owner;
pub mod planted;
mod repair;
mod room;
mod snapshot;
mod span;
mod store;
mod strays;
mod table;
mod time;
mod volume_check;
mod volume_store;
mod xattr;

pub use check::{CheckReport, Problem, Progress, check, check_with_data};
pub use error::{Corruption, FsError};
pub use fs::{
    AtimePolicy, Clock, CopyRange, DirEntry, Extent, ExtentObserver, FallocMode, FormatOptions, Fs,
    FsOptions, MetadataSync, NewLimits, NewNode, Quota, RenameMode, SeekTo, Settled, StatFs,
    SyncScope, UnknownMetadataSync, WriteOptions, open_snapshot,
};
pub use ftl::snapshot::Snapshot;
pub use inode::{Attr, FileKind, InodeNo, Limits, ProjectId, SetAttr, SetTime};
pub use mem_store::MemStore;
pub use owner::{Owner, owners};
pub use repair::{Care, RepairReport, repair};
pub use snapshot::{SNAPSHOT_NUMBER_SHIFT, SNAPSHOTS, SnapshotView, Sweeper};
pub use span::Span;
pub use store::{
    BlockStore, ByteAddr, GrowError, Grown, PageDone, ShareError, StoreError, SyncDone, share_on,
};
pub use time::Timestamp;
pub use volume_check::{
    Stage, VolumeCheckError, VolumeRepair, VolumeReport, check_volume, lost_headers, repair_volume,
};
pub use xattr::XattrMode;
