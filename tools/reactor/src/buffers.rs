//! Receive buffers that the kernel picks from when bytes arrive (a provided-buffer ring).
//!
//! One ring serves all connections of a reactor, so memory is bounded by the reactor and not by the number of peers.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use memmap2::MmapMut;

/// Provided buffers of one reactor.
#[derive(Debug)]
pub struct RecvBuffers {
    ring: MmapMut,
    data: MmapMut,
    entries: u16,
    bytes: usize,
    tail: u16,
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
        };
        for buffer in 0..entries {
            this.recycle(buffer);
        }
        Ok(this)
    }

    /// The first `len` bytes of a buffer that a completion named.
    pub fn bytes(&self, buffer: u16, len: usize) -> &[u8] {
        assert!(len <= self.bytes && buffer < self.entries);
        &self.data[usize::from(buffer) * self.bytes..][..len]
    }

    /// Gives a buffer to the kernel.
    pub fn recycle(&mut self, buffer: u16) {
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
