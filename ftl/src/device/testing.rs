//! Helpers of the device tests: aligned memory and one operation at a time.

use std::ptr::NonNull;

use super::{Action, ActionId, Device, IoBuf, MediaError, MediaOp};
use crate::GRAIN_BYTES;

#[derive(Clone)]
#[repr(C, align(4096))]
struct Grain([u8; GRAIN_BYTES]);

/// Aligned memory for the operations of a test; outlives them because the tests wait for each completion.
pub(crate) struct TestBuf(Vec<Grain>);

impl TestBuf {
    pub(crate) fn filled(grains: usize, byte: u8) -> Self {
        Self(vec![Grain([byte; GRAIN_BYTES]); grains])
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: a Grain is exactly its bytes, without padding.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * GRAIN_BYTES) }
    }

    pub(crate) fn fill(&mut self, byte: u8) {
        self.0.fill(Grain([byte; GRAIN_BYTES]));
    }

    pub(crate) fn write_op(&mut self, offset: u64) -> MediaOp {
        MediaOp::Write {
            offset,
            buf: self.lend(),
            durable: false,
        }
    }

    pub(crate) fn read_op(&mut self, offset: u64) -> MediaOp {
        MediaOp::Read {
            offset,
            buf: self.lend(),
        }
    }

    fn lend(&mut self) -> IoBuf {
        let len = self.0.len() * GRAIN_BYTES;
        let ptr = NonNull::new(self.0.as_mut_ptr().cast::<u8>()).expect("a Vec has an address");
        // SAFETY: the tests keep the buffer and leave it alone until they have polled the completion.
        unsafe { IoBuf::new(ptr, len) }
    }
}

/// Carries out one operation on an idle device.
pub(crate) fn run(device: &mut dyn Device, op: MediaOp) -> Result<(), MediaError> {
    device.submit(Action {
        id: ActionId(u64::MAX),
        op,
    });
    let (id, result) = device.poll(true).expect("one operation is in flight");
    assert_eq!(id, ActionId(u64::MAX));
    result
}

/// Submits an operation under a number.
pub(crate) fn start(device: &mut dyn Device, id: u64, op: MediaOp) {
    device.submit(Action {
        id: ActionId(id),
        op,
    });
}
