//! FlashNet's own comparison: a thread per connection, blocking sockets, `pread` and `pwrite` on a file of the ordinary
//! file system.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use serde::Serialize;

use super::cpu;
use super::figures::{Figures, Latencies, latencies};
use super::shape::{Direction, Offsets, PAYLOAD, Shape};

/// Request: direction (1), sync (1), zeros (2), length (4), offset (8); payload of a write behind it.
const REQUEST_BYTES: usize = 16;
const SIZE_MAX: usize = 16 << 20;
/// Time before measuring starts.
const WARM: Duration = Duration::from_millis(200);
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How the server opens the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Through the page cache.
    Buffered,
    /// Past it (`O_DIRECT`): the medium is asked every time.
    Direct,
}

/// Serves `path` until the process is killed.
pub fn serve(listener: &TcpListener, path: &Path, cache: Cache) -> io::Result<()> {
    let flags = match cache {
        Cache::Buffered => 0,
        Cache::Direct => libc::O_DIRECT,
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)?;
    let file = Arc::new(file);
    loop {
        let (stream, _) = listener.accept()?;
        let file = Arc::clone(&file);
        // The connection's end, or a request that makes no sense, ends its thread and nothing else.
        std::thread::Builder::new().spawn(move || {
            if let Err(error) = serve_connection(stream, &file)
                && !is_end(&error)
            {
                eprintln!("flashnet perf-server: {error}");
            }
        })?;
    }
}

/// Whether a client has gone, which needs no words.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn serve_connection(mut stream: TcpStream, file: &File) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // A mapping is page aligned, as O_DIRECT wants it.
    let mut buffer = MmapMut::map_anon(SIZE_MAX)?;
    let mut request = [0; REQUEST_BYTES];
    loop {
        stream.read_exact(&mut request)?;
        let length = u32::from_be_bytes(request[4..8].try_into().expect("four bytes")) as usize;
        let offset = u64::from_be_bytes(request[8..16].try_into().expect("eight bytes"));
        let data = buffer
            .get_mut(..length)
            .ok_or(io::ErrorKind::InvalidInput)?;
        if request[0] == 0 {
            file.read_exact_at(data, offset)?;
            stream.write_all(data)?;
        } else {
            stream.read_exact(data)?;
            file.write_all_at(data, offset)?;
            if request[1] != 0 {
                file.sync_data()?;
            }
            stream.write_all(&[0])?;
        }
    }
}

/// Runs `shape` with one blocking connection per operation in flight.
pub fn run(server: SocketAddr, shape: &Shape, server_pid: Option<u32>) -> io::Result<Figures> {
    let phase = Arc::new(Phase::default());
    let wait = |failures: &Receiver<io::Error>, time| match failures.recv_timeout(time) {
        Ok(error) => Err(error),
        Err(_) => Ok(()),
    };
    measure(server, shape, server_pid, &phase, wait)
}

/// The same with a clock: `wait` passes the time, or fails as soon as a client has.
fn measure(
    server: SocketAddr,
    shape: &Shape,
    server_pid: Option<u32>,
    phase: &Arc<Phase>,
    mut wait: impl FnMut(&Receiver<io::Error>, Duration) -> io::Result<()>,
) -> io::Result<Figures> {
    let clients = shape.connections * shape.depth;
    // Each of them has a part of the file of its own where connections have.
    let shape = Shape {
        connections: clients,
        depth: 1,
        ..*shape
    };
    let barrier = Arc::new(Barrier::new(clients + 1));
    let (failed, failures) = channel();
    let mut threads = Vec::new();
    for n in 0..clients {
        let (barrier, phase, failed) = (Arc::clone(&barrier), Arc::clone(phase), failed.clone());
        let client = move || {
            let stream = TcpStream::connect(server);
            barrier.wait();
            let result = stream.and_then(|s| run_connection(s, &shape, n as u64, &phase));
            result.map_err(|error| {
                // Nobody listens any more when another has failed before.
                let _ = failed.send(error);
            })
        };
        threads.push(std::thread::Builder::new().spawn(client)?);
    }
    barrier.wait();
    wait(&failures, WARM)?;
    let client_before = cpu::used(None).unwrap_or_default();
    let server_before = server_pid.and_then(|pid| cpu::used(Some(pid)));
    let start = Instant::now();
    phase.measuring.store(true, Ordering::Relaxed);
    wait(&failures, shape.duration())?;
    phase.ending.store(true, Ordering::Relaxed);
    let elapsed = start.elapsed();
    let client = cpu::used(None).unwrap_or_default() - client_before;
    let server = server_before.and_then(|before| Some(cpu::used(server_pid)? - before));
    let mut all = latencies();
    for thread in threads {
        match thread.join().expect("client threads do not panic") {
            Ok(one) => all.add(one).expect("histograms have the same bounds"),
            Err(()) => return Err(failures.recv().expect("it was sent before the end")),
        }
    }
    Ok(Figures::new(all, shape.size, elapsed, client, server))
}

/// What the clients are doing.
#[derive(Debug, Default)]
struct Phase {
    measuring: AtomicBool,
    ending: AtomicBool,
}

fn run_connection(
    mut stream: TcpStream,
    shape: &Shape,
    seed: u64,
    phase: &Phase,
) -> io::Result<Latencies> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut histogram = latencies();
    let mut offsets = Offsets::new(shape, seed);
    let mut message = vec![0; REQUEST_BYTES];
    let mut answer = vec![0; 1];
    match shape.direction {
        Direction::Read => answer.resize(shape.size, 0),
        Direction::Write => message.resize(REQUEST_BYTES + shape.size, PAYLOAD),
    }
    message[0] = u8::from(shape.direction == Direction::Write);
    message[1] = u8::from(shape.sync);
    message[4..8].copy_from_slice(&(shape.size as u32).to_be_bytes());
    while !phase.ending.load(Ordering::Relaxed) {
        message[8..16].copy_from_slice(&offsets.draw().to_be_bytes());
        let start = Instant::now();
        let exchanged = stream
            .write_all(&message)
            .and_then(|()| stream.read_exact(&mut answer));
        exchanged.map_err(|error| match error.kind() {
            // What a timeout of a socket is called.
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })?;
        // What ends in the measured time counts, whenever it began, as it does for those compared with.
        if phase.measuring.load(Ordering::Relaxed) && !phase.ending.load(Ordering::Relaxed) {
            histogram.saturating_record(start.elapsed().as_nanos() as u64);
        }
    }
    Ok(histogram)
}

#[cfg(test)]
mod tests {
    use super::super::shape::Pattern;
    use super::*;

    fn shape(seconds: f64) -> Shape {
        Shape {
            direction: Direction::Read,
            size: 8,
            depth: 1,
            connections: 1,
            idle: 0,
            seconds,
            file_bytes: 64,
            sync: false,
            poll: false,
            spin_us: 0,
            pattern: Pattern::Random,
        }
    }

    /// An operation that began before measuring did and is over when it ends counts, as many of this side as of those
    /// compared with it, however long operations are; one that is not over does not.
    #[test]
    fn what_ends_in_time_counts() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let phase = Arc::new(Phase::default());
        let (asked, was_asked) = channel();
        let seen = Arc::clone(&phase);
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; REQUEST_BYTES];
            for until in [&seen.measuring, &seen.ending] {
                stream.read_exact(&mut request).unwrap();
                asked.send(()).unwrap();
                while !until.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                stream.write_all(&[0; 8]).unwrap();
            }
        });
        // Either time is over when the next request is under way.
        let wait = |_: &Receiver<io::Error>, _| was_asked.recv().map_err(io::Error::other);
        let figures = measure(address, &shape(1.0), None, &phase, wait).unwrap();
        assert_eq!(figures.operations, 1);
        server.join().unwrap();
    }

    /// A server that goes away is told of at once, not when the time is over.
    #[test]
    fn a_server_that_dies_ends_the_run() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || drop(listener.accept()));
        let error = run(address, &shape(86_400.0), None).unwrap_err();
        assert!(is_end(&error), "{error}");
        server.join().unwrap();
    }
}
