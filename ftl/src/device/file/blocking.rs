//! One system call per operation, for systems without io_uring.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsRawFd;

use super::transfer::{Next, Progress, REQUEST_BYTES_MAX, flushed};
use crate::device::{Action, ActionId, MediaError, MediaOp};

/// Carries every operation out when it is submitted.
#[derive(Debug, Default)]
pub(super) struct Blocking {
    done: VecDeque<(ActionId, Result<(), MediaError>)>,
}

impl Blocking {
    pub(super) fn submit(&mut self, file: &File, action: Action) {
        let mut progress = Progress::default();
        let result = loop {
            match attempt(file, &action.op, progress) {
                Next::Resume(next) => progress = next,
                Next::Finish(result) => break result,
            }
        };
        self.report(action.id, result);
    }

    pub(super) fn report(&mut self, id: ActionId, result: Result<(), MediaError>) {
        self.done.push_back((id, result));
    }

    pub(super) fn poll(&mut self) -> Option<(ActionId, Result<(), MediaError>)> {
        self.done.pop_front()
    }
}

fn attempt(file: &File, op: &MediaOp, progress: Progress) -> Next {
    let fd = file.as_raw_fd();
    match op {
        MediaOp::Read { offset, buf } => {
            let len = (buf.len() - progress.done).min(REQUEST_BYTES_MAX);
            let at = (offset + progress.done as u64).cast_signed();
            // SAFETY: `done` is less than the buffer's length.
            let ptr = unsafe { buf.as_ptr().add(progress.done) };
            // SAFETY: the rest of the buffer is ours until we report completion.
            let got = unsafe { libc::pread64(fd, ptr.cast(), len, at) };
            progress.after(answer(got), buf.len())
        }
        MediaOp::Write {
            offset,
            buf,
            durable,
        } => {
            let len = (buf.len() - progress.done).min(REQUEST_BYTES_MAX);
            let at = (offset + progress.done as u64).cast_signed();
            // SAFETY: `done` is less than the buffer's length.
            let ptr = unsafe { buf.as_ptr().add(progress.done) };
            // SAFETY: the rest of the buffer is ours until we report completion.
            let put = unsafe { libc::pwrite64(fd, ptr.cast(), len, at) };
            // SAFETY: `fd` is open.
            if put >= 0 && *durable && unsafe { libc::fdatasync(fd) } < 0 {
                return Next::Finish(flushed(answer(-1)));
            }
            progress.after(answer(put), buf.len())
        }
        MediaOp::Flush => {
            // SAFETY: `fd` is open.
            let done = unsafe { libc::fdatasync(fd) };
            Next::Finish(flushed(answer(done as isize)))
        }
        MediaOp::Discard { offset, len } => {
            super::discard::discard(file, *offset, *len);
            Next::Finish(Ok(()))
        }
    }
}

/// The kernel's convention of one number: bytes, or minus errno.
fn answer(returned: isize) -> i32 {
    if returned < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error();
        -errno.unwrap_or(libc::EIO)
    } else {
        i32::try_from(returned).unwrap_or(i32::MAX)
    }
}
