//! Operations over the device's own io_uring.
//!
//! Requests are queued in the submission ring and handed to the kernel a few together, at the latest at the next poll. An operation owns
//! its buffer in `slots` until its completion has been reaped, also when the device is dropped.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, squeue, types};

use super::discard;
use super::transfer::{Next, Progress, REQUEST_BYTES_MAX, flushed};
use crate::device::{Action, ActionId, MediaError, MediaOp};

/// Operations handed to the kernel at the same time; more wait in `backlog`.
const QUEUE_DEPTH: u32 = 128;
/// Requests queued before they are handed over without waiting for the next poll: a device that waits for requests
/// while they are being put together loses more than a system call costs.
const HAND_OVER: usize = 4;

struct InFlight {
    action: Action,
    progress: Progress,
}

/// The ring and what it carries.
pub(super) struct Ring {
    ring: IoUring,
    /// Indexed by the `user_data` of the request.
    slots: Vec<Option<InFlight>>,
    free: Vec<usize>,
    backlog: VecDeque<Action>,
    /// Completions that did not need the kernel.
    done: VecDeque<(ActionId, Result<(), MediaError>)>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("in_flight", &(self.slots.len() - self.free.len()))
            .field("backlog", &self.backlog.len())
            .finish_non_exhaustive()
    }
}

impl Ring {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            ring: IoUring::new(QUEUE_DEPTH)?,
            slots: (0..QUEUE_DEPTH).map(|_| None).collect(),
            free: (0..QUEUE_DEPTH as usize).rev().collect(),
            backlog: VecDeque::new(),
            done: VecDeque::new(),
        })
    }

    pub(super) fn submit(&mut self, file: &File, action: Action) {
        match self.free.pop() {
            Some(slot) => self.start(file, slot, action, Progress::default()),
            None => self.backlog.push_back(action),
        }
        if self.ring.submission().len() >= HAND_OVER {
            self.enter(false);
        }
    }

    pub(super) fn report(&mut self, id: ActionId, result: Result<(), MediaError>) {
        self.done.push_back((id, result));
    }

    pub(super) fn poll(
        &mut self,
        file: &File,
        wait: bool,
    ) -> Option<(ActionId, Result<(), MediaError>)> {
        loop {
            if let Some(done) = self.done.pop_front() {
                return Some(done);
            }
            // Who is ready to wait has nothing to add: requests go before completions are looked at, and none of them
            // waits until all that has completed has been dealt with.
            if wait && !self.ring.submission().is_empty() {
                self.enter(true);
            }
            self.reap(file);
            if !self.done.is_empty() {
                continue;
            }
            if self.is_idle() {
                return None;
            }
            // The kernel posts completions by itself: who does not wait enters it to hand over requests only.
            if wait || !self.ring.submission().is_empty() {
                self.enter(wait);
                self.reap(file);
            }
            if !wait && self.done.is_empty() {
                return None;
            }
        }
    }

    /// Waits for every operation, then lets go of the buffers.
    pub(super) fn drain(&mut self, file: &File) {
        while !self.is_idle() {
            self.enter(true);
            self.reap(file);
        }
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    fn start(&mut self, file: &File, slot: usize, action: Action, progress: Progress) {
        let request = request(file, &action.op, progress).user_data(slot as u64);
        self.slots[slot] = Some(InFlight { action, progress });
        // SAFETY: the buffer stays valid until completion (contract of IoBuf), `slots` keeps it until the completion
        // has been reaped, and `file` outlives the ring's requests because the device drains before it closes it.
        let pushed = unsafe { self.ring.submission().push(&request) };
        // The submission ring has as many places as there are slots, and a request leaves it before its slot is freed.
        assert!(pushed.is_ok(), "a place in the ring for every slot");
    }

    fn enter(&mut self, wait: bool) {
        match self.ring.submit_and_wait(usize::from(wait)) {
            Ok(_) => {}
            // Busy: completions must be reaped first; the caller does that and comes back.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)
                ) => {}
            Err(error) => panic!("io_uring_enter on a ring of our own: {error}"),
        }
    }

    fn reap(&mut self, file: &File) {
        loop {
            // The guard of the completion queue ends with this statement: starting the next request needs the ring.
            let Some(entry) = self.ring.completion().next() else {
                break;
            };
            let slot = entry.user_data() as usize;
            let InFlight { action, progress } =
                self.slots[slot].take().expect("one completion per request");
            match judge(file, &action.op, progress, entry.result()) {
                Next::Resume(progress) => self.start(file, slot, action, progress),
                Next::Finish(result) => {
                    self.done.push_back((action.id, result));
                    match self.backlog.pop_front() {
                        Some(action) => self.start(file, slot, action, Progress::default()),
                        None => self.free.push(slot),
                    }
                }
            }
        }
    }
}

fn request(file: &File, op: &MediaOp, progress: Progress) -> squeue::Entry {
    let fd = types::Fd(file.as_raw_fd());
    let rest = |len: usize| (len - progress.done).min(REQUEST_BYTES_MAX) as u32;
    match op {
        MediaOp::Read { offset, buf } => {
            // SAFETY: `done` is less than the buffer's length.
            let ptr = unsafe { buf.as_ptr().add(progress.done) };
            opcode::Read::new(fd, ptr, rest(buf.len()))
                .offset(offset + progress.done as u64)
                .build()
        }
        MediaOp::Write {
            offset,
            buf,
            durable,
        } => {
            // SAFETY: `done` is less than the buffer's length.
            let ptr = unsafe { buf.as_ptr().add(progress.done) };
            opcode::Write::new(fd, ptr, rest(buf.len()))
                .offset(offset + progress.done as u64)
                .rw_flags(if *durable { libc::RWF_DSYNC } else { 0 })
                .build()
        }
        MediaOp::Flush => opcode::Fsync::new(fd)
            .flags(types::FsyncFlags::DATASYNC)
            .build(),
        MediaOp::Discard { offset, len } => opcode::Fallocate::new(fd, *len)
            .offset(*offset)
            .mode(discard::PUNCH)
            .build(),
    }
}

fn judge(file: &File, op: &MediaOp, progress: Progress, result: i32) -> Next {
    match op {
        MediaOp::Write {
            buf, durable: true, ..
        } => progress.after_durable(result, buf.len()),
        MediaOp::Read { buf, .. } | MediaOp::Write { buf, .. } => progress.after(result, buf.len()),
        MediaOp::Flush => Next::Finish(flushed(result)),
        MediaOp::Discard { offset, len } => {
            // Some block devices discard but cannot punch.
            if result == -libc::EOPNOTSUPP {
                discard::discard(file, *offset, *len);
            }
            Next::Finish(Ok(()))
        }
    }
}
