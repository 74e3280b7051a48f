//! The memory of a member: what is visible, and what of it would survive a loss of power.
//!
//! A cut keeps what was flushed; of each eight bytes changed since, the old or the new ones, in any combination.

use std::collections::BTreeSet;

use offload_chain::group::{Durability, Primitive};
use offload_chain::memory::{CHUNK_BYTES, Memory, MemoryError};

use super::rng::Rng;

const WORD: usize = 8;

#[derive(Clone, Debug)]
pub struct Mem {
    visible: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<usize>,
    generation: u64,
    changed: Vec<u64>,
}

impl Mem {
    pub fn new(size: u64) -> Self {
        assert!(size.is_multiple_of(WORD as u64));
        Self {
            visible: vec![0; size as usize],
            durable: vec![0; size as usize],
            dirty: BTreeSet::new(),
            generation: 0,
            changed: vec![0; size.div_ceil(CHUNK_BYTES) as usize],
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.visible
    }

    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.visible[offset..offset + bytes.len()].copy_from_slice(bytes);
        let end = offset + bytes.len();
        self.dirty.extend(offset / WORD..end.div_ceil(WORD));
        self.generation += 1;
        let chunk = CHUNK_BYTES as usize;
        self.changed[offset / chunk..end.div_ceil(chunk)].fill(self.generation);
    }

    /// Makes a range durable, and no more.
    pub fn flush_range(&mut self, offset: usize, length: usize) {
        let words = offset / WORD..(offset + length).div_ceil(WORD);
        let dirty: Vec<usize> = self.dirty.range(words).copied().collect();
        for word in dirty {
            self.keep(word);
        }
    }

    /// Words of a range that are not durable.
    pub fn dirty_words(&self, offset: usize, length: usize) -> Vec<usize> {
        let words = offset / WORD..(offset + length).div_ceil(WORD);
        self.dirty.range(words).copied().collect()
    }

    /// Makes these words durable, as they are now.
    pub fn keep_words(&mut self, words: &[usize]) {
        for &word in words {
            if self.dirty.contains(&word) {
                self.keep(word);
            }
        }
    }

    /// A flush of these words failed: each is durable as it is now, or not, and nobody takes it for dirty any more.
    pub fn lose_words(&mut self, words: &[usize], rng: &mut Rng) {
        let how = rng.below(3);
        for &word in words {
            if self.dirty.contains(&word) && (how == 0 || (how == 1 && rng.permille(500))) {
                self.keep(word);
            }
            self.dirty.remove(&word);
        }
    }

    pub fn flush_all(&mut self) {
        for word in std::mem::take(&mut self.dirty) {
            self.keep(word);
        }
    }

    fn keep(&mut self, word: usize) {
        let range = word * WORD..(word + 1) * WORD;
        self.durable[range.clone()].copy_from_slice(&self.visible[range]);
        self.dirty.remove(&word);
    }

    /// Loses power.
    pub fn cut(&mut self, rng: &mut Rng) {
        let dirty = std::mem::take(&mut self.dirty);
        let how = rng.below(3);
        for word in dirty {
            if how == 0 || (how == 1 && rng.permille(500)) {
                self.keep(word);
            }
        }
        self.visible.copy_from_slice(&self.durable);
        self.generation = 0;
        self.changed.fill(0);
    }

    /// Another device in its place.
    pub fn wipe(&mut self) {
        *self = Self::new(self.visible.len() as u64);
    }
}

impl Memory for Mem {
    fn size(&self) -> u64 {
        self.visible.len() as u64
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), MemoryError> {
        let (start, end) = (offset as usize, offset as usize + to.len());
        let bytes = self.visible.get(start..end).ok_or(MemoryError::Range {
            offset,
            length: to.len() as u64,
            size: self.size(),
        })?;
        to.copy_from_slice(bytes);
        Ok(())
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), MemoryError> {
        if offset + from.len() as u64 > self.size() {
            return Err(MemoryError::Range {
                offset,
                length: from.len() as u64,
                size: self.size(),
            });
        }
        self.put(offset as usize, from);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), MemoryError> {
        self.flush_all();
        Ok(())
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn changed_since(&self, generation: u64) -> Vec<u64> {
        let chunks = self.changed.iter().enumerate();
        chunks
            .filter(|(_, changed)| **changed > generation)
            .map(|(chunk, _)| chunk as u64)
            .collect()
    }
}

/// What one member does for one primitive, until it is visible. What a gCAS found, what a READ read.
pub fn execute(memory: &mut Mem, member: usize, primitive: &Primitive) -> (Option<u64>, Vec<u8>) {
    match primitive {
        Primitive::Write { offset, bytes, .. } => memory.put(*offset as usize, bytes),
        Primitive::Cas {
            offset,
            old,
            new,
            execute,
            ..
        } => {
            if execute.contains(member) {
                let at = *offset as usize;
                let found = memory.visible[at..at + 8].try_into().unwrap();
                let found = u64::from_le_bytes(found);
                if found == *old {
                    memory.put(at, &new.to_le_bytes());
                }
                return (Some(found), Vec::new());
            }
        }
        Primitive::Memcpy {
            source,
            destination,
            length,
            ..
        } => {
            let source = *source as usize;
            let bytes = memory.visible[source..source + *length as usize].to_vec();
            memory.put(*destination as usize, &bytes);
        }
        Primitive::Flush => {}
        Primitive::Read { offset, length, .. } => {
            let at = *offset as usize;
            return (None, memory.visible[at..at + length].to_vec());
        }
    }
    (None, Vec::new())
}

/// Does the member have to make something durable before it forwards?
pub fn flushes(primitive: &Primitive) -> bool {
    match primitive {
        Primitive::Write { durability, .. }
        | Primitive::Cas { durability, .. }
        | Primitive::Memcpy { durability, .. } => *durability == Durability::Durable,
        Primitive::Flush => true,
        Primitive::Read { .. } => false,
    }
}

/// Makes durable what the primitive changed, and no more.
pub fn flush(memory: &mut Mem, primitive: &Primitive) {
    match primitive {
        Primitive::Write { offset, bytes, .. } => {
            memory.flush_range(*offset as usize, bytes.len());
        }
        Primitive::Cas { offset, .. } => memory.flush_range(*offset as usize, WORD),
        Primitive::Memcpy {
            destination,
            length,
            ..
        } => memory.flush_range(*destination as usize, *length as usize),
        Primitive::Flush => memory.flush_all(),
        Primitive::Read { .. } => {}
    }
}
