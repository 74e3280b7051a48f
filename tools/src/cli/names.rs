//! Options of `rm`, `mkdir` and `mv`.

use clap::Args;

use super::Patience;
use super::tls::TlsConnect;
use super::token::TokenFile;

/// Options of `rm`.
#[derive(Clone, Debug, Args)]
pub struct Rm {
    /// `HOST[:PORT]/PATH`
    #[arg(value_name = "HOST[:PORT]/PATH", required = true)]
    pub targets: Vec<String>,
    /// Directories, too, with everything in them.
    #[arg(short = 'r', visible_short_alias = 'R', long)]
    pub recursive: bool,
    /// Empty directories, too.
    #[arg(short = 'd', long)]
    pub dir: bool,
    /// What is not there is no error.
    #[arg(short = 'f', long)]
    pub force: bool,
    /// How long it waits.
    #[command(flatten)]
    pub patience: Patience,
    /// Who asks.
    #[command(flatten)]
    pub identity: TokenFile,
    /// How it connects.
    #[command(flatten)]
    pub tls: TlsConnect,
}

/// Options of `mkdir`.
#[derive(Clone, Debug, Args)]
pub struct Mkdir {
    /// `HOST[:PORT]/PATH`
    #[arg(value_name = "HOST[:PORT]/PATH", required = true)]
    pub targets: Vec<String>,
    /// Make the directories above it, too, where they are missing; one that is there is no error.
    #[arg(short = 'p', long)]
    pub parents: bool,
    /// How long it waits.
    #[command(flatten)]
    pub patience: Patience,
    /// Who asks.
    #[command(flatten)]
    pub identity: TokenFile,
    /// How it connects.
    #[command(flatten)]
    pub tls: TlsConnect,
}

/// Options of `mv`.
#[derive(Clone, Debug, Args)]
pub struct Mv {
    /// What gets another name.
    #[arg(value_name = "HOST[:PORT]/PATH")]
    pub from: String,
    /// The name, or a directory that it moves into. On the same target.
    #[arg(value_name = "HOST[:PORT]/PATH")]
    pub to: String,
    /// What has the name already stays, and that is an error.
    #[arg(short = 'n', long)]
    pub no_clobber: bool,
    /// How long it waits.
    #[command(flatten)]
    pub patience: Patience,
    /// Who asks.
    #[command(flatten)]
    pub identity: TokenFile,
    /// How it connects.
    #[command(flatten)]
    pub tls: TlsConnect,
}
