//! The reactor: one io_uring per core that carries the connections *and* the media I/O of its thread (DESIGN D1).
//!
//! [`Ring`] speaks to the kernel, [`Net`] drives connections over it, [`Inbox`] lets other threads reach it. Whoever
//! owns a `Net` writes the loop: enter the ring, hand every completion to its owner, let the connections act, submit.
//!
//! ```text
//!   enter ──► completions ──► Net (bytes in, bytes sent)        ┐
//!     ▲            │                                            ├─► pump: events, work, bytes out
//!     │            └────────► media ──► Ftl ──► pages, durable  ┘
//!     └──────────────── submissions: recv, send, media ◄────────┘
//! ```

mod buffers;
mod inbox;
mod link;
mod net;
mod ring;
mod slots;

pub use buffers::RecvBuffers;
pub use inbox::{INBOX_MAX, Inbox, PUSHED_MAX, Waker, is_reactor};
pub use link::Notice;
pub use net::Net;
pub use ring::{Done, Ring, Tag};
pub use slots::{LinkTag, Slots};
