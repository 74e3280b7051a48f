//! A digest of a grain, to find out whether somebody has changed it.

use crate::addr::GRAIN_BYTES;

/// Odd, without a pattern.
const FACTORS: [u64; 4] = [
    0x9e37_79b9_7f4a_7c15,
    0xc2b2_ae3d_27d4_eb4f,
    0x1656_67b1_9e37_79f9,
    0xff51_afd7_ed55_8ccd,
];

/// 64 bits of a grain. Contents that differ have the same by a chance of about 2^-64. The checksum of the media, with half as
/// many bits, would take one of 2^32 changes for none.
pub(crate) fn digest(bytes: &[u8; GRAIN_BYTES]) -> u64 {
    let mut lanes = FACTORS;
    let (blocks, _) = bytes.as_chunks::<32>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (n, lane) in lanes.iter_mut().enumerate() {
            *lane = mix(*lane ^ u64::from_le_bytes(words[n]), FACTORS[n]);
        }
    }
    let sum = |sum: u64, (lane, factor): (&u64, u64)| mix(sum.rotate_left(31) ^ lane, factor);
    lanes.iter().zip(FACTORS).fold(0, sum)
}

/// Both halves of the product. The lower one alone would pass a change of the highest bit on as just that, and the next word
/// could take it back.
fn mix(word: u64, factor: u64) -> u64 {
    let product = u128::from(word) * u128::from(factor);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Every single changed bit shows, and so do words that change places: a store is never taken for none (I1).
    #[test]
    fn changes_show() {
        let mut bytes = [0; GRAIN_BYTES];
        let mut seen = HashSet::from([digest(&bytes)]);
        for bit in 0..GRAIN_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(digest(&bytes)), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        bytes[0] = 1;
        bytes[40] = 2;
        let before = digest(&bytes);
        bytes.swap(0, 40);
        assert_ne!(digest(&bytes), before);
        bytes.swap(0, 32);
        assert_ne!(digest(&bytes), before);
    }
}
