//! Options of `torture`.

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::{Args, Subcommand};

/// What is tortured.
#[derive(Clone, Debug, Subcommand)]
pub enum TortureCommand {
    /// Clients under load go on with what they know while their target is killed and replaced, and their connections are cut.
    #[command(after_help = "Example: flashnet torture credentials --clients 100 --kills 50")]
    Credentials(Credentials),
}

/// Options of `torture credentials`.
#[derive(Clone, Debug, Args)]
pub struct Credentials {
    /// Clients, each with a file of its own.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub clients: u32,
    /// Times that the target is killed and started again.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub kills: u32,
    /// Times that another target takes over from the one that runs.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub replaces: u32,
    /// Times that all connections are cut while the target lives.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub cuts: u32,
    /// Tenants that the clients belong to; 0: nobody authenticates.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=16))]
    pub tenants: u32,
    /// Operations that each client has under way.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub depth: u32,
    /// Size of each client's file.
    #[arg(long, value_name = "SIZE", default_value = "256KiB")]
    pub file_size: ByteSize,
    /// Size of the temporary image.
    #[arg(long, default_value = "1GiB")]
    pub size: ByteSize,
    /// Where the image is made, and removed if all is well [default: the temporary directory].
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Start of all chance [default: another one each time; it is printed].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}
