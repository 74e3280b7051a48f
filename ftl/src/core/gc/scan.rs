//! Reading a victim: headers say what each grain was, the map says what is still live.

use super::super::{Core, Cx};
use super::records::Referrer;
use super::{Scan, Victim};
use crate::addr::{GRAIN_BYTES, Pba, SegmentId};
use crate::device::{MediaError, MediaOp};
use crate::format::{Header, RecordKind};
use crate::map::State;
use crate::port::Op;

/// How far the staging of a buffer got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The buffer is used up.
    Done,
    /// No staging or no segment for now.
    Blocked,
    /// The victim makes no sense from here on.
    Broken,
}

impl Core {
    pub(super) fn read_victim(&mut self, cx: Cx<'_>, id: SegmentId, position: u32, end: u32) {
        let (slot, buffer) = cx.sh.pool.scan();
        let grains = (end - position).min(buffer as u32);
        let start = self.geometry.segment_start(id).0 + u64::from(position);
        self.segments.get_mut(id).readers += 1;
        if let Some(victim) = &mut self.collector.victim {
            victim.scan = Scan::Reading(position);
        }
        let buf = cx.sh.pool.lend(slot, grains as usize);
        let offset = start * GRAIN_BYTES as u64;
        self.act(cx, Op::Scan { grains }, MediaOp::Read { offset, buf });
    }

    /// A part of the victim has been read.
    pub(crate) fn scan_done(&mut self, cx: Cx<'_>, grains: u32, result: Result<(), MediaError>) {
        let victim = self
            .collector
            .victim
            .as_mut()
            .expect("a victim is being read");
        let (id, life) = (victim.id, victim.life);
        let Scan::Reading(from) = victim.scan else {
            unreachable!("completion of a read that is in flight");
        };
        self.segments.get_mut(id).readers -= 1;
        match result {
            _ if self.phase.is_sealed() => self.collector.victim = None,
            Ok(()) => {
                victim.scan = Scan::Loaded { from, grains };
                self.collector.rests.reset();
            }
            Err(error) => {
                tracing::warn!(%id, %error, "victim can not be read");
                if let Some(draining) = self.collector.entry(life) {
                    draining.unread = true;
                }
                self.give_up_victim();
                // Were all victims tried at once, none would be left when the device is back.
                if error != MediaError::Gone {
                    self.collector.rests.begin(cx);
                }
            }
        }
    }

    /// The rest of the victim can not be understood; what has been staged is still relocated.
    pub(super) fn give_up_victim(&mut self) {
        let victim = self.collector.victim.as_mut().expect("a victim");
        victim.scan = Scan::Idle;
        victim.position = self.segments.get(victim.id).used;
    }

    /// Lets what is live in the buffer join the forming write-outs. False if it can not go on for now.
    pub(super) fn relocate(&mut self, cx: Cx<'_>) -> bool {
        let Some(mut victim) = self.collector.victim.take() else {
            return false;
        };
        let before = (victim.position, victim.record);
        let step = self.relocate_from(cx, &mut victim);
        let moved = (victim.position, victim.record) != before;
        self.collector.victim = Some(victim);
        if step == Step::Broken {
            self.give_up_victim();
        }
        moved || step != Step::Blocked
    }

    fn relocate_from(&mut self, cx: Cx<'_>, victim: &mut Victim) -> Step {
        let Scan::Loaded { from, grains } = victim.scan else {
            unreachable!("called with a loaded buffer");
        };
        let (buffer, _) = cx.sh.pool.scan();
        let end = self.segments.get(victim.id).used;
        let segment_start = self.geometry.segment_start(victim.id);
        let mut referrers = Vec::new();
        while victim.position < end {
            let offset = (victim.position - from) as usize;
            if offset >= grains as usize {
                break;
            }
            let bytes = cx.sh.pool.arena.bytes(buffer.plus(offset));
            let Ok(header) = Header::parse(&bytes) else {
                tracing::warn!(id = %victim.id, position = victim.position, "damaged header");
                return Step::Broken;
            };
            let known = self.segments.get(victim.id);
            if header.segment != victim.id
                || header.position != victim.position
                || header.epoch != known.epoch
                || header.volume != self.superblock.volume_tag()
            {
                return Step::Broken;
            }
            if offset + header.grains() as usize > grains as usize {
                if offset == 0 {
                    return Step::Broken;
                }
                break;
            }
            let mut data = header.records[..victim.record]
                .iter()
                .filter(|r| matches!(r.kind, RecordKind::Data { .. }))
                .count();
            while let Some(&record) = header.records.get(victim.record) {
                let at = Pba(segment_start.0 + u64::from(victim.position) + 1 + data as u64);
                let is_data = matches!(record.kind, RecordKind::Data { .. });
                let behind = header.records[victim.record + 1..].iter();
                let aliases = behind.take_while(|r| matches!(r.kind, RecordKind::Alias { .. }));
                let records = 1 + aliases.count();
                let records = &header.records[victim.record..victim.record + records];
                // Every grain of every victim comes by here: its entry is read once.
                referrers.clear();
                let needed = if is_data {
                    self.referrers(cx, records, at, &mut referrers);
                    !referrers.is_empty()
                } else {
                    self.record_needed(&record, header.no)
                };
                if needed && !(is_data && self.are_overtaken(&referrers, victim)) {
                    let joined = if is_data {
                        let source = buffer.plus(offset + 1 + data);
                        self.join_grain(cx, records, &referrers, at, victim.life, source)
                    } else {
                        self.join_record(cx, record, header.no, victim.life)
                    };
                    if !joined {
                        return Step::Blocked;
                    }
                    self.collector.joined(victim.life);
                }
                data += usize::from(is_data);
                victim.record += records.len();
            }
            victim.position += header.grains();
            victim.record = 0;
        }
        victim.scan = Scan::Idle;
        Step::Done
    }

    /// Whether younger copies of a grain have joined write-outs already, under all of its names: the grain dies with
    /// them, and the victim waits for that. Not when segments are scarce: pages may have to wait for what the victim
    /// frees.
    fn are_overtaken(&mut self, referrers: &[Referrer], victim: &Victim) -> bool {
        if self.is_tight() || self.space_wanted {
            return false;
        }
        let overtaken = referrers.iter().all(|referrer| {
            let State::Resident(r) = referrer.state else {
                return false;
            };
            let known = &self.frames[r.frame.0 as usize];
            known.joined > known.written
        });
        if overtaken {
            self.collector.overtaken(victim.life);
        }
        overtaken
    }
}
