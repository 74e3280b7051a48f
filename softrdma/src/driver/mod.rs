//! Drivers: what moves the bytes between connections.

pub mod loopback;
pub mod tcp;
