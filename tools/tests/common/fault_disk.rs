//! A disk that loses power: a file system of one file, which the program under test takes for its device.
//!
//! Reads see every write that was answered. A power cut keeps what was flushed or written through (`O_DSYNC`), and of every
//! other write since the last flush nothing, all, or some of its sectors; while the power is off everything fails with EIO.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, WriteFlags,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

/// What a disk writes as a whole.
const SECTOR: usize = 512;
/// Longest hold, lest a test that fails waits for ever.
const HOLD_MAX: Duration = Duration::from_secs(60);
/// How often who is held looks whether it may go on.
const LOOK: Duration = Duration::from_millis(1);
const NAME: &str = "disk.img";
const DISK: INodeNo = INodeNo(2);
/// Nothing about the file changes.
const TTL: Duration = Duration::from_secs(3600);

struct State {
    durable: Vec<u8>,
    /// What reads see.
    current: Vec<u8>,
    /// Answered since the last flush, in order.
    unflushed: Vec<Written>,
    off: bool,
    /// Says that it has flushed, and has not.
    lies: bool,
    flushes: u64,
    /// How long a flush takes.
    delay: Duration,
    /// Whoever writes waits.
    held: bool,
    /// What begins here, or behind it, can not be read.
    blind_from: u64,
}

/// A write that was answered.
struct Written {
    at: usize,
    bytes: Vec<u8>,
    /// Past the cache of the disk, unlike those before it.
    through: bool,
}

/// The disk.
pub struct FaultDisk {
    state: Arc<Mutex<State>>,
    rng: SmallRng,
    session: Option<BackgroundSession>,
    dir: TempDir,
}

/// What a power cut did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Damage {
    /// Writes that were not flushed.
    pub unflushed: usize,
    /// Of these, lost as a whole.
    pub lost: usize,
    /// Of these, lost in part.
    pub torn: usize,
}

impl FaultDisk {
    /// A blank disk.
    pub fn new(bytes: usize, seed: u64) -> io::Result<Self> {
        let state = Arc::new(Mutex::new(State {
            durable: vec![0; bytes],
            current: vec![0; bytes],
            unflushed: Vec::new(),
            off: false,
            lies: false,
            flushes: 0,
            delay: Duration::ZERO,
            held: false,
            blind_from: u64::MAX,
        }));
        let dir = tempfile::tempdir()?;
        let session = Session::new(
            Platter(Arc::clone(&state), bytes as u64),
            dir.path(),
            &Config::default(),
        )?
        .spawn()?;
        Ok(Self {
            state,
            rng: SmallRng::seed_from_u64(seed),
            session: Some(session),
            dir,
        })
    }

    /// The device.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join(NAME)
    }

    /// From now on the disk answers flushes, and does not carry them out.
    pub fn lie(&self) {
        self.state().lies = true;
    }

    /// From now on a flush takes so long, and everything else that is asked for meanwhile waits for it.
    pub fn slow(&self, delay: Duration) {
        self.state().delay = delay;
    }

    /// Whether writes wait from now on, and everything else that is asked for behind one, for a minute at most.
    pub fn hold(&self, held: bool) {
        self.state().held = held;
    }

    /// From now on the disk reads nothing that begins at this byte or behind it.
    pub fn blind(&self, from: u64) {
        self.state().blind_from = from;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The power fails: from now on nothing is written, and nobody gets an answer but EIO.
    pub fn cut(&self) {
        self.state().off = true;
    }

    /// The power is back, and the disk holds what a disk may hold then.
    pub fn restore(&mut self) -> Damage {
        let mut damage = Damage::default();
        let rng = &mut self.rng;
        let mut state = lock(&self.state);
        let state = &mut *state;
        // Some cuts lose everything, some nothing, most of them a part.
        let bias = [0, 25, 50, 75, 100][rng.random_range(0..5)];
        for Written { at, bytes, through } in state.unflushed.drain(..) {
            if through {
                state.durable[at..at + bytes.len()].copy_from_slice(&bytes);
                continue;
            }
            damage.unflushed += 1;
            let tears = rng.random_range(0..4) == 0 && bytes.len() > SECTOR;
            let keeps = rng.random_range(0..100) < bias;
            match (tears, keeps) {
                (true, _) => {
                    damage.torn += 1;
                    for (n, sector) in bytes.chunks(SECTOR).enumerate() {
                        if rng.random_range(0..100) < bias {
                            let at = at + n * SECTOR;
                            state.durable[at..at + sector.len()].copy_from_slice(sector);
                        }
                    }
                }
                (false, true) => state.durable[at..at + bytes.len()].copy_from_slice(&bytes),
                (false, false) => damage.lost += 1,
            }
        }
        state.current.copy_from_slice(&state.durable);
        state.off = false;
        damage
    }

    /// Flushes that were answered.
    pub fn flushes(&self) -> u64 {
        self.state().flushes
    }
}

impl Drop for FaultDisk {
    fn drop(&mut self) {
        drop(self.session.take());
    }
}

/// A panic of a test does not stop the disk.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file system, with the number of bytes of its file.
struct Platter(Arc<Mutex<State>>, u64);

impl Platter {
    fn attr(&self, ino: INodeNo) -> FileAttr {
        let is_disk = ino == DISK;
        FileAttr {
            ino,
            size: if is_disk { self.1 } else { 0 },
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_disk {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: if is_disk { 0o600 } else { 0o700 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Platter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO & config.capabilities());
        Ok(())
    }

    fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&TTL, &self.attr(DISK), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr(ino));
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Sent at close; it promises nothing.
        reply.ok();
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = lock(&self.0);
        if state.off || offset >= state.blind_from {
            return reply.error(Errno::EIO);
        }
        let start = (offset as usize).min(state.current.len());
        let end = (start + size as usize).min(state.current.len());
        reply.data(&state.current[start..end]);
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let begun = Instant::now();
        while lock(&self.0).held && begun.elapsed() < HOLD_MAX {
            std::thread::sleep(LOOK);
        }
        let mut state = lock(&self.0);
        if state.off {
            return reply.error(Errno::EIO);
        }
        let at = offset as usize;
        let Some(place) = state.current.get_mut(at..at + data.len()) else {
            return reply.error(Errno::ENOSPC);
        };
        place.copy_from_slice(data);
        // Also of one write alone (`RWF_DSYNC`).
        let through = flags.0 & libc::O_DSYNC != 0 && !state.lies;
        state.unflushed.push(Written {
            at,
            bytes: data.to_vec(),
            through,
        });
        reply.written(data.len() as u32);
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let delay = lock(&self.0).delay;
        std::thread::sleep(delay);
        let mut state = lock(&self.0);
        if state.off {
            return reply.error(Errno::EIO);
        }
        let state = &mut *state;
        if state.lies {
            return reply.ok();
        }
        for Written { at, bytes, .. } in state.unflushed.drain(..) {
            state.durable[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        state.flushes += 1;
        reply.ok();
    }
}
