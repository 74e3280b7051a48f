//! The audit: everything the core counts is counted again from scratch (I5). For tests.

use super::{Core, Cx};
use crate::account::AccountId;
use crate::addr::LbaRange;
use crate::map::{Location, State};
use crate::page::FrameUse;
use crate::segment::SegmentUse;
use std::collections::HashMap;

impl Core {
    /// A checksum of the map: what is mapped, where it lies, and with which checksum.
    pub(crate) fn map_digest(&self, cx: Cx<'_>) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        for (lba, _) in self.index.mapped(LbaRange::SPACE) {
            let (place, crc) = match self.location(cx, lba) {
                Location::Nowhere => continue,
                Location::Media(pba) => {
                    let leaf = self.index.leaf(lba).expect("leaf of a mapped grain");
                    (pba.0, leaf.crc(lba))
                }
                // Which record reserves it may differ from one recovery to the next.
                Location::Zero(_) => (u64::MAX, 0),
            };
            hasher.update(&lba.0.to_le_bytes());
            hasher.update(&place.to_le_bytes());
            hasher.update(&crc.to_le_bytes());
        }
        hasher.finalize()
    }

    /// Compares every count with the map.
    ///
    /// # Panics
    /// If one does not agree.
    pub(crate) fn audit(&self, cx: Cx<'_>) {
        if !self.cold.is_warm() {
            return;
        }
        let mut mapped = 0;
        let mut charged: HashMap<AccountId, u64> = HashMap::new();
        let mut live: HashMap<u32, u32> = HashMap::new();
        let mut zeros: HashMap<u32, u64> = HashMap::new();
        let mut frames: HashMap<u32, u64> = HashMap::new();
        for (lba, state) in self.index.mapped(LbaRange::SPACE) {
            assert_eq!(cx.sh.map.state(lba), state, "{lba}: table and index differ");
            let frame = match state {
                State::Away(_) => None,
                State::InFlight(frame) => Some(frame),
                State::Resident(r) => Some(r.frame),
            };
            if let Some(frame) = frame {
                let known = &self.frames[frame.0 as usize];
                assert_eq!(known.lba, lba, "frame {frame:?} belongs to another grain");
                let resident = matches!(state, State::Resident(_));
                assert_eq!(known.usage == FrameUse::Resident, resident, "{lba}");
                assert_eq!(frames.insert(frame.0, lba.0), None, "frame named twice");
                let is_shared = cx.sh.pool.is_shared(frame);
                if is_shared {
                    let home = self.sharing.frame_of(lba);
                    assert!(
                        home.is_none_or(|home| home == frame),
                        "{lba} has another place"
                    );
                } else if matches!(state, State::Resident(r) if !r.dirty) && known.writing == 0 {
                    assert!(self.candidates.holds(frame), "{lba} is never evicted");
                }
            }
            let location = self.location(cx, lba);
            if location != Location::Nowhere || matches!(state, State::Resident(_)) {
                mapped += 1;
                if let Some(account) = self.accounts.of(lba) {
                    *charged.entry(account).or_default() += 1;
                }
            }
            match location {
                Location::Nowhere => {}
                Location::Media(pba) => {
                    *live.entry(self.geometry.segment_of(pba).0).or_default() += 1
                }
                Location::Zero(id) => *zeros.entry(id.0).or_default() += 1,
            }
        }
        assert_eq!(self.mapped, mapped, "mapped grains");
        self.audit_loss();
        for (account, known) in self.accounts.uses() {
            let counted = charged.remove(&account).unwrap_or(0);
            assert_eq!(known.used, counted, "{account:?}");
        }
        assert!(charged.is_empty(), "grains charged to unknown accounts");
        assert!(
            self.mapped <= self.geometry.capacity_grains,
            "over capacity"
        );
        let mut records: HashMap<u32, u32> = HashMap::new();
        for segment in self.tombstone_homes() {
            *records.entry(segment.0).or_default() += 1;
        }
        for (id, zero) in self.records.zeros() {
            let counted = zeros.remove(&id.0).unwrap_or(0);
            assert_eq!(zero.live, counted, "zero record {id:?}");
            if let Some((_, home)) = zero.home {
                *records.entry(home.segment.0).or_default() += 1;
            }
        }
        assert!(zeros.is_empty(), "grains reserved by dead zero records");
        let mut free = 0;
        for (index, segment) in self.segments.iter().enumerate() {
            let index = index as u32;
            assert_eq!(
                segment.live,
                live.get(&index).copied().unwrap_or(0),
                "live of segment {index}"
            );
            let here = records.get(&index).copied().unwrap_or(0);
            assert_eq!(segment.records, here, "records of segment {index}");
            free += usize::from(segment.usage == SegmentUse::Free);
            let is_let_go = matches!(
                segment.usage,
                SegmentUse::Free | SegmentUse::Pending(_) | SegmentUse::Cut
            );
            if is_let_go {
                assert_eq!(
                    (segment.live, segment.records),
                    (0, 0),
                    "segment {index} let go"
                );
            }
        }
        assert_eq!(free, self.segments.free_count(), "free segments");
        let grains = self.geometry.segment_grains;
        assert!(self.segments.are_filed(grains), "candidates for collection");
        let listed = self
            .frames
            .iter()
            .take(self.pool_frames)
            .filter(|f| f.usage == FrameUse::Free)
            .count();
        assert_eq!(listed, self.frames_free.len(), "free frames");
    }
}
