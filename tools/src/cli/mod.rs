//! The command line: every command, its options and an example of its use.

pub mod chain;
pub mod device;
pub mod fs;
pub mod ftl;
pub mod hyperloop;
pub mod install;
mod litmus;
pub mod mount;
pub mod names;
pub mod peer;
pub mod quota;
pub mod region;
pub mod remotelog;
pub mod snapshot;
pub mod tls;
pub mod token;
pub mod top;
pub mod torture;

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};
use softrdma::driver::Spin;

use crate::perf::shape::{Direction, Pattern};
use crate::target::Export;
use mount::{Listen, Mount, MountOptions, Seconds, SharePages, Umount};
use tls::{TlsConnect, TlsServe};
use token::TokenFile;

pub use litmus::Litmus;

/// Ordinary flash, served over ordinary TCP as remote memory that survives power loss.
#[derive(Debug, Parser)]
#[command(
    name = "flashnet",
    version,
    propagate_version = true,
    max_term_width = 110
)]
pub struct Cli {
    /// Print JSON instead of text: an object, or a list of objects where there may be any number of them.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The whole stack on a temporary image: serve it, read and write it remotely, kill it, check every byte.
    #[command(after_help = "Example: flashnet demo --input ~/pictures --size 4GiB")]
    Demo(Demo),
    /// Format a device or image, or several as one volume.
    #[command(
        after_help = "Example: flashnet mkfs --size 1GiB volume.img\n         flashnet mkfs --op 25% /dev/nvme1n1 /dev/nvme2n1"
    )]
    Mkfs(Mkfs),
    /// Serve a volume: over RDMA (iWARP) and, with --mount, as a local file system.
    #[command(
        after_help = "Example: flashnet serve volume.img --mount /mnt/flash --listen 127.0.0.1:7174"
    )]
    Serve(Serve),
    /// Mount a volume: starts a target in the background that ends when the volume is unmounted.
    #[command(
        after_help = "Example: flashnet mount /dev/nvme1n1,/dev/nvme2n1 /mnt/flash -o noatime,listen=127.0.0.1:7174"
    )]
    Mount(Mount),
    /// Unmount a volume, and wait until its target has closed it.
    #[command(after_help = "Example: flashnet umount /mnt/flash")]
    Umount(Umount),
    /// What a running target is and does: live on a terminal, or look by look as text (-b) or JSON (--json).
    #[command(
        after_help = "Example: flashnet top volume.img\n         flashnet top /mnt/flash -d 5m -n 12 > an-hour.txt\n         flashnet --json top --once volume.img"
    )]
    Top(top::Top),
    /// Check a volume that is not in use, and repair it.
    #[command(
        after_help = "Example: flashnet fsck volume.img\n         flashnet fsck -y volume.img\n         flashnet fsck --degraded a.img c.img"
    )]
    Fsck(Fsck),
    /// Make a volume larger, mounted or not, or smaller, which it must not be in use for.
    #[command(
        after_help = "Example: lvextend -L 200G vg/flash && flashnet resize /mnt/flash\n         flashnet resize --truncate volume.img 2GiB"
    )]
    Resize(Resize),
    /// Limit what may lie below a directory of a mounted volume: bytes and inodes.
    #[command(subcommand)]
    Quota(quota::QuotaCommand),
    /// Make, list or delete read-only images of a mounted volume.
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// Show what is on the media of a volume that is not in use.
    #[command(after_help = "Example: flashnet inspect volume.img --map 0+16")]
    Inspect(device::Inspect),
    /// Read everything that a volume holds, and report what does not fit its checksum.
    #[command(after_help = "Example: flashnet scrub volume.img --rate 200MiB")]
    Scrub(device::Scrub),
    /// List a remote directory.
    #[command(after_help = "Example: flashnet ls localhost/photos")]
    Ls(Remote),
    /// Attributes of a remote path.
    #[command(after_help = "Example: flashnet stat localhost/photos/1.jpg")]
    Stat(Remote),
    /// Copy a remote file here by one-sided reads.
    #[command(
        after_help = "Example: flashnet get localhost/photos/1.jpg 1.jpg\n         flashnet get -r localhost/.snapshots/monday/photos"
    )]
    Get(Get),
    /// Copy a local file there by one-sided writes, durable when the command returns.
    #[command(
        after_help = "Example: flashnet put 1.jpg localhost/photos/1.jpg\n         flashnet put -r photos localhost/"
    )]
    Put(Put),
    /// Remove remote files and directories.
    #[command(
        after_help = "Example: flashnet rm localhost/photos/1.jpg\n         flashnet rm -r localhost/photos"
    )]
    Rm(names::Rm),
    /// Make remote directories.
    #[command(after_help = "Example: flashnet mkdir -p localhost/photos/2026")]
    Mkdir(names::Mkdir),
    /// Give a remote file or directory another name.
    #[command(
        after_help = "Example: flashnet mv localhost/photos/1.jpg localhost/photos/first.jpg\n         flashnet mv localhost/photos localhost/archive/"
    )]
    Mv(names::Mv),
    /// Measure: throughput and latency of this stack beside its rivals, in the same run.
    #[command(
        after_help = "Example: flashnet perf read --connections 16 --depth 2 --baseline socket\n         flashnet perf raw --connections 16 --depth 16"
    )]
    Perf(Perf),
    /// The flash translation layer alone.
    #[command(subcommand)]
    Ftl(ftl::FtlCommand),
    /// Tables of figures.
    #[command(subcommand)]
    Bench(ftl::BenchCommand),
    /// A target on a temporary image under mixed load for hours, killed again and again, everything checked.
    #[command(
        after_help = "Example: flashnet soak --duration 2h --size 4GiB --directory /mnt/flash"
    )]
    Soak(Soak),
    /// What local and remote programs see of each other's stores: litmus tests on a temporary image.
    #[command(after_help = "Example: flashnet litmus --rounds 10000")]
    Litmus(Litmus),
    /// The other side of rping, ucmatose, perftest and others: for trying this endpoint against any RDMA network.
    #[command(subcommand)]
    Peer(peer::PeerCommand),
    /// Groups of members that replicate a log: make, serve, look at, measure and compare them.
    #[command(subcommand)]
    Chain(chain::ChainCommand),
    /// Secrets and tokens of tenants.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// The persistent regions of a volume, served or not: look at them, and revoke some.
    #[command(subcommand)]
    Region(region::RegionCommand),
    /// Do to a target what should not happen, again and again, and check that nothing is lost.
    #[command(subcommand)]
    Torture(torture::TortureCommand),
    /// Print what lets a shell complete commands and options.
    #[command(
        after_help = "Example: flashnet completion bash > /usr/share/bash-completion/completions/flashnet"
    )]
    Completion(install::Completion),
    /// Write the manual pages: of each command, and of each name that the program is called by.
    #[command(after_help = "Example: flashnet man /usr/local/share/man")]
    Man(install::Man),
    /// The server side of a comparison, started by `perf`.
    #[command(hide = true)]
    PerfServer(PerfServer),
}

impl Command {
    /// Whether it has to go on when nobody reads what it says: it serves others, or leaves files and mounts behind that it takes
    /// away at its end.
    pub fn outlives_its_reader(&self) -> bool {
        matches!(
            self,
            Self::Serve(_)
                | Self::PerfServer(_)
                | Self::Demo(_)
                | Self::Soak(_)
                | Self::Litmus(_)
                | Self::Peer(_)
                | Self::Torture(_)
                | Self::Perf(_)
                | Self::Ftl(_)
                | Self::Bench(
                    ftl::BenchCommand::Wa(_)
                        | ftl::BenchCommand::Fs(_)
                        | ftl::BenchCommand::Hyperloop(_)
                )
                | Self::Chain(chain::ChainCommand::Serve(_))
        )
    }
}

/// Options of `demo`.
#[derive(Clone, Debug, Args)]
pub struct Demo {
    /// Size of the image that is made [default: 1GiB, for a temporary one].
    #[arg(long)]
    pub size: Option<ByteSize>,
    /// Format and use this device or image instead of a temporary one. Its content is lost. An image that is not there is made, and
    /// kept, if --size says how large.
    #[arg(long, value_name = "PATH")]
    pub device: Option<PathBuf>,
    /// File or directory to copy onto the volume [default: the repository's files and 256 MiB of generated data].
    #[arg(long, value_name = "PATH")]
    pub input: Option<PathBuf>,
}

/// Options of `soak`.
#[derive(Clone, Debug, Args)]
pub struct Soak {
    /// How long.
    #[arg(long, value_name = "TIME", default_value = "2h")]
    pub duration: humantime::Duration,
    /// Size of the temporary image.
    #[arg(long, default_value = "1GiB")]
    pub size: ByteSize,
    /// Where the image is made, and removed if all is well [default: the temporary directory].
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Clients that write over RDMA.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub writers: u32,
    /// Start of all chance [default: another one each time; it is printed].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// Options of `mkfs`.
#[derive(Clone, Debug, Args)]
pub struct Mkfs {
    /// Device or image file; several of any sizes make one volume, striped over them and without redundancy.
    #[arg(required = true, value_name = "DEV")]
    pub devices: Vec<PathBuf>,
    /// Make image files that do not exist this large.
    #[arg(long)]
    pub size: Option<ByteSize>,
    /// Write the whole new image file once, so that its first writes are as fast as all later ones.
    #[arg(long, requires = "size")]
    pub prefill: bool,
    /// Share of the device kept from users so that the log can breathe.
    #[arg(long, value_name = "PERCENT", default_value = "20%", value_parser = percent)]
    pub op: u8,
    /// Unit of append and reclaim [default: 1/2048 of the device, 512 KiB to 512 MiB, or less where a device has no 64 of those].
    #[arg(long, value_name = "SIZE")]
    pub segment_size: Option<ByteSize>,
    /// Format even if there is a volume already.
    #[arg(long)]
    pub force: bool,
}

/// Whether devices are told what is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Discard {
    /// If all are block devices.
    #[default]
    Auto,
    /// Yes.
    Always,
    /// No.
    Never,
}

/// Options of `serve`.
#[derive(Clone, Debug, Args)]
pub struct Serve {
    /// Device or image file; all of them in any order, if the volume lies on several.
    #[arg(value_name = "DEV", required_unless_present_any = ["config", "options"])]
    pub devices: Vec<PathBuf>,
    /// TOML file with the same settings; options given here win.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Mount the volume here.
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Options of the mount, with commas between them, as `flashnet mount` takes them.
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<MountOptions>,
    /// Address for RDMA (iWARP) connections, or `none` [default: 127.0.0.1:7174].
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<Listen>,
    /// How clients connect by TLS.
    #[command(flatten)]
    pub tls: TlsServe,
    /// Address for monitoring systems, or `none`: Prometheus metrics by HTTP, without authentication [default: none].
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<Listen>,
    /// Let peers in that have no token: beyond loopback, and beside tenants.
    #[arg(long)]
    pub insecure: bool,
    /// Take over from the target that serves this volume, with its listening sockets, if there is one.
    #[arg(long, conflicts_with = "background")]
    pub replace: bool,
    /// Directory of the volume that remote clients may use; append `:ro` for read-only; repeatable; replaces the exports of
    /// the configuration file [default: /].
    #[arg(long = "export", value_name = "PATH[:ro]")]
    pub exports: Vec<Export>,
    /// Memory for pages [default: 256MiB].
    #[arg(long, value_name = "SIZE")]
    pub pool: Option<ByteSize>,
    /// Files share their pages with programs that map them: all of them, or those marked by the attribute
    /// user.contigfs.share_pages [default: never]. Takes CAP_SYS_ADMIN.
    #[arg(long, value_name = "WHICH", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    pub share_pages: Option<SharePages>,
    /// Memory for the files that share their pages, all together; larger ones do not [default: 256MiB].
    #[arg(long, value_name = "SIZE")]
    pub share_limit: Option<ByteSize>,
    /// Seconds between two looks for what programs have stored to shared pages [default: 1].
    #[arg(long, value_name = "SECONDS")]
    pub share_scan: Option<Seconds>,
    /// Offer a region of plain memory of this size as `/.dram`, to measure without flash.
    #[arg(long, value_name = "SIZE")]
    pub dram: Option<ByteSize>,
    /// Placement and collection: greedy, greedy-window, three-stream or lifetime [default: lifetime].
    #[arg(long, value_name = "NAME")]
    pub gc_policy: Option<::ftl::GcPolicy>,
    /// Go on although devices of the volume are missing, for good: what is on them is lost.
    #[arg(long)]
    pub degraded: bool,
    /// When changes of names and attributes are durable: strict, when the call returns, or relaxed, with the next fsync or a
    /// few seconds later [default: strict].
    #[arg(long, value_name = "WHEN")]
    pub metadata_sync: Option<contigfs::MetadataSync>,
    /// Tell the devices what is free [default: auto, which is yes for block devices; image files would lose the space they
    /// have reserved].
    #[arg(long, value_enum, value_name = "WHEN")]
    pub discard: Option<Discard>,
    /// Reactor threads [default: 1].
    #[arg(long, value_name = "N")]
    pub reactors: Option<usize>,
    /// Reactors look for work all the time instead of sleeping: less latency, for a processor each.
    #[arg(long)]
    pub poll: bool,
    /// How long reactors whose connections are busy look for work before they sleep, 1s at most; 0s: not at all [default:
    /// 100us].
    #[arg(long, value_name = "TIME")]
    pub spin: Option<humantime::Duration>,
    /// Write the address served to this file once ready.
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// For `mount`, which waits for the first line: no terminal from then on, log to syslog, end with the mount.
    #[arg(long, hide = true, requires = "mount")]
    pub background: bool,
}

/// Options of `fsck`, which are those of fsck(8).
#[derive(Clone, Debug, Args)]
pub struct Fsck {
    /// Change nothing: say what is wrong (this is what happens without -p and -y, too).
    #[arg(short = 'n', group = "care")]
    pub no_change: bool,
    /// Recover, and repair what loses nothing; a volume that was shut down in order is not looked at (see -f).
    #[arg(short = 'p', short_alias = 'a', group = "care")]
    pub preen: bool,
    /// Recover, and repair all that can be repaired.
    #[arg(short = 'y', group = "care")]
    pub yes: bool,
    /// With -p, look at the volume even if it was shut down in order; without -p that is always done.
    #[arg(short = 'f')]
    pub force: bool,
    /// Tell how far it is: 0 as a percentage to standard output (with --json to standard error), else lines `PASS DONE ALL DEV` to
    /// this descriptor.
    #[arg(short = 'C', value_name = "FD")]
    pub progress: Option<u16>,
    /// Say more.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Find the map again from the headers of the log, whatever the checkpoints say, and keep it.
    #[arg(long, conflicts_with = "no_change")]
    pub rebuild: bool,
    /// Although devices of the volume are missing: tells what is lost with them; with -y or -p repairs what is left, and from then
    /// on what they hold is out of date, for good.
    #[arg(long, conflicts_with = "rebuild")]
    pub degraded: bool,
    /// Device or image file; all of them in any order, also with commas between them, if the volume lies on several.
    #[arg(required = true, value_name = "DEV")]
    pub devices: Vec<PathBuf>,
}

/// Options of `resize`.
#[derive(Clone, Debug, Args)]
pub struct Resize {
    /// Device or image file, or the directory that the volume is mounted on.
    #[arg(value_name = "DEV|DIR")]
    pub place: PathBuf,
    /// New size of the device that the volume uses; an image file that is shorter is made longer [default: all of the
    /// device].
    pub size: Option<ByteSize>,
    /// Make it as small as what is on it allows.
    #[arg(short = 'M', long, conflicts_with = "size")]
    pub minimum: bool,
    /// Only print the smallest size, in bytes.
    #[arg(short = 'P', long, conflicts_with_all = ["size", "minimum", "truncate"])]
    pub print_minimum: bool,
    /// Change nothing: say what would become of it.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Cut an image file to the new size, once the volume ends there.
    #[arg(long)]
    pub truncate: bool,
}

/// Options of `ls` and `stat`.
#[derive(Clone, Debug, Args)]
pub struct Remote {
    /// `HOST[:PORT]/PATH`
    #[arg(value_name = "HOST[:PORT]/PATH")]
    pub target: String,
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

/// How long a client waits.
#[derive(Clone, Copy, Debug, Args)]
pub struct Patience {
    /// How long a target is waited for that takes the connection and does not answer, or is lost in the middle of a copy, which goes on
    /// where it was then. It is lost, too, when an answer takes half of this time, or 30s. Where nobody takes the connection at the
    /// beginning, nobody is waited for. 0s: not at all.
    #[arg(long, value_name = "TIME", default_value = "1m")]
    pub timeout: humantime::Duration,
}

/// Options of `get`.
#[derive(Clone, Debug, Args)]
pub struct Get {
    /// `HOST[:PORT]/PATH`
    #[arg(value_name = "HOST[:PORT]/PATH")]
    pub source: String,
    /// Local file; `-` for standard output [default: the last part of PATH]. A file gets this name, or is replaced, when
    /// all of it has come; until then it is beside it as `.NAME.*.part`, which goes when the command is cut off. What is no
    /// regular file is written to as it is.
    pub to: Option<PathBuf>,
    /// A directory, with everything in it: into TO if that is one, else to this name. Modes and times are not copied, nor is what is
    /// neither directory nor regular file.
    #[arg(short = 'r', visible_short_alias = 'R', long)]
    pub recursive: bool,
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

/// Options of `put`.
#[derive(Clone, Debug, Args)]
pub struct Put {
    /// Local file.
    pub from: PathBuf,
    /// `HOST[:PORT]/PATH`
    #[arg(value_name = "HOST[:PORT]/PATH")]
    pub target: String,
    /// A directory, with everything in it: into PATH if that is one or ends with a slash, else to this name. Modes and times are not
    /// copied, nor is what is neither directory nor regular file.
    #[arg(short = 'r', visible_short_alias = 'R', long)]
    pub recursive: bool,
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

/// What `perf` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// One-sided reads.
    Read,
    /// One-sided writes.
    Write,
    /// One operation at a time on one connection.
    Lat,
    /// The bare TCP request/response program of the same shape: what the network of the machine can do.
    Raw,
    /// Direct I/O on a local file with as much in flight, no network: what its disk can do.
    Disk,
    /// Registering sparse files of 16 GiB, 1 TiB and 16 TiB, beside pinning 1 GiB of memory as an RDMA card wants it.
    Reg,
}

/// Where the bytes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// A region of plain memory of the target.
    #[value(alias = "DRAM")]
    Dram,
    /// A file on flash.
    Flash,
}

/// Whom to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Baseline {
    /// A server with a thread per connection, blocking sockets and pread/pwrite on an ordinary file.
    Socket,
    /// The bare TCP request/response program of the same shape.
    Raw,
    /// Direct I/O on a local file with as much in flight.
    Disk,
    /// The faster of the network block servers that are installed, qemu-nbd (Debian: qemu-utils) and nbdkit.
    Nbd,
    /// The same without the idle connections.
    Alone,
    /// The same with 16 connections.
    Few,
}

/// Options of `perf`.
#[derive(Clone, Debug, Args)]
pub struct Perf {
    /// What to measure.
    pub measure: Measure,
    /// File of a running target; what writes, writes over what it holds [default: a target started on a temporary image].
    #[arg(value_name = "HOST[:PORT]/PATH")]
    pub target: Option<String>,
    /// Bytes per operation.
    #[arg(long, default_value = "4KiB")]
    pub size: ByteSize,
    /// Operations in flight per connection; `lat` has one.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub depth: usize,
    /// Connections; `lat` has one.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub connections: usize,
    /// Further connections that have the file open and do nothing.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub idle: usize,
    /// Time to measure.
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Write through the sync STag: durable before the next operation.
    #[arg(long)]
    pub sync: bool,
    /// Where the bytes live.
    #[arg(long, value_enum, ignore_case = true, default_value = "flash")]
    pub device: Place,
    /// Compare with this, in the same run.
    #[arg(long, value_enum)]
    pub baseline: Option<Baseline>,
    /// Turns that a comparison is measured in, to be fair on a machine whose speed changes.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Read the file into the pool first, which must be large enough.
    #[arg(long)]
    pub resident: bool,
    /// Size of the file [default: 1GiB, or 64MiB with --resident; of a running target's file no more than it has].
    #[arg(long, value_name = "SIZE")]
    pub file_size: Option<ByteSize>,
    /// Memory of the started target for pages [default: 32MiB, or twice the file with --resident; more for many connections].
    #[arg(long, value_name = "SIZE")]
    pub pool: Option<ByteSize>,
    /// Directory for the temporary image, on the disk to be measured [default: the system's].
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Let the socket and nbd baselines use the page cache instead of direct I/O, as they do where the target has the file in memory.
    #[arg(long)]
    pub baseline_buffered: bool,
    /// Which bytes each operation is about.
    #[arg(long, value_enum, default_value = "random")]
    pub pattern: Pattern,
    /// Direction of `lat`, `raw` and `disk`.
    #[arg(long, value_enum, default_value = "read")]
    pub direction: Direction,
    /// Ask for CRCs on the wire.
    #[arg(long)]
    pub crc: bool,
    /// Who asks a running target.
    #[command(flatten)]
    pub identity: TokenFile,
    /// How it connects to a running target.
    #[command(flatten)]
    pub tls: TlsConnect,
    /// Nobody sleeps: the started target, the bare program and the clients of both look for work all the time.
    #[arg(long)]
    pub poll: bool,
    /// How long the clients, and the started target, look for work before they sleep, while it comes as soon as that; the bare
    /// program, the socket server and network block servers, and the clients of these, always sleep.
    #[arg(long, value_name = "TIME", default_value_t = Spin::MOST.into())]
    pub spin: humantime::Duration,
}

impl Perf {
    /// What is said by who says nothing.
    pub fn usual() -> Self {
        match Cli::parse_from(["flashnet", "perf", "read"]).command {
            Command::Perf(usual) => usual,
            other => unreachable!("{other:?} was not asked for"),
        }
    }
}

/// Options of `perf-server`.
#[derive(Clone, Debug, Args)]
pub struct PerfServer {
    /// File to serve; without it the bare request/response program runs.
    #[arg(long)]
    pub file: Option<PathBuf>,
    /// Mount a file system here, and serve nothing else: one that passes everything on to the directory `file`, or one whose
    /// file reads as zeros.
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Through the page cache.
    #[arg(long)]
    pub buffered: bool,
    /// Look for work all the time instead of sleeping.
    #[arg(long)]
    pub poll: bool,
    /// Keep a processor busy until standard input ends, and serve nothing.
    #[arg(long)]
    pub tenant: bool,
    /// Bytes of a bare request.
    #[arg(long, default_value_t = 52)]
    pub request: usize,
    /// Bytes of a bare response.
    #[arg(long, default_value_t = 4116)]
    pub response: usize,
}

fn percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.parse() {
        Ok(p) if p <= 90 => Ok(p),
        _ => Err(format!("{text} is no share between 0% and 90%")),
    }
}
