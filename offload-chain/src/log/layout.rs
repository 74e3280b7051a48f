//! Where things are in the memory of a member: headers, locks, ring, data.

/// Each header has a block of its own, so that a cut while one is written leaves the other.
pub const HEADER_SLOT_BYTES: u64 = 4096;
/// How many headers there are.
pub const HEADER_SLOTS: u64 = 2;
/// Bytes of a lock word.
pub const LOCK_BYTES: u64 = 8;
/// Records start at multiples of it, and so does the ring.
pub const RECORD_ALIGN: u64 = 64;
/// Most locks a group can have.
pub const LOCKS_MAX: u32 = 1 << 16;
/// Most bytes a ring can have.
pub const RING_BYTES_MAX: u64 = 1 << 32;

const RING_BYTES_MIN: u64 = 256;
const BLOCK: u64 = 4096;

/// How the members' memory is divided. The same on all members, and offsets with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    locks: u32,
    ring_bytes: u64,
    data_bytes: u64,
}

/// A layout that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No lock, or too many.
    #[error("{0} locks: there must be 1 to {LOCKS_MAX}; lock 0 is the log's")]
    Locks(u32),
    /// The ring cannot have that size.
    #[error(
        "a ring of {0} bytes: it must be a multiple of {RECORD_ALIGN}, at least {RING_BYTES_MIN} and at most {RING_BYTES_MAX}"
    )]
    Ring(u64),
    /// More than there are offsets for.
    #[error("{0} bytes of data do not fit an address space")]
    Data(u64),
}

impl Layout {
    /// Room for `locks` locks, a ring and data.
    ///
    /// # Errors
    /// If one of them is out of bounds.
    pub fn new(locks: u32, ring_bytes: u64, data_bytes: u64) -> Result<Self, LayoutError> {
        if locks == 0 || locks > LOCKS_MAX {
            return Err(LayoutError::Locks(locks));
        }
        if !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes)
            || !ring_bytes.is_multiple_of(RECORD_ALIGN)
        {
            return Err(LayoutError::Ring(ring_bytes));
        }
        if data_bytes > 1 << 62 {
            return Err(LayoutError::Data(data_bytes));
        }
        Ok(Self {
            locks,
            ring_bytes,
            data_bytes,
        })
    }

    /// How many locks there are.
    #[must_use]
    pub fn locks(&self) -> u32 {
        self.locks
    }

    /// Where a header is. Slots are numbered from 0.
    #[must_use]
    pub fn header_at(slot: u64) -> u64 {
        slot % HEADER_SLOTS * HEADER_SLOT_BYTES
    }

    /// Where a lock word is.
    ///
    /// # Panics
    /// If there is no such lock.
    #[must_use]
    pub fn lock_at(&self, lock: u32) -> u64 {
        assert!(lock < self.locks, "lock {lock} of {}", self.locks);
        HEADER_SLOTS * HEADER_SLOT_BYTES + u64::from(lock) * LOCK_BYTES
    }

    /// Where the ring starts.
    #[must_use]
    pub fn ring_at(&self) -> u64 {
        let locks_end = HEADER_SLOTS * HEADER_SLOT_BYTES + u64::from(self.locks) * LOCK_BYTES;
        locks_end.next_multiple_of(BLOCK)
    }

    /// Bytes of the ring.
    #[must_use]
    pub fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// Where the data start.
    #[must_use]
    pub fn data_at(&self) -> u64 {
        (self.ring_at() + self.ring_bytes).next_multiple_of(BLOCK)
    }

    /// Bytes of data.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Bytes of all.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.data_at() + self.data_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_do_not_overlap() {
        let layout = Layout::new(3, 256, 100).unwrap();
        assert_eq!(Layout::header_at(0), 0);
        assert_eq!(Layout::header_at(1), 4096);
        assert_eq!(layout.lock_at(0), 8192);
        assert_eq!(layout.lock_at(2), 8208);
        assert_eq!(layout.ring_at(), 12288);
        assert_eq!(layout.data_at(), 16384);
        assert_eq!(layout.size(), 16484);
        assert_eq!(Layout::new(512, 4096, 0).unwrap().ring_at(), 12288);
        assert_eq!(Layout::new(513, 4096, 0).unwrap().ring_at(), 16384);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(Layout::new(0, 256, 0), Err(LayoutError::Locks(0)));
        assert_eq!(Layout::new(1, 192, 0), Err(LayoutError::Ring(192)));
        assert_eq!(Layout::new(1, 300, 0), Err(LayoutError::Ring(300)));
        let much = u64::MAX;
        assert_eq!(Layout::new(1, 256, much), Err(LayoutError::Data(much)));
    }
}
