//! Memory that loses power, and a group of such memories: what log and locks are tried on.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

pub mod local;
pub mod mem;
pub mod near;
pub mod rng;
