//! Endpoints whose input is cut adversarially.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use softrdma::planted::Bug;
use softrdma::{
    BackingId, Buffer, Completion, Config, Connection, MemoryRegion, NoPages, PAGE_BYTES,
    PageStore, ProtectionDomain, RecvBuffer, RegionSpec, RegionTable, RemoteAddr, Rights, Stag,
    TaggedOffset, Time, WrId,
};

use crate::common::raw::{self, Sent};
use crate::common::{Residency, TestPages, completions, table};

/// A rule and its name.
pub type Rule = (&'static str, fn(&mut Ctx));

pub const OURS: ProtectionDomain = ProtectionDomain(1);
pub const FILE: BackingId = BackingId(1);
pub const PAGE: u64 = PAGE_BYTES as u64;
/// Where the READs of [`raw`] want their bytes.
pub const SINK: Stag = Stag(0x5151_5100);

/// Where deliveries are cut.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    /// As the rule delivers.
    Whole,
    /// Behind every byte.
    Bytes,
    /// Once, behind so many bytes of each stream.
    At(usize),
    /// Anywhere.
    Random(u64),
    /// Where a TCP socket cuts what was written to it in random pieces.
    Tcp(u64),
}

/// A TCP connection over the loopback device.
#[derive(Debug)]
struct Wire {
    peer: TcpStream,
    ours: TcpStream,
}

/// Bytes under way on a [`Wire`], which any socket holds, so that no write waits for a read.
const UNDER_WAY_MAX: usize = 4096;

impl Wire {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        peer.set_nodelay(true).unwrap();
        ours.set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        Self { peer, ours }
    }

    /// What the reads return. They begin and end elsewhere than the writes.
    fn carry(&mut self, bytes: &[u8], random: &mut StdRng) -> Vec<Vec<u8>> {
        let (mut rest, mut under_way) = (bytes, 0);
        let mut read = Vec::new();
        while !rest.is_empty() || under_way > 0 {
            let most = if random.random() { 8 } else { UNDER_WAY_MAX };
            let len = random.random_range(1..=most);
            let room = UNDER_WAY_MAX - under_way;
            if !rest.is_empty() && room > 0 && (under_way == 0 || random.random()) {
                let (now, later) = rest.split_at(len.min(room).min(rest.len()));
                self.peer.write_all(now).unwrap();
                rest = later;
                under_way += now.len();
            } else {
                let mut piece = vec![0; len];
                let count = self.ours.read(&mut piece).unwrap();
                piece.truncate(count);
                assert!(count > 0, "the peer does not close");
                under_way -= count;
                read.push(piece);
            }
        }
        read
    }
}

/// What a rule runs under.
#[derive(Debug)]
pub struct Ctx {
    cut: Cut,
    bug: Option<Bug>,
    /// Bytes of the stream of the endpoint made last.
    delivered: usize,
    /// Bytes of the longest stream.
    longest: usize,
    random: StdRng,
    wire: Option<Wire>,
}

impl Ctx {
    pub fn new(cut: Cut, bug: Option<Bug>) -> Self {
        let (seed, wire) = match cut {
            Cut::Random(seed) => (seed, None),
            Cut::Tcp(seed) => (seed, Some(Wire::new())),
            Cut::Whole | Cut::Bytes | Cut::At(_) => (0, None),
        };
        Self {
            cut,
            bug,
            delivered: 0,
            longest: 0,
            random: StdRng::seed_from_u64(seed),
            wire,
        }
    }

    /// Bytes of the longest stream.
    pub fn longest(&self) -> usize {
        self.longest
    }

    pub fn config(&self) -> Config {
        Config {
            protection_domain: OURS,
            planted: self.bug,
            ..Config::default()
        }
    }

    /// The pieces in which these bytes arrive.
    fn pieces(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        if let Some(wire) = &mut self.wire {
            return wire.carry(bytes, &mut self.random);
        }
        let mut rest = bytes;
        let lengths = self.lengths(bytes.len()).into_iter();
        lengths
            .map(|len| {
                let (now, later) = rest.split_at(len);
                rest = later;
                now.to_vec()
            })
            .collect()
    }

    /// Lengths of the pieces of the next `len` bytes.
    fn lengths(&mut self, len: usize) -> Vec<usize> {
        let start = self.delivered;
        self.delivered += len;
        self.longest = self.longest.max(self.delivered);
        match self.cut {
            Cut::Whole => vec![len],
            Cut::Bytes => vec![1; len],
            Cut::At(at) if at > start && at < start + len => vec![at - start, start + len - at],
            Cut::At(_) => vec![len],
            Cut::Tcp(_) => unreachable!("the socket cuts"),
            Cut::Random(_) => {
                let mut left = len;
                let mut pieces = Vec::new();
                while left > 0 {
                    let most = if self.random.random() { 8 } else { left };
                    let piece = self.random.random_range(1..=most.min(left));
                    pieces.push(piece);
                    left -= piece;
                }
                pieces
            }
        }
    }

    /// A responder in full operation, with a file and memory that the peer may do everything with.
    pub fn responder(&mut self, residency: Residency) -> Responder {
        let config = self.config();
        self.responder_with(residency, config)
    }

    pub fn responder_with(&mut self, residency: Residency, config: Config) -> Responder {
        self.delivered = 0;
        let table = table(9);
        let mut pages = TestPages::new(residency, 1);
        let rights = Rights::all() - Rights::WINDOW_BIND;
        let file = RegionSpec::pages(OURS, rights, FILE, 0, 64 * PAGE);
        let file = table.register(file).unwrap();
        let memory = Buffer::zeroed(PAGE_BYTES);
        let rights = Rights::all() - Rights::FLUSH_PERSISTENT;
        let dram = RegionSpec::memory(OURS, rights, &memory);
        let dram = table.register(dram).unwrap();
        let connection = raw::responder(config, &table, &mut pages);
        let mut responder = Responder {
            table,
            pages,
            connection,
            file,
            memory,
            dram,
            frames: Vec::new(),
        };
        // Before the first frame of the initiator a responder says nothing, not even a Terminate.
        responder.deliver(self, &raw::write(Stag(1), 0, &[], true));
        responder
    }

    /// A requester that awaits its Reply; its Request is dropped.
    pub fn asking(&mut self, config: Config) -> Requester {
        self.delivered = 0;
        let mut connection = Connection::initiator(config, &table(3), b"", Time(0)).unwrap();
        connection.poll_transmit(Time(0), &mut NoPages, &mut Vec::new(), usize::MAX);
        Requester {
            connection,
            frames: Vec::new(),
        }
    }

    /// A requester that a responder made of bytes has accepted.
    pub fn requester(&mut self, ord_max: u16, profile: bool) -> Requester {
        let config = Config {
            ord_max,
            hello: profile,
            private_profile: profile,
            peer_to_peer: false,
            ..self.config()
        };
        let mut requester = self.asking(config);
        let hello = if profile { raw::hello() } else { Vec::new() };
        let length = 4 + hello.len() as u8;
        let head = [
            b"MPA ID Rep Frame\x50\x02\x00",
            &[length][..],
            b"\x00\x40\x00\x40",
        ];
        requester.deliver(self, &[&head.concat()[..], &hello].concat());
        assert!(requester.connection.poll_event().is_some());
        requester
    }
}

fn deliver<S: PageStore>(
    ctx: &mut Ctx,
    connection: &mut Connection<S>,
    pages: &mut S,
    bytes: &[u8],
    frames: &mut Vec<Sent>,
) {
    for piece in ctx.pieces(bytes) {
        let taken = connection.handle_bytes(Time(0), pages, &piece);
        assert_eq!(taken, piece.len(), "the inbound buffer holds all of a rule");
        // Whatever may be sent is sent between any two pieces.
        let mut out = Vec::new();
        connection.poll_transmit(Time(0), pages, &mut out, usize::MAX);
        frames.extend(raw::frames(&out));
    }
}

/// A responder under test.
#[derive(Debug)]
pub struct Responder {
    pub table: Arc<RegionTable>,
    pub pages: TestPages,
    pub connection: Connection<TestPages>,
    pub file: MemoryRegion,
    pub memory: Arc<Buffer>,
    pub dram: MemoryRegion,
    frames: Vec<Sent>,
}

impl Responder {
    pub fn deliver(&mut self, ctx: &mut Ctx, bytes: &[u8]) {
        let Self {
            connection, pages, ..
        } = self;
        deliver(ctx, connection, pages, bytes, &mut self.frames);
    }

    /// What has been sent since this was last asked.
    pub fn sent(&mut self) -> Vec<Sent> {
        let Self {
            connection, pages, ..
        } = self;
        let more = raw::transmit(connection, pages);
        self.frames.extend(more);
        std::mem::take(&mut self.frames)
    }

    pub fn post_recvs(&mut self, count: u64) {
        for id in 0..count {
            let buffer = RecvBuffer::Vec(100);
            self.connection.post_recv(WrId(id), buffer).unwrap();
        }
    }

    pub fn completions(&mut self) -> Vec<Completion> {
        completions(&mut self.connection)
    }

    /// Hands in the waiting page with this number.
    pub fn page(&mut self, number: u64) {
        let mut waiting = self.pages.waiting.iter();
        let at = waiting.position(|waiting| waiting.page == number);
        let at = at.unwrap_or_else(|| panic!("page {number} is not waited for"));
        let one = self.pages.waiting.swap_remove(at);
        let others = std::mem::replace(&mut self.pages.waiting, vec![one]);
        let (ticket, page) = self.pages.finish_one().unwrap();
        self.pages.waiting = others;
        self.connection
            .handle_page(&mut self.pages, ticket, Ok(page));
    }

    /// Says that what was asked for first is durable.
    pub fn durable(&mut self) {
        assert!(!self.pages.syncs.is_empty(), "durability is asked for");
        let (_, ticket) = self.pages.syncs.remove(0);
        self.connection
            .handle_durable(&mut self.pages, ticket, Ok(()));
    }

    pub fn file_bytes(&mut self, offset: u64, len: usize) -> Vec<u8> {
        self.pages.content(FILE, offset, len)
    }

    pub fn sync(&self) -> Stag {
        self.file.sync_stag.unwrap()
    }
}

/// A requester under test.
#[derive(Debug)]
pub struct Requester {
    pub connection: Connection<NoPages>,
    frames: Vec<Sent>,
}

impl Requester {
    pub fn deliver(&mut self, ctx: &mut Ctx, bytes: &[u8]) {
        deliver(
            ctx,
            &mut self.connection,
            &mut NoPages,
            bytes,
            &mut self.frames,
        );
    }

    pub fn sent(&mut self) -> Vec<Sent> {
        let more = raw::transmit(&mut self.connection, &mut NoPages);
        self.frames.extend(more);
        std::mem::take(&mut self.frames)
    }
}

pub const REMOTE: RemoteAddr = RemoteAddr {
    stag: Stag(0x0900),
    to: TaggedOffset(64),
};
