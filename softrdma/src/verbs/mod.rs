//! Verbs: the endpoint as RDMA programs know it, with the rules of the verbs in its types.
//!
//! This is a thin layer over [`Connection`](crate::Connection) and [`RegionTable`](crate::RegionTable): names, ownership
//! and states, no protocol and no I/O. A [`ProtectionDomain`] owns [`MemoryRegion`]s, and [`MemoryWindow`]s and
//! [`DomainWindow`]s over them (type 2 and type 1), which end when they are dropped. A [`QueuePair`] belongs to one, and
//! reports to a [`CompletionQueue`], which several may share. Work requests are built by [`request`]'s types. A
//! [`Transport`] is the other side of a queue pair, for who moves its bytes: the [connection manager](crate::cm) over TCP,
//! a [`Cable`] in memory, or a loop of your own.
//!
//! For servers with page-backed regions and thousands of connections, use `Connection` itself.
//!
//! # Example
//!
//! Two queue pairs in memory. One side registers a buffer; the other writes it, adds to a counter in it, and reads it.
//!
//! ```
//! use softrdma::verbs::request::{FetchAdd, Read, Word, Write};
//! use softrdma::verbs::{Cable, CompletionQueue, Context, Step};
//! use softrdma::{Buffer, Config, LocalSlice, Rights};
//!
//! // Two programs, each with its table of regions.
//! let (ours, theirs) = (Context::new([1; 32]), Context::new([2; 32]));
//! let (our_domain, their_domain) = (ours.allocate_domain(), theirs.allocate_domain());
//! let completions = CompletionQueue::new();
//!
//! // They let us use 4 KiB of their memory.
//! let memory = Buffer::zeroed(4096);
//! let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
//! let region = their_domain.register(&memory, rights)?;
//!
//! // Set-up: a queue pair changes its type when it changes its state.
//! let client = our_domain.queue_pair(Config::default(), &completions);
//! let server = their_domain.queue_pair(Config::default(), &CompletionQueue::new());
//! let (client, server) = (client.connect(b"hello")?, server.listen());
//! let mut cable = Cable::new(client.transport(), server.transport());
//! cable.run();
//! let Step::Ready(request) = server.poll() else { panic!("the request has arrived") };
//! assert_eq!(request.request().private_data, b"hello");
//! let _server = request.accept(b"welcome")?;
//! cable.run();
//! let Step::Ready(mut client) = client.poll() else { panic!("it has been accepted") };
//! assert_eq!(client.established().private_data, b"welcome");
//!
//! // Work. The address, the STag and the rights would have come in a message.
//! client.post_send(Write::new(b"one-sided".to_vec(), region.remote(100)).wr_id(1))?;
//! let counter = Word::new(region.remote(8)).expect("a multiple of eight");
//! client.post_send(FetchAdd::new(counter, 5).wr_id(2).unsignaled())?;
//! let sink = Buffer::zeroed(5);
//! client.post_send(Read::new(LocalSlice::whole(&sink), region.remote(104)).wr_id(3).fenced())?;
//! cable.run();
//!
//! let done: Vec<u64> = std::iter::from_fn(|| completions.poll())
//!     .map(|done| {
//!         assert!(done.result.status.is_success());
//!         assert_eq!(done.queue_pair, client.number());
//!         done.result.wr_id.0
//!     })
//!     .collect();
//! assert_eq!(done, [1, 3], "in order, and not the unsignaled one");
//! assert_eq!(sink.to_vec(0, 5), b"sided");
//! assert_eq!(memory.to_vec(8, 8), 5_u64.to_ne_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What does not compile
//!
//! Posting work on a queue pair that is not established. `ibv_post_send` would find that out when it runs:
//!
//! ```compile_fail,E0599
//! use softrdma::verbs::{CompletionQueue, Context, request::Write};
//! # use softrdma::{Config, RemoteAddr, Stag, TaggedOffset};
//! # let remote = RemoteAddr { stag: Stag(1), to: TaggedOffset(0) };
//! let domain = Context::new([1; 32]).allocate_domain();
//! let mut client = domain.queue_pair(Config::default(), &CompletionQueue::new()).connect(b"").unwrap();
//! client.post_send(Write::new(vec![1], remote)); // `QueuePair<Connecting>` has no such method
//! ```
//!
//! Connecting a queue pair twice, or using one after it has been disconnected:
//!
//! ```compile_fail,E0382
//! # use softrdma::{Config, verbs::{CompletionQueue, Context}};
//! let domain = Context::new([1; 32]).allocate_domain();
//! let client = domain.queue_pair(Config::default(), &CompletionQueue::new());
//! let first = client.connect(b"");
//! let second = client.connect(b""); // moved
//! ```
//!
//! ```compile_fail,E0382
//! # use softrdma::verbs::{QueuePair, Rts, request::SendMessage};
//! fn last_words(mut client: QueuePair<Rts>) {
//!     client.disconnect();
//!     client.post_send(SendMessage::new(b"bye".to_vec())); // moved
//! }
//! ```
//!
//! Answering a request for a connection twice:
//!
//! ```compile_fail,E0382
//! # use softrdma::verbs::{QueuePair, Requested};
//! fn answer(server: QueuePair<Requested>) {
//!     let _ = server.accept(b"");
//!     let _ = server.reject(b""); // moved
//! }
//! ```
//!
//! An atomic operation on an address that nobody has looked at; it has to be a [`Word`](request::Word):
//!
//! ```compile_fail,E0308
//! # use softrdma::{RemoteAddr, verbs::request::FetchAdd};
//! fn count(remote: RemoteAddr) -> FetchAdd {
//!     FetchAdd::new(remote, 1)
//! }
//! ```
//!
//! A bind of one type for a window of the other, or choosing an STag that is not the program's:
//!
//! ```compile_fail,E0308
//! # use softrdma::{Rights, verbs::{DomainWindow, MemoryRegion, request::BindWindow}};
//! fn bind(window: &DomainWindow, region: &MemoryRegion) -> BindWindow {
//!     BindWindow::new(window, 7, region, 0..8, Rights::REMOTE_READ) // `BindDomainWindow` it is, without a key
//! }
//! ```
//!
//! ```compile_fail,E0308
//! # use softrdma::{Rights, verbs::{MemoryRegion, MemoryWindow, request::BindDomainWindow}};
//! fn bind(window: &mut MemoryWindow, region: &MemoryRegion) -> BindDomainWindow {
//!     BindDomainWindow::new(window, region, 0..8, Rights::REMOTE_READ)
//! }
//! ```
//!
//! Flags that a kind of request does not have:
//!
//! ```compile_fail,E0599
//! # use softrdma::{LocalSlice, RemoteAddr, verbs::request::Read};
//! fn read(sink: LocalSlice, remote: RemoteAddr) -> Read {
//!     Read::new(sink, remote).solicited() // nobody at the peer would see the event
//! }
//! ```
//!
//! More inline bytes than a request can hold, known when it is compiled:
//!
//! ```compile_fail,E0080
//! # use softrdma::{RemoteAddr, Stag, TaggedOffset, verbs::request::Write};
//! # let remote = RemoteAddr { stag: Stag(1), to: TaggedOffset(0) };
//! let write = Write::inline([0; 33], remote); // 32 at most
//! ```
//!
//! A FLUSH on a connection whose peer may not know it; [`QueuePair::profile`] says whether it does:
//!
//! ```compile_fail,E0277
//! # use softrdma::RemoteAddr;
//! # use softrdma::verbs::{QueuePair, Rts, request::Flush};
//! fn persist(client: &mut QueuePair<Rts>, remote: RemoteAddr) {
//!     client.post_send(Flush::region(remote)); // `client.profile()?.post(..)` it is
//! }
//! ```
//!
//! # Invariants
//! - V1. A region or window ends when its owner is dropped; when the drop returned, no access through it happens (I11).
//! - V2. A completion queue cannot overflow: it holds no completions, but knows which queue pairs may have some, each once
//!   (I16). What limits them is the depth of the queues of each.
//! - V3. A queue pair that is dropped ends its connection at once, and what was posted on it completes as flushed (I18).

mod cable;
mod completion_queue;
mod domain;
mod queue_pair;
mod region;
pub mod request;
mod shared;
mod transport;

pub use cable::Cable;
pub use completion_queue::{CompletionQueue, WorkCompletion};
pub use domain::{Context, ProtectionDomain};
pub use queue_pair::{
    Closing, Connecting, Listening, Profile, QueuePair, Requested, Reset, Rts, Step,
};
pub use region::{DomainWindow, MemoryRegion, MemoryWindow};
pub use transport::Transport;
