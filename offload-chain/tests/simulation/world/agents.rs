//! Agents of members, controllers and sessions: when they are called, and what they want done.

use std::time::Duration;

use offload_chain::Epoch;
use offload_chain::config::Event;
use offload_chain::membership::{Action, MemberId, Note, Phase, SessionEvent};
use offload_chain::planted::Bug;

use super::store::Port;
use super::{EngineBug, Hop, Node, Under, What, World};

impl World {
    pub(super) fn tick(&mut self, node: Node, life: u64) {
        if self.life(node) != Some(life) {
            return;
        }
        let now = self.clock(node);
        let mut port = self.port(node);
        let next = match node {
            Node::Member(at) => {
                let host = &mut self.members[at];
                let lag = Duration::from_micros(host.slow * 300);
                host.agent.set_lag(lag);
                host.agent.tick(now, &mut port, &mut host.memory);
                let next = host.agent.next_tick();
                self.after_member(at, port);
                next
            }
            Node::Client(at) => {
                let session = &mut self.clients[at].session;
                session.tick(now, &mut port);
                let next = session.next_tick();
                self.return_port(node, port);
                self.after_session(at);
                next
            }
            Node::Controller(at) => {
                let controller = &mut self.controllers[at].0;
                controller.tick(now, &mut port);
                let next = controller.next_tick();
                self.return_port(node, port);
                self.after_controller(at);
                next
            }
            Node::Store => return,
        };
        let at = self
            .when(node, next)
            .max(self.now + Duration::from_micros(500));
        self.at(at, What::Tick(node, life));
    }

    pub(super) fn told(&mut self, node: Node, life: u64, event: Event) {
        if self.life(node) != Some(life) {
            return;
        }
        let now = self.clock(node);
        let mut port = self.port(node);
        match node {
            Node::Member(at) => {
                let host = &mut self.members[at];
                host.agent.handle(now, &mut port, &mut host.memory, event);
                self.after_member(at, port);
            }
            Node::Client(at) => {
                self.clients[at].session.handle(now, &mut port, event);
                self.return_port(node, port);
                self.after_session(at);
            }
            Node::Controller(at) => {
                self.controllers[at].0.handle(now, &mut port, event);
                self.return_port(node, port);
                self.after_controller(at);
            }
            Node::Store => {}
        }
    }

    pub(super) fn after_controller(&mut self, at: usize) {
        for note in self.controllers[at].0.take_notes() {
            if matches!(note, Note::NewEpoch(..)) {
                self.stats.epochs += 1;
            }
            let delicate = matches!(note, Note::Phase(_, Phase::Sync | Phase::Recover));
            if delicate && self.now < self.faults_until && self.rng.permille(350) {
                let member = self.rng.below(self.members.len() as u64) as usize;
                let delay = self.rng.range(100, 4000);
                self.after(delay, What::Kill(member));
            }
            if let Note::NewEpoch(_, why) = &note
                && why.contains("joins")
            {
                self.stats.joins += 1;
            }
            self.note(&format!("controller {at}: {note:?}"));
        }
    }

    pub(super) fn after_member(&mut self, at: usize, port: Port) {
        self.return_port(Node::Member(at), port);
        while let Some(action) = self.members[at].agent.poll_action() {
            match action {
                Action::Close(epoch) => {
                    let host = &mut self.members[at];
                    host.failed = host.memory.has_failed().then_some(epoch);
                    let life = host.life;
                    match self.under {
                        Under::Model => self.close(at, life, epoch),
                        // The engine has a thread of its own, and may have something in hand.
                        Under::Engine => {
                            self.withdraw_lease(at, epoch);
                            let delay = self.rng.range(1, self.stop_us);
                            self.after(delay, What::Close(at, life, epoch));
                        }
                    }
                }
                Action::Work(work) => self.work(at, work),
                Action::Open(epoch, chain) => {
                    self.note(&format!("member {at} opens {epoch}"));
                    let host = &mut self.members[at];
                    host.closed = host.closed.max(epoch);
                    host.open = Some((epoch, chain.clone()));
                    self.compare(at, epoch);
                    if self.under == Under::Engine {
                        self.open_engine(at, epoch, &chain);
                    }
                }
                Action::ReadLease(epoch, until) => {
                    let lease = &mut self.members[at].read_lease;
                    *lease = (*lease).max((epoch, until));
                    self.extend_lease(at, epoch, until);
                }
                Action::Send(to, message) => {
                    let to = to.0 as usize;
                    if self.reaches(Node::Member(at), Node::Member(to)) {
                        let from = MemberId(at as u32);
                        let delay = self.rng.range(50, 300);
                        self.after(delay, What::Peer(from, to, message));
                    }
                }
                Action::Warn(said) => self.note(&format!("member {at}: {said}")),
            }
        }
    }

    /// A member opens an epoch, in which it has executed nothing yet: it has what the others had (I15), on media that are well (I8, I14).
    fn compare(&mut self, at: usize, epoch: Epoch) {
        let host = &self.members[at];
        let digest = host.memory.with(|memory| crc32fast::hash(memory.bytes()));
        let (first, known) = *self.opened.entry(epoch).or_insert((at, digest));
        if known != digest {
            let wrong = format!("members {first} and {at} differ when they open {epoch}");
            self.wrong = Some(wrong);
        }
        if host.failed == Some(epoch) {
            let wrong = format!("member {at} takes part in {epoch} on failed media");
            self.wrong = Some(wrong);
        }
    }

    /// The engine of a member executes nothing of epochs before this one any more.
    pub(super) fn close(&mut self, at: usize, life: u64, epoch: Epoch) {
        if self.life(Node::Member(at)) != Some(life) {
            return;
        }
        self.note(&format!("member {at} closes before {epoch}"));
        let late = self.product_bug() == Some(Bug::SealNotAwaited);
        let host = &mut self.members[at];
        if !late {
            host.closed = host.closed.max(epoch);
            host.open = host.open.take().filter(|(open, _)| *open >= epoch);
            host.pending.clear();
        }
        self.close_engine(at, epoch);
        // Who executes for any epoch has no reason to end what is of one.
        let late = late || self.engine_bug(EngineBug::AnyEpoch);
        let lanes = 0..self.lanes.len();
        let links: Vec<(usize, Hop)> = lanes
            .filter(|lane| self.lanes[*lane].epoch < epoch && !late)
            .filter_map(|lane| {
                let place = self.lanes[lane].chain.iter().position(|m| *m == at)?;
                Some((lane, Hop::Along(place)))
            })
            .collect();
        for (lane, hop) in links {
            self.lose(lane, hop);
        }
        let node = Node::Member(at);
        let (now, mut port) = (self.clock(node), self.port(node));
        let host = &mut self.members[at];
        host.agent.closed(now, &mut port, &mut host.memory, epoch);
        self.after_member(at, port);
    }

    pub(super) fn after_session(&mut self, at: usize) {
        while let Some(event) = self.clients[at].session.poll_event() {
            match event {
                SessionEvent::Connect(config) => self.connect(at, &config),
                SessionEvent::Over(epoch) => {
                    let host = &mut self.clients[at];
                    if let Some(group) = &mut host.group
                        && group.epoch() == epoch
                    {
                        group.break_off();
                    }
                    self.pump(at);
                }
                SessionEvent::Fenced => {
                    self.note(&format!("client {at} is fenced"));
                    self.stats.fenced += 1;
                    self.clients[at].work.fenced();
                    self.restart_client(at);
                }
                SessionEvent::Taken => {
                    self.note(&format!("client {at}: slot taken"));
                    self.restart_client(at);
                }
                SessionEvent::StoreLate(_) => {}
            }
        }
    }

    pub(super) fn restart_client(&mut self, at: usize) {
        self.leave_group(at);
        let host = &mut self.clients[at];
        host.group = None;
        host.life += 1;
        host.up = false;
        let delay = self.rng.range(20_000, 80_000);
        self.after(delay, What::Start(Node::Client(at)));
    }
}
