//! Room in a directory: which units of its grains are used, and where a new entry fits.
//!
//! Every operation costs what it touches, not what the directory holds: grains are kept sorted by how long an entry
//! they could take, and a change is computed for the grains that it concerns.
//!
//! # Invariants
//! - R1. The last grain has an entry.
//! - R2. A grain with entries is in the one set of `roomy` that tells its longest free run, capped at the longest entry;
//!   a grain without is in `emptied`.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::{GRAIN_UNITS, UNITS_MAX};

/// Used units of a grain, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Units {
    used: [u64; GRAIN_UNITS / 64],
}

impl Units {
    fn get(&self, unit: usize) -> bool {
        self.used[unit / 64] & (1 << (unit % 64)) != 0
    }

    /// Marks `count` units from `first` on.
    pub(crate) fn set(&mut self, first: usize, count: usize, used: bool) {
        for unit in first..first + count {
            let bit = 1 << (unit % 64);
            if used {
                self.used[unit / 64] |= bit;
            } else {
                self.used[unit / 64] &= !bit;
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.used == [0; GRAIN_UNITS / 64]
    }

    /// First run of `count` free units.
    fn find(&self, count: usize) -> Option<usize> {
        let mut run = 0;
        for unit in 0..GRAIN_UNITS {
            run = if self.get(unit) { 0 } else { run + 1 };
            if run == count {
                return Some(unit + 1 - count);
            }
        }
        None
    }

    /// Units of the longest entry that fits, at most those of the longest there can be.
    fn room(&self) -> usize {
        let (mut longest, mut run) = (0, 0);
        for unit in 0..GRAIN_UNITS {
            run = if self.get(unit) { 0 } else { run + 1 };
            longest = longest.max(run);
            if longest == UNITS_MAX {
                break;
            }
        }
        longest
    }
}

/// The grains of a directory.
#[derive(Debug, Default)]
pub(crate) struct Room {
    grains: Vec<Units>,
    /// Grains with entries, by the longest run that is free in them.
    roomy: [BTreeSet<usize>; UNITS_MAX + 1],
    /// Grains without entries before the last one with some.
    emptied: BTreeSet<usize>,
}

/// Grains that a change concerns, as they are after it.
#[derive(Debug)]
pub(crate) struct RoomAfter {
    grains: BTreeMap<usize, Units>,
    len: usize,
}

impl RoomAfter {
    /// Grains up to the last with an entry.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether this grain, which the change concerns, has an entry.
    pub(crate) fn is_used(&self, grain: usize) -> bool {
        self.grains
            .get(&grain)
            .is_some_and(|units| !units.is_empty())
    }
}

impl Room {
    /// Grains up to the last with an entry.
    pub(crate) fn len(&self) -> usize {
        self.grains.len()
    }

    /// Adds a grain behind the last one, and empty ones between; for reading a directory in order.
    pub(crate) fn push(&mut self, grain: usize, units: Units) {
        assert!(grain >= self.grains.len(), "grains come in order");
        let grains = BTreeMap::from([(grain, units)]);
        let len = if units.is_empty() {
            self.len()
        } else {
            grain + 1
        };
        self.apply(&RoomAfter { grains, len });
    }

    /// The first unit, counted through the directory, where `count` units are free. Grains in use come first: a new
    /// name must not cost a grain while an old one has room.
    pub(crate) fn find(&self, count: usize) -> u64 {
        let in_use = self.roomy[count..].iter().filter_map(BTreeSet::first).min();
        let grain = in_use.or(self.emptied.first()).copied();
        let grain = grain.unwrap_or(self.grains.len());
        let units = self.grains.get(grain).copied().unwrap_or_default();
        let unit = units
            .find(count)
            .expect("R2: the grain was said to have room");
        (grain * GRAIN_UNITS + unit) as u64
    }

    /// What the grains are after these runs of units (first, count) were freed and then those were taken.
    pub(crate) fn after(
        &self,
        freed: impl Iterator<Item = (u32, usize)>,
        taken: impl Iterator<Item = (u32, usize)>,
    ) -> RoomAfter {
        let mut grains = BTreeMap::new();
        let runs = freed
            .map(|run| (run, false))
            .chain(taken.map(|run| (run, true)));
        for ((first, count), used) in runs {
            let (grain, unit) = split(first);
            let units: &mut Units = grains
                .entry(grain)
                .or_insert_with(|| self.grains.get(grain).copied().unwrap_or_default());
            units.set(unit, count, used);
        }
        let last = grains.last_key_value().map_or(0, |(&grain, _)| grain + 1);
        let mut len = self.grains.len().max(last);
        let is_empty = |grain: usize| match (grains.get(&grain), self.grains.get(grain)) {
            (Some(units), _) | (None, Some(units)) => units.is_empty(),
            (None, None) => true,
        };
        while len > 0 && is_empty(len - 1) {
            len -= 1;
        }
        RoomAfter { grains, len }
    }

    /// Grains with an entry now and none after.
    pub(crate) fn emptied_by<'a>(
        &'a self,
        after: &'a RoomAfter,
    ) -> impl Iterator<Item = usize> + 'a {
        let used_now = |grain: &usize| {
            self.grains
                .get(*grain)
                .is_some_and(|units| !units.is_empty())
        };
        let emptied = after.grains.iter().filter(|(_, units)| units.is_empty());
        emptied.map(|(&grain, _)| grain).filter(used_now)
    }

    /// Makes a change.
    pub(crate) fn apply(&mut self, after: &RoomAfter) {
        while self.grains.len() > after.len {
            self.forget_place(self.grains.len() - 1);
            self.grains.pop();
        }
        while self.grains.len() < after.len {
            self.emptied.insert(self.grains.len());
            self.grains.push(Units::default());
        }
        for (&grain, &units) in after.grains.range(..after.len) {
            self.forget_place(grain);
            self.grains[grain] = units;
            if units.is_empty() {
                self.emptied.insert(grain);
            } else {
                self.roomy[units.room()].insert(grain);
            }
        }
    }

    fn forget_place(&mut self, grain: usize) {
        if !self.emptied.remove(&grain) {
            self.roomy[self.grains[grain].room()].remove(&grain);
        }
    }
}

/// Grain and place in it of a unit counted through the directory.
pub(crate) fn split(unit: u32) -> (usize, usize) {
    (unit as usize / GRAIN_UNITS, unit as usize % GRAIN_UNITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first place of `count` free units in a list of units, as `find` promises it.
    fn naive_find(units: &[bool], count: usize) -> u64 {
        let fits = |grain: &[bool]| {
            grain
                .windows(count)
                .position(|run| run.iter().all(|used| !used))
        };
        let grains = || units.chunks(GRAIN_UNITS).enumerate();
        let in_use = grains().find_map(|(number, grain)| {
            let used = grain.contains(&true);
            Some((number, fits(grain).filter(|_| used)?))
        });
        let emptied = || {
            grains()
                .find(|(_, grain)| !grain.contains(&true))
                .map(|g| (g.0, 0))
        };
        let (grain, unit) = in_use
            .or_else(emptied)
            .unwrap_or((units.len() / GRAIN_UNITS, 0));
        (grain * GRAIN_UNITS + unit) as u64
    }

    /// R1, R2: random entries come and go; places, length and emptied grains are those of a plain list of units.
    #[test]
    fn as_a_plain_list() {
        let mut dice: u64 = 7;
        let mut roll = |n: usize| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (dice >> 33) as usize % n
        };
        let mut room = Room::default();
        let mut units: Vec<bool> = Vec::new();
        let mut entries: Vec<(u32, usize)> = Vec::new();
        let mut longest = 0;
        for step in 0..20_000 {
            // Grows, then shrinks, several times.
            let grows = roll(10) < if step / 2500 % 2 == 0 { 7 } else { 3 };
            let freed = match entries.is_empty() || grows && roll(4) > 0 {
                true => vec![],
                false => vec![entries.swap_remove(roll(entries.len()))],
            };
            let count = 2 + roll(UNITS_MAX - 1);
            let taken = match grows {
                true => vec![(room.find(count) as u32, count)],
                false => vec![],
            };
            if let [(first, count)] = taken[..] {
                assert_eq!(u64::from(first), naive_find(&units, count), "step {step}");
            }
            let after = room.after(freed.iter().copied(), taken.iter().copied());
            for (runs, used) in [(&freed, false), (&taken, true)] {
                for &(first, count) in runs {
                    let end = first as usize + count;
                    units.resize(units.len().max(end.next_multiple_of(GRAIN_UNITS)), false);
                    units[first as usize..end].fill(used);
                }
            }
            let has_entry =
                |grain: usize| units[grain * GRAIN_UNITS..][..GRAIN_UNITS].contains(&true);
            for grain in room.emptied_by(&after) {
                assert!(!has_entry(grain));
            }
            let mut len = units.len();
            while len > 0 && !has_entry(len / GRAIN_UNITS - 1) {
                len -= GRAIN_UNITS;
            }
            units.truncate(len);
            assert_eq!(after.len() * GRAIN_UNITS, len, "step {step}");
            room.apply(&after);
            assert_eq!(room.len(), after.len());
            longest = longest.max(room.len());
            entries.extend(taken);
        }
        assert!(longest > 10, "{longest} grains are too few");
    }
}
