//! Devices: where the grains lie, behind one small seam.
//!
//! The engine asks for media operations as [`Action`]s and hears of each exactly once. Who carries them out is a
//! [`Device`]: a file or block device, plain memory, or the simulated device of the tests with its faults. A
//! reactor that owns a ring may carry actions out itself; nothing in the engine can tell the difference.
//!
//! # Rules of the seam
//! - Offsets and lengths are bytes, multiples of [`crate::GRAIN_BYTES`].
//! - Operations in flight at the same time are unordered. Whoever needs an order waits for a completion.
//! - A write is durable when a flush that was submitted after its completion has succeeded, not before; one that asks
//!   for it is durable when it has completed.
//! - Success means all bytes: a short transfer is finished by the device or reported as [`MediaError::Short`].
//! - A discard is advice. It always succeeds, and what it covered reads as anything.

pub mod array;
mod error;
pub mod file;
mod headers;
mod io_buf;
mod mem;
mod overlay;
pub mod sim;

#[cfg(test)]
mod testing;

pub use array::{ArrayDevice, AssemblyError, Member, MemberState, Members};
pub use error::MediaError;
pub use file::{Allocation, DeviceOpenError, FileDevice};
pub use headers::HeaderDevice;
pub use io_buf::IoBuf;
pub use mem::MemDevice;
pub use overlay::OverlayDevice;
pub use sim::SimDevice;

use std::fmt;
use std::sync::Arc;

use crate::GRAIN_BYTES;

/// Names one media operation between its issue and its completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActionId(pub u64);

impl fmt::Display for ActionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "action {}", self.0)
    }
}

impl fmt::Debug for ActionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What to do to the media.
#[derive(Debug)]
pub enum MediaOp {
    /// Fill `buf` from the media.
    Read {
        /// First byte on the device.
        offset: u64,
        /// Where the bytes go; its length is the length of the read.
        buf: IoBuf,
    },
    /// Put `buf` on the media.
    Write {
        /// First byte on the device.
        offset: u64,
        /// The bytes; they do not change until the operation completes.
        buf: IoBuf,
        /// Success means that these bytes are durable, with no flush; nothing is said about other writes.
        durable: bool,
    },
    /// Make every write that has completed before the submission durable.
    Flush,
    /// The range holds nothing of value any more.
    Discard {
        /// First byte on the device.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

/// A media operation the engine wants carried out, exactly once.
#[derive(Debug)]
pub struct Action {
    /// Comes back with the completion.
    pub id: ActionId,
    /// What to do.
    pub op: MediaOp,
}

/// Something that stores grains.
///
/// Completions come in any order, each exactly once. A device that fails keeps answering: every later operation
/// completes, with an error.
pub trait Device: Send {
    /// Size of the device in bytes.
    fn len_bytes(&self) -> u64;

    /// Queues an operation. It may complete at once, but is only reported by [`Device::poll`].
    fn submit(&mut self, action: Action);

    /// Takes the next completion. With `wait`, blocks while something is in flight and nothing has completed;
    /// `None` then means that nothing is in flight.
    fn poll(&mut self, wait: bool) -> Option<(ActionId, Result<(), MediaError>)>;

    /// Lets some time pass, so that what could not be read may be readable again. False when so much has passed already that
    /// it is taken to be so for good; always where no time passes.
    fn rest(&mut self) -> bool {
        false
    }

    /// Of an array: its devices.
    fn members(&self) -> Option<&Arc<Members>> {
        None
    }
}

/// Whether `op` lies inside a device of `len_bytes` and is aligned; every implementation asks this first.
fn check(op: &MediaOp, len_bytes: u64) -> Result<(), MediaError> {
    let (offset, len) = match op {
        MediaOp::Flush => return Ok(()),
        MediaOp::Read { offset, buf } | MediaOp::Write { offset, buf, .. } => {
            if !buf.as_ptr().addr().is_multiple_of(GRAIN_BYTES) {
                return Err(MediaError::Invalid);
            }
            (*offset, buf.len() as u64)
        }
        MediaOp::Discard { offset, len } => (*offset, *len),
    };
    let aligned =
        offset.is_multiple_of(GRAIN_BYTES as u64) && len.is_multiple_of(GRAIN_BYTES as u64);
    let inside = offset.checked_add(len).is_some_and(|end| end <= len_bytes);
    if aligned && inside && len > 0 {
        Ok(())
    } else {
        Err(MediaError::Invalid)
    }
}
