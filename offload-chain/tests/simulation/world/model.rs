//! The group underneath as a model: packets go from member to member, which execute, forward and answer.

use std::collections::BTreeSet;

use offload_chain::group::{Outcome, Primitive, Topology};
use offload_chain::membership::MemberId;
use offload_chain::planted::Bug;

use super::super::support::mem::{execute, flush, flushes};
use super::{EngineBug, Hop, Lane, Node, Packet, Planted, What, World};

impl World {
    /// From where to where a link goes.
    pub(super) fn ends(&self, lane: usize, hop: Hop) -> (Node, Node) {
        let lane = &self.lanes[lane];
        let client = Node::Client(lane.client);
        let member = |at: usize| Node::Member(lane.chain[at]);
        let before = |at: usize| match self.topology {
            Topology::Chain => member(at - 1),
            Topology::Star => member(0),
        };
        match hop {
            Hop::Along(0) => (client, member(0)),
            Hop::Along(at) if at == lane.chain.len() => (before(at), client),
            Hop::Along(at) => (before(at), member(at)),
            Hop::Back(at) => (member(at), member(0)),
            Hop::Ask(at) => (client, member(at)),
            Hop::Answer(at) => (member(at), client),
        }
    }

    pub(super) fn send(&mut self, lane: usize, hop: Hop, packet: Packet) {
        let link = self.links.entry((lane, hop)).or_default();
        if link.gone {
            return;
        }
        link.queue.push_back(packet);
        if !link.scheduled {
            link.scheduled = true;
            let delay = self.latency(lane, hop);
            self.after(delay, What::Deliver(lane, hop));
        }
    }

    pub(super) fn latency(&mut self, lane: usize, hop: Hop) -> u64 {
        let (from, to) = self.ends(lane, hop);
        let slow = |node: Node| match node {
            Node::Member(at) => self.members[at].slow,
            _ => 1,
        };
        let slow = slow(from).max(slow(to));
        self.rng.range(10, 60) * slow
    }

    pub(super) fn deliver(&mut self, lane: usize, hop: Hop) {
        let (from, to) = self.ends(lane, hop);
        let reaches = self.reaches(from, to) && self.reaches(to, from);
        let now = self.now;
        let Some(link) = self.links.get_mut(&(lane, hop)) else {
            return;
        };
        if link.gone {
            return;
        }
        if !reaches {
            let since = *link.stalled_since.get_or_insert(now);
            if now > since + self.connection_timeout {
                self.lose(lane, hop);
            } else {
                self.after(3000, What::Deliver(lane, hop));
            }
            return;
        }
        link.stalled_since = None;
        let Some(packet) = link.queue.pop_front() else {
            link.scheduled = false;
            return;
        };
        link.scheduled = !link.queue.is_empty();
        if link.scheduled {
            let delay = self.latency(lane, hop);
            self.after(delay, What::Deliver(lane, hop));
        }
        match (hop, to) {
            (Hop::Along(place), Node::Member(member)) => self.arrive(lane, place, member, packet),
            (Hop::Back(place), Node::Member(head)) => self.gather(lane, place, head, &packet),
            (Hop::Ask(_), Node::Member(member)) => self.read(lane, hop, member, packet),
            (_, _) => self.answered(lane, packet),
        }
    }

    /// A connection breaks: what is on it is gone, and both ends learn of it.
    pub(super) fn lose(&mut self, lane: usize, hop: Hop) {
        let link = self.links.entry((lane, hop)).or_default();
        if link.gone {
            return;
        }
        link.gone = true;
        link.queue.clear();
        let delay = self.rng.range(50, 5000);
        self.after(delay, What::LinkLost(lane, hop));
    }

    /// The one who sends finds that nobody takes it: the break travels back to the client.
    pub(super) fn link_lost(&mut self, lane: usize, hop: Hop) {
        let (from, to) = self.ends(lane, hop);
        let epoch = self.lanes[lane].epoch;
        if let (Node::Member(from), Hop::Along(place) | Hop::Back(place)) = (from, hop) {
            if self.life(Node::Member(from)).is_some()
                && let Node::Member(suspect) = to
            {
                let node = Node::Member(from);
                let mut port = self.port(node);
                let suspect = Some(MemberId(suspect as u32));
                self.members[from].agent.doubt(&mut port, epoch, suspect);
                self.return_port(node, port);
            }
            let client = place == self.lanes[lane].chain.len();
            match (self.topology, hop) {
                (Topology::Chain, _) => self.lose(lane, Hop::Along(place - 1)),
                // Both ways are one connection.
                (Topology::Star, Hop::Back(_)) => self.lose(lane, Hop::Along(place)),
                (Topology::Star, _) => {
                    if !client {
                        self.lose(lane, Hop::Back(place));
                    }
                    self.lose(lane, Hop::Along(0));
                }
            }
        }
        let Lane {
            client,
            client_life,
            ..
        } = self.lanes[lane];
        let host = &mut self.clients[client];
        let end = from == Node::Client(client) || to == Node::Client(client);
        if end
            && host.life == client_life
            && let Some(handle) = host.group.as_mut().and_then(|group| group.model(lane))
        {
            handle.break_off();
            self.pump(client);
        }
    }

    pub(super) fn serves(&self, lane: usize, member: usize) -> bool {
        let host = &self.members[member];
        let epoch = self.lanes[lane].epoch;
        if self.engine_bug(EngineBug::AnyEpoch) || self.product_bug() == Some(Bug::SealNotAwaited) {
            return host.up;
        }
        let open = host.open.as_ref().is_some_and(|(open, _)| *open == epoch);
        host.up && open && host.closed <= epoch
    }

    pub(super) fn arrive(&mut self, lane: usize, place: usize, member: usize, packet: Packet) {
        if !self.serves(lane, member) {
            return self.lose(lane, Hop::Along(place));
        }
        let durable = flushes(&packet.primitive);
        if !self.has_pages(member, &packet.primitive) {
            return self.broken_by_media(member);
        }
        let found = self.execute(lane, place, member, &packet.primitive);
        let mut packet = packet;
        packet.found.push(found);
        let host = &mut self.members[member];
        let pending = host.pending.entry(lane).or_default();
        pending.next += 1;
        let number = pending.next;
        let early = self.planted == Some(Planted::Engine(EngineBug::ForwardBeforeFlush));
        pending.queue.push_back((number, packet, !durable || early));
        if durable {
            let (slow, life) = (host.slow, host.life);
            let delay = self.rng.range(20, 150) * slow;
            self.after(delay, What::Flushed(member, life, lane, number));
        }
        self.forward(lane, place, member);
    }

    /// What it does to memory, and what is answered.
    fn execute(
        &mut self,
        lane: usize,
        place: usize,
        member: usize,
        primitive: &Primitive,
    ) -> Option<u64> {
        let claims = self.engine_bug(EngineBug::SwapClaimed);
        let repeats = self.engine_bug(EngineBug::CopiedAgain);
        let host = &mut self.members[member];
        let (found, _) = (host.memory).with(|memory| execute(memory, place, primitive));
        match primitive {
            Primitive::Cas { old, .. } if claims => found.map(|_| *old),
            Primitive::Memcpy { .. } if repeats => {
                let again = &mut host.pending.entry(lane).or_default().again;
                if let Some(again) = again.replace(primitive.clone()) {
                    (host.memory).with(|memory| execute(memory, place, &again));
                }
                found
            }
            _ => found,
        }
    }

    pub(super) fn flushed(&mut self, member: usize, life: u64, lane: usize, number: u64) {
        let host = &mut self.members[member];
        if !host.up || host.life != life {
            return;
        }
        let Some(pending) = host.pending.get_mut(&lane) else {
            return;
        };
        for (of, packet, done) in &mut pending.queue {
            if *of == number {
                if !host.memory.can_flush(&host.memory.dirty()) {
                    return self.broken_by_media(member);
                }
                host.memory.with(|memory| flush(memory, &packet.primitive));
                *done = true;
            }
        }
        let place = self.lanes[lane].chain.iter().position(|at| *at == member);
        if let Some(place) = place {
            self.forward(lane, place, member);
        }
    }

    /// Another member of a star has answered to its head.
    fn gather(&mut self, lane: usize, place: usize, head: usize, answer: &Packet) {
        if !self.serves(lane, head) {
            return self.lose(lane, Hop::Back(place));
        }
        let Some(pending) = self.members[head].pending.get_mut(&lane) else {
            return;
        };
        let awaited = pending.forwarded.iter_mut();
        let Some((packet, others)) = awaited.into_iter().find(|(_, by)| by.contains(&place)) else {
            return;
        };
        others.remove(&place);
        packet.found[place] = answer.found[1];
        self.answer(lane, head);
    }

    /// The head of a star answers what all others have answered, in order.
    fn answer(&mut self, lane: usize, head: usize) {
        let members = self.lanes[lane].chain.len();
        let unawaited = usize::from(self.engine_bug(EngineBug::OneNotAwaited));
        while let Some(pending) = self.members[head].pending.get_mut(&lane) {
            let over = |(_, others): &(Packet, BTreeSet<usize>)| others.len() <= unawaited;
            let Some((packet, _)) = pending.forwarded.pop_front_if(|front| over(front)) else {
                return;
            };
            self.send(lane, Hop::Along(members), packet);
        }
    }

    /// A member of a star has executed something, and it is durable if it has to be.
    fn radiate(&mut self, lane: usize, place: usize, member: usize, mut packet: Packet) {
        if place > 0 {
            return self.send(lane, Hop::Back(place), packet);
        }
        let members = self.lanes[lane].chain.len();
        for other in 1..members {
            self.send(lane, Hop::Along(other), packet.clone());
        }
        packet.found.resize(members, None);
        let pending = self.members[member].pending.entry(lane).or_default();
        pending
            .forwarded
            .push_back((packet, (1..members).collect()));
        self.answer(lane, member);
    }

    pub(super) fn forward(&mut self, lane: usize, place: usize, member: usize) {
        let chain = self.lanes[lane].chain.len();
        let head_answers = self.engine_bug(EngineBug::HeadAnswers);
        while let Some(pending) = self.members[member].pending.get_mut(&lane) {
            if !pending.queue.front().is_some_and(|(_, _, done)| *done) {
                return;
            }
            let Some((_, packet, _)) = pending.queue.pop_front() else {
                return;
            };
            if self.topology == Topology::Star {
                self.radiate(lane, place, member, packet);
                continue;
            }
            if head_answers && place == 0 && chain > 1 {
                let mut answer = packet.clone();
                answer.found = vec![packet.found[0]; chain];
                self.send(lane, Hop::Along(chain), answer);
            }
            if !(head_answers && place + 1 == chain && chain > 1) {
                self.send(lane, Hop::Along(place + 1), packet);
            }
        }
    }

    pub(super) fn read(&mut self, lane: usize, hop: Hop, member: usize, mut packet: Packet) {
        if !self.serves(lane, member) {
            return self.lose(lane, hop);
        }
        if !self.has_pages(member, &packet.primitive) {
            return self.broken_by_media(member);
        }
        let host = &mut self.members[member];
        let primitive = &packet.primitive;
        let (_, bytes) = (host.memory).with(|memory| execute(memory, member, primitive));
        packet.bytes = bytes;
        let life = host.life;
        self.after(5, What::ReadTaken(member, life, lane, packet));
    }

    /// Whether media give what the primitive touches.
    fn has_pages(&self, member: usize, primitive: &Primitive) -> bool {
        let memory = &self.members[member].memory;
        let has = |offset: &u64, length| memory.can_read(*offset, length);
        match primitive {
            Primitive::Write { offset, bytes, .. } => has(offset, bytes.len()),
            Primitive::Cas { offset, .. } => has(offset, 8),
            Primitive::Read { offset, length, .. } => has(offset, *length),
            Primitive::Memcpy {
                source,
                destination,
                length,
                ..
            } => has(source, *length as usize) && has(destination, *length as usize),
            Primitive::Flush => true,
        }
    }

    /// The links on which a member is sent something.
    pub(super) fn links_into(&self, member: usize) -> Vec<(usize, Hop)> {
        let lanes = self.lanes.iter().enumerate();
        lanes
            .filter_map(|(lane, of)| {
                let place = of.chain.iter().position(|at| *at == member)?;
                Some((lane, Hop::Along(place)))
            })
            .collect()
    }

    /// The bytes are taken; only now the lease is looked at.
    pub(super) fn read_taken(&mut self, member: usize, life: u64, lane: usize, packet: Packet) {
        let host = &self.members[member];
        if !host.up || host.life != life {
            return;
        }
        let epoch = self.lanes[lane].epoch;
        let (leased, until) = host.read_lease;
        let leased = leased == epoch && self.clock(Node::Member(member)) < until;
        let Some(place) = self.lanes[lane].chain.iter().position(|at| *at == member) else {
            return;
        };
        if !leased {
            return self.lose(lane, Hop::Ask(place));
        }
        self.send(lane, Hop::Answer(place), packet);
    }

    pub(super) fn answered(&mut self, lane: usize, packet: Packet) {
        let Lane {
            client,
            client_life,
            ..
        } = self.lanes[lane];
        let host = &mut self.clients[client];
        if !host.up || host.life != client_life {
            return;
        }
        let Some(handle) = host.group.as_mut().and_then(|group| group.model(lane)) else {
            return;
        };
        let outcome = match packet.primitive {
            Primitive::Cas { .. } => Outcome::Cas(packet.found),
            Primitive::Read { .. } => Outcome::Read(packet.bytes),
            _ => Outcome::Done,
        };
        handle.answer(packet.flight, outcome);
        self.pump(client);
    }
}
