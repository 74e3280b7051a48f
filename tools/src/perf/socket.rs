//! FlashNet's own comparison: a thread per connection, blocking sockets, `pread` and `pwrite` on a file of the ordinary
//! file system.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use memmap2::MmapMut;
use serde::Serialize;

use super::clients::{self, Client, Load, PATIENCE, Phase, timed_out};
use super::figures::{Figures, Latencies, latencies};
use super::shape::{Direction, Offsets, PAYLOAD, Shape};

/// Request: direction (1), sync (1), zeros (2), length (4), offset (8); payload of a write behind it.
const REQUEST_BYTES: usize = 16;
const SIZE_MAX: usize = 16 << 20;

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
    let load = load(shape, server_pid);
    clients::run(load, Asker::new(server, shape))
}

fn load(shape: &Shape, server_pid: Option<u32>) -> Load<'_> {
    Load {
        shape,
        clients: shape.connections * shape.depth,
        server_pid,
    }
}

/// A client that asks again when it has been answered.
struct Asker {
    server: SocketAddr,
    shape: Shape,
}

impl Asker {
    fn new(server: SocketAddr, shape: &Shape) -> Self {
        // Each of them has a part of the file of its own where connections have.
        let shape = Shape {
            connections: shape.connections * shape.depth,
            depth: 1,
            ..*shape
        };
        Self { server, shape }
    }
}

impl Client for Asker {
    type Link = TcpStream;

    fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.server)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    fn run(&self, mut stream: TcpStream, n: u64, phase: &Phase) -> io::Result<Latencies> {
        let shape = &self.shape;
        let mut histogram = latencies();
        let mut offsets = Offsets::new(shape, n);
        let mut message = vec![0; REQUEST_BYTES];
        let mut answer = vec![0; 1];
        match shape.direction {
            Direction::Read => answer.resize(shape.size, 0),
            Direction::Write => message.resize(REQUEST_BYTES + shape.size, PAYLOAD),
        }
        message[0] = u8::from(shape.direction == Direction::Write);
        message[1] = u8::from(shape.sync);
        message[4..8].copy_from_slice(&(shape.size as u32).to_be_bytes());
        while !phase.is_ending() {
            message[8..16].copy_from_slice(&offsets.draw().to_be_bytes());
            let start = Instant::now();
            stream
                .write_all(&message)
                .and_then(|()| stream.read_exact(&mut answer))
                .map_err(timed_out)?;
            if phase.counts() {
                histogram.saturating_record(start.elapsed().as_nanos() as u64);
            }
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::sync::mpsc::{Receiver, channel};

    use super::super::clients::measure;
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
            turn: 0,
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
        let shape = shape(1.0);
        let asker = Asker::new(address, &shape);
        let figures = measure(load(&shape, None), asker, &phase, wait).unwrap();
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
