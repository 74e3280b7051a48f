//! Receive buffers that the kernel picks from when bytes arrive (a provided-buffer ring).
//!
//! One ring serves all connections of a reactor, so memory is bounded by the reactor and not by the number of peers.
//!
//! As few buffers as do are in circulation, the same ones again and again, which stay in the processor's caches. When the
//! kernel runs out of them, as it does when many peers send at once, there are twice as many; after a while without that half.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use memmap2::{Advice, MmapMut};

/// Buffers in circulation at first.
const FEW: u16 = 32;
/// Buffers of a ring that serves many connections.
const MANY: u16 = 256;
/// For less than such a page huge ones would be a waste.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Buffers that come back without the kernel having run out, before there are fewer.
const QUIET: u32 = 1 << 16;

/// Provided buffers of one reactor.
#[derive(Debug)]
pub struct RecvBuffers {
    ring: MmapMut,
    data: MmapMut,
    entries: u16,
    bytes: usize,
    tail: u16,
    circulation: Circulation,
}

/// Which buffers the kernel may have.
#[derive(Debug)]
struct Circulation {
    /// Those that it may not.
    spare: Vec<u16>,
    /// How many it has, or has filled.
    count: u16,
    wanted: u16,
    /// How many have come back since it ran out.
    quiet: u32,
}

impl Circulation {
    fn new(entries: u16) -> Self {
        Self {
            spare: (0..entries).rev().collect(),
            count: 0,
            wanted: entries.min(FEW),
            quiet: 0,
        }
    }

    /// The kernel has run out. All receives that wait end then: what it gets is for them all, until they have gone round.
    fn ran_out(&mut self) {
        if self.wanted > self.count || self.quiet < u32::from(self.count) {
            return;
        }
        self.quiet = 0;
        let all = self.count + self.spare.len() as u16;
        self.wanted = self.wanted.saturating_mul(2).min(all);
    }

    /// One more that the kernel should have.
    fn next(&mut self) -> Option<u16> {
        if self.count >= self.wanted {
            return None;
        }
        let buffer = self.spare.pop()?;
        self.count += 1;
        Some(buffer)
    }

    /// One has come back; whether it goes to the kernel again.
    fn came_back(&mut self, buffer: u16) -> bool {
        self.quiet += 1;
        if self.quiet >= QUIET {
            self.quiet = 0;
            self.wanted = (self.wanted / 2).max(self.wanted.min(FEW));
        }
        let goes = self.count <= self.wanted;
        if !goes {
            self.count -= 1;
            self.spare.push(buffer);
        }
        goes
    }
}

impl RecvBuffers {
    /// Buffer group that receives name.
    pub const GROUP: u16 = 0;

    /// Registers `entries` buffers (a power of two) of `bytes` each with `uring`.
    pub fn register(uring: &IoUring, entries: u16, bytes: usize) -> io::Result<Self> {
        assert!(entries.is_power_of_two());
        let mut ring =
            MmapMut::map_anon(usize::from(entries) * std::mem::size_of::<BufRingEntry>())?;
        let data = MmapMut::map_anon(usize::from(entries) * bytes)?;
        // A ring for a few connections rarely fills a buffer, and need not have all of them in memory.
        if entries >= MANY && bytes * usize::from(FEW) >= HUGE_PAGE_BYTES {
            // Without huge pages it works as well.
            let _ = data.advise(Advice::HugePage);
        }
        // SAFETY: both mappings are kept in the value returned, which the ring's owner drops after the ring itself.
        unsafe {
            uring.submitter().register_buf_ring_with_flags(
                ring.as_mut_ptr() as u64,
                entries,
                Self::GROUP,
                0,
            )?;
        }
        let mut this = Self {
            ring,
            data,
            entries,
            bytes,
            tail: 0,
            circulation: Circulation::new(entries),
        };
        this.provide_more();
        Ok(this)
    }

    /// A receive ended because the kernel had no buffer left.
    pub fn ran_out(&mut self) {
        self.circulation.ran_out();
        self.provide_more();
    }

    fn provide_more(&mut self) {
        while let Some(buffer) = self.circulation.next() {
            self.provide(buffer);
        }
    }

    /// The first `len` bytes of a buffer that a completion named.
    pub fn bytes(&self, buffer: u16, len: usize) -> &[u8] {
        assert!(len <= self.bytes && buffer < self.entries);
        &self.data[usize::from(buffer) * self.bytes..][..len]
    }

    /// Takes back a buffer that a completion named.
    pub fn recycle(&mut self, buffer: u16) {
        if self.circulation.came_back(buffer) {
            self.provide(buffer);
        }
    }

    /// Gives a buffer to the kernel.
    fn provide(&mut self, buffer: u16) {
        let address = self.data.as_ptr() as u64 + u64::from(buffer) * self.bytes as u64;
        let slot = usize::from(self.tail & (self.entries - 1));
        let base = self.ring.as_mut_ptr().cast::<BufRingEntry>();
        // SAFETY: `slot` is below `entries`, for which the mapping has room; the kernel reads the slot only after the
        // tail was moved past it below.
        let entry = unsafe { &mut *base.add(slot) };
        entry.set_addr(address);
        entry.set_len(self.bytes as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: `base` is the first entry of the ring; its tail field is aligned and lives as long as the mapping.
        let tail = unsafe { &*BufRingEntry::tail(base).cast::<AtomicU16>() };
        // Release: the kernel must see the entry before it sees the new tail.
        tail.store(self.tail, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provided(circulation: &mut Circulation) -> Vec<u16> {
        std::iter::from_fn(|| circulation.next()).collect()
    }

    /// A few go round; more when the kernel ran out of them, all at most; and fewer after a quiet time.
    #[test]
    fn as_few_as_do() {
        let mut circulation = Circulation::new(128);
        assert_eq!(provided(&mut circulation), Vec::from_iter(0..32));
        circulation.ran_out();
        assert_eq!(provided(&mut circulation), [], "these have yet to go round");
        for count in [32, 64] {
            assert!((0..count).all(|n| circulation.came_back(n)));
            // All receives that waited tell of it.
            circulation.ran_out();
            circulation.ran_out();
            let more = Vec::from_iter(count..2 * count);
            assert_eq!(provided(&mut circulation), more);
            circulation.ran_out();
            assert_eq!(provided(&mut circulation), []);
        }
        assert!((0..128).all(|n| circulation.came_back(n)));
        circulation.ran_out();
        assert_eq!(provided(&mut circulation), []);
        let stay = (0..QUIET).filter(|n| circulation.came_back((n % 128) as u16));
        assert_eq!(stay.count(), QUIET as usize - 1);
        let leave = (0..63).filter(|&n| !circulation.came_back(n));
        assert_eq!(leave.count(), 63);
        assert_eq!((circulation.count, circulation.spare.len()), (64, 64));
        assert!(circulation.came_back(100));
    }

    /// Where there are few, all of them go round.
    #[test]
    fn all_of_a_few() {
        let mut circulation = Circulation::new(8);
        assert_eq!(provided(&mut circulation).len(), 8);
        circulation.ran_out();
        for n in 0..2 * QUIET {
            assert!(circulation.came_back((n % 8) as u16));
        }
    }
}
