//! A channel: a session with a target that outlives its connections.
//!
//! ```text
//!   write, read ──► window of operations, in order ──► connection ──► target
//!                        ▲          │ acknowledged             ╳ lost
//!       posted again ────┤          ▼                          │
//!                        └── connect · attach · post ◄─ pause ─┘
//! ```
//!
//! Operations are numbered and acknowledged in their order. What was not acknowledged when a connection is lost is posted again,
//! in order, on the next one, under the same STags: `tools/docs/credentials.md` says why the target still knows them, and what it
//! does with the lost connection first.
//!
//! # Invariants
//! - At most [`WINDOW_MAX`] operations are not taken; what is acknowledged is never posted again.
//! - What is posted again are READs, WRITEs and FLUSHes, which do no harm if they are executed twice by one who writes his own
//!   bytes. What changes bytes waits until READs of them have been acknowledged: one that is repeated would find them changed.
//!   Of an atomic operation that was posted on a connection that is lost the target is asked first: one that was
//!   executed there is acknowledged in its turn, with the answer that was lost, and one that was not is posted again. A WRITE
//!   before one that was executed had been made before it, and is not posted again: it could undo what that did. Before
//!   the next connection is let in, the target has ended the lost one, so what it says stays true. A target that does not
//!   remember, because it has been started since, leaves the outcome unknown; that is reported in its turn, and nothing is
//!   posted again. So the operation takes effect once at most, and exactly once as long as the target lives.
//! - An operation fails alone, and the channel goes on: if the target does not know its region any more, or ends each connection on which
//!   it is the only one that was posted. After a connection that the target has ended, what was in the window is posted one by one, so that
//!   it shows which it was.
//! - A FLUSH speaks for what was acknowledged in the same life of the target: [`Acknowledged::life`] says which that was, and of an
//!   operation of which the target was asked, in which it has answered. What was acknowledged in an earlier one may have been
//!   lost with the target's memory.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flashnet_reactor::Waker;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use softrdma::{Atomic, Buffer, CloseReason, Completion};

use crate::backoff::Backoff;
use crate::control::{FLAG_PERSISTENT, Op, Reply, Request};
use crate::credentials::SessionBlock;
use crate::error::ClientError;
use crate::identity::Identity;
use crate::operation::{Failure, OpId, Pending, Posted, Refusal, Settled, Work};
use crate::session::{RemoteFile, Session, SessionOptions};

/// Operations that are not acknowledged, or not taken yet.
pub const WINDOW_MAX: usize = 64;
/// Connections that the target may end because of the oldest operation in the window, before that is given up.
const FATAL_MAX: u32 = 5;

/// A file of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileNo(pub(crate) usize);

/// How a channel is made.
#[derive(Clone, Debug)]
pub struct ChannelOptions {
    /// Of each connection.
    pub session: SessionOptions,
    /// Who the client says it is.
    pub identity: Identity,
    /// How long a target may be away.
    pub patience: Duration,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        Self {
            session: SessionOptions::default(),
            identity: Identity::default(),
            patience: Duration::from_secs(60),
        }
    }
}

/// A file that is open.
#[derive(Clone, Debug)]
struct OpenFile {
    region: RemoteFile,
    refused: Option<Refusal>,
}

impl OpenFile {
    /// A region that has ended once has ended for ever.
    fn has_ended(&self) -> bool {
        let refused = self.refused.as_ref();
        refused.is_some_and(|refusal| refusal.status == libc::ESTALE)
    }
}

/// An operation that has been acknowledged.
#[derive(Clone, Debug)]
pub struct Acknowledged {
    /// Which.
    pub id: OpId,
    /// What was read.
    pub bytes: Option<Arc<Buffer>>,
    /// Atomic operation: what the word was; none if it is unknown whether it was executed.
    pub original: Option<u64>,
    /// The life of the target in which it has told: later ones have higher numbers.
    pub life: u64,
}

/// A session that outlives its connections. It belongs to the thread that made it, as the rings of its connections do.
#[derive(Debug)]
pub struct Channel {
    addresses: Vec<SocketAddr>,
    options: ChannelOptions,
    block: SessionBlock,
    session: Option<Session>,
    /// None: closed, the place is free.
    files: Vec<Option<OpenFile>>,
    /// Not acknowledged, in order.
    window: VecDeque<Pending>,
    /// So many of them are posted on this connection.
    posted: usize,
    /// So many of them are posted one by one: they were in the window when the target ended a connection.
    suspects: usize,
    next: u64,
    rng: SmallRng,
    /// Connections that have been made.
    made: u64,
    /// Of the target's lives the one of this connection, counted from 1, and what the target says of it, if it does: one that is
    /// not told from others is over with the connection.
    life: u64,
    verifier: Option<u64>,
    /// Connections that the target has ended since something was acknowledged.
    fatal: u32,
    /// When the first connection was lost since then, and since a request was answered, and the pauses since.
    lost: Option<Instant>,
    backoff: Backoff,
    /// Atomic operations posted on this connection.
    atomics: u64,
    /// Of the thread's queue, if it has one.
    waker: Option<Waker>,
}

impl Channel {
    /// Connects to the first of `addresses` (at least one) that answers.
    pub fn connect(addresses: &[SocketAddr], options: ChannelOptions) -> Result<Self, ClientError> {
        let mut channel = Self {
            addresses: addresses.to_vec(),
            options,
            block: SessionBlock {
                id: rand::random(),
                connection: 0,
            },
            session: None,
            files: Vec::new(),
            window: VecDeque::new(),
            posted: 0,
            suspects: 0,
            next: 0,
            rng: SmallRng::from_rng(&mut rand::rng()),
            made: 0,
            life: 0,
            verifier: None,
            fatal: 0,
            lost: None,
            backoff: Backoff::default(),
            atomics: 0,
            waker: None,
        };
        channel.session()?;
        Ok(channel)
    }

    /// Connections that have been made so far.
    pub fn connections(&self) -> u64 {
        self.made
    }

    /// Operations that are not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.window.len()
    }

    /// Asks, and waits for the reply; again on another connection if one is lost. What is asked for may happen twice. It comes behind
    /// all operations but those that are [held back](Self::holds_back).
    pub fn call(&mut self, request: &Request) -> Result<Reply, ClientError> {
        loop {
            self.session()?;
            let result = match self.post_more() {
                Ok(()) => self.session()?.call(request.clone()),
                Err(error) => Err(error),
            };
            match result {
                Err(error) if error.passes() => self.lose(&error)?,
                result => {
                    self.answered();
                    return result;
                }
            }
        }
    }

    /// Opens a region that stays when the connection or the target ends.
    pub fn open(&mut self, mut request: Request) -> Result<FileNo, ClientError> {
        request.flags |= FLAG_PERSISTENT;
        let reply = self.call(&request)?;
        Ok(self.add(RemoteFile::of(&reply)))
    }

    /// Goes on with a region that an earlier channel, also of another process, has opened.
    pub fn attach(&mut self, file: RemoteFile) -> Result<FileNo, ClientError> {
        let reply = self.call(&attach_request(&file))?;
        Ok(self.add(file.attached(&reply)))
    }

    /// What the target said of a file.
    ///
    /// # Panics
    /// If it has been closed.
    pub fn file(&self, file: FileNo) -> &RemoteFile {
        let open = self.files[file.0].as_ref();
        &open.expect("the file is open").region
    }

    fn add(&mut self, region: RemoteFile) -> FileNo {
        let free = self.files.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.files.push(None);
            self.files.len() - 1
        });
        let refused = None;
        self.files[at] = Some(OpenFile { region, refused });
        FileNo(at)
    }

    /// Lets go of a file, when all operations on it have been acknowledged. The region stays with the volume, until it
    /// expires.
    pub fn close_file(&mut self, file: FileNo) -> Result<(), ClientError> {
        let Some(closed) = self.files[file.0].take() else {
            return Ok(());
        };
        // Without a connection the target has let go of it already.
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        if closed.refused.is_some() {
            return Ok(());
        }
        let request = Request {
            handle: closed.region.handle,
            ..Request::new(Op::Close, "")
        };
        match session.call(request).map(drop) {
            Err(error) if error.passes() => self.lose(&error),
            result => result,
        }
    }

    /// From now on [`acknowledged_or_wake`](Self::acknowledged_or_wake) returns when `waker` is used.
    pub(crate) fn set_waker(&mut self, waker: &Waker) {
        self.waker = Some(waker.clone());
        if let Some(session) = &mut self.session {
            session.set_waker(waker.clone());
        }
    }

    /// Whether there is a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.session.is_some()
    }

    /// Writes bytes to a file. Acknowledged, they are visible, and durable if `sync`.
    pub fn write(
        &mut self,
        file: FileNo,
        offset: u64,
        bytes: &[u8],
        sync: bool,
    ) -> Result<OpId, ClientError> {
        self.submit(file, offset, Work::Write(Buffer::from_bytes(bytes), sync))
    }

    /// The same, from a buffer that stays as it is until then.
    pub(crate) fn write_from(
        &mut self,
        file: FileNo,
        offset: u64,
        bytes: Arc<Buffer>,
        sync: bool,
    ) -> Result<OpId, ClientError> {
        self.submit(file, offset, Work::Write(bytes, sync))
    }

    /// Reads as many bytes as the buffer has.
    pub(crate) fn read_into(
        &mut self,
        file: FileNo,
        offset: u64,
        buffer: Arc<Buffer>,
    ) -> Result<OpId, ClientError> {
        self.submit(file, offset, Work::Read(buffer))
    }

    /// Reads bytes of a file.
    pub fn read(&mut self, file: FileNo, offset: u64, len: usize) -> Result<OpId, ClientError> {
        self.submit(file, offset, Work::Read(Buffer::zeroed(len)))
    }

    /// Makes everything durable that was acknowledged in this life of the target, or will have been before this is.
    pub fn flush(&mut self, file: FileNo) -> Result<OpId, ClientError> {
        self.submit(file, 0, Work::Flush)
    }

    /// An atomic operation on the eight bytes at `offset`, a multiple of eight. It takes effect once at most, and once unless
    /// its outcome is unknown.
    pub fn atomic(&mut self, file: FileNo, offset: u64, op: Atomic) -> Result<OpId, ClientError> {
        self.submit(file, offset, Work::Atomic(op, None))
    }

    fn submit(&mut self, file: FileNo, offset: u64, work: Work) -> Result<OpId, ClientError> {
        if self.window.len() >= WINDOW_MAX {
            return Err(ClientError::WindowFull);
        }
        let open = self.files[file.0].as_ref();
        let open = open.ok_or(ClientError::FileClosed)?;
        let work = match &open.refused {
            Some(refusal) => Work::Failed(Failure::Refused(refusal.clone())),
            None => work,
        };
        self.next += 1;
        self.window.push_back(Pending {
            id: OpId(self.next),
            file,
            offset,
            work,
        });
        if let Err(error) = self.post_more() {
            self.lose(&error)?;
        }
        Ok(OpId(self.next))
    }

    /// Posts what may be. Who has no connection does so when there is one.
    fn post_more(&mut self) -> Result<(), ClientError> {
        let most = match self.suspects {
            0 => self.window.len(),
            _ => self.window.len().min(1),
        };
        while self.posted < most && !self.would_change_what_is_read(self.posted) {
            let Some(session) = &mut self.session else {
                return Ok(());
            };
            let pending = &mut self.window[self.posted];
            if let Some(open) = &self.files[pending.file.0] {
                pending.note_posted(self.block.connection, &mut self.atomics);
                pending.post(session, &open.region)?;
            }
            self.posted += 1;
        }
        Ok(())
    }

    /// Whether operations wait until earlier ones have been acknowledged: because these read what they change, or the target has ended a
    /// connection and it has to show because of which.
    pub fn holds_back(&self) -> bool {
        self.posted < self.window.len()
    }

    /// Whether an operation changes bytes that an earlier one reads.
    fn would_change_what_is_read(&self, at: usize) -> bool {
        let changing = &self.window[at];
        changing.work.changes()
            && self.window.range(..at).any(|earlier| {
                matches!(earlier.work, Work::Read(_)) && self.overlap(earlier, changing)
            })
    }

    /// Whether two operations may be about the same bytes of a file.
    fn overlap(&self, one: &Pending, other: &Pending) -> bool {
        if one.file != other.file {
            let inode = |pending: &Pending| {
                let open = self.files[pending.file.0].as_ref();
                open.map(|open| (open.region.inode, open.region.stag))
            };
            let (Some((one_inode, one_stag)), Some((other_inode, other_stag))) =
                (inode(one), inode(other))
            else {
                return false;
            };
            // Regions of a file may begin anywhere in it.
            if one_stag != other_stag {
                return one_inode == other_inode;
            }
        }
        one.offset < other.end() && other.offset < one.end()
    }

    /// Waits for the acknowledgement of the oldest operation that is not acknowledged; none if all are.
    ///
    /// # Errors
    /// [Of that operation](ClientError::is_of_operation), which is taken with it; after any other the channel is no more.
    pub fn acknowledged(&mut self) -> Result<Option<Acknowledged>, ClientError> {
        while !self.window.is_empty() {
            // A new connection settles what became of things on the one before.
            self.session()?;
            if let Some(settled) = self.take_settled() {
                return settled.map(Some);
            }
            let done = match self.post_more() {
                Ok(()) => self.session()?.success("operation"),
                Err(error) => Err(error),
            };
            match done {
                Ok(done) => return Ok(Some(self.acknowledge(&done))),
                Err(error) => self.lose(&error)?,
            }
        }
        Ok(None)
    }

    /// The same, but none also when the waker was used; it waits for that when there is nothing to acknowledge. Needs a
    /// connection, or something to acknowledge.
    pub(crate) fn acknowledged_or_wake(&mut self) -> Result<Option<Acknowledged>, ClientError> {
        loop {
            let is_idle = self.window.is_empty();
            self.session()?;
            if let Some(settled) = self.take_settled() {
                return settled.map(Some);
            }
            let done = match self.post_more() {
                Ok(()) => self.session()?.completion_or_wake(),
                Err(error) => Err(error),
            };
            let done = match done {
                Ok(None) => return Ok(None),
                Ok(Some(done)) => {
                    let session = self.session()?;
                    session.succeeded(done, "operation")
                }
                // Who waits for nothing has all the time.
                Err(ClientError::TimedOut { .. }) if is_idle => return Ok(None),
                Err(error) => Err(error),
            };
            match done {
                Ok(done) => return Ok(Some(self.acknowledge(&done))),
                Err(error) if is_idle => {
                    self.session = None;
                    return match error.passes() {
                        true => Ok(None),
                        false => Err(error),
                    };
                }
                Err(error) => self.lose(&error)?,
            }
        }
    }

    /// The oldest operation, which has been executed.
    fn acknowledge(&mut self, done: &Completion) -> Acknowledged {
        let pending = self.window.pop_front().expect("it is not empty");
        assert_eq!(done.wr_id.0, pending.id.0, "acknowledged in order");
        self.taken();
        let (mut bytes, mut original) = (None, None);
        match pending.work {
            Work::Read(buffer) => bytes = Some(buffer),
            Work::Atomic(..) => original = Some(done.original),
            Work::Write(..) | Work::Flush | Work::Settled(_) | Work::Failed(_) => {}
        }
        Acknowledged {
            id: pending.id,
            bytes,
            original,
            life: self.life,
        }
    }

    /// The oldest operation, if it was settled by what became of it on a lost connection, or fails.
    fn take_settled(&mut self) -> Option<Result<Acknowledged, ClientError>> {
        let Pending { id, work, .. } =
            (self.window).pop_front_if(|oldest| oldest.work.is_settled())?;
        self.taken();
        let settled = match work {
            Work::Settled(settled) => settled,
            Work::Failed(failure) => return Some(Err(failure.into())),
            work => unreachable!("{work:?} is not settled"),
        };
        Some(Ok(Acknowledged {
            id,
            bytes: None,
            original: settled.original,
            life: settled.life,
        }))
    }

    /// The oldest operation is not in the window any more.
    fn taken(&mut self) {
        self.fatal = 0;
        self.answered();
        self.posted = self.posted.saturating_sub(1);
        self.suspects = self.suspects.saturating_sub(1);
    }

    /// The target is there.
    fn answered(&mut self) {
        (self.lost, self.backoff) = (None, Backoff::default());
    }

    /// Ends in order; what is not acknowledged may or may not have happened.
    pub fn close(mut self) {
        if let Some(session) = self.session.take() {
            session.close();
        }
    }

    /// The connection is lost, or not the connection: then that is the end. So it is if none has brought an answer for too long.
    fn lose(&mut self, error: &ClientError) -> Result<(), ClientError> {
        self.session = None;
        let is_away = self
            .lost
            .is_some_and(|since| since.elapsed() > self.options.patience);
        self.lost.get_or_insert_with(Instant::now);
        let is_over = match error {
            // It is there, and says no.
            ClientError::Closed {
                reason: reason @ CloseReason::TerminateReceived(_),
                ..
            } => {
                self.terminated(reason);
                self.fatal > FATAL_MAX
            }
            _ => is_away || self.fatal > FATAL_MAX,
        };
        self.posted = 0;
        if !error.passes() || is_over {
            return Err(ClientError::Lost {
                address: self.addresses[0],
                cause: error.to_string(),
            });
        }
        Ok(())
    }

    /// The target has ended the connection, because of something that was posted on it.
    fn terminated(&mut self, reason: &CloseReason) {
        self.fatal += 1;
        if self.suspects == 0 {
            self.suspects = self.posted;
        }
        if self.fatal > FATAL_MAX
            && self.posted == 1
            && let Some(guilty) = self.window.front_mut()
        {
            guilty.work = Work::Failed(Failure::Terminated(reason.clone()));
            self.fatal = 0;
        }
    }

    /// The connection; a new one if there is none.
    fn session(&mut self) -> Result<&mut Session, ClientError> {
        if self.session.is_none() {
            let since = self.lost.unwrap_or_else(Instant::now);
            loop {
                std::thread::sleep(self.backoff.next(&mut self.rng));
                match self.resume() {
                    Ok(session) => {
                        self.made += 1;
                        self.session = Some(session);
                        break;
                    }
                    Err(error) if error.passes() && since.elapsed() < self.options.patience => {}
                    Err(error) => {
                        if self.window.is_empty() {
                            // Who asks next begins to wait anew.
                            (self.lost, self.backoff) = (None, Backoff::default());
                        }
                        return Err(error);
                    }
                }
            }
        }
        Ok(self.session.as_mut().expect("there is one now"))
    }

    /// A new connection, on which nothing is posted yet. What was not acknowledged on those before may be.
    fn resume(&mut self) -> Result<Session, ClientError> {
        self.block.connection += 1;
        self.atomics = 0;
        let mut private_data = self.options.identity.token();
        private_data.extend(self.block.emit());
        let mut session =
            Session::connect_as(&self.addresses, self.options.session.clone(), &private_data)?;
        self.recognise(&mut session)?;
        self.attach_all(&mut session)?;
        self.settle(&mut session)?;
        for pending in &mut self.window {
            let open = self.files[pending.file.0].as_ref();
            let refused = open.and_then(|open| open.refused.as_ref());
            if let (Some(refusal), false) = (refused, pending.work.is_settled()) {
                pending.work = Work::Failed(Failure::Refused(refusal.clone()));
            }
        }
        if let Some(waker) = &self.waker {
            session.set_waker(waker.clone());
        }
        Ok(session)
    }

    /// Finds out whether the target is the one of the connection before, or the next after that has ended in order.
    fn recognise(&mut self, session: &mut Session) -> Result<(), ClientError> {
        let (verifier, before) = match session.call(Request::new(Op::Verifier, "")) {
            Ok(reply) => (Some(reply.cookie), reply.words.first().copied()),
            // It does not know the request.
            Err(ClientError::Refused { .. }) => (None, None),
            Err(error) => return Err(error),
        };
        let known = self.verifier;
        if known.is_none() || (verifier != known && before != known) {
            self.life += 1;
        }
        self.verifier = verifier;
        Ok(())
    }

    /// Goes on with all regions there are.
    fn attach_all(&mut self, session: &mut Session) -> Result<(), ClientError> {
        for open in self.files.iter_mut().flatten() {
            if open.has_ended() {
                continue;
            }
            match session.call(attach_request(&open.region)) {
                Ok(reply) => {
                    open.region = open.region.attached(&reply);
                    open.refused = None;
                }
                Err(ClientError::Refused { status, message }) => {
                    open.refused = Some(Refusal { status, message });
                }
                Err(error) => return Err(error),
            }
            if open.has_ended() {
                // That is why the target has ended the connection.
                (self.fatal, self.suspects) = (0, 0);
            }
        }
        Ok(())
    }

    /// Asks what became of the atomic operations that were posted on a connection that is lost: all of them on the same, because
    /// nothing is posted before this has been answered. Who remembers them is the target that executed them, whose memory has
    /// the WRITEs before them, too, and if they were through a sync STag, its media.
    fn settle(&mut self, session: &mut Session) -> Result<(), ClientError> {
        let posted = |pending: &Pending| match &pending.work {
            Work::Atomic(_, posted) => *posted,
            _ => None,
        };
        let Some(Posted { connection, .. }) = self.window.iter().find_map(posted) else {
            return Ok(());
        };
        let request = Request {
            offset: connection,
            ..Request::new(Op::Atomics, "")
        };
        let known = match session.call(request) {
            Ok(reply) => Some(reply),
            // It has been started since, or never knew.
            Err(ClientError::Refused { .. }) => None,
            Err(error) => return Err(error),
        };
        let life = self.life;
        let settled = |original| Work::Settled(Settled { original, life });
        let mut is_done = false;
        // The last first: what a WRITE has placed before an operation that was executed is there.
        for pending in self.window.iter_mut().rev() {
            match (&pending.work, &known) {
                (&Work::Atomic(op, Some(Posted { n, .. })), Some(reply)) if n >= reply.cookie => {
                    pending.work = Work::Atomic(op, None);
                }
                (&Work::Atomic(_, Some(Posted { n, .. })), Some(reply)) => {
                    is_done = true;
                    pending.work = settled(original(reply, n));
                }
                (Work::Atomic(_, Some(_)), None) => pending.work = settled(None),
                (Work::Write(..), _) if is_done => pending.work = settled(None),
                _ => {}
            }
        }
        Ok(())
    }
}

/// What the word was before the `n`th operation, if the reply tells.
fn original(reply: &Reply, n: u64) -> Option<u64> {
    let behind = reply.cookie.checked_sub(n)?;
    let at = (reply.words.len() as u64).checked_sub(behind)?;
    reply.words.get(usize::try_from(at).ok()?).copied()
}

fn attach_request(file: &RemoteFile) -> Request {
    Request {
        handle: file.stag.0,
        ..Request::new(Op::Attach, "")
    }
}
