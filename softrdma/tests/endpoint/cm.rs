//! The connection manager over real sockets: what it says of connections, once and in order, and what it moves.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use softrdma::cm::{Event, EventChannel, Id, Listener, Request, Route, resolve_addr};
use softrdma::verbs::request::{Read, SendMessage, Write};
use softrdma::verbs::{CompletionQueue, Context, ProtectionDomain, QueuePair, Reset, Rts};
use softrdma::{
    Buffer, CloseReason, Config, Connection, Event as CoreEvent, LocalSlice, NoPages, PostError,
    RecvBuffer, RegionTable, RemoteAddr, Rights, SharedReceives, Stag, Status, TaggedOffset, Time,
    WrId,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A listening channel, and one to connect with.
struct World {
    server: EventChannel,
    client: EventChannel,
    listener: Listener,
    domain: ProtectionDomain,
    received: CompletionQueue,
    sent: CompletionQueue,
}

impl World {
    fn new(backlog: usize, config: Config) -> Self {
        let server = EventChannel::new().unwrap();
        let (received, sent) = (CompletionQueue::new(), CompletionQueue::new());
        let domain = Context::new([1; 32]).allocate_domain();
        let (make, queue) = (domain.clone(), received.clone());
        let listener = server
            .listen("127.0.0.1:0".parse().unwrap(), backlog, move || {
                let mut queue_pair = make.queue_pair(config.clone(), &queue);
                for id in 0..4 {
                    queue_pair
                        .post_recv(WrId(id), RecvBuffer::Vec(4096))
                        .unwrap();
                }
                queue_pair
            })
            .unwrap();
        Self {
            server,
            client: EventChannel::new().unwrap(),
            listener,
            domain,
            received,
            sent,
        }
    }

    fn queue_pair(&self) -> QueuePair<Reset> {
        self.domain.queue_pair(Config::default(), &self.sent)
    }

    fn connect(&self, private_data: &[u8]) -> Id {
        let route = Route::from(self.listener.address());
        let connected = self.client.connect(&route, self.queue_pair(), private_data);
        connected.unwrap()
    }

    fn request(&self) -> Request {
        match self.server.wait_event(PATIENCE) {
            Some(Event::ConnectRequest(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    /// A connection: its names and queue pairs here and there.
    fn establish(&self) -> ((Id, QueuePair<Rts>), (Id, QueuePair<Rts>)) {
        let id = self.connect(b"");
        let request = self.request();
        let theirs = request.id();
        request.accept(b"").unwrap();
        let (ours, there) = (established(&self.client), established(&self.server));
        assert_eq!((ours.0, there.0), (id, theirs));
        (ours, there)
    }
}

fn established(channel: &EventChannel) -> (Id, QueuePair<Rts>) {
    match channel.wait_event(PATIENCE) {
        Some(Event::Established { id, queue_pair }) => (id, queue_pair),
        other => panic!("{other:?}"),
    }
}

/// What a channel still says of a connection, in few words.
fn end(channel: &EventChannel) -> Vec<(Id, Option<CloseReason>)> {
    let mut seen = Vec::new();
    loop {
        match channel.wait_event(PATIENCE) {
            Some(Event::Disconnected { id }) => seen.push((id, None)),
            Some(Event::TimewaitExit { id, reason }) => {
                seen.push((id, Some(reason)));
                return seen;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// M1: a connection that is disconnected says so once on each side, sends what was posted before, and then is over; and one
/// whose queue pair is dropped is lost to the other side.
#[test]
fn the_end_is_told_once() {
    let world = World::new(8, Config::default());
    let ((id, mut ours), (theirs, there)) = world.establish();
    ours.post_send(SendMessage::new(b"last words".to_vec()).wr_id(7))
        .unwrap();
    world.client.disconnect(id, ours);
    let message = world.received.wait(PATIENCE).unwrap().result;
    assert_eq!(message.message.as_deref(), Some(&b"last words"[..]));
    assert!(matches!(
        world.server.wait_event(PATIENCE),
        Some(Event::Disconnected { id }) if id == theirs
    ));
    world.server.disconnect(theirs, there);
    assert_eq!(
        end(&world.client),
        [(id, None), (id, Some(CloseReason::Graceful))]
    );
    assert_eq!(end(&world.server), [(theirs, Some(CloseReason::Graceful))]);
    assert_eq!(world.sent.wait(PATIENCE).unwrap().result.wr_id, WrId(7));

    let ((id, ours), (theirs, there)) = world.establish();
    drop(ours);
    assert_eq!(
        end(&world.client),
        [(id, None), (id, Some(CloseReason::Aborted))]
    );
    let told = world.server.wait_event(PATIENCE);
    assert!(matches!(told, Some(Event::Disconnected { id }) if id == theirs));
    drop(there);
    assert_eq!(end(&world.server).last().unwrap().0, theirs);
    assert!(world.client.poll_event().is_none());
    assert!(world.server.poll_event().is_none());
}

/// M3: a request that nobody answers is rejected; one that its peer has taken back cannot be accepted, and holds nobody up.
#[test]
fn requests_without_an_answer() {
    let world = World::new(1, Config::default());
    let id = world.connect(b"who");
    let request = world.request();
    assert_eq!(request.request().private_data, b"who");
    drop(request);
    match world.client.wait_event(PATIENCE) {
        Some(Event::Rejected {
            id: rejected,
            private_data,
        }) => assert_eq!((rejected, private_data), (id, vec![])),
        other => panic!("{other:?}"),
    }

    let impatient = EventChannel::new().unwrap();
    let route = Route::from(world.listener.address());
    impatient
        .connect(&route, world.queue_pair(), b"never mind")
        .unwrap();
    let request = world.request();
    drop(impatient);
    // Whether the server has noticed yet or not: the connection is never established, and said so at most once.
    if request.accept(b"").is_ok() {
        match world.server.wait_event(PATIENCE) {
            Some(Event::ConnectError { .. }) => {}
            Some(Event::Established { .. }) => {
                end(&world.server);
            }
            other => panic!("{other:?}"),
        }
    }
    let _ends = world.establish();
}

/// M2: a listener has no more connections without an answer than it was told; the others wait, and come in their turn.
#[test]
fn a_backlog_is_kept() {
    let world = World::new(2, Config::default());
    let ids: Vec<Id> = (0..5).map(|_| world.connect(b"")).collect();
    let mut waiting = vec![world.request(), world.request()];
    let early = world.server.wait_event(Duration::from_millis(100));
    assert!(early.is_none(), "{early:?}");
    let (mut ends, mut accepted) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        waiting.remove(0).accept(b"").unwrap();
        ends.push(established(&world.client));
        // The place is taken by the next, if there is one.
        while ends.len() + waiting.len() < 5 && waiting.len() < 2 {
            match world.server.wait_event(PATIENCE) {
                Some(Event::ConnectRequest(request)) => waiting.push(request),
                Some(Event::Established { queue_pair, .. }) => accepted.push(queue_pair),
                other => panic!("{other:?}"),
            }
        }
    }
    let mut seen: Vec<Id> = ends.iter().map(|(id, _)| *id).collect();
    seen.sort();
    assert_eq!(seen, ids);
}

/// Nobody there, nobody who speaks MPA, nobody who says anything: each is told in its own way, and only once.
#[test]
fn nobody_answers() {
    let world = World::new(1, Config::default());
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let connect = |address: SocketAddr, config: Config| {
        let queue_pair = world.domain.queue_pair(config, &world.sent);
        let route = resolve_addr(&address.to_string()).unwrap();
        world.client.connect(&route, queue_pair, b"").unwrap()
    };
    let id = connect(closed, Config::default());
    match world.client.wait_event(PATIENCE) {
        Some(Event::Unreachable { id: seen, .. }) => assert_eq!(seen, id),
        other => panic!("{other:?}"),
    }

    let foreign = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = foreign.local_addr().unwrap();
    let answer = std::thread::spawn(move || {
        let (mut socket, _) = foreign.accept().unwrap();
        std::io::Write::write_all(&mut socket, &[b'x'; 64]).unwrap();
        let (silent, _) = foreign.accept().unwrap();
        (socket, silent)
    });
    let id = connect(address, Config::default());
    match world.client.wait_event(PATIENCE) {
        Some(Event::ConnectError { id: seen, reason }) => {
            assert_eq!(seen, id);
            assert!(matches!(reason, CloseReason::Setup(_)), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let id = connect(
        address,
        Config {
            start_timeout: Duration::from_millis(50),
            ..Config::default()
        },
    );
    match world.client.wait_event(PATIENCE) {
        Some(Event::ConnectError { id: seen, reason }) => {
            assert_eq!((seen, reason), (id, CloseReason::TimedOut));
        }
        other => panic!("{other:?}"),
    }
    let _sockets = answer.join().unwrap();
    assert!(world.client.poll_event().is_none());
    assert!(resolve_addr("no port").is_err());
}

/// The time of a connection begins with it, not with its channel: an old channel makes connections like a new one.
#[test]
fn an_old_channel_connects() {
    let config = Config {
        start_timeout: Duration::from_secs(2),
        ..Config::default()
    };
    let world = World::new(1, config.clone());
    std::thread::sleep(Duration::from_millis(2100));
    let queue_pair = world.domain.queue_pair(config, &world.sent);
    let route = Route::from(world.listener.address());
    world.client.connect(&route, queue_pair, b"").unwrap();
    world.request().accept(b"").unwrap();
    established(&world.client);
}

/// Bytes of many connections at once, more than sockets hold, arrive where they belong (I10, I18).
#[test]
fn many_connections_move_much() {
    const LINKS: usize = 20;
    const BYTES: usize = 1 << 20;
    let world = World::new(4, Config::default());
    let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
    let mut ours = HashMap::new();
    let mut kept = Vec::new();
    for n in 0..LINKS {
        let ((_, mut queue_pair), there) = world.establish();
        let memory = Buffer::zeroed(BYTES);
        let region = world.domain.register(&memory, rights).unwrap();
        let pattern: Vec<u8> = (0..BYTES).map(|at| (at * (2 * n + 1)) as u8).collect();
        let sink = Buffer::zeroed(BYTES);
        let write = Write::new(pattern.clone(), region.remote(0)).wr_id(1);
        queue_pair.post_send(write.unsignaled()).unwrap();
        let read = Read::new(LocalSlice::whole(&sink), region.remote(0)).wr_id(2);
        queue_pair.post_send(read).unwrap();
        ours.insert(queue_pair.number(), (pattern, sink));
        kept.push((queue_pair, there, region));
    }
    for _ in 0..LINKS {
        let done = world.sent.wait(PATIENCE).expect("each READ completes");
        assert_eq!(done.result.status, Status::Success);
        let (pattern, sink) = ours.remove(&done.queue_pair).expect("once each");
        assert!(sink.to_vec(0, BYTES) == pattern);
    }
    assert!(world.sent.poll().is_none());
}

/// I18: a channel that ends completes what was posted on its connections, and the queue pairs take no more.
#[test]
fn a_channel_ends_with_its_connections() {
    let world = World::new(4, Config::default());
    let ((_, mut ours), there) = world.establish();
    let memory = Buffer::zeroed(64);
    let region = world
        .domain
        .register(&memory, Rights::all() - Rights::FLUSH_PERSISTENT);
    let region = region.unwrap();
    drop(there);
    drop(world.server);
    let read = Read::new(LocalSlice::whole(&memory), region.remote(0)).wr_id(9);
    let posted = ours.post_send(read);
    drop(world.client);
    match posted {
        Ok(()) => {
            let done = world.sent.wait(PATIENCE).unwrap().result;
            assert_eq!((done.wr_id, done.status), (WrId(9), Status::Flushed));
        }
        // The end of the other side was faster.
        Err(error) => assert_eq!(error, PostError::NotOpen),
    }
    let refused = ours.post_send(SendMessage::inline([0]));
    assert_eq!(refused, Err(PostError::NotOpen));
}

/// Connections that come and go without a word cost nothing in the end, and leave others alone (I16).
#[test]
fn visitors_without_a_word() {
    let world = World::new(1, Config::default());
    for _ in 0..50 {
        drop(TcpStream::connect(world.listener.address()).unwrap());
    }
    let _ends = world.establish();
    assert!(world.server.poll_event().is_none());
}

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// I16: strangers who wait for a listener and have nothing to say are turned away one behind the other, not one inside the
/// other: the stack does not grow with their number. A listener with more of them than it takes at once goes on by itself.
#[test]
fn strangers_cost_no_stack() {
    const STRANGERS: usize = 100;
    let channel = EventChannel::new().unwrap();
    let domain = Context::new([1; 32]).allocate_domain();
    let completions = CompletionQueue::new();
    let places = Arc::new(Mutex::new(Vec::new()));
    let (make, queue, seen) = (domain.clone(), completions.clone(), Arc::clone(&places));
    let listener = channel.listen("127.0.0.1:0".parse().unwrap(), 1, move || {
        let here = 0_u8;
        let place = std::ptr::from_ref(std::hint::black_box(&here)).addr();
        seen.lock().unwrap().push(place);
        make.queue_pair(Config::default(), &queue)
    });
    let listener = listener.unwrap();
    // Has the only place until all the others are there.
    let silent = TcpStream::connect(listener.address()).unwrap();
    until("the first is taken", || places.lock().unwrap().len() == 1);
    let strangers: Vec<TcpStream> = (0..STRANGERS)
        .map(|_| {
            let mut stranger = TcpStream::connect(listener.address()).unwrap();
            stranger.write_all(b"x").unwrap();
            stranger
        })
        .collect();
    drop(silent);
    until("each has been taken", || {
        places.lock().unwrap().len() > STRANGERS
    });
    let places = std::mem::take(&mut *places.lock().unwrap());
    let (low, high) = (places.iter().min().unwrap(), places.iter().max().unwrap());
    assert!(high - low < 64 << 10, "{} bytes of stack", high - low);

    let client = EventChannel::new().unwrap();
    let queue_pair = domain.queue_pair(Config::default(), &completions);
    let route = Route::from(listener.address());
    client.connect(&route, queue_pair, b"").unwrap();
    match channel.wait_event(PATIENCE) {
        Some(Event::ConnectRequest(request)) => request.accept(b"").unwrap(),
        other => panic!("{other:?}"),
    }
    established(&client);
    drop(strangers);
}

/// A connection through the second address of a route is like any other: each message that is posted leaves, not only the
/// first.
#[test]
fn the_second_address_hears_the_doorbell() {
    let world = World::new(1, Config::default());
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let route = Route::from(closed).or(world.listener.address());
    let connected = world.client.connect(&route, world.queue_pair(), b"");
    connected.unwrap();
    world.request().accept(b"").unwrap();
    let (_, mut ours) = established(&world.client);
    let _there = established(&world.server);
    for number in 0..4 {
        ours.post_send(SendMessage::inline([number])).unwrap();
        let message = world.received.wait(PATIENCE).expect("it leaves").result;
        assert_eq!(message.message, Some(vec![number]));
    }
}

/// The limit of a shared receive queue is told by the channel of the connection that passed it, once for each time that it is
/// armed, and its end as ever (M1).
#[test]
fn a_low_shared_queue_is_told() {
    let shared = SharedReceives::new(8);
    let post = || shared.post(WrId(0), RecvBuffer::Vec(64)).unwrap();
    let server = EventChannel::new().unwrap();
    let (received, sent) = (CompletionQueue::new(), CompletionQueue::new());
    let domain = Context::new([1; 32]).allocate_domain();
    let (make, queue) = (domain.clone(), received.clone());
    let config = Config {
        shared_receives: Some(Arc::clone(&shared)),
        ..Config::default()
    };
    let listener = server
        .listen("127.0.0.1:0".parse().unwrap(), 1, move || {
            make.queue_pair(config.clone(), &queue)
        })
        .unwrap();
    let client = EventChannel::new().unwrap();
    let route = Route::from(listener.address());
    let queue_pair = domain.queue_pair(Config::default(), &sent);
    let ours = client.connect(&route, queue_pair, b"").unwrap();
    match server.wait_event(PATIENCE) {
        Some(Event::ConnectRequest(request)) => request.accept(b"").unwrap(),
        other => panic!("{other:?}"),
    }
    let (_, mut queue_pair) = established(&client);
    let (theirs, there) = established(&server);
    let is_low = |event| matches!(event, Some(Event::SharedReceivesLow { id }) if id == theirs);
    for _ in 0..2 {
        (0..3).for_each(|_| post());
        shared.arm(2);
        for _ in 0..3 {
            queue_pair.post_send(SendMessage::inline([1])).unwrap();
            let done = received.wait(PATIENCE).expect("there is a buffer");
            assert!(done.result.status.is_success());
        }
        assert!(is_low(server.wait_event(PATIENCE)));
    }
    client.disconnect(ours, queue_pair);
    let ended = [(theirs, None), (theirs, Some(CloseReason::Graceful))];
    assert_eq!(end(&server), ended);
    drop(there);
}

/// A peer that accepts one connection and then does nothing more; its socket.
fn idle_peer() -> (SocketAddr, JoinHandle<TcpStream>) {
    let foreign = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = foreign.local_addr().unwrap();
    let peer = std::thread::spawn(move || {
        let (mut socket, _) = foreign.accept().unwrap();
        let table = RegionTable::new([9; 32]);
        let mut connection = Connection::responder(Config::default(), &table, Time(0));
        let mut bytes = vec![0; 4096];
        while !matches!(connection.poll_event(), Some(CoreEvent::ConnectRequest(_))) {
            let count = std::io::Read::read(&mut socket, &mut bytes).unwrap();
            connection.handle_bytes(Time(0), &mut NoPages, &bytes[..count]);
        }
        connection.accept(b"").unwrap();
        let mut reply = Vec::new();
        connection.poll_transmit(Time(0), &mut NoPages, &mut reply, usize::MAX);
        socket.write_all(&reply).unwrap();
        socket
    });
    (address, peer)
}

/// M1, I16: a connection that the program ends is over although its peer does not read what is left, and all that was posted on
/// it completes (I18).
#[test]
fn a_peer_that_does_not_read_keeps_nobody() {
    const MESSAGES: u64 = 64;
    let world = World::new(1, Config::default());
    let (address, peer) = idle_peer();
    let config = Config {
        close_timeout: Duration::from_millis(200),
        ..Config::default()
    };
    let queue_pair = world.domain.queue_pair(config, &world.sent);
    let route = Route::from(address);
    world.client.connect(&route, queue_pair, b"").unwrap();
    let (id, mut ours) = established(&world.client);
    let _socket = peer.join().unwrap();
    for number in 0..MESSAGES {
        let message = SendMessage::new(vec![0; 1 << 20]).wr_id(number);
        ours.post_send(message).unwrap();
    }
    world.client.disconnect(id, ours);
    let ended = [(id, None), (id, Some(CloseReason::TimedOut))];
    assert_eq!(end(&world.client), ended);
    for number in 0..MESSAGES {
        let done = world.sent.wait(PATIENCE).expect("each completes").result;
        assert_eq!(done.wr_id, WrId(number));
    }
    assert!(world.sent.poll().is_none());
}

/// M1, I16: the same of a peer that reads, and does not answer.
#[test]
fn a_peer_that_does_not_answer_keeps_nobody() {
    let world = World::new(1, Config::default());
    let (address, peer) = idle_peer();
    let config = Config {
        close_timeout: Duration::from_millis(200),
        ..Config::default()
    };
    let queue_pair = world.domain.queue_pair(config, &world.sent);
    let route = Route::from(address);
    world.client.connect(&route, queue_pair, b"").unwrap();
    let (id, mut ours) = established(&world.client);
    let mut socket = peer.join().unwrap();
    let sink = Buffer::zeroed(8);
    let remote = RemoteAddr {
        stag: Stag(0x100),
        to: TaggedOffset(0),
    };
    let read = Read::new(LocalSlice::whole(&sink), remote);
    ours.post_send(read.wr_id(7)).unwrap();
    world.client.disconnect(id, ours);
    let ended = [(id, None), (id, Some(CloseReason::TimedOut))];
    assert_eq!(end(&world.client), ended);
    let done = world.sent.wait(PATIENCE).expect("it completes").result;
    assert_eq!((done.wr_id, done.status), (WrId(7), Status::Flushed));
    // It was asked.
    let mut asked = Vec::new();
    std::io::Read::read_to_end(&mut socket, &mut asked).unwrap();
    assert!(!asked.is_empty());
}
