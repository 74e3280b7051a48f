//! Groups of members: the primitives, their order, power cuts, hostile bytes, epochs, read leases; recipes; and the chain they are measured against.
//!
//! One program for many tests: each program is linked, and has what the tests share built, by itself; and tests that wait do so beside each other.

#![allow(unreachable_pub, reason = "modules of a test have no other users")]

mod bounds;
mod hostile;
mod lease;
mod model;
mod naive;
mod planted;
mod power;
mod primitives;
mod recipes;
mod tcp;
mod world;
