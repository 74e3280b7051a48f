//! Options of `snapshot`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

/// The commands of `snapshot`.
#[derive(Clone, Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Make a read-only image of everything as it is now, in no time: it is in DIR/.snapshots/NAME.
    #[command(after_help = "Example: flashnet snapshot create /mnt/flash before-upgrade")]
    Create(Named),
    /// Show the snapshots of a volume, oldest first.
    #[command(after_help = "Example: flashnet snapshot list /mnt/flash")]
    List(Mount),
    /// Delete a snapshot; what it alone holds is given back in the background.
    #[command(after_help = "Example: flashnet snapshot delete /mnt/flash before-upgrade")]
    Delete(Named),
}

/// A mounted volume.
#[derive(Clone, Debug, Args)]
pub struct Mount {
    /// Where it is mounted.
    pub dir: PathBuf,
}

/// A snapshot of a mounted volume.
#[derive(Clone, Debug, Args)]
pub struct Named {
    /// Where the volume is mounted.
    pub dir: PathBuf,
    /// Name of the snapshot, 96 bytes at most.
    pub name: OsString,
}
