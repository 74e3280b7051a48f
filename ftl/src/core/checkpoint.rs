//! Taking checkpoints. See `docs/checkpoint.md`.
//!
//! ```text
//!   Idle ──due: capture──► Writing ──pages written, log durable──► Flushing ──► Root ──► Sealing (flush) ──► Idle
//! ```

use super::{Core, Cx, Recovered};
use crate::addr::{GRAIN_BYTES, Lba, LbaRange};
use crate::checkpoint::{Changes, needed_pieces, share};
use crate::crash_point::crash_point;
use crate::device::{MediaError, MediaOp};
use crate::format::{
    HeaderNo, MapEntry, OPENED_UNIT, PIECES_MAX, PageKind, PageName, Piece, Root, SavedKind,
    SavedRecord, SavedSegment, root_slot,
};
use crate::map::Location;
use crate::page::SAVE_GRAINS;
use crate::placement::{Heat, HeatMeaning};
use crate::planted::Bug;
use crate::port::Op;
use crate::records::Fate;
use crate::segment::SegmentUse;
use crate::stats::count;

/// A checkpoint waits until the log has grown by this many times what it writes.
const WORTH: u64 = 50;
/// But not longer than this many times the usual number of headers.
const LATEST: u64 = 8;

/// What has been captured and is on its way to the media.
#[derive(Debug)]
struct Taken {
    root: Root,
    pages: Vec<u8>,
    position: u64,
    /// What had changed since the one before.
    changes: Vec<Lba>,
}

/// The pages of a checkpoint, and how many are of which kind.
struct Laid {
    pages: Vec<u8>,
    run: u32,
    base: u32,
    fence: u32,
    segment: u32,
    record: u32,
    /// Position behind them.
    end: u64,
}

#[derive(Debug)]
enum Phase {
    Idle,
    /// So many pages are written; `busy`: some are being written.
    Writing {
        taken: Box<Taken>,
        written: usize,
        busy: bool,
    },
    /// All pages are written and the log is durable; a flush is in flight.
    Flushing(Box<Taken>),
    /// The root is being written.
    Root(Box<Taken>),
    /// The root is written; a flush is in flight.
    Sealing(Box<Taken>),
}

/// The checkpointer.
#[derive(Debug)]
pub(super) struct Checkpointer {
    /// What changed since the last capture.
    pub(super) changes: Changes,
    /// The youngest root that is durable, and the one before: both must stay whole.
    root: Option<Root>,
    previous: Option<Root>,
    number: u64,
    phase: Phase,
    headers_due: u64,
    /// Entries of a share of the sweep, if not what is best.
    share: Option<u64>,
    /// None is taken before this header: the last one did not fit.
    not_before: HeaderNo,
    /// Grains of the log when the last one was captured, and what it wrote.
    log_grains: u64,
    cost: u64,
    dumped: bool,
    /// A write for a checkpoint that was given up is still in flight.
    abandoned: bool,
}

impl Checkpointer {
    pub(super) fn new(found: &Recovered, headers_due: u64, share: Option<u64>) -> Self {
        let mut changes = Changes::new(found.superblock.geometry.area_grains == 0);
        for &lba in &found.changed {
            changes.note(lba);
        }
        Self {
            changes,
            root: found.root.clone(),
            previous: found.previous.clone(),
            number: found.root_number.max(found.superblock.roots_from),
            phase: Phase::Idle,
            headers_due: match found.superblock.geometry.writes_once_per_segment() {
                true => headers_due,
                false => (headers_due * 2).div_ceil(3),
            },
            share,
            not_before: HeaderNo(0),
            log_grains: 0,
            cost: 0,
            dumped: false,
            abandoned: false,
        }
    }

    fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    /// First position that must not be overwritten, and the first free one.
    fn ring(&self) -> (u64, u64) {
        let head = self.root.as_ref().map_or(0, Root::head);
        let oldest = self.previous.as_ref().or(self.root.as_ref());
        (oldest.map_or(head, Root::tail), head)
    }
}

impl Core {
    /// Tombstones born above this header are needed by a checkpoint.
    pub(super) fn tombstone_floor(&self, cx: Cx<'_>) -> HeaderNo {
        let ends = HeaderNo(u64::MAX - 1);
        if cx.sh.has_bug(Bug::TombstoneForgotten) {
            return ends;
        }
        let this = &self.checkpointer;
        let taken = match &this.phase {
            Phase::Idle => None,
            Phase::Writing { taken, .. }
            | Phase::Flushing(taken)
            | Phase::Root(taken)
            | Phase::Sealing(taken) => Some(&taken.root),
        };
        let oldest = this.previous.as_ref().or(this.root.as_ref()).or(taken);
        oldest.map_or(ends, |root| root.replay_from)
    }

    /// Whether a checkpoint can be taken at this moment.
    fn can_capture(&self, cx: Cx<'_>) -> bool {
        self.geometry.area_grains > 0
            && self.failed.is_none()
            && self.checkpointer.is_idle()
            && !self.checkpointer.abandoned
            && !self.is_layout_changing()
            && self.cold.is_warm()
            && self.group.is_empty()
            && self.are_renamings_behind(cx)
    }

    /// Whether every remap and clone would lie below what a checkpoint taken now lets recovery replay: carried out a
    /// second time, one would move what has come after it.
    fn are_renamings_behind(&self, cx: Cx<'_>) -> bool {
        self.renamed <= self.log.written() || cx.sh.has_bug(Bug::RemapReplayedTwice)
    }

    fn is_due(&self, cx: Cx<'_>) -> bool {
        let this = &self.checkpointer;
        let free = self.phase.is_running() && self.loss.is_whole();
        if this.headers_due == 0 || !self.can_capture(cx) || !free {
            return false;
        }
        let written = self.log.written();
        let from = this.root.as_ref().map_or(HeaderNo(0), |r| r.replay_from);
        let headers = written.0.saturating_sub(from.0.max(this.not_before.0));
        if headers < this.headers_due {
            return false;
        }
        let grown = self.grown(cx).saturating_sub(this.log_grains);
        let is_worth = this.share.is_some() || grown >= WORTH * this.cost;
        is_worth || headers >= LATEST * this.headers_due
    }

    /// Whether a checkpoint is due and waits for remaps and clones on their way, so that none should be made: during
    /// `pause.0` headers of `pause.1`, so that it does not last for ever.
    pub(super) fn is_checkpoint_waiting(&self, cx: Cx<'_>, pause: (u64, u64)) -> bool {
        let this = &self.checkpointer;
        let can = self.takes_checkpoints()
            && self.failed.is_none()
            && self.phase.is_running()
            && self.loss.is_whole()
            && this.is_idle()
            && !this.abandoned
            && !self.is_layout_changing()
            && self.cold.is_warm();
        if !can || self.are_renamings_behind(cx) && self.group.is_empty() {
            return false;
        }
        let from = this.root.as_ref().map_or(HeaderNo(0), |r| r.replay_from);
        let headers = (self.log.last().0).saturating_sub(from.0.max(this.not_before.0));
        let Some(late) = headers.checked_sub(this.headers_due) else {
            return false;
        };
        let grown = self.grown(cx).saturating_sub(this.log_grains);
        let is_worth = this.share.is_some() || grown >= WORTH * this.cost;
        (is_worth || headers >= LATEST * this.headers_due) && late % pause.1 < pause.0
    }

    /// Grains that the log has grown by since the volume was opened.
    fn grown(&self, cx: Cx<'_>) -> u64 {
        let stats = cx.sh.counters.snapshot();
        stats.user_grains + stats.relocated_grains + stats.header_grains
    }

    /// Takes the checkpoint of a shutdown. True when that is over, or can not be done.
    pub(super) fn dump(&mut self, cx: Cx<'_>) -> bool {
        if !self.checkpointer.is_idle() {
            return false;
        }
        if self.checkpointer.dumped || !self.can_capture(cx) {
            return true;
        }
        self.checkpointer.dumped = true;
        self.capture(cx, true);
        self.run_checkpoint(cx);
        self.checkpointer.is_idle()
    }

    /// Gives up a checkpoint whose root has not been written and that says something that may not come true.
    pub(super) fn abort_checkpoint(&mut self) {
        let this = &mut self.checkpointer;
        if !matches!(this.phase, Phase::Writing { .. }) {
            return;
        }
        if let Phase::Writing { taken, busy, .. } = std::mem::replace(&mut this.phase, Phase::Idle)
        {
            this.abandoned |= busy;
            for lba in taken.changes {
                this.changes.note(lba);
            }
        }
    }

    /// Takes the checkpoint that says what a device took along. False: not at this moment.
    pub(super) fn capture_loss(&mut self, cx: Cx<'_>) -> bool {
        if !self.can_capture(cx) {
            return false;
        }
        self.capture(cx, false);
        if self.checkpointer.is_idle() {
            tracing::error!("the area for checkpoints is too small to go on without a device");
            self.fail(cx, MediaError::NoSpace);
            return false;
        }
        true
    }

    /// Takes a checkpoint now, due or not. False: not at this moment.
    pub(super) fn capture_at_once(&mut self, cx: Cx<'_>) -> bool {
        let can = self.can_capture(cx);
        if can {
            self.capture(cx, false);
        }
        can
    }

    /// Whether the volume takes checkpoints while it is in use.
    pub(super) fn takes_checkpoints(&self) -> bool {
        self.geometry.area_grains > 0 && self.checkpointer.headers_due > 0
    }

    /// Whether no checkpoint is being taken, and no write of one that was given up is in flight.
    pub(super) fn is_checkpoint_over(&self) -> bool {
        self.checkpointer.is_idle() && !self.checkpointer.abandoned
    }

    /// The highest number of a root.
    pub(super) fn last_root_number(&self) -> u64 {
        self.checkpointer.number
    }

    /// The superblock says that roots below `from` do not count, and the ring is another one: the next checkpoint begins
    /// from nothing.
    pub(super) fn forget_roots(&mut self, from: u64) {
        let this = &mut self.checkpointer;
        this.number = this.number.max(from);
        this.root = None;
        this.previous = None;
        this.not_before = HeaderNo(0);
        // The first one names every grain.
        this.changes = Changes::new(self.geometry.area_grains == 0);
    }

    /// Whether no checkpoint is being taken.
    pub(super) fn is_checkpoint_done(&self) -> bool {
        self.checkpointer.is_idle()
    }

    /// Goes on with a checkpoint, or begins one that is due.
    pub(super) fn run_checkpoint(&mut self, cx: Cx<'_>) {
        if self.failed.is_some() {
            return;
        }
        if self.is_due(cx) {
            self.capture(cx, false);
        }
        let hasty = cx.sh.has_bug(Bug::RootBeforePages);
        // While a loss is being healed the log calls less durable than is.
        let durable = self.log.flushed();
        let Phase::Writing {
            taken,
            written,
            busy: busy @ false,
        } = &mut self.checkpointer.phase
        else {
            return;
        };
        let left = taken.pages.len() / GRAIN_BYTES - *written;
        let position = taken.position + *written as u64;
        let area = self.geometry.area_grains;
        let grains = left.min(SAVE_GRAINS).min((area - position % area) as usize);
        if grains > 0 {
            let start = *written * GRAIN_BYTES;
            let bytes = &taken.pages[start..start + grains * GRAIN_BYTES];
            let slot = cx.sh.pool.save();
            for (index, page) in bytes.chunks_exact(GRAIN_BYTES).enumerate() {
                cx.sh.pool.arena.copy_in(slot.plus(index), 0, page);
            }
            *busy = true;
            let buf = cx.sh.pool.lend(slot, grains);
            let offset = self.area_place(position).0 * GRAIN_BYTES as u64;
            self.act(
                cx,
                Op::SavePages { grains },
                MediaOp::Write {
                    offset,
                    buf,
                    durable: false,
                },
            );
            crash_point!("checkpoint.page");
            return;
        }
        let last = taken.root.last;
        if durable < last && !hasty {
            self.flush_wanted = self.flush_wanted.max(last);
            self.start_flush(cx);
            return;
        }
        let phase = std::mem::replace(&mut self.checkpointer.phase, Phase::Idle);
        let Phase::Writing { taken, .. } = phase else {
            unreachable!("checked above");
        };
        if hasty {
            self.write_root(cx, taken);
            return;
        }
        self.checkpointer.phase = Phase::Flushing(taken);
        self.act(cx, Op::SaveFlush, MediaOp::Flush);
        crash_point!("checkpoint.flush");
    }

    /// Pages have been written.
    pub(crate) fn save_pages_done(
        &mut self,
        cx: Cx<'_>,
        grains: usize,
        result: Result<(), MediaError>,
    ) {
        if let Err(error) = result {
            self.fail(cx, error);
        }
        if std::mem::take(&mut self.checkpointer.abandoned) {
            return;
        }
        if let Phase::Writing { written, busy, .. } = &mut self.checkpointer.phase {
            *written += grains;
            *busy = false;
        }
        count(&cx.sh.counters.checkpoint_grains, grains as u64);
    }

    /// A flush of the checkpointer has ended.
    pub(crate) fn save_flush_done(&mut self, cx: Cx<'_>, result: Result<(), MediaError>) {
        if let Err(error) = result {
            self.fail(cx, error);
            return;
        }
        match std::mem::replace(&mut self.checkpointer.phase, Phase::Idle) {
            Phase::Flushing(taken) => self.write_root(cx, taken),
            Phase::Sealing(taken) => {
                let this = &mut self.checkpointer;
                this.previous = this.root.replace(taken.root);
                count(&cx.sh.counters.checkpoints, 1);
                crash_point!("checkpoint.done");
            }
            other => self.checkpointer.phase = other,
        }
    }

    fn write_root(&mut self, cx: Cx<'_>, taken: Box<Taken>) {
        let slot = cx.sh.pool.save();
        cx.sh.pool.arena.copy_in(slot, 0, &taken.root.emit()[..]);
        let buf = cx.sh.pool.lend(slot, 1);
        let offset = root_slot(taken.root.number).0 * GRAIN_BYTES as u64;
        self.checkpointer.phase = Phase::Root(taken);
        self.act(
            cx,
            Op::SaveRoot,
            MediaOp::Write {
                offset,
                buf,
                durable: false,
            },
        );
        count(&cx.sh.counters.checkpoint_grains, 1);
        crash_point!("checkpoint.root");
    }

    /// The root has been written.
    pub(crate) fn save_root_done(&mut self, cx: Cx<'_>, result: Result<(), MediaError>) {
        if let Err(error) = result {
            self.fail(cx, error);
            return;
        }
        if let Phase::Root(taken) = std::mem::replace(&mut self.checkpointer.phase, Phase::Idle) {
            self.checkpointer.phase = Phase::Sealing(taken);
            self.act(cx, Op::SaveFlush, MediaOp::Flush);
        }
    }

    /// Puts everything that a checkpoint says into pages, as it is at this moment.
    fn capture(&mut self, cx: Cx<'_>, dump: bool) {
        let (mut tail, mut head) = self.checkpointer.ring();
        if cx.sh.has_bug(Bug::RingOverrun) && tail < head {
            head = tail + self.geometry.area_grains;
            tail = head;
        }
        let number = self.checkpointer.number + 1;
        let session = self.superblock.session;
        let alive = self.checkpointer.root.as_ref();
        let alive = alive.map_or_else(Vec::new, |r| r.pieces.clone());
        let changed = self.checkpointer.changes.count();
        let share = match self.checkpointer.share {
            Some(entries) if !alive.is_empty() && alive.len() < PIECES_MAX - 1 => Some(entries),
            _ => share(&alive, self.mapped, changed),
        };
        let lo = match share {
            Some(_) => self.checkpointer.root.as_ref().map_or(Lba(0), |r| r.cursor),
            None => Lba(0),
        };
        let (base, hi) = self.base(cx, lo, share);
        let changes = self.checkpointer.changes.take();
        let run = self.run(cx, &changes, lo, hi);

        let meaning = self.placement.meaning();
        let (laid, heat) = match self.lay_out(head, &run, &base) {
            // Not worth a checkpoint.
            laid if laid.end - tail > self.geometry.area_grains && meaning != HeatMeaning::NONE => {
                let (run, base) = (run.into_iter(), base.into_iter());
                let run: Vec<_> = run.map(MapEntry::without_heat).collect();
                let base: Vec<_> = base.map(MapEntry::without_heat).collect();
                (self.lay_out(head, &run, &base), HeatMeaning::NONE)
            }
            laid => (laid, meaning),
        };

        if laid.end - tail > self.geometry.area_grains {
            for lba in changes {
                self.checkpointer.changes.note(lba);
            }
            self.checkpointer.not_before = self.log.written();
            count(&cx.sh.counters.checkpoints_skipped, 1);
            return;
        }
        let mut pieces = alive;
        pieces.push(Piece {
            number,
            session,
            position: head,
            run: laid.run,
            base: laid.base,
            fence: laid.fence,
            heat,
            lo,
            hi,
        });
        let late = cx.sh.has_bug(Bug::ReplayStartsLate);
        let root = Root {
            uuid: self.superblock.uuid,
            number,
            session,
            replay_from: if late {
                self.log.last()
            } else {
                self.log.written()
            },
            last: self.log.last(),
            last_at: self.log.last_at(),
            mapped: self.mapped_on_media(),
            cursor: if hi == Lba::SPACE_END { Lba(0) } else { hi },
            time: self.placement.now(),
            segment_pages: laid.segment,
            record_pages: laid.record,
            dump,
            pieces: needed_pieces(pieces),
        };
        self.checkpointer.number = number;
        self.checkpointer.log_grains = self.grown(cx);
        self.checkpointer.cost = (laid.pages.len() / GRAIN_BYTES) as u64 + 1;
        self.checkpointer.phase = Phase::Writing {
            taken: Box::new(Taken {
                root,
                pages: laid.pages,
                position: head,
                changes,
            }),
            written: 0,
            busy: false,
        };
        crash_point!("checkpoint.captured");
    }

    /// The pages of a checkpoint, the first at position `head`.
    fn lay_out(&self, head: u64, run: &[MapEntry], base: &[MapEntry]) -> Laid {
        let mut pages = Vec::new();
        let mut name = PageName {
            kind: PageKind::Map,
            volume: self.superblock.volume_tag(),
            session: self.superblock.session,
            position: head,
        };
        let put = |name: &mut PageName, count: u32| {
            name.position += u64::from(count);
            count
        };
        let mut fences = name.emit_map(run, &mut pages);
        let run = put(&mut name, fences.len() as u32);
        fences.extend(name.emit_map(base, &mut pages));
        let base = put(&mut name, fences.len() as u32 - run);
        name.kind = PageKind::Fence;
        let fence = name.emit(&fences, &mut pages);
        put(&mut name, fence);
        name.kind = PageKind::Segment;
        let segment = name.emit(&self.saved_segments(), &mut pages);
        put(&mut name, segment);
        name.kind = PageKind::Record;
        let record = name.emit(&self.saved_records(), &mut pages);
        put(&mut name, record);
        Laid {
            pages,
            run,
            base,
            fence,
            segment,
            record,
            end: name.position,
        }
    }

    /// Grains that are mapped on the media, whatever is in memory only.
    fn mapped_on_media(&self) -> u64 {
        let frames = self.frames.iter();
        let only_here = frames
            .filter(|f| f.usage == crate::page::FrameUse::Resident && f.media == Location::Nowhere);
        self.mapped - only_here.count() as u64
    }

    /// What is mapped from `lo` on, `share` entries of it, and where they end.
    fn base(&self, cx: Cx<'_>, lo: Lba, share: Option<u64>) -> (Vec<MapEntry>, Lba) {
        let rest = LbaRange::new(lo, Lba::SPACE_END.0 - lo.0);
        let mut entries = Vec::new();
        for (lba, _) in self.index.mapped(rest) {
            let Some(entry) = self.entry_of(cx, lba) else {
                continue;
            };
            if share.is_some_and(|share| entries.len() as u64 == share) {
                return (entries, lba);
            }
            entries.push(entry);
        }
        (entries, Lba::SPACE_END)
    }

    /// What has changed outside of what the base pages say.
    fn run(&self, cx: Cx<'_>, changes: &[Lba], lo: Lba, hi: Lba) -> Vec<MapEntry> {
        let mut entries: Vec<MapEntry> = Vec::new();
        for &lba in changes.iter().filter(|&&lba| lba < lo || lba >= hi) {
            if let Some(entry) = self.entry_of(cx, lba) {
                entries.push(entry);
                continue;
            }
            match entries.last_mut() {
                Some(MapEntry::Unmapped(run)) if run.end() == lba && run.count < 1 << 31 => {
                    run.count += 1;
                }
                _ => entries.push(MapEntry::Unmapped(LbaRange::new(lba, 1))),
            }
        }
        entries
    }

    fn entry_of(&self, cx: Cx<'_>, lba: Lba) -> Option<MapEntry> {
        let (state, heat) = cx.sh.map.known(lba);
        let at = self.place_of(state);
        let (crc, heat) = match at {
            Location::Nowhere => return None,
            Location::Zero(_) => (0, Heat::UNKNOWN),
            Location::Media(_) => {
                let crc = self.index.leaf(lba).map_or(0, |leaf| leaf.crc(lba));
                (crc, self.heat(state, heat))
            }
        };
        let heat = match self.placement.outlives_restart(heat) {
            true => heat,
            false => Heat::UNKNOWN,
        };
        Some(MapEntry::Set { lba, at, crc, heat })
    }

    fn saved_segments(&self) -> Vec<SavedSegment> {
        let last = self.log.last();
        let saved = |s: &crate::segment::Segment| SavedSegment {
            epoch: s.visible_epoch(last),
            used: s.used,
            live: s.live,
            walk_from: matches!(s.usage, SegmentUse::Open(_)).then_some(s.used),
            opened: u32::try_from(s.opened_at / OPENED_UNIT).unwrap_or(u32::MAX),
        };
        let mut all: Vec<SavedSegment> = self.segments.iter().map(saved).collect();
        for at in self.log.unwritten() {
            let (id, position) = self.geometry.locate(at).expect("a header of ours");
            let from = &mut all[id.0 as usize].walk_from;
            *from = Some(from.map_or(position, |from| from.min(position)));
        }
        all
    }

    fn saved_records(&self) -> Vec<SavedRecord> {
        let tombstones = self.records.tombstones().map(|(version, t)| SavedRecord {
            what: match t.fate {
                Fate::Trimmed(range) => SavedKind::Trim(range),
                Fate::Renamed(renaming) => SavedKind::Rename(renaming),
            },
            version,
            home: t.home,
        });
        let zeros = self.records.zeros().filter_map(|(id, z)| {
            let (version, home) = z.home?;
            let (range, live) = (z.range, z.live);
            let what = SavedKind::Zero { id, range, live };
            Some(SavedRecord {
                what,
                version,
                home,
            })
        });
        tombstones.chain(zeros).collect()
    }
}
