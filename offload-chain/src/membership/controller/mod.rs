//! The controller: moves a group from epoch to epoch, by what is in the store and nothing else.
//!
//! Any number may run; the store lets one of them win each step. It may be killed anywhere. Time tells it only when to give
//! up waiting, and when read leases are over for sure (C1). An epoch is active only after the keys of the slots that it fences were seen to be
//! gone (C2), and frees what slots have that no key says anything of (C3).

mod decide;
mod view;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::config::{Event, Expect, Reply, Request, Revision, Store, Ticket};
use crate::epoch::Epoch;
use crate::lock::Slot;
use crate::planted::Bug;

use super::configuration::{CONFIG, Configuration, DOUBT, MemberId, Phase, SLOT, Seat, encode};
use super::slow::{SlowPolicy, SlowWatch};
use super::store_patience;

pub use view::{PutBack, View};

/// For how many periods a member that was doubted once is under suspicion.
const SUSPECTED: u32 = 1200;

/// Who stands still again and again gives others time to be back for so many leases at most, before it misses those who are not there.
const GRACE_MAX: u32 = 4;

/// How a controller is to behave.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    /// Between looks at the store; it looks when told of changes, too.
    pub period: Duration,
    /// How long a member may do nothing in a phase before the controller goes on without it.
    pub patience: Duration,
    /// At least that of the members.
    pub read_lease: Duration,
    /// How long others may be silent before they are taken for dead: leases of members and clients last as long.
    pub silence: Duration,
    /// What to do with slow members.
    pub slow: SlowPolicy,
    #[doc(hidden)]
    pub planted: Option<Bug>,
}

/// What a controller would tell an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A new epoch, and why.
    NewEpoch(Epoch, String),
    /// An epoch got to a phase.
    Phase(Epoch, Phase),
    /// No member can vouch for what was acknowledged: the group waits for one of these.
    Waiting(Vec<MemberId>),
    /// The store was put back to an older state: nothing is decided by that.
    PutBack(PutBack),
    /// A member is slow.
    Slow(MemberId, u64),
    /// Something in the store is wrong.
    Bad(String),
    /// The store has not answered for so long, which is as long as is waited for it.
    StoreLate(Duration),
}

/// A controller.
#[derive(Debug)]
pub struct Controller {
    settings: ControllerSettings,
    asked: HashMap<Ticket, (Asked, Duration)>,
    next_look: Duration,
    watching: bool,
    /// The last active epoch that is known to be over, and since when that is known.
    over_since: (Epoch, Duration),
    /// When it last saw what is in the store.
    seen: Duration,
    /// For how many leases in a row who is not there is not missed, and until when.
    grace: Option<(u32, Duration)>,
    /// Since when this phase of this epoch is known.
    phase_since: (Epoch, Phase, Duration),
    /// Whose epochs were in doubt because of them.
    suspects: BTreeMap<MemberId, Suspicion>,
    /// How much members had done when that last changed, and when that was.
    progress: BTreeMap<MemberId, (u64, Duration)>,
    slow: SlowWatch,
    notes: Vec<Note>,
    /// See [`yield_to`](Self::yield_to).
    yields: u32,
}

/// Why a member may be left out the next time.
#[derive(Clone, Debug, Default)]
struct Suspicion {
    /// So many epochs were in doubt because of it.
    times: u32,
    /// The last of them, who was in it, and when that was.
    epoch: Epoch,
    chain: Vec<Seat>,
    at: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Watch,
    Look,
    Put,
    /// The key of a fenced slot to be deleted.
    Fence,
    Other,
}

impl Controller {
    /// One that knows nothing yet.
    #[must_use]
    pub fn new(settings: ControllerSettings) -> Self {
        Self {
            settings,
            asked: HashMap::new(),
            next_look: Duration::ZERO,
            watching: false,
            over_since: (Epoch(0), Duration::ZERO),
            seen: Duration::ZERO,
            grace: None,
            phase_since: (Epoch(0), Phase::Active, Duration::ZERO),
            suspects: BTreeMap::new(),
            progress: BTreeMap::new(),
            slow: SlowWatch::default(),
            notes: Vec::new(),
            yields: 0,
        }
    }

    /// What there is to tell.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// When [`tick`](Self::tick) is due.
    #[must_use]
    pub fn next_tick(&self) -> Duration {
        self.next_look
    }

    /// So many others, if they live, look at a change before this one does: what one has done is not there to be done for the rest, and
    /// members wait for a store that is busy with those who come too late.
    pub fn yield_to(&mut self, others: usize) {
        self.yields = others.try_into().unwrap_or(u32::MAX).min(4);
    }

    /// Time has come to look.
    pub fn tick(&mut self, now: Duration, store: &mut impl Store) {
        if now < self.next_look {
            return;
        }
        self.next_look = now + self.settings.period;
        let patience = store_patience(self.settings.period);
        let asked = self.asked.len();
        self.asked.retain(|_, (_, at)| now < *at + patience);
        if self.asked.len() < asked {
            self.notes.push(Note::StoreLate(patience));
        }
        if !self.watching {
            let prefix = String::new();
            self.ask(now, store, Request::Watch { prefix }, Asked::Watch);
            self.watching = true;
        }
        self.look(now, store);
    }

    /// The store says something.
    pub fn handle(&mut self, now: Duration, store: &mut impl Store, event: Event) {
        match event {
            Event::Changed { .. } if self.yields == 0 => self.look(now, store),
            Event::Changed { .. } => {
                let turn = now + self.settings.period * self.yields / 5;
                self.next_look = self.next_look.min(turn);
            }
            Event::Answer(ticket, answer) => {
                let Some((asked, _)) = self.asked.remove(&ticket) else {
                    return;
                };
                match (asked, answer) {
                    (Asked::Look, Ok(Reply::Items(items, _))) => {
                        self.act(now, store, &View::of(&items));
                    }
                    (Asked::Put | Asked::Fence, _) => self.look(now, store),
                    (Asked::Watch, Err(_)) => self.watching = false,
                    _ => {}
                }
            }
        }
    }

    fn look(&mut self, now: Duration, store: &mut impl Store) {
        if self.waits_for(&Asked::Put) || self.waits_for(&Asked::Look) {
            // It looks again when that is answered, or at the next tick.
            self.next_look = self.next_look.min(now + self.settings.period / 4);
            return;
        }
        // All keys: what is decided comes from one moment.
        let prefix = String::new();
        self.ask(now, store, Request::List { prefix }, Asked::Look);
    }

    /// Decides on one step.
    fn act(&mut self, now: Duration, store: &mut impl Store, view: &View) {
        self.notes.extend(view.bad.iter().cloned().map(Note::Bad));
        let misses = self.misses(now);
        let Some(config) = &view.configuration else {
            return;
        };
        // E4: by what it says a member may vouch that has not heard of anything since.
        if let Some(put_back) = view.put_back() {
            self.notes.push(Note::PutBack(put_back));
            return;
        }
        let epoch = config.epoch;
        // C1: from when on reads of the configuration show a later epoch than the one whose read leases may last.
        if epoch > config.active_epoch && self.over_since.0 != config.active_epoch {
            self.over_since = (config.active_epoch, now);
        }
        if (self.phase_since.0, self.phase_since.1) != (epoch, config.phase) {
            self.phase_since = (epoch, config.phase, now);
            self.notes.push(Note::Phase(epoch, config.phase));
        }
        // There is time for that between changes of epochs.
        let stale: Vec<Epoch> = match config.phase {
            Phase::Active => view.doubts.range(..epoch).map(|(of, _)| *of).collect(),
            _ => Vec::new(),
        };
        for doubt in stale {
            let key = format!("{DOUBT}{doubt}");
            let expect = Expect::Anything;
            self.ask(now, store, Request::Delete { key, expect }, Asked::Other);
        }
        let wanted = match misses || view.is_complete(config) {
            true => self.new_epoch_wanted(now, view, config),
            false => None,
        };
        if let Some((why, without)) = wanted {
            if let Some(next) = self.propose(view, config, &without) {
                self.notes.push(Note::NewEpoch(next.epoch, why));
                self.put(now, store, view, &next);
            } else if config.active_epoch > Epoch(0) {
                let active = config.active_chain.iter().map(|seat| seat.id).collect();
                self.notes.push(Note::Waiting(active));
            }
            return;
        }
        if let Some(next) = self.next_phase(now, view, config) {
            let fenced = view.fenced_keys(&next);
            let waits = next.phase == Phase::Active && !fenced.is_empty();
            if waits {
                self.delete_keys(now, store, fenced);
            }
            // C2: a client that wakes up must not find the epoch active and its key in its place: others may have its locks by then. That the
            // deletion was asked for first is not enough: it may get lost, or be overtaken.
            if !waits || self.settings.planted == Some(Bug::ActiveBeforeGone) {
                self.put(now, store, view, &next);
            }
        }
    }

    /// Deletes keys of slots, as they were seen; it looks again when that is answered.
    fn delete_keys(&mut self, now: Duration, store: &mut impl Store, of: Vec<(Slot, Revision)>) {
        if self.waits_for(&Asked::Fence) {
            return;
        }
        for (slot, revision) in of {
            let key = format!("{SLOT}{}", slot.number());
            let expect = Expect::Revision(revision);
            self.ask(now, store, Request::Delete { key, expect }, Asked::Fence);
        }
    }

    /// Whether who is not there is missed. Who stood still does not know whether the others did, too, all of one machine or for the same
    /// store: then all leases are over, and the first to come back would go on alone, without a copy. So it gives them time to
    /// be back; not for ever: whom a store answers late each time has to miss the dead as well.
    fn misses(&mut self, now: Duration) -> bool {
        let silence = self.settings.silence;
        let stood_still = now >= self.seen + silence / 2;
        self.seen = now;
        self.grace = match self.grace {
            None if stood_still => Some((1, now + silence)),
            Some((leases, _)) if stood_still && leases < GRACE_MAX => {
                Some((leases + 1, now + silence))
            }
            Some((_, until)) if now >= until => None,
            grace => grace,
        };
        self.grace.is_none()
    }

    fn put(&mut self, now: Duration, store: &mut impl Store, view: &View, next: &Configuration) {
        let put = Request::Put {
            key: CONFIG.into(),
            value: encode(next),
            expect: Expect::Revision(view.revision),
            lease: None,
        };
        self.ask(now, store, put, Asked::Put);
    }

    fn ask(&mut self, now: Duration, store: &mut impl Store, request: Request, asked: Asked) {
        self.asked.insert(store.submit(request), (asked, now));
    }

    fn waits_for(&self, what: &Asked) -> bool {
        self.asked.values().any(|(asked, _)| asked == what)
    }
}

#[cfg(test)]
mod tests {
    use super::super::configuration::{Birth, Configuration, Report};
    use super::*;
    use crate::group::Topology;
    use crate::membership::configuration::{Boot, Doubt, End};

    fn settings() -> ControllerSettings {
        ControllerSettings {
            period: Duration::from_millis(50),
            patience: Duration::from_millis(200),
            read_lease: Duration::from_millis(300),
            silence: Duration::from_millis(300),
            slow: SlowPolicy::default(),
            planted: None,
        }
    }

    /// A store that does not answer.
    #[derive(Default)]
    struct Silent(Vec<Ticket>);

    impl Store for Silent {
        fn submit(&mut self, _: Request) -> Ticket {
            let ticket = Ticket(self.0.len() as u64);
            self.0.push(ticket);
            ticket
        }

        fn poll(&mut self) -> Option<Event> {
            None
        }
    }

    /// An active group of three; how long operations wait at each, in milliseconds.
    fn group(lags: [u64; 3]) -> (View, Configuration) {
        let birth = Birth {
            locks: 1,
            ring_bytes: 16 << 10,
            data_bytes: 64 << 10,
            salt: 1,
            token: [0; 16],
            topology: Topology::Chain,
            executes: true,
            durable: true,
        };
        let mut config = Configuration::new(birth, vec![MemberId(0), MemberId(1), MemberId(2)]);
        config.epoch = Epoch(1);
        config.phase = Phase::Active;
        config.active_epoch = Epoch(1);
        let mut view = View::default();
        for (id, lag_ms) in (0..).zip(lags) {
            let id = MemberId(id);
            let seat = Seat { id, boot: Boot(7) };
            config.chain.push(seat);
            let report = Report {
                seat,
                address: String::new(),
                log: None,
                sealed: Epoch(1),
                synced: Epoch(1),
                recovered: Epoch(1),
                ready: None,
                progress: 0,
                behind: 0,
                lag_ms,
            };
            view.reports.insert(id, report);
        }
        config.active_chain.clone_from(&config.chain);
        (view, config)
    }

    /// A controller that stood still gives the others the time of a lease to be back; one that always does misses them in the end.
    #[test]
    fn who_stood_still_misses_nobody_at_once() {
        let ControllerSettings {
            period, silence, ..
        } = settings();
        let mut controller = Controller::new(settings());
        let start = Duration::from_secs(1);
        let mut from = |mut now: Duration, step| {
            let begun = now;
            while !controller.misses(now) {
                now += step;
            }
            now - begun
        };
        assert_eq!(from(start, period), silence, "it has just started");
        let later = start + silence + period;
        assert_eq!(from(later, period), Duration::ZERO);
        let stood = later + silence;
        assert_eq!(from(stood, period), silence);
        let again = stood + silence * 2;
        assert_eq!(from(again, silence * 2), silence * 2 * GRACE_MAX);
        let always = from(again + silence * 20, silence * 2 / 3);
        assert!(
            always > silence && always < silence * (GRACE_MAX + 2),
            "{always:?}"
        );
    }

    /// A store whose answers come too late is told of; one that answers in time is not.
    #[test]
    fn a_late_store_is_told_of() {
        let period = settings().period;
        for (late, told) in [(7, vec![]), (8, vec![Note::StoreLate(period * 8)])] {
            let (mut controller, mut store) = (Controller::new(settings()), Silent::default());
            let mut now = Duration::from_secs(1);
            controller.tick(now, &mut store);
            let first = store.0.clone();
            for _ in 0..late {
                now += period;
                controller.tick(now, &mut store);
            }
            for ticket in first {
                let answer = Ok(Reply::Items(Vec::new(), Revision::ABSENT));
                controller.handle(now, &mut store, Event::Answer(ticket, answer));
            }
            assert_eq!(controller.take_notes(), told, "after {late} periods");
        }
    }

    /// I14: nothing is decided by a store that was put back to a state before what a member has been in, as far as it says that.
    #[test]
    fn an_old_store_decides_nothing() {
        let (mut view, mut config) = group([0; 3]);
        for epoch in [&mut config.epoch, &mut config.active_epoch] {
            *epoch = Epoch(4);
        }
        view.reports.remove(&MemberId(0));
        let mut tells = |sealed, term| {
            let report = view.reports.get_mut(&MemberId(2)).unwrap();
            (report.sealed, report.log) = (Epoch(sealed), Some((Epoch(term), 5)));
            view.configuration = Some(config.clone());
            let mut controller = Controller::new(settings());
            // It has stood still before its first look.
            controller.grace = None;
            controller.seen = Duration::from_secs(1);
            let (mut store, now) = (Silent::default(), Duration::from_secs(1));
            controller.act(now, &mut store, &view);
            let mut told = controller.take_notes().into_iter();
            let told = told.find_map(|note| match note {
                Note::PutBack(put_back) => Some((put_back.member, put_back.been)),
                _ => None,
            });
            (store.0.len(), told)
        };
        assert_eq!(tells(4, 4), (1, None));
        let told = Some((MemberId(2), Epoch(5)));
        assert_eq!(tells(5, 4), (0, told));
        assert_eq!(tells(0, 5), (0, told));
    }

    /// Whom clients doubt is who holds them up; also if slow members are not to be removed. Nobody, if all are alike.
    #[test]
    fn a_doubt_hits_the_slowest() {
        for (lags, hit) in [
            ([1, 2000, 2], Some(MemberId(1))),
            ([90, 1, 3000], Some(MemberId(2))),
            ([700, 800, 900], None),
        ] {
            let (mut view, mut config) = group(lags);
            let mut controller = Controller::new(settings());
            let now = Duration::ZERO;
            assert_eq!(controller.new_epoch_wanted(now, &view, &config), None);
            let mut doubted = |now, epoch, view: &mut View| {
                config.epoch = epoch;
                view.doubts.insert(epoch, Doubt { suspect: None });
                let wanted = controller.new_epoch_wanted(now, view, &config);
                wanted.expect("there is a doubt").1
            };
            // Once may be chance, however often that is seen, and so is once in a long time.
            assert_eq!(doubted(now, Epoch(1), &mut view), [], "{lags:?}");
            assert_eq!(doubted(now, Epoch(1), &mut view), [], "{lags:?}");
            let much_later = settings().period * (SUSPECTED + 1);
            assert_eq!(doubted(much_later, Epoch(4), &mut view), [], "{lags:?}");
            let soon = much_later + settings().period;
            assert_eq!(
                doubted(soon, Epoch(5), &mut view),
                hit.as_slice(),
                "{lags:?}"
            );
        }
    }

    /// I15: a doubt is no reason to leave a member out if somebody else was lost with that epoch, whose links ended first.
    #[test]
    fn a_doubt_that_a_loss_explains_hits_nobody() {
        let now = Duration::from_secs(1);
        for (lost, hit) in [
            (None, Some(MemberId(1))),
            (Some(2), None),
            (Some(1), None),
            (Some(0), None),
        ] {
            let (mut view, mut config) = group([0; 3]);
            let mut controller = Controller::new(settings());
            let mut doubted = |epoch, config: &mut Configuration| {
                config.epoch = epoch;
                let suspect = Some(MemberId(1));
                view.doubts.insert(epoch, Doubt { suspect });
                for seat in &config.chain {
                    view.reports.get_mut(&seat.id).unwrap().seat = *seat;
                }
                let wanted = controller.new_epoch_wanted(now, &view, config);
                wanted.expect("there is a doubt").1
            };
            assert_eq!(doubted(Epoch(1), &mut config), []);
            // It is back, in another life.
            if let Some(lost) = lost {
                config.chain[lost].boot = Boot(8);
            }
            let without = doubted(Epoch(4), &mut config);
            assert_eq!(without, hit.as_slice(), "lost: {lost:?}");
            // Now nobody was.
            assert_eq!(doubted(Epoch(5), &mut config), [MemberId(1)]);
        }
    }

    /// I16: who copies from a source that stands still gets nowhere. Left out is the source then, and not all the others, as long as it is not
    /// one word against the other, and another can take its place.
    #[test]
    fn who_waits_for_the_source_is_not_left_out() {
        for (members, synced, vouching, without) in [
            (3, &[1][..], &[0, 1, 2][..], vec![1]),
            (3, &[1], &[1, 2], vec![1]),
            (3, &[1], &[1], vec![0, 2]),
            (3, &[1, 2], &[0, 1, 2], vec![0]),
            (3, &[], &[0, 1, 2], vec![0, 1, 2]),
            (2, &[1], &[0, 1], vec![0]),
        ] {
            let (mut view, mut config) = group([0; 3]);
            (config.epoch, config.phase) = (Epoch(2), Phase::Sync);
            config.chain.truncate(members);
            config.source = Some(MemberId(1));
            config.vouching = vouching.iter().copied().map(MemberId).collect();
            for report in view.reports.values_mut() {
                report.sealed = Epoch(2);
                if synced.contains(&report.seat.id.0) {
                    report.synced = Epoch(2);
                }
            }
            let mut controller = Controller::new(settings());
            let begun = Duration::ZERO;
            assert_eq!(controller.new_epoch_wanted(begun, &view, &config), None);
            let late = begun + settings().patience;
            let wanted = controller.new_epoch_wanted(late, &view, &config);
            let without: Vec<MemberId> = without.into_iter().map(MemberId).collect();
            let scene = (members, synced, vouching);
            assert_eq!(wanted.unwrap().1, without, "{scene:?}");
        }
    }

    /// I14: when those of the chain who vouched cannot any more, once they have looked, another of the last active chain is taken that can,
    /// and waited for until it is there.
    #[test]
    fn who_cannot_vouch_any_more_is_no_source() {
        let (mut view, mut config) = group([0; 3]);
        let mut controller = Controller::new(settings());
        let now = Duration::ZERO;
        config.epoch = Epoch(2);
        config.phase = Phase::Seal;
        config.chain.truncate(1);
        config.vouching = vec![MemberId(0)];
        for id in [1, 2] {
            view.reports.remove(&MemberId(id));
        }
        let log = |view: &mut View, log| {
            let report = view.reports.values_mut().next().unwrap();
            (report.sealed, report.log) = (Epoch(2), log);
        };
        log(&mut view, Some((Epoch(1), 5)));
        assert_eq!(controller.new_epoch_wanted(now, &view, &config), None);
        assert!(controller.next_phase(now, &view, &config).is_some());
        log(&mut view, None);
        assert!(controller.next_phase(now, &view, &config).is_none());
        let wanted = controller.new_epoch_wanted(now, &view, &config);
        let (_, without) = wanted.expect("it never gets on");
        assert_eq!(controller.propose(&view, &config, &without), None);
        let mut back = view.reports[&MemberId(0)].clone();
        back.seat.id = MemberId(1);
        back.log = Some((Epoch(1), 5));
        view.reports.insert(MemberId(1), back);
        let next = controller.propose(&view, &config, &without).unwrap();
        assert_eq!((next.epoch, next.vouching), (Epoch(3), vec![MemberId(1)]));
    }

    /// I12: whom an epoch was to fence that never got active is fenced by the next one, though nothing is left of his key (C2, C3).
    #[test]
    fn a_fence_waits_for_an_epoch_that_gets_active() {
        let (mut view, mut config) = group([0; 3]);
        for report in view.reports.values_mut() {
            report.log = Some((Epoch(1), 5));
        }
        config.fenced = vec![(Slot::new(3).unwrap(), Boot(9))];
        let controller = Controller::new(settings());
        for phase in [Phase::Seal, Phase::Sync, Phase::Recover, Phase::Active] {
            config.phase = phase;
            let next = controller.propose(&view, &config, &[]).unwrap();
            let waits = phase != Phase::Active;
            assert_eq!(next.fenced == config.fenced, waits, "{phase:?}");
        }
    }

    /// I14: who joins has caught up with the last active epoch, and with no other.
    #[test]
    fn who_has_not_caught_up_does_not_join() {
        let (mut view, mut config) = group([0; 3]);
        for report in view.reports.values_mut() {
            report.log = Some((Epoch(5), 5));
        }
        (config.epoch, config.active_epoch) = (Epoch(5), Epoch(5));
        let new = MemberId(3);
        config.members.push(new);
        let mut joins = |ready| {
            let mut report = view.reports[&MemberId(0)].clone();
            (report.seat.id, report.ready, report.log) = (new, ready, None);
            view.reports.insert(new, report);
            let controller = Controller::new(settings());
            let next = controller.propose(&view, &config, &[]).unwrap();
            next.chain.iter().any(|seat| seat.id == new)
        };
        assert!(!joins(None) && !joins(Some(Epoch(4))) && joins(Some(Epoch(5))));
    }

    /// C1, I13: an epoch is active when those who are left out have sealed, or can not answer READs any more. What another life of one
    /// says is nothing of the one that was in the chain.
    #[test]
    fn whoever_is_left_out_is_silent() {
        let (mut view, mut config) = group([0; 3]);
        (config.epoch, config.phase) = (Epoch(2), Phase::Recover);
        let left_out = config.chain.pop().unwrap();
        config.end = Some(End {
            since: Epoch(2),
            sequence: 5,
        });
        for report in view.reports.values_mut() {
            (report.sealed, report.recovered) = (Epoch(1), Epoch(2));
        }
        let mut controller = Controller::new(settings());
        let begun = Duration::from_secs(1);
        controller.over_since = (Epoch(1), begun);
        let over = begun + settings().read_lease * 102 / 100;
        let mut active = |boot, sealed, now| {
            let report = view.reports.get_mut(&left_out.id).unwrap();
            (report.seat.boot, report.sealed) = (boot, sealed);
            let next = controller.next_phase(now, &view, &config)?;
            assert_eq!((next.phase, next.end), (Phase::Active, None));
            Some(next.active_epoch)
        };
        assert_eq!(active(left_out.boot, Epoch(1), begun), None);
        assert_eq!(active(left_out.boot, Epoch(2), begun), Some(Epoch(2)));
        assert_eq!(active(Boot(8), Epoch(2), begun), None);
        assert_eq!(active(Boot(8), Epoch(2), over), Some(Epoch(2)));
    }
}
