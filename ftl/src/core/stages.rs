//! Staging buffers, and the write-outs in flight from them.
//!
//! Two kinds, so that neither waits for the other (I17): buffers for what must go out at once, and buffers for
//! write-outs that form slowly, one per stream and a few in flight.

use crate::addr::{Pba, SegmentId};
use crate::format::{HeaderNo, Record};
use crate::map::FrameId;
use crate::page::{PROMPT_STAGES, Slot, forming_stages};
use crate::placement::Heat;
use crate::segment::Life;

/// A grain that a relocation in flight moves.
#[derive(Debug)]
pub(super) struct Move {
    /// What the header of the copy says: the data record and its aliases.
    pub(super) names: Vec<Record>,
    pub(super) from: Pba,
    /// The life of the segment it leaves.
    pub(super) victim: Life,
    pub(super) to: Pba,
    pub(super) heat: Heat,
}

/// A write-out in flight.
#[derive(Debug, Default)]
pub(super) struct WriteOut {
    pub(super) no: HeaderNo,
    pub(super) segment: Option<SegmentId>,
    /// Pages copied, with the life of their frame.
    pub(super) pages: Vec<(FrameId, u32)>,
    /// Grains relocated.
    pub(super) moves: Vec<Move>,
    /// Victims whose records are in it, once for each record.
    pub(super) records_from: Vec<Life>,
    /// Planted bug: data to write after the header, without being waited for.
    pub(super) late_data: Option<(u64, Slot, usize)>,
}

/// What a staging buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StageUse {
    /// A write-out assembled and written at once.
    Prompt,
    /// A write-out that forms.
    Forming,
}

/// The staging buffers.
#[derive(Debug)]
pub(super) struct Stages {
    pub(super) list: Vec<WriteOut>,
    free_prompt: Vec<usize>,
    free_forming: Vec<usize>,
    forming_count: usize,
}

impl Stages {
    pub(super) fn new(streams: usize) -> Self {
        let forming_count = forming_stages(streams);
        let all = PROMPT_STAGES + forming_count;
        Self {
            list: (0..all).map(|_| WriteOut::default()).collect(),
            free_prompt: (0..PROMPT_STAGES).collect(),
            free_forming: (PROMPT_STAGES..all).collect(),
            forming_count,
        }
    }

    fn free(&mut self, purpose: StageUse) -> &mut Vec<usize> {
        match purpose {
            StageUse::Prompt => &mut self.free_prompt,
            StageUse::Forming => &mut self.free_forming,
        }
    }

    pub(super) fn take(&mut self, purpose: StageUse) -> Option<usize> {
        self.free(purpose).pop()
    }

    pub(super) fn has(&mut self, purpose: StageUse) -> bool {
        !self.free(purpose).is_empty()
    }

    pub(super) fn give_back(&mut self, stage: usize) {
        if stage < PROMPT_STAGES {
            self.free_prompt.push(stage);
        } else {
            self.free_forming.push(stage);
        }
    }

    /// Whether nothing is being assembled or written.
    pub(super) fn are_idle(&self) -> bool {
        self.free_prompt.len() == PROMPT_STAGES && self.free_forming.len() == self.forming_count
    }

    /// Whether something is being written.
    pub(super) fn are_writing(&self) -> bool {
        self.list.iter().any(|w| w.segment.is_some())
    }

    /// Whether some page is on its way to the media, and so will soon be clean.
    pub(super) fn carry_pages(&self) -> bool {
        self.list.iter().any(|w| !w.pages.is_empty())
    }
}
