//! Many that read at once, of a file that does not fit into memory and is cut off, punched and cloned over meanwhile, while others come
//! and go beside it: what they read is always of the file (I9, I11). With so many reads under way the reactor answers some of them; what
//! comes between a read and its answer is chosen exactly in `contigfs/src/fs/later.rs`.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Image, can_mount, can_serve, copy_range, fallocate};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const GRAIN: u64 = 4096;
/// Four times the memory.
const GRAINS: u64 = 4096;
const READERS: u64 = 24;
const TIME: Duration = Duration::from_secs(6);
/// Says whose a word is; the rest of it says where in the file it was written.
const OURS: u64 = 0x00f1_1e00 << 32;
const OTHERS: u64 = 0x0bad_0bad << 32;

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).unwrap()
}

/// Words that are different in each place.
fn words(whose: u64, grains: std::ops::Range<u64>) -> Vec<u8> {
    let words = grains.start * GRAIN / 8..grains.end * GRAIN / 8;
    words.flat_map(|n| (whose | n).to_le_bytes()).collect()
}

/// Gives a part of the file the bytes of another.
fn clone_within(file: &File, from: u64, to: u64, len: u64) {
    if from.abs_diff(to) < len {
        return;
    }
    copy_range((file, from), (file, to), len);
}

/// Reads anywhere; each word is zero, or was written at its place of some grain of the file.
fn read(file: &File, rng: &mut SmallRng) -> u64 {
    let mut bytes = [0; GRAIN as usize];
    let at = rng.random_range(0..GRAINS) * GRAIN;
    let within = rng.random_range(0..2) * rng.random_range(0..GRAIN / 8) * 8;
    let len = (GRAIN - within) as usize;
    let n = file.read_at(&mut bytes[..len], at + within).unwrap();
    for (word, read) in bytes[..n / 8 * 8].chunks_exact(8).enumerate() {
        let read = u64::from_le_bytes(read.try_into().unwrap());
        let is_ours = read & !0xffff_ffff == OURS
            && (read & 0xffff_ffff) * 8 % GRAIN == (within + word as u64 * 8) % GRAIN;
        let place = at + within;
        assert!(read == 0 || is_ours, "{read:#x} in word {word} at {place}");
    }
    n as u64
}

/// Changes where the bytes of the file are, and puts them back.
fn change(file: &File, beside: &Path, round: u64, rng: &mut SmallRng) {
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    let grain = rng.random_range(0..GRAINS - 300);
    let (offset, len) = (grain * GRAIN, 256 * GRAIN);
    let mut restore = grain..grain + 256;
    match round % 4 {
        0 => {
            file.set_len(offset).unwrap();
            restore.end = GRAINS;
        }
        1 => fallocate(file, keep | libc::FALLOC_FL_PUNCH_HOLE, offset, len),
        2 => fallocate(file, keep | libc::FALLOC_FL_ZERO_RANGE, offset, len),
        _ => clone_within(file, rng.random_range(0..GRAINS - 256) * GRAIN, offset, len),
    }
    // The memory that its pages had may be somebody else's now.
    let other = open(&beside.join(format!("other-{}", round % 3)));
    other.write_all_at(&words(OTHERS, 0..512), 0).unwrap();
    for start in restore.clone().step_by(256) {
        let part = start..(start + 256).min(restore.end);
        let at = part.start * GRAIN;
        file.write_all_at(&words(OURS, part), at).unwrap();
    }
    fs::remove_file(beside.join(format!("other-{}", (round + 1) % 3))).ok();
}

/// Ends the readers, also when something else has failed.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn what_is_read_is_of_the_file() {
    if !can_serve() || !can_mount() {
        return;
    }
    let image = Image::new("128MiB");
    let dir = image.beside("mnt");
    let _ = fs::create_dir(&dir);
    let _target = image.serve(&["--mount", dir.to_str().unwrap(), "--pool", "4MiB"]);
    let path = dir.join("file");
    let file = open(&path);
    file.write_all_at(&words(OURS, 0..GRAINS), 0).unwrap();
    let (over, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut rounds = 0;
    thread::scope(|scope| {
        for seed in 0..READERS {
            let (file, over, bytes) = (File::open(&path).unwrap(), &over, &bytes);
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(seed);
                while !over.load(Ordering::Relaxed) {
                    bytes.fetch_add(read(&file, &mut rng), Ordering::Relaxed);
                }
            });
        }
        let _end = End(&over);
        let end = Instant::now() + TIME;
        let mut rng = SmallRng::seed_from_u64(READERS);
        while Instant::now() < end {
            change(&file, &dir, rounds, &mut rng);
            rounds += 1;
        }
    });
    let bytes = bytes.into_inner();
    println!("{bytes} bytes read, {rounds} changes");
    assert!(bytes > 0 && rounds >= 4);
    let mut all = vec![0; (GRAINS * GRAIN) as usize];
    file.read_exact_at(&mut all, 0).unwrap();
    assert!(all == words(OURS, 0..GRAINS));
}
