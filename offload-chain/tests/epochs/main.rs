//! The parts of a group in one process, over memory that loses power: the log, locks, and what a change of epochs does.
//!
//! One program for many tests: each program is linked, and has what the tests share built, by itself; and tests that wait do so beside each other.

mod doubt;
mod fence;
mod join;
mod lock;
mod log;
mod seal;
#[path = "../support/mod.rs"]
mod support;
