//! Options of `bench remotelog`.

use clap::Args;

/// Options of `bench remotelog`.
#[derive(Clone, Debug, Args)]
pub struct BenchRemotelog {
    /// Run every recipe of the catalogue through the emulated responder, with the power cut between any two steps, and
    /// tick what survives.
    #[arg(long)]
    pub prove: bool,
    /// Print each proof: what the recipe survives, and how each weaker one loses or reorders data.
    #[arg(long, requires = "prove")]
    pub traces: bool,
    /// Without the private profile, as between endpoints of which only one is ours: READ and sync STags in the place of
    /// FLUSH and ATOMIC WRITE.
    #[arg(long)]
    pub plain: bool,
    /// Records appended in each scenario, with the power of the emulated memory cut after each; 0: measure nothing.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub records: u64,
}
