//! The verbs layer: owners end what they own, and nothing that was posted is lost or reported twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use softrdma::verbs::request::{
    AtomicWrite, BindDomainWindow, BindWindow, CompareSwap, FetchAdd, Flush, LocalInvalidate, Read,
    SendImmediate, SendMessage, Verify, Word, Write,
};
use softrdma::verbs::{
    Cable, Closing, CompletionQueue, Context, MemoryRegion, ProtectionDomain, QueuePair, Rts, Step,
};
use softrdma::{
    Buffer, CloseReason, CompletionOpcode, Config, Event, Immediate, LocalSlice, PostError,
    RecvBuffer, RemoteAddr, Rights, Status, WrId,
};

/// How long a waiting thread waits at most. One that was not woken looks again then, and that is too late.
const PATIENCE: Duration = Duration::from_secs(120);

/// Both ends of a connection, and what they own.
struct World {
    ours: ProtectionDomain,
    theirs: ProtectionDomain,
    completions: CompletionQueue,
    their_completions: CompletionQueue,
}

impl World {
    fn new() -> Self {
        Self {
            ours: Context::new([1; 32]).allocate_domain(),
            theirs: Context::new([2; 32]).allocate_domain(),
            completions: CompletionQueue::new(),
            their_completions: CompletionQueue::new(),
        }
    }

    fn connect(&self, config: Config) -> (QueuePair<Rts>, QueuePair<Rts>, Cable) {
        let client = self.ours.queue_pair(config.clone(), &self.completions);
        let mut server = self.theirs.queue_pair(config, &self.their_completions);
        for id in 0..4 {
            server.post_recv(WrId(id), RecvBuffer::Vec(64)).unwrap();
        }
        let (client, server) = (client.connect(b"").unwrap(), server.listen());
        let mut cable = Cable::new(client.transport(), server.transport());
        cable.run();
        let server = match server.poll() {
            Step::Ready(request) => request.accept(b"").unwrap(),
            other => panic!("{other:?}"),
        };
        cable.run();
        match (client.poll(), server.poll()) {
            (Step::Ready(client), Step::Ready(server)) => (client, server, cable),
            other => panic!("{other:?}"),
        }
    }

    fn shared(&self, len: usize, rights: Rights) -> MemoryRegion {
        self.theirs.register(&Buffer::zeroed(len), rights).unwrap()
    }
}

fn rights() -> Rights {
    Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC | Rights::FLUSH_GLOBAL
}

fn statuses(queue: &CompletionQueue) -> Vec<(u64, Status)> {
    std::iter::from_fn(|| queue.poll())
        .map(|done| (done.result.wr_id.0, done.result.status))
        .collect()
}

fn read(remote: RemoteAddr) -> Read {
    Read::new(LocalSlice::whole(&Buffer::zeroed(8)), remote)
}

/// I11: a region that has been dropped is open to nobody, and neither is the old STag of one that was registered anew.
#[test]
fn a_region_ends_with_its_owner() {
    let world = World::new();
    for end in [(|region| drop(region)) as fn(MemoryRegion), |mut region| {
        region.reregister(Rights::REMOTE_READ).unwrap();
        // It lives on under another name.
        std::mem::forget(region);
    }] {
        let (mut client, _server, mut cable) = world.connect(Config::default());
        let region = world.shared(4096, rights());
        let remote = region.remote(0);
        client.post_send(read(remote).wr_id(1)).unwrap();
        cable.run();
        assert_eq!(statuses(&world.completions), [(1, Status::Success)]);
        end(region);
        client.post_send(read(remote).wr_id(2)).unwrap();
        cable.run();
        assert_eq!(statuses(&world.completions), [(2, Status::RemoteAccess)]);
    }
}

/// I10, I11: a window opens a part of a region to one queue pair with fewer rights, until it is invalidated.
#[test]
fn a_window_is_narrower_than_its_region() {
    let world = World::new();
    let (mut client, mut server, mut cable) = world.connect(Config::default());
    let region = world.shared(4096, rights() | Rights::WINDOW_BIND);
    let window = world.theirs.allocate_window().unwrap();
    let bind = BindWindow::new(&window, 7, &region, 64..128, Rights::REMOTE_READ);
    server.post_send(bind.wr_id(1)).unwrap();
    cable.run();
    assert_eq!(statuses(&world.their_completions), [(1, Status::Success)]);
    let remote = RemoteAddr {
        stag: window.stag(7),
        to: region.remote(64).to,
    };
    client.post_send(read(remote).wr_id(2)).unwrap();
    cable.run();
    assert_eq!(statuses(&world.completions), [(2, Status::Success)]);
    server
        .post_send(LocalInvalidate::new(window.stag(7)).wr_id(3))
        .unwrap();
    cable.run();
    assert_eq!(statuses(&world.their_completions), [(3, Status::Success)]);
    client.post_send(read(remote).wr_id(4)).unwrap();
    cable.run();
    assert_eq!(statuses(&world.completions), [(4, Status::RemoteAccess)]);
}

/// I11: who was given a window gives it back with a message (`SEND_WITH_INV`); who receives that relies on it.
#[test]
fn a_message_ends_a_window() {
    let world = World::new();
    let (mut client, mut server, mut cable) = world.connect(Config::default());
    let region = world.shared(4096, rights() | Rights::WINDOW_BIND);
    let window = world.theirs.allocate_window().unwrap();
    let lent = Rights::REMOTE_READ | Rights::REMOTE_INVALIDATE;
    let bind = BindWindow::new(&window, 7, &region, 64..128, lent);
    server.post_send(bind.wr_id(1)).unwrap();
    cable.run();
    assert_eq!(statuses(&world.their_completions), [(1, Status::Success)]);
    let stag = window.stag(7);
    let back = SendMessage::inline(*b"done").invalidating(stag);
    client.post_send(back.wr_id(2)).unwrap();
    cable.run();
    let done = world.their_completions.poll().expect("the message");
    assert_eq!(done.result.invalidated, Some(stag));
    assert_eq!(statuses(&world.completions), [(2, Status::Success)]);
    let to = region.remote(64).to;
    client
        .post_send(read(RemoteAddr { stag, to }).wr_id(3))
        .unwrap();
    cable.run();
    assert_eq!(statuses(&world.completions), [(3, Status::RemoteAccess)]);
}

/// I10, I11: a window of type 1 opens a part of a region to all queue pairs of its domain, until it is bound again or
/// dropped, whichever of them does it.
#[test]
fn a_domain_window_is_for_all_queue_pairs() {
    let world = World::new();
    let mut ends = [(); 2].map(|()| world.connect(Config::default()));
    let region = world.shared(4096, rights() | Rights::WINDOW_BIND);
    let mut window = world.theirs.allocate_domain_window().unwrap();
    let mut bind = |from: usize| {
        let bytes = 64..128;
        let bind = BindDomainWindow::new(&mut window, &region, bytes, Rights::REMOTE_READ);
        let (_, server, cable) = &mut ends[from];
        let to = region.remote(64).to;
        let remote = RemoteAddr {
            stag: bind.stag(),
            to,
        };
        server.post_send(bind.wr_id(1)).unwrap();
        cable.run();
        assert_eq!(statuses(&world.their_completions), [(1, Status::Success)]);
        for (client, _, cable) in &mut ends {
            client.post_send(read(remote).wr_id(2)).unwrap();
            cable.run();
            assert_eq!(statuses(&world.completions), [(2, Status::Success)]);
        }
        remote
    };
    let remotes = [0, 1].map(&mut bind);
    drop(window);
    for ((client, _, cable), remote) in ends.iter_mut().zip(remotes) {
        client.post_send(read(remote).wr_id(3)).unwrap();
        cable.run();
        assert_eq!(statuses(&world.completions), [(3, Status::RemoteAccess)]);
    }
}

/// I18: what was posted on a queue pair that is dropped completes exactly once, as flushed, although nobody has it any
/// more; and the peer hears of the end.
#[test]
fn a_dropped_queue_pair_completes_its_work() {
    let world = World::new();
    let (mut client, mut server, mut cable) = world.connect(Config::default());
    let region = world.shared(4096, rights());
    for id in 0..5 {
        let request = read(region.remote(0)).wr_id(id);
        match id % 2 {
            0 => client.post_send(request).unwrap(),
            _ => client.post_send(request.unsignaled()).unwrap(),
        }
    }
    drop(client);
    let flushed: Vec<_> = (0..5).map(|id| (id, Status::Flushed)).collect();
    assert_eq!(statuses(&world.completions), flushed);
    assert_eq!(statuses(&world.completions), []);
    cable.run();
    let events: Vec<Event> = std::iter::from_fn(|| server.poll_event()).collect();
    assert!(
        matches!(events.last(), Some(Event::Closed(_))),
        "{events:?}"
    );
}

/// Owners end what they own: with the last handles of a connection and its completion queue goes all that they kept, the
/// registered memory too, whether or not the completions were taken.
#[test]
fn nothing_outlives_its_handles() {
    for is_taken in [false, true] {
        let world = World::new();
        let (mut client, server, mut cable) = world.connect(Config::default());
        let memory = Buffer::zeroed(4096);
        let kept = Arc::downgrade(&memory);
        let region = world.theirs.register(&memory, rights()).unwrap();
        let buffer = Buffer::zeroed(8);
        let sink_kept = Arc::downgrade(&buffer);
        let sink = LocalSlice::whole(&buffer);
        client
            .post_send(Read::new(sink.clone(), region.remote(0)).wr_id(1))
            .unwrap();
        cable.run();
        client
            .post_send(Read::new(sink, region.remote(0)).wr_id(2))
            .unwrap();
        drop((client, server, cable, region, memory, buffer));
        if is_taken {
            let done = [(1, Status::Success), (2, Status::Flushed)];
            assert_eq!(statuses(&world.completions), done);
        }
        drop(world);
        assert!(kept.upgrade().is_none(), "memory of the region, {is_taken}");
        assert!(
            sink_kept.upgrade().is_none(),
            "memory of the READ, {is_taken}"
        );
    }
}

/// I16: a program that takes no completions is refused work at the depth of the queue, and goes on when it takes them. All
/// queue pairs of a completion queue get their turn.
#[test]
fn unread_completions_hold_work_back() {
    const DEPTH: usize = 8;
    let world = World::new();
    let config = Config {
        send_queue_max: DEPTH,
        ..Config::default()
    };
    let region = world.shared(4096, rights());
    let mut ends: Vec<_> = (0..3).map(|_| world.connect(config.clone())).collect();
    let mut count = BTreeMap::new();
    for (client, _, cable) in &mut ends {
        count.insert(client.number(), 0);
        for _ in 0..DEPTH {
            client.post_send(read(region.remote(0))).unwrap();
        }
        cable.run();
        let refused = client.post_send(read(region.remote(0)));
        assert_eq!(refused, Err(PostError::QueueFull));
    }
    for taken in 1..=3 * DEPTH {
        let done = world.completions.poll().unwrap();
        *count.get_mut(&done.queue_pair).unwrap() += 1;
        let (least, most) = (count.values().min(), count.values().max());
        assert!(most.unwrap() - least.unwrap() <= 1, "{count:?} of {taken}");
    }
    assert!(world.completions.poll().is_none());
    for (client, _, _) in &mut ends {
        client.post_send(read(region.remote(0))).unwrap();
    }
}

/// A thread that waits for a completion sees one that comes later; none is lost between its look and its sleep.
#[test]
fn waiting_sees_what_comes() {
    let world = World::new();
    let (mut client, _server, mut cable) = world.connect(Config::default());
    let region = world.shared(4096, rights());
    let queue = world.completions.clone();
    let start = Instant::now();
    let waiter = std::thread::spawn(move || {
        let take = || queue.wait(PATIENCE).expect("it comes");
        (0..100)
            .map(|_| take().result.wr_id.0)
            .collect::<Vec<u64>>()
    });
    for id in 0..100 {
        client.post_send(read(region.remote(0)).wr_id(id)).unwrap();
        cable.run();
    }
    assert_eq!(waiter.join().unwrap(), (0..100).collect::<Vec<u64>>());
    assert!(start.elapsed() < PATIENCE, "it was not woken");
    assert_eq!(world.completions.wait(Duration::from_millis(1)), None);
}

/// Only what the peer solicited, or what failed, ends a wait for that. It takes nothing, and what is for nobody in a hurry
/// still reaches a thread that waits for anything.
#[test]
fn solicited_events() {
    const NOT_YET: Duration = Duration::from_millis(1);
    /// Waits have most likely begun; if not, all the same holds.
    const SOON: Duration = Duration::from_millis(50);
    let start = Instant::now();
    let in_time = || assert!(start.elapsed() < PATIENCE, "somebody was not woken");
    let world = World::new();
    let (mut client, server, mut cable) = world.connect(Config::default());
    let queue = &world.their_completions;
    let message = |id| SendMessage::inline(*b"hi").wr_id(id);
    client.post_send(message(1)).unwrap();
    cable.run();
    assert!(!queue.wait_solicited(NOT_YET));
    std::thread::scope(|scope| {
        // The queue pair has been noted with its first message, which nobody takes before the second one comes.
        let waiter = scope.spawn(|| queue.wait_solicited(PATIENCE));
        std::thread::sleep(SOON);
        client.post_send(message(2).solicited()).unwrap();
        cable.run();
        assert!(waiter.join().unwrap());
    });
    in_time();
    let ids: Vec<bool> = std::iter::from_fn(|| queue.poll())
        .map(|done| done.result.solicited)
        .collect();
    assert_eq!(ids, [false, true]);
    assert!(!queue.wait_solicited(NOT_YET), "it has been taken");
    std::thread::scope(|scope| {
        let choosy = scope.spawn(|| queue.wait_solicited(PATIENCE));
        let other = scope.spawn(|| queue.wait(PATIENCE));
        std::thread::sleep(SOON);
        client.post_send(message(3)).unwrap();
        cable.run();
        let taken = other.join().unwrap().expect("it is there");
        assert!(!taken.result.solicited);
        drop(server);
        assert!(choosy.join().unwrap(), "a buffer was flushed");
    });
    in_time();
    assert_eq!(statuses(queue), [(3, Status::Flushed)]);
}

/// Every kind of request arrives as what it is. What the builders set is what the core is told.
#[test]
fn every_kind_of_request() {
    let world = World::new();
    let config = Config {
        private_profile: true,
        ..Config::default()
    };
    let (mut client, server, mut cable) = world.connect(config);
    let region = world.shared(4096, rights());
    let at = |offset| region.remote(offset);
    let word = |offset| Word::new(at(offset)).unwrap();
    assert_eq!(Word::new(at(4)), None);

    client
        .post_send(Write::inline(*b"inline", at(0)).wr_id(1))
        .unwrap();
    let source = Buffer::from_bytes(b"local");
    let write = Write::new(LocalSlice::whole(&source), at(16)).wr_id(2);
    client
        .post_send(write.immediate(9_u32).solicited())
        .unwrap();
    client
        .post_send(SendMessage::inline(*b"hi").wr_id(3).solicited())
        .unwrap();
    client
        .post_send(SendImmediate::new(Immediate::from(5)).wr_id(4))
        .unwrap();
    client
        .post_send(FetchAdd::new(word(64), 3).wr_id(5))
        .unwrap();
    client
        .post_send(CompareSwap::new(word(64), 3, 8).wr_id(6).fenced())
        .unwrap();
    client
        .post_send(CompareSwap::new(word(64), 0, 1).masked(1, 1).wr_id(7))
        .unwrap();
    let mut profile = client.profile().expect("both announce it");
    profile
        .post(Flush::range(at(0), 8).to_visibility().wr_id(8))
        .unwrap();
    profile
        .post(AtomicWrite::new(word(72), u64::MAX).wr_id(9))
        .unwrap();
    profile.post(Verify::new(at(0), 6).wr_id(10)).unwrap();
    cable.run();

    use CompletionOpcode as Op;
    let done: Vec<_> = std::iter::from_fn(|| world.completions.poll())
        .map(|done| done.result)
        .collect();
    let seen: Vec<_> = done.iter().map(|c| (c.wr_id.0, c.opcode)).collect();
    let kinds = [
        Op::RdmaWrite,
        Op::RdmaWrite,
        Op::Send,
        Op::Send,
        Op::FetchAdd,
        Op::CompSwap,
        Op::CompSwap,
        Op::Flush,
        Op::AtomicWrite,
        Op::Verify,
    ];
    let expected: Vec<_> = (1..).zip(kinds).collect();
    assert_eq!(seen, expected);
    assert!(done.iter().all(|c| c.status == Status::Success));
    let originals: Vec<u64> = done[4..7].iter().map(|c| c.original).collect();
    assert_eq!(originals, [0, 3, 8]);
    assert_eq!(done[9].original, u64::from(crc32c(b"inline")));
    let memory = region.buffer();
    assert_eq!(memory.to_vec(0, 6), b"inline");
    assert_eq!(memory.to_vec(16, 5), b"local");
    assert_eq!(memory.to_vec(64, 1), [9], "3, then 8, then its low bit");
    assert_eq!(memory.to_vec(72, 8), [0xff; 8]);

    let received: Vec<_> = std::iter::from_fn(|| world.their_completions.poll())
        .map(|done| {
            let result = done.result;
            assert_eq!(done.queue_pair, server.number());
            (
                result.immediate.map(Immediate::value),
                result.message.filter(|message| !message.is_empty()),
                result.solicited,
            )
        })
        .collect();
    let hi = Some(b"hi".to_vec());
    assert_eq!(
        received,
        [
            (Some(9), None, true),
            (None, hi, true),
            (Some(5), None, false)
        ]
    );
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & 0_u32.wrapping_sub(crc & 1))
        })
    })
}

/// A peer without the private profile gets none of its requests; a rejection carries private data; and a queue pair that is
/// disconnected sends what was posted first.
#[test]
fn the_ends_of_the_state_machine() {
    let world = World::new();
    let (mut client, mut server, mut cable) = world.connect(Config::default());
    assert!(client.profile().is_none());
    client
        .post_send(SendMessage::new(b"last".to_vec()))
        .unwrap();
    let mut closing: QueuePair<Closing> = client.disconnect();
    cable.run();
    let message = world.their_completions.poll().unwrap().result.message;
    assert_eq!(message.as_deref(), Some(&b"last"[..]));
    assert_eq!(server.poll_event(), Some(Event::PeerFinished));
    let _server = server.disconnect();
    cable.run();
    let events: Vec<Event> = std::iter::from_fn(|| closing.poll_event()).collect();
    assert_eq!(events.last(), Some(&Event::Closed(CloseReason::Graceful)));

    let client = world
        .ours
        .queue_pair(Config::default(), &world.completions)
        .connect(b"me")
        .unwrap();
    let server = world
        .theirs
        .queue_pair(Config::default(), &world.their_completions)
        .listen();
    let mut cable = Cable::new(client.transport(), server.transport());
    cable.run();
    let Step::Ready(server) = server.poll() else {
        panic!("there is a request");
    };
    assert_eq!(server.request().private_data, b"me");
    let _closing = server.reject(b"not you").unwrap();
    cable.run();
    match client.poll() {
        Step::Ended(reason) => assert_eq!(reason, CloseReason::Rejected(b"not you".to_vec())),
        other => panic!("{other:?}"),
    }
}

/// Domains of one context keep their regions apart (I10).
#[test]
fn domains_are_apart() {
    let world = World::new();
    let context = Context::new([3; 32]);
    let (open, closed) = (context.allocate_domain(), context.allocate_domain());
    assert_ne!(open.number(), closed.number());
    let world = World {
        theirs: open,
        ..world
    };
    let (mut client, _server, mut cable) = world.connect(Config::default());
    let region = closed
        .register(&Arc::clone(&Buffer::zeroed(64)), rights())
        .unwrap();
    client.post_send(read(region.remote(0)).wr_id(1)).unwrap();
    cable.run();
    assert_eq!(statuses(&world.completions), [(1, Status::RemoteAccess)]);
}
