//! Segments of the superblock that have joined the volume late: see `docs/resize.md`, Z2.

use super::HeaderNo;
use crate::addr::SegmentId;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Most entries of [`Fresh`].
pub const FRESH_MAX: usize = 3;

/// Little-endian.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
pub(super) struct RawFresh {
    pub(super) from: U32,
    reserved: U32,
    pub(super) above: U64,
}

/// Segments from this one on, up to the next entry, in which old headers do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreshFrom {
    /// The first of them.
    pub from: SegmentId,
    /// Headers up to this one do not count.
    pub above: HeaderNo,
}

/// Segments that a growing volume got: what an earlier, larger life of it has left there does not count. See
/// `docs/resize.md`, Z2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fresh {
    /// Ascending, by segment and by number; [`FRESH_MAX`] at most.
    pub entries: Vec<FreshFrom>,
}

impl Fresh {
    /// Whether a header in this segment may count as far as this goes.
    pub fn admits(&self, segment: SegmentId, no: HeaderNo) -> bool {
        let covers = |entry: &&FreshFrom| entry.from <= segment;
        let entry = self.entries.iter().rev().find(covers);
        entry.is_none_or(|entry| no > entry.above)
    }

    /// The volume grows: segments from `from` on are new, and `last` is the last number there is. `is_opened` says of the
    /// segments before whether their present life is all that can be found. False: there is no room for that.
    pub(crate) fn grow(
        &mut self,
        from: SegmentId,
        last: HeaderNo,
        is_opened: impl Fn(SegmentId) -> bool,
    ) -> bool {
        self.forget(from, &is_opened);
        let mut entries = self.entries.clone();
        entries.push(FreshFrom { from, above: last });
        // What has not been written since yet may as well have joined now.
        while let [.., before, newest] = &mut entries[..]
            && !(before.from.0..newest.from.0)
                .map(SegmentId)
                .any(&is_opened)
        {
            before.above = last;
            entries.pop();
        }
        if entries.len() > FRESH_MAX {
            return false;
        }
        self.entries = entries;
        true
    }

    /// Drops what is needed no more in a volume whose segments end before `end`.
    pub(crate) fn forget(&mut self, end: SegmentId, is_opened: impl Fn(SegmentId) -> bool) {
        self.entries.retain(|entry| entry.from < end);
        let mut behind = end;
        let mut needed = Vec::new();
        for entry in self.entries.drain(..).rev() {
            let mut segments = (entry.from.0..behind.0).map(SegmentId);
            // An entry that goes leaves its segments to the one before it, which says less of them: that is enough.
            if !segments.all(&is_opened) {
                needed.push(entry);
            }
            behind = entry.from;
        }
        needed.reverse();
        self.entries = needed;
    }

    pub(super) fn parse(raw: &[RawFresh; FRESH_MAX]) -> Option<Self> {
        let used = raw.iter().take_while(|entry| entry.from.get() != 0);
        let entries: Vec<FreshFrom> = used
            .map(|entry| FreshFrom {
                from: SegmentId(entry.from.get()),
                above: HeaderNo(entry.above.get()),
            })
            .collect();
        let ascend =
            |pair: &[FreshFrom]| pair[0].from < pair[1].from && pair[0].above <= pair[1].above;
        entries.windows(2).all(ascend).then_some(Self { entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Old headers are kept out of segments as long as they may be found there, and nothing else is (resize.md, Z2).
    #[test]
    fn fresh_segments() {
        let (no, id) = (HeaderNo, SegmentId);
        let mut fresh = Fresh::default();
        assert!(fresh.admits(id(9), no(1)));
        assert!(fresh.grow(id(10), no(50), |_| true));
        assert!(fresh.admits(id(9), no(50)));
        assert!(!fresh.admits(id(10), no(50)) && fresh.admits(id(10), no(51)));
        // None of them has been opened: they count as those that join now.
        assert!(fresh.grow(id(20), no(70), |s| s.0 < 10));
        assert_eq!(fresh.entries.len(), 1);
        assert!(!fresh.admits(id(10), no(70)) && !fresh.admits(id(25), no(70)));
        // Some have been opened, and their headers count.
        assert!(fresh.grow(id(30), no(90), |s| s.0 < 15));
        assert!(fresh.admits(id(10), no(71)) && !fresh.admits(id(29), no(70)));
        assert!(!fresh.admits(id(30), no(90)) && fresh.admits(id(30), no(91)));
        // All before have been opened.
        assert!(fresh.grow(id(40), no(95), |s| s.0 < 35));
        assert_eq!(fresh.entries.len(), 2);
        assert!(fresh.admits(id(10), no(1)) && !fresh.admits(id(39), no(90)));
        // Opened in no order at all: more than there is room for.
        assert!(fresh.grow(id(50), no(97), |s| s.0 % 2 == 0));
        let before = fresh.clone();
        assert!(!fresh.grow(id(60), no(99), |s| s.0 % 2 == 0));
        assert_eq!(fresh, before);
        fresh.forget(id(45), |_| false);
        assert!(fresh.admits(id(29), no(1)) && !fresh.admits(id(44), no(95)));
        fresh.forget(id(30), |_| false);
        assert_eq!(fresh, Fresh::default());
    }
}
