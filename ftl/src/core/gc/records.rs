//! Relocating records: trims that keep older copies dead, remaps that rename them, and zero records, which are split to
//! what still needs them. What is relocated is written under the name it has (`docs/remap.md`).

use super::super::{Core, Cx};
use crate::addr::{Lba, LbaRange, Pba, SegmentId};
use crate::format::{HeaderNo, Record, RecordKind, Version};
use crate::map::{Location, State, ZeroId};
use crate::placement::Heat;
use crate::planted::Bug;
use crate::records::{Home, Tombstone, Traced};
use crate::remap::Renaming;

/// An LBA that refers to a place.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) struct Referrer {
    /// Its name and version for a record that is assembled now. Several may have the same one, if the forming group
    /// clones.
    pub(in crate::core) lba: Lba,
    pub(in crate::core) version: Version,
    /// Its name in the map, and what its entry says.
    pub(in crate::core) now: Lba,
    pub(in crate::core) state: State,
    pub(in crate::core) heat: Heat,
}

impl Core {
    /// What has become of the grains of a record, see [`Traced`].
    fn trace(&self, range: LbaRange, version: Version) -> Vec<Traced> {
        let forming: Vec<Renaming> = self.group.renamings().collect();
        self.records.trace(range, version, &forming)
    }

    /// Finds everybody who refers to a place, from the records about it.
    pub(in crate::core) fn referrers<'r>(
        &self,
        cx: Cx<'_>,
        records: impl IntoIterator<Item = &'r Record>,
        at: Pba,
        found: &mut Vec<Referrer>,
    ) {
        let is_renamed = self.records.renames() || self.group.renamings().next().is_some();
        let mut add = |lba, version, now| {
            let (state, heat) = cx.sh.map.known(now);
            // An alias may lead to a name that was found already.
            if self.place_of(state) == Location::Media(at) && found.iter().all(|f| f.now != now) {
                found.push(Referrer {
                    lba,
                    version,
                    now,
                    state,
                    heat,
                });
            }
        };
        for record in records {
            let (lba, version) = (record.lba, record.version);
            // Every grain of every victim comes by here.
            if !is_renamed {
                add(lba, version, lba);
                continue;
            }
            let mut names = Vec::new();
            self.records.trace_one(lba, version, &mut names);
            let mut names: Vec<(Lba, Version, Lba)> =
                names.into_iter().map(|n| (n.0, n.1, n.0)).collect();
            for renaming in self.group.renamings() {
                renaming.follow(&mut names, 0, |n| n.2, |n, now| (n.0, n.1, now));
            }
            for (lba, version, now) in names {
                add(lba, version, now);
            }
        }
    }

    /// Whether a trim, remap or zero record found in header `no` must survive its segment.
    pub(in crate::core) fn record_needed(&self, record: &Record, no: HeaderNo) -> bool {
        match record.kind {
            RecordKind::Data { .. } | RecordKind::Alias { .. } => false,
            RecordKind::Trim { .. } | RecordKind::Remap { .. } | RecordKind::Clone { .. } => {
                let known = self.records.tombstone(record.version);
                known.is_some_and(|t| t.home.header == no)
            }
            RecordKind::Zero { .. } => {
                let known = self.records.zero_at(record.version, record.lba, no);
                known.is_some()
            }
        }
    }

    /// What no header of a victim has told, though it is at home there, joins from memory: tombstones that a checkpoint
    /// still had. They have expired since, and their segment was reused, or was about to be when the power failed. They
    /// expire again, but until then they would hold a segment that nothing in it can empty. Asked for a victim that gave
    /// nothing before, and has given nothing now; false if there is no room to join.
    pub(super) fn relocate_unread(&mut self, cx: Cx<'_>, id: SegmentId) -> bool {
        let (life, segment) = (self.segments.life(id), self.segments.get(id));
        let is_due = segment.failures > 0 && segment.records > 0;
        if !is_due || self.collector.has_joined(life) || cx.sh.has_bug(Bug::UnreadStays) {
            return true;
        }
        let tombstones = self.records.tombstones();
        let is_home = |known: &(Version, &Tombstone)| known.1.home.segment == id;
        let unread = tombstones.filter(is_home).map(|(v, t)| (v, *t));
        for (version, tombstone) in unread.collect::<Vec<_>>() {
            let record = tombstone.fate.record(version);
            if !self.join_record(cx, record, tombstone.home.header, life) {
                return self.collector.has_joined(life);
            }
            self.collector.joined(life);
        }
        true
    }

    /// A trim, remap or zero record of header `from` gets a younger copy. Of a zero record only what still reads as zeros
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
            RecordKind::Data { .. } | RecordKind::Alias { .. } => return,
            RecordKind::Trim { .. } | RecordKind::Remap { .. } | RecordKind::Clone { .. } => {
                out.push(*record);
                let known = self.records.tombstone(record.version);
                let old = *known.expect("live tombstone");
                let moved = Tombstone { home, ..old };
                self.records.add_tombstone(record.version, moved);
                self.segments.get_mut(home.segment).records += 1;
                old.home
            }
            RecordKind::Zero { .. } => {
                let id = self.records.zero_at(record.version, record.lba, from);
                let id = id.expect("live zero record");
                let zero = *self.records.zero(id);
                let traced = self.trace(zero.range, record.version);
                let is_as_written = match traced[..] {
                    [only] => only.name == zero.range && only.version == record.version,
                    _ => false,
                };
                if zero.live == zero.range.count && is_as_written {
                    out.push(*record);
                    self.segments.get_mut(home.segment).records += 1;
                    let old = self.records.settle_zero(id, record.version, home);
                    old.expect("settled zero record")
                } else {
                    self.split_zero(cx, id, &traced, home, limit, out);
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

    /// Moves the live runs of a zero record into records of their own, under the names their grains have. `traced` is
    /// what has become of its range.
    fn split_zero(
        &mut self,
        cx: Cx<'_>,
        id: ZeroId,
        traced: &[Traced],
        home: Home,
        limit: usize,
        out: &mut Vec<Record>,
    ) {
        // Version, name, and name in the map: of the grains that the forming group clones several have the same name.
        let mut live: Vec<(Version, Lba, Lba)> = Vec::new();
        for part in traced {
            for (now, _) in self.index.mapped(part.now) {
                if self.location(cx, now) == Location::Zero(id) {
                    let name = part.name.start.offset(now.0 - part.now.start.0);
                    live.push((part.version, name, now));
                }
            }
        }
        live.sort_unstable();
        let mut runs: Vec<(Version, LbaRange, Vec<Lba>)> = Vec::new();
        for (version, name, now) in live {
            let is_full = runs.len() == limit;
            match runs.last_mut() {
                Some((before, run, grains))
                    if *before == version && (run.end() == name || run.contains(name)) =>
                {
                    run.count += u64::from(run.end() == name);
                    grains.push(now);
                }
                _ if is_full => break,
                _ => runs.push((version, LbaRange::new(name, 1), vec![now])),
            }
        }
        for (version, run, grains) in runs {
            let piece = self.records.add_zero(run);
            self.records.zero_mut(piece).live = grains.len() as u64;
            self.records.zero_mut(id).live -= grains.len() as u64;
            self.records.settle_zero(piece, version, home);
            self.segments.get_mut(home.segment).records += 1;
            for lba in grains {
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

    /// Where the tombstones lie, for the audit.
    pub(in crate::core) fn tombstone_homes(&self) -> impl Iterator<Item = SegmentId> + '_ {
        self.records.tombstones().map(|(_, t)| t.home.segment)
    }
}
