//! Checkpoints of the map: what changed, what a root says, and the part of the map that is not in memory yet.
//!
//! See `docs/checkpoint.md` for the layout and the argument. Taking a checkpoint is the core's business
//! (`core/checkpoint.rs`, `core/load.rs`), finding one is recovery's (`recover/saved.rs`, `recover/tail.rs`).

mod change;
mod changes;
mod cold;
mod install;
mod sweep;

pub(crate) use change::Change;
pub(crate) use changes::Changes;
pub(crate) use cold::{ColdMap, PageWanted, Sheet, UNIT_PAGES, UnitContent};
pub(crate) use install::Books;
pub(crate) use sweep::{needed_pieces, share};
