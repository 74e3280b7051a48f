//! `fallocate` and `copy_file_range` on files that somebody has mapped and stores to, on a real mount
//! (`contigfs/docs/coherence.md`): bytes beside the range keep the stores, and bytes inside do not come back. Defends I9 against
//! the kernel's copies of pages.

use std::fs::{self, File, OpenOptions};
use std::hint::spin_loop;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Image, Target, can_mount, can_serve, copy_range, fallocate};
use memmap2::{MmapOptions, MmapRaw};

const PAGE: u64 = 4096;
const HALF: u64 = PAGE / 2;
const ROUNDS: u64 = 500;
const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;

/// A target that mounts beside its image.
fn serve() -> Option<(Target, PathBuf, Image)> {
    if !can_serve() || !can_mount() {
        return None;
    }
    let image = Image::new("64MiB");
    let dir = image.beside("mnt");
    let _ = fs::create_dir(&dir);
    let target = image.serve(&["--mount", dir.to_str().unwrap()]);
    Some((target, dir, image))
}

/// A file of one page of `byte`.
fn page_of(path: &Path, byte: u8) -> File {
    let mut options = OpenOptions::new();
    let file = (options.read(true).write(true).create(true).truncate(true))
        .open(path)
        .unwrap();
    file.write_all_at(&[byte; PAGE as usize], 0).unwrap();
    file
}

fn copy(from: &File, to: &File, offset: u64, len: u64) {
    copy_range((from, 0), (to, offset), len);
}

/// Has the file's dirty pages written back, as the kernel does when it wants to: `msync` would wait for whoever changes the
/// file.
fn write_back(file: &File) {
    let how = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: no memory is passed, and the descriptor is open.
    let done = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, how) };
    assert_eq!(done, 0, "{}", Error::last_os_error());
}

/// The first word of a mapping.
fn word(map: &MmapRaw) -> &AtomicU64 {
    // SAFETY: a page begins with an aligned word. Whoever else changes it does so through an atomic, or from outside.
    unsafe { AtomicU64::from_ptr(map.as_mut_ptr().cast()) }
}

/// Stores to a page of which another part is copied to are not lost.
#[test]
fn copies_beside_stores() {
    let Some((target, dir, _image)) = serve() else {
        return;
    };
    let source = page_of(&dir.join("source"), 1);
    let file = page_of(&dir.join("file"), 0);
    let map = MmapOptions::new().map_raw(&file).unwrap();
    let done = AtomicBool::new(false);
    let lost = thread::scope(|scope| {
        let counter = scope.spawn(|| {
            let mut n = 0;
            while !done.load(Ordering::Relaxed) {
                n += 1;
                word(&map).store(n, Ordering::SeqCst);
                thread::yield_now();
                let found = word(&map).load(Ordering::SeqCst);
                if found != n {
                    return Some((n, found));
                }
            }
            None
        });
        for _ in 0..ROUNDS {
            copy(&source, &file, HALF, 1000);
        }
        done.store(true, Ordering::Relaxed);
        counter.join().unwrap()
    });
    assert_eq!(lost, None, "a store, and what was found in its place");
    let mut found = [0; 1000];
    file.read_exact_at(&mut found, HALF).unwrap();
    assert_eq!(found, [1; 1000]);
    drop((map, file, source));
    assert!(target.stop().success());
}

/// Bytes that were punched, zeroed or copied over do not come back with a page that is written back, while that is done,
/// because something else in it was stored to.
#[test]
fn what_was_replaced_stays_replaced() {
    let Some((target, dir, _image)) = serve() else {
        return;
    };
    let source = page_of(&dir.join("source"), 1);
    type Change<'a> = &'a dyn Fn(&File);
    let changes: [(&str, u8, Change); 3] = [
        ("punch", 0, &|file| {
            fallocate(file, libc::FALLOC_FL_PUNCH_HOLE | KEEP, HALF, HALF);
        }),
        ("zero", 0, &|file| {
            fallocate(file, libc::FALLOC_FL_ZERO_RANGE | KEEP, HALF, HALF);
        }),
        ("copy", 1, &|file| copy(&source, file, 0, PAGE)),
    ];
    for (name, expected, change) in changes {
        let file = page_of(&dir.join(name), 0);
        let map = MmapOptions::new().map_raw(&file).unwrap();
        // Both threads come here at the beginning and at the end of a round.
        let meet = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    meet.wait();
                    let start = Instant::now();
                    // At another moment of the change each time.
                    while start.elapsed() < Duration::from_micros(round % 100 * 5) {
                        spin_loop();
                    }
                    word(&map).store(round, Ordering::SeqCst);
                    write_back(&file);
                    meet.wait();
                }
            });
            let mut back = None;
            for round in 0..ROUNDS {
                file.write_all_at(&[2; HALF as usize], HALF).unwrap();
                // The page is there for the store, which would otherwise wait for it.
                let _ = word(&map).load(Ordering::SeqCst);
                meet.wait();
                change(&file);
                meet.wait();
                let mut found = [9; HALF as usize];
                file.read_exact_at(&mut found, HALF).unwrap();
                if found != [expected; HALF as usize] && back.is_none() {
                    back = Some((round, found[0]));
                }
            }
            assert_eq!(back, None, "{name}: round, byte that was found");
        });
        drop((map, file));
    }
    drop(source);
    assert!(target.stop().success());
}
