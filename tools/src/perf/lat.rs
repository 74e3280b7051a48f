//! One operation at a time on one connection, blocking: latency as a program sees it that waits for each answer.

use std::time::{Duration, Instant};

use anyhow::Result;
use softrdma::driver::tcp::TcpClient;
use softrdma::{
    Buffer, Config, LocalSlice, Operation, RegionTable, RemoteAddr, Source, TaggedOffset,
    WorkRequest, WrId,
};

use super::cpu;
use super::figures::{Figures, latencies};
use super::rdma::{Victim, buffer};
use super::shape::{Direction, Offsets, Shape};
use crate::control::{FLAG_WRITE, MESSAGE_BYTES_MAX, Op, Reply, Request};

/// Time before measuring starts.
const WARM: Duration = Duration::from_millis(300);
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `shape`, of which connections and depth are one, against `victim`.
pub fn run(victim: &Victim, shape: &Shape) -> Result<Figures> {
    let config = Config {
        crc: victim.crc,
        ..Config::default()
    };
    let table = RegionTable::new(rand::random());
    let host = victim.address.to_string();
    let mut client = TcpClient::connect(&host, config, &table, &victim.token, PATIENCE)?;
    let region = open(&mut client, victim, shape)?;
    client.set_polling(shape.poll)?;
    client.set_spin(shape.spin());
    let buffer = buffer(shape);
    let mut offsets = Offsets::new(shape, 0);
    let mut histogram = latencies();
    let begin = Instant::now();
    let mut measured: Option<(Instant, Duration, Option<Duration>)> = None;
    loop {
        let remote = RemoteAddr {
            to: TaggedOffset(region.to.0.saturating_add(offsets.draw())),
            ..region
        };
        let start = Instant::now();
        operate(&mut client, &buffer, remote, shape)?;
        let now = Instant::now();
        histogram.saturating_record((now - start).as_nanos() as u64);
        match measured {
            None if now - begin > WARM => {
                histogram.reset();
                measured = Some((
                    now,
                    cpu::used(None).unwrap_or_default(),
                    victim.pid.and_then(|pid| cpu::used(Some(pid))),
                ));
            }
            Some((start, used, server)) if now - start >= shape.duration() => {
                return Ok(Figures::new(
                    histogram,
                    shape.size,
                    now - start,
                    cpu::used(None).unwrap_or_default() - used,
                    server.and_then(|used| Some(cpu::used(victim.pid)? - used)),
                ));
            }
            _ => {}
        }
    }
}

fn open(client: &mut TcpClient, victim: &Victim, shape: &Shape) -> Result<RemoteAddr> {
    let mut request = Request::new(Op::Open, victim.path.as_str());
    if shape.direction == Direction::Write {
        request.flags = FLAG_WRITE;
    }
    client.send(&request.emit(), None)?;
    let reply = Reply::parse(&client.recv(MESSAGE_BYTES_MAX)?)?;
    victim.region(&reply, shape)
}

/// One READ; or one WRITE, visible to every reader (and durable, if through a sync STag) when it is over.
fn operate(
    client: &mut TcpClient,
    buffer: &std::sync::Arc<Buffer>,
    remote: RemoteAddr,
    shape: &Shape,
) -> Result<()> {
    let mut sink = LocalSlice::new(buffer, 0, shape.size);
    if shape.direction == Direction::Write {
        let source = Source::Local(sink.clone());
        client.connection().post_send(WorkRequest {
            signaled: false,
            ..WorkRequest::new(WrId(0), Operation::Write { source, remote })
        })?;
        sink.len = 0;
    }
    client.read(sink, remote)?;
    Ok(())
}
