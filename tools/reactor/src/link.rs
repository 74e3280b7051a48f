//! One link: a TCP socket with its connection, and TLS between them if there is any.

use flashnet_tls::{Records, TlsError};
use socket2::Socket;
use softrdma::{CloseReason, Completion, Connection, Event, PageStore, SocketState, Time};

use super::slots::LinkTag;

/// What a connection has to say to the program that owns it.
#[derive(Debug)]
pub enum Notice {
    /// Set-up or end.
    Event(Event),
    /// A work request ended.
    Completion(Completion),
    /// Why TLS has broken; the end of the connection follows, if it is not over yet.
    Tls(TlsError),
}

/// TLS of a link.
#[derive(Debug)]
pub(super) struct Seal {
    records: Box<Records>,
    /// The connection has ended in a way that may be announced to the peer.
    orderly: bool,
    /// It has been.
    announced: bool,
    /// To be told.
    broken: Option<TlsError>,
}

/// One link, as its reactor sees it.
#[derive(Debug)]
pub(super) struct Link<S: PageStore> {
    pub(super) tag: LinkTag,
    pub(super) socket: Socket,
    pub(super) connection: Connection<S>,
    pub(super) seal: Option<Seal>,
    /// Received while the connection did not want input.
    pub(super) waiting: Vec<u8>,
    /// Bytes the kernel is sending, from `sent` on.
    pub(super) sending: Vec<u8>,
    pub(super) sent: usize,
    pub(super) send_in_flight: bool,
    /// While the connection drains into a socket that is full: when that was asked last to take something.
    pub(super) stalled: Option<Time>,
    pub(super) recv_in_flight: bool,
    pub(super) recv_cancelled: bool,
    pub(super) eof: bool,
    pub(super) write_shut: bool,
    pub(super) closing: bool,
    /// Already in the list of links to look at.
    pub(super) queued: bool,
    pub(super) timer: Option<Time>,
}

impl Seal {
    fn new(records: Box<Records>) -> Self {
        Self {
            records,
            orderly: false,
            announced: false,
            broken: None,
        }
    }

    /// Appends the records of `plain`, all that there is to say at the moment; the announcement of the end behind the last of it.
    pub(super) fn seal(&mut self, plain: &[u8], state: SocketState, out: &mut Vec<u8>) {
        if self.announced {
            return;
        }
        self.records.seal(plain, out);
        let last = match state {
            SocketState::Open => false,
            SocketState::ShutdownWrite => true,
            SocketState::Close => self.orderly,
        };
        if last && plain.is_empty() {
            self.announced = true;
            self.records.finish(out);
        }
    }
}

impl<S: PageStore> Link<S> {
    pub(super) fn new(
        tag: LinkTag,
        socket: Socket,
        tls: Option<Box<Records>>,
        connection: Connection<S>,
    ) -> Self {
        let mut seal = tls.map(Seal::new);
        let early = seal.as_mut().map(|seal| seal.records.take_early());
        Self {
            tag,
            socket,
            connection,
            seal,
            waiting: early.unwrap_or_default(),
            sending: Vec::new(),
            sent: 0,
            send_in_flight: false,
            stalled: None,
            recv_in_flight: false,
            recv_cancelled: false,
            eof: false,
            write_shut: false,
            closing: false,
            queued: false,
            timer: None,
        }
    }

    /// Bytes have been received.
    pub(super) fn take(&mut self, now: Time, pages: &mut S, bytes: &[u8]) {
        let Self {
            connection,
            waiting,
            seal,
            ..
        } = self;
        let mut take = |bytes: &[u8]| {
            let mut taken = 0;
            if waiting.is_empty() {
                taken = connection.handle_bytes(now, pages, bytes);
            }
            waiting.extend_from_slice(&bytes[taken..]);
        };
        let Some(seal) = seal else {
            return take(bytes);
        };
        if seal.broken.is_none()
            && !self.eof
            && let Err(error) = seal.records.open(bytes, take)
        {
            self.broke(error);
        }
    }

    /// The peer has ended what it sends.
    pub(super) fn ended(&mut self) {
        match &self.seal {
            Some(seal) if !seal.records.has_ended() && !self.eof && !self.closing => {
                self.broke(TlsError::Truncated);
            }
            _ => self.eof = true,
        }
    }

    /// Nothing that comes from now on can be believed.
    fn broke(&mut self, error: TlsError) {
        self.eof = true;
        self.waiting.clear();
        self.connection.handle_transport_error();
        if let Some(seal) = &mut self.seal {
            seal.broken.get_or_insert(error);
        }
    }

    /// How long the peer may leave its socket full.
    pub(super) fn patience(&self) -> Option<Time> {
        let since = self.stalled.filter(|_| self.connection.is_draining());
        since.map(|since| since + self.connection.close_timeout())
    }

    /// Tells the owner everything there is to tell.
    pub(super) fn tell(&mut self, notice: &mut impl FnMut(LinkTag, &mut Connection<S>, Notice)) {
        let Self {
            tag,
            connection,
            seal,
            ..
        } = self;
        if let Some(error) = seal.as_mut().and_then(|seal| seal.broken.take()) {
            notice(*tag, connection, Notice::Tls(error));
        }
        while let Some(event) = connection.poll_event() {
            if let (Some(seal), Event::Closed(reason)) = (seal.as_mut(), &event) {
                seal.orderly = is_orderly(reason);
            }
            notice(*tag, connection, Notice::Event(event));
        }
        while let Some(completion) = connection.poll_completion() {
            notice(*tag, connection, Notice::Completion(completion));
        }
    }

    /// Offers what waits to the connection; true when receiving may go on.
    pub(super) fn resume(&mut self, now: Time, pages: &mut S) -> bool {
        while !self.waiting.is_empty() && self.connection.wants_input() {
            let taken = self.connection.handle_bytes(now, pages, &self.waiting);
            if taken == 0 {
                break;
            }
            self.waiting.drain(..taken);
            if self.waiting.is_empty() && self.eof {
                self.connection.handle_eof(now);
            }
        }
        self.waiting.is_empty() && self.connection.wants_input()
    }
}

/// Whether an end of a connection is one that the peer may be told of. Any other must look to it like what it is: a stream that
/// has been cut.
fn is_orderly(reason: &CloseReason) -> bool {
    !matches!(
        reason,
        CloseReason::Lost | CloseReason::Aborted | CloseReason::TimedOut
    )
}
