//! Settings of a target: the TOML file and the command line, merged and checked.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use ftl::GcPolicy;
use serde::{Deserialize, Deserializer};

use super::exports::{Export, Exports};
use crate::cli;
use crate::devices::are_blocks;

/// Port of the target, in the range that nobody owns.
pub const PORT: u16 = 7174;

/// The TOML file: everything is optional, and the command line wins.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSettings {
    devices: Option<Vec<PathBuf>>,
    mount: Option<PathBuf>,
    listen: Option<SocketAddr>,
    insecure: Option<bool>,
    #[serde(default)]
    export: Vec<Export>,
    #[serde(default, deserialize_with = "size")]
    pool: Option<ByteSize>,
    #[serde(default, deserialize_with = "size")]
    dram: Option<ByteSize>,
    reactors: Option<usize>,
    #[serde(default, deserialize_with = "policy")]
    gc_policy: Option<GcPolicy>,
    degraded: Option<bool>,
    discard: Option<cli::Discard>,
}

fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ByteSize>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

fn policy<'de, D: Deserializer<'de>>(from: D) -> Result<Option<GcPolicy>, D::Error> {
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
    /// Where to listen.
    pub listen: SocketAddr,
    /// What remote clients may use.
    pub exports: Exports,
    /// Pages in memory, in bytes.
    pub pool_bytes: u64,
    /// Plain memory to offer, in bytes.
    pub dram_bytes: Option<u64>,
    /// How the translation layer places grains and chooses what to collect.
    pub gc_policy: GcPolicy,
    /// Reactor threads.
    pub reactors: usize,
    /// Where to write the address served.
    pub ready_file: Option<PathBuf>,
}

impl Settings {
    /// Merges the options given with the file they name.
    pub fn new(options: &cli::Serve) -> Result<Self> {
        let file = match &options.config {
            Some(path) => read(path)?,
            None => FileSettings::default(),
        };
        let devices = if options.devices.is_empty() {
            file.devices.unwrap_or_default()
        } else {
            options.devices.clone()
        };
        if devices.is_empty() {
            bail!("no device given: name one, or set `devices` in the configuration file");
        }
        let discard = match options.discard.or(file.discard).unwrap_or_default() {
            cli::Discard::Auto => are_blocks(&devices),
            cli::Discard::Always => true,
            cli::Discard::Never => false,
        };
        let listen = options
            .listen
            .or(file.listen)
            .unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)));
        let insecure = options.insecure || file.insecure.unwrap_or(false);
        if !listen.ip().is_loopback() && !insecure {
            bail!(
                "{listen} is reachable from other machines and peers are not authenticated: \
                 listen on 127.0.0.1, or say --insecure on a network where everybody may read and write"
            );
        }
        let mut exports = file.export;
        for export in &exports {
            export.check().context("export in the configuration file")?;
        }
        if !options.exports.is_empty() {
            exports.clear();
        }
        for text in &options.exports {
            let export = text.parse().map_err(anyhow::Error::msg);
            exports.push(export.with_context(|| format!("--export {text}"))?);
        }
        let pool = options.pool.or(file.pool).unwrap_or(ByteSize::mib(256));
        if pool < ByteSize::mib(1) {
            bail!("a pool of {pool} is too small: 1MiB is the least");
        }
        let dram_bytes = options.dram.or(file.dram).map(|size| size.as_u64());
        let memory = memory_bytes();
        if pool.as_u64().saturating_add(dram_bytes.unwrap_or(0)) > memory {
            bail!(
                "pool and plain memory together are larger than this machine's {}",
                ByteSize::b(memory)
            );
        }
        let reactors = options.reactors.or(file.reactors).unwrap_or(1);
        if !(1..=64).contains(&reactors) {
            bail!("{reactors} reactors: 1 to 64 are possible");
        }
        Ok(Self {
            devices,
            degraded: options.degraded || file.degraded.unwrap_or(false),
            discard,
            mount: options.mount.clone().or(file.mount),
            listen,
            exports: Exports::new(exports),
            pool_bytes: pool.as_u64(),
            dram_bytes,
            gc_policy: options.gc_policy.or(file.gc_policy).unwrap_or_default(),
            reactors,
            ready_file: options.ready_file.clone(),
        })
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
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the configuration file {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("configuration file {}", path.display()))
}
