//! The configuration file of a target.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use bytesize::ByteSize;
use contigfs::MetadataSync;
use ftl::GcPolicy;
use serde::{Deserialize, Deserializer};

use crate::cli;
use crate::cli::mount::{Listen, MountOptions};
use crate::target::exports::Export;
use crate::target::tenancy::TenantEntry;
use crate::target::tls_settings::FileTls;

/// Longest configuration file, in bytes: with as many tenants as there may be it is far shorter. What is read may have no end.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The TOML file: everything is optional, and the command line wins.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileSettings {
    pub devices: Option<Vec<PathBuf>>,
    pub mount: Option<PathBuf>,
    /// As behind `-o`.
    #[serde(default)]
    pub options: MountOptions,
    pub listen: Option<Listen>,
    pub insecure: Option<bool>,
    pub metrics: Option<Listen>,
    pub tls: Option<FileTls>,
    #[serde(default)]
    pub export: Vec<Export>,
    #[serde(default, deserialize_with = "size")]
    pub pool: Option<ByteSize>,
    #[serde(default, deserialize_with = "size")]
    pub dram: Option<ByteSize>,
    pub reactors: Option<usize>,
    pub poll: Option<bool>,
    #[serde(default, deserialize_with = "time")]
    pub spin: Option<Duration>,
    #[serde(default, deserialize_with = "policy")]
    pub gc_policy: Option<GcPolicy>,
    pub degraded: Option<bool>,
    pub discard: Option<cli::Discard>,
    #[serde(default, deserialize_with = "metadata_sync")]
    pub metadata_sync: Option<MetadataSync>,
    #[serde(default)]
    pub tenant: Vec<TenantEntry>,
    #[serde(default, deserialize_with = "time")]
    pub credential_lifetime: Option<Duration>,
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

impl FileSettings {
    /// Reads them.
    pub(super) fn read(path: &Path) -> Result<Self> {
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
}
