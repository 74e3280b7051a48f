//! Connections of a reactor: sockets on the ring, [`Connection`]s behind them.
//!
//! A link is one TCP socket with its connection. At any time it has at most one multishot receive and one send in the
//! kernel; everything that became ready meanwhile leaves in the next send, in one piece.
//!
//! # Invariants
//! - A link is forgotten, and its socket closed, only when the kernel holds neither a receive nor a send of it: a
//!   buffer given to the kernel is never freed before its completion, and a completion always finds its link.
//! - While its connection does not want input a link receives nothing more; what had been received waits here.
//! - Of a link with TLS the connection sees the bytes inside. The end of its socket is the end of the stream only if the peer has
//!   announced it; otherwise the transport has broken. What we announce is an end in order, too, and nothing follows it.
//! - No link that has been asked to end waits for ever for a peer that does not read: its socket takes something within each
//!   [`close_timeout`](Connection::close_timeout), or the connection has ended.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use flashnet_tls::Records;
use socket2::Socket;
use softrdma::{BackingId, Connection, PageError, PageStore, SocketState, Ticket, Time};

use super::link::{Link, Notice};
use super::ring::{Done, Ring, Tag};
use super::slots::{LinkTag, Slots};

/// Bytes that one send takes at most: enough to amortise the call, little enough to stay in the cache.
const SEND_BYTES: usize = 256 * 1024;
/// How long the last bytes of an ended connection may take to leave.
const LINGER: Duration = Duration::from_secs(5);
/// Send buffers kept for the next link that has something to send.
const SPARE_MAX: usize = 64;

/// All links of one reactor, with its ring.
#[derive(Debug)]
pub struct Net<S: PageStore> {
    /// The ring, also for the owner's other operations.
    pub ring: Ring,
    links: Slots<Link<S>>,
    ready: Vec<usize>,
    timers: BinaryHeap<Reverse<(Time, LinkTag)>>,
    /// Send buffers of links that send nothing: many links are idle, and a buffer keeps the size it once had.
    spare: Vec<Vec<u8>>,
    /// What a connection has to say before it is sealed.
    plain: Vec<u8>,
}

impl<S: PageStore> Net<S> {
    /// Links at most; the kernel's limit on descriptors is usually reached first.
    pub const LINKS_MAX: usize = Slots::<Link<S>>::MAX;

    /// No links yet.
    pub fn new(ring: Ring) -> Self {
        Self {
            ring,
            links: Slots::new(),
            ready: Vec::new(),
            timers: BinaryHeap::new(),
            spare: Vec::new(),
            plain: Vec::new(),
        }
    }

    /// Links that exist.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Whether there is no link.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Adds a connected socket; `connection` makes the connection, given its tag. None when there is no room.
    pub fn add(
        &mut self,
        socket: Socket,
        connection: impl FnOnce(LinkTag) -> Connection<S>,
    ) -> Option<LinkTag> {
        self.add_over(socket, None, connection)
    }

    /// The same of one that TLS may have been set up on. The socket blocks, as the ring wants it.
    pub fn add_over(
        &mut self,
        socket: Socket,
        tls: Option<Box<Records>>,
        connection: impl FnOnce(LinkTag) -> Connection<S>,
    ) -> Option<LinkTag> {
        let tag = self
            .links
            .insert_with(|tag| Link::new(tag, socket, tls, connection(tag)))?;
        self.arm(tag.slot());
        self.touch(tag.slot());
        Some(tag)
    }

    /// Who is at the other end of a link, if it is connected still.
    pub fn peer(&self, tag: LinkTag) -> Option<SocketAddr> {
        let link = self.links.get(tag.slot()).filter(|link| link.tag == tag)?;
        link.socket.peer_addr().ok()?.as_socket()
    }

    /// The connection of a link, to post work; the link is looked at in the next [`Self::pump`].
    pub fn connection(&mut self, tag: LinkTag) -> Option<&mut Connection<S>> {
        let slot = tag.slot();
        if self.links.get(slot).is_none_or(|link| link.tag != tag) {
            return None;
        }
        self.touch(slot);
        Some(&mut self.links[slot].connection)
    }

    /// Tags of all links.
    pub fn tags(&self) -> Vec<LinkTag> {
        self.links.iter().map(|link| link.tag).collect()
    }

    /// Hands a page to the connection that waits for it; drops it when that is gone.
    pub fn page(&mut self, pages: &mut S, ticket: Ticket, page: Result<S::Page, PageError>) {
        if let Some(connection) = self.connection(LinkTag(ticket.tag())) {
            connection.handle_page(pages, ticket, page);
        }
    }

    /// Lets every connection give back what it holds of these backings, and ask for it anew.
    pub fn renew_pages(&mut self, pages: &mut S, of: impl Fn(BackingId) -> bool) {
        for tag in self.tags() {
            let link = &mut self.links[tag.slot()];
            if link.connection.renew_pages(pages, &of) {
                self.touch(tag.slot());
            }
        }
    }

    /// Tells the connection that waits for it that a page it wrote has been given back.
    pub fn put(&mut self, pages: &mut S, ticket: Ticket) {
        if let Some(connection) = self.connection(LinkTag(ticket.tag())) {
            connection.handle_put(pages, ticket);
        }
    }

    /// Tells the connection that waits for it that its writes are durable, or will never be.
    pub fn durable(&mut self, pages: &mut S, ticket: Ticket, result: Result<(), PageError>) {
        if let Some(connection) = self.connection(LinkTag(ticket.tag())) {
            connection.handle_durable(pages, ticket, result);
        }
    }

    /// Takes a completion tagged [`Tag::Recv`] or [`Tag::Send`].
    pub fn handle(&mut self, now: Time, pages: &mut S, done: Done) {
        match done.tag {
            Tag::Recv(slot) => self.received(now, pages, slot as usize, done),
            Tag::Send(slot) => self.sent(slot as usize, done.result),
            other => unreachable!("{other:?} does not belong to a link"),
        }
    }

    /// When the next timer is due.
    pub fn next_timeout(&mut self) -> Option<Time> {
        // Timers that were set for something that has happened meanwhile: a wait without a timeout is cheaper.
        while let Some(&Reverse((at, tag))) = self.timers.peek() {
            let link = self.links.get(tag.slot()).filter(|link| link.tag == tag);
            if link.is_some_and(|link| link.timer == Some(at)) {
                return Some(at);
            }
            self.timers.pop();
        }
        None
    }

    /// Lets every connection act to which something happened, until none has anything to say; notices go to `notice`,
    /// which may post work on the same connection.
    pub fn pump(
        &mut self,
        now: Time,
        pages: &mut S,
        mut notice: impl FnMut(LinkTag, &mut Connection<S>, Notice),
    ) {
        self.fire_timers(now);
        while let Some(slot) = self.ready.pop() {
            let Some(link) = self.links.get_mut(slot) else {
                continue;
            };
            link.queued = false;
            let resumed = link.resume(now, pages);
            link.tell(&mut notice);
            if resumed {
                self.arm(slot);
            }
            self.transmit(now, pages, slot);
            // Taking bytes to send ends work requests, and may end the connection.
            self.links[slot].tell(&mut notice);
            if self.links[slot].seal.is_some() {
                // Which is announced.
                self.transmit(now, pages, slot);
            }
            self.set_timer(now, slot);
            self.retire(now, pages, slot);
        }
    }

    fn touch(&mut self, slot: usize) {
        let link = &mut self.links[slot];
        if !link.queued {
            link.queued = true;
            self.ready.push(slot);
        }
    }

    fn arm(&mut self, slot: usize) {
        let link = &mut self.links[slot];
        if !link.recv_in_flight && !link.eof && !link.closing {
            link.recv_in_flight = true;
            link.recv_cancelled = false;
            self.ring.recv(link.socket.as_raw_fd(), slot as u32);
        }
    }

    fn received(&mut self, now: Time, pages: &mut S, slot: usize, done: Done) {
        let link = &mut self.links[slot];
        if !done.more {
            link.recv_in_flight = false;
        }
        match done.result {
            0 => link.ended(),
            n if n > 0 => {
                let buffer = done.buffer.expect("a receive with bytes names its buffer");
                let bytes = self.ring.received(buffer, n as usize);
                // Of a connection that has ended what still arrives is of no interest to anybody.
                if !link.closing {
                    link.take(now, pages, bytes);
                }
                self.ring.recycle(buffer);
            }
            n => {
                let errno = -n;
                // Out of buffers: they come back within this round. Cancelled: by ourselves, to hold the peer back.
                if errno != libc::ENOBUFS && errno != libc::ECANCELED && errno != libc::EINTR {
                    link.eof = true;
                    link.waiting.clear();
                    link.connection.handle_transport_error();
                }
            }
        }
        if link.eof && link.waiting.is_empty() && done.result == 0 {
            link.connection.handle_eof(now);
        }
        let wanted = link.waiting.is_empty() && link.connection.wants_input();
        if wanted && !link.recv_in_flight {
            self.arm(slot);
        } else if !wanted && link.recv_in_flight && !link.recv_cancelled {
            link.recv_cancelled = true;
            self.ring.cancel(Tag::Recv(slot as u32));
        }
        self.touch(slot);
    }

    fn sent(&mut self, slot: usize, result: i32) {
        let link = &mut self.links[slot];
        link.send_in_flight = false;
        link.stalled = None;
        if result < 0 {
            link.sending.clear();
            link.sent = 0;
            if -result != libc::ECANCELED {
                link.connection.handle_transport_error();
            }
        } else {
            link.sent += result as usize;
            if link.sent >= link.sending.len() {
                link.sent = 0;
                let mut done = mem::take(&mut link.sending);
                if self.spare.len() < SPARE_MAX {
                    done.clear();
                    self.spare.push(done);
                }
            }
        }
        self.touch(slot);
    }

    fn transmit(&mut self, now: Time, pages: &mut S, slot: usize) {
        let link = &mut self.links[slot];
        if link.send_in_flight {
            return;
        }
        if link.sending.is_empty() && !link.write_shut {
            let mut out = self.spare.pop().unwrap_or_default();
            match &mut link.seal {
                None => {
                    link.connection
                        .poll_transmit(now, pages, &mut out, SEND_BYTES);
                }
                Some(seal) => {
                    self.plain.clear();
                    link.connection
                        .poll_transmit(now, pages, &mut self.plain, SEND_BYTES);
                    seal.seal(&self.plain, link.connection.socket_state(), &mut out);
                }
            }
            if out.is_empty() {
                self.spare.push(out);
            } else {
                link.sending = out;
            }
        }
        if link.sending.is_empty() {
            return;
        }
        link.send_in_flight = true;
        let bytes = &link.sending[link.sent..];
        // Of one that drains every byte that the socket takes is to be heard of.
        let all = !link.connection.is_draining();
        let socket = link.socket.as_raw_fd();
        // SAFETY: `sending` is not touched while `send_in_flight`, and the link lives until the completion.
        unsafe { self.ring.send(socket, bytes, all, slot as u32) };
    }

    fn set_timer(&mut self, now: Time, slot: usize) {
        let link = &mut self.links[slot];
        if link.closing {
            return;
        }
        if link.send_in_flight && link.connection.is_draining() {
            link.stalled.get_or_insert(now);
        }
        let due = [link.connection.poll_timeout(), link.patience()];
        let due = due.into_iter().flatten().min();
        // One that is due too early is set anew then: a drain that moves sets few.
        if due.is_none() || link.timer.is_none_or(|at| due < Some(at)) {
            link.timer = due;
            if let Some(at) = due {
                self.timers.push(Reverse((at, link.tag)));
            }
        }
    }

    fn fire_timers(&mut self, now: Time) {
        while let Some(&Reverse((at, tag))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            let slot = tag.slot();
            let link = self.links.get_mut(slot).filter(|link| link.tag == tag);
            // Others were set for something that has happened meanwhile.
            let Some(link) = link.filter(|link| link.timer == Some(at)) else {
                continue;
            };
            link.timer = None;
            if link.closing {
                // The peer does not take the last bytes.
                let _ = link.socket.shutdown(Shutdown::Both);
            } else {
                link.connection.handle_timeout(now);
                if link.patience().is_some_and(|at| at <= now) {
                    link.stalled = None;
                    link.connection.handle_stall();
                }
            }
            self.touch(slot);
        }
    }

    /// Does to the socket what the connection wants, and forgets the link when nothing of it is left.
    fn retire(&mut self, now: Time, pages: &mut S, slot: usize) {
        let link = &mut self.links[slot];
        let idle = !link.send_in_flight && link.sending.is_empty();
        match link.connection.socket_state() {
            SocketState::Open => {}
            SocketState::ShutdownWrite => {
                if idle && !link.write_shut {
                    link.write_shut = true;
                    let _ = link.socket.shutdown(Shutdown::Write);
                }
            }
            SocketState::Close => {
                if !link.closing {
                    link.closing = true;
                    link.waiting = Vec::new();
                    link.timer = Some(now + LINGER);
                    self.timers.push(Reverse((now + LINGER, link.tag)));
                    if link.recv_in_flight && !link.recv_cancelled {
                        link.recv_cancelled = true;
                        self.ring.cancel(Tag::Recv(slot as u32));
                    }
                }
                if idle && !link.recv_in_flight {
                    link.connection.settle_pages(pages);
                    self.links.remove(slot);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use softrdma::wire::terminate::TerminateCode;
    use softrdma::{
        Buffer, CloseReason, Config, Event, LocalSlice, NoPages, Operation, RegionTable,
        RemoteAddr, Source, Stag, TaggedOffset, WorkRequest, WrId,
    };

    use super::*;

    /// More than sockets hold, again and again.
    const MESSAGES: u64 = 192;
    const MESSAGE_BYTES: usize = 1 << 20;
    /// Of a test that would hang.
    const PATIENCE: Duration = Duration::from_secs(60);
    /// A socket that takes nothing for so long is full.
    const FULL: Duration = Duration::from_millis(50);

    /// A link in a time of its own, and the socket of its peer.
    struct World {
        net: Net<NoPages>,
        tag: LinkTag,
        peer: TcpStream,
        /// What speaks for it.
        far: Connection<NoPages>,
        now: Time,
        established: bool,
        closed: Option<CloseReason>,
        /// When the socket took something last.
        took: Time,
    }

    impl World {
        /// None: there is no io_uring here.
        fn new() -> Option<Self> {
            let ring = match Ring::new(32, 8, 4096) {
                Ok(ring) => ring,
                Err(error) => {
                    let required = std::env::var("FLASHNET_REQUIRE");
                    assert!(!required.is_ok_and(|what| what.contains("all")), "{error}");
                    eprintln!("skipped: io_uring is not to be had: {error}");
                    return None;
                }
            };
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (peer, _) = listener.accept().unwrap();
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            let table = RegionTable::new([1; 32]);
            let config = Config::default();
            let connection = Connection::initiator(config, &table, b"", Time(0)).unwrap();
            let mut net = Net::new(ring);
            let tag = net.add(socket.into(), |_| connection).unwrap();
            let mut world = Self {
                net,
                tag,
                peer,
                far: Connection::responder(Config::default(), &RegionTable::new([2; 32]), Time(0)),
                now: Time(0),
                established: false,
                closed: None,
                took: Time(0),
            };
            world.establish();
            Some(world)
        }

        fn establish(&mut self) {
            while !matches!(self.far.poll_event(), Some(Event::ConnectRequest(_))) {
                self.pump();
                self.enter(Duration::ZERO);
                self.hear();
            }
            self.far.accept(b"").unwrap();
            self.answer();
            while !self.established {
                self.enter(PATIENCE);
                self.pump();
            }
        }

        /// The peer receives something.
        fn hear(&mut self) {
            let mut bytes = vec![0; 4096];
            let count = self.peer.read(&mut bytes).unwrap();
            self.far
                .handle_bytes(Time(0), &mut NoPages, &bytes[..count]);
        }

        /// The peer sends what it has to say.
        fn answer(&mut self) {
            let mut out = Vec::new();
            self.far
                .poll_transmit(Time(0), &mut NoPages, &mut out, usize::MAX);
            self.peer.write_all(&out).unwrap();
        }

        fn connection(&mut self) -> &mut Connection<NoPages> {
            self.net.connection(self.tag).expect("the link is there")
        }

        fn pump(&mut self) {
            let (established, closed) = (&mut self.established, &mut self.closed);
            let notice = |_, _: &mut Connection<NoPages>, notice| match notice {
                Notice::Event(Event::Established(_)) => *established = true,
                Notice::Event(Event::Closed(reason)) => *closed = Some(reason),
                _ => {}
            };
            self.net.pump(self.now, &mut NoPages, notice);
        }

        /// Waits so long for something to happen; whether the socket took something.
        fn enter(&mut self, wait: Duration) -> bool {
            self.net.ring.enter(Some(wait)).unwrap();
            let mut took = false;
            while let Some(done) = self.net.ring.next_done() {
                took |= matches!(done.tag, Tag::Send(_)) && done.result > 0;
                if done.tag != Tag::Cancel {
                    self.net.handle(self.now, &mut NoPages, done);
                }
            }
            if took {
                self.took = self.now;
            }
            took
        }

        /// Sends until the socket is full.
        fn fill(&mut self) {
            self.pump();
            while self.enter(FULL) {
                self.pump();
            }
        }
    }

    /// A connection that is to end, and whose peer does not read, is over when its socket took nothing for `close_timeout`; as long
    /// as it takes something it goes on, all in all for much longer. Then nothing is left of it (I16).
    #[test]
    fn an_end_that_moves_is_waited_for() {
        let Some(mut world) = World::new() else {
            return;
        };
        let timeout = world.connection().close_timeout();
        let buffer = Buffer::zeroed(MESSAGE_BYTES);
        for number in 0..MESSAGES {
            let source = Source::Local(LocalSlice::whole(&buffer));
            let send = Operation::Send {
                source,
                solicited: false,
                invalidate: None,
            };
            let request = WorkRequest::new(WrId(number), send);
            world.connection().post_send(request).unwrap();
        }
        // As long as nobody wants it to end, it may wait.
        world.fill();
        assert_eq!(world.net.next_timeout(), None);
        world.now = world.now + 100 * timeout;
        world.fill();
        assert_eq!(world.closed, None);

        world.connection().disconnect();
        world.took = world.now;
        world.fill();
        let mut bytes = vec![0; 256 << 10];
        for _ in 0..5 {
            world.now = Time((world.took + timeout).0 - 1);
            world.pump();
            assert_eq!(world.closed, None);
            loop {
                world.peer.read_exact(&mut bytes).unwrap();
                if world.enter(Duration::ZERO) {
                    break;
                }
            }
            world.fill();
        }
        // What the kernel still makes room for counts, but it has an end.
        while world.closed.is_none() {
            world.now = world.net.next_timeout().expect("a deadline");
            world.fill();
        }
        assert_eq!(world.closed, Some(CloseReason::TimedOut));
        assert!(world.now >= world.took + timeout);

        // The last bytes have their time, too.
        assert!(!world.net.is_empty());
        world.now = world.net.next_timeout().expect("an end");
        while !world.net.is_empty() {
            world.pump();
            world.enter(FULL);
        }
        assert_eq!(world.net.next_timeout(), None);
    }
    /// What a peer said last is heard although it has reset the connection meanwhile, over bytes that it did not want: it is what
    /// explains the end.
    #[test]
    fn last_words_in_front_of_a_reset() {
        let Some(mut world) = World::new() else {
            return;
        };
        let buffer = Buffer::zeroed(MESSAGE_BYTES);
        for number in 0..MESSAGES {
            let source = Source::Local(LocalSlice::whole(&buffer));
            let remote = RemoteAddr {
                stag: Stag(0x100),
                to: TaggedOffset(0),
            };
            let write = Operation::Write { source, remote };
            let request = WorkRequest::new(WrId(number), write);
            world.connection().post_send(request).unwrap();
        }
        world.fill();
        while world.far.socket_state() == SocketState::Open {
            world.hear();
            world.answer();
        }
        // Of what has been sent it has read a little.
        let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
        world.peer = TcpStream::connect(elsewhere.local_addr().unwrap()).unwrap();
        while world.closed.is_none() {
            world.enter(PATIENCE);
            world.pump();
        }
        let Some(CloseReason::TerminateReceived(terminate)) = world.closed else {
            panic!("{:?}", world.closed)
        };
        assert_eq!(terminate.code(), Some(TerminateCode::TaggedInvalidStag));
    }
}
