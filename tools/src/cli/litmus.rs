//! Options of `litmus`.

use std::path::PathBuf;

use clap::Args;

/// Options of `litmus`.
#[derive(Clone, Debug, Args)]
pub struct Litmus {
    /// Rounds of each test.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub rounds: u32,
    /// Reactor threads of the target.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub reactors: u32,
    /// The file shares its pages with those who map it: a mapping never calls msync. Takes CAP_SYS_ADMIN.
    #[arg(long)]
    pub share_pages: bool,
    /// Where the temporary image is made [default: the temporary directory].
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Print the table as Markdown, as in the documentation.
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
}
