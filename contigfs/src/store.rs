//! What the file system stands on: a 64-bit byte space of grains with atomic batches.
//!
//! The file system does no I/O of its own. Whoever implements [`BlockStore`] decides where grains live and how a
//! caller waits; the file system only relies on the promises written at each method.

use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::span::Span;
use ftl::{AccountId, AccountUse, AtomicBatch, Ftl, GRAIN_BYTES, Lba, LbaRange, Space};

/// Address of a byte in the logical space: grain address times the grain size, plus the offset in the grain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteAddr(pub u64);

impl ByteAddr {
    /// Address of byte `offset` counted from the first byte of `lba`; `offset` may exceed a grain.
    pub const fn new(lba: Lba, offset: u64) -> Self {
        Self(lba.0 * GRAIN_BYTES as u64 + offset)
    }

    /// The grain that holds the byte.
    pub const fn lba(self) -> Lba {
        Lba(self.0 / GRAIN_BYTES as u64)
    }

    /// Position of the byte in its grain.
    pub const fn in_grain(self) -> usize {
        (self.0 % GRAIN_BYTES as u64) as usize
    }
}

impl fmt::Debug for ByteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.lba(), self.in_grain())
    }
}

/// Why a store could not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The operation would map more grains than the volume has; nothing was changed by a batch, and a plain write
    /// changed at most grains before the one that did not fit.
    #[error("no space left on the volume")]
    NoSpace,
    /// As `NoSpace`, of an account with a limit.
    #[error("limit of an account reached")]
    Quota,
    /// This grain can not be read back as it was written.
    #[error("{lba} is damaged on the media")]
    Damaged {
        /// The grain.
        lba: Lba,
    },
    /// The device gives an error instead of this grain. What it holds may be whole: the next try may read it, or a copy of the
    /// device.
    #[error("{lba} can not be read: error of the device")]
    Unreadable {
        /// The grain.
        lba: Lba,
    },
    /// The volume failed and refuses further writes (or reads, if the device is gone).
    #[error("the volume has failed")]
    Failed,
    /// The batch exceeds [`AtomicBatch::GRAINS_MAX`] or [`AtomicBatch::RANGES_MAX`].
    #[error("the batch is larger than a batch may be")]
    BatchTooLarge,
    /// What is to go along with a batch can not: sync it first, then commit the batch without it.
    #[error("too much goes along with the batch")]
    ManyAlong,
}

/// What is to be done when a sync is over.
pub type SyncDone = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// What is to be done when a page has come: it is looked at, or there is none.
pub type PageDone = Box<dyn FnOnce(Result<Span<'_>, StoreError>) + Send>;

/// Why grains can not be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// The store has no memory to share.
    #[error("this store shares no memory")]
    NotSupported,
    /// The translation layer refuses.
    #[error(transparent)]
    Refused(#[from] ftl::ShareError),
    /// The grains can not be brought in.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Somebody holds pages of them all the time.
    #[error("somebody uses the file so much that its pages can not change their place")]
    Held,
}

/// Times that pages are asked to change their place, and the pause between.
const GATHER_TRIES: u32 = 200;
const GATHER_PAUSE: Duration = Duration::from_millis(5);

/// What stores on the translation layer have in common to carry out [`BlockStore::share`].
pub fn share_on(
    store: &dyn BlockStore,
    ftl: &Ftl,
    (memory, at): (&File, u64),
    range: LbaRange,
) -> Result<(), ShareError> {
    ftl.share(memory, at, range)?;
    let mut tries = 0;
    let mut gather = || {
        while !ftl.gather(range) {
            tries += 1;
            if tries > GATHER_TRIES {
                return Err(ShareError::Held);
            }
            store.sync(range)?;
            thread::sleep(GATHER_PAUSE);
        }
        Ok(())
    };
    gather().inspect_err(|_| {
        ftl.unshare(range);
        ftl.let_leave(range);
    })
}

/// What a volume that has grown had before, and what it has now, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    /// Of the device, before.
    pub device_before: u64,
    /// Of the device.
    pub device: u64,
    /// For files, before.
    pub capacity_before: u64,
    /// For files.
    pub capacity: u64,
}

/// Why a volume in use can not grow; it is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrowError {
    /// The store has no size to be changed.
    #[error("this store can not be made larger")]
    NotSupported,
    /// What is asked for is less than what it has.
    #[error("the volume has {has} bytes: it can only be made smaller when it is not in use")]
    Smaller {
        /// Bytes of the device that the volume has.
        has: u64,
    },
    /// There is no more of the device.
    #[error("the device has only {bytes} bytes")]
    DeviceSmaller {
        /// Its size.
        bytes: u64,
    },
    /// The system does not let the image file become larger: this `errno`.
    #[error("the image can not be made larger: {}", std::io::Error::from_raw_os_error(*.0))]
    Device(i32),
    /// No volume has this size.
    #[error(transparent)]
    Refused(#[from] ftl::ResizeError),
    /// The volume has failed, or is being shut down.
    #[error("the volume has failed, or is being closed")]
    Failed,
}

/// A sparse space of grains, shared by all threads of the file system.
///
/// Grains that are not mapped read as zeros. Writes to disjoint bytes may run at the same time, also inside one grain.
pub trait BlockStore: Send + Sync {
    /// Reads `buf.len()` bytes; the range may span grains.
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError>;

    /// As [`read`](Self::read), where the bytes lie: `look` gets all `len` of them, in at most as many pieces as there are
    /// grains. False: it was not called, because the store had rather be asked to read so much.
    fn lend(
        &self,
        _at: ByteAddr,
        _len: usize,
        _look: &mut dyn FnMut(&[Span<'_>]),
    ) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Whether so many wait for the store that whoever is to read had better ask [`read_then`](Self::read_then) first. Quick to say.
    fn reads_later(&self) -> bool {
        false
    }

    /// As [`read`](Self::read) of bytes of one grain, without waiting: `done` gets them, where they lie, from whichever thread
    /// hears of them first, perhaps before this returns. It must not wait for anything. False: nothing is done, because the store had rather
    /// be asked to read.
    fn read_then(&self, _at: ByteAddr, _len: usize, _done: &mut dyn FnMut() -> PageDone) -> bool {
        false
    }

    /// Writes bytes, visible to every reader on return and durable after the next [`sync`](Self::sync) of the range.
    fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError>;

    /// Applies a batch, atomic and durable on return. Never fails for lack of space unless it maps new grains. Every write of
    /// the range that goes [`along`](AtomicBatch::along) and that has returned is durable on return, too, and no later than the
    /// batch.
    ///
    /// # Errors
    /// Nothing was changed; [`StoreError::ManyAlong`] is no failure.
    fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError>;

    /// Applies a batch, atomic and visible on return. It is durable after the next [`sync`](Self::sync) of any range and
    /// the next [`commit`](Self::commit), and a few seconds later in any case; a crash before leaves a prefix of the batches,
    /// and no write that came after one that is lost.
    fn commit_relaxed(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        self.commit(batch)
    }

    /// Makes every write of the range that has returned durable.
    fn sync(&self, range: LbaRange) -> Result<(), StoreError>;

    /// As [`sync`](Self::sync), without waiting where the store can do that: `done` is told, once, by whichever thread hears
    /// of it first, perhaps before this returns. It must not wait for the store.
    fn sync_then(&self, range: LbaRange, done: SyncDone) {
        done(self.sync(range));
    }

    /// First mapped grain of the range: data, or reserved as zeros.
    fn next_mapped(&self, range: LbaRange) -> Option<Lba>;

    /// Capacity and use.
    fn space(&self) -> Space;

    /// Tells the device what of the volume is free and has not been told yet, as `fstrim` asks. Returns bytes, when it is
    /// done.
    fn trim(&self) -> u64 {
        0
    }

    /// Makes the volume larger while it is in use: `bytes` of its device, or all that there are.
    ///
    /// # Errors
    /// [`GrowError`]
    fn grow(&self, _bytes: Option<u64>) -> Result<Grown, GrowError> {
        Err(GrowError::NotSupported)
    }

    /// Grains of `range` get the pages of a memory file, from page `at` on, as their memory: whoever maps the file sees what
    /// is written at once, and what it stores is read at once, as soon as they have been
    /// [brought there](Self::bring_back). The file must be long enough, and nobody may have mapped these pages of it. The
    /// ranges of one file follow one another.
    ///
    /// # Errors
    /// [`ShareError`], and nothing is shared that was not before.
    fn share(&self, _memory: &File, _at: u64, _range: LbaRange) -> Result<(), ShareError> {
        Err(ShareError::NotSupported)
    }

    /// Brings shared grains that are not in their memory into it: at first, and when a batch has changed what they are. What
    /// of them is not mapped becomes so, and takes space.
    fn bring_back(&self, _range: LbaRange) -> Result<(), StoreError> {
        Ok(())
    }

    /// What mappings of shared grains have stored before is written when this returns, as if by [`write`](Self::write).
    /// Answers in how many grains something was found.
    fn find_stores(&self, _range: LbaRange) -> u64 {
        0
    }

    /// The grains of `range`, which is what is shared of a file or its end, are not shared any more. The memory file may get
    /// shorter when [`let_leave`](Self::let_leave) has said so.
    fn unshare(&self, _range: LbaRange) {}

    /// What is not shared any more leaves its memory files, as far as it is not in use. True: nothing is left there of
    /// `range`.
    fn let_leave(&self, _range: LbaRange) -> bool {
        true
    }

    /// Ranges belong to an account, or to none, from now on, with everything that is and gets mapped in them; as
    /// [`ftl::Ftl::assign`]. A store that counts nothing ignores it.
    fn assign(&self, _ranges: &[LbaRange], _account: Option<AccountId>) {}

    /// As [`assign`](Self::assign), unless the account would grow beyond its limit; whether it was done.
    fn assign_if_room(&self, ranges: &[LbaRange], account: AccountId) -> bool {
        self.assign(ranges, Some(account));
        true
    }

    /// Sets or removes the limit of an account, in grains: what would make it grow beyond is refused with
    /// [`StoreError::Quota`]. A store that counts nothing ignores it.
    fn limit_account(&self, _account: AccountId, _limit: Option<u64>) {}

    /// How full an account is.
    fn account(&self, _account: AccountId) -> AccountUse {
        AccountUse::default()
    }

    /// The store as one on which there can be snapshots; none if it can not have any.
    fn snapshot_host(&self) -> Option<&dyn ftl::snapshot::Host> {
        None
    }

    /// Number of mapped grains in the range. Stores that can count faster than one grain at a time override it.
    fn mapped_count(&self, range: LbaRange) -> u64 {
        let end = range.end();
        let mut from = range.start;
        let mut count = 0;
        while from < end {
            let Some(lba) = self.next_mapped(LbaRange::new(from, end.0 - from.0)) else {
                break;
            };
            count += 1;
            from = lba.offset(1);
        }
        count
    }
}

/// A shared store is a store.
macro_rules! forward {
    ($pointer:ty) => {
        impl<T: BlockStore + ?Sized> BlockStore for $pointer {
            fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
                (**self).read(at, buf)
            }

            fn lend(
                &self,
                at: ByteAddr,
                len: usize,
                look: &mut dyn FnMut(&[Span<'_>]),
            ) -> Result<bool, StoreError> {
                (**self).lend(at, len, look)
            }

            fn reads_later(&self) -> bool {
                (**self).reads_later()
            }

            fn read_then(
                &self,
                at: ByteAddr,
                len: usize,
                done: &mut dyn FnMut() -> PageDone,
            ) -> bool {
                (**self).read_then(at, len, done)
            }

            fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
                (**self).write(at, data)
            }

            fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
                (**self).commit(batch)
            }

            fn commit_relaxed(&self, batch: AtomicBatch) -> Result<(), StoreError> {
                (**self).commit_relaxed(batch)
            }

            fn sync(&self, range: LbaRange) -> Result<(), StoreError> {
                (**self).sync(range)
            }

            fn sync_then(&self, range: LbaRange, done: SyncDone) {
                (**self).sync_then(range, done);
            }

            fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
                (**self).next_mapped(range)
            }

            fn space(&self) -> Space {
                (**self).space()
            }

            fn mapped_count(&self, range: LbaRange) -> u64 {
                (**self).mapped_count(range)
            }

            fn trim(&self) -> u64 {
                (**self).trim()
            }

            fn grow(&self, bytes: Option<u64>) -> Result<Grown, GrowError> {
                (**self).grow(bytes)
            }

            fn share(&self, memory: &File, at: u64, range: LbaRange) -> Result<(), ShareError> {
                (**self).share(memory, at, range)
            }

            fn bring_back(&self, range: LbaRange) -> Result<(), StoreError> {
                (**self).bring_back(range)
            }

            fn find_stores(&self, range: LbaRange) -> u64 {
                (**self).find_stores(range)
            }

            fn unshare(&self, range: LbaRange) {
                (**self).unshare(range);
            }

            fn let_leave(&self, range: LbaRange) -> bool {
                (**self).let_leave(range)
            }

            fn assign(&self, ranges: &[LbaRange], account: Option<AccountId>) {
                (**self).assign(ranges, account);
            }

            fn assign_if_room(&self, ranges: &[LbaRange], account: AccountId) -> bool {
                (**self).assign_if_room(ranges, account)
            }

            fn limit_account(&self, account: AccountId, limit: Option<u64>) {
                (**self).limit_account(account, limit);
            }

            fn account(&self, account: AccountId) -> AccountUse {
                (**self).account(account)
            }

            fn snapshot_host(&self) -> Option<&dyn ftl::snapshot::Host> {
                (**self).snapshot_host()
            }
        }
    };
}

forward!(&T);
forward!(Arc<T>);
