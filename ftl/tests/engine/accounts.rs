//! Accounts: every way in which grains get mapped and unmapped, against a naive count (I5). The limit of an account is
//! exact: what fits is done, what would exceed it is refused and changes nothing, and what adds nothing is never refused.

use crate::common::{Rng, at, grain, volume};
use ftl::planted::Bug;
use ftl::{
    AccountId, AccountUse, AtomicBatch, FormatOptions, Ftl, GRAIN_BYTES, Lba, LbaRange, MemDevice,
    OpenOptions, Port, Volume, VolumeError,
};
use std::collections::{BTreeMap, BTreeSet};

/// Grains that are used, all in all.
const SPAN: u64 = 96;
const ACCOUNTS: [AccountId; 2] = [AccountId(1), AccountId(7)];

/// What the volume should count.
struct Model {
    mapped: BTreeSet<u64>,
    owner: BTreeMap<u64, AccountId>,
    limits: BTreeMap<AccountId, u64>,
}

impl Model {
    fn used(&self, account: AccountId, mapped: &BTreeSet<u64>) -> u64 {
        let own = mapped
            .iter()
            .filter(|lba| self.owner.get(lba) == Some(&account));
        own.count() as u64
    }

    /// Whether no account grows beyond its limit on the way to `after`.
    fn admits(&self, after: &BTreeSet<u64>) -> bool {
        ACCOUNTS.iter().all(|&account| {
            let (before, after) = (self.used(account, &self.mapped), self.used(account, after));
            let limit = self.limits.get(&account).copied().unwrap_or(u64::MAX);
            after <= before || after <= limit
        })
    }
}

struct Run {
    rng: Rng,
    model: Model,
    version: u64,
    refused: [u64; 4],
    /// Openings after which the map was not in memory.
    cold: u64,
}

impl Run {
    fn range(&mut self, most: u64) -> LbaRange {
        let start = self.rng.below(SPAN);
        LbaRange::new(Lba(start), 1 + self.rng.below(most.min(SPAN - start)))
    }

    /// Two ranges that have nothing in common.
    fn apart(&mut self) -> (LbaRange, LbaRange) {
        let half = SPAN / 2;
        let count = 1 + self.rng.below(10);
        let mut start = |from: u64| Lba(from + self.rng.below(half - count + 1));
        let (low, high) = (start(0), start(half));
        let (low, high) = (LbaRange::new(low, count), LbaRange::new(high, count));
        match self.rng.below(2) {
            0 => (low, high),
            _ => (high, low),
        }
    }

    /// Compares the outcome with what the model says of it.
    fn judge(&mut self, kind: usize, after: BTreeSet<u64>, result: Result<(), VolumeError>) {
        let admitted = self.model.admits(&after);
        match result {
            Ok(()) => {
                assert!(admitted, "beyond a limit by {kind}");
                self.model.mapped = after;
            }
            Err(VolumeError::Quota) => {
                assert!(!admitted, "refused too early by {kind}");
                self.refused[kind] += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn step(&mut self, volume: &Volume<MemDevice>) {
        match self.rng.below(12) {
            0..=2 => self.write(volume),
            3..=4 => self.batch(volume),
            5..=6 => self.rename(volume, true),
            7 => self.rename(volume, false),
            8 => {
                let range = self.range(20);
                let gone = range.start.0..range.end().0;
                volume.trim(range).expect("a trim is never refused");
                self.model.mapped.retain(|lba| !gone.contains(lba));
            }
            9 => self.assign(volume),
            10 => {
                let account = ACCOUNTS[self.rng.below(2) as usize];
                let limit = (self.rng.below(4) > 0).then(|| self.rng.below(40));
                volume.ftl().limit_account(account, limit);
                match limit {
                    Some(limit) => self.model.limits.insert(account, limit),
                    None => self.model.limits.remove(&account),
                };
            }
            _ => volume.sync(LbaRange::ALL).expect("sync"),
        }
    }

    fn write(&mut self, volume: &Volume<MemDevice>) {
        let lba = self.rng.below(SPAN);
        self.version += 1;
        let data = grain(Lba(lba), self.version);
        let mut after = self.model.mapped.clone();
        after.insert(lba);
        let part = 1 + self.rng.below(GRAIN_BYTES as u64) as usize;
        let result = volume.write(at(Lba(lba)), &data[..part]);
        self.judge(0, after, result);
    }

    /// Patches, a trim and a reservation at once, which may overlap each other.
    fn batch(&mut self, volume: &Volume<MemDevice>) {
        let mut batch = AtomicBatch::new();
        let mut after = self.model.mapped.clone();
        let patched: Vec<u64> = (0..self.rng.below(4))
            .map(|_| self.rng.below(SPAN))
            .collect();
        let (trim, zero) = (self.range(12), self.range(12));
        let is_patched = |lba: &u64| patched.contains(lba);
        if self.rng.below(2) == 0 {
            batch.trim(trim);
            after.retain(|lba| is_patched(lba) || !trim.contains(Lba(*lba)));
        }
        if self.rng.below(2) == 0 {
            batch.zero(zero);
            after.extend(zero.start.0..zero.end().0);
        }
        for &lba in &patched {
            batch.patch(Lba(lba), 5, vec![1, 2, 3]);
            after.insert(lba);
        }
        let result = volume.commit(batch);
        self.judge(1, after, result);
    }

    fn rename(&mut self, volume: &Volume<MemDevice>, keeps: bool) {
        let (from, to) = self.apart();
        let mut after = self.model.mapped.clone();
        after.retain(|&lba| !to.contains(Lba(lba)));
        let moved = self.model.mapped.iter().filter(|&&l| from.contains(Lba(l)));
        after.extend(moved.map(|lba| lba - from.start.0 + to.start.0));
        let mut batch = AtomicBatch::new();
        if keeps {
            batch.clone_range(from.start, to.start, from.count);
        } else {
            batch.remap(from.start, to.start, from.count);
            after.retain(|&lba| !from.contains(Lba(lba)));
        }
        let result = volume.commit(batch);
        self.judge(2 + usize::from(!keeps), after, result);
    }

    fn assign(&mut self, volume: &Volume<MemDevice>) {
        let range = self.range(30);
        let lbas = range.start.0..range.end().0;
        if self.rng.below(3) == 0 {
            let account = ACCOUNTS[self.rng.below(2) as usize];
            let owner = self.model.owner.clone();
            let before = self.model.used(account, &self.model.mapped);
            self.model.owner.extend(lbas.map(|lba| (lba, account)));
            let after = self.model.used(account, &self.model.mapped);
            let limit = self.model.limits.get(&account).copied().unwrap_or(u64::MAX);
            let admitted = after == before || after <= limit;
            assert_eq!(volume.ftl().assign_if_room(&[range], account), admitted);
            if !admitted {
                self.model.owner = owner;
            }
            return;
        }
        let account = [None, Some(ACCOUNTS[0]), Some(ACCOUNTS[1])][self.rng.below(3) as usize];
        volume.ftl().assign(&[range], account);
        for lba in lbas {
            match account {
                Some(account) => self.model.owner.insert(lba, account),
                None => self.model.owner.remove(&lba),
            };
        }
    }

    fn compare(&self, volume: &Volume<MemDevice>) {
        for account in ACCOUNTS {
            let want = AccountUse {
                used: self.model.used(account, &self.model.mapped),
                limit: self.model.limits.get(&account).copied(),
            };
            assert_eq!(volume.ftl().account(account), want, "{account:?}");
        }
        volume.ftl().self_check();
    }
}

/// Runs on a volume, and answers how often each kind of change was refused.
fn run(seed: u64, steps: u64, planted: Option<Bug>) -> [u64; 4] {
    let mut device = MemDevice::new(2048 * GRAIN_BYTES).expect("memory");
    let format = FormatOptions {
        segment_bytes: Some(64 * GRAIN_BYTES as u64),
        checkpoint_grains: Some(96),
        ..FormatOptions::default()
    };
    Ftl::format(&mut device, &format).expect("format");
    let open = || OpenOptions {
        pool_frames: 64,
        planted,
        // Else a map so small is read at once.
        map_pages_eager: 0,
        ..OpenOptions::default()
    };
    let mut volume = Volume::open(device, open()).expect("open").0;
    let mut run = Run {
        rng: Rng::new(seed),
        model: Model {
            mapped: BTreeSet::new(),
            owner: BTreeMap::new(),
            limits: BTreeMap::new(),
        },
        version: 0,
        refused: [0; 4],
        cold: 0,
    };
    for step in 0..steps {
        run.step(&volume);
        run.compare(&volume);
        if step % 100 == 99 {
            // After a dump the map is cold; the layer above says again what belongs to whom.
            match step % 200 {
                99 => volume.shutdown().expect("shutdown"),
                _ => volume.sync(LbaRange::ALL).expect("sync"),
            }
            volume = Volume::open(volume.into_device(), open()).expect("open").0;
            run.cold += u64::from(!volume.ftl().is_map_loaded());
            for (&lba, &account) in &run.model.owner {
                volume
                    .ftl()
                    .assign(&[LbaRange::new(Lba(lba), 1)], Some(account));
            }
            for (&account, &limit) in &run.model.limits {
                volume.ftl().limit_account(account, Some(limit));
            }
            // At the limit or not: the first write must know.
            run.write(&volume);
            volume.load(LbaRange::ALL).expect("load");
            run.compare(&volume);
        }
    }
    assert!(planted.is_some() || run.cold > 20, "{} cold maps", run.cold);
    run.refused
}

/// I5: counts and limits are exact, by each way of mapping something, also after the volume was opened again.
#[test]
fn as_a_naive_count() {
    let refused = run(1, 12_000, None);
    println!("refused: writes, batches, clones, remaps {refused:?}");
    assert!(refused.iter().all(|&n| n > 20), "{refused:?}");
}

/// M12: clones that are charged to nobody.
#[test]
fn uncharged_clones_are_noticed() {
    let found = std::panic::catch_unwind(|| run(1, 2000, Some(Bug::CloneUncharged)));
    assert!(found.is_err(), "not noticed");
}

/// Nobody pays for what nobody uses: a volume without accounts counts nothing, and what has a limit elsewhere is
/// as free as before.
#[test]
fn limits_concern_their_own_ranges() {
    let volume = volume(1024, 32, 64);
    volume
        .ftl()
        .assign(&[LbaRange::new(Lba(10), 5)], Some(AccountId(3)));
    volume.ftl().limit_account(AccountId(3), Some(2));
    for lba in [9, 10, 11, 15] {
        volume.write(at(Lba(lba)), b"x").expect("room");
    }
    assert_eq!(volume.write(at(Lba(12)), b"x"), Err(VolumeError::Quota));
    volume
        .write(at(Lba(11)), b"y")
        .expect("a mapped grain is overwritten");
    volume.trim(LbaRange::new(Lba(10), 1)).expect("trim");
    volume.write(at(Lba(12)), b"x").expect("room again");
    volume.ftl().limit_account(AccountId(3), Some(0));
    volume
        .write(at(Lba(12)), b"z")
        .expect("beyond the limit, but mapped");
    volume.ftl().handle_timeout(Port(0), ftl::Time(1 << 40));
    assert_eq!(volume.ftl().account(AccountId(3)).used, 2);
}

/// After opening, most of the map is not in memory and too little is counted: whoever needs one more grain learns the
/// truth all the same, by a write as by a batch, and what is mapped can be written at once.
#[test]
fn a_cold_map_grants_nothing() {
    const MAPPED: u64 = 1500;
    let account = AccountId(4);
    let mut device = MemDevice::new(8192 * GRAIN_BYTES).expect("memory");
    Ftl::format(&mut device, &FormatOptions::default()).expect("format");
    let options = || OpenOptions {
        pool_frames: 64,
        map_pages_eager: 0,
        sweep_entries: Some(100),
        ..OpenOptions::default()
    };
    let mut volume = Volume::open(device, options()).expect("open").0;
    for lba in 0..MAPPED {
        volume.write(at(Lba(lba)), b"x").expect("room");
    }
    let far = |n: u64| Lba((1 << 30) + n);
    let batch = |lba| {
        let mut batch = AtomicBatch::new();
        batch.patch(lba, 0, vec![1]);
        batch
    };
    for (round, room) in [(0, 0), (1, 1), (2, 0)] {
        volume.shutdown().expect("shutdown");
        volume = Volume::open(volume.into_device(), options())
            .expect("open")
            .0;
        let all = LbaRange::new(Lba(0), 1 << 40);
        let used = MAPPED + u64::from(round > 1);
        volume.ftl().assign(&[all], Some(account));
        volume.ftl().limit_account(account, Some(used + room));
        assert!(!volume.ftl().is_map_loaded() && volume.ftl().account(account).used < used);
        let refused = Err(VolumeError::Quota);
        if room == 1 {
            volume.commit(batch(far(0))).expect("one fits");
            assert_eq!(volume.write(at(far(1)), b"z"), refused);
        } else if round == 0 {
            assert_eq!(volume.write(at(far(1)), b"z"), refused);
        } else {
            assert_eq!(volume.commit(batch(far(2))), refused);
        }
        volume.load(LbaRange::ALL).expect("load");
        assert_eq!(volume.ftl().account(account).used, used + room);
        volume.write(at(Lba(round)), b"y").expect("mapped");
        volume.ftl().self_check();
    }
}
