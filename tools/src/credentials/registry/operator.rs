//! What an operator does with the stored registrations: look at them, and revoke those of his choice, on a running target as
//! well as on a volume that nobody serves.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};

use contigfs::{BlockStore, FileKind, Fs, FsError, InodeNo};
use serde::{Deserialize, Serialize};
use softrdma::Stag;
use thiserror::Error;

use super::super::slots::Living;
use super::{ANONYMOUS, Record, Registry, lock};

/// Names that are looked at, at most, to find those of the files that have registrations.
const NAMES_MAX: usize = 1 << 20;

/// A living registration, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Plain STag.
    pub stag: u32,
    /// Sync STag.
    pub sync_stag: u32,
    /// Number of its tenant's protection domain; 1: of peers without a token.
    pub domain: u32,
    /// Name of the tenant, if the volume remembers it.
    pub tenant: Option<String>,
    /// Number of the file.
    pub inode: u64,
    /// A name of the file, if one was found.
    pub path: Option<String>,
    /// First byte in the file.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// May be written.
    pub writable: bool,
    /// Unix time when it ends, if nobody uses it until then.
    pub expires: u64,
    /// Connections that have it open.
    pub connections: u32,
}

/// Which registrations are meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Choice {
    /// All.
    All,
    /// The one with this STag, of either flavour.
    Stag(u32),
    /// Those of the file at this path, from the root of the volume.
    Path(PathBuf),
    /// Those of this tenant.
    Tenant(String),
    /// Those of peers without a token.
    Strangers,
}

/// Why there is nothing to choose from.
#[derive(Debug, Error)]
pub enum ChoiceError {
    /// No such registration.
    #[error("no persistent region has the STag {0:#010x}")]
    Stag(u32),
    /// No such tenant.
    #[error("the volume knows no tenant of the name {0}")]
    Tenant(String),
    /// No such file.
    #[error("{}: {cause}", path.display())]
    Path {
        /// Where none is.
        path: PathBuf,
        /// Why not.
        cause: FsError,
    },
    /// The volume fails.
    #[error("stored credentials: {0}")]
    Store(#[from] FsError),
}

impl<S: BlockStore> Registry<S> {
    /// Takes what was read as it is, instead of [restoring](Self::restore) it: for who looks at a volume that nobody serves.
    ///
    /// # Errors
    /// What hides the stored registrations.
    pub fn adopt(&self) -> Result<(), FsError> {
        if let Some(error) = self.unreadable {
            return Err(error);
        }
        let mut state = lock(&self.state);
        for (slot, record) in std::mem::take(&mut state.found) {
            let living = Living {
                record,
                attached: 0,
                backing: None,
            };
            state.slots.insert(slot, living);
        }
        Ok(())
    }

    /// The living registrations of a choice, in the order of their files.
    pub fn list(&self, choice: &Choice) -> Result<Vec<Listed>, ChoiceError> {
        let chosen = self.chosen(choice)?;
        let mut listed: Vec<Listed> = {
            let state = lock(&self.state);
            let living = state.slots.living().filter(|(_, l)| chosen(&l.record));
            living
                .map(|(_, l)| self.listed(l, &state.tenants))
                .collect()
        };
        listed.sort_by_key(|l| (l.inode, l.offset, l.length, l.stag));
        let paths = paths_of(&self.fs, listed.iter().map(|l| l.inode));
        for one in &mut listed {
            let path = paths.get(&one.inode);
            one.path = path.map(|path| path.to_string_lossy().into_owned());
        }
        Ok(listed)
    }

    /// Retires those of a choice for ever, durably (C2); answers which it were. When this returns, no access through them
    /// happens any more.
    pub fn revoke_chosen(&self, choice: &Choice) -> Result<Vec<Listed>, ChoiceError> {
        let listed = self.list(choice)?;
        let mut revoked = Vec::with_capacity(listed.len());
        self.retire_matching(|slots| {
            // Whatever was issued since is not what the operator hears of.
            let known = listed.into_iter().filter_map(|one| {
                let slot = slots.by_stag(Stag(one.stag))?;
                revoked.push(one);
                Some(slot)
            });
            known.collect()
        })
        .map_err(FsError::from)?;
        Ok(revoked)
    }

    /// Which records a choice means.
    fn chosen(&self, choice: &Choice) -> Result<impl Fn(&Record) -> bool + use<S>, ChoiceError> {
        let (mut stag, mut inode, mut domain) = (None, None, None);
        match choice {
            Choice::All => {}
            Choice::Stag(number) => {
                let state = lock(&self.state);
                let known = state.slots.by_stag(Stag(*number));
                known.ok_or(ChoiceError::Stag(*number))?;
                stag = Some(Stag(*number));
            }
            Choice::Path(path) => {
                let found = self.fs.lookup_path(path).map_err(|cause| {
                    let path = path.clone();
                    ChoiceError::Path { path, cause }
                })?;
                inode = Some(found.0);
            }
            Choice::Tenant(name) => {
                let state = lock(&self.state);
                let tenant = state.tenants.iter().find(|t| t.name.as_str() == name);
                let tenant = tenant.ok_or_else(|| ChoiceError::Tenant(name.clone()))?;
                domain = Some(tenant.domain);
            }
            Choice::Strangers => domain = Some(ANONYMOUS),
        }
        Ok(move |record: &Record| {
            stag.is_none_or(|stag| record.stag == stag || record.sync_stag == stag)
                && inode.is_none_or(|inode| record.inode == inode)
                && domain.is_none_or(|domain| record.domain == domain)
        })
    }

    fn listed(&self, living: &Living, tenants: &[super::TenantRecord]) -> Listed {
        let record = &living.record;
        let tenant = tenants.iter().find(|t| t.domain == record.domain);
        Listed {
            stag: record.stag.0,
            sync_stag: record.sync_stag.0,
            domain: record.domain.0,
            tenant: tenant.map(|tenant| tenant.name.as_str().to_owned()),
            inode: record.inode,
            path: None,
            offset: record.offset,
            length: record.length,
            writable: record.writable,
            expires: record.expires,
            connections: living.attached,
        }
    }
}

/// A path of each of these files, as far as one is found. Files do not know their names, so directories are looked through,
/// those near the root first, until all are found or there are too many.
fn paths_of<S: BlockStore>(fs: &Fs<S>, inodes: impl Iterator<Item = u64>) -> HashMap<u64, PathBuf> {
    let mut wanted: HashMap<u64, Option<PathBuf>> = inodes.map(|ino| (ino, None)).collect();
    let (mut missing, mut names) = (wanted.len(), 0);
    let mut waiting = VecDeque::from([(InodeNo::ROOT, Path::new("/").to_owned())]);
    while missing > 0
        && names < NAMES_MAX
        && let Some((dir, path)) = waiting.pop_front()
    {
        // A directory that cannot be read hides names, and nothing else.
        let _ = fs.readdir(dir, 0, |entry| {
            if entry.name == "." || entry.name == ".." {
                return true;
            }
            names += 1;
            match entry.kind {
                FileKind::Directory => waiting.push_back((entry.ino, path.join(&entry.name))),
                FileKind::File => {
                    if let Some(place @ None) = wanted.get_mut(&entry.ino.0) {
                        *place = Some(path.join(&entry.name));
                        missing -= 1;
                    }
                }
                _ => {}
            }
            missing > 0 && names < NAMES_MAX
        });
    }
    let found = wanted.into_iter();
    found.filter_map(|(ino, path)| Some((ino, path?))).collect()
}
