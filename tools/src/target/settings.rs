//! Settings of a target: the TOML file and the command line, merged and checked.

use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use contigfs::MetadataSync;
use contigfs::fuse::SharePages;
use ftl::GcPolicy;
use serde::{Deserialize, Deserializer};
use softrdma::driver::Spin;
use thiserror::Error;

use super::exports::{Export, Exports};
use super::tenancy::{TenantEntry, TenantSettings};
use super::tls_settings::{FileTls, TlsSettings};
use crate::cli;
use crate::cli::mount::{Listen, MountOptions};
use crate::credentials::record::TENANTS_MAX;
use crate::devices::{self, are_blocks};

/// How long a registration lives that nobody uses.
const CREDENTIAL_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Longest configuration file, in bytes: with as many tenants as there may be it is far shorter. What is read may have no end.
const FILE_BYTES_MAX: u64 = 16 << 20;

pub use crate::control::PORT;

/// The TOML file: everything is optional, and the command line wins.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSettings {
    devices: Option<Vec<PathBuf>>,
    mount: Option<PathBuf>,
    /// As behind `-o`.
    #[serde(default)]
    options: MountOptions,
    listen: Option<Listen>,
    insecure: Option<bool>,
    metrics: Option<Listen>,
    tls: Option<FileTls>,
    #[serde(default)]
    export: Vec<Export>,
    #[serde(default, deserialize_with = "size")]
    pool: Option<ByteSize>,
    #[serde(default, deserialize_with = "size")]
    dram: Option<ByteSize>,
    reactors: Option<usize>,
    poll: Option<bool>,
    #[serde(default, deserialize_with = "time")]
    spin: Option<Duration>,
    #[serde(default, deserialize_with = "policy")]
    gc_policy: Option<GcPolicy>,
    degraded: Option<bool>,
    discard: Option<cli::Discard>,
    #[serde(default, deserialize_with = "metadata_sync")]
    metadata_sync: Option<MetadataSync>,
    #[serde(default)]
    tenant: Vec<TenantEntry>,
    #[serde(default, deserialize_with = "time")]
    credential_lifetime: Option<Duration>,
}

fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ByteSize>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    let time = humantime::parse_duration(&text);
    time.map(Some).map_err(serde::de::Error::custom)
}

fn policy<'de, D: Deserializer<'de>>(from: D) -> Result<Option<GcPolicy>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

fn metadata_sync<'de, D: Deserializer<'de>>(from: D) -> Result<Option<MetadataSync>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

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
        let given = options.options.iter().cloned();
        let given = given.fold(MountOptions::default(), |below, above| above.over(below));
        let mut file = match options.config.as_ref().or(given.config.as_ref()) {
            Some(path) => read(path)?,
            None => FileSettings::default(),
        };
        if let Some(path) = &file.options.config {
            bail!(
                "a configuration file can not name another one ({})",
                path.display()
            );
        }
        let mount_options = given.over(std::mem::take(&mut file.options));
        let mut devices = if options.devices.is_empty() {
            file.devices.unwrap_or_default()
        } else {
            options.devices.clone()
        };
        devices.extend_from_slice(&mount_options.devices);
        if devices.is_empty() {
            return Err(SettingsError::NoDevice.into());
        }
        let discard = match [options.discard, mount_options.discard, file.discard]
            .into_iter()
            .find_map(|said| said)
            .unwrap_or_default()
        {
            cli::Discard::Auto => are_blocks(&devices),
            cli::Discard::Always => true,
            cli::Discard::Never => false,
        };
        let said = options.listen.or(mount_options.listen).or(file.listen);
        let listen = match said {
            Some(Listen::At(address)) => Some(address),
            Some(Listen::Nowhere) => None,
            // What `mount` starts is a local file system first; several of them could not share a port.
            None if options.background => None,
            None => Some(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT))),
        };
        let tls = TlsSettings::new(&options.tls, file.tls)?;
        let said = options.metrics.or(mount_options.metrics).or(file.metrics);
        let metrics = match said {
            Some(Listen::At(address)) => Some(address),
            Some(Listen::Nowhere) | None => None,
        };
        let others = [listen, tls.as_ref().map(|tls| tls.listen)];
        if let Some(at) = metrics
            && others.into_iter().flatten().any(|other| collide(at, other))
        {
            return Err(SettingsError::Metrics(at).into());
        }
        let mount = options.mount.clone().or(file.mount);
        if listen.is_none() && tls.is_none() && mount.is_none() {
            return Err(SettingsError::Nothing.into());
        }
        let insecure =
            options.insecure || mount_options.insecure.or(file.insecure).unwrap_or(false);
        // By TLS with certificates of clients, peers are authenticated.
        let by_tls = tls.as_ref().filter(|tls| !tls.how.wants_certificates());
        let unauthenticated = [listen, by_tls.map(|tls| tls.listen)];
        for address in unauthenticated.into_iter().flatten() {
            if !address.ip().is_loopback() && !insecure && file.tenant.is_empty() {
                return Err(SettingsError::Reachable(address).into());
            }
        }
        let credential_lifetime = file.credential_lifetime.unwrap_or(CREDENTIAL_LIFETIME);
        if credential_lifetime < Duration::from_secs(1) {
            bail!("credential_lifetime: 1s is the least");
        }
        let mut exports = file.export;
        for export in &exports {
            export.check().context("export in the configuration file")?;
        }
        if !options.exports.is_empty() {
            exports.clone_from(&options.exports);
        }
        let read_only = mount_options.read_only == Some(true);
        if read_only {
            exports = Exports::new(exports).read_only();
        }
        let exports = Exports::new(exports);
        let mut tenants: Vec<TenantSettings> = Vec::new();
        for entry in file.tenant {
            let tenant = entry.read(&exports, read_only)?;
            if tenants.iter().any(|other| other.name == tenant.name) {
                bail!("tenant {} is configured twice", tenant.name);
            }
            tenants.push(tenant);
        }
        if tenants.len() > TENANTS_MAX {
            bail!("{} tenants: {TENANTS_MAX} are possible", tenants.len());
        }
        let pool = options.pool.or(mount_options.pool).or(file.pool);
        let pool = pool.unwrap_or(ByteSize::mib(256));
        if pool < ByteSize::mib(1) {
            return Err(SettingsError::Pool(pool).into());
        }
        let dram_bytes = options.dram.or(file.dram).map(|size| size.as_u64());
        let mut fuse = fuse_options(&mount_options, &devices);
        if let Some(which) = options.share_pages {
            fuse.share = which.into();
        }
        if let Some(scan) = options.share_scan {
            fuse.share_scan = scan.0;
        }
        let share = options.share_limit.or(mount_options.share_limit);
        let share_bytes = match fuse.share {
            SharePages::Never => 0,
            _ => share.unwrap_or(ByteSize::mib(256)).as_u64(),
        };
        let memory = memory_bytes();
        let wanted = [pool.as_u64(), dram_bytes.unwrap_or(0), share_bytes];
        if wanted
            .iter()
            .fold(0, |sum: u64, bytes| sum.saturating_add(*bytes))
            > memory
        {
            return Err(SettingsError::Memory(ByteSize::b(memory)).into());
        }
        let reactors = options.reactors.or(file.reactors).unwrap_or(1);
        if !(1..=64).contains(&reactors) {
            return Err(SettingsError::Reactors(reactors).into());
        }
        let spin = options.spin.map(Into::into).or(file.spin);
        let spin = spin.unwrap_or(Spin::MOST);
        if spin > Spin::LONGEST {
            return Err(SettingsError::Spin(spin).into());
        }
        let metadata_sync = options
            .metadata_sync
            .or(mount_options.metadata_sync)
            .or(file.metadata_sync)
            .unwrap_or_default();
        if metadata_sync == MetadataSync::Relaxed && mount_options.sync == Some(true) {
            return Err(SettingsError::Contradiction.into());
        }
        Ok(Self {
            metadata_sync,
            fuse,
            degraded: options.degraded || mount_options.degraded.or(file.degraded).unwrap_or(false),
            devices,
            discard,
            mount,
            listen,
            tls,
            metrics,
            strangers: tenants.is_empty() || insecure,
            exports,
            tenants,
            credential_lifetime,
            pool_bytes: pool.as_u64(),
            share_bytes,
            dram_bytes,
            gc_policy: options.gc_policy.or(file.gc_policy).unwrap_or_default(),
            reactors,
            poll: options.poll || file.poll.unwrap_or(false),
            spin,
            ready_file: options.ready_file.clone(),
        })
    }
}

/// Whether nobody can listen at both addresses.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let everywhere = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && (everywhere || one.ip() == other.ip())
}

/// The options of the mount for the FUSE adapter; the mount table shows the devices as its source.
fn fuse_options(options: &MountOptions, paths: &[PathBuf]) -> contigfs::fuse::MountOptions {
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let paths: Vec<PathBuf> = paths.iter().map(absolute).collect();
    let default = contigfs::fuse::MountOptions::default();
    contigfs::fuse::MountOptions {
        name: devices::spec(&paths),
        allow_other: options.allow_other,
        read_only: options.read_only.unwrap_or(false),
        atime: options.atime.unwrap_or_default(),
        directory_atimes: options.directory_atimes.unwrap_or(true),
        suid: options.suid,
        dev: options.dev,
        follow_links: options.follow_links.unwrap_or(true),
        exec: options.exec.unwrap_or(true),
        sync: options.sync.unwrap_or(false),
        // Any of the devices tells people what is mounted.
        syncfs: match options.syncfs {
            Some(true) => paths.first().cloned(),
            _ => None,
        },
        uid: options.uid,
        gid: options.gid,
        rings: options.rings.unwrap_or(true),
        share: options.share_pages.map_or(default.share, Into::into),
        share_scan: options.share_scan.map_or(default.share_scan, |scan| scan.0),
        ..default
    }
}

/// Memory of the machine.
fn memory_bytes() -> u64 {
    // SAFETY: neither call has memory arguments.
    let (pages, page) = unsafe {
        (
            libc::sysconf(libc::_SC_PHYS_PAGES),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    u64::try_from(pages).unwrap_or(0) * u64::try_from(page).unwrap_or(0)
}

fn read(path: &Path) -> Result<FileSettings> {
    let mut text = String::new();
    let read = File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
        .and_then(|bytes| match bytes as u64 > FILE_BYTES_MAX {
            true => Err(io::ErrorKind::FileTooLarge.into()),
            false => Ok(()),
        });
    read.with_context(|| format!("cannot read the configuration file {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("configuration file {}", path.display()))
}
