//! The memory of the pool: one range of addresses, handed out by the grain. The one place that touches raw page memory.
//!
//! It lies in huge pages where the system has them: slots beside each other are then beside each other for the device, too, so
//! that a read or write of many of them names few pieces, and the processor needs few entries to find them. Behind it comes room
//! for memory files of others ([`Arena::lay`]): a slot there has the page of such a file.
//!
//! Rules of the memory: a slot belongs to whoever the engine says (a page's pin holders, a write-out being
//! assembled, a media operation). Holders of one page may copy in and out at the same time, as remote peers do; they
//! then see a mix of old and new bytes of *this page*, never anything else. So all access is by copy through raw
//! pointers, and no reference to memory that others may write is ever made. A media operation owns its slots alone
//! until its completion.

use super::digest::digest;
use crate::addr::GRAIN_BYTES;
use crate::device::IoBuf;
use memmap2::{Advice, MmapOptions, MmapRaw};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Index of a grain of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) u32);

impl Slot {
    /// The slot `n` further on.
    pub(crate) const fn plus(self, n: usize) -> Self {
        Self(self.0 + n as u32)
    }
}

/// Smallest arena for which huge pages are asked; less would rather waste them.
const HUGE_FROM_BYTES: usize = 8 << 20;

/// A fixed number of grains of zeroed memory.
#[derive(Debug)]
pub(crate) struct Arena {
    map: MmapRaw,
    slots: usize,
    /// Slots in front of those that memory files of others can be laid under.
    own: usize,
}

impl Arena {
    /// `own` slots, and `room` for memory files of others.
    pub(crate) fn new(own: usize, room: usize) -> io::Result<Self> {
        let slots = own + room;
        let map = MmapOptions::new().len(slots * GRAIN_BYTES).map_anon()?;
        let map = MmapRaw::from(map);
        // A process that is forked while a device reads into a page would share that page, and whoever writes to it then
        // gets a copy that lacks what comes later: kernels before 6.5 do not know of such reads. A child starts a program
        // and needs none of this.
        map.advise(Advice::DontFork)?;
        if own * GRAIN_BYTES >= HUGE_FROM_BYTES {
            // Without huge pages it works as well.
            let _ = map.advise_range(Advice::HugePage, 0, own * GRAIN_BYTES);
        }
        Ok(Self { map, slots, own })
    }

    /// Lays the `count` pages of a memory file from page `at` on under slots of the room. From now on these pages are the
    /// slots' memory. The file must be as long, and must not get shorter before the slots are [taken off](Self::take_off).
    pub(crate) fn lay(&self, slot: Slot, count: usize, file: &File, at: u64) -> io::Result<()> {
        self.replace(slot, count, Some((file, at * GRAIN_BYTES as u64)))
    }

    /// Gives slots of the room fresh memory of their own. What still looks at them sees zeros.
    pub(crate) fn take_off(&self, slot: Slot, count: usize) -> io::Result<()> {
        self.replace(slot, count, None)
    }

    fn replace(&self, slot: Slot, count: usize, by: Option<(&File, u64)>) -> io::Result<()> {
        assert!(slot.0 as usize >= self.own, "memory of the engine's own");
        let start = self.at(slot, 0, count * GRAIN_BYTES);
        let (flags, fd, offset) = match by {
            Some((file, offset)) => (libc::MAP_SHARED, file.as_raw_fd(), offset),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        };
        // SAFETY: replaces pages inside of the mapping (checked) that no operation of the engine's own memory uses. They
        // stay readable and writable throughout, so whoever holds one of them (a page of a file that was cut) may go on.
        let placed = unsafe {
            libc::mmap(
                start.cast(),
                count * GRAIN_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                flags | libc::MAP_FIXED,
                fd,
                offset as libc::off_t,
            )
        };
        match placed == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => Ok(()),
        }
    }

    /// Start and length of the whole mapping.
    pub(crate) fn region(&self) -> (*mut u8, usize) {
        (self.map.as_mut_ptr(), self.slots * GRAIN_BYTES)
    }

    /// Address of `len` bytes at `offset` of `slot`, checked.
    fn at(&self, slot: Slot, offset: usize, len: usize) -> *mut u8 {
        let start = slot.0 as usize * GRAIN_BYTES + offset;
        assert!(
            start + len <= self.slots * GRAIN_BYTES,
            "outside of the pool"
        );
        // SAFETY: `start` lies inside the mapping, checked above.
        unsafe { self.map.as_mut_ptr().add(start) }
    }

    /// First byte of a slot.
    pub(crate) fn ptr(&self, slot: Slot) -> *mut u8 {
        self.at(slot, 0, GRAIN_BYTES)
    }

    pub(crate) fn copy_out(&self, slot: Slot, offset: usize, to: &mut [u8]) {
        let from = self.at(slot, offset, to.len());
        // SAFETY: `from` is valid for the length (checked) and the mapping is never lent as a slice, so no overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    pub(crate) fn append_to(&self, slot: Slot, offset: usize, len: usize, out: &mut Vec<u8>) {
        let from = self.at(slot, offset, len);
        out.reserve(len);
        let old = out.len();
        // SAFETY: `from` is valid for the length (checked), `out` has room for it behind its end, and the two do not
        // overlap because the mapping is never lent as a `Vec`. The new bytes are initialised by the copy.
        unsafe {
            std::ptr::copy_nonoverlapping(from, out.as_mut_ptr().add(old), len);
            out.set_len(old + len);
        }
    }

    pub(crate) fn copy_in(&self, slot: Slot, offset: usize, from: &[u8]) {
        let to = self.at(slot, offset, from.len());
        // SAFETY: `to` is valid for the length (checked) and the mapping is never lent as a slice, so no overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    /// Replaces the eight bytes at `offset` by what `change` makes of them, if anything; returns what they were. One atomic
    /// instruction, tried again when somebody else was faster.
    pub(crate) fn fetch_update(
        &self,
        slot: Slot,
        offset: usize,
        change: impl FnMut(u64) -> Option<u64>,
    ) -> u64 {
        let word = self.at(slot, offset, size_of::<u64>()).cast::<u64>();
        assert!(word.is_aligned(), "atomic operation on aligned bytes");
        // SAFETY: valid for eight bytes (checked) and aligned (checked); the mapping outlives the borrow, and nobody else
        // makes references to it but such as this one.
        let word = unsafe { AtomicU64::from_ptr(word) };
        match word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change) {
            Ok(old) | Err(old) => old,
        }
    }

    /// Copies one grain to another slot.
    pub(crate) fn copy_slot(&self, from: Slot, to: Slot) {
        assert_ne!(from, to, "a slot is not copied to itself");
        let (from, to) = (self.ptr(from), self.ptr(to));
        // SAFETY: both are whole slots inside the mapping, and different ones do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, GRAIN_BYTES) }
    }

    pub(crate) fn zero(&self, slot: Slot) {
        let to = self.ptr(slot);
        // SAFETY: a whole slot inside the mapping.
        unsafe { std::ptr::write_bytes(to, 0, GRAIN_BYTES) }
    }

    /// CRC-32 of a slot that nobody writes now: the engine owns it (staged, or just read and not yet published).
    pub(crate) fn crc(&self, slot: Slot) -> u32 {
        let from = self.ptr(slot);
        // SAFETY: a whole slot inside the mapping that nobody writes (contract above), so it may be borrowed.
        crc32fast::hash(unsafe { std::slice::from_raw_parts(from, GRAIN_BYTES) })
    }

    /// A digest of a slot that others may write meanwhile: then it is that of some mix.
    pub(crate) fn digest(&self, slot: Slot) -> u64 {
        let mut bytes = [0; GRAIN_BYTES];
        self.copy_out(slot, 0, &mut bytes);
        digest(&bytes)
    }

    /// The content of a slot that nobody writes now.
    pub(crate) fn bytes(&self, slot: Slot) -> Box<[u8; GRAIN_BYTES]> {
        let mut bytes = Box::new([0; GRAIN_BYTES]);
        self.copy_out(slot, 0, &mut bytes[..]);
        bytes
    }

    /// Lends `count` slots for a media operation. The caller has taken them out of every other use.
    pub(crate) fn lend(&self, slot: Slot, count: usize) -> IoBuf {
        let start = self.at(slot, 0, count * GRAIN_BYTES);
        let start = NonNull::new(start).expect("a mapping does not start at 0");
        // SAFETY: the slots are valid and the engine uses them for this operation alone until its completion.
        unsafe { IoBuf::new(start, count * GRAIN_BYTES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Children do not get the memory of the pool (`dc` in the flags of smaps): a page that a device reads into stays ours.
    #[test]
    fn children_do_not_share_it() {
        let arena = Arena::new(4, 4).unwrap();
        let start = arena.region().0 as u64;
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut here = false;
        for line in smaps.lines() {
            let range = line.split(' ').next().and_then(|word| word.split_once('-'));
            let range = range
                .map(|(from, to)| [from, to].map(|number| u64::from_str_radix(number, 16).ok()));
            if let Some([Some(from), Some(to)]) = range {
                here = (from..to).contains(&start);
            } else if here && let Some(flags) = line.strip_prefix("VmFlags:") {
                assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{line}");
                return;
            }
        }
        panic!("{start:x} is in no mapping");
    }
}
