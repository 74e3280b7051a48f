//! The mount of a real target: as programs and ordinary users see it, beside remote peers, and beside ext4.
//!
//! One program for many tests: each program is linked, and has what the tests share built, by itself; and tests that wait do so beside each other.

#[path = "../common/mod.rs"]
mod common;
mod compared;
mod direct;
mod fsx;
mod like_ext4;
mod litmus;
mod many_readers;
mod mapped_changes;
mod metadata_sync;
mod mixed;
mod mixed_clients;
mod mounting;
mod namespaces;
mod ordinary_user;
mod privileges;
mod programs;
mod quota;
mod rings;
mod sharing;
mod snapshot;
mod standing_still;
mod tree;
