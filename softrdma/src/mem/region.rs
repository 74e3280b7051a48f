//! Registered regions and the table that finds them by STag.
//!
//! A region is an extent: backing, offset, length. Registering costs the same for a byte and for a terabyte
//! (DESIGN D6). The table is shared by all connections and reactor threads; a connection keeps the regions it used
//! last and asks the table only for others, so the lock of the table is off the hot path.
//!
//! # Invariants
//! - R1. The index of an STag is random and of one region only; a file-backed region answers to exactly two STags of
//!   that index, one with and one without the sync bit, whose other key bits differ. A flipped bit matches neither.
//! - R2. A region once dead stays dead. Registering again makes a new one.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::addr::{BackingId, ProtectionDomain, RemoteAddr, Stag, StreamId, TaggedOffset};
use crate::mem::Buffer;

/// Regions in one table. The index has 24 bits; staying at a sixteenth keeps guessing hard and drawing cheap.
pub const REGIONS_MAX: usize = 1 << 20;

bitflags::bitflags! {
    /// What peers may do with a region.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Rights: u8 {
        /// Source of READs.
        const REMOTE_READ = 1;
        /// Target of WRITEs.
        const REMOTE_WRITE = 2;
        /// Target of Send with Invalidate; only with a region bound to one stream.
        const REMOTE_INVALIDATE = 4;
        /// Target of atomic operations.
        const REMOTE_ATOMIC = 8;
    }
}

/// Where the bytes of a region are.
#[derive(Clone, Debug)]
pub enum Backing {
    /// In memory of this process.
    Memory(Arc<Buffer>),
    /// In pages of the [`PageStore`](crate::PageStore).
    Pages(BackingId),
}

/// What to register.
#[derive(Clone, Debug)]
pub struct RegionSpec {
    /// Only connections of this domain get in.
    pub domain: ProtectionDomain,
    /// What they may do.
    pub rights: Rights,
    /// Where the bytes are.
    pub backing: Backing,
    /// First byte in the backing.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// Tagged offset of the first byte: 0, or its virtual address.
    pub base: TaggedOffset,
    /// Only this stream gets in.
    pub stream: Option<StreamId>,
}

impl RegionSpec {
    /// All of a buffer, addressed from 0.
    #[must_use]
    pub fn memory(domain: ProtectionDomain, rights: Rights, buffer: &Arc<Buffer>) -> Self {
        Self {
            domain,
            rights,
            backing: Backing::Memory(Arc::clone(buffer)),
            offset: 0,
            len: buffer.len() as u64,
            base: TaggedOffset(0),
            stream: None,
        }
    }

    /// `len` bytes of a page-backed object from `offset` on, addressed from 0.
    #[must_use]
    pub fn pages(
        domain: ProtectionDomain,
        rights: Rights,
        backing: BackingId,
        offset: u64,
        len: u64,
    ) -> Self {
        Self {
            domain,
            rights,
            backing: Backing::Pages(backing),
            offset,
            len,
            base: TaggedOffset(0),
            stream: None,
        }
    }
}

/// Why a region was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RegisterError {
    /// The range passes the end of the buffer, or an address would wrap.
    #[error("region does not fit its backing or its address space")]
    OutOfBounds,
    /// The table holds its maximum.
    #[error("too many regions")]
    Full,
    /// Restoring: these STags are taken, or are not a pair.
    #[error("STag cannot be restored")]
    StagTaken,
}

/// A registered region: its names. Not a guard; deregister with [`RegionTable::deregister`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryRegion {
    /// The plain STag.
    pub stag: Stag,
    /// The sync STag; only for page-backed regions.
    pub sync_stag: Option<Stag>,
    /// Tagged offset of the first byte.
    pub base: TaggedOffset,
    /// Number of bytes.
    pub len: u64,
}

impl MemoryRegion {
    /// What to tell a peer: the address `offset` bytes into the region.
    #[must_use]
    pub fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr {
            stag: self.stag,
            to: self.base.wrapping_add(offset),
        }
    }

    /// The same with the sync STag, if there is one.
    #[must_use]
    pub fn remote_sync(&self, offset: u64) -> Option<RemoteAddr> {
        self.sync_stag.map(|stag| RemoteAddr {
            stag,
            to: self.base.wrapping_add(offset),
        })
    }
}

/// A region as the data path sees it.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) spec: RegionSpec,
    stag: Stag,
    sync_stag: Option<Stag>,
    /// True while alive. Read-held during each copy.
    live: RwLock<bool>,
}

impl Region {
    pub(crate) fn answers_to(&self, stag: Stag) -> bool {
        self.stag == stag || self.sync_stag == Some(stag)
    }

    pub(crate) fn gate(&self) -> RwLockReadGuard<'_, bool> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// No access after this returned (I11).
    pub(crate) fn kill(&self) {
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// All regions of a target or client.
pub struct RegionTable {
    regions: RwLock<HashMap<u32, Arc<Region>>>,
    random: Mutex<StdRng>,
    streams: AtomicU64,
    /// Counts deregistrations.
    generation: AtomicU64,
}

impl fmt::Debug for RegionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionTable")
            .field("regions", &self.len())
            .finish_non_exhaustive()
    }
}

impl RegionTable {
    /// An empty table; STags are drawn from a generator with this seed, which a real program takes from the system.
    #[must_use]
    pub fn new(seed: [u8; 32]) -> Arc<Self> {
        Arc::new(Self {
            regions: RwLock::new(HashMap::new()),
            random: Mutex::new(StdRng::from_seed(seed)),
            streams: AtomicU64::new(1),
            generation: AtomicU64::new(0),
        })
    }

    /// Number of regions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.regions
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// No regions?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn next_stream(&self) -> StreamId {
        StreamId(self.streams.fetch_add(1, Ordering::Relaxed))
    }

    /// Registers a region under fresh STags.
    ///
    /// # Errors
    /// If it does not fit, or the table is full.
    pub fn register(&self, spec: RegionSpec) -> Result<MemoryRegion, RegisterError> {
        validate(&spec)?;
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        if regions.len() >= REGIONS_MAX {
            return Err(RegisterError::Full);
        }
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        // Index 0 is never used: some peers treat STag 0 specially.
        let index = loop {
            let index = random.random_range(1..1 << 24);
            if !regions.contains_key(&index) {
                break index;
            }
        };
        let key = random.random_range(0..Stag::SYNC);
        let stag = Stag::new(index, key);
        let sync_stag = matches!(spec.backing, Backing::Pages(_)).then(|| {
            // Differs from `key` by 1..=127 in the low seven bits.
            let other = key ^ random.random_range(1..Stag::SYNC);
            Stag::new(index, other | Stag::SYNC)
        });
        Ok(insert(&mut regions, spec, stag, sync_stag))
    }

    /// Registers a region under STags it had before (DESIGN D11).
    ///
    /// # Errors
    /// If it does not fit, the STags are not a pair as `register` makes them, or are taken.
    pub fn restore(
        &self,
        spec: RegionSpec,
        stag: Stag,
        sync_stag: Option<Stag>,
    ) -> Result<MemoryRegion, RegisterError> {
        validate(&spec)?;
        if let Some(sync) = sync_stag {
            let pair = sync.index() == stag.index() && sync.is_sync() && !stag.is_sync();
            if !pair
                || sync.key() == stag.key() | Stag::SYNC
                || matches!(spec.backing, Backing::Memory(_))
            {
                return Err(RegisterError::StagTaken);
            }
        }
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        if regions.len() >= REGIONS_MAX {
            return Err(RegisterError::Full);
        }
        if regions.contains_key(&stag.index()) {
            return Err(RegisterError::StagTaken);
        }
        Ok(insert(&mut regions, spec, stag, sync_stag))
    }

    /// Ends a region named by either of its STags. When this returned, no remote access happens any more (I11).
    /// False if there is no such region.
    pub fn deregister(&self, stag: Stag) -> bool {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        if !regions
            .get(&stag.index())
            .is_some_and(|region| region.answers_to(stag))
        {
            return false;
        }
        let region = regions.remove(&stag.index());
        drop(regions);
        self.generation.fetch_add(1, Ordering::Release);
        if let Some(region) = region {
            region.kill();
        }
        true
    }

    pub(crate) fn find(&self, stag: Stag) -> Option<Arc<Region>> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions
            .get(&stag.index())
            .filter(|region| region.answers_to(stag))
            .cloned()
    }
}

fn validate(spec: &RegionSpec) -> Result<(), RegisterError> {
    let end = spec
        .offset
        .checked_add(spec.len)
        .ok_or(RegisterError::OutOfBounds)?;
    spec.base
        .checked_add(spec.len)
        .ok_or(RegisterError::OutOfBounds)?;
    match &spec.backing {
        Backing::Memory(buffer) if end > buffer.len() as u64 => Err(RegisterError::OutOfBounds),
        _ => Ok(()),
    }
}

fn insert(
    regions: &mut HashMap<u32, Arc<Region>>,
    spec: RegionSpec,
    stag: Stag,
    sync_stag: Option<Stag>,
) -> MemoryRegion {
    let names = MemoryRegion {
        stag,
        sync_stag,
        base: spec.base,
        len: spec.len,
    };
    regions.insert(
        stag.index(),
        Arc::new(Region {
            spec,
            stag,
            sync_stag,
            live: RwLock::new(true),
        }),
    );
    names
}
