//! Appends through the kernel.

use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use contigfs::fuse::{MountOptions, mount};
use contigfs::{BlockStore, ByteAddr, FormatOptions, Fs, InodeNo, MemStore, SetAttr, StoreError};
use ftl::{AtomicBatch, Lba, LbaRange, Space};
use io_uring::{IoUring, opcode, types};
use support::mounted::{Mount, skip};

const GRAINS: u64 = 100_000;

/// One write of a program that does not wait for it.
fn append_with_ring(ring: &mut IoUring, file: &File, bytes: &[u8]) -> usize {
    let fd = types::Fd(file.as_raw_fd());
    let write = opcode::Write::new(fd, bytes.as_ptr(), bytes.len() as u32)
        // Where the file ends, or wherever: it is open for appending.
        .offset(u64::MAX)
        .build();
    // SAFETY: the bytes outlive the call, which waits for the completion.
    unsafe { ring.submission().push(&write).unwrap() };
    ring.submit_and_wait(1).unwrap();
    let done = ring.completion().next().unwrap();
    usize::try_from(done.result()).unwrap_or_else(|_| panic!("errno {}", -done.result()))
}

/// A large append that nobody waits for comes as several requests at once. Served in whatever order, they are one piece
/// behind the end of the file, and nothing is written over.
#[test]
fn large_appends_are_in_one_piece() {
    const PIECE: usize = (4 << 20) + 12_345;
    const ROUNDS: usize = 16;
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let Ok(mut ring) = IoUring::new(8) else {
        skip("there is no io_uring");
        return;
    };
    let path = mount.path().join("log");
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .unwrap();
    let mut expected: Vec<u8> = Vec::new();
    for round in 0..ROUNDS {
        let bytes: Vec<u8> = (0..PIECE)
            .map(|n| (n / 4096 + 7 * round) as u8 ^ (n >> 20) as u8)
            .collect();
        assert_eq!(append_with_ring(&mut ring, &file, &bytes), PIECE);
        expected.extend(&bytes);
        // And one that is waited for.
        (&file).write_all(b"end of a round").unwrap();
        expected.extend(b"end of a round");
        let found = fs::read(&path).unwrap();
        assert_eq!(found.len(), expected.len(), "round {round}");
        let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(differs, None, "round {round}");
    }
    drop(file);
    mount.unmount();
}

/// A store that counts how many grains are looked at to be counted.
struct Counting {
    store: MemStore,
    counted: AtomicU64,
}

impl BlockStore for Counting {
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
        self.store.read(at, buf)
    }

    fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
        self.store.write(at, data)
    }

    fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        self.store.commit(batch)
    }

    fn sync(&self, range: LbaRange) -> Result<(), StoreError> {
        self.store.sync(range)
    }

    fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        self.store.next_mapped(range)
    }

    fn mapped_count(&self, range: LbaRange) -> u64 {
        let count = self.store.mapped_count(range);
        self.counted.fetch_add(count, Relaxed);
        count
    }

    fn space(&self) -> Space {
        self.store.space()
    }
}

/// What an append costs does not depend on how long the file is: nobody counts its grains for it.
#[test]
fn appends_to_a_long_file_cost_no_more() {
    let Some(probe) = Mount::new(10) else {
        return;
    };
    drop(probe);
    let store = Arc::new(Counting {
        store: MemStore::new(GRAINS),
        counted: AtomicU64::new(0),
    });
    Fs::format(&store, &FormatOptions::default()).unwrap();
    let dir = tempfile::TempDir::new().unwrap();
    let fs = Arc::new(Fs::mount(Arc::clone(&store)).unwrap());
    let mut mounted = mount(fs, dir.path(), &MountOptions::default()).unwrap();
    let path = dir.path().join("log");
    fs::write(&path, vec![1; 8 << 20]).unwrap();
    let mut log = OpenOptions::new().append(true).open(&path).unwrap();
    let before = store.counted.load(Relaxed);
    for _ in 0..100 {
        log.write_all(b"a line of it\n").unwrap();
    }
    let counted = store.counted.load(Relaxed) - before;
    assert!(counted < 10 * 2048, "{counted} grains were counted");
    drop(log);
    mounted.unmount().unwrap();
}

/// The size that the kernel believes a file to have.
fn believed(path: &Path) -> u64 {
    let path = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: all zeros is a `statx`.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_STATX_DONT_SYNC;
    // SAFETY: the path ends with a zero, and both live over the call.
    let result = unsafe {
        libc::statx(
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            libc::STATX_SIZE,
            &raw mut found,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    found.stx_size
}

/// Appends go behind the end that a peer has made, however the kernel came to believe in another one: it learns of sizes when
/// it looks for a name, and when it lists a directory, as well as when it asks.
#[test]
fn the_kernel_learns_of_the_end_from_names() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let dir = mount.path().to_owned();
    let list = |_: InodeNo| assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    let look_up = |ino| {
        // Nobody has asked for this name yet.
        let name = OsStr::new("another");
        mount.fs().link(ino, InodeNo::ROOT, name).unwrap();
        assert!(fs::create_dir(dir.join(name)).is_err());
    };
    for (name, learn) in [("listed", &list as &dyn Fn(_)), ("looked up", &look_up)] {
        let path = dir.join(name);
        fs::write(&path, vec![1; 1000]).unwrap();
        let ino = InodeNo(fs::metadata(&path).unwrap().ino());
        let peer_sets = |size: u64| {
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            mount.fs().set_attr(ino, &set).unwrap();
        };
        let mut log = OpenOptions::new().append(true).open(&path).unwrap();
        log.write_all(b"!").unwrap();
        peer_sets(7856);
        learn(ino);
        assert_eq!(believed(&path), 7856, "{name}");
        peer_sets(3050);
        log.write_all(b"ended").unwrap();
        assert_eq!(mount.fs().attr(ino).unwrap().size, 3055, "{name}");
    }
    mount.unmount();
}
