//! Memory of this process that local code and remote peers read and write at the same time.
//!
//! A [`Buffer`] is one allocation with fixed place and size, its own or one that somebody else keeps. Peers may write it at any moment, so no reference into
//! it is ever given out: bytes are copied in and out through raw pointers, and a reader that races with a writer
//! sees some mixture of old and new bytes, as with any RDMA memory. This is the only place of the crate with `unsafe`.
//!
//! # Invariants
//! - B1. `start` points to `len` bytes, initialised, until the drop: within what was allocated at `own` with `layout(len)`, or kept by
//!   who handed them over. It is a multiple of 8.
//! - B2. Nobody holds a reference to these bytes, but for an atomic operation as an atomic.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::mem::atomic::{ATOMIC_BYTES, Atomic};
use crate::page::PAGE_BYTES;

/// Memory for regions, messages and READ data.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    /// What was allocated here, which starts somewhat before.
    own: Option<NonNull<u8>>,
}

// SAFETY: the memory is there for as long as the buffer is (B1), and has no thread affinity.
unsafe impl Send for Buffer {}
// SAFETY: all access is by raw copies without references (B2); racing copies may mix bytes, which is documented.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Page-aligned zeroed memory of `len` bytes. Much of it costs nothing until it is used.
    ///
    /// # Panics
    /// If `len` exceeds `isize::MAX` less a page.
    #[must_use]
    pub fn zeroed(len: usize) -> Arc<Self> {
        let layout = Self::layout(len);
        // SAFETY: the layout is never of size zero.
        let own = unsafe { alloc_zeroed(layout) };
        let Some(own) = NonNull::new(own) else {
            handle_alloc_error(layout)
        };
        let skipped = own.as_ptr().align_offset(PAGE_BYTES);
        // SAFETY: less than a page is skipped, and a page more than `len` was allocated.
        let start = unsafe { own.add(skipped) };
        let own = Some(own);
        Arc::new(Self { start, len, own })
    }

    /// Memory of somebody else, such as a mapping.
    ///
    /// # Safety
    /// The bytes have to stay where they are, readable and writable as far as they are used, until the last copy of what
    /// this returns is gone, and nobody may hold a reference to them but as atomics.
    ///
    /// # Panics
    /// If `start` is not a multiple of 8.
    #[must_use]
    pub unsafe fn adopt(start: NonNull<u8>, len: usize) -> Arc<Self> {
        assert!(
            start.as_ptr().addr().is_multiple_of(ATOMIC_BYTES),
            "atomic operations need words"
        );
        let own = None;
        Arc::new(Self { start, len, own })
    }

    /// Memory holding a copy of `bytes`.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Arc<Self> {
        let buffer = Self::zeroed(bytes.len());
        buffer.write(0, bytes);
        buffer
    }

    /// A page more than is needed: asked to align to pages itself, the allocator would write zeros to all of it.
    fn layout(len: usize) -> Layout {
        let size = len.checked_add(PAGE_BYTES);
        let layout = size.map(|size| Layout::from_size_align(size, ATOMIC_BYTES));
        layout
            .and_then(Result::ok)
            .expect("buffer of a possible size")
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// No bytes at all?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte, for programs that hand out virtual addresses as tagged offsets.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    /// Copies bytes from `offset` on into `to`.
    ///
    /// # Panics
    /// If they are not all inside.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        // SAFETY: source inside the allocation (checked, B1); `to` is a distinct Rust allocation (B2).
        unsafe {
            ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), to.as_mut_ptr(), to.len())
        }
    }

    /// Copies `from` to `offset`.
    ///
    /// # Panics
    /// If it does not fit inside.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        // SAFETY: target inside the allocation (checked, B1); `from` is a distinct Rust allocation (B2).
        unsafe {
            ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr().add(offset), from.len())
        }
    }

    /// Appends `len` bytes from `offset` on to `out`.
    ///
    /// # Panics
    /// If they are not all inside.
    pub fn append_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        self.check(offset, len);
        out.reserve(len);
        let at = out.len();
        // SAFETY: source inside the allocation (checked, B1); target is spare capacity just reserved.
        unsafe {
            ptr::copy_nonoverlapping(
                self.start.as_ptr().add(offset),
                out.as_mut_ptr().add(at),
                len,
            )
        };
        // SAFETY: the bytes up to the new length were initialised by the copy.
        unsafe { out.set_len(at + len) };
    }

    /// Carries out an atomic operation on the eight bytes at `offset`; returns what they were. Atomic against every other
    /// atomic operation on these bytes; against plain copies as memory of the CPU is.
    ///
    /// # Panics
    /// If they are not all inside, or `offset` is not a multiple of 8.
    pub fn atomic(&self, offset: usize, op: Atomic) -> u64 {
        self.check(offset, ATOMIC_BYTES);
        assert!(offset.is_multiple_of(ATOMIC_BYTES), "aligned offset");
        // SAFETY: inside the allocation (checked, B1).
        let word = unsafe { self.start.as_ptr().add(offset) }.cast::<u64>();
        // SAFETY: initialised and alive (B1), aligned because the start and the offset are multiples
        // of 8 (B1); nobody holds a reference to the bytes but as an atomic (B2).
        op.execute(unsafe { AtomicU64::from_ptr(word) })
    }

    /// A copy of `len` bytes from `offset` on.
    ///
    /// # Panics
    /// If they are not all inside.
    #[must_use]
    pub fn to_vec(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        self.append_to(offset, len, &mut out);
        out
    }

    fn check(&self, offset: usize, len: usize) {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(
            inside,
            "{len} bytes at {offset} of a buffer of {}",
            self.len
        );
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(own) = self.own {
            // SAFETY: allocated with this layout (B1), and nobody refers to it any more.
            unsafe { dealloc(own.as_ptr(), Self::layout(self.len)) }
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_in_and_out() {
        let buffer = Buffer::from_bytes(b"hello");
        buffer.write(1, b"u");
        assert_eq!(buffer.to_vec(0, 5), b"hullo");
        let mut two = [0; 2];
        buffer.read(3, &mut two);
        assert_eq!(&two, b"lo");
        assert_eq!(buffer.address() % PAGE_BYTES as u64, 0);
        assert!(Buffer::zeroed(0).is_empty());
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn atomics_return_the_old_value() {
        let buffer = Buffer::zeroed(16);
        buffer.write(8, &7_u64.to_le_bytes());
        let add = Atomic::FetchAdd { add: 3, mask: 0 };
        assert_eq!(buffer.atomic(8, add), 7);
        assert_eq!(buffer.to_vec(8, 8), 10_u64.to_le_bytes());
        assert_eq!(buffer.to_vec(0, 8), [0; 8]);
    }

    /// Memory of others is used in place, and left alone at the end.
    #[test]
    fn adopted_memory_stays_with_its_owner() {
        let mut words = vec![0_u64; 4].into_boxed_slice();
        let start = NonNull::from(&mut words[1]).cast();
        // SAFETY: within the slice, which outlives the buffer and is not looked at meanwhile.
        let buffer = unsafe { Buffer::adopt(start, 16) };
        buffer.write(0, &[1; 8]);
        buffer.write(8, &[2; 8]);
        drop(buffer);
        assert_eq!(*words, [0, u64::MAX / 255, u64::MAX / 255 * 2, 0]);
    }

    #[test]
    #[should_panic(expected = "aligned offset")]
    fn refuses_unaligned_atomics() {
        Buffer::zeroed(16).atomic(4, Atomic::FetchAdd { add: 1, mask: 0 });
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4 of a buffer of 5")]
    fn refuses_what_lies_outside() {
        Buffer::zeroed(5).write(4, b"ab");
    }

    #[test]
    #[should_panic(expected = "of a buffer of 5")]
    fn refuses_wrapping_ranges() {
        Buffer::zeroed(5).append_to(usize::MAX, 2, &mut Vec::new());
    }
}
