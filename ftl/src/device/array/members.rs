//! What is known of the devices of an array while they are in use: shared by everybody who carries operations out, and
//! the engine.

use super::super::MediaError;
use crate::geometry::Geometry;
use crate::places::DEVICES_MAX;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Where a device is in its life. It never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// In use.
    Live,
    /// Not there when the volume was assembled, or out of date.
    Missing,
    /// Failed since.
    Failed,
}

/// A device.
pub struct Member {
    name: String,
    uuid: [u8; 16],
    grains: AtomicU64,
    state: AtomicU8,
    /// Writes that have completed, and how many of them a good flush has covered.
    written: AtomicU64,
    flushed: AtomicU64,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("name", &self.name)
            .field("grains", &self.grains())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl Member {
    pub(super) fn new(name: String, uuid: [u8; 16], grains: u64, state: MemberState) -> Self {
        Self {
            name,
            uuid,
            grains: AtomicU64::new(grains),
            state: AtomicU8::new(state as u8),
            // What was written before anybody counted may be in a cache too.
            written: AtomicU64::new(1),
            flushed: AtomicU64::new(0),
        }
    }

    /// Its path, now or (if it is missing) at format.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its identity.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Grains of it that the volume uses.
    pub fn grains(&self) -> u64 {
        self.grains.load(Ordering::Acquire)
    }

    /// A device that is a volume by itself has another size.
    pub(super) fn set_grains(&self, grains: u64) {
        self.grains.store(grains, Ordering::Release);
    }

    /// Where it is in its life.
    pub fn state(&self) -> MemberState {
        match self.state.load(Ordering::Acquire) {
            0 => MemberState::Live,
            1 => MemberState::Missing,
            _ => MemberState::Failed,
        }
    }

    /// Whether it is in use.
    pub fn is_live(&self) -> bool {
        self.state() == MemberState::Live
    }
}

/// The devices of a volume.
#[derive(Debug)]
pub struct Members {
    list: Vec<Member>,
    layout: OnceLock<Geometry>,
}

impl Members {
    pub(super) fn new(list: Vec<Member>) -> Self {
        assert!((1..=DEVICES_MAX).contains(&list.len()), "number of devices");
        Self {
            list,
            layout: OnceLock::new(),
        }
    }

    /// All of them, in order.
    pub fn list(&self) -> &[Member] {
        &self.list
    }

    /// Grains of each.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        self.list.iter().map(Member::grains).collect()
    }

    /// From now on what belongs on several devices is repeated there.
    pub(crate) fn lay_out(&self, geometry: Geometry) {
        let known = self.layout.get_or_init(|| geometry);
        assert_eq!(*known, geometry, "a volume is laid out once");
    }

    pub(super) fn layout(&self) -> Option<&Geometry> {
        self.layout.get()
    }

    /// Those not in use, one bit each.
    pub(crate) fn lost(&self) -> u16 {
        let lost = self.list.iter().enumerate().filter(|(_, m)| !m.is_live());
        lost.fold(0, |mask, (index, _)| mask | 1 << index)
    }

    /// A device has failed: nothing is asked of it any more.
    pub(super) fn fail(&self, device: usize, error: MediaError) {
        let member = &self.list[device];
        let live = MemberState::Live as u8;
        let failed = MemberState::Failed as u8;
        let order = Ordering::SeqCst;
        let first = member.state.compare_exchange(live, failed, order, order);
        if first.is_ok() {
            tracing::error!(device = member.name, %error, "a device of the volume has failed");
        }
    }

    /// A write of a device that is not durable by itself has completed; before anybody hears of it.
    pub(super) fn note_write(&self, device: usize) {
        self.list[device].written.fetch_add(1, Ordering::SeqCst);
    }

    /// What a flush of a device that begins now covers, if it has anything to do.
    pub(super) fn unflushed(&self, device: usize) -> Option<u64> {
        let member = &self.list[device];
        let written = member.written.load(Ordering::SeqCst);
        (written > member.flushed.load(Ordering::SeqCst)).then_some(written)
    }

    /// A flush that covers so much has succeeded.
    pub(super) fn note_flush(&self, device: usize, covers: u64) {
        self.list[device]
            .flushed
            .fetch_max(covers, Ordering::SeqCst);
    }
}
