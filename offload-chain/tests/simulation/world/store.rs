//! The store, and the way to it.

use offload_chain::config::{Event, Request, Store, Ticket};

use super::{Node, What, World};

/// A node's end of the store: requests wait here until the call is over.
#[derive(Debug, Default)]
pub(super) struct Port {
    tickets: u64,
    out: Vec<(Ticket, Request)>,
}

impl Store for Port {
    fn submit(&mut self, request: Request) -> Ticket {
        self.tickets += 1;
        self.out.push((Ticket(self.tickets), request));
        Ticket(self.tickets)
    }

    fn poll(&mut self) -> Option<Event> {
        None
    }
}

impl World {
    pub(super) fn port(&mut self, node: Node) -> Port {
        std::mem::take(self.ports.get_mut(&node).unwrap())
    }

    pub(super) fn life(&self, node: Node) -> Option<u64> {
        match node {
            Node::Member(at) => self.members[at].up.then_some(self.members[at].life),
            Node::Client(at) => self.clients[at].up.then_some(self.clients[at].life),
            Node::Controller(at) => Some(self.controllers[at].1),
            Node::Store => None,
        }
    }

    pub(super) fn return_port(&mut self, node: Node, mut port: Port) {
        let Some(life) = self.life(node) else { return };
        for (ticket, request) in port.out.drain(..) {
            if self.reaches(node, Node::Store) {
                let delay = self.rng.range(150, 800);
                self.after(delay, What::ToStore(node, life, ticket, request));
            } else {
                self.stats.requests_lost += 1;
            }
        }
        self.ports.insert(node, port);
    }

    pub(super) fn store(&mut self, node: Node, life: u64, ticket: Ticket, request: &Request) {
        let answer = self.ledger.apply(self.now, request);
        if let Request::Watch { prefix } = request {
            let digest = self.ledger.digest(prefix);
            self.watches.push((node, life, prefix.clone(), digest));
        }
        self.tell_watchers();
        self.tell(node, life, Event::Answer(ticket, answer));
    }

    pub(super) fn tell(&mut self, node: Node, life: u64, event: Event) {
        if self.reaches(Node::Store, node) {
            let delay = self.rng.range(150, 800);
            self.after(delay, What::FromStore(node, life, event));
        } else if matches!(event, Event::Answer(..)) {
            self.stats.answers_lost += 1;
        }
    }

    pub(super) fn tell_watchers(&mut self) {
        let mut watches = std::mem::take(&mut self.watches);
        watches.retain(|(node, life, ..)| self.life(*node) == Some(*life));
        for (node, life, prefix, seen) in &mut watches {
            let digest = self.ledger.digest(prefix);
            if std::mem::replace(seen, digest) != digest {
                let prefix = prefix.clone();
                self.tell(*node, *life, Event::Changed { prefix });
            }
        }
        self.watches = watches;
    }
}
