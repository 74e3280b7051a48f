//! The program as its users type it: what it says to bad input, what it measures, and what operators watch.
//!
//! One program for many tests: each program is linked, and has what the tests share built, by itself; and tests that wait do so beside each other.

mod bad_input;
mod bench_fs;
#[path = "../common/mod.rs"]
mod common;
mod demo;
mod install;
mod measuring;
mod metrics;
mod soak;
mod status;
mod top;
mod torture;
