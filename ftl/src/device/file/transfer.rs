//! Progress of one transfer: what a system call's answer means.

use crate::GRAIN_BYTES;
use crate::device::MediaError;

/// Most times an operation is repeated without progress because the system said "again".
const AGAIN_MAX: u32 = 1000;

/// Largest single request; Linux transfers at most 2^31 - 4096 bytes at once.
pub(super) const REQUEST_BYTES_MAX: usize = 1 << 30;

/// How far a transfer has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Bytes transferred for good.
    pub(super) done: usize,
    again: u32,
}

/// What to do after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Ask for the rest, from `Progress::done` on.
    Resume(Progress),
    /// Report this.
    Finish(Result<(), MediaError>),
}

impl Progress {
    /// Judges the answer `result` (bytes, or minus errno) to a request for the rest of a transfer of `len` bytes.
    ///
    /// Direct I/O can only resume at a block boundary, so the part of a grain that was transferred is done again.
    pub(super) fn after(self, result: i32, len: usize) -> Next {
        let Ok(moved) = usize::try_from(result) else {
            return self.after_error(-result);
        };
        let reached = self.done + moved;
        if reached >= len {
            return Next::Finish(Ok(()));
        }
        let done = reached - reached % GRAIN_BYTES;
        if done <= self.done {
            return Next::Finish(Err(MediaError::Short));
        }
        Next::Resume(Self { done, again: 0 })
    }

    /// As [`after`](Self::after), of a write that is to be durable, which ends like a flush.
    pub(super) fn after_durable(self, result: i32, len: usize) -> Next {
        match result {
            0.. => self.after(result, len),
            refused => Next::Finish(flushed(refused)),
        }
    }

    fn after_error(self, errno: i32) -> Next {
        if matches!(errno, libc::EINTR | libc::EAGAIN) && self.again < AGAIN_MAX {
            return Next::Resume(Self {
                again: self.again + 1,
                ..self
            });
        }
        Next::Finish(Err(MediaError::from_errno(errno)))
    }
}

/// Judges the answer to a flush. Whatever error it is, nobody asks again: that earlier writes did not reach the device is told once, with
/// the error that the file system or its server had, and the next flush succeeds (I8).
pub(super) fn flushed(result: i32) -> Result<(), MediaError> {
    match result {
        0.. => Ok(()),
        refused => Err(MediaError::from_errno(-refused)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(done: usize) -> Progress {
        Progress { done, again: 0 }
    }

    /// A short transfer is resumed at a grain or is an error; it is never success.
    #[test]
    fn short_transfers() {
        assert_eq!(at(0).after(8192, 8192), Next::Finish(Ok(())));
        assert_eq!(at(0).after(4096, 8192), Next::Resume(at(4096)));
        assert_eq!(at(0).after(5000, 8192), Next::Resume(at(4096)));
        assert_eq!(at(4096).after(4096, 8192), Next::Finish(Ok(())));
        assert_eq!(
            at(4096).after(0, 8192),
            Next::Finish(Err(MediaError::Short))
        );
        assert_eq!(
            at(4096).after(512, 8192),
            Next::Finish(Err(MediaError::Short))
        );
    }

    /// A flush that fails has failed, and so has a write that was to be durable by itself (I8).
    #[test]
    fn flushes_are_not_asked_again() {
        for errno in [libc::EINTR, libc::EAGAIN, libc::EIO] {
            assert_eq!(flushed(-errno), Err(MediaError::Io));
            let write = at(4096).after_durable(-errno, 8192);
            assert_eq!(write, Next::Finish(Err(MediaError::Io)));
        }
        assert_eq!(flushed(0), Ok(()));
        assert_eq!(at(0).after_durable(4096, 8192), Next::Resume(at(4096)));
        assert_eq!(at(0).after_durable(8192, 8192), Next::Finish(Ok(())));
    }

    /// "Again" is obeyed, but not for ever; other errors are final.
    #[test]
    fn errors() {
        assert_eq!(
            at(0).after(-libc::EIO, 4096),
            Next::Finish(Err(MediaError::Io))
        );
        assert_eq!(flushed(-libc::ENOSPC), Err(MediaError::NoSpace));
        let mut progress = at(4096);
        for _ in 0..AGAIN_MAX {
            let Next::Resume(next) = progress.after(-libc::EINTR, 8192) else {
                panic!("gave up too early");
            };
            assert_eq!(next.done, 4096);
            progress = next;
        }
        assert_eq!(
            progress.after(-libc::EINTR, 8192),
            Next::Finish(Err(MediaError::Io))
        );
    }
}
