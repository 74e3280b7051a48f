//! Received bytes: handed on in place where possible, kept where not.
//!
//! The consumer looks at the bytes from the start of the stream on and says how many it took, how many it needs to
//! see at once, or that it must wait. Only the bytes of a frame that straddles two deliveries are copied, and those
//! that arrive while the consumer waits.
//!
//! # Invariants
//! - `head <= bytes.len()`, and `head == bytes.len()` only when both are 0.
//! - While not parked, fewer than `need` bytes are kept.

/// What the consumer did with the bytes it was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Took this many; go on.
    Took(usize),
    /// Needs to see at least this many; took none.
    Need(usize),
    /// Took this many and waits for `unpark`.
    Park(usize),
    /// Will never want another byte.
    Discard,
}

/// Capacity kept by an idle connection.
const IDLE_CAPACITY: usize = 128 << 10;

/// Received and not yet consumed bytes of one stream.
#[derive(Debug, Default)]
pub(crate) struct StreamBuffer {
    bytes: Vec<u8>,
    head: usize,
    need: usize,
    parked: bool,
}

impl StreamBuffer {
    /// Bytes kept, from the start of the stream on.
    pub(crate) fn kept(&self) -> &[u8] {
        &self.bytes[self.head..]
    }

    /// Does the consumer wait?
    pub(crate) fn is_parked(&self) -> bool {
        self.parked
    }

    /// The consumer took `count` kept bytes out of turn.
    pub(crate) fn consume(&mut self, count: usize) {
        self.head += count;
        assert!(self.head <= self.bytes.len(), "consumed only kept bytes");
        self.need = 0;
        if self.head == self.bytes.len() {
            self.clear();
        }
    }

    /// The consumer may go on: call `feed`, if only with nothing.
    pub(crate) fn unpark(&mut self) {
        self.parked = false;
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(IDLE_CAPACITY);
        self.head = 0;
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.head > 0 && self.bytes.len() + bytes.len() > self.bytes.capacity() {
            self.bytes.drain(..self.head);
            self.head = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Delivers `bytes`; returns how many of them were consumed or kept. Fewer than all only when parked with `max`
    /// bytes kept.
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        max: usize,
        mut step: impl FnMut(&[u8]) -> Step,
    ) -> usize {
        let mut rest = bytes;
        loop {
            if self.parked {
                let room = max.saturating_sub(self.kept().len());
                let count = room.min(rest.len());
                self.keep(&rest[..count]);
                return bytes.len() - rest.len() + count;
            }
            let in_place = self.kept().is_empty();
            if !in_place && self.kept().len() < self.need {
                let count = (self.need - self.kept().len()).min(rest.len());
                let (now, later) = rest.split_at(count);
                self.keep(now);
                rest = later;
                if self.kept().len() < self.need {
                    return bytes.len();
                }
            }
            if in_place && rest.is_empty() {
                return bytes.len();
            }
            let shown = if in_place { rest } else { self.kept() };
            let shown_len = shown.len();
            let (took, park) = match step(shown) {
                Step::Took(count) => (count, false),
                Step::Park(count) => (count, true),
                Step::Need(count) => {
                    assert!(count > shown_len, "consumer needs more than it was shown");
                    self.need = count;
                    if in_place {
                        self.keep(rest);
                        return bytes.len();
                    }
                    continue;
                }
                Step::Discard => {
                    self.clear();
                    return bytes.len();
                }
            };
            self.parked = park;
            if in_place {
                rest = &rest[took..];
            } else {
                self.consume(took);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A toy protocol: a length byte and that many bytes.
    fn toy<'a>(seen: &'a mut Vec<Vec<u8>>) -> impl FnMut(&[u8]) -> Step + 'a {
        |bytes| {
            let need = 1 + usize::from(bytes[0]);
            match bytes.get(1..need) {
                Some(body) => {
                    seen.push(body.to_vec());
                    Step::Took(need)
                }
                None => Step::Need(need),
            }
        }
    }

    #[test]
    fn any_split_gives_the_same_frames() {
        let stream = b"\x03abc\x00\x05defgh\x01i";
        let expected: Vec<Vec<u8>> =
            vec![b"abc".to_vec(), vec![], b"defgh".to_vec(), b"i".to_vec()];
        for a in 0..=stream.len() {
            for b in a..=stream.len() {
                let mut seen = Vec::new();
                let mut buffer = StreamBuffer::default();
                for part in [&stream[..a], &stream[a..b], &stream[b..]] {
                    assert_eq!(buffer.feed(part, 0, toy(&mut seen)), part.len());
                }
                assert_eq!(seen, expected);
                assert!(buffer.kept().is_empty());
            }
        }
    }

    /// While parked, bytes are kept up to the bound, and taken up again in order.
    #[test]
    fn parking_bounds_what_is_kept() {
        let mut buffer = StreamBuffer::default();
        assert_eq!(buffer.feed(b"\x01a\x01b\x01c", 3, |_| Step::Park(2)), 5);
        assert_eq!(buffer.kept(), b"\x01b\x01");
        assert_eq!(buffer.feed(b"c", 3, |_| Step::Discard), 0);
        buffer.unpark();
        let mut seen = Vec::new();
        assert_eq!(buffer.feed(b"c", 3, toy(&mut seen)), 1);
        assert_eq!(seen, [b"b", b"c"]);
    }
}
