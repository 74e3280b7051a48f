//! One map entry: a 64-bit word that says where a grain is, changed by compare-and-swap.
//!
//! ```text
//!            ┌────────────── trim ──────────────┐
//!            v                                  │
//!   Unmapped ──write──► Resident ◄──read done── InFlight ◄──miss── Media | Zero
//!                        │    ^                                      ^
//!                        │    └── pin, unpin, dirty, clean           │
//!                        └──────────── evict (clean, unpinned) ──────┘
//!
//!   63 62 | 61 .. 0
//!   0  0  | 0                                              Unmapped
//!   0  1  | 61: zero record id                             Zero
//!   0  1  | 60..39 heat, 38..0 physical address            Media
//!   1  0  | 31..0 frame                                    InFlight
//!   1  1  | 57 used, 56 dirty, 55..32 pins, 31..0 frame    Resident
//! ```
//!
//! # Invariants
//! - A frame is named by at most one entry, and an entry that names it is the only way to pin it.
//! - Pin and unpin are done by any thread without a lock; every other transition by the holder of the core's lock.
//!   So the holder of the lock loses a race only against pin, unpin, used and dirty, and simply tries again.
//! - An entry leaves Resident for Media only while its pins are 0 and it is clean: nobody loses bytes.
//! - Dirty is set together with the unpin, so a write is marked before its page can go anywhere.

use crate::addr::Pba;
use crate::placement::Heat;
use std::sync::atomic::{AtomicU64, Ordering};

/// Index of a frame of the page pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(pub u32);

/// Names a live zero record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ZeroId(pub u32);

/// Where the bytes of a grain are apart from the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// Nowhere.
    Nowhere,
    /// Reserved by a zero record.
    Zero(ZeroId),
    /// On the media.
    Media(Pba),
}

/// A resident page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Its frame.
    pub frame: FrameId,
    /// How many hold it.
    pub pins: u32,
    /// Changed since the last write-out was assembled.
    pub dirty: bool,
    /// Pinned since the clock hand last passed.
    pub used: bool,
}

/// The meaning of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not in the pool.
    Away(Location),
    /// A frame is being filled.
    InFlight(FrameId),
    /// In the pool.
    Resident(Resident),
}

const TAG: u64 = 3 << 62;
const TAG_AWAY: u64 = 1 << 62;
const TAG_IN_FLIGHT: u64 = 2 << 62;
const TAG_RESIDENT: u64 = 3 << 62;
const ZERO: u64 = 1 << 61;
/// Width of a physical address.
pub(crate) const PBA_BITS: u32 = 61 - Heat::BITS;
const PBA: u64 = (1 << PBA_BITS) - 1;
const USED: u64 = 1 << 57;
const DIRTY: u64 = 1 << 56;
const PIN: u64 = 1 << 32;
const PINS_MAX: u64 = (1 << 24) - 1;
const FRAME: u64 = (1 << 32) - 1;

impl State {
    /// The entry of a grain that is nowhere.
    pub const UNMAPPED: Self = Self::Away(Location::Nowhere);

    /// Decodes a word.
    pub const fn decode(word: u64) -> Self {
        match word & TAG {
            TAG_IN_FLIGHT => Self::InFlight(FrameId((word & FRAME) as u32)),
            TAG_RESIDENT => Self::Resident(Resident {
                frame: FrameId((word & FRAME) as u32),
                pins: ((word / PIN) & PINS_MAX) as u32,
                dirty: word & DIRTY != 0,
                used: word & USED != 0,
            }),
            TAG_AWAY if word & ZERO != 0 => {
                Self::Away(Location::Zero(ZeroId((word & FRAME) as u32)))
            }
            TAG_AWAY => Self::Away(Location::Media(Pba(word & PBA))),
            _ => Self::UNMAPPED,
        }
    }

    /// Encodes the state.
    pub const fn encode(self) -> u64 {
        match self {
            Self::Away(Location::Nowhere) => 0,
            Self::Away(Location::Zero(id)) => TAG_AWAY | ZERO | id.0 as u64,
            Self::Away(Location::Media(pba)) => TAG_AWAY | pba.0,
            Self::InFlight(frame) => TAG_IN_FLIGHT | frame.0 as u64,
            Self::Resident(r) => {
                let dirty = if r.dirty { DIRTY } else { 0 };
                let used = if r.used { USED } else { 0 };
                TAG_RESIDENT | used | dirty | (r.pins as u64 * PIN) | r.frame.0 as u64
            }
        }
    }

    /// A fresh resident page.
    pub const fn resident(frame: FrameId, pins: u32, dirty: bool) -> Self {
        Self::Resident(Resident {
            frame,
            pins,
            dirty,
            used: true,
        })
    }
}

/// An atomic word; the model checker brings its own.
pub trait Word {
    /// A word with this value.
    fn new(value: u64) -> Self;
    /// Reads the word, sequentially consistent.
    fn load(&self) -> u64;
    /// Compare-and-swap, sequentially consistent.
    fn swap_if(&self, current: u64, new: u64) -> Result<u64, u64>;
}

impl Word for AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }
    fn load(&self) -> u64 {
        self.load(Ordering::SeqCst)
    }
    fn swap_if(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }
}

/// What an unpin found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpinned {
    /// Done. `now_dirty`: this call turned a clean page dirty. `last`: nobody holds the page any more.
    Done {
        /// The page was clean and is dirty now.
        now_dirty: bool,
        /// The last pin is gone.
        last: bool,
    },
    /// The entry does not hold this frame any more: it was trimmed while pinned, and its pins are kept elsewhere.
    Detached,
}

/// A map entry.
#[derive(Debug)]
pub struct Entry<W = AtomicU64>(W);

impl<W: Word> Default for Entry<W> {
    fn default() -> Self {
        Self(W::new(0))
    }
}

impl<W: Word> Entry<W> {
    /// What it says now.
    pub fn state(&self) -> State {
        State::decode(self.0.load())
    }

    /// Pins the page if it is resident. One compare-and-swap when nobody interferes.
    pub fn pin(&self) -> Option<FrameId> {
        let mut word = self.0.load();
        loop {
            if word & TAG != TAG_RESIDENT {
                return None;
            }
            assert!((word / PIN) & PINS_MAX < PINS_MAX, "pin count overflow");
            match self.0.swap_if(word, (word + PIN) | USED) {
                Ok(_) => return Some(FrameId((word & FRAME) as u32)),
                Err(seen) => word = seen,
            }
        }
    }

    /// Gives a pin on `frame` back, marking the page dirty first when `wrote`.
    pub fn unpin(&self, frame: FrameId, wrote: bool) -> Unpinned {
        let mut word = self.0.load();
        loop {
            if word & TAG != TAG_RESIDENT || word & FRAME != frame.0 as u64 {
                return Unpinned::Detached;
            }
            let pins = (word / PIN) & PINS_MAX;
            assert!(pins > 0, "unpin without pin");
            let dirty = if wrote { DIRTY } else { 0 };
            match self.0.swap_if(word, (word - PIN) | dirty) {
                Ok(_) => {
                    return Unpinned::Done {
                        now_dirty: wrote && word & DIRTY == 0,
                        last: pins == 1,
                    };
                }
                Err(seen) => word = seen,
            }
        }
    }

    /// Replaces the entry whatever those without the lock do meanwhile; returns the last state before. Lock held.
    pub fn replace(&self, new: State) -> State {
        let mut word = self.0.load();
        loop {
            match self.0.swap_if(word, new.encode()) {
                Ok(_) => return State::decode(word),
                Err(seen) => word = seen,
            }
        }
    }

    /// What is remembered of the updates of a grain on the media; of others nothing is remembered here.
    pub fn heat(&self) -> Heat {
        self.known().1
    }

    /// State and heat at the same moment.
    pub fn known(&self) -> (State, Heat) {
        let word = self.0.load();
        let state = State::decode(word);
        let heat = match state {
            State::Away(Location::Media(_)) => Heat::new((word >> PBA_BITS) as u32),
            _ => Heat::UNKNOWN,
        };
        (state, heat)
    }

    /// Makes the entry say that the grain is at `location`, and on the media with this past. Lock held.
    pub fn settle(&self, location: Location, heat: Heat) {
        let new = away(location, heat);
        let mut word = self.0.load();
        while let Err(seen) = self.0.swap_if(word, new) {
            word = seen;
        }
    }

    /// Turns a clean page without pins into `location`; gives it a second chance if it was used, unless `force`.
    /// Lock held.
    pub fn evict(&self, frame: FrameId, location: Location, heat: Heat, force: bool) -> bool {
        let word = self.0.load();
        let State::Resident(r) = State::decode(word) else {
            return false;
        };
        if r.frame != frame || r.pins != 0 || r.dirty {
            return false;
        }
        if r.used && !force {
            // A lost race means somebody uses it: fine as well.
            let _ = self.0.swap_if(word, word & !USED);
            return false;
        }
        self.0.swap_if(word, away(location, heat)).is_ok()
    }

    /// Puts a resident page that nobody holds out of reach, and returns what it was; who wants it asks the core. None:
    /// somebody holds it. Lock held.
    pub fn seize(&self) -> Option<Resident> {
        let mut word = self.0.load();
        loop {
            let State::Resident(page) = State::decode(word) else {
                return None;
            };
            if page.pins > 0 {
                return None;
            }
            match self.0.swap_if(word, State::InFlight(page.frame).encode()) {
                Ok(_) => return Some(page),
                Err(seen) => word = seen,
            }
        }
    }

    /// Sets the dirty mark of `frame`; false if it was there, or the page is not. Lock held.
    pub fn soil(&self, frame: FrameId) -> bool {
        let mut word = self.0.load();
        loop {
            if word & TAG != TAG_RESIDENT || word & FRAME != frame.0 as u64 || word & DIRTY != 0 {
                return false;
            }
            match self.0.swap_if(word, word | DIRTY) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
    }

    /// Clears the dirty mark of `frame`; false if it was not there. Done before the bytes are copied, so that a
    /// write put later marks the page again. Lock held.
    pub fn clean(&self, frame: FrameId) -> bool {
        let mut word = self.0.load();
        loop {
            if word & TAG != TAG_RESIDENT || word & FRAME != frame.0 as u64 || word & DIRTY == 0 {
                return false;
            }
            match self.0.swap_if(word, word & !DIRTY) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
    }
}

/// The word of a grain away from the pool.
fn away(location: Location, heat: Heat) -> u64 {
    let word = State::Away(location).encode();
    match location {
        Location::Media(_) => word | u64::from(heat.bits()) << PBA_BITS,
        Location::Nowhere | Location::Zero(_) => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every state survives encoding (I4: a location never turns into another).
    #[test]
    fn round_trip() {
        for state in [
            State::UNMAPPED,
            State::Away(Location::Zero(ZeroId(0))),
            State::Away(Location::Zero(ZeroId(u32::MAX))),
            State::Away(Location::Media(Pba(0))),
            State::Away(Location::Media(Pba((1 << 39) - 1))),
            State::InFlight(FrameId(0)),
            State::InFlight(FrameId(u32::MAX)),
            State::resident(FrameId(7), 0, false),
            State::resident(FrameId(u32::MAX), PINS_MAX as u32, true),
        ] {
            assert_eq!(State::decode(state.encode()), state);
        }
    }

    /// A pinned, used or dirty page stays; one that is none of these leaves after its second chance.
    #[test]
    fn eviction_needs_clean_and_unpinned() {
        let entry = Entry::<AtomicU64>::default();
        let there = Location::Media(Pba(9));
        let heat = Heat::new(0x2a_aaaa);
        entry.replace(State::resident(FrameId(1), 0, false));
        assert_eq!(entry.pin(), Some(FrameId(1)));
        assert!(!entry.evict(FrameId(1), there, heat, false));
        let done = Unpinned::Done {
            now_dirty: true,
            last: true,
        };
        assert_eq!(entry.unpin(FrameId(1), true), done);
        assert!(!entry.evict(FrameId(1), there, heat, false));
        assert!(entry.clean(FrameId(1)));
        assert!(
            !entry.evict(FrameId(1), there, heat, false),
            "second chance"
        );
        assert!(entry.evict(FrameId(1), there, heat, false));
        assert_eq!(entry.state(), State::Away(there));
        assert_eq!(entry.heat(), heat);
        assert_eq!(entry.pin(), None);
        assert_eq!(entry.unpin(FrameId(1), false), Unpinned::Detached);
    }
}
