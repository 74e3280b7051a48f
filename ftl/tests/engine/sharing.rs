//! Shared pages: a mapping of the file that they lie in is the page, and nothing stored through it is lost.

use crate::common::{Rng, at, grain, read, volume};
use ftl::{
    AtomicBatch, GRAIN_BYTES, GrainState, Intent, Lba, LbaRange, MediaError, MemDevice,
    OpenOptions, Port, ShareError, Time, Volume,
};
use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const START: Lba = Lba(1000);

fn open(device: MemDevice, shared_frames: usize) -> Volume<MemDevice> {
    let options = OpenOptions {
        pool_frames: 32,
        shared_frames,
        ..OpenOptions::default()
    };
    Volume::open(device, options).expect("open").0
}

fn fresh(shared_frames: usize) -> Volume<MemDevice> {
    open(volume(16 + 64 * 16, 16, 32).into_device(), shared_frames)
}

/// A memory file of so many pages, and a mapping of it such as another process would have.
fn memory(pages: u64) -> (File, MmapRaw) {
    // SAFETY: the name is a NUL-terminated literal; the descriptor is fresh.
    let file = unsafe {
        let raw = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC);
        assert!(raw >= 0);
        File::from(OwnedFd::from_raw_fd(raw))
    };
    file.set_len(pages * GRAIN_BYTES as u64).unwrap();
    let len = pages as usize * GRAIN_BYTES;
    let map = MmapOptions::new().len(len).map_raw(&file).unwrap();
    (file, map)
}

fn load(map: &MmapRaw, page: u64) -> Vec<u8> {
    let start = page as usize * GRAIN_BYTES;
    assert!(start + GRAIN_BYTES <= map.len());
    // SAFETY: inside of the mapping; nobody stores there meanwhile.
    unsafe { std::slice::from_raw_parts(map.as_ptr().add(start), GRAIN_BYTES) }.to_vec()
}

fn store(map: &MmapRaw, page: u64, bytes: &[u8]) {
    let start = page as usize * GRAIN_BYTES;
    assert!(start + bytes.len() <= map.len());
    // SAFETY: inside of the mapping; nobody looks there meanwhile.
    unsafe {
        let to = map.as_mut_ptr().add(start);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
    }
}

/// Shares a range as whoever opens a file does.
fn share(volume: &Volume<MemDevice>, file: &File, from: u64, count: u64) {
    let range = LbaRange::new(START.offset(from), count);
    volume.ftl().share(file, from, range).unwrap();
    volume.sync(range).unwrap();
    assert!(volume.ftl().gather(range));
    for n in 0..count {
        drop(volume.page(range.start.offset(n), Intent::Write).unwrap());
    }
}

fn range(count: u64) -> LbaRange {
    LbaRange::new(START, count)
}

/// Pages of every kind (on media, in memory and dirty, reserved, holes) are one frame with the mapping: each side sees
/// what the other stores at once, and a sync after a look makes it durable (I1).
#[test]
fn one_frame_for_all() {
    let volume = fresh(64);
    volume.write(at(START), &grain(START, 1)).unwrap();
    volume.sync(range(1)).unwrap();
    volume.write(at(Lba(1001)), &grain(Lba(1001), 1)).unwrap();
    volume.zero(LbaRange::new(Lba(1002), 1)).unwrap();
    let (file, map) = memory(4);
    share(&volume, &file, 0, 4);
    assert!(load(&map, 0) == grain(START, 1) && load(&map, 1) == grain(Lba(1001), 1));
    assert!(load(&map, 2) == [0; GRAIN_BYTES] && load(&map, 3) == [0; GRAIN_BYTES]);
    volume.sync(range(4)).unwrap();
    assert_eq!(volume.ftl().find_stores(range(4)), 0, "nothing was stored");
    for n in 0..4 {
        let lba = START.offset(n);
        store(&map, n, &grain(lba, 2));
        assert!(read(&volume, lba) == grain(lba, 2), "{lba}");
        volume.write(at(lba), &grain(lba, 3)).unwrap();
        assert!(load(&map, n) == grain(lba, 3), "{lba}");
        volume.sync(range(4)).unwrap();
        // The least that a store can be.
        store(&map, n, &[7]);
    }
    assert_eq!(volume.ftl().find_stores(range(4)), 4);
    assert_eq!(volume.ftl().find_stores(range(4)), 0, "they are dirty now");
    volume.sync(range(4)).unwrap();
    let written = volume.ftl().stats().user_grains;
    assert_eq!(
        volume.ftl().find_stores(range(4)),
        0,
        "they are written now"
    );
    volume.sync(range(4)).unwrap();
    assert_eq!(volume.ftl().stats().user_grains, written);
    volume.ftl().self_check();
    // A crash.
    let volume = open(volume.into_device(), 0);
    for n in 0..4 {
        let lba = START.offset(n);
        assert!(read(&volume, lba)[0] == 7 && read(&volume, lba)[1..] == grain(lba, 3)[1..]);
    }
}

/// Shared pages are never evicted, whatever else the pool is needed for, and are no part of it.
#[test]
fn they_stay() {
    let volume = fresh(64);
    let (file, map) = memory(48);
    share(&volume, &file, 0, 48);
    volume.sync(range(48)).unwrap();
    for n in 0..200 {
        let lba = Lba(5000 + n);
        volume.write(at(lba), &grain(lba, 1)).unwrap();
    }
    for n in 0..48 {
        store(&map, n, &grain(START.offset(n), 5));
        assert!(read(&volume, START.offset(n)) == grain(START.offset(n), 5));
    }
    assert_eq!(volume.ftl().find_stores(range(48)), 48);
    volume.ftl().self_check();
}

/// What is not shared any more leaves with everything that was stored, and its room serves others (I16). A held page
/// leaves later.
#[test]
fn they_leave() {
    let volume = fresh(64);
    let (file, map) = memory(48);
    share(&volume, &file, 0, 48);
    let (other, _) = memory(48);
    let elsewhere = LbaRange::new(Lba(3000), 48);
    let refused = volume.ftl().share(&other, 0, elsewhere);
    assert_eq!(refused, Err(ShareError::NoRoom));
    volume.sync(range(48)).unwrap();
    store(&map, 47, &grain(Lba(1047), 9));
    assert_eq!(volume.ftl().find_stores(range(48)), 1);
    let held = volume.page(START, Intent::Write).unwrap();
    volume.ftl().unshare(range(48));
    assert!(!volume.ftl().let_leave(range(48)), "a page is dirty");
    volume.sync(range(48)).unwrap();
    assert!(!volume.ftl().let_leave(range(48)), "a page is held");
    held.copy_in(0, b"late");
    drop(held);
    volume.sync(range(48)).unwrap();
    assert!(volume.ftl().let_leave(range(48)));
    assert!(read(&volume, Lba(1047)) == grain(Lba(1047), 9));
    assert_eq!(&read(&volume, START)[..4], b"late");
    volume.ftl().self_check();
    volume.ftl().share(&other, 0, elsewhere).unwrap();
}

/// A range grows in pieces and is cut at its end: pages that are cut off lose their memory and nobody else does, a page
/// that somebody holds meanwhile can be used to its end, and what grows again begins as zeros (I3).
#[test]
fn ends_move() {
    let volume = fresh(256);
    let (file, map) = memory(100);
    for from in (0..100).step_by(10) {
        share(&volume, &file, from, 10);
    }
    for n in 0..100 {
        store(&map, n, &grain(START.offset(n), 1));
        assert!(read(&volume, START.offset(n)) == grain(START.offset(n), 1));
    }
    volume.ftl().find_stores(range(100));
    volume.sync(range(100)).unwrap();
    let held = volume.page(Lba(1090), Intent::Write).unwrap();
    let tail = LbaRange::new(Lba(1055), 45);
    volume.ftl().unshare(tail);
    volume.trim(tail).unwrap();
    assert!(volume.ftl().let_leave(tail));
    file.set_len(55 * GRAIN_BYTES as u64).unwrap();
    held.copy_in(0, &[1; GRAIN_BYTES]);
    for n in 0..55 {
        assert!(load(&map, n) == grain(START.offset(n), 1));
    }
    file.set_len(100 * GRAIN_BYTES as u64).unwrap();
    drop(held);
    share(&volume, &file, 55, 45);
    for n in 55..100 {
        assert!(load(&map, n) == [0; GRAIN_BYTES], "{n}");
    }
    volume.ftl().self_check();
}

/// What a batch takes away from a shared page is gone from the mapping, too, and what it puts there is seen; what is
/// stored after a trim counts again (I3).
#[test]
fn batches_reach_mappings() {
    let volume = fresh(64);
    let (file, map) = memory(4);
    share(&volume, &file, 0, 4);
    for n in 0..4 {
        store(&map, n, &grain(START.offset(n), 1));
    }
    volume.ftl().find_stores(range(4));
    volume.sync(range(4)).unwrap();
    let mut batch = AtomicBatch::new();
    batch.trim(LbaRange::new(START, 2));
    batch.zero(LbaRange::new(START, 1));
    batch.patch(Lba(1003), 8, b"patched".to_vec());
    volume.commit(batch).unwrap();
    assert!(load(&map, 0) == [0; GRAIN_BYTES] && load(&map, 1) == [0; GRAIN_BYTES]);
    assert_eq!(&load(&map, 3)[8..15], b"patched");
    // Stored before anybody asks for the pages again.
    store(&map, 0, b"zeroed");
    store(&map, 1, b"trimmed");
    for n in 0..2 {
        drop(volume.page(START.offset(n), Intent::Write).unwrap());
    }
    volume.ftl().find_stores(range(4));
    volume.sync(range(4)).unwrap();
    volume.ftl().self_check();
    let volume = open(volume.into_device(), 0);
    assert_eq!(&read(&volume, START)[..7], b"zeroed\0");
    assert_eq!(&read(&volume, Lba(1001))[..8], b"trimmed\0");
    assert_eq!(&read(&volume, Lba(1003))[8..15], b"patched");
    assert_eq!(volume.ftl().state(Lba(1001)), GrainState::Data);
}

/// Random stores, writes, trims, looks and syncs: memory and mapping agree at every moment, and a crash leaves of each
/// page what the last look and sync found or something younger (I1, I2).
#[test]
fn agrees_with_the_mapping() {
    const PAGES: u64 = 24;
    for seed in 0..6 {
        let volume = fresh(PAGES as usize);
        let (file, map) = memory(PAGES);
        share(&volume, &file, 0, PAGES);
        let mut rng = Rng::new(seed);
        let mut written = vec![0; PAGES as usize];
        let mut durable = written.clone();
        for version in 1..=300 {
            let n = rng.below(PAGES);
            let lba = START.offset(n);
            match rng.below(12) {
                0..5 => store(&map, n, &grain(lba, version)),
                5..8 => volume.write(at(lba), &grain(lba, version)).unwrap(),
                8 => {
                    volume.tick();
                    continue;
                }
                9 => {
                    volume.ftl().find_stores(range(PAGES));
                    continue;
                }
                10 => {
                    volume.ftl().find_stores(range(PAGES));
                    volume.sync(range(PAGES)).unwrap();
                    durable.clone_from(&written);
                    continue;
                }
                _ => {
                    let mut batch = AtomicBatch::new();
                    batch.patch(lba, 0, grain(lba, version));
                    volume.commit(batch).unwrap();
                    durable[n as usize] = version;
                }
            }
            written[n as usize] = version;
            assert!(read(&volume, lba) == grain(lba, version), "seed {seed}");
            assert!(load(&map, n) == grain(lba, version), "seed {seed}");
        }
        volume.ftl().self_check();
        let volume = open(volume.into_device(), 0);
        for n in 0..PAGES {
            let (lba, found) = (START.offset(n), read(&volume, START.offset(n)));
            let oldest = durable[n as usize];
            let mut may_be = (oldest.max(1)..=300).map(|version| grain(lba, version));
            let zeros = oldest == 0 && found == [0; GRAIN_BYTES];
            assert!(zeros || may_be.any(|b| b == found), "seed {seed}, {lba}");
        }
    }
}

/// Whoever gathers pages on a thread of its own may set write-outs going, and the driver that is to carry them out hears of it
/// (I18).
#[test]
fn who_gathers_wakes_the_driver() {
    let volume = fresh(64);
    let ftl = volume.ftl();
    let woken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&woken);
    let wake = move || {
        count.fetch_add(1, Ordering::SeqCst);
    };
    ftl.set_waker(Port(0), Box::new(wake));
    for n in 0..24 {
        volume.write(at(Lba(n)), &grain(Lba(n), 1)).unwrap();
    }
    volume.sync(LbaRange::ALL).unwrap();
    let mut found = None;
    for n in 0..24 {
        let page = volume.page(Lba(n), Intent::Overwrite).unwrap();
        page.copy_in(0, &grain(Lba(n), 2));
        drop(page);
        let before = woken.load(Ordering::SeqCst);
        ftl.gather(range(1));
        if let Some(action) = ftl.poll_action(Port(0)) {
            assert!(woken.load(Ordering::SeqCst) > before, "nobody is told");
            found = Some(action);
            break;
        }
    }
    let action = found.expect("many pages are written out");
    ftl.handle_done(Port(0), Time(0), action.id, Err(MediaError::Gone));
}
