//! A target and its remote peers: the client of this project, and the Linux kernel.
//!
//! One program for many tests: each program is linked, and has what the tests share built, by itself; and tests that wait do so beside each other.

mod client_flush;
#[path = "../common/mod.rs"]
mod common;
mod crowd;
mod door;
mod file_client;
mod names;
mod persistent;
mod region_command;
mod regions;
mod registration;
mod remote;
mod siw;
mod snapshot_peers;
mod tls;
mod transfer;
mod trees;
