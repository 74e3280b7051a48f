//! Memory that peers may touch: buffers, regions and the one access check.

pub mod access;
pub mod arena;
pub mod atomic;
pub(crate) mod cache;
mod gate;
#[cfg(test)]
mod modelled;
pub mod region;
pub mod window;

pub use access::{AccessError, AccessKind};
pub use arena::Buffer;
pub use atomic::{ATOMIC_BYTES, Atomic};
pub use region::{Backing, MemoryRegion, RegionSpec, RegionTable, RegisterError, Rights};
pub use window::{DomainBind, DomainWindow, MemoryWindow, WindowBind};
