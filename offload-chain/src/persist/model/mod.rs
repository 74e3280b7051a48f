//! An emulated responder whose power can be cut between any two steps.
//!
//! Data are cut into *pieces*: a record of 64 bytes and a message are two each, since neither arrives or leaves a cache
//! as a whole; a tail of up to 8 bytes is one. Each piece is at a [`Stage`], and only moves forward:
//!
//! ```text
//!   requester's        responder's                      memory
//!   transport ─────▶ NIC ──▶ bus ──▶ coherent ──▶ controller ──▶ PM
//!                       └────────────────▲
//!                       copied by the CPU (siw, our endpoint)
//! ```
//!
//! *Coherent* is where every processor sees the piece: a line of the cache (DDIO on, or stored by a processor), or the
//! bus controller's write buffer, from where lines go to the memory channels in any order (DDIO off). Everything that
//! may happen next is a [`Move`], and all of them are tried: there is no clock and no chance in here.
//!
//! # Rules
//! - R1. Operations arrive in the order they were posted. A NIC that places in order puts WRITEs and SENDs on the bus in
//!   that order, and the bus makes them visible in that order. One that does not moves pieces as it likes.
//! - R2. A line leaves the coherent stage at any moment (eviction) and in any order.
//! - R3. FLUSH, READ and ATOMIC WRITE start after everything before them was delivered and the non-posted ones among it
//!   are done. WRITE and SEND do not wait for them: they overtake.
//! - R4. FLUSH and READ are answered when everything before them is as far as [`Peer`] says.
//! - R5. A message is received when it and the WRITEs before it are visible.
//! - R6. The processor stores in program order, and its flush waits for every visible line of the change.
//! - R7. Nothing passes a WRITE through a sync STag before that is in the domain.
//! - R8. The cut keeps what is in the domain; a buffer of DRAM, or one given back, never.

mod rules;
mod stage;

use super::peer::{Completion, Inbound, Peer};
use super::recipe::{Barrier, Item, Payload, Recipe, Recovery, RequesterStep, ResponderStep, Tag};
use super::scenario::{ATOMIC_WRITE_BYTES, Config, Ddio, ReceiveQueue, Update};

pub(in crate::persist) use stage::Pieces;
use stage::STAGES;
pub use stage::Stage;

/// Pieces, and operations, of one machine.
const PIECES_MAX: usize = 8;
/// Bits of a stage in a state.
const STAGE_BITS: usize = 4;

/// What a piece is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    Change(Item),
    Message,
}

/// A piece.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Piece {
    what: What,
    part: usize,
    /// It goes no further: what follows makes no difference.
    last: Stage,
    /// The operation that brings it; none if the responder's processor does.
    op: Option<usize>,
}

/// An operation of the requester.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Op {
    /// Which of the requester's steps posts it.
    step: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// WRITE, WRITE_IMM, SEND.
    Posted {
        tag: Tag,
        notifies: bool,
    },
    AtomicWrite,
    /// FLUSH or READ, and how far everything before it has come when it is answered.
    Barrier {
        is_flush: bool,
        reach: Stage,
    },
}

/// Something that may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::persist) enum Move {
    /// The requester takes its next step.
    Requester,
    /// A piece goes on to its next stage.
    Advance(usize),
    /// The responder's NIC answers a FLUSH or READ.
    Answer(usize),
    /// The responder's processor takes its next step.
    Responder,
}

/// One moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::persist) struct State {
    requester: u8,
    responder: u8,
    answered: u8,
    stages: u32,
}

/// Bugs to be planted: a search that does not find them proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests plant bugs"))]
pub(in crate::persist) enum Planted {
    /// The bus makes WRITEs visible in any order.
    BusReorders,
    /// FLUSH is answered as soon as everything is on the bus.
    FlushAnswersEarly,
    /// ATOMIC WRITE does not wait for the FLUSH before it.
    AtomicOvertakesFlush,
    /// A message is received before the WRITEs in front of it are visible.
    ReceiveOvertakesWrites,
    /// The processor's flush does not wait for the memory controller.
    FlushWithoutBarrier,
    /// A sync STag holds up nothing.
    SyncHoldsNothing,
    /// Recovery gives the buffer back before what it copied is flushed.
    RecoveryReleasesEarly,
    /// The cut keeps caches that it must lose.
    CachesAreKept,
}

/// A recipe on a responder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::persist) struct Machine {
    requester: Vec<RequesterStep>,
    responder: Vec<ResponderStep>,
    pieces: Vec<Piece>,
    ops: Vec<Op>,
    recovery: Recovery,
    in_order: bool,
    completion: Completion,
    inbound: Inbound,
    kept_from: Stage,
    /// What a NIC makes visible lies in the bus controller's write buffer, not in the cache.
    bypasses_cache: bool,
    planted: Option<Planted>,
}

impl Machine {
    pub(in crate::persist) fn new(
        recipe: &Recipe,
        config: Config,
        update: Update,
        peer: Peer,
        planted: Option<Planted>,
    ) -> Self {
        let mut machine = Self {
            requester: recipe.requester.clone(),
            responder: recipe.responder.clone(),
            pieces: Vec::new(),
            ops: Vec::new(),
            recovery: recipe.recovery,
            in_order: peer.places_in_order(),
            completion: peer.completion(),
            inbound: peer.inbound(),
            kept_from: peer.kept_from(config),
            bypasses_cache: peer.inbound() == Inbound::Bus && config.ddio == Ddio::Off,
            planted,
        };
        // The changes are there to be looked for even if nothing brings them.
        machine.add(What::Change(Item::A), 2, Stage::Module, None);
        if let Update::Compound { tail_bytes } = update {
            let parts = if tail_bytes > ATOMIC_WRITE_BYTES {
                2
            } else {
                1
            };
            machine.add(What::Change(Item::B), parts, Stage::Module, None);
        }
        for (step, what) in recipe.requester.iter().enumerate() {
            let posted = |tag, notifies| Kind::Posted { tag, notifies };
            let kind = match *what {
                RequesterStep::Write(item, tag) => {
                    machine.bring(item);
                    posted(tag, false)
                }
                RequesterStep::WriteImm(item, tag) => {
                    machine.bring(item);
                    posted(tag, true)
                }
                RequesterStep::AtomicWrite(item) => {
                    machine.bring(item);
                    Kind::AtomicWrite
                }
                RequesterStep::Send(payload) => {
                    let op = Some(machine.ops.len());
                    match (payload, config.receive_queue) {
                        // Of a message that only says where, nobody needs more than to see it.
                        (Payload::AddressOf(_), _) => {
                            machine.add(What::Message, 1, Stage::Coherent, op);
                        }
                        (_, ReceiveQueue::Dram) => {
                            machine.add(What::Message, 2, Stage::Coherent, op);
                        }
                        (_, ReceiveQueue::Pm) => machine.add(What::Message, 2, Stage::Module, op),
                    }
                    posted(Tag::Plain, true)
                }
                RequesterStep::Barrier(barrier) => Kind::Barrier {
                    is_flush: barrier == Barrier::Flush,
                    reach: peer.reach(barrier, recipe.primary(), config),
                },
                RequesterStep::Wait | RequesterStep::ReceiveAck => continue,
            };
            machine.ops.push(Op { step, kind });
        }
        let len = machine.pieces.len().max(machine.ops.len());
        assert!(len <= PIECES_MAX, "too long for the model: {recipe}");
        machine
    }

    fn add(&mut self, what: What, parts: usize, last: Stage, op: Option<usize>) {
        let there = self.pieces.iter().filter(|piece| piece.what == what);
        let first = there.count();
        self.pieces.extend((first..first + parts).map(|part| Piece {
            what,
            part,
            last,
            op,
        }));
    }

    /// The next operation brings this change.
    fn bring(&mut self, item: Item) {
        let op = Some(self.ops.len());
        for piece in &mut self.pieces {
            if piece.what == What::Change(item) {
                piece.op = op;
            }
        }
    }

    /// The machine that a restart is: the responder applies the message in what was left.
    pub(in crate::persist) fn restarted(&self) -> Self {
        let mut responder: Vec<ResponderStep> = Vec::new();
        for item in [Item::A, Item::B] {
            if self.change(item) != Pieces::default() {
                responder.extend([ResponderStep::Copy(item), ResponderStep::Flush(item)]);
            }
        }
        if self.planted == Some(Planted::RecoveryReleasesEarly) {
            responder.insert(0, ResponderStep::Release);
        } else {
            responder.push(ResponderStep::Release);
        }
        let mut pieces = self.pieces.clone();
        for piece in &mut pieces {
            piece.op = None;
        }
        Self {
            requester: Vec::new(),
            ops: Vec::new(),
            responder,
            pieces,
            ..self.clone()
        }
    }

    /// Does a restart find this message whole, and use it?
    pub(in crate::persist) fn replays(&self, left: Pieces) -> bool {
        let message = self.of(What::Message);
        self.recovery == Recovery::Replay && message != Pieces::default() && left.includes(message)
    }

    fn of(&self, what: What) -> Pieces {
        (0..self.pieces.len())
            .filter(|&at| self.pieces[at].what == what)
            .fold(Pieces::default(), Pieces::with)
    }

    /// The pieces of a change, in its place.
    pub(in crate::persist) fn change(&self, item: Item) -> Pieces {
        self.of(What::Change(item))
    }

    /// Where it all begins; after a restart, with what was left.
    pub(in crate::persist) fn initial(&self, left: Pieces) -> State {
        let mut state = State {
            requester: 0,
            responder: 0,
            answered: 0,
            stages: 0,
        };
        for piece in (0..self.pieces.len()).filter(|&piece| left.has(piece)) {
            state.set(piece, self.pieces[piece].last);
        }
        state
    }

    /// Has the requester said "durable"?
    pub(in crate::persist) fn is_told(&self, state: State) -> bool {
        usize::from(state.requester) == self.requester.len()
    }

    /// Has the responder's processor finished?
    pub(in crate::persist) fn is_served(&self, state: State) -> bool {
        usize::from(state.responder) == self.responder.len()
    }

    /// What a cut now leaves.
    pub(in crate::persist) fn survivors(&self, state: State) -> Pieces {
        let released =
            self.responder[..usize::from(state.responder)].contains(&ResponderStep::Release);
        let kept_from = match self.planted {
            Some(Planted::CachesAreKept) => self.kept_from.min(Stage::Coherent),
            _ => self.kept_from,
        };
        (0..self.pieces.len())
            .filter(|&at| {
                let piece = &self.pieces[at];
                let is_dram = piece.last == Stage::Coherent;
                let is_gone = released && piece.what == What::Message;
                state.stage(at) >= kept_from && !is_dram && !is_gone
            })
            .fold(Pieces::default(), Pieces::with)
    }

    /// What every processor sees now.
    pub(in crate::persist) fn visible(&self, state: State) -> Pieces {
        (0..self.pieces.len())
            .filter(|&piece| state.stage(piece) >= Stage::Coherent)
            .fold(Pieces::default(), Pieces::with)
    }

    /// The move in words.
    pub(in crate::persist) fn describe(&self, state: State, what: Move) -> String {
        match what {
            Move::Requester => {
                let step = self.requester[usize::from(state.requester)];
                format!("requester: {step}")
            }
            Move::Advance(piece) => {
                let stage = state.stage(piece);
                let next = self.next_stage(stage);
                let (from, to) = (self.place(piece, stage), self.place(piece, next));
                format!("{}: {from} -> {to}", self.name(piece))
            }
            Move::Answer(op) => {
                let step = self.requester[self.ops[op].step];
                format!("responder's NIC answers {step}")
            }
            Move::Responder => match self.next_to_copy(state) {
                Some(piece) => format!("responder: copies {}", self.name(piece)),
                None => {
                    let step = self.responder[usize::from(state.responder)];
                    format!("responder: {step}")
                }
            },
        }
    }

    /// Where a piece is, in words.
    fn place(&self, piece: usize, stage: Stage) -> String {
        let is_inbound = self.pieces[piece].op.is_some();
        if stage == Stage::Coherent && self.bypasses_cache && is_inbound {
            return "write buffer".to_owned();
        }
        stage.to_string()
    }

    fn name(&self, piece: usize) -> String {
        let Piece { what, part, .. } = self.pieces[piece];
        let parts = self.pieces.iter().filter(|other| other.what == what);
        let name = match what {
            What::Change(item) => item.to_string(),
            What::Message => "message".to_owned(),
        };
        if parts.count() == 1 {
            return name;
        }
        format!("{name}[{part}]")
    }

    /// A set of pieces in words.
    pub(in crate::persist) fn names(&self, pieces: Pieces) -> String {
        let names: Vec<String> = (0..self.pieces.len())
            .filter(|&piece| pieces.has(piece))
            .map(|piece| self.name(piece))
            .collect();
        if names.is_empty() {
            return "nothing".to_owned();
        }
        names.join(", ")
    }
}

impl State {
    fn stage(self, piece: usize) -> Stage {
        STAGES[(self.stages >> (STAGE_BITS * piece) & 0xf) as usize]
    }

    fn set(&mut self, piece: usize, stage: Stage) {
        let at = STAGE_BITS * piece;
        self.stages = self.stages & !(0xf << at) | (stage as u32) << at;
    }

    fn has_answered(self, op: usize) -> bool {
        self.answered & 1 << op != 0
    }
}
