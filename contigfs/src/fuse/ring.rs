//! Requests through io_uring (Linux 6.14, if the parameter `enable_uring` of the module `fuse` is set): each processor has
//! a queue, and who asks is served on the processor it runs on.
//!
//! Each thread has a ring of its own with one entry, which is at any time either with the kernel, waiting for a request,
//! or with the thread. The thread may go on without having answered; then the entry stays until another thread has
//! given the answer, and a further one takes its place with the kernel. So there is always one waiting, whatever answers
//! are still to come.
//!
//! What the kernel tells without wanting an answer (`FORGET`) still comes through `/dev/fuse`.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Builder, JoinHandle, ThreadId};

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use nix::sys::eventfd::EventFd;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::device::Device;
use super::message::Message;
use super::reply::{Outlet, Reply, header};
use super::session::{DATA_MAX, Serve};
use super::wire::{
    InHeader, OutHeader, RING_COMMIT_AND_FETCH, RING_REGISTER, RingCommand, RingHeaders, RingInOut,
};
use crate::span::Span;

/// Operations a ring has at once: entries, and the one that listens to other threads. Submitted one by one.
const OPERATIONS_MAX: u32 = 64;
/// Of the module: whether it offers rings.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
/// How many times more threads there may be in all than for `/dev/fuse`, unless that leaves fewer than `THREADS_MIN` for a
/// queue.
const MORE_THREADS: usize = 4;
const THREADS_MIN: usize = 2;
/// Marks the operation that listens.
const LISTEN: u64 = u64::MAX;

type Ring = IoUring<Entry128, cqueue::Entry>;

/// `struct io_uring_sqe` of 128 bytes for a command to `/dev/fuse`; the library does not set all fields of it.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct CommandSqe {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    command: u32,
    padding: u32,
    addr: u64,
    len: u32,
    command_flags: u32,
    user_data: u64,
    buffer: u16,
    personality: u16,
    file_index: u32,
    what: RingCommand,
    rest: [u8; 56],
}

/// A place for a request and its answer.
struct Entry {
    headers: Box<RingHeaders>,
    payload: Box<[u8]>,
    /// What the kernel is told of the two above.
    places: Box<[libc::iovec; 2]>,
}

impl Entry {
    fn new() -> Self {
        let headers = RingHeaders {
            in_out: [0; 128],
            operation: [0; 128],
            ring: RingInOut::default(),
        };
        let mut headers = Box::new(headers);
        let mut payload = vec![0; DATA_MAX as usize].into_boxed_slice();
        let places = Box::new([
            libc::iovec {
                iov_base: (&raw mut *headers).cast(),
                iov_len: size_of::<RingHeaders>(),
            },
            libc::iovec {
                iov_base: payload.as_mut_ptr().cast(),
                iov_len: payload.len(),
            },
        ]);
        Self {
            headers,
            payload,
            places,
        }
    }

    /// The request that the kernel has put there.
    fn message(&self) -> Message<'_> {
        let (header, _) = InHeader::read_from_prefix(&self.headers.in_out)
            .unwrap_or_else(|_| unreachable!("there is room for a header"));
        let len = (self.headers.ring.payload_size as usize).min(self.payload.len());
        Message::from_parts(header, &self.headers.operation, &self.payload[..len])
    }

    /// Puts an answer there.
    fn put(&mut self, answer: &Answer) {
        let whole = answer.bytes.len() <= self.payload.len();
        let (error, bytes) = match whole {
            true => (answer.error, &answer.bytes[..]),
            false => (-libc::EIO, &[][..]),
        };
        let out = header(answer.unique, error, &[Span::of(bytes)]);
        self.headers.in_out[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        self.payload[..bytes.len()].copy_from_slice(bytes);
        self.headers.ring.payload_size = bytes.len() as u32;
    }
}

/// An answer on its way to the thread that has the entry.
struct Answer {
    unique: u64,
    error: i32,
    bytes: Vec<u8>,
}

/// Where answers for the entries of a thread go.
struct Answers {
    thread: ThreadId,
    given: Mutex<Vec<Answer>>,
    event: EventFd,
}

impl Answers {
    fn take(&self) -> Vec<Answer> {
        std::mem::take(&mut *self.given.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Outlet for Answers {
    fn answer(&self, unique: u64, error: i32, parts: &[Span<'_>]) {
        let mut bytes = Vec::new();
        parts.iter().for_each(|part| part.append_to(&mut bytes));
        let answer = Answer {
            unique,
            error,
            bytes,
        };
        self.given
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(answer);
        if thread::current().id() != self.thread {
            // A full counter has woken the thread already.
            let _ = self.event.write(1);
        }
    }
}

/// A thread of a queue.
struct Worker {
    // Dropped first: closing the ring ends what the kernel does with the entries.
    ring: Ring,
    device: Arc<Device>,
    queue: u16,
    entries: Vec<Entry>,
    /// Entries whose answer is still to come, by the request.
    pending: HashMap<u64, usize>,
    /// Entries with the kernel.
    waiting: usize,
    /// What has completed, and how, and has not been looked at.
    done: Vec<(u64, i32)>,
    answers: Arc<Answers>,
}

/// Whether the kernel offers it.
pub(super) fn is_offered() -> bool {
    std::fs::read(PARAMETER).is_ok_and(|value| value.starts_with(b"Y"))
}

/// Threads of each queue, where `threads` in all would take requests from `/dev/fuse`. A program that has many requests
/// under way finds only those of the processor it runs on, so there are more in all.
pub(super) fn threads_each(threads: usize) -> usize {
    (MORE_THREADS * threads / queues()).clamp(THREADS_MIN.min(threads), threads)
}

/// Threads of all queues.
pub(super) fn threads(threads: usize) -> usize {
    queues() * threads_each(threads)
}

/// Queues that the kernel has: one for each processor that there may be.
fn queues() -> usize {
    // SAFETY: no memory is involved.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(count).unwrap_or(1).max(1)
}

/// Starts `each` threads for each queue. The kernel begins to use them when all queues have one.
///
/// # Errors
/// When the kernel wants none of it; then nobody can be served through this mount.
pub(super) fn start(
    device: &Arc<Device>,
    server: &Arc<dyn Serve>,
    each: usize,
) -> io::Result<Vec<JoinHandle<io::Result<()>>>> {
    let (told, heard) = std::sync::mpsc::channel();
    let mut threads = Vec::new();
    for queue in 0..queues() {
        for n in 0..each {
            let (device, server, told) = (Arc::clone(device), Arc::clone(server), told.clone());
            let work = move || {
                let worker = Worker::new(device, queue as u16);
                let known = worker.as_ref().map(drop);
                let _ = told.send(known.map_err(|e| io::Error::new(e.kind(), e.to_string())));
                drop(told);
                worker?.run(&*server)
            };
            threads.push(
                Builder::new()
                    .name(format!("fuse-{queue}.{n}"))
                    .spawn(work)?,
            );
        }
    }
    drop(told);
    heard.into_iter().collect::<io::Result<()>>()?;
    Ok(threads)
}

impl Worker {
    /// Gives the kernel an entry; on the thread that will run this.
    fn new(device: Arc<Device>, queue: u16) -> io::Result<Self> {
        stay_on(queue);
        let ring = Ring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .build(OPERATIONS_MAX)?;
        let mut worker = Self {
            ring,
            device,
            queue,
            entries: Vec::new(),
            pending: HashMap::new(),
            waiting: 0,
            done: Vec::new(),
            answers: Arc::new(Answers {
                thread: thread::current().id(),
                given: Mutex::default(),
                event: EventFd::new()?,
            }),
        };
        worker.listen()?;
        worker.register()?;
        worker.ring.submit()?;
        // Refused at once, or waiting. A request may have come already, if all queues have an entry of another thread.
        worker.gather();
        match worker.done.iter().find(|(_, result)| *result < 0) {
            Some((_, refused)) => Err(io::Error::from_raw_os_error(-refused)),
            None => Ok(worker),
        }
    }

    fn gather(&mut self) {
        let done = self.ring.completion();
        self.done
            .extend(done.map(|one| (one.user_data(), one.result())));
    }

    /// Serves until the mount has gone.
    fn run(mut self, server: &dyn Serve) -> io::Result<()> {
        let mut gone = false;
        loop {
            self.gather();
            for (what, result) in std::mem::take(&mut self.done) {
                if what == LISTEN {
                    let _ = self.answers.event.read();
                    self.listen()?;
                } else {
                    self.waiting -= 1;
                    if result >= 0 {
                        self.serve(what as usize, server);
                    } else {
                        // The entry with the mount.
                        gone = true;
                    }
                }
            }
            for answer in self.answers.take() {
                self.commit(&answer)?;
            }
            if self.waiting == 0 && !gone {
                self.register()?;
            }
            if self.waiting == 0 && self.pending.is_empty() {
                return Ok(());
            }
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => drop(result?),
            }
        }
    }

    fn serve(&mut self, index: usize, server: &dyn Serve) {
        let message = self.entries[index].message();
        let unique = message.header.unique;
        self.pending.insert(unique, index);
        let outlet = Arc::clone(&self.answers) as Arc<dyn Outlet>;
        server.serve(message, Reply::new(unique, outlet));
    }

    /// Returns an entry to the kernel, with the answer to what was in it.
    fn commit(&mut self, answer: &Answer) -> io::Result<()> {
        let Some(index) = self.pending.remove(&answer.unique) else {
            return Ok(());
        };
        let entry = &mut self.entries[index];
        entry.put(answer);
        let commit_id = entry.headers.ring.commit_id;
        self.command(index, RING_COMMIT_AND_FETCH, commit_id)
    }

    /// Gives the kernel one more entry.
    fn register(&mut self) -> io::Result<()> {
        self.entries.push(Entry::new());
        self.command(self.entries.len() - 1, RING_REGISTER, 0)
    }

    fn command(&mut self, index: usize, command: u32, commit_id: u64) -> io::Result<()> {
        let places = &self.entries[index].places;
        let sqe = CommandSqe {
            opcode: opcode::UringCmd80::CODE,
            flags: 0,
            ioprio: 0,
            fd: self.device.as_raw_fd(),
            command,
            padding: 0,
            addr: places.as_ptr() as u64,
            len: places.len() as u32,
            command_flags: 0,
            user_data: index as u64,
            buffer: 0,
            personality: 0,
            file_index: 0,
            what: RingCommand {
                flags: 0,
                commit_id,
                queue: self.queue,
                padding: [0; 6],
            },
            rest: [0; 56],
        };
        let mut bytes = [0; size_of::<CommandSqe>()];
        bytes.copy_from_slice(sqe.as_bytes());
        // SAFETY: `Entry128` is `struct io_uring_sqe` of 128 bytes (`repr(C)`), which is what these are.
        let sqe = unsafe { std::mem::transmute::<[u8; 128], Entry128>(bytes) };
        // SAFETY: entries live until the ring has been closed, and an entry is not touched while the kernel has it.
        unsafe { self.push(&sqe)? };
        self.waiting += 1;
        Ok(())
    }

    /// Hears of answers that other threads give.
    fn listen(&mut self) -> io::Result<()> {
        let event = types::Fd(self.answers.event.as_raw_fd());
        let poll = opcode::PollAdd::new(event, libc::POLLIN as u32).build();
        // SAFETY: no memory is involved.
        unsafe { self.push(&poll.user_data(LISTEN).into()) }
    }

    /// # Safety
    /// What the operation uses must live until it has completed.
    unsafe fn push(&mut self, sqe: &Entry128) -> io::Result<()> {
        // SAFETY: as promised.
        while unsafe { self.ring.submission().push(sqe) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }
}

/// Has this thread run where those are that it serves; if that is not allowed, it is slower.
fn stay_on(processor: u16) {
    let mut set = nix::sched::CpuSet::new();
    if set.set(processor.into()).is_ok() {
        let _ = nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set);
    }
}

const _: () = assert!(size_of::<CommandSqe>() == size_of::<Entry128>());
