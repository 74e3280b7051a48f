//! Records: what a header says of LBAs, one or two places of it each.

use super::header::{HeaderNo, RECORDS_MAX};
use crate::addr::Lba;
use crate::remap::{Remap, Renaming};
use std::fmt;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a place.
pub(super) const RECORD_BYTES: usize = 20;
/// One record. Little-endian.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(super) struct RawRecord {
    lba: U64,
    version_kind: U64,
    value: U32,
}
const _: () = assert!(size_of::<RawRecord>() == RECORD_BYTES);

/// Version of a grain: the header that first wrote it and the record there. Never changes, wherever it is relocated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// The version made by record `index` of header `no`.
    pub const fn new(no: HeaderNo, index: usize) -> Self {
        assert!(no.0 < 1 << 48 && index < RECORDS_MAX);
        Self(no.0 << 8 | index as u64)
    }

    /// As it is on the media, without the kind.
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    /// From [`Version::raw`].
    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw & ((1 << 56) - 1))
    }

    /// The header that first wrote it.
    pub const fn header(self) -> HeaderNo {
        HeaderNo(self.0 >> 8)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}", self.0 >> 8, self.0 & 255)
    }
}

/// What a record says about its LBA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// A data grain follows, with this CRC-32.
    Data {
        /// CRC-32 of the grain.
        crc: u32,
    },
    /// These many grains from the LBA are forgotten.
    Trim {
        /// Number of grains, at least 1.
        count: u32,
    },
    /// Those of these many grains from the LBA that are unmapped are reserved and read as zeros.
    Zero {
        /// Number of grains, at least 1.
        count: u32,
    },
    /// These many grains from the LBA become those of another range. Two records on the media, one behind the other.
    Remap {
        /// First grain of the range they move to.
        to: Lba,
        /// Number of grains, at least 1.
        count: u32,
    },
    /// These many grains from the LBA are those of another range as well. Two records on the media.
    Clone {
        /// First grain of the other range.
        to: Lba,
        /// Number of grains, at least 1.
        count: u32,
    },
    /// The data grain of the data record before it is this version of the LBA, too. Directly behind that record, or
    /// behind another alias of it.
    Alias {
        /// Which of the data grains of the header.
        grain: u32,
        /// CRC-32 of the grain; not on the media, that of the data record.
        crc: u32,
    },
}

impl RecordKind {
    /// Places it takes in a header.
    pub const fn slots(&self) -> usize {
        match self {
            Self::Remap { .. } | Self::Clone { .. } => 2,
            Self::Data { .. } | Self::Trim { .. } | Self::Zero { .. } | Self::Alias { .. } => 1,
        }
    }

    /// The record of a remap or clone.
    pub(crate) const fn of(renaming: Renaming) -> Self {
        let Remap { to, count, .. } = renaming.ranges();
        let count = count as u32;
        match renaming {
            Renaming::Remap(_) => Self::Remap { to, count },
            Renaming::Clone(_) => Self::Clone { to, count },
        }
    }
}

impl Record {
    /// What it renames.
    pub(crate) fn renaming(&self) -> Option<Renaming> {
        let ranges = |to, count| Remap {
            from: self.lba,
            to,
            count: u64::from(count),
        };
        match self.kind {
            RecordKind::Remap { to, count } => Some(Renaming::Remap(ranges(to, count))),
            RecordKind::Clone { to, count } => Some(Renaming::Clone(ranges(to, count))),
            _ => None,
        }
    }
}

/// One record of a header; a pair on the media is one record here, and counts as one in the index of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// (First) grain.
    pub lba: Lba,
    /// Which version.
    pub version: Version,
    /// What about it.
    pub kind: RecordKind,
}

const KIND_DATA: u64 = 1;
const KIND_TRIM: u64 = 2;
const KIND_ZERO: u64 = 3;
const KIND_REMAP: u64 = 4;
const KIND_CLONE: u64 = 5;
const KIND_ONTO: u64 = 6;
const KIND_ALIAS: u64 = 7;

/// Reads a record, and of a pair the second half from `rest`. `before` is what the header has said so far.
pub(super) fn parse_record<'a>(
    bytes: &[u8],
    rest: &mut impl Iterator<Item = &'a [u8]>,
    header_no: u64,
    before: &[Record],
) -> Option<Record> {
    let raw = RawRecord::ref_from_bytes(bytes).ok()?;
    let version = Version(raw.version_kind.get() >> 8);
    let (lba, value) = (raw.lba.get(), raw.value.get());
    let (kind, count) = match raw.version_kind.get() & 255 {
        KIND_DATA => (RecordKind::Data { crc: value }, 1),
        KIND_TRIM => (RecordKind::Trim { count: value }, u64::from(value)),
        KIND_ZERO => (RecordKind::Zero { count: value }, u64::from(value)),
        KIND_ALIAS => {
            let (grain, crc) = aliased(before).filter(|&(grain, _)| grain == value)?;
            (RecordKind::Alias { grain, crc }, 1)
        }
        kind @ (KIND_REMAP | KIND_CLONE) => {
            let onto = RawRecord::ref_from_bytes(rest.next()?).ok()?;
            let remap = Remap {
                from: Lba(lba),
                to: Lba(onto.lba.get()),
                count: u64::from(value),
            };
            let fits = onto.version_kind.get() == version.0 << 8 | KIND_ONTO
                && onto.value.get() == 0
                && remap.is_possible();
            if !fits {
                return None;
            }
            let (to, count) = (remap.to, value);
            let kind = match kind {
                KIND_REMAP => RecordKind::Remap { to, count },
                _ => RecordKind::Clone { to, count },
            };
            (kind, u64::from(value))
        }
        _ => return None,
    };
    let in_space = lba < Lba::SPACE_END.0 && count > 0 && lba + count <= Lba::SPACE_END.0;
    let possible = version.0 >> 8 <= header_no && version.0 >> 8 > 0;
    (in_space && possible).then_some(Record {
        lba: Lba(lba),
        version,
        kind,
    })
}

/// The data grain that an alias behind these records would be about, and its checksum.
fn aliased(before: &[Record]) -> Option<(u32, u32)> {
    match before.last()?.kind {
        RecordKind::Data { crc } => {
            let data = |r: &&Record| matches!(r.kind, RecordKind::Data { .. });
            Some((before.iter().filter(data).count() as u32 - 1, crc))
        }
        RecordKind::Alias { grain, crc } => Some((grain, crc)),
        _ => None,
    }
}

/// What a record is on the media.
pub(super) fn emit_record(record: &Record) -> impl Iterator<Item = RawRecord> + use<> {
    let raw = |lba: Lba, kind: u64, value: u32| RawRecord {
        lba: lba.0.into(),
        version_kind: (record.version.0 << 8 | kind).into(),
        value: value.into(),
    };
    let (kind, value) = match record.kind {
        RecordKind::Data { crc } => (KIND_DATA, crc),
        RecordKind::Trim { count } => (KIND_TRIM, count),
        RecordKind::Zero { count } => (KIND_ZERO, count),
        RecordKind::Remap { count, .. } => (KIND_REMAP, count),
        RecordKind::Clone { count, .. } => (KIND_CLONE, count),
        RecordKind::Alias { grain, .. } => (KIND_ALIAS, grain),
    };
    let onto = match record.kind {
        RecordKind::Remap { to, .. } | RecordKind::Clone { to, .. } => Some(raw(to, KIND_ONTO, 0)),
        _ => None,
    };
    [raw(record.lba, kind, value)].into_iter().chain(onto)
}
