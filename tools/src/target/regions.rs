//! Regions that clients have opened: which file each belongs to, and whose they are.
//!
//! A region holds its file: the extent does not move and unlinked data stays until the region is closed. When a file
//! shrinks, every region that reaches beyond its new end is ended before the shrinking takes effect, so that no peer
//! writes behind the end of a file or reads what was cut off.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use contigfs::{ExtentObserver, InodeNo};
use softrdma::{RegionTable, Stag};

use super::job::{Job, barrier};
use crate::reactor::{Inbox, LinkTag};

/// A client, for as long as its connection lives: reactor and link.
pub(super) type Owner = (usize, LinkTag);

/// Regions that one connection may have open.
pub(super) const REGIONS_PER_LINK_MAX: usize = 4096;

/// An open region.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenRegion {
    /// Its file; none for the region of plain memory.
    pub inode: Option<InodeNo>,
    /// Its plain STag, which names both flavours.
    pub stag: Stag,
    /// First byte behind it in the file.
    pub end: u64,
    /// Whether it may be written.
    pub writable: bool,
    /// It is a stored registration that this connection has open, and outlives it.
    pub persistent: bool,
}

#[derive(Debug, Default)]
struct Table {
    by_handle: HashMap<u32, (Owner, OpenRegion)>,
    by_owner: HashMap<Owner, Vec<u32>>,
    next: u32,
}

/// All open regions of a target.
#[derive(Debug)]
pub(super) struct Regions {
    stags: Arc<RegionTable>,
    /// The reactors, which may be in the middle of an access.
    inboxes: Vec<Arc<Inbox<Job>>>,
    table: Mutex<Table>,
}

impl Regions {
    /// None open.
    pub(super) fn new(stags: Arc<RegionTable>, inboxes: Vec<Arc<Inbox<Job>>>) -> Arc<Self> {
        Arc::new(Self {
            stags,
            inboxes,
            table: Mutex::default(),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a region and names it; None when its owner has too many.
    pub(super) fn add(&self, owner: Owner, region: OpenRegion) -> Option<u32> {
        let mut table = self.table();
        let handles = table.by_owner.entry(owner).or_default();
        if handles.len() >= REGIONS_PER_LINK_MAX {
            return None;
        }
        let handle = loop {
            table.next = table.next.wrapping_add(1).max(1);
            if !table.by_handle.contains_key(&table.next) {
                break table.next;
            }
        };
        table.by_owner.entry(owner).or_default().push(handle);
        table.by_handle.insert(handle, (owner, region));
        Some(handle)
    }

    /// The region of `owner` that `handle` names.
    pub(super) fn find(&self, owner: Owner, handle: u32) -> Option<OpenRegion> {
        let table = self.table();
        let (of, region) = table.by_handle.get(&handle)?;
        (*of == owner).then_some(*region)
    }

    /// Ends a region; what it held is the caller's to release.
    pub(super) fn remove(&self, owner: Owner, handle: u32) -> Option<OpenRegion> {
        let mut table = self.table();
        if table.by_handle.get(&handle)?.0 != owner {
            return None;
        }
        let (_, region) = table.by_handle.remove(&handle)?;
        if let Some(handles) = table.by_owner.get_mut(&owner) {
            handles.retain(|&other| other != handle);
        }
        drop(table);
        if !region.persistent {
            self.stags.deregister(region.stag);
        }
        Some(region)
    }

    /// Ends all regions of a connection that has gone.
    pub(super) fn remove_all(&self, owner: Owner) -> Vec<OpenRegion> {
        let mut table = self.table();
        let handles = table.by_owner.remove(&owner).unwrap_or_default();
        let regions: Vec<OpenRegion> = handles
            .iter()
            .filter_map(|handle| table.by_handle.remove(handle))
            .map(|(_, region)| region)
            .collect();
        drop(table);
        for region in regions.iter().filter(|region| !region.persistent) {
            self.stags.deregister(region.stag);
        }
        regions
    }

    /// Makes the STags of matching regions dead, and waits until no reactor is in the middle of an access that was
    /// checked before. (Accesses that wait for a page are checked again when it comes.) The regions stay open, without
    /// use, until their owners close them.
    fn fence(&self, matching: impl Fn(&OpenRegion) -> bool) {
        let stags: Vec<Stag> = self
            .table()
            .by_handle
            .values()
            .filter(|(_, region)| matching(region))
            .map(|(_, region)| region.stag)
            .collect();
        if stags.is_empty() {
            return;
        }
        for stag in stags {
            self.stags.deregister(stag);
        }
        barrier(&self.inboxes);
    }
}

/// Hears of changes of files before they happen.
#[derive(Debug)]
pub(super) struct Fence(pub Arc<Regions>);

impl ExtentObserver for Fence {
    fn shrinking(&self, inode: InodeNo, new_size: u64) {
        self.0
            .fence(|region| region.inode == Some(inode) && region.end > new_size);
    }

    fn moving(&self, inode: InodeNo) {
        self.0.fence(|region| region.inode == Some(inode));
    }

    fn freed(&self, inode: InodeNo) {
        self.0.fence(|region| region.inode == Some(inode));
    }
}
