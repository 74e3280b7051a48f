//! Set-up: Request, Reply, and what they agree on (RFC 5044 §7.1, RFC 6581 §4-§9).

use crate::addr::{Stag, TaggedOffset, Time};
use crate::config::{Config, READS_LIMIT, Revision, ULPDU_FLOOR, ULPDU_LIMIT};
use crate::connection::nudge::Nudge;
use crate::connection::phase::{Local, Phase};
use crate::connection::{AnswerError, Connection, PrivateDataTooLong, private_data_max};
use crate::event::{CloseReason, ConnectRequest, Established, Event, SetupError};
use crate::page::PageStore;
use crate::planted::Bug;
use crate::stream::Step;
use crate::wire::ddp::Tagged;
use crate::wire::hello::Hello;
use crate::wire::marker::Framer;
use crate::wire::profile::PROFILE_VERSION;
use crate::wire::rdmap::Opcode;
use crate::wire::start::{Enhanced, NOT_NEGOTIATED, NextStart, RtrKinds, StartFrame, StartKind};
use crate::wire::terminate::TerminateCode;

/// A Request that the program has not answered yet: all of it that the Reply depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    markers: bool,
    crc: bool,
    revision: u8,
    enhanced: Option<Enhanced>,
    hello: Option<Hello>,
}

/// Appends the Request.
pub(super) fn emit_request(config: &Config, private_data: &[u8], out: &mut Vec<u8>) {
    let enhanced = matches!(config.revision, Revision::Two).then(|| Enhanced {
        ird: config.ird_max.min(READS_LIMIT),
        ord: config.ord_max.min(READS_LIMIT),
        peer_to_peer: config.peer_to_peer.then_some(config.rtr),
    });
    let revision = if enhanced.is_some() { 2 } else { 1 };
    let data = with_hello(config.hello, config, private_data);
    StartFrame {
        kind: StartKind::Request,
        markers: false,
        crc: config.crc,
        rejected: false,
        revision,
        enhanced,
        private_data: &data,
    }
    .emit(out);
}

fn with_hello(hello: bool, config: &Config, private_data: &[u8]) -> Vec<u8> {
    let mut data = Vec::with_capacity(private_data.len() + 8);
    if hello {
        Hello {
            ulpdu_max: config.ulpdu_max,
            profile: if config.private_profile {
                PROFILE_VERSION
            } else {
                0
            },
        }
        .emit(&mut data);
    }
    data.extend_from_slice(private_data);
    data
}

fn known(reads: u16) -> Option<u16> {
    (reads != NOT_NEGOTIATED).then_some(reads)
}

impl<S: PageStore> Connection<S> {
    /// First bytes at the responder.
    pub(super) fn take_request(&mut self, bytes: &[u8]) -> Step {
        let (frame, total) = match StartFrame::parse(StartKind::Request, bytes) {
            Ok(NextStart::Need(count)) => return Step::Need(count),
            Ok(NextStart::Frame(frame, total)) => (frame, total),
            Err(error) => return self.setup_failed(error),
        };
        let (hello, private_data) = match self.config.hello {
            true => Hello::split(frame.private_data),
            false => (None, frame.private_data),
        };
        self.events.push_back(Event::ConnectRequest(ConnectRequest {
            private_data: private_data.to_vec(),
            revision: frame.revision,
            peer_ird: frame.enhanced.and_then(|block| known(block.ird)),
            peer_ord: frame.enhanced.and_then(|block| known(block.ord)),
            hello: hello.is_some(),
        }));
        let StartFrame {
            markers,
            crc,
            revision,
            enhanced,
            ..
        } = frame;
        self.phase = Phase::AwaitAnswer(Asked {
            markers,
            crc,
            revision,
            enhanced,
            hello,
        });
        Step::Took(total)
    }

    /// Closes at once: the peer does not speak MPA as we do (RFC 5044 §7.1.2).
    pub(super) fn setup_failed(&mut self, error: SetupError) -> Step {
        self.close(CloseReason::Setup(error));
        Step::Discard
    }

    /// Accepts the request reported last.
    ///
    /// # Errors
    /// If there is none, or the private data is too long.
    pub fn accept(&mut self, private_data: &[u8]) -> Result<(), AnswerError> {
        let asked = self.asked(private_data)?;
        let (ird, ord) = match asked.enhanced {
            None => (self.config.ird_max, self.config.ord_max),
            Some(block) => self.agree_as_responder(block),
        };
        self.agree(asked.crc, asked.markers, asked.hello, ird, ord);
        let enhanced = asked.enhanced.map(|block| Enhanced {
            ird: known(block.ord).map_or(NOT_NEGOTIATED, |_| ird),
            ord: known(block.ird).map_or(NOT_NEGOTIATED, |_| ord),
            peer_to_peer: block.peer_to_peer.map(|kinds| self.rtr_answer(kinds)),
        });
        self.emit_reply(asked, enhanced, false, private_data);
        let established = self.established(Vec::new());
        let peer_to_peer = enhanced.is_some_and(|block| block.peer_to_peer.is_some());
        self.rtr_send = enhanced
            .and_then(|block| block.peer_to_peer)
            .is_some_and(|kinds| kinds.send);
        // With the peer-to-peer model the program hears of it when the ready-to-receive frame arrived.
        self.phase = if peer_to_peer {
            Phase::AwaitFirst {
                deadline: None,
                established: Some(established),
                local: Local::Open,
            }
        } else {
            self.events.push_back(Event::Established(established));
            match self.config.passive_sends_first {
                true => Phase::rts(),
                false => Phase::AwaitFirst {
                    deadline: None,
                    established: None,
                    local: Local::Open,
                },
            }
        };
        Ok(())
    }

    /// Refuses the request reported last.
    ///
    /// # Errors
    /// As `accept`.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), AnswerError> {
        let asked = self.asked(private_data)?;
        let none = Enhanced {
            ird: 0,
            ord: 0,
            peer_to_peer: None,
        };
        self.emit_reply(asked, asked.enhanced.map(|_| none), true, private_data);
        self.finish(CloseReason::RejectedByUs);
        Ok(())
    }

    fn asked(&self, private_data: &[u8]) -> Result<Asked, AnswerError> {
        let Phase::AwaitAnswer(asked) = self.phase else {
            return Err(AnswerError::NoRequest);
        };
        if private_data.len() > private_data_max(asked.hello.is_some()) {
            return Err(PrivateDataTooLong(private_data.len()).into());
        }
        Ok(asked)
    }

    fn emit_reply(
        &mut self,
        asked: Asked,
        enhanced: Option<Enhanced>,
        rejected: bool,
        private_data: &[u8],
    ) {
        let data = with_hello(asked.hello.is_some(), &self.config, private_data);
        StartFrame {
            kind: StartKind::Reply,
            markers: false,
            crc: self.config.crc || asked.crc,
            rejected,
            revision: asked.revision,
            enhanced,
            private_data: &data,
        }
        .emit(&mut self.control_out);
    }

    /// IRD and ORD at the responder (RFC 6581 §9.2).
    fn agree_as_responder(&self, block: Enhanced) -> (u16, u16) {
        let ord = known(block.ird).map_or(self.config.ord_max, |ird| ird.min(self.config.ord_max));
        let mut ird = self.config.ird_max.min(READS_LIMIT);
        // A ready-to-receive READ needs a place even when the peer will send no others.
        if block
            .peer_to_peer
            .is_some_and(|kinds| self.rtr_answer(kinds).read)
        {
            ird = ird.max(1);
        }
        (ird, ord)
    }

    /// What we answer to the kinds offered: those offered, but the zero-length Send only if it is alone, and the READ, for
    /// which we may have no place, then too. Whether the Send uses up a message number is not spelled out in RFC 6581; we say
    /// it does. If none is offered, what we would take.
    fn rtr_answer(&self, offered: RtrKinds) -> RtrKinds {
        let none = !(offered.send || offered.write || offered.read);
        let write = offered.write || none;
        let has_place = self.config.ird_max > 0 || !write;
        RtrKinds {
            send: offered.send && !offered.write && !offered.read,
            write,
            read: (offered.read || none) && has_place,
        }
    }

    /// First bytes at the initiator.
    pub(super) fn take_reply(&mut self, bytes: &[u8]) -> Step {
        let (frame, total) = match StartFrame::parse(StartKind::Reply, bytes) {
            Ok(NextStart::Need(count)) => return Step::Need(count),
            Ok(NextStart::Frame(frame, total)) => (frame, total),
            Err(error) => return self.setup_failed(error),
        };
        let (hello, private_data) = match self.config.hello {
            true => Hello::split(frame.private_data),
            false => (None, frame.private_data),
        };
        if frame.rejected {
            self.close(CloseReason::Rejected(private_data.to_vec()));
            return Step::Discard;
        }
        let asked_enhanced = matches!(self.config.revision, Revision::Two);
        if asked_enhanced != (frame.revision == 2) {
            return self.setup_failed(SetupError::Revision(frame.revision));
        }
        let (ird, mut ord) = (self.config.ird_max.min(READS_LIMIT), self.config.ord_max);
        if let Some(peer) = frame.enhanced.and_then(|block| known(block.ird)) {
            ord = ord.min(peer);
        }
        self.agree(frame.crc, frame.markers, hello, ird, ord);
        let mut rtr = None;
        if let Some(block) = frame.enhanced {
            if let Some(peer) = known(block.ord).filter(|&peer| peer > ird) {
                let error = SetupError::InsufficientIrd(peer);
                return self.setup_terminated(TerminateCode::MpaInsufficientIrd, error);
            }
            let offered = self.config.rtr;
            let peer = block.peer_to_peer.filter(|_| self.config.peer_to_peer);
            rtr = peer.map(|kinds| RtrKinds {
                send: kinds.send && offered.send,
                write: kinds.write && offered.write,
                read: kinds.read && offered.read,
            });
            if rtr == Some(RtrKinds::default()) {
                return self
                    .setup_terminated(TerminateCode::MpaNoCommonRtr, SetupError::NoCommonRtr);
            }
        }
        self.phase = Phase::rts();
        match rtr {
            Some(kinds) if kinds.write => self.emit_zero_write(),
            Some(kinds) if kinds.read => self
                .requests
                .emit_rtr_read(&mut self.framer, &mut self.control_out),
            Some(_) => self
                .requests
                .emit_rtr_send(&mut self.framer, &mut self.control_out),
            None => {}
        }
        if hello.is_none() {
            self.nudge = Nudge::start(self.now, rtr.is_some());
        }
        let established = self.established(private_data.to_vec());
        self.events.push_back(Event::Established(established));
        Step::Took(total)
    }

    /// The Reply asks for what we cannot do: says so, then closes (RFC 6581 §8).
    fn setup_terminated(&mut self, code: TerminateCode, error: SetupError) -> Step {
        self.queue_terminate(code, None);
        self.finish(CloseReason::Setup(error));
        Step::Discard
    }

    /// A Write of zero bytes. STag 1, as some hardware treats STag 0 specially.
    pub(super) fn emit_zero_write(&mut self) {
        let at = self.framer.open(&mut self.control_out);
        Tagged {
            opcode: Opcode::Write,
            last: true,
            stag: Stag(1),
            to: TaggedOffset(0),
            payload: &[],
        }
        .emit_header(&mut self.control_out);
        self.framer.seal(&mut self.control_out, at);
    }

    fn agree(&mut self, crc: bool, markers: bool, hello: Option<Hello>, ird: u16, ord: u16) {
        self.framer = Framer::new(self.config.crc || crc, markers);
        let ulpdu_max = hello.map_or(self.config.ulpdu_foreign, |hello| {
            hello.ulpdu_max.min(self.config.ulpdu_max)
        });
        self.ulpdu_max = ulpdu_max.clamp(ULPDU_FLOOR, ULPDU_LIMIT);
        self.is_foreign = hello.is_none();
        self.profile = self.config.private_profile
            && (hello.is_some_and(|hello| hello.profile == PROFILE_VERSION)
                || self.is_planted(Bug::ProfileUnasked));
        (self.ird, self.ord) = (ird, ord);
    }

    fn established(&self, private_data: Vec<u8>) -> Established {
        Established {
            private_data,
            ird: self.ird,
            ord: self.ord,
            crc: self.framer.crc,
            markers: self.framer.markers(),
            ulpdu_max: self.ulpdu_max,
            private_profile: self.profile,
        }
    }

    /// Begins the time of what a program or a page set off. They do not say when that was, and may have taken longer than the
    /// whole time: what counts is the first moment that we are told of afterwards.
    pub(super) fn start_clock(&mut self) {
        match &mut self.phase {
            Phase::AwaitFirst {
                deadline: deadline @ None,
                established: Some(_),
                ..
            } => *deadline = Some(self.now + self.config.start_timeout),
            Phase::AwaitFirst {
                deadline: deadline @ None,
                local: Local::Draining,
                ..
            }
            | Phase::Finishing {
                deadline: deadline @ None,
                ..
            } => *deadline = Some(self.now + self.config.close_timeout),
            _ => {}
        }
    }

    /// Deadline of the set-up, if it is still going on. The time is wanted at once where one has not begun yet.
    pub(super) fn setup_deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::AwaitRequest { deadline } | Phase::AwaitReply { deadline } => Some(*deadline),
            Phase::AwaitFirst {
                deadline,
                established: Some(_),
                ..
            }
            | Phase::AwaitFirst {
                deadline,
                local: Local::Draining,
                ..
            }
            | Phase::Finishing { deadline, .. } => Some(deadline.unwrap_or(self.now)),
            _ => None,
        }
    }
}
