//! What recovery says of what it found.

use super::decide::Decided;
use super::gaps::{count_gone, missing};
use crate::format::{HeaderNo, Superblock};

/// What recovery found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The last session ended with a shutdown.
    pub clean: bool,
    /// Number of the new session.
    pub session: u64,
    /// Headers that count.
    pub headers: u64,
    /// Headers that were cut: written, never acknowledged, incomplete.
    pub headers_cut: u64,
    /// Headers or header places that are damaged or unreadable (a torn end of the log counts here too).
    pub headers_damaged: u64,
    /// Headers that are certainly lost, though they had been durable: their grains may be old or gone.
    pub headers_lost: u64,
    /// Headers that are not there either, in segments in which nothing that is known lives. They are lost as well, or were
    /// dead, and their segment was being written again or discarded when the power was cut.
    pub headers_unsure: u64,
    /// Devices of an array that are missing. What `headers_lost` counts then was on them, written since the checkpoint: its
    /// grains may read as they were before.
    pub devices_lost: u32,
    /// Superblock copies that were damaged (and are whole again now).
    pub superblocks_damaged: u32,
    /// Grains mapped; too high at most as long as a part of the map is cold.
    pub mapped: u64,
    /// The checkpoint that the volume stands on; none: all headers were read. Then the headers counted above are
    /// only those behind it.
    pub checkpoint: Option<u64>,
    /// Pages of the map that are read later, as they are needed.
    pub map_pages_cold: u64,
}

impl RecoveryReport {
    /// Of what was decided, before anything is written. `lost` are devices of an array that were missing from the start.
    pub(super) fn of(decided: &Decided, superblock: &Superblock, lost: u16) -> Self {
        let Decided {
            found,
            replayed,
            saved,
            ..
        } = decided;
        let geometry = &superblock.geometry;
        let (headers_lost, headers_unsure) = match saved {
            Some(saved) => (count_gone(found, geometry, saved.root.replay_from, lost), 0),
            None => {
                let missing = missing(found, geometry, HeaderNo(0), &[], 0);
                let in_use = |id: &&_| replayed.segments.get(**id).live > 0;
                let lost = missing.iter().filter(in_use).count() as u64;
                let all = decided.missing_behind_roots.max(missing.len() as u64);
                (lost, all - lost)
            }
        };
        Self {
            clean: superblock.clean,
            session: superblock.session + 1,
            headers: found.headers.len() as u64,
            headers_cut: found.cut.len() as u64,
            headers_damaged: found.damaged,
            headers_lost,
            headers_unsure,
            devices_lost: lost.count_ones(),
            superblocks_damaged: 0,
            mapped: replayed.mapped,
            checkpoint: saved.as_ref().map(|s| s.root.number),
            map_pages_cold: saved.as_ref().map_or(0, |s| match s.cold.is_warm() {
                true => 0,
                false => s.cold.pages() as u64,
            }),
        }
    }
}
