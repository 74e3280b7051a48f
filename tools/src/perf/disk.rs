//! The bare disk: direct I/O on a file through io_uring, one thread, no network, nothing interpreted: the other limit
//! of the machine.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use memmap2::MmapMut;

use super::cpu;
use super::figures::{Figures, latencies};
use super::shape::{Direction, Offsets, PAYLOAD, Shape};
use crate::reactor::{Ring, Tag};

/// Time before measuring starts.
const WARM: Duration = Duration::from_millis(200);

/// Runs `shape` on the file at `path`; offsets and sizes must suit direct I/O.
pub fn run(path: &Path, shape: &Shape) -> io::Result<Figures> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)?;
    let depth = shape.connections * shape.depth;
    // A mapping per operation: page aligned, as direct I/O wants it.
    let mut buffers = (0..depth)
        .map(|_| {
            let mut buffer = MmapMut::map_anon(shape.size)?;
            buffer.fill(PAYLOAD);
            Ok(buffer)
        })
        .collect::<io::Result<Vec<_>>>()?;
    let mut started = vec![Instant::now(); depth];
    let mut offsets = Offsets::new(shape, 0);
    let mut ring = Ring::new(1024, 1, 4096)?;
    let mut post = |ring: &mut Ring, slot: usize, started: &mut [Instant]| {
        started[slot] = Instant::now();
        let (buffer, at, len) = (&mut buffers[slot], offsets.draw(), shape.size as u32);
        match shape.direction {
            // SAFETY: the buffer lives longer than the ring and belongs to this slot, which has one operation only.
            Direction::Read => unsafe {
                ring.read(file.as_raw_fd(), at, buffer.as_mut_ptr(), len, slot as u32);
            },
            // SAFETY: as above.
            Direction::Write => unsafe {
                ring.write(
                    file.as_raw_fd(),
                    at,
                    buffer.as_ptr(),
                    len,
                    shape.sync,
                    slot as u32,
                );
            },
        }
    };
    for slot in 0..depth {
        post(&mut ring, slot, &mut started);
    }
    let mut histogram = latencies();
    let begin = Instant::now();
    let mut measured: Option<(Instant, Duration)> = None;
    loop {
        let now = Instant::now();
        match measured {
            None if now - begin > WARM => {
                histogram.reset();
                measured = Some((now, cpu::used(None).unwrap_or_default()));
            }
            Some((start, client)) if now - start >= shape.duration() => {
                let client = cpu::used(None).unwrap_or_default() - client;
                return Ok(Figures::new(
                    histogram,
                    shape.size,
                    now - start,
                    client,
                    None,
                ));
            }
            _ => {}
        }
        ring.enter(None)?;
        while let Some(done) = ring.next_done() {
            let Tag::Device(slot) = done.tag else {
                continue;
            };
            if done.result != shape.size as i32 {
                return Err(match done.result {
                    short if short >= 0 => io::ErrorKind::UnexpectedEof.into(),
                    errno => io::Error::from_raw_os_error(-errno),
                });
            }
            let slot = slot as usize;
            histogram.saturating_record(started[slot].elapsed().as_nanos() as u64);
            post(&mut ring, slot, &mut started);
        }
    }
}
