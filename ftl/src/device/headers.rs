//! A device that keeps the first grain of each write and no other, but from some place on all: enough for the engine's own
//! records, at a hundredth of the memory, for replaying traces.

use std::collections::{BTreeMap, VecDeque};

use super::{Action, ActionId, Device, MediaError, MediaOp, check};
use crate::GRAIN_BYTES;

/// See the module. What was not kept reads as anything.
#[derive(Debug)]
pub struct HeaderDevice {
    len_bytes: u64,
    /// First grain from which on everything is kept.
    all_from: u64,
    grains: BTreeMap<u64, Box<[u8]>>,
    done: VecDeque<(ActionId, Result<(), MediaError>)>,
}

impl HeaderDevice {
    /// A device of `len_bytes`.
    pub fn new(len_bytes: u64) -> Self {
        Self {
            len_bytes,
            all_from: u64::MAX,
            grains: BTreeMap::new(),
            done: VecDeque::new(),
        }
    }

    /// The same, keeping everything from `offset` on, where checkpoints lie.
    pub fn keeping_all_from(self, offset: u64) -> Self {
        Self {
            all_from: offset / GRAIN_BYTES as u64,
            ..self
        }
    }

    fn carry_out(&mut self, op: MediaOp) -> Result<(), MediaError> {
        check(&op, self.len_bytes)?;
        let grain = GRAIN_BYTES as u64;
        match op {
            MediaOp::Read { offset, mut buf } => {
                // SAFETY: the completion is queued only after this function has returned.
                let bytes = unsafe { buf.bytes_mut() };
                for (index, bytes) in bytes.chunks_exact_mut(GRAIN_BYTES).enumerate() {
                    if let Some(kept) = self.grains.get(&(offset / grain + index as u64)) {
                        bytes.copy_from_slice(kept);
                    }
                }
            }
            MediaOp::Write { offset, buf, .. } => {
                let first = offset / grain;
                // SAFETY: the completion is queued only after this function has returned.
                let bytes = unsafe { buf.bytes() };
                let rest = first + 1..first + (bytes.len() / GRAIN_BYTES) as u64;
                while let Some((&overwritten, _)) = self.grains.range(rest.clone()).next() {
                    self.grains.remove(&overwritten);
                }
                let kept = match first < self.all_from {
                    true => &bytes[..GRAIN_BYTES],
                    false => bytes,
                };
                for (at, bytes) in (first..).zip(kept.chunks_exact(GRAIN_BYTES)) {
                    self.grains.insert(at, bytes.into());
                }
            }
            MediaOp::Flush | MediaOp::Discard { .. } => {}
        }
        Ok(())
    }
}

impl Device for HeaderDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn submit(&mut self, action: Action) {
        let result = self.carry_out(action.op);
        self.done.push_back((action.id, result));
    }

    fn poll(&mut self, _wait: bool) -> Option<(ActionId, Result<(), MediaError>)> {
        self.done.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{TestBuf, run};
    use super::*;

    /// The first grain of a write comes back, until another write covers it.
    #[test]
    fn keeps_first_grains() {
        let mut device = HeaderDevice::new(8 * 4096);
        let mut buf = TestBuf::filled(2, 7);
        assert_eq!(run(&mut device, buf.write_op(4096)), Ok(()));
        let mut read = TestBuf::filled(1, 0);
        assert_eq!(run(&mut device, read.read_op(4096)), Ok(()));
        assert!(read.bytes().iter().all(|byte| *byte == 7));
        assert_eq!(run(&mut device, buf.write_op(0)), Ok(()));
        assert_eq!(device.grains.len(), 1);
        let mut device = device.keeping_all_from(4 * 4096);
        assert_eq!(run(&mut device, buf.write_op(4 * 4096)), Ok(()));
        assert_eq!(device.grains.keys().copied().collect::<Vec<_>>(), [0, 4, 5]);
    }
}
