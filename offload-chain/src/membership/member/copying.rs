//! How a member makes itself like another, and answers those that do.

use std::time::Duration;

use super::work::{Kind, Then};
use super::{Action, Member};
use crate::config::Store;
use crate::log::{RecoverError, find_header};
use crate::membership::configuration::{Configuration, MemberId, Phase, Seat};
use crate::membership::copy::{Ask, BATCH_CHUNKS, Message, Part, Round, answer};
use crate::memory::Memory;
use crate::planted::Bug;

/// Rounds of catching up after which a joiner is ready however much changes.
const ROUNDS_MAX: u32 = 6;

/// Questions without an answer after which a joiner asks another member.
const UNANSWERED_MAX: u32 = 8;

impl Member {
    pub(super) fn sync(&mut self, now: Duration, memory: &mut impl Memory, config: &Configuration) {
        let Some(source) = config.source else { return };
        let own = self.settings.seat.id;
        if source == own {
            self.report.synced = config.epoch;
            self.stale = true;
            return;
        }
        if self.round.is_some() {
            return;
        }
        let Some(seat) = config.chain.iter().find(|seat| seat.id == source) else {
            return;
        };
        let vouching = config.vouching.contains(&own);
        let since = self.caught_up.filter(|(from, _)| from == seat);
        let skip = self.settings.planted == Some(Bug::LastRoundSkipped);
        if skip && !vouching && since.is_some() && self.header.is_some() {
            self.report.synced = config.epoch;
            self.stale = true;
            return;
        }
        let (part, since) = match vouching {
            true => (Part::Log, None),
            false => (Part::All, since.map(|(_, generation)| generation)),
        };
        self.start_round(now, memory, (config, *seat), part, since);
    }

    /// Copies from a member of the active chain until little changes any more.
    pub(super) fn catch_up(
        &mut self,
        now: Duration,
        memory: &mut impl Memory,
        config: &Configuration,
    ) {
        if self.round.is_some() || !self.left_out.may_join(now) {
            return;
        }
        let stays = |(from, _): &(Seat, u64)| config.chain.contains(from);
        self.caught_up = self.caught_up.filter(stays);
        if self.report.ready.is_some_and(|ready| ready != config.epoch) {
            self.report.ready = None;
            self.rounds = 0;
        }
        let from = match self.caught_up {
            Some((from, _)) => from,
            // The head: with writes under way its log is the longest, and the next epoch starts from it. From another source all would have to be
            // compared once more while nobody writes. Another one each time: this one may not be reachable.
            None => {
                let turn = self.sources % config.chain.len().max(1);
                let Some(seat) = config.chain.get(turn) else {
                    return;
                };
                *seat
            }
        };
        let since = self.caught_up.map(|(_, generation)| generation);
        self.start_round(now, memory, (config, from), Part::All, since);
    }

    fn start_round(
        &mut self,
        now: Duration,
        memory: &mut impl Memory,
        (config, from): (&Configuration, Seat),
        part: Part,
        since: Option<u64>,
    ) {
        let Ok(header) = config.birth.header() else {
            return;
        };
        // One for another size of memory is none to vouch by, but may be newer than the one that recovery writes.
        let found = find_header(memory);
        if part == Part::All && matches!(found, Ok(_) | Err(RecoverError::Size { .. })) {
            // From here on it vouches for nothing, whatever happens, until it has recovered.
            self.report.log = None;
            self.stale = true;
            self.begin(Kind::Forget, Then::Go);
            return;
        }
        self.numbers += 1;
        self.unanswered = 0;
        let size = (part, &header);
        self.round = Some(Round::new(config.epoch, from, since, size, self.numbers));
        self.next_ask = now + self.settings.period * 2;
        self.ask_round(memory);
    }

    pub(super) fn ask_round(&mut self, memory: &impl Memory) {
        let Some(round) = &self.round else { return };
        // Answers to this, however late they come, are none to another round.
        self.numbers = self.numbers.max(round.fresh_number());
        self.unanswered += 1;
        let active = (self.configuration.as_ref()).map(|config| config.phase == Phase::Active);
        if self.unanswered > UNANSWERED_MAX && active == Some(true) {
            // It does not get on: somebody else, from the start.
            self.round = None;
            self.caught_up = None;
            self.sources += 1;
            return;
        }
        match round.ask(memory) {
            Ok(ask) => {
                let to = round.from.id;
                self.actions.push_back(Action::Send(to, Message::Ask(ask)));
            }
            Err(error) => self.actions.push_back(Action::Warn(error.to_string())),
        }
    }

    /// Another member says something.
    pub fn receive(
        &mut self,
        now: Duration,
        store: &mut impl Store,
        memory: &mut impl Memory,
        from: MemberId,
        message: Message,
    ) {
        self.now = now;
        match message {
            Message::Ask(ask) => self.asked_by(memory, from, ask),
            Message::Give(give) => {
                let Some(round) = &mut self.round else { return };
                match round.take(memory, &give) {
                    Ok(Some(true)) => self.round_over(now, memory),
                    Ok(Some(false)) => {
                        self.unanswered = 0;
                        self.report.progress += 1;
                        self.next_ask = now + self.settings.period * 2;
                        if !give.more {
                            self.ask_round(memory);
                        }
                    }
                    Ok(None) => {}
                    Err(error) => {
                        self.round = None;
                        self.report.log = None;
                        self.stale = true;
                        self.actions.push_back(Action::Warn(error.to_string()));
                    }
                }
            }
        }
        self.put_report(store);
    }

    /// Answers, if it is to; later, if it has not heard yet that it is to.
    pub(super) fn asked_by(&mut self, memory: &impl Memory, from: MemberId, ask: Ask) {
        let Some(config) = &self.configuration else {
            return;
        };
        let seat = self.settings.seat;
        let known = config.epoch == ask.epoch && self.report.sealed == ask.epoch;
        let gives = known
            && match config.phase {
                Phase::Sync => config.source == Some(seat.id),
                Phase::Active => self.open == ask.epoch,
                _ => false,
            };
        if gives {
            for give in answer(memory, seat, &ask).into_iter().flatten() {
                let give = Message::Give(give);
                self.actions.push_back(Action::Send(from, give));
            }
        } else if (config.epoch, config.phase) < (ask.epoch, Phase::Recover)
            && ask.digests.len() as u64 <= BATCH_CHUNKS
            && self.knows(from)
        {
            self.early.insert(from, ask);
        }
    }

    fn round_over(&mut self, now: Duration, memory: &mut impl Memory) {
        let (Some(round), Some(config)) = (self.round.take(), &self.configuration) else {
            return;
        };
        // A vouching member has its own header, and recovery flushes before it writes another: until then what was copied
        // may be lost, in any part, like what was under way when it sealed.
        if !config.vouching.contains(&self.settings.seat.id) {
            self.begin(Kind::Flush, Then::Copied(round));
        } else if self.copied(round) {
            self.go_on(now, memory);
        }
    }

    /// A round is over, and what it copied is durable if it has to be. Whether another is to follow at once.
    pub(super) fn copied(&mut self, round: Round) -> bool {
        let Some(config) = &self.configuration else {
            return false;
        };
        match config.phase {
            Phase::Sync => {
                let vouching = config.vouching.contains(&self.settings.seat.id);
                let keeps = config.birth.executes || self.settings.planted == Some(Bug::MarkKept);
                if !vouching || !keeps {
                    self.header = round.header;
                }
                self.report.synced = config.epoch;
                self.stale = true;
                false
            }
            Phase::Active => {
                self.rounds += 1;
                self.header = round.header;
                self.caught_up = round
                    .generation()
                    .map(|generation| (round.from, generation));
                self.report.behind = round.copied;
                let enough = round.copied <= self.settings.ready_chunks;
                let ready = (enough && self.rounds > 1) || self.rounds >= ROUNDS_MAX;
                if ready && self.report.ready != Some(config.epoch) {
                    self.report.ready = Some(config.epoch);
                    self.stale = true;
                }
                !ready
            }
            _ => false,
        }
    }
}
