//! The formats on the wire, in two layers each: a raw struct that gives every field and judges nothing, and a parsed
//! type that holds only legal values. `parse` is total on arbitrary bytes, `emit` cannot fail.
//!
//! All fields are big-endian, but for the CRC (RFC 5044 §4.3, stored as iSCSI does: little-endian).

pub mod atomic;
pub mod ddp;
pub mod fpdu;
pub mod hello;
pub mod marker;
pub mod profile;
pub mod rdmap;
pub mod reader;
pub mod start;
pub mod terminate;
