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
    /// Frames with the number of their place. A place whose frame has another one by now, or none, is empty.
    queue: VecDeque<(FrameId, u32)>,
    /// The place of each frame; 0 if it has none.
    places: Vec<u32>,
    /// Frames whose turn has come and that were given another.
    spared: Vec<bool>,
    last: u32,
    len: usize,
}

impl Candidates {
    /// For a pool of `frames`.
    pub(crate) fn new(frames: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(frames),
            places: vec![0; frames],
            spared: vec![false; frames],
            last: 0,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether a frame is in it.
    pub(crate) fn holds(&self, frame: FrameId) -> bool {
        self.places[frame.0 as usize] != 0
    }

    /// Whether a frame is in it and waits for its first turn.
    pub(crate) fn is_due(&self, frame: FrameId) -> bool {
        self.holds(frame) && !self.spared[frame.0 as usize]
    }

    /// Its turn has come, and it deserves another.
    pub(crate) fn spare(&mut self, frame: FrameId) {
        self.push(frame);
        self.spared[frame.0 as usize] = true;
    }

    /// A page has become clean.
    pub(crate) fn push(&mut self, frame: FrameId) {
        if self.holds(frame) {
            return;
        }
        if self.queue.len() >= 2 * self.places.len() {
            let places = &self.places;
            self.queue
                .retain(|&(f, place)| places[f.0 as usize] == place);
        }
        self.last = self.last.checked_add(1).unwrap_or(1);
        self.places[frame.0 as usize] = self.last;
        self.queue.push_back((frame, self.last));
        self.len += 1;
    }

    /// Takes the one that has been in it longest.
    pub(crate) fn pop(&mut self) -> Option<FrameId> {
        loop {
            let (frame, place) = self.queue.pop_front()?;
            if self.places[frame.0 as usize] == place {
                self.remove(frame);
                return Some(frame);
            }
        }
    }

    /// Takes a frame out of its turn.
    pub(crate) fn remove(&mut self, frame: FrameId) {
        let place = std::mem::take(&mut self.places[frame.0 as usize]);
        self.spared[frame.0 as usize] = false;
        self.len -= usize::from(place != 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(candidates: &mut Candidates) -> Vec<u32> {
        std::iter::from_fn(|| candidates.pop().map(|f| f.0)).collect()
    }

    /// First in, first out, each once; who is taken out of its turn and comes again begins behind the others.
    #[test]
    fn in_their_order() {
        let mut candidates = Candidates::new(4);
        for frame in [2, 0, 2, 3] {
            candidates.push(FrameId(frame));
        }
        assert_eq!(candidates.len(), 3);
        candidates.remove(FrameId(2));
        candidates.remove(FrameId(1));
        assert!(!candidates.holds(FrameId(2)) && candidates.holds(FrameId(0)));
        candidates.push(FrameId(2));
        assert_eq!(candidates.len(), 3);
        assert_eq!(all(&mut candidates), [0, 3, 2]);
        assert_eq!(candidates.len(), 0);
    }

    /// Who has been spared is not due before its next turn has come.
    #[test]
    fn spared() {
        let mut candidates = Candidates::new(4);
        candidates.push(FrameId(1));
        assert!(candidates.is_due(FrameId(1)) && !candidates.is_due(FrameId(2)));
        assert_eq!(candidates.pop(), Some(FrameId(1)));
        candidates.spare(FrameId(1));
        assert!(candidates.holds(FrameId(1)) && !candidates.is_due(FrameId(1)));
        candidates.push(FrameId(1));
        assert!(!candidates.is_due(FrameId(1)));
        assert_eq!(candidates.pop(), Some(FrameId(1)));
        candidates.push(FrameId(1));
        assert!(candidates.is_due(FrameId(1)));
    }

    /// Empty places do not pile up.
    #[test]
    fn stays_small() {
        let mut candidates = Candidates::new(4);
        candidates.push(FrameId(3));
        for _ in 0..1000 {
            candidates.push(FrameId(0));
            candidates.remove(FrameId(0));
        }
        assert!(candidates.queue.len() <= 8);
        candidates.push(FrameId(0));
        assert_eq!(all(&mut candidates), [3, 0]);
    }
}
