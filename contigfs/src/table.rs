//! The inode table in memory: which numbers are free, and which of its grains can be given back.
//!
//! The table is a file that grows by a grain of 128 hot records at a time. A grain whose last record is freed is
//! trimmed instead of patched, so that deleting everything returns all space. Hot and cold records of an inode lie in
//! different grains, so this is decided for each of the two.
//!
//! # Invariants
//! - T1. A number is handed out only while neither its record nor a memory of it (the kernel's) exists.
//! - T2. Nothing is handed out from a grain that is about to be trimmed (`closing`): the trim would take the record.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::{COLD_PER_GRAIN, HOT_PER_GRAIN, INODES_MAX};
use crate::inode::InodeNo;

/// Cold grains that belong to one hot grain.
const COLD_GRAINS: usize = (HOT_PER_GRAIN / COLD_PER_GRAIN) as usize;
/// Records of one cold grain, as bits of the word of a hot grain.
const COLD_MASK: u128 = (1 << COLD_PER_GRAIN) - 1;

/// Allocation state of the inode table.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Grains that hold something, or did: a table that says that it is long takes no memory for that.
    grains: BTreeMap<u64, Grain>,
    /// Those of them with a free number.
    roomy: BTreeSet<u64>,
    /// All grains before this one are in `grains`.
    untouched: u64,
    live: u64,
}

/// The 128 inodes of a hot grain.
#[derive(Debug, Default)]
struct Grain {
    /// Records that exist, or are being created.
    live: u128,
    /// Records that are gone, but whose number is still remembered by someone.
    held: u128,
    /// Records in grains that are about to be trimmed.
    closing: u128,
}

/// How the records of an inode go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreePlan {
    /// The hot grain holds nothing else: trim it.
    pub(crate) trim_hot: bool,
    /// The cold grain holds nothing else: trim it.
    pub(crate) trim_cold: bool,
}

impl Grain {
    fn free(&self) -> u128 {
        !(self.live | self.held | self.closing)
    }
}

fn place(ino: InodeNo) -> (u64, u32) {
    (ino.0 / HOT_PER_GRAIN, (ino.0 % HOT_PER_GRAIN) as u32)
}

const fn cold_mask(bit: u32) -> u128 {
    COLD_MASK << (bit / COLD_PER_GRAIN as u32 * COLD_PER_GRAIN as u32)
}
const _: () = assert!(COLD_GRAINS * COLD_PER_GRAIN as usize == u128::BITS as usize);

impl Table {
    /// Records that exist, without the table's own.
    pub(crate) fn inodes(&self) -> u64 {
        self.live.saturating_sub(1)
    }

    /// Notes a record found on media.
    pub(crate) fn note(&mut self, ino: InodeNo) {
        let (grain, bit) = place(ino);
        let known = self.touch(grain).live & 1 << bit != 0;
        assert!(!known, "{ino:?} is noted twice");
        self.take(grain, bit);
    }

    /// Whether the record of this number exists, or is being created.
    pub(crate) fn has(&self, ino: InodeNo) -> bool {
        let (grain, bit) = place(ino);
        let grain = self.grains.get(&grain);
        grain.is_some_and(|grain| grain.live & 1 << bit != 0)
    }

    /// The grain, which from now on is in memory.
    fn touch(&mut self, grain: u64) -> &mut Grain {
        self.grains.entry(grain).or_default();
        while self.grains.contains_key(&self.untouched) {
            self.untouched += 1;
        }
        self.grain(grain)
    }

    fn grain(&mut self, grain: u64) -> &mut Grain {
        self.grains.get_mut(&grain).expect("it holds something")
    }

    fn take(&mut self, grain: u64, bit: u32) {
        self.grain(grain).live |= 1 << bit;
        self.live += 1;
        self.update_roomy(grain);
    }

    /// Hands out the lowest free number.
    pub(crate) fn allocate(&mut self) -> Option<InodeNo> {
        let untouched = Some(self.untouched).filter(|grain| grain * HOT_PER_GRAIN < INODES_MAX);
        let roomy = self.roomy.first().copied();
        let grain = roomy.into_iter().chain(untouched).min()?;
        let bit = self.touch(grain).free().trailing_zeros();
        self.take(grain, bit);
        Some(InodeNo(grain * HOT_PER_GRAIN + u64::from(bit)))
    }

    /// Takes back a number whose record was never written.
    pub(crate) fn give_back(&mut self, ino: InodeNo) {
        let (grain, bit) = place(ino);
        self.grain(grain).live &= !(1 << bit);
        self.live -= 1;
        self.update_roomy(grain);
    }

    /// Plans the end of a record; must be followed by [`finish_free`](Self::finish_free).
    pub(crate) fn plan_free(&mut self, ino: InodeNo) -> FreePlan {
        let (grain, bit) = place(ino);
        let g = self.grain(grain);
        assert!(g.live & (1 << bit) != 0, "{ino:?} is freed twice");
        let plan = FreePlan {
            trim_hot: g.live == 1 << bit && g.closing == 0,
            trim_cold: g.live & cold_mask(bit) == 1 << bit,
        };
        if plan.trim_hot {
            g.closing = u128::MAX;
        } else if plan.trim_cold {
            g.closing |= cold_mask(bit);
        }
        self.update_roomy(grain);
        plan
    }

    /// Ends what [`plan_free`](Self::plan_free) began. The number of what was freed is kept until [`forget`](Self::forget).
    pub(crate) fn finish_free(&mut self, ino: InodeNo, plan: FreePlan, freed: bool) {
        let (grain, bit) = place(ino);
        let g = self.grain(grain);
        if freed {
            g.live &= !(1 << bit);
            g.held |= 1 << bit;
        }
        if plan.trim_hot {
            g.closing = 0;
        } else if plan.trim_cold {
            g.closing &= !cold_mask(bit);
        }
        self.live -= u64::from(freed);
        self.update_roomy(grain);
    }

    /// Plans the end of grains that a record has left without taking them with it, as `plan` of its end says, because others
    /// ended at the same time. Must be followed by [`finish_sweep`](Self::finish_sweep).
    pub(crate) fn plan_sweep(&mut self, ino: InodeNo, plan: FreePlan) -> Option<FreePlan> {
        let (grain, bit) = place(ino);
        let g = self.grain(grain);
        let sweep = FreePlan {
            trim_hot: !plan.trim_hot && g.live | g.closing == 0,
            trim_cold: !plan.trim_cold && (g.live | g.closing) & cold_mask(bit) == 0,
        };
        if sweep.trim_hot {
            g.closing = u128::MAX;
        } else if sweep.trim_cold {
            g.closing |= cold_mask(bit);
        } else {
            return None;
        }
        self.update_roomy(grain);
        Some(sweep)
    }

    /// Ends what [`plan_sweep`](Self::plan_sweep) began.
    pub(crate) fn finish_sweep(&mut self, ino: InodeNo, sweep: FreePlan) {
        self.finish_free(ino, sweep, false);
    }

    /// The number of a freed inode may be used again.
    pub(crate) fn forget(&mut self, ino: InodeNo) {
        let (grain, bit) = place(ino);
        let g = self.grain(grain);
        assert!(g.held & (1 << bit) != 0, "{ino:?} is forgotten twice");
        g.held &= !(1 << bit);
        self.update_roomy(grain);
    }

    fn update_roomy(&mut self, grain: u64) {
        if self.grain(grain).free() == 0 {
            self.roomy.remove(&grain);
        } else {
            self.roomy.insert(grain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(table: &mut Table, ino: InodeNo) -> FreePlan {
        let plan = table.plan_free(ino);
        table.finish_free(ino, plan, true);
        table.forget(ino);
        plan
    }

    #[test]
    fn lowest_number_first_and_grains_grow() {
        let mut table = Table::default();
        for expected in 0..300 {
            assert_eq!(table.allocate(), Some(InodeNo(expected)));
        }
        free(&mut table, InodeNo(17));
        assert!(!table.has(InodeNo(17)) && table.has(InodeNo(18)));
        assert_eq!(table.allocate(), Some(InodeNo(17)));
        assert!(table.has(InodeNo(17)) && !table.has(InodeNo(300)) && !table.has(InodeNo(1000)));
        assert_eq!(table.inodes(), 299);
    }

    /// The last record of a grain takes the grain with it, hot and cold each in its own time.
    #[test]
    fn last_record_trims() {
        let mut table = Table::default();
        let all: Vec<_> = (0..192).map(|_| table.allocate()).collect();
        assert_eq!(all.last(), Some(&Some(InodeNo(191))));
        for ino in 129..160 {
            assert_eq!(
                free(&mut table, InodeNo(ino)),
                FreePlan {
                    trim_hot: false,
                    trim_cold: false
                }
            );
        }
        assert_eq!(
            free(&mut table, InodeNo(128)),
            FreePlan {
                trim_hot: false,
                trim_cold: true
            }
        );
        for ino in 160..191 {
            assert!(!free(&mut table, InodeNo(ino)).trim_hot);
        }
        assert_eq!(
            free(&mut table, InodeNo(191)),
            FreePlan {
                trim_hot: true,
                trim_cold: true
            }
        );
    }

    /// Two records that end at the same time see each other: neither takes the grain with it, but whoever ends last sweeps up,
    /// once, and nothing is handed out of the grain meanwhile.
    #[test]
    fn the_last_of_several_sweeps_up() {
        let mut table = Table::default();
        for _ in 0..35 {
            table.allocate();
        }
        let (one, other) = (InodeNo(33), InodeNo(34));
        free(&mut table, InodeNo(32));
        let plans = [one, other].map(|ino| table.plan_free(ino));
        assert!(plans.iter().all(|plan| !plan.trim_hot && !plan.trim_cold));
        table.finish_free(one, plans[0], true);
        assert_eq!(table.plan_sweep(one, plans[0]), None);
        table.finish_free(other, plans[1], true);
        let sweep = table.plan_sweep(other, plans[1]).unwrap();
        assert_eq!((sweep.trim_hot, sweep.trim_cold), (false, true));
        assert_eq!(table.plan_sweep(one, plans[0]), None);
        assert_eq!(table.allocate(), Some(InodeNo(64)));
        table.finish_sweep(other, sweep);
        assert_eq!(table.allocate(), Some(InodeNo(32)));
        // A grain that its last record took is not swept.
        let plan = free(&mut table, InodeNo(32));
        assert!(plan.trim_cold);
        assert_eq!(table.plan_sweep(InodeNo(32), plan), None);
    }

    /// T1, T2: nothing comes from a closing grain, and a held number waits.
    #[test]
    fn closing_and_held_numbers_are_not_handed_out() {
        let mut table = Table::default();
        for ino in 0..129 {
            assert_eq!(table.allocate(), Some(InodeNo(ino)));
        }
        let plan = table.plan_free(InodeNo(128));
        assert_eq!(
            plan,
            FreePlan {
                trim_hot: true,
                trim_cold: true
            }
        );
        assert_eq!(table.allocate(), Some(InodeNo(256)));
        table.finish_free(InodeNo(128), plan, true);
        assert_eq!(table.allocate(), Some(InodeNo(129)));
        table.forget(InodeNo(128));
        assert_eq!(table.allocate(), Some(InodeNo(128)));
    }

    /// Records may be anywhere in a table: those far behind take no more memory than those in front, and the gaps are
    /// filled first.
    #[test]
    fn gaps_take_no_memory() {
        let mut table = Table::default();
        table.note(InodeNo(INODES_MAX - 1));
        table.note(InodeNo(130));
        assert_eq!(table.grains.len(), 2);
        let given: Vec<_> = (0..258).map_while(|_| table.allocate()).collect();
        assert_eq!(given.last(), Some(&InodeNo(258)));
        assert!(!given.contains(&InodeNo(130)));
        assert_eq!(table.grains.len(), 4);
    }
}
