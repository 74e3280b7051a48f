//! Pages that may be evicted, in the order in which they became clean.

use crate::map::FrameId;
use std::collections::VecDeque;

/// A queue of frames, each in it once at most.
///
/// # Invariants
/// Every resident page that is clean, and no copy of which is on its way to the media, is in it. Pages that have become
/// dirty since may be, too: who meets one takes it out, and it comes back once it has been written.
#[derive(Debug)]
pub(crate) struct Candidates {
    queue: VecDeque<FrameId>,
    queued: Vec<bool>,
}

impl Candidates {
    /// For a pool of `frames`.
    pub(crate) fn new(frames: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(frames),
            queued: vec![false; frames],
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether a frame is in it. For tests.
    pub(crate) fn holds(&self, frame: FrameId) -> bool {
        self.queued[frame.0 as usize]
    }

    /// A page has become clean, or deserves another round.
    pub(crate) fn push(&mut self, frame: FrameId) {
        if !std::mem::replace(&mut self.queued[frame.0 as usize], true) {
            self.queue.push_back(frame);
        }
    }

    /// Takes the one that has been in it longest.
    pub(crate) fn pop(&mut self) -> Option<FrameId> {
        let frame = self.queue.pop_front()?;
        self.queued[frame.0 as usize] = false;
        Some(frame)
    }
}
