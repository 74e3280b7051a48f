//! Changes that become durable: syncs and batches.

use super::{Ftl, all_of};
use crate::addr::{Lba, LbaRange};
use crate::batch::AtomicBatch;
use crate::core::PendingCommit;
use crate::error::CommitError;
use crate::ids::{Port, Token};
#[cfg(doc)]
use crate::port::Event;

impl Ftl {
    /// Everything that was put in `range` before becomes durable; then [`Event::Durable`].
    pub fn sync(&self, port: Port, range: LbaRange, token: Token) {
        self.core(port, |core, cx| core.sync(cx, all_of(range), token));
    }

    /// Carries out a batch: visible as a whole to everybody (at once, unless pages must be read or room be made
    /// first), on the media all or nothing. [`Event::Durable`] when durable, or with the reason why nothing of it
    /// took effect. Batches take effect in the order of submission.
    ///
    /// # Errors
    /// The caller's mistakes, and [`CommitError::ManyAlong`]. Nothing took effect.
    pub fn commit(
        &self,
        port: Port,
        mut batch: AtomicBatch,
        token: Token,
    ) -> Result<(), CommitError> {
        let grains_max = self.batch_grains_max();
        if let Some(range) = batch.along {
            return self.core(port, |core, cx| {
                if !core.take_along(cx, range, &mut batch, grains_max) {
                    return Err(CommitError::ManyAlong);
                }
                core.commit(cx, PendingCommit::new(port, token, batch, grains_max)?);
                Ok(())
            });
        }
        let commit = PendingCommit::new(port, token, batch, grains_max)?;
        self.core(port, |core, cx| core.commit(cx, commit));
        Ok(())
    }

    /// As [`commit`](Self::commit), but [`Event::Durable`] comes when the batch has taken effect, and is no promise: the
    /// batch will be durable together with the next sync of any range, or two times `dirty_age_ns` later. What a crash
    /// before leaves is a prefix of the batches: those that took effect earlier are there if it is.
    pub fn commit_relaxed(
        &self,
        port: Port,
        batch: AtomicBatch,
        token: Token,
    ) -> Result<(), CommitError> {
        let grains_max = self.batch_grains_max();
        let commit = PendingCommit::new(port, token, batch, grains_max)?.relaxed();
        self.core(port, |core, cx| core.commit(cx, commit));
        Ok(())
    }

    /// Forgets a range (at most 2^32 - 1 grains): it reads as zeros at once, unless a batch submitted before waits for
    /// its pages (then after it, and a write put in between is forgotten too); [`Event::Durable`] when durable.
    /// Who holds a page of it keeps the old view until the put. Needs no space and never fails for want of it.
    pub fn trim(&self, port: Port, range: LbaRange, token: Token) -> Result<(), CommitError> {
        let mut batch = AtomicBatch::new();
        batch.trim(range);
        self.commit(port, batch, token)
    }

    /// Moves the `count` (at most [`AtomicBatch::MOVED_MAX`]) grains from `from` to `to` without writing their data;
    /// what `to` held is gone. [`Event::Durable`] when durable. It takes effect as soon as nobody holds a page of the
    /// source, and batches submitted later wait for it. What was put and not synced moves along, and is as durable as
    /// before.
    pub fn remap(
        &self,
        port: Port,
        from: Lba,
        to: Lba,
        count: u64,
        token: Token,
    ) -> Result<(), CommitError> {
        let mut batch = AtomicBatch::new();
        batch.remap(from, to, count);
        self.commit(port, batch, token)
    }

    /// Clones the `count` (at most [`AtomicBatch::MOVED_MAX`]) grains from `from` to `to` without writing their data:
    /// both ranges have them until one of the two is written to. What `to` held is gone. [`Event::Durable`] when the
    /// new names are durable. It takes effect once everything put in the source has been written out and nobody holds
    /// a page of it (a few pages that somebody writes to all the time are copied instead); batches submitted later
    /// wait for it. Every grain counts against the capacity under each of its names.
    pub fn clone_range(
        &self,
        port: Port,
        from: Lba,
        to: Lba,
        count: u64,
        token: Token,
    ) -> Result<(), CommitError> {
        let mut batch = AtomicBatch::new();
        batch.clone_range(from, to, count);
        self.commit(port, batch, token)
    }

    /// Most grains the patches of one batch may touch on this volume.
    pub fn batch_grains_max(&self) -> usize {
        AtomicBatch::GRAINS_MAX
            .min(self.shared.write_out_data_max)
            .min(self.shared.pool.frames() / 4)
    }
}
