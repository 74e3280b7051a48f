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
//!   0  0  | 0                                                               Unmapped
//!   0  0  | 60: zero record id                                              Zero
//!   0  0  | 61: 60..39 heat, 38..0 physical address                         Media, from 2^32 (16 TiB) on
//!   0  1  | 61..54 check byte, 53..32 heat, 31..0 physical address          Media
//!   1  0  | 61..54 check byte, 29..0 frame                                  InFlight
//!   1  1  | 61..54 check byte, 53 used, 52 dirty, 51..30 pins, 29..0 frame  Resident
//! ```
//!
//! The *check byte* is a part of the grain's checksum for which there is room here ([`super::Leaf`] has the rest). It goes
//! along from state to state as far as states have room for it.
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

impl Location {
    /// Whether its entry has no room for a check byte.
    pub(crate) const fn is_far(self) -> bool {
        matches!(self, Self::Media(pba) if pba.0 > NEAR_PBA)
    }
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
    /// Pinned since it was brought in, or since the clock hand last passed.
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
const TAG_NEAR: u64 = 1 << 62;
const TAG_IN_FLIGHT: u64 = 2 << 62;
const TAG_RESIDENT: u64 = 3 << 62;
const ZERO: u64 = 1 << 60;
const ZERO_ID: u64 = (1 << 32) - 1;
const FAR: u64 = 1 << 61;
/// Width of a physical address.
pub(crate) const PBA_BITS: u32 = 61 - Heat::BITS;
const FAR_PBA: u64 = (1 << PBA_BITS) - 1;
const NEAR_PBA_BITS: u32 = 32;
const NEAR_PBA: u64 = (1 << NEAR_PBA_BITS) - 1;
const CHECK_AT: u32 = 54;
const CHECK: u64 = 0xff << CHECK_AT;
const _: () = assert!(NEAR_PBA_BITS + Heat::BITS == CHECK_AT && PBA_BITS + Heat::BITS == 61);
const USED: u64 = 1 << 53;
const DIRTY: u64 = 1 << 52;
const PIN: u64 = 1 << FRAME_BITS;
const PINS_MAX: u64 = (1 << 22) - 1;
/// Width of the index of a frame.
pub(crate) const FRAME_BITS: u32 = 30;
const FRAME: u64 = (1 << FRAME_BITS) - 1;

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
            TAG_NEAR => Self::Away(Location::Media(Pba(word & NEAR_PBA))),
            _ if word & FAR != 0 => Self::Away(Location::Media(Pba(word & FAR_PBA))),
            _ if word & ZERO != 0 => Self::Away(Location::Zero(ZeroId((word & ZERO_ID) as u32))),
            _ => Self::UNMAPPED,
        }
    }

    /// Encodes the state.
    pub const fn encode(self) -> u64 {
        match self {
            Self::Away(Location::Nowhere) => 0,
            Self::Away(Location::Zero(id)) => ZERO | id.0 as u64,
            Self::Away(at @ Location::Media(pba)) if at.is_far() => FAR | pba.0,
            Self::Away(Location::Media(pba)) => TAG_NEAR | pba.0,
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
            // What nobody asks for again is gone when its turn comes: reading much once does not push out what is used.
            used: false,
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

    /// Gives a pin on `frame` back if the page is dirty already, or has gone; `None` leaves it as it is.
    pub fn unpin_dirty(&self, frame: FrameId) -> Option<Unpinned> {
        let mut word = self.0.load();
        loop {
            if word & TAG != TAG_RESIDENT || word & FRAME != frame.0 as u64 {
                return Some(Unpinned::Detached);
            }
            if word & DIRTY == 0 {
                return None;
            }
            let pins = (word / PIN) & PINS_MAX;
            assert!(pins > 0, "unpin without pin");
            match self.0.swap_if(word, word - PIN) {
                Ok(_) => {
                    return Some(Unpinned::Done {
                        now_dirty: false,
                        last: pins == 1,
                    });
                }
                Err(seen) => word = seen,
            }
        }
    }

    /// Replaces the entry whatever those without the lock do meanwhile; returns the last state before. Lock held.
    pub fn replace(&self, new: State) -> State {
        State::decode(self.become_word(new.encode()))
    }

    /// Replaces the word, but for the check byte; returns what it was.
    fn become_word(&self, new: u64) -> u64 {
        let mut word = self.0.load();
        loop {
            match self.0.swap_if(word, after(word, new)) {
                Ok(_) => return word,
                Err(seen) => word = seen,
            }
        }
    }

    /// The check byte; none where there is no room for it. Lock held.
    pub(crate) fn check_byte(&self) -> Option<u8> {
        let word = self.0.load();
        (word & TAG != 0).then_some((word >> CHECK_AT) as u8)
    }

    /// Changes the check byte; false where there is no room for it. Lock held.
    pub(crate) fn set_check_byte(&self, byte: u8) -> bool {
        let mut word = self.0.load();
        while word & TAG != 0 {
            let new = word & !CHECK | u64::from(byte) << CHECK_AT;
            match self.0.swap_if(word, new) {
                Ok(_) => return true,
                Err(seen) => word = seen,
            }
        }
        false
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
            State::Away(at @ Location::Media(_)) => Heat::new((word >> heat_at(at)) as u32),
            _ => Heat::UNKNOWN,
        };
        (state, heat)
    }

    /// Makes the entry say that the grain is at `location`, and on the media with this past. Lock held.
    pub fn settle(&self, location: Location, heat: Heat) {
        self.become_word(away(location, heat));
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
        self.0
            .swap_if(word, after(word, away(location, heat)))
            .is_ok()
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
            let new = State::InFlight(page.frame).encode();
            match self.0.swap_if(word, after(word, new)) {
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
        Location::Media(_) => word | u64::from(heat.bits()) << heat_at(location),
        Location::Nowhere | Location::Zero(_) => word,
    }
}

/// Where the heat of a grain on the media is.
const fn heat_at(location: Location) -> u32 {
    match location.is_far() {
        true => PBA_BITS,
        false => NEAR_PBA_BITS,
    }
}

/// A new word with the check byte of the old one, if both have room for it.
const fn after(old: u64, new: u64) -> u64 {
    if old & TAG == 0 || new & TAG == 0 {
        return new;
    }
    new & !CHECK | old & CHECK
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
            State::Away(Location::Media(Pba(NEAR_PBA))),
            State::Away(Location::Media(Pba(NEAR_PBA + 1))),
            State::Away(Location::Media(Pba((1 << 39) - 1))),
            State::InFlight(FrameId(0)),
            State::InFlight(FrameId(FRAME as u32)),
            State::resident(FrameId(7), 0, false),
            State::resident(FrameId(FRAME as u32), PINS_MAX as u32, true),
        ] {
            assert_eq!(State::decode(state.encode()), state);
            let entry = Entry::<AtomicU64>::default();
            entry.replace(state);
            let has_room = entry.set_check_byte(0xa5);
            assert_eq!(entry.state(), state, "the check byte is apart");
            assert_eq!(entry.check_byte(), has_room.then_some(0xa5));
        }
    }

    /// Whatever a page goes through, the check byte of its grain stays, and changes nothing else (I4).
    #[test]
    fn check_byte_goes_along() {
        let entry = Entry::<AtomicU64>::default();
        let (here, there) = (Location::Media(Pba(9)), Location::Media(Pba(NEAR_PBA)));
        let heat = Heat::new(0x3f_ffff);
        entry.settle(here, heat);
        assert!(entry.set_check_byte(0xc3));
        assert_eq!(entry.known(), (State::Away(here), heat));
        entry.replace(State::InFlight(FrameId(3)));
        entry.replace(State::resident(FrameId(3), 0, true));
        assert_eq!(entry.pin(), Some(FrameId(3)));
        assert!(entry.clean(FrameId(3)));
        assert!(entry.soil(FrameId(3)));
        entry.unpin(FrameId(3), true);
        assert!(entry.clean(FrameId(3)));
        let page = entry.seize().expect("nobody holds it");
        entry.replace(State::Resident(page));
        assert!(entry.evict(FrameId(3), there, heat, true));
        assert_eq!(entry.known(), (State::Away(there), heat));
        assert_eq!(entry.check_byte(), Some(0xc3));
        let far = Location::Media(Pba(NEAR_PBA + 1));
        entry.settle(far, heat);
        assert_eq!(entry.known(), (State::Away(far), heat));
        assert_eq!(entry.check_byte(), None);
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
