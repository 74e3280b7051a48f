//! What the volume tells of itself: its sizes, counters, devices and faults.

use super::{DeviceUse, Ftl, VolumeInfo};
use crate::device::{MediaError, Member};
use crate::fault::MediaFault;
use crate::segment::StreamUse;
use crate::shared::Shared;
use crate::stats::Stats;

impl Ftl {
    /// What the volume is, with the sizes it has now.
    pub fn info(&self) -> VolumeInfo {
        VolumeInfo {
            geometry: self.core(Shared::BACKGROUND, |core, _| core.geometry()),
            ..self.info
        }
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        let mut stats = self.shared.counters.snapshot();
        self.core(Shared::BACKGROUND, |core, _| {
            stats.segments_free = core.free_segments() as u64;
            stats.tombstones = core.tombstones() as u64;
            stats.dirty_pages = core.dirty_pages() as u64;
        });
        stats
    }

    /// What each stream of the placement policy holds.
    pub fn streams(&self) -> Vec<StreamUse> {
        self.core(Shared::BACKGROUND, |core, _| core.segments().by_stream())
    }

    /// How often each segment was opened since the volume was, hence its flash erased.
    pub fn erases(&self) -> Vec<u32> {
        self.core(Shared::BACKGROUND, |core, _| {
            core.segments().iter().map(|s| s.opened).collect()
        })
    }

    /// The devices of the volume, if they are several, and what is on each.
    pub fn devices(&self) -> Vec<DeviceUse> {
        let Some(members) = &self.shared.members else {
            return Vec::new();
        };
        self.core(Shared::BACKGROUND, |core, _| {
            let places = core.geometry().places;
            let list = members.list().iter().enumerate();
            let device = |(index, member): (usize, &Member)| DeviceUse {
                name: member.name().to_owned(),
                uuid: member.uuid(),
                state: member.state(),
                segments: places.segments(index).len(),
                free: core.segments().free_on(index),
                opened: core.segments().opened_on(index),
            };
            list.map(device).collect()
        })
    }

    /// The reads from the media that have failed since the last call, the latest 256 at most. All are counted in
    /// [`Stats`].
    pub fn take_media_faults(&self) -> Vec<MediaFault> {
        self.core(Shared::BACKGROUND, |core, _| core.media_faults.take())
    }

    /// What the volume has failed with, if it has: a write or a flush that no other device stands in for. It changes nothing any
    /// more, and is read as before, until it is opened again.
    pub fn failure(&self) -> Option<MediaError> {
        self.core(Shared::BACKGROUND, |core, _| core.failure())
    }

    /// Notes, or takes back, that something is wrong with what the volume holds: see
    /// [`Superblock`](crate::format::Superblock). On the media from the shutdown on.
    pub fn set_suspect(&self, suspect: bool) {
        self.core(Shared::BACKGROUND, |core, _| {
            core.set_suspect(suspect);
        });
    }

    /// Whether something is wrong with what the volume holds: as [noted](Self::set_suspect), or because headers of the log are
    /// lost, so that some of it may be as it was before.
    pub fn is_suspect(&self) -> bool {
        self.core(Shared::BACKGROUND, |core, _| core.is_suspect())
    }
}
