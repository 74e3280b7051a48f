//! The engine's thread: the group of one epoch after the other, over the same memory.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::Waker;
use softrdma::{BackingId, ProtectionDomain, RegionTable, Time};

use crate::epoch::Epoch;
use crate::group::file::FilePages;
use crate::group::tcp::{Connected, MemberServer, Place, Refusal};
use crate::group::{
    BrokenGroup, Denied, GroupMemory, GroupShape, Member, MemberConfig, MemberEvent, MemberFile,
    ReadLease, Watcher,
};

use super::agent::Inbox;
use super::lag::Waits;
use super::{link_config, lock};

/// Calls that wait for an epoch to be open.
const CALLS_MAX: usize = 128;
/// Between two warnings that are alike.
const AGAIN: Duration = Duration::from_secs(10);

/// What the thread is told.
enum Command {
    Open(Box<Opening>),
    /// Ends what is open; answered when nothing of it runs any more.
    Close(SyncSender<()>),
    Call(Box<Connected>),
    Stop,
}

/// An epoch to open.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) epoch: Epoch,
    pub(super) shape: GroupShape,
    pub(super) position: usize,
    pub(super) places: Vec<Place>,
    pub(super) reads: Arc<ReadLease>,
}

/// What the thread tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EngineNews {
    /// The group is broken at this member: place of the one that is suspected.
    Broken(Epoch, Option<usize>),
    /// It can not go on.
    Failed(String),
}

/// Makes the thread look, whatever it sleeps in.
#[derive(Default)]
struct Bell(Mutex<Option<Arc<Waker>>>);

impl Bell {
    fn ring(&self) {
        if let Some(waker) = &*lock(&self.0) {
            // The turn ends soon without it.
            let _ = waker.wake();
        }
    }

    fn set(&self, waker: Option<Arc<Waker>>) {
        *lock(&self.0) = waker;
    }
}

/// Brings connections to the engine.
#[derive(Clone)]
pub(super) struct Caller {
    commands: Sender<Command>,
    bell: Arc<Bell>,
}

impl Caller {
    pub(super) fn call(&self, connected: Connected) {
        self.tell(Command::Call(Box::new(connected)));
    }

    fn tell(&self, command: Command) {
        // It fails when the thread has ended, which the agent hears of.
        let _ = self.commands.send(command);
        self.bell.ring();
    }
}

/// The thread.
pub(super) struct Engine {
    caller: Caller,
    waits: Arc<Waits>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("waits", &self.waits)
            .finish_non_exhaustive()
    }
}

impl Engine {
    pub(super) fn start(
        (file, watcher): (Arc<MemberFile>, Option<Arc<dyn Watcher>>),
        prepare: Option<Box<dyn FnOnce() + Send>>,
        spin: Duration,
        news: Sender<Inbox>,
    ) -> io::Result<Self> {
        let (commands, told) = channel();
        let bell = Arc::new(Bell::default());
        let waits = Arc::new(Waits::default());
        let mut worker = Worker {
            file,
            watcher,
            spin,
            told,
            bell: Arc::clone(&bell),
            waits: Arc::clone(&waits),
            news,
            calls: VecDeque::new(),
            warned: None,
        };
        let ends = Ends(worker.news.clone(), "engine");
        let thread = std::thread::Builder::new()
            .name("chain-engine".into())
            .spawn(move || {
                let _ends = ends;
                if let Some(prepare) = prepare {
                    prepare();
                }
                worker.run();
            })?;
        Ok(Self {
            caller: Caller { commands, bell },
            waits,
            thread: Some(thread),
        })
    }

    pub(super) fn caller(&self) -> Caller {
        self.caller.clone()
    }

    pub(super) fn open(&self, opening: Opening) {
        self.caller.tell(Command::Open(Box::new(opening)));
    }

    /// Ends what is open. When it returns, nothing of an epoch touches the memory any more (R1).
    pub(super) fn close(&self) {
        let (done, closed) = sync_channel(1);
        self.caller.tell(Command::Close(done));
        // It fails when the thread has ended: then nothing runs either.
        let _ = closed.recv();
    }

    /// The longest that an operation waited since this was last asked.
    pub(super) fn take_wait(&self) -> Duration {
        self.waits.take()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.caller.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

/// Tells the agent when a panic ends a thread: as long as the member said that it lives, it would be in the chain of each epoch.
pub(super) struct Ends(pub(super) Sender<Inbox>, pub(super) &'static str);

impl Drop for Ends {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let why = format!("the thread of its {} has ended, by a panic", self.1);
            // It fails when the agent has ended, too.
            let _ = self.0.send(Inbox::Engine(EngineNews::Failed(why)));
        }
    }
}

struct Worker {
    file: Arc<MemberFile>,
    watcher: Option<Arc<dyn Watcher>>,
    spin: Duration,
    told: Receiver<Command>,
    bell: Arc<Bell>,
    waits: Arc<Waits>,
    news: Sender<Inbox>,
    calls: VecDeque<Connected>,
    warned: Option<(String, Instant)>,
}

type Server = (Epoch, MemberServer<FilePages>);

/// Whether the thread goes on.
type GoesOn = bool;

impl Worker {
    fn run(&mut self) {
        let mut server: Option<Server> = None;
        loop {
            let goes_on = match &mut server {
                None => match self.told.recv() {
                    Ok(command) => self.obey(&mut server, command),
                    Err(_) => false,
                },
                Some(_) => self.serve(&mut server),
            };
            if !goes_on {
                self.bell.set(None);
                return;
            }
        }
    }

    fn serve(&mut self, server: &mut Option<Server>) -> GoesOn {
        loop {
            match self.told.try_recv() {
                Ok(command) => {
                    if !self.obey(server, command) {
                        return false;
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        let Some((epoch, running)) = server else {
            return true;
        };
        let epoch = *epoch;
        let turned = running.turn();
        self.waits.tell(running.take_lag(), running.waiting());
        let mut over = None;
        let refusal = running.take_refusal();
        let mut wants_tls = false;
        while let Some(event) = running.member().poll_event() {
            match event {
                MemberEvent::Broken(BrokenGroup::Link { member, reason }) => {
                    tracing::info!(%epoch, place = member, %reason, "the link to a member ended");
                    over = Some(Some(member));
                }
                MemberEvent::Broken(BrokenGroup::Engine(why)) => {
                    tracing::warn!(%epoch, %why, "the engine has stopped");
                    over = Some(None);
                }
                MemberEvent::Refused(refusal) => {
                    tracing::warn!(%epoch, ?refusal, "a message was refused");
                }
                MemberEvent::Denied(Denied::NeedsTls) => wants_tls = true,
                MemberEvent::Denied(denied) => tracing::debug!(%epoch, ?denied, "not let in"),
                MemberEvent::Ready => tracing::debug!(%epoch, "ready"),
                MemberEvent::ClientJoined(client) => tracing::debug!(%epoch, client, "client"),
                MemberEvent::ClientLeft(client) => tracing::debug!(%epoch, client, "client left"),
            }
        }
        if wants_tls {
            self.warn("the next member wants TLS, and this one serves without (--tls-cert)".into());
        }
        if let Some(refusal) = refusal {
            self.tell_refusal(&refusal);
        }
        if let Err(error) = turned {
            let why = format!("the sockets of the engine: {error}");
            self.tell(EngineNews::Failed(why));
            over = Some(None);
        }
        if let Some(suspect) = over {
            // First: when this member's links end the next one loses its neighbour, and should not be heard before this one.
            self.tell(EngineNews::Broken(epoch, suspect));
            self.end(server);
        }
        true
    }

    fn obey(&mut self, server: &mut Option<Server>, command: Command) -> GoesOn {
        match command {
            Command::Open(opening) => {
                self.end(server);
                let epoch = opening.epoch;
                match self.open(*opening) {
                    Ok(opened) => *server = Some((epoch, opened)),
                    Err(why) => {
                        self.tell(EngineNews::Failed(why));
                        self.tell(EngineNews::Broken(epoch, None));
                    }
                }
            }
            Command::Close(done) => {
                self.end(server);
                // Nobody waits any more if it fails.
                let _ = done.send(());
            }
            Command::Call(connected) => match server {
                Some((_, server)) => server.admit(*connected),
                None if self.calls.len() < CALLS_MAX => self.calls.push_back(*connected),
                // The oldest has waited longest in vain.
                None => {
                    self.calls.pop_front();
                    self.calls.push_back(*connected);
                }
            },
            Command::Stop => {
                self.end(server);
                return false;
            }
        }
        true
    }

    fn open(&mut self, opening: Opening) -> Result<MemberServer<FilePages>, String> {
        let said = |error: &dyn std::fmt::Display| error.to_string();
        let bell = Arc::clone(&self.bell);
        let wake = Box::new(move || bell.ring());
        let watcher = self.watcher.clone();
        let pages = FilePages::new(Arc::clone(&self.file), wake, watcher);
        let pages = pages.map_err(|error| said(&error))?;
        // Of this epoch only: its keys and names are gone with it (I12).
        let table = RegionTable::new(rand::random());
        let config = MemberConfig {
            shape: opening.shape,
            member: opening.position,
            memory: GroupMemory::Pages {
                backing: BackingId(1),
                offset: 0,
            },
            domains: [ProtectionDomain(1), ProtectionDomain(2)],
            link: link_config(opening.places.iter().any(|place| place.tls.is_some())),
            reads: Some(opening.reads),
            planted: None,
        };
        let member = Member::new(config, pages, &table, Time(0)).map_err(|error| said(&error))?;
        let server = MemberServer::without_listener(member, opening.places);
        let mut server = server.map_err(|error| said(&error))?;
        server.spin(self.spin);
        self.bell
            .set(Some(server.waker().map_err(|error| said(&error))?));
        for connected in self.calls.drain(..) {
            server.admit(connected);
        }
        Ok(server)
    }

    /// A flush that is under way goes on, and changes nothing.
    fn end(&self, server: &mut Option<Server>) {
        let Some((_, mut running)) = server.take() else {
            return;
        };
        self.waits.tell(Duration::ZERO, None);
        running.last_words();
        self.bell.set(None);
        drop(running.stop());
    }

    /// Who calls is told by the door; what breaks later is as if the connection were lost.
    fn tell_refusal(
        &mut self,
        Refusal {
            called,
            peer,
            cause,
        }: &Refusal,
    ) {
        if *called && !cause.passes() {
            let at = peer.map_or("it".to_owned(), |peer| peer.to_string());
            return self.warn(format!("cannot reach the next member at {at}: {cause}"));
        }
        tracing::debug!(called, ?peer, %cause, "a TLS connection has ended");
    }

    /// Once, until there is something else to say, or it is long ago: these come with every attempt.
    fn warn(&mut self, why: String) {
        let told = |(said, at): &(String, Instant)| *said == why && at.elapsed() < AGAIN;
        if !self.warned.as_ref().is_some_and(told) {
            tracing::warn!(%why);
            self.warned = Some((why, Instant::now()));
        }
    }

    fn tell(&self, news: EngineNews) {
        // It fails when the agent has ended: then this thread is told to end, too.
        let _ = self.news.send(Inbox::Engine(news));
    }
}
