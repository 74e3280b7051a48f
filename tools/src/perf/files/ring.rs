//! One thread with several operations in flight, through io_uring.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

use memmap2::MmapMut;

use super::{BLOCK, Run, buffer, figures, open};
use crate::perf::cpu;
use crate::perf::figures::{Figures, latencies};
use crate::perf::shape::Offsets;
use crate::reactor::{Ring, Tag};

/// Random reads of blocks.
pub(super) fn read(path: &Path, run: &Run<'_>, depth: usize) -> io::Result<Figures> {
    let file = open(path, false)?;
    // Dropped after the ring, which ends what is in flight.
    let mut buffers = (0..depth)
        .map(|_| buffer(BLOCK))
        .collect::<io::Result<Vec<MmapMut>>>()?;
    let mut ring = Ring::new(1024, 1, 4096)?;
    let mut offsets = Offsets::over(run.bytes, BLOCK, run.seed);
    let mut started = vec![Instant::now(); depth];
    let mut post = |ring: &mut Ring, started: &mut [Instant], slot: usize| {
        started[slot] = Instant::now();
        let (fd, at, to) = (file.as_raw_fd(), offsets.draw(), buffers[slot].as_mut_ptr());
        // SAFETY: the buffer outlives the ring and belongs to this slot, which has one operation at a time.
        unsafe { ring.read(fd, at, to, BLOCK as u32, slot as u32) };
    };
    let mut all = latencies();
    let (begin, used) = (Instant::now(), cpu::used(None).unwrap_or_default());
    for slot in 0..depth {
        post(&mut ring, &mut started, slot);
    }
    let mut in_flight = depth;
    while in_flight > 0 {
        ring.enter(None)?;
        while let Some(done) = ring.next_done() {
            let Tag::Device(slot) = done.tag else {
                continue;
            };
            if done.result != BLOCK as i32 {
                return Err(match done.result {
                    short if short >= 0 => io::ErrorKind::UnexpectedEof.into(),
                    errno => io::Error::from_raw_os_error(-errno),
                });
            }
            let slot = slot as usize;
            all.saturating_record(started[slot].elapsed().as_nanos() as u64);
            if begin.elapsed() < run.time && !run.is_off() {
                post(&mut ring, &mut started, slot);
            } else {
                in_flight -= 1;
            }
        }
    }
    Ok(figures(all, BLOCK, begin, used))
}
