//! Options of `peer`.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Programs that `peer` plays the other side of.
#[derive(Debug, Subcommand)]
pub enum PeerCommand {
    /// rping: pings READ and WRITTEN back.
    #[command(
        after_help = "Example: flashnet peer rping --listen 127.0.0.1:7174 --count 5\n         and there: rping -c -V -C 5 -a HOST -p 7174"
    )]
    Rping(PeerOptions),
    /// ucmatose (cmatose): many connections, messages both ways, the server first.
    #[command(
        visible_alias = "ucmatose",
        after_help = "Example: flashnet peer cmatose --connect HOST:7471 --connections 3 --count 5 --size 100\n         and there: ucmatose -c 3 -C 5 -S 100"
    )]
    Cmatose(PeerOptions),
    /// rdma_client and rdma_server: 16 bytes each way.
    #[command(
        visible_aliases = ["rdma_client", "rdma_server"],
        after_help = "Example: flashnet peer rdma --connect HOST:7471\n         and there: rdma_server"
    )]
    Rdma(PeerOptions),
    /// ib_write_bw -R: WRITEs.
    #[command(
        visible_alias = "ib_write_bw",
        after_help = "Example: flashnet peer write-bw --connect HOST:18515 --count 100 --size 65536\n         and there: ib_write_bw -R -F -n 100 -s 65536"
    )]
    WriteBw(PeerOptions),
    /// ib_read_bw -R: READs.
    #[command(
        visible_alias = "ib_read_bw",
        after_help = "Example: flashnet peer read-bw --listen 0.0.0.0:18515 --count 100 --size 65536\n         and there: ib_read_bw -R -F -n 100 -s 65536 HOST"
    )]
    ReadBw(PeerOptions),
    /// ib_send_bw -R: SENDs.
    #[command(
        visible_alias = "ib_send_bw",
        after_help = "Example: flashnet peer send-bw --connect HOST:18515 --count 100 --size 65536\n         and there: ib_send_bw -R -F -n 100 -s 65536"
    )]
    SendBw(PeerOptions),
    /// One of perftest's three, by name.
    #[command(
        after_help = "Example: flashnet peer perftest --test write --connect HOST:18515 --count 100 --size 65536\n         and there: ib_write_bw -R -F -n 100 -s 65536"
    )]
    Perftest {
        /// Which.
        #[arg(long, value_enum)]
        test: Perftest,
        /// As of each.
        #[command(flatten)]
        options: PeerOptions,
    },
    /// rstream: a stream there and back (rsockets).
    #[command(
        after_help = "Example: flashnet peer rstream --listen 127.0.0.1:7471 --count 10 --size 1000\n         and there: rstream -s HOST -I 1 -C 10 -S 1000 -T v"
    )]
    Rstream(PeerOptions),
    /// All of them against Linux's soft-iWARP in a guest, in both roles and all manners of set-up: a table.
    #[command(after_help = "Example: flashnet peer matrix --pcap all.pcap")]
    Matrix(PeerMatrix),
}

/// A program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Program {
    /// rping
    Rping,
    /// ucmatose
    Cmatose,
    /// rdma_client and rdma_server
    Rdma,
    /// ib_write_bw
    WriteBw,
    /// ib_read_bw
    ReadBw,
    /// ib_send_bw
    SendBw,
    /// rstream
    Rstream,
}

impl Program {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Rping,
        Self::Cmatose,
        Self::Rdma,
        Self::WriteBw,
        Self::ReadBw,
        Self::SendBw,
        Self::Rstream,
    ];
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rping => "rping",
            Self::Cmatose => "ucmatose",
            Self::Rdma => "rdma_client/server",
            Self::WriteBw => "ib_write_bw",
            Self::ReadBw => "ib_read_bw",
            Self::SendBw => "ib_send_bw",
            Self::Rstream => "rstream",
        })
    }
}

/// A program of perftest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Perftest {
    /// ib_write_bw
    Write,
    /// ib_read_bw
    Read,
    /// ib_send_bw
    Send,
}

impl Perftest {
    /// The same, by its own name.
    pub const fn program(self) -> Program {
        match self {
            Self::Write => Program::WriteBw,
            Self::Read => Program::ReadBw,
            Self::Send => Program::SendBw,
        }
    }
}

/// First frame of a connection by which the requester says that it is ready to receive (RFC 6581).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Rtr {
    /// None: the responder waits until the requester sends by itself.
    None,
    /// A WRITE of no bytes.
    Write,
    /// A READ of no bytes.
    Read,
    /// What the responder prefers of the two.
    Any,
}

/// How much goes into one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Fpdu {
    /// As little as MPA allows: 128 bytes.
    Small,
    /// A TCP segment.
    Mss,
    /// As much as MPA allows: many segments.
    Large,
}

/// Options of the programs.
#[derive(Clone, Debug, Args)]
pub struct PeerOptions {
    /// Be the server: wait here for the other program.
    #[arg(
        long,
        value_name = "ADDR",
        required_unless_present = "connect",
        conflicts_with = "connect"
    )]
    pub listen: Option<String>,
    /// Be the client: connect to the other program, which may be started a little later.
    #[arg(long, value_name = "HOST:PORT")]
    pub connect: Option<String>,
    /// Pings, messages or operations; the other program must know the same number.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = number(1, 1000))]
    pub count: usize,
    /// Bytes of each; the other program must know the same number.
    #[arg(long, default_value_t = 1000, value_parser = number(32, 1 << 20))]
    pub size: usize,
    /// Connections: at once with cmatose, one after the other with rping and rdma.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number(1, 10_000))]
    pub connections: usize,
    /// Ask for CRCs; they are on if either side asks (soft-iWARP as server only says so if the client asked).
    #[arg(long)]
    pub crc: bool,
    /// Revision of MPA that a client asks for.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub revision: u8,
    /// Ready-to-receive frame that a client offers; with revision 2 only.
    #[arg(long, value_enum, default_value = "any")]
    pub rtr: Rtr,
    /// Bytes per frame that we send.
    #[arg(long, value_enum, default_value = "mss")]
    pub fpdu: Fpdu,
    /// Longest wait for anything.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = patience)]
    pub timeout: humantime::Duration,
}

/// Options of `matrix`.
#[derive(Clone, Debug, Args)]
pub struct PeerMatrix {
    /// Only these programs; repeatable.
    #[arg(long = "program", value_enum, value_name = "PROGRAM")]
    pub programs: Vec<Program>,
    /// Programs that run in the guest at the same time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = number(1, 32))]
    pub jobs: usize,
    /// Record the guest's Ethernet frames in this file; those of a second guest, should the network of the first fail, in
    /// one beside it (`FILE` with `2.pcap` for its extension).
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// The rig [default: softrdma/interop/siw-guest of the sources that this program was built from].
    #[arg(long, value_name = "FILE")]
    pub rig: Option<PathBuf>,
    /// Longest wait for one program, without KVM and on a busy machine.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = patience)]
    pub timeout: humantime::Duration,
}

/// A time that can be waited for.
fn patience(text: &str) -> Result<humantime::Duration, String> {
    let time: humantime::Duration = text.parse().map_err(|error| format!("{error}"))?;
    match (1..=86_400_000).contains(&time.as_millis()) {
        true => Ok(time),
        false => Err("1ms to a day are possible".to_owned()),
    }
}

fn number(least: u64, most: u64) -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser as _;
    clap::value_parser!(u64)
        .range(least..=most)
        .map(|number| number as usize)
}
