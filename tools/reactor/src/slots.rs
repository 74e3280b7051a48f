//! Numbered places for things that come and go, with names that are not used again for a very long time.

use std::collections::VecDeque;

/// Names what lies in a slot: the slot, and how often it has been used. An answer to something that has gone finds
/// nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkTag(pub u32);

impl LinkTag {
    const SLOT_BITS: u32 = 16;

    fn new(slot: usize, generation: u16) -> Self {
        Self(u32::from(generation) << Self::SLOT_BITS | slot as u32)
    }

    /// The slot.
    pub fn slot(self) -> usize {
        (self.0 & ((1 << Self::SLOT_BITS) - 1)) as usize
    }
}

/// Slots rest after use until this many rest, so that a name comes back after 67 million others at the earliest.
const RESTING: usize = 1024;

/// Things in slots.
#[derive(Debug)]
pub struct Slots<T> {
    slots: Vec<(u16, Option<T>)>,
    free: VecDeque<usize>,
    used: usize,
}

impl<T> Slots<T> {
    /// Things at most.
    pub const MAX: usize = (1 << LinkTag::SLOT_BITS) - RESTING;

    /// None.
    pub fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            used: 0,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Adds what `make` makes of its name; None when there is no room.
    pub fn insert_with(&mut self, make: impl FnOnce(LinkTag) -> T) -> Option<LinkTag> {
        if self.used >= Self::MAX {
            return None;
        }
        let slot = if self.free.len() >= RESTING {
            self.free.pop_front().expect("many are free")
        } else {
            self.slots.push((0, None));
            self.slots.len() - 1
        };
        let (generation, place) = &mut self.slots[slot];
        *generation = generation.wrapping_add(1);
        let tag = LinkTag::new(slot, *generation);
        *place = Some(make(tag));
        self.used += 1;
        Some(tag)
    }

    /// What lies in `slot`.
    pub fn get(&self, slot: usize) -> Option<&T> {
        self.slots.get(slot)?.1.as_ref()
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, slot: usize) -> Option<&mut T> {
        self.slots.get_mut(slot)?.1.as_mut()
    }

    /// Takes it out.
    pub fn remove(&mut self, slot: usize) -> Option<T> {
        let thing = self.slots.get_mut(slot)?.1.take()?;
        self.free.push_back(slot);
        self.used -= 1;
        Some(thing)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|(_, thing)| thing.as_ref())
    }
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> std::ops::Index<usize> for Slots<T> {
    type Output = T;

    fn index(&self, slot: usize) -> &T {
        self.get(slot).expect("the slot is in use")
    }
}

impl<T> std::ops::IndexMut<usize> for Slots<T> {
    fn index_mut(&mut self, slot: usize) -> &mut T {
        self.get_mut(slot).expect("the slot is in use")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Names do not come back, however often things come and go one after the other (a late answer must not reach a
    /// stranger).
    #[test]
    fn names_do_not_come_back_soon() {
        let mut slots = Slots::new();
        let keep = slots.insert_with(|tag| tag).unwrap();
        let mut seen = HashSet::from([keep]);
        for _ in 0..300_000 {
            let tag = slots.insert_with(|tag| tag).unwrap();
            assert!(seen.insert(tag), "{tag:?} came back");
            assert_eq!(slots[tag.slot()], tag);
            assert_eq!(slots.remove(tag.slot()), Some(tag));
        }
        assert_eq!(slots.len(), 1);
        assert_eq!(slots[keep.slot()], keep);
    }
}
