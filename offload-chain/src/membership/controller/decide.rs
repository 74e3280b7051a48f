//! What a controller wants of a group, by what it has seen in the store: whether the epoch has to end, who belongs to the next one, and which phase
//! comes now.

use std::time::Duration;

use super::super::configuration::{Configuration, End, MemberId, Phase, Report, Seat};
use super::{Controller, Note, SUSPECTED, Suspicion, View};
use crate::epoch::Epoch;
use crate::planted::Bug;

impl Controller {
    /// Whether the present epoch has to end, why, and who is to be left out.
    pub(super) fn new_epoch_wanted(
        &mut self,
        now: Duration,
        view: &View,
        config: &Configuration,
    ) -> Option<(String, Vec<MemberId>)> {
        if config.active_epoch == Epoch(0) && config.epoch == Epoch(0) {
            let reported = |id: &MemberId| view.reports.contains_key(id);
            return (!config.members.is_empty() && config.members.iter().all(reported))
                .then(|| ("all members are there".into(), Vec::new()));
        }
        if let Some(seat) = config.chain.iter().find(|seat| !view.lives(seat)) {
            let why = format!("member {} is gone", seat.id);
            return Some((why, Vec::new()));
        }
        if let Some(seat) = config
            .chain
            .iter()
            .find(|seat| !config.members.contains(&seat.id))
        {
            return Some((format!("member {} is removed", seat.id), Vec::new()));
        }
        if config.phase != Phase::Active {
            let mut late = self.late(config, view);
            let sealed = config.phase == Phase::Seal && late.is_empty();
            if sealed && self.source(view, config).is_none() {
                // Whoever of the last active chain comes back may be one.
                let why = format!("nobody of {:?} can vouch any more", config.vouching);
                return Some((why, Vec::new()));
            }
            late.retain(|id| self.is_stuck(now, *id, view));
            if let Some(source) = self.silent_source(config, &late) {
                late = vec![source];
            }
            return (!late.is_empty()).then(|| {
                (
                    format!("no answer from {late:?} in {:?}", config.phase),
                    late,
                )
            });
        }
        if let Some(doubt) = view.doubts.get(&config.epoch) {
            let mut without = Vec::new();
            // A client does not know who holds its operations up.
            let suspect =
                (doubt.suspect).or_else(|| self.settings.slow.slowest(&view.lags(config)));
            if let Some(suspect) = suspect
                && self.times_doubted(now, config, suspect) >= 2
                && config.chain.len() > 1
            {
                without.push(suspect);
            }
            return Some((format!("somebody's group is broken: {doubt:?}"), without));
        }
        let dead = view.dead_slots();
        if !dead.is_empty() {
            return Some((format!("clients are gone: {dead:?}"), Vec::new()));
        }
        let joins = |report: &&Report| {
            let new = config.chain.iter().all(|seat| seat.id != report.seat.id);
            new && config.members.contains(&report.seat.id) && report.ready == Some(config.epoch)
        };
        if let Some(report) = view.reports.values().find(joins) {
            return Some((format!("member {} joins", report.seat.id), Vec::new()));
        }
        let lags = view.lags(config);
        let slow = self.slow.look(&self.settings.slow, now, &lags)?;
        self.notes.push(Note::Slow(slow.member, slow.lag_ms));
        (slow.remove).then(|| (format!("member {} is slow", slow.member), vec![slow.member]))
    }

    /// How many epochs were in doubt because of a member lately, with this one.
    fn times_doubted(&mut self, now: Duration, config: &Configuration, of: MemberId) -> u32 {
        let known = self.suspects.entry(of).or_default();
        // The same doubt is seen again when somebody else was faster, or the put was lost.
        if known.epoch != config.epoch {
            // When a member dies links end one after the other, and each member names the one in front of it, which only lost its own. Who was lost
            // since is asked for first: it did not answer when that epoch's chain was asked to seal.
            let lost = |seat: &Seat| !config.chain.contains(seat);
            let explained = known.chain.iter().any(lost);
            if explained || now > known.at + self.settings.period * SUSPECTED {
                known.times = 0;
            }
            *known = Suspicion {
                times: known.times + 1,
                epoch: config.epoch,
                chain: config.chain.clone(),
                at: now,
            };
        }
        known.times
    }

    /// Who keeps this phase from being over.
    fn late(&self, config: &Configuration, view: &View) -> Vec<MemberId> {
        let epoch = config.epoch;
        let there = |seat: &&Seat| {
            let Some(report) = view.reports.get(&seat.id) else {
                return false;
            };
            match config.phase {
                Phase::Seal => report.sealed == epoch,
                Phase::Sync => report.synced == epoch,
                Phase::Recover | Phase::Active => report.recovered == epoch,
            }
        };
        let late = config.chain.iter().filter(|seat| !there(seat));
        late.map(|seat| seat.id).collect()
    }

    /// The source, if it is the one who keeps these from getting on: all others copy from it, and none of several can. One of them can be the next.
    fn silent_source(&self, config: &Configuration, stuck: &[MemberId]) -> Option<MemberId> {
        let source = config.source.filter(|source| !stuck.contains(source))?;
        let all = stuck.len() > 1 && stuck.len() + 1 == config.chain.len();
        let another = stuck.iter().any(|id| config.vouching.contains(id));
        (config.phase == Phase::Sync && all && another).then_some(source)
    }

    /// Whether a member has done nothing for too long in this phase: much to copy takes long.
    fn is_stuck(&mut self, now: Duration, id: MemberId, view: &View) -> bool {
        let report = view.reports.get(&id);
        let progress = report.map_or(0, |report| report.progress);
        let begun = self.phase_since.2;
        // Who is looked at for the first time late in a phase may have done something just now.
        let known = self.progress.entry(id).or_insert((progress, now));
        if known.0 != progress {
            *known = (progress, now);
        }
        now >= known.1.max(begun) + self.settings.patience
    }

    /// The next epoch; none, if nobody can vouch for what was acknowledged.
    pub(super) fn propose(
        &self,
        view: &View,
        config: &Configuration,
        without: &[MemberId],
    ) -> Option<Configuration> {
        let birth = config.active_epoch == Epoch(0);
        let member = |id: &MemberId| config.members.contains(id);
        let old: Vec<MemberId> = match birth {
            true => config.members.clone(),
            false => config.active_chain.iter().map(|seat| seat.id).collect(),
        };
        let vouching = |without: &[MemberId]| -> Vec<Seat> {
            let ids = old.iter().filter(|id| member(id) && !without.contains(id));
            let reports = ids.filter_map(|id| view.reports.get(id));
            let able = reports.filter(|report| birth || config.vouches(report));
            able.map(|report| report.seat).collect()
        };
        let mut chain = vouching(without);
        if chain.is_empty() {
            // Better all of them once more than nobody.
            chain = vouching(&[]);
        }
        if chain.is_empty() {
            return None;
        }
        let ids = chain.iter().map(|seat| seat.id).collect::<Vec<_>>();
        for report in view.reports.values() {
            let seat = report.seat;
            let ready = report.ready == Some(config.active_epoch) && !birth;
            if ready && member(&seat.id) && !ids.contains(&seat.id) && !without.contains(&seat.id) {
                chain.push(seat);
            }
        }
        let mut fenced = view.dead_slots();
        if config.phase != Phase::Active {
            for slot in &config.fenced {
                if !fenced.contains(slot) {
                    fenced.push(*slot);
                }
            }
        }
        Some(Configuration {
            epoch: config.epoch.next(),
            phase: Phase::Seal,
            chain,
            vouching: if birth { Vec::new() } else { ids },
            source: None,
            fenced,
            ..config.clone()
        })
    }

    /// The same epoch in its next phase, if this one is over.
    pub(super) fn next_phase(
        &self,
        now: Duration,
        view: &View,
        config: &Configuration,
    ) -> Option<Configuration> {
        let hasty = self.settings.planted == Some(Bug::SealNotAwaited);
        let early = hasty && config.phase == Phase::Seal;
        if config.phase == Phase::Active || !(early || self.late(config, view).is_empty()) {
            return None;
        }
        let mut next = config.clone();
        match config.phase {
            Phase::Seal => {
                let source = self.source(view, config)?;
                let (_, sequence) = source.log?;
                next.phase = Phase::Sync;
                next.source = Some(source.seat.id);
                // C3: what such a slot has is nobody's who would ever be missed. All have sealed: who comes now takes nothing before this epoch is
                // active, and who had something before had a key.
                next.fenced.extend(view.vacant(&config.fenced));
                if !config.reaches_end(source) || self.settings.planted == Some(Bug::EndNotKept) {
                    // Nobody who is there has carried out more, or ever will.
                    let since = config.epoch;
                    next.end = Some(End { since, sequence });
                }
            }
            Phase::Sync => next.phase = Phase::Recover,
            Phase::Recover => {
                if !self.excluded_are_silent(now, view, config) {
                    return None;
                }
                next.phase = Phase::Active;
                next.end = None;
                next.active_epoch = config.epoch;
                next.active_chain.clone_from(&config.chain);
            }
            Phase::Active => return None,
        }
        Some(next)
    }

    /// Who has the log up to the decided end; without one, the longest log.
    fn source<'a>(&self, view: &'a View, config: &Configuration) -> Option<&'a Report> {
        let vouches = |report: &&Report| {
            config.active_epoch == Epoch(0)
                || (config.vouching.contains(&report.seat.id) && config.vouches(report))
        };
        let rank = |report: &&Report| {
            let end = report.log.map_or(0, |(_, end)| end);
            let continuous = config.active_chain.contains(&report.seat);
            // Whom joiners have caught up from.
            let head = config.active_chain.first() == Some(&report.seat);
            (config.reaches_end(report), end, continuous, head)
        };
        let reports = config.chain.iter();
        let reports = reports.filter_map(|seat| view.reports.get(&seat.id));
        reports.filter(vouches).max_by_key(rank)
    }

    /// C1: those of the last active chain who are left out have sealed, or their read leases are over.
    fn excluded_are_silent(&self, now: Duration, view: &View, config: &Configuration) -> bool {
        let margin = self.settings.read_lease * 102 / 100;
        let known = self.over_since.0 == config.active_epoch;
        let over = known && now >= self.over_since.1 + margin;
        let silent = |seat: &Seat| {
            let report = view.reports.get(&seat.id);
            config.chain.contains(seat)
                || report
                    .is_some_and(|report| report.seat == *seat && report.sealed >= config.epoch)
        };
        over || config.active_chain.iter().all(silent)
    }
}
