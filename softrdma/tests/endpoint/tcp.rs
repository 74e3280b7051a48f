//! The blocking client over real sockets, against a small responder in a thread.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::{Residency, TestPages, pattern, raw, table};
use softrdma::config::Revision;
use softrdma::driver::tcp::{ClientError, TcpClient};
use softrdma::wire::rdmap::Opcode;
use softrdma::wire::terminate::TerminateCode;
use softrdma::{
    Atomic, BackingId, Buffer, CloseReason, Config, Connection, Event, LocalSlice, MemoryRegion,
    Operation, Placement, ProtectionDomain, RecvBuffer, RegionSpec, RegionTable, RemoteAddr,
    Rights, SocketState, Source, Stag, Status, TaggedOffset, Time, WorkRequest, WrId,
};

const TIMEOUT: Duration = Duration::from_secs(60);

fn private() -> Config {
    Config {
        private_profile: true,
        ..Config::default()
    }
}

/// Serves one connection: accepts it (or not), echoes messages, makes everything durable at once. Returns how it ended.
fn serve(mut socket: TcpStream, table: &Arc<RegionTable>, accept: bool) -> CloseReason {
    socket.set_nodelay(true).unwrap();
    let mut pages = TestPages::new(Residency::Sometimes, 3);
    let mut connection = Connection::<TestPages>::responder(private(), table, Time(0));
    let started = Instant::now();
    let mut input = vec![0; 1 << 16];
    let mut ended = None;
    let mut shut = false;
    for id in 0..16 {
        connection
            .post_recv(WrId(id), RecvBuffer::Vec(1 << 20))
            .unwrap();
    }
    loop {
        let now = Time(0) + started.elapsed();
        while let Some((ticket, page)) = pages.finish_one() {
            connection.handle_page(&mut pages, ticket, Ok(page));
        }
        while let Some((_, ticket)) = pages.syncs.pop() {
            connection.handle_durable(&mut pages, ticket, Ok(()));
        }
        while let Some(event) = connection.poll_event() {
            match event {
                Event::ConnectRequest(_) if accept => connection.accept(b"welcome").unwrap(),
                Event::ConnectRequest(_) => connection.reject(b"go away").unwrap(),
                Event::Closed(reason) => ended = Some(reason),
                _ => {}
            }
        }
        while let Some(completion) = connection.poll_completion() {
            if let Some(message) = completion.message {
                connection
                    .post_recv(completion.wr_id, RecvBuffer::Vec(1 << 20))
                    .unwrap();
                let op = softrdma::Operation::Send {
                    source: Source::Bytes(message),
                    solicited: false,
                    invalidate: None,
                };
                connection
                    .post_send(WorkRequest {
                        signaled: false,
                        ..WorkRequest::new(WrId(99), op)
                    })
                    .unwrap();
            }
        }
        let mut out = Vec::new();
        if connection.poll_transmit(now, &mut pages, &mut out, 1 << 16) > 0 {
            if socket.write_all(&out).is_err() {
                connection.handle_transport_error();
            }
            continue;
        }
        match connection.socket_state() {
            SocketState::Open => {}
            SocketState::ShutdownWrite if shut => {}
            SocketState::ShutdownWrite => {
                shut = true;
                let _ = socket.shutdown(Shutdown::Write);
                continue;
            }
            SocketState::Close => match ended.take() {
                Some(reason) => return reason,
                None => continue,
            },
        }
        if !pages.waiting.is_empty() || !pages.syncs.is_empty() {
            continue;
        }
        match socket.read(&mut input) {
            Ok(0) => connection.handle_eof(now),
            Ok(count) => {
                let mut rest = &input[..count];
                while !rest.is_empty() {
                    let taken = connection.handle_bytes(now, &mut pages, rest);
                    rest = &rest[taken..];
                    while let Some((ticket, page)) = pages.finish_one() {
                        connection.handle_page(&mut pages, ticket, Ok(page));
                    }
                }
            }
            Err(_) => connection.handle_transport_error(),
        }
    }
}

struct Served {
    address: String,
    region: MemoryRegion,
    server: JoinHandle<CloseReason>,
}

fn start(accept: bool) -> Served {
    let table = table(2);
    let spec = RegionSpec::pages(ProtectionDomain(0), Rights::all(), BackingId(1), 0, 1 << 24);
    let region = table.register(spec).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || serve(listener.accept().unwrap().0, &table, accept));
    Served {
        address,
        region,
        server,
    }
}

fn connect(address: &str) -> Result<TcpClient, ClientError> {
    TcpClient::connect(address, Config::default(), &table(1), b"hello", TIMEOUT)
}

/// Atomic operations, FLUSH and VERIFY over a real socket, with pages that come late, and many at once.
#[test]
fn answered_operations() {
    let served = start(true);
    let client = TcpClient::connect(&served.address, private(), &table(1), b"", TIMEOUT);
    let mut client = client.unwrap();
    assert!(client.established().private_profile);
    let remote = served.region.remote(1 << 20);
    let add = Atomic::FetchAdd { add: 2, mask: 0 };
    for round in 0..50 {
        assert_eq!(client.atomic(remote, add).unwrap(), 2 * round);
    }
    client.flush(remote, 8, Placement::Persistent).unwrap();
    for id in 0..60 {
        let op = match id % 3 {
            0 => Operation::fetch_add(served.region.remote_sync(1 << 20).unwrap(), 1),
            // Of bytes that nobody changes meanwhile: a VERIFY may see what comes behind it.
            1 => Operation::Verify {
                remote: served.region.remote(2 << 20),
                len: 10_000,
            },
            _ => Operation::AtomicWrite {
                remote: served.region.remote(8),
                value: id,
            },
        };
        let request = WorkRequest::new(WrId(id), op);
        client.connection().post_send(request).unwrap();
    }
    for id in 0..60 {
        let done = client.wait().unwrap();
        assert_eq!((done.wr_id, done.status), (WrId(id), Status::Success));
        match id % 3 {
            0 => assert_eq!(done.original, 100 + id / 3),
            1 => assert_eq!(done.original, u64::from(crc32c::crc32c(&[0; 10_000]))),
            _ => assert_eq!(done.original, 0),
        }
    }
    client.disconnect().unwrap();
    assert_eq!(served.server.join().unwrap(), CloseReason::Graceful);
}

/// WRITE, READ, SEND and orderly end over a real socket, with transfers larger than its buffers.
#[test]
fn end_to_end() {
    let served = start(true);
    let mut client = connect(&served.address).unwrap();
    assert_eq!(client.established().private_data, b"welcome");
    let data = pattern(1, 5_000_000);
    client
        .write(&data, served.region.remote_sync(1000).unwrap())
        .unwrap();
    let nothing = Buffer::zeroed(0);
    client
        .read(LocalSlice::whole(&nothing), served.region.remote(0))
        .unwrap();
    let sink = Buffer::zeroed(data.len());
    client
        .read(LocalSlice::whole(&sink), served.region.remote(1000))
        .unwrap();
    assert!(sink.to_vec(0, data.len()) == data);
    client.send(&data[..300_000], None).unwrap();
    assert!(client.recv(1 << 20).unwrap() == data[..300_000]);

    // Many at once, without blocking calls.
    for id in 0..64 {
        let sink = LocalSlice::new(&sink, id * 4096, 4096);
        let remote = served.region.remote(1000 + 7 * id as u64);
        let op = softrdma::Operation::Read { sink, remote };
        client
            .connection()
            .post_send(WorkRequest::new(WrId(id as u64), op))
            .unwrap();
    }
    let mut first = client.poll().unwrap();
    for id in 0..64 {
        let completion = match first.take() {
            Some(completion) => completion,
            None => client.wait().unwrap(),
        };
        assert_eq!(
            (completion.wr_id, completion.status),
            (WrId(id), Status::Success)
        );
        assert!(sink.to_vec(id as usize * 4096, 4096) == data[7 * id as usize..][..4096]);
    }
    client.disconnect().unwrap();
    assert_eq!(served.server.join().unwrap(), CloseReason::Graceful);
}

/// Who is in no hurry may wait for ever.
#[test]
fn calls_without_a_limit() {
    let served = start(true);
    let forever = Duration::MAX;
    let client = TcpClient::connect(&served.address, private(), &table(1), b"", forever);
    let mut client = client.unwrap();
    let remote = served.region.remote(0);
    client.write(&[1; 100], remote).unwrap();
    client.flush(remote, 100, Placement::Persistent).unwrap();
    client.disconnect().unwrap();
    assert_eq!(served.server.join().unwrap(), CloseReason::Graceful);
}

/// Each way to fail has its own word.
#[test]
fn errors_are_told_apart() {
    assert!(matches!(
        connect("no-such-host.invalid:1"),
        Err(ClientError::UnknownHost { .. })
    ));
    assert!(matches!(
        connect("no port"),
        Err(ClientError::UnknownHost { .. })
    ));
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    assert!(matches!(connect(&closed), Err(ClientError::Connect { .. })));

    let served = start(false);
    let refused = connect(&served.address).unwrap_err();
    assert!(
        matches!(refused, ClientError::Closed(CloseReason::Rejected(data)) if data == b"go away")
    );
    assert_eq!(served.server.join().unwrap(), CloseReason::RejectedByUs);

    // A peer that speaks something else, and one that says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let other = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket
            .write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n")
            .unwrap();
        listener.accept().unwrap()
    });
    assert!(matches!(
        connect(&address),
        Err(ClientError::Closed(CloseReason::Setup(_)))
    ));
    let short = Duration::from_millis(50);
    let silent = TcpClient::connect(&address, Config::default(), &table(1), b"", short);
    assert!(matches!(silent, Err(ClientError::TimedOut(_))));
    drop(other.join().unwrap());
}

/// A violation comes back as what the peer said, and later calls say so too.
#[test]
fn terminated_by_the_peer() {
    let served = start(true);
    let mut client = connect(&served.address).unwrap();
    let sink = Buffer::zeroed(8);
    let wrong = RemoteAddr {
        stag: Stag(served.region.stag.0 ^ 1),
        ..served.region.remote(0)
    };
    let error = client.read(LocalSlice::whole(&sink), wrong).unwrap_err();
    assert!(
        matches!(error, ClientError::Failed(Status::RemoteAccess)),
        "{error}"
    );
    let error = client.recv(10).unwrap_err();
    assert!(matches!(error, ClientError::Post(_)), "{error}");
    let Err(ClientError::Closed(CloseReason::TerminateReceived(terminate))) = client.wait() else {
        panic!("ended")
    };
    assert_eq!(terminate.code(), Some(TerminateCode::ProtectionInvalidStag));
    drop(client);
    let reason = CloseReason::TerminateSent(TerminateCode::ProtectionInvalidStag);
    assert_eq!(served.server.join().unwrap(), reason);
}

/// What a peer said last is heard although it has reset the connection meanwhile, over bytes that it did not want: it is what
/// explains the end.
#[test]
fn last_words_in_front_of_a_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let peer = std::thread::spawn(move || {
        let mut socket = listener.accept().unwrap().0;
        let mut request = [0; 20];
        socket.read_exact(&mut request).unwrap();
        let (head, end) = (b"MPA ID Rep Frame", [0x00, 1, 0, 0]);
        socket.write_all(&[&head[..], &end].concat()).unwrap();
        // By the zero-length WRITE or the beginning of the other, whose rest nobody reads.
        socket.read_exact(&mut request).unwrap();
        let terminate = raw::untagged(Opcode::Terminate, 1, 0, Stag(0), &[0x11, 0, 0, 0], true);
        socket.write_all(&terminate).unwrap();
    });
    let config = Config {
        revision: Revision::One,
        hello: false,
        crc: false,
        ..Config::default()
    };
    let mut client = TcpClient::connect(&address, config, &table(1), b"", TIMEOUT).unwrap();
    let remote = RemoteAddr {
        stag: Stag(0x100),
        to: TaggedOffset(0),
    };
    let ended = loop {
        match client.write(&vec![1; 16 << 20], remote) {
            Ok(()) => {}
            Err(ClientError::Post(_)) => break client.wait().unwrap_err(),
            Err(error) => break error,
        }
    };
    peer.join().unwrap();
    let ClientError::Closed(CloseReason::TerminateReceived(terminate)) = ended else {
        panic!("{ended}")
    };
    assert_eq!(terminate.code(), Some(TerminateCode::TaggedInvalidStag));
}
