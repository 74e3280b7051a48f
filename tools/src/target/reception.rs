//! What a reactor does when a connection has something to say: lets peers in by the door, passes requests on, sees them out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use softrdma::{
    CompletionOpcode, Config, Connection, Event, Operation, PageStore, PostError, RecvBuffer,
    SocketState, Source, WorkRequest, WrId,
};
use tracing::debug;

use super::core::{ControlJob, ControlSenders};
use super::job::{Job, admit};
use super::pages::FlashPages;
use super::sessions::{Entered, Sessions};
use crate::control::{MESSAGE_BYTES_MAX, OUTSTANDING_MAX};
use crate::credentials::{Admission, Denial, Door, unix_now};
use crate::reactor::{Inbox, LinkTag, Notice};

/// How many connections have come.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    let_in: AtomicU64,
    refused: AtomicU64,
}

impl Arrivals {
    /// Those that were let in.
    pub(super) fn let_in(&self) -> u64 {
        self.let_in.load(Ordering::Relaxed)
    }

    /// Those that were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Another is refused.
    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// The reception of one reactor.
#[derive(Debug)]
pub(super) struct Reception {
    /// Number of the reactor.
    pub index: usize,
    /// Who is let in; there before anybody can connect.
    pub door: Arc<OnceLock<Door>>,
    /// Sessions on all reactors.
    pub sessions: Arc<Sessions>,
    /// Connections of all reactors that there may be; each tenant has an equal share of them.
    pub connections_max: usize,
    /// All reactors.
    pub inboxes: Vec<Arc<Inbox<Job>>>,
    /// Connections that have come to all of them.
    pub arrivals: Arc<Arrivals>,
    /// To the control threads.
    pub control: ControlSenders,
    /// The second in which a refusal was last told to people.
    pub warned: AtomicU64,
}

impl Reception {
    /// A connection says something. Returned is a refusal that people should hear of.
    pub(super) fn hear(
        &self,
        tag: LinkTag,
        connection: &mut Connection<FlashPages>,
        notice: Notice,
    ) -> Option<Denial> {
        match notice {
            Notice::Event(Event::ConnectRequest(request)) => {
                return self.let_in(tag, connection, &request.private_data);
            }
            Notice::Event(Event::Established(agreed)) => debug!(?tag, ?agreed, "established"),
            Notice::Event(Event::PeerFinished) => connection.disconnect(),
            // Connections have receive queues of their own.
            Notice::Event(Event::SharedReceivesLow) => {}
            Notice::Event(Event::Closed(reason)) => {
                debug!(?tag, %reason, "closed");
                let owner = (self.index, tag);
                let successor = self.sessions.leave(owner, connection.atomic_outcomes());
                admit(&self.inboxes, successor);
                self.control.send(tag, ControlJob::Gone(self.index, tag));
            }
            Notice::Completion(done) if done.opcode == CompletionOpcode::Recv => {
                let message = done.message.filter(|_| done.status.is_success())?;
                // Its end is told before what was received earlier; behind it the control threads expect nothing.
                if connection.socket_state() == SocketState::Close {
                    return None;
                }
                let domain = connection.protection_domain();
                let job = ControlJob::Request(self.index, tag, domain, message);
                self.control.send(tag, job);
            }
            Notice::Completion(_) => {}
            Notice::Tls(error) => debug!(?tag, %error, "TLS"),
        }
        None
    }

    /// Until here, nothing of the connection has been looked at but its start frame.
    fn let_in(
        &self,
        tag: LinkTag,
        connection: &mut Connection<FlashPages>,
        private_data: &[u8],
    ) -> Option<Denial> {
        let ask = |door: &Door| {
            let admission = door.admit(private_data, unix_now())?;
            let share = self.connections_max / door.members();
            Ok((admission, share.max(1)))
        };
        let (admission, share) = match self.door.get().map_or(Err(Denial::Busy), ask) {
            Ok(admitted) => admitted,
            Err(denial) => return self.refuse(tag, connection, denial),
        };
        connection.set_protection_domain(admission.domain);
        let Admission { domain, session } = admission;
        let owner = (self.index, tag);
        let entered = self.sessions.enter(domain, session, owner, share);
        if let Entered::First | Entered::After(_) = entered {
            self.arrivals.let_in.fetch_add(1, Ordering::Relaxed);
        }
        match entered {
            Entered::First => accept(connection),
            Entered::Late => return self.refuse(tag, connection, Denial::Superseded),
            Entered::Crowded => return self.refuse(tag, connection, Denial::Crowded),
            Entered::After((reactor, old)) => {
                // `Job::Admit` comes when nothing of any earlier connection can have an effect any more.
                let _ = self.inboxes[reactor].push(Job::Fence(old));
            }
        }
        None
    }

    fn refuse(
        &self,
        tag: LinkTag,
        connection: &mut Connection<FlashPages>,
        denial: Denial,
    ) -> Option<Denial> {
        self.arrivals.refuse();
        debug!(?tag, %denial, "connection refused");
        if let Err(error) = connection.reject(&denial.emit()) {
            debug!(%error, "reject");
        }
        // Strangers come in numbers, and may come with anything.
        let stranger = matches!(denial, Denial::NoToken | Denial::Superseded);
        Some(denial).filter(|_| !stranger && self.is_news())
    }

    /// The name of the tenant that a connection has shown to be of.
    pub(super) fn tenant(&self, connection: &Connection<FlashPages>) -> Option<&str> {
        let domain = connection.protection_domain();
        let mut tenants = self.door.get()?.tenants().iter();
        let tenant = tenants.find(|tenant| tenant.domain == domain)?;
        Some(tenant.name.as_str())
    }

    /// Whether people should hear of another connection that is refused; they have not in this second.
    pub(super) fn is_news(&self) -> bool {
        let now = unix_now();
        self.warned.swap(now, Ordering::Relaxed) != now
    }
}

/// What connections start with, as far as what they say is concerned.
pub(super) fn config() -> Config {
    Config {
        // Nothing to us but a WRITE that has been placed. How many come at once is TCP's to say, so they must not use up receives.
        immediates_ignored: true,
        // Replies wait here until all of them is on the way, so their client has them outstanding still: one that keeps to what it may
        // have needs no more, and nothing else goes through here.
        send_queue_max: OUTSTANDING_MAX,
        ..Config::default()
    }
}

/// Answers a request. The receive that it took becomes free again: nobody has more requests under way than that.
pub(super) fn reply<S: PageStore>(connection: &mut Connection<S>, bytes: Vec<u8>) {
    let send = WorkRequest {
        signaled: false,
        ..WorkRequest::new(
            WrId(0),
            Operation::Send {
                source: Source::Bytes(bytes),
                solicited: false,
                invalidate: None,
            },
        )
    };
    let recv = RecvBuffer::Vec(MESSAGE_BYTES_MAX);
    let posted = connection.post_recv(WrId(0), recv);
    match posted.and_then(|()| connection.post_send(send)) {
        // One that drains takes no more work, and ends when its peer has got what is under way.
        Ok(()) | Err(PostError::NotOpen) => {}
        // A send queue that is full belongs to a client that does not read what it asked for.
        Err(_) => connection.abort(),
    }
}

/// Accepts a connection that may come in; it may have ended meanwhile.
pub(super) fn accept<S: PageStore>(connection: &mut Connection<S>) {
    for n in 0..OUTSTANDING_MAX {
        // Fresh connections have room for more than this many receives.
        let _ = connection.post_recv(WrId(n as u64), RecvBuffer::Vec(MESSAGE_BYTES_MAX));
    }
    if let Err(error) = connection.accept(&[]) {
        debug!(%error, "accept");
    }
}

#[cfg(test)]
mod tests {
    use softrdma::driver::loopback::Pair;
    use softrdma::{CloseReason, NoPages, RegionTable, Time};

    use super::*;

    /// A client, and a target's connection with it.
    fn pair() -> Pair<NoPages, NoPages> {
        let table = RegionTable::new([1; 32]);
        let client = Connection::initiator(Config::default(), &table, b"", Time(0)).unwrap();
        let target = Connection::responder(config(), &table, Time(0));
        let mut pair = Pair::new(client, NoPages, target, NoPages);
        pair.run();
        accept(&mut pair.b.connection);
        for n in 0..2 * OUTSTANDING_MAX {
            let recv = RecvBuffer::Vec(MESSAGE_BYTES_MAX);
            pair.a.connection.post_recv(WrId(n as u64), recv).unwrap();
        }
        pair.run();
        pair
    }

    /// How many replies the client has got since it was asked last.
    fn replies(pair: &mut Pair<NoPages, NoPages>) -> usize {
        let client = &mut pair.a.connection;
        let done = std::iter::from_fn(|| client.poll_completion());
        done.filter(|done| done.status.is_success()).count()
    }

    fn is_over(pair: &Pair<NoPages, NoPages>) -> bool {
        pair.b.connection.socket_state() == SocketState::Close
    }

    /// I16: as many replies wait for a client to read them as it may have requests outstanding. It gets them when it does; the
    /// one that would be too many ends the connection of a client that asks on and on.
    #[test]
    fn replies_that_nobody_reads_are_bounded() {
        let mut pair = pair();
        let answer = || vec![1; MESSAGE_BYTES_MAX];
        for _ in 0..2 {
            for _ in 0..OUTSTANDING_MAX {
                reply(&mut pair.b.connection, answer());
            }
            assert!(!is_over(&pair));
            pair.run();
            assert_eq!(replies(&mut pair), OUTSTANDING_MAX);
        }
        for _ in 0..OUTSTANDING_MAX {
            reply(&mut pair.b.connection, answer());
        }
        assert!(!is_over(&pair));
        reply(&mut pair.b.connection, answer());
        assert!(is_over(&pair));
    }

    /// A target that hangs up still delivers what it has promised: a request that is answered meanwhile gets no answer, and takes
    /// none away from those before it.
    #[test]
    fn a_reply_too_late_spoils_no_end() {
        let mut pair = pair();
        reply(&mut pair.b.connection, vec![1; MESSAGE_BYTES_MAX]);
        pair.b.connection.disconnect();
        reply(&mut pair.b.connection, vec![2; MESSAGE_BYTES_MAX]);
        pair.run();
        assert_eq!(replies(&mut pair), 1);
        pair.a.connection.disconnect();
        pair.run();
        let client = &mut pair.a.connection;
        let events = std::iter::from_fn(|| client.poll_event());
        assert_eq!(events.last(), Some(Event::Closed(CloseReason::Graceful)));
    }
}
