//! Errors, one small enum per operation that can fail; each says who must act.

use crate::addr::{Lba, SegmentId};
use crate::device::MediaError;

/// Why a page can not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    /// The volume is full and the grain is not mapped yet. Trim something.
    #[error("volume full")]
    NoSpace,
    /// The account of the grain has reached its limit, and the grain is not mapped yet. Trim something of the account.
    #[error("limit of the account reached")]
    Quota,
    /// The bytes on the media are not those written there. This grain is lost, its neighbours are not.
    #[error("{lba} is damaged on the media")]
    Damaged {
        /// The grain.
        lba: Lba,
    },
    /// The device could not read the grain; trying again may help.
    #[error("{lba} can not be read: {error}")]
    Media {
        /// The grain.
        lba: Lba,
        /// What the device said.
        error: MediaError,
    },
    /// An earlier write or flush failed: the volume takes no more changes (reads go on).
    #[error("volume failed: {0}")]
    Failed(MediaError),
    /// The volume is shutting down and takes no more changes.
    #[error("volume is shutting down")]
    Shutdown,
    /// No such LBA.
    #[error("LBA out of range")]
    OutOfRange,
}

/// Why something did not become durable (or, for a batch, was not carried out).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurableError {
    /// The volume is full; nothing of the batch took effect.
    #[error("volume full")]
    NoSpace,
    /// An account would grow beyond its limit; nothing of the batch took effect.
    #[error("limit of an account reached")]
    Quota,
    /// A grain that a batch changes in part is damaged; nothing of the batch took effect.
    #[error("{lba} is damaged on the media")]
    Damaged {
        /// The grain.
        lba: Lba,
    },
    /// A grain that a batch changes in part could not be read; nothing of the batch took effect.
    #[error("{lba} can not be read: {error}")]
    Media {
        /// The grain.
        lba: Lba,
        /// What the device said.
        error: MediaError,
    },
    /// A device of the array has failed before this was durable; what was written there before and is not in memory is
    /// gone. Other changes are durable as usual.
    #[error("{lba} was written to a device that has failed before it was durable")]
    Lost {
        /// A grain of which the last write is lost.
        lba: Lba,
    },
    /// Of a volume that was to become smaller: what lies in a segment that is to go can not be read.
    #[error("what lies in {segment} can not be read, so it can not be relocated")]
    Unreadable {
        /// The segment.
        segment: SegmentId,
    },
    /// A write or flush failed: nothing that was not acknowledged before is known to be durable.
    #[error("volume failed: {0}")]
    Failed(MediaError),
    /// The volume is shutting down.
    #[error("volume is shutting down")]
    Shutdown,
}

/// Why a batch is refused at once; the caller's mistake, nothing took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// More grains or ranges than one batch may hold on this volume.
    #[error("batch too large")]
    TooLarge,
    /// A patch crosses its grain or an address lies outside of the LBA space.
    #[error("address out of range")]
    OutOfRange,
    /// A range that is moved overlaps another part of the batch, or its own target.
    #[error("a remap overlaps another part of the batch")]
    Overlap,
    /// What has been put in the range that is to go along can not go in one write-out with the batch: it is too much, or on its
    /// way already. No mistake: sync the range, then commit the batch without it.
    #[error("too much goes along with the batch")]
    ManyAlong,
}

/// Why a device can not be formatted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Not enough room for the fewest segments a volume needs.
    #[error("device too small: {grains} grains, {needed} needed")]
    TooSmall {
        /// What there is.
        grains: u64,
        /// What it takes.
        needed: u64,
    },
    /// Segment size is no power of two between 16 grains and 512 MiB.
    #[error("segment size must be a power of two from 64 KiB to 512 MiB")]
    SegmentSize,
    /// The wanted capacity does not fit beside the reserves.
    #[error("capacity too large: at most {max} grains fit")]
    Capacity {
        /// The most that fits.
        max: u64,
    },
    /// A volume has at least one device, and not more than so many.
    #[error("{given} devices: a volume has 1 to {most}")]
    Devices {
        /// What was given.
        given: usize,
        /// What is possible.
        most: usize,
    },
    /// The device failed.
    #[error("device failed")]
    Media(#[from] MediaError),
}

/// Why a volume can not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Neither superblock copy is one of ours: not formatted, or not for us.
    #[error("no superblock found: not a flashnet volume, or both copies are damaged")]
    NotFormatted,
    /// Written by a version of the format this program does not know.
    #[error("format version {0} is not supported")]
    Version(u32),
    /// The device is smaller than when it was formatted.
    #[error("device has {actual} grains, the volume needs {expected}")]
    DeviceShrunk {
        /// What the superblock says.
        expected: u64,
        /// What there is.
        actual: u64,
    },
    /// This is one device of an array, and the others are not there.
    #[error("the device is one of {0} of a volume, which has to be assembled of all of them")]
    NotAssembled(usize),
    /// A device of the array has failed while the volume was being opened, or has to be there for this.
    #[error("device {0} of the volume is lost")]
    DeviceLost(String),
    /// Without a device the map is known from checkpoints only, and none is intact.
    #[error(
        "device {0} of the volume is missing, and no checkpoint says what was on it: all devices are needed"
    )]
    NoCheckpoint(String),
    /// The superblock is intact but says something impossible.
    #[error("superblock makes no sense: {0}")]
    Nonsense(&'static str),
    /// The options can not work (pool too small, no port).
    #[error("bad option: {0}")]
    Options(&'static str),
    /// The device failed.
    #[error("device failed")]
    Media(#[from] MediaError),
    /// More than a few bad sectors: nothing has been changed.
    #[error(
        "the device does not read {0} grains that recovery needs: nothing was changed; \
         if it is so for good, fsck -y goes on with what can be read"
    )]
    Unreadable(u64),
    /// No memory for the page pool.
    #[error("no memory for the page pool: {0}")]
    Memory(std::io::Error),
}

/// Why a volume can not get another size; nothing has been changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError {
    /// The sizes of the devices of an array are fixed.
    #[error("a volume on several devices can not be resized")]
    Array,
    /// Not enough room for the fewest segments a volume needs.
    #[error("a volume needs {needed} grains at least")]
    TooSmall {
        /// What it takes.
        needed: u64,
    },
    /// What is on it does not fit.
    #[error("{mapped} grains are in use, {capacity} would fit")]
    Full {
        /// Grains that are mapped.
        mapped: u64,
        /// Grains that could be, in that size.
        capacity: u64,
    },
    /// There is none that is larger or smaller in all respects, or it would be too large.
    #[error("no layout of a volume fits this size")]
    Layout,
    /// It has grown several times, and each time only a part of the new segments has been used.
    #[error("the volume has grown too often for what has been written since: write more first")]
    TooOften,
    /// The size is being changed already.
    #[error("the volume is being resized")]
    Busy,
    /// The volume has failed or is being shut down.
    #[error("the volume takes no changes any more")]
    Closed,
}

/// Why grains can not be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// As much is shared as may be, or the volume was opened without room for any.
    #[error("as much is shared as may be at once")]
    NoRoom,
    /// Pages of what was shared before have not left their memory yet.
    #[error("what was shared before is still in use")]
    Busy,
    /// The memory can not be had: this `errno`.
    #[error("the memory can not be shared: {}", std::io::Error::from_raw_os_error(*.0))]
    Memory(i32),
}
