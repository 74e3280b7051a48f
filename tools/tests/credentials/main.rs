//! Registrations that outlive the process, over a store that loses its power: what is remembered, what is refused, and that
//! these tests would notice if it were not so.

mod door;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::Deref;
use std::sync::{Arc, Mutex, Weak};

use contigfs::{
    BlockStore, ByteAddr, Extent, ExtentObserver, FormatOptions, Fs, InodeNo, MemStore, NewNode,
    SetAttr, StoreError, WriteOptions,
};
use ftl::{AtomicBatch, GRAIN_BYTES, Lba, LbaRange, Space};
use proptest::prelude::*;
use softrdma::{BackingId, MemoryRegion, ProtectionDomain, RegionTable, Stag};
use tools::credentials::planted::Bug;
use tools::credentials::record::{RECORD_BYTES, Record, parse_tenants};
use tools::credentials::registry::{EnrolError, IssueError, Options, Restored};
use tools::credentials::{ANONYMOUS, Grant, Hooks, Registry, Standing};

type Store = Arc<Disk>;

/// A store of which the device gives an error for one grain, until that is written as a whole.
struct Disk {
    memory: MemStore,
    unreadable: Mutex<Option<Lba>>,
}

impl Disk {
    fn of(memory: MemStore) -> Store {
        let unreadable = Mutex::default();
        Arc::new(Self { memory, unreadable })
    }

    fn set_unreadable(&self, grain: Option<Lba>) {
        *self.unreadable.lock().unwrap() = grain;
    }

    /// Who reads or changes some of these bytes needs what is there.
    fn look(&self, at: ByteAddr, len: usize) -> Result<(), StoreError> {
        let end = ByteAddr(at.0 + len.saturating_sub(1) as u64);
        match *self.unreadable.lock().unwrap() {
            Some(lba) if (at.lba()..=end.lba()).contains(&lba) => {
                Err(StoreError::Unreadable { lba })
            }
            _ => Ok(()),
        }
    }
}

impl Deref for Disk {
    type Target = MemStore;

    fn deref(&self) -> &MemStore {
        &self.memory
    }
}

impl BlockStore for Disk {
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
        self.look(at, buf.len())?;
        self.memory.read(at, buf)
    }

    fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
        match data.len() {
            GRAIN_BYTES => {
                let mut unreadable = self.unreadable.lock().unwrap();
                unreadable.take_if(|lba| *lba == at.lba());
            }
            _ => self.look(at, data.len())?,
        }
        self.memory.write(at, data)
    }

    fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        for (lba, offset, bytes) in &batch.patches {
            self.look(ByteAddr::new(*lba, u64::from(*offset)), bytes.len())?;
        }
        self.memory.commit(batch)
    }

    fn commit_relaxed(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        self.memory.commit_relaxed(batch)
    }

    fn sync(&self, range: LbaRange) -> Result<(), StoreError> {
        self.memory.sync(range)
    }

    fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        self.memory.next_mapped(range)
    }

    fn space(&self) -> Space {
        self.memory.space()
    }
}

/// Life of a registration, in seconds.
const LIFETIME: u64 = 1000;
/// The beginning of time.
const NOW: u64 = 1_000_000;
const ALPHA: ProtectionDomain = ProtectionDomain(7);
const BETA: ProtectionDomain = ProtectionDomain(8);

/// How many regions of which files are registered.
#[derive(Default)]
struct Counts(Mutex<HashMap<InodeNo, usize>>);

impl Counts {
    fn end(&self, files: &[InodeNo]) {
        let mut counts = self.0.lock().unwrap();
        for ino in files {
            *counts.get_mut(ino).unwrap() -= 1;
        }
    }
}

struct Counting(Arc<Counts>);

/// A file's number stands for where it lies, which it follows.
fn backing(ino: InodeNo) -> BackingId {
    BackingId(ino.0)
}

impl Hooks for Counting {
    fn registering(&self, ino: InodeNo, _: Lba) -> Option<BackingId> {
        *self.0.0.lock().unwrap().entry(ino).or_default() += 1;
        Some(backing(ino))
    }
    fn ended(&self, files: &[InodeNo]) {
        self.0.end(files);
    }
}

struct Observer(Weak<Registry<Store>>, Arc<Counts>);

impl ExtentObserver for Observer {
    fn shrinking(&self, ino: InodeNo, size: u64) {
        if let Some(registry) = self.0.upgrade() {
            self.1.end(&registry.shrinks(ino, size));
        }
    }
    fn moving(&self, _: InodeNo) {}
    fn freed(&self, ino: InodeNo) {
        if let Some(registry) = self.0.upgrade() {
            self.1.end(&registry.frees(ino));
        }
    }
}

/// One life of a target.
struct Life {
    store: Store,
    fs: Arc<Fs<Store>>,
    registry: Arc<Registry<Store>>,
    restored: Restored,
    counts: Arc<Counts>,
}

fn standing(domain: ProtectionDomain) -> Standing {
    Standing {
        domain,
        epoch: 1,
        exports: 2,
    }
}

fn formatted() -> Store {
    let store = Disk::of(MemStore::new(8192));
    Fs::format(&store, &FormatOptions::default()).unwrap();
    store
}

impl Life {
    fn start(store: Store, bug: Option<Bug>) -> Self {
        Self::start_as(store, bug, &[standing(ALPHA), standing(BETA)], NOW)
    }

    fn start_as(store: Store, bug: Option<Bug>, standings: &[Standing], now: u64) -> Self {
        let fs = Arc::new(Fs::mount(Arc::clone(&store)).unwrap());
        // Always the same, so that the same indices would be drawn.
        let stags = RegionTable::new([3; 32]);
        let options = Options {
            lifetime: LIFETIME,
            bug,
        };
        let counts = Arc::new(Counts::default());
        let hooks = Box::new(Counting(Arc::clone(&counts)));
        let registry = Registry::open(Arc::clone(&fs), stags, hooks, options).unwrap();
        let registry = Arc::new(registry);
        let observer = Observer(Arc::downgrade(&registry), Arc::clone(&counts));
        fs.set_observer(Box::new(observer));
        let restored = registry.restore(standings, now).unwrap();
        Self {
            store,
            fs,
            registry,
            restored,
            counts,
        }
    }

    /// What a power cut leaves: of everything that was not synced the oldest version.
    fn cut(&self) -> Store {
        Disk::of(self.store.after_power_cut(|_| 0))
    }

    fn file(&self, name: &str, bytes: usize) -> InodeNo {
        let attr = self
            .fs
            .create(InodeNo::ROOT, OsStr::new(name), &NewNode::file())
            .unwrap();
        self.fill(attr.ino, bytes);
        attr.ino
    }

    fn fill(&self, ino: InodeNo, bytes: usize) {
        let written = self
            .fs
            .write(ino, 0, &vec![1; bytes], WriteOptions::default());
        assert_eq!(written, Ok(bytes));
        self.fs.sync_all().unwrap();
    }

    fn resize(&self, ino: InodeNo, size: u64) {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.fs.set_attr(ino, &set).unwrap();
    }

    fn issue(
        &self,
        domain: ProtectionDomain,
        ino: InodeNo,
        range: (u64, u64),
    ) -> Result<MemoryRegion, IssueError> {
        self.issue_at(domain, ino, range, NOW)
    }

    fn issue_at(
        &self,
        domain: ProtectionDomain,
        ino: InodeNo,
        (offset, length): (u64, u64),
        now: u64,
    ) -> Result<MemoryRegion, IssueError> {
        let generation = self.fs.attr(ino).unwrap().generation;
        if let Err(error) = self.registry.prepare() {
            return Err(IssueError::Store(error));
        }
        let issue = |extent: Extent| {
            let grant = Grant {
                standing: standing(domain),
                ino,
                generation,
                start: extent.range.start,
                offset,
                length,
                writable: true,
            };
            self.registry.issue(&grant, now)
        };
        self.fs.with_extent(ino, issue).unwrap()
    }

    fn attach(
        &self,
        ino: InodeNo,
        stag: Stag,
        domain: ProtectionDomain,
    ) -> Result<MemoryRegion, IssueError> {
        self.attach_at(ino, stag, domain, NOW)
    }

    fn attach_at(
        &self,
        ino: InodeNo,
        stag: Stag,
        domain: ProtectionDomain,
        now: u64,
    ) -> Result<MemoryRegion, IssueError> {
        let generation = self.fs.attr(ino).unwrap().generation;
        let attach = |extent| (self.registry).attach(stag, domain, generation, extent, now);
        self.fs.with_extent(ino, attach).unwrap()
    }

    /// What lives is registered, and nothing else is; others were told of every region that came and went.
    fn is_consistent(&self) -> bool {
        let mut counts = self.counts.0.lock().unwrap().clone();
        let views = self.registry.views();
        let all = views.iter().all(|view| {
            let count = counts.entry(InodeNo(view.record.inode)).or_default();
            *count = count.wrapping_sub(1);
            view.registered.is_some()
        });
        all && counts.values().all(|&left| left == 0)
    }

    /// Whether an STag is honoured for a tenant, and what backs it.
    fn honours(&self, stag: Stag, domain: ProtectionDomain) -> Option<BackingId> {
        let views = self.registry.views();
        let view = views.iter().find(|view| view.record.stag == stag)?;
        let (of, backing) = view.registered?;
        (of == domain).then_some(backing)
    }
}

/// C1, D11: what has been handed out is honoured after a power cut, with the same STags, for the same tenant, for its file; and
/// handed out again instead of a second one.
fn remembered(bug: Option<Bug>) -> bool {
    let life = Life::start(formatted(), bug);
    let ino = life.file("a", 10_000);
    let region = life.issue(ALPHA, ino, (100, 5000)).unwrap();
    let after = Life::start(life.cut(), bug);
    let views = after.registry.views();
    after.honours(region.stag, ALPHA) == Some(backing(ino))
        && views.len() == 1
        && after.is_consistent()
        && Some(views[0].record.sync_stag) == region.sync_stag
        && (views[0].record.offset, views[0].record.length) == (100, 5000)
        && after.issue(ALPHA, ino, (100, 5000)).unwrap() == region
        && after.registry.find(region.stag, BETA).is_none()
}

/// C2: what a shrinking file has ended stays so, also if it grows again and the power goes.
fn ended_by_shrinking(bug: Option<Bug>) -> bool {
    let life = Life::start(formatted(), bug);
    let ino = life.file("a", 10_000);
    let above = life.issue(ALPHA, ino, (8000, 2000)).unwrap();
    let below = life.issue(ALPHA, ino, (0, 4000)).unwrap();
    life.resize(ino, 9000);
    let gone = life.honours(above.stag, ALPHA).is_none();
    life.resize(ino, 10_000);
    let after = Life::start(life.cut(), bug);
    gone && life.is_consistent()
        && after.is_consistent()
        && after.honours(above.stag, ALPHA).is_none()
        && after.honours(below.stag, ALPHA).is_some()
        && after.registry.find(above.stag, ALPHA).is_none()
}

/// C2: the same if the device gives an error for what is stored there when the file shrinks, and for that of what is revoked then.
/// What else is stored there stays as it is, and so is what is remembered (C4).
#[test]
fn ended_where_nothing_can_be_read() {
    let life = Life::start(formatted(), None);
    let ino = life.file("a", 10_000);
    let above = life.issue(ALPHA, ino, (8000, 2000)).unwrap();
    let below = life.issue(ALPHA, ino, (0, 4000)).unwrap();
    let revoked = [10, 20].map(|at| life.issue(ALPHA, ino, (at, 10)).unwrap().stag);
    assert_eq!(life.registry.revoke(revoked[0], ALPHA), Ok(true));
    let stored = life.fs.lookup_path("/.flashnet/credentials").unwrap();
    let slots = life.fs.file_extent(stored).unwrap().range.start.offset(2);
    let fails = || life.store.set_unreadable(Some(slots));
    fails();
    life.resize(ino, 9000);
    life.resize(ino, 10_000);
    fails();
    assert_eq!(life.registry.revoke(revoked[1], ALPHA), Ok(true));
    let after = Life::start(life.cut(), None);
    assert!(after.honours(above.stag, ALPHA).is_none());
    assert!(after.honours(below.stag, ALPHA).is_some());
    assert!(
        revoked
            .iter()
            .all(|&stag| after.honours(stag, ALPHA).is_none())
    );
    assert_eq!((after.restored.living, after.restored.remembered), (1, 3));
    assert!(life.is_consistent() && after.is_consistent());
}

/// C3: a file that was removed and made again under the same number has none of the registrations (no other's bytes), also if
/// nobody was there to hear of it.
fn ended_by_removal(bug: Option<Bug>) -> bool {
    let life = Life::start(formatted(), bug);
    let ino = life.file("a", 10_000);
    let region = life.issue(ALPHA, ino, (0, 10_000)).unwrap();
    let store = life.cut();
    {
        let fs = Fs::mount(Arc::clone(&store)).unwrap();
        fs.unlink(InodeNo::ROOT, OsStr::new("a")).unwrap();
        let again = fs
            .create(InodeNo::ROOT, OsStr::new("b"), &NewNode::file())
            .unwrap();
        assert_eq!(again.ino, ino, "the number is used again");
        fs.write(ino, 0, &[2; 10_000], WriteOptions::default())
            .unwrap();
        fs.sync_all().unwrap();
    }
    let after = Life::start(store, bug);
    after.honours(region.stag, ALPHA).is_none()
}

/// C3: a file that has shrunk while nobody was there to hear of it has no registration behind its end.
fn ended_unheard(bug: Option<Bug>) -> bool {
    let life = Life::start(formatted(), bug);
    let ino = life.file("a", 10_000);
    let region = life.issue(ALPHA, ino, (0, 10_000)).unwrap();
    let store = life.cut();
    let set = SetAttr {
        size: Some(9999),
        ..SetAttr::default()
    };
    Fs::mount(Arc::clone(&store))
        .unwrap()
        .set_attr(ino, &set)
        .unwrap();
    let after = Life::start(store, bug);
    after.honours(region.stag, ALPHA).is_none()
}

/// I12: a higher epoch ends what was issued before it, for ever, of that tenant only; so do other exports.
fn ended_by_standing(bug: Option<Bug>) -> bool {
    let changes: [fn(&mut Standing); 2] = [|s| s.epoch += 1, |s| s.exports += 1];
    changes.iter().all(|change| {
        let life = Life::start(formatted(), bug);
        let ino = life.file("a", 10_000);
        let alpha = life.issue(ALPHA, ino, (0, 10_000)).unwrap();
        let beta = life.issue(BETA, ino, (0, 10_000)).unwrap();
        let mut changed = standing(ALPHA);
        change(&mut changed);
        let now = [changed, standing(BETA)];
        let after = Life::start_as(life.cut(), bug, &now, NOW);
        let ended = after.honours(alpha.stag, ALPHA).is_none();
        let stays = after.honours(beta.stag, BETA).is_some();
        // Back again: too late.
        let later = Life::start(after.cut(), bug);
        ended && stays && later.honours(alpha.stag, ALPHA).is_none()
    })
}

/// C4: the index of a revoked STag is not drawn again, by whichever process.
fn index_not_reissued(bug: Option<Bug>) -> bool {
    let life = Life::start(formatted(), bug);
    let ino = life.file("a", 10_000);
    let revoked = life.issue(ALPHA, ino, (0, 100)).unwrap();
    assert_eq!(life.registry.revoke(revoked.stag, ALPHA), Ok(true));
    // This one draws the same numbers.
    let after = Life::start(life.cut(), bug);
    let next = after.issue(ALPHA, ino, (0, 200)).unwrap();
    next.stag.index() != revoked.stag.index() && after.restored.remembered == 1
}

/// C3: a registration goes on when its file moves to another place, also over a power cut. (That its bytes are the file's there
/// is shown against the real program.)
fn follows_its_file(bug: Option<Bug>) -> bool {
    let life = Life::start(formatted(), bug);
    let ino = life.file("a", 10_000);
    // What lies behind it keeps it from growing where it is.
    for n in 0..4 {
        life.file(&format!("behind-{n}"), 1);
    }
    let region = life.issue(ALPHA, ino, (0, 10_000)).unwrap();
    let before = life.fs.file_extent(ino).unwrap().range.start;
    life.resize(ino, 65 << 30);
    let now = life.fs.file_extent(ino).unwrap().range.start;
    assert_ne!(before, now, "the file has moved");
    life.registry.tick(NOW);
    let follows = life.honours(region.stag, ALPHA) == Some(backing(ino));
    let after = Life::start(life.cut(), bug);
    follows && after.honours(region.stag, ALPHA) == Some(backing(ino))
}

/// How somebody asks for a registration that there is.
type Ask = fn(&Life, InodeNo, Stag) -> Result<MemoryRegion, IssueError>;

/// D11: a registration of a file that the device gives an error for at the start is not honoured, and not forgotten.
#[test]
fn who_can_not_be_looked_at_is_not_forgotten() {
    let life = Life::start(formatted(), None);
    life.registry.prepare().unwrap();
    // Others have their records beside those of the target.
    for n in 0..40 {
        life.file(&format!("{n}"), 1);
    }
    let ino = life.file("a", 10_000);
    let region = life.issue(ALPHA, ino, (0, 4000)).unwrap();
    let without = || {
        let store = life.cut();
        store.set_unreadable(Some(Lba((1 << 28) + ino.0 / 32)));
        let after = Life::start(store, None);
        after.store.set_unreadable(None);
        assert_eq!(after.restored.retired, 0);
        assert!(after.honours(region.stag, ALPHA).is_none());
        after
    };
    let later = Life::start(without().cut(), None);
    assert!(later.honours(region.stag, ALPHA).is_some());
    // Who asks for it has it, as soon as that can be.
    let asks: [Ask; 2] = [
        |life, ino, stag| life.attach(ino, stag, ALPHA),
        |life, ino, _| life.issue(ALPHA, ino, (0, 4000)),
    ];
    for ask in asks {
        let after = without();
        assert_eq!(ask(&after, ino, region.stag), Ok(region));
        assert!(after.honours(region.stag, ALPHA).is_some() && after.is_consistent());
    }
    // C2: it ends like any other.
    let ends: [fn(&Life, InodeNo, Stag); 2] = [
        |life, ino, _| {
            [1000, 10_000]
                .iter()
                .for_each(|&size| life.resize(ino, size))
        },
        |life, _, stag| assert_eq!(life.registry.revoke(stag, ALPHA), Ok(true)),
    ];
    for end in ends {
        let after = without();
        end(&after, ino, region.stag);
        assert_eq!(
            after.attach(ino, region.stag, ALPHA),
            Err(IssueError::Stale)
        );
        let later = Life::start(after.cut(), None);
        assert!(later.honours(region.stag, ALPHA).is_none());
    }
}

/// C3: and when the file can be looked at again, it is the one that it was, as long as it was: nothing of another that has got its number
/// meanwhile, nor of what is behind its end, is anybody's.
#[test]
fn who_can_not_be_looked_at_may_have_changed() {
    // Where no target is, nobody hears of it.
    let changes: [fn(&Fs<Store>, InodeNo); 2] = [
        |fs, ino| {
            fs.unlink(InodeNo::ROOT, OsStr::new("a")).unwrap();
            let other = fs.create(InodeNo::ROOT, OsStr::new("b"), &NewNode::file());
            assert_eq!(other.unwrap().ino, ino, "the number is used again");
            let written = fs.write(ino, 0, &[1; 10_000], WriteOptions::default());
            assert_eq!(written, Ok(10_000));
        },
        |fs, ino| {
            let set = SetAttr {
                size: Some(3999),
                ..SetAttr::default()
            };
            fs.set_attr(ino, &set).unwrap();
        },
    ];
    for change in changes {
        let life = Life::start(formatted(), None);
        life.registry.prepare().unwrap();
        for n in 0..40 {
            life.file(&format!("{n}"), 1);
        }
        let ino = life.file("a", 10_000);
        let region = life.issue(ALPHA, ino, (0, 4000)).unwrap();
        let store = life.cut();
        let fs = Fs::mount(Arc::clone(&store)).unwrap();
        change(&fs, ino);
        fs.sync_all().unwrap();
        drop(fs);
        store.set_unreadable(Some(Lba((1 << 28) + ino.0 / 32)));
        let after = Life::start(store, None);
        after.store.set_unreadable(None);
        assert_eq!(after.restored.unknown, 1);
        let stale = Err(IssueError::Stale);
        assert_eq!(after.attach(ino, region.stag, ALPHA), stale);
        assert!(after.honours(region.stag, ALPHA).is_none());
    }
}

/// C2: deleting a file ends its registrations, open or not, for ever; those of others stay.
fn ended_by_deleting(bug: Option<Bug>) -> bool {
    let life = Life::start(formatted(), bug);
    let ino = life.file("a", 10_000);
    let other = life.file("b", 10_000);
    let ranges = [(0, 10_000), (0, 1), (9999, 1)];
    let gone = ranges.map(|range| life.issue(ALPHA, ino, range).unwrap());
    let stays = life.issue(ALPHA, other, (0, 10_000)).unwrap();
    life.registry.detach(gone[0].stag, NOW);
    life.fs.unlink(InodeNo::ROOT, OsStr::new("a")).unwrap();
    let holds = |life: &Life| {
        life.is_consistent()
            && gone.iter().all(|r| life.honours(r.stag, ALPHA).is_none())
            && life.honours(stays.stag, ALPHA) == Some(backing(other))
    };
    holds(&life) && holds(&Life::start(life.cut(), bug))
}

/// Whether what it is about holds, with or without a bug.
type Scenario = fn(Option<Bug>) -> bool;

const SCENARIOS: [(&str, Scenario); 8] = [
    ("remembered", remembered),
    ("ended by shrinking", ended_by_shrinking),
    ("ended by removal", ended_by_removal),
    ("ended by deleting", ended_by_deleting),
    ("ended unheard", ended_unheard),
    ("ended by standing", ended_by_standing),
    ("index not reissued", index_not_reissued),
    ("follows its file", follows_its_file),
];

#[test]
fn every_scenario_holds() {
    for (name, holds) in SCENARIOS {
        assert!(holds(None), "{name}");
    }
}

/// M12: the scenarios notice every planted bug.
#[test]
fn planted_bugs_are_found() {
    for bug in Bug::REGISTRATIONS {
        let found = SCENARIOS.iter().any(|(_, holds)| !holds(Some(bug)));
        assert!(found, "nobody has noticed {bug:?}");
    }
}

/// I1, C1, C2: whenever the power goes in the middle of issues and revocations, whatever was acknowledged holds afterwards, and a
/// second start finds what the first did (I6).
#[test]
fn power_cuts_at_every_write() {
    let mut cuts = 0;
    for calls in 0.. {
        let life = Life::start(formatted(), None);
        let ino = life.file("a", 10_000);
        let first = life.issue(ALPHA, ino, (0, 10)).unwrap();
        life.store.cut_power_after(calls);
        let mut issued = Vec::new();
        let mut revoked = Vec::new();
        for n in 1..5 {
            if let Ok(region) = life.issue(ALPHA, ino, (n, 10)) {
                issued.push(region.stag);
            }
        }
        if let Some(&stag) = issued.first()
            && life.registry.revoke(stag, ALPHA).is_ok()
        {
            issued.remove(0);
            revoked.push(stag);
        }
        let doubtful = issued.first().copied().filter(|_| revoked.is_empty());
        assert!(life.is_consistent(), "{calls}");
        let over = life.store.calls() < calls;
        for variant in 0..4_usize {
            let mut dice = variant * 7 + calls as usize;
            let store = life.store.after_power_cut(|n| {
                dice = dice * 31 + 17;
                dice % n
            });
            let after = Life::start(Disk::of(store), None);
            assert!(after.honours(first.stag, ALPHA).is_some(), "{calls}");
            for stag in issued.iter().filter(|stag| Some(**stag) != doubtful) {
                assert!(after.honours(*stag, ALPHA).is_some(), "{calls}: {stag}");
            }
            for stag in &revoked {
                assert!(after.honours(*stag, ALPHA).is_none(), "{calls}: {stag}");
            }
            assert!(after.is_consistent(), "{calls}");
            let again = Life::start(after.cut(), None);
            assert_eq!(again.restored.living, after.restored.living);
            assert_eq!(again.restored.retired, 0);
            cuts += 1;
        }
        if over {
            break;
        }
    }
    assert!(cuts >= 20, "{cuts}");
}

/// Nobody uses it: it expires, for ever, also if the clock is set back. Whoever has it open keeps it.
#[test]
fn expiry() {
    let life = Life::start(formatted(), None);
    let ino = life.file("a", 10_000);
    let unused = life.issue(ALPHA, ino, (0, 1)).unwrap();
    let used = life.issue(ALPHA, ino, (0, 2)).unwrap();
    life.registry.detach(unused.stag, NOW);
    life.registry.tick(NOW + LIFETIME - 1);
    assert!(life.honours(unused.stag, ALPHA).is_some());
    life.registry.tick(NOW + LIFETIME);
    assert!(life.is_consistent());
    assert!(life.honours(unused.stag, ALPHA).is_none());
    assert!(life.honours(used.stag, ALPHA).is_some());
    life.fs.sync_all().unwrap();
    let later = NOW + LIFETIME + 1;
    let standings = [standing(ALPHA)];
    let after = Life::start_as(life.cut(), None, &standings, NOW);
    assert!(after.honours(unused.stag, ALPHA).is_none());
    // The renewal of the other may have been lost; then it is over, too, and not half of it.
    let after = Life::start_as(after.cut(), None, &standings, later);
    let views = after.registry.views();
    assert!(views.iter().all(|view| view.record.expires > later));
}

/// C2: who asks for what has expired, before anybody has looked for that, does not bring it back to life: neither by its STag nor by its
/// range, of which he gets another one.
#[test]
fn what_has_expired_is_not_revived() {
    let life = Life::start(formatted(), None);
    let ino = life.file("a", 10_000);
    let region = life.issue(ALPHA, ino, (0, 100)).unwrap();
    life.registry.detach(region.stag, NOW);
    let over = NOW + LIFETIME;
    let attached = life.attach_at(ino, region.stag, ALPHA, over);
    assert_eq!(attached, Err(IssueError::Stale));
    let another = life.issue_at(ALPHA, ino, (0, 100), over).unwrap();
    assert_ne!(another.stag, region.stag);
    assert!(life.honours(region.stag, ALPHA).is_none() && life.is_consistent());
    let after = Life::start(life.cut(), None);
    assert!(after.honours(region.stag, ALPHA).is_none());
    assert!(after.honours(another.stag, ALPHA).is_some());
}

/// Attaching needs the right tenant, and an STag that is not revoked (I10).
#[test]
fn attaching() {
    let life = Life::start(formatted(), None);
    let ino = life.file("a", 10_000);
    let region = life.issue(ALPHA, ino, (0, 100)).unwrap();
    let attach = |stag, domain| life.attach(ino, stag, domain);
    assert_eq!(attach(region.stag, ALPHA), Ok(region));
    assert_eq!(attach(region.sync_stag.unwrap(), ALPHA), Ok(region));
    assert_eq!(attach(region.stag, BETA), Err(IssueError::Stale));
    assert_eq!(attach(region.stag, ANONYMOUS), Err(IssueError::Stale));
    let forged = Stag(region.stag.0 ^ 1);
    assert_eq!(attach(forged, ALPHA), Err(IssueError::Stale));
    assert_eq!(life.registry.revoke(region.stag, BETA), Ok(false));
    assert_eq!(life.registry.revoke(region.stag, ALPHA), Ok(true));
    assert_eq!(attach(region.stag, ALPHA), Err(IssueError::Stale));
}

/// A tenant at its limit is refused; others are not, and revoking makes room (I16).
#[test]
fn limits_of_tenants() {
    let life = Life::start(formatted(), None);
    let ino = life.file("a", 10_000);
    let mut last = None;
    for n in 0..4096 {
        last = Some(life.issue(ALPHA, ino, (n, 1)).unwrap());
    }
    let one_more = life.issue(ALPHA, ino, (4096, 1));
    assert_eq!(one_more, Err(IssueError::TenantFull));
    assert!(life.issue(BETA, ino, (4096, 1)).is_ok());
    life.registry.revoke(last.unwrap().stag, ALPHA).unwrap();
    assert!(life.issue(ALPHA, ino, (4096, 1)).is_ok());
    let after = Life::start(life.cut(), None);
    assert_eq!(after.restored.living, 4097);
}

/// The epochs of tenants only grow, and their domains stay (I12).
#[test]
fn epochs_only_grow() {
    let enrol = |life: &Life, wanted: &[(&str, u64)]| {
        let wanted: Vec<_> = wanted
            .iter()
            .map(|(name, epoch)| (name.parse().unwrap(), *epoch))
            .collect();
        life.registry.enrol(&wanted, NOW)
    };
    let life = Life::start(formatted(), None);
    let first = enrol(&life, &[("a", 1), ("b", 5)]).unwrap();
    assert_ne!(first[0].domain, first[1].domain);
    assert_ne!(first[0].domain, ANONYMOUS);
    let life = Life::start(life.cut(), None);
    let lower = enrol(&life, &[("a", 1), ("b", 4)]).unwrap_err();
    assert!(
        matches!(lower, EnrolError::Epoch { seen: 5, .. }),
        "{lower}"
    );
    let again = enrol(&life, &[("b", 6), ("c", 0)]).unwrap();
    assert_eq!(again[0].domain, first[1].domain);
    assert!(first.iter().all(|t| t.domain != again[1].domain));
    let life = Life::start(life.cut(), None);
    assert!(enrol(&life, &[("b", 5)]).is_err());
    let back = enrol(&life, &[("a", 1)]).unwrap();
    assert_eq!(back[0].domain, first[0].domain);
}

/// Where epochs are not known any more, no tenant is enrolled: neither when what is stored of tenants can not be read nor when
/// one of them is damaged, nor after a life without tenants (I12).
#[test]
fn forgotten_epochs_are_not_made_up() {
    let enrol = |life: &Life, epoch| life.registry.enrol(&[("a".parse().unwrap(), epoch)], NOW);
    for whole in [false, true] {
        let life = Life::start(formatted(), None);
        enrol(&life, 5).unwrap();
        let stored = life.fs.lookup_path("/.flashnet/credentials").unwrap();
        let stored = life.fs.file_extent(stored).unwrap().range.start;
        match whole {
            true => life.store.damage(stored.offset(1)),
            false => life
                .store
                .poke(ByteAddr::new(stored.offset(1), 3), |byte| byte ^ 1),
        }
        let without = Life::start(life.cut(), None);
        without.registry.tick(NOW + 100_000);
        for life in [&without, &Life::start(without.cut(), None)] {
            for epoch in [4, 5] {
                let refused = enrol(life, epoch).unwrap_err();
                assert!(matches!(refused, EnrolError::Unknown), "{refused}");
            }
        }
    }
}

proptest! {
    /// M5: what is on the media is parsed without harm.
    #[test]
    fn strange_media(bytes in prop::collection::vec(any::<u8>(), 4096)) {
        for (n, slot) in bytes.chunks(RECORD_BYTES).enumerate() {
            prop_assert_eq!(Record::parse(n, slot), None);
        }
        prop_assert!(parse_tenants(&bytes).is_none_or(|found| found.is_empty()));
    }
}
