//! Volumes on their devices: arrays, checks and repairs, growth, power cuts, and media that fail.
//!
//! One program for many tests: each program is linked, and has what the tests share built, by itself; and tests that wait do so beside each other.

mod array;
mod block_devices;
mod care;
#[path = "../common/mod.rs"]
mod common;
mod damaged_mounts;
mod disorder;
mod fsck;
mod power_cuts;
mod replay;
mod resize;
mod unreadable;
