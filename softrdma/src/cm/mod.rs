//! Connection manager over TCP, after the model and in the words of `librdmacm`.
//!
//! An [`EventChannel`] has a thread that moves the bytes of all its connections and tells what happens to them. A program
//! takes its [`Event`]s, answers requests, and posts work on the [queue pairs](crate::verbs) that the events hand over.
//!
//! | librdmacm | here |
//! |---|---|
//! | `rdma_create_event_channel` | [`EventChannel::new`] |
//! | `rdma_resolve_addr`, `rdma_resolve_route` | [`resolve_addr`] |
//! | `rdma_create_qp` | [`ProtectionDomain::queue_pair`](crate::verbs::ProtectionDomain::queue_pair) |
//! | `rdma_connect` | [`EventChannel::connect`] |
//! | `rdma_bind_addr`, `rdma_listen` | [`EventChannel::listen`] |
//! | `rdma_accept`, `rdma_reject` | [`Request::accept`], [`Request::reject`] |
//! | `rdma_get_cm_event` | [`EventChannel::wait_event`] |
//! | `rdma_disconnect` | [`EventChannel::disconnect`] |
//! | `CONNECT_REQUEST`, `ESTABLISHED`, `REJECTED`, `UNREACHABLE`, `CONNECT_ERROR`, `DISCONNECTED`, `TIMEWAIT_EXIT` | [`Event`] |
//! | `IBV_EVENT_SRQ_LIMIT_REACHED` of `ibv_get_async_event` | [`Event::SharedReceivesLow`] |
//!
//! # Example
//!
//! A server and a client in one process; the server turns those away who do not know the word.
//!
//! ```
//! use std::time::Duration;
//! use softrdma::cm::{Event, EventChannel, resolve_addr};
//! use softrdma::verbs::{CompletionQueue, Context, request::SendMessage};
//! use softrdma::{Config, RecvBuffer, WrId};
//!
//! let patience = Duration::from_secs(30);
//! let completions = CompletionQueue::new();
//! let domain = Context::new([1; 32]).allocate_domain();
//!
//! // The server: each connection gets a queue pair with a receive in it.
//! let server = EventChannel::new()?;
//! let (domain_of_server, received) = (domain.clone(), completions.clone());
//! let listener = server.listen("127.0.0.1:0".parse()?, 16, move || {
//!     let mut queue_pair = domain_of_server.queue_pair(Config::default(), &received);
//!     queue_pair.post_recv(WrId(1), RecvBuffer::Vec(64)).expect("there is room");
//!     queue_pair
//! })?;
//!
//! // The client.
//! let client = EventChannel::new()?;
//! let route = resolve_addr(&listener.address().to_string())?;
//! let sent = CompletionQueue::new();
//! let stranger = client.connect(&route, domain.queue_pair(Config::default(), &sent), b"please")?;
//! let friend = client.connect(&route, domain.queue_pair(Config::default(), &sent), b"sesame")?;
//!
//! let (mut answered, mut established) = (0, Vec::new());
//! while answered < 2 {
//!     match server.wait_event(patience) {
//!         Some(Event::ConnectRequest(request)) => {
//!             answered += 1;
//!             match request.request().private_data == b"sesame" {
//!                 true => request.accept(b"come in")?,
//!                 false => request.reject(b"go away")?,
//!             }
//!         }
//!         Some(Event::Established { queue_pair, .. }) => established.push(queue_pair),
//!         other => panic!("{other:?}"),
//!     }
//! }
//! let mut queue_pair = None;
//! for _ in 0..2 {
//!     match client.wait_event(patience) {
//!         Some(Event::Rejected { id, private_data }) => {
//!             assert_eq!((id, &private_data[..]), (stranger, &b"go away"[..]));
//!         }
//!         Some(Event::Established { id, queue_pair: ready }) => {
//!             assert_eq!((id, &ready.established().private_data[..]), (friend, &b"come in"[..]));
//!             queue_pair = Some(ready);
//!         }
//!         other => panic!("{other:?}"),
//!     }
//! }
//! let mut queue_pair = queue_pair.expect("one of them was let in");
//! queue_pair.post_send(SendMessage::inline(*b"hello"))?;
//! let done = loop {
//!     let done = completions.wait(patience).expect("it arrives");
//!     // The receive that waited for the stranger has been flushed.
//!     if done.result.status.is_success() {
//!         break done;
//!     }
//! };
//! assert_eq!(done.result.message.as_deref(), Some(&b"hello"[..]));
//! client.disconnect(friend, queue_pair);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//! - M1. Each connection is reported to have begun once at most, and to have ended exactly once: by `Rejected`, `Unreachable`
//!   or `ConnectError` if it was not established, else by `TimewaitExit`, before which there is one `Disconnected` (I18).
//! - M2. A listener has at most as many connections without an answer as it was told; others wait in the kernel. A channel has
//!   at most [`LINKS_MAX`] connections, and six events waiting for each, beside one for each time that the program arms the
//!   limit of a shared receive queue (I16).
//! - M3. A request that is dropped is rejected.
//!
//! One thread serves all connections of a channel, with `epoll`: for tens of thousands of them or the last microsecond
//! use the reactor of the target.

mod channel;
mod event;
mod link;
mod worker;

pub use channel::{ConnectError, EventChannel, Listener, Route, resolve_addr};
pub use event::{Event, Id, Request};
pub use worker::LINKS_MAX;
