//! Two queue pairs joined in memory, for tests and documents.

use std::collections::VecDeque;

use super::transport::Transport;
use crate::addr::Time;
use crate::connection::SocketState;

/// Bytes that a side hands over at once.
const TRANSMIT_LIMIT: usize = 64 << 10;

#[derive(Debug)]
struct End {
    transport: Transport,
    /// Sent and not delivered.
    wire: VecDeque<u8>,
    fin: bool,
    fin_delivered: bool,
}

impl End {
    fn new(transport: Transport) -> Self {
        Self {
            transport,
            wire: VecDeque::new(),
            fin: false,
            fin_delivered: false,
        }
    }

    fn transmit(&mut self, now: Time) -> bool {
        let mut out = Vec::new();
        self.transport.poll_transmit(now, &mut out, TRANSMIT_LIMIT);
        if !self.fin {
            self.wire.extend(&out);
        }
        self.fin |= self.transport.socket_state() != SocketState::Open;
        !out.is_empty()
    }

    fn receive(&mut self, now: Time, from: &mut Self) -> bool {
        let bytes: Vec<u8> = from.wire.drain(..).collect();
        // Without pages nothing is ever parked: all is taken.
        let taken = self.transport.handle_bytes(now, &bytes);
        debug_assert!(taken == bytes.len());
        let ends = from.fin && !from.fin_delivered;
        if ends {
            from.fin_delivered = true;
            self.transport.handle_eof(now);
        }
        taken > 0 || ends
    }
}

/// Moves the bytes of two queue pairs when it is told to. Time stands still.
#[derive(Debug)]
pub struct Cable {
    a: End,
    b: End,
}

impl Cable {
    /// Joins them.
    #[must_use]
    pub fn new(a: Transport, b: Transport) -> Self {
        let (a, b) = (End::new(a), End::new(b));
        Self { a, b }
    }

    /// Moves bytes until nothing happens by itself any more.
    pub fn run(&mut self) {
        let now = Time(0);
        loop {
            let mut moved = self.a.transmit(now);
            moved |= self.b.receive(now, &mut self.a);
            moved |= self.b.transmit(now);
            moved |= self.a.receive(now, &mut self.b);
            if !moved {
                return;
            }
        }
    }
}
