//! Options of `token`, and how clients name a token.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::credentials::TenantName;

/// How a client says who it is.
#[derive(Clone, Debug, Default, Args)]
pub struct TokenFile {
    /// File with the token to present (`flashnet token make`).
    #[arg(long, value_name = "FILE", env = "FLASHNET_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
}

/// What to do with tokens.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a secret for a tenant.
    #[command(after_help = "Example: flashnet token key /etc/flashnet/alpha.key")]
    Key(Key),
    /// Make a token that says whose its bearer is.
    #[command(
        after_help = "Example: flashnet token make --tenant alpha --key-file alpha.key --lifetime 30d -o alpha.token"
    )]
    Make(Make),
    /// What a token says.
    #[command(after_help = "Example: flashnet token show alpha.token")]
    Show(Show),
}

/// Options of `token key`.
#[derive(Clone, Debug, Args)]
pub struct Key {
    /// File to make.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// Options of `token make`.
#[derive(Clone, Debug, Args)]
pub struct Make {
    /// Whose.
    #[arg(long, value_name = "NAME")]
    pub tenant: TenantName,
    /// Secret of the tenant.
    #[arg(long, value_name = "FILE")]
    pub key_file: PathBuf,
    /// Epoch of the tenant, as the target has it.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub epoch: u64,
    /// How long it is good for.
    #[arg(long, value_name = "TIME", default_value = "1d")]
    pub lifetime: humantime::Duration,
    /// Write it to this file instead of standard output.
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Options of `token show`.
#[derive(Clone, Debug, Args)]
pub struct Show {
    /// File with a token.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}
