//! Options of `quota`.

use std::path::PathBuf;
use std::str::FromStr;

use bytesize::ByteSize;
use clap::{Args, Subcommand};

/// The commands of `quota`.
#[derive(Clone, Debug, Subcommand)]
pub enum QuotaCommand {
    /// Make everything below a directory a project with limits, or change its limits.
    #[command(
        after_help = "Example: flashnet quota set /mnt/flash/alice --bytes 10GiB --inodes 100000"
    )]
    Set(QuotaSet),
    /// Show limits and use: of the project that a directory belongs to, or of all of a volume.
    #[command(
        after_help = "Example: flashnet quota show /mnt/flash/alice\n         flashnet quota show --all /mnt/flash"
    )]
    Show(QuotaShow),
    /// Undo `set`: what is below the directory is charged as the directory above is.
    #[command(after_help = "Example: flashnet quota remove /mnt/flash/alice")]
    Remove(QuotaRemove),
}

/// Options of `quota set`.
#[derive(Clone, Debug, Args)]
pub struct QuotaSet {
    /// Directory of a mounted volume.
    pub dir: PathBuf,
    /// Bytes that may be in use below it, or `none`; whole grains of 4 KiB count. Without it this limit stays.
    #[arg(long, value_name = "SIZE|none")]
    pub bytes: Option<LimitOf<ByteSize>>,
    /// Files, directories and all else that may be below it, or `none`. Without it this limit stays.
    #[arg(long, value_name = "N|none")]
    pub inodes: Option<LimitOf<u64>>,
    /// Number of the project [default: the lowest that is not in use].
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u32).range(1..))]
    pub project: Option<u32>,
}

/// Options of `quota show`.
#[derive(Clone, Debug, Args)]
pub struct QuotaShow {
    /// Directory of a mounted volume [default: here].
    pub dir: Option<PathBuf>,
    /// All projects of the volume.
    #[arg(short, long)]
    pub all: bool,
}

/// Options of `quota remove`.
#[derive(Clone, Debug, Args)]
pub struct QuotaRemove {
    /// The directory that was given to `quota set`.
    pub dir: PathBuf,
}

/// A limit, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOf<T>(pub Option<T>);

impl<T: FromStr> FromStr for LimitOf<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        match text {
            "none" => Ok(Self(None)),
            text => text.parse().map(|limit| Self(Some(limit))),
        }
    }
}
