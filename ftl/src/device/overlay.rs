//! A device that is only looked at: what is written to it stays in memory, over what is below.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use super::{Action, ActionId, Device, IoBuf, MediaError, MediaOp, Members, check};
use crate::GRAIN_BYTES;

/// Writes change what is read, and nothing on the device below. Memory is used for every grain that is written.
pub struct OverlayDevice<D> {
    below: D,
    /// What was written, by the number of the grain.
    grains: HashMap<u64, Box<[u8; GRAIN_BYTES]>>,
    /// Reads that the device below is carrying out: where they begin, and their memory.
    reads: HashMap<ActionId, (u64, IoBuf)>,
    done: VecDeque<(ActionId, Result<(), MediaError>)>,
}

impl<D> fmt::Debug for OverlayDevice<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OverlayDevice")
            .field("grains", &self.grains.len())
            .finish_non_exhaustive()
    }
}

impl<D: Device> OverlayDevice<D> {
    /// Over a device that may be open for reading only.
    pub fn new(below: D) -> Self {
        Self {
            below,
            grains: HashMap::new(),
            reads: HashMap::new(),
            done: VecDeque::new(),
        }
    }

    /// The device below, as it was: what was written is gone. Nothing may be in flight.
    pub fn into_below(self) -> D {
        self.below
    }

    fn write(&mut self, offset: u64, buf: &IoBuf) {
        // SAFETY: the completion is queued only after this function has returned.
        let bytes = unsafe { buf.bytes() };
        let (grains, _) = bytes.as_chunks::<GRAIN_BYTES>();
        let first = offset / GRAIN_BYTES as u64;
        for (number, grain) in (first..).zip(grains) {
            self.grains.insert(number, Box::new(*grain));
        }
    }

    /// Puts what was written over what was read.
    fn cover(&self, offset: u64, mut buf: IoBuf) {
        // SAFETY: a read that has ended below, whose completion is handed on after this function has returned.
        let bytes = unsafe { buf.bytes_mut() };
        let (grains, _) = bytes.as_chunks_mut::<GRAIN_BYTES>();
        let first = offset / GRAIN_BYTES as u64;
        for (number, grain) in (first..).zip(grains) {
            if let Some(written) = self.grains.get(&number) {
                *grain = **written;
            }
        }
    }
}

impl<D: Device> Device for OverlayDevice<D> {
    fn len_bytes(&self) -> u64 {
        self.below.len_bytes()
    }

    fn submit(&mut self, action: Action) {
        let Action { id, op } = action;
        if let Err(error) = check(&op, self.len_bytes()) {
            self.done.push_back((id, Err(error)));
            return;
        }
        match op {
            MediaOp::Read { offset, buf } => {
                self.reads.insert(id, (offset, buf.again()));
                let op = MediaOp::Read { offset, buf };
                self.below.submit(Action { id, op });
            }
            MediaOp::Write { offset, buf, .. } => {
                self.write(offset, &buf);
                self.done.push_back((id, Ok(())));
            }
            MediaOp::Flush | MediaOp::Discard { .. } => self.done.push_back((id, Ok(()))),
        }
    }

    fn poll(&mut self, wait: bool) -> Option<(ActionId, Result<(), MediaError>)> {
        if let Some(done) = self.done.pop_front() {
            return Some(done);
        }
        let (id, result) = self.below.poll(wait)?;
        if let Some((offset, buf)) = self.reads.remove(&id)
            && result.is_ok()
        {
            self.cover(offset, buf);
        }
        Some((id, result))
    }

    fn rest(&mut self) -> bool {
        self.below.rest()
    }

    fn members(&self) -> Option<&Arc<Members>> {
        self.below.members()
    }
}

#[cfg(test)]
mod tests {
    use super::super::MemDevice;
    use super::super::testing::{TestBuf, run};
    use super::*;

    /// Reads see writes grain by grain; the device below does not.
    #[test]
    fn writes_stay_above() {
        let mut below = MemDevice::new(8 * GRAIN_BYTES).unwrap();
        below.image_mut().fill(1);
        let mut device = OverlayDevice::new(below);
        let mut one = TestBuf::filled(1, 7);
        assert_eq!(
            run(&mut device, one.write_op(2 * GRAIN_BYTES as u64)),
            Ok(())
        );
        assert_eq!(run(&mut device, MediaOp::Flush), Ok(()));
        let mut all = TestBuf::filled(3, 0);
        assert_eq!(run(&mut device, all.read_op(GRAIN_BYTES as u64)), Ok(()));
        let of = |grain: usize| all.bytes()[grain * GRAIN_BYTES..][..GRAIN_BYTES].to_vec();
        assert_eq!(of(0), [1; GRAIN_BYTES]);
        assert_eq!(of(1), [7; GRAIN_BYTES]);
        assert_eq!(of(2), [1; GRAIN_BYTES]);
        assert!(device.below.image().iter().all(|byte| *byte == 1));
        let beyond = one.write_op(8 * GRAIN_BYTES as u64);
        assert_eq!(run(&mut device, beyond), Err(MediaError::Invalid));
    }
}
