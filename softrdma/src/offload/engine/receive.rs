//! Messages: taken in turn, checked, scattered into descriptors.

use super::{Engine, accessor};
use crate::offload::command::{Command, Guard, Outbound, Refusal};
use crate::offload::engine::EngineEvent;
use crate::offload::link::{Link, LinkId};
use crate::offload::planted::Flaw;
use crate::page::PageStore;

impl<S: PageStore> Engine<S> {
    /// Takes a message for each receive queue, if there is one and its slot is armed.
    pub(super) fn take_messages(&mut self) -> bool {
        let mut moved = false;
        for queue in 0..self.receives.len() {
            while self.take_message(queue) {
                moved = true;
            }
        }
        moved
    }

    fn take_message(&mut self, queue: usize) -> bool {
        let operation = self.receives[queue].taken;
        let last = self.receives[queue].last;
        let waits = |(_, link): &(&LinkId, &mut Link<S>)| {
            link.spec.receive == Some(queue) && !link.inbox.is_empty() && !link.closed
        };
        // In turn: the links behind the last one first.
        let found = {
            let behind = self
                .links
                .range_mut((std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded));
            behind.into_iter().find(waits).map(|(&id, _)| id)
        };
        let found = found.or_else(|| self.links.iter_mut().find(waits).map(|(&id, _)| id));
        let Some(id) = found else { return false };
        if !self.may_take(queue, operation) {
            return false;
        }
        self.receives[queue].last = id;
        let Some(link) = self.links.get_mut(&id) else {
            return false;
        };
        let mut message = std::mem::take(&mut self.message);
        let taken = link.take(&mut message).unwrap_or(Err(Refusal::Length));
        let unfenced = self.config.planted == Some(Flaw::FenceUnchecked);
        let checked = taken.and_then(|()| match link.spec.check(&message) {
            Err(Refusal::Check) if unfenced => Ok(()),
            checked => checked,
        });
        let result = checked.and_then(|()| self.scatter(id, queue, operation, &message));
        self.message = message;
        match result {
            Ok(()) => {
                self.receives[queue].taken += 1;
                if queue == 0 {
                    self.origins.push_back(id);
                    if let Some(link) = self.links.get_mut(&id) {
                        link.operations += 1;
                    }
                }
            }
            Err(refusal) => {
                let link = id;
                self.events
                    .push_back(EngineEvent::Refused { link, refusal });
                self.abort(id);
            }
        }
        true
    }

    /// Is there a slot for the next message of a queue?
    fn may_take(&mut self, queue: usize, operation: u64) -> bool {
        if queue > 0 {
            return operation < self.receives[0].taken;
        }
        if operation < self.armed || self.config.planted == Some(Flaw::DryRingTaken) {
            return true;
        }
        let refilled = self.refill_when_dry();
        self.dry += u64::from(!refilled);
        refilled
    }

    /// Puts the bytes of a message where they belong, and judges every descriptor that they touched. If one is bad, the
    /// slot is as if no message had come.
    fn scatter(
        &mut self,
        from: LinkId,
        queue: usize,
        operation: u64,
        message: &[u8],
    ) -> Result<(), Refusal> {
        let Self {
            receives,
            rings,
            regions,
            destinations,
            local,
            config,
            depth,
            before,
            ..
        } = self;
        let spec = &receives[queue].spec;
        let kind = message[spec.kind_at];
        let format = spec.formats.iter().find(|format| format.kind == kind);
        let format = format.ok_or(Refusal::Kind)?;
        before.clear();
        for step in &format.moves {
            let bytes = &message[step.from..step.from + step.len];
            let ring = &rings[step.queue];
            if queue > 0 {
                ring.append_to(operation, step.request, step.at, step.len, before);
            }
            ring.patch(operation, step.request, step.at, bytes);
        }
        let mut guard = Guard {
            regions,
            who: accessor(local, config),
            flaw: config.planted,
        };
        for (at, step) in format.moves.iter().enumerate() {
            let next = format.moves.get(at + 1);
            if next.is_some_and(|next| (next.queue, next.request) == (step.queue, step.request)) {
                continue;
            }
            let ring = &rings[step.queue];
            let judged = ring
                .look(operation, step.request)
                .and_then(|(opcode, raw)| {
                    let destination = |number| destinations.get(&(step.queue, number)).copied();
                    let command = guard.command(ring.carrier, opcode, &raw, destination)?;
                    // Who asks and who is answered are one here: it hears now.
                    let own = destination(raw.destination.get()).is_some_and(|to| to.link == from);
                    match command {
                        Command::Link {
                            what: Outbound::Astray,
                            ..
                        } if own => Err(Refusal::Bounds),
                        _ => Ok(()),
                    }
                });
            if let Err(refusal) = judged {
                if queue == 0 {
                    rings.iter_mut().for_each(|ring| ring.arm(operation));
                } else {
                    // What the operation has from other messages stays.
                    for step in format.moves.iter().rev() {
                        let bytes = before.split_off(before.len() - step.len);
                        rings[step.queue].patch(operation, step.request, step.at, &bytes);
                    }
                }
                return Err(refusal);
            }
        }
        if let Some(keep) = &spec.keep {
            let at = keep.offset + (operation % *depth) as usize * keep.stride;
            keep.memory.write(at, message);
        }
        Ok(())
    }
}
