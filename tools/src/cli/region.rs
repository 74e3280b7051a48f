//! Options of `region`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What to do with persistent regions.
#[derive(Clone, Debug, Subcommand)]
pub enum RegionCommand {
    /// Show the regions that peers may use, also after a restart.
    #[command(
        after_help = "Example: flashnet region list volume.img\n         flashnet region list /mnt/flash --tenant alpha --json"
    )]
    List(List),
    /// Refuse regions for ever: when the command returns, nobody reads or writes through them any more.
    #[command(
        after_help = "Example: flashnet region revoke volume.img --stag 0x1a2b3c00\n         flashnet region revoke /mnt/flash --path /photos/1.jpg"
    )]
    Revoke(Revoke),
}

/// Options of `region list`.
#[derive(Clone, Debug, Args)]
pub struct List {
    /// Volume, served or not: its devices, or where it is mounted.
    #[arg(required = true, value_name = "DEV|DIR")]
    pub volume: Vec<PathBuf>,
    /// Which; all if nothing is said.
    #[command(flatten)]
    pub which: Which,
}

/// Options of `region revoke`.
#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("chosen").required(true).args(["stag", "path", "tenant", "strangers", "all"]))]
pub struct Revoke {
    /// Volume, served or not: its devices, or where it is mounted.
    #[arg(required = true, value_name = "DEV|DIR")]
    pub volume: Vec<PathBuf>,
    /// Which.
    #[command(flatten)]
    pub which: Which,
    /// All of them.
    #[arg(long)]
    pub all: bool,
}

/// Which regions.
#[derive(Clone, Debug, Args)]
#[group(multiple = false)]
pub struct Which {
    /// The one that has this STag, of either flavour, as `list` shows it.
    #[arg(long, value_parser = stag)]
    pub stag: Option<u32>,
    /// Those of the file at this path, from the root of the volume.
    #[arg(long)]
    pub path: Option<PathBuf>,
    /// Those of this tenant.
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Those of peers without a token.
    #[arg(long)]
    pub strangers: bool,
}

fn stag(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| format!("{text} is no STag: 0x and eight hexadecimal digits, or a number"))
}
