//! The table of snapshots: one grain, 32 entries by slot.

use super::slot::{SNAPSHOTS_MAX, Slot};
use crate::addr::GRAIN_BYTES;
use crate::format::GrainBytes;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Most bytes of a name.
pub const NAME_MAX: usize = 96;
const ENTRY_BYTES: usize = 128;
const STATE_THERE: u8 = 1;
const STATE_DYING: u8 = 2;

/// Little-endian.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawEntry {
    number: U64,
    created_ns: U64,
    state: u8,
    name_len: u8,
    reserved: [u8; 6],
    name: [u8; NAME_MAX],
    crc: U32,
    reserved_too: U32,
}
const _: () = assert!(size_of::<RawEntry>() == ENTRY_BYTES);

/// A snapshot, as its users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Of all that were made, the how manieth. Not used again while the volume is open; later, if the latest have been deleted.
    pub number: u64,
    /// Its place.
    pub slot: Slot,
    /// When it was made, Unix nanoseconds.
    pub created_ns: u64,
    /// What its maker calls it.
    pub name: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    There,
    Dying,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) slot: Slot,
    pub(super) created_ns: u64,
    pub(super) state: State,
    pub(super) name: Vec<u8>,
}

impl Entry {
    /// What is known of one that can not be read: it is as if dying.
    fn damaged(slot: Slot) -> Self {
        Self {
            number: 0,
            slot,
            created_ns: 0,
            state: State::Dying,
            name: Vec::new(),
        }
    }

    pub(super) fn shown(&self) -> Snapshot {
        Snapshot {
            number: self.number,
            slot: self.slot,
            created_ns: self.created_ns,
            name: self.name.clone(),
        }
    }
}

/// All entries, by slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) entries: [Option<Entry>; SNAPSHOTS_MAX],
    /// The highest number ever read or given.
    last_number: u64,
}

/// Whether a snapshot can be called so.
pub(super) fn is_name(name: &[u8]) -> bool {
    let is_plain = !name.iter().any(|&byte| byte == b'/' || byte == 0);
    (1..=NAME_MAX).contains(&name.len()) && is_plain && name != b"." && name != b".."
}

impl Table {
    /// Oldest first.
    pub(super) fn by_age(&self) -> Vec<&Entry> {
        let mut all: Vec<&Entry> = self.entries.iter().flatten().collect();
        all.sort_by_key(|e| e.number);
        all
    }

    pub(super) fn free_slot(&self) -> Option<Slot> {
        let free = self.entries.iter().position(Option::is_none)?;
        Slot::new(free)
    }

    pub(super) fn next_number(&self) -> u64 {
        let numbers = self.entries.iter().flatten().map(|e| e.number);
        numbers.max().unwrap_or(0).max(self.last_number) + 1
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, slot: Slot) {
        self.last_number = self.next_number() - 1;
        self.entries[slot.index()] = None;
    }

    /// Reads the grain. What makes no sense is as if dying: nothing is kept for it, and its slot is not used before it has
    /// been emptied.
    pub(super) fn parse(bytes: &GrainBytes) -> Self {
        let mut table = Self::default();
        for (index, bytes) in bytes.chunks_exact(ENTRY_BYTES).enumerate() {
            let slot = Slot::new(index);
            if let Some(slot) = slot
                && bytes.iter().any(|&byte| byte != 0)
            {
                let entry = parse_entry(slot, bytes);
                table.entries[index] = Some(entry.unwrap_or(Entry::damaged(slot)));
            }
        }
        table
    }

    /// Whether an entry makes no sense, and nobody has noticed before.
    pub(super) fn is_damaged(bytes: &GrainBytes) -> bool {
        *bytes != *Self::parse(bytes).emit()
    }

    /// What is left when the grain can not be read: these slots hold something, of whatever. All of it goes.
    pub(super) fn lost(used: impl IntoIterator<Item = Slot>) -> Self {
        let mut table = Self::default();
        for slot in used {
            table.entries[slot.index()] = Some(Entry::damaged(slot));
        }
        table
    }

    /// A snapshot can not be told any more, nor can those that are older, of which the younger ones say what has not
    /// changed since. Whether one of them was there.
    pub(super) fn give_up(&mut self, slot: Slot) -> bool {
        let number = self.entries[slot.index()].as_ref().map(|e| e.number);
        let mut was_there = false;
        for entry in self.entries.iter_mut().flatten() {
            if Some(entry.number) <= number {
                was_there |= entry.state == State::There;
                entry.state = State::Dying;
            }
        }
        was_there
    }

    /// Writes the grain.
    pub(super) fn emit(&self) -> Box<GrainBytes> {
        let mut bytes: Box<GrainBytes> = Box::new([0; GRAIN_BYTES]);
        for (entry, to) in self.entries.iter().zip(bytes.chunks_exact_mut(ENTRY_BYTES)) {
            let Some(entry) = entry else { continue };
            let mut name = [0; NAME_MAX];
            name[..entry.name.len()].copy_from_slice(&entry.name);
            let mut raw = RawEntry {
                number: entry.number.into(),
                created_ns: entry.created_ns.into(),
                state: match entry.state {
                    State::There => STATE_THERE,
                    State::Dying => STATE_DYING,
                },
                name_len: entry.name.len() as u8,
                reserved: [0; 6],
                name,
                crc: 0.into(),
                reserved_too: 0.into(),
            };
            raw.crc = crc(entry.slot, raw.as_bytes()).into();
            to.copy_from_slice(raw.as_bytes());
        }
        bytes
    }
}

fn crc(slot: Slot, entry: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&(slot.index() as u64).to_le_bytes());
    hasher.update(&entry[..120]);
    hasher.finalize()
}

fn parse_entry(slot: Slot, bytes: &[u8]) -> Option<Entry> {
    let raw = RawEntry::ref_from_bytes(bytes).ok()?;
    let state = match raw.state {
        STATE_THERE => State::There,
        STATE_DYING => State::Dying,
        _ => return None,
    };
    let name = raw.name.get(..usize::from(raw.name_len))?;
    let fits = raw.crc.get() == crc(slot, bytes);
    let is_possible = (1..u64::MAX / 2).contains(&raw.number.get());
    let is_called = is_name(name) || state == State::Dying;
    (fits && is_possible && is_called).then(|| Entry {
        number: raw.number.get(),
        slot,
        created_ns: raw.created_ns.get(),
        state,
        name: name.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: usize, number: u64, state: State) -> Entry {
        Entry {
            number,
            slot: Slot::new(index).expect("a slot"),
            created_ns: 99,
            state,
            name: format!("n{number}").into_bytes(),
        }
    }

    /// What is written is read; numbers go on; a damaged entry is one that is being deleted, and the others are what they
    /// were (I7).
    #[test]
    fn round_trip_and_damage() {
        let mut table = Table::default();
        for (index, number, state) in [
            (0, 7, State::There),
            (3, 2, State::Dying),
            (31, 9, State::There),
        ] {
            table.entries[index] = Some(entry(index, number, state));
        }
        let mut bytes = table.emit();
        assert_eq!(Table::parse(&bytes), table);
        assert!(!Table::is_damaged(&bytes));
        assert_eq!((table.next_number(), table.free_slot()), (10, Slot::new(1)));
        let ages: Vec<u64> = table.by_age().iter().map(|e| e.number).collect();
        assert_eq!(ages, [2, 7, 9]);
        bytes[31 * ENTRY_BYTES + 30] ^= 1;
        let found = Table::parse(&bytes);
        assert!(Table::is_damaged(&bytes));
        assert!(!Table::is_damaged(&found.emit()));
        assert_eq!(found.entries[..31], table.entries[..31]);
        let damaged = found.entries[31].as_ref().expect("an entry");
        assert_eq!((damaged.number, damaged.state), (0, State::Dying));
        table.remove(Slot::new(31).expect("a slot"));
        assert_eq!(table.next_number(), 10);
    }

    /// Names that a directory can not show are refused.
    #[test]
    fn names() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; NAME_MAX + 1]] {
            assert!(!is_name(bad));
        }
        for good in [&b"a"[..], b"...", &[0xff; NAME_MAX]] {
            assert!(is_name(good));
        }
    }
}
