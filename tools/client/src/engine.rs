//! The thread behind a client: it owns the channel, carries out what is asked of it, and keeps its promises in order.
//!
//! ```text
//!   Client, File ── Command ──► inbox ──► channel ──► target
//!        ▲                        (woken through the ring)
//!        └──────────── Promise ◄──────────┘
//! ```
//!
//! # Invariants
//! - Data operations are submitted in the order in which they were asked for, and at most [`WINDOW_MAX`] are under way. What
//!   is asked for beyond waits in the inbox, which is bounded, and then its senders wait (I16).
//! - A flush is promised only for writes and atomic operations that were acknowledged in the same life of the target: one that was
//!   killed between them has lost what was in its memory ([`Unflushed`]).

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::thread;

use flashnet_reactor::{Inbox, Ring, is_reactor};
use softrdma::{Atomic, Buffer};

use crate::channel::{Acknowledged, Channel, ChannelOptions, FileNo, WINDOW_MAX};
use crate::control::{Reply, Request};
use crate::error::ClientError;
use crate::promise::{Pending, Promise};
use crate::session::RemoteFile;
use crate::unflushed::{Asked, Unflushed};

/// What is asked of the thread.
#[derive(Debug)]
pub(crate) enum Command {
    Call(Request, Promise<Reply>),
    Open(Request, Promise<Opened>),
    Close(FileNo),
    Read(FileNo, u64, Arc<Buffer>, Promise<Arc<Buffer>>),
    /// The last but one: through the sync STag.
    Write(FileNo, u64, Arc<Buffer>, bool, Promise<()>),
    Flush(FileNo, Promise<()>),
    Atomic(FileNo, u64, Atomic, Promise<u64>),
    End,
}

impl Command {
    /// Tells who waits for it that it is not carried out.
    fn fail(self, error: ClientError) {
        match self {
            Self::Call(_, promise) => promise.keep(Err(error)),
            Self::Open(_, promise) => promise.keep(Err(error)),
            Self::Read(_, _, _, promise) => promise.keep(Err(error)),
            Self::Write(_, _, _, _, promise) | Self::Flush(_, promise) => promise.keep(Err(error)),
            Self::Atomic(_, _, _, promise) => promise.keep(Err(error)),
            Self::Close(_) | Self::End => {}
        }
    }
}

/// What was promised for an operation under way.
#[derive(Debug)]
enum Promised {
    Read(Promise<Arc<Buffer>>),
    /// Whether it is durable when it is acknowledged.
    Write(FileNo, bool, Promise<()>),
    Flush(FileNo, Asked, Promise<()>),
    Atomic(FileNo, Promise<u64>),
}

impl Promised {
    fn fail(self, error: ClientError) {
        match self {
            Self::Read(promise) => promise.keep(Err(error)),
            Self::Write(_, _, promise) | Self::Flush(_, _, promise) => promise.keep(Err(error)),
            Self::Atomic(_, promise) => promise.keep(Err(error)),
        }
    }
}

/// The way to the thread.
#[derive(Clone, Debug)]
struct Way {
    inbox: Arc<Inbox<Command>>,
    /// Why the thread has ended, or is about to.
    ended: Arc<OnceLock<String>>,
}

impl Way {
    /// Asks for something; waits while too much is waiting already. The thread does not wait for itself: it asks when it ends what nobody
    /// waits for any more, or wakes a task that drops a file with its last breath. Nor does that of another client, which may be
    /// asked for something by this one's.
    fn ask(&self, command: Command) {
        let asked = match is_reactor() {
            true => self.inbox.push(command),
            false => self.inbox.send(command),
        };
        if let Err(command) = asked {
            command.fail(self.end());
        }
    }

    /// What those hear who ask when the thread has ended.
    fn end(&self) -> ClientError {
        let why = self.ended.get_or_init(|| "its thread has panicked".into());
        ClientError::Ended(why.clone())
    }
}

/// The end of the thread, however it comes: nobody is left waiting.
struct End(Way);

impl Drop for End {
    fn drop(&mut self) {
        for command in self.0.inbox.close() {
            command.fail(self.0.end());
        }
    }
}

/// An open file; it is closed when this is dropped, also by who has never taken it.
#[derive(Debug)]
pub(crate) struct Opened {
    way: Way,
    pub(crate) number: FileNo,
    pub(crate) region: RemoteFile,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.way.ask(Command::Close(self.number));
    }
}

/// The way to the thread; it ends when this is dropped and what was asked for is done.
#[derive(Debug)]
pub(crate) struct Engine {
    way: Way,
}

impl Engine {
    /// Starts a thread that connects to the first of `addresses` (at least one) that answers.
    pub(crate) fn start(
        addresses: Vec<SocketAddr>,
        options: ChannelOptions,
    ) -> io::Result<(Self, Pending<()>)> {
        let inbox = Arc::new(Inbox::new()?);
        let ended = Arc::default();
        let (promise, connected) = Pending::new();
        let (commands, why) = (Arc::clone(&inbox), Arc::clone(&ended));
        let work = move || {
            let end = End(Way {
                inbox: commands,
                ended: why,
            });
            match Channel::connect(&addresses, options) {
                Ok(channel) => {
                    promise.keep(Ok(()));
                    Worker::new(channel, &end.0).run();
                }
                Err(error) => {
                    let _ = end.0.ended.set(error.to_string());
                    promise.keep(Err(error));
                }
            }
        };
        thread::Builder::new()
            .name("flashnet-client".into())
            .spawn(work)?;
        let way = Way { inbox, ended };
        Ok((Self { way }, connected))
    }

    /// Asks for something; waits while too much is waiting already.
    pub(crate) fn ask(&self, command: Command) {
        self.way.ask(command);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.ask(Command::End);
    }
}

struct Worker<'a> {
    channel: Channel,
    way: &'a Way,
    waiting: VecDeque<Command>,
    promised: VecDeque<Promised>,
    unflushed: Unflushed,
    is_ending: bool,
}

impl<'a> Worker<'a> {
    fn new(mut channel: Channel, way: &'a Way) -> Self {
        channel.set_waker(way.inbox.waker());
        Self {
            channel,
            way,
            waiting: VecDeque::new(),
            promised: VecDeque::new(),
            unflushed: Unflushed::default(),
            is_ending: false,
        }
    }

    fn run(mut self) {
        let ended = self.work();
        // Everybody hears why.
        let why = match &ended {
            Ok(()) => "it was closed".to_owned(),
            // A request was told it first.
            Err(ClientError::Ended(why)) => why.clone(),
            Err(error) => error.to_string(),
        };
        let _ = self.way.ended.set(why);
        for promised in self.promised.drain(..) {
            promised.fail(self.way.end());
        }
        for command in self.waiting.drain(..) {
            command.fail(self.way.end());
        }
        if ended.is_ok() {
            self.channel.close();
        }
    }

    fn work(&mut self) -> Result<(), ClientError> {
        loop {
            self.way.inbox.waker().acknowledge();
            let has_looked = self.waiting.is_empty();
            if has_looked {
                self.way.inbox.drain(&mut self.waiting);
            }
            while self.promised.len() < WINDOW_MAX
                && let Some(command) = self.waiting.pop_front()
            {
                self.carry_out(command)?;
            }
            if self.is_ending && self.promised.is_empty() {
                return Ok(());
            }
            // Whoever has sent something meanwhile has been acknowledged, and wakes nobody again.
            if !has_looked && self.waiting.is_empty() {
                continue;
            }
            // What is left waits for an acknowledgement; what was sent since then is looked at.
            if self.promised.is_empty() && !self.channel.is_connected() {
                self.sleep()?;
            } else {
                let done = self.channel.acknowledged_or_wake();
                self.tell(done)?;
            }
        }
    }

    /// Nothing is under way, and the connection is lost: another is made when there is something to do.
    fn sleep(&self) -> Result<(), ClientError> {
        let mut ring = Ring::new(2, 1, 4096)?;
        ring.poll_wake(self.way.inbox.waker().fd());
        ring.enter(None)?;
        Ok(())
    }

    fn carry_out(&mut self, command: Command) -> Result<(), ClientError> {
        let (submitted, promised) = match command {
            Command::Call(request, promise) => {
                self.let_all_go()?;
                return answer(promise, self.channel.call(&request));
            }
            Command::Open(request, promise) => {
                self.let_all_go()?;
                let opened = self.channel.open(request).map(|file| self.opened(file));
                return answer(promise, opened);
            }
            Command::Close(file) => {
                // Its owner has waited for, or forgotten, what is under way.
                while self.channel.unacknowledged() > 0 {
                    let done = self.channel.acknowledged();
                    self.tell(done)?;
                }
                self.unflushed.close(file);
                return match self.channel.close_file(file) {
                    // The target does not know it any more.
                    Err(error) if error.is_of_operation() => Ok(()),
                    closed => closed,
                };
            }
            Command::End => {
                self.is_ending = true;
                return Ok(());
            }
            Command::Read(file, offset, buffer, promise) => (
                self.channel.read_into(file, offset, buffer),
                Promised::Read(promise),
            ),
            Command::Write(file, offset, bytes, sync, promise) => (
                self.channel.write_from(file, offset, bytes, sync),
                Promised::Write(file, sync, promise),
            ),
            Command::Flush(file, promise) => {
                let promised = Promised::Flush(file, self.unflushed.asked(file), promise);
                (self.channel.flush(file), promised)
            }
            Command::Atomic(file, offset, op, promise) => (
                self.channel.atomic(file, offset, op),
                Promised::Atomic(file, promise),
            ),
        };
        match submitted {
            Ok(_) => {
                self.promised.push_back(promised);
                Ok(())
            }
            Err(error) => {
                let why = error.to_string();
                promised.fail(error);
                Err(ClientError::Ended(why))
            }
        }
    }

    /// Waits until no operation is held back, which a request would overtake.
    fn let_all_go(&mut self) -> Result<(), ClientError> {
        while self.channel.holds_back() {
            let done = self.channel.acknowledged();
            self.tell(done)?;
        }
        Ok(())
    }

    fn opened(&mut self, number: FileNo) -> Opened {
        let region = *self.channel.file(number);
        self.unflushed.open(number, region.stag);
        Opened {
            way: self.way.clone(),
            number,
            region,
        }
    }

    /// Tells what became of the oldest operation, if anything has.
    fn tell(&mut self, done: Result<Option<Acknowledged>, ClientError>) -> Result<(), ClientError> {
        match done {
            Ok(None) => {}
            Ok(Some(done)) => self.keep(done),
            Err(error) if error.is_of_operation() => {
                let promised = self.promised.pop_front();
                let promised = promised.expect("something was promised for each operation");
                promised.fail(error);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Keeps the promise for the oldest operation.
    fn keep(&mut self, done: Acknowledged) {
        let promised = self.promised.pop_front();
        match promised.expect("something was promised for each operation") {
            Promised::Read(promise) => {
                promise.keep(Ok(done.bytes.expect("a READ brings bytes")));
            }
            Promised::Write(file, sync, promise) => {
                if !sync {
                    self.unflushed.written(file, done.life);
                }
                promise.keep(Ok(()));
            }
            Promised::Flush(file, asked, promise) => {
                let flushed = self.unflushed.flushed(file, asked, done.life);
                promise.keep(flushed.then_some(()).ok_or(ClientError::WritesLost));
            }
            Promised::Atomic(file, promise) => {
                // Also one that was executed perhaps.
                self.unflushed.written(file, done.life);
                promise.keep(done.original.ok_or(ClientError::Unknown));
            }
        }
    }
}

/// Passes on the answer to a request. One that fails for good ends the client.
fn answer<T>(promise: Promise<T>, result: Result<T, ClientError>) -> Result<(), ClientError> {
    let fatal = match &result {
        Err(error @ (ClientError::Lost { .. } | ClientError::Denied { .. })) => {
            Some(error.to_string())
        }
        _ => None,
    };
    promise.keep(result);
    fatal.map_or(Ok(()), |why| Err(ClientError::Ended(why)))
}
