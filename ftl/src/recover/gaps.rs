//! Headers that are not there, and whether they should be.

use super::scan::{Found, Scan};
use crate::addr::SegmentId;
use crate::format::{HeaderNo, SavedSegment};
use crate::geometry::Geometry;
use std::collections::HashMap;

/// Whether the header before this one lies on a device that is not there.
pub(super) fn is_behind_lost(found: &Found, geometry: &Geometry, lost: u16) -> bool {
    let device = found
        .header
        .back
        .and_then(|at| geometry.places.device_of(at));
    device.is_some_and(|device| lost >> device & 1 == 1)
}

/// Headers behind a checkpoint that certainly lie on a device that is not there: what they held may read as it was
/// before.
pub(super) fn count_gone(found: &Scan, geometry: &Geometry, after: HeaderNo, lost: u16) -> u64 {
    let gone = found.headers.values().filter(|f| {
        let before = HeaderNo(f.header.no.0 - 1);
        before > after && !found.headers.contains_key(&before) && is_behind_lost(f, geometry, lost)
    });
    gone.count() as u64
}

/// Segments of the headers that a present header points back to, that lie in a segment that has not been reused since, and
/// that are not there. `saved` are the lives at a checkpoint that covers everything up to `after`. A segment that begins
/// with zeros has been free since, and discarded.
pub(super) fn missing(
    found: &Scan,
    geometry: &Geometry,
    after: HeaderNo,
    saved: &[SavedSegment],
    lost: u16,
) -> Vec<SegmentId> {
    let mut lives = HashMap::new();
    for (index, segment) in saved.iter().enumerate() {
        let id = SegmentId(index as u32);
        if !found.blank.contains(&id) {
            lives.insert(id, segment.epoch);
        }
    }
    for f in found.headers.values() {
        lives.insert(f.header.segment, f.header.epoch);
    }
    let missing = found.headers.values().filter_map(|f| {
        let before = HeaderNo(f.header.no.0 - 1);
        let (segment, _) = f.header.back.and_then(|at| geometry.locate(at))?;
        let life = lives.get(&segment);
        let is_missing = before > after
            && !found.headers.contains_key(&before)
            && !is_behind_lost(f, geometry, lost)
            && life.is_some_and(|&epoch| epoch <= before);
        is_missing.then_some(segment)
    });
    missing.collect()
}
