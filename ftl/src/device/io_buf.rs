//! The memory of one media operation.

use std::ptr::NonNull;

/// Memory lent to a device for the time of one media operation.
///
/// The lender (the engine) keeps it alive until the operation's completion has been handed back, and does not write
/// it meanwhile; for a read it does not read it either. The device is done with it before it reports completion.
#[derive(Debug)]
pub struct IoBuf {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: an IoBuf is the only handle through which the borrower reaches the memory, and `IoBuf::new` demands that
// the lender leaves the memory alone; which thread the borrower lives on does not matter.
unsafe impl Send for IoBuf {}

impl IoBuf {
    /// Lends `len` bytes at `ptr`.
    ///
    /// # Safety
    /// From now until the operation's completion has been handed back the memory is valid for reads and writes, and
    /// nobody but the borrower writes it (or, if it is lent for a read operation, reads it).
    pub const unsafe fn new(ptr: NonNull<u8>, len: usize) -> Self {
        Self { ptr, len }
    }

    /// The same memory for another part of the same operation: a write that goes to several places, or a read that
    /// has failed elsewhere and is tried again. Only for who reports completion when all parts have ended.
    pub(super) const fn again(&self) -> Self {
        Self {
            ptr: self.ptr,
            len: self.len,
        }
    }

    /// Start of the memory.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no memory at all.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes to write.
    ///
    /// # Safety
    /// The operation has not been reported as complete, and will not be while the slice lives.
    pub const unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: valid and not written by others until completion (contract of `new`), and completion lies behind
        // the slice's life (contract of this method).
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// The bytes to fill.
    ///
    /// # Safety
    /// The operation is a read, has not been reported as complete, and will not be while the slice lives.
    pub const unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: valid and touched by nobody else until completion (contract of `new`), and completion lies behind
        // the slice's life (contract of this method).
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}
