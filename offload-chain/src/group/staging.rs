//! The lane of a client in the staging memory: a ring of bytes, used and given back in order.
//!
//! # Invariants
//! - `freed <= used <= freed + bytes`; a piece never wraps around the end of the lane.

/// A lane, alike on all members.
#[derive(Debug)]
pub(super) struct Staging {
    base: u64,
    bytes: u64,
    /// Bytes ever used, with what was left out at the ends of laps.
    used: u64,
    freed: u64,
}

impl Staging {
    pub(super) fn new(base: u64, bytes: u64) -> Self {
        Self {
            base,
            bytes,
            used: 0,
            freed: 0,
        }
    }

    /// Longest piece that can always be had in the end: what is left out at the end of a lap is shorter than the piece.
    pub(super) fn longest(&self) -> u64 {
        self.bytes / 2
    }

    /// Bytes ever used: to be handed to `give_back`.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Address of a free piece; `None` while there is none.
    pub(super) fn take(&mut self, len: u64) -> Option<u64> {
        let at = self.used % self.bytes;
        let skipped = if at + len > self.bytes {
            self.bytes - at
        } else {
            0
        };
        if self.used + skipped + len - self.freed > self.bytes {
            return None;
        }
        let start = self.used + skipped;
        self.used = start + len;
        Some(self.base + start % self.bytes)
    }

    /// Everything up to here is free again.
    pub(super) fn give_back(&mut self, until: u64) {
        self.freed = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces under way never overlap and lie in the lane, whatever their lengths.
    #[test]
    fn pieces_are_apart() {
        let mut lane = Staging::new(1000, 100);
        let mut under_way = std::collections::VecDeque::new();
        for turn in 0..10_000_u64 {
            let len = turn * 7919 % 51;
            match lane.take(len) {
                Some(at) => {
                    assert!(at >= 1000 && at + len <= 1100, "{at} {len}");
                    for &(other, size, _) in &under_way {
                        assert!(at + len <= other || other + size <= at || len == 0 || size == 0);
                    }
                    under_way.push_back((at, len, lane.used()));
                }
                None => {
                    let (.., until) = under_way.pop_front().expect("an empty lane has room");
                    lane.give_back(until);
                }
            }
        }
    }
}
