//! Bytes where they lie, which others may change while they are looked at.

use std::marker::PhantomData;

/// Bytes of pages that are held for `'a`. Remote peers and programs that map the file may write to them meanwhile, so nobody
/// gets a `&[u8]` of them: they are copied, by the kernel or through raw pointers, and come out in any mixture.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    start: *const u8,
    len: usize,
    held: PhantomData<&'a ()>,
}

impl<'a> Span<'a> {
    /// The `len` bytes from `start` on.
    ///
    /// # Safety
    /// They must be readable for `'a`, and what writes to them meanwhile must do so through raw pointers, or be another process.
    pub const unsafe fn new(start: *const u8, len: usize) -> Self {
        Self {
            start,
            len,
            held: PhantomData,
        }
    }

    /// Bytes that nobody changes.
    pub const fn of(bytes: &'a [u8]) -> Self {
        Self {
            start: bytes.as_ptr(),
            len: bytes.len(),
            held: PhantomData,
        }
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Both as one, if `next` lies behind this one.
    ///
    /// # Safety
    /// As of [`new`](Self::new), for both together: they must be parts of one mapping.
    pub unsafe fn joined(self, next: Self) -> Option<Self> {
        let len = self.len + next.len;
        (self.start.wrapping_add(self.len) == next.start).then_some(Self { len, ..self })
    }

    /// What the kernel is told, to read from it.
    pub(crate) fn iovec(&self) -> libc::iovec {
        libc::iovec {
            iov_base: self.start.cast_mut().cast(),
            iov_len: self.len,
        }
    }

    /// Copies the bytes behind those of `out`.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.len);
        let old = out.len();
        // SAFETY: they are readable (`new`), `out` has room for them behind its end, where nobody else can have any. The new bytes
        // are initialised by the copy.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start, out.as_mut_ptr().add(old), self.len);
            out.set_len(old + self.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined() {
        static BYTES: [u8; 6] = *b"abcdef";
        let part = |from: usize, to: usize| Span::of(&BYTES[from..to]);
        // SAFETY: parts of one array.
        let join = |a: Span<'static>, b| unsafe { a.joined(b) };
        assert!(join(part(0, 2), part(3, 4)).is_none() && join(part(3, 4), part(0, 3)).is_none());
        let whole = join(part(1, 3), part(3, 6)).unwrap();
        let mut out = b"x".to_vec();
        whole.append_to(&mut out);
        assert_eq!((out.as_slice(), whole.len()), (&b"xbcdef"[..], 5));
    }
}
