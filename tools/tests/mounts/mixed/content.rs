//! The bytes of a file, and what a crash may leave of them.

use std::collections::BTreeSet;
use std::ops::Range;

use super::answer::different_bytes;

const GRAIN: usize = 4096;

/// Bytes as every reader sees them; and since the last barrier, what else a crash may bring back.
#[derive(Clone, Debug, Default)]
pub struct Content {
    pub bytes: Vec<u8>,
    /// Whether a crash may come, so that the past counts.
    recording: bool,
    /// Former states, with zeros behind their ends, as far as they have not been made durable.
    past: Vec<Vec<u8>>,
    past_sizes: BTreeSet<usize>,
}

impl Content {
    pub fn recording(on: bool) -> Self {
        Self {
            recording: on,
            ..Self::default()
        }
    }

    /// What is now is durable; from now on the past counts if `recording`.
    pub fn barrier(&mut self, recording: bool) {
        self.recording = recording;
        self.settle();
    }

    /// What is now is durable.
    pub fn settle(&mut self) {
        self.past.clear();
        self.past_sizes.clear();
    }

    /// What is now may come back.
    fn remember(&mut self) {
        if self.recording {
            self.past.push(self.bytes.clone());
            self.past_sizes.insert(self.bytes.len());
        }
    }

    /// A plain write: nothing of it is promised to survive.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.remember();
        put(&mut self.bytes, offset, bytes);
    }

    /// The bytes of a range are durable as they are now; the size too, if it has just grown to its end.
    pub fn made_durable(&mut self, range: Range<usize>, with_size: bool) {
        let now = &self.bytes[range.clone()];
        for past in &mut self.past {
            put(past, range.start, now);
        }
        if with_size {
            self.past_sizes.retain(|&size| size >= range.end);
            self.past_sizes.insert(range.end);
        } else if self.past_sizes.iter().any(|&size| size < range.end) {
            // The end that lies behind may be lost, and this not.
            self.past_sizes.insert(range.end);
        }
    }

    /// Durable on return, as all changes of the size are.
    pub fn resize(&mut self, size: usize) {
        self.bytes.resize(size, 0);
        for past in &mut self.past {
            past.truncate(size);
        }
        self.past_sizes.clear();
    }

    /// Zeros in a range, durable on return; the file grows to its end if `grows`.
    pub fn zero(&mut self, range: Range<usize>, grows: bool) {
        if grows && range.end > self.bytes.len() {
            self.resize(range.end);
        }
        for state in self.past.iter_mut().chain([&mut self.bytes]) {
            let end = range.end.min(state.len());
            if range.start < end {
                state[range.start..end].fill(0);
            }
        }
    }

    /// Whether a crash may have left this; says what is wrong with it if not.
    pub fn judge(&self, found: &[u8]) -> Result<(), String> {
        if self.past.is_empty() {
            let same = self.bytes == found;
            return same
                .then_some(())
                .ok_or_else(|| different_bytes(&self.bytes, found));
        }
        if found.len() != self.bytes.len() && !self.past_sizes.contains(&found.len()) {
            let (now, past) = (self.bytes.len(), &self.past_sizes);
            return Err(format!("{} bytes, not {now} or {past:?}", found.len()));
        }
        for (n, grain) in found.chunks(GRAIN).enumerate() {
            let start = n * GRAIN;
            let was = |state: &Vec<u8>| {
                let there = state.get(start..).unwrap_or_default();
                let there = &there[..there.len().min(grain.len())];
                grain.starts_with(there) && grain[there.len()..].iter().all(|&byte| byte == 0)
            };
            if !was(&self.bytes) && !self.past.iter().any(was) {
                return Err(format!("grain {n} was never like this"));
            }
        }
        Ok(())
    }
}

fn put(state: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if state.len() < offset + bytes.len() {
        state.resize(offset + bytes.len(), 0);
    }
    state[offset..offset + bytes.len()].copy_from_slice(bytes);
}
