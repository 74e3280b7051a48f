//! A store for one.

use std::collections::VecDeque;
use std::time::Duration;

use offload_chain::config::{Event, Ledger, Request, Store, Ticket};

/// A store that answers when it is looked at, and loses what it is told to.
#[derive(Debug, Default)]
pub struct Near {
    pub ledger: Ledger,
    tickets: u64,
    answers: VecDeque<Event>,
    /// So many puts and deletions of keys that begin so do not arrive.
    pub loses: (&'static str, usize),
}

impl Near {
    pub fn losing(prefix: &'static str, requests: usize) -> Self {
        Self {
            loses: (prefix, requests),
            ..Self::default()
        }
    }
}

impl Store for Near {
    fn submit(&mut self, request: Request) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let (prefix, left) = &mut self.loses;
        let change = match &request {
            Request::Put { key, .. } | Request::Delete { key, .. } => key.starts_with(*prefix),
            _ => false,
        };
        if change && *left > 0 {
            *left -= 1;
            return ticket;
        }
        let answer = self.ledger.apply(Duration::ZERO, &request);
        self.answers.push_back(Event::Answer(ticket, answer));
        ticket
    }

    fn poll(&mut self) -> Option<Event> {
        self.answers.pop_front()
    }
}
