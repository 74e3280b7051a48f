//! `Ftl`: the engine's public face. All methods may be called from any thread.

mod commits;
mod driving;
mod pages;
mod report;
mod sharing;
mod snapshots;
mod space;

use crate::addr::{Lba, LbaRange};
use crate::check::Checked;
use crate::core::{Core, Cx};
use crate::device::MemberState;
use crate::error::GetError;
use crate::format::Superblock;
use crate::geometry::Geometry;
use crate::ids::{GrainState, Port, Token};
use crate::map::{Location, State};
use crate::page::PageRef;
#[cfg(doc)]
use crate::port::Event;
use crate::port::PortQueue;
use crate::shared::Shared;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The answer to [`Ftl::get`].
#[derive(Debug)]
pub enum Get {
    /// Here it is.
    Ready(PageRef),
    /// It comes as [`Event::Page`] on the port that asked.
    Pending,
    /// It can not be had.
    Failed(GetError),
}

impl From<Result<PageRef, GetError>> for Get {
    fn from(answer: Result<PageRef, GetError>) -> Self {
        answer.map_or_else(Self::Failed, Self::Ready)
    }
}

/// What a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Identity.
    pub uuid: [u8; 16],
    /// Sizes.
    pub geometry: Geometry,
    /// Present session.
    pub session: u64,
    /// Bytes of the layer above, from the format.
    pub owner: [u8; 16],
}

impl VolumeInfo {
    pub(crate) fn of(superblock: &Superblock) -> Self {
        Self {
            uuid: superblock.uuid,
            geometry: superblock.geometry,
            session: superblock.session,
            owner: superblock.owner,
        }
    }
}

/// A device of an array, and what is on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUse {
    /// Its path.
    pub name: String,
    /// Its identity.
    pub uuid: [u8; 16],
    /// Whether it is in use.
    pub state: MemberState,
    /// Its segments.
    pub segments: usize,
    /// Those that are free.
    pub free: usize,
    /// How often one of them was opened since the volume was, hence erased.
    pub opened: u64,
}

/// A volume that is open.
///
/// # How to drive it
///
/// Each port has one driver. It takes [`Ftl::poll_action`] until there is nothing, carries the actions out, reports
/// each with [`Ftl::handle_done`], and takes [`Ftl::poll_event`] until there is nothing, in this order; it calls
/// [`Ftl::handle_timeout`] when [`Ftl::poll_timeout`] is due. Any call on the volume may give any port something to
/// do; the port's waker is called when that happens outside of calls of its own driver.
///
/// The memory of an action belongs to the engine: keep the volume until every action has been reported done, or will
/// certainly not be carried out any more.
///
/// Never wait for an event of one port without driving the ports that may hold the actions it depends on. Whoever
/// holds pages while waiting for more must leave enough of the pool to the others.
pub struct Ftl {
    shared: Arc<Shared>,
    info: VolumeInfo,
}

impl fmt::Debug for Ftl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ftl").field("info", &self.info).finish()
    }
}

impl Drop for Ftl {
    fn drop(&mut self) {
        // Pages in undelivered events hold the shared part alive, which holds the events.
        for port in &self.shared.ports {
            port.clear_events();
        }
    }
}

impl Ftl {
    pub(crate) fn assemble(shared: Arc<Shared>, info: VolumeInfo) -> Arc<Self> {
        Arc::new(Self { shared, info })
    }

    fn core<R>(&self, port: Port, f: impl FnOnce(&mut Core, Cx<'_>) -> R) -> R {
        self.shared.with_core(port, true, f)
    }

    /// The same for whoever is no driver: that of the port is told of what there is to do.
    fn aside<R>(&self, f: impl FnOnce(&mut Core, Cx<'_>) -> R) -> R {
        self.shared.with_core(Shared::BACKGROUND, false, f)
    }

    fn port(&self, port: Port) -> &PortQueue {
        &self.shared.ports[usize::from(port.0)]
    }

    /// Brings the map of a range into memory; [`Event::Durable`] when it is there. After opening a large volume the
    /// map is read as it is needed, and in the background.
    pub fn load(&self, port: Port, range: LbaRange, token: Token) {
        self.core(port, |core, cx| core.load(cx, all_of(range), token));
    }

    /// Whether all of the map is in memory.
    pub fn is_map_loaded(&self) -> bool {
        !self.shared.map_cold.load(Ordering::SeqCst)
    }

    /// What a grain holds. The map of it must be in memory, see [`Ftl::load`]; else it seems unmapped.
    pub fn state(&self, lba: Lba) -> GrainState {
        match self.shared.map.state(lba) {
            State::Away(Location::Nowhere) => GrainState::Unmapped,
            State::Away(Location::Zero(_)) => GrainState::Zero,
            State::Away(Location::Media(_)) | State::Resident(_) => GrainState::Data,
            State::InFlight(_) => {
                let (range, core) = (LbaRange::new(lba, 1), Shared::BACKGROUND);
                let mapped = self.core(core, |core, cx| core.next_mapped(cx, range));
                mapped.map_or(GrainState::Unmapped, |_| GrainState::Data)
            }
        }
    }

    /// First mapped grain of a range, of what is in memory (see [`Ftl::load`]).
    pub fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        self.core(Shared::BACKGROUND, |core, cx| core.next_mapped(cx, range))
    }

    /// Number of mapped grains in a range, of what is in memory (see [`Ftl::load`]).
    pub fn mapped_count(&self, range: LbaRange) -> u64 {
        self.core(Shared::BACKGROUND, |core, cx| core.mapped_count(cx, range))
    }

    /// Writes everything out and marks the volume clean; then [`Event::Durable`]. No change is accepted from now on;
    /// pages held for writing should have been put: what is put later may not go out any more, and a sync of it says so.
    pub fn shutdown(&self, port: Port, token: Token) {
        self.core(port, |core, cx| core.shutdown(cx, token));
    }

    /// A checksum of the map on the media. For tests; all of the map must be in memory, see [`Ftl::load`].
    #[doc(hidden)]
    pub fn map_digest(&self) -> u32 {
        self.core(Shared::BACKGROUND, |core, cx| core.map_digest(cx))
    }

    /// What the media hold of each grain that is mapped: where, and with which checksum. All of the map must be in memory,
    /// see [`Ftl::load`]; what has not been written out yet is not in the answer.
    pub fn listing(&self) -> BTreeMap<Lba, Checked> {
        self.core(Shared::BACKGROUND, |core, cx| core.listing(cx))
    }

    /// Counts everything again and compares (I5). For tests.
    ///
    /// # Panics
    /// If a count is wrong.
    #[doc(hidden)]
    pub fn self_check(&self) {
        self.core(Shared::BACKGROUND, |core, cx| core.audit(cx));
    }
}

/// Whoever means every byte means what lies beyond as well.
fn all_of(range: LbaRange) -> LbaRange {
    match range == LbaRange::ALL {
        true => LbaRange::SPACE,
        false => range,
    }
}
