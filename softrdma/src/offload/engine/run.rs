//! Queues: what is at their front runs, completes, and makes room.

use super::{BATCHES, Broken, DETACHED_BIT, Engine, EngineEvent, QUEUE_SHIFT, accessor};
use crate::addr::{RemoteAddr, WrId};
use crate::offload::Opcode;
use crate::offload::command::{Command, Destination, Guard, Outbound, Refusal};
use crate::offload::planted::Flaw;
use crate::offload::program::{Carrier, Count};
use crate::offload::ring::{Front, Ring};
use crate::page::PageStore;
use crate::wqe::{LocalSlice, Operation, PostError, Source, WorkRequest};

impl<S: PageStore> Engine<S> {
    /// Runs everything that can run. True if anything happened.
    pub(super) fn advance(&mut self, pages: &mut S) -> bool {
        let mut any = false;
        while self.broken.is_none() {
            let mut moved = self.take_messages();
            moved |= self.run_queues();
            moved |= self.pump(pages);
            if moved {
                any = true;
            } else if !self.refill() {
                break;
            }
        }
        any
    }

    fn pump(&mut self, pages: &mut S) -> bool {
        let mut done = std::mem::take(&mut self.done);
        let moved = self.local.pump(self.now, pages, &mut done);
        for finished in done.drain(..) {
            self.complete_local(finished.index);
        }
        self.done = done;
        if let Some(reason) = self.local.ended() {
            let reason = reason.clone();
            self.fail(Broken::Local(reason));
            self.collect();
        }
        moved
    }

    fn complete_local(&mut self, index: u64) {
        let queue = (index >> QUEUE_SHIFT) as usize;
        self.rings[queue].complete(index & ((1 << QUEUE_SHIFT) - 1));
    }

    pub(super) fn run_queues(&mut self) -> bool {
        let mut moved = false;
        for queue in 0..self.rings.len() {
            while self.broken.is_none() && self.run_front(queue) {
                moved = true;
            }
        }
        moved
    }

    /// Runs the request at the front of a queue, if it may.
    fn run_front(&mut self, queue: usize) -> bool {
        if self.rings[queue].carrier == Carrier::Local && !self.local.is_ready() {
            return false;
        }
        match self.rings[queue].front() {
            Front::Idle => false,
            Front::Wait {
                on,
                mut needed,
                queue: granted,
                releases,
            } => {
                if self.config.planted == Some(Flaw::WaitEarly) && matches!(on, Count::Queue(_)) {
                    needed -= 1;
                }
                let counted = match on {
                    Count::Receive(1..) if self.config.planted == Some(Flaw::OthersUnawaited) => {
                        needed
                    }
                    Count::Receive(queue) => self.receives[queue].taken,
                    Count::Queue(queue) => self.rings[queue].counted(),
                };
                if counted < needed {
                    return false;
                }
                let index = self.rings[queue].advance(Opcode::Wait);
                self.rings[queue].complete(index);
                self.rings[granted].grant(releases);
                true
            }
            Front::Bad(refusal) => {
                self.fail(Broken::Descriptor(refusal));
                self.collect();
                false
            }
            Front::Run(opcode, raw) => {
                let Self {
                    rings,
                    regions,
                    destinations,
                    local,
                    config,
                    ..
                } = self;
                let mut guard = Guard {
                    regions,
                    who: accessor(local, config),
                    flaw: config.planted,
                };
                let carrier = rings[queue].carrier;
                let destination = |number| destinations.get(&(queue, number)).copied();
                match guard.command(carrier, opcode, &raw, destination) {
                    Ok(command) => self.run(queue, opcode, command),
                    Err(refusal) => {
                        self.fail(Broken::Descriptor(refusal));
                        self.collect();
                        false
                    }
                }
            }
        }
    }

    /// Hands a command to who carries it out. False if it has to wait.
    fn run(&mut self, queue: usize, opcode: Opcode, command: Command) -> bool {
        let skipped = matches!(command, Command::Flush { .. })
            && self.config.planted == Some(Flaw::FlushSkipped);
        match command {
            Command::Nop => {
                let index = self.rings[queue].advance(opcode);
                self.rings[queue].complete(index);
                true
            }
            Command::Link { destination, what } => {
                self.run_on_link(queue, opcode, destination, what)
            }
            _ if skipped => {
                let index = self.rings[queue].advance(opcode);
                self.rings[queue].complete(index);
                true
            }
            command => {
                let index = self.rings[queue].advance(opcode);
                self.local
                    .submit(index | (queue as u64) << QUEUE_SHIFT, command);
                true
            }
        }
    }

    fn run_on_link(&mut self, queue: usize, opcode: Opcode, number: u16, what: Outbound) -> bool {
        let known = self.destinations.get(&(queue, number)).copied();
        let link = known.and_then(|known| Some((known, self.links.get_mut(&known.link)?)));
        let ring = &mut self.rings[queue];
        let Some((known, link)) = link.filter(|(_, link)| !link.closed) else {
            let index = ring.advance(opcode);
            ring.complete(index);
            return true;
        };
        let detached = if known.detached { DETACHED_BIT } else { 0 };
        let wr_id = WrId(ring.next_index() | (queue as u64) << QUEUE_SHIFT | detached);
        let Some(op) = operation(known, what) else {
            let index = ring.advance(opcode);
            ring.complete(index);
            let (link, refusal) = (known.link, Refusal::Bounds);
            self.events
                .push_back(EngineEvent::Refused { link, refusal });
            self.abort(link);
            return true;
        };
        let request = WorkRequest {
            signaled: !known.detached,
            ..WorkRequest::new(wr_id, op)
        };
        match link.connection.post_send(request) {
            Ok(()) => {
                let index = ring.advance(opcode);
                if known.detached {
                    ring.complete(index);
                }
                true
            }
            Err(PostError::QueueFull) if !known.detached => false,
            Err(error) => {
                let index = ring.advance(opcode);
                ring.complete(index);
                // It does not take its answers: its own loss.
                if error == PostError::QueueFull {
                    self.abort(known.link);
                }
                true
            }
        }
    }

    /// Operations of which every request has completed.
    pub(super) fn note_finished(&mut self) {
        let finished = self.rings.iter().map(Ring::finished).min().unwrap_or(0);
        let finished = finished.min(self.receives[0].taken);
        while self.finished < finished {
            self.finished += 1;
            if let Some(origin) = self.origins.pop_front()
                && let Some(link) = self.links.get_mut(&origin)
            {
                link.operations -= 1;
            }
        }
    }

    /// Arms slots that are free, a batch at a time. True if any was.
    pub(super) fn refill(&mut self) -> bool {
        self.note_finished();
        let target = self.finished + self.depth;
        let batch = (self.depth / BATCHES).max(1);
        if target - self.armed < batch {
            return false;
        }
        self.arm_until(target);
        // Only worth another turn if somebody waits for it.
        self.links.values().any(|link| !link.inbox.is_empty())
    }

    /// Arms whatever is free. True if anything was.
    pub(super) fn refill_when_dry(&mut self) -> bool {
        self.note_finished();
        let target = self.finished + self.depth;
        let any = target > self.armed;
        self.arm_until(target);
        any
    }

    pub(super) fn arm_until(&mut self, target: u64) {
        for operation in self.armed..target {
            self.rings.iter_mut().for_each(|ring| ring.arm(operation));
        }
        self.armed = self.armed.max(target);
    }
}

/// None for what is not to be sent.
fn operation(known: Destination, what: Outbound) -> Option<Operation> {
    let source = |slice: LocalSlice| {
        if known.detached {
            Source::Bytes(slice.buffer.to_vec(slice.offset, slice.len))
        } else {
            Source::Local(slice)
        }
    };
    let remote = |to| RemoteAddr {
        stag: known.stag,
        to,
    };
    Some(match what {
        Outbound::Write { source: from, to } => Operation::Write {
            source: source(from),
            remote: remote(to),
        },
        Outbound::WriteImmediate {
            source: from,
            to,
            immediate,
        } => Operation::WriteImmediate {
            source: source(from),
            remote: remote(to),
            immediate,
            solicited: true,
        },
        Outbound::Send { source: from } => Operation::Send {
            source: source(from),
            solicited: false,
            invalidate: None,
        },
        Outbound::Astray => return None,
    })
}
