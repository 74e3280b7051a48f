//! Crafted images from bytes that a fuzzer chooses.
//!
//! The first byte says which image is changed, and each change is: a kind, a place (two numbers of two bytes), how many
//! bytes, and the bytes. Checksums are put right, unless the highest bit of the kind says no.

use std::sync::Arc;

use contigfs::{BlockStore, ByteAddr, MemStore};
use ftl::{GRAIN_BYTES, Lba};

use super::use_it::{everything, everything_with_files};
use super::{fs_damage, image, log_damage};
use support::Dice;

/// Changes of one image.
const CHANGES_MAX: usize = 32;

/// One change.
struct Change<'a> {
    kind: u8,
    seal: bool,
    place: usize,
    at: usize,
    bytes: &'a [u8],
}

fn changes(mut data: &[u8]) -> Vec<Change<'_>> {
    let mut all = Vec::new();
    while let Some((&[kind, place_low, place_high, at_low, at_high, len], rest)) =
        data.split_first_chunk()
        && all.len() < CHANGES_MAX
    {
        let (bytes, rest) = rest.split_at(usize::from(len).min(rest.len()));
        all.push(Change {
            kind: kind & 0x7f,
            seal: kind < 0x80,
            place: usize::from(u16::from_le_bytes([place_low, place_high])),
            at: usize::from(u16::from_le_bytes([at_low, at_high])) % GRAIN_BYTES,
            bytes,
        });
        data = rest;
    }
    all
}

/// The same bytes are used in the same way.
fn dice(data: &[u8]) -> Dice {
    Dice::new(u64::from(crc32fast::hash(data)))
}

/// Images of a volume.
pub struct Logs {
    lives: Vec<Vec<u8>>,
}

impl Logs {
    pub fn new() -> Self {
        Self {
            lives: image::lives(),
        }
    }

    /// Changes one, and does everything with it.
    pub fn run(&self, data: &[u8]) {
        let (life, rest) = data.split_first().unwrap_or((&0, &[]));
        let mut image = self.lives[usize::from(*life) % self.lives.len()].clone();
        let metadata = log_damage::metadata(&image);
        for change in changes(rest) {
            let grain = metadata[change.place % metadata.len()];
            let bytes = &mut image[grain * GRAIN_BYTES..][..GRAIN_BYTES];
            let end = (change.at + change.bytes.len()).min(GRAIN_BYTES);
            bytes[change.at..end].copy_from_slice(&change.bytes[..end - change.at]);
            if change.seal {
                log_damage::seal(bytes);
            }
        }
        everything(&Arc::new(image), &mut dice(data), false);
    }
}

/// A file system on a store that is nothing but a map.
pub struct Files {
    base: MemStore,
}

impl Files {
    pub fn new() -> Self {
        Self {
            base: image::files(),
        }
    }

    /// Changes it, and does everything with it.
    pub fn run(&self, data: &[u8]) {
        let store = Arc::new(self.base.duplicate());
        let mapped: Vec<Lba> = store.mapped();
        for change in changes(data) {
            let lba = mapped[change.place % mapped.len()];
            let mut grain = [0; GRAIN_BYTES];
            store
                .read(ByteAddr::new(lba, 0), &mut grain)
                .expect("it is mapped");
            let end = (change.at + change.bytes.len()).min(GRAIN_BYTES);
            grain[change.at..end].copy_from_slice(&change.bytes[..end - change.at]);
            if change.seal {
                fs_damage::seal(lba, change.kind, &mut grain);
            }
            fs_damage::put(&store, lba, &grain);
        }
        everything_with_files(&store, &mut dice(data));
    }
}
