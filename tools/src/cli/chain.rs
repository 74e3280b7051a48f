//! Options of `chain`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Subcommand};

use super::tls::{TlsGroup, TlsMember};

/// The commands of `chain`.
#[derive(Clone, Debug, Subcommand)]
pub enum ChainCommand {
    /// Make a group: what it is like, and who may belong to it. It becomes active when all of them serve.
    #[command(
        after_help = "Example: flashnet chain create --store /run/log.store --members 1,2,3 --data 64MiB\n         flashnet chain create --store etcd://10.0.0.1:2379,10.0.0.2:2379/log --members 1,2,3 --data 1GiB"
    )]
    Create(ChainCreate),
    /// Show a group: epoch, members, what they do and how far they are behind.
    #[command(after_help = "Example: flashnet chain status --store /run/log.store --watch")]
    Status(ChainStatus),
    /// Let members belong to a group; they join when they serve and have caught up, while writes go on.
    #[command(after_help = "Example: flashnet chain add --store /run/log.store 4")]
    Add(ChainMembers),
    /// Take members out of a group.
    #[command(after_help = "Example: flashnet chain remove --store /run/log.store 2")]
    Remove(ChainMembers),
    /// Serve as a member of a group.
    #[command(
        after_help = "Example: flashnet chain serve --store /run/log.store --member 1 --listen 127.0.0.1:7181 --memory /mnt/flash/log\n         flashnet chain serve --store etcd://10.0.0.9:2379/log --member 1 --listen 10.0.0.1:7181 --memory /mnt/flash/log --tls-cert member1.pem --tls-key member1.key --tls-ca members.pem"
    )]
    Serve(ChainServe),
    /// Append records under load, and see how long they take and how long nothing got through; then read everything back. Where the
    /// log is carried out they are written over the first 1,024 times their size of the group's data, if nobody else has written there.
    #[command(
        after_help = "Example: flashnet chain bench --store /run/log.store --size 4KiB --depth 16 --seconds 10\n         flashnet chain bench --store /run/log.store --tls --tls-ca members.pem"
    )]
    Bench(ChainBench),
    /// Compare what the members hold, byte by byte, while nobody writes.
    #[command(
        after_help = "Example: flashnet chain verify --store /run/log.store\n         flashnet chain verify --store /run/log.store --tls --tls-ca members.pem"
    )]
    Verify(ChainVerify),
}

/// Where a group's configuration is.
#[derive(Clone, Debug, Args)]
pub struct StoreOption {
    /// Where epochs and leases are kept: a file, for the processes of one machine, or `etcd://HOST:PORT[,HOST:PORT...]/PREFIX`;
    /// with TLS `etcds://HOST:PORT/PREFIX?cacert=FILE&cert=FILE&key=FILE`.
    #[arg(long, value_name = "PATH|URL", env = "FLASHNET_CHAIN_STORE")]
    pub store: String,
}

/// When somebody is taken for dead.
#[derive(Clone, Debug, Args)]
pub struct TimingOptions {
    /// Between heartbeats.
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = humantime::parse_duration)]
    pub period: Duration,
    /// Heartbeats missed until somebody is taken for dead.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub misses: u32,
}

/// Options of `chain create`.
#[derive(Clone, Debug, Args)]
pub struct ChainCreate {
    #[command(flatten)]
    pub(crate) store: StoreOption,
    /// Numbers of the members.
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', required = true)]
    pub members: Vec<u32>,
    /// Bytes of data that records change.
    #[arg(long, value_name = "SIZE")]
    pub data: ByteSize,
    /// Bytes of the ring that holds records until they are carried out; the longest record is half of it.
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub ring: ByteSize,
    /// Locks; the first is the log's.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub locks: u32,
    /// How records run: from member to member, or from the first to all others.
    #[arg(long, value_enum, default_value = "chain")]
    pub topology: TopologyOption,
    /// Members need no memory that survives them; a group whose members all stop is lost.
    #[arg(long)]
    pub volatile: bool,
    /// Records are not carried out on the data: they stay in the log until a client has done with them what it wants, and
    /// truncates it.
    #[arg(long)]
    pub log_only: bool,
}

/// How records run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TopologyOption {
    /// From member to member; the last one answers.
    Chain,
    /// From the first to all others, and back.
    Star,
}

/// Options of `chain status`.
#[derive(Clone, Debug, Args)]
pub struct ChainStatus {
    #[command(flatten)]
    pub(crate) store: StoreOption,
    /// Show it again each second.
    #[arg(short, long)]
    pub watch: bool,
}

/// Options of `chain add` and `chain remove`.
#[derive(Clone, Debug, Args)]
pub struct ChainMembers {
    #[command(flatten)]
    pub(crate) store: StoreOption,
    /// Numbers of the members.
    #[arg(value_name = "N", required = true)]
    pub members: Vec<u32>,
}

/// Options of `chain serve`.
#[derive(Clone, Debug, Args)]
pub struct ChainServe {
    #[command(flatten)]
    pub(crate) store: StoreOption,
    /// Which member.
    #[arg(long, value_name = "N")]
    pub member: u32,
    /// Where to listen; without TLS what members and clients say is not encrypted: a trusted network, or a tunnel.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Where others reach it [default: what it listens on].
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// The file that has the member's memory; on a `ContigFS` volume it is on flash, on a tmpfs it is as good as emulated NVM.
    #[arg(long, value_name = "PATH")]
    pub memory: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) tls: TlsMember,
    #[command(flatten)]
    pub(crate) timing: TimingOptions,
    /// How long members may take for a step of a change of epochs.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = humantime::parse_duration)]
    pub patience: Duration,
    /// How long the others wait in such a step for each read, write or flush of the disk of this member.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    pub media_patience: Duration,
    /// How long a member may answer reads without having heard from the store; the same on all members.
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = humantime::parse_duration)]
    pub read_lease: Duration,
    /// A member whose operations wait this much longer than the others' is slow: it is reported.
    #[arg(long, value_name = "FACTOR", default_value_t = 8)]
    pub slow_factor: u64,
    /// And at least so long.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = humantime::parse_duration)]
    pub slow_floor: Duration,
    /// Slow members are taken out of the chain, as long as two are left.
    #[arg(long)]
    pub remove_slow: bool,
    /// Look for messages without sleeping for so long after each, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub poll: u64,
    /// Tell monitoring systems of the member by HTTP at this address. Nobody is authenticated there.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
}

/// Options of `chain bench`.
#[derive(Clone, Debug, Args)]
pub struct ChainBench {
    #[command(flatten)]
    pub(crate) store: StoreOption,
    #[command(flatten)]
    pub(crate) tls: TlsGroup,
    #[command(flatten)]
    pub(crate) timing: TimingOptions,
    /// Bytes of data in a record.
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub size: ByteSize,
    /// Records under way.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,
    /// For how long.
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Acknowledged means visible on all members, and not durable.
    #[arg(long)]
    pub visible: bool,
    /// Write over the group's data, whatever they are; of a log that is not carried out, give up all its records. Without it data have to be
    /// zeros, and what is there of either, records of a bench of the same size.
    #[arg(long)]
    pub overwrite: bool,
    /// Times without an acknowledgement that are longer than this are listed.
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = humantime::parse_duration)]
    pub pause: Duration,
    /// Say so often how many records are acknowledged, a line each time.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub progress: Option<Duration>,
    /// Look for messages without sleeping for so long after each, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub poll: u64,
}

/// Options of `chain verify`.
#[derive(Clone, Debug, Args)]
pub struct ChainVerify {
    #[command(flatten)]
    pub(crate) store: StoreOption,
    #[command(flatten)]
    pub(crate) tls: TlsGroup,
    #[command(flatten)]
    pub(crate) timing: TimingOptions,
    /// How long to wait for the group, and for whoever writes.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
}
