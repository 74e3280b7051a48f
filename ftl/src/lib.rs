//! Log-structured flash translation layer: pages, mapping, log, garbage collection, recovery, devices.
//!
//! A volume is a space of 2^52 *grains* of 4 KiB, of which as many may hold something as its capacity says. Whoever
//! wants bytes gets a *page*: a grain held in a frame of the pool, pinned until it is put. What was changed is written
//! out later, many pages in one device write, always to a new place: the log. A header in front of each write-out
//! says what its grains are, so the log is its own map, and recovery is reading headers.
//!
//! The engine ([`Ftl`]) does no I/O and reads no clock. It says what it wants done ([`Ftl::poll_action`]), is told
//! when it is done ([`Ftl::handle_done`]), and answers with events. A resident page is pinned without a lock; all
//! else happens under one.
//!
//! ```no_run
//! use ftl::{FormatOptions, Ftl, LbaRange, MemDevice, OpenOptions, Volume};
//! let mut device = MemDevice::new(64 << 20)?;
//! Ftl::format(&mut device, &FormatOptions::default())?;
//! let (volume, report) = Volume::open(device, OpenOptions::default())?;
//! assert!(report.clean);
//! volume.write(12345, b"any byte address")?;
//! volume.sync(LbaRange::ALL)?; // durable from here on
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//! The numbers I1 to I18 cited in this crate are those of the project's reliability notes. In short: what a sync
//! acknowledged survives (I1); a grain reads as one of its versions, whole (I2); what was trimmed durably never comes
//! back (I3); identity and checksum lie apart from the data (I4); counts equal what [`mod@check`] computes on its own
//! (I5); recovery may be cut anywhere and repeated (I6); one bad sector never costs the volume (I7); a failed flush
//! is final (I8); everything has a bound (I16), what frees resources has reserves (I17), every call is answered once
//! (I18).
//!
//! # Glossary
//! | word | means |
//! |---|---|
//! | grain, page, frame | 4 KiB of the space; the same in memory; the memory |
//! | get, put | pin a page; drop the [`PageRef`] |
//! | segment, stream | unit of reclaiming; class of writes that share an open segment |
//! | write-out | one device write: a header grain and its data grains |
//! | record, version | what a header says about a grain; which writing of it, never changed by relocation |
//! | batch, group | changes that survive together; batches that share a header |
//! | durable, recorded | safe from a power cut; and a durable header says so |
//! | victim, relocate | segment being collected; copy what is live in it |
//! | remap, clone | a range of LBAs gets another name, or one more, without its data being written |
//! | tombstone | a trim, remap or clone that older copies still make necessary |
//! | epoch, life | number of the first header since the segment was opened; the time since |
//!
//! # Where things are
//! | module | subject |
//! |---|---|
//! | `addr`, `ids`, `geometry`, `places` | addresses; ports, tokens, time; sizes; where each device begins |
//! | `engine`, `shared`, `inbox`, `core/*` | the face; the half without the core's lock; from one half to the other; the half behind it, one file per activity |
//! | `placement` | policies: streams and victims |
//! | `map`, `page` | entries and leaves; frames, arena, [`PageRef`] |
//! | [`mod@format`], `log`, `segment`, `records` | bytes on the media; numbers; segments; trims and zeros |
//! | [`snapshot`] | what everything was at a moment |
//! | `checkpoint` | saving the map; the part of it that is not in memory yet |
//! | `recover`, `open` | checkpoint and tail, or scan and replay; format and open |
//! | [`mod@check`], [`inspect`] | the independent judge; a look at what is on the media |
//! | [`device`] | the seam to the media, and devices |
//! | `blocking` | [`Volume`], for programs that just want to read and write |
//!
//! The format and the argument why it survives crashes are in `docs/format.md`, `docs/checkpoint.md` and
//! `docs/remap.md`; images of everything at a moment are the subject of `docs/snapshots.md`, several devices as one volume are the subject of `docs/array.md`, other sizes that of
//! `docs/resize.md`, pages that local programs have mapped that of `docs/sharing.md`, and counting some grains together, with
//! a limit, that of `docs/accounts.md`.

#![deny(unsafe_code)]

mod account;
mod addr;
mod anew;
mod batch;
mod blocking;
pub mod check;
mod checkpoint;
mod core;
#[doc(hidden)]
pub mod crash_point;
#[allow(unsafe_code)]
pub mod device;
mod dirty;
mod engine;
mod error;
mod fault;
pub mod format;
#[doc(hidden)]
pub mod fuzz;
mod geometry;
mod ids;
mod inbox;
pub mod inspect;
mod log;
#[doc(hidden)]
pub mod map;
mod meter;
mod open;
mod page;
#[doc(hidden)]
pub mod placement;
mod places;
#[doc(hidden)]
pub mod planted;
mod port;
mod records;
mod recover;
mod remap;
mod segment;
mod shared;
pub mod snapshot;
mod space;
mod stats;

pub use account::{AccountId, AccountUse};
pub use addr::{GRAIN_BYTES, Lba, LbaRange, Pba, SegmentId};
pub use batch::AtomicBatch;
pub use blocking::{Volume, VolumeError};
pub use check::{CheckReport, Checked, check, check_telling};
pub use core::Held;
pub use device::{
    Action, ActionId, ArrayDevice, AssemblyError, Device, FileDevice, HeaderDevice, IoBuf,
    MediaError, MediaOp, MemDevice, Member, MemberState, Members, OverlayDevice, SimDevice,
};
pub use engine::{DeviceUse, Ftl, Get, VolumeInfo};
pub use error::{
    CommitError, DurableError, FormatError, GetError, OpenError, ResizeError, ShareError,
};
pub use fault::MediaFault;
pub use geometry::Geometry;
pub use ids::{GrainState, Intent, Port, Time, Token};
pub use meter::{DURATION_CLASSES, Meter, Metered, class_limit};
pub use open::{FormatOptions, OpenOptions};
pub use page::PageRef;
pub use placement::GcPolicy;
pub use places::{DEVICES_MAX, Places};
pub use port::Event;
pub use recover::RecoveryReport;
pub use remap::Remap;
pub use segment::StreamUse;
pub use space::Space;
pub use stats::{Stat, Stats};
