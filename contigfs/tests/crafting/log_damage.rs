//! Crafted and damaged logs: superblocks, roots, pages of checkpoints, headers.

use ftl::GRAIN_BYTES;

use super::image::DEVICE_BYTES;
use support::Dice;

const GRAINS: u64 = (DEVICE_BYTES / GRAIN_BYTES) as u64;

/// Changes an image in a few places; `older` are images of the same volume from before.
pub fn damage(dice: &mut Dice, image: &mut [u8], older: &[Vec<u8>]) -> String {
    let metadata = metadata(image);
    let mut done = String::new();
    for _ in 0..1 + dice.below(3) {
        let grain = match dice.below(4) {
            // The few that everything hangs on.
            0 => dice.below(8) as usize,
            _ => *dice.pick(&metadata),
        };
        let at = grain * GRAIN_BYTES;
        done += &match dice.below(12) {
            0 => {
                let other = dice.below(GRAINS) as usize * GRAIN_BYTES;
                for byte in 0..GRAIN_BYTES {
                    image.swap(at + byte, other + byte);
                }
                format!("grain {grain} swapped with {}; ", other / GRAIN_BYTES)
            }
            1 => {
                image[at..at + GRAIN_BYTES].fill(0);
                format!("grain {grain} zeroed; ")
            }
            2 if !older.is_empty() => {
                let from = dice.pick(older);
                image[at..at + GRAIN_BYTES].copy_from_slice(&from[at..at + GRAIN_BYTES]);
                format!("grain {grain} is an older one; ")
            }
            3 => {
                let other = *dice.pick(&metadata) * GRAIN_BYTES;
                image.copy_within(other..other + GRAIN_BYTES, at);
                format!("grain {grain} copied from {}; ", other / GRAIN_BYTES)
            }
            4 => {
                let bit = dice.below(GRAIN_BYTES as u64 * 8) as usize;
                image[at + bit / 8] ^= 1 << (bit % 8);
                format!("grain {grain} bit {bit}; ")
            }
            _ => {
                let mut told = String::new();
                for _ in 0..1 + dice.below(2) {
                    told += &field(dice, &mut image[at..at + GRAIN_BYTES]);
                }
                seal(&mut image[at..at + GRAIN_BYTES]);
                format!("grain {grain}: {told}")
            }
        };
    }
    done
}

/// Grains that are not data, or not only.
pub fn metadata(image: &[u8]) -> Vec<usize> {
    let grains = image.chunks_exact(GRAIN_BYTES).enumerate();
    let is_metadata =
        |(no, bytes): &(usize, &[u8])| *no < 6 || bytes.starts_with(b"FTLHEAD1") || is_page(bytes);
    grains.filter(is_metadata).map(|(no, _)| no).collect()
}

fn is_page(bytes: &[u8]) -> bool {
    let crc = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
    crc != 0 && crc == crc32fast::hash(&bytes[4..])
}

/// Puts something into a field of two, four or eight bytes, or of one.
fn field(dice: &mut Dice, grain: &mut [u8]) -> String {
    let is_page = !grain.starts_with(b"FLASH") && !grain.starts_with(b"FTL");
    let used = grain.iter().rposition(|&byte| byte != 0).unwrap_or(0) + 1;
    let first = if is_page { 4 } else { 12 };
    let end = match dice.below(3) {
        0 => 128,
        1 => used.max(64),
        _ => used.clamp(64, 320),
    };
    let width = *dice.pick(&[1, 2, 4, 4, 8, 8, 8]);
    let at = first + dice.below((end - first) as u64) as usize;
    let at = (at / width * width).clamp(first.next_multiple_of(width), GRAIN_BYTES - width);
    let old = number(&grain[at..at + width]);
    let new = value(dice, old);
    grain[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
    format!("{width} bytes at {at} {old:#x} -> {new:#x}; ")
}

fn number(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

/// What a field may be that nobody expects.
pub fn value(dice: &mut Dice, old: u64) -> u64 {
    match dice.below(12) {
        0 => 0,
        1 => old.wrapping_add(1),
        2 => old.wrapping_sub(1),
        3 => u64::MAX,
        4 => u64::MAX - dice.below(3),
        5 => 1 << dice.below(64),
        6 => (1u64 << dice.below(64)).wrapping_sub(1),
        7 => old ^ 1 << dice.below(64),
        8 => dice.below(40),
        9 => dice.below(GRAINS),
        10 => old.wrapping_add(dice.below(64)).wrapping_sub(32),
        _ => dice.roll(),
    }
}

/// Makes the checksum of a grain fit what it says.
pub fn seal(grain: &mut [u8]) {
    let magics: [&[u8]; 4] = [b"FLASHNET", b"FTLROOT1", b"FLASHDEV", b"FTLHEAD1"];
    if magics.iter().any(|magic| grain.starts_with(magic)) {
        grain[8..12].fill(0);
        let crc = crc32fast::hash(grain);
        grain[8..12].copy_from_slice(&crc.to_le_bytes());
    } else {
        let crc = crc32fast::hash(&grain[4..]);
        grain[..4].copy_from_slice(&crc.to_le_bytes());
    }
}
