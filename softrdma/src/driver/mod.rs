//! Drivers: what moves the bytes between connections.

pub mod loopback;
mod spin;
pub mod tcp;

pub use spin::Spin;
