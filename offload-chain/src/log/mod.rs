//! A replicated log: redo records on all members, durable when appended, carried out by the members' own copies.
//!
//! The client that has the log's lock appends: [`Log::append`] posts a record, and its acknowledgement says that all members
//! have it, and everything before it. [`Log::execute_and_advance`] lets members copy the entries of acknowledged records to where
//! they belong, and moves the mark behind them. The argument is in `docs/log.md`.
//!
//! # Invariants
//! - L1. A record is copied only after it was acknowledged; the mark moves only after the copies were; space is used
//!   again only after the mark was.
//! - L2. All records between mark and end have the term of the header; of a log that is not carried out, that or an earlier one, and
//!   then the rest of the ring was erased when the term began. Recovery, and nothing else, starts a term.
//! - L3. Recovery finds every acknowledged record behind the mark, and no record that is torn, stale or of another life.
//!
//! # Failure
//! After [`LogEvent::Broken`] it is unknown what became of records that were not acknowledged. Open the log of the next
//! epoch: what is below its sequence number has happened, the rest never will.

mod append;
mod header;
mod layout;
mod preset;
mod record;
mod recover;

pub use append::{AppendError, Log, LogEvent, initialize};
pub(crate) use header::is_foreign;
pub use header::{HEADER_BYTES, Header};
pub use layout::{
    HEADER_SLOT_BYTES, HEADER_SLOTS, LOCK_BYTES, LOCKS_MAX, Layout, LayoutError, RECORD_ALIGN,
    RING_BYTES_MAX,
};
pub use preset::{Preset, ReadMode};
pub use record::{Copy, ENTRIES_MAX, Entry, Kind, RECORD_HEADER_BYTES, Record, extent};
pub(crate) use recover::adopt;
pub use recover::{Found, RecoverError, find, find_header, format, recover};
