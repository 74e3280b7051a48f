//! What tests of ContigFS share. A crate, so that the file system over memory, which nearly all of them use, also mounted, is compiled
//! once and not for each of them.
#![allow(missing_debug_implementations, missing_docs)]

pub mod acl;
pub mod mounted;
pub mod oracle;
pub mod records;
pub mod syscalls;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use contigfs::{BlockStore, FormatOptions, Fs, FsError, FsOptions, InodeNo, MemStore, Timestamp};

/// A generator that is the same everywhere, for ever: xorshift64*.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        (self.roll() >> 11) % n
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

pub fn name(text: &str) -> &OsStr {
    OsStr::from_bytes(text.as_bytes())
}

/// A fresh file system in memory.
pub fn fresh(grains: u64) -> (Arc<MemStore>, Fs<Arc<MemStore>>) {
    fresh_with(grains, &FsOptions::default())
}

/// As [`fresh`], run with options.
pub fn fresh_with(grains: u64, options: &FsOptions) -> (Arc<MemStore>, Fs<Arc<MemStore>>) {
    let store = Arc::new(MemStore::new(grains));
    let format = FormatOptions {
        now: Timestamp { secs: 1, nanos: 0 },
        ..FormatOptions::default()
    };
    Fs::format(&store, &format).unwrap();
    let fs = Fs::mount_with(Arc::clone(&store), options).unwrap();
    (store, fs)
}

/// Options with which files of more than two grains outgrow their ranges, so that they are enlarged at their places,
/// relocated, and cut all the time.
pub fn tight() -> FsOptions {
    FsOptions {
        file_order: 1,
        ..FsOptions::default()
    }
}

/// Fails when the checker finds anything.
pub fn assert_clean(store: &impl BlockStore) {
    let report = contigfs::check_with_data(store);
    assert!(report.is_clean(), "{:#?}", report.problems);
}

/// Whole content of a file.
pub fn content(fs: &Fs<impl BlockStore>, ino: InodeNo) -> Result<Vec<u8>, FsError> {
    let mut bytes = vec![0xee; fs.attr(ino)?.size as usize];
    let mut done = 0;
    while done < bytes.len() {
        // Short in front of a damaged grain.
        let n = fs.read(ino, done as u64, &mut bytes[done..])?;
        assert_ne!(n, 0, "the end is too early");
        done += n;
    }
    Ok(bytes)
}

/// Names in a directory, sorted, without `.` and `..`.
pub fn names(fs: &Fs<impl BlockStore>, dir: InodeNo) -> Result<Vec<(String, InodeNo)>, FsError> {
    let mut all = Vec::new();
    fs.readdir(dir, 0, |entry| {
        let name = entry.name.to_str().unwrap().to_owned();
        if name != "." && name != ".." {
            all.push((name, entry.ino));
        }
        true
    })?;
    all.sort();
    Ok(all)
}
