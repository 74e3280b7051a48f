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
//! - A flush is promised only for writes and atomic operations that were acknowledged on its own connection: a target that was
//!   killed between them has lost what was in its memory.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::{io, thread};

use flashnet_reactor::{Inbox, Ring};
use softrdma::{Atomic, Buffer};

use crate::channel::{Acknowledged, Channel, ChannelOptions, FileNo, WINDOW_MAX};
use crate::control::{Reply, Request};
use crate::error::ClientError;
use crate::promise::{Pending, Promise};
use crate::session::RemoteFile;

/// What is asked of the thread.
#[derive(Debug)]
pub(crate) enum Command {
    Call(Request, Promise<Reply>),
    Open(Request, Promise<(FileNo, RemoteFile)>),
    Close(FileNo),
    Read(FileNo, u64, Arc<Buffer>, Promise<Arc<Buffer>>),
    /// The last but one: through the sync STag.
    Write(FileNo, u64, Arc<Buffer>, bool, Promise<()>),
    Flush(FileNo, Promise<()>),
    Atomic(FileNo, u64, Atomic, Promise<u64>),
    End,
}

/// What was promised for an operation under way.
#[derive(Debug)]
enum Promised {
    Read(Promise<Arc<Buffer>>),
    /// Whether it is durable when it is acknowledged.
    Write(FileNo, bool, Promise<()>),
    Flush(FileNo, Promise<()>),
    Atomic(FileNo, Promise<u64>),
}

impl Promised {
    fn fail(self, error: ClientError) {
        match self {
            Self::Read(promise) => promise.keep(Err(error)),
            Self::Write(_, _, promise) | Self::Flush(_, promise) => promise.keep(Err(error)),
            Self::Atomic(_, promise) => promise.keep(Err(error)),
        }
    }
}

/// The way to the thread; it ends when this is dropped and what was asked for is done.
#[derive(Debug)]
pub(crate) struct Engine {
    inbox: Arc<Inbox<Command>>,
}

impl Engine {
    /// Starts a thread that connects to the first of `addresses` (at least one) that answers.
    pub(crate) fn start(
        addresses: Vec<SocketAddr>,
        options: ChannelOptions,
    ) -> io::Result<(Self, Pending<()>)> {
        let inbox = Arc::new(Inbox::new()?);
        let (promise, connected) = Pending::new();
        let commands = Arc::clone(&inbox);
        let work = move || {
            match Channel::connect(&addresses, options) {
                Ok(channel) => {
                    promise.keep(Ok(()));
                    Worker::new(channel, &commands).run();
                }
                Err(error) => promise.keep(Err(error)),
            }
            commands.close();
        };
        thread::Builder::new()
            .name("flashnet-client".into())
            .spawn(work)?;
        Ok((Self { inbox }, connected))
    }

    /// Asks for something; waits while too much is waiting already.
    pub(crate) fn ask(&self, command: Command) {
        // A command that is given back drops its promise, which tells who waits.
        let _ = self.inbox.send(command);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.ask(Command::End);
    }
}

struct Worker<'a> {
    channel: Channel,
    inbox: &'a Inbox<Command>,
    waiting: VecDeque<Command>,
    promised: VecDeque<Promised>,
    /// Connection on which the first write or atomic operation of a file was acknowledged that is not durable yet.
    unflushed: HashMap<FileNo, u64>,
    is_ending: bool,
}

impl<'a> Worker<'a> {
    fn new(mut channel: Channel, inbox: &'a Inbox<Command>) -> Self {
        channel.set_waker(inbox.waker());
        Self {
            channel,
            inbox,
            waiting: VecDeque::new(),
            promised: VecDeque::new(),
            unflushed: HashMap::new(),
            is_ending: false,
        }
    }

    fn run(mut self) {
        let ended = self.work();
        // Everybody hears why.
        let why = match &ended {
            Ok(()) => "it was closed".to_owned(),
            Err(error) => error.to_string(),
        };
        for promised in self.promised.drain(..) {
            promised.fail(ClientError::Ended(why.clone()));
        }
        if ended.is_ok() {
            self.channel.close();
        }
    }

    fn work(&mut self) -> Result<(), ClientError> {
        loop {
            self.inbox.waker().acknowledge();
            if self.waiting.is_empty() {
                self.inbox.drain(&mut self.waiting);
            }
            while self.promised.len() < WINDOW_MAX
                && let Some(command) = self.waiting.pop_front()
            {
                self.carry_out(command)?;
            }
            if self.is_ending && self.promised.is_empty() {
                return Ok(());
            }
            // What is left waits for an acknowledgement; what was sent since then is looked at.
            if self.promised.is_empty() && !self.channel.is_connected() {
                self.sleep()?;
            } else if let Some(done) = self.channel.acknowledged_or_wake()? {
                self.keep(done);
            }
        }
    }

    /// Nothing is under way, and the connection is lost: another is made when there is something to do.
    fn sleep(&self) -> Result<(), ClientError> {
        let mut ring = Ring::new(2, 1, 4096)?;
        ring.poll_wake(self.inbox.waker().fd());
        ring.enter(None)?;
        Ok(())
    }

    fn carry_out(&mut self, command: Command) -> Result<(), ClientError> {
        let (submitted, promised) = match command {
            Command::Call(request, promise) => {
                return answer(promise, self.channel.call(&request));
            }
            Command::Open(request, promise) => {
                let opened = self.channel.open(request);
                let opened = opened.map(|file| (file, *self.channel.file(file)));
                return answer(promise, opened);
            }
            Command::Close(file) => {
                // Its owner has waited for, or forgotten, what is under way.
                self.unflushed.remove(&file);
                while !self.promised.is_empty() {
                    match self.channel.acknowledged()? {
                        Some(done) => self.keep(done),
                        None => break,
                    }
                }
                return self.channel.close_file(file);
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
                (self.channel.flush(file), Promised::Flush(file, promise))
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

    /// Keeps the promise for the oldest operation.
    fn keep(&mut self, done: Acknowledged) {
        let promised = self.promised.pop_front();
        match promised.expect("something was promised for each operation") {
            Promised::Read(promise) => {
                promise.keep(Ok(done.bytes.expect("a READ brings bytes")));
            }
            Promised::Write(file, sync, promise) => {
                if !sync {
                    self.unflushed.entry(file).or_insert(done.connection);
                }
                promise.keep(Ok(()));
            }
            Promised::Flush(file, promise) => {
                let since = self.unflushed.remove(&file);
                promise.keep(match since.is_none_or(|since| since == done.connection) {
                    true => Ok(()),
                    false => Err(ClientError::WritesLost),
                });
            }
            Promised::Atomic(file, promise) => {
                // Also one that was executed perhaps.
                self.unflushed.entry(file).or_insert(done.connection);
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
