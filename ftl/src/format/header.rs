//! Header grains: each describes the data grains that follow it in the same device write.

use super::GrainBytes;
use super::record::{RECORD_BYTES, Record, RecordKind, emit_record, parse_record};
use crate::addr::{GRAIN_BYTES, Pba, SegmentId};
use std::fmt;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Most records in one header grain.
pub const RECORDS_MAX: usize = (GRAIN_BYTES - FIXED_BYTES) / RECORD_BYTES;

const MAGIC: u64 = u64::from_le_bytes(*b"FTLHEAD1");
const FIXED_BYTES: usize = 128;
const CRC_AT: usize = 8;
const NO_BACK: u64 = u64::MAX;
const _: () = assert!(RECORDS_MAX == 198 && RECORDS_MAX < 256);

/// First bytes of a header grain. Little-endian.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawHeader {
    magic: U64,
    crc: U32,
    version: U16,
    stream: u8,
    flags: u8,
    volume: U64,
    session: U64,
    no: U64,
    epoch: U64,
    back: U64,
    durable: U64,
    time_ns: U64,
    segment: U32,
    position: U32,
    records: U16,
    data: U16,
    placement: u8,
    reserved: [u8; 43],
}
const _: () = assert!(size_of::<RawHeader>() == FIXED_BYTES);

/// Number of a header: consecutive over the whole log, from 1. 0 means "none".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HeaderNo(pub u64);

impl HeaderNo {
    /// No log on media comes so far, and one that says so leaves no room to go on: numbers have 48 bits.
    const NEVER: u64 = 1 << 47;

    /// Whether a log can have come so far.
    pub(crate) const fn is_possible(self) -> bool {
        self.0 < Self::NEVER
    }

    /// The number after this one.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Debug for HeaderNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "header {}", self.0)
    }
}

impl fmt::Display for HeaderNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What a write-out carries; information only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// Pages that users changed, trims and reservations; perhaps relocated grains beside them.
    User = 0,
    /// Nothing but what collection relocated.
    Relocated = 1,
}

/// A header grain that is intact and says something possible. Whether it belongs where it was found is the
/// reader's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// First 64 bits of the volume's UUID.
    pub volume: u64,
    /// Session that wrote it.
    pub session: u64,
    /// Its number.
    pub no: HeaderNo,
    /// Number of the first header of this life of the segment.
    pub epoch: HeaderNo,
    /// Where header `no - 1` lies, if that is known.
    pub back: Option<Pba>,
    /// Highest number known durable when this header was assembled.
    pub durable: HeaderNo,
    /// Wall clock in Unix nanoseconds; information only.
    pub time_ns: u64,
    /// Segment it lies in.
    pub segment: SegmentId,
    /// Grain of the segment it lies at.
    pub position: u32,
    /// What it carries.
    pub stream: Stream,
    /// Stream of the placement policy whose segment this is; information only, not known of old ones.
    pub placement: Option<u8>,
    /// Whether it carries a batch; information only, every header is all or nothing.
    pub atomic: bool,
    /// Its records; the data grains follow in the order of the data records.
    pub records: Vec<Record>,
}

/// Why a grain is no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFlaw {
    /// All zeros: never written or erased.
    Blank,
    /// Something else, or a damaged header.
    Foreign,
    /// The checksum does not fit.
    Checksum,
    /// Intact, but says something impossible.
    Nonsense,
}

const FLAG_ATOMIC: u8 = 1;

/// CRC-32 of a header with these bytes behind magic number and checksum.
fn crc_with_magic(bytes: &GrainBytes) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&MAGIC.to_le_bytes());
    hasher.update(&[0; 4]);
    hasher.update(&bytes[CRC_AT + 4..]);
    hasher.finalize()
}

impl Header {
    /// Number of data grains that follow.
    pub fn data_count(&self) -> usize {
        let data = |r: &&Record| matches!(r.kind, RecordKind::Data { .. });
        self.records.iter().filter(data).count()
    }

    /// Places its records take.
    pub fn slots(&self) -> usize {
        self.records.iter().map(|r| r.kind.slots()).sum()
    }

    /// Grains the whole write-out takes.
    pub fn grains(&self) -> u32 {
        1 + self.data_count() as u32
    }

    /// Whether the whole write-out lies in a segment of so many grains.
    pub fn fits(&self, segment_grains: u32) -> bool {
        u64::from(self.position) + u64::from(self.grains()) <= u64::from(segment_grains)
    }

    /// Reads a grain. Where the checksum fits a header but the magic number does not, the magic number is damaged:
    /// else the end of the log could not be told from one.
    pub fn parse(bytes: &GrainBytes) -> Result<Self, HeaderFlaw> {
        let (raw, rest) = RawHeader::ref_from_prefix(bytes).map_err(|_| HeaderFlaw::Foreign)?;
        if bytes.iter().all(|&b| b == 0) {
            return Err(HeaderFlaw::Blank);
        }
        if raw.crc.get() != crc_with_magic(bytes) {
            let is_known = raw.magic.get() == MAGIC;
            return Err(if is_known {
                HeaderFlaw::Checksum
            } else {
                HeaderFlaw::Foreign
            });
        }
        let count = usize::from(raw.records.get());
        if raw.version.get() != 1 || count > RECORDS_MAX {
            return Err(HeaderFlaw::Nonsense);
        }
        let stream = match raw.stream {
            0 => Stream::User,
            1 => Stream::Relocated,
            _ => return Err(HeaderFlaw::Nonsense),
        };
        let (no, epoch) = (raw.no.get(), raw.epoch.get());
        if no == 0 || !HeaderNo(no).is_possible() || epoch > no || raw.durable.get() >= no {
            return Err(HeaderFlaw::Nonsense);
        }
        let mut raws = rest[..count * RECORD_BYTES].chunks_exact(RECORD_BYTES);
        let mut records = Vec::with_capacity(count);
        while let Some(bytes) = raws.next() {
            let record =
                parse_record(bytes, &mut raws, no, &records).ok_or(HeaderFlaw::Nonsense)?;
            records.push(record);
        }
        let header = Self {
            volume: raw.volume.get(),
            session: raw.session.get(),
            no: HeaderNo(no),
            epoch: HeaderNo(epoch),
            back: (raw.back.get() != NO_BACK).then_some(Pba(raw.back.get())),
            durable: HeaderNo(raw.durable.get()),
            time_ns: raw.time_ns.get(),
            segment: SegmentId(raw.segment.get()),
            position: raw.position.get(),
            stream,
            placement: raw.placement.checked_sub(1),
            atomic: raw.flags & FLAG_ATOMIC != 0,
            records,
        };
        if header.data_count() != usize::from(raw.data.get()) {
            return Err(HeaderFlaw::Nonsense);
        }
        Ok(header)
    }

    /// Writes the grain.
    pub fn emit(&self) -> Box<GrainBytes> {
        assert!(self.slots() <= RECORDS_MAX, "too many records");
        let raw = RawHeader {
            magic: MAGIC.into(),
            crc: 0.into(),
            version: 1.into(),
            stream: self.stream as u8,
            flags: if self.atomic { FLAG_ATOMIC } else { 0 },
            volume: self.volume.into(),
            session: self.session.into(),
            no: self.no.0.into(),
            epoch: self.epoch.0.into(),
            back: self.back.map_or(NO_BACK, |pba| pba.0).into(),
            durable: self.durable.0.into(),
            time_ns: self.time_ns.into(),
            segment: self.segment.0.into(),
            position: self.position.into(),
            records: (self.slots() as u16).into(),
            data: (self.data_count() as u16).into(),
            placement: self.placement.map_or(0, |stream| stream + 1),
            reserved: [0; 43],
        };
        let mut bytes = Box::new([0; GRAIN_BYTES]);
        bytes[..FIXED_BYTES].copy_from_slice(raw.as_bytes());
        let raws = self.records.iter().flat_map(emit_record);
        for (raw, to) in raws.zip(bytes[FIXED_BYTES..].chunks_exact_mut(RECORD_BYTES)) {
            to.copy_from_slice(raw.as_bytes());
        }
        let crc = crc_with_magic(&bytes);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Lba;
    use crate::format::Version;

    fn example() -> Header {
        let no = HeaderNo(0x0102);
        let record = |index, lba, kind| Record {
            lba: Lba(lba),
            version: Version::new(no, index),
            kind,
        };
        Header {
            volume: 0x1122_3344_5566_7788,
            session: 3,
            no,
            epoch: HeaderNo(0x0100),
            back: Some(Pba(0x40)),
            durable: HeaderNo(0x00ff),
            time_ns: 5,
            segment: SegmentId(6),
            position: 7,
            stream: Stream::Relocated,
            placement: Some(8),
            atomic: true,
            records: vec![
                record(0, 0x10, RecordKind::Trim { count: 4 }),
                record(1, 0x20, RecordKind::Zero { count: 5 }),
                record(2, 0x30, RecordKind::Data { crc: 0xdead_beef }),
            ],
        }
    }

    /// The layout on the media, byte by byte: a change of it is a change of the format.
    #[test]
    fn golden_bytes() {
        let bytes = example().emit();
        assert_eq!(&bytes[0..8], b"FTLHEAD1");
        assert_eq!(&bytes[12..16], [1, 0, 1, 1]);
        assert_eq!(
            &bytes[16..24],
            [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]
        );
        assert_eq!(&bytes[24..32], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[32..40], [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[40..48], [0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[48..56], [0x40, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[56..64], [0xff, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[64..72], [5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[72..80], [6, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(&bytes[80..84], [3, 0, 1, 0]);
        assert_eq!(bytes[84], 9);
        assert_eq!(&bytes[85..128], [0; 43]);
        assert_eq!(
            &bytes[128..148],
            [
                0x10, 0, 0, 0, 0, 0, 0, 0, 2, 0, 2, 1, 0, 0, 0, 0, 4, 0, 0, 0
            ]
        );
        assert_eq!(
            &bytes[168..188],
            [
                0x30, 0, 0, 0, 0, 0, 0, 0, 1, 2, 2, 1, 0, 0, 0, 0, 0xef, 0xbe, 0xad, 0xde
            ]
        );
        assert!(bytes[188..].iter().all(|&b| b == 0));
    }

    /// A remap is a pair of records of one version; half a pair, or a pair that overlaps itself, is nonsense.
    #[test]
    fn golden_remap() {
        let no = HeaderNo(0x0102);
        let mut header = example();
        header.records = vec![Record {
            lba: Lba(0x10),
            version: Version::new(no, 0),
            kind: RecordKind::Remap {
                to: Lba(0x20),
                count: 4,
            },
        }];
        let bytes = header.emit();
        assert_eq!(&bytes[80..84], [2, 0, 0, 0]);
        assert_eq!(
            &bytes[128..168],
            [
                0x10, 0, 0, 0, 0, 0, 0, 0, 4, 0, 2, 1, 0, 0, 0, 0, 4, 0, 0, 0, //
                0x20, 0, 0, 0, 0, 0, 0, 0, 6, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0,
            ]
        );
        assert!(bytes[168..].iter().all(|&b| b == 0));
        assert_eq!(Header::parse(&bytes), Ok(header));
        let damaged = |at: usize, byte| {
            let mut bad = bytes.clone();
            bad[at] = byte;
            let crc = crc_with_magic(&bad);
            bad[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
            Header::parse(&bad)
        };
        for (at, byte) in [
            (80, 1),
            (148, 0x12),
            (149, 0xff),
            (156, 2),
            (157, 1),
            (164, 1),
        ] {
            let found = damaged(at, byte);
            let fine = at == 149;
            assert_eq!(found.is_ok(), fine, "byte {at}: {found:?}");
        }
    }

    /// A clone is a pair like a remap; aliases follow the data record whose grain they name, or the header is nonsense.
    #[test]
    fn golden_clone() {
        let no = HeaderNo(0x0102);
        let mut header = example();
        let record = |lba, kind| Record {
            lba: Lba(lba),
            version: Version::new(no, 0),
            kind,
        };
        let (to, crc) = (Lba(0x20), 9);
        header.records = vec![
            record(0x10, RecordKind::Clone { to, count: 4 }),
            record(0x30, RecordKind::Data { crc: 8 }),
            record(0x31, RecordKind::Data { crc }),
            record(0x32, RecordKind::Alias { grain: 1, crc }),
            record(0x33, RecordKind::Alias { grain: 1, crc }),
        ];
        let bytes = header.emit();
        assert_eq!(&bytes[80..84], [6, 0, 2, 0]);
        assert_eq!(
            &bytes[128..168],
            [
                0x10, 0, 0, 0, 0, 0, 0, 0, 5, 0, 2, 1, 0, 0, 0, 0, 4, 0, 0, 0, //
                0x20, 0, 0, 0, 0, 0, 0, 0, 6, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0,
            ]
        );
        assert_eq!(
            &bytes[208..228],
            [
                0x32, 0, 0, 0, 0, 0, 0, 0, 7, 0, 2, 1, 0, 0, 0, 0, 1, 0, 0, 0
            ]
        );
        assert_eq!((header.grains(), header.slots()), (3, 6));
        assert_eq!(Header::parse(&bytes), Ok(header.clone()));
        for (first, grain) in [(0, 1), (3, 0), (3, 2), (1, 0)] {
            let mut bad = header.clone();
            bad.records[3].kind = RecordKind::Alias { grain, crc };
            bad.records.swap(first, 3);
            let found = Header::parse(&bad.emit());
            assert_eq!(found, Err(HeaderFlaw::Nonsense), "{first} {grain}");
        }
    }

    #[test]
    fn round_trip() {
        let header = example();
        assert_eq!(Header::parse(&header.emit()), Ok(header));
    }

    /// Any single damaged byte is noticed, or makes no difference (I4, I7): a header at the end of the log must not
    /// vanish without a word.
    #[test]
    fn every_byte_is_covered() {
        let good = example().emit();
        for at in 0..GRAIN_BYTES {
            let mut bad = good.clone();
            bad[at] ^= 0x41;
            let found = Header::parse(&bad);
            let magic = at < 8;
            let right = if magic {
                Ok(example())
            } else {
                Err(HeaderFlaw::Checksum)
            };
            assert_eq!(found, right, "byte {at}");
        }
        assert_eq!(Header::parse(&[0; GRAIN_BYTES]), Err(HeaderFlaw::Blank));
    }

    /// A header that comes from where no log gets leaves no numbers for those behind it.
    #[test]
    fn crafted() {
        let mut header = example();
        header.no = HeaderNo(HeaderNo::NEVER);
        assert_eq!(Header::parse(&header.emit()), Err(HeaderFlaw::Nonsense));
    }
}
