//! The part of a cold record that describes a file on its way to another range: where to, and what is cut out of it
//! or left open in the middle.

use ftl::Lba;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::inode::parse_range;
use super::{GRAIN, Range};

const SPLICE_NONE: u8 = 0;
const SPLICE_COLLAPSE: u8 = 1;
const SPLICE_INSERT: u8 = 2;

/// As in the cold record.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct RawRelocation {
    /// First grain of the new range.
    lba: U64,
    /// First grain of the file that is removed, or before which grains are inserted.
    splice_at: U64,
    /// How many grains are removed or inserted.
    splice_count: U64,
    /// The new range has 2^order grains.
    order: u8,
    splice: u8,
    reserved: [u8; 2],
}
const _: () = assert!(size_of::<RawRelocation>() == 28);

impl RawRelocation {
    /// Nothing is relocating.
    pub(super) const ZERO: Self = Self {
        lba: U64::ZERO,
        splice_at: U64::ZERO,
        splice_count: U64::ZERO,
        order: 0,
        splice: 0,
        reserved: [0; 2],
    };

    pub(super) fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }
}

/// What a relocation does to the middle of a file; positions and counts are grains of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Splice {
    /// Nothing: the file only changes its range.
    None,
    /// `count` grains from `at` go, what is behind them closes up.
    Collapse { at: u64, count: u64 },
    /// `count` grains come in before `at`, as a hole.
    Insert { at: u64, count: u64 },
}

/// A file's way to another range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relocation {
    pub(crate) to: Range,
    pub(crate) splice: Splice,
}

/// Grains of the old range that keep their neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// First grain, counted in the old range.
    pub(crate) from: u64,
    /// The same, counted in the new range.
    pub(crate) to: u64,
    /// Number of grains.
    pub(crate) count: u64,
}

impl Relocation {
    /// Judges a relocation out of `old`, of a file of `size` bytes; `None` when it is impossible.
    pub(super) fn parse(raw: &RawRelocation, old: Range, size: u64) -> Option<Self> {
        let to = parse_range(raw.lba.get(), raw.order)?;
        let (at, count) = (raw.splice_at.get(), raw.splice_count.get());
        let (splice, room) = match raw.splice {
            SPLICE_NONE if at == 0 && count == 0 => (Splice::None, to),
            SPLICE_COLLAPSE => (Splice::Collapse { at, count }, old),
            SPLICE_INSERT => (Splice::Insert { at, count }, to),
            _ => return None,
        };
        let inside = at.checked_add(count)? <= room.order.grains();
        let apart = to.lbas().end() <= old.start || old.lbas().end() <= to.start;
        let needed = splice == Splice::None || count > 0;
        let relocation = Self { to, splice };
        let fits = inside
            && needed
            && apart
            && relocation.size_after(size)? <= to.bytes()
            && relocation
                .stretches(old)
                .all(|stretch| stretch.to + stretch.count <= to.order.grains());
        fits.then_some(relocation)
    }

    /// As in the cold record.
    pub(super) fn emit(self) -> RawRelocation {
        let (splice, at, count) = match self.splice {
            Splice::None => (SPLICE_NONE, 0, 0),
            Splice::Collapse { at, count } => (SPLICE_COLLAPSE, at, count),
            Splice::Insert { at, count } => (SPLICE_INSERT, at, count),
        };
        RawRelocation {
            lba: U64::new(self.to.start.0),
            splice_at: U64::new(at),
            splice_count: U64::new(count),
            order: self.to.order.0,
            splice,
            reserved: [0; 2],
        }
    }

    /// Size of the file afterwards, in bytes; `None` when there is no such size.
    pub(crate) fn size_after(self, size: u64) -> Option<u64> {
        match self.splice {
            Splice::None => Some(size),
            Splice::Collapse { count, .. } => size.checked_sub(count.checked_mul(GRAIN)?),
            Splice::Insert { count, .. } => size.checked_add(count.checked_mul(GRAIN)?),
        }
    }

    /// Which grains of `old` go where: at most two stretches, ascending.
    pub(crate) fn stretches(self, old: Range) -> impl Iterator<Item = Stretch> {
        let all = old.order.grains();
        let room = self.to.order.grains();
        let (head, from, to) = match self.splice {
            Splice::None => (all, all, all),
            Splice::Collapse { at, count } => (at, at + count, at),
            Splice::Insert { at, count } => (at, at, at + count),
        };
        let head = Stretch {
            from: 0,
            to: 0,
            count: head.min(all),
        };
        let tail = Stretch {
            from,
            to,
            // Whoever makes a relocation sees to it that nothing is mapped behind what fits.
            count: all.saturating_sub(from).min(room.saturating_sub(to)),
        };
        [head, tail].into_iter().filter(|stretch| stretch.count > 0)
    }

    /// Place of a grain of the new range.
    pub(crate) const fn target(self, grain: u64) -> Lba {
        Lba(self.to.start.0 + grain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buddy::Order;

    const OLD: Range = Range {
        start: Lba(1 << 33),
        order: Order(4),
    };
    const NEW: Range = Range {
        start: Lba(1 << 34),
        order: Order(5),
    };

    fn all(splice: Splice) -> Vec<(u64, u64, u64)> {
        Relocation { to: NEW, splice }
            .stretches(OLD)
            .map(|stretch| (stretch.from, stretch.to, stretch.count))
            .collect()
    }

    #[test]
    fn golden_and_round_trip() {
        let relocation = Relocation {
            to: NEW,
            splice: Splice::Collapse { at: 2, count: 3 },
        };
        let raw = relocation.emit();
        assert_eq!(
            raw.as_bytes(),
            b"\0\0\0\0\x04\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x05\x01\0\0"
        );
        assert_eq!(Relocation::parse(&raw, OLD, 5 * GRAIN), Some(relocation));
    }

    /// Every grain that stays has one new place, and nothing lands in what is inserted.
    #[test]
    fn stretches_are_the_function_of_the_layout_note() {
        assert_eq!(all(Splice::None), [(0, 0, 16)]);
        assert_eq!(
            all(Splice::Collapse { at: 2, count: 3 }),
            [(0, 0, 2), (5, 2, 11)]
        );
        assert_eq!(all(Splice::Collapse { at: 0, count: 16 }), []);
        assert_eq!(
            all(Splice::Insert { at: 2, count: 3 }),
            [(0, 0, 2), (2, 5, 14)]
        );
        assert_eq!(all(Splice::Insert { at: 0, count: 20 }), [(0, 20, 12)]);
    }

    /// A relocation with impossible values (a crafted image) is refused.
    #[test]
    fn crafted_relocations_are_refused() {
        let refused = |to, splice, size| {
            let raw = Relocation { to, splice }.emit();
            Relocation::parse(&raw, OLD, size).is_none()
        };
        assert!(!refused(NEW, Splice::None, 0));
        assert!(refused(OLD, Splice::None, 0), "onto itself");
        let smaller = Range {
            start: Lba(1 << 34),
            order: Order(3),
        };
        assert!(refused(smaller, Splice::None, 0), "too small");
        let collapse = |at, count| Splice::Collapse { at, count };
        assert!(refused(NEW, collapse(0, 0), GRAIN), "nothing to remove");
        assert!(refused(NEW, collapse(10, 7), 17 * GRAIN), "behind the end");
        assert!(refused(NEW, collapse(0, 2), GRAIN), "more than there is");
        assert!(refused(NEW, collapse(u64::MAX, 2), GRAIN), "overflow");
        let insert = |at, count| Splice::Insert { at, count };
        assert!(refused(NEW, insert(30, 3), 0), "behind the new range");
        assert!(refused(NEW, insert(0, 20), 13 * GRAIN), "too long");
        assert!(refused(NEW, insert(0, u64::MAX), 0), "overflow");
    }
}
