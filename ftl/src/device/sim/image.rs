//! Content of a simulated device.

use std::fmt;
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use super::SECTOR_BYTES;
use crate::GRAIN_BYTES;

type Grain = [u8; GRAIN_BYTES];

/// Content of a device. Copies share every grain that neither of them has changed, so that one for each power cut costs
/// little more than what the cut changes.
#[derive(Clone, PartialEq, Eq)]
pub struct SimImage(Vec<Arc<Grain>>);

impl SimImage {
    /// Nothing but zeros.
    ///
    /// # Panics
    /// If the length is no multiple of a grain.
    pub fn zeros(len_bytes: usize) -> Self {
        assert!(len_bytes.is_multiple_of(GRAIN_BYTES), "whole grains");
        let zeros = Arc::new([0; GRAIN_BYTES]);
        Self(iter::repeat_n(zeros, len_bytes / GRAIN_BYTES).collect())
    }

    /// Images one behind the other.
    pub fn concat(images: impl IntoIterator<Item = Self>) -> Self {
        Self(images.into_iter().flat_map(|image| image.0).collect())
    }

    /// Bytes of it all.
    pub fn len_bytes(&self) -> usize {
        self.0.len() * GRAIN_BYTES
    }

    /// A part of it.
    ///
    /// # Panics
    /// If it is not all there.
    pub fn part(&self, grains: Range<usize>) -> Self {
        Self(self.0[grains].to_vec())
    }

    /// One grain after the other.
    pub fn grains(&self) -> impl Iterator<Item = &Grain> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// One grain.
    ///
    /// # Panics
    /// If it is not there.
    pub fn grain(&self, number: usize) -> &Grain {
        &self.0[number]
    }

    /// All of it as one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        self.grains().flatten().copied().collect()
    }

    /// The bytes from `at` on.
    ///
    /// # Panics
    /// If they are not all there.
    pub fn read(&self, at: usize, mut bytes: &mut [u8]) {
        let (mut number, mut from) = (at / GRAIN_BYTES, at % GRAIN_BYTES);
        while !bytes.is_empty() {
            let count = bytes.len().min(GRAIN_BYTES - from);
            let (now, rest) = bytes.split_at_mut(count);
            now.copy_from_slice(&self.0[number][from..from + count]);
            (number, from, bytes) = (number + 1, 0, rest);
        }
    }

    /// Puts `bytes` in the place of those from `at` on.
    ///
    /// # Panics
    /// If that goes beyond the end.
    pub fn write(&mut self, at: usize, mut bytes: &[u8]) {
        let (mut number, mut from) = (at / GRAIN_BYTES, at % GRAIN_BYTES);
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(GRAIN_BYTES - from));
            Arc::make_mut(&mut self.0[number])[from..from + now.len()].copy_from_slice(now);
            (number, from, bytes) = (number + 1, 0, rest);
        }
    }

    /// The sector that begins at `at`, to be changed.
    pub(super) fn sector_mut(&mut self, at: usize) -> &mut [u8] {
        let from = at % GRAIN_BYTES;
        &mut Arc::make_mut(&mut self.0[at / GRAIN_BYTES])[from..from + SECTOR_BYTES]
    }
}

impl From<&[u8]> for SimImage {
    /// # Panics
    /// If these are no whole grains.
    fn from(bytes: &[u8]) -> Self {
        let (grains, rest) = bytes.as_chunks();
        assert!(rest.is_empty(), "whole grains");
        Self(grains.iter().map(|grain| Arc::new(*grain)).collect())
    }
}

impl From<Vec<u8>> for SimImage {
    fn from(bytes: Vec<u8>) -> Self {
        bytes.as_slice().into()
    }
}

impl fmt::Debug for SimImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} grains", self.0.len())
    }
}
