//! Many peers at once, some of which do not read what they asked for (I16).

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use crate::common::fault_disk::FaultDisk;
use crate::common::{Image, Target, can_mount, can_serve, good, pattern};
use socket2::{Domain, Socket, Type};
use softrdma::driver::tcp::{ClientError, TcpClient};
use softrdma::{
    Buffer, Config, LocalSlice, Operation, RegionTable, RemoteAddr, Stag, TaggedOffset,
    WorkRequest, WrId,
};
use tools::client::{Session, SessionOptions};
use tools::control::{
    FLAG_CREATE, FLAG_TRUNCATE, FLAG_WRITE, MESSAGE_BYTES_MAX, OUTSTANDING_MAX, Op, Reply, Request,
};

const FILE_BYTES: usize = 16 << 20;
/// What a peer asks for and does not read: far more than sockets hold.
const ASKED: usize = 4 << 20;
/// Each asks for another part, lest they share pages.
const PART: usize = 48 << 10;
/// The pool has 1,024 pages, a quarter of them for the first page of each connection.
const POOL: &str = "4MiB";
const CONNECTIONS_MAX: usize = 256;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection with the file open, and as little memory for what arrives as the system allows.
fn slow(target: &Target, sink: &Arc<Buffer>, n: usize) -> TcpClient {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&target.address.into()).unwrap();
    let table = RegionTable::new([7; 32]);
    let stream = TcpStream::from(socket);
    let mut client = TcpClient::start(stream, Config::default(), &table, b"", PATIENCE).unwrap();
    let request = Request::new(Op::Open, "/f");
    client.send(&request.emit(), None).unwrap();
    let reply = Reply::parse(&client.recv(MESSAGE_BYTES_MAX).unwrap()).unwrap();
    assert_eq!(reply.status, 0, "{}", reply.message);
    let remote = RemoteAddr {
        stag: Stag(reply.stag),
        to: TaggedOffset(reply.to + (n * PART) as u64),
    };
    let read = Operation::Read {
        sink: LocalSlice::new(sink, 0, ASKED),
        remote,
    };
    let posted = client
        .connection()
        .post_send(WorkRequest::new(WrId(1), read));
    posted.unwrap();
    assert!(client.poll().unwrap().is_none());
    client
}

/// I16: as many peers as a target takes ask for far more than it has memory, and read none of it. Another one reads and writes
/// a file larger than the pool as if they were not there; one too many is turned away.
#[test]
fn those_who_do_not_read_hold_up_nobody() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&["--pool", POOL]);
    let content = pattern(FILE_BYTES, 5);
    let mut session = target.session();
    let file = session
        .open(Request {
            flags: FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE,
            length: FILE_BYTES as u64,
            ..Request::new(Op::Open, "/f")
        })
        .unwrap();
    let write = |session: &mut Session| {
        session.write(&file, 0, FILE_BYTES as u64, true, |at, bytes| {
            bytes.copy_from_slice(&content[at as usize..][..bytes.len()]);
            Ok(())
        })
    };
    write(&mut session).unwrap();
    let sink = Buffer::zeroed(ASKED);
    // The session is one of them.
    let slow: Vec<TcpClient> = (1..CONNECTIONS_MAX)
        .map(|n| slow(&target, &sink, n))
        .collect();
    let mut seen = 0;
    session
        .read(&file, 0, FILE_BYTES as u64, |at, bytes| {
            assert!(bytes == &content[at as usize..][..bytes.len()]);
            seen += bytes.len();
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, FILE_BYTES);
    write(&mut session).unwrap();
    assert!(Session::connect(target.address, SessionOptions::default()).is_err());
    // Who reads at last gets what it asked for.
    let mut client = slow.into_iter().next().unwrap();
    assert!(client.wait().unwrap().status.is_success());
    assert!(sink.to_vec(0, ASKED) == content[PART..][..ASKED]);
    client.disconnect().unwrap();
    session.close();
    assert!(target.stop().success());
}

/// Bytes of memory of its own that a process has.
fn memory_of(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: usize = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib << 10
}

/// As many requests as may be outstanding, each as long as can be, whose answers nobody waits for.
fn ask_and_go(target: &Target, table: &Arc<RegionTable>) -> Result<(), ClientError> {
    let stream = TcpStream::connect(target.address)?;
    let mut client = TcpClient::start(stream, Config::default(), table, b"", PATIENCE)?;
    let request = Request::new(Op::Stat, "/long".repeat(800)).emit();
    for _ in 0..OUTSTANDING_MAX {
        client.send(&request, None)?;
    }
    client.disconnect()
}

/// I16: while a request takes long, peers come, ask for something else, and go, again and again. They do not fill the memory of the
/// target with what they have asked for: some are turned away. Afterwards everybody is let in.
#[test]
fn requests_of_those_who_have_gone_are_bounded() {
    const PEERS: usize = 2000;
    const GROWTH_MAX: usize = 96 << 20;
    if !can_serve() || !can_mount() {
        return;
    }
    let disk = FaultDisk::new(64 << 20, 1).unwrap();
    good(&["mkfs", disk.path().to_str().unwrap()]);
    let target = Target::start_on(&[disk.path()], &["--reactors", "1"]);
    let table = RegionTable::new([7; 32]);
    let before = memory_of(target.pid());
    // One for each thread that answers requests.
    let mut busy: Vec<TcpClient> = (0..4)
        .map(|_| {
            let stream = TcpStream::connect(target.address).unwrap();
            TcpClient::start(stream, Config::default(), &table, b"", PATIENCE).unwrap()
        })
        .collect();
    disk.hold(true);
    for (n, client) in busy.iter_mut().enumerate() {
        let request = Request {
            flags: FLAG_CREATE,
            ..Request::new(Op::Open, format!("/{n}"))
        };
        client.send(&request.emit(), None).unwrap();
    }
    let came = (0..PEERS).filter(|_| ask_and_go(&target, &table).is_ok());
    let came = came.count();
    let grown = memory_of(target.pid()).saturating_sub(before);
    disk.hold(false);
    assert!(grown < GROWTH_MAX, "{grown} bytes more for {came} peers");
    assert!(came < PEERS, "nobody was turned away");
    for client in &mut busy {
        let reply = Reply::parse(&client.recv(MESSAGE_BYTES_MAX).unwrap()).unwrap();
        assert_eq!(reply.status, 0, "{}", reply.message);
    }
    let begun = std::time::Instant::now();
    while ask_and_go(&target, &table).is_err() {
        assert!(begun.elapsed() < PATIENCE, "nobody is let in");
    }
    drop(busy);
    assert!(target.stop().success());
}
