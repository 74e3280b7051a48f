//! Software iWARP endpoint: MPA, DDP and RDMAP (RFC 5044, 5041, 5040, 6581, 7306) without I/O.
//!
//! A [`Connection`] turns received bytes into memory accesses and completions, and work requests and answers into
//! bytes to send. It reads no clock, owns no socket and starts no thread: a driver does, in a short loop. What peers
//! may touch is in a [`RegionTable`] that all connections share. A region lies in memory ([`Buffer`]) or in pages that
//! a [`PageStore`] brings when they are touched; registering it stores an extent, whatever its size.
//!
//! Data takes as few steps as software can: FPDUs are parsed where they were received, WRITEs are copied from there
//! into their page, READs from their page into the send buffer behind their header. In steady state nothing is
//! allocated per operation.
//!
//! # Example
//!
//! Two connections that talk in memory. One registers a buffer; the other writes and reads it.
//!
//! ```
//! use softrdma::driver::loopback::Pair;
//! use softrdma::*;
//!
//! let (ours, theirs) = (RegionTable::new([1; 32]), RegionTable::new([2; 32]));
//! let memory = Buffer::zeroed(8192);
//! let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
//! let region = theirs.register(RegionSpec::memory(ProtectionDomain(0), rights, &memory))?;
//!
//! let client = Connection::initiator(Config::default(), &ours, b"", Time(0))?;
//! let target = Connection::responder(Config::default(), &theirs, Time(0));
//! let mut pair = Pair::new(client, NoPages, target, NoPages);
//! pair.run();
//! assert!(matches!(pair.b.connection.poll_event(), Some(Event::ConnectRequest(_))));
//! pair.b.connection.accept(b"")?;
//!
//! let source = Source::Bytes(b"one-sided".to_vec());
//! let write = Operation::Write { source, remote: region.remote(100) };
//! pair.a.connection.post_send(WorkRequest::new(WrId(1), write))?;
//! let sink = Buffer::zeroed(5);
//! let read = Operation::Read { sink: LocalSlice::whole(&sink), remote: region.remote(104) };
//! pair.a.connection.post_send(WorkRequest::new(WrId(2), read))?;
//! pair.run();
//!
//! for wr_id in [WrId(1), WrId(2)] {
//!     let done = pair.a.connection.poll_completion().expect("two completions, in order");
//!     assert_eq!((done.wr_id, done.status), (wr_id, Status::Success));
//! }
//! assert_eq!(sink.to_vec(0, 5), b"sided");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The driver's loop
//!
//! Tell the connection what happened:
//!
//! | what | call |
//! |---|---|
//! | bytes arrived | [`handle_bytes`](Connection::handle_bytes); what it does not take is offered again later |
//! | FIN, socket error | [`handle_eof`](Connection::handle_eof), [`handle_transport_error`](Connection::handle_transport_error) |
//! | a page came, has been given back, something is durable | [`handle_page`](Connection::handle_page), [`handle_put`](Connection::handle_put), [`handle_durable`](Connection::handle_durable) |
//! | time passed | [`handle_timeout`](Connection::handle_timeout), due at [`poll_timeout`](Connection::poll_timeout) |
//! | while it [drains](Connection::is_draining), the socket took nothing for [`close_timeout`](Connection::close_timeout), or gave nothing of what it [awaits](Connection::awaits_answers) | [`handle_stall`](Connection::handle_stall) |
//!
//! After any of these, and after posting work, do what it wants:
//!
//! 1. take all [`poll_event`](Connection::poll_event)s and [`poll_completion`](Connection::poll_completion)s;
//! 2. unless bytes of an earlier call are still to be sent, call [`poll_transmit`](Connection::poll_transmit) and send
//!    everything it appended, in order;
//! 3. take events and completions again: sending completes WRITEs and SENDs, and may be the last step of a close;
//! 4. look at [`socket_state`](Connection::socket_state) once all is sent: shut down, or close and drop the connection; a
//!    connection can be over while its bytes are stuck, which are waited for no longer than the driver likes;
//! 5. receive only while [`wants_input`](Connection::wants_input).
//!
//! A connection is dropped only at [`SocketState::Close`]; [`Event::Closed`] has been reported by then. Tickets still
//! under way may be answered to nobody: the driver drops the page. Two connections must not share a
//! [`Config::tag`] while tickets of either are under way.
//!
//! # Invariants
//!
//! - C1. What arrives takes effect strictly in stream order, and before anything behind it: a WRITE whose page is
//!   absent stops the inbound side until it is placed, and so does an atomic operation. READs are the exception: they
//!   are taken into a queue of at most IRD entries and answered in order, while later requests go on (RFC 5040 §5.5 and
//!   RFC 7306 §5.4 promise no more). Answers leave in the order of the requests.
//! - C2. After a WRITE or an atomic operation through a sync STag nothing of this connection takes effect, and nothing is
//!   answered, before it is durable (DESIGN §3).
//! - C3. Memory is touched only under one access check, made anew for each copy (I10, I11; [`mem::access`]).
//! - C4. Every accepted request completes exactly once, unsignaled successes silently (I18).
//! - C5. Every queue has a maximum in [`Config`] (I16). Pages pinned: at most `read_window_pages`; a WRITE that
//!   waits pins none.
//! - C6. No bytes of a peer lead to a panic; each of its errors has one Terminate code ([`wire::terminate`]).
//!
//! - C7. A FLUSH of the private profile asks the store when everything before it is placed, and is answered when the
//!   store said so. Atomic operations behind it wait for that; WRITEs and SENDs do not.
//!
//! # Verbs
//!
//! | verb | post | on the wire | completion |
//! |---|---|---|---|
//! | `RDMA_WRITE` | [`Operation::Write`] | Write | `RdmaWrite`: the transport took it |
//! | `RDMA_WRITE_WITH_IMM` | [`Operation::WriteImmediate`] | Write, Immediate Data | `RdmaWrite`; peer: `RecvRdmaWithImm`, with the bytes of the WRITE |
//! | `RDMA_READ` | [`Operation::Read`] | Read Request, Read Response | `RdmaRead`: the bytes are here |
//! | `SEND`, `SEND_WITH_INV` | [`Operation::Send`] | one of the four Sends | `Send`; peer: `Recv` |
//! | immediate data alone | [`Operation::Immediate`] | Immediate Data | `Send`; peer: `RecvRdmaWithImm` |
//! | `ATOMIC_FETCH_AND_ADD`, `ATOMIC_CMP_AND_SWP`, masked too | [`Operation::Atomic`] | Atomic Request, Atomic Response | `FetchAdd`, `CompSwap`: the old value |
//! | `LOCAL_INV`, `BIND_MW` (type 2) | [`Operation::LocalInvalidate`], [`Operation::BindWindow`] | nothing | `LocalInv`, `BindMw` |
//! | `ibv_bind_mw` (type 1) | [`Operation::BindDomainWindow`], made by [`DomainWindow::bind`] | nothing | `BindMw` |
//! | `FLUSH`, `ATOMIC_WRITE`, VERIFY | [`Operation::Flush`], [`Operation::AtomicWrite`], [`Operation::Verify`] | [private profile](wire::profile) | `Flush`, `AtomicWrite`, `Verify` |
//! | `ibv_post_recv`, `ibv_post_srq_recv` | [`post_recv`](Connection::post_recv), [`SharedReceives::post`] | | `Recv`, `RecvRdmaWithImm` |
//! | `ibv_reg_mr`, `ibv_rereg_mr`, `ibv_alloc_mw` | [`RegionTable::register`], [`RegionTable::reregister`], [`RegionTable::allocate_window`], [`RegionTable::allocate_domain_window`] | | |
//!
//! Flags: `IBV_SEND_SIGNALED`, `IBV_SEND_FENCE` are fields of [`WorkRequest`], `IBV_SEND_SOLICITED` of the operations;
//! `IBV_SEND_INLINE` is [`Source::inline`]. `SEND_WITH_IMM` has no form in iWARP. The private profile is spoken only when
//! both sides announce it ([`Config::private_profile`]).
//!
//! # Failure
//!
//! An error of the peer ends the connection with a Terminate and [`CloseReason::TerminateSent`]. A storage error does
//! the same with "catastrophic error of this stream" and [`CloseReason::Storage`]: an operation that failed is never
//! acknowledged. All posted work is flushed, all pages are given back.
//!
//! # Foreign peers
//!
//! * By default an initiator asks for revision 2, CRC, and the peer-to-peer model with a zero-length Write or Read as
//!   the ready-to-receive frame; a responder takes revisions 1 and 2, and a zero-length Send where nothing else is offered. Markers are sent when asked for and never asked for.
//! * Two endpoints of ours recognise each other by a [`hello`](wire::hello) in front of the private data and then use
//!   FPDUs of up to [`Config::ulpdu_max`]. Towards others the limit is [`Config::ulpdu_foreign`], which fits an
//!   ordinary Ethernet. [`cm`] and [`driver`] leave it as the program set it, who may want to fill more or less than one TCP
//!   segment; who drives sockets of its own can compute it from their segment size with [`config::mulpdu`], also later
//!   ([`set_ulpdu_foreign`](Connection::set_ulpdu_foreign)). Programs whose private data must be exact turn the hello off.
//! * Linux `siw` may leave the first FPDU unread that arrives right behind its Reply. Writes of zero bytes follow, at most
//!   four, as long as it may be so (the first after 50 ms); towards our own endpoint they are not needed and not sent. They
//!   go out when the driver calls [`handle_timeout`](Connection::handle_timeout), so a program must not leave a new
//!   connection alone while it waits for another one.
//!
//! # Glossary
//!
//! **FPDU**: frame with length and CRC around a **ULPDU**, which is one DDP segment. **STag**: name of a region, 24-bit
//! index and 8-bit key. **TO**: tagged offset, address in a region. **MSN, MO**: message number and offset in a message.
//! **IRD, ORD**: requests of the peer held until they are answered, our own outstanding at the peer: READs, atomic
//! operations and those of the private profile together. **RTR**: ready-to-receive, first frame of the
//! initiator. **Park**: stop the inbound side until a page or durability comes. **Window**: an STag for a part of a region,
//! for one stream (type 2) or for a domain (type 1). **Fence**: hold a request until everything outstanding is answered.
//!
//! # Modules
//!
//! [`wire`] formats; [`mem`] regions and the access check; [`page`] the seam to page owners; [`connection`] the engine
//! ([`wqe`] what is asked of it, [`srq`] buffers that several share, [`cq`] and [`event`] what it tells, [`config`] its
//! limits); [`offload`] queues of requests that messages complete and the endpoint runs by itself; [`driver`] loopback and a
//! blocking TCP client; [`verbs`] and the connection manager [`cm`] for programs. [`planted`] has bugs for the conformance
//! suite to notice, and [`fuzz`] what fuzzers call.

#![deny(unsafe_code)]

pub mod addr;
pub mod cm;
pub mod config;
pub mod connection;
pub mod cq;
pub mod driver;
pub mod event;
pub mod fuzz;
pub mod mem;
pub mod offload;
pub mod page;
pub mod planted;
pub mod srq;
mod stream;
pub mod verbs;
pub mod wire;
pub mod wqe;

pub use addr::{
    BackingId, Immediate, Msn, ProtectionDomain, RemoteAddr, Stag, StreamId, TaggedOffset, Ticket,
    Time, WrId,
};
pub use config::{Config, Revision};
pub use connection::{AtomicOutcomes, Connection, SocketState};
pub use cq::{Completion, CompletionOpcode, Status};
pub use event::{CloseReason, ConnectRequest, Established, Event, SetupError};
pub use mem::{
    Atomic, Backing, Buffer, DomainBind, DomainWindow, MemoryRegion, MemoryWindow, RegionSpec,
    RegionTable, RegisterError, Rights, WindowBind,
};
pub use page::{
    GetPage, Intent, NoPages, PAGE_BYTES, Page, PageError, PageRange, PageStore, PutPage, Served,
};
pub use srq::SharedReceives;
pub use wire::profile::{Placement, Selectivity};
pub use wqe::{LocalSlice, Operation, PostError, RecvBuffer, Source, WorkRequest};
