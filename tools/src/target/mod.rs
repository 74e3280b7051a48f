//! The target: volume, file system and endpoint in one process.
//!
//! ```text
//!   clients ──TCP──► Core (reactor thread) ──► Ftl ──► device        data path: no other thread takes part
//!                      │      ▲    ▲
//!             requests │      │    └── TargetStore ◄── Fs ◄── FUSE threads
//!                      ▼      │ replies         ▲
//!                    Service (control threads) ─┘                     control path: names, regions
//! ```
//!
//! Threads that wait for the volume make the system calls of their own requests (`lane`), unless many wait to read (`later`);
//! what goes on beside them is the reactor's.

mod ahead;
mod core;
mod daemon;
mod direct;
mod exports;
mod handover;
mod handshake;
mod held;
mod housekeeper;
mod job;
mod lane;
mod later;
pub(crate) mod listening;
mod mapped;
mod media;
mod mounting;
mod operator;
mod pages;
mod places;
mod privileges;
mod reactors;
mod readahead;
mod reception;
mod regions;
mod service;
mod sessions;
mod settings;
mod share;
mod snapshots;
mod stalls;
pub mod status;
mod store;
mod streams;
mod tenancy;
mod tls_door;
mod tls_settings;
mod together;
mod volume;

pub use daemon::{Prepared, Target};
pub use exports::{Export, ExportError, Exports};
pub use handover::{Predecessor, Replacement, Sockets};
pub use mounting::{detach, take_down};
pub use operator::{
    ListedSnapshot, PATIENCE, Question, SHORT, SnapshotQuestion, ask, ask_snapshots, ask_status,
    check_devices, check_tenants,
};
pub use pages::POOL_PER_CONNECTION;
pub use service::DRAM_PATH;
pub use settings::{PORT, Settings, SettingsError};
pub use tenancy::TenantSettings;
pub use tls_settings::TlsSettings;
