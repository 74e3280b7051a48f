//! A connection to a target: control requests and one-sided transfers, one thread, blocking.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use softrdma::{
    Buffer, CloseReason, Completion, CompletionOpcode, Config, Connection, Event, LocalSlice,
    NoPages, Operation, PostError, RecvBuffer, RegionTable, RemoteAddr, Source, Stag, TaggedOffset,
    Time, WorkRequest, WrId,
};

use crate::control::{Entry, MESSAGE_BYTES_MAX, OUTSTANDING_MAX, Reply, Request};
use crate::credentials::Denial;
use crate::error::ClientError;
use crate::listing::Listing;
use flashnet_reactor::{LinkTag, Net, Notice, Ring, Tag, Waker};
use flashnet_tls::{ClientTls, HandshakeError, TlsError};
use softrdma::driver::Spin;

/// Longest wait for anything from the target.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest wait for the TCP connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest wait for TLS on it, and for the RDMA connection behind that.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Shortest of all of these.
const SHORTEST: Duration = Duration::from_secs(1);
/// Receive buffers.
const BUFFERS: u16 = 64;
/// Bytes of one transfer operation.
const CHUNK_BYTES: usize = 256 * 1024;
/// Transfer operations in flight.
const CHUNKS_IN_FLIGHT: usize = 8;

/// How a session is made.
#[derive(Clone, Debug, Default)]
pub struct SessionOptions {
    /// Ask for CRCs on the wire; without it the target decides.
    pub crc: bool,
    /// Connect by TLS.
    pub tls: Option<ClientTls>,
    /// Receive buffers of 64 KiB, a power of two [default: 64]; fewer save memory.
    pub buffers: Option<u16>,
    /// How long to look for an answer before going to sleep, while answers come as soon as that [default: [`Spin::MOST`]; zero:
    /// always sleep].
    pub spin: Option<Duration>,
    /// How long the target may be silent [default: a minute, which is the most, too]: of that an answer may take a half, and each step of
    /// connecting a sixth, but a second at least.
    pub patience: Option<Duration>,
}

impl SessionOptions {
    /// Longest wait for an answer.
    fn answer(&self) -> Duration {
        self.part(2).min(PATIENCE)
    }

    /// Longest wait for the TCP connection.
    fn connect(&self) -> Duration {
        self.part(6).min(CONNECT)
    }

    /// Longest wait for TLS, and for the RDMA connection behind it.
    fn handshake(&self) -> Duration {
        self.part(6).min(HANDSHAKE)
    }

    fn part(&self, share: u32) -> Duration {
        let all = self.patience.unwrap_or(Duration::MAX);
        (all / share).max(SHORTEST)
    }
}

/// An open region of a remote file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Names it in control requests.
    pub handle: u32,
    /// STag for plain access.
    pub stag: Stag,
    /// STag whose WRITEs are durable before anything after them runs; `stag` when the region has none.
    pub stag_sync: Stag,
    /// Tagged offset of its first byte.
    pub to: u64,
    /// Bytes registered.
    pub length: u64,
    /// Bytes in the file.
    pub size: u64,
    /// Number of the file: `st_ino` on a mount. 0: of no file.
    pub inode: u64,
}

impl RemoteFile {
    /// What a reply to an open says.
    pub(crate) fn of(reply: &Reply) -> Self {
        let stag_sync = match reply.stag_sync {
            0 => reply.stag,
            stag => stag,
        };
        Self {
            handle: reply.handle,
            stag: Stag(reply.stag),
            stag_sync: Stag(stag_sync),
            to: reply.to,
            length: reply.length,
            size: reply.size,
            inode: reply.cookie,
        }
    }

    /// The same on the connection of a reply to an attach: what is known of the file stays true, only its handle is of the connection.
    pub(crate) fn attached(self, reply: &Reply) -> Self {
        Self {
            handle: reply.handle,
            ..self
        }
    }

    /// Where byte `offset` is. What would lie behind the last address is said to be there, where no region is: the target refuses it.
    pub fn at(&self, offset: u64) -> RemoteAddr {
        RemoteAddr {
            stag: self.stag,
            to: TaggedOffset(self.to.saturating_add(offset)),
        }
    }

    /// The same, through the sync STag.
    pub fn at_sync(&self, offset: u64) -> RemoteAddr {
        RemoteAddr {
            stag: self.stag_sync,
            ..self.at(offset)
        }
    }
}

/// Behind the last byte of a transfer.
fn end_of(file: &RemoteFile, offset: u64, length: u64) -> Result<u64, ClientError> {
    offset.checked_add(length).ok_or(ClientError::OutOfBounds {
        offset,
        length,
        region: file.length,
    })
}

/// Nothing has come of a target for so long.
fn silent(address: SocketAddr, patience: Duration) -> ClientError {
    ClientError::TimedOut {
        address,
        seconds: patience.as_secs(),
    }
}

/// A connection to a target.
#[derive(Debug)]
pub struct Session {
    net: Net<NoPages>,
    link: LinkTag,
    address: SocketAddr,
    epoch: Instant,
    completions: VecDeque<Completion>,
    messages: VecDeque<Vec<u8>>,
    closed: Option<CloseReason>,
    /// Longest wait for an answer, and for the connection.
    patience: Duration,
    handshake: Duration,
    /// What the target, or somebody on the way, has done to TLS.
    tls_error: Option<TlsError>,
    established: bool,
    next_id: u64,
    /// Of the thread's queue, and whether it has been woken since it last looked.
    waker: Option<Waker>,
    woken: bool,
    spin: Spin,
}

impl Session {
    /// Connects to the first of `addresses` (at least one) that answers.
    pub fn connect_any(
        addresses: &[SocketAddr],
        options: SessionOptions,
    ) -> Result<Self, ClientError> {
        Self::connect_as(addresses, options, &[])
    }

    /// The same, saying who it is by the private data of the connection request.
    pub fn connect_as(
        addresses: &[SocketAddr],
        options: SessionOptions,
        private_data: &[u8],
    ) -> Result<Self, ClientError> {
        let mut last = None;
        for &address in addresses {
            match TcpStream::connect_timeout(&address, options.connect()) {
                Ok(stream) => return Self::start(stream, address, &options, private_data),
                Err(cause) => last = Some(ClientError::Connect { address, cause }),
            }
        }
        Err(last.expect("there is an address"))
    }

    /// Connects.
    pub fn connect(address: SocketAddr, options: SessionOptions) -> Result<Self, ClientError> {
        Self::connect_any(&[address], options)
    }

    fn start(
        stream: TcpStream,
        address: SocketAddr,
        options: &SessionOptions,
        private_data: &[u8],
    ) -> Result<Self, ClientError> {
        let connected = || {
            // Where nobody listens, TCP can connect a port of this machine with itself, and keep the target from it.
            match stream.local_addr()? == stream.peer_addr()? {
                true => Err(io::ErrorKind::ConnectionRefused.into()),
                false => stream.set_nodelay(true),
            }
        };
        // A target that has just ended takes the connection along before it is looked at.
        let lost = |cause| ClientError::Connect { address, cause };
        connected().map_err(lost)?;
        let handshake = options.handshake();
        let shake = |tls: &ClientTls| tls.connect(&stream, address, handshake).map(Box::new);
        let records = options.tls.as_ref().map(shake).transpose();
        let records = records.map_err(|error| match error {
            HandshakeError::Socket(cause) if cause.kind() == io::ErrorKind::TimedOut => {
                silent(address, handshake)
            }
            HandshakeError::Socket(cause) => lost(cause),
            HandshakeError::Tls(cause) => ClientError::Tls { address, cause },
        })?;
        let epoch = Instant::now();
        let config = Config {
            // Beyond loopback a checksum of TCP alone is not enough. TLS has better ones.
            crc: options.crc || records.is_none() && !address.ip().is_loopback(),
            private_profile: true,
            // No message of the control protocol: whoever sends them anyhow completes none of our operations.
            immediates_ignored: true,
            start_timeout: handshake,
            ..Config::default()
        };
        let table = RegionTable::new(rand::random());
        let connection = Connection::initiator(config, &table, private_data, Time(0))
            .map_err(io::Error::other)?;
        let buffers = options.buffers.unwrap_or(BUFFERS);
        let mut net = Net::new(Ring::new(32, buffers, 64 * 1024)?);
        let link = net
            .add_over(stream.into(), records, |_| connection)
            .expect("the first link finds a slot");
        let mut session = Self {
            net,
            link,
            address,
            epoch,
            completions: VecDeque::new(),
            messages: VecDeque::new(),
            closed: None,
            patience: options.answer(),
            handshake,
            tls_error: None,
            established: false,
            next_id: 0,
            waker: None,
            woken: false,
            spin: Spin::new(options.spin.unwrap_or(Spin::MOST)),
        };
        for _ in 0..OUTSTANDING_MAX {
            session.post_recv()?;
        }
        session.run_until(|session| session.established)?;
        Ok(session)
    }

    /// Where it is connected to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Asks, and waits for the reply. A reply with an error is an error.
    pub fn call(&mut self, mut request: Request) -> Result<Reply, ClientError> {
        self.next_id += 1;
        request.id = self.next_id;
        if request.path.len() > Request::PATH_BYTES_MAX {
            return Err(ClientError::Refused {
                status: libc::ENAMETOOLONG,
                message: "the path is too long".into(),
            });
        }
        let send = Operation::Send {
            source: Source::Bytes(request.emit()),
            solicited: false,
            invalidate: None,
        };
        self.post(WorkRequest {
            signaled: false,
            ..WorkRequest::new(WrId(0), send)
        })?;
        let asked = Instant::now();
        loop {
            self.run_until(|session| !session.messages.is_empty())?;
            let message = self.messages.pop_front().unwrap_or_default();
            self.post_recv()?;
            let reply = Reply::parse(&message).map_err(|cause| ClientError::Protocol {
                address: self.address,
                cause,
            })?;
            // A reply to a request that was given up is of no interest any more. There are not many.
            if reply.id != request.id && reply.id != 0 {
                match asked.elapsed() > self.patience {
                    true => return Err(self.timed_out()),
                    false => continue,
                }
            }
            if reply.status != 0 {
                return Err(ClientError::Refused {
                    status: i32::from(reply.status),
                    message: reply.message,
                });
            }
            return Ok(reply);
        }
    }

    /// Entries of a directory, in the order of the target.
    pub fn list(&mut self, path: &str) -> Result<Vec<Entry>, ClientError> {
        let mut listing = Listing::default();
        loop {
            let reply = self.call(listing.request(path))?;
            if let Some(entries) = listing.take(reply)? {
                return Ok(entries);
            }
        }
    }

    /// Opens a region; `request` says of what and how.
    pub fn open(&mut self, request: Request) -> Result<RemoteFile, ClientError> {
        Ok(RemoteFile::of(&self.call(request)?))
    }

    /// Queues work; completions come in the order of posting.
    pub fn post(&mut self, request: WorkRequest) -> Result<(), ClientError> {
        let posted = self
            .net
            .connection(self.link)
            .map_or(Err(PostError::NotOpen), |c| c.post_send(request));
        posted.map_err(|error| self.post_error(error))
    }

    /// Waits for the next completion; one that failed is returned, too.
    pub fn completion(&mut self) -> Result<Completion, ClientError> {
        self.run_until(|session| !session.completions.is_empty())?;
        Ok(self
            .completions
            .pop_front()
            .expect("waited until there is one"))
    }

    /// From now on [`completion_or_wake`](Self::completion_or_wake) returns when `waker` is used.
    pub(crate) fn set_waker(&mut self, waker: Waker) {
        self.net.ring.poll_wake(waker.fd());
        self.waker = Some(waker);
        // Whatever was queued before.
        self.woken = true;
    }

    /// Waits for a completion, or until the waker is used: then there is none.
    pub(crate) fn completion_or_wake(&mut self) -> Result<Option<Completion>, ClientError> {
        self.run_until(|session| !session.completions.is_empty() || session.woken)?;
        self.woken = false;
        Ok(self.completions.pop_front())
    }

    /// Waits for the next completion and its success.
    pub fn success(&mut self, what: &'static str) -> Result<Completion, ClientError> {
        let done = self.completion()?;
        self.succeeded(done, what)
    }

    /// A completion that succeeded, or why it did not.
    pub(crate) fn succeeded(
        &mut self,
        done: Completion,
        what: &'static str,
    ) -> Result<Completion, ClientError> {
        if done.status.is_success() {
            return Ok(done);
        }
        // The reason of the end says more than the status of one request.
        let _ = self.run_until(|_| false);
        match self.closed.clone() {
            Some(reason) => Err(ClientError::Closed {
                address: self.address,
                reason,
            }),
            None => Err(ClientError::Operation {
                what,
                status: done.status,
            }),
        }
    }

    /// Reads `length` bytes of `file` from `offset` on, hands them out in order.
    pub fn read(
        &mut self,
        file: &RemoteFile,
        offset: u64,
        length: u64,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        let buffers: Vec<Arc<Buffer>> = (0..CHUNKS_IN_FLIGHT)
            .map(|_| Buffer::zeroed(CHUNK_BYTES))
            .collect();
        let mut bytes = vec![0; CHUNK_BYTES];
        let end = end_of(file, offset, length)?;
        let (mut posted, mut done) = (offset, offset);
        let (mut head, mut tail) = (0, 0);
        while done < end {
            while posted < end && head - tail < CHUNKS_IN_FLIGHT {
                let len = CHUNK_BYTES.min((end - posted) as usize);
                let sink = LocalSlice::new(&buffers[head % CHUNKS_IN_FLIGHT], 0, len);
                let remote = file.at(posted);
                self.post(WorkRequest::new(
                    WrId(posted),
                    Operation::Read { sink, remote },
                ))?;
                posted += len as u64;
                head += 1;
            }
            self.success("READ")?;
            let len = CHUNK_BYTES.min((end - done) as usize);
            buffers[tail % CHUNKS_IN_FLIGHT].read(0, &mut bytes[..len]);
            take(done, &bytes[..len])?;
            done += len as u64;
            tail += 1;
        }
        Ok(())
    }

    /// Writes `length` bytes to `file` from `offset` on; `fill` provides them in order. On return they are durable if
    /// `sync`, and visible in any case.
    pub fn write(
        &mut self,
        file: &RemoteFile,
        offset: u64,
        length: u64,
        sync: bool,
        mut fill: impl FnMut(u64, &mut [u8]) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        let end = end_of(file, offset, length)?;
        let mut posted = offset;
        let mut in_flight = 0;
        while posted < end || in_flight > 0 {
            if posted < end && in_flight < CHUNKS_IN_FLIGHT {
                let len = CHUNK_BYTES.min((end - posted) as usize);
                let mut bytes = vec![0; len];
                fill(posted, &mut bytes)?;
                let remote = if sync {
                    file.at_sync(posted)
                } else {
                    file.at(posted)
                };
                let source = Source::Bytes(bytes);
                self.post(WorkRequest::new(
                    WrId(posted),
                    Operation::Write { source, remote },
                ))?;
                posted += len as u64;
                in_flight += 1;
            } else {
                self.success("WRITE")?;
                in_flight -= 1;
            }
        }
        self.fence(file)
    }

    /// Returns when every earlier WRITE of this session is visible, and durable if it went through a sync STag: a
    /// READ of no bytes.
    pub fn fence(&mut self, file: &RemoteFile) -> Result<(), ClientError> {
        let sink = LocalSlice::new(&Buffer::zeroed(0), 0, 0);
        let remote = file.at(0);
        self.post(WorkRequest::new(
            WrId(u64::MAX),
            Operation::Read { sink, remote },
        ))?;
        self.success("READ of no bytes").map(drop)
    }

    /// Ends in order.
    pub fn close(mut self) {
        if let Some(connection) = self.net.connection(self.link) {
            connection.disconnect();
        }
        let _ = self.run_until(|_| false);
    }

    fn timed_out(&self) -> ClientError {
        silent(self.address, self.patience)
    }

    fn post_recv(&mut self) -> Result<(), ClientError> {
        let buffer = RecvBuffer::Vec(MESSAGE_BYTES_MAX);
        let posted = self
            .net
            .connection(self.link)
            .map_or(Err(PostError::NotOpen), |c| c.post_recv(WrId(0), buffer));
        posted.map_err(|error| self.post_error(error))
    }

    fn post_error(&mut self, error: PostError) -> ClientError {
        match (error, self.closed.clone()) {
            (PostError::NotOpen, reason) => ClientError::Closed {
                address: self.address,
                reason: reason.unwrap_or(CloseReason::Lost),
            },
            (other, _) => ClientError::Local(std::io::Error::other(other)),
        }
    }

    fn ended(&self, reason: CloseReason) -> ClientError {
        let address = self.address;
        if let CloseReason::Rejected(why) = &reason
            && let Some(denial) = Denial::parse(why)
        {
            return ClientError::Denied { address, denial };
        }
        if matches!(reason, CloseReason::TimedOut) && !self.established {
            return silent(address, self.handshake);
        }
        // A stream that was cut or changed is a connection that was lost, but for the target's last word in a handshake.
        if let Some(cause) = self.tls_error.clone()
            && !self.established
            && !cause.passes()
        {
            return ClientError::Tls { address, cause };
        }
        ClientError::Closed { address, reason }
    }

    /// Lets the connection work until `enough`; an error when it ends first.
    fn run_until(&mut self, mut enough: impl FnMut(&Self) -> bool) -> Result<(), ClientError> {
        let started = Instant::now();
        loop {
            let now = self.pump();
            if enough(self) {
                return Ok(());
            }
            if let Some(reason) = self.closed.clone() {
                return Err(self.ended(reason));
            }
            if started.elapsed() > self.patience {
                return Err(self.timed_out());
            }
            let timer = self.net.next_timeout().map_or(self.patience, |at| {
                Duration::from_nanos(at.0.saturating_sub(now.0))
            });
            let timer = timer.max(Duration::from_micros(1)).min(self.patience);
            self.net.ring.rest(Some(timer), &mut self.spin)?;
            let now = self.now();
            while let Some(done) = self.net.ring.next_done() {
                if !matches!(done.tag, Tag::Send(_)) {
                    self.spin.news(Instant::now());
                }
                match done.tag {
                    Tag::Recv(_) | Tag::Send(_) => self.net.handle(now, &mut NoPages, done),
                    Tag::Wake => {
                        self.woken = true;
                        if let Some(waker) = self.waker.as_ref().filter(|_| !done.more) {
                            self.net.ring.poll_wake(waker.fd());
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    fn now(&self) -> Time {
        Time(self.epoch.elapsed().as_nanos() as u64)
    }

    fn pump(&mut self) -> Time {
        let now = self.now();
        let Self {
            net,
            completions,
            messages,
            closed,
            tls_error,
            established,
            ..
        } = self;
        net.pump(now, &mut NoPages, |_, _, notice| match notice {
            Notice::Event(Event::Established(_)) => *established = true,
            Notice::Event(Event::Closed(reason)) => *closed = Some(reason),
            Notice::Event(_) => {}
            Notice::Tls(error) => *tls_error = Some(error),
            Notice::Completion(done) if done.opcode == CompletionOpcode::Recv => {
                if let Some(message) = done.message
                    && done.status.is_success()
                {
                    messages.push_back(message);
                }
            }
            Notice::Completion(done) => completions.push_back(done),
        });
        now
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use softrdma::{Immediate, RegionSpec, Rights};

    use super::*;

    const BYTES: &[u8] = b"what the target has";

    /// A target that has a region, and says something behind each answer that nobody has asked for.
    fn chatter(mut stream: TcpStream, table: &Arc<RegionTable>) {
        let mut far = Connection::responder(Config::default(), table, Time(0));
        let (mut input, mut out) = (vec![0; 4096], Vec::new());
        while let Ok(count @ 1..) = stream.read(&mut input) {
            far.handle_bytes(Time(0), &mut NoPages, &input[..count]);
            while let Some(event) = far.poll_event() {
                if let Event::ConnectRequest(_) = event {
                    far.accept(b"").unwrap();
                }
            }
            far.poll_transmit(Time(0), &mut NoPages, &mut out, usize::MAX);
            let said = Operation::Immediate {
                immediate: Immediate(*b"anything"),
                solicited: false,
            };
            let unasked = WorkRequest {
                signaled: false,
                ..WorkRequest::new(WrId(0), said)
            };
            far.post_send(unasked).unwrap();
            far.poll_transmit(Time(0), &mut NoPages, &mut out, usize::MAX);
            if stream.write_all(&out).is_err() {
                return;
            }
            out.clear();
        }
    }

    /// Immediate data of a target are the answer to nothing: no READ is over, and no WRITE acknowledged, for them. And however many
    /// come, they take no receives of the replies.
    #[test]
    fn immediate_data_are_no_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let table = RegionTable::new([1; 32]);
        let domain = Config::default().protection_domain;
        let memory = Buffer::from_bytes(BYTES);
        let region = RegionSpec::memory(domain, Rights::REMOTE_READ, &memory);
        let region = table.register(region).unwrap();
        let target = thread::spawn(move || chatter(listener.accept().unwrap().0, &table));
        let mut session = Session::connect(address, SessionOptions::default()).unwrap();
        let length = BYTES.len() as u64;
        let file = RemoteFile {
            handle: 0,
            stag: region.stag,
            stag_sync: region.stag,
            to: region.base.0,
            length,
            size: length,
            inode: 0,
        };
        for _ in 0..2 * OUTSTANDING_MAX {
            let take = |_, bytes: &[u8]| {
                assert_eq!(bytes, BYTES);
                Ok(())
            };
            session.read(&file, 0, length, take).unwrap();
        }
        session.close();
        target.join().unwrap();
    }
}
