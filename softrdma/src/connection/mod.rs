//! One iWARP connection, without I/O and without a clock.
//!
//! A driver feeds it what happens (`handle_*`) and carries out what it wants (`poll_*`). After every call of the first
//! kind it drains all of the second kind; the crate's description has the loop.

mod execute;
mod flush;
mod hold;
mod inbound;
mod nudge;
mod outcomes;
mod phase;
mod place;
mod receives;
mod requests;
mod responses;
mod segment;
mod setup;
mod ticket;
mod transmit;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::addr::{Msn, ProtectionDomain, Stag, StreamId, Time, WrId};
use crate::config::{Config, PRIVATE_DATA_MAX, ULPDU_FLOOR, ULPDU_LIMIT};
use crate::cq::{Completion, CompletionQueue, Status};
use crate::event::{CloseReason, Event};
use crate::mem::RegionTable;
use crate::mem::access::Accessor;
use crate::mem::cache::RegionCache;
use crate::page::{PageError, PageStore};
use crate::planted::Bug;
use crate::stream::StreamBuffer;
use crate::wire::ddp::{QueueNum, Untagged};
use crate::wire::hello::HELLO_BYTES;
use crate::wire::marker::Framer;
use crate::wire::profile::VERIFY_BYTES_MAX;
use crate::wire::rdmap::Opcode;
use crate::wire::terminate::{Terminate, TerminateCode};
use crate::wqe::{Operation, PostError, RecvBuffer, WorkRequest};

use execute::Execution;
use inbound::Inbound;
use nudge::Nudge;
use phase::{Finish, Local, Phase, Remote};
use place::Placer;
use receives::Receives;
use requests::Requests;
use responses::Responses;
use ticket::Tickets;
use transmit::Turn;

pub use outcomes::AtomicOutcomes;

/// Smallest bound of the inbound buffer: two of the largest FPDUs.
const INBOUND_BUFFER_FLOOR: usize = 128 << 10;

/// What the driver shall do with the socket once everything from `poll_transmit` is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketState {
    /// Go on.
    Open,
    /// Send FIN (`shutdown(SHUT_WR)`), go on receiving.
    ShutdownWrite,
    /// Close it; nothing more will come from this connection.
    Close,
}

/// Private data is limited to [`PRIVATE_DATA_MAX`], less the hello if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("private data of {0} bytes is too long")]
pub struct PrivateDataTooLong(pub usize);

/// Why `accept` or `reject` did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AnswerError {
    /// No request waits.
    #[error("no connect request waits for an answer")]
    NoRequest,
    /// Too much private data.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
}

/// Private data of the program beside a hello or not.
const fn private_data_max(hello: bool) -> usize {
    PRIVATE_DATA_MAX - if hello { HELLO_BYTES } else { 0 }
}

/// What ends a connection from the inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The peer broke a rule.
    Peer(TerminateCode),
    /// The store failed; the peer hears of a catastrophic error of this stream.
    Storage(PageError),
}

/// One connection; see the crate's description for the calls and their order.
pub struct Connection<S: PageStore> {
    config: Config,
    stream: StreamId,
    phase: Phase,
    /// The latest moment we were told.
    now: Time,
    // Agreed at set-up.
    framer: Framer,
    ulpdu_max: u16,
    is_foreign: bool,
    ird: u16,
    ord: u16,
    /// Both sides speak the private profile.
    profile: bool,
    /// Responder: the first frame will be a zero-length Send that nobody sees.
    rtr_send: bool,
    // Inbound.
    rx: StreamBuffer,
    inbound: Inbound,
    /// A WRITE message of the peer has begun and not ended.
    mid_write: bool,
    /// Bytes of the WRITE message that arrived last, or is arriving, unless a message for the receive queue followed.
    written: u32,
    regions: RegionCache,
    tickets: Tickets,
    placer: Placer,
    /// When the WRITE message began that is not done.
    write_began: Option<Time>,
    /// When the message for the receive queue began that is arriving, or arrived last.
    send_began: Time,
    /// Atomic operation that waits for its page.
    execution: Option<Execution>,
    /// Atomic operations that have been executed.
    outcomes: AtomicOutcomes,
    responses: Responses<S::Page>,
    receives: Receives,
    // Outbound.
    requests: Requests,
    turn: Turn,
    /// Start frames, ready-to-receive frame, Terminate.
    control_out: Vec<u8>,
    nudge: Nudge,
    // For the program.
    completions: CompletionQueue,
    events: VecDeque<Event>,
}

impl<S: PageStore> fmt::Debug for Connection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("stream", &self.stream)
            .field("phase", &self.phase)
            .field("inbound", &self.inbound)
            .finish_non_exhaustive()
    }
}

impl<S: PageStore> Connection<S> {
    /// The side that connects. Its Request is ready to transmit at once.
    ///
    /// # Errors
    /// If the private data is too long.
    pub fn initiator(
        config: Config,
        table: &Arc<RegionTable>,
        private_data: &[u8],
        now: Time,
    ) -> Result<Self, PrivateDataTooLong> {
        if private_data.len() > private_data_max(config.hello) {
            return Err(PrivateDataTooLong(private_data.len()));
        }
        let deadline = now + config.start_timeout;
        let mut connection = Self::new(config, table, Phase::AwaitReply { deadline }, now);
        setup::emit_request(
            &connection.config,
            private_data,
            &mut connection.control_out,
        );
        Ok(connection)
    }

    /// The side that was connected to. Reports [`Event::ConnectRequest`] when the peer's Request arrived.
    #[must_use]
    pub fn responder(config: Config, table: &Arc<RegionTable>, now: Time) -> Self {
        let deadline = now + config.start_timeout;
        Self::new(config, table, Phase::AwaitRequest { deadline }, now)
    }

    fn new(mut config: Config, table: &Arc<RegionTable>, phase: Phase, now: Time) -> Self {
        config.ulpdu_max = config.ulpdu_max.clamp(ULPDU_FLOOR, ULPDU_LIMIT);
        config.ulpdu_foreign = config.ulpdu_foreign.clamp(ULPDU_FLOOR, ULPDU_LIMIT);
        config.inbound_buffer_max = config.inbound_buffer_max.max(INBOUND_BUFFER_FLOOR);
        Self {
            stream: table.next_stream(),
            phase,
            now,
            framer: Framer::default(),
            ulpdu_max: config.ulpdu_foreign,
            is_foreign: true,
            ird: 0,
            ord: 0,
            profile: false,
            rtr_send: false,
            rx: StreamBuffer::default(),
            inbound: Inbound::Open,
            mid_write: false,
            written: 0,
            regions: RegionCache::new(table),
            tickets: Tickets::new(config.tag),
            placer: Placer::new(config.planted),
            write_began: None,
            send_began: now,
            execution: None,
            outcomes: AtomicOutcomes::default(),
            responses: Responses::new(config.read_window_pages, config.planted),
            receives: Receives::new(
                config.shared_receives.clone(),
                config.recv_queue_max,
                config.immediates_ignored,
                config.planted,
            ),
            requests: Requests::new(config.planted),
            turn: Turn::Response,
            control_out: Vec::new(),
            nudge: Nudge::default(),
            completions: CompletionQueue::default(),
            events: VecDeque::new(),
            config,
        }
    }

    /// Responder: chooses whose regions the peer may touch; to be called before `accept`.
    pub fn set_protection_domain(&mut self, domain: ProtectionDomain) {
        self.config.protection_domain = domain;
    }

    /// Whose regions the peer may touch.
    #[must_use]
    pub fn protection_domain(&self) -> ProtectionDomain {
        self.config.protection_domain
    }

    /// Sets the ULPDU limit towards a foreign peer, from the socket's segment size ([`mulpdu`](crate::config::mulpdu)).
    pub fn set_ulpdu_foreign(&mut self, bytes: u16) {
        self.config.ulpdu_foreign = bytes.clamp(ULPDU_FLOOR, ULPDU_LIMIT);
        if self.is_foreign {
            self.ulpdu_max = self.config.ulpdu_foreign;
        }
    }

    /// Identity of this connection for regions bound to a stream.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// The shared table of regions.
    #[must_use]
    pub fn table(&self) -> &Arc<RegionTable> {
        self.regions.table()
    }

    fn accessor(&self) -> Accessor {
        Accessor {
            stream: self.stream,
            domain: self.config.protection_domain,
            planted: self.config.planted,
        }
    }

    /// Takes received bytes; returns how many. Fewer than all only when the inbound side is parked and its buffer
    /// is full: offer the rest again when `wants_input` says so.
    pub fn handle_bytes(&mut self, now: Time, pages: &mut S, bytes: &[u8]) -> usize {
        self.now = now;
        if !bytes.is_empty() && !matches!(self.phase, Phase::AwaitReply { .. }) {
            self.nudge.note_heard();
        }
        let taken = self.feed(pages, bytes);
        self.start_clock();
        // Pages of new READs are asked for at once, not only when there is room to send.
        if matches!(self.phase, Phase::Rts { .. }) {
            self.responses.fill_window(pages, &mut self.tickets);
        }
        taken
    }

    /// Should the driver receive? False when closed, and while parked with much in hand.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        !matches!(self.phase, Phase::Closed)
            && (!self.rx.is_parked() || self.rx.kept().len() < self.config.inbound_buffer_max / 2)
    }

    /// The peer sent FIN.
    pub fn handle_eof(&mut self, now: Time) {
        self.now = now;
        match &mut self.phase {
            Phase::Finishing {
                finish: finish @ Finish::Pending,
                ..
            } => *finish = Finish::PendingAfterFin,
            Phase::Finishing {
                finish: Finish::Sent,
                ..
            } => self.close_finishing(),
            Phase::Finishing { .. } | Phase::Closed => {}
            Phase::Rts {
                remote: remote @ Remote::Open,
                ..
            } => {
                *remote = Remote::FinBehind;
                self.note_end();
            }
            Phase::Rts { .. } => {}
            // The program has heard that it is established. What it has posted could go out only behind a message of the peer.
            Phase::AwaitFirst {
                established: None, ..
            } if self.rx.kept().is_empty()
                && self.control_out.is_empty()
                && self.requests.is_empty() =>
            {
                self.events.push_back(Event::PeerFinished);
                self.close(CloseReason::Graceful);
            }
            _ => self.close(CloseReason::Lost),
        }
    }

    /// The socket failed.
    pub fn handle_transport_error(&mut self) {
        if matches!(self.phase, Phase::Finishing { .. }) {
            self.close_finishing();
        } else {
            self.close(CloseReason::Lost);
        }
    }

    /// The socket has taken none of the bytes that it was given for [`close_timeout`](Self::close_timeout), although the program
    /// wants the connection to end; or the peer has sent none, although it [has to answer](Self::awaits_answers). While the work
    /// still goes on, only the driver sees whether it moves.
    pub fn handle_stall(&mut self) {
        if matches!(self.phase, Phase::Finishing { .. }) {
            self.close_finishing();
        } else {
            self.close(CloseReason::TimedOut);
        }
    }

    /// Has nothing been heard of the peer yet, or no more than a part of its MPA Request?
    #[must_use]
    pub fn awaits_request(&self) -> bool {
        matches!(self.phase, Phase::AwaitRequest { .. })
    }

    /// Has it been refused, and is it only left to its peer to close?
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(
            self.phase,
            Phase::Finishing {
                reason: CloseReason::RejectedByUs,
                ..
            }
        )
    }

    /// Does an orderly end that was asked for wait for work that goes out first? Until that is over it has no deadline of its own.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        matches!(
            self.phase,
            Phase::Rts {
                local: Local::Draining,
                ..
            }
        )
    }

    /// Does an orderly end wait for the peer to answer what has gone out?
    #[must_use]
    pub fn awaits_answers(&self) -> bool {
        self.is_draining() && self.requests.has_unanswered()
    }

    /// How long an end waits for the peer ([`Config::close_timeout`]).
    #[must_use]
    pub fn close_timeout(&self) -> Duration {
        self.config.close_timeout
    }

    /// Next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Next completion.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop()
    }

    /// Is there a completion that is a solicited event?
    pub(crate) fn has_solicited_event(&self) -> bool {
        self.completions.solicited() > 0
    }

    /// When `handle_timeout` is due next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let closing = match &self.phase {
            Phase::Rts {
                local: Local::FinSent { deadline },
                ..
            } => Some(*deadline),
            _ => self.setup_deadline(),
        };
        [closing, self.nudge.at()].into_iter().flatten().min()
    }

    /// Time passed; does nothing when no deadline did.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = now;
        self.start_clock();
        if self.nudge.is_due(now) {
            let idle = !self.requests.is_mid_message() && !self.responses.is_mid_message();
            if idle
                && matches!(
                    self.phase,
                    Phase::Rts {
                        local: Local::Open,
                        ..
                    }
                )
            {
                self.emit_zero_write();
            }
        }
        if self.setup_deadline().is_some_and(|at| at <= now) {
            match self.phase {
                Phase::Finishing { .. } => self.close_finishing(),
                _ => self.close(CloseReason::TimedOut),
            }
        }
        if matches!(self.phase, Phase::Rts { local: Local::FinSent { deadline }, .. } if deadline <= now)
        {
            self.close(CloseReason::TimedOut);
        }
    }

    /// Queues work. Allowed from the start; it goes out when the connection is established.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued.
    pub fn post_send(&mut self, request: WorkRequest) -> Result<(), PostError> {
        self.check_open()?;
        if self.requests.len() + self.completions.sends() >= self.config.send_queue_max {
            return Err(PostError::QueueFull);
        }
        let (len, slice) = request.op.local();
        if slice.is_some_and(|slice| !slice.is_inside()) {
            return Err(PostError::OutOfBounds);
        }
        let len = u32::try_from(len).map_err(|_| PostError::TooLong)?;
        let open = matches!(self.phase, Phase::Rts { .. });
        if open && self.ord == 0 && request.op.is_answered() {
            return Err(PostError::NoReads);
        }
        if open && !self.profile && request.op.is_private() {
            return Err(PostError::NoProfile);
        }
        if matches!(request.op, Operation::Verify { len, .. } if len > VERIFY_BYTES_MAX) {
            return Err(PostError::TooLong);
        }
        self.requests.push(request, len);
        Ok(())
    }

    /// Queues a buffer for a message of the peer.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued.
    pub fn post_recv(&mut self, wr_id: WrId, buffer: RecvBuffer) -> Result<(), PostError> {
        self.check_open()?;
        if self.receives.is_shared() {
            return Err(PostError::SharedQueue);
        }
        if self.receives.len() + self.completions.recvs() >= self.config.recv_queue_max {
            return Err(PostError::QueueFull);
        }
        buffer.validate()?;
        self.receives.push(wr_id, buffer);
        Ok(())
    }

    fn check_open(&self) -> Result<(), PostError> {
        match &self.phase {
            Phase::Rts {
                local: Local::Open, ..
            } => Ok(()),
            Phase::Rts { .. }
            | Phase::AwaitFirst {
                local: Local::Draining,
                ..
            }
            | Phase::Finishing { .. }
            | Phase::Closed => Err(PostError::NotOpen),
            _ => Ok(()),
        }
    }

    /// Ends in order: posted work goes out, then FIN. Before the connection is established, it just ends. How long the work may
    /// take is the driver's to say ([`handle_stall`](Self::handle_stall)), as much of it may rightly take long; but for a responder that has
    /// heard nothing of its peer yet, and may send nothing before that (RFC 5044 §7.1.2): it waits for [`Config::close_timeout`].
    pub fn disconnect(&mut self) {
        match &mut self.phase {
            Phase::Rts {
                local: local @ Local::Open,
                ..
            } => *local = Local::Draining,
            // The program has heard that it is established.
            Phase::AwaitFirst {
                established: None,
                local,
                ..
            } if !self.requests.is_empty() => *local = Local::Draining,
            Phase::Rts { .. } | Phase::Finishing { .. } | Phase::Closed => {}
            _ => self.finish(CloseReason::Aborted),
        }
    }

    /// Ends now: requests are flushed, the socket closes without Terminate.
    pub fn abort(&mut self) {
        self.close(CloseReason::Aborted);
    }

    /// Ends the connection because of `fault` in the message `ulpdu`, telling the peer.
    fn fail(&mut self, fault: Fault, ulpdu: Option<&[u8]>) -> crate::stream::Step {
        let (code, reason) = match fault {
            Fault::Peer(code) => (code, CloseReason::TerminateSent(code)),
            Fault::Storage(error) => (
                TerminateCode::OperationCatastrophicStream,
                CloseReason::Storage(error),
            ),
        };
        // Before the first whole FPDU of the peer a responder may send none itself, and behind our FIN nobody can.
        let is_mute = matches!(
            self.phase,
            Phase::AwaitFirst { .. }
                | Phase::Rts {
                    local: Local::FinSent { .. },
                    ..
                }
        );
        if is_mute {
            self.close(reason);
        } else {
            self.queue_terminate(code, ulpdu);
            self.finish(reason);
        }
        crate::stream::Step::Discard
    }

    fn queue_terminate(&mut self, code: TerminateCode, ulpdu: Option<&[u8]>) {
        let ulpdu = ulpdu.filter(|_| self.config.planted != Some(Bug::NothingEnclosed));
        let at = self.framer.open(&mut self.control_out);
        Untagged {
            opcode: Opcode::Terminate,
            last: true,
            invalidate: Stag(0),
            msn: Msn::FIRST,
            offset: 0,
            payload: &[],
        }
        .emit_header(&mut self.control_out);
        Terminate::emit(code, ulpdu, &mut self.control_out);
        self.framer.seal(&mut self.control_out, at);
    }

    /// All work ends in error and everything held is given back.
    fn flush(&mut self, oldest_answered: Status) {
        self.requests.flush(oldest_answered, &mut self.completions);
        self.receives.flush(&mut self.completions);
        self.responses.reset();
        self.placer.reset();
        self.execution = None;
        self.inbound = Inbound::Open;
        self.rx = StreamBuffer::default();
        self.nudge = Nudge::default();
    }

    /// Lets what is in `control_out` go out, then FIN.
    fn finish(&mut self, reason: CloseReason) {
        self.flush(Status::Flushed);
        let fin_seen = matches!(
            self.phase,
            Phase::Rts {
                remote: Remote::FinBehind | Remote::Finished,
                ..
            }
        );
        let finish = if fin_seen {
            Finish::PendingAfterFin
        } else {
            Finish::Pending
        };
        self.phase = Phase::Finishing {
            reason,
            finish,
            deadline: None,
        };
    }

    fn close_finishing(&mut self) {
        if let Phase::Finishing { reason, .. } = std::mem::replace(&mut self.phase, Phase::Closed) {
            // Nobody hears it any more.
            self.control_out.clear();
            self.events.push_back(Event::Closed(reason));
        }
    }

    /// The end.
    fn close(&mut self, reason: CloseReason) {
        self.close_telling(reason, Status::Flushed);
    }

    /// The peer has stopped at a message of ours, of this kind if it says so.
    fn close_terminated(&mut self, terminate: Terminate, about: Option<Opcode>) {
        let is_request = |opcode: Opcode| opcode.queue() == Some(QueueNum::ReadRequest);
        let status = match about.is_none_or(is_request) {
            true => answered_status(terminate),
            false => Status::Flushed,
        };
        self.close_telling(CloseReason::TerminateReceived(terminate), status);
    }

    /// The same, telling this to the oldest request that waits for its answer.
    fn close_telling(&mut self, reason: CloseReason, oldest_answered: Status) {
        if matches!(self.phase, Phase::Closed) {
            return;
        }
        self.flush(oldest_answered);
        self.control_out.clear();
        self.phase = Phase::Closed;
        self.events.push_back(Event::Closed(reason));
    }
}

/// What the READ or atomic operation that the peer stopped at is told.
fn answered_status(terminate: Terminate) -> Status {
    match (terminate.layer, terminate.etype) {
        (0, 1) => Status::RemoteAccess,
        (0, _) => Status::RemoteOperation,
        (1, 2) => Status::RemoteInvalidRequest,
        _ => Status::Flushed,
    }
}
