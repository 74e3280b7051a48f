//! Software iWARP endpoint: MPA, DDP and RDMAP without I/O.

#![deny(unsafe_code)]

pub mod addr;
pub mod config;
pub mod connection;
pub mod cq;
pub mod driver;
pub mod event;
pub mod mem;
pub mod page;
mod stream;
pub mod wire;
pub mod wqe;

pub use addr::{
    BackingId, Msn, ProtectionDomain, RemoteAddr, Stag, StreamId, TaggedOffset, Ticket, Time, WrId,
};
pub use config::{Config, Revision};
pub use connection::{Connection, SocketState};
pub use cq::{Completion, CompletionOpcode, Status};
pub use event::{CloseReason, ConnectRequest, Established, Event, SetupError};
pub use mem::{Backing, Buffer, MemoryRegion, RegionSpec, RegionTable, RegisterError, Rights};
pub use page::{GetPage, Intent, NoPages, PAGE_BYTES, Page, PageError, PageRange, PageStore};
pub use wqe::{LocalSlice, Operation, PostError, RecvBuffer, Source, WorkRequest};
