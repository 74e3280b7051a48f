//! How much of a piece of work is done: it is carried out elsewhere, and the member wants to see that it gets on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::{Memory, MemoryError};

/// Counts what was done to memory. Whoever has a copy sees it grow.
#[derive(Clone, Debug, Default)]
pub(super) struct Done(Arc<AtomicU64>);

impl Done {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn grow(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Memory of which each read, write and flush that has ended is counted; one that does not end is not.
#[derive(Debug)]
pub(super) struct Counted<'a, M> {
    pub(super) memory: &'a mut M,
    pub(super) done: &'a Done,
}

impl<M: Memory> Memory for Counted<'_, M> {
    fn size(&self) -> u64 {
        self.memory.size()
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), MemoryError> {
        let read = self.memory.read(offset, to);
        self.done.grow();
        read
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), MemoryError> {
        let written = self.memory.write(offset, from);
        self.done.grow();
        written
    }

    fn flush(&mut self) -> Result<(), MemoryError> {
        let flushed = self.memory.flush();
        self.done.grow();
        flushed
    }

    fn generation(&self) -> u64 {
        self.memory.generation()
    }

    fn changed_since(&self, generation: u64) -> Vec<u64> {
        self.memory.changed_since(generation)
    }
}
