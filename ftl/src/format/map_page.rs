//! Pages of the checkpoint area: a small head that says which page it is, and entries of one kind. Those of the map are
//! packed (`map_entry.rs`), the others have one size.

use super::map_entry::{self, MapEntry};
use super::{GrainBytes, HeaderNo, Version};
use crate::addr::{GRAIN_BYTES, Lba, LbaRange, SegmentId};
use crate::map::ZeroId;
use crate::records::Home;
use crate::remap::{Remap, Renaming};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const HEAD_BYTES: usize = 32;

/// Little-endian.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawHead {
    crc: U32,
    kind: U16,
    count: U16,
    volume: U64,
    session: U64,
    position: U64,
}
const _: () = assert!(size_of::<RawHead>() == HEAD_BYTES);

/// Little-endian.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawFence {
    first: U64,
    last: U64,
}
const _: () = assert!(size_of::<RawFence>() == 16);

/// Little-endian.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawSegment {
    epoch: U64,
    used: U32,
    live: U32,
    walk_from: U32,
    opened: U32,
}
const _: () = assert!(size_of::<RawSegment>() == 24);

/// Little-endian.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawRecord {
    kind: U32,
    id: U32,
    version: U64,
    lba: U64,
    count: U64,
    home_header: U64,
    home_segment: U32,
    reserved: U32,
    extra: U64,
}
const _: () = assert!(size_of::<RawRecord>() == 56);

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageKind {
    Map = 1,
    Fence = 2,
    Segment = 3,
    Record = 4,
}

/// Which page it is. A page that says otherwise is somebody else's, or of another time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageName {
    pub(crate) kind: PageKind,
    pub(crate) volume: u64,
    pub(crate) session: u64,
    /// Place in the ring, counted from the format on.
    pub(crate) position: u64,
}

/// First and last LBA that a page speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fence {
    pub(crate) first: Lba,
    pub(crate) last: Lba,
}

/// A segment at the time of the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedSegment {
    /// Life that a scan would find; 0: none.
    pub(crate) epoch: HeaderNo,
    pub(crate) used: u32,
    pub(crate) live: u32,
    /// Position from which on headers may lie that the checkpoint does not cover.
    pub(crate) walk_from: Option<u32>,
    /// Grains that users had written when it was opened, by [`OPENED_UNIT`].
    pub(crate) opened: u32,
}

/// Unit of [`SavedSegment::opened`]: with 32 bits it reaches to 16 PiB.
pub(crate) const OPENED_UNIT: u64 = 1024;

/// What a record that must survive says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SavedKind {
    Trim(LbaRange),
    Zero {
        id: ZeroId,
        range: LbaRange,
        /// Grains that read as zeros because of it.
        live: u64,
    },
    Rename(Renaming),
}

/// A tombstone or a zero record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedRecord {
    pub(crate) what: SavedKind,
    pub(crate) version: Version,
    /// Where its youngest copy lies.
    pub(crate) home: Home,
}

/// An entry of a page.
pub(crate) trait PageEntry: Sized {
    const KIND: PageKind;
    const BYTES: usize;
    /// Entries of a full page.
    const PER_PAGE: usize = (GRAIN_BYTES - HEAD_BYTES) / Self::BYTES;

    fn emit(&self, to: &mut [u8]);
    /// None: nonsense.
    fn parse(bytes: &[u8]) -> Option<Self>;
}

const NEVER: u32 = u32::MAX;

impl PageEntry for Fence {
    const KIND: PageKind = PageKind::Fence;
    const BYTES: usize = 16;

    fn emit(&self, to: &mut [u8]) {
        let raw = RawFence {
            first: self.first.0.into(),
            last: self.last.0.into(),
        };
        to.copy_from_slice(raw.as_bytes());
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let raw = RawFence::ref_from_bytes(bytes).ok()?;
        let (first, last) = (Lba(raw.first.get()), Lba(raw.last.get()));
        (first <= last && last < Lba::SPACE_END).then_some(Self { first, last })
    }
}

impl PageEntry for SavedSegment {
    const KIND: PageKind = PageKind::Segment;
    const BYTES: usize = 24;

    fn emit(&self, to: &mut [u8]) {
        let raw = RawSegment {
            epoch: self.epoch.0.into(),
            used: self.used.into(),
            live: self.live.into(),
            walk_from: self.walk_from.unwrap_or(NEVER).into(),
            opened: self.opened.into(),
        };
        to.copy_from_slice(raw.as_bytes());
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let raw = RawSegment::ref_from_bytes(bytes).ok()?;
        let walk_from = raw.walk_from.get();
        Some(Self {
            epoch: HeaderNo(raw.epoch.get()),
            used: raw.used.get(),
            live: raw.live.get(),
            walk_from: (walk_from != NEVER).then_some(walk_from),
            opened: raw.opened.get(),
        })
    }
}

impl PageEntry for SavedRecord {
    const KIND: PageKind = PageKind::Record;
    const BYTES: usize = 56;

    fn emit(&self, to: &mut [u8]) {
        let (kind, id, range, extra) = match self.what {
            SavedKind::Trim(range) => (0, 0, range, 0),
            SavedKind::Zero { id, range, live } => (1, id.0, range, live),
            SavedKind::Rename(renaming) => {
                let ranges = renaming.ranges();
                let kind = if renaming.empties_source() { 2 } else { 3 };
                (kind, 0, ranges.source(), ranges.to.0)
            }
        };
        let raw = RawRecord {
            kind: kind.into(),
            id: id.into(),
            version: self.version.raw().into(),
            lba: range.start.0.into(),
            count: range.count.into(),
            home_header: self.home.header.0.into(),
            home_segment: self.home.segment.0.into(),
            reserved: 0.into(),
            extra: extra.into(),
        };
        to.copy_from_slice(raw.as_bytes());
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let raw = RawRecord::ref_from_bytes(bytes).ok()?;
        let (lba, count) = (raw.lba.get(), raw.count.get());
        if lba.checked_add(count)? > Lba::SPACE_END.0 || count == 0 {
            return None;
        }
        let (range, extra) = (LbaRange::new(Lba(lba), count), raw.extra.get());
        let what = match raw.kind.get() {
            0 => SavedKind::Trim(range),
            1 => SavedKind::Zero {
                id: ZeroId(raw.id.get()),
                range,
                live: extra,
            },
            kind @ (2 | 3) => {
                let (from, to) = (range.start, Lba(extra));
                let ranges = Some(Remap { from, to, count }).filter(|r| r.is_possible())?;
                SavedKind::Rename(match kind {
                    2 => Renaming::Remap(ranges),
                    _ => Renaming::Clone(ranges),
                })
            }
            _ => return None,
        };
        Some(Self {
            what,
            version: Version::from_raw(raw.version.get()),
            home: Home {
                header: HeaderNo(raw.home_header.get()),
                segment: SegmentId(raw.home_segment.get()),
            },
        })
    }
}

impl PageName {
    /// Appends pages with these entries to `out`, the first at `self.position`; returns how many.
    pub(crate) fn emit<E: PageEntry>(mut self, entries: &[E], out: &mut Vec<u8>) -> u32 {
        debug_assert_eq!(self.kind, E::KIND, "one kind to a page");
        let mut pages = 0;
        for chunk in entries.chunks(E::PER_PAGE) {
            self.emit_page(chunk.len(), out, |page| {
                let places = page.chunks_exact_mut(E::BYTES);
                for (entry, to) in chunk.iter().zip(places) {
                    entry.emit(to);
                }
            });
            self.position += 1;
            pages += 1;
        }
        pages
    }

    /// The same for entries of the map; returns a fence for each page.
    pub(crate) fn emit_map(mut self, entries: &[MapEntry], out: &mut Vec<u8>) -> Vec<Fence> {
        debug_assert_eq!(self.kind, PageKind::Map, "one kind to a page");
        let mut fences = Vec::new();
        let mut rest = entries;
        while let Some(first) = rest.first() {
            let (packed, count) = map_entry::pack(rest, GRAIN_BYTES - HEAD_BYTES);
            self.emit_page(count, out, |page| {
                page[..packed.len()].copy_from_slice(&packed);
            });
            fences.push(Fence {
                first: first.range().start,
                last: Lba(rest[count - 1].range().end().0 - 1),
            });
            self.position += 1;
            rest = &rest[count..];
        }
        fences
    }

    fn emit_page(&self, count: usize, out: &mut Vec<u8>, fill: impl FnOnce(&mut [u8])) {
        let start = out.len();
        out.resize(start + GRAIN_BYTES, 0);
        let page = &mut out[start..];
        let head = RawHead {
            crc: 0.into(),
            kind: (self.kind as u16).into(),
            count: (count as u16).into(),
            volume: self.volume.into(),
            session: self.session.into(),
            position: self.position.into(),
        };
        page[..HEAD_BYTES].copy_from_slice(head.as_bytes());
        fill(&mut page[HEAD_BYTES..]);
        let crc = crc32fast::hash(&page[4..]);
        page[..4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads the entries of a page, if it is this one, intact, and makes sense.
    pub(crate) fn parse<E: PageEntry>(&self, page: &GrainBytes) -> Option<Vec<E>> {
        let (count, rest) = self.content(page)?;
        if count > E::PER_PAGE {
            return None;
        }
        let entries = rest.chunks_exact(E::BYTES).take(count);
        entries.map(E::parse).collect()
    }

    /// The same for entries of the map.
    pub(crate) fn parse_map(&self, page: &GrainBytes) -> Option<Vec<MapEntry>> {
        let (count, rest) = self.content(page)?;
        map_entry::unpack(rest, count)
    }

    /// Number of entries, and where they are.
    fn content<'p>(&self, page: &'p GrainBytes) -> Option<(usize, &'p [u8])> {
        let (head, rest) = RawHead::ref_from_prefix(page).ok()?;
        let is_it = head.crc.get() == crc32fast::hash(&page[4..])
            && head.kind.get() == self.kind as u16
            && head.volume.get() == self.volume
            && head.session.get() == self.session
            && head.position.get() == self.position;
        is_it.then(|| (usize::from(head.count.get()), rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Pba;
    use crate::map::Location;
    use crate::placement::Heat;

    const NAME: PageName = PageName {
        kind: PageKind::Map,
        volume: 0x1122_3344_5566_7788,
        session: 3,
        position: 9,
    };

    fn entries() -> Vec<MapEntry> {
        let at = Location::Media(Pba(0x20));
        let (lba, crc) = (Lba(0x10), 0xdead_beef);
        let unmapped = MapEntry::Unmapped(LbaRange::new(Lba(0x12), 5));
        let heat = Heat::UNKNOWN;
        vec![MapEntry::Set { lba, at, crc, heat }, unmapped]
    }

    /// The layout on the media, byte by byte: a change of it is a change of the format.
    #[test]
    fn golden_bytes() {
        let mut page = Vec::new();
        let (first, last) = (Lba(0x10), Lba(0x16));
        assert_eq!(
            NAME.emit_map(&entries(), &mut page),
            [Fence { first, last }]
        );
        assert_eq!(&page[4..8], [1, 0, 2, 0]);
        assert_eq!(
            &page[8..16],
            [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]
        );
        assert_eq!(
            &page[16..32],
            [3, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(
            &page[32..40],
            [0x40, 0x40, 0xef, 0xbe, 0xad, 0xde, 0x06, 0x05]
        );
        assert!(page[40..].iter().all(|&b| b == 0));
    }

    /// The four kinds of records, byte by byte; a remap that makes no sense is none (I7).
    #[test]
    fn golden_records() {
        let home = Home {
            header: HeaderNo(6),
            segment: SegmentId(7),
        };
        let range = LbaRange::new(Lba(0x10), 4);
        let (from, to, count) = (range.start, Lba(0x20), range.count);
        let (id, live) = (ZeroId(9), 3);
        let ranges = Remap { from, to, count };
        let kinds = [
            (SavedKind::Trim(range), [0, 0, 0]),
            (SavedKind::Zero { id, range, live }, [1, 9, 3]),
            (SavedKind::Rename(Renaming::Remap(ranges)), [2, 0, 0x20]),
            (SavedKind::Rename(Renaming::Clone(ranges)), [3, 0, 0x20]),
        ];
        for (what, [kind, id, extra]) in kinds {
            let version = Version::new(HeaderNo(5), 1);
            let record = SavedRecord {
                what,
                version,
                home,
            };
            let mut bytes = [0; SavedRecord::BYTES];
            record.emit(&mut bytes);
            let mut want = [0; SavedRecord::BYTES];
            for (at, byte) in [(0, kind), (4, id), (8, 1), (9, 5), (16, 0x10), (24, 4)] {
                want[at] = byte;
            }
            (want[32], want[40], want[48]) = (6, 7, extra);
            assert_eq!(bytes, want);
            assert_eq!(SavedRecord::parse(&bytes), Some(record));
            bytes[48] = 0x12;
            let renames = kind >= 2;
            assert_eq!(SavedRecord::parse(&bytes).is_none(), renames);
        }
    }

    /// What is written is read back; any damaged byte, and any other name, is noticed (I4, I7).
    #[test]
    fn round_trip_and_cover() {
        let mut page = Vec::new();
        NAME.emit_map(&entries(), &mut page);
        let good: GrainBytes = page.try_into().expect("one page");
        assert_eq!(NAME.parse_map(&good), Some(entries()));
        for at in 0..GRAIN_BYTES {
            let mut bad = good;
            bad[at] ^= 0x10;
            assert_eq!(NAME.parse_map(&bad), None, "byte {at}");
        }
        for other in [
            PageName { session: 4, ..NAME },
            PageName {
                position: 8,
                ..NAME
            },
            PageName { volume: 1, ..NAME },
        ] {
            assert_eq!(other.parse_map(&good), None);
        }
    }

    /// Pages are filled as far as they go, and the fences say what each speaks of.
    #[test]
    fn many_pages() {
        let entry = |n: u64| MapEntry::Set {
            lba: Lba(n * 3),
            at: Location::Media(Pba(n * 7919 % (1 << 28))),
            crc: n as u32,
            heat: Heat::new(n as u32 / 2),
        };
        let entries: Vec<MapEntry> = (0..2000).map(entry).collect();
        let mut pages = Vec::new();
        let fences = NAME.emit_map(&entries, &mut pages);
        assert_eq!(fences.len() * GRAIN_BYTES, pages.len());
        let mut read = Vec::new();
        for (index, page) in pages.chunks_exact(GRAIN_BYTES).enumerate() {
            let position = NAME.position + index as u64;
            let name = PageName { position, ..NAME };
            let found = name.parse_map(page.try_into().expect("a page"));
            let found = found.expect("intact");
            assert_eq!(found[0].range().start, fences[index].first);
            assert_eq!(found[found.len() - 1].range().start, fences[index].last);
            read.extend(found);
        }
        assert_eq!(read, entries);
    }
}
