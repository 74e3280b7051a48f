//! The access matrix (RELIABILITY §8): operation x backing x domain x stream x life x range x right, each cell with its
//! exact code, against an oracle that is a list of questions in order.

use softrdma::wire::rdmap::Opcode;
use softrdma::wire::terminate::TerminateCode::{self, *};
use softrdma::{
    Atomic, Buffer, Config, Placement, ProtectionDomain, RegionSpec, RemoteAddr, Rights,
    Selectivity, Stag, StreamId, TaggedOffset,
};

use super::harness::{Ctx, FILE, OURS, Rule};
use crate::common::Residency;
use crate::common::raw::{self, Sent};

pub const RULES: &[Rule] = &[("access matrix", matrix)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Write,
    Read,
    Add,
    AtomicWrite,
    FlushVisible,
    FlushPersistent,
    Verify,
    Invalidate,
}

const OPS: [(Op, Rights); 8] = [
    (Op::Write, Rights::REMOTE_WRITE),
    (Op::Read, Rights::REMOTE_READ),
    (Op::Add, Rights::REMOTE_ATOMIC),
    (Op::AtomicWrite, Rights::REMOTE_WRITE),
    (Op::FlushVisible, Rights::FLUSH_GLOBAL),
    (Op::FlushPersistent, Rights::FLUSH_PERSISTENT),
    (Op::Verify, Rights::REMOTE_READ),
    (Op::Invalidate, Rights::REMOTE_INVALIDATE),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Live,
    /// Deregistered, or of a table that a restart forgot: the same to a peer.
    Gone,
    /// Invalidated, and still in the table.
    Invalidated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Inside,
    LastBytes,
    OverTheEnd,
    BeforeTheStart,
    Wrap,
}

const BASE: u64 = u64::MAX - 0x2fff;
const LEN: u64 = 0x1000;

impl Place {
    fn to(self) -> u64 {
        match self {
            Self::Inside => BASE + 8,
            Self::LastBytes => BASE + LEN - 8,
            Self::OverTheEnd => BASE + LEN,
            Self::BeforeTheStart => BASE - 8,
            Self::Wrap => u64::MAX - 7,
        }
    }
}

/// The codes of an operation for: STag, stream, wrap, bounds, right.
fn codes(op: Op) -> [TerminateCode; 5] {
    if op == Op::Write {
        return [
            TaggedInvalidStag,
            TaggedNotOfStream,
            TaggedWrap,
            TaggedBounds,
            TaggedInvalidStag,
        ];
    }
    let right = if op == Op::Invalidate {
        ProtectionCannotInvalidate
    } else {
        ProtectionRights
    };
    [
        ProtectionInvalidStag,
        ProtectionNotOfStream,
        ProtectionWrap,
        ProtectionBounds,
        right,
    ]
}

fn bytes(op: Op, stag: Stag, to: u64) -> Vec<u8> {
    let remote = RemoteAddr {
        stag,
        to: TaggedOffset(to),
    };
    let flush = |placement| raw::flush(1, remote, Selectivity::Range(8), placement);
    match op {
        Op::Write => raw::write(stag, to, &[0xaa; 8], true),
        Op::Read => raw::read(1, stag, to, 8),
        Op::Add => raw::atomic(1, stag, to, Atomic::FetchAdd { add: 1, mask: 0 }),
        Op::AtomicWrite => raw::atomic(1, stag, to, Atomic::Write { value: 1 }),
        Op::FlushVisible => flush(Placement::Visible),
        Op::FlushPersistent => flush(Placement::Persistent),
        Op::Verify => raw::verify(1, remote, 8),
        Op::Invalidate => raw::untagged(Opcode::SendInvalidate, 1, 0, stag, b"", true),
    }
}

fn matrix(ctx: &mut Ctx) {
    let mut cells = 0;
    for (op, right) in OPS {
        for paged in [true, false] {
            for domain in [OURS, ProtectionDomain(7)] {
                for life in [Life::Live, Life::Gone, Life::Invalidated] {
                    for own_stream in [None, Some(true), Some(false)] {
                        for granted in [true, false] {
                            if op == Op::FlushPersistent && !paged && granted {
                                continue;
                            }
                            for place in [
                                Place::Inside,
                                Place::LastBytes,
                                Place::OverTheEnd,
                                Place::BeforeTheStart,
                                Place::Wrap,
                            ] {
                                let rights = if granted {
                                    right
                                } else {
                                    Rights::all() - right - Rights::FLUSH_PERSISTENT
                                };
                                let cell = Cell {
                                    op,
                                    paged,
                                    domain,
                                    life,
                                    own_stream,
                                    granted,
                                    place,
                                    rights,
                                };
                                cell.check(ctx);
                                cells += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(cells > 2500, "{cells} cells");
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    op: Op,
    paged: bool,
    domain: ProtectionDomain,
    life: Life,
    own_stream: Option<bool>,
    granted: bool,
    place: Place,
    rights: Rights,
}

impl Cell {
    /// The questions, in order; the first one answered badly gives the code (I10).
    fn expected(&self) -> Option<TerminateCode> {
        let [stag, stream, wrap, bounds, right] = codes(self.op);
        let is_invalidate = self.op == Op::Invalidate;
        // Nobody shares a region that may be invalidated by a peer.
        let granted = self.granted && !(is_invalidate && self.own_stream.is_none());
        if self.life == Life::Gone {
            Some(stag)
        } else if self.own_stream == Some(false) || self.domain != OURS {
            Some(stream)
        } else if self.life == Life::Invalidated {
            Some(stag)
        } else if !is_invalidate && self.place == Place::Wrap {
            Some(wrap)
        } else if !is_invalidate && matches!(self.place, Place::OverTheEnd | Place::BeforeTheStart)
        {
            Some(bounds)
        } else if !granted {
            Some(right)
        } else {
            None
        }
    }

    fn check(self, ctx: &mut Ctx) {
        let config = Config {
            private_profile: true,
            ..ctx.config()
        };
        let mut responder = ctx.responder_with(Residency::Always, config);
        let memory = Buffer::zeroed(LEN as usize);
        let spec = if self.paged {
            RegionSpec::pages(self.domain, self.rights, FILE, 0x2000, LEN)
        } else {
            RegionSpec::memory(self.domain, self.rights, &memory)
        };
        let own = responder.connection.stream();
        let region = RegionSpec {
            base: TaggedOffset(BASE),
            stream: self
                .own_stream
                .map(|is| if is { own } else { StreamId(u64::MAX) }),
            ..spec
        };
        let stag = responder.table.register(region).unwrap().stag;
        match self.life {
            Life::Live => {}
            Life::Gone => assert!(responder.table.deregister(stag)),
            Life::Invalidated => {
                let invalidated = responder.table.invalidate(stag);
                assert!(invalidated);
            }
        }
        responder.post_recvs(1);
        responder.deliver(ctx, &bytes(self.op, stag, self.place.to()));
        if !responder.pages.syncs.is_empty() {
            responder.durable();
        }
        let sent = responder.sent();
        let code = sent.iter().find_map(|sent| match sent {
            Sent::Terminate(code, _) => Some(*code),
            _ => None,
        });
        assert_eq!(code, self.expected(), "{self:?}");
        if code.is_some() {
            assert_eq!(sent.len(), 1, "{self:?}: nothing but the Terminate");
            let file = responder.file_bytes(0x2000, LEN as usize);
            assert_eq!(file, vec![0; LEN as usize], "{self:?}: not a byte changed");
            assert_eq!(
                memory.to_vec(0, LEN as usize),
                vec![0; LEN as usize],
                "{self:?}"
            );
        }
    }
}
