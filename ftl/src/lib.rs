//! Log-structured flash translation layer: pages, mapping, log, garbage collection, recovery, devices.

#![deny(unsafe_code)]

mod addr;
mod batch;
mod blocking;
mod core;
#[allow(unsafe_code)]
pub mod device;
mod dirty;
mod engine;
mod error;
pub mod format;
mod geometry;
mod ids;
mod log;
#[doc(hidden)]
pub mod map;
mod open;
mod page;
#[doc(hidden)]
pub mod planted;
mod port;
mod records;
mod recover;
mod segment;
mod shared;
mod space;
mod stats;

pub use addr::{GRAIN_BYTES, Lba, LbaRange, Pba, SegmentId};
pub use batch::AtomicBatch;
pub use blocking::{Volume, VolumeError};
pub use device::{
    Action, ActionId, Device, FileDevice, IoBuf, MediaError, MediaOp, MemDevice, SimDevice,
};
pub use engine::{Ftl, Get, VolumeInfo};
pub use error::{CommitError, DurableError, FormatError, GetError, OpenError};
pub use geometry::Geometry;
pub use ids::{GrainState, Intent, Port, Time, Token};
pub use open::{FormatOptions, OpenOptions};
pub use page::PageRef;
pub use port::Event;
pub use recover::RecoveryReport;
pub use space::Space;
pub use stats::Stats;
