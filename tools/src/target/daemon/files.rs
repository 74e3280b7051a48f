//! The file system on the volume, and who may use which of its files.

use std::sync::{Arc, Weak};

use anyhow::{Context, Result};
use contigfs::{Fs, FsOptions};
use tracing::{info, warn};

use super::engine::Engine;
use crate::credentials::{Registry, registry, unix_now};
use crate::target::privileges::EnderThread;
use crate::target::readahead::Readahead;
use crate::target::regions::Follower;
use crate::target::settings::Settings;
use crate::target::store::TargetStore;
use crate::target::tenancy::{Observers, TargetHooks, Tenancy};

/// The file system, stored registrations, and tenants.
#[derive(Debug)]
pub(super) struct Files {
    pub fs: Arc<Fs<TargetStore>>,
    pub readahead: Option<Arc<Readahead>>,
    pub registry: Arc<Registry<TargetStore>>,
    pub privileges: EnderThread,
    pub tenancy: Arc<Tenancy>,
}

impl Files {
    /// Reads them from the volume of `engine`, whose door is set: who is let in is known then.
    pub(super) fn open(settings: &Settings, engine: &Engine) -> Result<Self> {
        let file = engine.file.as_ref();
        let store = TargetStore::new(
            Arc::clone(&engine.ftl),
            Arc::clone(&engine.inboxes[0]),
            engine.lanes.clone(),
            engine.threads,
        )
        .beside(&engine.regions)
        .growing_on(file.map_or_else(Weak::new, Arc::downgrade))
        .reading_ahead()?;
        let readahead = store.readahead().cloned();
        let options = FsOptions {
            metadata_sync: settings.metadata_sync,
            ..FsOptions::default()
        };
        let fs =
            Fs::mount_with(store, &options).context("cannot read the file system of the volume")?;
        if fs.is_damaged() {
            warn!("the file system is damaged; fsck -y repairs it when it is not in use");
            // So that the next `fsck -p` looks, however this ends.
            engine.ftl.set_suspect(true);
        }
        let fs = Arc::new(fs);
        let hooks = TargetHooks {
            mapped: Arc::clone(&engine.mapped),
            regions: Arc::clone(&engine.regions),
        };
        let registry = Registry::open(
            Arc::clone(&fs),
            Arc::clone(&engine.stags),
            Box::new(hooks),
            registry::Options {
                lifetime: settings.credential_lifetime.as_secs(),
                bug: None,
            },
        )
        .context("cannot read the stored credentials")?;
        let registry = Arc::new(registry);
        fs.set_observer(Box::new(Observers {
            registry: Arc::downgrade(&registry),
            mapped: Arc::clone(&engine.mapped),
            follower: Follower(Arc::clone(&engine.regions)),
        }));
        let privileges = EnderThread::start(Arc::clone(&fs), &engine.mapped)?;
        let strangers = settings.strangers.then_some(&settings.exports);
        let (tenancy, door) = Tenancy::enrol(&settings.tenants, strangers, &registry)?;
        let restored = registry
            .restore(&tenancy.standings(), unix_now())
            .context("cannot restore the stored credentials")?;
        info!(?restored, "stored registrations");
        let _ = engine.door.set(door);
        Ok(Self {
            fs,
            readahead,
            registry,
            privileges,
            tenancy: Arc::new(tenancy),
        })
    }
}
