//! The endpoint, against itself, frames made by hand, captures of a kernel, and a dissector.
//!
//! One program for many tests: each program is linked, and has what the tests share built, by itself; and tests that wait do so beside each other.

mod access;
mod arrivals;
mod atomics;
mod captures;
mod cm;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod first_frames;
mod fuzz;
mod holding;
mod offload;
mod pair;
mod parking;
mod profile;
mod served;
mod setup;
mod shared_receives;
mod tcp;
mod tshark;
mod verbs;
mod windows;
