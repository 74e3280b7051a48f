//! Memory windows, local invalidation and registering anew: who may touch what, and until when.

use std::sync::Arc;

use crate::common::raw::{self, ATOMIC_ID, Sent, terminate_code, transmit};
use crate::common::{Residency, TestPages, completions, table};
use softrdma::mem::window::KEYS;
use softrdma::wire::rdmap::Opcode;
use softrdma::wire::terminate::TerminateCode::*;
use softrdma::{
    BackingId, Buffer, CompletionOpcode, Config, Connection, DomainBind, DomainWindow,
    MemoryRegion, MemoryWindow, Operation, ProtectionDomain, RecvBuffer, RegionSpec, RegionTable,
    RegisterError, Rights, Stag, Status, StreamId, TaggedOffset, Time, WindowBind, WorkRequest,
    WrId,
};

const DOMAIN: ProtectionDomain = ProtectionDomain(0);
const FOREIGN: ProtectionDomain = ProtectionDomain(7);
const FILE: BackingId = BackingId(1);

struct Target {
    table: Arc<RegionTable>,
    pages: TestPages,
    connection: Connection<TestPages>,
    memory: Arc<Buffer>,
    region: MemoryRegion,
    window: MemoryWindow,
}

fn target() -> Target {
    let table = table(9);
    let mut pages = TestPages::new(Residency::Always, 1);
    let memory = Buffer::zeroed(4096);
    let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::WINDOW_BIND;
    let spec = RegionSpec {
        base: TaggedOffset(0x1_0000),
        ..RegionSpec::memory(DOMAIN, rights, &memory)
    };
    let region = table.register(spec).unwrap();
    let window = table.allocate_window(DOMAIN).unwrap();
    let connection = connect(DOMAIN, &table, &mut pages);
    Target {
        table,
        pages,
        connection,
        memory,
        region,
        window,
    }
}

fn connect(
    domain: ProtectionDomain,
    table: &Arc<RegionTable>,
    pages: &mut TestPages,
) -> Connection<TestPages> {
    let config = Config {
        protection_domain: domain,
        ..Config::default()
    };
    let mut connection = raw::responder(config, table, pages);
    // Only behind a first frame of the peer does a responder work.
    connection.handle_bytes(Time(0), pages, &raw::write(Stag(1), 0, &[], true));
    connection
}

impl Target {
    /// From here on another stream, of this domain.
    fn reconnect(&mut self, domain: ProtectionDomain) {
        self.connection = connect(domain, &self.table, &mut self.pages);
    }

    fn domain_window(&self) -> DomainWindow {
        self.table.allocate_domain_window(DOMAIN).unwrap()
    }

    /// The same bytes as `bind`.
    fn domain_bind(&self, window: &mut DomainWindow) -> DomainBind {
        let to = TaggedOffset(0x1_0100);
        window.bind(self.region.stag, to, 0x100, Rights::REMOTE_WRITE)
    }

    fn post_bind(&mut self, bind: DomainBind) -> Status {
        let (opcode, status) = self.post(Operation::BindDomainWindow(bind));
        assert_eq!(opcode, CompletionOpcode::BindMw);
        status
    }

    /// What a byte in the window meets, from a new stream of the domain.
    fn write_anew(&mut self, stag: Stag) -> Result<(), Sent> {
        self.reconnect(DOMAIN);
        self.write(stag, 0x1_0100, 1)
    }

    fn bind(&self, key: u8) -> WindowBind {
        WindowBind {
            window: self.window,
            key,
            region: self.region.stag,
            to: TaggedOffset(0x1_0100),
            len: 0x100,
            rights: Rights::REMOTE_WRITE | Rights::REMOTE_INVALIDATE,
        }
    }

    fn post(&mut self, op: Operation) -> (CompletionOpcode, Status) {
        let request = WorkRequest::new(WrId(1), op);
        self.connection.post_send(request).unwrap();
        assert_eq!(transmit(&mut self.connection, &mut self.pages), []);
        let done = completions(&mut self.connection);
        (done[0].opcode, done[0].status)
    }

    fn deliver(&mut self, bytes: &[u8]) {
        self.connection
            .handle_bytes(Time(0), &mut self.pages, bytes);
    }

    /// What a WRITE through `stag` is told; the connection is another one afterwards if it was refused.
    fn write(&mut self, stag: Stag, to: u64, len: usize) -> Result<(), Sent> {
        self.deliver(&raw::write(stag, to, &vec![7; len], true));
        match transmit(&mut self.connection, &mut self.pages).pop() {
            None => Ok(()),
            Some(Sent::Terminate(code, _)) => Err(Sent::Terminate(code, vec![])),
            Some(other) => panic!("{other:?}"),
        }
    }
}

fn refused(code: softrdma::wire::terminate::TerminateCode) -> Result<(), Sent> {
    Err(Sent::Terminate(code, vec![]))
}

/// Defends I10: a bound window has the range, the rights and the stream of its bind, and the addresses of its region.
#[test]
fn a_window_is_a_part_of_its_region() {
    let bound = |key| {
        let mut target = target();
        let bind = target.bind(key);
        let done = target.post(Operation::BindWindow(bind));
        assert_eq!(done, (CompletionOpcode::BindMw, Status::Success));
        let stag = target.window.stag(key);
        (target, stag)
    };
    let (mut base, stag) = bound(5);
    assert_eq!(base.write(stag, 0x1_0100, 0x100), Ok(()));
    assert_eq!(base.memory.to_vec(0x100, 0x100), [7; 0x100]);
    assert_eq!(base.memory.to_vec(0, 0x100), [0; 0x100]);
    assert_eq!(base.memory.to_vec(0x200, 0x100), [0; 0x100]);
    for (to, len) in [(0x1_00ff, 1), (0x1_0100, 0x101), (0x1_0200, 1)] {
        assert_eq!(bound(5).0.write(stag, to, len), refused(TaggedBounds));
    }
    let other_key = Stag(stag.0 ^ 1);
    assert_eq!(
        bound(5).0.write(other_key, 0x1_0100, 1),
        refused(TaggedInvalidStag)
    );
    // No READ through it.
    let (mut target, stag) = bound(5);
    target.deliver(&raw::read(1, stag, 0x1_0100, 1));
    assert_eq!(
        terminate_code(&mut target.connection, &mut target.pages),
        ProtectionRights
    );
    // Another stream of the same domain.
    let (mut target, stag) = bound(5);
    target.connection = raw::responder(Config::default(), &target.table, &mut target.pages);
    assert_eq!(target.write(stag, 0x1_0100, 1), refused(TaggedNotOfStream));
}

/// Defends I11: a window ends by local and by remote invalidation, by its deallocation and with its region. The first
/// two leave the region alone, and the window can be bound again.
#[test]
fn what_ends_a_window() {
    for way in 0..4 {
        let mut target = target();
        let bind = target.bind(5);
        target.post(Operation::BindWindow(bind));
        let stag = target.window.stag(5);
        assert_eq!(target.write(stag, 0x1_0100, 1), Ok(()));
        match way {
            0 => {
                let done = target.post(Operation::LocalInvalidate { stag });
                assert_eq!(done, (CompletionOpcode::LocalInv, Status::Success));
            }
            1 => {
                let recv = RecvBuffer::Vec(10);
                target.connection.post_recv(WrId(2), recv).unwrap();
                let send = raw::untagged(Opcode::SendInvalidate, 1, 0, stag, b"bye", true);
                target.deliver(&send);
                assert_eq!(
                    completions(&mut target.connection)[0].invalidated,
                    Some(stag)
                );
            }
            2 => assert!(target.table.deallocate_window(target.window)),
            _ => assert!(target.table.deregister(target.region.stag)),
        }
        if way < 2 {
            assert_eq!(target.write(target.region.stag, 0x1_0000, 1), Ok(()));
            let bind = target.bind(6);
            assert_eq!(target.post(Operation::BindWindow(bind)).1, Status::Success);
            let stag = target.window.stag(6);
            assert_eq!(target.write(stag, 0x1_0100, 1), Ok(()));
        }
        assert_eq!(
            target.write(stag, 0x1_0100, 1),
            refused(TaggedInvalidStag),
            "{way}"
        );
    }
    let mut target = target();
    assert!(
        !target.table.deregister(target.window.stag(0)),
        "not a region"
    );
    assert!(target.table.deallocate_window(target.window));
    assert!(!target.table.deallocate_window(target.window));
    let bind = target.bind(5);
    assert_eq!(
        target.post(Operation::BindWindow(bind)).1,
        Status::WindowBind
    );
}

/// A window that has ended with its region is not bound, however the region has ended, and can be bound to another one.
#[test]
fn a_window_without_its_region_is_bound_again() {
    for way in 0..3 {
        let mut target = target();
        let bind = target.bind(5);
        assert_eq!(target.post(Operation::BindWindow(bind)).1, Status::Success);
        let stag = target.region.stag;
        let rights = Rights::REMOTE_WRITE | Rights::WINDOW_BIND;
        let spec = RegionSpec::memory(DOMAIN, rights, &target.memory);
        let other = match way {
            0 => target.table.reregister(stag, spec).unwrap(),
            1 => {
                assert!(target.table.deregister(stag));
                target.table.register(spec).unwrap()
            }
            _ => {
                target.post(Operation::LocalInvalidate { stag });
                target.table.register(spec).unwrap()
            }
        };
        let bind = WindowBind {
            region: other.stag,
            to: TaggedOffset(0),
            ..target.bind(6)
        };
        let done = target.post(Operation::BindWindow(bind));
        assert_eq!(done.1, Status::Success, "{way}");
        assert_eq!(target.write(target.window.stag(6), 0, 0x100), Ok(()));
        let dead = target.window.stag(5);
        assert_eq!(target.write(dead, 0x1_0100, 1), refused(TaggedInvalidStag));
    }
}

/// Defends I11: what is cut off a region is cut off its windows as well, and comes back with it.
#[test]
fn a_window_reaches_as_far_as_its_region() {
    // The window is the bytes 0x100..0x200 of the region.
    for (reach, inside) in [
        (0, 0),
        (0x100, 0),
        (0x101, 1),
        (0x1ff, 0xff),
        (0x200, 0x100),
    ] {
        for (len, refused_with) in [(inside, None), (inside + 1, Some(TaggedBounds))] {
            let mut target = target();
            let bind = target.bind(5);
            target.post(Operation::BindWindow(bind));
            let stag = target.window.stag(5);
            assert!(target.table.set_reach(target.region.stag, reach));
            let expected = refused_with.map_or(Ok(()), refused);
            assert_eq!(target.write(stag, 0x1_0100, len), expected, "{reach} {len}");
        }
    }
    let mut target = target();
    let bind = target.bind(5);
    target.post(Operation::BindWindow(bind));
    let stag = target.window.stag(5);
    assert!(target.table.set_reach(target.region.stag, 0));
    assert!(target.table.set_reach(target.region.stag, 4096));
    assert_eq!(target.write(stag, 0x1_0100, 0x100), Ok(()));
}

/// What may not be bound, and leaves everything as it is.
#[test]
fn binds_refused() {
    let mut target = target();
    let good = target.bind(5);
    let unbindable = RegionSpec::memory(DOMAIN, Rights::REMOTE_WRITE, &target.memory);
    let unbindable = target.table.register(unbindable).unwrap();
    let foreign = RegionSpec::memory(
        FOREIGN,
        Rights::all() - Rights::FLUSH_PERSISTENT,
        &target.memory,
    );
    let foreign = target.table.register(foreign).unwrap();
    let foreign_window = target.table.allocate_window(FOREIGN).unwrap();
    let rows = [
        WindowBind { len: 0xf01, ..good },
        WindowBind {
            to: TaggedOffset(0xffff),
            ..good
        },
        WindowBind {
            to: TaggedOffset(u64::MAX),
            ..good
        },
        WindowBind {
            rights: Rights::REMOTE_ATOMIC,
            ..good
        },
        WindowBind {
            region: Stag(target.region.stag.0 ^ 1),
            ..good
        },
        WindowBind {
            region: unbindable.stag,
            to: TaggedOffset(0),
            ..good
        },
        WindowBind {
            region: foreign.stag,
            to: TaggedOffset(0),
            ..good
        },
        WindowBind {
            window: foreign_window,
            ..good
        },
    ];
    for bind in rows {
        let done = target.post(Operation::BindWindow(bind));
        assert_eq!(
            done,
            (CompletionOpcode::BindMw, Status::WindowBind),
            "{bind:?}"
        );
    }
    assert_eq!(target.post(Operation::BindWindow(good)).1, Status::Success);
    let twice = target.bind(6);
    assert_eq!(
        target.post(Operation::BindWindow(twice)).1,
        Status::WindowBind,
        "bound already"
    );
    let region = target.window.stag(5);
    let nested = WindowBind { region, ..twice };
    assert_eq!(
        target.post(Operation::BindWindow(nested)).1,
        Status::WindowBind,
        "no windows over windows"
    );
}

/// Local invalidation of a region: dead at once, for its own domain only; a second one, or one of another domain, fails.
#[test]
fn local_invalidation() {
    let mut target = target();
    let foreign = RegionSpec::memory(
        FOREIGN,
        Rights::all() - Rights::FLUSH_PERSISTENT,
        &target.memory,
    );
    let foreign = target.table.register(foreign).unwrap();
    let refused_to = (CompletionOpcode::LocalInv, Status::LocalProtection);
    let invalidate = |stag| Operation::LocalInvalidate { stag };
    assert_eq!(target.post(invalidate(foreign.stag)), refused_to);
    assert_eq!(target.post(invalidate(Stag(1))), refused_to);
    let stag = target.region.stag;
    assert_eq!(target.post(invalidate(stag)).1, Status::Success);
    assert_eq!(target.post(invalidate(stag)), refused_to);
    assert_eq!(target.write(stag, 0x1_0000, 1), refused(TaggedInvalidStag));
}

/// Defends I10: what is of one stream, a window of type 2 or a region, another one of its domain can not invalidate.
#[test]
fn invalidation_from_another_stream() {
    let mut target = target();
    let bind = target.bind(1);
    assert_eq!(target.post(Operation::BindWindow(bind)).1, Status::Success);
    let of_another = RegionSpec {
        stream: Some(StreamId(1 << 40)),
        ..RegionSpec::memory(DOMAIN, Rights::REMOTE_WRITE, &target.memory)
    };
    let of_another = target.table.register(of_another).unwrap().stag;
    let mut other = connect(DOMAIN, &target.table, &mut target.pages);
    std::mem::swap(&mut target.connection, &mut other);
    let refused_to = (CompletionOpcode::LocalInv, Status::LocalProtection);
    for stag in [target.window.stag(1), of_another] {
        assert_eq!(target.post(Operation::LocalInvalidate { stag }), refused_to);
    }
    std::mem::swap(&mut target.connection, &mut other);
    let stag = target.window.stag(1);
    assert_eq!(target.write(stag, 0x1_0100, 1), Ok(()));
    let ended = target.post(Operation::LocalInvalidate { stag });
    assert_eq!(ended, (CompletionOpcode::LocalInv, Status::Success));
}

/// Registering anew: the index stays, both old STags die, the new ones lead to the new bytes; also out of the dead.
#[test]
fn registering_anew() {
    let mut target = target();
    let index = target.region.stag.index();
    let mut old = vec![target.region.stag];
    for round in 0..300_u64 {
        if round % 3 == 0 {
            target.post(Operation::LocalInvalidate { stag: old[0] });
        }
        let rights = Rights::REMOTE_WRITE;
        let spec = if round % 2 == 0 {
            RegionSpec::pages(DOMAIN, rights, FILE, round, 10)
        } else {
            RegionSpec::memory(DOMAIN, rights, &target.memory)
        };
        let new = target.table.reregister(old[0], spec).unwrap();
        let stags: Vec<Stag> = [Some(new.stag), new.sync_stag]
            .into_iter()
            .flatten()
            .collect();
        assert!(
            stags
                .iter()
                .all(|stag| stag.index() == index && !old.contains(stag))
        );
        assert_eq!(target.write(new.stag, 9, 1), Ok(()));
        assert_eq!(target.table.len(), 2);
        old = stags;
    }
    let spec = RegionSpec::pages(DOMAIN, Rights::all(), FILE, 0, 10);
    for stag in [
        target.region.stag,
        Stag(old[0].0 ^ 1),
        target.window.stag(0),
    ] {
        if !old.contains(&stag) {
            let unknown = target.table.reregister(stag, spec.clone());
            assert_eq!(unknown, Err(RegisterError::Unknown));
        }
    }
    let stag = *old.last().unwrap();
    let new = target.table.reregister(stag, spec).unwrap();
    assert_eq!(target.write(stag, 0, 1), refused(TaggedInvalidStag));
    target.connection = raw::responder(Config::default(), &target.table, &mut target.pages);
    assert_eq!(target.write(new.stag, 0, 1), Ok(()));
}

/// A window over pages whose key has the sync bit is a sync STag.
#[test]
fn a_sync_window() {
    let mut target = target();
    let spec = RegionSpec::pages(DOMAIN, Rights::all(), FILE, 0, 8192);
    let region = target.table.register(spec).unwrap();
    let bind = WindowBind {
        window: target.window,
        key: 0x81,
        region: region.stag,
        to: TaggedOffset(4096),
        len: 8,
        rights: Rights::REMOTE_ATOMIC,
    };
    assert_eq!(target.post(Operation::BindWindow(bind)).1, Status::Success);
    let add = softrdma::Atomic::FetchAdd { add: 3, mask: 0 };
    target.deliver(&raw::atomic(1, target.window.stag(0x81), 4096, add));
    assert_eq!(transmit(&mut target.connection, &mut target.pages), []);
    let (ranges, ticket) = target.pages.syncs.pop().unwrap();
    assert_eq!(
        (ranges[0].backing, ranges[0].first, ranges[0].count),
        (FILE, 1, 1)
    );
    target
        .connection
        .handle_durable(&mut target.pages, ticket, Ok(()));
    let sent = transmit(&mut target.connection, &mut target.pages);
    assert!(
        matches!(&sent[..], [Sent::AtomicResponse(1, r)] if r.request == ATOMIC_ID && r.original == 0)
    );
}

/// Defends I10: a window of type 1 has the range, the rights and the domain of its bind, and is for each stream of it.
#[test]
fn a_domain_window_is_for_its_domain() {
    let mut target = target();
    let mut window = target.domain_window();
    let bind = target.domain_bind(&mut window);
    let stag = bind.stag();
    assert_eq!(target.write(stag, 0x1_0100, 1), refused(TaggedInvalidStag));
    target.reconnect(DOMAIN);
    assert_eq!(target.post_bind(bind), Status::Success);
    assert_eq!(target.write(stag, 0x1_0100, 0x100), Ok(()));
    target.reconnect(DOMAIN);
    assert_eq!(target.write(stag, 0x1_0100, 0x100), Ok(()), "other stream");
    assert_eq!(target.memory.to_vec(0x100, 0x100), [7; 0x100]);
    assert_eq!(target.memory.to_vec(0, 0x100), [0; 0x100]);
    assert_eq!(target.memory.to_vec(0x200, 0x100), [0; 0x100]);
    for (to, len) in [(0x1_00ff, 1), (0x1_0100, 0x101), (0x1_0200, 1)] {
        assert_eq!(target.write(stag, to, len), refused(TaggedBounds));
        target.reconnect(DOMAIN);
    }
    target.deliver(&raw::read(1, stag, 0x1_0100, 1));
    let code = terminate_code(&mut target.connection, &mut target.pages);
    assert_eq!(code, ProtectionRights, "no READ through it");
    target.reconnect(FOREIGN);
    let result = target.write(stag, 0x1_0100, 1);
    assert_eq!(result, refused(TaggedNotOfStream));
}

/// Defends I11: each bind of a window of type 1 has an STag of its own, none of them sync, and ends that of the bind before;
/// none comes back until all others had their turn, and then it leads to what is bound now.
#[test]
fn a_domain_window_bound_again() {
    let mut target = target();
    let mut window = target.domain_window();
    let mut stags = Vec::new();
    for round in 0..2 * KEYS + 10 {
        let to = TaggedOffset(0x1_0000 + round);
        let bind = window.bind(target.region.stag, to, 1, Rights::REMOTE_WRITE);
        let (stag, count) = (bind.stag(), stags.len());
        let dead = &stags[count.saturating_sub(KEYS as usize - 1)..];
        assert!(!dead.contains(&stag) && !stag.is_sync(), "{round}");
        assert_eq!(target.post_bind(bind), Status::Success);
        let dead = [dead.last(), dead.first()];
        for old in dead.into_iter().flatten() {
            let result = target.write(*old, to.0, 1);
            assert_eq!(result, refused(TaggedInvalidStag), "{round}");
            target.reconnect(DOMAIN);
        }
        assert_eq!(target.write(stag, to.0, 1), Ok(()), "{round}");
        stags.push(stag);
    }
    let (keys, last) = (KEYS as usize, *stags.last().unwrap());
    assert_eq!(stags[..keys], stags[keys..2 * keys], "they come back");
    let before = stags[stags.len() - 1 - keys];
    assert_eq!(before, last);
    let to = 0x1_0000 + (stags.len() - 1 - keys) as u64;
    assert_eq!(target.write(before, to, 1), refused(TaggedBounds));
    target.reconnect(DOMAIN);
    for old in &stags[stags.len() - keys..stags.len() - 1] {
        assert_eq!(target.write_anew(*old), refused(TaggedInvalidStag));
    }
}

/// Defends I11: a window of type 1 ends by a bind of no bytes, by its deallocation, and with its region. After the first it
/// can be bound again, and after the last to another region.
#[test]
fn what_ends_a_domain_window() {
    for way in 0..5 {
        let mut target = target();
        let mut window = target.domain_window();
        let bind = target.domain_bind(&mut window);
        target.post_bind(bind);
        let stag = bind.stag();
        assert_eq!(target.write(stag, 0x1_0100, 1), Ok(()));
        let region = target.region.stag;
        match way {
            0 | 1 => {
                let (to, rights) = (TaggedOffset(0x1_0100), Rights::REMOTE_WRITE);
                let nothing = match way {
                    0 => window.unbind(),
                    _ => window.bind(region, to, 0, rights),
                };
                assert_eq!(target.post_bind(nothing), Status::Success);
                let result = target.write_anew(nothing.stag());
                assert_eq!(result, refused(TaggedInvalidStag), "{way}");
            }
            2 => assert!(target.table.deallocate_domain_window(&window)),
            3 => assert!(target.table.deregister(region)),
            _ => {
                let rights = Rights::REMOTE_WRITE | Rights::WINDOW_BIND;
                let spec = RegionSpec {
                    base: target.region.base,
                    ..RegionSpec::memory(DOMAIN, rights, &target.memory)
                };
                target.region = target.table.reregister(region, spec).unwrap();
            }
        }
        assert_eq!(target.write_anew(stag), refused(TaggedInvalidStag), "{way}");
        target.reconnect(DOMAIN);
        let bind = target.domain_bind(&mut window);
        let expected = match way {
            2 | 3 => Status::WindowBind,
            _ => Status::Success,
        };
        assert_eq!(target.post_bind(bind), expected, "{way}");
        if expected.is_success() {
            assert_eq!(target.write(bind.stag(), 0x1_0100, 1), Ok(()), "{way}");
        }
    }
    let mut target = target();
    let mut window = target.domain_window();
    let bind = target.domain_bind(&mut window);
    target.post_bind(bind);
    assert!(target.table.set_reach(target.region.stag, 0x100));
    let result = target.write(bind.stag(), 0x1_0100, 1);
    assert_eq!(result, refused(TaggedBounds), "cut off with its region");
    assert!(target.table.deallocate_domain_window(&window));
    assert!(!target.table.deallocate_domain_window(&window));
}

/// Defends I10: no invalidation ends a window of type 1 for those who share it, neither one of ours nor one of a peer.
#[test]
fn a_domain_window_is_not_invalidated() {
    let mut target = target();
    let mut window = target.domain_window();
    let bind = target.domain_bind(&mut window);
    target.post_bind(bind);
    let stag = bind.stag();
    let done = target.post(Operation::LocalInvalidate { stag });
    assert_eq!(done, (CompletionOpcode::LocalInv, Status::LocalProtection));
    assert_eq!(target.write(stag, 0x1_0100, 1), Ok(()));
    let recv = RecvBuffer::Vec(10);
    target.connection.post_recv(WrId(2), recv).unwrap();
    let send = raw::untagged(Opcode::SendInvalidate, 1, 0, stag, b"bye", true);
    target.deliver(&send);
    let code = terminate_code(&mut target.connection, &mut target.pages);
    assert_eq!(code, ProtectionCannotInvalidate);
    assert_eq!(target.write_anew(stag), Ok(()));
}

/// Defends I10: what a window of type 1 may not be bound to, which leaves it bound as it was.
#[test]
fn domain_binds_refused() {
    let mut target = target();
    let mut window = target.domain_window();
    let good = target.domain_bind(&mut window);
    assert_eq!(target.post_bind(good), Status::Success);
    let all = Rights::all() - Rights::FLUSH_PERSISTENT;
    let memory = Arc::clone(&target.memory);
    let register = |domain, rights, stream| {
        let spec = RegionSpec {
            base: target.region.base,
            stream,
            ..RegionSpec::memory(domain, rights, &memory)
        };
        target.table.register(spec).unwrap().stag
    };
    let open = register(DOMAIN, all, None);
    let unbindable = register(DOMAIN, all - Rights::WINDOW_BIND, None);
    let foreign = register(FOREIGN, all, None);
    let own = register(DOMAIN, all, Some(target.connection.stream()));
    let dead = register(DOMAIN, all, None);
    assert!(target.table.invalidate(dead));
    let region = target.region.stag;
    let write = Rights::REMOTE_WRITE;
    let rows = [
        (region, 0x1_0100, 0xf01, write),
        (region, 0xffff, 0x100, write),
        (region, u64::MAX, 0x100, write),
        (region, 0x1_0100, 1, Rights::REMOTE_ATOMIC),
        (open, 0x1_0100, 1, write | Rights::REMOTE_INVALIDATE),
        (Stag(region.0 ^ 1), 0x1_0100, 1, write),
        (good.stag(), 0x1_0100, 1, write),
        (unbindable, 0x1_0100, 1, write),
        (foreign, 0x1_0100, 1, write),
        (own, 0x1_0100, 1, write),
        (dead, 0x1_0100, 1, write),
    ];
    for (region, to, len, rights) in rows {
        let bind = window.bind(region, TaggedOffset(to), len, rights);
        assert_eq!(target.post_bind(bind), Status::WindowBind, "{bind:?}");
        assert_eq!(target.write(good.stag(), 0x1_0100, 1), Ok(()));
    }
    let mut foreign = target.table.allocate_domain_window(FOREIGN).unwrap();
    let bind = target.domain_bind(&mut foreign);
    assert_eq!(target.post_bind(bind), Status::WindowBind);
    target.reconnect(FOREIGN);
    assert_eq!(target.post_bind(window.unbind()), Status::WindowBind);
    assert_eq!(target.write_anew(good.stag()), Ok(()));
}

/// Defends I11: a bind that others have overtaken, or that has been carried out, does not bring its STag back to life.
#[test]
fn domain_binds_are_carried_out_in_order() {
    let mut target = target();
    let mut window = target.domain_window();
    let binds = [(); 3].map(|()| target.domain_bind(&mut window));
    for (posted, expected, living) in [
        (1, Status::Success, 1),
        (1, Status::WindowBind, 1),
        (0, Status::WindowBind, 1),
        (2, Status::Success, 2),
        (1, Status::WindowBind, 2),
    ] {
        target.reconnect(DOMAIN);
        assert_eq!(target.post_bind(binds[posted]), expected);
        for (which, bind) in binds.iter().enumerate() {
            let expected = match which == living {
                true => Ok(()),
                false => refused(TaggedInvalidStag),
            };
            assert_eq!(target.write_anew(bind.stag()), expected);
        }
    }
}
