//! The engine, on devices in memory, simulated ones and files.
//!
//! One program for all of it: the engine is generic over its device, so each test program would build it anew, and tests that use one
//! processor run beside each other.

mod accounts;
mod array;
mod away;
mod by_hand;
mod clone;
mod clone_busy;
mod cold;
mod common;
mod crash;
mod damage;
mod dump;
mod endurance;
mod faults;
mod harness;
mod heat;
mod judge;
mod loss;
mod loss_moments;
mod loss_relocating;
mod many_pages;
mod map_schedules;
mod model;
mod nth_call;
mod planted;
mod queue;
mod remap;
mod resize;
mod shared_flush;
mod sharing;
mod shutdown;
mod snapshot;
mod snapshot_life;
mod whole_copies;
