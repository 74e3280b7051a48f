//! The file device on real temporary files, over io_uring and without.

use super::*;
use crate::device::testing::{TestBuf, run, start};

const LEN: u64 = 64 * 4096;

fn image(dir: &tempfile::TempDir) -> std::path::PathBuf {
    dir.path().join("image")
}

/// Both drivers where the system has io_uring; the blocking one alone (said so) where it has none.
fn both_drivers(test: impl Fn(&dyn Fn(FileDevice) -> FileDevice)) {
    test(&|device| device.without_ring());
    if let Err(error) = Ring::new() {
        let required = std::env::var("FLASHNET_REQUIRE").unwrap_or_default();
        assert!(!required.contains("all"), "io_uring is missing: {error}");
        println!("skipped over io_uring: {error}");
        return;
    }
    test(&|device| {
        assert!(device.has_ring());
        device
    });
}

/// What is written is read back, through another handle too, and nothing around it changes.
#[test]
fn writes_read_back() {
    both_drivers(|driver| {
        let dir = tempfile::tempdir().unwrap();
        let mut device = driver(FileDevice::create(image(&dir), LEN, Allocation::Reserve).unwrap());
        assert_eq!(device.len_bytes(), LEN);
        let mut buf = TestBuf::filled(3, 9);
        assert_eq!(run(&mut device, buf.write_op(4096)), Ok(()));
        assert_eq!(run(&mut device, MediaOp::Flush), Ok(()));
        drop(device);

        let bytes = std::fs::read(image(&dir)).unwrap();
        assert_eq!(bytes.len() as u64, LEN);
        assert!(bytes[4096..4 * 4096].iter().all(|byte| *byte == 9));
        assert!(bytes[4 * 4096..].iter().all(|byte| *byte == 0));

        let mut device = driver(FileDevice::open(image(&dir)).unwrap());
        buf.fill(0);
        assert_eq!(run(&mut device, buf.read_op(2 * 4096)), Ok(()));
        assert!(buf.bytes()[..2 * 4096].iter().all(|byte| *byte == 9));
        assert!(buf.bytes()[2 * 4096..].iter().all(|byte| *byte == 0));
    });
}

/// Far more operations than the queue is deep: each completes exactly once (I18).
#[test]
fn deep_queue() {
    both_drivers(|driver| {
        let dir = tempfile::tempdir().unwrap();
        let mut device = driver(FileDevice::create(image(&dir), LEN, Allocation::Sparse).unwrap());
        let mut bufs: Vec<_> = (0..500_usize)
            .map(|n| TestBuf::filled(1, n as u8))
            .collect();
        for (n, buf) in bufs.iter_mut().enumerate() {
            start(&mut device, n as u64, buf.write_op(n as u64 % 64 * 4096));
        }
        let mut seen = vec![false; bufs.len()];
        while let Some((id, result)) = device.poll(true) {
            assert_eq!(result, Ok(()));
            assert!(!std::mem::replace(&mut seen[id.0 as usize], true));
        }
        assert!(seen.iter().all(|seen| *seen));
        assert_eq!(device.poll(false), None);
    });
}

/// Dropping the device with operations in flight waits for them.
#[test]
fn drop_waits() {
    both_drivers(|driver| {
        let dir = tempfile::tempdir().unwrap();
        let mut device = driver(FileDevice::create(image(&dir), LEN, Allocation::Sparse).unwrap());
        let mut buf = TestBuf::filled(64, 5);
        start(&mut device, 0, buf.write_op(0));
        start(&mut device, 1, MediaOp::Flush);
        device.submit(Action {
            id: ActionId(2),
            op: MediaOp::Discard {
                offset: 0,
                len: 4096,
            },
        });
        drop(device);
        let bytes = std::fs::read(image(&dir)).unwrap();
        assert!(bytes[4096..].iter().all(|byte| *byte == 5) || bytes.iter().all(|b| *b == 0));
        drop(buf);
    });
}

/// A discarded range is given back, its neighbours stay.
#[test]
fn discards() {
    both_drivers(|driver| {
        let dir = tempfile::tempdir().unwrap();
        let mut device = driver(FileDevice::create(image(&dir), LEN, Allocation::Sparse).unwrap());
        let mut buf = TestBuf::filled(4, 5);
        assert_eq!(run(&mut device, buf.write_op(0)), Ok(()));
        let discard = MediaOp::Discard {
            offset: 4096,
            len: 2 * 4096,
        };
        assert_eq!(run(&mut device, discard), Ok(()));
        assert_eq!(run(&mut device, buf.read_op(0)), Ok(()));
        assert!(buf.bytes()[..4096].iter().all(|byte| *byte == 5));
        assert!(buf.bytes()[3 * 4096..].iter().all(|byte| *byte == 5));
    });
}

/// A transfer that the file can not finish is an error, never a success.
#[test]
fn shortened_file() {
    both_drivers(|driver| {
        let dir = tempfile::tempdir().unwrap();
        let mut device = driver(FileDevice::create(image(&dir), LEN, Allocation::Sparse).unwrap());
        device.file().set_len(4096).unwrap();
        let mut buf = TestBuf::filled(2, 1);
        assert_eq!(run(&mut device, buf.read_op(0)), Err(MediaError::Short));
        assert_eq!(run(&mut device, buf.read_op(4096)), Err(MediaError::Short));
    });
}

/// Requests outside of the device, misaligned or empty fail before the system sees them.
#[test]
fn invalid_requests() {
    both_drivers(|driver| {
        let dir = tempfile::tempdir().unwrap();
        let mut device = driver(FileDevice::create(image(&dir), LEN, Allocation::Sparse).unwrap());
        let mut buf = TestBuf::filled(2, 1);
        for offset in [LEN - 4096, LEN, 512, u64::MAX - 4095] {
            let result = run(&mut device, buf.write_op(offset));
            assert_eq!(result, Err(MediaError::Invalid), "write at {offset}");
        }
        let empty = MediaOp::Discard { offset: 0, len: 0 };
        assert_eq!(run(&mut device, empty), Err(MediaError::Invalid));
        assert!(std::fs::read(image(&dir)).unwrap().iter().all(|b| *b == 0));
    });
}

/// One user at a time; readers share; the lock ends with the device.
#[test]
fn exclusion() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::create(image(&dir), LEN, Allocation::Sparse).unwrap();
    let second = FileDevice::open(image(&dir));
    assert!(matches!(second, Err(DeviceOpenError::InUse { .. })));
    let reader = FileDevice::open_read_only(image(&dir));
    assert!(matches!(reader, Err(DeviceOpenError::InUse { .. })));
    let again = FileDevice::create(image(&dir), LEN, Allocation::Sparse);
    assert!(matches!(again, Err(DeviceOpenError::Exists { .. })));

    // The reactor's way: the parts carry the lock.
    let parts = device.into_parts();
    assert_eq!(parts.len_bytes, LEN);
    assert!(matches!(
        FileDevice::open(image(&dir)),
        Err(DeviceOpenError::InUse { .. })
    ));
    drop(parts);

    let first = FileDevice::open_read_only(image(&dir)).unwrap();
    let mut second = FileDevice::open_read_only(image(&dir)).unwrap();
    assert!(matches!(
        FileDevice::open(image(&dir)),
        Err(DeviceOpenError::InUse { .. })
    ));
    let mut buf = TestBuf::filled(1, 1);
    assert_eq!(run(&mut second, buf.write_op(0)), Err(MediaError::ReadOnly));
    assert_eq!(run(&mut second, buf.read_op(0)), Ok(()));
    drop((first, second));
    assert!(FileDevice::open(image(&dir)).is_ok());
}

/// Errors name the path and the cause.
#[test]
fn open_errors() {
    let dir = tempfile::tempdir().unwrap();
    let missing = FileDevice::open(image(&dir)).unwrap_err();
    assert!(matches!(missing, DeviceOpenError::NotFound { .. }));
    assert!(missing.to_string().contains("image: no such file"));

    let directory = FileDevice::open(dir.path()).unwrap_err();
    assert!(matches!(directory, DeviceOpenError::WrongKind { .. }));

    std::fs::write(image(&dir), b"tiny").unwrap();
    let tiny = FileDevice::open(image(&dir)).unwrap_err();
    assert!(matches!(tiny, DeviceOpenError::TooSmall { bytes: 4, .. }));

    let huge = dir.path().join("huge");
    let error = FileDevice::create(&huge, 1 << 55, Allocation::Reserve).unwrap_err();
    assert!(matches!(error, DeviceOpenError::NoSpace { .. }), "{error}");
    assert!(!huge.exists(), "a failed creation leaves nothing behind");
}

/// A file system without direct I/O, or with it: either way the content is right and the flag says which.
#[test]
fn memory_file_system() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: no /dev/shm");
        return;
    };
    let mut device = FileDevice::create(image(&dir), LEN, Allocation::Reserve).unwrap();
    println!("direct on /dev/shm: {}", device.is_direct());
    let mut buf = TestBuf::filled(2, 3);
    assert_eq!(run(&mut device, buf.write_op(4096)), Ok(()));
    assert_eq!(run(&mut device, MediaOp::Flush), Ok(()));
    buf.fill(0);
    assert_eq!(run(&mut device, buf.read_op(4096)), Ok(()));
    assert!(buf.bytes().iter().all(|byte| *byte == 3));
}

/// Whoever opens a file that can not be read past the page cache finds nothing there of those who had it before.
#[test]
fn the_cache_is_forgotten() {
    let is_cached = |file: &File| {
        let mut byte = [0_u8];
        let part = libc::iovec {
            iov_base: byte.as_mut_ptr().cast(),
            iov_len: 1,
        };
        // SAFETY: the part is `byte`, which lives until the call has returned.
        let got =
            unsafe { libc::preadv2(file.as_raw_fd(), &raw const part, 1, 0, libc::RWF_NOWAIT) };
        got == 1
    };
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(image(&dir), [7; 8192]).unwrap();
    let file = File::open(image(&dir)).unwrap();
    assert!(is_cached(&file));
    // To ask starts to read ahead, and media may be quicker than the answer. What was left in the cache would be there each time.
    let forgotten = (0..10).any(|_| {
        forget_cached(&file);
        !is_cached(&file)
    });
    // What lies in memory only stays there.
    let mut kind = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `fstatfs` writes to `kind`, which is as large as that takes.
    let told = unsafe { libc::fstatfs(file.as_raw_fd(), kind.as_mut_ptr()) };
    assert_eq!(told, 0);
    // SAFETY: it has succeeded.
    let kind = unsafe { kind.assume_init() }.f_type;
    assert!(forgotten || kind == libc::TMPFS_MAGIC);
}
