//! Space and copies through the kernel: fallocate, holes, clones, and what Linux does not let a FUSE file system see.

use std::fs::{self, File, OpenOptions};
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contigfs::fuse::{MountOptions, mount};
use contigfs::{FallocMode, FormatOptions, Fs, InodeNo};
use ftl::{MemDevice, OpenOptions as VolumeOptions, Volume};
use support::Dice;
use support::mounted::{Mount, skip, until};

const GRAINS: u64 = 100_000;
const GRAIN: usize = 4096;
const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE;
const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
const COLLAPSE: i32 = libc::FALLOC_FL_COLLAPSE_RANGE;
const INSERT: i32 = libc::FALLOC_FL_INSERT_RANGE;

/// The answer of a system call: its value, or the error number.
fn answer(value: i64) -> Result<i64, i32> {
    match value {
        -1 => Err(Error::last_os_error().raw_os_error().unwrap()),
        value => Ok(value),
    }
}

fn fallocate(file: &File, mode: i32, offset: i64, len: i64) -> Result<i64, i32> {
    // SAFETY: no memory is passed, and the descriptor is open.
    answer(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) }.into())
}

fn seek(file: &File, offset: i64, whence: i32) -> Result<i64, i32> {
    // SAFETY: as above.
    answer(unsafe { libc::lseek(file.as_raw_fd(), offset, whence) })
}

fn copy(from: &File, from_offset: i64, to: &File, to_offset: i64, len: usize) -> Result<i64, i32> {
    let (mut from_offset, mut to_offset) = (from_offset, to_offset);
    // SAFETY: the descriptors are open and both offsets outlive the call.
    answer(unsafe {
        libc::copy_file_range(
            from.as_raw_fd(),
            &mut from_offset,
            to.as_raw_fd(),
            &mut to_offset,
            len,
            0,
        )
    } as i64)
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

fn open(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap()
}

fn free(path: &Path) -> u64 {
    run(Command::new("stat").args(["-f", "-c", "%f"]).arg(path))
        .trim()
        .parse()
        .unwrap()
}

/// Each mode through the kernel: content, size, blocks, free space, and the errors that ext4 gives.
#[test]
fn fallocate_modes() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let path = mount.path().join("f");
    let file = open(&path);
    let meta = || {
        let meta = file.metadata().unwrap();
        (meta.len(), meta.blocks() / 8)
    };
    let empty = free(mount.path());
    assert_eq!(fallocate(&file, 0, 5000, 10_000), Ok(0));
    assert_eq!((meta(), free(mount.path())), ((15_000, 3), empty - 3));
    assert_eq!(fallocate(&file, KEEP, 10_000, 20_000), Ok(0));
    assert_eq!((meta(), free(mount.path())), ((15_000, 7), empty - 7));
    file.write_all_at(&[7; 15_000], 0).unwrap();
    assert_eq!((meta(), free(mount.path())), ((15_000, 8), empty - 8));
    assert_eq!(fallocate(&file, PUNCH | KEEP, 100, 9000), Ok(0));
    assert_eq!((meta(), free(mount.path())), ((15_000, 7), empty - 7));
    assert_eq!(fallocate(&file, ZERO, 10_000, 10_000), Ok(0));
    assert_eq!(meta(), (20_000, 7));
    assert_eq!(fallocate(&file, ZERO | KEEP, 0, 40_960), Ok(0));
    assert_eq!(meta(), (20_000, 10));
    let mut bytes = vec![1; 20_000];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, vec![0; 20_000]);
    for (mode, offset, len, error) in [
        (0, 0, 0, libc::EINVAL),
        (0, -1, 10, libc::EINVAL),
        (0, i64::MAX - 5, 10, libc::EFBIG),
        (0, 1 << 62, 10, libc::EFBIG),
        (KEEP, 0, 1 << 41, libc::ENOSPC),
        (PUNCH, 0, 10, libc::EOPNOTSUPP),
        (PUNCH | ZERO | KEEP, 0, 10, libc::EOPNOTSUPP),
        (COLLAPSE | KEEP, 0, 4096, libc::EOPNOTSUPP),
        (libc::FALLOC_FL_UNSHARE_RANGE, 0, 10, libc::EOPNOTSUPP),
    ] {
        assert_eq!(
            fallocate(&file, mode, offset, len),
            Err(error),
            "mode {mode:#x} {offset} + {len}"
        );
    }
    assert_eq!(meta(), (20_000, 10));
    let read_only = File::open(&path).unwrap();
    assert_eq!(fallocate(&read_only, 0, 0, 10), Err(libc::EBADF));
    file.set_len(0).unwrap();
    assert_eq!(free(mount.path()), empty);
    drop((file, read_only));
    mount.unmount();
}

/// The kernel lets no FUSE file system see collapse and insert. Should this fail, it does now: then they work, and the
/// notes in `docs/layout.md` are to be changed. Who has the library has both.
#[test]
fn collapse_and_insert_stop_in_the_kernel() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let path = mount.path().join("f");
    fs::write(&path, [[1; 4096], [2; 4096], [3; 4096]].concat()).unwrap();
    let file = open(&path);
    for mode in [COLLAPSE, INSERT] {
        assert_eq!(fallocate(&file, mode, 0, 4096), Err(libc::EOPNOTSUPP));
    }
    drop(file);
    let ino = mount.fs().lookup_path("/f").unwrap();
    let splice = |mode| mount.fs().fallocate(ino, 4096, 4096, mode).unwrap();
    splice(FallocMode::CollapseRange);
    mount.mounted().invalidate(ino, 0, 0).unwrap();
    assert!(fs::read(&path).unwrap() == [[1; 4096], [3; 4096]].concat());
    splice(FallocMode::InsertRange);
    mount.mounted().invalidate(ino, 0, 0).unwrap();
    assert!(fs::read(&path).unwrap() == [[1; 4096], [0; 4096], [3; 4096]].concat());
    mount.unmount();
}

/// Holes and data as `lseek` tells them, at the borders and behind the end.
#[test]
fn holes_and_data() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let file = open(&mount.path().join("f"));
    file.write_all_at(&[1; 5000], 8192).unwrap();
    file.write_all_at(&[1; 3_000_000], 1 << 20).unwrap();
    file.set_len(10_000_000).unwrap();
    let end = (1 << 20) + 3_002_368;
    let (data, hole) = (libc::SEEK_DATA, libc::SEEK_HOLE);
    for (from, whence, expected) in [
        (0, data, Ok(8192)),
        (0, hole, Ok(0)),
        (9000, data, Ok(9000)),
        (9000, hole, Ok(16_384)),
        (16_384, data, Ok(1 << 20)),
        (1 << 20, hole, Ok(end)),
        (end, data, Err(libc::ENXIO)),
        (end, hole, Ok(end)),
        (9_999_999, hole, Ok(9_999_999)),
        (10_000_000, hole, Err(libc::ENXIO)),
        (10_000_000, data, Err(libc::ENXIO)),
        (-1, data, Err(libc::ENXIO)),
    ] {
        assert_eq!(seek(&file, from, whence), expected, "{from}, {whence}");
    }
    assert_eq!(file.metadata().unwrap().blocks(), (2 + 733) * 8);
    drop(file);
    mount.unmount();
}

/// 2^48 bytes: writes at the end, sparse; growing and shrinking by truncation; several such files beside each other.
#[test]
fn very_large_files() {
    const FAR: u64 = 1 << 48;
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let empty = free(mount.path());
    for n in 0..20u8 {
        let path = mount.path().join(format!("f{n}"));
        let file = open(&path);
        file.write_all_at(&[n; 3], 5).unwrap();
        file.write_all_at(&[n; 10], FAR - 10).unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!((meta.len(), meta.blocks()), (FAR, 16));
        assert_eq!(seek(&file, 4096, libc::SEEK_DATA), Ok(FAR as i64 - 4096));
    }
    mount.remount();
    for n in 0..20u8 {
        let file = open(&mount.path().join(format!("f{n}")));
        let mut buf = [0xee; 20];
        assert_eq!(file.read_at(&mut buf, FAR - 10).unwrap(), 10);
        assert_eq!(buf[..10], [n; 10]);
        file.set_len(4).unwrap();
        file.set_len(FAR).unwrap();
        assert_eq!(file.read_at(&mut buf, 0).unwrap(), 20);
        assert_eq!(buf, [0; 20], "old bytes do not come back");
        assert_eq!(file.read_at(&mut buf, FAR - 10).unwrap(), 10);
        assert_eq!(buf[..10], [0; 10]);
        file.set_len(0).unwrap();
    }
    for n in 0..20 {
        fs::remove_file(mount.path().join(format!("f{n}"))).unwrap();
    }
    assert!(free(mount.path()) >= empty);
    let file = open(&mount.path().join("f"));
    let too_far = file.set_len((1 << 62) + 1).unwrap_err();
    assert_eq!(too_far.raw_os_error(), Some(libc::EFBIG));
    drop(file);
    mount.unmount();
}

/// `copy_file_range` between files and inside one, against a copy in memory, with writes and punches in between.
#[test]
fn random_copies_match() {
    const SIZE: usize = 100_000;
    const STEPS: usize = 3000;
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let files = ["a", "b"].map(|label| open(&mount.path().join(label)));
    let mut expected = [Vec::new(), Vec::new()];
    let mut dice = Dice::new(11);
    let at = |dice: &mut Dice| match dice.below(2) {
        0 => dice.below(SIZE as u64) as usize,
        _ => dice.below(SIZE as u64 / 4096) as usize * 4096,
    };
    for step in 0..STEPS {
        let (from, to) = (dice.below(2) as usize, dice.below(2) as usize);
        let (start, target) = (at(&mut dice), at(&mut dice));
        let len = 1 + dice.below(40_000) as usize;
        match dice.below(4) {
            0 => {
                let bytes = vec![step as u8; len];
                files[to].write_all_at(&bytes, target as u64).unwrap();
                let size = expected[to].len().max(target + len);
                expected[to].resize(size, 0);
                expected[to][target..target + len].copy_from_slice(&bytes);
            }
            1 => {
                let done = fallocate(&files[to], PUNCH | KEEP, target as i64, len as i64);
                assert_eq!(done, Ok(0));
                let size = expected[to].len();
                expected[to][target.min(size)..(target + len).min(size)].fill(0);
            }
            _ => {
                let found = copy(&files[from], start as i64, &files[to], target as i64, len);
                let size = expected[from].len();
                // The kernel takes what is behind the end off the range before it looks for an overlap.
                let n = (start + len).min(size).saturating_sub(start);
                if from == to && start < target + n && target < start + n {
                    assert_eq!(found, Err(libc::EINVAL), "step {step}");
                    continue;
                }
                assert_eq!(found, Ok(n as i64), "step {step}");
                let bytes = expected[from][start.min(size)..(start + n).min(size)].to_vec();
                let size = expected[to].len().max(if n > 0 { target + n } else { 0 });
                expected[to].resize(size, 0);
                expected[to][target.min(size)..][..n].copy_from_slice(&bytes);
            }
        }
        let label = ["a", "b"][to];
        let found = fs::read(mount.path().join(label)).unwrap();
        assert!(found == expected[to], "step {step}: {label}");
    }
    drop(files);
    mount.remount();
    for (label, expected) in ["a", "b"].into_iter().zip(expected) {
        assert!(fs::read(mount.path().join(label)).unwrap() == expected);
    }
    mount.unmount();
}

/// `cp`, told to or not, clones: a copy of 64 MiB on a real volume writes next to nothing, and is a file of its own.
/// `FICLONE` itself stops in the kernel.
#[test]
fn cp_moves_no_data() {
    const BYTES: usize = (64 << 20) + 1234;
    const FICLONE: libc::c_ulong = 0x4004_9409;
    let Some(probe) = Mount::new(10) else {
        return;
    };
    drop(probe);
    let mut device = MemDevice::new(512 << 20).unwrap();
    ftl::Ftl::format(&mut device, &ftl::FormatOptions::default()).unwrap();
    let volume = Arc::new(Volume::open(device, VolumeOptions::default()).unwrap().0);
    Fs::format(&volume, &FormatOptions::default()).unwrap();
    let dir = tempfile::TempDir::new().unwrap();
    let fs = Arc::new(Fs::mount(Arc::clone(&volume)).unwrap());
    let mut mounted = mount(fs, dir.path(), &MountOptions::default()).unwrap();
    let source = dir.path().join("source");
    let bytes: Vec<u8> = (0..BYTES).map(|n| (n / 4096) as u8).collect();
    fs::write(&source, &bytes).unwrap();
    run(Command::new("sync").arg("-f").arg(dir.path()));
    for (label, options) in [
        ("plain", &[][..]),
        ("auto", &["--reflink=auto"]),
        ("sparse", &["--sparse=always", "--reflink=auto"]),
    ] {
        let copy = dir.path().join(label);
        let written = || {
            let stats = volume.ftl().stats();
            (stats.user_grains, stats.clones)
        };
        let before = written();
        run(Command::new("cp").args(options).arg(&source).arg(&copy));
        File::open(&copy).unwrap().sync_all().unwrap();
        let after = written();
        println!(
            "cp {options:?} of 64 MiB: {} grains written, {} clones",
            after.0 - before.0,
            after.1 - before.1
        );
        assert!(fs::read(&copy).unwrap() == bytes, "{label}");
        // `--sparse=always` asks cp to look at the bytes, so that is what it does.
        if label != "sparse" {
            assert!(after.1 > before.1 && after.0 - before.0 < 256, "{label}");
        }
    }
    let (from, to) = (open(&source), open(&dir.path().join("clone")));
    // SAFETY: the ioctl takes a descriptor by value.
    let cloned = unsafe { libc::ioctl(to.as_raw_fd(), FICLONE, from.as_raw_fd()) };
    assert_eq!(answer(cloned.into()), Err(libc::EOPNOTSUPP));
    drop((from, to));
    mounted.unmount().unwrap();
}

/// `fstrim` is answered: nothing is left to trim, because unlinking and punching did it at once.
#[test]
fn fstrim_finds_nothing_to_do() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let empty = free(mount.path());
    let path = mount.path().join("f");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    fs::remove_file(&path).unwrap();
    // But for a grain of the directory. That the file was closed is told behind the back of who closes it.
    until("its space is back", || free(mount.path()) >= empty - 1);
    let said = run(Command::new("fstrim").arg("-v").arg(mount.path()));
    assert!(said.contains("0 B (0 bytes) trimmed"), "{said}");
    mount.unmount();
}

/// The kernel tells a FUSE file system that is on no block device nothing of `sync` and `syncfs`. Should this fail, it does now:
/// then the option `syncfs` is not needed, and the notes in `docs/layout.md` and `docs/operating.md` are to be changed.
#[test]
fn sync_stops_in_the_kernel() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let path = mount.path().join("f");
    fs::write(&path, b"not durable").unwrap();
    let file = open(&path);
    let calls = mount.store.calls();
    // SAFETY: no memory is passed, and the descriptor is open.
    let synced = unsafe { libc::syncfs(file.as_raw_fd()) };
    assert_eq!(answer(synced.into()), Ok(0));
    assert_eq!(mount.store.calls(), calls, "the store has heard of it");
    file.sync_all().unwrap();
    assert!(mount.store.calls() > calls);
    drop(file);
    mount.unmount();
}

/// On a block device of its own a mount hears of `sync` and `syncfs`, by either transport, and what was written before is durable
/// then: data, sizes, and what was stored to a mapping. It ends with the mount.
#[test]
fn syncs_are_heard_on_a_block_device() {
    let Some(mut mount) = Mount::new_as_root(GRAINS) else {
        return;
    };
    if !Path::new("/dev/loop-control").exists() {
        return skip("it needs a loop device");
    }
    let volume = tempfile::NamedTempFile::new().unwrap();
    volume.as_file().set_len(1 << 20).unwrap();
    let source = |root: &Path| {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let mut lines = table.lines().map(|line| line.split(' '));
        let found = lines.find(|line| line.clone().nth(1) == root.to_str());
        let mut fields = found.unwrap();
        let source = fields.next().unwrap().to_owned();
        assert_eq!(fields.nth(1), Some("fuseblk.contigfs"));
        source
    };
    for rings in [true, false] {
        mount.remount_with(MountOptions {
            syncfs: Some(volume.path().to_owned()),
            rings,
            ..MountOptions::default()
        });
        let root = mount.path().to_owned();
        let device = source(&root);
        let shown = Path::new("/sys/block").join(device.strip_prefix("/dev/").unwrap());
        let shown = shown.join("loop/backing_file");
        let shown_file = fs::read_to_string(&shown).unwrap();
        assert_eq!(Path::new(shown_file.trim_end()), volume.path());
        let (path, mapped) = (root.join("f"), root.join("mapped"));
        for all in [true, false] {
            let bytes = vec![u8::from(all) + 2 * u8::from(rings) + 1; 3 << 20 | 5];
            fs::write(&path, &bytes).unwrap();
            let file = open(&mapped);
            file.set_len(GRAIN as u64).unwrap();
            // SAFETY: the file is as long as the mapping, and nobody else maps it.
            let mut map = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
            map.fill(bytes[0]);
            if all {
                // SAFETY: no memory is passed.
                unsafe { libc::sync() };
            } else {
                // SAFETY: no memory is passed, and the descriptor is open.
                let synced = unsafe { libc::syncfs(file.as_raw_fd()) };
                assert_eq!(answer(synced.into()), Ok(0));
            }
            let cut = Arc::new(mount.store.after_power_cut(|_| 0));
            let fs = Fs::mount(cut).unwrap();
            let read = |name: &str, len: usize| {
                let found = fs.lookup(InodeNo::ROOT, name.as_ref()).unwrap();
                let mut got = vec![0; len + 1];
                let len = fs.read(found.ino, 0, &mut got).unwrap();
                got.truncate(len);
                got
            };
            assert!(read("f", bytes.len()) == bytes, "rings {rings}, all {all}");
            assert!(read("mapped", GRAIN) == vec![bytes[0]; GRAIN]);
        }
        mount.remount_with(MountOptions::default());
        let start = Instant::now();
        while shown.exists() {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "{device} is left"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    mount.unmount();
}

/// The length of reads that go over a grain that can not be read.
const READ_BYTES: usize = 1 << 20;

/// I7: a grain that can not be read costs its own bytes: reads of any length get all others, and EIO where it begins. So does
/// a mapping, whose pages are read many at a time: none of them is zeros, and the file stays as long as it is.
#[test]
fn a_damaged_grain_costs_its_own_bytes() {
    let Some(mount) = Mount::new(GRAINS) else {
        return;
    };
    const BAD: usize = 100;
    let mut dice = Dice::new(5);
    let expected: Vec<u8> = (0..READ_BYTES + 3000).map(|_| dice.roll() as u8).collect();
    let path = mount.path().join("f");
    fs::write(&path, &expected).unwrap();
    let ino = InodeNo(fs::metadata(&path).unwrap().ino());
    let range = mount.fs().file_extent(ino).unwrap().range;
    let file = open(&path);
    file.sync_all().unwrap();
    mount.store.damage(range.start.offset(BAD as u64));
    let is_bad = |at: usize| at / 4096 == BAD;
    for (first, step) in [(0, 4096), (0, READ_BYTES), (1234, READ_BYTES), (0, 10_000)] {
        let mut buffer = vec![0; step];
        let (mut at, mut errors) = (first, 0);
        while at < expected.len() {
            match file.read_at(&mut buffer, at as u64) {
                Ok(0) => panic!("the end is at {at}"),
                Ok(n) => {
                    assert!(buffer[..n] == expected[at..at + n], "{n} bytes at {at}");
                    at += n;
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO));
                    assert!(is_bad(at), "at {at} of reads of {step}");
                    errors += 1;
                    at = (BAD + 1) * 4096;
                }
            }
        }
        assert_eq!(errors, 1, "reads of {step}");
    }
    // SAFETY: nobody changes the file.
    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    for at in (0..expected.len()).filter(|&at| !is_bad(at)) {
        assert!(map[at] == expected[at], "{at} of the mapping");
    }
    assert_eq!(file.metadata().unwrap().len(), expected.len() as u64);
}
