//! An array of two devices, one of which goes when it is told to, whose driver carries out one action after the other.

use crate::common::grain;
use ftl::{
    Action, ActionId, ArrayDevice, Checked, Device, DurableError, Event, FormatOptions, Ftl,
    GRAIN_BYTES, Get, GetError, Intent, Lba, LbaRange, MediaError, MediaOp, MemDevice, OpenOptions,
    PageRef, Pba, Port, Time, Token,
};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) const PORT: Port = Port(0);
const BY_AND_BY: Token = Token(0);
/// Of each device.
const DEVICE_GRAINS: usize = 6000;

/// A device that goes when it is told to.
struct Flaky {
    inner: MemDevice,
    gone: Arc<AtomicBool>,
    done: VecDeque<(ActionId, Result<(), MediaError>)>,
}

impl Device for Flaky {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }
    fn submit(&mut self, action: Action) {
        if self.gone.load(Ordering::SeqCst) {
            self.done.push_back((action.id, Err(MediaError::Gone)));
            return;
        }
        self.inner.submit(action);
    }
    fn poll(&mut self, wait: bool) -> Option<(ActionId, Result<(), MediaError>)> {
        self.done.pop_front().or_else(|| self.inner.poll(wait))
    }
}

/// An array of two devices, the second of which may go.
pub(crate) struct Rig {
    device: ArrayDevice<Flaky>,
    pub(crate) ftl: Arc<Ftl>,
    actions: VecDeque<Action>,
    pub(crate) events: Vec<Event>,
    gone: Arc<AtomicBool>,
    now: u64,
    /// What the second device has given to be relocated, and has not been written again since.
    scanned: BTreeSet<Pba>,
    /// The completion of the next such read is kept back.
    keeps_scan: bool,
    kept: Option<Kept>,
}

/// A read for relocation that has ended, of which the engine has not been told.
struct Kept {
    id: ActionId,
    result: Result<(), MediaError>,
    places: BTreeSet<Pba>,
}

impl Rig {
    pub(crate) fn new(pool_frames: usize) -> Self {
        let flags = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let devices = flags.iter().enumerate().map(|(n, gone)| {
            let device = Flaky {
                inner: MemDevice::new(DEVICE_GRAINS * GRAIN_BYTES).expect("memory"),
                gone: Arc::clone(gone),
                done: VecDeque::new(),
            };
            (format!("device {n}"), device)
        });
        let mut device = ArrayDevice::blank(devices.collect());
        let format = FormatOptions {
            segment_bytes: Some(64 * GRAIN_BYTES as u64),
            ..FormatOptions::default()
        };
        Ftl::format(&mut device, &format).expect("format");
        let options = OpenOptions {
            pool_frames,
            ..OpenOptions::default()
        };
        let (ftl, _) = Ftl::open(&mut device, options).expect("open");
        let [_, gone] = flags;
        Self {
            device,
            ftl,
            actions: VecDeque::new(),
            events: Vec::new(),
            gone,
            now: 0,
            scanned: BTreeSet::new(),
            keeps_scan: false,
            kept: None,
        }
    }

    pub(crate) fn collect(&mut self) {
        self.actions
            .extend(std::iter::from_fn(|| self.ftl.poll_action(PORT)));
        self.events
            .extend(std::iter::from_fn(|| self.ftl.poll_event(PORT)));
    }

    /// One action is carried out. False: there is none.
    pub(crate) fn turn(&mut self) -> bool {
        self.collect();
        let Some(action) = self.actions.pop_front() else {
            return false;
        };
        let scan = self.note(&action);
        self.device.submit(action);
        let (id, result) = self.device.poll(true).expect("something in flight");
        if let Some(places) = scan.filter(|_| std::mem::take(&mut self.keeps_scan)) {
            self.kept = Some(Kept { id, result, places });
            return true;
        }
        self.ftl.handle_done(PORT, Time(self.now), id, result);
        self.collect();
        true
    }

    /// Keeps track of what the second device gives to be relocated; if this is such a read, of what.
    fn note(&mut self, action: &Action) -> Option<BTreeSet<Pba>> {
        let places = |offset: u64, len: usize| {
            let first = offset / GRAIN_BYTES as u64;
            (first..first + (len / GRAIN_BYTES) as u64).map(Pba)
        };
        match &action.op {
            MediaOp::Write { offset, buf, .. } => {
                for place in places(*offset, buf.len()) {
                    self.scanned.remove(&place);
                }
                None
            }
            // Pages are read one by one.
            MediaOp::Read { offset, buf }
                if buf.len() > GRAIN_BYTES && *offset >= (DEVICE_GRAINS * GRAIN_BYTES) as u64 =>
            {
                let places: BTreeSet<Pba> = places(*offset, buf.len()).collect();
                self.scanned.extend(&places);
                Some(places)
            }
            _ => None,
        }
    }

    /// The completion of the next read of the second device for relocation is kept back.
    pub(crate) fn keep_scan(&mut self) {
        self.keeps_scan = true;
    }

    /// What was kept back completes, as it would have then.
    pub(crate) fn complete_scan(&mut self) {
        if let Some(Kept { id, result, .. }) = self.kept.take() {
            self.ftl.handle_done(PORT, Time(self.now), id, result);
            self.collect();
        }
    }

    /// Grains that the second device has given to be relocated, which are still there and in no page. They are in memory, unless
    /// something is in flight.
    pub(crate) fn read_to_be_relocated(&self) -> Vec<Lba> {
        self.live_in(&self.scanned)
    }

    /// Those of the read whose completion is kept back.
    pub(crate) fn being_read(&self) -> Vec<Lba> {
        let kept = self.kept.as_ref();
        kept.map_or_else(Vec::new, |kept| self.live_in(&kept.places))
    }

    fn live_in(&self, places: &BTreeSet<Pba>) -> Vec<Lba> {
        let is_in = |&(&lba, checked): &(&Lba, &Checked)| {
            let is_there = matches!(checked, Checked::Data { pba, .. } if places.contains(pba));
            is_there && self.ftl.try_get(lba, Intent::Read).is_none()
        };
        let listing = self.ftl.listing();
        listing.iter().filter(is_in).map(|(&lba, _)| lba).collect()
    }

    pub(crate) fn drain(&mut self) {
        while self.turn() {}
    }

    /// Dirty pages are old enough, and go out.
    pub(crate) fn age(&mut self) {
        self.now += 1 << 40;
        self.ftl.handle_timeout(PORT, Time(self.now));
        self.drain();
    }

    /// What comes of asking for a page.
    pub(crate) fn get(&mut self, lba: Lba, intent: Intent) -> Result<PageRef, GetError> {
        match self.ftl.get(PORT, lba, intent, BY_AND_BY) {
            Get::Ready(page) => return Ok(page),
            Get::Failed(error) => return Err(error),
            Get::Pending => {}
        }
        loop {
            let is_page = |e: &Event| matches!(e, Event::Page { .. });
            if let Some(index) = self.events.iter().position(is_page) {
                let Event::Page { result, .. } = self.events.swap_remove(index) else {
                    unreachable!("it is a page");
                };
                return result;
            }
            if !self.turn() {
                self.age();
            }
        }
    }

    pub(crate) fn write(&mut self, range: LbaRange, version: u64) {
        for n in 0..range.count {
            let lba = range.start.offset(n);
            let page = self.get(lba, Intent::Write).expect("a page");
            page.copy_in(0, &grain(lba, version));
            drop(page);
            self.collect();
        }
    }

    /// The answer to a call, if there is one; exactly one.
    pub(crate) fn answer(&mut self, token: Token) -> Option<Result<(), DurableError>> {
        let mut answers = Vec::new();
        self.events.retain(|event| match event {
            Event::Durable { token: of, result } if *of == token => {
                answers.push(*result);
                false
            }
            _ => true,
        });
        assert!(answers.len() <= 1, "{token:?} answered more than once");
        answers.pop()
    }

    pub(crate) fn sync(
        &mut self,
        range: LbaRange,
        token: Token,
    ) -> Option<Result<(), DurableError>> {
        self.ftl.sync(PORT, range, token);
        self.drain();
        self.answer(token)
    }

    /// The second device goes, which is noticed by reading in `range`; nothing else happens.
    pub(crate) fn lose(&mut self, range: LbaRange) {
        self.gone.store(true, Ordering::SeqCst);
        for n in 0..range.count {
            let got = self
                .ftl
                .get(PORT, range.start.offset(n), Intent::Read, BY_AND_BY);
            assert!(!matches!(got, Get::Failed(_)), "{got:?}");
            drop(got);
            while self.ftl.stats().devices_lost == 0 && self.turn() {}
            if self.ftl.stats().devices_lost > 0 {
                return;
            }
        }
        panic!("nothing of the range lies on the device");
    }
}
