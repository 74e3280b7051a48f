//! Warming the map: reading units of it from the checkpoint when they are needed, and the rest in the background.
//!
//! One unit at a time; whoever waits for any unit asks again when one is there. A page that is not what it should be
//! fails the volume and disowns the checkpoints, so that the next opening reads the headers instead.

use super::rest::Rests;
use super::{Core, Counts, Cx};
use crate::addr::{GRAIN_BYTES, LbaRange, Pba};
use crate::checkpoint::{Books, PageWanted};
use crate::device::{MediaError, MediaOp};
use crate::error::{DurableError, GetError};
use crate::format::MapEntry;
use crate::ids::{Port, Token};
use crate::map::Location;
use crate::page::{LOAD_GRAINS, Waiter};
use crate::port::Op;
use crate::stats::count;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Reads a page that can not be read so many times.
const TRIES: u8 = 2;

/// A unit being read.
#[derive(Debug)]
struct Active {
    unit: usize,
    wanted: Vec<PageWanted>,
    read: Vec<Option<Vec<MapEntry>>>,
    /// The next page to ask for.
    next: usize,
    /// By slot: page and try.
    slots: Vec<Option<(usize, u8)>>,
}

/// Somebody wants the map of a range in memory.
#[derive(Debug)]
struct LoadWaiter {
    range: LbaRange,
    port: Port,
    token: Token,
}

/// What the loader does.
#[derive(Debug, Default)]
pub(super) struct Loader {
    active: Option<Active>,
    urgent: VecDeque<usize>,
    waiters: Vec<Waiter>,
    loads: Vec<LoadWaiter>,
    /// After pages that the device could not read, and the slots of those.
    pub(super) rests: Rests,
    again: Vec<usize>,
}

impl Loader {
    /// Somebody waits for a unit and asks again when it is there.
    pub(super) fn want(&mut self, unit: usize, waiter: Waiter) {
        self.waiters.push(waiter);
        self.urge(unit);
    }

    /// The unit comes before those that nobody waits for.
    pub(super) fn urge(&mut self, unit: usize) {
        let is_active = self.active.as_ref().is_some_and(|a| a.unit == unit);
        if !is_active && !self.urgent.contains(&unit) {
            self.urgent.push_back(unit);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.active.is_none()
    }
}

impl Core {
    pub(super) fn loader_is_idle(&self) -> bool {
        self.loader.is_idle()
    }

    /// Brings the map of a range into memory.
    pub(crate) fn load(&mut self, cx: Cx<'_>, range: LbaRange, token: Token) {
        let port = cx.port;
        self.loader.loads.push(LoadWaiter { range, port, token });
        self.answer_loads(cx);
        self.pump(cx);
    }

    fn answer_loads(&mut self, cx: Cx<'_>) {
        let closed = self.phase.is_sealed().then_some(DurableError::Shutdown);
        let refused = self.failed.map(DurableError::Failed).or(closed);
        let mut index = 0;
        while let Some(waiter) = self.loader.loads.get(index) {
            let (port, token) = (waiter.port, waiter.token);
            let result = match (self.cold.first_cold(waiter.range), refused) {
                (None, _) => Ok(()),
                (Some(_), Some(error)) => Err(error),
                (Some(unit), None) => {
                    self.loader.urge(unit);
                    index += 1;
                    continue;
                }
            };
            self.loader.loads.remove(index);
            self.tell_durable(cx, port, token, result);
        }
    }

    /// Goes on reading the map, as long as there is something cold.
    pub(super) fn run_loader(&mut self, cx: Cx<'_>) {
        if self.loader.rests.end_if_due(cx) {
            for slot in std::mem::take(&mut self.loader.again) {
                self.read_again(cx, slot);
            }
        }
        while !self.cold.is_warm() && self.loader.active.is_none() {
            if self.failed.is_some() || self.phase.is_sealed() {
                self.give_up_loading(cx);
                return;
            }
            let mut unit = self.loader.urgent.pop_front();
            while unit.is_some_and(|unit| !self.cold.is_cold(unit)) {
                unit = self.loader.urgent.pop_front();
            }
            let unit = unit.or_else(|| self.cold.first_cold(LbaRange::SPACE));
            let Some(unit) = unit else { return };
            let wanted = self.cold.pages_of(unit);
            self.loader.active = Some(Active {
                unit,
                read: wanted.iter().map(|_| None).collect(),
                wanted,
                next: 0,
                slots: vec![None; LOAD_GRAINS],
            });
            for slot in 0..LOAD_GRAINS {
                self.ask_page(cx, slot);
            }
            self.unit_done(cx);
        }
    }

    /// Asks for the next page of the unit.
    fn ask_page(&mut self, cx: Cx<'_>, slot: usize) {
        let Some(active) = &mut self.loader.active else {
            return;
        };
        if active.next == active.wanted.len() {
            return;
        }
        active.slots[slot] = Some((active.next, 1));
        let position = active.wanted[active.next].name.position;
        active.next += 1;
        self.read_page(cx, slot, position);
    }

    fn read_page(&mut self, cx: Cx<'_>, slot: usize, position: u64) {
        let place = self.area_place(position);
        let buf = cx.sh.pool.lend(cx.sh.pool.load(slot), 1);
        let offset = place.0 * GRAIN_BYTES as u64;
        self.act(cx, Op::LoadPage { slot }, MediaOp::Read { offset, buf });
        count(&cx.sh.counters.map_pages_read, 1);
    }

    /// Where a position of the ring lies.
    pub(super) fn area_place(&self, position: u64) -> Pba {
        let start = self.geometry.area_start();
        Pba(start.0 + position % self.geometry.area_grains)
    }

    /// A page has been read.
    pub(crate) fn load_page_done(
        &mut self,
        cx: Cx<'_>,
        slot: usize,
        result: Result<(), MediaError>,
    ) {
        let active = self.loader.active.as_mut().expect("a unit is being read");
        let (page, tried) = active.slots[slot].expect("a page is being read");
        let name = active.wanted[page].name;
        let bytes = cx.sh.pool.arena.bytes(cx.sh.pool.load(slot));
        let entries = result.ok().and_then(|()| name.parse_map(&bytes));
        if entries.is_none() && tried < TRIES {
            active.slots[slot] = Some((page, tried + 1));
            self.read_again(cx, slot);
            return;
        }
        let away = matches!(result, Err(error) if error != MediaError::Gone);
        if away && (self.loader.rests.is_resting() || self.loader.rests.begin(cx)) {
            self.loader.again.push(slot);
            return;
        }
        active.slots[slot] = None;
        if entries.is_none() {
            active.next = active.wanted.len();
            active.read[page] = None;
            tracing::error!(
                position = name.position,
                "page of the map is damaged, or can not be read"
            );
            self.disown_roots(cx);
        } else {
            self.loader.rests.reset();
            active.read[page] = entries;
            self.ask_page(cx, slot);
        }
        self.unit_done(cx);
    }

    fn read_again(&mut self, cx: Cx<'_>, slot: usize) {
        let active = self.loader.active.as_ref().expect("a unit is being read");
        let (page, _) = active.slots[slot].expect("a page is being read");
        self.read_page(cx, slot, active.wanted[page].name.position);
    }

    /// Installs the unit if all of it has been read.
    fn unit_done(&mut self, cx: Cx<'_>) {
        let is_done = |active: &mut Active| {
            active.next == active.wanted.len() && active.slots.iter().all(Option::is_none)
        };
        let Some(active) = self.loader.active.take_if(is_done) else {
            return;
        };
        let complete = active.read.into_iter().collect::<Option<Vec<_>>>();
        let Some(read) = complete else {
            self.give_up_loading(cx);
            return;
        };
        let pages: Vec<_> = active.wanted.into_iter().zip(read).collect();
        let content = self.cold.assemble(active.unit, &pages);
        let mut books = Books {
            geometry: &self.geometry,
            table: &cx.sh.map,
            index: &mut self.index,
            segments: &mut self.segments,
            records: &mut self.records,
            mapped: &mut self.mapped,
            accounts: Some(&mut self.accounts),
        };
        if !books.are_sane(&content) {
            tracing::error!("the map makes no sense");
            self.disown_roots(cx);
            self.give_up_loading(cx);
            return;
        }
        for place in books.install(&content) {
            self.retire_place(place);
        }
        for lba in content.changed() {
            self.checkpointer.changes.note(lba);
        }
        if self.cold.is_warm() {
            cx.sh.map_cold.store(false, Ordering::SeqCst);
        }
        for waiter in std::mem::take(&mut self.loader.waiters) {
            self.ask_again(cx, waiter);
        }
        self.answer_loads(cx);
    }

    /// Nothing may be left at a place.
    fn retire_place(&mut self, place: Location) {
        let freed_at = self.log.last();
        match place {
            Location::Nowhere => {}
            Location::Media(pba) => {
                let id = self.geometry.segment_of(pba);
                self.segments.retire_if_empty(id, freed_at);
            }
            Location::Zero(id) => {
                if !self.records.has_zero(id) || self.records.zero(id).live > 0 {
                    return;
                }
                let gone = self.records.remove_zero(id);
                if let Some((_, home)) = gone.home {
                    self.segments.get_mut(home.segment).records -= 1;
                    self.segments.retire_if_empty(home.segment, freed_at);
                }
            }
        }
    }

    /// Whoever waits for the map learns that it will not come.
    pub(super) fn give_up_loading(&mut self, cx: Cx<'_>) {
        let error = self.failed.map_or(GetError::Shutdown, GetError::Failed);
        for waiter in std::mem::take(&mut self.loader.waiters) {
            self.refuse(cx, waiter, error);
        }
        self.answer_loads(cx);
    }

    /// A checkpoint whose counts are wrong is as good as damaged: segments would be reused that hold something.
    pub(super) fn doubt_counts(&mut self, cx: Cx<'_>) {
        if self.counts == Counts::Wrong && self.failed.is_none() {
            tracing::error!("the checkpoint has counted wrong");
            self.disown_roots(cx);
        }
    }

    /// Sees to it that the next opening does not trust the checkpoints, and fails the volume.
    fn disown_roots(&mut self, cx: Cx<'_>) {
        if self.failed.is_some() {
            return;
        }
        // In one write, of which a power cut leaves all or nothing. If some roots stayed, these might be older than the last two: the
        // log does not have everything behind them (C3).
        self.superblock.roots_from = self.last_root_number() + 1;
        // There is one buffer for superblocks. Without this the next opening finds out like this one.
        if !self.is_switching() && !self.is_recording_loss() && !self.raise.is_writing() {
            self.write_superblock_for(cx, Op::Disown);
        }
        self.fail(cx, MediaError::Io);
    }
}
