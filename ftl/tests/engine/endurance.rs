//! Random overwrites of many times the capacity: collection keeps up for ever, nothing is lost, no call waits for
//! what will not come (I16, I17). And full means full, exactly.

use crate::common::{Rng, at, grain, reopen, reopen_as, volume};
use ftl::{AtomicBatch, GRAIN_BYTES, GcPolicy, Lba, LbaRange, MemDevice, Volume, VolumeError};
use std::collections::BTreeMap;

fn check(volume: &Volume<MemDevice>, versions: &BTreeMap<Lba, u64>) {
    let mut got = vec![0; GRAIN_BYTES];
    for (&lba, &version) in versions {
        volume.read(at(lba), &mut got).expect("read");
        assert!(got == grain(lba, version), "{lba}: not version {version}");
    }
}

/// Fills `percent` of the capacity, overwrites it `rounds` times over at random, syncing now and then.
fn overwrite(segment_grains: u64, percent: u64, rounds: u64, seed: u64) {
    let mut live = volume(16 + 64 * segment_grains as usize, segment_grains, 64);
    let used = live.space().capacity * percent / 100;
    let mut rng = Rng::new(seed);
    let mut versions = BTreeMap::new();
    for lba in (0..used).map(Lba) {
        live.write(at(lba), &grain(lba, 0)).expect("fill");
        versions.insert(lba, 0);
    }
    for version in 1..=used * rounds {
        let lba = Lba(rng.below(used));
        live.write(at(lba), &grain(lba, version))
            .expect("overwrite");
        versions.insert(lba, version);
        if rng.below(50) == 0 {
            live.sync(LbaRange::new(lba, 1)).expect("sync");
        }
    }
    live.sync(LbaRange::ALL).expect("sync");
    live.ftl().self_check();
    check(&live, &versions);
    let stats = live.ftl().stats();
    println!(
        "{percent} % of {segment_grains}-grain segments: write amplification {:.2}, {} victims",
        stats.write_amplification(),
        stats.victims
    );
    assert!(stats.victims > 0, "collection was needed");
    live = reopen(live.into_device(), 64);
    live.ftl().self_check();
    check(&live, &versions);
}

/// 85 % full, random overwrites.
#[test]
fn overwrites_for_ever() {
    overwrite(16, 85, 20, 1);
    overwrite(128, 85, 8, 2);
}

/// The same with nothing left at all: the reserves alone keep it going.
#[test]
fn overwrites_when_full() {
    overwrite(16, 100, 8, 3);
    overwrite(64, 100, 5, 4);
}

/// Every policy, with segments enough for all of its streams: skewed overwrites that move, syncs, trims, 85 % full,
/// and once with nothing left.
#[test]
fn every_policy_goes_on_for_ever() {
    for policy in GcPolicy::ALL {
        for percent in [85, 100] {
            let live = volume(16 + 160 * 16, 16, 256);
            let mut live = reopen_as(live.into_device(), 256, policy);
            let used = live.space().capacity * percent / 100;
            let mut rng = Rng::new(percent);
            let mut versions = BTreeMap::new();
            for version in 0..used * 9 {
                let hot = used / 8;
                let lba = match (version < used, rng.below(10)) {
                    (true, _) => version,
                    (_, 0..8) => (version / used * hot + rng.below(hot)) % used,
                    _ => rng.below(used),
                };
                let lba = Lba(lba);
                if version > used && rng.below(40) == 0 {
                    live.trim(LbaRange::new(lba, 1)).expect("trim");
                    versions.remove(&lba);
                } else {
                    live.write(at(lba), &grain(lba, version)).expect("write");
                    versions.insert(lba, version);
                }
                if rng.below(60) == 0 {
                    live.sync(LbaRange::new(lba, 1)).expect("sync");
                }
            }
            live.sync(LbaRange::ALL).expect("sync");
            live.ftl().self_check();
            check(&live, &versions);
            let stats = live.ftl().stats();
            println!(
                "{policy} at {percent} %: {:.2}",
                stats.write_amplification()
            );
            assert!(stats.victims > 0, "collection was needed");
            live = reopen_as(live.into_device(), 256, policy);
            live.ftl().self_check();
            check(&live, &versions);
        }
    }
}

/// A zero record that collection takes along in more pieces than a header holds leaves room for the records that
/// lie behind it in the victim.
#[test]
fn zero_records_fall_into_pieces() {
    const RESERVED: u64 = 1024;
    let mut live = volume(16 + 64 * 64, 64, 256);
    let mut batch = AtomicBatch::new();
    batch.zero(LbaRange::new(Lba(0), RESERVED));
    for no in 0..8 {
        batch.zero(LbaRange::new(Lba(RESERVED + 10 * no), 4));
    }
    live.commit(batch).expect("reserve");
    let mut versions = BTreeMap::new();
    let first = 2 * RESERVED;
    let beside = (first..first + 128).map(Lba);
    // What lies beside the records dies soon: their segment becomes a victim.
    for lba in beside.chain((0..RESERVED).step_by(2).map(Lba)) {
        live.write(at(lba), &grain(lba, 1)).expect("write");
        versions.insert(lba, 1);
    }
    live.sync(LbaRange::ALL).expect("sync");
    let count = (live.space().capacity - live.space().mapped) * 9 / 10;
    let mut rng = Rng::new(6);
    for version in 0..count * 12 {
        let lba = Lba(first + rng.below(count));
        live.write(at(lba), &grain(lba, version)).expect("write");
        versions.insert(lba, version);
    }
    live.sync(LbaRange::ALL).expect("sync");
    live.ftl().self_check();
    check(&live, &versions);
    let reserved = |live: &Volume<MemDevice>| live.mapped_count(LbaRange::new(Lba(0), first));
    assert_eq!(reserved(&live), RESERVED + 8 * 4);
    live = reopen(live.into_device(), 256);
    check(&live, &versions);
    assert_eq!(reserved(&live), RESERVED + 8 * 4);
}

/// Single-grain synced writes and trims waste the most space on headers and tombstones; it goes on all the same.
#[test]
fn synced_writes_and_trims_for_ever() {
    let live = volume(16 + 24 * 16, 16, 32);
    let capacity = live.space().capacity;
    let mut rng = Rng::new(5);
    let mut versions: BTreeMap<Lba, u64> = BTreeMap::new();
    for version in 0..capacity * 40 {
        let lba = Lba(rng.below(capacity));
        if rng.below(3) == 0 {
            live.trim(LbaRange::new(lba, 1)).expect("trim");
            versions.remove(&lba);
        } else {
            live.write(at(lba), &grain(lba, version)).expect("write");
            live.sync(LbaRange::new(lba, 1)).expect("sync");
            versions.insert(lba, version);
        }
    }
    live.ftl().self_check();
    check(&live, &versions);
    assert_eq!(live.space().mapped, versions.len() as u64);
    let tombstones = live.ftl().stats().tombstones;
    assert!(tombstones < 198 + 2 * capacity, "{tombstones} tombstones");
    let live = reopen(live.into_device(), 32);
    check(&live, &versions);
    assert_eq!(live.space().mapped, versions.len() as u64);
}

/// The last grain fits and the next one does not; overwriting and trimming work when full, and exactly what was
/// trimmed can be written again.
#[test]
fn no_space_is_exact() {
    let live = volume(16 + 16 * 16, 16, 32);
    let capacity = live.space().capacity;
    let write = |lba: u64| live.write(at(Lba(lba)), &grain(Lba(lba), 1));
    for lba in 0..capacity {
        write(lba).expect("below the capacity");
    }
    assert_eq!(write(capacity), Err(VolumeError::NoSpace));
    assert_eq!(
        live.write(at(Lba(capacity)) + 5, b"x"),
        Err(VolumeError::NoSpace)
    );
    assert_eq!(
        live.zero(LbaRange::new(Lba(capacity), 1)),
        Err(VolumeError::NoSpace)
    );
    for round in 0..3 {
        for lba in 0..capacity {
            live.write(at(Lba(lba)), &grain(Lba(lba), round))
                .expect("overwrite when full");
        }
    }
    // A batch may use what it frees itself, and needs nothing for what is mapped.
    let mut batch = AtomicBatch::new();
    batch.patch(Lba(capacity), 0, grain(Lba(capacity), 7));
    assert_eq!(live.commit(batch.clone()), Err(VolumeError::NoSpace));
    batch.trim(LbaRange::new(Lba(0), 1));
    live.commit(batch).expect("space for space");
    assert_eq!(live.space().mapped, capacity);
    for lba in 1..11 {
        live.trim(LbaRange::new(Lba(lba), 1))
            .expect("trim when full");
    }
    live.zero(LbaRange::new(Lba(2 * capacity), 10))
        .expect("exactly what was trimmed");
    assert_eq!(write(0), Err(VolumeError::NoSpace));
    live.ftl().self_check();
    live.trim(LbaRange::new(Lba(0), 3 * capacity))
        .expect("trim all");
    assert_eq!(live.space().mapped, 0);
    live.ftl().self_check();
}
