//! Seeded numbers: the same seed gives the same run, on every machine and with every compiler.

/// SplitMix64: small, fast, and good enough to choose faults with.
#[derive(Clone, Debug)]
pub struct SimRng(u64);

impl SimRng {
    /// A sequence that depends on the seed alone.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        // The bias of the remainder is far below what a test could notice.
        self.bits() % bound
    }

    /// True once in `n` times.
    pub const fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A sequence of its own, for a part that must not disturb this one.
    pub const fn fork(&mut self) -> Self {
        Self(self.bits())
    }

    /// Random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.bits().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published first values for seed 0: seeds printed long ago stay replayable.
    #[test]
    fn golden() {
        let mut rng = SimRng::new(0);
        assert_eq!(rng.bits(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(rng.bits(), 0x6E78_9E6A_A1B9_65F4);
        assert_eq!(rng.bits(), 0x06C4_5D18_8009_454F);
    }
}
