//! The mount, through the kernel.
//!
//! One program for many tests: each program is linked, and has what the tests share built, by itself; and tests that wait do so beside each other.

mod append;
mod data;
mod locks;
mod names;
mod posix;
mod privileges;
mod snapshot_handles;
mod times;
mod xattr;
