//! Entries of the map as a checkpoint keeps them: packed, about ten bytes each instead of twenty.
//!
//! ```text
//!   varint  distance from the end of the entry before (of the first: from LBA 0) << 2 | kind
//!   kind 0  on the media    varint  distance from the place behind the one before, zigzag;  4 bytes  CRC-32 of the grain
//!   kind 1  reads as zeros  varint  number of the zero record
//!   kind 2  unmapped        varint  so many grains
//!   kind 3  on the media    as kind 0;  3 bytes  heat
//! ```
//!
//! A varint holds seven bits a byte, the lowest first; the top bit says that more follow. Entries ascend.

use crate::addr::{Lba, LbaRange, Pba};
use crate::map::{Location, ZeroId};
use crate::placement::Heat;

const MEDIA: u64 = 0;
const ZERO: u64 = 1;
const UNMAPPED: u64 = 2;
const MEDIA_WITH_HEAT: u64 = 3;
/// Bytes of the longest entry.
const LONGEST: usize = 10 + 10 + 4 + HEAT_BYTES;
const HEAT_BYTES: usize = Heat::BITS.div_ceil(8) as usize;
const PBA_END: u64 = 1 << 48;

/// What a checkpoint says about an LBA, or, of unmapped ones, about several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapEntry {
    Set {
        lba: Lba,
        at: Location,
        /// CRC-32 of the grain, if it is on the media.
        crc: u32,
        /// What is remembered of its updates, if it is on the media.
        heat: Heat,
    },
    Unmapped(LbaRange),
}

impl MapEntry {
    /// What it speaks of.
    pub(crate) fn range(&self) -> LbaRange {
        match *self {
            Self::Set { lba, .. } => LbaRange::new(lba, 1),
            Self::Unmapped(range) => range,
        }
    }

    /// The same without what is remembered of a grain, which takes less room.
    pub(crate) fn without_heat(self) -> Self {
        match self {
            Self::Set { lba, at, crc, .. } => Self::Set {
                lba,
                at,
                crc,
                heat: Heat::UNKNOWN,
            },
            Self::Unmapped(_) => self,
        }
    }
}

/// What the next entry is told relative to.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    end: u64,
    /// Behind the last place on the media.
    pba: u64,
}

/// Packs as many of `entries`, which ascend, as fit `room` bytes; returns how many these are.
pub(super) fn pack(entries: &[MapEntry], room: usize) -> (Vec<u8>, usize) {
    let mut out = Vec::with_capacity(room);
    let mut before = Before::default();
    let mut count = 0;
    for entry in entries {
        if out.len() + LONGEST > room {
            break;
        }
        let range = entry.range();
        let gap = (range.start.0 - before.end) << 2;
        before.end = range.end().0;
        match *entry {
            MapEntry::Set {
                at: Location::Media(pba),
                crc,
                heat,
                ..
            } => {
                let has_heat = heat != Heat::UNKNOWN;
                put(
                    &mut out,
                    gap | if has_heat { MEDIA_WITH_HEAT } else { MEDIA },
                );
                let step = pba.0.wrapping_sub(before.pba) as i64;
                put(&mut out, ((step << 1) ^ (step >> 63)) as u64);
                out.extend_from_slice(&crc.to_le_bytes());
                if has_heat {
                    out.extend_from_slice(&heat.bits().to_le_bytes()[..HEAT_BYTES]);
                }
                before.pba = pba.0 + 1;
            }
            MapEntry::Set {
                at: Location::Zero(id),
                ..
            } => {
                put(&mut out, gap | ZERO);
                put(&mut out, u64::from(id.0));
            }
            MapEntry::Set {
                at: Location::Nowhere,
                ..
            }
            | MapEntry::Unmapped(_) => {
                put(&mut out, gap | UNMAPPED);
                put(&mut out, range.count);
            }
        }
        count += 1;
    }
    (out, count)
}

/// Unpacks `count` entries. None: nonsense.
pub(super) fn unpack(mut from: &[u8], count: usize) -> Option<Vec<MapEntry>> {
    // The shortest entry has two bytes.
    if count > from.len() / 2 {
        return None;
    }
    let mut entries = Vec::with_capacity(count);
    let mut before = Before::default();
    for _ in 0..count {
        let head = take(&mut from)?;
        let lba = Lba(before.end.checked_add(head >> 2)?);
        if lba >= Lba::SPACE_END {
            return None;
        }
        let entry = match head & 3 {
            kind @ (MEDIA | MEDIA_WITH_HEAT) => {
                let step = take(&mut from)?;
                let step = (step >> 1) as i64 ^ -((step & 1) as i64);
                let pba = before.pba.checked_add_signed(step)?;
                let (crc, rest) = from.split_first_chunk::<4>()?;
                from = rest;
                if pba >= PBA_END {
                    return None;
                }
                let heat = match kind {
                    MEDIA => Heat::UNKNOWN,
                    _ => take_heat(&mut from)?,
                };
                before.pba = pba + 1;
                MapEntry::Set {
                    lba,
                    at: Location::Media(Pba(pba)),
                    crc: u32::from_le_bytes(*crc),
                    heat,
                }
            }
            ZERO => MapEntry::Set {
                lba,
                at: Location::Zero(ZeroId(take(&mut from)?.try_into().ok()?)),
                crc: 0,
                heat: Heat::UNKNOWN,
            },
            UNMAPPED => {
                let count = take(&mut from)?;
                let end = lba.0.checked_add(count)?;
                if count == 0 || end > Lba::SPACE_END.0 {
                    return None;
                }
                MapEntry::Unmapped(LbaRange::new(lba, count))
            }
            _ => unreachable!("two bits"),
        };
        before.end = entry.range().end().0;
        entries.push(entry);
    }
    Some(entries)
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// What is remembered of a grain. None: nonsense.
fn take_heat(from: &mut &[u8]) -> Option<Heat> {
    let (bytes, rest) = from.split_first_chunk::<HEAT_BYTES>()?;
    *from = rest;
    let mut word = [0; 4];
    word[..HEAT_BYTES].copy_from_slice(bytes);
    let bits = u32::from_le_bytes(word);
    let heat = Heat::new(bits);
    (heat.bits() == bits && heat != Heat::UNKNOWN).then_some(heat)
}

fn take(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn media(lba: u64, pba: u64) -> MapEntry {
        MapEntry::Set {
            lba: Lba(lba),
            at: Location::Media(Pba(pba)),
            crc: !(lba as u32),
            heat: Heat::UNKNOWN,
        }
    }

    /// Whatever is packed is unpacked, at both ends of both address spaces (I4).
    #[test]
    fn round_trip() {
        let zero = MapEntry::Set {
            lba: Lba(9),
            at: Location::Zero(ZeroId(u32::MAX)),
            crc: 0,
            heat: Heat::UNKNOWN,
        };
        let hot = |lba: u64, bits| MapEntry::Set {
            lba: Lba(lba),
            at: Location::Media(Pba(lba)),
            crc: 9,
            heat: Heat::new(bits),
        };
        let last = LbaRange::new(Lba(1 << 40), Lba::SPACE_END.0 - (1 << 40));
        let entries = [
            media(0, PBA_END - 1),
            media(1, 0),
            media(2, 1),
            media(8, PBA_END - 1),
            zero,
            MapEntry::Unmapped(LbaRange::new(Lba(10), 1)),
            media(11, 77),
            hot(12, 1),
            hot(900, (1 << Heat::BITS) - 1),
            MapEntry::Unmapped(last),
        ];
        let (packed, count) = pack(&entries, 4064);
        assert_eq!(count, entries.len());
        assert_eq!(unpack(&packed, count).as_deref(), Some(&entries[..]));
        for short in 0..packed.len() {
            assert_eq!(unpack(&packed[..short], count), None, "{short} bytes");
        }
    }

    /// Random bytes are refused or make sense; nothing overflows (M9).
    #[test]
    fn any_bytes() {
        let mut seed = 1u64;
        for _ in 0..20_000 {
            let mut bytes = [0; 40];
            for byte in &mut bytes {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (seed >> 56) as u8 | (seed >> 20 & 0x80) as u8;
            }
            let entries = unpack(&bytes, 3).unwrap_or_default();
            assert!(entries.iter().all(|e| e.range().end() <= Lba::SPACE_END));
        }
    }

    /// Random places of a volume of 256 GiB take ten bytes an entry, a file written in one go six.
    #[test]
    fn size() {
        let random = |n: u64| media(n * 128, n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 38);
        let entries: Vec<MapEntry> = (0..1000).map(random).collect();
        assert!(pack(&entries, 4064).1 >= 390);
        let entries: Vec<MapEntry> = (0..1000).map(|n| media(n, 5000 + n)).collect();
        assert!(pack(&entries, 4064).1 >= 670);
    }
}
