//! Options of `snapshot`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

/// The commands of `snapshot`.
#[derive(Clone, Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Make a read-only image of everything as it is now, in no time: it is in DIR/.snapshots/NAME, and for remote clients in HOST/.snapshots/NAME.
    #[command(
        after_help = "Example: flashnet snapshot create /mnt/flash before-upgrade\n         flashnet snapshot create volume.img before-upgrade"
    )]
    Create(Named),
    /// Show the snapshots of a volume, oldest first.
    #[command(after_help = "Example: flashnet snapshot list /mnt/flash")]
    List(Volume),
    /// Delete a snapshot; what it alone holds is given back in the background.
    #[command(after_help = "Example: flashnet snapshot delete /mnt/flash before-upgrade")]
    Delete(Named),
}

/// A volume that is served.
#[derive(Clone, Debug, Args)]
pub struct Volume {
    /// Where it is mounted, or its device; several are separated by commas.
    #[arg(value_name = "DIR|DEV")]
    pub volume: PathBuf,
}

/// A snapshot of a volume that is served.
#[derive(Clone, Debug, Args)]
pub struct Named {
    /// The volume.
    #[command(flatten)]
    pub of: Volume,
    /// Name of the snapshot, 96 bytes at most.
    pub name: OsString,
}
