//! I9 under `O_DIRECT`: what fsx does, with aligned operations past every cache, mixed with ordinary ones on another
//! descriptor of the same file. Every read is compared with a model.
//!
//! `FSX_OPERATIONS` and `FSX_SEED` choose more or others (see `fsx.rs`).

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::common::{Image, can_mount, can_serve, chosen};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

/// What a disk addresses, and so what programs align offsets, lengths and memory to.
const SECTOR: usize = 512;
const FILE_MAX: usize = 256 << 10;
const OPERATION_MAX: usize = 64 << 10;

/// Memory that begins at a sector boundary.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new() -> Self {
        let bytes = vec![0; OPERATION_MAX + SECTOR];
        let start = bytes.as_ptr().align_offset(SECTOR);
        Self { bytes, start }
    }

    fn part(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.start..][..len]
    }
}

/// One file, and what it must hold.
struct Exerciser {
    path: PathBuf,
    direct: File,
    plain: File,
    model: Vec<u8>,
    memory: Aligned,
    rng: SmallRng,
}

fn open(path: &Path, flags: i32) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.custom_flags(flags).open(path).unwrap()
}

impl Exerciser {
    fn new(path: &Path, seed: u64) -> Self {
        Self {
            path: path.to_owned(),
            direct: open(path, libc::O_DIRECT),
            plain: open(path, 0),
            model: Vec::new(),
            memory: Aligned::new(),
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    /// The file, and what it must hold; nothing is open any more.
    fn close(self) -> (PathBuf, Vec<u8>) {
        (self.path, self.model)
    }

    /// A range of whole units, at least one.
    fn range(&mut self, unit: usize) -> (usize, usize) {
        let offset = self.rng.random_range(0..FILE_MAX / unit) * unit;
        let most = OPERATION_MAX.min(FILE_MAX - offset) / unit;
        (offset, self.rng.random_range(1..=most) * unit)
    }

    fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..25 => self.write(SECTOR, true),
            25..50 => self.read(SECTOR, true),
            50..60 => self.write_pieces(),
            60..70 => self.read_pieces(),
            70..77 => self.write(1, false),
            77..84 => self.read(1, false),
            84..90 => self.truncate(),
            90..93 => self.fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE),
            93..96 => self.fallocate(libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE),
            96..98 => self.fallocate(0),
            98 => {
                self.direct = open(&self.path, libc::O_DIRECT);
                self.plain = open(&self.path, 0);
            }
            _ => self.direct.sync_data().unwrap(),
        }
        let size = self.plain.metadata().unwrap().len();
        assert_eq!(size, self.model.len() as u64);
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[offset..end].copy_from_slice(bytes);
    }

    /// What must be read.
    fn expected(&self, offset: usize, len: usize) -> &[u8] {
        let size = self.model.len();
        &self.model[offset.min(size)..(offset + len).min(size)]
    }

    fn write(&mut self, unit: usize, direct: bool) {
        let (offset, len) = self.range(unit);
        self.rng.fill_bytes(self.memory.part(len));
        let file = if direct { &self.direct } else { &self.plain };
        let done = file.write_at(self.memory.part(len), offset as u64);
        assert_eq!(done.unwrap(), len);
        let bytes = self.memory.part(len).to_vec();
        self.store(offset, &bytes);
    }

    fn read(&mut self, unit: usize, direct: bool) {
        let (offset, len) = self.range(unit);
        let file = if direct { &self.direct } else { &self.plain };
        let done = file.read_at(self.memory.part(len), offset as u64).unwrap();
        self.compare(offset, len, done);
    }

    fn compare(&mut self, offset: usize, len: usize, done: usize) {
        let found = self.memory.part(done).to_vec();
        let expected = self.expected(offset, len);
        assert_eq!(done, expected.len(), "read of {len} at {offset}");
        let differs = (0..done).find(|&at| found[at] != expected[at]);
        assert_eq!(differs, None, "read of {len} at {offset}");
    }

    /// One call, of two pieces of memory.
    fn write_pieces(&mut self) {
        let (offset, len) = self.range(SECTOR);
        self.rng.fill_bytes(self.memory.part(len));
        self.direct.seek(SeekFrom::Start(offset as u64)).unwrap();
        let (head, tail) = self.memory.part(len).split_at(half(len));
        let done = self
            .direct
            .write_vectored(&[IoSlice::new(head), IoSlice::new(tail)]);
        assert_eq!(done.unwrap(), len);
        let bytes = self.memory.part(len).to_vec();
        self.store(offset, &bytes);
    }

    fn read_pieces(&mut self) {
        let (offset, len) = self.range(SECTOR);
        self.direct.seek(SeekFrom::Start(offset as u64)).unwrap();
        let (head, tail) = self.memory.part(len).split_at_mut(half(len));
        let pieces = &mut [IoSliceMut::new(head), IoSliceMut::new(tail)];
        let done = self.direct.read_vectored(pieces).unwrap();
        self.compare(offset, len, done);
    }

    /// To any size: ends of files are not aligned.
    fn truncate(&mut self) {
        let size = self.rng.random_range(0..=FILE_MAX);
        self.direct.set_len(size as u64).unwrap();
        self.model.resize(size, 0);
    }

    fn fallocate(&mut self, mode: i32) {
        let (offset, len) = self.range(1);
        // SAFETY: the descriptor is open; no memory is involved.
        let status =
            unsafe { libc::fallocate(self.direct.as_raw_fd(), mode, offset as i64, len as i64) };
        assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
        let end = offset + len;
        if mode == 0 {
            self.model.resize(self.model.len().max(end), 0);
        } else {
            let size = self.model.len();
            self.model[offset.min(size)..end.min(size)].fill(0);
        }
    }
}

/// About half of so many bytes, in whole sectors.
fn half(len: usize) -> usize {
    len / 2 / SECTOR * SECTOR
}

/// Aligned operations past the caches, and others beside them: everybody sees the same file, also after a restart.
#[test]
fn direct() {
    if !can_serve() || !can_mount() {
        return;
    }
    let image = Image::new("128MiB");
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let options = ["--mount", dir.to_str().unwrap()];
    let target = image.serve(&options);
    let mut exerciser = Exerciser::new(&dir.join("file"), chosen("FSX_SEED", 20_261_121));
    for _ in 0..chosen("FSX_OPERATIONS", 10_000) {
        exerciser.step();
    }
    let (path, model) = exerciser.close();
    assert!(fs::read(&path).unwrap() == model);
    assert!(target.stop().success());
    let target = image.serve(&options);
    assert!(fs::read(&path).unwrap() == model, "after the restart");
    assert!(target.stop().success());
}
