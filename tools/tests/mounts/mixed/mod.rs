//! Clients of one target, and an oracle that knows what each of them must be answered.
#![allow(unreachable_pub)]

mod answer;
mod content;
mod draw;
pub mod local;
mod oracle;
pub mod remote;
pub mod slots;
pub mod world;
