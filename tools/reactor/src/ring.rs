//! The one io_uring of a reactor: sockets, device and wake-ups through a single submission queue.
//!
//! This module and [`RecvBuffers`] are the unsafe place of the reactor: the kernel writes into memory that the entries
//! name, so every operation here says who keeps that memory alive until its completion.

use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use softrdma::driver::Spin;

use super::buffers::RecvBuffers;

/// Completions per submission that the queues have room for: multishot operations post many.
const COMPLETIONS_PER_SUBMISSION: u32 = 8;

/// What a completion belongs to; travels through the kernel in the 64 bits of user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// The multishot accept of listener `n`.
    Accept(u32),
    /// The receive of a link.
    Recv(u32),
    /// The send of a link.
    Send(u32),
    /// A media operation.
    Device(u32),
    /// The read of the wake-up descriptor.
    Wake,
    /// A cancellation, whose own result nobody needs.
    Cancel,
}

impl Tag {
    fn pack(self) -> u64 {
        let (kind, id) = match self {
            Self::Accept(n) => (0, n),
            Self::Recv(n) => (1, n),
            Self::Send(n) => (2, n),
            Self::Device(n) => (3, n),
            Self::Wake => (4, 0),
            Self::Cancel => (5, 0),
        };
        kind << 32 | u64::from(id)
    }

    fn unpack(data: u64) -> Self {
        let id = data as u32;
        match data >> 32 {
            0 => Self::Accept(id),
            1 => Self::Recv(id),
            2 => Self::Send(id),
            3 => Self::Device(id),
            4 => Self::Wake,
            _ => Self::Cancel,
        }
    }
}

/// One completion.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// What it belongs to.
    pub tag: Tag,
    /// Bytes, descriptor or negated errno, as the operation says.
    pub result: i32,
    /// Provided buffer that holds the received bytes.
    pub buffer: Option<u16>,
    /// Whether a multishot operation goes on.
    pub more: bool,
}

/// An io_uring with a ring of receive buffers.
pub struct Ring {
    // Declared before the buffers: closing the ring ends every operation that could still write to them.
    uring: IoUring,
    buffers: RecvBuffers,
    entered: u64,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("entered", &self.entered)
            .finish_non_exhaustive()
    }
}

impl Ring {
    /// Makes a ring with a submission queue of `entries` (more are submitted in several rounds) and `recv_buffers`
    /// receive buffers of `recv_bytes` each; both numbers are powers of two.
    ///
    /// The queues count as locked memory of the user, 192 bytes per entry.
    pub fn new(entries: u32, recv_buffers: u16, recv_bytes: usize) -> io::Result<Self> {
        let completions = entries * COMPLETIONS_PER_SUBMISSION;
        let full = IoUring::builder()
            .setup_cqsize(completions)
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(entries);
        // Single issuer and deferred task work came with Linux 6.1; everything else works without.
        let uring = match full {
            Ok(uring) => uring,
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => IoUring::builder()
                .setup_cqsize(completions)
                .build(entries)?,
            Err(e) => return Err(e),
        };
        let buffers = RecvBuffers::register(&uring, recv_buffers, recv_bytes)?;
        Ok(Self {
            uring,
            buffers,
            entered: 0,
        })
    }

    /// Times the kernel was entered.
    pub fn system_calls(&self) -> u64 {
        self.entered
    }

    /// The bytes of a completed receive; the buffer goes back to the kernel with [`Self::recycle`].
    pub fn received(&self, buffer: u16, len: usize) -> &[u8] {
        self.buffers.bytes(buffer, len)
    }

    /// Gives a receive buffer back to the kernel.
    pub fn recycle(&mut self, buffer: u16) {
        self.buffers.recycle(buffer);
    }

    /// Accepts connections on `listener` until cancelled.
    pub fn accept(&mut self, listener: RawFd, n: u32) {
        let entry = opcode::AcceptMulti::new(types::Fd(listener))
            .flags(libc::SOCK_CLOEXEC)
            .build();
        self.push(entry, Tag::Accept(n));
    }

    /// Receives from `socket` into provided buffers until cancelled, closed or out of buffers.
    pub fn recv(&mut self, socket: RawFd, link: u32) {
        let entry = opcode::RecvMulti::new(types::Fd(socket), RecvBuffers::GROUP).build();
        self.push(entry, Tag::Recv(link));
    }

    /// Sends `bytes` on `socket`: `all` of them, or as many as it takes when it takes some.
    ///
    /// # Safety
    /// `bytes` must stay where they are, unchanged, until the completion of `Tag::Send(link)`.
    pub unsafe fn send(&mut self, socket: RawFd, bytes: &[u8], all: bool, link: u32) {
        let len = u32::try_from(bytes.len()).expect("send buffers are bounded far below 4 GiB");
        let whole = if all { libc::MSG_WAITALL } else { 0 };
        let entry = opcode::Send::new(types::Fd(socket), bytes.as_ptr(), len)
            .flags(whole | libc::MSG_NOSIGNAL)
            .build();
        self.push(entry, Tag::Send(link));
    }

    /// Ends the operations tagged `tag`; each still completes, with ECANCELED or better.
    pub fn cancel(&mut self, tag: Tag) {
        let entry = opcode::AsyncCancel::new(tag.pack()).build();
        self.push(entry, Tag::Cancel);
    }

    /// Reads `len` bytes at `offset` of the device.
    ///
    /// # Safety
    /// `buf..buf + len` must be writable memory that nobody else uses until the completion of `Tag::Device(id)`.
    pub unsafe fn read(&mut self, fd: RawFd, offset: u64, buf: *mut u8, len: u32, id: u32) {
        // The page pool is not registered with the ring: that saves a hundredth of an operation's time, and costs a
        // second per GiB at the start, because every page is brought in at once.
        let entry = opcode::Read::new(types::Fd(fd), buf, len)
            .offset(offset)
            .build();
        self.push(entry, Tag::Device(id));
    }

    /// Writes `len` bytes at `offset` of the device; with `durable`, past every cache of it.
    ///
    /// # Safety
    /// `buf..buf + len` must be readable and unchanged until the completion of `Tag::Device(id)`.
    pub unsafe fn write(
        &mut self,
        fd: RawFd,
        offset: u64,
        buf: *const u8,
        len: u32,
        durable: bool,
        id: u32,
    ) {
        let entry = opcode::Write::new(types::Fd(fd), buf, len)
            .offset(offset)
            .rw_flags(if durable { libc::RWF_DSYNC } else { 0 })
            .build();
        self.push(entry, Tag::Device(id));
    }

    /// Makes completed writes of the device durable (fdatasync).
    pub fn flush(&mut self, fd: RawFd, id: u32) {
        let entry = opcode::Fsync::new(types::Fd(fd))
            .flags(types::FsyncFlags::DATASYNC)
            .build();
        self.push(entry, Tag::Device(id));
    }

    /// Tells the device that `offset..offset + len` of a file holds nothing of worth.
    pub fn discard(&mut self, fd: RawFd, offset: u64, len: u64, id: u32) {
        let entry = opcode::Fallocate::new(types::Fd(fd), len)
            .offset(offset)
            .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
            .build();
        self.push(entry, Tag::Device(id));
    }

    /// Waits for the wake-up descriptor `fd` to be written to.
    pub fn poll_wake(&mut self, fd: RawFd) {
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32)
            .multi(true)
            .build();
        self.push(entry, Tag::Wake);
    }

    /// Submits what is queued and waits for a completion, `timeout` at most (None: for ever; zero: not at all).
    pub fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.entered += 1;
        let want = usize::from(timeout != Some(Duration::ZERO));
        let result = match timeout {
            Some(t) if want == 1 => {
                let spec = types::Timespec::from(t);
                let args = types::SubmitArgs::new().timespec(&spec);
                self.uring.submitter().submit_with_args(1, &args)
            }
            _ => self.uring.submit_and_wait(want),
        };
        match result {
            Ok(_) => Ok(()),
            Err(e) => match e.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(e),
            },
        }
    }

    /// Submits what is queued, and does not wait for what is to come of it. What can not be submitted now leaves with the next
    /// [`enter`](Self::enter).
    pub fn submit(&mut self) {
        if !self.uring.submission().is_empty() {
            self.entered += 1;
            let _ = self.uring.submit();
        }
    }

    /// Submits what is queued and lets the kernel post what has happened, without waiting. Enters the kernel only if there is
    /// either.
    pub fn turn(&mut self) -> io::Result<()> {
        let queue = self.uring.submission();
        let idle = queue.is_empty() && !queue.taskrun() && !queue.cq_overflow();
        drop(queue);
        if idle {
            std::hint::spin_loop();
            return Ok(());
        }
        self.enter(Some(Duration::ZERO))
    }

    /// As [`enter`](Self::enter), but looks for a while first if `spin`, which is told of news by the caller, has seen reason to.
    pub fn rest(&mut self, timeout: Option<Duration>, spin: &mut Spin) -> io::Result<()> {
        let mut now = Instant::now();
        let until = spin.wait(now, timeout);
        while now < until {
            self.turn()?;
            if self.has_done() {
                return Ok(());
            }
            now = Instant::now();
        }
        // What is queued leaves together with going to sleep.
        self.enter(timeout)
    }

    fn has_done(&mut self) -> bool {
        !self.uring.completion().is_empty()
    }

    /// Next completion, if there is one.
    pub fn next_done(&mut self) -> Option<Done> {
        let entry = self.uring.completion().next()?;
        let tag = Tag::unpack(entry.user_data());
        if matches!(tag, Tag::Recv(_)) && entry.result() == -libc::ENOBUFS {
            self.buffers.ran_out();
        }
        Some(Done {
            tag,
            result: entry.result(),
            buffer: cqueue::buffer_select(entry.flags()),
            more: cqueue::more(entry.flags()),
        })
    }

    fn push(&mut self, entry: squeue::Entry, tag: Tag) {
        let entry = entry.user_data(tag.pack());
        loop {
            // SAFETY: the callers above guarantee that memory named by the entry lives until its completion.
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                return;
            }
            self.entered += 1;
            // A full queue is emptied by submitting; a passing refusal of the kernel is tried again.
            if let Err(e) = self.uring.submit()
                && !matches!(
                    e.raw_os_error(),
                    Some(libc::EBUSY | libc::EAGAIN | libc::EINTR)
                )
            {
                panic!("io_uring refuses submissions: {e}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    const FOR_EVER: Duration = Duration::from_secs(3600);

    /// What arrives is found by looking as by sleeping, and a time-out ends both.
    #[test]
    fn rest_ends_with_what_arrives_or_with_the_time_out() {
        let mut ring = match Ring::new(8, 2, 4096) {
            Ok(ring) => ring,
            Err(error) => {
                let required = std::env::var("FLASHNET_REQUIRE");
                assert!(!required.is_ok_and(|what| what.contains("all")), "{error}");
                eprintln!("skipped: io_uring is not to be had: {error}");
                return;
            }
        };
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ring.poll_wake(ours.as_raw_fd());
        for most in [Duration::ZERO, FOR_EVER] {
            let mut spin = Spin::new(most);
            for _ in 0..3 {
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        std::thread::sleep(Duration::from_millis(5));
                        theirs.send(b"!").unwrap();
                    });
                    ring.rest(None, &mut spin).unwrap();
                });
                assert_eq!(ring.next_done().map(|done| done.tag), Some(Tag::Wake));
                spin.news(Instant::now());
                ours.recv(&mut [0]).unwrap();
            }
            ring.rest(Some(Duration::from_millis(5)), &mut spin)
                .unwrap();
            assert!(ring.next_done().is_none(), "nothing was sent");
        }
    }
}
