//! Slots of snapshots, and what of the address space is theirs. See `docs/snapshots.md`.

use crate::addr::{Lba, LbaRange};

/// Most snapshots at a time, those that are being deleted among them.
pub const SNAPSHOTS_MAX: usize = 32;

const IMAGE_SHIFT: u32 = 52;
/// Behind the images: the table, and the marks of all slots.
const BOOKS: u64 = 63 << IMAGE_SHIFT;
const MARKS_SHIFT: u32 = 20;
/// Marks in a grain, and bytes of each.
pub(crate) const MARKS_PER_GRAIN: u32 = 256;
pub(crate) const MARK_BYTES: usize = 16;
/// Most marks of a slot.
pub(crate) const MARKS_MAX: u32 = (1 << MARKS_SHIFT) * MARKS_PER_GRAIN - 1;

/// The grain of the table.
pub(crate) const TABLE: Lba = Lba(BOOKS);

/// A place for a snapshot, used again when nothing is left of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u8);

impl Slot {
    /// Slot number `index`, if there is one.
    pub const fn new(index: usize) -> Option<Self> {
        if index < SNAPSHOTS_MAX {
            Some(Self(index as u8))
        } else {
            None
        }
    }

    /// Its number.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The image of a grain.
    pub(crate) const fn image(self, lba: Lba) -> Lba {
        Lba((self.0 as u64 + 1) << IMAGE_SHIFT | lba.0)
    }

    /// The images of a range.
    pub(crate) const fn images(self, range: LbaRange) -> LbaRange {
        LbaRange::new(self.image(range.start), range.count)
    }

    /// The grains with marks.
    pub(crate) const fn marks(self) -> LbaRange {
        let start = BOOKS | (self.0 as u64 + 1) << MARKS_SHIFT;
        LbaRange::new(Lba(start), 1 << MARKS_SHIFT)
    }

    /// Where mark number `index` lies: grain, and offset in it.
    pub(crate) const fn mark(self, index: u32) -> (Lba, u16) {
        let grain = self.marks().start.0 + (index / MARKS_PER_GRAIN) as u64;
        (
            Lba(grain),
            (index % MARKS_PER_GRAIN) as u16 * MARK_BYTES as u16,
        )
    }
}

/// The grain that this is an image of.
pub(crate) const fn imaged(lba: Lba) -> Lba {
    Lba(lba.0 & ((1 << IMAGE_SHIFT) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Images of different slots, marks and table have nothing in common, and lie beyond every byte address.
    #[test]
    fn apart() {
        let mut all = vec![LbaRange::ALL, LbaRange::new(TABLE, 1)];
        for index in 0..SNAPSHOTS_MAX {
            let slot = Slot::new(index).expect("a slot");
            all.extend([slot.images(LbaRange::ALL), slot.marks()]);
            let (lba, offset) = slot.mark(MARKS_MAX);
            assert!(slot.marks().contains(lba) && usize::from(offset) + MARK_BYTES <= 4096);
            assert_eq!(imaged(slot.image(Lba(77))), Lba(77));
        }
        all.sort_by_key(|range| range.start);
        assert!(all.windows(2).all(|w| w[0].end() <= w[1].start));
        assert!(all.iter().all(|range| range.end() <= Lba::SPACE_END));
        assert_eq!(Slot::new(SNAPSHOTS_MAX), None);
    }
}
