//! Those who load and store: three ways to the same bytes.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use memmap2::{MmapOptions, MmapRaw};
use softrdma::{Buffer, LocalSlice, Operation, Source, WorkRequest, WrId};

use super::file::SharedFile;
use crate::client::{RemoteFile, Session, SessionOptions};
use crate::control::{FLAG_WRITE, Op, Request};

/// Bytes of a value.
const WORD: usize = 8;
/// A mapping is so fast that its owner rests between two steps, lest the others never run.
const REST: Duration = Duration::from_micros(10);

/// How a party reaches the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// `pread` and `pwrite` on the mount.
    Calls,
    /// A shared mapping of the file on the mount.
    Mapping,
    /// One-sided operations.
    Remote,
}

impl Way {
    /// The word for it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Mapping => "mapping",
            Self::Remote => "remote",
        }
    }

    /// Opens the file. The party belongs to the thread that makes it.
    pub(super) fn open(self, file: &SharedFile) -> Result<Box<dyn Party>> {
        Ok(match self {
            Self::Calls => Box::new(Calls::open(file)?),
            Self::Mapping => Box::new(Mapping::open(file)?),
            Self::Remote => Box::new(Remote::open(file)?),
        })
    }
}

/// Loads and stores aligned words of eight bytes.
pub(super) trait Party: fmt::Debug {
    /// Stores.
    fn store(&mut self, at: u64, value: u64) -> Result<()>;

    /// Loads.
    fn load(&mut self, at: u64) -> Result<u64>;

    /// When this returns, what was stored is visible to everybody: the contract says so.
    fn publish(&mut self) -> Result<()>;

    /// Between two steps of a loop.
    fn rest(&self) {}
}

#[derive(Debug)]
struct Calls(File);

impl Calls {
    fn open(file: &SharedFile) -> Result<Self> {
        Ok(Self(open(file)?))
    }
}

fn open(file: &SharedFile) -> Result<File> {
    Ok(OpenOptions::new()
        .read(true)
        .write(true)
        .open(file.path())?)
}

impl Party for Calls {
    fn store(&mut self, at: u64, value: u64) -> Result<()> {
        Ok(self.0.write_all_at(&value.to_le_bytes(), at)?)
    }

    fn load(&mut self, at: u64) -> Result<u64> {
        let mut bytes = [0; WORD];
        self.0.read_exact_at(&mut bytes, at)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A `write()` is visible when it returns.
    fn publish(&mut self) -> Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct Mapping {
    map: MmapRaw,
    /// Its stores are visible to everybody as they are.
    shares_pages: bool,
}

impl Mapping {
    fn open(file: &SharedFile) -> Result<Self> {
        Ok(Self {
            map: MmapOptions::new().map_raw(&open(file)?)?,
            shares_pages: file.shares_pages,
        })
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        let at = at as usize;
        assert!(at + WORD <= self.map.len() && at.is_multiple_of(WORD));
        // SAFETY: inside the mapping and aligned, both checked. Whoever else changes these bytes is outside of this
        // process or does so through an atomic, too.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(at).cast()) }
    }
}

impl Party for Mapping {
    fn store(&mut self, at: u64, value: u64) -> Result<()> {
        self.word(at).store(value.to_le(), Ordering::SeqCst);
        Ok(())
    }

    fn load(&mut self, at: u64) -> Result<u64> {
        Ok(u64::from_le(self.word(at).load(Ordering::SeqCst)))
    }

    /// `msync`, if it takes one.
    fn publish(&mut self) -> Result<()> {
        match self.shares_pages {
            true => Ok(()),
            false => Ok(self.map.flush()?),
        }
    }

    fn rest(&self) {
        std::thread::sleep(REST);
    }
}

#[derive(Debug)]
struct Remote {
    session: Session,
    file: RemoteFile,
    sink: Arc<Buffer>,
}

impl Remote {
    fn open(file: &SharedFile) -> Result<Self> {
        let mut session = Session::connect(file.address(), SessionOptions::default())?;
        let file = session.open(Request {
            flags: FLAG_WRITE,
            ..Request::new(Op::Open, file.remote_path())
        })?;
        Ok(Self {
            session,
            file,
            sink: Buffer::zeroed(WORD),
        })
    }
}

impl Party for Remote {
    fn store(&mut self, at: u64, value: u64) -> Result<()> {
        let operation = Operation::Write {
            source: Source::Bytes(value.to_le_bytes().into()),
            remote: self.file.at(at),
        };
        self.session.post(WorkRequest::new(WrId(at), operation))?;
        self.session.success("WRITE")?;
        Ok(())
    }

    fn load(&mut self, at: u64) -> Result<u64> {
        let operation = Operation::Read {
            sink: LocalSlice::new(&self.sink, 0, WORD),
            remote: self.file.at(at),
        };
        self.session.post(WorkRequest::new(WrId(at), operation))?;
        self.session.success("READ")?;
        let mut bytes = [0; WORD];
        self.sink.read(0, &mut bytes);
        Ok(u64::from_le_bytes(bytes))
    }

    /// A READ of no bytes.
    fn publish(&mut self) -> Result<()> {
        Ok(self.session.fence(&self.file)?)
    }
}
