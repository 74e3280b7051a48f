//! What may happen next, and what comes of it: the rules R1 to R7.

use super::stage::{STAGES, Stage};
use super::{Kind, Machine, Move, Planted, State, What};
use crate::persist::peer::{Completion, Inbound};
use crate::persist::recipe::{RequesterStep, ResponderStep, Tag};

impl Machine {
    /// Everything that may happen next.
    pub(in crate::persist) fn moves(&self, state: State, into: &mut Vec<Move>) {
        into.clear();
        if self.requester_may(state) {
            into.push(Move::Requester);
        }
        let advancing = (0..self.pieces.len()).filter(|&piece| self.may_advance(state, piece));
        into.extend(advancing.map(Move::Advance));
        let answering = (0..self.ops.len()).filter(|&op| self.may_answer(state, op));
        into.extend(answering.map(Move::Answer));
        if self.responder_may(state) {
            into.push(Move::Responder);
        }
    }

    /// The moment after it.
    pub(in crate::persist) fn apply(&self, mut state: State, what: Move) -> State {
        match what {
            Move::Requester => {
                let step = usize::from(state.requester);
                if let Some(op) = self.ops.iter().position(|op| op.step == step) {
                    for piece in self.brought_by(op) {
                        state.set(piece, Stage::Transport);
                    }
                }
                state.requester += 1;
            }
            Move::Advance(piece) => state.set(piece, self.next_stage(state.stage(piece))),
            Move::Answer(op) => state.answered |= 1 << op,
            Move::Responder => {
                if let Some(piece) = self.next_to_copy(state) {
                    state.set(piece, state.stage(piece).max(Stage::Coherent));
                    if self.next_to_copy(state).is_some() {
                        return state;
                    }
                }
                state.responder += 1;
            }
        }
        state
    }

    pub(super) fn next_stage(&self, stage: Stage) -> Stage {
        match (stage, self.inbound) {
            (Stage::Nic, Inbound::Copied) => Stage::Coherent,
            (stage, _) => STAGES[(stage as usize + 1).min(STAGES.len() - 1)],
        }
    }

    fn brought_by(&self, op: usize) -> impl Iterator<Item = usize> {
        (0..self.pieces.len()).filter(move |&piece| self.pieces[piece].op == Some(op))
    }

    fn is_posted(&self, state: State, op: usize) -> bool {
        usize::from(state.requester) > self.ops[op].step
    }

    /// Are all pieces of these operations at this stage, or where they end?
    fn have_come(&self, state: State, ops: impl Iterator<Item = usize>, to: Stage) -> bool {
        ops.flat_map(|op| self.brought_by(op))
            .all(|piece| state.stage(piece) >= to.min(self.pieces[piece].last))
    }

    /// WRITEs and SENDs before an operation.
    fn posted_before(&self, op: usize) -> impl Iterator<Item = usize> {
        (0..op).filter(|&other| matches!(self.ops[other].kind, Kind::Posted { .. }))
    }

    /// WRITEs through sync STags before an operation.
    fn sync_before(&self, op: usize) -> impl Iterator<Item = usize> {
        let planted = self.planted == Some(Planted::SyncHoldsNothing);
        (0..op).filter(move |&other| {
            matches!(self.ops[other].kind, Kind::Posted { tag: Tag::Sync, .. }) && !planted
        })
    }

    /// Where a piece is that the NIC has delivered.
    fn delivered(&self) -> Stage {
        self.next_stage(Stage::Nic)
    }

    fn requester_may(&self, state: State) -> bool {
        let at = usize::from(state.requester);
        match self.requester.get(at) {
            None => false,
            Some(RequesterStep::Wait) => {
                let last = self.ops.iter().rposition(|op| op.step < at);
                last.is_none_or(|op| self.has_completed(state, op))
            }
            Some(RequesterStep::ReceiveAck) => {
                let count = |steps: &[RequesterStep]| {
                    let acks = steps.iter().filter(|s| **s == RequesterStep::ReceiveAck);
                    acks.count()
                };
                let sent = self.responder[..usize::from(state.responder)]
                    .iter()
                    .filter(|step| **step == ResponderStep::Ack)
                    .count();
                sent > count(&self.requester[..at])
            }
            Some(_) => true,
        }
    }

    fn has_completed(&self, state: State, op: usize) -> bool {
        match (self.ops[op].kind, self.completion) {
            (Kind::Barrier { .. }, _) => state.has_answered(op),
            (Kind::AtomicWrite, _) => self.is_done(state, op),
            (Kind::Posted { .. }, Completion::Local) => true,
            (Kind::Posted { .. }, Completion::Responder) => {
                self.have_come(state, 0..=op, Stage::Nic)
            }
        }
    }

    /// Has a non-posted operation been carried out?
    fn is_done(&self, state: State, op: usize) -> bool {
        match self.ops[op].kind {
            Kind::Barrier { .. } => state.has_answered(op),
            Kind::AtomicWrite => self.have_come(state, op..=op, self.delivered()),
            Kind::Posted { .. } => true,
        }
    }

    /// May a non-posted operation start? (R3)
    fn may_start(&self, state: State, op: usize) -> bool {
        let overtakes = self.planted == Some(Planted::AtomicOvertakesFlush);
        let others = (0..op).all(|other| {
            (overtakes && self.ops[op].kind == Kind::AtomicWrite) || self.is_done(state, other)
        });
        others && self.have_come(state, self.posted_before(op), self.delivered())
    }

    fn may_answer(&self, state: State, op: usize) -> bool {
        let Kind::Barrier { is_flush, reach } = self.ops[op].kind else {
            return false;
        };
        let early = self.planted == Some(Planted::FlushAnswersEarly) && is_flush;
        let reach = if early { self.delivered() } else { reach };
        self.is_posted(state, op)
            && !state.has_answered(op)
            && self.may_start(state, op)
            && self.have_come(state, 0..op, reach)
            && self.have_come(state, self.sync_before(op), self.kept_from)
    }

    fn may_advance(&self, state: State, piece: usize) -> bool {
        let stage = state.stage(piece);
        if stage == Stage::Absent || stage >= self.pieces[piece].last {
            return false;
        }
        let Some(op) = self.pieces[piece].op else {
            return true;
        };
        let next = self.next_stage(stage);
        let bus_reorders = self.planted == Some(Planted::BusReorders) && stage == Stage::Bus;
        match stage {
            Stage::Transport => !self.in_order || self.have_come(state, 0..op, Stage::Nic),
            Stage::Nic if self.ops[op].kind == Kind::AtomicWrite => self.may_start(state, op),
            Stage::Nic | Stage::Bus => {
                (!self.in_order
                    || bus_reorders
                    || self.have_come(state, self.posted_before(op), next))
                    && self.have_come(state, self.sync_before(op), self.kept_from)
            }
            _ => true,
        }
    }

    pub(super) fn next_to_copy(&self, state: State) -> Option<usize> {
        let ResponderStep::Copy(item) = *self.responder.get(usize::from(state.responder))? else {
            return None;
        };
        (0..self.pieces.len()).find(|&at| {
            self.pieces[at].what == What::Change(item) && state.stage(at) < Stage::Coherent
        })
    }

    fn responder_may(&self, state: State) -> bool {
        let at = usize::from(state.responder);
        match self.responder.get(at) {
            None => false,
            Some(ResponderStep::Receive) => {
                let before = self.responder[..at].iter();
                let nth = before.filter(|s| **s == ResponderStep::Receive).count();
                self.may_receive(state, nth)
            }
            Some(ResponderStep::Flush(item)) => {
                let change = self.change(*item);
                self.planted == Some(Planted::FlushWithoutBarrier)
                    || (0..self.pieces.len())
                        .filter(|&piece| change.has(piece))
                        .all(|piece| state.stage(piece) != Stage::Coherent)
            }
            // From a message that was received, or found after a restart.
            Some(ResponderStep::Copy(_)) => {
                self.ops.is_empty() || self.responder[..at].contains(&ResponderStep::Receive)
            }
            Some(ResponderStep::Release | ResponderStep::Ack) => true,
        }
    }

    /// Can the message, or immediate data, of this number be received? (R5)
    fn may_receive(&self, state: State, nth: usize) -> bool {
        let notifies = |op: &usize| {
            let kind = self.ops[*op].kind;
            matches!(kind, Kind::Posted { notifies: true, .. })
        };
        let Some(op) = (0..self.ops.len()).filter(notifies).nth(nth) else {
            return false;
        };
        let overtakes = self.planted == Some(Planted::ReceiveOvertakesWrites);
        self.is_posted(state, op)
            && self.have_come(state, op..=op, Stage::Coherent)
            && (overtakes || self.have_come(state, self.posted_before(op), Stage::Coherent))
            && self.have_come(state, self.sync_before(op), self.kept_from)
    }
}
