//! M1: random operations on a tiny volume against a `BTreeMap`, counts audited as it goes (I2, I3, I5).

use crate::common::{Rng, at, grain, reopen, volume};
use ftl::{
    AtomicBatch, GRAIN_BYTES, GrainState, Lba, LbaRange, MemDevice, Port, Time, Volume, VolumeError,
};
use std::collections::BTreeMap;

/// What a grain should hold; a reserved grain holds zeros.
type Model = BTreeMap<Lba, Vec<u8>>;

struct Run {
    rng: Rng,
    model: Model,
    reserved: BTreeMap<Lba, ()>,
    version: u64,
    capacity: u64,
    span: u64,
    /// Time of the engine, far ahead of the clock.
    now: u64,
}

impl Run {
    /// Mostly few neighbouring grains, sometimes far away ones.
    fn lba(&mut self) -> Lba {
        match self.rng.below(10) {
            0 => Lba((1 << 24) + self.rng.below(8)),
            1..4 => Lba(self.rng.below(8)),
            _ => Lba(self.rng.below(self.span)),
        }
    }

    fn mapped(&self) -> u64 {
        self.model.len() as u64
    }

    fn step(&mut self, volume: &Volume<MemDevice>) {
        match self.rng.below(100) {
            0..35 => self.write_whole(volume),
            35..50 => self.write_part(volume),
            50..62 => {
                let lba = self.lba();
                self.compare(volume, lba);
            }
            62..72 => self.trim(volume),
            72..80 => self.commit(volume),
            80..83 => self.zero(volume),
            83..87 => self.remap(volume),
            87..90 => self.clone_range(volume),
            90..92 => {
                let lba = self.lba();
                volume.sync(LbaRange::new(lba, 4)).expect("sync");
            }
            92..94 => volume.sync(LbaRange::ALL).expect("sync"),
            94..97 => {
                // Dirty pages come of age.
                self.now += 2_000_000_000;
                volume.ftl().handle_timeout(Port(0), Time(self.now));
            }
            _ => volume.tick(),
        }
    }

    fn write_whole(&mut self, volume: &Volume<MemDevice>) {
        let lba = self.lba();
        self.version += 1;
        let data = grain(lba, self.version);
        let full = !self.model.contains_key(&lba) && self.mapped() == self.capacity;
        match volume.write(at(lba), &data) {
            Ok(()) => {
                assert!(!full, "{lba}: beyond the capacity");
                self.put(lba, data);
            }
            Err(VolumeError::NoSpace) => assert!(full, "{lba}: no space too early"),
            Err(error) => panic!("write {lba}: {error}"),
        }
    }

    fn write_part(&mut self, volume: &Volume<MemDevice>) {
        let lba = self.lba();
        let full = !self.model.contains_key(&lba) && self.mapped() == self.capacity;
        let offset = self.rng.below(GRAIN_BYTES as u64 - 1) as usize;
        let len = 1 + self.rng.below((GRAIN_BYTES - offset - 1) as u64 + 1) as usize;
        self.version += 1;
        let data = grain(lba, self.version)[..len.min(GRAIN_BYTES - offset)].to_vec();
        match volume.write(at(lba) + offset as u64, &data) {
            Ok(()) => {
                assert!(!full, "{lba}: beyond the capacity");
                let mut whole = self
                    .model
                    .get(&lba)
                    .cloned()
                    .unwrap_or(vec![0; GRAIN_BYTES]);
                whole[offset..offset + data.len()].copy_from_slice(&data);
                self.put(lba, whole);
            }
            Err(VolumeError::NoSpace) => assert!(full, "{lba}: no space too early"),
            Err(error) => panic!("write {lba}: {error}"),
        }
    }

    fn put(&mut self, lba: Lba, data: Vec<u8>) {
        self.model.insert(lba, data);
        self.reserved.remove(&lba);
    }

    fn forget(&mut self, range: LbaRange) {
        self.model.retain(|&lba, _| !range.contains(lba));
        self.reserved.retain(|&lba, _| !range.contains(lba));
    }

    fn range(&mut self) -> LbaRange {
        let count = match self.rng.below(8) {
            0 => self.rng.below(self.span / 2),
            1 => 0,
            _ => 1 + self.rng.below(5),
        };
        LbaRange::new(self.lba(), count)
    }

    fn trim(&mut self, volume: &Volume<MemDevice>) {
        let range = self.range();
        volume.trim(range).expect("trim always works");
        self.forget(range);
    }

    fn zero(&mut self, volume: &Volume<MemDevice>) {
        let range = self.range();
        let lbas = (range.start.0..range.end().0).map(Lba);
        let new: Vec<Lba> = lbas.filter(|l| !self.model.contains_key(l)).collect();
        let fits = self.mapped() + new.len() as u64 <= self.capacity;
        match volume.zero(range) {
            Ok(()) => {
                assert!(fits, "{range:?}: beyond the capacity");
                for lba in new {
                    self.model.insert(lba, vec![0; GRAIN_BYTES]);
                    self.reserved.insert(lba, ());
                }
            }
            Err(VolumeError::NoSpace) => assert!(!fits, "{range:?}: no space too early"),
            Err(error) => panic!("zero {range:?}: {error}"),
        }
    }

    /// A range changes its name; some of it may be dirty, reserved or unmapped.
    fn remap(&mut self, volume: &Volume<MemDevice>) {
        let (range, to) = (self.range(), self.lba());
        let result = volume.remap(range.start, to, range.count);
        let target = LbaRange::new(to, range.count);
        if range.count > 0 && range.start.0 < target.end().0 && to.0 < range.end().0 {
            assert_eq!(result, Err(VolumeError::Overlap));
            return;
        }
        result.expect("a remap needs no space");
        self.rename(range, to, true);
    }

    /// A range gets other names, each of which counts.
    fn clone_range(&mut self, volume: &Volume<MemDevice>) {
        let (range, to) = (self.range(), self.lba());
        let result = volume.clone_range(range.start, to, range.count);
        let target = LbaRange::new(to, range.count);
        if range.count > 0 && range.start.0 < target.end().0 && to.0 < range.end().0 {
            assert_eq!(result, Err(VolumeError::Overlap));
            return;
        }
        let in_range = |range: LbaRange| self.model.keys().filter(|&&l| range.contains(l)).count();
        let after = self.mapped() + in_range(range) as u64 - in_range(target) as u64;
        let fits = after <= self.capacity;
        match result {
            Ok(()) => {
                assert!(fits, "{range:?}: beyond the capacity");
                self.rename(range, to, false);
            }
            Err(VolumeError::NoSpace) => assert!(!fits, "{range:?}: no space too early"),
            Err(error) => panic!("clone {range:?}: {error}"),
        }
    }

    fn rename(&mut self, range: LbaRange, to: Lba, empties: bool) {
        let lbas: Vec<Lba> = self.model.keys().copied().collect();
        let moved = lbas.into_iter().filter(|&lba| range.contains(lba));
        let moved: Vec<_> = moved
            .map(|lba| {
                (
                    lba,
                    self.model[&lba].clone(),
                    self.reserved.contains_key(&lba),
                )
            })
            .collect();
        self.forget(LbaRange::new(to, range.count));
        if empties {
            self.forget(range);
        }
        for (lba, data, reserved) in moved {
            let lba = Lba(to.0 + lba.0 - range.start.0);
            self.model.insert(lba, data);
            if reserved {
                self.reserved.insert(lba, ());
            }
        }
    }

    /// Patches, a trim and a zero in one batch: all of it or nothing.
    fn commit(&mut self, volume: &Volume<MemDevice>) {
        let mut batch = AtomicBatch::new();
        let mut after = self.model.clone();
        let mut reserved = self.reserved.clone();
        let mut patched = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            let lba = self.lba();
            let offset = self.rng.below(4000) as usize;
            self.version += 1;
            let data = if self.rng.below(4) == 0 {
                (0, grain(lba, self.version))
            } else {
                (offset, grain(lba, self.version)[..64].to_vec())
            };
            let whole = after.entry(lba).or_insert(vec![0; GRAIN_BYTES]);
            whole[data.0..data.0 + data.1.len()].copy_from_slice(&data.1);
            reserved.remove(&lba);
            batch.patch(lba, data.0 as u16, data.1);
            patched.push(lba);
        }
        if self.rng.below(2) == 0 {
            let range = self.range();
            batch.trim(range);
            after.retain(|lba, _| !range.contains(*lba) || patched.contains(lba));
            reserved.retain(|lba, _| !range.contains(*lba) || patched.contains(lba));
        }
        if self.rng.below(3) == 0 {
            let range = self.range();
            batch.zero(range);
            for lba in (range.start.0..range.end().0).map(Lba) {
                after.entry(lba).or_insert_with(|| {
                    reserved.insert(lba, ());
                    vec![0; GRAIN_BYTES]
                });
            }
        }
        let fits = after.len() as u64 <= self.capacity || after.len() <= self.model.len();
        match volume.commit(batch) {
            Ok(()) => {
                assert!(fits, "beyond the capacity");
                (self.model, self.reserved) = (after, reserved);
            }
            Err(VolumeError::NoSpace) => assert!(!fits, "no space too early"),
            Err(error) => panic!("commit: {error}"),
        }
    }

    fn compare(&self, volume: &Volume<MemDevice>, lba: Lba) {
        let mut got = vec![0xaa; GRAIN_BYTES];
        volume.read(at(lba), &mut got).expect("read");
        match self.model.get(&lba) {
            Some(want) => assert!(
                &got == want,
                "{lba}: wrong content: {} instead of {} of {}",
                self.name(lba, &got),
                self.name(lba, want),
                self.version
            ),
            None => assert!(got.iter().all(|&b| b == 0), "{lba}: not blank"),
        }
        let state = volume.ftl().state(lba);
        match (
            self.model.contains_key(&lba),
            self.reserved.contains_key(&lba),
        ) {
            (false, _) => assert_eq!(state, GrainState::Unmapped, "{lba}"),
            (true, true) => assert_eq!(state, GrainState::Zero, "{lba}"),
            (true, false) => assert_eq!(state, GrainState::Data, "{lba}"),
        }
    }

    /// Which version of a grain this is, for the message.
    fn name(&self, lba: Lba, bytes: &[u8]) -> String {
        if bytes.iter().all(|&b| b == 0) {
            return "zeros".into();
        }
        let is = |v: &u64| grain(lba, *v)[4000..] == bytes[4000..];
        let version = (0..=self.version).find(is);
        version.map_or("a mixture".into(), |v| format!("version {v}"))
    }

    fn compare_all(&self, volume: &Volume<MemDevice>) {
        for lba in (0..self.span).chain((1 << 24)..(1 << 24) + 8) {
            self.compare(volume, Lba(lba));
        }
        assert_eq!(volume.space().mapped, self.mapped());
        let first = self.model.keys().next().copied();
        assert_eq!(volume.next_mapped(LbaRange::ALL), first);
    }
}

fn run(seed: u64, steps: u64, frames: usize) {
    // 12 segments of 16 grains; the span of LBAs is larger than the capacity.
    let mut live = volume(16 + 12 * 16, 16, frames);
    let capacity = live.space().capacity;
    let mut run = Run {
        rng: Rng::new(seed),
        model: Model::new(),
        reserved: BTreeMap::new(),
        version: 0,
        capacity,
        span: capacity + 20,
        now: 1 << 50,
    };
    for step in 0..steps {
        run.step(&live);
        live.ftl().self_check();
        assert_eq!(live.space().mapped, run.mapped(), "seed {seed} step {step}");
        if run.rng.below(200) == 0 {
            if run.rng.below(2) == 0 {
                live.shutdown().expect("shutdown");
            } else {
                live.sync(LbaRange::ALL).expect("sync");
            }
            live = reopen(live.into_device(), frames);
            live.ftl().self_check();
            run.compare_all(&live);
        }
    }
    run.compare_all(&live);
}

/// The engine does what a map of vectors does, on a volume that is mostly full, with a pool smaller than the data,
/// over many sessions.
#[test]
fn random_operations() {
    for seed in 1..=40 {
        println!("seed {seed}");
        run(seed, 1500, 16 + (seed as usize % 3) * 24);
    }
}
