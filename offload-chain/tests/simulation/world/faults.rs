//! What goes wrong.

use std::collections::HashSet;
use std::time::Duration;

use offload_chain::Epoch;
use offload_chain::log::find_header;
use offload_chain::membership::{Member, Phase};

use super::judge::configuration;
use super::store::Port;
use super::{Hop, Node, Under, What, World};

impl World {
    pub(super) fn fault(&mut self) {
        if self.now >= self.faults_until {
            return;
        }
        let next = self.rng.range(20_000, 250_000);
        self.after(next, What::Fault);
        let member = self.rng.below(self.members.len() as u64) as usize;
        let client = self.rng.below(self.clients.len() as u64) as usize;
        if self.media && self.rng.permille(350) {
            return self.media_fault(member);
        }
        match self.rng.below(12) {
            0 | 1 => self.kill(member),
            2 => {
                self.kill(member);
                let down = !self.members[member].up;
                if down && self.rng.permille(300) {
                    self.wipe(member);
                }
            }
            3 if self.rng.permille(300) && self.durable => {
                self.note("all members lose power");
                self.stats.power_cuts += 1;
                for member in 0..self.members.len() {
                    self.kill(member);
                }
            }
            3..6 => {
                let node = match self.rng.below(8) {
                    0..4 => Node::Member(member),
                    4..7 => Node::Client(client),
                    _ => Node::Controller(self.rng.below(2) as usize),
                };
                let length = self.rng.range(5_000, 700_000);
                self.note(&format!("{node:?} pauses for {length} us"));
                self.stats.pauses += 1;
                self.paused
                    .insert(node, self.now + Duration::from_micros(length));
            }
            6 if self.clients[client].up => {
                self.note(&format!("client {client} is killed"));
                self.stats.kills += 1;
                self.stats.clients_killed += 1;
                self.clients[client].work.fenced();
                self.restart_client(client);
            }
            7..10 => self.partition(),
            10 => {
                let slow = *self.rng.pick(&[1, 10, 100, 1000]);
                self.note(&format!("member {member} is {slow} times as slow"));
                self.stats.slow += u64::from(slow > 1);
                self.members[member].slow = slow;
            }
            _ => self.break_link(),
        }
    }

    /// Two sides, or two nodes, or one direction.
    pub(super) fn partition(&mut self) {
        let nodes = self.nodes();
        let mut links = HashSet::new();
        let one_way = self.rng.permille(300);
        if self.rng.permille(500) {
            let (a, b) = (*self.rng.pick(&nodes), *self.rng.pick(&nodes));
            links.insert((a, b));
            if !one_way {
                links.insert((b, a));
            }
        } else {
            let side: Vec<bool> = nodes.iter().map(|_| self.rng.permille(500)).collect();
            for (a, at_a) in nodes.iter().zip(&side) {
                for (b, at_b) in nodes.iter().zip(&side) {
                    if at_a != at_b && (!one_way || *at_a) {
                        links.insert((*a, *b));
                    }
                }
            }
        }
        let mut sorted: Vec<_> = links.iter().copied().collect();
        sorted.sort();
        // All nodes may be on one side.
        let parts = u64::from(sorted.iter().any(|(a, b)| a != b));
        self.stats.partitions += parts;
        self.stats.one_way += parts * u64::from(one_way);
        self.note(&format!("cut: {sorted:?}"));
        self.cut.extend(sorted);
        let length = self.rng.range(10_000, 600_000);
        self.after(length, What::Heal(links));
    }

    /// One connection is reset; with it go the answers on it.
    pub(super) fn break_link(&mut self) {
        if self.under == Under::Engine {
            return self.break_wire();
        }
        let alive: Vec<(usize, Hop)> = self
            .links
            .iter()
            .filter(|(_, link)| !link.gone)
            .map(|(key, _)| *key)
            .collect();
        if let Some((lane, hop)) = alive.last().copied() {
            let back = self.rng.below(alive.len().min(8) as u64) as usize;
            let (lane, hop) = alive
                .get(alive.len() - 1 - back)
                .copied()
                .unwrap_or((lane, hop));
            self.note(&format!("connection {lane} {hop:?} is reset"));
            self.stats.resets += 1;
            self.lose(lane, hop);
        }
    }

    fn break_wire(&mut self) {
        let mut alive = Vec::new();
        for (at, wire) in self.wires.all.iter().enumerate().rev() {
            let open = wire.ways.iter().all(|way| way.end.is_none());
            if !wire.lost && open && alive.len() < 8 {
                alive.push(at);
            }
        }
        if !alive.is_empty() {
            let wire = *self.rng.pick(&alive);
            let ends = self.wires.all[wire].ends.map(|end| end.node);
            self.note(&format!("wire {wire} is reset: {ends:?}"));
            self.stats.resets += 1;
            self.lose_wire(wire);
        }
    }

    /// Whether the group can go on without what this member has: losing the last copy is not in the fault model.
    pub(super) fn is_spare(&self, member: usize, memory_in_process: bool) -> bool {
        let config = configuration(&mut self.ledger.clone(), self.now);
        config.active_chain.iter().any(|seat| {
            let other = seat.id.0 as usize;
            let host = &self.members[other];
            let keeps = match memory_in_process {
                true => host.up && host.agent.report().seat == *seat,
                false => {
                    let header = host.memory.with(|memory| find_header(memory));
                    header.is_ok_and(|header| header.term >= config.active_epoch)
                }
            };
            let in_chain = config.phase == Phase::Active || config.chain.contains(seat);
            other != member && keeps && in_chain
        })
    }

    /// A member that is down gets other media, if it can be spared.
    pub(super) fn wipe(&mut self, member: usize) {
        if self.is_spare(member, !self.durable) {
            self.note(&format!("member {member} is wiped"));
            self.stats.wipes += 1;
            self.members[member].memory.with(|memory| memory.wipe());
        }
    }

    /// The process of a member ends, and what it had not flushed may be gone.
    pub(super) fn kill(&mut self, member: usize) {
        if !self.members[member].up || !(self.durable || self.is_spare(member, true)) {
            return;
        }
        self.note(&format!("member {member} is killed"));
        self.stats.kills += 1;
        self.interrupt_work(member);
        let mut rng = self.rng.fork();
        let host = &mut self.members[member];
        host.up = false;
        host.life += 1;
        host.memory.with(|memory| memory.cut(&mut rng));
        host.memory.restart();
        host.failed = None;
        host.open = None;
        host.pending.clear();
        let engines = host.engine.take().into_iter().chain(host.old.drain(..));
        let objects: Vec<u64> = engines.map(|hosted| hosted.object).collect();
        self.paused.remove(&Node::Member(member));
        // Its kernel says so, or nobody does.
        if self.rng.permille(600) {
            for (lane, hop) in self.links_into(member) {
                self.lose(lane, hop);
            }
            for object in objects {
                for wire in self.wires.wires_of(object) {
                    self.lose_wire(wire);
                }
            }
        }
        let delay = self.rng.range(5_000, 900_000);
        self.after(delay, What::Start(Node::Member(member)));
    }

    pub(super) fn start(&mut self, node: Node) {
        self.note(&format!("{node:?} starts"));
        let life = match node {
            Node::Member(at) => {
                let settings = self.member_settings(at);
                let table = self.table();
                let host = &mut self.members[at];
                host.agent = Member::new(settings);
                host.table = table;
                host.up = true;
                host.closed = Epoch(0);
                host.read_lease = (Epoch(0), Duration::ZERO);
                host.life
            }
            Node::Client(at) => {
                if self.clients[at].up {
                    return;
                }
                let session = self.session(at);
                let host = &mut self.clients[at];
                host.session = session;
                host.up = true;
                host.life
            }
            _ => return,
        };
        self.ports.insert(node, Port::default());
        self.at(self.now, What::Tick(node, life));
    }
}
