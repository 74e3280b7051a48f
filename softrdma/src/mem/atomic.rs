//! The atomic operations on eight bytes (RFC 7306 §5.1): what becomes of the old value.
//!
//! Fields travel big-endian; the operation runs in the byte order of this machine. The RFC promises atomicity among the
//! atomics of one endpoint; ours are atomic instructions of the CPU on the very bytes, so they are atomic against those
//! of local programs too.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that an atomic operation is about; its address is a multiple of this.
pub const ATOMIC_BYTES: usize = 8;

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Atomic {
    /// Adds. A bit of the mask marks the top of a field: the carry out of it is dropped.
    FetchAdd {
        /// Addend of each field.
        add: u64,
        /// Tops of fields; 0 for one field of 64 bits.
        mask: u64,
    },
    /// If the old value equals `compare` in the bits of `compare_mask`, replaces the bits of `swap_mask`.
    CompareSwap {
        /// Compared with the old value.
        compare: u64,
        /// Bits that count.
        compare_mask: u64,
        /// New bits.
        swap: u64,
        /// Bits that are replaced.
        swap_mask: u64,
    },
    /// Replaces all eight bytes at once (private profile).
    Write {
        /// The new value.
        value: u64,
    },
}

impl Atomic {
    /// The new value, if there is to be one.
    #[must_use]
    pub const fn apply(self, old: u64) -> Option<u64> {
        match self {
            Self::Write { value } => Some(value),
            // Below its top a field cannot carry out of itself, and in the tops adding without carry is XOR.
            Self::FetchAdd { add, mask } => {
                Some((old & !mask).wrapping_add(add & !mask) ^ ((old ^ add) & mask))
            }
            Self::CompareSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => {
                if (compare ^ old) & compare_mask == 0 {
                    Some((old & !swap_mask) | (swap & swap_mask))
                } else {
                    None
                }
            }
        }
    }

    /// The old value of eight bytes of this machine, and what they become.
    #[expect(
        clippy::host_endian_bytes,
        reason = "the operation runs in the byte order of the target memory"
    )]
    #[must_use]
    pub fn apply_bytes(self, bytes: [u8; ATOMIC_BYTES]) -> (u64, Option<[u8; ATOMIC_BYTES]>) {
        let old = u64::from_ne_bytes(bytes);
        (old, self.apply(old).map(u64::to_ne_bytes))
    }

    /// Carries it out; returns the old value.
    pub fn execute(self, word: &AtomicU64) -> u64 {
        let update = |old| self.apply(old);
        match word.fetch_update(Ordering::AcqRel, Ordering::Acquire, update) {
            Ok(old) | Err(old) => old,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds field by field, bit by bit, as the RFC's description does.
    fn slow_add(old: u64, add: u64, mask: u64) -> u64 {
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..64 {
            let digits = (old >> bit & 1) + (add >> bit & 1) + carry;
            sum |= (digits & 1) << bit;
            carry = if mask >> bit & 1 == 1 { 0 } else { digits >> 1 };
        }
        sum
    }

    #[test]
    fn fetch_add_drops_carries_at_field_tops() {
        let words = [
            0,
            1,
            u64::MAX,
            0x8000_0000_0000_0000,
            0x7fff_ffff_ffff_ffff,
            0x00ff_00ff_00ff_00ff,
            0x0123_4567_89ab_cdef,
            0x8080_8080_8080_8080,
        ];
        for old in words {
            for add in words {
                for mask in words {
                    let new = Atomic::FetchAdd { add, mask }.apply(old);
                    assert_eq!(
                        new,
                        Some(slow_add(old, add, mask)),
                        "{old:x} {add:x} {mask:x}"
                    );
                }
                let plain = Atomic::FetchAdd { add, mask: 0 }.apply(old);
                assert_eq!(plain, Some(old.wrapping_add(add)));
            }
        }
    }

    #[test]
    fn compare_swap_looks_and_writes_through_its_masks() {
        let swap = |compare, compare_mask, swap, swap_mask| Atomic::CompareSwap {
            compare,
            compare_mask,
            swap,
            swap_mask,
        };
        assert_eq!(swap(5, u64::MAX, 9, u64::MAX).apply(5), Some(9));
        assert_eq!(swap(5, u64::MAX, 9, u64::MAX).apply(6), None);
        assert_eq!(swap(0x05, 0x0f, 0xff, 0xf0).apply(0x15), Some(0xf5));
        assert_eq!(swap(0x05, 0xff, 0xff, 0xf0).apply(0x15), None);
        assert_eq!(swap(1, 0, 7, u64::MAX).apply(2), Some(7));
        let word = AtomicU64::new(3);
        assert_eq!(swap(4, u64::MAX, 9, u64::MAX).execute(&word), 3);
        assert_eq!(swap(3, u64::MAX, 9, u64::MAX).execute(&word), 3);
        assert_eq!(Atomic::FetchAdd { add: 1, mask: 0 }.execute(&word), 9);
        assert_eq!(word.into_inner(), 10);
    }
}
