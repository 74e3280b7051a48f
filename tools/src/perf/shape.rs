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
    /// Which of the turns of a comparison it is: each is about other bytes, as those of the one before may still be in memory.
    #[serde(skip)]
    pub turn: u32,
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

/// What the state moves on by.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl Offsets {
    /// Offsets for connection `n` of a load.
    pub fn new(shape: &Shape, n: u64) -> Self {
        let turn = u64::from(shape.turn);
        match shape.pattern {
            Pattern::Random => Self::over(shape.file_bytes, shape.size, turn << 32 | n),
            Pattern::Sequential => {
                let part = (shape.slots() / shape.connections as u64).max(1);
                Self {
                    state: part * n + turn.wrapping_mul(GAMMA) % part,
                    slots: shape.slots(),
                    size: shape.size as u64,
                    pattern: Pattern::Sequential,
                }
            }
        }
    }

    /// Offsets of operations of `size` bytes within `bytes`.
    pub fn over(bytes: u64, size: usize, seed: u64) -> Self {
        Self {
            // All states are on one circle: seeds that are beside each other must not be, or one draws what another drew just before.
            state: mix(seed.wrapping_add(GAMMA)),
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
        self.state = self.state.wrapping_add(GAMMA);
        mix(self.state) % self.slots * self.size
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn shape(pattern: Pattern, turn: u32) -> Shape {
        Shape {
            direction: Direction::Read,
            size: 4096,
            depth: 1,
            connections: 64,
            idle: 0,
            seconds: 1.0,
            file_bytes: 1 << 40,
            sync: false,
            poll: false,
            spin_us: 0,
            pattern,
            turn,
        }
    }

    fn drawn(shape: &Shape) -> Vec<u64> {
        let connections = 0..shape.connections as u64;
        let draw = |n| {
            let mut offsets = Offsets::new(shape, n);
            std::iter::repeat_with(move || offsets.draw()).take(1000)
        };
        connections.flat_map(draw).collect()
    }

    /// No connection asks for what another has just asked for, and no turn for what the one before has: it would be in memory. By
    /// chance some thirty of these offsets are drawn twice.
    #[test]
    fn everybody_draws_others() {
        let turns = [0, 1].map(|turn| drawn(&shape(Pattern::Random, turn)));
        let all: HashSet<u64> = turns.iter().flatten().copied().collect();
        assert!(all.len() > 127_900, "{} of 128000", all.len());
    }

    /// Each connection has a part of its own, and begins elsewhere in it in another turn.
    #[test]
    fn parts_in_order() {
        let part = (1 << 40) / 64;
        let first = |turn| {
            let drawn = drawn(&shape(Pattern::Sequential, turn));
            let begins = drawn.chunks(1000).map(|mine| mine[0]);
            (begins.collect::<Vec<_>>(), drawn[1] - drawn[0])
        };
        let (begins, step) = first(0);
        assert_eq!(begins, (0..64).map(|n| n * part).collect::<Vec<_>>());
        assert_eq!(step, 4096);
        for (n, begin) in first(1).0.iter().enumerate() {
            assert_ne!(*begin, begins[n]);
            assert_eq!(begin / part, n as u64);
        }
    }
}
