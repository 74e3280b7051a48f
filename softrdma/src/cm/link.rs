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
    /// While it leaves, and the socket does not take what there is, or nothing is left to send but answers of the peer are to come:
    /// when something moved last, or was first waited for.
    stalled: Option<Time>,
    out: Vec<u8>,
    sent: usize,
    eof: bool,
    write_shut: bool,
}

impl Link {
    pub(super) fn new(
        socket: TcpStream,
        transport: Transport,
        stage: Stage,
        base: Time,
        rung: Arc<AtomicBool>,
    ) -> Self {
        Self {
            socket,
            transport,
            stage,
            waits_for: None,
            base,
            timer: None,
            linger: None,
            rung,
            stalled: None,
            out: Vec::new(),
            sent: 0,
            eof: false,
            write_shut: false,
        }
    }

    /// Moves bytes both ways as far as the socket goes. True if there may be more to receive.
    pub(super) fn pump(&mut self, now: Time, input: &mut [u8]) -> bool {
        let (more, heard) = self.receive(now, input);
        self.send(now, heard, input);
        more && !self.eof
    }

    /// Whether there may be more, and whether there was anything.
    fn receive(&mut self, now: Time, input: &mut [u8]) -> (bool, bool) {
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
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return (false, total > 0);
                }
                Err(_) => self.fail(),
            }
        }
        (!self.eof, total > 0)
    }

    fn send(&mut self, now: Time, heard: bool, input: &mut [u8]) {
        if self.transmit(now, heard).is_ok() {
            return;
        }
        // What the peer has said before it reset the connection explains that.
        while let Ok(count @ 1..) = self.socket.read(input) {
            let _ = self.transport.handle_bytes(now, &input[..count]);
        }
        self.fail();
    }

    fn transmit(&mut self, now: Time, heard: bool) -> io::Result<()> {
        let mut took = false;
        loop {
            if self.sent == self.out.len() {
                self.out.clear();
                self.sent = 0;
                if self.write_shut {
                    return Ok(());
                }
                self.transport.poll_transmit(now, &mut self.out, SEND_BYTES);
                if self.out.is_empty() {
                    break;
                }
            }
            match self.socket.write(&self.out[self.sent..]) {
                Ok(count) => {
                    self.sent += count;
                    took |= count > 0;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait_for_peer(now, took);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        match self.transport.awaits_answers() {
            true => self.wait_for_peer(now, took || heard),
            false => self.stalled = None,
        }
        if self.transport.socket_state() == SocketState::ShutdownWrite {
            self.write_shut = true;
            // Fails only if the connection is gone already, which the next receive reports.
            let _ = self.socket.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    /// The socket is full, or the peer has to answer. Of one that leaves nobody waits for more than a byte at a time: the program has
    /// given it away and could not end it, and a peer that does not read, or does not answer, would keep it for ever.
    fn wait_for_peer(&mut self, now: Time, moved: bool) {
        if !matches!(self.stage, Stage::Leaving { .. }) {
            return;
        }
        if moved {
            self.stalled = Some(now);
        }
        let since = *self.stalled.get_or_insert(now);
        if since + self.transport.close_timeout() <= now {
            self.cut();
            self.transport.handle_stall();
        }
    }

    fn fail(&mut self) {
        self.cut();
        self.transport.handle_transport_error();
    }

    /// Nothing is received or sent any more.
    fn cut(&mut self) {
        self.eof = true;
        self.write_shut = true;
        self.stalled = None;
        self.out.clear();
        self.sent = 0;
    }

    /// The connection's time.
    pub(super) fn at(&self, now: Time) -> Time {
        Time(now.0.saturating_sub(self.base.0))
    }

    /// When it is to be looked at without anything happening.
    pub(super) fn due(&self) -> Option<Time> {
        let stalled = self.stalled.map(|at| at + self.transport.close_timeout());
        let due = [self.transport.poll_timeout(), stalled];
        let due = due.into_iter().flatten().min();
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::addr::{Msn, Stag, TaggedOffset};
    use crate::config::Config;
    use crate::event::{CloseReason, Event};
    use crate::verbs::request::SendMessage;
    use crate::verbs::{Cable, CompletionQueue, Context, Step};
    use crate::wire::ddp::{Tagged, Untagged};
    use crate::wire::fpdu;
    use crate::wire::rdmap::Opcode;
    use crate::wire::terminate::{Terminate, TerminateCode};

    /// More than sockets hold.
    const MESSAGES: usize = 64;
    const MESSAGE_BYTES: usize = 1 << 20;
    /// Of a test that would hang.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A connection that has much to send and leaves, and the socket of its peer.
    fn leaving() -> (Link, std::net::TcpStream) {
        let domain = Context::new([1; 32]).allocate_domain();
        let completions = CompletionQueue::new();
        let pair = || domain.queue_pair(Config::default(), &completions);
        let (ours, theirs) = (pair().connect(b"").unwrap(), pair().listen());
        let mut cable = Cable::new(ours.transport(), theirs.transport());
        cable.run();
        let Step::Ready(request) = theirs.poll() else {
            panic!("a request")
        };
        let _theirs = request.accept(b"").unwrap();
        cable.run();
        let Step::Ready(mut ours) = ours.poll() else {
            panic!("established")
        };
        for _ in 0..MESSAGES {
            let message = SendMessage::new(vec![0; MESSAGE_BYTES]);
            ours.post_send(message).unwrap();
        }
        let transport = ours.transport();
        let stage = Stage::Leaving {
            _queue_pair: ours.disconnect(),
            established: true,
            told: false,
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = TcpStream::from_std(socket);
        let link = Link::new(socket, transport, stage, Time(0), Arc::default());
        (link, peer)
    }

    /// A connection that leaves is waited for as long as its socket takes bytes, all in all for much longer than
    /// `close_timeout`; once it takes none for that long, it is over (I16).
    #[test]
    fn an_end_that_moves_is_waited_for() {
        let timeout = Config::default().close_timeout;
        let (mut link, mut peer) = leaving();
        let mut input = vec![0; 4096];
        let mut bytes = vec![0; 256 << 10];
        let mut now = Time(0);
        link.pump(now, &mut input);
        for _ in 0..5 {
            let due = now + timeout;
            assert_eq!(link.due(), Some(due));
            now = Time(due.0 - 1);
            link.pump(now, &mut input);
            assert!(!link.is_closed());
            while link.due() != Some(now + timeout) {
                peer.read_exact(&mut bytes).unwrap();
                link.pump(now, &mut input);
            }
        }
        assert_eq!(link.transport.poll_event(), None);
        // What the kernel still makes room for counts, but it has an end.
        while !link.is_closed() {
            now = link.due().expect("a deadline");
            link.pump(now, &mut input);
        }
        let ended = Event::Closed(CloseReason::TimedOut);
        assert_eq!(link.transport.poll_event(), Some(ended));
        assert!(link.is_drained());
        assert_eq!(link.due(), None);
    }
    /// A peer that does not read is not waited for because it goes on sending (I16).
    #[test]
    fn who_sends_and_does_not_read_is_not_waited_for() {
        let timeout = Config::default().close_timeout;
        let (mut link, mut peer) = leaving();
        peer.set_nodelay(true).unwrap();
        let mut input = vec![0; 4096];
        let mut write = Vec::new();
        let at = fpdu::open(&mut write);
        Tagged {
            opcode: Opcode::Write,
            last: true,
            stag: Stag(1),
            to: TaggedOffset(0),
            payload: &[],
        }
        .emit_header(&mut write);
        fpdu::seal(&mut write, at, true);
        let mut now = Time(0);
        let half = Duration::from_nanos(timeout.as_nanos() as u64 / 2);
        // The kernel makes room for a little more now and then.
        for _ in 0..1_000 {
            peer.write_all(&write).unwrap();
            link.pump(now, &mut input);
            if link.is_closed() {
                let ended = Event::Closed(CloseReason::TimedOut);
                assert_eq!(link.transport.poll_event(), Some(ended));
                return;
            }
            now = now + half;
        }
        panic!("waited for ever");
    }

    /// What a peer said last is heard although it has reset the connection before we could send what it did not want.
    #[test]
    fn last_words_in_front_of_a_reset() {
        let (mut link, mut peer) = leaving();
        let mut input = vec![0; 4096];
        link.pump(Time(0), &mut input);
        let mut terminate = Vec::new();
        let at = fpdu::open(&mut terminate);
        Untagged {
            opcode: Opcode::Terminate,
            last: true,
            invalidate: Stag(0),
            msn: Msn::FIRST,
            offset: 0,
            payload: &[],
        }
        .emit_header(&mut terminate);
        Terminate::emit(TerminateCode::UntaggedNoBuffer, None, &mut terminate);
        fpdu::seal(&mut terminate, at, true);
        peer.write_all(&terminate).unwrap();
        // With bytes that it has not read.
        drop(peer);
        while !link.is_closed() {
            link.send(Time(0), false, &mut input);
        }
        let Some(Event::Closed(CloseReason::TerminateReceived(why))) = link.transport.poll_event()
        else {
            panic!("a Terminate")
        };
        assert_eq!(why.code(), Some(TerminateCode::UntaggedNoBuffer));
    }
}
