//! What a member does with its own log when an epoch ends, and before the next begins.

use super::work::{Kind, Looking, Recovery, Then};
use super::{Action, Member};
use crate::epoch::Epoch;
use crate::log::RecoverError;
use crate::membership::configuration::Configuration;
use crate::memory::Memory;
use crate::planted::Bug;

impl Member {
    /// R1: now it looks at its log, which nobody changes any more, and reports when it has.
    pub(super) fn seal_log(&mut self, memory: &mut impl Memory, epoch: Epoch) {
        let Some(config) = &self.configuration else {
            return;
        };
        if self.settings.planted != Some(Bug::LastRoundSkipped) {
            self.header = None;
        }
        let unborn = config.active_epoch == Epoch(0) && config.epoch > Epoch(0);
        match config.birth.header() {
            // Nothing was ever acknowledged.
            Ok(header) if unborn => self.begin(Kind::Format(header), Then::Look(epoch)),
            Ok(_) => self.look_at_log(memory, epoch),
            // No log could be this group's.
            Err(_) => self.tell_sealed(epoch, None),
        }
    }

    /// A large log takes long to look at.
    pub(super) fn look_at_log(&mut self, memory: &mut impl Memory, epoch: Epoch) {
        let Some(looking) = self.looking() else {
            return;
        };
        if self.work.is_some() {
            // Only with a bug that is planted.
            let log = looking.run(memory);
            self.tell_sealed(epoch, log);
        } else {
            self.begin(Kind::Look(looking), Then::Seal(epoch));
        }
    }

    fn looking(&self) -> Option<Looking> {
        let config = self.configuration.as_ref()?;
        Some(Looking {
            birth: config.birth.header().ok()?,
            active_epoch: config.active_epoch,
            planted: self.settings.planted,
        })
    }

    pub(super) fn tell_sealed(&mut self, epoch: Epoch, log: Option<(Epoch, u64)>) {
        self.closing = None;
        self.report.sealed = epoch;
        self.tell_log(log);
    }

    pub(super) fn tell_log(&mut self, log: Option<(Epoch, u64)>) {
        self.report.log = log;
        self.stale = true;
    }

    pub(super) fn recover(&mut self, config: &Configuration) {
        let fenced = match self.settings.planted {
            Some(Bug::SealNotAwaited) => Vec::new(),
            _ => config.fenced.iter().map(|(slot, _)| *slot).collect(),
        };
        let recovery = Recovery {
            epoch: config.epoch,
            header: self.header.take(),
            vouching: config.vouching.contains(&self.settings.seat.id),
            executes: config.birth.executes,
            fenced,
            end: config.end.map(|end| end.sequence),
            planted: self.settings.planted,
        };
        self.begin(Kind::Recover(recovery), Then::Recovered(config.epoch));
    }

    pub(super) fn recovered(
        &mut self,
        epoch: Epoch,
        result: Result<Option<(Epoch, u64)>, RecoverError>,
    ) {
        self.stale = true;
        match result {
            Ok(log) => {
                self.report.recovered = epoch;
                self.report.ready = None;
                self.rounds = 0;
                self.caught_up = None;
                self.report.log = log;
            }
            Err(error) => {
                self.failed = epoch;
                self.report.log = None;
                self.actions.push_back(Action::Warn(error.to_string()));
                // Who seals looks then.
                if let (Some(looking), None) = (self.looking(), self.closing) {
                    self.begin(Kind::Look(looking), Then::Tell);
                }
            }
        }
    }
}
