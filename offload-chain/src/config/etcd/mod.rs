//! The store in etcd, for several machines.
//!
//! Spoken is etcd's own gateway: the JSON of its gRPC interface over HTTP/1.1, on the port that clients use anyway (etcd 3.4 or
//! later). So whoever has the Rust toolchain can build it: a gRPC client is generated when it is built, which needs `protoc`, and
//! brings an asynchronous runtime along. It costs base64 (a third more bytes) and a hop inside of etcd. On two busy cores, with
//! etcd on the same machine, half of 1,000 puts of 256 bytes took 2.7 ms at most, and of reads 1.6 ms; the fastest twentieth 0.9 ms
//! and 0.5 ms. The connection is kept and used again, so a heartbeat is a write and a read on it.
//!
//! A thread carries out requests one after the other, so answers have the order of asking, and the caller never waits. Compare-and-put
//! is a transaction on the modification revision; reads are linearizable, which is etcd's default. `gateway` is what asks, at
//! which endpoint, for how long; `message` the JSON; `watch` a thread per watched prefix, on a connection of its own; `endpoint` what
//! an endpoint may look like; `tls` whom to trust. etcd's gateway passes no names from certificates on: who asks is told by user and password.
//!
//! # Failure
//! An endpoint that cannot be connected to was not asked: the next one is, within the same request. Nor was one that says that it has no
//! leader, as who is cut off from the majority; if none has, they are electing one, which is waited for. After any other
//! failure it is unknown whether the request was carried out, and it is not tried again; the next request goes to
//! the next endpoint. What is answered has a bounded size and time, and what is not etcd's is an error, never a reply.
//!
//! Dropping the store shuts its connections down, which ends its threads wherever they read. What is left to wait for is a
//! connection or look-up of a name in the making: `REQUEST_TIMEOUT` at most.
//!
//! etcd counts leases in whole seconds, and has a minimum of its own (one and a half election timeouts): a lease may last
//! longer than asked for. Nothing that must be fast, or safe, hangs on that (docs/membership.md).

mod endpoint;
mod gateway;
mod message;
mod names;
mod tls;
mod watch;

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use self::endpoint::Endpoint;
pub use self::endpoint::EtcdOpenError;
use self::gateway::{Gateway, Problem};
use self::message::{
    Base64, Compare, Granted, Int, KeptAlive, KeyValue, LeaseGrant, LeaseName, Op, Put, Range,
    Ranged, Revoked, Txn, TxnDone,
};
pub use self::tls::{EtcdTls, EtcdTlsError};
use self::watch::{Pending, WATCHES_MAX, Watch};
use super::{
    Event, Expect, Item, LeaseId, REQUESTS_MAX, Reply, Request, Store, StoreError, Ticket, Wake,
    check,
};

/// How long one request may take; then whether it was carried out is unknown.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// A store in etcd.
pub struct EtcdStore {
    gateway: Arc<Gateway>,
    requests: Option<Sender<(Ticket, Request)>>,
    said: Receiver<Said>,
    wake: Waker,
    /// What was not answered yet, in the order of asking.
    waiting: VecDeque<Waiting>,
    tickets: u64,
    thread: Option<JoinHandle<()>>,
}

enum Waiting {
    /// The thread will answer.
    Asked(Ticket),
    /// The answer was known without asking.
    Refused(Ticket, StoreError),
}

/// Whom to wake, if somebody wants that.
type Waker = Arc<Mutex<Option<Wake>>>;

/// Where threads tell the store something.
#[derive(Clone)]
struct Teller {
    said: Sender<Said>,
    wake: Waker,
}

impl Teller {
    /// It fails when the store is gone.
    fn tell(&self, said: Said) -> Result<(), ()> {
        self.said.send(said).map_err(drop)?;
        wake(&self.wake);
        Ok(())
    }
}

fn wake(waker: &Waker) {
    let wake = waker.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(wake) = &*wake {
        wake();
    }
}

/// What threads tell the store.
enum Said {
    Answer(Ticket, Result<Reply, StoreError>),
    Changed(Arc<Pending>),
}

impl EtcdStore {
    /// A store on these endpoints (`http://host:port`, `https://user:password@host:port`) of one etcd, under a prefix of its
    /// own. Connects when first asked, and again after failures. Files of TLS are read once, here.
    ///
    /// # Errors
    /// If an endpoint is not one, TLS is wanted and a file cannot be used, or there can be no thread.
    pub fn open(endpoints: &[String], prefix: &str, tls: &EtcdTls) -> Result<Self, EtcdOpenError> {
        let endpoints: Result<Vec<_>, _> =
            endpoints.iter().map(|text| Endpoint::parse(text)).collect();
        let gateway = Arc::new(Gateway::new(endpoints?, tls)?);
        let (requests, asked) = channel();
        let (tell, said) = channel();
        let wake = Waker::default();
        let tell = Teller {
            said: tell,
            wake: Arc::clone(&wake),
        };
        let mut worker = Worker {
            gateway: gateway.clone(),
            prefix: prefix.to_owned(),
            tell,
            watches: Vec::new(),
        };
        let thread = thread::Builder::new()
            .name("etcd".into())
            .spawn(move || worker.run(&asked))
            .map_err(EtcdOpenError::Thread)?;
        Ok(Self {
            gateway,
            requests: Some(requests),
            said,
            wake,
            waiting: VecDeque::new(),
            tickets: 0,
            thread: Some(thread),
        })
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.gateway.close();
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was told by answers.
            let _ = thread.join();
        }
    }
}

impl Store for EtcdStore {
    fn submit(&mut self, request: Request) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let refused = match (check(&request), &self.requests) {
            (Err(error), _) => Some(error),
            _ if self.waiting.len() >= REQUESTS_MAX => Some(StoreError::Busy),
            (Ok(()), Some(requests)) => (requests.send((ticket, request)).err()).map(|_| ended()),
            (Ok(()), None) => Some(ended()),
        };
        match refused {
            Some(error) => {
                self.waiting.push_back(Waiting::Refused(ticket, error));
                wake(&self.wake);
            }
            None => self.waiting.push_back(Waiting::Asked(ticket)),
        }
        ticket
    }

    fn poll(&mut self) -> Option<Event> {
        if let Some(Waiting::Refused(..)) = self.waiting.front()
            && let Some(Waiting::Refused(ticket, error)) = self.waiting.pop_front()
        {
            return Some(Event::Answer(ticket, Err(error)));
        }
        // Asked before looking, so that nothing is overlooked that it said.
        let over = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        match self.said.try_recv() {
            Ok(Said::Answer(ticket, answer)) => {
                self.waiting.pop_front();
                Some(Event::Answer(ticket, answer))
            }
            Ok(Said::Changed(pending)) => Some(pending.take()),
            Err(_) if over => match self.waiting.pop_front()? {
                Waiting::Asked(ticket) => Some(Event::Answer(ticket, Err(ended()))),
                Waiting::Refused(ticket, error) => Some(Event::Answer(ticket, Err(error))),
            },
            Err(_) => None,
        }
    }

    fn wake_by(&mut self, wake: Wake) -> bool {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = Some(wake);
        true
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore")
            .field("endpoints", &self.gateway.endpoints())
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

fn ended() -> StoreError {
    StoreError::Unavailable("the thread that asks etcd has ended; open the store again".into())
}

struct Worker {
    gateway: Arc<Gateway>,
    prefix: String,
    tell: Teller,
    /// What is watched, by whom.
    watches: Vec<(String, JoinHandle<()>)>,
}

impl Worker {
    fn run(&mut self, asked: &Receiver<(Ticket, Request)>) {
        while let Ok((ticket, request)) = asked.recv() {
            if self.gateway.is_closed() {
                break;
            }
            let answer = self.carry_out(request);
            if self.tell.tell(Said::Answer(ticket, answer)).is_err() {
                break;
            }
        }
        for (_, watch) in self.watches.drain(..) {
            // It has nobody left to tell.
            let _ = watch.join();
        }
    }

    fn carry_out(&mut self, request: Request) -> Result<Reply, StoreError> {
        let asked = match request {
            Request::List { prefix } => self.list(&prefix),
            Request::Put {
                key,
                value,
                expect,
                lease,
            } => {
                let key = self.key(&key);
                let put = Op::Put(Put {
                    key: key.clone(),
                    value: Base64(value),
                    lease: lease.map(|lease| Int(lease.0)),
                });
                or_no_lease(self.change(key, expect, put))
            }
            Request::Delete { key, expect } => {
                let key = self.key(&key);
                let delete = Op::Delete(Range::of(key.clone()));
                self.change(key, expect, delete)
            }
            Request::Grant { ttl } => {
                let seconds = Int(ttl.as_millis().div_ceil(1000) as i64);
                (self.gateway)
                    .ask("lease/grant", &LeaseGrant { seconds })
                    .map(|granted: Granted| Reply::Granted(LeaseId(granted.id.0)))
            }
            Request::KeepAlive { lease } => self
                .gateway
                .ask("lease/keepalive", &LeaseName { id: Int(lease.0) })
                .map(|answer: KeptAlive| match answer.result.seconds.0 {
                    // So it says that there is none.
                    ..=0 => Reply::NoLease,
                    _ => Reply::Alive,
                }),
            Request::Revoke { lease } => or_no_lease(
                (self.gateway)
                    .ask("lease/revoke", &LeaseName { id: Int(lease.0) })
                    .map(|_: Revoked| Reply::Alive),
            ),
            Request::Watch { prefix } => return self.watch(prefix),
        };
        asked.map_err(|problem| StoreError::Unavailable(problem.to_string()))
    }

    fn list(&self, prefix: &str) -> Result<Reply, Problem> {
        let range = Range::with_prefix(self.key(prefix));
        let found: Ranged = self.gateway.ask("kv/range", &range)?;
        let revision = found.header.revision();
        let items = found.kvs.into_iter().map(|kv| self.item(kv));
        Ok(Reply::Items(items.collect(), revision))
    }

    fn change(&self, key: Base64, expect: Expect, change: Op) -> Result<Reply, Problem> {
        let txn = match expect {
            Expect::Anything => Txn::always(change),
            Expect::Revision(revision) => Txn {
                compare: vec![Compare::revision(key.clone(), revision)],
                success: vec![change],
                failure: vec![Op::Range(Range::of(key))],
            },
        };
        let done: TxnDone = self.gateway.ask("kv/txn", &txn)?;
        if done.succeeded {
            return Ok(Reply::Done(done.header.revision()));
        }
        let found = (done.responses.into_iter()).find_map(|response| response.range);
        match found {
            Some(found) if expect != Expect::Anything => {
                let kv = found.kvs.into_iter().next();
                Ok(Reply::Conflict(kv.map(|kv| self.item(kv))))
            }
            _ => Err(Problem::Unknown(
                "etcd refused a transaction, and does not say what it found".into(),
            )),
        }
    }

    fn watch(&mut self, prefix: String) -> Result<Reply, StoreError> {
        self.watches.retain(|(_, watch)| !watch.is_finished());
        if self.watches.iter().any(|(watched, _)| *watched == prefix) {
            return Ok(Reply::Watching);
        }
        if self.watches.len() >= WATCHES_MAX {
            return Err(StoreError::Invalid("it watches 64 prefixes already"));
        }
        let key = self.key(&prefix);
        let watch = Watch::new(self.gateway.clone(), key, prefix.clone(), self.tell.clone());
        let thread = watch.start().map_err(StoreError::Unavailable)?;
        self.watches.push((prefix, thread));
        Ok(Reply::Watching)
    }

    fn key(&self, key: &str) -> Base64 {
        Base64(format!("{}{key}", self.prefix).into_bytes())
    }

    fn item(&self, kv: KeyValue) -> Item {
        let key = String::from_utf8_lossy(&kv.key.0);
        Item {
            key: key.strip_prefix(&self.prefix).unwrap_or(&key).to_owned(),
            revision: kv.revision(),
            value: kv.value.0,
        }
    }
}

/// What etcd does not find is the lease.
fn or_no_lease(asked: Result<Reply, Problem>) -> Result<Reply, Problem> {
    match asked {
        Err(Problem::Refused(refused)) if refused.is_not_found() => Ok(Reply::NoLease),
        asked => asked,
    }
}
