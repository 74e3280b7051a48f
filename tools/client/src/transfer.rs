//! A copy of a whole file that outlives its connections.
//!
//! ```text
//!   open ──► READ or WRITE in order ──► closed
//!               ▲             ╳ lost
//!               │             ▼
//!               └── connect · open again · is it the same file? ◄─ pause
//! ```
//!
//! Its region is a plain one, which ends with its connection: a copy leaves nothing behind in the table of the target.
//!
//! # Invariants
//! - Bytes that have been read are handed out once, and in their order. Those of several connections are of one file: the same
//!   inode with the same size and time of change.
//! - What was written and acknowledged is not written again while the target lives. What was acknowledged in an earlier life and not
//!   durable by then is, because that life may have taken it along.
//! - A file that has been written has its last times when that is done, and they are durable: who reads it from then on goes on with
//!   it over the end of any target.
//! - Before a connection that writes is let in, the target ends the one before, and with it what of that lies in sockets: they are
//!   of one session (`tools/docs/credentials.md`).

use std::net::SocketAddr;
use std::time::Instant;

use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::backoff::Backoff;
use crate::channel::ChannelOptions;
use crate::control::{FLAG_DURABLE, FLAG_WRITE, Op, Reply, Request};
use crate::credentials::SessionBlock;
use crate::error::ClientError;
use crate::session::{RemoteFile, Session};
use crate::waiting::until_answered;

/// Bytes that are written before the first acknowledgement, on each connection; twice as many before the next.
const RUN_FIRST: u64 = 1 << 20;
/// The most.
const RUN_LONGEST: u64 = 64 << 20;
/// Bytes that are written before they are made durable. A target that is killed costs no more.
const SYNC_BYTES: u64 = 1 << 30;

/// A copy of a file from or to a target.
#[derive(Debug)]
pub struct Transfer {
    addresses: Vec<SocketAddr>,
    options: ChannelOptions,
    block: SessionBlock,
    session: Session,
    /// Opens the file on the next connection, and changes nothing.
    again: Request,
    file: RemoteFile,
    mtime_ns: u64,
    lives: Lives,
    /// So many bytes have been read, or written and acknowledged.
    done: u64,
    /// So many bytes that were written are durable.
    durable: u64,
    /// When the first connection was lost since something was done, and the pauses since.
    lost: Option<Instant>,
    backoff: Backoff,
    rng: SmallRng,
}

/// What the target tells of its life, and of the one before if that has ended in order.
#[derive(Clone, Copy, Debug, Default)]
struct Lives {
    this: Option<u64>,
    before: Option<u64>,
}

impl Lives {
    fn of(session: &mut Session) -> Result<Self, ClientError> {
        match session.call(Request::new(Op::Verifier, "")) {
            Ok(reply) => Ok(Self {
                this: Some(reply.cookie),
                before: reply.words.first().copied(),
            }),
            // It does not know the request.
            Err(ClientError::Refused { .. }) => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Whether everything is there that was acknowledged in an earlier life.
    fn keep_those_of(self, earlier: Self) -> bool {
        earlier.this.is_some() && (self.this == earlier.this || self.before == earlier.this)
    }
}

impl Transfer {
    /// Connects to the first of `addresses` (at least one) that answers, and opens a file as `request` says. A target that is
    /// there and does not answer is waited for, as one is that is lost later on; `waits` hears of it.
    pub fn open(
        addresses: &[SocketAddr],
        options: ChannelOptions,
        request: Request,
        waits: impl FnOnce(&ClientError),
    ) -> Result<Self, ClientError> {
        let mut block = SessionBlock {
            id: rand::random(),
            connection: 0,
        };
        let writes = request.flags & FLAG_WRITE != 0;
        // Opened twice, it is as if it had been once.
        let open = || -> Result<_, ClientError> {
            let mut session = connect(addresses, &options, &mut block, writes)?;
            let lives = Lives::of(&mut session)?;
            let reply = session.call(request.clone())?;
            Ok((session, lives, reply))
        };
        let (session, lives, reply) = until_answered(options.patience, open, waits)?;
        let again = Request {
            flags: request.flags & FLAG_WRITE,
            ..request
        };
        Ok(Self {
            addresses: addresses.to_vec(),
            options,
            block,
            session,
            again,
            file: RemoteFile::of(&reply),
            mtime_ns: reply.mtime_ns,
            lives,
            done: 0,
            durable: 0,
            lost: None,
            backoff: Backoff::default(),
            rng: SmallRng::from_rng(&mut rand::rng()),
        })
    }

    /// The region.
    pub fn file(&self) -> &RemoteFile {
        &self.file
    }

    /// So many bytes have been read, or written and acknowledged.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Reads the region, and hands it out in order. `lost` hears of each connection that is lost when
    /// something had been done since the one before, and of how many bytes had come.
    pub fn read(
        &mut self,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), ClientError>,
        mut lost: impl FnMut(&ClientError, u64),
    ) -> Result<(), ClientError> {
        loop {
            let (begun, mut done) = (self.done, self.done);
            let rest = self.file.length - begun;
            let read = self.session.read(&self.file, begun, rest, |at, bytes| {
                take(at, bytes)?;
                done = at + bytes.len() as u64;
                Ok(())
            });
            self.done = done;
            if done > begun {
                self.has_progressed();
            }
            match read {
                Ok(()) => return Ok(()),
                Err(error) => self.go_on(error, &mut lost)?,
            }
        }
    }

    /// Writes `length` bytes to the region; `fill` provides any part of them. On return they are durable, and the region has ended. `lost` hears as
    /// of [`read`](Self::read), and of how many bytes had been acknowledged.
    pub fn write(
        &mut self,
        length: u64,
        mut fill: impl FnMut(u64, &mut [u8]) -> Result<(), ClientError>,
        mut lost: impl FnMut(&ClientError, u64),
    ) -> Result<(), ClientError> {
        if length > self.file.length {
            return Err(ClientError::OutOfBounds {
                offset: 0,
                length,
                region: self.file.length,
            });
        }
        let mut run = RUN_FIRST;
        loop {
            let sync_at = length.min(self.durable + SYNC_BYTES);
            let step = match sync_at - self.done {
                0 if self.durable == length => match self.commit() {
                    Ok(()) => return Ok(()),
                    failed => failed,
                },
                0 => self.sync(),
                rest => self.write_run(run.min(rest), &mut fill),
            };
            if let Err(error) = step {
                self.go_on(error, &mut lost)?;
                run = RUN_FIRST;
                continue;
            }
            self.has_progressed();
            run = (run * 2).min(RUN_LONGEST);
        }
    }

    fn write_run(
        &mut self,
        bytes: u64,
        fill: impl FnMut(u64, &mut [u8]) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        (self.session).write(&self.file, self.done, bytes, false, fill)?;
        self.done += bytes;
        Ok(())
    }

    fn sync(&mut self) -> Result<(), ClientError> {
        let request = Request {
            handle: self.file.handle,
            ..Request::new(Op::Sync, "")
        };
        self.session.call(request)?;
        self.durable = self.done;
        Ok(())
    }

    /// Ends the region, so that nothing is written any more. Of a target that does not know how, the times of the file are durable later.
    fn commit(&mut self) -> Result<(), ClientError> {
        let request = Request {
            handle: self.file.handle,
            flags: FLAG_DURABLE,
            ..Request::new(Op::Close, "")
        };
        self.session.call(request).map(drop)
    }

    /// Ends in order.
    pub fn close(self) {
        self.session.close();
    }

    fn has_progressed(&mut self) {
        (self.lost, self.backoff) = (None, Backoff::default());
    }

    /// Goes on with another connection, if that may help.
    fn go_on(
        &mut self,
        mut error: ClientError,
        lost: &mut impl FnMut(&ClientError, u64),
    ) -> Result<(), ClientError> {
        let mut is_told = self.lost.is_some();
        let since = *self.lost.get_or_insert_with(Instant::now);
        // A target that has ended the connection for what was asked of it is there, and says no.
        while error.passes() && !error.is_terminated() && since.elapsed() < self.options.patience {
            if !is_told {
                lost(&error, self.done);
                is_told = true;
            }
            std::thread::sleep(self.backoff.next(&mut self.rng));
            match self.open_again() {
                Ok(()) => return Ok(()),
                Err(other) => error = other,
            }
        }
        Err(error)
    }

    fn open_again(&mut self) -> Result<(), ClientError> {
        let writes = self.is_written();
        let mut session = connect(&self.addresses, &self.options, &mut self.block, writes)?;
        let lives = Lives::of(&mut session)?;
        let reply = session.call(self.again.clone())?;
        let keeps = lives.keep_those_of(self.lives);
        // Memory of the target is another one in each of its lives.
        if !self.is_of_this_file(&reply) || self.file.inode == 0 && !keeps {
            return Err(ClientError::Changed);
        }
        if writes && !keeps {
            self.done = self.durable;
        }
        self.file = RemoteFile::of(&reply);
        (self.session, self.lives) = (session, lives);
        Ok(())
    }

    fn is_written(&self) -> bool {
        self.again.flags & FLAG_WRITE != 0
    }

    /// Whether a file that was opened again is the one that it was. Who writes changes its time.
    fn is_of_this_file(&self, reply: &Reply) -> bool {
        let file = RemoteFile::of(reply);
        let known = (self.file.inode, self.file.size, self.file.length);
        known == (file.inode, file.size, file.length)
            && (self.is_written() || self.mtime_ns == reply.mtime_ns)
    }
}

/// The next connection of a session. What may be left of READs harms nobody, and no session is to be remembered for it.
fn connect(
    addresses: &[SocketAddr],
    options: &ChannelOptions,
    block: &mut SessionBlock,
    writes: bool,
) -> Result<Session, ClientError> {
    block.connection += 1;
    let mut private_data = options.identity.token();
    if writes {
        private_data.extend(block.emit());
    }
    Session::connect_as(addresses, options.session.clone(), &private_data)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was acknowledged is there in the same life of the target, and in the next if it has ended in order.
    #[test]
    fn lives() {
        let lives = |this, before| Lives { this, before };
        let first = lives(Some(1), None);
        assert!(first.keep_those_of(first));
        assert!(lives(Some(2), Some(1)).keep_those_of(first));
        assert!(!lives(Some(2), None).keep_those_of(first));
        assert!(!lives(Some(3), Some(2)).keep_those_of(first));
        assert!(!Lives::default().keep_those_of(Lives::default()));
    }
}
