//! What a member does with its own log when an epoch ends, and before the next begins.

use super::work::{Kind, Recovery, Then};
use super::{Action, Member};
use crate::epoch::Epoch;
use crate::log::{RecoverError, find, format};
use crate::membership::configuration::Configuration;
use crate::memory::Memory;
use crate::planted::Bug;

impl Member {
    /// R1: now it looks at its log, which nobody changes any more; then it reports.
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
            Ok(header) if unborn => self.begin(Kind::Format(header), Then::Seal(epoch)),
            _ => self.tell_sealed(memory, epoch),
        }
    }

    pub(super) fn tell_sealed(&mut self, memory: &mut impl Memory, epoch: Epoch) {
        let Some(config) = self.configuration.clone() else {
            return;
        };
        self.closing = None;
        self.report.sealed = epoch;
        self.look_at_log(memory, &config);
    }

    pub(super) fn look_at_log(&mut self, memory: &mut impl Memory, config: &Configuration) {
        let found = find(memory, self.settings.planted).ok();
        let found = found.filter(|found| found.header.salt == config.birth.salt);
        let mut log = found.map(|found| (found.header.term, found.sequence));
        if self.settings.planted == Some(Bug::BlankVouches) && log.is_none() {
            let header = config.birth.header().ok();
            if let Some(mut header) = header {
                header.term = config.active_epoch;
                let _ = format(memory, &header);
                log = Some((header.term, 1));
            }
        }
        if log != self.report.log || self.report.sealed == config.epoch {
            self.report.log = log;
            self.stale = true;
        }
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
        memory: &mut impl Memory,
        epoch: Epoch,
        result: Result<(), RecoverError>,
    ) {
        match result {
            Ok(()) => {
                self.report.recovered = epoch;
                self.report.ready = None;
                self.rounds = 0;
                self.caught_up = None;
            }
            Err(error) => {
                self.report.log = None;
                self.actions.push_back(Action::Warn(error.to_string()));
            }
        }
        // Who seals looks then.
        if let (Some(config), None) = (self.configuration.clone(), self.closing) {
            self.look_at_log(memory, &config);
        }
        self.stale = true;
    }
}
