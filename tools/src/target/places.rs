//! Where registered files lie: the way from a backing to an LBA, and how it changes under those who use it.
//!
//! A region names its file, not the place of the file: its backing is a slot of this table, one for each file that has
//! regions, and the slot says where the file begins. So a file may be relocated while peers access it, and the data path
//! pays one load for it. `tools/docs/regions.md` has the argument.
//!
//! ```text
//!   attach                  hold                       settle(somewhere)
//!  ───────► At(lba) ─────────────────► Held ───────────────────────────────► At(lba')
//!              │                        │ settle(nowhere)
//!              │ last detach            └──────────────────────────────────► Lost
//!              └──────────► Gone, and drained; then the slot is another file's, of the next generation
//! ```
//!
//! # Invariants
//! - P1. Words are changed under the lock of the table only, and read without.
//! - P2. Between [`Places::hold`], once every reactor has said that it is drained, and [`Places::settle`] no reactor holds
//!   a page of the file or has asked for one: what it wants of it stalls.
//! - P3. A slot is not another file's before every reactor has said that nothing asked for through it is outstanding.
//! - P4. Several may hold a file at once (clones do, and who holds all); it settles with the last of them.

use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError};

#[cfg(not(test))]
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(test))]
use std::sync::{Mutex, MutexGuard};

// The tests of this file run it under many schedules.
#[cfg(test)]
use shuttle::sync::atomic::{AtomicU64, Ordering};
#[cfg(test)]
use shuttle::sync::{Mutex, MutexGuard};

use contigfs::InodeNo;
use ftl::Lba;
use softrdma::BackingId;
use softrdma::mem::region::REGIONS_MAX;

const CHUNK: usize = 4096;
/// Files that have regions at once.
const CHUNKS: usize = REGIONS_MAX.div_ceil(CHUNK);

/// Bits of an LBA in a word.
const LBA_BITS: u32 = 52;
const LBA_MASK: u64 = (1 << LBA_BITS) - 1;
const _: () = assert!(Lba::END.0 <= 1 << LBA_BITS);
/// Above it, how often the slot has been used. Who comes with the backing of an earlier use has a dead region, so a
/// generation that comes back after 1,024 uses lets nobody in.
const GENERATION_MASK: u64 = (1 << 10) - 1;
const HELD: u64 = 1 << 63;
const LOST: u64 = 1 << 62;

/// Where a file lies, as the data path needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Here is its first grain.
    At(Lba),
    /// Nobody may use it now.
    Held,
    /// Nobody can use it before the next mount.
    Lost,
    /// It has no regions any more.
    Gone,
}

#[derive(Debug)]
struct File {
    backing: BackingId,
    /// Regions that connections have open, and stored registrations.
    users: usize,
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<InodeNo, File>,
    /// How many hold a file, whether it has regions or not.
    holders: HashMap<InodeNo, usize>,
    /// How many hold all files.
    holders_of_all: usize,
    free: Vec<u32>,
    next: u32,
}

impl Table {
    fn is_held(&self, ino: InodeNo) -> bool {
        self.holders_of_all > 0 || self.holders.contains_key(&ino)
    }
}

/// The places of all registered files.
pub(super) struct Places {
    words: Box<[OnceLock<Box<[AtomicU64]>>]>,
    table: Mutex<Table>,
}

impl std::fmt::Debug for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Places").finish_non_exhaustive()
    }
}

impl Places {
    /// No files.
    pub(super) fn new() -> Self {
        Self {
            words: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            table: Mutex::new(Table::default()),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the file of a backing lies.
    pub(super) fn find(&self, backing: BackingId) -> Place {
        let slot = slot(backing);
        let Some(chunk) = self.words.get(slot / CHUNK).and_then(OnceLock::get) else {
            return Place::Gone;
        };
        // Who finds a place finds what was brought there before.
        let word = chunk[slot % CHUNK].load(Ordering::Acquire);
        if word >> LBA_BITS & GENERATION_MASK != backing.0 >> 32 {
            Place::Gone
        } else if word & HELD != 0 {
            Place::Held
        } else if word & LOST != 0 {
            Place::Lost
        } else {
            Place::At(Lba(word & LBA_MASK))
        }
    }

    /// A file that lies at `start` gets one more region, whose backing is the answer. The file must not move meanwhile.
    /// None: too many files have regions.
    pub(super) fn attach(&self, ino: InodeNo, start: Lba) -> Option<BackingId> {
        let mut table = self.table();
        if let Some(file) = table.files.get_mut(&ino) {
            file.users += 1;
            return Some(file.backing);
        }
        let slot = match table.free.pop() {
            Some(slot) => slot,
            None if (table.next as usize) < CHUNKS * CHUNK => {
                table.next += 1;
                table.next - 1
            }
            None => return None,
        };
        let word = self.word(slot as usize);
        let generation = word.load(Ordering::Relaxed) >> LBA_BITS & GENERATION_MASK;
        let held = if table.is_held(ino) { HELD } else { 0 };
        word.store(start.0 | generation << LBA_BITS | held, Ordering::Release);
        let backing = BackingId(u64::from(slot) | generation << 32);
        table.files.insert(ino, File { backing, users: 1 });
        Some(backing)
    }

    /// A region of each of these files has ended. Answers the backings of those that have none left: they are gone, and
    /// must be [freed](Self::free) when every reactor is drained of them.
    pub(super) fn detach(&self, files: &[InodeNo]) -> Vec<BackingId> {
        let mut table = self.table();
        let mut gone = Vec::new();
        for ino in files {
            let Some(file) = table.files.get_mut(ino) else {
                continue;
            };
            file.users -= 1;
            if file.users > 0 {
                continue;
            }
            let backing = file.backing;
            table.files.remove(ino);
            let next = ((backing.0 >> 32) + 1) & GENERATION_MASK;
            self.word(slot(backing))
                .store(HELD | next << LBA_BITS, Ordering::Release);
            gone.push(backing);
        }
        gone
    }

    /// The slots of these backings may be others'.
    pub(super) fn free(&self, gone: &[BackingId]) {
        let slots = gone.iter().map(|&backing| slot(backing) as u32);
        self.table().free.extend(slots);
    }

    /// Nobody may use a file from now on, if it has regions or not. Answers the backing that every reactor must be drained
    /// of, if there is one.
    pub(super) fn hold(&self, ino: InodeNo) -> Option<BackingId> {
        let mut table = self.table();
        *table.holders.entry(ino).or_default() += 1;
        let backing = table.files.get(&ino)?.backing;
        let word = self.word(slot(backing));
        let held = word.load(Ordering::Relaxed) | HELD;
        word.store(held, Ordering::Release);
        Some(backing)
    }

    /// One who held a file is done with it; it begins at `start`, or can not be used. Answers the backing that everybody
    /// may use again, if that was the last and there is one.
    pub(super) fn settle(&self, ino: InodeNo, start: Option<Lba>) -> Option<BackingId> {
        let mut table = self.table();
        let holders = table.holders.get_mut(&ino)?;
        *holders -= 1;
        if *holders == 0 {
            table.holders.remove(&ino);
        }
        let is_last = !table.is_held(ino);
        let backing = table.files.get(&ino)?.backing;
        let held = if is_last { 0 } else { HELD };
        let place = start.map_or(LOST, |lba| lba.0);
        let generation = backing.0 >> 32 << LBA_BITS;
        self.word(slot(backing))
            .store(place | generation | held, Ordering::Release);
        is_last.then_some(backing)
    }

    /// Nobody may use any file from now on; those that get their first region meanwhile neither. Every reactor must be drained of
    /// all of them.
    pub(super) fn hold_all(&self) {
        let mut table = self.table();
        table.holders_of_all += 1;
        for file in table.files.values() {
            let word = self.word(slot(file.backing));
            word.store(word.load(Ordering::Relaxed) | HELD, Ordering::Release);
        }
    }

    /// One who held all files is done. They lie where they lay, or where they settled meanwhile; everybody may use again those
    /// that nobody else holds.
    pub(super) fn let_all_go(&self) {
        let mut table = self.table();
        table.holders_of_all -= 1;
        for (&ino, file) in &table.files {
            if !table.is_held(ino) {
                let word = self.word(slot(file.backing));
                word.store(word.load(Ordering::Relaxed) & !HELD, Ordering::Release);
            }
        }
    }

    fn word(&self, slot: usize) -> &AtomicU64 {
        let chunk = self.words[slot / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| AtomicU64::new(0)).collect());
        &chunk[slot % CHUNK]
    }
}

fn slot(backing: BackingId) -> usize {
    backing.0 as u32 as usize
}

#[cfg(test)]
#[path = "places_schedules.rs"]
mod schedules;
