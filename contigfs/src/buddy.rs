//! Buddy allocation of the LBA space: every file gets 2^order grains at a multiple of 2^order.
//!
//! The space is 2^52 grains and costs nothing until it is written, so files get far more than they need. The state is
//! not on media: it follows from the inode records and is rebuilt at mount.
//!
//! # Invariants
//! - B1. Free blocks and handed-out ranges partition the space.
//! - B2. A block and its buddy are never both free with the same order (they would be one block of the next order).

use std::collections::BTreeSet;

use ftl::Lba;

use crate::format::Range;

/// Binary logarithm of a number of grains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order(pub(crate) u8);

impl Order {
    /// The whole space.
    pub(crate) const SPACE: Self = Self(52);
    /// Largest range of a file: 2^62 bytes.
    pub(crate) const FILE_MAX: Self = Self(50);

    /// An order that a file may have.
    pub(crate) fn new(order: u8) -> Option<Self> {
        (order <= Self::FILE_MAX.0).then_some(Self(order))
    }

    /// Number of grains.
    pub(crate) const fn grains(self) -> u64 {
        1 << self.0
    }

    /// Smallest order with at least this many grains.
    pub(crate) fn for_grains(grains: u64) -> Option<Self> {
        let order = grains.max(1).checked_next_power_of_two()?.trailing_zeros();
        Self::new(order as u8)
    }
}

/// The free blocks.
#[derive(Debug)]
pub(crate) struct Buddy {
    /// Starts of the free blocks of each order.
    free: Vec<BTreeSet<u64>>,
}

impl Buddy {
    /// A space in which everything is free.
    pub(crate) fn new() -> Self {
        let mut free = vec![BTreeSet::new(); usize::from(Order::SPACE.0) + 1];
        free[usize::from(Order::SPACE.0)].insert(0);
        Self { free }
    }

    /// Hands out the lowest free range of this order.
    pub(crate) fn allocate(&mut self, order: Order) -> Option<Range> {
        let (found, start) = (order.0..=Order::SPACE.0)
            .filter_map(|o| self.free[usize::from(o)].first().map(|&start| (o, start)))
            .min_by_key(|&(_, start)| start)?;
        self.free[usize::from(found)].remove(&start);
        self.split(start, found, order, start);
        Some(Range {
            start: Lba(start),
            order,
        })
    }

    /// Takes a particular range; false, and nothing happens, when part of it is in use.
    pub(crate) fn reserve(&mut self, range: Range) -> bool {
        let wanted = range.start.0;
        for o in range.order.0..=Order::SPACE.0 {
            let start = wanted & !((1 << o) - 1);
            if self.free[usize::from(o)].remove(&start) {
                self.split(start, o, range.order, wanted);
                return true;
            }
        }
        false
    }

    /// Enlarges a range at its place; `None`, and nothing happens, when what is behind it is in use or when a range of
    /// this order could not begin there.
    pub(crate) fn extend(&mut self, range: Range, order: Order) -> Option<Range> {
        let start = range.start.0;
        let free = start.is_multiple_of(order.grains())
            && Self::halves(range, order)
                .all(|half| self.free[usize::from(half.order.0)].contains(&half.start.0));
        if !free {
            return None;
        }
        for half in Self::halves(range, order) {
            self.free[usize::from(half.order.0)].remove(&half.start.0);
        }
        Some(Range {
            start: range.start,
            order,
        })
    }

    /// What a range would get if it grew at its place as far as it can, piece by piece.
    pub(crate) fn room_behind(&self, range: Range) -> impl Iterator<Item = Range> + '_ {
        let grows = move |half: &Range| {
            let start = range.start.0;
            let free = &self.free[usize::from(half.order.0)];
            start.is_multiple_of(2 * half.order.grains()) && free.contains(&half.start.0)
        };
        Self::halves(range, Order::FILE_MAX).take_while(grows)
    }

    /// Gives the end of a range back, so that one of this order is left.
    pub(crate) fn cut(&mut self, range: Range, order: Order) -> Range {
        let left = Range {
            start: range.start,
            order,
        };
        for half in Self::halves(left, range.order) {
            self.release(half);
        }
        left
    }

    /// What is between the end of `range` and the end of a range of this order at the same place: its buddy, the buddy
    /// of both, and so on.
    fn halves(range: Range, order: Order) -> impl Iterator<Item = Range> {
        (range.order.0..order.0).map(move |half| Range {
            start: range.start.offset(1 << half),
            order: Order(half),
        })
    }

    /// Gives a range back.
    pub(crate) fn release(&mut self, range: Range) {
        let (mut start, mut order) = (range.start.0, range.order.0);
        while order < Order::SPACE.0
            && self.free[usize::from(order)].remove(&(start ^ (1 << order)))
        {
            start &= !(1 << order);
            order += 1;
        }
        let new = self.free[usize::from(order)].insert(start);
        assert!(new, "range {range:?} was free already");
    }

    /// The free blocks as (start, order), ascending within an order.
    pub(crate) fn free_blocks(&self) -> impl Iterator<Item = Range> + '_ {
        (0..).zip(&self.free).flat_map(|(order, starts)| {
            starts.iter().map(move |&start| Range {
                start: Lba(start),
                order: Order(order),
            })
        })
    }

    /// Cuts the block (`start`, `from`), which is no longer in a free list, down to `to`, keeping the part at `keep`.
    fn split(&mut self, mut start: u64, from: u8, to: Order, keep: u64) {
        for order in (to.0..from).rev() {
            let upper = start + (1 << order);
            if keep >= upper {
                self.free[usize::from(order)].insert(start);
                start = upper;
            } else {
                self.free[usize::from(order)].insert(upper);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grains_free(buddy: &Buddy) -> u64 {
        buddy.free_blocks().map(|block| block.order.grains()).sum()
    }

    /// B1, B2: whatever is handed out is disjoint, and giving all back restores one block.
    #[test]
    fn allocations_are_disjoint_and_merge_again() {
        let mut buddy = Buddy::new();
        let mut ranges = Vec::new();
        for i in 0..200u64 {
            let order = Order((i * 7 % 30) as u8);
            ranges.push(buddy.allocate(order).unwrap());
            if i % 3 == 0 {
                buddy.release(ranges.remove((i as usize * 5) % ranges.len()));
            }
        }
        let mut sorted = ranges.clone();
        sorted.sort_by_key(|range| range.start);
        for pair in sorted.windows(2) {
            assert!(pair[0].lbas().end() <= pair[1].start);
        }
        let used: u64 = ranges.iter().map(|range| range.order.grains()).sum();
        assert_eq!(grains_free(&buddy), Order::SPACE.grains() - used);
        ranges.into_iter().for_each(|range| buddy.release(range));
        assert_eq!(buddy.free_blocks().count(), 1);
    }

    /// Reserving in any order gives the same state as having allocated.
    #[test]
    fn reserve_rebuilds() {
        let mut first = Buddy::new();
        let ranges: Vec<_> = [5, 24, 0, 13, 24, 1]
            .map(|o| first.allocate(Order(o)).unwrap())
            .into();
        let mut second = Buddy::new();
        assert!(ranges.iter().rev().all(|&range| second.reserve(range)));
        assert_eq!(first.free, second.free);
        assert!(!second.reserve(ranges[2]));
        assert!(!second.reserve(Range {
            start: Lba(0),
            order: Order(40)
        }));
    }

    /// B1: a range grows only into what is free, and cutting it gives back just that.
    #[test]
    fn ranges_grow_in_place_and_are_cut() {
        let mut buddy = Buddy::new();
        let first = buddy.allocate(Order(3)).unwrap();
        let before = buddy.free.clone();
        let grown = buddy.extend(first, Order(6)).unwrap();
        assert_eq!((grown.start, grown.order), (first.start, Order(6)));
        assert_eq!(grains_free(&buddy), Order::SPACE.grains() - 64);
        assert_eq!(buddy.cut(grown, Order(3)), first);
        assert_eq!(buddy.free, before);
        let neighbour = buddy.allocate(Order(3)).unwrap();
        assert_eq!(neighbour.start, Lba(8));
        let before = buddy.free.clone();
        assert_eq!(buddy.extend(first, Order(4)), None, "in use");
        assert_eq!(buddy.extend(neighbour, Order(4)), None, "not aligned");
        let far = buddy.allocate(Order(4)).unwrap();
        buddy.release(neighbour);
        assert_eq!(buddy.extend(first, Order(5)), None, "half in use");
        assert!(buddy.reserve(neighbour));
        buddy.release(far);
        assert_eq!(buddy.free, before);
    }

    #[test]
    fn exhaustion_is_an_answer() {
        let mut buddy = Buddy::new();
        for _ in 0..4 {
            assert!(buddy.allocate(Order::FILE_MAX).is_some());
        }
        assert!(buddy.allocate(Order(0)).is_none());
        assert_eq!(Order::for_grains(1 << 50), Some(Order(50)));
        assert_eq!(Order::for_grains((1 << 50) + 1), None);
    }
}
