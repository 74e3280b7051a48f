//! The oracle: what a volume may hold after a crash, kept as simply as possible.
//!
//! Each grain has its history of versions. An acknowledgement raises the index of the oldest version that may still
//! be found. Judging a recovered volume means finding each grain's content in the part of its history that is left,
//! and each batch wholly or not at all.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use ftl::{AtomicBatch, GRAIN_BYTES, LbaRange, Remap};

/// What a grain holds.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Unmapped,
    Zero,
    Data(Arc<[u8]>),
}

impl Content {
    /// The bytes a reader sees.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Unmapped | Self::Zero => vec![0; GRAIN_BYTES],
            Self::Data(data) => data.to_vec(),
        }
    }

    pub(crate) fn is_mapped(&self) -> bool {
        *self != Self::Unmapped
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmapped => f.write_str("unmapped"),
            Self::Zero => f.write_str("zero"),
            Self::Data(data) => write!(f, "data {:02x?}..{:02x?}", &data[..16], &data[4088..]),
        }
    }
}

#[derive(Clone, Debug)]
struct History {
    versions: Vec<Content>,
    /// What a version that was moved here may also be after a crash: what had not been synced where it came from may
    /// be lost, wherever it is.
    instead: BTreeMap<usize, Vec<Content>>,
    /// Oldest version that may be found after a crash.
    durable: usize,
    /// Reservations made while the grain was mapped: (current version then, durable). They matter only if an older,
    /// unmapped version is found: it reads as reserved.
    reserved: Vec<(usize, bool)>,
}

impl History {
    fn current(&self) -> usize {
        self.versions.len() - 1
    }

    /// What may be found of it after a crash now, besides what is current.
    fn possible(&self) -> Vec<Content> {
        let mut all = self.versions[self.durable..].to_vec();
        all.extend(
            self.instead
                .range(self.durable..)
                .flat_map(|(_, c)| c.clone()),
        );
        if !self.reserved.is_empty() {
            all.push(Content::Zero);
        }
        all
    }

    /// Lowest and highest version that `found` may be.
    fn candidates(&self, found: &Content) -> Option<(usize, usize)> {
        let fits = |version: &Content, index: usize| {
            let over = |(at, durable): &&(usize, bool)| {
                *at >= index && (*durable || *found == Content::Zero)
            };
            match (version, found) {
                // Not reserved although that was acknowledged.
                (Content::Unmapped, Content::Unmapped) => !self
                    .reserved
                    .iter()
                    .any(|(at, durable)| *durable && *at >= index),
                (Content::Unmapped, Content::Zero) => self.reserved.iter().any(|r| over(&r)),
                _ => version == found,
            }
        };
        let fits = |index: &usize| {
            let instead = self.instead.get(index).into_iter().flatten();
            let mut all = instead.chain([&self.versions[*index]]);
            all.any(|version| fits(version, *index))
        };
        let mut fitting = (self.durable..self.versions.len()).filter(fits);
        let first = fitting.next()?;
        Some((first, fitting.next_back().unwrap_or(first)))
    }
}

/// What an acknowledgement will promise.
#[derive(Clone, Debug, Default)]
pub(crate) struct Promise {
    /// (grain, index of the version that is then durable)
    versions: Vec<(u64, usize)>,
    /// (grain, index of the reservation that is then durable)
    reserved: Vec<(u64, usize)>,
    /// It is about all that was put: nothing moved may be older.
    synced: bool,
    /// Grains that it is about, too, in a version that is not known: a batch that was under way may be in it or not.
    vague: Vec<u64>,
    /// What went along with a batch.
    along: Option<Box<Self>>,
}

impl Promise {
    /// What another one says, too.
    pub(crate) fn add(&mut self, other: Self) {
        self.versions.extend(other.versions);
        self.reserved.extend(other.reserved);
    }

    /// Whether it says anything about a grain.
    pub(crate) fn covers(&self, lba: u64) -> bool {
        let mut all = self.versions.iter().chain(&self.reserved);
        all.any(|(l, _)| *l == lba)
            || self.vague.contains(&lba)
            || self.along.as_ref().is_some_and(|p| p.covers(lba))
    }
}

#[derive(Clone, Debug)]
struct Batch {
    port: u16,
    members: Vec<(u64, usize)>,
    /// What is there if it is.
    along: Vec<(u64, usize)>,
}

/// A way in which a recovered volume is wrong.
#[derive(Clone, Debug)]
pub(crate) struct Violation(pub String);

/// Histories of all grains that a workload touches.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    grains: BTreeMap<u64, History>,
    batches: Vec<Batch>,
    /// Grains of which something is durable that is not known.
    vague: BTreeSet<u64>,
}

impl Oracle {
    /// A volume with the given content, all of it durable. The keys are the grains that will ever be touched.
    pub(crate) fn new(content: &BTreeMap<u64, Content>) -> Self {
        let history = |content: &Content| History {
            versions: vec![content.clone()],
            instead: BTreeMap::new(),
            durable: 0,
            reserved: Vec::new(),
        };
        let grains = content
            .iter()
            .map(|(lba, content)| (*lba, history(content)));
        Self {
            grains: grains.collect(),
            batches: Vec::new(),
            vague: BTreeSet::new(),
        }
    }

    pub(crate) fn lbas(&self) -> Vec<u64> {
        self.grains.keys().copied().collect()
    }

    /// What a reader sees now.
    pub(crate) fn current(&self, lba: u64) -> &Content {
        self.grains[&lba].versions.last().expect("never empty")
    }

    /// Grains of which it is known that nobody has been told that what a reader sees is durable, under whatever name, and the
    /// version that he sees.
    pub(crate) fn unvouched(&self) -> BTreeMap<u64, usize> {
        let vouched = |content| {
            let mut all = self.grains.values();
            all.any(|h| h.versions[..=h.durable].contains(content))
        };
        let unvouched = self.grains.iter();
        let unvouched =
            unvouched.filter(|(lba, _)| !self.vague.contains(lba) && !vouched(self.current(**lba)));
        unvouched.map(|(lba, h)| (*lba, h.current())).collect()
    }

    pub(crate) fn mapped(&self) -> u64 {
        let mapped = |lba: &&u64| self.current(**lba).is_mapped();
        self.grains.keys().filter(mapped).count() as u64
    }

    /// Index of the version that a reader sees now.
    pub(crate) fn version(&self, lba: u64) -> usize {
        self.grains[&lba].current()
    }

    /// Whether a reader that began when `since` was current may have seen `bytes`.
    pub(crate) fn seen_since(&self, lba: u64, since: usize, bytes: &[u8]) -> bool {
        let versions = &self.grains[&lba].versions[since..];
        versions.iter().any(|version| version.bytes() == bytes)
    }

    fn push(&mut self, lba: u64, content: Content) -> (u64, usize) {
        let history = self.grains.get_mut(&lba).expect("a known grain");
        history.versions.push(content);
        (lba, history.current())
    }

    /// Bytes are put into a grain.
    pub(crate) fn write(&mut self, lba: u64, offset: usize, bytes: &[u8]) -> Promise {
        Promise {
            versions: vec![self.patch(lba, offset, bytes)],
            ..Promise::default()
        }
    }

    fn patch(&mut self, lba: u64, offset: usize, bytes: &[u8]) -> (u64, usize) {
        let mut data = self.current(lba).bytes();
        data[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.push(lba, Content::Data(data.into()))
    }

    /// A range is forgotten.
    pub(crate) fn trim(&mut self, range: LbaRange) -> Promise {
        let versions = self
            .within(range)
            .into_iter()
            .map(|lba| self.push(lba, Content::Unmapped));
        Promise {
            versions: versions.collect(),
            ..Promise::default()
        }
    }

    /// A range changes its name. All of it must be known grains.
    pub(crate) fn remap(&mut self, port: u16, remap: Remap) -> Promise {
        let mut members = Vec::new();
        let sources = self.within(remap.source());
        let moved: Vec<(u64, Content, Vec<Content>)> = sources
            .iter()
            .map(|lba| {
                let to = remap.to.0 + (lba - remap.from.0);
                (to, self.current(*lba).clone(), self.grains[lba].possible())
            })
            .collect();
        for lba in sources {
            members.push(self.push(lba, Content::Unmapped));
        }
        for lba in self.within(remap.target()) {
            let found = moved.iter().find(|(to, ..)| *to == lba);
            let (content, possible) = match found {
                Some((_, content, possible)) => (content.clone(), possible.clone()),
                None => (Content::Unmapped, Vec::new()),
            };
            let (lba, index) = self.push(lba, content);
            let history = self.grains.get_mut(&lba).expect("a known grain");
            history.instead.insert(index, possible);
            members.push((lba, index));
        }
        self.batches.push(Batch {
            port,
            members: members.clone(),
            along: Vec::new(),
        });
        Promise {
            versions: members,
            ..Promise::default()
        }
    }

    /// A range gets other names. All of it must be known grains. What is cloned is durable with the clone under the new
    /// names; the old ones are as durable as they were.
    pub(crate) fn clone_range(&mut self, port: u16, clone: Remap) -> Promise {
        let mut members = Vec::new();
        for lba in self.within(clone.source()) {
            let to = clone.to.0 + (lba - clone.from.0);
            members.push(self.push(to, self.current(lba).clone()));
        }
        self.batches.push(Batch {
            port,
            members: members.clone(),
            along: Vec::new(),
        });
        Promise {
            versions: members,
            ..Promise::default()
        }
    }

    /// A batch takes effect.
    pub(crate) fn commit(&mut self, port: u16, batch: &AtomicBatch) -> Promise {
        let mut versions: BTreeMap<u64, usize> = BTreeMap::new();
        let mut reserved = Vec::new();
        for (lba, offset, bytes) in &batch.patches {
            let (lba, index) = self.patch(lba.0, usize::from(*offset), bytes);
            if let Entry::Vacant(entry) = versions.entry(lba) {
                entry.insert(index);
            } else {
                // What lies between two patches of one batch is nobody's to see.
                let history = self.grains.get_mut(&lba).expect("a known grain");
                history.versions.remove(index - 1);
            }
        }
        for range in &batch.trims {
            versions.extend(self.trim(*range).versions);
        }
        for range in &batch.zeros {
            for lba in self.within(*range) {
                if self.current(lba).is_mapped() {
                    let history = self.grains.get_mut(&lba).expect("a known grain");
                    history.reserved.push((history.current(), false));
                    reserved.push((lba, history.reserved.len() - 1));
                } else {
                    versions.extend([self.push(lba, Content::Zero)]);
                }
            }
        }
        self.batches.push(Batch {
            port,
            members: versions.iter().map(|(lba, index)| (*lba, *index)).collect(),
            along: Vec::new(),
        });
        Promise {
            versions: versions.into_iter().collect(),
            reserved,
            ..Promise::default()
        }
    }

    /// A sync of a range begins; its acknowledgement promises everything so far, except what `pending` says: grains
    /// of commits that may not have taken effect.
    pub(crate) fn sync(&self, range: LbaRange, pending: impl Fn(u64) -> bool) -> Promise {
        let mut promise = Promise {
            synced: true,
            ..Promise::default()
        };
        for lba in self.within(range) {
            if pending(lba) {
                promise.vague.push(lba);
                continue;
            }
            let history = &self.grains[&lba];
            promise.versions.push((lba, history.current()));
            promise
                .reserved
                .extend((0..history.reserved.len()).map(|n| (lba, n)));
        }
        promise
    }

    /// The last batch of a port goes to the media with what `promise` of a sync says.
    pub(crate) fn goes_along(&mut self, port: u16, promise: &mut Promise, along: Promise) {
        let mut batches = self.batches.iter_mut().rev();
        let batch = batches.find(|batch| batch.port == port);
        batch.expect("a batch").along = along.versions.clone();
        promise.along = Some(Box::new(along));
    }

    /// Nothing goes along after all.
    pub(crate) fn goes_alone(&mut self, port: u16, promise: &mut Promise) {
        self.goes_along(port, promise, Promise::default());
    }

    /// A commit was refused: it never took effect. Its grains have not changed since.
    pub(crate) fn revert(&mut self, promise: &Promise) {
        for (lba, index) in &promise.versions {
            let history = self.grains.get_mut(lba).expect("a known grain");
            assert_eq!(
                *index,
                history.current(),
                "LBA {lba} changed under a pending commit"
            );
            history.versions[*index] = history.versions[*index - 1].clone();
        }
        for (lba, index) in &promise.reserved {
            let history = self.grains.get_mut(lba).expect("a known grain");
            assert_eq!(
                *index,
                history.reserved.len() - 1,
                "LBA {lba} changed under a pending commit"
            );
            history.reserved.pop();
        }
        self.batches
            .retain(|batch| batch.members != promise.versions);
    }

    /// Whether `found` may be seen by a reader of a volume that has failed: any version that is not older than the
    /// last durable one.
    pub(crate) fn not_older_than_durable(&self, lba: u64, bytes: &[u8]) -> bool {
        self.seen_since(lba, self.grains[&lba].durable, bytes)
    }

    /// When these bytes were written there, in words.
    pub(crate) fn recall(&self, lba: u64, bytes: &[u8]) -> String {
        let history = &self.grains[&lba];
        let same = |n: &usize| history.versions[*n].bytes() == bytes;
        let when: Vec<usize> = (0..history.versions.len()).filter(same).collect();
        let (durable, current) = (history.durable, history.current());
        format!("version {when:?} of {current}, durable {durable}")
    }

    /// Whether these bytes were ever written there.
    pub(crate) fn ever_written(&self, lba: u64, bytes: &[u8]) -> bool {
        self.seen_since(lba, 0, bytes)
    }

    /// The promise is given: from now on it must hold after any crash.
    pub(crate) fn acknowledge(&mut self, promise: &Promise) {
        if let Some(along) = &promise.along {
            self.acknowledge(along);
        }
        for (lba, index) in &promise.versions {
            let history = self.grains.get_mut(lba).expect("a known grain");
            history.durable = history.durable.max(*index);
            if promise.synced {
                history.instead.remove(index);
            }
        }
        for (lba, index) in &promise.reserved {
            self.grains.get_mut(lba).expect("a known grain").reserved[*index].1 = true;
        }
        self.vague.extend(&promise.vague);
    }

    /// Known grains in a range.
    pub(crate) fn within(&self, range: LbaRange) -> Vec<u64> {
        self.grains
            .range(range.start.0..range.end().0)
            .map(|(lba, _)| *lba)
            .collect()
    }

    /// Whether what can be read of a volume that has lost a device keeps its promises: each grain for itself.
    pub(crate) fn judge_rest(&self, found: &BTreeMap<u64, Content>) -> Result<(), Violation> {
        for (lba, content) in found {
            let history = &self.grains.get(lba);
            let Some(history) = history else {
                return Err(Violation(format!("I4: LBA {lba} was never written")));
            };
            if history.candidates(content).is_none() {
                return Err(self.explain(*lba, content));
            }
        }
        Ok(())
    }

    /// Whether a recovered volume keeps every promise (I1, I2, I3, I4, batches, prefix of batches).
    pub(crate) fn judge(&self, found: &BTreeMap<u64, Content>) -> Result<(), Violation> {
        let mut spans = HashMap::new();
        for (lba, history) in &self.grains {
            let content = found.get(lba).unwrap_or(&Content::Unmapped);
            let span = history
                .candidates(content)
                .ok_or_else(|| self.explain(*lba, content))?;
            spans.insert(*lba, span);
        }
        if let Some(lba) = found.keys().find(|lba| !self.grains.contains_key(lba)) {
            return Err(Violation(format!("I4: LBA {lba} was never written")));
        }
        self.judge_batches(&spans)
    }

    fn judge_batches(&self, spans: &HashMap<u64, (usize, usize)>) -> Result<(), Violation> {
        let mut missing: HashMap<u16, usize> = HashMap::new();
        for (n, batch) in self.batches.iter().enumerate() {
            let has = |(lba, index): &&(u64, usize)| spans[lba].0 >= *index;
            let lacks = |(lba, index): &&(u64, usize)| spans[lba].1 < *index;
            let there = batch.members.iter().find(has);
            let not_there = batch.members.iter().find(lacks);
            let left_behind = batch.along.iter().find(lacks);
            if let (Some(a), Some(b)) = (there, left_behind) {
                return Err(Violation(format!(
                    "batch {n} of port {} is there at LBA {}, and what went along is not at LBA {} (version {}, found {:?})",
                    batch.port, a.0, b.0, b.1, spans[&b.0]
                )));
            }
            if let (Some(a), Some(b)) = (there, not_there) {
                return Err(Violation(format!(
                    "batch {n} of port {} is there at LBA {} (version {}, found {:?}) and not at LBA {} \
                     (version {}, found {:?})",
                    batch.port, a.0, a.1, spans[&a.0], b.0, b.1, spans[&b.0]
                )));
            }
            if not_there.is_some() {
                missing.entry(batch.port).or_insert(n);
            }
            if let (Some(_), Some(gap)) = (there, missing.get(&batch.port)) {
                return Err(Violation(format!(
                    "prefix: batch {n} of port {} is there, the earlier batch {gap} is not",
                    batch.port
                )));
            }
        }
        Ok(())
    }

    fn explain(&self, lba: u64, found: &Content) -> Violation {
        let history = &self.grains[&lba];
        let old = history.versions[..history.durable]
            .iter()
            .rposition(|version| version == found);
        let elsewhere = self
            .grains
            .iter()
            .find(|(_, other)| matches!(found, Content::Data(_)) && other.versions.contains(found));
        let what = match (old, elsewhere) {
            (Some(index), _) => {
                format!("I1/I3: found version {index}, which is older than durable")
            }
            (None, Some((other, _))) if *other != lba => format!("I4: found bytes of LBA {other}"),
            _ => "I2: found what was never written".to_string(),
        };
        Violation(format!(
            "LBA {lba}: {what} (durable {}, current {}): found {found:?}, durable is {:?}",
            history.durable,
            history.current(),
            history.versions[history.durable],
        ))
    }
}
