//! Two connections joined in memory, in virtual time.
//!
//! Bytes are delivered in pieces of at most a chosen size, and time passes only when told. What a test or a document
//! wants to see in between, it looks at in the two sides.

use std::collections::VecDeque;

use crate::addr::Time;
use crate::connection::{Connection, SocketState};
use crate::page::PageStore;

/// Bytes that a side hands over at once.
const TRANSMIT_LIMIT: usize = 256 << 10;

/// One end.
#[derive(Debug)]
pub struct Side<S: PageStore> {
    /// The connection.
    pub connection: Connection<S>,
    /// Its pages.
    pub pages: S,
    /// Sent by this side and not delivered yet.
    wire: VecDeque<u8>,
    /// FIN goes behind what is on the wire.
    fin: bool,
    fin_delivered: bool,
}

impl<S: PageStore> Side<S> {
    fn new(connection: Connection<S>, pages: S) -> Self {
        Self {
            connection,
            pages,
            wire: VecDeque::new(),
            fin: false,
            fin_delivered: false,
        }
    }

    fn transmit(&mut self, now: Time, scratch: &mut Vec<u8>) -> bool {
        scratch.clear();
        self.connection
            .poll_transmit(now, &mut self.pages, scratch, TRANSMIT_LIMIT);
        if !self.fin {
            self.wire.extend(scratch.iter());
        }
        self.fin |= self.connection.socket_state() != SocketState::Open;
        !scratch.is_empty()
    }

    /// Delivers what `from` has on the wire. True if anything happened.
    fn receive<T: PageStore>(&mut self, now: Time, from: &mut Side<T>, chunk: usize) -> bool {
        let mut moved = false;
        while !from.wire.is_empty() && self.connection.wants_input() {
            let piece: Vec<u8> = from.wire.iter().take(chunk.max(1)).copied().collect();
            let taken = self.connection.handle_bytes(now, &mut self.pages, &piece);
            from.wire.drain(..taken);
            moved |= taken > 0;
            if taken < piece.len() {
                break;
            }
        }
        if from.wire.is_empty() && from.fin && !from.fin_delivered {
            from.fin_delivered = true;
            self.connection.handle_eof(now);
            moved = true;
        }
        moved
    }

    /// Bytes sent and not delivered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.wire.len()
    }
}

/// An initiator and a responder.
#[derive(Debug)]
pub struct Pair<A: PageStore, B: PageStore> {
    /// The initiator.
    pub a: Side<A>,
    /// The responder.
    pub b: Side<B>,
    /// Virtual time.
    pub now: Time,
    /// Largest piece delivered at once.
    pub chunk: usize,
    scratch: Vec<u8>,
}

impl<A: PageStore, B: PageStore> Pair<A, B> {
    /// Joins two connections.
    #[must_use]
    pub fn new(a: Connection<A>, a_pages: A, b: Connection<B>, b_pages: B) -> Self {
        let (a, b) = (Side::new(a, a_pages), Side::new(b, b_pages));
        Self {
            a,
            b,
            now: Time(0),
            chunk: 64 << 10,
            scratch: Vec::new(),
        }
    }

    /// Moves bytes both ways once. True if anything happened.
    pub fn step(&mut self) -> bool {
        let mut moved = self.a.transmit(self.now, &mut self.scratch);
        moved |= self.b.receive(self.now, &mut self.a, self.chunk);
        moved |= self.b.transmit(self.now, &mut self.scratch);
        moved | self.a.receive(self.now, &mut self.b, self.chunk)
    }

    /// Moves bytes until nothing happens by itself any more.
    pub fn run(&mut self) {
        while self.step() {}
    }

    /// Lets time pass until the next deadline of either side. False if there is none.
    pub fn advance(&mut self) -> bool {
        let deadlines = [
            self.a.connection.poll_timeout(),
            self.b.connection.poll_timeout(),
        ];
        let Some(next) = deadlines.into_iter().flatten().min() else {
            return false;
        };
        self.now = self.now.max(next);
        self.a.connection.handle_timeout(self.now);
        self.b.connection.handle_timeout(self.now);
        true
    }
}
