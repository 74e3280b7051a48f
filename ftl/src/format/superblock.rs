//! The superblock: what the volume is and which sessions wrote its log.
//!
//! Two copies lie in grains 0 and 1. A change writes the older copy with the next generation, flushes, then brings
//! the other one up to date the same way: at every moment one copy is intact, and after the second write the loss
//! of either is harmless.

use super::fresh::{FRESH_MAX, Fresh, RawFresh};
use super::sessions::{SESSIONS_MAX, SessionEnd, Sessions};
use super::{COUNTER_END, GrainBytes, HeaderNo, crc_without};
use crate::addr::GRAIN_BYTES;
use crate::geometry::{FIRST_SEGMENT_GRAIN, Geometry};
use crate::placement::HeatMeaning;
use crate::places::DEVICES_MAX;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: u64 = u64::from_le_bytes(*b"FLASHNET");
const CRC_AT: usize = 8;
/// 2: the log may carry remaps and clones, and a volume may lie on several devices. An engine that knows only 1 would take
/// the first of them for the end of the log, and one device of an array for a volume.
const VERSION: u32 = 2;
/// The same with fresh segments, in which an engine that does not know them would find old headers.
const VERSION_FRESH: u32 = 3;
/// The same with LBAs beyond 2^52 in the log, which an engine that does not know them would take for its end.
const VERSION_IMAGES: u32 = 4;
/// Checkpoints may hold what is remembered of grains; a flag says what version 4 does.
const VERSION_HEAT: u32 = 5;
/// What is written as [`VERSION`] and was written as this one, on one device, says the same.
const VERSION_OLDEST: u32 = 1;
const FLAG_CLEAN: u32 = 1;
/// An engine that does not know it drops it.
const FLAG_SUSPECT: u32 = 2;
/// In [`VERSION_HEAT`] only.
const FLAG_IMAGES: u32 = 4;

/// Little-endian.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawSuperblock {
    magic: U64,
    crc: U32,
    version: U32,
    uuid: [u8; 16],
    generation: U64,
    session: U64,
    device_grains: U64,
    segment_grains: U32,
    segment_count: U32,
    first_segment_grain: U64,
    capacity_grains: U64,
    flags: U32,
    device_index: U16,
    device_count: U16,
    array_uuid: [u8; 16],
    owner: [u8; 16],
    area_grains: U64,
    roots_from: U64,
    created_ns: U64,
    base_session: U64,
    base_end: U64,
    session_count: U16,
    failed: U16,
    unused: U32,
    fresh: [RawFresh; FRESH_MAX],
    reserved: [u8; 40],
    sessions: [RawSession; SESSIONS_MAX],
    grains: [U64; DEVICES_MAX],
    tail: [u8; GRAIN_BYTES - 256 - SESSIONS_MAX * 24 - DEVICES_MAX * 8],
}
const _: () = assert!(size_of::<RawSuperblock>() == GRAIN_BYTES);

/// Little-endian.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
struct RawSession {
    session: U64,
    first: U64,
    end: U64,
}

/// A superblock copy that is intact and possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Counts the writes; the higher copy is the younger.
    pub generation: u64,
    /// Number of the present session (0 before the first).
    pub session: u64,
    /// Sizes.
    pub geometry: Geometry,
    /// Shut down properly.
    pub clean: bool,
    /// Something is known to be wrong with what the volume holds: whoever looks after it is to look, clean or not.
    pub suspect: bool,
    /// Bytes for the layer above.
    pub owner: [u8; 16],
    /// When it was formatted, Unix nanoseconds.
    pub created_ns: u64,
    /// Roots of checkpoints with a lower number do not count.
    pub roots_from: u64,
    /// Devices of an array that have failed, one bit each: what is on them is out of date.
    pub failed: u16,
    /// Segments that have joined the volume late.
    pub fresh: Fresh,
    /// The log may name images of snapshots, which lie beyond 2^52.
    pub images: bool,
    /// Checkpoints may hold what is remembered of the updates of grains.
    pub heat: bool,
    /// The sessions before the present one.
    pub sessions: Sessions,
}

/// Why a grain is no superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockFlaw {
    /// Not one of ours.
    Foreign,
    /// The checksum does not fit.
    Checksum,
    /// Intact, but of a version we do not know.
    Version(u32),
    /// Intact, but says something impossible.
    Nonsense(&'static str),
}

/// Whether checkpoints of a volume of these sizes may hold heat, of such a meaning.
pub(crate) fn has_heat(meaning: HeatMeaning, geometry: &Geometry) -> bool {
    meaning != HeatMeaning::NONE && geometry.area_grains > 0
}

impl Superblock {
    /// The part of the identity that every header repeats.
    pub fn volume_tag(&self) -> u64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.uuid[..8]);
        u64::from_le_bytes(first)
    }

    /// Reads a grain.
    pub fn parse(bytes: &GrainBytes) -> Result<Self, SuperblockFlaw> {
        let raw = RawSuperblock::ref_from_bytes(bytes).map_err(|_| SuperblockFlaw::Foreign)?;
        if raw.magic.get() != MAGIC {
            return Err(SuperblockFlaw::Foreign);
        }
        if raw.crc.get() != crc_without(bytes, CRC_AT) {
            return Err(SuperblockFlaw::Checksum);
        }
        let version = raw.version.get();
        if !(VERSION_OLDEST..=VERSION_HEAT).contains(&version) {
            return Err(SuperblockFlaw::Version(version));
        }
        let devices = usize::from(raw.device_count.get());
        let fits = match version {
            VERSION | VERSION_IMAGES | VERSION_HEAT => (1..=DEVICES_MAX).contains(&devices),
            // Neither what is that old nor what has grown is an array.
            _ => devices == 1,
        };
        if raw.device_index.get() != 0 || !fits {
            return Err(SuperblockFlaw::Nonsense("array of devices"));
        }
        let sizes: Vec<u64> = match devices {
            1 => vec![raw.device_grains.get()],
            _ => raw.grains[..devices].iter().map(|g| g.get()).collect(),
        };
        let geometry = Geometry::read(
            &sizes,
            raw.segment_grains.get(),
            raw.segment_count.get(),
            raw.capacity_grains.get(),
            raw.area_grains.get(),
        );
        if geometry.device_grains != raw.device_grains.get() {
            return Err(SuperblockFlaw::Nonsense("sizes of the devices"));
        }
        geometry.sane().map_err(SuperblockFlaw::Nonsense)?;
        if raw.first_segment_grain.get() != FIRST_SEGMENT_GRAIN {
            return Err(SuperblockFlaw::Nonsense("first segment"));
        }
        let failed = raw.failed.get();
        if u32::from(failed) >> devices != 0 || failed.count_ones() as usize >= devices {
            return Err(SuperblockFlaw::Nonsense("failed devices"));
        }
        let fresh = match version {
            VERSION_FRESH | VERSION_IMAGES | VERSION_HEAT => Fresh::parse(&raw.fresh),
            _ => Some(Fresh::default()),
        };
        let fresh = fresh.ok_or(SuperblockFlaw::Nonsense("fresh segments"))?;
        let count = usize::from(raw.session_count.get());
        if count > SESSIONS_MAX {
            return Err(SuperblockFlaw::Nonsense("session table"));
        }
        let ends = raw.sessions[..count].iter().map(|s| SessionEnd {
            session: s.session.get(),
            first: HeaderNo(s.first.get()),
            end: HeaderNo(s.end.get()),
        });
        let sessions = Sessions {
            base_session: raw.base_session.get(),
            base_end: HeaderNo(raw.base_end.get()),
            ends: ends.collect(),
        };
        let counters = [&raw.generation, &raw.session, &raw.roots_from];
        let ascend = |w: &[SessionEnd]| w[0].end <= w[1].end;
        if counters.into_iter().any(|n| n.get() >= COUNTER_END)
            || !sessions.last().is_possible()
            || !sessions.ends.windows(2).all(ascend)
        {
            return Err(SuperblockFlaw::Nonsense("counters"));
        }
        Ok(Self {
            uuid: raw.uuid,
            generation: raw.generation.get(),
            session: raw.session.get(),
            geometry,
            clean: raw.flags.get() & FLAG_CLEAN != 0,
            suspect: raw.flags.get() & FLAG_SUSPECT != 0,
            owner: raw.owner,
            created_ns: raw.created_ns.get(),
            roots_from: raw.roots_from.get(),
            failed,
            fresh,
            images: match version {
                VERSION_HEAT => raw.flags.get() & FLAG_IMAGES != 0,
                _ => version == VERSION_IMAGES,
            },
            heat: version == VERSION_HEAT,
            sessions,
        })
    }

    fn flags(&self) -> u32 {
        let clean = if self.clean { FLAG_CLEAN } else { 0 };
        let suspect = if self.suspect { FLAG_SUSPECT } else { 0 };
        let images = if self.heat && self.images {
            FLAG_IMAGES
        } else {
            0
        };
        clean | suspect | images
    }

    fn version(&self) -> u32 {
        match (self.heat, self.images, self.fresh.entries.is_empty()) {
            (true, ..) => VERSION_HEAT,
            (false, true, _) => VERSION_IMAGES,
            (false, false, true) => VERSION,
            (false, false, false) => VERSION_FRESH,
        }
    }

    /// Writes the grain.
    pub fn emit(&self) -> Box<GrainBytes> {
        assert!(self.sessions.ends.len() <= SESSIONS_MAX, "session table");
        let none = RawSession {
            session: 0.into(),
            first: 0.into(),
            end: 0.into(),
        };
        let mut sessions = [none; SESSIONS_MAX];
        for (to, s) in sessions.iter_mut().zip(&self.sessions.ends) {
            *to = RawSession {
                session: s.session.into(),
                first: s.first.0.into(),
                end: s.end.0.into(),
            };
        }
        assert!(self.fresh.entries.len() <= FRESH_MAX, "fresh segments");
        let mut fresh = [RawFresh::new_zeroed(); FRESH_MAX];
        for (to, entry) in fresh.iter_mut().zip(&self.fresh.entries) {
            to.from = entry.from.0.into();
            to.above = entry.above.0.into();
        }
        let places = &self.geometry.places;
        let is_array = places.count() > 1;
        let mut grains = [U64::ZERO; DEVICES_MAX];
        if is_array {
            for (device, size) in grains.iter_mut().enumerate().take(places.count()) {
                *size = places.grains(device).into();
            }
        }
        let raw = RawSuperblock {
            magic: MAGIC.into(),
            crc: 0.into(),
            version: self.version().into(),
            uuid: self.uuid,
            generation: self.generation.into(),
            session: self.session.into(),
            device_grains: self.geometry.device_grains.into(),
            segment_grains: self.geometry.segment_grains.into(),
            segment_count: self.geometry.segment_count.into(),
            first_segment_grain: FIRST_SEGMENT_GRAIN.into(),
            capacity_grains: self.geometry.capacity_grains.into(),
            flags: self.flags().into(),
            device_index: 0.into(),
            device_count: (places.count() as u16).into(),
            array_uuid: self.uuid,
            owner: self.owner,
            area_grains: self.geometry.area_grains.into(),
            roots_from: self.roots_from.into(),
            created_ns: self.created_ns.into(),
            base_session: self.sessions.base_session.into(),
            base_end: self.sessions.base_end.0.into(),
            session_count: (self.sessions.ends.len() as u16).into(),
            failed: self.failed.into(),
            unused: 0.into(),
            fresh,
            reserved: [0; 40],
            sessions,
            grains,
            tail: [0; GRAIN_BYTES - 256 - SESSIONS_MAX * 24 - DEVICES_MAX * 8],
        };
        let mut bytes = Box::new([0; GRAIN_BYTES]);
        bytes.copy_from_slice(raw.as_bytes());
        let crc = crc_without(&bytes, CRC_AT);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::SegmentId;
    use crate::format::FreshFrom;

    fn example() -> Superblock {
        Superblock {
            uuid: *b"0123456789abcdef",
            generation: 7,
            session: 3,
            geometry: Geometry::derive(&[4096], Some(65536), 20, Some(1000), Some(32))
                .expect("geometry"),
            clean: true,
            suspect: true,
            owner: *b"owner of it all!",
            created_ns: 9,
            roots_from: 4,
            failed: 0,
            fresh: Fresh::default(),
            images: false,
            heat: false,
            sessions: Sessions {
                base_session: 0,
                base_end: HeaderNo(0),
                ends: vec![SessionEnd {
                    session: 2,
                    first: HeaderNo(1),
                    end: HeaderNo(0x55),
                }],
            },
        }
    }

    /// The layout on the media, byte by byte: a change of it is a change of the format.
    #[test]
    fn golden_bytes() {
        let bytes = example().emit();
        assert_eq!(&bytes[0..8], b"FLASHNET");
        assert_eq!(&bytes[12..16], [2, 0, 0, 0]);
        assert_eq!(&bytes[16..32], b"0123456789abcdef");
        assert_eq!(&bytes[32..40], [7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[40..48], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[48..56], [0, 16, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[56..64], [16, 0, 0, 0, 253, 0, 0, 0]);
        assert_eq!(&bytes[64..72], [16, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[72..80], [0xe8, 3, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[80..88], [3, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(&bytes[104..120], b"owner of it all!");
        assert_eq!(&bytes[120..128], [32, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[128..136], [4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[136..144], [9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[160..162], [1, 0]);
        assert_eq!(&bytes[248..256], [0; 8]);
        assert_eq!(&bytes[256..264], [2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[272..280], [0x55, 0, 0, 0, 0, 0, 0, 0]);
    }

    /// Clean and suspect are two things.
    #[test]
    fn flags() {
        for (clean, suspect, flags) in [(true, false, 1), (false, true, 2), (false, false, 0)] {
            let superblock = Superblock {
                clean,
                suspect,
                ..example()
            };
            let bytes = superblock.emit();
            assert_eq!(bytes[80], flags);
            assert_eq!(Superblock::parse(&bytes), Ok(superblock));
        }
    }

    /// A volume of version 1 is understood, and is one of version 2 once its superblock has been written; what is
    /// older or younger is refused, not misread.
    #[test]
    fn versions() {
        let with_version = |version: u8| {
            let mut bytes = example().emit();
            bytes[12] = version;
            let crc = crc_without(&bytes, CRC_AT);
            bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            Superblock::parse(&bytes)
        };
        for known in [1, 2, 3] {
            assert_eq!(with_version(known), Ok(example()));
        }
        let with_images = Superblock {
            images: true,
            ..example()
        };
        assert_eq!(with_version(4), Ok(with_images.clone()));
        assert_eq!(with_images.emit()[12], 4);
        let with_heat = |images| Superblock {
            images,
            heat: true,
            ..example()
        };
        assert_eq!(with_version(5), Ok(with_heat(false)));
        for superblock in [with_heat(false), with_heat(true)] {
            let bytes = superblock.emit();
            assert_eq!(bytes[12], 5);
            assert_eq!(Superblock::parse(&bytes), Ok(superblock));
        }
        for unknown in [0, 6] {
            let flaw = SuperblockFlaw::Version(u32::from(unknown));
            assert_eq!(with_version(unknown), Err(flaw));
        }
    }

    /// Counters that leave no room to count on are refused, however well the checksum fits.
    #[test]
    fn crafted_counters() {
        let changes: [fn(&mut Superblock); 5] = [
            |s| s.generation = u64::MAX,
            |s| s.session = COUNTER_END,
            |s| s.roots_from = u64::MAX - 1,
            |s| s.sessions.ends[0].end = HeaderNo(u64::MAX),
            |s| {
                s.sessions.ends.clear();
                s.sessions.base_end = HeaderNo(1 << 48);
            },
        ];
        for (n, change) in changes.into_iter().enumerate() {
            let mut crafted = example();
            change(&mut crafted);
            let flaw = Superblock::parse(&crafted.emit());
            assert_eq!(
                flaw,
                Err(SuperblockFlaw::Nonsense("counters")),
                "change {n}"
            );
        }
    }

    fn array() -> Superblock {
        Superblock {
            geometry: Geometry::derive(&[600, 4096], Some(65536), 20, Some(1000), Some(32))
                .expect("geometry"),
            failed: 2,
            ..example()
        }
    }

    /// What an array has besides; a volume on one device has zeros there.
    #[test]
    fn golden_bytes_of_an_array() {
        let bytes = array().emit();
        assert_eq!(&bytes[12..16], [2, 0, 0, 0]);
        assert_eq!(&bytes[48..56], [0x58, 0x12, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[84..88], [0, 0, 2, 0]);
        assert_eq!(&bytes[162..164], [2, 0]);
        assert_eq!(&bytes[3856..3864], [0x58, 2, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[3864..3872], [0, 16, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[3872..], [0; 224]);
        let single = example().emit();
        assert_eq!(&single[162..164], [0, 0]);
        assert_eq!(&single[3856..], [0; 240]);
        assert_eq!(Superblock::parse(&bytes), Ok(array()));
    }

    fn grown() -> Superblock {
        let entry = |from, above| FreshFrom {
            from: SegmentId(from),
            above: HeaderNo(above),
        };
        Superblock {
            fresh: Fresh {
                entries: vec![entry(3, 0x44), entry(200, 0x55)],
            },
            ..example()
        }
    }

    /// What a volume has besides that has grown, and that an engine without a notion of it refuses.
    #[test]
    fn golden_bytes_of_a_grown_volume() {
        let bytes = grown().emit();
        assert_eq!(&bytes[12..16], [3, 0, 0, 0]);
        assert_eq!(&bytes[164..168], [0; 4]);
        assert_eq!(
            &bytes[168..184],
            [3, 0, 0, 0, 0, 0, 0, 0, 0x44, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(
            &bytes[184..200],
            [200, 0, 0, 0, 0, 0, 0, 0, 0x55, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(&bytes[200..256], [0; 56]);
        assert_eq!(Superblock::parse(&bytes), Ok(grown()));
        assert_eq!(&example().emit()[164..256], [0; 92]);
    }

    /// What is written is read back, and any single damaged byte is noticed (I7).
    #[test]
    fn round_trip_and_cover() {
        let good = example().emit();
        assert_eq!(Superblock::parse(&good), Ok(example()));
        for at in 0..GRAIN_BYTES {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(Superblock::parse(&bad).is_err(), "byte {at}");
        }
    }
}
