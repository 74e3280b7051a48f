//! Replaying traces of writes through the engine alone, to measure write amplification.
//!
//! The volume gets as many segments as the judge of such figures gives: floor(N * (1 + OP) / grains of a segment), all
//! included: reserve, headers, open segments. It is filled once in order, then the trace is written, each write of the
//! trace being a page put and due at once, so that nothing is absorbed in the pool. What the engine does is counted
//! over the writes after the first `skip`.

pub mod trace;
mod volume;
pub mod workload;

pub use volume::{Measured, ReplayOptions, Replayer};
