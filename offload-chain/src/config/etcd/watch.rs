//! A watch: a thread that listens to what etcd says about a prefix, on a connection of its own.
//!
//! etcd first says that it watches, from the revision after the one that it has then; so what changes after
//! [`Reply::Watching`](super::Reply::Watching) is told. A watch may be lost: the connection, the member, its leader, or the revision that it
//! has to go on from. Then it is set up anew, at the next endpoint after a failure, and tells that something
//! changed, whether or not: whoever then lists sees all that was missed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::gateway::{Gateway, Stream};
use super::message::{Base64, Range, WatchCreate, Watched};
use super::{Event, REQUEST_TIMEOUT, Said, Teller};

/// Watches at a time: a thread and a connection each.
pub(super) const WATCHES_MAX: usize = 64;
/// Between attempts to set a watch up again.
const RETRY: Duration = Duration::from_millis(100);

/// That a prefix changed; told once until it is taken, so that who does not listen costs nothing.
pub(super) struct Pending {
    prefix: String,
    told: AtomicBool,
}

impl Pending {
    pub(super) fn take(&self) -> Event {
        // First this: what changes from here on is told again.
        self.told.store(false, Ordering::SeqCst);
        let prefix = self.prefix.clone();
        Event::Changed { prefix }
    }
}

pub(super) struct Watch {
    gateway: Arc<Gateway>,
    create: WatchCreate,
    pending: Arc<Pending>,
    tell: Teller,
}

impl Watch {
    pub(super) fn new(gateway: Arc<Gateway>, key: Base64, prefix: String, tell: Teller) -> Self {
        Self {
            gateway,
            create: WatchCreate::of(Range::with_prefix(key)),
            pending: Arc::new(Pending {
                prefix,
                told: AtomicBool::new(false),
            }),
            tell,
        }
    }

    /// Starts the thread, and waits until it watches.
    pub(super) fn start(self) -> Result<JoinHandle<()>, String> {
        // Without room: what is said is heard, or nobody is there any more.
        let (say, heard) = sync_channel(0);
        let thread = thread::Builder::new()
            .name("etcd-watch".into())
            .spawn(move || self.run(&say))
            .map_err(|error| format!("cannot start a thread to watch etcd: {error}"))?;
        match heard.recv_timeout(REQUEST_TIMEOUT) {
            Ok(Ok(())) => Ok(thread),
            Ok(Err(why)) => Err(why),
            Err(_) => Err(format!("etcd does not watch within {REQUEST_TIMEOUT:?}")),
        }
    }

    fn run(&self, say: &SyncSender<Result<(), String>>) {
        let mut stream = match self.set_up_anywhere() {
            Ok(stream) => {
                if say.send(Ok(())).is_err() {
                    return;
                }
                stream
            }
            Err(why) => {
                // Whoever does not wait for it has given up.
                let _ = say.send(Err(why));
                return;
            }
        };
        loop {
            let since = Instant::now();
            while let Ok(said) = stream.next().and_then(judge) {
                if said == Heard::Changes && self.tell().is_err() {
                    return;
                }
            }
            let mut at_once = since.elapsed() >= RETRY;
            stream = loop {
                if self.gateway.is_closed() || !(at_once || self.gateway.pause(RETRY)) {
                    return;
                }
                match self.set_up() {
                    Ok(stream) => break stream,
                    Err(_) => at_once = false,
                }
            };
            if self.tell().is_err() {
                return;
            }
        }
    }

    /// At whichever endpoint it can be.
    fn set_up_anywhere(&self) -> Result<Stream, String> {
        let mut failed = Vec::new();
        for _ in self.gateway.endpoints() {
            match self.set_up() {
                Ok(stream) => return Ok(stream),
                Err(why) => failed.push(why),
            }
        }
        Err(failed.join("; "))
    }

    fn set_up(&self) -> Result<Stream, String> {
        let mut stream =
            (self.gateway.stream("watch", &self.create)).map_err(|problem| problem.to_string())?;
        let why = match stream.next().and_then(judge) {
            Ok(Heard::Created) => return Ok(stream),
            Ok(_) => "etcd does not say that it watches; check the endpoint".into(),
            Err(why) => why,
        };
        self.gateway.give_up(&stream);
        Err(why)
    }

    fn tell(&self) -> Result<(), ()> {
        if self.pending.told.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let changed = Said::Changed(self.pending.clone());
        self.tell.tell(changed)
    }
}

#[derive(PartialEq, Eq)]
enum Heard {
    Created,
    Changes,
    Nothing,
}

/// What etcd means; an error, if the watch is over.
fn judge(said: Watched) -> Result<Heard, String> {
    match said {
        Watched {
            error: Some(refused),
            ..
        } => Err(format!("etcd says: {}", refused.message)),
        Watched {
            result: Some(result),
            ..
        } => {
            if result.canceled {
                Err(format!("etcd ends the watch: {}", result.cancel_reason))
            } else if !result.events.is_empty() {
                Ok(Heard::Changes)
            } else if result.created {
                Ok(Heard::Created)
            } else {
                Ok(Heard::Nothing)
            }
        }
        Watched { .. } => Err("etcd says nothing about the watch; check the endpoint".into()),
    }
}
