//! The root record: the first bytes of LBA 0.
//!
//! # Versions
//! The version is the lowest that a reader must know. A file system is made with version 1. The first operation that
//! will put something on media which readers of version 1 would misunderstand makes it version 2 before: from
//! then on `features` says what, and a reader refuses a file system with a feature that it does not know.

use ftl::Lba;
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{COLD_RANGE, HOT_RANGE};
use crate::error::Corruption;
use crate::time::Timestamp;

const MAGIC: [u8; 8] = *b"CONTIGFS";
/// Nothing but what was there from the start.
const VERSION_PLAIN: u32 = 1;
/// `features` counts.
const VERSION_FEATURES: u32 = 2;

/// What a reader must know to understand a file system, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features(pub(crate) u64);

impl Features {
    /// There are extended attributes, or were.
    pub(crate) const XATTRS: Self = Self(1);
    /// Files may be on their way from one range to another.
    pub(crate) const RELOCATIONS: Self = Self(2);
    /// Inodes may belong to projects, which may have limits.
    pub(crate) const PROJECTS: Self = Self(4);
    /// There are snapshots, or were: what they hold has to be kept.
    pub(crate) const SNAPSHOTS: Self = Self(8);
    const KNOWN: Self = Self::XATTRS
        .with(Self::RELOCATIONS)
        .with(Self::PROJECTS)
        .with(Self::SNAPSHOTS);

    pub(crate) const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    #[must_use]
    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// Root record. Written by format, and by the first operation that uses a feature.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRoot {
    magic: [u8; 8],
    version: U32,
    /// CRC-32 of the record with this field zero.
    crc: U32,
    hot_lba: U64,
    cold_lba: U64,
    hot_order: u8,
    cold_order: u8,
    reserved: [u8; 2],
    created_nanos: U32,
    created_secs: I64,
    /// From version 2 on; ignored before.
    features: U64,
    reserved2: [u8; 8],
}
const _: () = assert!(size_of::<RawRoot>() == RootRecord::BYTES);

/// The parsed root record. Its addresses are constants of all known versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RootRecord {
    /// When the file system was made.
    pub(crate) created: Timestamp,
    /// What it uses.
    pub(crate) features: Features,
}

impl RootRecord {
    /// Size on media.
    pub(crate) const BYTES: usize = 64;

    /// Judges the first bytes of the volume.
    pub(crate) fn parse(bytes: &[u8; Self::BYTES]) -> Result<Self, Corruption> {
        let raw = RawRoot::ref_from_bytes(bytes).map_err(|_| Corruption::Root("wrong length"))?;
        if raw.magic != MAGIC {
            return Err(Corruption::NoFileSystem);
        }
        if crc(bytes) != raw.crc.get() {
            return Err(Corruption::Root("checksum mismatch"));
        }
        let features = match raw.version.get() {
            VERSION_PLAIN => Features::default(),
            VERSION_FEATURES => Features(raw.features.get()),
            version => return Err(Corruption::Version(version)),
        };
        if !Features::KNOWN.contains(features) {
            return Err(Corruption::Features(features.0 & !Features::KNOWN.0));
        }
        let hot = (Lba(raw.hot_lba.get()), raw.hot_order);
        let cold = (Lba(raw.cold_lba.get()), raw.cold_order);
        if hot != (HOT_RANGE.start, HOT_RANGE.order.0)
            || cold != (COLD_RANGE.start, COLD_RANGE.order.0)
        {
            return Err(Corruption::Root(
                "inode table is elsewhere than this version puts it",
            ));
        }
        let created = Timestamp {
            secs: raw.created_secs.get(),
            nanos: raw.created_nanos.get(),
        };
        if created.nanos >= 1_000_000_000 {
            return Err(Corruption::Root("time of birth"));
        }
        Ok(Self { created, features })
    }

    /// The bytes on media.
    pub(crate) fn emit(&self) -> [u8; Self::BYTES] {
        let mut raw = RawRoot {
            magic: MAGIC,
            version: U32::new(if self.features == Features::default() {
                VERSION_PLAIN
            } else {
                VERSION_FEATURES
            }),
            crc: U32::ZERO,
            hot_lba: U64::new(HOT_RANGE.start.0),
            cold_lba: U64::new(COLD_RANGE.start.0),
            hot_order: HOT_RANGE.order.0,
            cold_order: COLD_RANGE.order.0,
            reserved: [0; 2],
            created_nanos: U32::new(self.created.nanos),
            created_secs: I64::new(self.created.secs),
            features: U64::new(self.features.0),
            reserved2: [0; 8],
        };
        let mut bytes = [0; Self::BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        raw.crc = U32::new(crc(&bytes));
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }
}

fn crc(bytes: &[u8; RootRecord::BYTES]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..12]);
    hasher.update(&[0; 4]);
    hasher.update(&bytes[16..]);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_and_round_trip() {
        let root = RootRecord {
            created: Timestamp {
                secs: 0x0102_0304,
                nanos: 5,
            },
            features: Features::default(),
        };
        let bytes = root.emit();
        assert_eq!(&bytes[..12], b"CONTIGFS\x01\0\0\0");
        assert_eq!(
            &bytes[16..34],
            b"\0\0\0\x04\0\0\0\0\0\0\0\x10\0\0\0\0\x19\x1b"
        );
        assert_eq!(&bytes[36..48], b"\x05\0\0\0\x04\x03\x02\x01\0\0\0\0");
        assert_eq!(RootRecord::parse(&bytes), Ok(root));
    }

    /// A file system is version 1 until it uses a feature; unknown features and versions are refused.
    #[test]
    fn features_raise_the_version() {
        let mut root = RootRecord {
            created: Timestamp { secs: 9, nanos: 5 },
            features: Features::XATTRS,
        };
        let bytes = root.emit();
        assert_eq!(bytes[8..12], [2, 0, 0, 0]);
        assert_eq!(bytes[48..56], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(RootRecord::parse(&bytes), Ok(root));
        root.features = Features(0b1_1101);
        assert_eq!(
            RootRecord::parse(&root.emit()),
            Err(Corruption::Features(0b1_0000))
        );
        let mut later = bytes;
        later[8] = 3;
        let crc = crc(&later).to_le_bytes();
        later[12..16].copy_from_slice(&crc);
        assert_eq!(RootRecord::parse(&later), Err(Corruption::Version(3)));
    }

    /// No single damaged byte is taken for a good record.
    #[test]
    fn every_damaged_byte_is_noticed() {
        let bytes = RootRecord {
            created: Timestamp { secs: 9, nanos: 5 },
            features: Features::XATTRS,
        }
        .emit();
        for at in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[at] ^= 0x41;
            assert!(RootRecord::parse(&damaged).is_err(), "byte {at}");
        }
    }
}
