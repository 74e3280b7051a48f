//! Options of `ftl` and `bench`.

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::{Args, Subcommand};
use ftl::GcPolicy;

use super::fs::BenchFs;
use super::hyperloop::BenchHyperloop;
use super::remotelog::BenchRemotelog;

/// The translation layer alone.
#[derive(Clone, Debug, Subcommand)]
pub enum FtlCommand {
    /// Measure the engine against its bare device, in turns, on a file made for it.
    #[command(after_help = "Example: flashnet ftl bench --directory /mnt/flash --size 4GiB")]
    Bench(Bench),
    /// Drive the engine with a trace of writes and print its write amplification.
    #[command(
        after_help = "Example: flashnet ftl replay zipf.trace --grains 262144 --op 15 --segment-grains 128 --skip 7864320"
    )]
    Replay(Replay),
}

/// Options of `ftl bench`.
#[derive(Clone, Debug, Args)]
pub struct Bench {
    /// Where the file is made, and removed [default: the temporary directory].
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Size of the file, which is the volume in one turn and the bare device in the next.
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    pub size: ByteSize,
    /// Seconds measured of each case, of each side.
    #[arg(long, value_name = "S", default_value = "6")]
    pub seconds: f64,
    /// Turns in which the two sides alternate.
    #[arg(long, value_name = "N", default_value = "8")]
    pub rounds: u32,
    /// Only cases whose name contains this.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
}

/// Options of `ftl replay`.
#[derive(Clone, Debug, Args)]
pub struct Replay {
    /// The trace: little-endian 64-bit LBAs in grains of 4 KiB, bit 63 set for a trim.
    pub trace: PathBuf,
    /// Logical space in grains; it is filled once in order before the trace starts.
    #[arg(long, value_name = "N")]
    pub grains: u64,
    /// Hidden share in percent of the logical space; everything the engine needs comes out of it.
    #[arg(long, value_name = "PERCENT", default_value = "20")]
    pub op: f64,
    /// Grains of a segment, a power of two.
    #[arg(long, value_name = "N", default_value = "128")]
    pub segment_grains: u64,
    /// Steps of the trace that are not measured [default: the first half].
    #[arg(long, value_name = "N")]
    pub skip: Option<u64>,
    /// Before this step the volume is shut down and opened again, as by a restart; it must not be a measured one but the
    /// first. Checkpoints are taken then, in an area on top of the space above.
    #[arg(long, value_name = "K")]
    pub reopen_at: Option<u64>,
    /// Placement and collection: greedy, greedy-window, three-stream or lifetime.
    #[arg(long, value_name = "NAME", default_value_t)]
    pub gc_policy: GcPolicy,
    /// Where the volume is made: `null` keeps headers only, `mem` is memory, else an image file.
    #[arg(long, value_name = "PATH", default_value = "null")]
    pub media: PathBuf,
}

/// Tables of figures, made by one command each.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchCommand {
    /// Write amplification of the engine over workloads and policies, with targets and curves.
    #[command(after_help = "Example: flashnet bench wa --svg wa.svg")]
    Wa(BenchWa),
    /// The mounted file system against ext4 on the same disk, direct I/O, in turns.
    #[command(
        after_help = "Example: flashnet bench fs --directory /mnt/flash\n         flashnet bench fs --only 'random read' --rounds 9"
    )]
    Fs(BenchFs),
    /// A remote log, made persistent in 72 scenarios: which recipe, whether it is proven, how long it takes here.
    #[command(
        after_help = "Example: flashnet bench remotelog --prove\n         flashnet bench remotelog --prove --traces --records 0"
    )]
    Remotelog(BenchRemotelog),
    /// Group primitives beside chains of applications: latency, throughput, processor time, quiet and among tenants.
    #[command(
        after_help = "Example: flashnet bench hyperloop --plots .\n         flashnet bench hyperloop --only gwrite --brief"
    )]
    Hyperloop(BenchHyperloop),
}

/// Options of `bench wa`.
#[derive(Clone, Debug, Args)]
pub struct BenchWa {
    /// Logical space in grains.
    #[arg(long, value_name = "N", default_value = "262144")]
    pub grains: u32,
    /// Unmeasured writes, in multiples of the space.
    #[arg(long, value_name = "X", default_value = "30")]
    pub warm: f64,
    /// Measured writes, in multiples of the space.
    #[arg(long, value_name = "X", default_value = "10")]
    pub measure: f64,
    /// Seed of the workloads.
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// Policies to run; repeatable [default: all].
    #[arg(long = "gc-policy", value_name = "NAME")]
    pub policies: Vec<GcPolicy>,
    /// Only rows whose workload contains this.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Draw write amplification against hidden share into this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}
