//! Regions that clients have opened: which file each belongs to, and whose they are.
//!
//! A region names its file and follows it: when the file is relocated, everything that peers want of it stalls until it has
//! settled ([`Places`]). Unlinked data stays until the last region of it is closed. When a file shrinks, every region that
//! reaches beyond its new end is ended before the shrinking takes effect, or, if it was asked for as a growing one, cut:
//! so no peer writes behind the end of a file or reads what was cut off. `tools/docs/regions.md` has the argument.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use contigfs::{ExtentObserver, InodeNo, Settled};
use ftl::Lba;
use softrdma::mem::region::REGIONS_MAX;
use softrdma::{BackingId, ProtectionDomain, RegionTable, Stag};
use thiserror::Error;

use super::job::{Job, ask_all};
use super::places::Places;
use super::stalls::Of;
use crate::credentials::record::SLOTS;
use crate::reactor::{Inbox, LinkTag};

/// A client, for as long as its connection lives: reactor and link.
pub(super) type Owner = (usize, LinkTag);

/// Regions that one connection may have open.
pub(super) const REGIONS_PER_LINK_MAX: usize = 4096;

/// Regions that all connections may have open; stored registrations have room beside them.
pub(super) const OPEN_MAX: usize = REGIONS_MAX - SLOTS;

/// Why a region is not opened.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum TooMany {
    /// The connection has as many as one may.
    #[error("too many regions on this connection")]
    OfConnection,
    /// The tenant has its share on all its connections; others have theirs.
    #[error("this tenant has {0} regions open, which is its share: close some")]
    OfTenant(usize),
}

impl TooMany {
    /// The errno that says it best.
    pub(super) fn errno(self) -> i32 {
        match self {
            Self::OfConnection => libc::EMFILE,
            Self::OfTenant(_) => libc::EDQUOT,
        }
    }
}

/// An open region.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenRegion {
    /// Whose it is.
    pub domain: ProtectionDomain,
    /// Its file; none for the region of plain memory, or of a file in a snapshot.
    pub inode: Option<InodeNo>,
    /// What it is of, if that is a file in a snapshot.
    pub of_snapshot: Option<BackingId>,
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
    // Sets: thousands of regions of one file may end at once, while everybody else waits for the table.
    by_owner: HashMap<Owner, HashSet<u32>>,
    by_inode: HashMap<InodeNo, HashSet<u32>>,
    of_tenant: HashMap<ProtectionDomain, usize>,
    next: u32,
}

impl Table {
    /// Whether a region more may be added, or its owner has too many, or its tenant `share`.
    fn may_add(&self, owner: Owner, domain: ProtectionDomain, share: usize) -> Result<(), TooMany> {
        let of_owner = self.by_owner.get(&owner).map_or(0, HashSet::len);
        if of_owner >= REGIONS_PER_LINK_MAX {
            return Err(TooMany::OfConnection);
        }
        let of_tenant = self.of_tenant.get(&domain).copied().unwrap_or(0);
        if of_tenant >= share {
            return Err(TooMany::OfTenant(share));
        }
        Ok(())
    }

    /// Adds a region and names it, if it [may be](Self::may_add).
    fn add(&mut self, owner: Owner, region: OpenRegion, share: usize) -> Result<u32, TooMany> {
        self.may_add(owner, region.domain, share)?;
        let handle = loop {
            self.next = self.next.wrapping_add(1).max(1);
            if !self.by_handle.contains_key(&self.next) {
                break self.next;
            }
        };
        *self.of_tenant.entry(region.domain).or_default() += 1;
        self.by_owner.entry(owner).or_default().insert(handle);
        if let Some(inode) = region.inode {
            self.by_inode.entry(inode).or_default().insert(handle);
        }
        self.by_handle.insert(handle, (owner, region));
        Ok(handle)
    }

    /// Takes a region out; its owner's set is the caller's to change.
    fn take(&mut self, handle: u32) -> Option<OpenRegion> {
        let (_, region) = self.by_handle.remove(&handle)?;
        if let Some(of_tenant) = self.of_tenant.get_mut(&region.domain) {
            *of_tenant -= 1;
        }
        if let Some(inode) = region.inode
            && let Some(of) = self.by_inode.get_mut(&inode)
        {
            of.remove(&handle);
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

    /// Whether [`add`](Self::add) would take a region as things are, for who has something to lose before.
    pub(super) fn may_add(
        &self,
        owner: Owner,
        domain: ProtectionDomain,
        share: usize,
    ) -> Result<(), TooMany> {
        self.table().may_add(owner, domain, share)
    }

    /// Adds a region and names it, unless its owner has too many, or its tenant `share`.
    pub(super) fn add(
        &self,
        owner: Owner,
        region: OpenRegion,
        share: usize,
    ) -> Result<u32, TooMany> {
        let handle = self.table().add(owner, region, share)?;
        self.growing
            .fetch_add(usize::from(region.grows), Ordering::Relaxed);
        Ok(handle)
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
            handles.remove(&handle);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn region(tenant: u32) -> OpenRegion {
        OpenRegion {
            domain: ProtectionDomain(tenant),
            inode: Some(InodeNo(7)),
            of_snapshot: None,
            stag: Stag(1),
            offset: 0,
            end: 1,
            grows: false,
            writable: false,
            persistent: false,
        }
    }

    /// However many connections a tenant opens regions on, it takes nobody's share, and has its own again when they end (I16).
    #[test]
    fn a_tenant_keeps_to_its_share() {
        let mut table = Table::default();
        let (share, owner) = (6, |n| (0, LinkTag(n)));
        let mut open = |tenant, n| table.add(owner(n), region(tenant), share);
        let handles: Vec<u32> = (0..6).map(|n| open(2, n / 2).unwrap()).collect();
        assert_eq!(open(2, 3), Err(TooMany::OfTenant(share)));
        assert!((0..6).all(|n| open(3, 10 + n).is_ok()));
        assert_eq!(open(3, 16), Err(TooMany::OfTenant(share)));
        assert!(table.take(handles[0]).is_some());
        assert!(table.add(owner(3), region(2), share).is_ok());
        let more = table.add(owner(3), region(2), share);
        assert_eq!(more, Err(TooMany::OfTenant(share)));
    }

    /// Connections with all the regions that one may have, of one file, end one after the other: each takes its own along, and the
    /// last leaves nothing. Were ending one region to look at the others, this would take minutes.
    #[test]
    fn many_regions_of_one_file_end() {
        const OWNERS: u32 = 200;
        let mut table = Table::default();
        for n in 0..OWNERS {
            for _ in 0..REGIONS_PER_LINK_MAX {
                table.add((0, LinkTag(n)), region(2), OPEN_MAX).unwrap();
            }
        }
        for n in 0..OWNERS {
            let handles = table.by_owner.remove(&(0, LinkTag(n))).unwrap();
            assert_eq!(handles.len(), REGIONS_PER_LINK_MAX);
            assert!(handles.iter().all(|&handle| table.take(handle).is_some()));
            let left = table.by_inode.get(&InodeNo(7)).map_or(0, HashSet::len);
            assert_eq!(left, (OWNERS - 1 - n) as usize * REGIONS_PER_LINK_MAX);
        }
        assert!(table.by_handle.is_empty() && table.by_inode.is_empty());
    }
}
