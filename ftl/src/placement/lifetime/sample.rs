//! The grains that are watched: a part of the space chosen by a hash of the LBA, so that writes do not bias it.

use super::model::{Cell, Model};
use crate::addr::Lba;
use std::collections::HashMap;

/// Grains watched in a full volume. Twice as many is the bound; from then on nobody new is watched.
const SAMPLES: u64 = 16_384;

/// A watched grain.
#[derive(Clone, Copy, Debug)]
struct Watched {
    cell: Cell,
    written_at: u64,
    /// Its exposure has been counted up to here.
    counted_to: u64,
}

/// The watched grains.
#[derive(Debug)]
pub(super) struct Sample {
    grains: HashMap<Lba, Watched>,
    /// A grain is watched if its hash is below this.
    below: u64,
    tick_grains: f32,
}

impl Sample {
    pub(super) fn new(capacity: u64) -> Self {
        let share = SAMPLES as f64 / capacity.max(1) as f64;
        Self {
            grains: HashMap::new(),
            below: (share.min(1.0) * u32::MAX as f64) as u64,
            tick_grains: capacity.div_ceil(super::TICKS).max(1) as f32,
        }
    }

    pub(super) fn takes(&self, lba: Lba) -> bool {
        lba.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 <= self.below
    }

    /// A grain that is watched was written and is of `cell` from now on.
    pub(super) fn written(&mut self, lba: Lba, now: u64, cell: Cell, model: &mut Model) {
        let new = Watched {
            cell,
            written_at: now,
            counted_to: now,
        };
        if let Some(known) = self.grains.get_mut(&lba) {
            known.count(now, true, self.tick_grains, model);
            *known = new;
        } else if self.grains.len() < 2 * SAMPLES as usize {
            self.grains.insert(lba, new);
        }
    }

    pub(super) fn forget(&mut self, lba: Lba) {
        if self.takes(lba) {
            self.grains.remove(&lba);
        }
    }

    /// Counts the time all watched grains have lived.
    pub(super) fn sweep(&mut self, now: u64, model: &mut Model) {
        for watched in self.grains.values_mut() {
            watched.count(now, false, self.tick_grains, model);
        }
    }
}

impl Watched {
    fn count(&mut self, now: u64, overwritten: bool, tick_grains: f32, model: &mut Model) {
        let age = |at: u64| (at - self.written_at) as f32 / tick_grains;
        model.observe(self.cell, age(self.counted_to), age(now), overwritten);
        self.counted_to = now;
    }
}
