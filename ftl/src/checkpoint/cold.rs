//! The cold map: entries that lie in a checkpoint and are not in memory yet, and what the tail of the log says of them.
//!
//! The LBA space is cut into *units* along the fences of the pages, about 24 pages each. A unit is read as a whole
//! when something in it is first needed; after that it is warm and none of this is asked again. Units begin at leaf
//! boundaries, so that a leaf is wholly cold or wholly warm.

use super::change::{Change, Grain, Grains, carry_out, cut, remove};
use crate::addr::{Lba, LbaRange};
use crate::format::{Fence, MapEntry, PageKind, PageName, Piece};
use crate::map::LEAF_GRAINS;
use crate::placement::{Heat, HeatMeaning};
use std::collections::{BTreeMap, BTreeSet};

/// Pages of a unit, roughly.
pub(crate) const UNIT_PAGES: usize = 24;

/// A piece with the fences of its run and base pages.
#[derive(Debug)]
pub(crate) struct Sheet {
    pub(crate) piece: Piece,
    pub(crate) fences: Vec<Fence>,
}

/// A page that a unit needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageWanted {
    pub(crate) name: PageName,
    sheet: usize,
}

/// Pages of a unit with their entries, in the order in which they speak.
pub(crate) type UnitPages = Vec<(PageWanted, Vec<MapEntry>)>;

/// What a unit held at the checkpoint and holds now.
#[derive(Debug, Default)]
pub(crate) struct UnitContent {
    pub(crate) before: Grains,
    pub(crate) after: Grains,
    /// The changes between, cut to the unit.
    pub(crate) changes: Vec<Change>,
}

impl UnitContent {
    /// Grains that are not what they were at the checkpoint.
    pub(crate) fn changed(&self) -> impl Iterator<Item = Lba> + '_ {
        let differs = |(lba, now): &(&Lba, &Grain)| {
            // The same place with another checksum is another life of its segment.
            self.before.get(lba).is_none_or(|was| was != *now)
        };
        let set = self.after.iter().filter(differs).map(|(&lba, _)| lba);
        let gone = self.before.keys().copied();
        set.chain(gone.filter(|lba| !self.after.contains_key(lba)))
    }
}

/// The part of the map that is not in memory.
#[derive(Debug, Default)]
pub(crate) struct ColdMap {
    volume: u64,
    /// What is remembered of grains counts if it means this.
    meaning: HeatMeaning,
    sheets: Vec<Sheet>,
    /// First LBA of each unit.
    starts: Vec<Lba>,
    warm: Vec<bool>,
    cold: usize,
    /// What the tail says of each unit.
    changes: Vec<Vec<Change>>,
    /// Units that remaps and clones tie together: what one holds depends on the others.
    tied: BTreeSet<usize>,
    /// What the tail says of those.
    tied_changes: Vec<Change>,
}

impl ColdMap {
    /// All of what `sheets` (oldest first) describe.
    pub(crate) fn new(
        volume: u64,
        sheets: Vec<Sheet>,
        unit_pages: usize,
        meaning: HeatMeaning,
    ) -> Self {
        let mut firsts: Vec<u64> = sheets
            .iter()
            .flat_map(|s| s.fences.iter().map(|f| f.first.0 / LEAF_GRAINS))
            .collect();
        firsts.sort_unstable();
        let mut leaves: Vec<u64> = firsts.into_iter().step_by(unit_pages).collect();
        leaves.insert(0, 0);
        leaves.dedup();
        let starts: Vec<Lba> = leaves.into_iter().map(|l| Lba(l * LEAF_GRAINS)).collect();
        Self {
            volume,
            meaning,
            sheets,
            warm: vec![false; starts.len()],
            cold: starts.len(),
            changes: starts.iter().map(|_| Vec::new()).collect(),
            starts,
            tied: BTreeSet::new(),
            tied_changes: Vec::new(),
        }
    }

    /// A remap or clone of the tail has to do with a range. All are told of before any change is.
    pub(crate) fn tie(&mut self, range: LbaRange) {
        let units = self.units(range);
        self.tied.extend(units);
    }

    /// Whether some units are tied together.
    pub(crate) fn has_ties(&self) -> bool {
        !self.tied.is_empty()
    }

    /// The units that are tied together.
    pub(crate) fn tied(&self) -> Vec<usize> {
        self.tied.iter().copied().collect()
    }

    fn units(&self, range: LbaRange) -> std::ops::RangeInclusive<usize> {
        self.unit_of(range.start)..=self.unit_of(Lba(range.end().0 - 1))
    }

    /// Whether everything is in memory.
    pub(crate) fn is_warm(&self) -> bool {
        self.cold == 0
    }

    /// Pages that are not read yet, if nothing is.
    pub(crate) fn pages(&self) -> usize {
        self.sheets.iter().map(|s| s.fences.len()).sum()
    }

    fn unit_of(&self, lba: Lba) -> usize {
        self.starts.partition_point(|&start| start <= lba) - 1
    }

    fn range_of(&self, unit: usize) -> LbaRange {
        let start = self.starts[unit];
        let end = self.starts.get(unit + 1).copied().unwrap_or(Lba::SPACE_END);
        LbaRange::new(start, end.0 - start.0)
    }

    /// The cold unit of an LBA, if it is cold.
    pub(crate) fn cold_unit(&self, lba: Lba) -> Option<usize> {
        if self.is_warm() {
            return None;
        }
        Some(self.unit_of(lba)).filter(|&unit| !self.warm[unit])
    }

    /// A range around an LBA of which nothing is cold, the unit of the LBA at least; empty if that is cold.
    pub(crate) fn warm_around(&self, lba: Lba) -> LbaRange {
        if self.is_warm() {
            return LbaRange::SPACE;
        }
        let unit = self.unit_of(lba);
        match self.warm[unit] {
            true => self.range_of(unit),
            false => LbaRange::new(lba, 0),
        }
    }

    /// The first cold unit that has to do with a range.
    pub(crate) fn first_cold(&self, range: LbaRange) -> Option<usize> {
        if self.is_warm() || range.count == 0 {
            return None;
        }
        let last = self.unit_of(Lba(range.end().0 - 1));
        (self.unit_of(range.start)..=last).find(|&unit| !self.warm[unit])
    }

    /// Whether a unit is still cold.
    pub(crate) fn is_cold(&self, unit: usize) -> bool {
        !self.warm[unit]
    }

    /// The tail of the log says something.
    pub(crate) fn change(&mut self, change: Change) {
        let range = match change {
            Change::Set { lba, .. } => return self.change_unit(self.unit_of(lba), change),
            Change::Unmap(range) | Change::Reserve(range, _) | Change::Rehome(range, _) => range,
            Change::Rename(_) => {
                self.tied_changes.push(change);
                return;
            }
        };
        for unit in self.units(range) {
            let cut = |range| cut(range, self.range_of(unit));
            let change = match change {
                Change::Set { .. } | Change::Rename(_) => change,
                Change::Unmap(range) => Change::Unmap(cut(range)),
                Change::Reserve(range, id) => Change::Reserve(cut(range), id),
                Change::Rehome(range, id) => Change::Rehome(cut(range), id),
            };
            self.change_unit(unit, change);
        }
    }

    fn change_unit(&mut self, unit: usize, change: Change) {
        if self.tied.contains(&unit) {
            self.tied_changes.push(change);
        } else {
            self.changes[unit].push(change);
        }
    }

    /// The pages that `unit` needs, in the order in which they speak.
    pub(crate) fn pages_of(&self, unit: usize) -> Vec<PageWanted> {
        let range = self.range_of(unit);
        let (first, last) = (range.start, Lba(range.end().0 - 1));
        let of_unit = |p: &Piece| p.lo <= last && first < p.hi;
        let oldest = self
            .sheets
            .iter()
            .map(|s| &s.piece)
            .filter(|p| of_unit(p))
            .map(|p| p.number)
            .min();
        let mut pages = Vec::new();
        for (index, sheet) in self.sheets.iter().enumerate() {
            let piece = &sheet.piece;
            // An older run speaks of nothing that the base pages do not.
            if oldest.is_some_and(|oldest| piece.number < oldest) {
                continue;
            }
            let (run, base) = sheet.fences.split_at(piece.run as usize);
            for (offset, fences) in [(0, run), (piece.run, base)] {
                let from = fences.partition_point(|f| f.last < first);
                let inside = fences[from..].iter().take_while(|f| f.first <= last);
                for at in from..from + inside.count() {
                    let position = piece.position + u64::from(offset) + at as u64;
                    let name = PageName {
                        kind: PageKind::Map,
                        volume: self.volume,
                        session: piece.session,
                        position,
                    };
                    let sheet = index;
                    pages.push(PageWanted { name, sheet });
                }
            }
        }
        pages
    }

    /// Puts a unit together from its pages, in the order of [`ColdMap::pages_of`]; it counts as warm from now on.
    pub(crate) fn assemble(
        &mut self,
        unit: usize,
        pages: &[(PageWanted, Vec<MapEntry>)],
    ) -> UnitContent {
        let before = self.warm_up(unit, pages);
        let changes = std::mem::take(&mut self.changes[unit]);
        self.content(before, changes)
    }

    /// Puts the units together that are tied, each from its pages; they count as warm from now on.
    pub(crate) fn assemble_tied(&mut self, read: &[(usize, UnitPages)]) -> UnitContent {
        let mut before = BTreeMap::new();
        for (unit, pages) in read {
            before.append(&mut self.warm_up(*unit, pages));
        }
        self.tied.clear();
        let changes = std::mem::take(&mut self.tied_changes);
        self.content(before, changes)
    }

    fn content(&mut self, before: Grains, changes: Vec<Change>) -> UnitContent {
        let mut after = before.clone();
        for change in &changes {
            carry_out(*change, &mut after);
        }
        if self.is_warm() {
            self.sheets.clear();
        }
        UnitContent {
            before,
            after,
            changes,
        }
    }

    /// What a unit held at the checkpoint.
    fn warm_up(&mut self, unit: usize, pages: &[(PageWanted, Vec<MapEntry>)]) -> Grains {
        let range = self.range_of(unit);
        let mut before: Grains = BTreeMap::new();
        let mut pages = pages.iter().peekable();
        for (index, sheet) in self.sheets.iter().enumerate() {
            let piece = &sheet.piece;
            let is_remembered = piece.heat == self.meaning;
            let base = LbaRange::new(piece.lo, piece.hi.0 - piece.lo.0);
            remove(&mut before, cut(base, range));
            while let Some((_, entries)) = pages.next_if(|(page, _)| page.sheet == index) {
                for entry in entries {
                    match *entry {
                        MapEntry::Set { lba, .. } if !range.contains(lba) => {}
                        MapEntry::Set { lba, at, crc, heat } => {
                            let heat = if is_remembered { heat } else { Heat::UNKNOWN };
                            before.insert(lba, Grain { at, crc, heat });
                        }
                        MapEntry::Unmapped(gone) => remove(&mut before, cut(gone, range)),
                    }
                }
            }
        }
        if !std::mem::replace(&mut self.warm[unit], true) {
            self.cold -= 1;
        }
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Pba;
    use crate::map::{Location, ZeroId};
    use crate::remap::{Remap, Renaming};

    fn set(lba: u64, pba: u64) -> MapEntry {
        MapEntry::Set {
            lba: Lba(lba),
            at: Location::Media(Pba(pba)),
            crc: pba as u32,
            heat: Heat::UNKNOWN,
        }
    }

    fn sheet(number: u64, run: &[(u64, u64)], base: &[(u64, u64)], lo: u64, hi: u64) -> Sheet {
        let fence = |&(first, last): &(u64, u64)| Fence {
            first: Lba(first),
            last: Lba(last),
        };
        Sheet {
            piece: Piece {
                number,
                session: 1,
                position: number * 10,
                run: run.len() as u32,
                base: base.len() as u32,
                fence: 1,
                heat: HeatMeaning::NONE,
                lo: Lba(lo),
                hi: Lba(hi),
            },
            fences: run.iter().chain(base).map(fence).collect(),
        }
    }

    /// The last word counts: base pages clear what is older, runs change it, the tail of the log changes that.
    #[test]
    fn last_word() {
        let sheets = vec![
            sheet(1, &[], &[(1, 9)], 0, Lba::SPACE_END.0),
            sheet(2, &[(2, 7)], &[(5, 5)], 5, 6),
            sheet(3, &[(8, 8)], &[], 6, 6),
        ];
        let mut cold = ColdMap::new(7, sheets, UNIT_PAGES, HeatMeaning::NONE);
        cold.change(Change::Unmap(LbaRange::new(Lba(0), 2)));
        cold.change(Change::Reserve(LbaRange::new(Lba(0), 3), ZeroId(4)));
        let (at, crc) = (Location::Media(Pba(900)), 9);
        let lba = Lba(9);
        cold.change(Change::Set { lba, at, crc });
        let unit = cold.cold_unit(Lba(5)).expect("cold");
        let pages = cold.pages_of(unit);
        let positions: Vec<u64> = pages.iter().map(|p| p.name.position).collect();
        assert_eq!(positions, [10, 20, 21, 30]);
        let entries = [
            vec![set(1, 101), set(2, 102), set(5, 105), set(8, 108)],
            vec![set(2, 202), MapEntry::Unmapped(LbaRange::new(Lba(6), 2))],
            vec![set(5, 205)],
            vec![MapEntry::Unmapped(LbaRange::new(Lba(8), 1))],
        ];
        let read: Vec<_> = pages.into_iter().zip(entries).collect();
        let content = cold.assemble(unit, &read);
        assert!(cold.is_warm());
        let places = |map: &Grains| -> Vec<(u64, Location)> {
            map.iter().map(|(l, grain)| (l.0, grain.at)).collect()
        };
        let media = |pba| Location::Media(Pba(pba));
        let before = [(1, media(101)), (2, media(202)), (5, media(205))];
        assert_eq!(places(&content.before), before);
        let zero = Location::Zero(ZeroId(4));
        let after = [
            (0, zero),
            (1, zero),
            (2, media(202)),
            (5, media(205)),
            (9, media(900)),
        ];
        assert_eq!(places(&content.after), after);
    }

    /// What is remembered of a grain outlives its next write and a remap; what means something else is forgotten.
    #[test]
    fn memory() {
        let (ours, other) = (HeatMeaning(5), HeatMeaning(6));
        let heat = Heat::new(0x2a_aaaa);
        let remembered = |lba, pba| match set(lba, pba) {
            MapEntry::Set { lba, at, crc, .. } => MapEntry::Set { lba, at, crc, heat },
            unmapped => unmapped,
        };
        for (meaning, kept) in [(ours, heat), (other, Heat::UNKNOWN)] {
            let mut piece = sheet(1, &[], &[(1, 3)], 0, Lba::SPACE_END.0);
            piece.piece.heat = meaning;
            let mut cold = ColdMap::new(7, vec![piece], UNIT_PAGES, ours);
            let remap = Remap {
                from: Lba(2),
                to: Lba(9),
                count: 1,
            };
            cold.tie(remap.source());
            cold.tie(remap.target());
            for lba in [Lba(1), Lba(4)] {
                let at = Location::Media(Pba(500));
                cold.change(Change::Set { lba, at, crc: 1 });
            }
            cold.change(Change::Rename(Renaming::Remap(remap)));
            let entries = vec![remembered(1, 101), remembered(2, 102), remembered(3, 103)];
            let pages = cold.pages_of(0).into_iter().zip([entries]).collect();
            let content = cold.assemble_tied(&[(0, pages)]);
            let heats: Vec<_> = content.after.iter().map(|(l, g)| (l.0, g.heat)).collect();
            let want = [(1, kept), (3, kept), (4, Heat::UNKNOWN), (9, kept)];
            assert_eq!(heats, want);
        }
    }

    /// What a remap moves from one unit to another is what the tail has made of it by then; other units stay cold.
    #[test]
    fn ties() {
        let base: Vec<(u64, u64)> = (0..100).map(|n| (n * 203 + 5, n * 203 + 207)).collect();
        let mut cold = ColdMap::new(
            7,
            vec![sheet(1, &[], &base, 0, Lba::SPACE_END.0)],
            UNIT_PAGES,
            HeatMeaning::NONE,
        );
        let units = cold.starts.len();
        let far = cold.starts[units - 1].0 + 9;
        let remap = Remap {
            from: Lba(8),
            to: Lba(far),
            count: 3,
        };
        cold.tie(remap.source());
        cold.tie(remap.target());
        let at = |pba| Location::Media(Pba(pba));
        let set = |lba, pba| Change::Set {
            lba: Lba(lba),
            at: at(pba),
            crc: 7,
        };
        for change in [
            set(9, 900),
            set(far + 2, 901),
            Change::Rename(Renaming::Remap(remap)),
            set(far, 902),
            set(10, 903),
        ] {
            cold.change(change);
        }
        assert_eq!(cold.tied(), [0, units - 1]);
        let pages = |_| Vec::new();
        let mut read: Vec<(usize, UnitPages)> =
            cold.tied().into_iter().map(|u| (u, pages(u))).collect();
        let wanted = cold.pages_of(0)[0];
        let crc = 8;
        let lba = Lba(8);
        read[0].1.push((
            wanted,
            vec![MapEntry::Set {
                lba,
                at: at(800),
                crc,
                heat: Heat::UNKNOWN,
            }],
        ));
        let content = cold.assemble_tied(&read);
        let want = [(10, at(903)), (far, at(902)), (far + 1, at(900))];
        let got: Vec<_> = content
            .after
            .iter()
            .map(|(l, grain)| (l.0, grain.at))
            .collect();
        assert_eq!(got, want);
        assert!(!cold.has_ties() && !cold.is_warm());
        assert_eq!(cold.first_cold(LbaRange::SPACE), Some(1));
    }

    /// Units cover every LBA, begin at leaves, and get what a change says of them.
    #[test]
    fn units() {
        let base: Vec<(u64, u64)> = (0..100).map(|n| (n * 203 + 5, n * 203 + 207)).collect();
        let mut cold = ColdMap::new(
            7,
            vec![sheet(1, &[], &base, 0, Lba::SPACE_END.0)],
            UNIT_PAGES,
            HeatMeaning::NONE,
        );
        assert!(cold.starts.len() >= 3 && cold.starts.iter().all(|s| s.0 % LEAF_GRAINS == 0));
        cold.change(Change::Unmap(LbaRange::SPACE));
        for unit in 0..cold.starts.len() {
            let range = cold.range_of(unit);
            assert_eq!(cold.first_cold(LbaRange::SPACE), Some(unit));
            let pages = cold.pages_of(unit);
            let read: Vec<_> = pages.into_iter().map(|p| (p, Vec::new())).collect();
            let content = cold.assemble(unit, &read);
            assert!(matches!(content.changes[..], [Change::Unmap(r)] if r == range));
        }
        assert!(cold.is_warm());
    }
}
