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
//! - R3. What peers may reach of a region is at most what was registered, and only the owner changes it
//!   ([`RegionTable::set_reach`]). It changes as liveness does: when the call returned, no access beyond happens any more,
//!   neither through the region nor through a window that is bound to it.
//! - R4. An index that is set apart is not drawn: an STag that somebody may still remember does not come to mean something
//!   else.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(not(test))]
use std::sync::{RwLock, RwLockReadGuard};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::addr::{BackingId, ProtectionDomain, RemoteAddr, Stag, StreamId, TaggedOffset};
use crate::mem::Buffer;
use crate::mem::gate::{Gate, Passage};
#[cfg(test)]
use crate::mem::modelled::{RwLock, RwLockReadGuard};
use crate::mem::window::WindowSlot;

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
        /// FLUSH up to visibility (private profile).
        const FLUSH_GLOBAL = 16;
        /// FLUSH up to persistence (private profile); not for memory, which is gone when the power is.
        const FLUSH_PERSISTENT = 32;
        /// Of the local program: binding memory windows to it.
        const WINDOW_BIND = 64;
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

impl Backing {
    pub(crate) const fn is_paged(&self) -> bool {
        matches!(self, Self::Pages(_))
    }
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
    /// Memory of this process does not persist: FLUSH up to persistence can not be granted.
    #[error("memory does not persist: FLUSH_PERSISTENT can not be granted")]
    NotPersistent,
    /// Registering anew: no region has this STag.
    #[error("no such region")]
    Unknown,
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
    pub(super) stag: Stag,
    pub(super) sync_stag: Option<Stag>,
    /// Held open during each copy.
    gate: Gate,
    /// Window: the region that it is bound to.
    parent: Option<Arc<Self>>,
}

impl Region {
    pub(super) fn new(spec: RegionSpec, stag: Stag, sync_stag: Option<Stag>) -> Self {
        Self {
            gate: Gate::new(spec.len),
            spec,
            stag,
            sync_stag,
            parent: None,
        }
    }

    pub(super) fn window(spec: RegionSpec, stag: Stag, parent: Arc<Self>) -> Self {
        let parent = Some(parent);
        Self {
            parent,
            ..Self::new(spec, stag, None)
        }
    }

    /// Of a window: the region that it is bound to.
    pub(crate) fn parent(&self) -> Option<&Self> {
        self.parent.as_deref()
    }

    /// A window of type 1: it is bound to no stream.
    pub(super) fn is_domain_window(&self) -> bool {
        self.parent.is_some() && self.spec.stream.is_none()
    }

    pub(crate) fn answers_to(&self, stag: Stag) -> bool {
        self.stag == stag || self.sync_stag == Some(stag)
    }

    pub(crate) fn passage(&self) -> Passage<'_> {
        self.gate.enter()
    }

    /// No access after this returned (I11).
    pub(crate) fn kill(&self) {
        self.gate.close();
    }
}

/// What an index is used for.
#[derive(Debug)]
pub(super) enum Slot {
    Region(Arc<Region>),
    Window(WindowSlot),
}

impl Slot {
    /// The region, or what the window is bound to.
    pub(super) fn region(&self) -> Option<&Arc<Region>> {
        match self {
            Self::Region(region) => Some(region),
            Self::Window(window) => window.region(),
        }
    }
}

/// All regions of a target or client.
pub struct RegionTable {
    pub(super) slots: RwLock<HashMap<u32, Slot>>,
    /// Held by who binds or ends a window of type 1 until its earlier STags are dead.
    pub(super) rebinding: RwLock<()>,
    /// Indices that are not drawn (R4).
    set_apart: RwLock<HashSet<u32>>,
    pub(super) random: Mutex<StdRng>,
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
            slots: RwLock::new(HashMap::new()),
            rebinding: RwLock::new(()),
            set_apart: RwLock::new(HashSet::new()),
            random: Mutex::new(StdRng::from_seed(seed)),
            streams: AtomicU64::new(1),
            generation: AtomicU64::new(0),
        })
    }

    /// Number of regions and windows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots
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

    pub(super) fn bump_generation(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// An index that is not in use, nor set apart (R4). Never 0: some peers treat STag 0 specially.
    pub(super) fn free_index(&self, slots: &HashMap<u32, Slot>) -> u32 {
        let set_apart = self
            .set_apart
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let index = random.random_range(1..1 << 24);
            if !slots.contains_key(&index) && !set_apart.contains(&index) {
                return index;
            }
        }
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
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= REGIONS_MAX {
            return Err(RegisterError::Full);
        }
        let index = self.free_index(&slots);
        let (stag, sync_stag) = self.draw_keys(index, &spec);
        Ok(insert(&mut slots, Region::new(spec, stag, sync_stag)))
    }

    /// Sets the index of `stag` apart: neither a region nor a window gets it until it is
    /// [given back](Self::give_back). [`restore`](Self::restore) does not mind. False if [`REGIONS_MAX`] are set apart.
    pub fn set_apart(&self, stag: Stag) -> bool {
        let mut set_apart = self
            .set_apart
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        set_apart.len() < REGIONS_MAX && {
            set_apart.insert(stag.index());
            true
        }
    }

    /// Ends [`set_apart`](Self::set_apart).
    pub fn give_back(&self, stag: Stag) {
        let mut set_apart = self
            .set_apart
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        set_apart.remove(&stag.index());
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
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= REGIONS_MAX {
            return Err(RegisterError::Full);
        }
        if slots.contains_key(&stag.index()) {
            return Err(RegisterError::StagTaken);
        }
        Ok(insert(&mut slots, Region::new(spec, stag, sync_stag)))
    }

    /// Ends a region named by either of its STags, and with it all windows over it. When this returned, no remote access
    /// happens any more (I11). False if there is no such region.
    pub fn deregister(&self, stag: Stag) -> bool {
        let found = self.find(stag);
        let Some(region) = found.filter(|region| region.parent().is_none()) else {
            return false;
        };
        // Before it leaves the table: who does not find it there may rely on its end, too.
        region.kill();
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let is_there = matches!(
            slots.get(&stag.index()),
            Some(Slot::Region(found)) if Arc::ptr_eq(found, &region)
        );
        if is_there {
            slots.remove(&stag.index());
        }
        drop(slots);
        self.bump_generation();
        is_there
    }

    /// Peers reach the first `bytes` of a region from now on, through windows over it as well, and never more than was
    /// registered. When this returned, no access beyond happens any more (I11). False if there is no such region.
    pub fn set_reach(&self, stag: Stag, bytes: u64) -> bool {
        let Some(region) = self.find(stag) else {
            return false;
        };
        region.gate.set_reach(bytes.min(region.spec.len));
        true
    }

    /// For a look at the table.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, HashMap<u32, Slot>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn find(&self, stag: Stag) -> Option<Arc<Region>> {
        let slots = self.read();
        let region = slots.get(&stag.index()).and_then(Slot::region);
        region.filter(|region| region.answers_to(stag)).cloned()
    }
}

pub(super) fn validate(spec: &RegionSpec) -> Result<(), RegisterError> {
    let end = spec
        .offset
        .checked_add(spec.len)
        .ok_or(RegisterError::OutOfBounds)?;
    spec.base
        .checked_add(spec.len)
        .ok_or(RegisterError::OutOfBounds)?;
    match &spec.backing {
        Backing::Memory(buffer) if end > buffer.len() as u64 => Err(RegisterError::OutOfBounds),
        Backing::Memory(_) if spec.rights.contains(Rights::FLUSH_PERSISTENT) => {
            Err(RegisterError::NotPersistent)
        }
        _ => Ok(()),
    }
}

fn insert(slots: &mut HashMap<u32, Slot>, region: Region) -> MemoryRegion {
    let names = names(&region);
    slots.insert(region.stag.index(), Slot::Region(Arc::new(region)));
    names
}

pub(super) fn names(region: &Region) -> MemoryRegion {
    MemoryRegion {
        stag: region.stag,
        sync_stag: region.sync_stag,
        base: region.spec.base,
        len: region.spec.len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An index that is set apart is not drawn (R4), and is once it has been given back.
    #[test]
    fn what_is_set_apart_is_not_drawn() {
        let buffer = Buffer::zeroed(1);
        let spec = RegionSpec::memory(ProtectionDomain(1), Rights::REMOTE_READ, &buffer);
        let draw = |prepare: &dyn Fn(&RegionTable)| {
            let table = RegionTable::new([7; 32]);
            prepare(&table);
            table.register(spec.clone()).unwrap().stag
        };
        let first = draw(&|_| {});
        let other = draw(&|table| assert!(table.set_apart(first)));
        assert_ne!(first.index(), other.index());
        let again = draw(&|table| {
            table.set_apart(first);
            table.give_back(first);
        });
        assert_eq!(first, again);
        let table = RegionTable::new([7; 32]);
        table.set_apart(first);
        assert!(table.restore(spec, first, None).is_ok());
    }
}
