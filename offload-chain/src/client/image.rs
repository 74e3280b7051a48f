//! The beginning of a member's memory, as it was read.

use crate::log::{Copy, Entry, Found};
use crate::memory::{Memory, MemoryError};

/// Bytes from 0 on, of memory of that size. Nothing can be changed.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) bytes: Vec<u8>,
    pub(super) size: u64,
}

impl Image {
    /// The entries of records that were found in it.
    pub(super) fn entries(&self, found: &Found) -> Vec<(u64, Vec<Entry>)> {
        let entry = |at: u64, copy: &Copy| {
            let start = (at + copy.from) as usize;
            Entry {
                offset: copy.to,
                bytes: self.bytes[start..start + copy.length as usize].to_vec(),
            }
        };
        let records = found.records.iter();
        let records = records.map(|(at, record)| {
            let entries = record.copies.iter().map(|copy| entry(*at, copy));
            (record.sequence, entries.collect())
        });
        records.collect()
    }
}

impl Memory for Image {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), MemoryError> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(to.len());
        let bytes = self.bytes.get(start..end).ok_or(MemoryError::Range {
            offset,
            length: to.len() as u64,
            size: self.bytes.len() as u64,
        })?;
        to.copy_from_slice(bytes);
        Ok(())
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), MemoryError> {
        Err(MemoryError::Device("it was only read".into()))
    }

    fn flush(&mut self) -> Result<(), MemoryError> {
        Ok(())
    }

    fn generation(&self) -> u64 {
        0
    }

    fn changed_since(&self, _: u64) -> Vec<u64> {
        Vec::new()
    }
}
