//! A blocking client over a standard TCP socket, for command-line programs and tests.
//!
//! One thread, one connection. Calls run the connection until what they wait for has happened. For many connections
//! or page-backed regions write a reactor around [`Connection`] instead.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::addr::{RemoteAddr, Stag, Time, WrId};
use crate::config::Config;
use crate::connection::{Connection, PrivateDataTooLong, SocketState};
use crate::cq::{Completion, Status};
use crate::driver::Spin;
use crate::event::{CloseReason, Established, Event};
use crate::mem::{Atomic, RegionTable};
use crate::page::NoPages;
use crate::wire::profile::{Placement, Selectivity};
use crate::wqe::{LocalSlice, Operation, PostError, RecvBuffer, Source, WorkRequest};

/// Bytes received or sent by one system call.
const IO_BYTES: usize = 256 << 10;
/// Further away than anybody waits.
const FAR: Duration = Duration::from_secs(1 << 30);
/// A blocked write gives way to a read this often, so that two sides with full buffers do not wait for each other.
const WRITE_SLICE: Duration = Duration::from_millis(20);
/// How long a read may wait, longest first.
const READ_SLICES: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_millis(100),
    Duration::from_millis(10),
];
/// Shortest of them.
const READ_SLICE: Duration = Duration::from_millis(1);
/// First of the numbers that the blocking calls give to their own requests.
const OWN_WR_IDS: u64 = 1 << 63;

/// Why a client call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The name has no address.
    #[error("unknown host {host}: {source}")]
    UnknownHost {
        /// As given.
        host: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// Nobody listens there, or it cannot be reached.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The address tried last.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The socket failed later.
    #[error("socket: {0}")]
    Socket(#[from] io::Error),
    /// Nothing happened for too long.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The connection ended.
    #[error("connection ended: {0}")]
    Closed(CloseReason),
    /// A request failed.
    #[error("request failed: {0}")]
    Failed(Status),
    /// A request could not be queued.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The private data is too long.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
}

/// A connected client.
#[derive(Debug)]
pub struct TcpClient {
    connection: Connection<NoPages>,
    socket: TcpStream,
    established: Established,
    timeout: Duration,
    started: Instant,
    completions: VecDeque<Completion>,
    next_own: u64,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    ended: Option<CloseReason>,
    fin_sent: bool,
    /// As the socket has it.
    read_timeout: Option<Duration>,
    polling: bool,
    spin: Spin,
    /// As the socket is.
    nonblocking: bool,
}

impl TcpClient {
    /// Connects to `host` (`name:port`) and sets the connection up. `timeout` holds for this and each later call.
    ///
    /// # Errors
    /// Unknown host, refusal by the system or by the peer's program, bad set-up, time-out: see [`ClientError`].
    pub fn connect(
        host: &str,
        config: Config,
        table: &Arc<RegionTable>,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<Self, ClientError> {
        let unknown = |source| ClientError::UnknownHost {
            host: host.to_owned(),
            source,
        };
        let addresses: Vec<SocketAddr> = host.to_socket_addrs().map_err(unknown)?.collect();
        let mut last = unknown(io::ErrorKind::NotFound.into());
        for address in addresses {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(socket) => return Self::start(socket, config, table, private_data, timeout),
                Err(source) => last = ClientError::Connect { address, source },
            }
        }
        Err(last)
    }

    /// Sets the connection up over a connected socket.
    ///
    /// # Errors
    /// As `connect`.
    pub fn start(
        socket: TcpStream,
        config: Config,
        table: &Arc<RegionTable>,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<Self, ClientError> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(false)?;
        socket.set_write_timeout(Some(WRITE_SLICE))?;
        let connection = Connection::initiator(config, table, private_data, Time(0))?;
        let nothing_yet = Established {
            private_data: Vec::new(),
            ird: 0,
            ord: 0,
            crc: false,
            markers: false,
            ulpdu_max: 0,
            private_profile: false,
        };
        let mut client = Self {
            connection,
            socket,
            established: nothing_yet,
            timeout,
            started: Instant::now(),
            completions: VecDeque::new(),
            next_own: OWN_WR_IDS,
            input: vec![0; IO_BYTES],
            output: Vec::with_capacity(IO_BYTES),
            sent: 0,
            ended: None,
            fin_sent: false,
            read_timeout: None,
            polling: false,
            spin: Spin::new(Duration::ZERO),
            nonblocking: false,
        };
        let deadline = until(timeout);
        while client.established.ulpdu_max == 0 {
            client.turn(deadline)?;
        }
        Ok(client)
    }

    /// What was agreed on, with the private data of the Reply.
    #[must_use]
    pub fn established(&self) -> &Established {
        &self.established
    }

    /// The connection, to post work on; `poll` or `wait` carries it out. Numbers from 2^63 on are taken.
    pub fn connection(&mut self) -> &mut Connection<NoPages> {
        &mut self.connection
    }

    /// Whether calls look for what arrives all the time, for less latency and a whole processor, or sleep.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn set_polling(&mut self, polling: bool) -> Result<(), ClientError> {
        self.set_nonblocking(polling)?;
        self.polling = polling;
        Ok(())
    }

    /// How calls wait that do not look all the time [default: they sleep].
    pub fn set_spin(&mut self, spin: Spin) {
        self.spin = spin;
    }

    /// The next completion of posted work, waiting for it.
    ///
    /// # Errors
    /// Time-out, or the end of the connection.
    pub fn wait(&mut self) -> Result<Completion, ClientError> {
        let deadline = until(self.timeout);
        loop {
            if let Some(completion) = self.completions.pop_front() {
                return Ok(completion);
            }
            self.turn(deadline)?;
        }
    }

    /// Sends what is ready and returns a completion that is there already. Does not wait for the peer.
    ///
    /// # Errors
    /// The end of the connection.
    pub fn poll(&mut self) -> Result<Option<Completion>, ClientError> {
        self.transmit()?;
        self.drain();
        Ok(self.completions.pop_front())
    }

    /// WRITEs a copy of `bytes` and returns when the socket has them: see DESIGN §3 for what that means.
    ///
    /// # Errors
    /// As `wait`, or that the request failed.
    pub fn write(&mut self, bytes: &[u8], remote: RemoteAddr) -> Result<(), ClientError> {
        self.perform(Operation::Write {
            source: Source::Bytes(bytes.to_vec()),
            remote,
        })
        .map(|_| ())
    }

    /// READs `sink.len` bytes into `sink`. With a length of 0 it proves that earlier WRITEs have been placed, and
    /// that those through sync STags are durable.
    ///
    /// # Errors
    /// As `wait`, or that the request failed.
    pub fn read(&mut self, sink: LocalSlice, remote: RemoteAddr) -> Result<(), ClientError> {
        self.perform(Operation::Read { sink, remote }).map(|_| ())
    }

    /// Carries out an atomic operation on eight bytes of the peer; returns what they were.
    ///
    /// # Errors
    /// As `wait`, or that the request failed.
    pub fn atomic(&mut self, remote: RemoteAddr, op: Atomic) -> Result<u64, ClientError> {
        let done = self.perform(Operation::Atomic { remote, op })?;
        Ok(done.original)
    }

    /// FLUSHes `len` bytes of the peer: returns when they, and all earlier WRITEs to them, are visible or persistent. Only
    /// when both sides speak the private profile.
    ///
    /// # Errors
    /// As `wait`, or that the request failed.
    pub fn flush(
        &mut self,
        remote: RemoteAddr,
        len: u32,
        placement: Placement,
    ) -> Result<(), ClientError> {
        let selectivity = Selectivity::Range(len);
        let flush = Operation::Flush {
            remote,
            selectivity,
            placement,
        };
        self.perform(flush).map(|_| ())
    }

    /// SENDs a copy of `message`.
    ///
    /// # Errors
    /// As `wait`, or that the request failed.
    pub fn send(&mut self, message: &[u8], invalidate: Option<Stag>) -> Result<(), ClientError> {
        self.perform(Operation::Send {
            source: Source::Bytes(message.to_vec()),
            solicited: false,
            invalidate,
        })
        .map(|_| ())
    }

    /// Posts a buffer of `max` bytes and waits for a message in it. To receive what the peer may send at any moment,
    /// post buffers in advance on `connection` and `wait`.
    ///
    /// # Errors
    /// As `wait`, or that the request failed.
    pub fn recv(&mut self, max: usize) -> Result<Vec<u8>, ClientError> {
        let wr_id = self.own_wr_id();
        self.connection.post_recv(wr_id, RecvBuffer::Vec(max))?;
        Ok(self.wait_for(wr_id)?.message.unwrap_or_default())
    }

    /// Ends in order and waits for the peer to do so too.
    ///
    /// # Errors
    /// How it ended, if not in order.
    pub fn disconnect(mut self) -> Result<(), ClientError> {
        self.connection.disconnect();
        let deadline = until(self.timeout);
        loop {
            match self.turn(deadline) {
                Err(ClientError::Closed(CloseReason::Graceful)) => return Ok(()),
                Err(error) => return Err(error),
                Ok(()) => {}
            }
        }
    }

    fn own_wr_id(&mut self) -> WrId {
        self.next_own += 1;
        WrId(self.next_own)
    }

    fn perform(&mut self, op: Operation) -> Result<Completion, ClientError> {
        let wr_id = self.own_wr_id();
        self.connection.post_send(WorkRequest::new(wr_id, op))?;
        self.wait_for(wr_id)
    }

    fn wait_for(&mut self, wr_id: WrId) -> Result<Completion, ClientError> {
        let deadline = until(self.timeout);
        loop {
            if let Some(at) = self
                .completions
                .iter()
                .position(|completion| completion.wr_id == wr_id)
                && let Some(completion) = self.completions.remove(at)
            {
                return match completion.status {
                    Status::Success => Ok(completion),
                    // What ended the connection says more than that the request was flushed.
                    Status::Flushed if self.ended.is_some() => Err(self.end()),
                    status => Err(ClientError::Failed(status)),
                };
            }
            self.turn(deadline)?;
        }
    }

    fn end(&self) -> ClientError {
        ClientError::Closed(self.ended.clone().unwrap_or(CloseReason::Lost))
    }

    fn now(&self) -> Time {
        Time(0) + self.started.elapsed()
    }

    /// Sends what is ready, then receives once, unless there is news already.
    fn turn(&mut self, deadline: Instant) -> Result<(), ClientError> {
        self.transmit()?;
        let (news, established) = (self.completions.len(), self.established.ulpdu_max);
        self.drain();
        if self.completions.len() > news || self.established.ulpdu_max != established {
            return Ok(());
        }
        if self.ended.is_some() {
            return Err(self.end());
        }
        self.await_input(deadline)?;
        self.drain();
        Ok(())
    }

    fn drain(&mut self) {
        while let Some(completion) = self.connection.poll_completion() {
            self.completions.push_back(completion);
        }
        while let Some(event) = self.connection.poll_event() {
            match event {
                Event::Established(established) => self.established = established,
                Event::Closed(reason) => self.ended = Some(reason),
                Event::PeerFinished | Event::ConnectRequest(_) | Event::SharedReceivesLow => {}
            }
        }
    }

    /// Hands everything that is ready to the socket.
    fn transmit(&mut self) -> Result<(), ClientError> {
        let mut deadline = until(self.timeout);
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
                Ok(count) => {
                    self.sent += count;
                    deadline = until(self.timeout);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => {
                    if Instant::now() >= deadline {
                        return Err(ClientError::TimedOut(self.timeout));
                    }
                    self.receive(READ_SLICE)?;
                }
                Err(_) => {
                    self.hear_last_words()?;
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

    /// Nothing can be sent any more. What the peer said before may explain that.
    fn hear_last_words(&mut self) -> Result<(), ClientError> {
        self.set_nonblocking(true)?;
        while let Ok(count @ 1..) = self.socket.read(&mut self.input) {
            let now = self.now();
            self.connection
                .handle_bytes(now, &mut NoPages, &self.input[..count]);
        }
        self.connection.handle_transport_error();
        Ok(())
    }

    /// Receives once, waiting until `deadline` or the connection's own.
    fn await_input(&mut self, deadline: Instant) -> Result<(), ClientError> {
        let now = self.now();
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ClientError::TimedOut(self.timeout));
        }
        let due = self
            .connection
            .poll_timeout()
            .map(|at| Duration::from_nanos(at.0.saturating_sub(now.0)));
        self.receive(due.map_or(left, |due| due.min(left)).max(READ_SLICE))
    }

    /// Reads, looking all the time.
    fn read_looking(&mut self, until: Instant) -> io::Result<usize> {
        loop {
            let result = self.socket.read(&mut self.input);
            if !is_nothing(&result) || Instant::now() >= until {
                return result;
            }
            std::hint::spin_loop();
        }
    }

    /// Reads, waiting as long as the socket's time-out says; looks for a while before it sleeps if there is reason to.
    fn read_or_sleep(&mut self, timeout: Duration) -> io::Result<usize> {
        let until = self.spin.wait(Instant::now(), Some(timeout));
        let mut result = Err(io::ErrorKind::WouldBlock.into());
        while is_nothing(&result) && Instant::now() < until {
            self.set_nonblocking(true)?;
            result = self.socket.read(&mut self.input);
        }
        if is_nothing(&result) {
            self.set_nonblocking(false)?;
            result = self.socket.read(&mut self.input);
        }
        if result.is_ok() {
            self.spin.news(Instant::now());
        }
        result
    }

    fn set_nonblocking(&mut self, nonblocking: bool) -> io::Result<()> {
        if self.nonblocking != nonblocking {
            self.socket.set_nonblocking(nonblocking)?;
            self.nonblocking = nonblocking;
        }
        Ok(())
    }

    fn receive(&mut self, wait: Duration) -> Result<(), ClientError> {
        // Few different values, so that the time-out is seldom set anew. Waking early does no harm.
        let wait = READ_SLICES
            .into_iter()
            .find(|slice| *slice <= wait)
            .unwrap_or(READ_SLICE);
        if self.read_timeout != Some(wait) {
            self.socket.set_read_timeout(Some(wait))?;
            self.read_timeout = Some(wait);
        }
        let result = match self.polling {
            true => self.read_looking(Instant::now() + wait),
            false => self.read_or_sleep(wait),
        };
        let now = self.now();
        match result {
            Ok(0) => self.connection.handle_eof(now),
            // Without pages the inbound side never parks, so all is taken.
            Ok(count) => {
                self.connection
                    .handle_bytes(now, &mut NoPages, &self.input[..count]);
            }
            Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => {
                self.connection.handle_timeout(now);
            }
            Err(_) => self.connection.handle_transport_error(),
        }
        Ok(())
    }
}

/// When so much time is over; also for a caller who waits for ever ([`Duration::MAX`]).
fn until(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(FAR)
}

/// Whether there was nothing to read, and no waiting for it.
fn is_nothing(result: &io::Result<usize>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}
