//! The store in etcd, for several machines.
//!
//! A thread with a tokio runtime of its own carries out requests one after the other and sends what it is told back; so this has
//! the same shape as the other stores, and the caller never waits. Compare-and-put is a transaction on the modification
//! revision; reads are linearizable, which is etcd's default. Without TLS: etcd on the same host, or behind a tunnel.
//!
//! etcd counts leases in whole seconds, and has a minimum of its own (one and a half election timeouts): a lease may last
//! longer than asked for. Nothing that must be fast, or safe, hangs on that (docs/membership.md).

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, DeleteOptions, Error, GetOptions, KeyValue,
    PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse, WatchOptions,
};
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use super::{
    Event, Expect, Item, LeaseId, REQUESTS_MAX, Reply, Request, Revision, Store, StoreError,
    Ticket, check,
};

/// How long one request may take; then whether it was carried out is unknown.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// gRPC status NOT_FOUND.
const NOT_FOUND: i32 = 5;

/// A store in etcd.
#[derive(Debug)]
pub struct EtcdStore {
    requests: Option<mpsc::Sender<(Ticket, Request)>>,
    events: Receiver<Event>,
    /// Answers that are known without asking.
    refused: VecDeque<Event>,
    tickets: u64,
    thread: Option<JoinHandle<()>>,
}

impl EtcdStore {
    /// A store on these endpoints (`http://host:port`), under a prefix of its own. Connects when first asked, and again after
    /// failures.
    ///
    /// # Errors
    /// If there can be no thread or runtime.
    pub fn open(endpoints: &[String], prefix: &str) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (requests, asked) = mpsc::channel(REQUESTS_MAX);
        let (tell, events) = channel();
        let mut worker = Worker {
            endpoints: endpoints.to_vec(),
            prefix: prefix.to_owned(),
            client: None,
            tell,
        };
        let thread = thread::Builder::new().name("etcd".into()).spawn(move || {
            LocalSet::new().block_on(&runtime, worker.run(asked));
        })?;
        Ok(Self {
            requests: Some(requests),
            events,
            refused: VecDeque::new(),
            tickets: 0,
            thread: Some(thread),
        })
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was told by answers that did not come.
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
            (Ok(()), Some(requests)) => match requests.try_send((ticket, request)) {
                Ok(()) => None,
                Err(mpsc::error::TrySendError::Full(_)) => Some(StoreError::Busy),
                Err(_) => Some(StoreError::Unavailable("its thread has ended".into())),
            },
            (Ok(()), None) => Some(StoreError::Unavailable("it is closed".into())),
        };
        if let Some(error) = refused {
            self.refused.push_back(Event::Answer(ticket, Err(error)));
        }
        ticket
    }

    fn poll(&mut self) -> Option<Event> {
        (self.refused.pop_front()).or_else(|| self.events.try_recv().ok())
    }
}

struct Worker {
    endpoints: Vec<String>,
    prefix: String,
    client: Option<Client>,
    tell: std::sync::mpsc::Sender<Event>,
}

impl Worker {
    async fn run(&mut self, mut asked: mpsc::Receiver<(Ticket, Request)>) {
        while let Some((ticket, request)) = asked.recv().await {
            let answer = tokio::time::timeout(REQUEST_TIMEOUT, self.carry_out(request)).await;
            let answer = match answer {
                Ok(Ok(reply)) => Ok(reply),
                Ok(Err(error)) => Err(StoreError::Unavailable(error.to_string())),
                Err(_) => Err(StoreError::Unavailable(format!(
                    "nothing from {} within {REQUEST_TIMEOUT:?}",
                    self.endpoints.join(", ")
                ))),
            };
            if answer.is_err() {
                self.client = None;
            }
            if self.tell.send(Event::Answer(ticket, answer)).is_err() {
                return;
            }
        }
    }

    async fn client(&mut self) -> Result<Client, Error> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let options = ConnectOptions::new().with_connect_timeout(REQUEST_TIMEOUT);
        let client = Client::connect(&self.endpoints, Some(options)).await?;
        Ok(self.client.insert(client).clone())
    }

    async fn carry_out(&mut self, request: Request) -> Result<Reply, Error> {
        let mut client = self.client().await?;
        match request {
            Request::List { prefix } => {
                let key = self.key(&prefix);
                let options = GetOptions::new().with_prefix();
                let found = client.get(key, Some(options)).await?;
                let revision = found.header().map_or(0, |header| header.revision());
                let items = found.kvs().iter().map(|kv| self.item(kv));
                Ok(Reply::Items(
                    items.collect(),
                    Revision(revision.unsigned_abs()),
                ))
            }
            Request::Put {
                key,
                value,
                expect,
                lease,
            } => {
                let key = self.key(&key);
                let options = lease.map(|lease| PutOptions::new().with_lease(lease.0));
                let put = TxnOp::put(key.clone(), value, options);
                match self.change(&mut client, key, expect, put).await {
                    Err(Error::GRpcStatus(status)) if status.code() as i32 == NOT_FOUND => {
                        Ok(Reply::NoLease)
                    }
                    reply => reply,
                }
            }
            Request::Delete { key, expect } => {
                let key = self.key(&key);
                let delete = TxnOp::delete(key.clone(), Some(DeleteOptions::new()));
                self.change(&mut client, key, expect, delete).await
            }
            Request::Grant { ttl } => {
                let seconds = ttl.as_millis().div_ceil(1000) as i64;
                let granted = client.lease_grant(seconds, None).await?;
                Ok(Reply::Granted(LeaseId(granted.id())))
            }
            Request::KeepAlive { lease } => match client.lease_keep_alive(lease.0).await {
                Ok(_) => Ok(Reply::Alive),
                Err(Error::LeaseKeepAliveError(_)) => {
                    let left = client.lease_time_to_live(lease.0, None).await?;
                    Ok(if left.ttl() > 0 {
                        Reply::Alive
                    } else {
                        Reply::NoLease
                    })
                }
                Err(error) => Err(error),
            },
            Request::Revoke { lease } => match client.lease_revoke(lease.0).await {
                Ok(_) => Ok(Reply::Alive),
                Err(Error::GRpcStatus(status)) if status.code() as i32 == NOT_FOUND => {
                    Ok(Reply::NoLease)
                }
                Err(error) => Err(error),
            },
            Request::Watch { prefix } => {
                self.watch(client, prefix).await?;
                Ok(Reply::Watching)
            }
        }
    }

    async fn change(
        &self,
        client: &mut Client,
        key: Vec<u8>,
        expect: Expect,
        change: TxnOp,
    ) -> Result<Reply, Error> {
        let txn = match expect {
            Expect::Anything => Txn::new().and_then([change]),
            Expect::Revision(revision) => {
                let revision = revision.0 as i64;
                let compare = Compare::mod_revision(key.clone(), CompareOp::Equal, revision);
                Txn::new()
                    .when([compare])
                    .and_then([change])
                    .or_else([TxnOp::get(key, None)])
            }
        };
        let response: TxnResponse = client.txn(txn).await?;
        if response.succeeded() {
            let revision = response.header().map_or(0, |header| header.revision());
            return Ok(Reply::Done(Revision(revision.unsigned_abs())));
        }
        let found = response
            .op_responses()
            .into_iter()
            .find_map(|one| match one {
                TxnOpResponse::Get(found) => found.kvs().first().map(|kv| self.item(kv)),
                _ => None,
            });
        Ok(Reply::Conflict(found))
    }

    /// Tells of changes until the store is closed; also when the watch was interrupted, since something may have been missed.
    async fn watch(&self, mut client: Client, prefix: String) -> Result<(), Error> {
        let (key, tell) = (self.key(&prefix), self.tell.clone());
        let options = || Some(WatchOptions::new().with_prefix());
        let mut stream = client.watch(key.clone(), options()).await?;
        // etcd says first that it watches.
        stream.message().await?;
        tokio::task::spawn_local(async move {
            loop {
                while let Ok(Some(_)) = stream.message().await {
                    let prefix = prefix.clone();
                    if tell.send(Event::Changed { prefix }).is_err() {
                        return;
                    }
                }
                loop {
                    tokio::time::sleep(REQUEST_TIMEOUT / 20).await;
                    if let Ok(again) = client.watch(key.clone(), options()).await {
                        stream = again;
                        break;
                    }
                }
                let prefix = prefix.clone();
                if tell.send(Event::Changed { prefix }).is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    fn key(&self, key: &str) -> Vec<u8> {
        format!("{}{key}", self.prefix).into_bytes()
    }

    fn item(&self, kv: &KeyValue) -> Item {
        let key = String::from_utf8_lossy(kv.key());
        Item {
            key: key.strip_prefix(&self.prefix).unwrap_or(&key).to_owned(),
            value: kv.value().to_vec(),
            revision: Revision(kv.mod_revision().unsigned_abs()),
        }
    }
}
