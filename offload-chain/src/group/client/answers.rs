//! From what the members answer to outcomes.

use softrdma::offload::Opcode;
use softrdma::{CloseReason, Completion, CompletionOpcode, Event, RecvBuffer};
use zerocopy::IntoBytes;

use super::{ANSWER_BIT, Client, READ_BIT, Read, State};
use crate::group::block::{BLOCK_BYTES, Kind, RESULT_BYTES, RawFlush, slot_byte};
use crate::group::primitives::{MemberMap, Outcome};
use crate::group::shape::{Denied, Welcome};

impl Client {
    /// Takes what the connections have for us.
    pub(super) fn settle(&mut self) {
        for member in 0..self.lines.len() {
            while let Some(event) = self.lines[member].connection.poll_event() {
                match event {
                    Event::Established(established) => {
                        self.greeted(member, &established.private_data);
                    }
                    Event::Closed(reason) => self.closed(member, &reason),
                    Event::PeerFinished => {
                        self.break_with(format!("member {member} ended its link"));
                    }
                    Event::ConnectRequest(_) | Event::SharedReceivesLow => {}
                }
            }
            while let Some(completion) = self.lines[member].connection.poll_completion() {
                self.completed(member, &completion);
            }
        }
    }

    fn greeted(&mut self, member: usize, private_data: &[u8]) {
        match Welcome::parse(private_data) {
            Some(welcome) => self.lines[member].welcome = Some(welcome),
            None => self.break_with(format!("member {member} is none")),
        }
        let met = self.lines.iter().all(|line| line.welcome.is_some());
        if met && self.state == State::Meeting {
            self.clear();
        }
    }

    /// Sends a gFLUSH of nothing.
    fn clear(&mut self) {
        self.state = State::Clearing;
        let common = self.common(Kind::Flush);
        let block = RawFlush {
            common,
            slot: slot_byte(self.slot()),
            ..RawFlush::default()
        };
        let blocks = self.repeated(block.as_bytes());
        self.send(blocks, common, None);
        if let Some(first) = self.under_way.back_mut() {
            first.flight = None;
        }
    }

    fn closed(&mut self, member: usize, reason: &CloseReason) {
        let why = match reason {
            CloseReason::Rejected(why) => match Denied::parse(why) {
                Some(denied) => {
                    self.denied.get_or_insert(denied);
                    denied.to_string()
                }
                None => reason.to_string(),
            },
            reason => reason.to_string(),
        };
        self.break_with(format!("member {member}: {why}"));
    }

    fn completed(&mut self, member: usize, completion: &Completion) {
        let number = completion.wr_id.0;
        if !completion.status.is_success() {
            // The link's end says more, and comes with it.
            return;
        }
        if number & READ_BIT != 0 {
            if let Some(Read { flight, sink }) = self.lines[member].reads.pop_front() {
                let bytes = sink.to_vec(0, sink.len());
                self.outcomes.push_back((flight, Ok(Outcome::Read(bytes))));
            }
            return;
        }
        if number & ANSWER_BIT == 0 {
            return;
        }
        let (CompletionOpcode::RecvRdmaWithImm, Some(immediate)) =
            (completion.opcode, completion.immediate)
        else {
            return self.break_with("an answer that is none".to_owned());
        };
        let again = self.lines[member]
            .connection
            .post_recv(completion.wr_id, RecvBuffer::Vec(0));
        if let Err(error) = again {
            return self.break_with(format!("member {member}: {error}"));
        }
        self.answered(immediate.0);
    }

    fn answered(&mut self, immediate: [u8; 8]) {
        let Some(one) = self.under_way.pop_front() else {
            return self.break_with("an answer that nobody asked for".to_owned());
        };
        // What kind, who and which epoch: of the block of the member that answered. Whether that one executes a gCAS is in
        // its second byte.
        let mut expected = one.common;
        if one
            .execute
            .is_some_and(|map| map.contains(self.shape.answerer()))
        {
            expected.execute = Opcode::CompareSwap as u8;
        }
        if immediate != expected.as_bytes() {
            self.under_way.push_front(one);
            return self
                .break_with("an answer to something else than the oldest primitive".to_owned());
        }
        self.staging.give_back(one.staged_until);
        let outcome = match one.execute {
            None => Outcome::Done,
            Some(map) => Outcome::Cas(self.had(one.slot, map)),
        };
        match one.flight {
            Some(flight) => self.outcomes.push_back((flight, Ok(outcome))),
            None => self.state = State::Ready,
        }
    }

    /// What the members had, by the message that came back.
    fn had(&self, slot: usize, map: MemberMap) -> Vec<Option<u64>> {
        let message = self
            .results
            .to_vec(slot * RESULT_BYTES, self.shape.message_bytes());
        let old = |member: usize| {
            let at = member * BLOCK_BYTES + 16;
            let bytes = message.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        (0..self.shape.members)
            .map(|member| map.contains(member).then(|| old(member)).flatten())
            .collect()
    }
}
