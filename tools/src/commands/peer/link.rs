//! One connection with a foreign program, from either side: one thread, blocking calls.
//!
//! Every call runs the connection until what it waits for has happened, the connection has ended, or the patience of its
//! [`Manner`] is at an end.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use softrdma::{
    Buffer, CloseReason, Completion, CompletionOpcode, Connection, Established, Event, LocalSlice,
    MemoryRegion, NoPages, Operation, ProtectionDomain, RecvBuffer, RegionSpec, RegionTable,
    RemoteAddr, Rights, SocketState, Source, TaggedOffset, Time, WorkRequest, WrId,
};

use super::manner::{Agreed, Manner, parse_request};

/// Bytes received or sent by one system call.
const IO_BYTES: usize = 64 << 10;
/// Pause between two looks at a socket that gives or takes nothing.
const SLICE: Duration = Duration::from_millis(5);
/// Pause before the next try to reach somebody who does not listen yet.
const RETRY: Duration = Duration::from_millis(50);

/// What a program brings along to a connection.
#[derive(Clone, Debug)]
pub(super) struct Plan<'a> {
    pub(super) manner: &'a Manner,
    pub(super) table: &'a Arc<RegionTable>,
    /// Receives posted from the start, and again for each message taken.
    pub(super) receives: usize,
    /// Largest message expected.
    pub(super) message_bytes: usize,
    pub(super) private_data: &'a [u8],
}

/// Memory that the peer may use.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) buffer: Arc<Buffer>,
    pub(super) region: MemoryRegion,
}

impl Shared {
    /// `len` bytes, named by their virtual address, as programs over verbs do.
    pub(super) fn new(table: &RegionTable, len: usize, rights: Rights) -> Result<Self> {
        let buffer = Buffer::zeroed(len);
        let mut spec = RegionSpec::memory(ProtectionDomain(0), rights, &buffer);
        spec.base = TaggedOffset(buffer.address());
        let region = table.register(spec)?;
        Ok(Self { buffer, region })
    }

    /// Copies out all bytes.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.buffer.to_vec(0, self.buffer.len())
    }
}

/// Nobody said a byte, however often it was tried.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("nobody listens at {0}")]
pub(super) struct Unheard(SocketAddr);

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    connection: Connection<NoPages>,
    socket: TcpStream,
    patience: Duration,
    epoch: Instant,
    message_bytes: usize,
    established: Option<Established>,
    /// Revision and offer of the Request.
    request: Option<(u8, Option<softrdma::wire::start::RtrKinds>)>,
    /// Private data of the peer.
    private_data: Vec<u8>,
    /// A Request waits for an answer.
    asked: bool,
    messages: VecDeque<Vec<u8>>,
    done: VecDeque<Completion>,
    next_id: u64,
    peer_finished: bool,
    ended: Option<CloseReason>,
    heard: bool,
    /// What has come of the Request.
    start: Vec<u8>,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    fin_sent: bool,
}

impl Link {
    /// Connects to a program, which may not listen yet.
    pub(super) fn connect(address: SocketAddr, plan: &Plan<'_>) -> Result<Self> {
        let deadline = Instant::now() + plan.manner.patience;
        loop {
            match Self::try_connect(address, plan) {
                Ok(link) => return Ok(link),
                // Whoever forwards the port accepts for a program that does not listen yet, and closes at once.
                Err(Attempt::NobodyThere(error)) if Instant::now() >= deadline => {
                    return Err(error.context(Unheard(address)));
                }
                Err(Attempt::NobodyThere(_)) => thread::sleep(RETRY),
                Err(Attempt::Failed(error)) => return Err(error),
            }
        }
    }

    fn try_connect(address: SocketAddr, plan: &Plan<'_>) -> Result<Self, Attempt> {
        let patience = plan.manner.patience;
        let socket = TcpStream::connect_timeout(&address, patience)
            .map_err(|error| Attempt::NobodyThere(error.into()))?;
        let mut link = Self::initiator(socket, plan)?;
        let deadline = Instant::now() + patience;
        while link.established.is_none() {
            if let Err(error) = link.turn(deadline) {
                return Err(match link.ended {
                    Some(CloseReason::Lost) if !link.heard => Attempt::NobodyThere(error),
                    _ => Attempt::Failed(error.context("set-up")),
                });
            }
        }
        // The ready-to-receive frame, which the peer may be waiting for.
        link.transmit(deadline)?;
        Ok(link)
    }

    fn initiator(socket: TcpStream, plan: &Plan<'_>) -> Result<Self> {
        let config = plan.manner.config();
        let mut connection = Connection::initiator(config, plan.table, plan.private_data, Time(0))?;
        let mut request = Vec::new();
        connection.poll_transmit(Time(0), &mut NoPages, &mut request, IO_BYTES);
        let mut link = Self::new(connection, socket, plan)?;
        link.output = plan.manner.offer(&request);
        link.request = parse_request(&link.output);
        Ok(link)
    }

    /// Waits for a program that connects, and for its Request. `answer` is next.
    pub(super) fn accept(listener: &TcpListener, plan: &Plan<'_>) -> Result<Self> {
        let deadline = Instant::now() + plan.manner.patience;
        listener.set_nonblocking(true)?;
        let socket = loop {
            match listener.accept() {
                Ok((socket, _)) => break socket,
                Err(error) if is_pause(&error) => {}
                Err(error) => return Err(error).context("accept"),
            }
            if Instant::now() >= deadline {
                bail!("nobody connects within {:?}", plan.manner.patience);
            }
            thread::sleep(SLICE);
        };
        let connection = Connection::responder(plan.manner.config(), plan.table, Time(0));
        let mut link = Self::new(connection, socket, plan)?;
        while !link.asked {
            link.turn(deadline).context("set-up")?;
        }
        Ok(link)
    }

    fn new(connection: Connection<NoPages>, socket: TcpStream, plan: &Plan<'_>) -> Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(SLICE))?;
        socket.set_write_timeout(Some(SLICE))?;
        let mut link = Self {
            connection,
            socket,
            patience: plan.manner.patience,
            epoch: Instant::now(),
            message_bytes: plan.message_bytes,
            established: None,
            request: None,
            private_data: Vec::new(),
            asked: false,
            messages: VecDeque::new(),
            done: VecDeque::new(),
            next_id: 0,
            peer_finished: false,
            ended: None,
            heard: false,
            start: Vec::new(),
            input: vec![0; IO_BYTES],
            output: Vec::new(),
            sent: 0,
            fin_sent: false,
        };
        for _ in 0..plan.receives {
            link.post_receive()?;
        }
        Ok(link)
    }

    /// Private data of the peer's Request or Reply.
    pub(super) fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Accepts the Request, and returns when the connection is established.
    pub(super) fn answer(&mut self, private_data: &[u8]) -> Result<()> {
        self.connection.accept(private_data)?;
        let deadline = self.deadline();
        self.transmit(deadline)?;
        self.drain();
        while self.established.is_none() {
            self.turn(deadline).context("set-up")?;
        }
        Ok(())
    }

    /// Lets the connection do what is due by time, before another one has all the attention.
    pub(super) fn settle(&mut self) -> Result<()> {
        let deadline = self.deadline();
        while self.ended.is_none() && self.connection.poll_timeout().is_some() {
            self.turn(deadline)?;
        }
        Ok(())
    }

    /// What was agreed on. Of an established connection.
    pub(super) fn agreed(&self) -> Result<Agreed> {
        let (Some((revision, offered)), Some(established)) = (self.request, &self.established)
        else {
            bail!("the connection is not established");
        };
        Ok(Agreed {
            revision,
            offered,
            crc: established.crc,
        })
    }

    /// READs that may be outstanding at the peer.
    pub(super) fn reads(&self) -> u16 {
        self.established.as_ref().map_or(0, |agreed| agreed.ord)
    }

    /// Has the peer shown, or promised to show, that it takes frames?
    pub(super) fn knows_peer_is_ready(&self) -> bool {
        matches!(self.request, Some((_, Some(_))))
    }

    /// Has a message of the peer arrived? Lets the connection work for a moment.
    pub(super) fn has_message(&mut self) -> Result<bool> {
        self.idle()?;
        Ok(!self.messages.is_empty())
    }

    /// Lets the connection work for a moment, for the peer's sake.
    pub(super) fn idle(&mut self) -> Result<()> {
        self.turn(self.deadline())
    }

    /// SENDs a message.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<()> {
        self.post_send(message)?;
        self.complete("SEND")
    }

    /// Posts a message that `complete` waits for.
    pub(super) fn post_send(&mut self, message: &[u8]) -> Result<()> {
        self.post(Operation::Send {
            source: Source::Bytes(message.to_vec()),
            solicited: false,
            invalidate: None,
        })
    }

    /// WRITEs bytes. They are on their way when it returns.
    pub(super) fn write(&mut self, bytes: &[u8], remote: RemoteAddr) -> Result<()> {
        self.post(Operation::Write {
            source: Source::Bytes(bytes.to_vec()),
            remote,
        })?;
        self.complete("WRITE")
    }

    /// READs bytes.
    pub(super) fn read(&mut self, len: usize, remote: RemoteAddr) -> Result<Vec<u8>> {
        let sink = Buffer::zeroed(len);
        self.post(Operation::Read {
            sink: LocalSlice::whole(&sink),
            remote,
        })?;
        self.complete("READ")?;
        Ok(sink.to_vec(0, len))
    }

    /// The next message of the peer.
    pub(super) fn recv(&mut self) -> Result<Vec<u8>> {
        self.recv_or_end()?
            .ok_or_else(|| anyhow!("the peer ended the connection where a message was due"))
    }

    /// The next message of the peer, or none when it has ended in order.
    pub(super) fn recv_or_end(&mut self) -> Result<Option<Vec<u8>>> {
        let deadline = self.deadline();
        loop {
            if let Some(message) = self.messages.pop_front() {
                if !self.peer_finished && self.ended.is_none() {
                    self.post_receive()?;
                }
                return Ok(Some(message));
            }
            if self.peer_finished {
                return Ok(None);
            }
            self.turn(deadline).context("waiting for a message")?;
        }
    }

    /// A message of exactly `N` bytes.
    pub(super) fn recv_array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let message = self.recv()?;
        let len = message.len();
        <[u8; N]>::try_from(message).map_err(|_| anyhow!("a message of {len} bytes, not of {N}"))
    }

    /// Ends in order, and waits until the peer has, too.
    pub(super) fn close(mut self) -> Result<()> {
        self.connection.disconnect();
        self.wait_for_end()
    }

    /// The same where the peer may end without reading all, which resets the connection.
    pub(super) fn close_or_reset(mut self) -> Result<()> {
        self.connection.disconnect();
        match self.wait_for_end() {
            Err(_) if self.ended == Some(CloseReason::Lost) => Ok(()),
            outcome => outcome,
        }
    }

    /// Is it over, however it ended?
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Waits until the peer ends in order.
    pub(super) fn until_closed(mut self) -> Result<()> {
        self.wait_for_end()
    }

    fn wait_for_end(&mut self) -> Result<()> {
        let deadline = self.deadline();
        while self.ended.is_none() {
            // An error that is not the end says so itself.
            if let Err(error) = self.turn(deadline)
                && self.ended.is_none()
            {
                return Err(error).context("waiting for the end");
            }
        }
        match &self.ended {
            Some(CloseReason::Graceful) => Ok(()),
            _ => Err(self.end()),
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.patience
    }

    fn end(&self) -> anyhow::Error {
        let reason = self.ended.clone().unwrap_or(CloseReason::Lost);
        anyhow!("the connection ended: {reason}")
    }

    fn post_receive(&mut self) -> Result<()> {
        let buffer = RecvBuffer::Vec(self.message_bytes);
        self.connection.post_recv(WrId(0), buffer)?;
        Ok(())
    }

    fn post(&mut self, op: Operation) -> Result<()> {
        self.next_id += 1;
        match self
            .connection
            .post_send(WorkRequest::new(WrId(self.next_id), op))
        {
            Err(softrdma::PostError::NotOpen) if self.ended.is_some() => Err(self.end()),
            outcome => Ok(outcome?),
        }
    }

    /// Waits for the oldest operation posted.
    pub(super) fn complete(&mut self, what: &str) -> Result<()> {
        let deadline = self.deadline();
        loop {
            if let Some(done) = self.done.pop_front() {
                if done.status.is_success() {
                    return Ok(());
                }
                self.drain();
                let why = self.ended.as_ref().map(ToString::to_string);
                bail!("{what}: {} ({})", done.status, why.unwrap_or_default());
            }
            self.turn(deadline).with_context(|| what.to_owned())?;
        }
    }

    fn now(&self) -> Time {
        Time(0) + self.epoch.elapsed()
    }

    /// Sends what is ready, then receives once, unless there is news already.
    fn turn(&mut self, deadline: Instant) -> Result<()> {
        let before = self.news();
        self.transmit(deadline)?;
        self.drain();
        if self.news() != before {
            return Ok(());
        }
        if self.ended.is_some() {
            return Err(self.end());
        }
        if Instant::now() >= deadline {
            bail!("no progress within {:?}", self.patience);
        }
        self.receive()?;
        self.drain();
        Ok(())
    }

    /// Changes with everything that somebody may wait for.
    fn news(&self) -> (usize, usize, bool, bool, bool) {
        (
            self.messages.len(),
            self.done.len(),
            self.established.is_some(),
            self.asked,
            self.peer_finished,
        )
    }

    fn drain(&mut self) {
        while let Some(completion) = self.connection.poll_completion() {
            if completion.opcode != CompletionOpcode::Recv {
                self.done.push_back(completion);
            } else if let Some(message) = completion.message {
                self.messages.push_back(message);
            }
        }
        while let Some(event) = self.connection.poll_event() {
            match event {
                Event::ConnectRequest(request) => {
                    self.asked = true;
                    self.private_data = request.private_data;
                }
                Event::Established(established) => {
                    if !self.asked {
                        self.private_data.clone_from(&established.private_data);
                    }
                    self.established = Some(established);
                }
                Event::PeerFinished => self.peer_finished = true,
                // Nothing here shares a queue.
                Event::SharedReceivesLow => {}
                Event::Closed(reason) => {
                    self.peer_finished |= reason == CloseReason::Graceful;
                    self.ended = Some(reason);
                }
            }
        }
    }

    fn transmit(&mut self, deadline: Instant) -> Result<()> {
        loop {
            if self.sent == self.output.len() {
                self.output.clear();
                self.sent = 0;
                let now = self.now();
                self.connection
                    .poll_transmit(now, &mut NoPages, &mut self.output, IO_BYTES);
                if self.output.is_empty() {
                    break;
                }
            }
            match self.socket.write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                // Two sides with full buffers must not wait for each other.
                Err(error) if is_pause(&error) && Instant::now() < deadline => self.receive()?,
                Err(error) if is_pause(&error) => bail!("the peer takes no more bytes"),
                Err(_) => {
                    self.connection.handle_transport_error();
                    self.output.clear();
                    self.sent = 0;
                    break;
                }
            }
        }
        if self.connection.socket_state() != SocketState::Open && !self.fin_sent {
            self.fin_sent = true;
            // Fails only if the connection is gone already, which the next receive reports.
            let _ = self.socket.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        let result = self.socket.read(&mut self.input);
        let now = self.now();
        match result {
            Ok(0) => self.connection.handle_eof(now),
            Ok(count) => {
                if self.request.is_none() {
                    self.start.extend_from_slice(&self.input[..count]);
                    self.request = parse_request(&self.start);
                }
                self.heard = true;
                // Without pages the inbound side never parks, so all is taken.
                self.connection
                    .handle_bytes(now, &mut NoPages, &self.input[..count]);
            }
            Err(error) if is_pause(&error) => self.connection.handle_timeout(now),
            Err(_) => self.connection.handle_transport_error(),
        }
        Ok(())
    }
}

/// Why a try to connect came to nothing.
enum Attempt {
    NobodyThere(anyhow::Error),
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Attempt {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use softrdma::Revision;

    use super::*;
    use crate::cli::peer::{Fpdu, Rtr};

    /// TCP may cut a Request into segments wherever it likes: what was asked for is known all the same.
    #[test]
    fn a_request_in_segments() {
        let manner = Manner {
            crc: false,
            revision: Revision::Two,
            rtr: Rtr::None,
            fpdu: Fpdu::Mss,
            reads: 16,
            sends_first: false,
            patience: Duration::from_secs(20),
        };
        let table = RegionTable::new([1; 32]);
        let plan = Plan {
            manner: &manner,
            table: &table,
            receives: 0,
            message_bytes: 0,
            private_data: &[],
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peer = thread::spawn(move || {
            let mut peer = TcpStream::connect(address).unwrap();
            peer.set_nodelay(true).unwrap();
            for byte in *b"MPA ID Req Frame\x00\x01\x00\x00" {
                peer.write_all(&[byte]).unwrap();
                thread::sleep(Duration::from_millis(2));
            }
            let mut reply = [0; 20];
            peer.read_exact(&mut reply).unwrap();
            assert!(reply.starts_with(b"MPA ID Rep Frame"));
        });
        let mut link = Link::accept(&listener, &plan).unwrap();
        link.answer(&[]).unwrap();
        assert_eq!(link.agreed().unwrap().revision, 1);
        peer.join().unwrap();
    }
}
