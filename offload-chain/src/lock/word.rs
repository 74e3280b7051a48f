//! A lock word: who has the lock, and how often it was had.

use std::fmt;

/// Clients that can have locks of a group.
pub const SLOTS_MAX: u32 = 32;

const WRITER: u64 = 1 << 63;
const GENERATION_SHIFT: u32 = 32;
const GENERATION_MASK: u64 = (1 << 31) - 1;

/// The place of a client in the lock words of a group; given out by the store, with a lease.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(try_from = "u32", into = "u32")]
pub struct Slot(u32);

impl Slot {
    /// Slot of that number, below [`SLOTS_MAX`].
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (number < SLOTS_MAX).then_some(Self(number))
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for Slot {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        Self::new(number).ok_or_else(|| format!("slot {number}: there are {SLOTS_MAX}"))
    }
}

impl From<Slot> for u32 {
    fn from(slot: Slot) -> Self {
        slot.0
    }
}

/// The eight bytes of a lock at one member:
///
/// ```text
/// 63      62..32        31..0
/// writer  generation    slot of the writer | one bit for each slot that reads at this member
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Word(pub u64);

impl Word {
    /// Nobody has it; so many writers have had it.
    #[must_use]
    pub fn free(generation: u64) -> Self {
        Self((generation & GENERATION_MASK) << GENERATION_SHIFT)
    }

    /// A writer has it.
    #[must_use]
    pub fn written(generation: u64, by: Slot) -> Self {
        Self(Self::free(generation).0 | WRITER | u64::from(by.0))
    }

    /// How many writers have had it, this one included; modulo 2^31.
    #[must_use]
    pub fn generation(self) -> u64 {
        self.0 >> GENERATION_SHIFT & GENERATION_MASK
    }

    /// The slot that writes; out of range if the word is damaged, so it is only a number.
    #[must_use]
    pub fn writer(self) -> Option<u32> {
        (self.0 & WRITER != 0).then_some(self.0 as u32)
    }

    /// One bit for each slot that reads here.
    #[must_use]
    pub fn readers(self) -> u32 {
        if self.writer().is_some() {
            0
        } else {
            self.0 as u32
        }
    }

    /// The same with a reader more.
    #[must_use]
    pub fn with_reader(self, slot: Slot) -> Self {
        Self(self.0 | 1 << slot.0)
    }

    /// The same with a reader less.
    #[must_use]
    pub fn without_reader(self, slot: Slot) -> Self {
        Self(self.0 & !(1 << slot.0))
    }

    /// What a new epoch makes of it: readers are gone, and so is a writer that was fenced or never existed.
    #[must_use]
    pub fn in_new_epoch(self, fenced: &[Slot]) -> Self {
        match self.writer() {
            Some(writer) if writer < SLOTS_MAX && !fenced.contains(&Slot(writer)) => self,
            _ => Self::free(self.generation()),
        }
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.writer() {
            Some(slot) => write!(f, "written({}, by {slot})", self.generation()),
            None => write!(
                f,
                "free({}, readers {:#b})",
                self.generation(),
                self.readers()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_words() {
        let slot = Slot::new(5).unwrap();
        assert_eq!(Word::free(3).0, 0x0000_0003_0000_0000);
        assert_eq!(Word::written(3, slot).0, 0x8000_0003_0000_0005);
        assert_eq!(Word::free(3).with_reader(slot).0, 0x0000_0003_0000_0020);
        assert_eq!(Word::free(1 << 31), Word::free(0));
        assert_eq!(Slot::new(32), None);
    }

    /// I12: a new epoch frees what fenced slots had, and nothing else of writers.
    #[test]
    fn a_new_epoch_clears_readers_and_fenced_writers() {
        let (a, b) = (Slot::new(1).unwrap(), Slot::new(2).unwrap());
        let word = Word::free(4).with_reader(a).with_reader(b);
        assert_eq!(word.in_new_epoch(&[]), Word::free(4));
        assert_eq!(Word::written(4, a).in_new_epoch(&[b]), Word::written(4, a));
        assert_eq!(Word::written(4, b).in_new_epoch(&[b]), Word::free(4));
        let damaged = Word(Word::written(4, a).0 | 0xff00);
        assert_eq!(damaged.in_new_epoch(&[]), Word::free(4));
    }
}
