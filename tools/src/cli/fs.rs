//! Options of `bench fs`.

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::Args;

/// Options of `bench fs`.
#[derive(Clone, Debug, Args)]
pub struct BenchFs {
    /// Where the files are made, and removed: a directory of the disk to be measured [default: the temporary directory].
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Size of the file that is read and written, on either side [default: 1GiB].
    #[arg(long, value_name = "SIZE")]
    pub size: Option<ByteSize>,
    /// Memory of the target for pages; the file is at least four times as large [default: 32MiB].
    #[arg(long, value_name = "SIZE")]
    pub pool: Option<ByteSize>,
    /// Seconds measured of each row, of each side, in each round [default: 1].
    #[arg(long, value_name = "S")]
    pub seconds: Option<f64>,
    /// Turns in which the two sides alternate; medians are printed [default: 3].
    #[arg(long, value_name = "N")]
    pub rounds: Option<u32>,
    /// Files that are made and removed, in all rounds together [default: 10000].
    #[arg(long, value_name = "N")]
    pub files: Option<u32>,
    /// Only rows whose name contains this.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// A short run that shows that everything works, and little more.
    #[arg(long)]
    pub quick: bool,
}
