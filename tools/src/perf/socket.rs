//! FlashNet's own comparison: a thread per connection, blocking sockets, `pread` and `pwrite` on a file of the ordinary
//! file system.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use memmap2::MmapMut;

use super::cpu;
use super::figures::{Figures, Latencies, latencies};
use super::shape::{Direction, Offsets, Shape};

/// Request: direction (1), sync (1), zeros (2), length (4), offset (8); payload of a write behind it.
const REQUEST_BYTES: usize = 16;
const SIZE_MAX: usize = 16 << 20;

/// How the server opens the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        std::thread::spawn(move || serve_connection(stream, &file));
    }
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
    let clients = shape.connections * shape.depth;
    let barrier = Arc::new(Barrier::new(clients + 1));
    let measuring = Arc::new(AtomicBool::new(false));
    let ending = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..clients)
        .map(|n| {
            let (barrier, measuring, ending) = (
                Arc::clone(&barrier),
                Arc::clone(&measuring),
                Arc::clone(&ending),
            );
            let shape = *shape;
            std::thread::spawn(move || {
                let stream = TcpStream::connect(server);
                barrier.wait();
                run_connection(stream?, &shape, n as u64, &measuring, &ending)
            })
        })
        .collect();
    barrier.wait();
    std::thread::sleep(Duration::from_millis(200));
    let client_before = cpu::used(None).unwrap_or_default();
    let server_before = server_pid.and_then(|pid| cpu::used(Some(pid)));
    let start = Instant::now();
    measuring.store(true, Ordering::Relaxed);
    std::thread::sleep(shape.duration());
    ending.store(true, Ordering::Relaxed);
    let elapsed = start.elapsed();
    let client = cpu::used(None).unwrap_or_default() - client_before;
    let server = server_before.and_then(|before| Some(cpu::used(server_pid)? - before));
    let mut all = latencies();
    for thread in threads {
        let one = thread.join().expect("client threads do not panic")?;
        all.add(one).expect("histograms have the same bounds");
    }
    Ok(Figures::new(all, shape.size, elapsed, client, server))
}

fn run_connection(
    mut stream: TcpStream,
    shape: &Shape,
    seed: u64,
    measuring: &AtomicBool,
    ending: &AtomicBool,
) -> io::Result<Latencies> {
    stream.set_nodelay(true)?;
    let mut histogram = latencies();
    let mut offsets = Offsets::new(shape, seed);
    let mut message = vec![0; REQUEST_BYTES];
    let mut answer = vec![0; 1];
    match shape.direction {
        Direction::Read => answer.resize(shape.size, 0),
        Direction::Write => message.resize(REQUEST_BYTES + shape.size, 0x5a),
    }
    message[0] = u8::from(shape.direction == Direction::Write);
    message[1] = u8::from(shape.sync);
    message[4..8].copy_from_slice(&(shape.size as u32).to_be_bytes());
    while !ending.load(Ordering::Relaxed) {
        message[8..16].copy_from_slice(&offsets.draw().to_be_bytes());
        let measured = measuring.load(Ordering::Relaxed);
        let start = Instant::now();
        stream.write_all(&message)?;
        stream.read_exact(&mut answer)?;
        if measured && !ending.load(Ordering::Relaxed) {
            histogram.saturating_record(start.elapsed().as_nanos() as u64);
        }
    }
    Ok(histogram)
}
