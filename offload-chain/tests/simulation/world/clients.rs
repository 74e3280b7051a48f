//! Clients: connect, take outcomes, go on.

use offload_chain::group::{Primitive, Primitives};
use offload_chain::membership::Configuration;

use super::{Group, Handle, Hop, Lane, Node, Packet, Under, What, World};

impl World {
    pub(super) fn connect(&mut self, at: usize, config: &Configuration) {
        let chain: Vec<usize> = config.chain.iter().map(|seat| seat.id.0 as usize).collect();
        self.note(&format!(
            "client {at} connects in {}: {chain:?}",
            config.epoch
        ));
        self.leave_group(at);
        self.clients[at].work.disconnect();
        match self.under {
            Under::Model => self.join_model(at, config, chain),
            Under::Engine => self.join_group(at, config, chain),
        }
        self.pump(at);
    }

    fn join_model(&mut self, at: usize, config: &Configuration, chain: Vec<usize>) {
        let lane = self.lanes.len();
        let size = config.birth.layout().unwrap().size();
        let handle = Handle::new(lane, config.epoch, chain.len(), size);
        let host = &mut self.clients[at];
        host.group = Some(Group::Model(handle));
        self.lanes.push(Lane {
            client: at,
            client_life: host.life,
            epoch: config.epoch,
            chain,
        });
    }

    pub(super) fn app(&mut self, at: usize, life: u64) {
        if self.clients[at].life == life && self.clients[at].up {
            self.pump(at);
        }
    }

    /// Lets a client take its outcomes and go on, and the network what it posts.
    pub(super) fn pump(&mut self, at: usize) {
        let now = self.now;
        let host = &mut self.clients[at];
        let Some(group) = &mut host.group else {
            return;
        };
        let before = host.work.completed();
        if group.becomes_ready() {
            host.work.connect(group);
        }
        while let Some((flight, result)) = group.poll() {
            host.work.handle(now, group, flight, &result);
        }
        let mut broken = None;
        if group.is_broken() {
            broken = Some(group.epoch());
            host.work.disconnect();
            self.leave_group(at);
        } else {
            host.work.wake(now, group);
        }
        let host = &mut self.clients[at];
        let life = host.life;
        if let Some(wake) = host.work.wakes() {
            self.at(wake, What::App(at, life));
        }
        let completed = self.clients[at].work.completed();
        if completed != before {
            self.note(&format!("client {at} has completed {completed}"));
        }
        if let Some(epoch) = broken {
            self.note(&format!("client {at}: {epoch} is broken"));
            let node = Node::Client(at);
            let mut port = self.port(node);
            let local = self.clock(node);
            self.clients[at].session.broken(local, &mut port, epoch);
            self.return_port(node, port);
            return;
        }
        self.send_joined(at);
        let Some(Group::Model(handle)) = &mut self.clients[at].group else {
            return;
        };
        let lane = handle.lane;
        for (flight, primitive) in std::mem::take(&mut handle.outbox) {
            let hop = match &primitive {
                Primitive::Read { member, .. } => Hop::Ask(*member),
                _ => Hop::Along(0),
            };
            let packet = Packet {
                flight,
                primitive,
                found: Vec::new(),
                bytes: Vec::new(),
            };
            self.send(lane, hop, packet);
        }
    }
}
