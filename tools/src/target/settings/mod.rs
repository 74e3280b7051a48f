//! Settings of a target: the TOML file and the command line, merged and checked.

mod asked;
mod file;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use bytesize::ByteSize;
use contigfs::MetadataSync;
use ftl::GcPolicy;
use softrdma::driver::Spin;
use thiserror::Error;

use self::asked::Asked;
use super::exports::Exports;
use super::tenancy::TenantSettings;
use super::tls_settings::TlsSettings;
use crate::cli;
pub use crate::control::PORT;

/// What a target is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The devices or images of the volume, in any order.
    pub devices: Vec<PathBuf>,
    /// Go on although some are missing.
    pub degraded: bool,
    /// Whether free segments are discarded.
    pub discard: bool,
    /// Where to mount.
    pub mount: Option<PathBuf>,
    /// When changes of metadata are durable.
    pub metadata_sync: MetadataSync,
    /// How to mount.
    pub fuse: contigfs::fuse::MountOptions,
    /// Where to listen, if anywhere.
    pub listen: Option<SocketAddr>,
    /// Where and how clients connect by TLS, if they can.
    pub tls: Option<TlsSettings>,
    /// Where monitoring systems ask, if they can.
    pub metrics: Option<SocketAddr>,
    /// What remote clients may use.
    pub exports: Exports,
    /// Who may connect with a token.
    pub tenants: Vec<TenantSettings>,
    /// Whether others may connect, too.
    pub strangers: bool,
    /// How long a registration lives that nobody uses.
    pub credential_lifetime: Duration,
    /// Pages in memory, in bytes.
    pub pool_bytes: u64,
    /// Memory for pages that are shared with local programs, in bytes.
    pub share_bytes: u64,
    /// Plain memory to offer, in bytes.
    pub dram_bytes: Option<u64>,
    /// How the translation layer places grains and chooses what to collect.
    pub gc_policy: GcPolicy,
    /// Reactor threads.
    pub reactors: usize,
    /// They do not sleep.
    pub poll: bool,
    /// How long reactors with busy connections look for work before they sleep.
    pub spin: Duration,
    /// Where to write the address served.
    pub ready_file: Option<PathBuf>,
}

/// What is asked of a target, on the command line and in its file together, that it can not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SettingsError {
    /// Of what?
    #[error("no device given: name one, or set `devices` in the configuration file")]
    NoDevice,
    /// To whom?
    #[error("there is nothing to serve: name a directory (--mount), or an address (--listen)")]
    Nothing,
    /// Two things at one port.
    #[error(
        "metrics can not be had at {0}: clients connect to that port; \
         choose another for --metrics (-o metrics=ADDR), or for clients"
    )]
    Metrics(SocketAddr),
    /// A list that nobody is looked up in.
    #[error(
        "a list of revoked certificates goes with the CAs of clients: --tls-client-ca, \
         or `client_ca` of [tls] in the configuration file"
    )]
    Revoked,
    /// TLS with half of what it takes.
    #[error(
        "TLS takes a certificate and its key: --tls-cert and --tls-key, \
         or `cert` and `key` of [tls] in the configuration file"
    )]
    Certificate,
    /// Everybody could read and write.
    #[error(
        "{0} is reachable from other machines and peers are not authenticated: \
         listen on 127.0.0.1, name tenants in the configuration file, \
         listen for TLS only and want certificates of clients (--tls-client-ca), \
         or say --insecure (-o insecure) on a network where everybody may read and write"
    )]
    Reachable(SocketAddr),
    /// Too few pages in memory.
    #[error("a pool of {0} is too small: 1MiB is the least")]
    Pool(ByteSize),
    /// More memory than there is.
    #[error("pool, shared pages and plain memory together are larger than this machine's {0}")]
    Memory(ByteSize),
    /// None of them, or too many.
    #[error("{0} reactors: 1 to 64 are possible")]
    Reactors(usize),
    /// Longer than that is no pause any more.
    #[error(
        "to look for work for {}: {:?} is the most; with --poll a reactor never sleeps",
        humantime::format_duration(*.0),
        Spin::LONGEST
    )]
    Spin(Duration),
    /// Every write durable, and names not.
    #[error("sync and relaxed metadata contradict each other")]
    Contradiction,
}

impl Settings {
    /// Merges the options given with the file they name.
    pub fn new(options: &cli::Serve) -> Result<Self> {
        Asked::of(options)?.settle()
    }
}
