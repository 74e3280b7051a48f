//! What a member does with its own log when an epoch ends, and before the next begins.

use super::{Action, Member};
use crate::epoch::Epoch;
use crate::lock::{Slot, Word};
use crate::log::{adopt, find, find_header, format, recover};
use crate::membership::configuration::Configuration;
use crate::memory::Memory;
use crate::planted::Bug;

impl Member {
    /// R1: now it looks at its log, which nobody changes any more; then it reports.
    pub(super) fn sealed(&mut self, memory: &mut impl Memory, epoch: Epoch) {
        let Some(config) = self.configuration.clone() else {
            return;
        };
        self.report.sealed = epoch;
        if self.settings.planted != Some(Bug::LastRoundSkipped) {
            self.header = None;
        }
        if config.active_epoch == Epoch(0) && config.epoch > Epoch(0) {
            // Nothing was ever acknowledged.
            if let Ok(header) = config.birth.header() {
                // What cannot be formatted has no log to report.
                let _ = format(memory, &header);
            }
        }
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

    pub(super) fn recover(&mut self, memory: &mut impl Memory, config: &Configuration) {
        let result = self.try_recover(memory, config);
        match result {
            Ok(()) => {
                self.report.recovered = config.epoch;
                self.report.ready = None;
                self.rounds = 0;
                self.caught_up = None;
            }
            Err(error) => {
                self.report.log = None;
                self.actions.push_back(Action::Warn(error.to_string()));
            }
        }
        self.look_at_log(memory, config);
        self.stale = true;
    }

    fn try_recover(
        &mut self,
        memory: &mut impl Memory,
        config: &Configuration,
    ) -> Result<(), crate::log::RecoverError> {
        // R3: a vouching member has its own header.
        let vouching = config.vouching.contains(&self.settings.seat.id);
        match self.header.take() {
            Some(header) if !vouching => {
                // Recovery makes it durable, before it writes its own.
                memory.write(header.at(), &header.emit())?;
            }
            Some(header) if !config.birth.executes => adopt(memory, &header)?,
            _ => {}
        }
        let layout = find_header(memory)?.layout;
        let fenced: Vec<Slot> = match self.settings.planted {
            Some(Bug::SealNotAwaited) => Vec::new(),
            _ => config.fenced.iter().map(|(slot, _)| *slot).collect(),
        };
        for lock in 0..layout.locks() {
            let at = layout.lock_at(lock);
            let mut word = [0; 8];
            memory.read(at, &mut word)?;
            let word = Word(u64::from_le_bytes(word)).in_new_epoch(&fenced);
            memory.write(at, &word.0.to_le_bytes())?;
        }
        let end = config.end.map(|end| end.sequence);
        recover(memory, config.epoch, end, self.settings.planted)?;
        Ok(())
    }
}
