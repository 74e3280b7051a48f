//! Options of `bench hyperloop`.

use std::path::PathBuf;

use clap::Args;

/// Options of `bench hyperloop`.
#[derive(Clone, Debug, Args)]
pub struct BenchHyperloop {
    /// Members of the group; group sizes are measured besides.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub members: u8,
    /// Time of each measurement; where the processors are crowded, at least 100 operations are waited for, up to ten times as long.
    #[arg(long, default_value_t = 0.5)]
    pub seconds: f64,
    /// Runnable tenants on each processor, for the crowded half.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub tenants: u8,
    /// Where what stands for NICs and the client's machine runs.
    #[arg(long, value_enum, default_value_t = Where::Apart)]
    pub placement: Where,
    /// Only this figure.
    #[arg(long, value_enum, value_name = "FIGURE")]
    pub only: Option<Figure>,
    /// Few sizes: a look instead of a measurement.
    #[arg(long)]
    pub brief: bool,
    /// Write a plot (SVG) for each figure into this directory.
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
}

/// Which processors endpoints, client and applications run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Where {
    /// Endpoints and client on one processor, applications on the others, as a NIC does not take its member's processor.
    Apart,
    /// All on all.
    Free,
}

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Figure {
    /// Latency of gWRITE by size.
    Gwrite,
    /// Latency of gMEMCPY by size.
    Gmemcpy,
    /// Latency of gCAS.
    Gcas,
    /// Throughput of gWRITE and processor time of the members, by size.
    Throughput,
    /// Latency of gWRITE by the number of members.
    Members,
}
