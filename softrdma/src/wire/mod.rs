//! The formats on the wire.
pub mod terminate;
