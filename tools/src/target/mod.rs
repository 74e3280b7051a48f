//! The target: volume, file system and endpoint in one process.
//!
//! ```text
//!   clients ──TCP──► Core (reactor thread) ──► Ftl ──► device        data path: no other thread takes part
//!                      │      ▲    ▲
//!             requests │      │    └── TargetStore ◄── Fs ◄── FUSE threads
//!                      ▼      │ replies         ▲
//!                    Service (control threads) ─┘                     control path: names, regions
//! ```

mod core;
mod daemon;
mod exports;
mod housekeeper;
mod job;
mod mapped;
mod media;
mod pages;
mod regions;
mod service;
mod settings;
mod store;

pub use daemon::{Target, detach, take_down};
pub use exports::{Export, ExportError, Exports};
pub use service::DRAM_PATH;
pub use settings::{PORT, Settings};
