//! Open files: regions of a target that are read and written one-sided.

use std::sync::Arc;

use softrdma::{Atomic, Buffer};

use crate::client::Client;
use crate::control::{FLAG_CREATE, FLAG_EXCLUSIVE, FLAG_TRUNCATE, FLAG_WRITE, Op, Request};
use crate::engine::{Command, Opened};
use crate::error::ClientError;
use crate::promise::Pending;
use crate::session::RemoteFile;

/// Bytes of one operation; more are several.
const CHUNK_BYTES: usize = 1 << 20;

/// How a file is opened; for reading only, unless said otherwise.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    client: Client,
    flags: u16,
    offset: u64,
    length: u64,
    sync: bool,
}

impl OpenOptions {
    pub(crate) fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            flags: 0,
            offset: 0,
            length: 0,
            sync: false,
        }
    }

    fn flag(mut self, flag: u16, on: bool) -> Self {
        match on {
            true => self.flags |= flag,
            false => self.flags &= !flag,
        }
        self
    }

    /// For writing too.
    #[must_use]
    pub fn write(self, write: bool) -> Self {
        self.flag(FLAG_WRITE, write)
    }

    /// Makes the file if it is not there; its directory has to be.
    #[must_use]
    pub fn create(self, create: bool) -> Self {
        self.flag(FLAG_CREATE, create)
    }

    /// Makes the file, which may not be there. If the connection is lost meanwhile, the file that this very call has made
    /// can be what it then complains of.
    #[must_use]
    pub fn create_new(self, create: bool) -> Self {
        self.flag(FLAG_CREATE | FLAG_EXCLUSIVE, create)
    }

    /// Drops the content: the file then has `length` bytes, all zero, and their space.
    #[must_use]
    pub fn truncate(mut self, length: u64) -> Self {
        self.length = length;
        self.flag(FLAG_TRUNCATE, true)
    }

    /// Only these bytes of the file; addressed from 0 on. `length` 0: all from there on.
    #[must_use]
    pub fn range(mut self, offset: u64, length: u64) -> Self {
        (self.offset, self.length) = (offset, length);
        self
    }

    /// Every write is durable when it returns, like `O_DSYNC`.
    #[must_use]
    pub fn sync(mut self, sync: bool) -> Self {
        self.sync = sync;
        self
    }

    /// Opens the file.
    pub fn open(&self, path: impl AsRef<str>) -> Result<File, ClientError> {
        let opened = self.ask(path.as_ref()).wait()?;
        Ok(self.opened(opened))
    }

    pub(crate) fn ask(&self, path: &str) -> Pending<Opened> {
        let (promise, pending) = Pending::new();
        let request = Request {
            flags: self.flags,
            offset: self.offset,
            length: self.length,
            ..Request::new(Op::Open, path)
        };
        self.client.engine.ask(Command::Open(request, promise));
        pending
    }

    pub(crate) fn opened(&self, opened: Opened) -> File {
        File {
            inner: Arc::new(Inner {
                opened,
                client: self.client.clone(),
                is_writable: self.flags & (FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE) != 0,
                sync: self.sync,
            }),
        }
    }
}

#[derive(Debug)]
struct Inner {
    /// Before the client, which may end with it.
    opened: Opened,
    client: Client,
    is_writable: bool,
    sync: bool,
}

/// An open file: the bytes that were there when it was opened. It does not grow with the file.
///
/// Operations of one client are carried out in the order of the calls, each after all before it. A handle: copies are the
/// same open file.
#[derive(Clone, Debug)]
pub struct File {
    inner: Arc<Inner>,
}

impl File {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.opened.region.length
    }

    /// No bytes at all?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// STags and address: what another program of the same tenant needs to use the same bytes, also when the target has been
    /// started anew.
    #[must_use]
    pub fn credentials(&self) -> RemoteFile {
        self.inner.opened.region
    }

    /// Reads from `offset` on; fewer bytes than asked for at the end of the file only.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<usize, ClientError> {
        let count = self.clip(offset, bytes.len());
        if count == 0 {
            return Ok(0);
        }
        self.read_at_many(&mut [(offset, &mut bytes[..count])])?;
        Ok(count)
    }

    /// Reads several ranges, all under way together; each has to be inside the file.
    pub fn read_at_many(&self, ranges: &mut [(u64, &mut [u8])]) -> Result<(), ClientError> {
        for (offset, bytes) in ranges.iter() {
            self.check(*offset, bytes.len())?;
        }
        let reads: Vec<_> = ranges
            .iter()
            .map(|(offset, bytes)| self.start_read(*offset, bytes.len()))
            .collect();
        for (read, (_, bytes)) in reads.into_iter().zip(ranges) {
            for (chunk, piece) in read.into_iter().zip(bytes.chunks_mut(CHUNK_BYTES)) {
                chunk.wait()?.read(0, piece);
            }
        }
        Ok(())
    }

    /// Writes all of `bytes` at `offset`. On return they are visible to every reader, and durable after
    /// [`flush`](Self::flush), or if the file was opened with [`sync`](OpenOptions::sync).
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), ClientError> {
        for chunk in self.start_write(bytes, offset)? {
            chunk.wait()?;
        }
        Ok(())
    }

    /// Makes durable what has been written, and what atomic operations have changed, through this file or another of the same region,
    /// open or closed, of this client. If the target was started anew since they were acknowledged, it may have been killed and
    /// have lost them: then this fails with [`ClientError::WritesLost`], as does every flush that was under way, and once that of
    /// the file through which they were made; and they are to be done again. Whether an atomic operation is, the word tells.
    pub fn flush(&self) -> Result<(), ClientError> {
        match self.start_flush() {
            Some(flush) => flush.wait(),
            None => Ok(()),
        }
    }

    /// An atomic operation on the eight bytes at `offset`, which is a multiple of eight; returns what they were. It takes
    /// effect once, also if the connection is lost meanwhile. If the target is lost as well, it may have taken none, and the
    /// error is [`ClientError::Unknown`].
    pub fn atomic(&self, offset: u64, op: Atomic) -> Result<u64, ClientError> {
        self.start_atomic(offset, op)?.wait()
    }

    pub(crate) fn clip(&self, offset: u64, len: usize) -> usize {
        let rest = self.len().saturating_sub(offset);
        len.min(usize::try_from(rest).unwrap_or(usize::MAX))
    }

    pub(crate) fn check(&self, offset: u64, len: usize) -> Result<(), ClientError> {
        let (length, region) = (len as u64, self.len());
        match offset.checked_add(length).is_some_and(|end| end <= region) {
            true => Ok(()),
            false => Err(ClientError::OutOfBounds {
                offset,
                length,
                region,
            }),
        }
    }

    fn check_writable(&self) -> Result<(), ClientError> {
        match self.inner.is_writable {
            true => Ok(()),
            false => Err(ClientError::ReadOnly),
        }
    }

    /// The chunks of a read that is inside the file.
    pub(crate) fn start_read(&self, offset: u64, len: usize) -> Vec<Pending<Arc<Buffer>>> {
        let chunks = (0..len).step_by(CHUNK_BYTES);
        let start = |at: usize| {
            let (promise, pending) = Pending::new();
            let buffer = Buffer::zeroed(CHUNK_BYTES.min(len - at));
            let at = offset + at as u64;
            self.ask(Command::Read(self.inner.opened.number, at, buffer, promise));
            pending
        };
        chunks.map(start).collect()
    }

    pub(crate) fn start_write(
        &self,
        bytes: &[u8],
        offset: u64,
    ) -> Result<Vec<Pending<()>>, ClientError> {
        self.check_writable()?;
        self.check(offset, bytes.len())?;
        let start = |(n, bytes): (usize, &[u8])| {
            let (promise, pending) = Pending::new();
            let (number, sync) = (self.inner.opened.number, self.inner.sync);
            let at = offset + (n * CHUNK_BYTES) as u64;
            let bytes = Buffer::from_bytes(bytes);
            self.ask(Command::Write(number, at, bytes, sync, promise));
            pending
        };
        Ok(bytes.chunks(CHUNK_BYTES).enumerate().map(start).collect())
    }

    /// None if there is nothing to make durable.
    pub(crate) fn start_flush(&self) -> Option<Pending<()>> {
        // A region that may not be written may not be flushed.
        if !self.inner.is_writable || self.is_empty() {
            return None;
        }
        let (promise, pending) = Pending::new();
        self.ask(Command::Flush(self.inner.opened.number, promise));
        Some(pending)
    }

    pub(crate) fn start_atomic(
        &self,
        offset: u64,
        op: Atomic,
    ) -> Result<Pending<u64>, ClientError> {
        self.check_writable()?;
        self.check(offset, 8)?;
        let at = self.inner.opened.region.at(offset);
        if !at.to.0.is_multiple_of(8) {
            return Err(ClientError::Misaligned(offset));
        }
        let (promise, pending) = Pending::new();
        self.ask(Command::Atomic(
            self.inner.opened.number,
            offset,
            op,
            promise,
        ));
        Ok(pending)
    }

    fn ask(&self, command: Command) {
        self.inner.client.engine.ask(command);
    }
}
