//! Regions that clients have opened: which file each belongs to, and whose they are.
//!
//! A region names its file and follows it: when the file is relocated, everything that peers want of it stalls until it has
//! settled ([`Places`]). Unlinked data stays until the last region of it is closed. When a file shrinks, every region that
//! reaches beyond its new end is ended before the shrinking takes effect, or, if it was asked for as a growing one, cut:
//! so no peer writes behind the end of a file or reads what was cut off. `tools/docs/regions.md` has the argument.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use contigfs::{ExtentObserver, InodeNo, Settled};
use ftl::Lba;
use softrdma::{BackingId, RegionTable, Stag};

use super::job::{Job, ask_all};
use super::places::Places;
use super::stalls::Of;
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
    /// Its first byte in the file.
    pub offset: u64,
    /// First byte behind it in the file.
    pub end: u64,
    /// It may reach beyond the end of the file, and peers reach as much of it as the file has.
    pub grows: bool,
    /// Whether it may be written.
    pub writable: bool,
    /// It is a stored registration that this connection has open, and outlives it.
    pub persistent: bool,
}

#[derive(Debug, Default)]
struct Table {
    by_handle: HashMap<u32, (Owner, OpenRegion)>,
    by_owner: HashMap<Owner, Vec<u32>>,
    by_inode: HashMap<InodeNo, Vec<u32>>,
    next: u32,
}

impl Table {
    fn insert(&mut self, handle: u32, owner: Owner, region: OpenRegion) {
        self.by_owner.entry(owner).or_default().push(handle);
        if let Some(inode) = region.inode {
            self.by_inode.entry(inode).or_default().push(handle);
        }
        self.by_handle.insert(handle, (owner, region));
    }

    /// Takes a region out; its owner's list is the caller's to change.
    fn take(&mut self, handle: u32) -> Option<OpenRegion> {
        let (_, region) = self.by_handle.remove(&handle)?;
        if let Some(inode) = region.inode
            && let Some(of) = self.by_inode.get_mut(&inode)
        {
            of.retain(|&other| other != handle);
            if of.is_empty() {
                self.by_inode.remove(&inode);
            }
        }
        Some(region)
    }
}

/// All open regions of a target.
#[derive(Debug)]
pub(super) struct Regions {
    stags: Arc<RegionTable>,
    places: Arc<Places>,
    /// Growing regions.
    growing: AtomicUsize,
    /// The reactors, which may be in the middle of an access.
    inboxes: Vec<Arc<Inbox<Job>>>,
    table: Mutex<Table>,
}

impl Regions {
    /// None open.
    pub(super) fn new(
        stags: Arc<RegionTable>,
        places: Arc<Places>,
        inboxes: Vec<Arc<Inbox<Job>>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            stags,
            places,
            growing: AtomicUsize::new(0),
            inboxes,
            table: Mutex::default(),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The backing of a new region of a file that lies at `start`, which must not move meanwhile. None: too many files have
    /// regions.
    pub(super) fn attach(&self, inode: InodeNo, start: Lba) -> Option<BackingId> {
        self.places.attach(inode, start)
    }

    /// Regions of these files have ended. Those that have none left are nobody's business any more: when this returns, nothing
    /// that was wanted of them is under way.
    pub(super) fn detach(&self, files: &[InodeNo]) {
        let gone = self.places.detach(files);
        if gone.is_empty() {
            return;
        }
        let of = Of::from(&gone[..]);
        self.drain(&of, false);
        self.places.free(&gone);
        self.resume(&of);
    }

    /// Calls `f` while peers hold no page of any file, and ask for none: what they want waits.
    pub(super) fn still<T>(&self, f: impl FnOnce() -> T) -> T {
        self.places.hold_all();
        self.drain(&Of::All, true);
        let result = f();
        self.places.let_all_go();
        self.resume(&Of::All);
        result
    }

    fn drain(&self, of: &Of, renew: bool) {
        ask_all(&self.inboxes, |done| Job::Drain {
            of: of.clone(),
            renew,
            done,
        });
    }

    fn resume(&self, of: &Of) {
        for inbox in &self.inboxes {
            // A reactor that has ended wants nothing.
            let _ = inbox.send(Job::Settled(of.clone()));
        }
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
        table.insert(handle, owner, region);
        self.growing
            .fetch_add(usize::from(region.grows), Ordering::Relaxed);
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
        let region = table.take(handle)?;
        if let Some(handles) = table.by_owner.get_mut(&owner) {
            handles.retain(|&other| other != handle);
        }
        drop(table);
        self.end(&region);
        Some(region)
    }

    /// Ends all regions of a connection that has gone.
    pub(super) fn remove_all(&self, owner: Owner) -> Vec<OpenRegion> {
        let mut table = self.table();
        let handles = table.by_owner.remove(&owner).unwrap_or_default();
        let regions: Vec<OpenRegion> = handles
            .iter()
            .filter_map(|&handle| table.take(handle))
            .collect();
        drop(table);
        regions.iter().for_each(|region| self.end(region));
        regions
    }

    /// A stored registration goes on without the connection that had it open.
    fn end(&self, region: &OpenRegion) {
        if !region.persistent {
            self.stags.deregister(region.stag);
        }
        self.growing
            .fetch_sub(usize::from(region.grows), Ordering::Relaxed);
    }

    fn of(&self, inode: InodeNo) -> Vec<OpenRegion> {
        let table = self.table();
        let handles = table.by_inode.get(&inode).into_iter().flatten();
        let region = |handle| table.by_handle.get(handle).map(|(_, region)| *region);
        handles.filter_map(region).collect()
    }

    /// Nobody uses a file, or has anything of it, when this returns, until it is let go.
    fn hold(&self, inode: InodeNo) {
        if let Some(backing) = self.places.hold(inode) {
            self.drain(&Of::from(&[backing][..]), true);
        }
    }

    /// The last regions of a file that goes away have ended; `files` names it once for each. Nobody has anything of it, or
    /// asks for it, when this returns.
    pub(super) fn vacate(&self, inode: InodeNo, files: &[InodeNo]) {
        self.hold(inode);
        self.detach(files);
        // Nobody waits for it: it has no regions.
        self.places.settle(inode, None);
    }

    /// Lets peers reach as much of growing regions as the file has.
    fn fit(&self, inode: InodeNo, size: u64) {
        if self.growing.load(Ordering::Relaxed) == 0 {
            return;
        }
        for region in self.of(inode).iter().filter(|r| r.grows) {
            let reach = size.saturating_sub(region.offset);
            self.stags.set_reach(region.stag, reach);
        }
    }
}

/// Hears of changes of files before they happen.
#[derive(Debug)]
pub(super) struct Follower(pub Arc<Regions>);

impl ExtentObserver for Follower {
    /// A region that has ended stays open, without use, until its owner closes it. Nothing that was wanted of what is cut
    /// off is under way any more when this returns, through whichever region that was and whether it has long been closed:
    /// it could map grains behind the end.
    fn shrinking(&self, inode: InodeNo, new_size: u64) {
        let regions = &self.0;
        let ends = |region: &OpenRegion| region.end > new_size && !region.grows;
        for region in regions.of(inode).into_iter().filter(ends) {
            regions.stags.deregister(region.stag);
        }
        regions.fit(inode, new_size);
        regions.hold(inode);
    }

    fn moving(&self, inode: InodeNo) {
        self.0.hold(inode);
    }

    /// A file that a connection has a region of is open, so it has none.
    fn freed(&self, inode: InodeNo) {
        for region in self.0.of(inode) {
            self.0.stags.deregister(region.stag);
        }
    }

    fn settled(&self, inode: InodeNo, settled: Settled) {
        let regions = &self.0;
        regions.fit(inode, settled.size);
        if let Some(backing) = regions.places.settle(inode, settled.start) {
            regions.resume(&Of::from(&[backing][..]));
        }
    }

    fn grown(&self, inode: InodeNo, size: u64) {
        self.0.fit(inode, size);
    }
}
