//! What is asked of a target: on the command line, in the options of the mount, and in the file.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use contigfs::MetadataSync;
use contigfs::fuse::SharePages;
use softrdma::driver::Spin;

use super::file::FileSettings;
use super::{PORT, Settings, SettingsError};
use crate::cli;
use crate::cli::mount::{Listen, MountOptions};
use crate::credentials::record::TENANTS_MAX;
use crate::devices::{self, are_blocks};
use crate::target::exports::Exports;
use crate::target::tenancy::TenantSettings;
use crate::target::tls_settings::TlsSettings;

/// How long a registration lives that nobody uses.
const CREDENTIAL_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// All of it. Where a thing is said more than once, the command line counts, then the options, then the file.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    line: &'a cli::Serve,
    options: MountOptions,
    file: FileSettings,
}

/// Where a target listens.
struct Listening {
    plain: Option<SocketAddr>,
    tls: Option<TlsSettings>,
    metrics: Option<SocketAddr>,
}

/// Memory that a target takes, in bytes.
struct Memory {
    pool: u64,
    share: u64,
    dram: Option<u64>,
}

impl<'a> Asked<'a> {
    /// What the command line says, and the file that it names.
    pub(super) fn of(line: &'a cli::Serve) -> Result<Self> {
        let given = line.options.iter().cloned();
        let given = given.fold(MountOptions::default(), |below, above| above.over(below));
        let mut file = match line.config.as_ref().or(given.config.as_ref()) {
            Some(path) => FileSettings::read(path)?,
            None => FileSettings::default(),
        };
        if let Some(path) = &file.options.config {
            bail!(
                "a configuration file can not name another one ({})",
                path.display()
            );
        }
        let options = given.over(std::mem::take(&mut file.options));
        Ok(Self {
            line,
            options,
            file,
        })
    }

    /// What a target can be started with, if it can be that.
    pub(super) fn settle(mut self) -> Result<Settings> {
        let devices = self.devices()?;
        let discard = self.discards(&devices);
        let mount = self.line.mount.clone().or(self.file.mount.take());
        let listening = self.listening()?;
        if listening.plain.is_none() && listening.tls.is_none() && mount.is_none() {
            return Err(SettingsError::Nothing.into());
        }
        let insecure = self.is_insecure();
        if !insecure && self.file.tenant.is_empty() {
            listening.check_unreachable()?;
        }
        let credential_lifetime = self.credential_lifetime()?;
        let (exports, tenants) = self.users()?;
        let fuse = self.fuse(&devices);
        let memory = self.memory(fuse.share)?;
        let reactors = self.reactors()?;
        let spin = self.spin()?;
        let (line, options, file) = (self.line, &self.options, &self.file);
        Ok(Settings {
            metadata_sync: self.metadata_sync()?,
            degraded: line.degraded || options.degraded.or(file.degraded).unwrap_or(false),
            devices,
            discard,
            mount,
            fuse,
            listen: listening.plain,
            tls: listening.tls,
            metrics: listening.metrics,
            strangers: tenants.is_empty() || insecure,
            exports,
            tenants,
            credential_lifetime,
            pool_bytes: memory.pool,
            share_bytes: memory.share,
            dram_bytes: memory.dram,
            gc_policy: line.gc_policy.or(file.gc_policy).unwrap_or_default(),
            reactors,
            poll: line.poll || file.poll.unwrap_or(false),
            spin,
            ready_file: line.ready_file.clone(),
        })
    }

    fn devices(&mut self) -> Result<Vec<PathBuf>> {
        let mut devices = match &self.line.devices[..] {
            [] => self.file.devices.take().unwrap_or_default(),
            named => named.to_vec(),
        };
        devices.extend_from_slice(&self.options.devices);
        match devices.is_empty() {
            true => Err(SettingsError::NoDevice.into()),
            false => Ok(devices),
        }
    }

    fn discards(&self, devices: &[PathBuf]) -> bool {
        let said = self.line.discard.or(self.options.discard);
        match said.or(self.file.discard).unwrap_or_default() {
            cli::Discard::Auto => are_blocks(devices),
            cli::Discard::Always => true,
            cli::Discard::Never => false,
        }
    }

    fn listening(&mut self) -> Result<Listening> {
        let said = self.line.listen.or(self.options.listen);
        let plain = match said.or(self.file.listen) {
            Some(Listen::At(address)) => Some(address),
            Some(Listen::Nowhere) => None,
            // What `mount` starts is a local file system first; several of them could not share a port.
            None if self.line.background => None,
            None => Some(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT))),
        };
        let tls = TlsSettings::new(&self.line.tls, self.file.tls.take())?;
        let said = self.line.metrics.or(self.options.metrics);
        let metrics = match said.or(self.file.metrics) {
            Some(Listen::At(address)) => Some(address),
            Some(Listen::Nowhere) | None => None,
        };
        let others = [plain, tls.as_ref().map(|tls| tls.listen)];
        if let Some(at) = metrics
            && others.into_iter().flatten().any(|other| collide(at, other))
        {
            return Err(SettingsError::Metrics(at).into());
        }
        Ok(Listening {
            plain,
            tls,
            metrics,
        })
    }

    fn is_insecure(&self) -> bool {
        let said = self.options.insecure.or(self.file.insecure);
        self.line.insecure || said.unwrap_or(false)
    }

    fn credential_lifetime(&self) -> Result<Duration> {
        let lifetime = self.file.credential_lifetime;
        match lifetime.unwrap_or(CREDENTIAL_LIFETIME) {
            lifetime if lifetime < Duration::from_secs(1) => {
                bail!("credential_lifetime: 1s is the least")
            }
            lifetime => Ok(lifetime),
        }
    }

    /// What whoever comes without a token may use, and who comes with one.
    fn users(&mut self) -> Result<(Exports, Vec<TenantSettings>)> {
        let mut exports = std::mem::take(&mut self.file.export);
        for export in &exports {
            export.check().context("export in the configuration file")?;
        }
        if !self.line.exports.is_empty() {
            exports.clone_from(&self.line.exports);
        }
        let read_only = self.options.read_only == Some(true);
        if read_only {
            exports = Exports::new(exports).read_only();
        }
        let exports = Exports::new(exports);
        let mut tenants: Vec<TenantSettings> = Vec::new();
        for entry in std::mem::take(&mut self.file.tenant) {
            let tenant = entry.read(&exports, read_only)?;
            if tenants.iter().any(|other| other.name == tenant.name) {
                bail!("tenant {} is configured twice", tenant.name);
            }
            tenants.push(tenant);
        }
        if tenants.len() > TENANTS_MAX {
            bail!("{} tenants: {TENANTS_MAX} are possible", tenants.len());
        }
        Ok((exports, tenants))
    }

    /// How to mount.
    fn fuse(&self, devices: &[PathBuf]) -> contigfs::fuse::MountOptions {
        let mut fuse = fuse_options(&self.options, devices);
        if let Some(which) = self.line.share_pages {
            fuse.share = which.into();
        }
        if let Some(scan) = self.line.share_scan {
            fuse.share_scan = scan.0;
        }
        fuse
    }

    fn memory(&self, share: SharePages) -> Result<Memory> {
        let pool = self.line.pool.or(self.options.pool).or(self.file.pool);
        let pool = pool.unwrap_or(ByteSize::mib(256));
        if pool < ByteSize::mib(1) {
            return Err(SettingsError::Pool(pool).into());
        }
        let limit = self.line.share_limit.or(self.options.share_limit);
        let share = match share {
            SharePages::Never => 0,
            _ => limit.unwrap_or(ByteSize::mib(256)).as_u64(),
        };
        let memory = Memory {
            pool: pool.as_u64(),
            share,
            dram: self.line.dram.or(self.file.dram).map(|size| size.as_u64()),
        };
        let wanted = [memory.pool, memory.share, memory.dram.unwrap_or(0)];
        let wanted = wanted.into_iter().fold(0, u64::saturating_add);
        let there = memory_bytes();
        match wanted > there {
            true => Err(SettingsError::Memory(ByteSize::b(there)).into()),
            false => Ok(memory),
        }
    }

    fn reactors(&self) -> Result<usize> {
        match self.line.reactors.or(self.file.reactors).unwrap_or(1) {
            reactors @ 1..=64 => Ok(reactors),
            reactors => Err(SettingsError::Reactors(reactors).into()),
        }
    }

    fn spin(&self) -> Result<Duration> {
        let said = self.line.spin.map(Into::into).or(self.file.spin);
        match said.unwrap_or(Spin::MOST) {
            spin if spin > Spin::LONGEST => Err(SettingsError::Spin(spin).into()),
            spin => Ok(spin),
        }
    }

    fn metadata_sync(&self) -> Result<MetadataSync> {
        let said = self.line.metadata_sync.or(self.options.metadata_sync);
        let said = said.or(self.file.metadata_sync).unwrap_or_default();
        match said == MetadataSync::Relaxed && self.options.sync == Some(true) {
            true => Err(SettingsError::Contradiction.into()),
            false => Ok(said),
        }
    }
}

impl Listening {
    /// Nobody on another machine gets to where peers are not authenticated. By TLS with certificates of clients they are.
    fn check_unreachable(&self) -> Result<(), SettingsError> {
        let by_tls = self.tls.as_ref();
        let by_tls = by_tls.filter(|tls| !tls.how.wants_certificates());
        let unauthenticated = [self.plain, by_tls.map(|tls| tls.listen)];
        let mut addresses = unauthenticated.into_iter().flatten();
        match addresses.find(|address| !address.ip().is_loopback()) {
            Some(address) => Err(SettingsError::Reachable(address)),
            None => Ok(()),
        }
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
