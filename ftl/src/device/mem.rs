//! A device in memory: emulated non-volatile memory, as durable as the process.

use std::collections::VecDeque;
use std::io;

use memmap2::MmapMut;

use super::{Action, ActionId, Device, MediaError, MediaOp, check};

/// A device whose media is anonymous memory. Every operation completes at once and nothing ever fails.
///
/// Memory is used only for what has been written, so the device may be far larger than its content.
#[derive(Debug)]
pub struct MemDevice {
    media: MmapMut,
    done: VecDeque<(ActionId, Result<(), MediaError>)>,
}

impl MemDevice {
    /// A device of `len_bytes` zeros.
    ///
    /// # Errors
    /// When the system refuses the address space.
    pub fn new(len_bytes: usize) -> io::Result<Self> {
        Ok(Self {
            media: MmapMut::map_anon(len_bytes)?,
            done: VecDeque::new(),
        })
    }

    /// A device with the given content.
    ///
    /// # Errors
    /// When the system refuses the address space.
    pub fn from_image(image: &[u8]) -> io::Result<Self> {
        let mut device = Self::new(image.len())?;
        device.media.copy_from_slice(image);
        Ok(device)
    }

    /// The whole content.
    pub fn image(&self) -> &[u8] {
        &self.media
    }

    /// The whole content, to damage it.
    pub fn image_mut(&mut self) -> &mut [u8] {
        &mut self.media
    }

    fn carry_out(&mut self, op: MediaOp) -> Result<(), MediaError> {
        check(&op, self.len_bytes())?;
        match op {
            MediaOp::Read { offset, mut buf } => {
                let start = offset as usize;
                let len = buf.len();
                // SAFETY: the completion is queued only after this function has returned.
                let bytes = unsafe { buf.bytes_mut() };
                bytes.copy_from_slice(&self.media[start..start + len]);
            }
            MediaOp::Write { offset, buf, .. } => {
                let start = offset as usize;
                // SAFETY: the completion is queued only after this function has returned.
                let bytes = unsafe { buf.bytes() };
                self.media[start..start + bytes.len()].copy_from_slice(bytes);
            }
            MediaOp::Flush => {}
            MediaOp::Discard { offset, len } => self.give_back(offset as usize, len as usize),
        }
        Ok(())
    }

    /// Returns the memory of a range to the system; it reads as zeros afterwards.
    fn give_back(&mut self, start: usize, len: usize) {
        let advice = memmap2::UncheckedAdvice::DontNeed;
        // SAFETY: the mapping is private and anonymous, `&mut self` shows that no reference into it exists, and
        // `check` has verified the bounds. Pages given back read as zeros.
        let advised = unsafe { self.media.unchecked_advise_range(advice, start, len) };
        if advised.is_err() {
            self.media[start..start + len].fill(0);
        }
    }
}

impl Device for MemDevice {
    fn len_bytes(&self) -> u64 {
        self.media.len() as u64
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

    #[test]
    fn stores_and_discards() {
        let mut device = MemDevice::new(8 * 4096).unwrap();
        let mut buf = TestBuf::filled(2, 7);
        assert_eq!(run(&mut device, buf.write_op(4096)), Ok(()));
        assert_eq!(run(&mut device, MediaOp::Flush), Ok(()));
        assert!(device.image()[..4096].iter().all(|byte| *byte == 0));
        assert!(device.image()[4096..3 * 4096].iter().all(|byte| *byte == 7));

        let discard = MediaOp::Discard {
            offset: 4096,
            len: 4096,
        };
        assert_eq!(run(&mut device, discard), Ok(()));
        assert_eq!(run(&mut device, buf.read_op(4096)), Ok(()));
        assert!(buf.bytes()[..4096].iter().all(|byte| *byte == 0));
        assert!(buf.bytes()[4096..].iter().all(|byte| *byte == 7));
    }

    /// A request outside of the device fails and touches nothing.
    #[test]
    fn out_of_range_fails() {
        let mut device = MemDevice::new(2 * 4096).unwrap();
        let mut buf = TestBuf::filled(2, 7);
        assert_eq!(
            run(&mut device, buf.write_op(4096)),
            Err(MediaError::Invalid)
        );
        assert_eq!(run(&mut device, buf.read_op(512)), Err(MediaError::Invalid));
        assert!(device.image().iter().all(|byte| *byte == 0));
    }
}
