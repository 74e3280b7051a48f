//! The shape of a load: what every server and client of a comparison agrees on.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use softrdma::driver::Spin;

/// What is written, by whomever: no zeros, which devices need not keep.
pub const PAYLOAD: u8 = 0x5a;

/// Direction of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the server.
    Read,
    /// To the server.
    Write,
}

/// Which bytes an operation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Any of the file.
    Random,
    /// Those behind the last operation of the same connection. Each begins in a part of the file of its own.
    Sequential,
}

/// Shape of a load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Shape {
    /// Direction of the payload.
    pub direction: Direction,
    /// Bytes per operation.
    pub size: usize,
    /// Operations in flight per connection.
    pub depth: usize,
    /// Connections.
    pub connections: usize,
    /// Further ones that do nothing.
    pub idle: usize,
    /// Time measured.
    pub seconds: f64,
    /// Bytes of the file that offsets are drawn from.
    pub file_bytes: u64,
    /// Whether every write is durable before it completes.
    pub sync: bool,
    /// Look for answers all the time instead of sleeping.
    pub poll: bool,
    /// Or for so many microseconds, while they come as soon as that.
    pub spin_us: u64,
    /// Which bytes.
    pub pattern: Pattern,
}

impl Shape {
    /// Time measured.
    pub fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// How clients wait.
    pub fn spin(&self) -> Spin {
        Spin::new(Duration::from_micros(self.spin_us))
    }

    /// Whole operations that fit into the file.
    pub fn slots(&self) -> u64 {
        (self.file_bytes / self.size as u64).max(1)
    }
}

/// Draws offsets, the same for every program that starts from the same seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Offsets {
    state: u64,
    slots: u64,
    size: u64,
    pattern: Pattern,
}

impl Offsets {
    /// Offsets for connection `seed` of a load.
    pub fn new(shape: &Shape, seed: u64) -> Self {
        match shape.pattern {
            Pattern::Random => Self::over(shape.file_bytes, shape.size, seed),
            Pattern::Sequential => Self {
                state: shape.slots() / shape.connections as u64 * seed,
                slots: shape.slots(),
                size: shape.size as u64,
                pattern: Pattern::Sequential,
            },
        }
    }

    /// Offsets of operations of `size` bytes within `bytes`.
    pub fn over(bytes: u64, size: usize, seed: u64) -> Self {
        Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678,
            slots: (bytes / size as u64).max(1),
            size: size as u64,
            pattern: Pattern::Random,
        }
    }

    /// The next one: aligned to the size of an operation; uniform over the file, or in order and from the start again.
    pub fn draw(&mut self) -> u64 {
        if self.pattern == Pattern::Sequential {
            self.state += 1;
            return (self.state - 1) % self.slots * self.size;
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % self.slots * self.size
    }
}
