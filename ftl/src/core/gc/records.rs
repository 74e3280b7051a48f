//! Relocating records: trims that keep older copies dead, and zero records, which are split to what still needs them.

use super::super::{Core, Cx};
use crate::addr::{Lba, LbaRange, SegmentId};
use crate::format::{HeaderNo, Record, RecordKind, Version};
use crate::map::{Location, ZeroId};
use crate::placement::Heat;
use crate::records::Home;

impl Core {
    /// Whether a trim or zero record found in header `no` must survive its segment.
    pub(in crate::core) fn record_needed(&self, record: &Record, no: HeaderNo) -> bool {
        match record.kind {
            RecordKind::Data { .. } => false,
            RecordKind::Trim { .. } => {
                let known = self.records.trims.get(&record.version);
                known.is_some_and(|t| t.home.header == no)
            }
            RecordKind::Zero { .. } => {
                let known = self.records.zero_at(record.version, record.lba, no);
                known.is_some()
            }
        }
    }

    /// A trim or zero record of header `from` gets a younger copy. Of a zero record only what still reads as zeros
    /// because of it is taken along, in at most `limit` pieces; the rest stays where it is for another round.
    pub(in crate::core) fn rehome(
        &mut self,
        cx: Cx<'_>,
        record: &Record,
        from: HeaderNo,
        home: Home,
        limit: usize,
        out: &mut Vec<Record>,
    ) {
        let old = match record.kind {
            RecordKind::Data { .. } => return,
            RecordKind::Trim { .. } => {
                out.push(*record);
                let known = self.records.trims.get_mut(&record.version);
                let old = std::mem::replace(&mut known.expect("live tombstone").home, home);
                self.segments.get_mut(home.segment).records += 1;
                old
            }
            RecordKind::Zero { .. } => {
                let id = self.records.zero_at(record.version, record.lba, from);
                let id = id.expect("live zero record");
                let zero = *self.records.zero(id);
                if zero.live == zero.range.count {
                    out.push(*record);
                    self.segments.get_mut(home.segment).records += 1;
                    let old = self.records.settle_zero(id, record.version, home);
                    old.expect("settled zero record")
                } else {
                    self.split_zero(cx, id, record.version, home, limit, out);
                    if self.records.zero(id).live > 0 {
                        return;
                    }
                    let gone = self.records.remove_zero(id);
                    gone.home.expect("settled zero record").1
                }
            }
        };
        self.segments.get_mut(old.segment).records -= 1;
        let freed_at = self.log.last();
        self.segments.retire_if_empty(old.segment, freed_at);
    }

    /// Moves the live runs of a zero record into records of their own, of the same version.
    fn split_zero(
        &mut self,
        cx: Cx<'_>,
        id: ZeroId,
        version: Version,
        home: Home,
        limit: usize,
        out: &mut Vec<Record>,
    ) {
        let mut runs: Vec<LbaRange> = Vec::new();
        for (lba, _) in self.index.mapped(self.records.zero(id).range) {
            if self.location(cx, lba) != Location::Zero(id) {
                continue;
            }
            let full = runs.len() == limit;
            match runs.last_mut() {
                Some(run) if run.end() == lba => run.count += 1,
                _ if full => break,
                _ => runs.push(LbaRange::new(lba, 1)),
            }
        }
        for run in runs {
            let piece = self.records.add_zero(run);
            self.records.zero_mut(piece).live = run.count;
            self.records.zero_mut(id).live -= run.count;
            self.records.settle_zero(piece, version, home);
            self.segments.get_mut(home.segment).records += 1;
            for lba in (run.start.0..run.end().0).map(Lba) {
                self.relocate_entry(cx, lba, Location::Zero(piece), Heat::UNKNOWN);
            }
            out.push(Record {
                lba: run.start,
                version,
                kind: RecordKind::Zero {
                    count: run.count as u32,
                },
            });
        }
    }

    /// The tombstones' LBA ranges, for the audit.
    pub(in crate::core) fn tombstone_homes(&self) -> impl Iterator<Item = (Lba, SegmentId)> + '_ {
        let all = self.records.trims.values();
        all.map(|t| (t.range.start, t.home.segment))
    }
}
