//! Time: what happens next, by whose clock, and who is paused.

use std::cmp::Reverse;
use std::time::Duration;

use super::{EVENTS_MAX, Node, What, World};

impl World {
    pub(super) fn at(&mut self, at: Duration, what: What) {
        self.sequence += 1;
        self.queue.push(Reverse((at.max(self.now), self.sequence)));
        self.events.insert(self.sequence, what);
    }

    pub(super) fn after(&mut self, micros: u64, what: What) {
        self.at(self.now + Duration::from_micros(micros), what);
    }

    /// What the clock of a node says.
    pub(super) fn clock(&self, node: Node) -> Duration {
        let drift = self.drift.get(&node).copied().unwrap_or(0);
        let now = self.now.as_nanos() as i64;
        Duration::from_nanos((now + now / 1_000_000 * drift) as u64)
    }

    /// When the clock of a node will say this, at the earliest.
    pub(super) fn when(&self, node: Node, local: Duration) -> Duration {
        let drift = self.drift.get(&node).copied().unwrap_or(0);
        let local = local.as_nanos() as i128;
        let real = local * 1_000_000 / i128::from(1_000_000 + drift);
        Duration::from_nanos(real as u64 + 2000)
    }

    pub(super) fn target(&self, what: &What) -> Option<Node> {
        Some(match what {
            What::Tick(node, _) | What::FromStore(node, ..) => *node,
            What::App(client, _) => Node::Client(*client),
            What::Turn(member, ..) | What::Close(member, ..) | What::Device(member, ..) => {
                Node::Member(*member)
            }
            What::Due(node, _) | What::Reach(node, ..) => *node,
            What::Segment(wire, way) => self.wires.all[*wire].ends[1 - way].node,
            What::WireLost(wire, end) => self.wires.all[*wire].ends[*end].node,
            What::Worked(member, _)
            | What::Peer(_, member, _)
            | What::Flushed(member, ..)
            | What::ReadTaken(member, ..) => Node::Member(*member),
            What::Deliver(lane, hop) | What::LinkLost(lane, hop) => self.ends(*lane, *hop).1,
            _ => return None,
        })
    }

    pub(super) fn reaches(&self, from: Node, to: Node) -> bool {
        !self.cut.contains(&(from, to))
    }

    pub(super) fn note(&mut self, said: &str) {
        for byte in said.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>12?} {said}", self.now));
        }
    }

    /// Runs until then. An error, if it does not get there.
    pub(super) fn run_until(&mut self, until: Duration) -> Result<(), String> {
        while let Some(Reverse((at, sequence))) = self.queue.peek().copied() {
            if at > until {
                break;
            }
            self.queue.pop();
            self.now = at;
            let Some(what) = self.events.remove(&sequence) else {
                continue;
            };
            if let Some(node) = self.target(&what)
                && let Some(resumes) = self.paused.get(&node).copied()
            {
                if resumes > self.now {
                    self.queue.push(Reverse((resumes, sequence)));
                    self.events.insert(sequence, what);
                    continue;
                }
                self.paused.remove(&node);
            }
            for at in 0..self.members.len() {
                self.members[at].clock.set(self.clock(Node::Member(at)));
            }
            self.handled += 1;
            if self.handled > EVENTS_MAX {
                return Err(format!("{EVENTS_MAX} events, and no end"));
            }
            self.hash = (self.hash ^ at.as_nanos() as u64).wrapping_mul(0x100_0000_01b3);
            self.happen(what);
            let mut clients = self.clients.iter();
            let wrong = self.wrong.as_ref();
            if let Some(wrong) = wrong.or_else(|| clients.find_map(|host| host.work.wrong())) {
                return Err(wrong.clone());
            }
        }
        self.now = until;
        Ok(())
    }

    pub(super) fn happen(&mut self, what: What) {
        match what {
            What::Tick(node, life) => self.tick(node, life),
            What::App(client, life) => self.app(client, life),
            What::ToStore(node, life, ticket, request) => self.store(node, life, ticket, &request),
            What::FromStore(node, life, event) => self.told(node, life, event),
            What::StoreTick => {
                self.ledger.expire(self.now);
                self.tell_watchers();
                self.after(10_000, What::StoreTick);
            }
            What::Peer(from, to, message) => {
                if !self.members[to].up {
                    return;
                }
                let now = self.clock(Node::Member(to));
                let mut port = self.port(Node::Member(to));
                let host = &mut self.members[to];
                let memory = &mut host.memory;
                host.agent.receive(now, &mut port, memory, from, message);
                self.after_member(to, port);
            }
            What::Deliver(lane, hop) => self.deliver(lane, hop),
            What::Flushed(member, life, lane, number) => self.flushed(member, life, lane, number),
            What::ReadTaken(member, life, lane, packet) => {
                self.read_taken(member, life, lane, packet);
            }
            What::LinkLost(lane, hop) => self.link_lost(lane, hop),
            What::Close(member, life, epoch) => self.close(member, life, epoch),
            What::Worked(member, life) => self.worked(member, life),
            What::Turn(member, object, looked) => self.turn(member, object, looked),
            What::Device(member, object, number) => self.device_done(member, object, number),
            What::Due(node, object) => self.due(node, object),
            What::Reach(node, object, place, since) => self.reach(node, object, place, since),
            What::Segment(wire, way) => self.segment(wire, way),
            What::WireLost(wire, end) => self.wire_lost(wire, end),
            What::Start(node) => self.start(node),
            What::Kill(member) => self.kill(member),
            What::Mended(member) => self.mended(member),
            What::Fault => self.fault(),
            What::Heal(links) => self.cut.retain(|link| !links.contains(link)),
        }
    }
}
