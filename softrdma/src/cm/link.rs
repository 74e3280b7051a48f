//! One connection: its socket, its queue pair's transport, and how far it is.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use mio::net::TcpStream;

use crate::addr::Time;
use crate::connection::SocketState;
use crate::verbs::{Closing, Connecting, Listening, QueuePair, Transport};

/// Bytes handed to the socket at once.
const SEND_BYTES: usize = 256 << 10;
/// Bytes received before others get their turn.
const RECV_BYTES: usize = 1 << 20;

/// How far a connection is, with the queue pair while the channel keeps it.
#[derive(Debug)]
pub(super) enum Stage {
    /// TCP is being connected; these addresses are left to try.
    Dialling(VecDeque<SocketAddr>, QueuePair<Connecting>),
    /// The request of the peer is awaited.
    Listening(QueuePair<Listening>, SocketAddr),
    /// The program has the request.
    Asked,
    /// Initiator or responder: not established yet.
    Connecting(QueuePair<Connecting>),
    /// The program has the queue pair, or has dropped it; whether it has heard of the end.
    Established { told: bool },
    /// Rejected, or disconnected by the program: the channel keeps it until it is over. Whether it was established, and
    /// whether the program has heard of the end.
    Leaving {
        _queue_pair: QueuePair<Closing>,
        established: bool,
        told: bool,
    },
    /// Over.
    Gone,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: TcpStream,
    pub(super) transport: Transport,
    pub(super) stage: Stage,
    /// Listener whose backlog it counts for.
    pub(super) waits_for: Option<super::event::Id>,
    /// Beginning of the connection's time.
    pub(super) base: Time,
    /// As in the set of timers.
    pub(super) timer: Option<Time>,
    /// When it is forgotten even if the peer does not take the last bytes.
    pub(super) linger: Option<Time>,
    /// The thread has been told that there is work.
    pub(super) rung: Arc<AtomicBool>,
    out: Vec<u8>,
    sent: usize,
    eof: bool,
    write_shut: bool,
}

impl Link {
    pub(super) fn new(socket: TcpStream, transport: Transport, stage: Stage, base: Time) -> Self {
        Self {
            socket,
            transport,
            stage,
            waits_for: None,
            base,
            timer: None,
            linger: None,
            rung: Arc::default(),
            out: Vec::new(),
            sent: 0,
            eof: false,
            write_shut: false,
        }
    }

    /// Moves bytes both ways as far as the socket goes. True if there may be more to receive.
    pub(super) fn pump(&mut self, now: Time, input: &mut [u8]) -> bool {
        let more = self.receive(now, input);
        self.transmit(now);
        more
    }

    fn receive(&mut self, now: Time, input: &mut [u8]) -> bool {
        let mut total = 0;
        while !self.eof && total < RECV_BYTES {
            match self.socket.read(input) {
                Ok(0) => {
                    self.eof = true;
                    self.transport.handle_eof(now);
                }
                Ok(count) => {
                    total += count;
                    // Without pages nothing is parked; what is not taken came after the end.
                    let _ = self.transport.handle_bytes(now, &input[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => self.fail(),
            }
        }
        !self.eof
    }

    fn transmit(&mut self, now: Time) {
        loop {
            if self.sent == self.out.len() {
                self.out.clear();
                self.sent = 0;
                if self.write_shut {
                    return;
                }
                self.transport.poll_transmit(now, &mut self.out, SEND_BYTES);
                if self.out.is_empty() {
                    break;
                }
            }
            match self.socket.write(&self.out[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.fail();
                    return;
                }
            }
        }
        if self.transport.socket_state() == SocketState::ShutdownWrite {
            self.write_shut = true;
            // Fails only if the connection is gone already, which the next receive reports.
            let _ = self.socket.shutdown(Shutdown::Write);
        }
    }

    fn fail(&mut self) {
        self.eof = true;
        self.write_shut = true;
        self.out.clear();
        self.sent = 0;
        self.transport.handle_transport_error();
    }

    /// The connection's time.
    pub(super) fn at(&self, now: Time) -> Time {
        Time(now.0.saturating_sub(self.base.0))
    }

    /// When it is to be looked at without anything happening.
    pub(super) fn due(&self) -> Option<Time> {
        let due = self.transport.poll_timeout();
        let due = due.map(|at| Time(self.base.0.saturating_add(at.0)));
        [due, self.linger].into_iter().flatten().min()
    }

    /// The connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.transport.socket_state() == SocketState::Close
    }

    /// Nothing is left to send.
    pub(super) fn is_drained(&self) -> bool {
        self.sent == self.out.len()
    }
}
