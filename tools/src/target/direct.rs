//! Media operations as system calls of the calling thread.

use std::os::fd::RawFd;
use std::time::Instant;

use ftl::{Action, GRAIN_BYTES, MediaOp};

use super::status::MediaMeters;

/// Grains between two that are read along rather than left out: what lies between the data of neighbouring write-outs
/// is a header.
const GAP_MAX: u64 = 2;
/// Pieces of one read; the kernel takes 1,024.
const PIECES_MAX: usize = 512;
const GRAIN: u64 = GRAIN_BYTES as u64;

/// Somewhere to put what nobody wants.
#[repr(C, align(4096))]
struct Scratch([u8; GRAIN_BYTES]);

/// Reads that one system call carries out.
#[derive(Debug)]
pub(super) struct Run {
    reads: Vec<Action>,
    start: u64,
    end: u64,
    pieces: usize,
}

/// Splits reads into runs that lie together on the device.
pub(super) fn runs(mut reads: Vec<Action>) -> Vec<Run> {
    reads.sort_unstable_by_key(|action| extent(action).0);
    let mut runs: Vec<Run> = Vec::new();
    for read in reads {
        let (start, end) = extent(&read);
        match runs.last_mut() {
            Some(run)
                if start >= run.end
                    && start - run.end <= GAP_MAX * GRAIN
                    && (start - run.end) % GRAIN == 0
                    && run.pieces + (GAP_MAX as usize) < PIECES_MAX =>
            {
                run.pieces += 1 + ((start - run.end) / GRAIN) as usize;
                run.end = end;
                run.reads.push(read);
            }
            _ => runs.push(Run {
                reads: vec![read],
                start,
                end,
                pieces: 1,
            }),
        }
    }
    runs
}

fn extent(action: &Action) -> (u64, u64) {
    match &action.op {
        MediaOp::Read { offset, buf } => (*offset, offset + buf.len() as u64),
        op => unreachable!("{op:?} is no read"),
    }
}

impl Run {
    /// The actions, not carried out.
    pub(super) fn into_actions(self) -> Vec<Action> {
        self.reads
    }

    /// Carries the reads out; the result of each as a completion would have it.
    pub(super) fn carry_out(self, fd: RawFd, meters: &MediaMeters) -> Vec<(Action, i32)> {
        let mut scratch = Scratch([0; GRAIN_BYTES]);
        let mut pieces: Vec<libc::iovec> = Vec::with_capacity(self.pieces);
        let mut at = self.start;
        for action in &self.reads {
            let MediaOp::Read { offset, buf } = &action.op else {
                unreachable!("a run has reads only");
            };
            while at < *offset {
                pieces.push(libc::iovec {
                    iov_base: scratch.0.as_mut_ptr().cast(),
                    iov_len: GRAIN_BYTES,
                });
                at += GRAIN;
            }
            let start = buf.as_ptr().cast::<libc::c_void>();
            match pieces.last_mut() {
                // Pages that were asked for together lie side by side, as a rule.
                Some(last) if end_of(last) == start => last.iov_len += buf.len(),
                _ => pieces.push(libc::iovec {
                    iov_base: start,
                    iov_len: buf.len(),
                }),
            }
            at += buf.len() as u64;
        }
        let begun = Instant::now();
        meters.begin(0);
        let result = retry(|| {
            // SAFETY: the engine leaves the buffers alone until their actions are reported done, which is after this;
            // the scratch page may be written to several times.
            unsafe {
                libc::preadv(
                    fd,
                    pieces.as_ptr(),
                    pieces.len() as i32,
                    self.start as libc::off_t,
                )
            }
        });
        let bytes = u64::try_from(result).ok();
        meters.note_read(0, begun.elapsed(), bytes);
        let whole = usize::try_from(result).is_ok_and(|n| n as u64 == self.end - self.start);
        if whole || self.reads.len() == 1 {
            let start = self.start;
            let each = self.reads.into_iter().map(|action| {
                let (from, end) = extent(&action);
                let got = match result {
                    error if error < 0 => error as i32,
                    n => (n as u64).saturating_sub(from - start).min(end - from) as i32,
                };
                (action, got)
            });
            return each.collect();
        }
        // Something of it can not be read: each for itself, so that only that fails.
        let alone = |action: Action| {
            let result = carry_out(&action, fd, meters);
            (action, result)
        };
        self.reads.into_iter().map(alone).collect()
    }
}

fn end_of(piece: &libc::iovec) -> *mut libc::c_void {
    piece.iov_base.wrapping_byte_add(piece.iov_len)
}

/// Carries out one action on the only device; the result as a completion would have it.
pub(super) fn carry_out(action: &Action, fd: RawFd, meters: &MediaMeters) -> i32 {
    let begun = Instant::now();
    meters.begin(0);
    let is_told_once = matches!(
        action.op,
        MediaOp::Flush | MediaOp::Write { durable: true, .. }
    );
    let call = || match &action.op {
        // SAFETY: the engine leaves the buffer alone until the action is reported done, which is after this.
        MediaOp::Read { offset, buf } => unsafe {
            libc::pread(fd, buf.as_ptr().cast(), buf.len(), *offset as libc::off_t)
        },
        MediaOp::Write {
            offset,
            buf,
            durable,
        } => {
            let piece = libc::iovec {
                iov_base: buf.as_ptr().cast(),
                iov_len: buf.len(),
            };
            let flags = if *durable { libc::RWF_DSYNC } else { 0 };
            // SAFETY: as above.
            unsafe { libc::pwritev2(fd, &raw const piece, 1, *offset as libc::off_t, flags) }
        }
        // SAFETY: no memory is involved.
        MediaOp::Flush => unsafe { libc::fdatasync(fd) as isize },
        MediaOp::Discard { offset, len } => {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: no memory is involved.
            unsafe { libc::fallocate(fd, mode, *offset as i64, *len as i64) as isize }
        }
    };
    // That earlier writes did not reach the device is told once, whatever the error (I8): no second call may say that they did.
    let result = match is_told_once {
        true => answer(call()),
        false => retry(call),
    };
    meters.note(0, &action.op, begun.elapsed(), result as i32);
    result as i32
}

/// Calls until no signal interrupts; a failure becomes its negated errno.
fn retry(mut call: impl FnMut() -> isize) -> isize {
    loop {
        let result = answer(call());
        if result != -(libc::EINTR as isize) {
            return result;
        }
    }
}

/// What the system call that has just returned this answered; a failure becomes its negated errno.
fn answer(returned: isize) -> isize {
    if returned >= 0 {
        return returned;
    }
    let errno = std::io::Error::last_os_error().raw_os_error();
    -(errno.unwrap_or(libc::EIO) as isize)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::ptr::NonNull;

    use ftl::{ActionId, IoBuf};

    use super::*;

    fn read(grain: u64, memory: &mut [u8], slot: usize) -> Action {
        let ptr = NonNull::from(&mut memory[slot * GRAIN_BYTES..][..GRAIN_BYTES]).cast();
        Action {
            id: ActionId(slot as u64),
            op: MediaOp::Read {
                offset: grain * GRAIN,
                // SAFETY: the memory outlives the actions of the test, and each has its own part.
                buf: unsafe { IoBuf::new(ptr, GRAIN_BYTES) },
            },
        }
    }

    /// Reads that lie together, a header apart at most, are one run; each gets its own bytes, and one behind the end
    /// fails alone.
    #[test]
    fn reads_are_joined_and_answered_each() {
        let mut file = tempfile::tempfile().unwrap();
        for grain in 0..12u8 {
            file.write_all(&[grain; GRAIN_BYTES]).unwrap();
        }
        let grains = [7, 2, 1, 4, 11, 12];
        let mut memory = vec![0xff; grains.len() * GRAIN_BYTES];
        let reads = grains.iter().enumerate();
        let reads = reads.map(|(slot, &grain)| read(grain, &mut memory, slot));
        let runs = runs(reads.collect());
        let sizes: Vec<usize> = runs.iter().map(|run| run.reads.len()).collect();
        assert_eq!(sizes, [4, 2]);
        let mut results = Vec::new();
        for run in runs {
            for (action, result) in run.carry_out(file.as_raw_fd(), &MediaMeters::new(1)) {
                results.push((action.id.0, result));
            }
        }
        results.sort_unstable();
        let full = GRAIN_BYTES as i32;
        assert_eq!(
            results,
            [
                (0, full),
                (1, full),
                (2, full),
                (3, full),
                (4, full),
                (5, 0)
            ]
        );
        for (slot, grain) in grains[..5].iter().enumerate() {
            let got = &memory[slot * GRAIN_BYTES..][..GRAIN_BYTES];
            assert!(got.iter().all(|&byte| u64::from(byte) == *grain));
        }
    }
}
