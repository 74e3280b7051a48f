//! The memory of the engine: frames, one page of zeros, staging for write-outs, buffers for relocation.
//!
//! All of it is one range of addresses made at the start. Staging and relocation buffers are separate from the frames, so that
//! what frees frames never waits for frames (I17).

use super::arena::{Arena, Slot};
use super::digest::digest;
use super::gate::Gate;
use crate::addr::GRAIN_BYTES;
use crate::device::IoBuf;
use crate::format::RECORDS_MAX;
use crate::geometry::Geometry;
use crate::map::FrameId;
use std::io;
use std::sync::atomic::AtomicU64;

/// Pages of a checkpoint written at a time.
pub(crate) const SAVE_GRAINS: usize = 64;
/// Pages of the map read at a time.
pub(crate) const LOAD_GRAINS: usize = 32;
/// Staging buffers for write-outs that are assembled at once: so many such device writes may be in flight.
pub(crate) const PROMPT_STAGES: usize = 8;

/// Staging buffers for write-outs that form: one for each stream and one for what is relocated when space is short;
/// four more may be in flight.
pub(crate) const fn forming_stages(streams: usize) -> usize {
    streams + 1 + 4
}

/// The pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) arena: Arena,
    frames: usize,
    /// One for each frame, those in memory of files behind the others.
    gates: Vec<Gate>,
    /// First slot of the frames that lie in memory of files.
    room: usize,
    /// What is known of the content of each of these: see [`Pool::seen`].
    digests: Vec<AtomicU64>,
    zero_digest: u64,
    stages: usize,
    stage_grains: usize,
    scan_grains: usize,
}

impl Pool {
    /// Memory for `frames` pages, and room for `shared` more that files bring themselves.
    pub(crate) fn new(
        frames: usize,
        shared: usize,
        geometry: &Geometry,
        streams: usize,
    ) -> io::Result<Self> {
        let stage_grains = 1 + geometry.write_out_data_max();
        let scan_grains = (1 + RECORDS_MAX).min(geometry.segment_grains as usize);
        let stages = PROMPT_STAGES + forming_stages(streams);
        let private = 2 + stages * stage_grains + scan_grains + SAVE_GRAINS + LOAD_GRAINS;
        Ok(Self {
            arena: Arena::new(frames + private, shared)?,
            frames,
            gates: (0..frames + shared).map(|_| Gate::new()).collect(),
            room: frames + private,
            zero_digest: digest(&[0; GRAIN_BYTES]),
            digests: (0..shared).map(|_| AtomicU64::new(0)).collect(),
            stages,
            stage_grains,
            scan_grains,
        })
    }

    pub(crate) const fn frames(&self) -> usize {
        self.frames
    }

    /// Frames that lie in memory of files: their numbers follow those of the pool.
    pub(crate) fn shared_frames(&self) -> usize {
        self.digests.len()
    }

    /// Whether a frame lies in memory of a file.
    pub(crate) const fn is_shared(&self, frame: FrameId) -> bool {
        frame.0 as usize >= self.frames
    }

    pub(crate) fn frame(&self, frame: FrameId) -> Slot {
        let frame = frame.0 as usize;
        match frame.checked_sub(self.frames) {
            None => Slot(frame as u32),
            Some(shared) => {
                debug_assert!(shared < self.digests.len(), "frame outside of the pool");
                Slot((self.room + shared) as u32)
            }
        }
    }

    /// What who changes a frame that others know, and who copies it for the media, passes.
    pub(crate) fn gate(&self, frame: FrameId) -> &Gate {
        &self.gates[frame.0 as usize]
    }

    /// Digest of what a frame in memory of a file held when that was last read from the media or copied for a write-out:
    /// if it holds something else, somebody has stored to it. Under the core's lock.
    pub(crate) fn seen(&self, frame: FrameId) -> &AtomicU64 {
        &self.digests[frame.0 as usize - self.frames]
    }

    /// Digest of a page of zeros.
    pub(crate) const fn zero_digest(&self) -> u64 {
        self.zero_digest
    }

    /// A page that always reads as zeros.
    pub(crate) fn zero_page(&self) -> Slot {
        Slot(self.frames as u32)
    }

    /// Where a superblock is put together.
    pub(crate) fn superblock(&self) -> Slot {
        Slot(self.frames as u32 + 1)
    }

    /// First slot of staging buffer `index`.
    pub(crate) fn stage(&self, index: usize) -> Slot {
        assert!(index < self.stages, "no such staging buffer");
        Slot((self.frames + 2 + index * self.stage_grains) as u32)
    }

    /// First slot of the buffer that relocation reads into, and its length.
    pub(crate) fn scan(&self) -> (Slot, usize) {
        let first = self.frames + 2 + self.stages * self.stage_grains;
        (Slot(first as u32), self.scan_grains)
    }

    /// First slot of the buffer that pages of a checkpoint are written from.
    pub(crate) fn save(&self) -> Slot {
        let (scan, grains) = self.scan();
        scan.plus(grains)
    }

    /// Slot `index` of those that pages of the map are read into.
    pub(crate) fn load(&self, index: usize) -> Slot {
        debug_assert!(index < LOAD_GRAINS, "no such slot");
        self.save().plus(SAVE_GRAINS + index)
    }

    /// Lends slots for a media operation; the caller has taken them out of every other use.
    pub(crate) fn lend(&self, slot: Slot, count: usize) -> IoBuf {
        self.arena.lend(slot, count)
    }
}
