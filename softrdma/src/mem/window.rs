//! Memory windows (type 2 of the verbs), local invalidation, and registering anew.
//!
//! A window is an STag that a program binds to a part of a region by a work request, for one stream and with fewer
//! rights, and that ends by an invalidation, local or remote, without touching the region. It is a `Region` of its own
//! with the region behind it as its parent: an access needs both gates, so that ending either ends the access (I11), and
//! what is cut off the region is cut off its windows.
//!
//! The low 8 bits of a window's STag are the program's at each bind; their high bit says sync, as everywhere.

use std::sync::{Arc, PoisonError};

use rand::Rng;

use crate::addr::{ProtectionDomain, Stag, TaggedOffset};
use crate::mem::access::Accessor;
use crate::mem::region::{
    MemoryRegion, REGIONS_MAX, Region, RegionSpec, RegionTable, RegisterError, Rights, Slot, names,
    validate,
};

/// An allocated window. Not a guard; deallocate it with [`RegionTable::deallocate_window`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryWindow {
    index: u32,
}

impl MemoryWindow {
    /// The STag it has when bound with this key.
    #[must_use]
    pub const fn stag(self, key: u8) -> Stag {
        Stag::new(self.index, key)
    }
}

/// What a bind asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowBind {
    /// Which window; it must not be bound.
    pub window: MemoryWindow,
    /// Key of its STag. Take another one each time, so that an STag handed out earlier stays dead.
    pub key: u8,
    /// The region, by one of its STags; it must have [`Rights::WINDOW_BIND`].
    pub region: Stag,
    /// First byte, as addressed in the region. The window has the same addresses.
    pub to: TaggedOffset,
    /// Number of bytes.
    pub len: u64,
    /// What the peer may do: nothing that the region does not grant, but for invalidation.
    pub rights: Rights,
}

/// What one slot of the table holds for a window.
#[derive(Debug)]
pub(super) struct WindowSlot {
    domain: ProtectionDomain,
    bound: Option<Arc<Region>>,
}

impl WindowSlot {
    pub(super) fn region(&self) -> Option<&Arc<Region>> {
        self.bound.as_ref()
    }
}

impl RegionTable {
    /// Allocates a window; it is not bound.
    ///
    /// # Errors
    /// If the table is full.
    pub fn allocate_window(&self, domain: ProtectionDomain) -> Result<MemoryWindow, RegisterError> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= REGIONS_MAX {
            return Err(RegisterError::Full);
        }
        let index = self.free_index(&slots);
        let slot = WindowSlot {
            domain,
            bound: None,
        };
        slots.insert(index, Slot::Window(slot));
        Ok(MemoryWindow { index })
    }

    /// Ends a window. When this returned, no remote access happens through it any more (I11). False if there is no such
    /// window.
    pub fn deallocate_window(&self, window: MemoryWindow) -> bool {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if !matches!(slots.get(&window.index), Some(Slot::Window(_))) {
            return false;
        }
        let slot = slots.remove(&window.index);
        drop(slots);
        self.bump_generation();
        if let Some(region) = slot.as_ref().and_then(Slot::region) {
            region.kill();
        }
        true
    }

    /// Carries out a bind for the stream that posted it. False if it may not be.
    pub(crate) fn bind_window(&self, who: Accessor, bind: &WindowBind) -> bool {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let Some(Slot::Region(parent)) = slots.get(&bind.region.index()) else {
            return false;
        };
        let parent = Arc::clone(parent);
        let spec = &parent.spec;
        let rights = spec.rights | Rights::REMOTE_INVALIDATE;
        let may = parent.answers_to(bind.region)
            && parent.passage().is_live()
            && spec.domain == who.domain
            && spec.stream.is_none_or(|stream| stream == who.stream)
            && spec.rights.contains(Rights::WINDOW_BIND)
            && rights.contains(bind.rights);
        let end = bind.to.checked_add(bind.len);
        let inside = bind.to >= spec.base && end.is_some_and(|end| end.0 - spec.base.0 <= spec.len);
        if !may || !inside {
            return false;
        }
        let Some(Slot::Window(slot)) = slots.get_mut(&bind.window.index) else {
            return false;
        };
        let is_bound = slot
            .bound
            .as_ref()
            .is_some_and(|region| region.passage().is_live());
        if slot.domain != who.domain || is_bound {
            return false;
        }
        let spec = RegionSpec {
            rights: bind.rights - Rights::WINDOW_BIND,
            offset: spec.offset + (bind.to.0 - spec.base.0),
            len: bind.len,
            base: bind.to,
            stream: Some(who.stream),
            ..spec.clone()
        };
        let stag = bind.window.stag(bind.key);
        slot.bound = Some(Arc::new(Region::window(spec, stag, parent)));
        drop(slots);
        // A cache may hold the dead window of an earlier bind with the same key.
        self.bump_generation();
        true
    }

    /// Carries out a local invalidation for a stream: no access happens through the STag when this returned (I11). The
    /// slot stays taken, for the next bind or registration. False if there is no such living STag in its domain.
    pub(crate) fn invalidate_local(&self, who: Accessor, stag: Stag) -> bool {
        let Some(region) = self.find(stag) else {
            return false;
        };
        let spec = &region.spec;
        let may = spec.domain == who.domain
            && spec.stream.is_none_or(|stream| stream == who.stream)
            && region.passage().is_live();
        if may {
            region.kill();
        }
        may
    }

    /// Ends the remote access through an STag of a region or a bound window. When this returned, none happens any more
    /// (I11). The place in the table stays taken, for [`reregister`](Self::reregister) or the next bind. False if there is
    /// no such STag.
    pub fn invalidate(&self, stag: Stag) -> bool {
        let region = self.find(stag);
        if let Some(region) = &region {
            region.kill();
        }
        region.is_some()
    }

    /// Registers something else in the place of a region, living or invalidated, named by either of its STags. Its index
    /// stays, its keys change: the old STags are dead when this returned (I11).
    ///
    /// # Errors
    /// If there is no such region, or the new one does not fit.
    pub fn reregister(&self, stag: Stag, spec: RegionSpec) -> Result<MemoryRegion, RegisterError> {
        validate(&spec)?;
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let old = match slots.get(&stag.index()) {
            Some(Slot::Region(region)) if region.answers_to(stag) => Arc::clone(region),
            _ => return Err(RegisterError::Unknown),
        };
        let taken = [Some(old.stag), old.sync_stag];
        let new = loop {
            let (plain, sync) = self.draw_keys(stag.index(), &spec);
            if !taken.contains(&Some(plain)) && (sync.is_none() || !taken.contains(&sync)) {
                break Arc::new(Region::new(spec, plain, sync));
            }
        };
        let names = names(&new);
        slots.insert(stag.index(), Slot::Region(new));
        drop(slots);
        self.bump_generation();
        old.kill();
        Ok(names)
    }

    /// Keys of a region at `index`: they never give the other flavour by one flipped bit (R1).
    pub(super) fn draw_keys(&self, index: u32, spec: &RegionSpec) -> (Stag, Option<Stag>) {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let key = random.random_range(0..Stag::SYNC);
        let sync = spec.backing.is_paged().then(|| {
            // Differs from `key` by 1..=127 in the low seven bits.
            let other = key ^ random.random_range(1..Stag::SYNC);
            Stag::new(index, other | Stag::SYNC)
        });
        (Stag::new(index, key), sync)
    }
}
