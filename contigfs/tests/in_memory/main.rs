//! The file system over a store or a volume in memory; without the kernel, but for mounts in `snapshot` that show what a mount makes of
//! snapshots.
//!
//! One program for all of it: the file system and the engine are generic, so each test program would build them anew, and
//! tests that use one processor run beside each other.

mod copy;
mod crash;
mod damage;
mod directories;
mod fs_damage;
mod harness;
mod long_files;
mod model;
mod moments;
mod observer;
mod planted;
mod quota;
mod refused;
mod relaxed;
mod relocate;
mod renewed;
mod repair;
mod repair_attributes;
mod repair_cuts;
mod repair_media;
mod repair_places;
mod repaired;
mod sharing;
mod snapshot;
mod space;
mod threads;
mod volume;
mod xattr;
