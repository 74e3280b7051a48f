//! Memory windows, local invalidation, and registering anew.
//!
//! A window is an STag that a program binds to a part of a region by a work request, with fewer rights, and that ends
//! without touching the region. It is a `Region` of its own with the region behind it as its parent: an access needs both
//! gates, so that ending either ends the access (I11), and what is cut off the region is cut off its windows.
//!
//! | of the verbs | [`MemoryWindow`], type 2 | [`DomainWindow`], type 1 |
//! |---|---|---|
//! | who may use it | the stream on which it was bound | all streams of its domain |
//! | low 8 bits of its STag | the program's at each bind; their high bit says sync, as everywhere | ours: another one at each bind, never sync |
//! | is ended by | an invalidation, local or remote | a bind of no bytes |
//! | while it is bound | is not bound again | is bound again, and the STag before is dead |
//!
//! # Invariants
//! - W1. When a bind of type 1 has been carried out, or its window deallocated, no access happens through any STag that
//!   the window had before (I11).
//! - W2. Binds of type 1 are carried out in the order in which they were made, each at most once: one that was overtaken is
//!   refused. So an STag that is dead comes back only with the [`KEYS`]th bind that is made after it.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use rand::Rng;

use crate::addr::{ProtectionDomain, Stag, StreamId, TaggedOffset};
use crate::mem::access::Accessor;
use crate::mem::region::{
    MemoryRegion, REGIONS_MAX, Region, RegionSpec, RegionTable, RegisterError, Rights, Slot, names,
    validate,
};
use crate::planted::Bug;

/// Keys that a window of type 1 goes through: those without the sync bit.
pub const KEYS: u64 = Stag::SYNC as u64;

/// An allocated window of type 2. Not a guard; deallocate it with [`RegionTable::deallocate_window`].
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

/// An allocated window of type 1. Not a guard; deallocate it with [`RegionTable::deallocate_domain_window`].
#[derive(Debug)]
pub struct DomainWindow {
    index: u32,
    /// Binds made.
    binds: u64,
}

impl DomainWindow {
    /// A bind to `len` bytes of a region, which must have [`Rights::WINDOW_BIND`] and be of no single stream. `to` is the
    /// first of them, as addressed in the region, and the window has the same addresses. Peers may do nothing that the
    /// region does not grant, and not invalidate it. Of no bytes: the window is bound to nothing, whatever the others say.
    ///
    /// Each bind has a new STag. There are [`KEYS`]: with the bind that is made so many after this one its STag comes back,
    /// and who still has it uses what is bound then. Allocate a window anew before that if somebody may remember it.
    #[must_use]
    pub const fn bind(
        &mut self,
        region: Stag,
        to: TaggedOffset,
        len: u64,
        rights: Rights,
    ) -> DomainBind {
        self.binds += 1;
        DomainBind {
            number: self.binds,
            bind: WindowBind {
                window: MemoryWindow { index: self.index },
                key: (self.binds % KEYS) as u8,
                region,
                to,
                len,
                rights,
            },
        }
    }

    /// A bind to nothing.
    #[must_use]
    pub const fn unbind(&mut self) -> DomainBind {
        self.bind(Stag(0), TaggedOffset(0), 0, Rights::empty())
    }
}

/// A bind of a window of type 1; made by [`DomainWindow::bind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DomainBind {
    /// Of the binds of this window, from 1 on.
    number: u64,
    bind: WindowBind,
}

impl DomainBind {
    /// The STag that the window has when this has been carried out.
    #[must_use]
    pub const fn stag(&self) -> Stag {
        self.bind.window.stag(self.bind.key)
    }
}

/// What one slot of the table holds for a window.
#[derive(Debug)]
pub(super) struct WindowSlot {
    domain: ProtectionDomain,
    /// Type 1: number of the last bind that was carried out.
    last_bind: Option<u64>,
    bound: Option<Arc<Region>>,
}

impl WindowSlot {
    pub(super) fn region(&self) -> Option<&Arc<Region>> {
        self.bound.as_ref()
    }
}

impl RegionTable {
    /// Allocates a window of type 2; it is not bound.
    ///
    /// # Errors
    /// If the table is full.
    pub fn allocate_window(&self, domain: ProtectionDomain) -> Result<MemoryWindow, RegisterError> {
        let index = self.allocate(domain, None)?;
        Ok(MemoryWindow { index })
    }

    /// Allocates a window of type 1; it is not bound.
    ///
    /// # Errors
    /// If the table is full.
    pub fn allocate_domain_window(
        &self,
        domain: ProtectionDomain,
    ) -> Result<DomainWindow, RegisterError> {
        let index = self.allocate(domain, Some(0))?;
        Ok(DomainWindow { index, binds: 0 })
    }

    fn allocate(
        &self,
        domain: ProtectionDomain,
        last_bind: Option<u64>,
    ) -> Result<u32, RegisterError> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= REGIONS_MAX {
            return Err(RegisterError::Full);
        }
        let index = self.free_index(&slots);
        let slot = WindowSlot {
            domain,
            last_bind,
            bound: None,
        };
        slots.insert(index, Slot::Window(slot));
        Ok(index)
    }

    /// Ends a window. When this returned, no remote access happens through it any more (I11). False if there is no such
    /// window.
    pub fn deallocate_window(&self, window: MemoryWindow) -> bool {
        loop {
            let bound = match self.read().get(&window.index) {
                Some(Slot::Window(slot)) => slot.bound.clone(),
                _ => return false,
            };
            // Before it leaves the table, as with a region: who does not find it there may rely on its end, too.
            if let Some(region) = &bound {
                region.kill();
            }
            let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
            let Some(Slot::Window(slot)) = slots.get(&window.index) else {
                return false;
            };
            let same = |a: &Arc<Region>| bound.as_ref().is_some_and(|b| Arc::ptr_eq(a, b));
            // Else it has been bound anew meanwhile.
            if slot.bound.as_ref().map_or(bound.is_none(), same) {
                slots.remove(&window.index);
                drop(slots);
                self.bump_generation();
                return true;
            }
        }
    }

    /// The same for type 1: no access happens through any STag that it had (W1).
    pub fn deallocate_domain_window(&self, window: &DomainWindow) -> bool {
        let _alone = self
            .rebinding
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let index = window.index;
        self.deallocate_window(MemoryWindow { index })
    }

    /// Carries out a bind for the stream that posted it. False if it may not be.
    pub(crate) fn bind_window(&self, who: Accessor, bind: &WindowBind) -> bool {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let Some(region) = bound(&slots, who, bind, Some(who.stream)) else {
            return false;
        };
        let Some(Slot::Window(slot)) = slots.get_mut(&bind.window.index) else {
            return false;
        };
        // What has ended with the region behind it is not bound any more.
        let is_bound = slot.bound.as_ref().is_some_and(|window| {
            let is_live = |region: &Region| region.passage().is_live();
            is_live(window) && window.parent().is_none_or(is_live)
        });
        if slot.domain != who.domain || slot.last_bind.is_some() || is_bound {
            return false;
        }
        slot.bound = Some(Arc::new(region));
        drop(slots);
        // A cache may hold the dead window of an earlier bind with the same key.
        self.bump_generation();
        true
    }

    /// The same for type 1. Afterwards no access happens through the STags that the window had before (W1).
    pub(crate) fn bind_domain_window(&self, who: Accessor, bind: &DomainBind) -> bool {
        // Another bind of the window may still wait for the end of the one before.
        let _alone = self
            .rebinding
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let DomainBind { number, bind } = bind;
        let slots = self.read();
        let region = match bind.len {
            0 => None,
            _ => bound(&slots, who, bind, None),
        };
        if region.is_none() && bind.len > 0 {
            return false;
        }
        let Some(Slot::Window(slot)) = slots.get(&bind.window.index) else {
            return false;
        };
        // W2.
        let is_next = slot.last_bind.is_some_and(|last| last < *number);
        if slot.domain != who.domain || !is_next {
            return false;
        }
        let old = slot.bound.clone();
        drop(slots);
        // Before it leaves the table: who does not find its STag there may rely on its end, too.
        if let Some(old) = old
            && who.planted != Some(Bug::RebindKeepsOld)
        {
            old.kill();
        }
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        // Nobody else has bound or ended it meanwhile.
        let Some(Slot::Window(slot)) = slots.get_mut(&bind.window.index) else {
            return false;
        };
        slot.last_bind = Some(*number);
        slot.bound = region.map(Arc::new);
        drop(slots);
        self.bump_generation();
        true
    }

    /// Carries out a local invalidation for a stream: no access happens through the STag when this returned (I11). The
    /// slot stays taken, for the next bind or registration. False if there is no such living STag in its domain, or if it is
    /// of a window of type 1.
    pub(crate) fn invalidate_local(&self, who: Accessor, stag: Stag) -> bool {
        let Some(region) = self.find(stag) else {
            return false;
        };
        let spec = &region.spec;
        let may = spec.domain == who.domain
            && spec.stream.is_none_or(|stream| stream == who.stream)
            && !region.is_domain_window()
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
        let old = match self.read().get(&stag.index()) {
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
        // Before it leaves the table: who does not find it there may rely on its end, too.
        old.kill();
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let is_there = matches!(
            slots.get(&stag.index()),
            Some(Slot::Region(found)) if Arc::ptr_eq(found, &old)
        );
        if !is_there {
            return Err(RegisterError::Unknown);
        }
        slots.insert(stag.index(), Slot::Region(new));
        drop(slots);
        self.bump_generation();
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

/// What a bind makes of its window, for one stream or for all of the domain. None if `who` may not.
fn bound(
    slots: &HashMap<u32, Slot>,
    who: Accessor,
    bind: &WindowBind,
    stream: Option<StreamId>,
) -> Option<Region> {
    let Some(Slot::Region(parent)) = slots.get(&bind.region.index()) else {
        return None;
    };
    let spec = &parent.spec;
    let rights = match stream {
        Some(_) => spec.rights | Rights::REMOTE_INVALIDATE,
        // One stream would end it for the others.
        None => spec.rights - Rights::REMOTE_INVALIDATE,
    };
    let may = parent.answers_to(bind.region)
        && parent.passage().is_live()
        && spec.domain == who.domain
        && (spec.stream.is_none() || spec.stream == stream)
        && spec.rights.contains(Rights::WINDOW_BIND)
        && rights.contains(bind.rights);
    let end = bind.to.checked_add(bind.len);
    let inside = bind.to >= spec.base && end.is_some_and(|end| end.0 - spec.base.0 <= spec.len);
    if !may || !inside {
        return None;
    }
    let spec = RegionSpec {
        rights: bind.rights - Rights::WINDOW_BIND,
        offset: spec.offset + (bind.to.0 - spec.base.0),
        len: bind.len,
        base: bind.to,
        stream,
        ..spec.clone()
    };
    let stag = bind.window.stag(bind.key);
    Some(Region::window(spec, stag, Arc::clone(parent)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Buffer;

    const WHO: Accessor = Accessor {
        stream: StreamId(1),
        domain: ProtectionDomain(0),
        planted: None,
    };

    /// A window is bound by a bind of its own type only: else an invalidation could end one that others use, and an STag
    /// could come back (W2). Handles do not mix; who has an old one may meet its index again.
    #[test]
    fn types_do_not_mix() {
        let table = RegionTable::new([1; 32]);
        let rights = Rights::REMOTE_WRITE | Rights::WINDOW_BIND;
        let spec = RegionSpec::memory(WHO.domain, rights, &Buffer::zeroed(8));
        let region = table.register(spec).unwrap().stag;
        let mut of_domain = table.allocate_domain_window(WHO.domain).unwrap();
        let of_stream = table.allocate_window(WHO.domain).unwrap();
        let bind = of_domain.bind(region, TaggedOffset(0), 8, Rights::REMOTE_WRITE);
        assert!(!table.bind_window(WHO, &bind.bind));
        let mixed = DomainBind {
            bind: WindowBind {
                window: of_stream,
                ..bind.bind
            },
            ..bind
        };
        assert!(!table.bind_domain_window(WHO, &mixed));
        assert!(table.bind_domain_window(WHO, &bind));
        assert!(table.bind_window(WHO, &mixed.bind));
    }
}
