//! The registrations that are stored with the volume, joined to the table of regions.
//!
//! ```text
//!                 issue                 attach / detach
//!   (nothing) ──────────► living ◄──────────────────────► living, open on connections
//!                           │
//!        shrink, free, revoke, expiry, other epoch or exports
//!                           ▼
//!                        retired ──► forgotten, when its slot is the one retired longest ago
//! ```
//!
//! What lives is in the table of regions all the time: a region follows its file when that moves (`tools/docs/regions.md`).
//!
//! # Failure
//! A store that fails makes an issue fail; a retirement that cannot be written is one in memory, and the volume, which has
//! failed, makes the change that it was for fail, too.

mod error;
mod operator;
mod retire;
mod tenants;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use contigfs::{BlockStore, Extent, FileKind, Fs, FsError, InodeNo, StoreError};
use ftl::Lba;
use softrdma::{
    BackingId, MemoryRegion, ProtectionDomain, RegionSpec, RegionTable, Rights, Stag, TaggedOffset,
};
use tracing::{debug, error, warn};

use super::door::ANONYMOUS;
use super::media::Media;
use super::planted::Bug;
use super::record::{
    self, FAREWELL_AT, FILE_BYTES, Farewell, RECORD_BYTES, Record, SLOTS_PER_GRAIN, TENANTS_AT,
    TenantRecord,
};
use super::slots::{Living, Slots, Wanted};

pub use error::{EnrolError, IssueError};
pub use operator::{Choice, ChoiceError, Listed};

/// Grains that are read at once.
const READ_GRAINS: usize = 64;

/// What others do when a registration appears or goes.
pub trait Hooks: Send + Sync {
    /// A region of a file that lies at `start` is about to be registered: what it is backed by, which follows the file. None:
    /// too many files have regions.
    fn registering(&self, ino: InodeNo, start: Lba) -> Option<BackingId>;
    /// The same of one that peers know already, in the middle of a life, when the caller has a region of this file himself: what
    /// has to be known of a file before peers write to it is not known of this one.
    fn registering_late(&self, ino: InodeNo) {
        let _ = ino;
    }
    /// Regions of these files have ended, one for each entry.
    fn ended(&self, files: &[InodeNo]);
}

/// A registration that is asked for. Whoever asks keeps the file from moving and from changing its size.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// Whose.
    pub standing: Standing,
    /// The file.
    pub ino: InodeNo,
    /// Its generation.
    pub generation: u64,
    /// Where it lies.
    pub start: Lba,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// May be written.
    pub writable: bool,
}

/// What a registration depends on besides its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The tenant's domain.
    pub domain: ProtectionDomain,
    /// Its epoch.
    pub epoch: u64,
    /// Digest of what it may use.
    pub exports: u64,
}

/// What came of the stored registrations at a start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Registered again.
    pub living: usize,
    /// Left as they are, because their files could not be looked at: they are registered when somebody asks for them.
    pub unknown: usize,
    /// Retired just now.
    pub retired: usize,
    /// Retired earlier and remembered.
    pub remembered: usize,
}

/// How a registry works.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Life of a registration that nobody uses, in seconds.
    pub lifetime: u64,
    /// Wrong on purpose.
    pub bug: Option<Bug>,
}

/// A living registration, as others see it.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// What is stored.
    pub record: Record,
    /// In which domain it is registered, and backed by what.
    pub registered: Option<(ProtectionDomain, BackingId)>,
}

#[derive(Debug, Default)]
struct State {
    slots: Slots,
    tenants: Vec<TenantRecord>,
    /// Others are stored that cannot be read.
    tenants_lost: bool,
    /// What is alive was read, and not looked at yet.
    found: Vec<(usize, Record)>,
    /// When the latest time was written.
    seen_at: u64,
}

/// The registrations of a volume.
pub struct Registry<S: BlockStore> {
    fs: Arc<Fs<S>>,
    stags: Arc<RegionTable>,
    hooks: Box<dyn Hooks>,
    options: Options,
    media: OnceLock<Media<S>>,
    /// What is stored cannot be got at: nothing is known of it, and nothing is added.
    unreadable: Option<FsError>,
    making: Mutex<()>,
    state: Mutex<State>,
}

impl<S: BlockStore> fmt::Debug for Registry<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: BlockStore> Registry<S> {
    /// Reads what is stored. Nothing is registered before [`restore`](Self::restore). If damage hides it, the volume goes on
    /// without: no registration of before is honoured, none is issued, and no tenant is enrolled, because its epoch is not
    /// known.
    pub fn open(
        fs: Arc<Fs<S>>,
        stags: Arc<RegionTable>,
        hooks: Box<dyn Hooks>,
        options: Options,
    ) -> Result<Self, FsError> {
        let (found, unreadable) = match Media::find(&fs) {
            Ok(found) => (found, None),
            Err(error @ (FsError::Corrupt(_) | FsError::Store(_))) => {
                error!(%error, "stored credentials cannot be read; no region of before is honoured");
                (None, Some(error))
            }
            Err(error) => return Err(error),
        };
        let registry = Self {
            media: OnceLock::new(),
            unreadable,
            making: Mutex::default(),
            state: Mutex::default(),
            fs,
            stags,
            hooks,
            options,
        };
        match found {
            Some(media) => {
                *lock(&registry.state) = registry.read(&media);
                let _ = registry.media.set(media);
            }
            None => lock(&registry.state).slots.free_but(&[]),
        }
        Ok(registry)
    }

    fn read(&self, media: &Media<S>) -> State {
        let mut state = State::default();
        let tenants = media.read(TENANTS_AT / ftl::GRAIN_BYTES as u64, 1).pop();
        let tenants = tenants.flatten();
        let tenants = tenants.and_then(|grain| record::parse_tenants(&grain));
        state.tenants_lost = tenants.is_none();
        state.tenants = tenants.unwrap_or_default();
        let first = Record::place(0) / ftl::GRAIN_BYTES as u64;
        let grains = FILE_BYTES / ftl::GRAIN_BYTES as u64 - first;
        let mut used = Vec::new();
        for from in (0..grains).step_by(READ_GRAINS) {
            let count = READ_GRAINS.min((grains - from) as usize);
            for (n, grain) in (from as usize..).zip(media.read(first + from, count)) {
                let slots = n * SLOTS_PER_GRAIN..(n + 1) * SLOTS_PER_GRAIN;
                let Some(grain) = grain else {
                    // What cannot be read cannot be written in part either.
                    used.extend(slots);
                    continue;
                };
                for (slot, bytes) in slots.zip(grain.chunks(RECORD_BYTES)) {
                    let Some(record) = Record::parse(slot, bytes) else {
                        continue;
                    };
                    used.push(slot);
                    // Until they are looked at, and as long as they are remembered (C4).
                    if record.lives || !self.has_bug(Bug::IndexReissued) {
                        self.stags.set_apart(record.stag);
                    }
                    if record.lives {
                        state.found.push((slot, record));
                    } else {
                        state.slots.remember(slot, &record);
                    }
                }
            }
        }
        state.slots.free_but(&used);
        state
    }

    fn media(&self) -> Result<&Media<S>, FsError> {
        if let Some(media) = self.media.get() {
            return Ok(media);
        }
        if let Some(error) = self.unreadable {
            return Err(error);
        }
        let _making = lock(&self.making);
        if self.media.get().is_none() {
            let media = Media::make(&self.fs)?;
            let _ = self.media.set(media);
        }
        Ok(self.media.get().expect("it was set"))
    }

    /// Makes what is needed on the volume before anything can be [issued](Self::issue).
    pub fn prepare(&self) -> Result<(), FsError> {
        self.media().map(drop)
    }

    /// Writes the verifier of a target that ends in this session of the volume, for the next one. Everything it has acknowledged is
    /// durable, and nothing more will be acknowledged. On a volume that no region was ever issued of there is nobody to tell.
    pub fn say_farewell(&self, session: u64, verifier: u64) -> Result<(), StoreError> {
        let Some(media) = self.media.get() else {
            return Ok(());
        };
        let farewell = Farewell { session, verifier };
        media.write_in_any_case(FAREWELL_AT, &farewell.emit())?;
        media.sync(&[FAREWELL_AT])
    }

    /// The verifier of the target before this one, if that ended in order. It is of the session right before: a target that ends in
    /// any other way leaves the farewell of an earlier one.
    pub fn farewell(&self, session: u64) -> Option<u64> {
        let first = self.media.get()?.read(0, 1).pop().flatten()?;
        let farewell = Farewell::parse(&first)?;
        (farewell.session.checked_add(1) == Some(session)).then_some(farewell.verifier)
    }

    fn has_bug(&self, bug: Bug) -> bool {
        self.options.bug == Some(bug)
    }

    /// Registers what is stored again, as far as it still holds; the rest is retired. To be called once, before any
    /// connection is accepted.
    pub fn restore(&self, standings: &[Standing], now: u64) -> Result<Restored, FsError> {
        let mut found = std::mem::take(&mut lock(&self.state).found);
        // Inodes that lie together are read together.
        found.sort_by_key(|(slot, record)| (record.inode, *slot));
        let mut retired = Vec::new();
        let mut restored = Restored::default();
        for (slot, record) in found {
            let start = match self.fits(&record, standings, now) {
                true => self.start_of(&record),
                false => Ok(None),
            };
            let mut state = lock(&self.state);
            let known = state.slots.by_stag(record.stag).is_some()
                || state.slots.by_range(&wanted(&record)).is_some();
            let mut living = Living {
                record,
                attached: 0,
                backing: None,
            };
            let registered = match start {
                Ok(Some(start)) if !known => self.register(&mut living, start).is_ok(),
                _ => false,
            };
            state.slots.insert(slot, living);
            if registered {
                restored.living += 1;
            } else if let (Err(error), false) = (start, known) {
                warn!(%error, ino = record.inode, "the file of a stored registration cannot be looked at");
                restored.unknown += 1;
            } else {
                debug!(?record, "a stored registration does not hold any more");
                self.retire(&mut state, slot, &mut Vec::new())?;
                retired.push(Record::place(slot));
            }
        }
        restored.retired = retired.len();
        restored.remembered = lock(&self.state).slots.retired() - retired.len();
        if let Some(media) = self.media.get() {
            media.sync(&retired)?;
        }
        Ok(restored)
    }

    fn fits(&self, record: &Record, standings: &[Standing], now: u64) -> bool {
        let Some(standing) = standings.iter().find(|s| s.domain == record.domain) else {
            return false;
        };
        let epoch = standing.epoch == record.epoch || self.has_bug(Bug::EpochUnchecked);
        let exports = standing.exports == record.exports || self.has_bug(Bug::ExportsUnchecked);
        epoch && exports && record.expires > now
    }

    /// Where the file of a record lies, if it is the one (C3). Nobody can change files yet. An error is one of the store: then that
    /// is not known.
    fn start_of(&self, record: &Record) -> Result<Option<Lba>, FsError> {
        let ino = InodeNo(record.inode);
        if ino == InodeNo::TABLE || ino == InodeNo::ROOT || self.is_own(ino) {
            return Ok(None);
        }
        let look = || Ok((self.fs.file_extent(ino)?, self.fs.attr(ino)?));
        let (extent, attr) = match look() {
            Err(error @ FsError::Store(_)) => return Err(error),
            Err(_) => return Ok(None),
            Ok(found) => found,
        };
        let same = attr.generation == record.generation || self.has_bug(Bug::GenerationUnchecked);
        let inside =
            record.end().is_some_and(|end| end <= extent.size) || self.has_bug(Bug::SizeUnchecked);
        let is_it = same && inside && attr.kind == FileKind::File;
        Ok(is_it.then_some(extent.range.start))
    }

    /// Registers a record under its own STags.
    fn register(&self, living: &mut Living, start: Lba) -> Result<(), IssueError> {
        let record = &living.record;
        let ino = InodeNo(record.inode);
        let registering = self.hooks.registering(ino, start);
        let backing = registering.ok_or(IssueError::Crowded)?;
        let spec = self.spec(record, backing);
        if let Err(error) = self
            .stags
            .restore(spec, record.stag, Some(record.sync_stag))
        {
            self.hooks.ended(&[ino]);
            return Err(error.into());
        }
        living.backing = Some(backing);
        Ok(())
    }

    fn spec(&self, record: &Record, backing: BackingId) -> RegionSpec {
        let domain = match self.has_bug(Bug::DomainForgotten) {
            true => ANONYMOUS,
            false => record.domain,
        };
        RegionSpec {
            base: TaggedOffset(record.base),
            ..RegionSpec::pages(
                domain,
                file_rights(record.writable),
                backing,
                record.offset,
                record.length,
            )
        }
    }

    /// Whether a tenant would be [issued](Self::issue) one more registration as things are, once those of this file have ended: for who
    /// has something to lose before.
    pub fn may_issue(
        &self,
        domain: ProtectionDomain,
        ends: Option<InodeNo>,
    ) -> Result<(), IssueError> {
        let state = lock(&self.state);
        Ok(state.slots.may_take(domain, ends.map(|ino| ino.0))?)
    }

    /// The registration of a range, new or the one that is there, open on one connection more. Durable on return (C1). Who has
    /// [prepared](Self::prepare) may call it while he keeps the file where it is, because it calls only the store (C5).
    pub fn issue(&self, grant: &Grant, now: u64) -> Result<MemoryRegion, IssueError> {
        let media = self.media()?;
        if self.is_own(grant.ino) {
            return Err(IssueError::Own);
        }
        let wanted = Wanted {
            domain: grant.standing.domain,
            inode: grant.ino.0,
            generation: grant.generation,
            offset: grant.offset,
            length: grant.length,
            writable: grant.writable,
        };
        // One that has expired does not come to life again.
        self.retire_matching(|slots| {
            let slot = slots.by_range(&wanted);
            let over = |slot: &usize| slots.get(*slot).is_some_and(|l| l.is_over(now));
            slot.filter(over).into_iter().collect()
        })
        .map_err(|error| IssueError::Store(error.into()))?;
        let mut state = lock(&self.state);
        if let Some(slot) = state.slots.by_range(&wanted) {
            let names = self.attach_slot(&mut state, slot, grant.start, now)?;
            drop(state);
            // Somebody else may be about to make it durable.
            media
                .sync(&[Record::place(slot)])
                .map_err(|error| IssueError::Store(error.into()))?;
            return Ok(names);
        }
        let (slot, forgotten) = state.slots.take(wanted.domain)?;
        if let Some(stag) = forgotten {
            self.stags.give_back(stag);
        }
        let mut record = Record {
            lives: true,
            writable: grant.writable,
            sequence: 0,
            stag: Stag(0),
            sync_stag: Stag(0),
            inode: grant.ino.0,
            generation: grant.generation,
            offset: grant.offset,
            length: grant.length,
            base: 0,
            epoch: grant.standing.epoch,
            exports: grant.standing.exports,
            expires: now.saturating_add(self.options.lifetime),
            domain: grant.standing.domain,
        };
        let Some(backing) = self.hooks.registering(grant.ino, grant.start) else {
            state.slots.untake(slot);
            return Err(IssueError::Crowded);
        };
        let registered = self.stags.register(self.spec(&record, backing));
        let names = registered.inspect_err(|_| {
            self.hooks.ended(&[grant.ino]);
            state.slots.untake(slot);
        })?;
        self.stags.set_apart(names.stag);
        record.stag = names.stag;
        record.sync_stag = names.sync_stag.unwrap_or(names.stag);
        state.slots.insert(
            slot,
            Living {
                record,
                attached: 1,
                backing: Some(backing),
            },
        );
        let place = Record::place(slot);
        let written = media.write(place, &record.emit(slot));
        drop(state);
        let durable = written.and_then(|()| match self.has_bug(Bug::IssuedUnsynced) {
            true => Ok(()),
            false => media.sync(&[place]),
        });
        if let Err(error) = durable {
            // Nobody has heard of it.
            let mut ended = Vec::new();
            let _ = self.retire(&mut lock(&self.state), slot, &mut ended);
            self.hooks.ended(&ended);
            return Err(IssueError::Store(error.into()));
        }
        Ok(names)
    }

    /// Whether a file is the one that registrations are stored in, by whatever name it was found.
    pub fn is_own(&self, ino: InodeNo) -> bool {
        self.media.get().is_some_and(|media| media.ino == ino)
    }

    /// A living registration of a tenant, by its STag.
    pub fn find(&self, stag: Stag, domain: ProtectionDomain) -> Option<Record> {
        let state = lock(&self.state);
        let living = state.slots.get(state.slots.by_stag(stag)?)?;
        (living.record.domain == domain).then_some(living.record)
    }

    /// A registration, open on one connection more. The caller keeps a file of its number from changing, which is of this
    /// `generation`; there it lies.
    pub fn attach(
        &self,
        stag: Stag,
        domain: ProtectionDomain,
        generation: u64,
        extent: Extent,
        now: u64,
    ) -> Result<MemoryRegion, IssueError> {
        let mut state = lock(&self.state);
        let slot = state.slots.by_stag(stag).ok_or(IssueError::Stale)?;
        let living = state.slots.get(slot).ok_or(IssueError::Stale)?;
        // Whom nobody could look at when the target was started may be of another file (C3).
        let is_it = living.record.generation == generation;
        let is_inside = (living.record.end()).is_some_and(|end| end <= extent.size);
        if !is_it || living.record.domain != domain || living.is_over(now) || !is_inside {
            return Err(IssueError::Stale);
        }
        self.attach_slot(&mut state, slot, extent.range.start, now)
    }

    fn attach_slot(
        &self,
        state: &mut State,
        slot: usize,
        start: Lba,
        now: u64,
    ) -> Result<MemoryRegion, IssueError> {
        let expires = now.saturating_add(self.options.lifetime);
        let living = state.slots.get_mut(slot).ok_or(IssueError::Stale)?;
        if living.backing.is_none() {
            // Its file could not be looked at when the target was started.
            self.hooks.registering_late(InodeNo(living.record.inode));
            self.register(living, start)?;
        }
        living.attached += 1;
        self.renew(slot, living, expires);
        let record = &living.record;
        Ok(MemoryRegion {
            stag: record.stag,
            sync_stag: Some(record.sync_stag),
            base: TaggedOffset(record.base),
            len: record.length,
        })
    }

    /// Writes a later expiry when it is worth it. That it is lost in a crash costs an open.
    fn renew(&self, slot: usize, living: &mut Living, expires: u64) {
        let record = &mut living.record;
        if expires.saturating_sub(record.expires) < self.options.lifetime / 2 {
            return;
        }
        record.expires = expires;
        if let Some(media) = self.media.get()
            && let Err(error) = media.write(Record::place(slot), &record.emit(slot))
        {
            warn!(%error, "the renewal of a registration cannot be written");
        }
    }

    /// A connection does not have it open any more.
    pub fn detach(&self, stag: Stag, now: u64) {
        let mut state = lock(&self.state);
        let Some(slot) = state.slots.by_stag(stag) else {
            return;
        };
        if let Some(living) = state.slots.get_mut(slot) {
            living.attached = living.attached.saturating_sub(1);
            self.renew(slot, living, now.saturating_add(self.options.lifetime));
        }
    }

    /// Now and then: retires what has expired, renews what is open, and remembers the time.
    pub fn tick(&self, now: u64) {
        let expired = self.retire_matching(|slots| {
            let over = slots.living().filter(|(_, l)| l.is_over(now));
            over.map(|(slot, _)| slot).collect()
        });
        match expired {
            Ok(0) => {}
            Ok(count) => debug!(count, "registrations have expired"),
            Err(error) => warn!(%error, "expired registrations cannot be retired"),
        }
        let mut state = lock(&self.state);
        let open: Vec<usize> = state
            .slots
            .living()
            .filter(|(_, living)| living.attached > 0)
            .map(|(slot, _)| slot)
            .collect();
        for slot in open {
            if let Some(living) = state.slots.get_mut(slot) {
                self.renew(slot, living, now.saturating_add(self.options.lifetime));
            }
        }
        self.note_time(&mut state, now);
    }

    /// How many live, unless somebody is changing that just now, who may wait for the media.
    pub fn count_now(&self) -> Option<usize> {
        Some(self.state.try_lock().ok()?.slots.living().count())
    }

    /// Everything that lives.
    pub fn views(&self) -> Vec<View> {
        let state = lock(&self.state);
        let view = |(_, living): (usize, &Living)| View {
            record: living.record,
            registered: living
                .backing
                .map(|backing| (self.spec(&living.record, backing).domain, backing)),
        };
        state.slots.living().map(view).collect()
    }
}

fn wanted(record: &Record) -> Wanted {
    Wanted {
        domain: record.domain,
        inode: record.inode,
        generation: record.generation,
        offset: record.offset,
        length: record.length,
        writable: record.writable,
    }
}

/// What peers may do with a region of a file, plain or persistent.
pub fn file_rights(writable: bool) -> Rights {
    let mut rights = Rights::REMOTE_READ;
    if writable {
        rights |= Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
        rights |= Rights::FLUSH_GLOBAL | Rights::FLUSH_PERSISTENT;
    }
    rights
}
