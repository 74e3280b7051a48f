//! The load generator: one-sided operations on a region of a target, many connections, one thread.
//!
//! A write is counted when the READ of no bytes behind it has completed, that is when it is visible to every reader,
//! and durable when it went through the sync STag (DESIGN §3): the completion of the WRITE alone says nothing.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use softrdma::{
    Buffer, Completion, CompletionOpcode, Config, Connection, Event, LocalSlice, NoPages,
    Operation, RecvBuffer, RegionTable, RemoteAddr, Source, Stag, TaggedOffset, Time, WorkRequest,
    WrId,
};

use super::cpu;
use super::figures::{Figures, Latencies, latencies};
use super::shape::{Direction, Offsets, PAYLOAD, Shape};
use crate::client::ClientTls;
use crate::control::{FLAG_WRITE, MESSAGE_BYTES_MAX, Op, Reply, Request};
use crate::reactor::{LinkTag, Net, Notice, Ring, Tag};

/// Time before measuring starts.
const WARM: Duration = Duration::from_millis(300);
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whom to load.
#[derive(Clone, Debug)]
pub struct Victim {
    /// Address of the target.
    pub address: SocketAddr,
    /// File.
    pub path: String,
    /// Process, if we started it.
    pub pid: Option<u32>,
    /// How to connect by TLS, if so.
    pub tls: Option<ClientTls>,
    /// Ask for CRCs.
    pub crc: bool,
    /// Token to present on each connection; empty: none.
    pub token: Vec<u8>,
}

impl Victim {
    /// The region that a load goes to, by the answer to its opening; an error if it is not what was asked for.
    pub(super) fn region(&self, reply: &Reply, shape: &Shape) -> Result<RemoteAddr> {
        if reply.status != 0 {
            bail!("{}", reply.message);
        }
        if reply.length < shape.file_bytes {
            bail!(
                "{} has {} bytes, {} are needed (--file-size)",
                self.path,
                reply.length,
                shape.file_bytes
            );
        }
        if shape.sync && reply.stag_sync == 0 {
            bail!(
                "--sync: nothing makes what is written to {} durable",
                self.path
            );
        }
        let stag = match shape.sync {
            true => reply.stag_sync,
            false => reply.stag,
        };
        Ok(RemoteAddr {
            stag: Stag(stag),
            to: TaggedOffset(reply.to),
        })
    }
}

/// Memory of a client for operations of `shape`. All that a connection has in flight use the same bytes, as those of
/// perftest do, and the clients that this one is compared with: what is measured is the target, not the client's memory.
pub(super) fn buffer(shape: &Shape) -> Arc<Buffer> {
    match shape.direction {
        Direction::Read => Buffer::zeroed(shape.size),
        Direction::Write => Buffer::from_bytes(&vec![PAYLOAD; shape.size]),
    }
}

/// What happens on one connection.
struct Client {
    region: Option<RemoteAddr>,
    buffer: Arc<Buffer>,
    offsets: Offsets,
    started: Vec<Instant>,
}

struct Load<'a> {
    shape: &'a Shape,
    victim: &'a Victim,
    clients: HashMap<LinkTag, Client>,
    latencies: Latencies,
    failure: Option<anyhow::Error>,
    running: usize,
}

/// Runs `shape` against `victim`.
pub fn run(victim: &Victim, shape: &Shape) -> Result<Figures> {
    let epoch = Instant::now();
    let clock = || Time(epoch.elapsed().as_nanos() as u64);
    let table = RegionTable::new(rand::random());
    let mut net: Net<NoPages> = Net::new(Ring::new(1024, 256, 64 * 1024)?);
    let mut load = Load {
        shape,
        victim,
        clients: HashMap::new(),
        latencies: latencies(),
        failure: None,
        running: 0,
    };
    for n in 0..shape.connections + shape.idle {
        let depth = if n < shape.connections {
            shape.depth
        } else {
            0
        };
        let stream = TcpStream::connect(victim.address)
            .with_context(|| format!("cannot connect to {}", victim.address))?;
        stream.set_nodelay(true)?;
        let shake = |tls: &ClientTls| tls.connect(&stream, victim.address, PATIENCE).map(Box::new);
        let records = victim.tls.as_ref().map(shake).transpose()?;
        let config = Config {
            crc: victim.crc,
            ord_max: (shape.depth as u16).max(1),
            // A write takes two requests: itself, and the READ behind it.
            send_queue_max: 2 * shape.depth,
            ..Config::default()
        };
        let tag = net
            .add_over(stream.into(), records, |_| {
                Connection::initiator(config, &table, &victim.token, Time(0))
                    .expect("no token is too long for private data")
            })
            .ok_or_else(|| anyhow!("too many connections"))?;
        let client = Client {
            region: None,
            buffer: buffer(shape),
            offsets: Offsets::new(shape, n as u64),
            started: vec![Instant::now(); depth],
        };
        load.clients.insert(tag, client);
    }
    let mut measured: Option<(Instant, Duration, Option<Duration>, u64)> = None;
    let mut all_running: Option<Instant> = None;
    let mut last_news = Instant::now();
    let mut spin = shape.spin();
    loop {
        let now = clock();
        net.pump(now, &mut NoPages, |tag, connection, notice| {
            load.notice(tag, connection, notice);
        });
        if let Some(failure) = load.failure.take() {
            return Err(failure);
        }
        let at = Instant::now();
        match (measured, all_running) {
            (None, None) if load.running == load.clients.len() => all_running = Some(at),
            (None, Some(since)) if at - since > WARM => {
                load.latencies.reset();
                measured = Some((
                    at,
                    cpu::used(None).unwrap_or_default(),
                    victim.pid.and_then(|pid| cpu::used(Some(pid))),
                    net.ring.system_calls(),
                ));
            }
            (Some((start, client, server, calls)), _) if at - start >= shape.duration() => {
                return Ok(Figures::new(
                    load.latencies,
                    shape.size,
                    at - start,
                    cpu::used(None).unwrap_or_default() - client,
                    server.and_then(|used| Some(cpu::used(victim.pid)? - used)),
                )
                .with_calls(net.ring.system_calls() - calls));
            }
            _ => {}
        }
        match shape.poll {
            true => net.ring.turn()?,
            false => net.ring.rest(Some(PATIENCE), &mut spin)?,
        }
        let mut any = false;
        let now = clock();
        while let Some(done) = net.ring.next_done() {
            any = true;
            if let Tag::Recv(_) = done.tag {
                spin.news(Instant::now());
            }
            if matches!(done.tag, Tag::Recv(_) | Tag::Send(_)) {
                net.handle(now, &mut NoPages, done);
            }
        }
        if any {
            last_news = at;
        } else if last_news.elapsed() > PATIENCE {
            // Not before: signals end a wait early, too.
            return Err(io::Error::from(io::ErrorKind::TimedOut)).context("the target is silent");
        }
    }
}

impl Load<'_> {
    fn notice(&mut self, tag: LinkTag, connection: &mut Connection<NoPages>, notice: Notice) {
        let result = match notice {
            Notice::Event(Event::Established(_)) => self.open(connection),
            Notice::Event(Event::Closed(reason)) => Err(anyhow!("a connection ended: {reason}")),
            Notice::Event(_) => Ok(()),
            Notice::Tls(error) => Err(error.into()),
            Notice::Completion(done) => self.completed(tag, connection, done),
        };
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
    }

    fn open(&self, connection: &mut Connection<NoPages>) -> Result<()> {
        connection.post_recv(WrId(0), RecvBuffer::Vec(MESSAGE_BYTES_MAX))?;
        let mut request = Request::new(Op::Open, self.victim.path.as_str());
        if self.shape.direction == Direction::Write {
            request.flags = FLAG_WRITE;
        }
        let send = Operation::Send {
            source: Source::Bytes(request.emit()),
            solicited: false,
            invalidate: None,
        };
        connection.post_send(WorkRequest {
            signaled: false,
            ..WorkRequest::new(WrId(0), send)
        })?;
        Ok(())
    }

    fn completed(
        &mut self,
        tag: LinkTag,
        connection: &mut Connection<NoPages>,
        done: Completion,
    ) -> Result<()> {
        // A failed request is followed by the end of the connection, which says why.
        if !done.status.is_success() {
            return Ok(());
        }
        let client = self
            .clients
            .get_mut(&tag)
            .context("a completion of no client")?;
        if done.opcode == CompletionOpcode::Recv {
            let reply = Reply::parse(&done.message.unwrap_or_default())?;
            client.region = Some(self.victim.region(&reply, self.shape)?);
            self.running += 1;
            for slot in 0..client.started.len() {
                client.post(self.shape, connection, slot, Instant::now())?;
            }
            return Ok(());
        }
        let slot = done.wr_id.0 as usize;
        let now = Instant::now();
        let elapsed = now - client.started[slot];
        self.latencies.saturating_record(elapsed.as_nanos() as u64);
        client.post(self.shape, connection, slot, now)
    }
}

impl Client {
    fn post(
        &mut self,
        shape: &Shape,
        connection: &mut Connection<NoPages>,
        slot: usize,
        now: Instant,
    ) -> Result<()> {
        let region = self.region.context("no region yet")?;
        let remote = RemoteAddr {
            to: TaggedOffset(region.to.0.saturating_add(self.offsets.draw())),
            ..region
        };
        self.started[slot] = now;
        let mut sink = LocalSlice::whole(&self.buffer);
        if shape.direction == Direction::Write {
            let write = Operation::Write {
                source: Source::Local(sink.clone()),
                remote,
            };
            connection.post_send(WorkRequest {
                signaled: false,
                ..WorkRequest::new(WrId(slot as u64), write)
            })?;
            sink.len = 0;
        }
        connection.post_send(WorkRequest::new(
            WrId(slot as u64),
            Operation::Read { sink, remote },
        ))?;
        Ok(())
    }
}
