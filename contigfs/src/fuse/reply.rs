//! The answer to a request.

use std::fmt;
use std::sync::Arc;

use zerocopy::{Immutable, IntoBytes};

use super::attr::error_code;
use super::gate::UnderWay;
use super::wire::OutHeader;
use crate::error::FsError;
use crate::span::Span;

/// Takes answers to the kernel.
pub(super) trait Outlet: Send + Sync {
    /// Answers the request `unique` with `error` (0, or a negative errno) or with `parts`, one behind the other.
    fn answer(&self, unique: u64, error: i32, parts: &[Span<'_>]);
}

/// The answer that a request waits for; a thread other than the one that serves the request may give it. Dropped without
/// having been given, it is `EIO`.
pub(super) struct Reply {
    unique: u64,
    outlet: Option<Arc<dyn Outlet>>,
    under_way: Option<UnderWay>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("unique", &self.unique)
            .finish_non_exhaustive()
    }
}

impl Reply {
    /// The answer to `unique`, which goes to `outlet`.
    pub(super) fn new(unique: u64, outlet: Arc<dyn Outlet>) -> Self {
        Self {
            unique,
            outlet: Some(outlet),
            under_way: None,
        }
    }

    /// The same, of a request that is counted until it is answered.
    pub(super) fn counted(mut self, under_way: UnderWay) -> Self {
        self.under_way = Some(under_way);
        self
    }

    fn send(&mut self, error: i32, parts: &[Span<'_>]) {
        if let Some(outlet) = self.outlet.take() {
            outlet.answer(self.unique, error, parts);
            if let Some(under_way) = self.under_way.take() {
                let bytes = parts.iter().map(Span::len).sum::<usize>();
                under_way.answered(error, bytes as u64);
            }
        }
    }

    /// The request needs no answer.
    pub(super) fn none(mut self) {
        self.outlet = None;
    }

    /// It failed with an errno.
    pub(super) fn errno(mut self, errno: i32) {
        self.send(-errno, &[]);
    }

    /// It failed.
    pub(super) fn error(self, error: FsError) {
        self.errno(error_code(error));
    }

    /// Done, with bytes, wherever they lie.
    pub(super) fn spans(mut self, parts: &[Span<'_>]) {
        self.send(0, parts);
    }

    /// Done, with bytes.
    pub(super) fn parts<const N: usize>(self, parts: &[&[u8]; N]) {
        self.spans(&parts.map(Span::of));
    }

    /// Done, with a message.
    pub(super) fn message(self, message: &(impl IntoBytes + Immutable)) {
        self.parts(&[message.as_bytes()]);
    }

    /// Done, or failed.
    pub(super) fn done(self, result: Result<(), FsError>) {
        self.with(result, |()| [0_u8; 0]);
    }

    /// Done, with a message made of the result, or failed.
    pub(super) fn with<T, M: IntoBytes + Immutable>(
        self,
        result: Result<T, FsError>,
        message: impl FnOnce(T) -> M,
    ) {
        match result {
            Ok(value) => self.message(&message(value)),
            Err(error) => self.error(error),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(-libc::EIO, &[]);
    }
}

/// The header of an answer.
pub(super) fn header(unique: u64, error: i32, parts: &[Span<'_>]) -> OutHeader {
    let len = size_of::<OutHeader>() + parts.iter().map(Span::len).sum::<usize>();
    OutHeader {
        len: len as u32,
        error,
        unique,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    type Answer = (u64, i32, Vec<u8>);

    #[derive(Default)]
    struct Heard(Mutex<Vec<Answer>>);

    impl Outlet for Heard {
        fn answer(&self, unique: u64, error: i32, parts: &[Span<'_>]) {
            let mut bytes = Vec::new();
            parts.iter().for_each(|part| part.append_to(&mut bytes));
            self.0.lock().unwrap().push((unique, error, bytes));
        }
    }

    /// Each request is answered once, whatever becomes of it.
    #[test]
    fn one_answer() {
        let heard = Arc::new(Heard::default());
        let reply = |unique| Reply::new(unique, Arc::clone(&heard) as Arc<dyn Outlet>);
        reply(1).parts(&[b"ab", b"c"]);
        reply(2).errno(libc::ENOENT);
        reply(3).done(Err(FsError::Invalid));
        drop(reply(4));
        reply(5).none();
        reply(6).done(Ok(()));
        let answers = heard.0.lock().unwrap();
        let expected = [
            (1, 0, b"abc".to_vec()),
            (2, -libc::ENOENT, vec![]),
            (3, -libc::EINVAL, vec![]),
            (4, -libc::EIO, vec![]),
            (6, 0, vec![]),
        ];
        assert_eq!(*answers, expected);
    }
}
