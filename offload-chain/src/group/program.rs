//! What the engine of a member runs for every primitive.
//!
//! ```text
//!            local queue                          hand-on queue (chain)         answer queue (who answers)
//!  WAIT receive ─► WRITE put ─► COPY ─► CAS ─► FLUSH     WAIT local ─► WRITE ─► SEND     WAIT local ─► WRITE_IMM
//! ```
//!
//! One program serves all primitives: a block's kind picks a scatter list, which turns the requests that it needs from NOP
//! to what was posted. So primitives of different kinds keep their order.

use std::sync::Arc;

use softrdma::offload::{
    Carrier, Count, Format, Keep, Mask, Move, Opcode, Post, Program, QueueSpec, ReceiveSpec,
    Template, field,
};
use softrdma::{Buffer, RemoteAddr, Stag, TaggedOffset};

use super::block::{BLOCK_BYTES, Kind};
use super::shape::{GroupShape, Topology};

/// The queue that touches the member's memory.
pub const LOCAL: usize = 0;
/// The queue that hands messages on.
pub const HAND_ON: usize = 1;
/// The queue that answers clients.
pub const ANSWER: usize = 2;

/// Requests of the local queue.
pub mod local {
    /// Staging memory to the group's.
    pub const PUT: usize = 1;
    /// Within the group's memory.
    pub const COPY: usize = 2;
    /// Compare-and-swap.
    pub const CAS: usize = 3;
    /// Up to persistence.
    pub const FLUSH: usize = 4;
    /// How many there are beside the WAIT.
    pub const COUNT: u64 = 4;
}

/// Regions that descriptors name, and memory that messages are kept in.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub(super) memory: Stag,
    pub(super) staging: Stag,
    pub(super) metadata: Stag,
    pub(super) kept: Arc<Buffer>,
}

fn at(stag: Stag, to: usize) -> RemoteAddr {
    RemoteAddr {
        stag,
        to: TaggedOffset(to as u64),
    }
}

const NOWHERE: RemoteAddr = RemoteAddr {
    stag: Stag(0),
    to: TaggedOffset(0),
};

/// A request without peculiarities.
fn post(opcode: Opcode, mask: Mask) -> Post {
    Post {
        opcode,
        mask,
        destination: 0,
        length: 0,
        local: NOWHERE,
        local_stride: 0,
        remote: NOWHERE,
        immediate: [0; 8],
    }
}

pub(super) fn program(shape: &GroupShape, member: usize, parts: &Parts) -> Program {
    let mut receives = vec![main_receive(shape, member, parts)];
    if shape.topology == Topology::Star && member == 0 {
        receives.extend((1..shape.members).map(|from| answer_receive(shape, from, parts)));
    }
    Program {
        depth: u64::from(shape.depth),
        receives,
        queues: vec![
            local_queue(shape, member, parts),
            hand_on_queue(shape, member, parts),
            answer_queue(shape, member, parts),
        ],
    }
}

fn local_queue(shape: &GroupShape, member: usize, parts: &Parts) -> QueueSpec {
    let range = Mask::OPCODE | Mask::LENGTH | Mask::LOCAL_TO | Mask::REMOTE_TO;
    let memory = at(parts.memory, 0);
    // Where the answer has what this member had.
    let old = member * BLOCK_BYTES + 16;
    let requests = vec![
        Template::Wait {
            on: Count::Receive(0),
            per_operation: 1,
            queue: LOCAL,
            releases: local::COUNT as u32,
        },
        Template::Post(Post {
            local: at(parts.staging, 0),
            remote: memory,
            ..post(Opcode::Write, range)
        }),
        Template::Post(Post {
            local: memory,
            remote: memory,
            ..post(Opcode::Copy, range)
        }),
        Template::Post(Post {
            length: 8,
            local: at(parts.metadata, old),
            local_stride: shape.message_bytes() as u64,
            remote: memory,
            ..post(
                Opcode::CompareSwap,
                Mask::OPCODE | Mask::REMOTE_TO | Mask::COMPARE | Mask::SWAP,
            )
        }),
        Template::Post(Post {
            length: 8,
            remote: memory,
            ..post(Opcode::Flush, Mask::OPCODE | Mask::LENGTH | Mask::REMOTE_TO)
        }),
    ];
    QueueSpec {
        carrier: Carrier::Local,
        requests,
    }
}

/// The message as it was kept, with what this member put into it; or the block of one member.
fn message(
    shape: &GroupShape,
    parts: &Parts,
    opcode: Opcode,
    mask: Mask,
    only: Option<usize>,
) -> Post {
    let stride = shape.message_bytes();
    let (from, length) = match only {
        Some(member) => (member * BLOCK_BYTES, BLOCK_BYTES),
        None => (0, stride),
    };
    Post {
        length: length as u32,
        local: at(parts.metadata, from),
        local_stride: stride as u64,
        ..post(opcode, mask)
    }
}

fn after_local(queue: usize, releases: usize) -> Template {
    Template::Wait {
        on: Count::Queue(LOCAL),
        per_operation: local::COUNT,
        queue,
        releases: releases as u32,
    }
}

fn hand_on_queue(shape: &GroupShape, member: usize, parts: &Parts) -> QueueSpec {
    let next = shape.next(member);
    let mut requests = Vec::new();
    if !next.is_empty() {
        requests.push(after_local(HAND_ON, 2 * next.len()));
    }
    for destination in 0..next.len() as u16 {
        let staged = Mask::OPCODE | Mask::LENGTH | Mask::LOCAL_TO | Mask::REMOTE_TO;
        requests.push(Template::Post(Post {
            destination,
            local: at(parts.staging, 0),
            ..post(Opcode::Write, staged)
        }));
        requests.push(Template::Post(Post {
            destination,
            ..message(shape, parts, Opcode::Send, Mask::empty(), None)
        }));
    }
    // A member of a star answers the head.
    if shape.topology == Topology::Star && member > 0 {
        requests.push(after_local(HAND_ON, 1));
        let block = message(shape, parts, Opcode::Send, Mask::empty(), Some(member));
        requests.push(Template::Post(block));
    }
    QueueSpec {
        carrier: Carrier::Links,
        requests,
    }
}

fn answer_queue(shape: &GroupShape, member: usize, parts: &Parts) -> QueueSpec {
    let mut requests = Vec::new();
    if member == shape.answerer() {
        let others = match shape.topology {
            Topology::Chain => 0,
            Topology::Star => shape.members - 1,
        };
        // The last of these grants.
        for from in 1..=others {
            requests.push(Template::Wait {
                on: Count::Receive(from),
                per_operation: 1,
                queue: ANSWER,
                releases: 0,
            });
        }
        requests.push(after_local(ANSWER, 1));
        let mask = Mask::DESTINATION | Mask::REMOTE_TO | Mask::IMMEDIATE;
        let answer = message(shape, parts, Opcode::WriteImmediate, mask, None);
        requests.push(Template::Post(answer));
    }
    QueueSpec {
        carrier: Carrier::Links,
        requests,
    }
}

fn main_receive(shape: &GroupShape, member: usize, parts: &Parts) -> ReceiveSpec {
    let base = member * BLOCK_BYTES;
    let lists = Lists {
        base,
        hand_on: shape.next(member).len(),
        answer: (member == shape.answerer()).then_some(match shape.topology {
            Topology::Chain => 1,
            Topology::Star => shape.members,
        }),
    };
    ReceiveSpec {
        message: shape.message_bytes(),
        kind_at: base,
        formats: Kind::ALL.map(|kind| lists.format(kind)).to_vec(),
        keep: Some(Keep {
            memory: Arc::clone(&parts.kept),
            offset: 0,
            stride: shape.message_bytes(),
        }),
    }
}

/// The head of a star keeps what its members answer in the message that it answers with.
fn answer_receive(shape: &GroupShape, from: usize, parts: &Parts) -> ReceiveSpec {
    let format = |kind| Format {
        kind: kind as u8,
        moves: Vec::new(),
    };
    ReceiveSpec {
        message: BLOCK_BYTES,
        kind_at: 0,
        formats: Kind::ALL.map(format).to_vec(),
        keep: Some(Keep {
            memory: Arc::clone(&parts.kept),
            offset: from * BLOCK_BYTES,
            stride: shape.message_bytes(),
        }),
    }
}

/// Makes the scatter lists of a member.
struct Lists {
    base: usize,
    /// To how many it hands on.
    hand_on: usize,
    /// Where in the answer queue the answer is, if it gives one.
    answer: Option<usize>,
}

impl Lists {
    fn step(&self, from: usize, len: usize, request: usize, at: usize) -> Move {
        Move {
            from: self.base + from,
            len,
            queue: LOCAL,
            request,
            at,
        }
    }

    fn format(&self, kind: Kind) -> Format {
        use field::{COMPARE, LENGTH, LOCAL_TO, OPCODE, REMOTE_TO, SWAP};
        let slot_at = if kind == Kind::Cas { 14 } else { 30 };
        let mut moves = match kind {
            Kind::Write => vec![
                self.step(28, 1, local::PUT, OPCODE),
                self.step(8, 8, local::PUT, REMOTE_TO),
                self.step(16, 8, local::PUT, LOCAL_TO),
                self.step(24, 4, local::PUT, LENGTH),
                self.step(29, 1, local::FLUSH, OPCODE),
                self.step(8, 8, local::FLUSH, REMOTE_TO),
                self.step(24, 4, local::FLUSH, LENGTH),
            ],
            Kind::Cas => vec![
                self.step(1, 1, local::CAS, OPCODE),
                self.step(8, 6, local::CAS, REMOTE_TO),
                self.step(16, 8, local::CAS, COMPARE),
                self.step(24, 8, local::CAS, SWAP),
                self.step(15, 1, local::FLUSH, OPCODE),
                self.step(8, 6, local::FLUSH, REMOTE_TO),
            ],
            Kind::Memcpy => vec![
                self.step(28, 1, local::COPY, OPCODE),
                self.step(8, 8, local::COPY, REMOTE_TO),
                self.step(16, 8, local::COPY, LOCAL_TO),
                self.step(24, 4, local::COPY, LENGTH),
                self.step(29, 1, local::FLUSH, OPCODE),
                self.step(8, 8, local::FLUSH, REMOTE_TO),
                self.step(24, 4, local::FLUSH, LENGTH),
            ],
            Kind::Flush => vec![
                self.step(29, 1, local::FLUSH, OPCODE),
                self.step(8, 8, local::FLUSH, REMOTE_TO),
                self.step(24, 4, local::FLUSH, LENGTH),
            ],
        };
        if kind == Kind::Write {
            for next in 0..self.hand_on {
                let request = 1 + 2 * next;
                let staged = [
                    (28, 1, OPCODE),
                    (16, 8, REMOTE_TO),
                    (16, 8, LOCAL_TO),
                    (24, 4, LENGTH),
                ];
                moves.extend(staged.map(|(from, len, at)| Move {
                    queue: HAND_ON,
                    ..self.step(from, len, request, at)
                }));
            }
        }
        if let Some(request) = self.answer {
            let answer = [
                (2, 2, field::DESTINATION),
                (slot_at, 1, REMOTE_TO + 1),
                (0, 8, field::IMMEDIATE),
            ];
            moves.extend(answer.map(|(from, len, at)| Move {
                queue: ANSWER,
                ..self.step(from, len, request, at)
            }));
        }
        Format {
            kind: kind as u8,
            moves,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every group that can be has a program that the engine takes: no scatter list touches what no peer may (O2).
    #[test]
    fn all_programs_are_valid() {
        for topology in [Topology::Chain, Topology::Star] {
            for members in 1..=16 {
                let shape = GroupShape {
                    topology,
                    ..GroupShape::new([0; 16], 1, members, 4096)
                };
                let parts = Parts {
                    memory: Stag(1),
                    staging: Stag(2),
                    metadata: Stag(3),
                    kept: Buffer::zeroed(shape.depth as usize * shape.message_bytes()),
                };
                for member in 0..members {
                    let program = program(&shape, member, &parts);
                    assert_eq!(
                        program.validate(),
                        Ok(()),
                        "{topology:?} {member}/{members}"
                    );
                }
            }
        }
    }
}
