//! What goes over wires between real engines and clients: connections made, bytes moved, wires lost.

use std::time::Duration;

use offload_chain::group::{Client, Node as Links};
use offload_chain::membership::Configuration;
use softrdma::offload::LinkId;
use softrdma::{SocketState, Time};

use super::engine::link;
use super::wires::End;
use super::{Group, Joined, Node, What, World};

impl World {
    pub(super) fn schedule(&mut self, ways: &[(usize, usize)]) {
        for &(wire, way) in ways {
            let ends = self.wires.all[wire].ends.map(|end| end.node);
            let delay = self.wire_latency(ends);
            self.after(delay, What::Segment(wire, way));
        }
    }

    fn wire_latency(&mut self, ends: [Node; 2]) -> u64 {
        let slow = ends.map(|node| match node {
            Node::Member(at) => self.members[at].slow,
            _ => 1,
        });
        self.rng.range(10, 60) * slow[0].max(slow[1])
    }

    /// Calls an engine or client; none if it is gone.
    fn call<T>(&mut self, end: End, what: impl FnOnce(&mut dyn Links, Time) -> T) -> Option<T> {
        let now = self.time(end.node);
        match end.node {
            Node::Member(at) => {
                let hosted = self.members[at].hosted(end.object)?;
                Some(what(&mut hosted.member, now))
            }
            Node::Client(at) => {
                let joined = self.clients[at].group.as_mut()?.joined(end.object)?;
                Some(what(&mut *joined.client, now))
            }
            _ => None,
        }
    }

    /// It was called: what it wants is taken note of.
    fn called(&mut self, end: End) {
        match end.node {
            Node::Member(at) => self.after_engine(at, end.object, true),
            Node::Client(at) => self.pump(at),
            _ => {}
        }
    }

    fn is_up(&self, node: Node) -> bool {
        self.life(node).is_some()
    }

    fn meet(&self, a: Node, b: Node) -> bool {
        self.reaches(a, b) && self.reaches(b, a)
    }

    /// Moves a piece of what is on a wire.
    pub(super) fn segment(&mut self, wire: usize, way: usize) {
        let now = self.now;
        let ends = self.wires.all[wire].ends;
        let (from, to) = (ends[way], ends[1 - way]);
        if self.wires.all[wire].lost {
            return;
        }
        if !self.meet(from.node, to.node) || !self.is_up(to.node) {
            let path = &mut self.wires.all[wire].ways[way];
            let since = *path.stalled_since.get_or_insert(now);
            if now > since + self.connection_timeout {
                self.lose_wire(wire);
            } else {
                self.after(3000, What::Segment(wire, way));
            }
            return;
        }
        let Some(wants) = self.call(to, |links, _| links.wants_input(to.link)) else {
            // Nobody listens there: a reset comes back.
            return self.lose_wire(wire);
        };
        let all = self.wires.all[wire].ways[way].bytes.len();
        let piece = match self.rng.below(4) {
            _ if all < 2 => all,
            0 => self.rng.range(1, all as u64) as usize,
            _ => all,
        };
        let path = &mut self.wires.all[wire].ways[way];
        path.stalled_since = None;
        if path.bytes.is_empty() {
            path.scheduled = false;
            if let Some(state) = path.end.filter(|_| !path.ended) {
                path.ended = true;
                self.call(to, |links, now| match state {
                    SocketState::ShutdownWrite => links.handle_eof(to.link, now),
                    _ => links.handle_transport_error(to.link),
                });
                self.called(to);
            }
            return;
        }
        if wants {
            let bytes: Vec<u8> = path.bytes.iter().take(piece).copied().collect();
            let taken = self.call(to, |links, now| links.handle_bytes(to.link, now, &bytes));
            let path = &mut self.wires.all[wire].ways[way];
            path.bytes.drain(..taken.unwrap_or(0));
            let digest = crc32fast::hash(&bytes);
            self.hash = (self.hash ^ u64::from(digest)).wrapping_mul(0x100_0000_01b3);
        }
        let path = &mut self.wires.all[wire].ways[way];
        path.scheduled = !path.bytes.is_empty() || path.end.is_some();
        if path.scheduled {
            let delay = self.wire_latency([from.node, to.node]);
            self.after(delay, What::Segment(wire, way));
        }
        if wants {
            self.called(to);
            // There is room on the wire again.
            if let Node::Member(at) = from.node {
                self.after_engine(at, from.object, true);
            }
        }
    }

    /// A wire breaks: what is on it is gone. Both ends learn of it, each in its time.
    pub(super) fn lose_wire(&mut self, wire: usize) {
        let found = &mut self.wires.all[wire];
        if std::mem::replace(&mut found.lost, true) {
            return;
        }
        found.ways.iter_mut().for_each(|way| way.bytes.clear());
        for end in 0..2 {
            let delay = match self.rng.below(4) {
                0 => self.rng.range(5_000, 200_000),
                _ => self.rng.range(50, 5_000),
            };
            self.after(delay, What::WireLost(wire, end));
        }
    }

    pub(super) fn wire_lost(&mut self, wire: usize, end: usize) {
        let end = self.wires.all[wire].ends[end];
        self.call(end, |links, _| links.handle_transport_error(end.link));
        self.called(end);
    }

    /// An engine or client tries to connect to a member.
    pub(super) fn reach(&mut self, node: Node, object: u64, place: usize, since: Duration) {
        let Some((epoch, target)) = self.wanted(node, object, place) else {
            return;
        };
        let there =
            self.meet(node, Node::Member(target)) && self.life(Node::Member(target)).is_some();
        let now = self.time(Node::Member(target));
        let host = &mut self.members[target];
        let sealed = host.closed > epoch;
        let engine = host.engine.as_mut().filter(|hosted| hosted.epoch == epoch);
        let broken = engine
            .as_ref()
            .is_some_and(|hosted| hosted.member.is_broken());
        let listening = engine.filter(|_| there && !broken);
        let theirs = listening.and_then(|hosted| {
            let link = hosted.member.listen(now).ok()?;
            Some((hosted.object, link))
        });
        let Some((their_object, their_link)) = theirs else {
            let refused = there && (sealed || broken);
            let over = self.now > since + self.connection_timeout;
            if matches!(node, Node::Client(_)) && (refused || over) {
                let link = LinkId(place as u32);
                let end = End { node, object, link };
                self.call(end, |links, _| links.handle_transport_error(link));
                return self.called(end);
            }
            let again = if refused { 20_000 } else { 2_000 };
            return self.after(again, What::Reach(node, object, place, since));
        };
        let theirs = End {
            node: Node::Member(target),
            object: their_object,
            link: their_link,
        };
        let now = self.time(node);
        let link = match node {
            Node::Member(at) => self.members[at].hosted(object).and_then(|hosted| {
                hosted.reaching.remove(&place);
                hosted.member.connect(now, place).ok()
            }),
            _ => Some(LinkId(place as u32)),
        };
        let Some(link) = link else {
            self.call(theirs, |links, _| links.handle_transport_error(theirs.link));
            return self.called(theirs);
        };
        let ours = End { node, object, link };
        self.wires.join(ours, theirs);
        self.called(ours);
        self.called(theirs);
    }

    /// The epoch and the member that a connection is wanted to, if it still is.
    fn wanted(
        &mut self,
        node: Node,
        object: u64,
        place: usize,
    ) -> Option<(offload_chain::Epoch, usize)> {
        match node {
            Node::Member(at) => {
                let hosted = self.members[at].hosted(object)?;
                if !hosted.member.missing().contains(&place) {
                    hosted.reaching.remove(&place);
                    return None;
                }
                Some((hosted.epoch, hosted.chain[place]))
            }
            Node::Client(at) => {
                let joined = self.clients[at].group.as_mut()?.joined(object)?;
                let open = joined.client.broken().is_none();
                open.then(|| (joined.epoch, joined.chain[place]))
            }
            _ => None,
        }
    }

    /// A real client of an epoch, which is not connected yet.
    pub(super) fn join_group(&mut self, at: usize, config: &Configuration, chain: Vec<usize>) {
        let object = self.next_object();
        let size = config.birth.layout().unwrap().size();
        let shape = self.shape(config.epoch, chain.len(), size);
        let node = Node::Client(at);
        let seed = [self.rng.next() as u8; 32];
        let client = Client::new(shape, at as u16, &link(), seed, self.time(node)).unwrap();
        let places = chain.len();
        let joined = Joined::new(object, config.epoch, chain, client);
        self.clients[at].group = Some(Group::Engine(joined));
        for place in 0..places {
            let since = self.now;
            self.after(20, What::Reach(node, object, place, since));
        }
    }

    /// A client sends what it has, and is called when it wants to be.
    pub(super) fn send_joined(&mut self, at: usize) {
        let node = Node::Client(at);
        let now = self.time(node);
        let Some(Group::Engine(joined)) = &mut self.clients[at].group else {
            return;
        };
        let object = joined.object;
        let ways = self.wires.transmit(object, &mut *joined.client, now, 0);
        let broken = joined.client.broken().is_some();
        let due = joined.client.poll_timeout();
        self.schedule(&ways);
        if broken {
            let life = self.clients[at].life;
            self.at(self.now, What::App(at, life));
        }
        let due = due.map(|due| self.when_due(node, due));
        if let (Some(due), Some(Group::Engine(joined))) = (due, &mut self.clients[at].group)
            && joined.due.is_none_or(|at| due < at)
        {
            joined.due = Some(due);
            self.at(due, What::Due(node, object));
        }
    }

    /// A client has done with its group.
    pub(super) fn leave_group(&mut self, at: usize) {
        if let Some(Group::Engine(joined)) = self.clients[at].group.take() {
            let ways = self.wires.close(joined.object);
            self.schedule(&ways);
        }
    }

    /// A time-out of an engine or client.
    pub(super) fn due(&mut self, node: Node, object: u64) {
        match node {
            Node::Member(at) => {
                let Some(hosted) = self.members[at].hosted(object) else {
                    return;
                };
                hosted.due = None;
            }
            Node::Client(at) => {
                let group = self.clients[at].group.as_mut();
                let Some(joined) = group.and_then(|group| group.joined(object)) else {
                    return;
                };
                joined.due = None;
            }
            _ => return,
        }
        let link = LinkId(0);
        let end = End { node, object, link };
        self.call(end, |links, now| links.handle_timeout(now));
        self.called(end);
    }
}
