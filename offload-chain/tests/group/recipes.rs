//! The recipes executed: between two real endpoints joined in memory, against emulated persistent memory whose power is
//! cut after every acknowledgement (defends I1). What the endpoint lacks is refused by name.

use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;

use offload_chain::persist::*;
use softrdma::driver::loopback::Pair;
use softrdma::{
    BackingId, Completion, Config as EndpointConfig, Connection, Event, MemoryRegion, NoPages,
    Operation, ProtectionDomain, RegionSpec, RegionTable, Rights, Source, Time, WorkRequest, WrId,
};

const RECORD_AT: u64 = 4096;
const TAIL_AT: u64 = 8;

/// Both sides: whoever waits moves the bytes of both.
struct Joined {
    pair: Pair<NoPages, EmulatedPm>,
    program: Program,
    pm: EmulatedPm,
    pace: Rc<Cell<Pace>>,
    /// So many messages that nobody has asked for the responder sends, one each time that it does anything.
    unasked: Rc<Cell<usize>>,
}

/// How fast the responder is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Whoever waits is answered.
    Fast,
    /// All is done, and its answer comes when nobody waits for it any more.
    Late,
    /// Its program does not run.
    Stopped,
}

#[derive(Debug, thiserror::Error)]
enum Stopped {
    #[error("nothing happens any more")]
    Quiet,
    #[error("{0}")]
    Program(#[from] ProgramError),
}

impl Joined {
    fn serve(&mut self) -> Result<(), ProgramError> {
        let connection = &mut self.pair.b.connection;
        if let Some(left) = self.unasked.get().checked_sub(1) {
            self.unasked.set(left);
            let op = Operation::Send {
                source: Source::Bytes(vec![7; 8]),
                solicited: true,
                invalidate: None,
            };
            connection.post_send(WorkRequest {
                signaled: false,
                ..WorkRequest::new(WrId(1 << 62), op)
            })?;
        }
        while let Some(completion) = connection.poll_completion() {
            self.program.handle(&completion, connection, &mut self.pm)?;
        }
        while let Some(ticket) = self.pm.poll_synced() {
            connection.handle_durable(&mut self.pair.b.pages, ticket, Ok(()));
        }
        Ok(())
    }
}

impl Channel for Joined {
    type Error = Stopped;

    fn connection(&mut self) -> &mut Connection<NoPages> {
        &mut self.pair.a.connection
    }

    fn wait(&mut self) -> Result<Completion, Stopped> {
        if self.pace.get() == Pace::Late {
            self.pair.run();
            self.serve()?;
            return Err(Stopped::Quiet);
        }
        for _ in 0..1000 {
            if let Some(completion) = self.pair.a.connection.poll_completion() {
                return Ok(completion);
            }
            self.pair.step();
            if self.pace.get() == Pace::Fast {
                self.serve()?;
            }
        }
        Err(Stopped::Quiet)
    }
}

struct Session {
    endpoint: Endpoint<Joined>,
    pm: EmulatedPm,
    buffers: ReceiveBuffers,
    domain: Domain,
    pace: Rc<Cell<Pace>>,
    unasked: Rc<Cell<usize>>,
}

fn region(table: &RegionTable) -> MemoryRegion {
    let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::FLUSH_PERSISTENT;
    let spec = RegionSpec::pages(ProtectionDomain(0), rights, BackingId(1), 0, 8192);
    table.register(spec).unwrap()
}

fn start(recipe: &Recipe, domain: Domain, private_profile: bool) -> Session {
    let config = EndpointConfig {
        private_profile,
        ..EndpointConfig::default()
    };
    let (ours, theirs) = (RegionTable::new([1; 32]), RegionTable::new([2; 32]));
    let pm = EmulatedPm::new(domain, 8192);
    let region = region(&theirs);
    let client = Connection::initiator(config.clone(), &ours, b"", Time(0)).unwrap();
    let target = Connection::responder(config, &theirs, Time(0));
    let mut pair = Pair::new(client, NoPages, target, pm.clone());
    pair.run();
    let Some(Event::ConnectRequest(_)) = pair.b.connection.poll_event() else {
        panic!("a request")
    };
    pair.b.connection.accept(b"").unwrap();
    let buffers = ReceiveBuffers::new(4, 256);
    let program = Program::new(Responder::new(recipe), buffers.clone());
    program.start(&mut pair.b.connection).unwrap();
    pair.run();
    let pace = Rc::new(Cell::new(Pace::Fast));
    let unasked = Rc::default();
    let joined = Joined {
        pair,
        program,
        pm: pm.clone(),
        pace: Rc::clone(&pace),
        unasked: Rc::clone(&unasked),
    };
    Session {
        endpoint: Endpoint::new(joined, region).unwrap(),
        pm,
        buffers,
        domain,
        pace,
        unasked,
    }
}

impl Session {
    /// What a restart after a cut at this moment finds of record and tail.
    fn after_restart(&self, recipe: &Recipe) -> (Vec<u8>, Vec<u8>) {
        let mut restarted = EmulatedPm::holding(self.domain, self.pm.after_cut(0, 8192));
        if recipe.recovery == Recovery::Replay && self.domain != Domain::Dmp {
            let contents = self.buffers.contents();
            replay(contents.iter().map(Vec::as_slice), &mut restarted);
        }
        (
            restarted.after_cut(RECORD_AT as usize, 64),
            restarted.after_cut(TAIL_AT as usize, 8),
        )
    }
}

/// Every cell whose operations the endpoint has, with every way it offers: what is acknowledged survives a cut.
#[test]
fn what_is_acknowledged_survives() {
    let table = RegionTable::new([3; 32]);
    let region = region(&table);
    let offers = [
        Offer::empty(),
        Offer::IMMEDIATE,
        offer(&region, false),
        offer(&region, true),
    ];
    let mut names = HashSet::new();
    for (scenario, offer) in Scenario::all().flat_map(|s| offers.map(|o| (s, o))) {
        let Ok(recipe) = scenario.plan(Peer::Endpoint(offer)) else {
            assert!(!offer.contains(Offer::IMMEDIATE));
            assert_eq!(scenario.primary, Primary::WriteImm);
            continue;
        };
        names.insert(recipe.name());
        // Receive buffers are not flushed, nor is what takes a message out of them.
        let is_replayed = recipe.recovery == Recovery::Replay;
        assert!(!is_replayed || scenario.config.domain != Domain::Dmp);
        let profile = offer.contains(Offer::PROFILE);
        let mut session = start(&recipe, scenario.config.domain, profile);
        for sequence in 1..=10_u64 {
            let (tail, record) = (sequence.to_le_bytes(), [sequence as u8; 64]);
            let changes = Changes {
                sequence,
                a: Change {
                    at: RECORD_AT,
                    bytes: &record,
                },
                b: recipe.is_compound().then_some(Change {
                    at: TAIL_AT,
                    bytes: &tail,
                }),
            };
            run(&recipe, &changes, &mut session.endpoint).unwrap();
            let (found, pointer) = session.after_restart(&recipe);
            assert_eq!(found, record, "{scenario}: {recipe}");
            if recipe.is_compound() {
                assert_eq!(pointer, tail, "{scenario}: {recipe}");
            }
        }
    }
    // All forms that the endpoint can have, so that none is believed untried.
    let expected = [
        "S1",
        "S2",
        "S3",
        "S4",
        "S4[READ(0)]",
        "S4[sync READ(0)]",
        "S5",
        "S5[READ(0)]",
        "S5[sync READ(0)]",
        "S6",
        "S6[READ(0)]",
        "S7",
        "C1",
        "C2",
        "C3",
        "C4",
        "C5",
        "C6",
        "C6[READ(0)]",
        "C6[sync READ(0)]",
        "C7",
        "C7[READ(0)]",
        "C7[sync READ(0)]",
        "C8",
        "C8[READ(0)]",
        "C9",
    ];
    let missing: Vec<_> = expected
        .iter()
        .filter(|&&name| !names.contains(name))
        .collect();
    assert!(
        missing.is_empty() && names.len() == expected.len(),
        "{missing:?} of {names:?}"
    );
}

/// I16: messages that nobody has asked for are not kept without end: the connection ends.
#[test]
fn a_responder_that_says_too_much() {
    let recipe = recipe_named(RecipeId::S4).in_form(Barrier::ReadNothing, Tag::Plain);
    for (unasked, is_heard) in [(3, true), (50, false)] {
        let mut session = start(&recipe, Domain::Mhp, false);
        session.unasked.set(unasked);
        let endpoint = &mut session.endpoint;
        let done = (0..100).try_for_each(|_| {
            let posted = endpoint.post(Request::Read { bytes: 0 });
            endpoint
                .wait(posted.map_err(|error| error.to_string())?)
                .map_err(|error| error.to_string())
        });
        assert_eq!(done.is_ok(), is_heard, "{done:?}");
        assert_eq!(session.unasked.get() == 0, is_heard);
        for _ in 0..if is_heard { unasked } else { 0 } {
            assert_eq!(endpoint.receive().unwrap(), [7; 8]);
        }
    }
}

/// What has to survive can be lost: a recipe that is too weak for the domain loses the record here too.
#[test]
fn what_is_too_weak_is_lost() {
    let weak = [
        recipe_named(RecipeId::S4).in_form(Barrier::ReadNothing, Tag::Plain),
        recipe_named(RecipeId::S7),
    ];
    for recipe in weak {
        let mut session = start(&recipe, Domain::Dmp, false);
        let changes = Changes {
            sequence: 1,
            a: Change {
                at: RECORD_AT,
                bytes: &[1; 64],
            },
            b: None,
        };
        run(&recipe, &changes, &mut session.endpoint).unwrap();
        assert_eq!(session.after_restart(&recipe).0, [0; 64], "{recipe}");
    }
}

/// An acknowledgement that comes when nobody waits for it any more is not taken for that of the next update, whatever that
/// has in common with the one before (I1).
#[test]
fn a_late_acknowledgement_is_of_no_other_update() {
    use RecipeId::{C1, C2, C3, S1, S2, S3};
    for id in [S1, S2, S3, C1, C2, C3] {
        let recipe = recipe_named(id);
        let mut session = start(&recipe, Domain::Dmp, false);
        let mut update = |sequence: u64, pace| {
            session.pace.set(pace);
            let (record, tail) = ([sequence as u8; 64], [sequence as u8; 8]);
            let changes = Changes {
                sequence,
                a: Change {
                    at: RECORD_AT,
                    bytes: &record,
                },
                b: recipe.is_compound().then_some(Change {
                    at: TAIL_AT,
                    bytes: &tail,
                }),
            };
            run(&recipe, &changes, &mut session.endpoint)
        };
        update(1, Pace::Late).unwrap_err();
        let said = update(2, Pace::Stopped);
        let (record, _) = session.after_restart(&recipe);
        assert!(said.is_err() || record == [2; 64], "{recipe}: {record:?}");
    }
}

/// Why C4 has an ATOMIC WRITE: a WRITE of `b` overtakes the FLUSH in front of it on the real endpoint too, and is visible
/// before that is answered; an ATOMIC WRITE is not.
#[test]
fn writes_overtake_a_flush_and_atomic_writes_do_not() {
    let tail = Request::Write {
        at: TAIL_AT,
        bytes: &[7; 8],
        tag: Tag::Plain,
    };
    let atomic = Request::AtomicWrite {
        at: TAIL_AT,
        bytes: [7; 8],
    };
    for (request, overtakes) in [(tail, true), (atomic, false)] {
        let session = start(&recipe_named(RecipeId::C4), Domain::Dmp, true);
        let mut endpoint = session.endpoint;
        let record = Request::Write {
            at: RECORD_AT,
            bytes: &[1; 64],
            tag: Tag::Plain,
        };
        for request in [record, Request::Flush, request, Request::Flush] {
            endpoint.post(request).unwrap();
        }
        let mut joined = endpoint.into_channel();
        joined.pair.run();
        // The FLUSH is not answered yet.
        let seen = session.pm.visible(TAIL_AT as usize, 8) == [7; 8];
        assert_eq!(seen, overtakes, "{request:?}");
        joined.serve().unwrap();
        joined.pair.run();
        assert_eq!(session.pm.visible(TAIL_AT as usize, 8), [7; 8]);
    }
}

/// Changes that cannot be are refused by name, before anything is posted; an operation that is missing, at its turn.
#[test]
fn what_cannot_be_is_refused() {
    let refuse = |id, a: Change<'_>, b| {
        let recipe = recipe_named(id);
        let mut session = start(&recipe, Domain::Dmp, false);
        let changes = Changes { sequence: 1, a, b };
        let error = run(&recipe, &changes, &mut session.endpoint).unwrap_err();
        assert_eq!(session.pm.after_cut(0, 8192), vec![0; 8192]);
        error
    };
    let record = Change {
        at: 0,
        bytes: &[1; 64],
    };
    let missing = |error| match error {
        RunError::Transport(TransportError::Missing(missing)) => missing,
        other => panic!("{other}"),
    };
    assert_eq!(missing(refuse(RecipeId::S4, record, None)), Missing::Flush);
    let both = refuse(RecipeId::S1, record, Some(record));
    assert!(matches!(both, RunError::SecondChange), "{both}");
    let one = refuse(RecipeId::C1, record, None);
    assert!(matches!(one, RunError::NoSecondChange), "{one}");
    for tail in [
        Change {
            at: 4,
            bytes: &[1; 8],
        },
        Change {
            at: 8,
            bytes: &[1; 7],
        },
    ] {
        let error = refuse(RecipeId::C4, record, Some(tail));
        assert!(matches!(error, RunError::NotAtomic { .. }), "{error}");
    }
    let far = Change {
        at: 1 << 47,
        bytes: &[1],
    };
    let error = refuse(RecipeId::S2, far, None);
    assert!(matches!(error, RunError::NotImmediate { .. }), "{error}");
}

/// Each operation that the connection or the region lacks has its own name, and the connection lives on.
#[test]
fn what_is_missing_is_named() {
    let mut endpoint = start(&recipe_named(RecipeId::S4), Domain::Dmp, false).endpoint;
    let (at, bytes) = (TAIL_AT, [1; 8]);
    let mut post = |request| match endpoint.post(request) {
        Err(TransportError::Missing(missing)) => missing,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        post(Request::AtomicWrite { at, bytes }),
        Missing::AtomicWrite
    );
    assert_eq!(post(Request::Flush), Missing::Flush);
    let read = endpoint.post(Request::Read { bytes: 1 }).unwrap();
    endpoint.wait(read).unwrap();
    let region = MemoryRegion {
        sync_stag: None,
        ..region(&RegionTable::new([3; 32]))
    };
    let mut endpoint = Endpoint::new(endpoint.into_channel(), region).unwrap();
    let bytes = &bytes;
    let write = Request::Write {
        at,
        bytes,
        tag: Tag::Sync,
    };
    let missing = endpoint.post(write).unwrap_err();
    assert!(matches!(
        missing,
        TransportError::Missing(Missing::SyncStag)
    ));
}

/// A hostile requester names what is not there; nothing is touched, and the reason has a name (I10).
#[test]
fn the_responder_checks_what_it_is_told() {
    use message::{Message, Part};
    let part = |at, len, bytes| Part {
        item: Item::A,
        at,
        len,
        bytes,
    };
    let message = |parts| Message { sequence: 1, parts }.emit();
    let rows = [
        (RecipeId::S1, message(vec![part(8192, 1, None)])),
        (RecipeId::S1, message(vec![part(u64::MAX, 2, None)])),
        (RecipeId::S3, message(vec![part(8190, 4, Some(b"abcd"))])),
        (RecipeId::S3, message(vec![part(0, 4, None)])),
        (RecipeId::C3, message(vec![part(0, 4, Some(b"abcd"))])),
        (RecipeId::S1, message(vec![])),
        (RecipeId::S1, b"GET / HTTP/1.1\r\n\r\nand so on".to_vec()),
    ];
    let mut reasons = Vec::new();
    for (id, bytes) in rows {
        let mut pm = EmulatedPm::new(Domain::Mhp, 8192);
        let mut responder = Responder::new(&recipe_named(id));
        let why = responder.handle(Arrival::Message(&bytes), &mut pm);
        reasons.push(why.unwrap_err());
        let touched = pm
            .after_cut(0, 8192)
            .iter()
            .filter(|&&byte| byte != 0)
            .count();
        assert!(touched == 0 || id == RecipeId::C3);
    }
    assert_eq!(
        reasons[1],
        ServeError::OutOfBounds {
            at: u64::MAX,
            len: 2,
            size: 8192
        }
    );
    assert_eq!(reasons[3], ServeError::NotCarried(Item::A));
    assert_eq!(reasons[4], ServeError::Unknown(Item::B));
    assert_eq!(reasons[5], ServeError::Acknowledgement);
    // Out of bounds and malformed messages in a receive queue are passed over when it is replayed.
    let mut pm = EmulatedPm::new(Domain::Mhp, 8192);
    let old = message(vec![part(0, 1, Some(b"a"))]);
    let mut new = Message {
        sequence: 2,
        parts: vec![part(0, 1, Some(b"b"))],
    }
    .emit();
    let far = message(vec![part(8192, 1, Some(b"c"))]);
    assert_eq!(replay([&*new, &*far, &*old], &mut pm), 2);
    assert_eq!(pm.after_cut(0, 1), b"b");
    new[30] ^= 1;
    assert_eq!(replay([&*new, b"", &*old], &mut pm), 1);
    assert_eq!(pm.after_cut(0, 1), b"a");
}
