//! The root of a checkpoint: where its parts lie, and from which header on the log must be replayed.
//!
//! Four slots are used in turn. A root is written when everything it names is durable.

use super::{COUNTER_END, GrainBytes, HeaderNo, crc_without};
use crate::addr::{GRAIN_BYTES, Lba, Pba};
use crate::placement::HeatMeaning;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Slots for roots.
pub(crate) const ROOT_SLOTS: u64 = 4;
/// Most checkpoints that a root can name.
pub(crate) const PIECES_MAX: usize = 64;

const FIRST_SLOT: u64 = 2;
const MAGIC: u64 = u64::from_le_bytes(*b"FTLROOT1");
const CRC_AT: usize = 8;
const FLAG_DUMP: u32 = 1;
const NOWHERE: u64 = u64::MAX;

/// Where root `number` lies.
pub(crate) const fn root_slot(number: u64) -> Pba {
    Pba(FIRST_SLOT + number % ROOT_SLOTS)
}

/// Little-endian.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawRoot {
    magic: U64,
    crc: U32,
    alive: U32,
    uuid: [u8; 16],
    number: U64,
    session: U64,
    replay_from: U64,
    last: U64,
    last_at: U64,
    mapped: U64,
    cursor: U64,
    segment_pages: U32,
    record_pages: U32,
    flags: U32,
    unused: U32,
    time: U64,
    reserved: [u8; 144],
    pieces: [RawPiece; PIECES_MAX],
    tail: [u8; 256],
}
const _: () = assert!(size_of::<RawRoot>() == GRAIN_BYTES);

/// Little-endian.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
struct RawPiece {
    number: U64,
    session: U64,
    position: U64,
    run: U32,
    base: U32,
    fence: U32,
    heat: U32,
    lo: U64,
    hi: U64,
}
const _: () = assert!(size_of::<RawPiece>() == 56);

/// What one checkpoint put into the ring: run, base and fence pages, behind each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) number: u64,
    pub(crate) session: u64,
    /// Of the first run page.
    pub(crate) position: u64,
    pub(crate) run: u32,
    pub(crate) base: u32,
    pub(crate) fence: u32,
    /// What heat means in its pages.
    pub(crate) heat: HeatMeaning,
    /// What the base pages cover: from `lo` to before `hi`.
    pub(crate) lo: Lba,
    pub(crate) hi: Lba,
}

impl Piece {
    /// Behind its fences.
    pub(crate) fn end(&self) -> u64 {
        self.position + u64::from(self.run) + u64::from(self.base) + u64::from(self.fence)
    }
}

/// A root that is intact and possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) uuid: [u8; 16],
    pub(crate) number: u64,
    /// Session that took the checkpoint.
    pub(crate) session: u64,
    /// Headers above this one must be replayed.
    pub(crate) replay_from: HeaderNo,
    /// The youngest header that the map may know of.
    pub(crate) last: HeaderNo,
    /// Where that lies.
    pub(crate) last_at: Option<Pba>,
    pub(crate) mapped: u64,
    /// Where the sweep goes on.
    pub(crate) cursor: Lba,
    /// Grains that users have written; 0 where nobody counted.
    pub(crate) time: u64,
    pub(crate) segment_pages: u32,
    pub(crate) record_pages: u32,
    /// Taken by a shutdown.
    pub(crate) dump: bool,
    /// Checkpoints whose pages are needed, this one last.
    pub(crate) pieces: Vec<Piece>,
}

impl Root {
    /// The oldest position it needs.
    pub(crate) fn tail(&self) -> u64 {
        self.pieces.first().map_or(0, |p| p.position)
    }

    /// First position behind it.
    pub(crate) fn head(&self) -> u64 {
        let tables = u64::from(self.segment_pages) + u64::from(self.record_pages);
        self.pieces.last().map_or(0, |p| p.end() + tables)
    }

    /// Reads a slot of a volume whose area has `area_grains`.
    pub(crate) fn parse(bytes: &GrainBytes, area_grains: u64) -> Option<Self> {
        let raw = RawRoot::ref_from_bytes(bytes).ok()?;
        let alive = raw.alive.get() as usize;
        if raw.magic.get() != MAGIC
            || raw.crc.get() != crc_without(bytes, CRC_AT)
            || !(1..=PIECES_MAX).contains(&alive)
        {
            return None;
        }
        let pieces = raw.pieces[..alive].iter().map(|p| Piece {
            number: p.number.get(),
            session: p.session.get(),
            position: p.position.get(),
            run: p.run.get(),
            base: p.base.get(),
            fence: p.fence.get(),
            heat: HeatMeaning(p.heat.get()),
            lo: Lba(p.lo.get()),
            hi: Lba(p.hi.get()),
        });
        let root = Self {
            uuid: raw.uuid,
            number: raw.number.get(),
            session: raw.session.get(),
            replay_from: HeaderNo(raw.replay_from.get()),
            last: HeaderNo(raw.last.get()),
            last_at: (raw.last_at.get() != NOWHERE).then_some(Pba(raw.last_at.get())),
            mapped: raw.mapped.get(),
            cursor: Lba(raw.cursor.get()),
            time: raw.time.get(),
            segment_pages: raw.segment_pages.get(),
            record_pages: raw.record_pages.get(),
            dump: raw.flags.get() & FLAG_DUMP != 0,
            pieces: pieces.collect(),
        };
        let small = |n: u64| n < COUNTER_END;
        let counters = [root.number, root.session, root.mapped, root.time];
        let possible = root.pieces.iter().all(|p| small(p.position))
            && counters.into_iter().all(small)
            && root.last.is_possible();
        let ordered = |w: &[Piece]| w[0].end() <= w[1].position;
        if !possible || !root.pieces.windows(2).all(ordered) {
            return None;
        }
        let own = root.pieces.last().is_some_and(|p| p.number == root.number);
        let fits = root.head() - root.tail() <= area_grains;
        let sane = root.replay_from <= root.last && root.pieces.iter().all(|p| p.lo <= p.hi);
        (own && fits && sane).then_some(root)
    }

    /// Writes the grain.
    pub(crate) fn emit(&self) -> Box<GrainBytes> {
        assert!(self.pieces.len() <= PIECES_MAX, "pieces of a root");
        let none = RawPiece {
            number: 0.into(),
            session: 0.into(),
            position: 0.into(),
            run: 0.into(),
            base: 0.into(),
            fence: 0.into(),
            heat: 0.into(),
            lo: 0.into(),
            hi: 0.into(),
        };
        let mut pieces = [none; PIECES_MAX];
        for (to, p) in pieces.iter_mut().zip(&self.pieces) {
            *to = RawPiece {
                number: p.number.into(),
                session: p.session.into(),
                position: p.position.into(),
                run: p.run.into(),
                base: p.base.into(),
                fence: p.fence.into(),
                heat: p.heat.0.into(),
                lo: p.lo.0.into(),
                hi: p.hi.0.into(),
            };
        }
        let raw = RawRoot {
            magic: MAGIC.into(),
            crc: 0.into(),
            alive: (self.pieces.len() as u32).into(),
            uuid: self.uuid,
            number: self.number.into(),
            session: self.session.into(),
            replay_from: self.replay_from.0.into(),
            last: self.last.0.into(),
            last_at: self.last_at.map_or(NOWHERE, |at| at.0).into(),
            mapped: self.mapped.into(),
            cursor: self.cursor.0.into(),
            time: self.time.into(),
            segment_pages: self.segment_pages.into(),
            record_pages: self.record_pages.into(),
            flags: if self.dump { FLAG_DUMP } else { 0 }.into(),
            unused: 0.into(),
            reserved: [0; 144],
            pieces,
            tail: [0; 256],
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

    fn example() -> Root {
        let piece = |number, position| Piece {
            number,
            session: 2,
            position,
            run: 1,
            base: 2,
            fence: 1,
            heat: HeatMeaning(0x77),
            lo: Lba(5),
            hi: Lba(9),
        };
        Root {
            uuid: *b"0123456789abcdef",
            number: 7,
            session: 3,
            replay_from: HeaderNo(0x55),
            last: HeaderNo(0x57),
            last_at: Some(Pba(99)),
            mapped: 12,
            cursor: Lba(9),
            time: 0x99,
            segment_pages: 1,
            record_pages: 0,
            dump: true,
            pieces: vec![piece(6, 10), piece(7, 15)],
        }
    }

    /// The layout on the media, byte by byte: a change of it is a change of the format.
    #[test]
    fn golden_bytes() {
        let bytes = example().emit();
        assert_eq!(&bytes[..8], b"FTLROOT1");
        assert_eq!(&bytes[12..16], [2, 0, 0, 0]);
        assert_eq!(&bytes[32..40], [7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[48..56], [0x55, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[64..72], [99, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[88..100], [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(&bytes[104..112], [0x99, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[292..296], [0x77, 0, 0, 0]);
        assert_eq!(&bytes[256..264], [6, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[312..320], [7, 0, 0, 0, 0, 0, 0, 0]);
    }

    /// What is written is read back, and any single damaged byte is noticed (I7).
    #[test]
    fn round_trip_and_cover() {
        let good = example().emit();
        assert_eq!(Root::parse(&good, 24), Some(example()));
        assert_eq!(Root::parse(&good, 9), None, "larger than the area");
        for at in 0..GRAIN_BYTES {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert_eq!(Root::parse(&bad, 24), None, "byte {at}");
        }
    }

    /// A root whose checksum fits and that says what can not be: numbers without room behind them, pieces that lie in
    /// each other or behind the end of the ring.
    #[test]
    fn crafted() {
        let crafted = |change: &dyn Fn(&mut Root)| {
            let mut root = example();
            change(&mut root);
            Root::parse(&root.emit(), 24)
        };
        assert!(crafted(&|_| {}).is_some());
        let changes: [&dyn Fn(&mut Root); 8] = [
            &|root| root.session = u64::MAX,
            &|root| root.mapped = COUNTER_END,
            &|root| root.time = COUNTER_END,
            &|root| root.last = HeaderNo(u64::MAX),
            &|root| root.pieces[0].position = u64::MAX,
            &|root| root.pieces[0].position = 15,
            &|root| root.pieces[1].position = 9,
            &|root| (root.number, root.pieces[1].number) = (u64::MAX, u64::MAX),
        ];
        for (n, change) in changes.into_iter().enumerate() {
            assert_eq!(crafted(change), None, "change {n}");
        }
    }
}
