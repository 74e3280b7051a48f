//! Entry points for fuzzing: what lies on the media, as anybody may have written it. Plain functions, which a test calls
//! as well as a fuzzer.
//!
//! Bytes are taken as the beginning of a grain whose rest is zero, as they are and with the checksum put right: who
//! crafts an image can count. What is accepted must be possible, so it can be written, and then says the same.

use crate::addr::GRAIN_BYTES;
use crate::format::{
    COUNTER_END, Fence, GrainBytes, Header, Label, PageEntry, PageKind, PageName, Root,
    SavedRecord, SavedSegment, Superblock, crc_without,
};

/// Where the checksum of a superblock, root, label or header lies.
const CRC_AT: usize = 8;

/// An entry point.
pub type Entry = fn(&[u8]);

/// All of them, by name.
pub const ENTRIES: [(&str, Entry); 5] = [
    ("superblock", superblock),
    ("label", label),
    ("root", root),
    ("header", header),
    ("map_page", map_page),
];

fn grain(data: &[u8]) -> Box<GrainBytes> {
    let mut grain = Box::new([0; GRAIN_BYTES]);
    let len = data.len().min(GRAIN_BYTES);
    grain[..len].copy_from_slice(&data[..len]);
    grain
}

/// The grain as it is, and with a checksum that fits.
fn both(data: &[u8]) -> [Box<GrainBytes>; 2] {
    let plain = grain(data);
    let mut sealed = plain.clone();
    let crc = crc_without(&sealed, CRC_AT);
    sealed[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    [plain, sealed]
}

/// A superblock.
pub fn superblock(data: &[u8]) {
    for bytes in both(data) {
        if let Ok(found) = Superblock::parse(&bytes) {
            assert_eq!(Superblock::parse(&found.emit()), Ok(found));
        }
    }
}

/// The label of a device of an array.
pub fn label(data: &[u8]) {
    for bytes in both(data) {
        // Of a path that is too long, or no text, only some is kept.
        if let Some(found) = Label::parse(&bytes) {
            let kept = Label::parse(&found.emit()).expect("it was written here");
            assert_eq!((kept.volume, kept.index), (found.volume, found.index));
            assert_eq!(Label::parse(&kept.emit()), Some(kept));
        }
    }
}

/// The root of a checkpoint, for areas of several sizes.
pub fn root(data: &[u8]) {
    for bytes in both(data) {
        for area in [0, 1, 300, 1 << 20, 1 << 40] {
            if let Some(found) = Root::parse(&bytes, area) {
                assert!(found.tail() <= found.head());
                assert_eq!(Root::parse(&found.emit(), area), Some(found));
            }
        }
    }
}

/// A header of the log.
pub fn header(data: &[u8]) {
    for bytes in both(data) {
        if let Ok(found) = Header::parse(&bytes) {
            let _ = found.grains();
            assert_eq!(Header::parse(&found.emit()), Ok(found));
        }
    }
}

/// A page of a checkpoint, of the kind that it says it is.
pub fn map_page(data: &[u8]) {
    let plain = grain(data);
    let mut sealed = plain.clone();
    let crc = crc32fast::hash(&sealed[4..]);
    sealed[..4].copy_from_slice(&crc.to_le_bytes());
    for bytes in [plain, sealed] {
        let number = |at: usize| {
            let bytes = bytes[at..].first_chunk().expect("inside the page");
            u64::from_le_bytes(*bytes)
        };
        let kinds = [
            PageKind::Map,
            PageKind::Fence,
            PageKind::Segment,
            PageKind::Record,
        ];
        for kind in kinds {
            let name = PageName {
                kind,
                volume: number(8),
                session: number(16),
                position: number(24),
            };
            // No root names such a page.
            if name.position >= COUNTER_END {
                continue;
            }
            match kind {
                PageKind::Map => drop(name.parse_map(&bytes)),
                PageKind::Fence => again::<Fence>(name, &bytes),
                PageKind::Segment => again::<SavedSegment>(name, &bytes),
                PageKind::Record => again::<SavedRecord>(name, &bytes),
            }
        }
    }
}

fn again<E: PageEntry + PartialEq + std::fmt::Debug>(name: PageName, bytes: &GrainBytes) {
    let Some(entries) = name.parse::<E>(bytes) else {
        return;
    };
    let mut out = Vec::new();
    name.emit(&entries, &mut out);
    if let Some(page) = out.first_chunk() {
        assert_eq!(name.parse::<E>(page), Some(entries));
    }
}

/// Something like one of `corpus`, for drivers without a fuzzer: bytes of it changed, and pieces moved, taken out and
/// taken from others. The same seed gives the same.
pub fn mutated(corpus: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut state = seed;
    // SplitMix64.
    let mut below = |end: usize| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % end.max(1) as u64) as usize
    };
    let mut bytes = match corpus.len() {
        0 => Vec::new(),
        len => corpus[below(len)].clone(),
    };
    for _ in 0..1 + below(4) {
        let at = below(bytes.len() + 1);
        let len = 1 + below(8);
        let end = (at + len).min(bytes.len());
        match below(6) {
            0 => bytes[at..end].fill_with(|| below(256) as u8),
            1 => bytes[at..end].fill([0, 0xff, 0x7f, 0x80][below(4)]),
            2 => bytes[at..end]
                .iter_mut()
                .for_each(|byte| *byte ^= 1 << below(8)),
            3 => {
                let new: Vec<u8> = (0..len).map(|_| below(256) as u8).collect();
                bytes.splice(at..at, new);
            }
            4 => drop(bytes.drain(at..end)),
            _ if !corpus.is_empty() => {
                let other = &corpus[below(corpus.len())];
                let from = below(other.len() + 1);
                let piece = &other[from..(from + 16 * len).min(other.len())];
                let end = (at + piece.len()).min(bytes.len());
                bytes.splice(at..end, piece.iter().copied());
            }
            _ => {}
        }
    }
    bytes
}
