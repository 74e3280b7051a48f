//! The tenants of a running target: what each may use, and what its registrations depend on.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use anyhow::{Context, Result};
use contigfs::{BlockStore, ExtentObserver, InodeNo, Settled};
use ftl::Lba;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use softrdma::{BackingId, ProtectionDomain};

use super::exports::{Export, Exports};
use super::mapped::Mapped;
use super::regions::{Follower, Regions};
use crate::credentials::registry::EnrolError;
use crate::credentials::{
    ANONYMOUS, Door, Hooks, Key, Registry, Standing, Tenant, TenantName, unix_now,
};

/// A tenant in the TOML file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantEntry {
    /// Its name.
    pub name: String,
    /// Where its secret is.
    pub key_file: PathBuf,
    /// Tokens and registrations of lower epochs are refused for ever.
    #[serde(default)]
    pub epoch: u64,
    /// As behind `--export`; without any, those of the target.
    #[serde(default)]
    pub exports: Vec<String>,
}

/// A tenant that has been read and checked.
#[derive(Clone, Debug)]
pub struct TenantSettings {
    /// Its name.
    pub name: TenantName,
    /// What its tokens are made with.
    pub key: Key,
    /// Its epoch.
    pub epoch: u64,
    /// What it may use.
    pub exports: Exports,
}

impl TenantEntry {
    /// Reads its key, and gives it the exports of the target if it has none of its own.
    pub(super) fn read(self, of_target: &Exports, read_only: bool) -> Result<TenantSettings> {
        let name: TenantName = self.name.parse()?;
        let key = Key::read(&self.key_file)
            .with_context(|| format!("tenant {name}: key file {}", self.key_file.display()))?;
        let mut exports = Vec::new();
        for text in &self.exports {
            let export: Result<Export, _> = text.parse();
            let export = export.map_err(anyhow::Error::msg);
            exports.push(export.with_context(|| format!("tenant {name}: export {text}"))?);
        }
        let exports = match (exports.is_empty(), read_only) {
            (true, _) => of_target.clone(),
            (false, false) => Exports::new(exports),
            (false, true) => Exports::new(Exports::new(exports).read_only()),
        };
        Ok(TenantSettings {
            name,
            key,
            epoch: self.epoch,
            exports,
        })
    }
}

/// What a connection may use.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// Directories.
    pub exports: Exports,
    /// What its registrations depend on.
    pub standing: Standing,
}

/// All of them, by their domains.
#[derive(Debug)]
pub(super) struct Tenancy(HashMap<ProtectionDomain, Arc<Member>>);

impl Tenancy {
    /// Makes the tenants known to the volume; returns them, and the door that lets them in. `strangers` may come in with
    /// those exports.
    pub(super) fn enrol<S: BlockStore>(
        tenants: &[TenantSettings],
        strangers: Option<&Exports>,
        registry: &Registry<S>,
    ) -> Result<(Self, Door), EnrolError> {
        let enrolled = registry.enrol(&epochs(tenants), unix_now())?;
        let mut members = HashMap::new();
        let mut at_door = Vec::new();
        for (tenant, record) in tenants.iter().zip(enrolled) {
            members.insert(
                record.domain,
                member(record.domain, tenant.epoch, &tenant.exports),
            );
            at_door.push(Tenant::new(
                tenant.name.clone(),
                tenant.key.clone(),
                tenant.epoch,
                record.domain,
                record.seen,
            ));
        }
        if let Some(exports) = strangers {
            members.insert(ANONYMOUS, member(ANONYMOUS, 0, exports));
        }
        let door = Door::new(at_door, strangers.is_some());
        Ok((Self(members), door))
    }

    /// What connections of a domain may use; none of a domain that nobody has.
    pub(super) fn of(&self, domain: ProtectionDomain) -> Option<&Arc<Member>> {
        self.0.get(&domain)
    }

    /// How many they are, strangers among them; one at least.
    pub(super) fn members(&self) -> usize {
        self.0.len().max(1)
    }

    /// What registrations may depend on now.
    pub(super) fn standings(&self) -> Vec<Standing> {
        self.0.values().map(|member| member.standing).collect()
    }
}

/// The names of tenants, with their epochs.
pub(super) fn epochs(tenants: &[TenantSettings]) -> Vec<(TenantName, u64)> {
    let of = |tenant: &TenantSettings| (tenant.name.clone(), tenant.epoch);
    tenants.iter().map(of).collect()
}

fn member(domain: ProtectionDomain, epoch: u64, exports: &Exports) -> Arc<Member> {
    Arc::new(Member {
        standing: Standing {
            domain,
            epoch,
            exports: digest(exports),
        },
        exports: exports.clone(),
    })
}

/// Differs when exports differ.
fn digest(exports: &Exports) -> u64 {
    let mut lines: Vec<String> = exports.iter().map(|export| format!("{export}\n")).collect();
    lines.sort();
    let digest = Sha256::digest(lines.concat());
    u64::from_le_bytes(digest[..8].try_into().expect("eight bytes"))
}

/// What the target does for the registry, which is one more who has regions of a file, beside its connections.
#[derive(Debug)]
pub(super) struct TargetHooks {
    /// Files that are mapped.
    pub mapped: Arc<Mapped>,
    /// Where files with regions lie.
    pub regions: Arc<Regions>,
}

impl Hooks for TargetHooks {
    fn registering(&self, ino: InodeNo, start: Lba) -> Option<BackingId> {
        let backing = self.regions.attach(ino, start)?;
        self.mapped.registering(ino, backing);
        Some(backing)
    }

    fn registering_late(&self, ino: InodeNo) {
        // It may: then the first WRITE finds out.
        self.mapped.privileged(ino);
    }

    fn ended(&self, files: &[InodeNo]) {
        files.iter().for_each(|&ino| self.mapped.deregistered(ino));
        self.regions.detach(files);
    }
}

/// Both who have to hear of changes of files.
#[derive(Debug)]
pub(super) struct Observers<S: BlockStore> {
    /// Stored registrations, which also have to be retired. The file system has the observer, the registry the file system.
    pub registry: Weak<Registry<S>>,
    /// Files that are mapped.
    pub mapped: Arc<Mapped>,
    /// Regions, which follow.
    pub follower: Follower,
}

impl<S: BlockStore> Observers<S> {
    /// The numbers of files whose stored registrations `what` has ended.
    fn ended(&self, what: impl FnOnce(&Registry<S>) -> Vec<InodeNo>) -> Vec<InodeNo> {
        let ended = self.registry.upgrade().map(|registry| what(&registry));
        let ended = ended.unwrap_or_default();
        ended.iter().for_each(|&ino| self.mapped.deregistered(ino));
        ended
    }
}

impl<S: BlockStore> ExtentObserver for Observers<S> {
    fn shrinking(&self, ino: InodeNo, size: u64) {
        let ended = self.ended(|registry| registry.shrinks(ino, size));
        // With their slot still there, by which the file is held.
        self.follower.shrinking(ino, size);
        self.follower.0.detach(&ended);
    }

    /// Stored registrations follow their file like any other region.
    fn moving(&self, ino: InodeNo) {
        self.follower.moving(ino);
    }

    fn freed(&self, ino: InodeNo) {
        let ended = self.ended(|registry| registry.frees(ino));
        self.follower.freed(ino);
        if !ended.is_empty() {
            self.follower.0.vacate(ino, &ended);
        }
    }

    fn settled(&self, ino: InodeNo, settled: Settled) {
        self.follower.settled(ino, settled);
    }

    fn grown(&self, ino: InodeNo, size: u64) {
        self.follower.grown(ino, size);
    }

    fn privileged(&self, ino: InodeNo) {
        self.mapped.privileged(ino);
    }
}
