//! Users of two file systems who do the same on both, and what is seen of each.
#![allow(unreachable_pub)]

pub mod call;
mod draw;
mod exceptions;
pub mod ext4;
mod raw;
mod sight;
pub mod stage;
mod user;
