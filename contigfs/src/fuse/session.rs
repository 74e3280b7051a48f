//! Serving a mount: agreeing with the kernel on what both can do, then threads that take requests.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use super::device::Device;
use super::message::{Malformed, Message};
use super::reply::{Outlet, Reply};
use super::ring;
use super::wire::{
    InHeader, InitIn, InitOut, InvalEntry, InvalInode, MAJOR, MINOR, MINOR_MIN, NOTIFY_INVAL_ENTRY,
    NOTIFY_INVAL_INODE, feature, opcode,
};
use crate::inode::InodeNo;
use crate::span::Span;

/// Longest data of one request.
pub(super) const DATA_MAX: u32 = 1 << 20;
/// Room for a request: data, and what says what to do with them. The kernel wants 8 KiB at least.
const REQUEST_MAX: usize = DATA_MAX as usize + 4096;
/// Requests that no program waits for at once, reading ahead and direct requests of io_uring and AIO among them.
const BACKGROUND_MAX: u16 = 64;

/// Serves requests.
pub(super) trait Serve: Send + Sync + 'static {
    /// Serves one.
    fn serve(&self, message: Message<'_>, reply: Reply);
}

/// A mount that has been attached, and nobody serves yet.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) device: Arc<Device>,
    /// What both sides can do.
    pub(super) features: u64,
}

fn protocol(_malformed: Malformed) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the kernel's FUSE does not begin as it should",
    )
}

impl Attached {
    /// Agrees with the kernel: on its version of the protocol, and on those of the features `wanted` that it has.
    pub(super) fn negotiate(device: OwnedFd, wanted: u64) -> io::Result<Self> {
        let device = Device::from(device);
        let mut buffer = vec![0; REQUEST_MAX];
        loop {
            let bytes = device.receive(&mut buffer)?;
            let mut message = Message::parse(bytes.unwrap_or_default()).map_err(protocol)?;
            let unique = message.header.unique;
            if message.header.opcode != opcode::INIT {
                device.send(unique, -libc::EIO, &[])?;
                return Err(protocol(Malformed));
            }
            let init: InitIn = message.take().map_err(protocol)?;
            if init.major > MAJOR {
                // It asks once more, in the words of this version.
                let version = InitOut {
                    major: MAJOR,
                    minor: MINOR,
                    ..InitOut::default()
                };
                device.send(unique, 0, &[Span::of(version.as_bytes())])?;
                continue;
            }
            if (init.major, init.minor) < (MAJOR, MINOR_MIN) {
                device.send(unique, -libc::EPROTO, &[])?;
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    format!(
                        "the kernel speaks version {}.{} of FUSE, and {MAJOR}.{MINOR_MIN} is needed (Linux 6.1)",
                        init.major, init.minor
                    ),
                ));
            }
            let offered_upper: u32 = message.take_prefix();
            let offered = u64::from(init.flags) | u64::from(offered_upper) << 32;
            let features = offered & (wanted | feature::INIT_EXT | feature::MAX_PAGES);
            let agreed = InitOut {
                major: MAJOR,
                minor: MINOR,
                max_readahead: init.max_readahead.min(DATA_MAX),
                flags: features as u32,
                flags2: (features >> 32) as u32,
                max_background: BACKGROUND_MAX,
                congestion_threshold: BACKGROUND_MAX / 4 * 3,
                max_write: DATA_MAX,
                time_gran: 1,
                // A file in memory may lie below, and nothing that is stacked itself.
                max_stack_depth: u32::from(features & feature::PASSTHROUGH != 0),
                max_pages: (DATA_MAX as usize / ftl::GRAIN_BYTES) as u16,
                ..InitOut::default()
            };
            device.send(unique, 0, &[Span::of(agreed.as_bytes())])?;
            return Ok(Self {
                device: Arc::new(device),
                features,
            });
        }
    }

    /// Serves the mount until it has gone: with `threads` threads, or, through io_uring if that was agreed on, with some
    /// for each processor.
    pub(super) fn serve(self, server: Arc<dyn Serve>, threads: usize) -> io::Result<Session> {
        let first = self.device;
        let mut on_rings = Vec::new();
        let mut on_devices = threads;
        if self.features & feature::OVER_IO_URING != 0 {
            on_rings = ring::start(&first, &server, ring::threads_each(threads))?;
            // What wants no answer comes there.
            on_devices = 1;
        }
        let mut devices = vec![Arc::clone(&first)];
        for _ in 1..on_devices {
            devices.push(Arc::new(first.another()?));
        }
        let start = |(n, device): (usize, Arc<Device>)| {
            let server = Arc::clone(&server);
            Builder::new()
                .name(format!("fuse-{n}"))
                .spawn(move || run(&device, &*server))
        };
        let started = devices.into_iter().enumerate().map(start);
        let mut threads: Vec<_> = started.collect::<io::Result<_>>()?;
        threads.append(&mut on_rings);
        Ok(Session {
            notifier: Notifier(first),
            threads,
        })
    }
}

fn run(device: &Arc<Device>, server: &dyn Serve) -> io::Result<()> {
    let mut buffer = vec![0; REQUEST_MAX];
    while let Some(bytes) = device.receive(&mut buffer)? {
        let message = Message::parse(bytes).map_err(protocol)?;
        let outlet = Arc::clone(device) as Arc<dyn Outlet>;
        let reply = Reply::new(message.header.unique, outlet);
        if message.header.opcode == opcode::DESTROY {
            reply.done(Ok(()));
            return Ok(());
        }
        server.serve(message, reply);
    }
    Ok(())
}

/// A mount that is served.
#[derive(Debug)]
pub(super) struct Session {
    notifier: Notifier,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Session {
    /// Tells the kernel things.
    pub(super) fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Whether the mount has gone.
    pub(super) fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Whether the mount goes within so long.
    pub(super) fn ends_within(&self, patience: Duration) -> bool {
        let start = Instant::now();
        while !self.is_finished() {
            if start.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Waits until the mount has gone.
    pub(super) fn join(self) -> io::Result<()> {
        let ends: Vec<_> = self.threads.into_iter().map(JoinHandle::join).collect();
        for end in ends {
            end.map_err(|_| io::Error::other("a thread of the mount panicked"))??;
        }
        Ok(())
    }
}

/// Tells the kernel what it could not know.
#[derive(Clone, Debug)]
pub(super) struct Notifier(Arc<Device>);

impl Notifier {
    /// Bytes of a file were changed behind its back. Does nothing for files that it does not know.
    pub(super) fn inval_inode(&self, ino: InodeNo, offset: u64, len: u64) -> io::Result<()> {
        let signed = |value| i64::try_from(value).unwrap_or(i64::MAX);
        let what = InvalInode {
            ino: ino.0,
            off: signed(offset),
            len: signed(len),
        };
        self.tell(NOTIFY_INVAL_INODE, &[Span::of(what.as_bytes())])
    }

    /// What a name stands for was changed behind its back. Does nothing for names that it does not know.
    pub(super) fn inval_entry(&self, parent: InodeNo, name: &OsStr) -> io::Result<()> {
        let what = InvalEntry {
            parent: parent.0,
            namelen: name.len() as u32,
            flags: 0,
        };
        let what = [what.as_bytes(), name.as_bytes(), &[0]].map(Span::of);
        self.tell(NOTIFY_INVAL_ENTRY, &what)
    }

    fn tell(&self, code: i32, what: &[Span<'_>]) -> io::Result<()> {
        match self.0.send(0, code, what) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}

const _: () = assert!(REQUEST_MAX >= DATA_MAX as usize + size_of::<InHeader>() + 40);
