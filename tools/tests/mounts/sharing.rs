//! Files that share their pages with the programs that map them, on a real mount of a target of its own.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{self, Image, Target, can_mount, can_serve, good, pattern, skip, tool};
use memmap2::{MmapOptions, MmapRaw};
use softrdma::{Operation, Source, WorkRequest, WrId};
use tools::client::{RemoteFile, Session};
use tools::control::{FLAG_WRITE, Op, Request};

const PAGE: u64 = 4096;
/// No look ever comes.
const NEVER: &str = "3600";

/// Whether pages can be shared here; if not, the test has been skipped.
fn can_share() -> bool {
    // SAFETY: the call has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        skip("pages are shared by root only");
        return false;
    }
    can_serve() && can_mount()
}

/// A target that mounts beside its image, with these options.
fn serve(image: &Image, more: &[&str]) -> (Target, PathBuf) {
    let dir = image.beside("mnt");
    let _ = fs::create_dir(&dir);
    let options = [&["--mount", dir.to_str().unwrap()], more].concat();
    (image.serve(&options), dir)
}

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    options.open(path).unwrap()
}

fn map(file: &File) -> MmapRaw {
    MmapOptions::new().map_raw(file).unwrap()
}

fn word(map: &MmapRaw, at: u64) -> &AtomicU64 {
    let at = at as usize;
    assert!(at + 8 <= map.len() && at.is_multiple_of(8));
    // SAFETY: inside of the mapping and aligned. Whoever else changes it does so through an atomic, or from outside.
    unsafe { AtomicU64::from_ptr(map.as_mut_ptr().add(at).cast()) }
}

fn put(map: &MmapRaw, at: u64, value: u64) {
    word(map, at).store(value.to_le(), Ordering::SeqCst);
}

fn look(map: &MmapRaw, at: u64) -> u64 {
    u64::from_le(word(map, at).load(Ordering::SeqCst))
}

/// Says of a file whether its pages are to be shared: `1` or `0`.
fn mark(path: &Path, value: u8) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let name = CString::new(contigfs::fuse::SHARE_ATTRIBUTE).unwrap();
    let value = (&raw const value).cast();
    // SAFETY: two NUL-terminated strings and one byte, which live over the call.
    let done = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value, 1, 0) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// A remote peer.
struct Peer {
    session: Session,
    file: RemoteFile,
}

impl Peer {
    fn of(target: &Target, path: &str) -> Self {
        let mut session = target.session();
        let request = Request {
            flags: FLAG_WRITE,
            ..Request::new(Op::Open, path)
        };
        let file = session.open(request).unwrap();
        Self { session, file }
    }

    fn load(&mut self, at: u64) -> u64 {
        let mut value = 0;
        let take = |_, bytes: &[u8]| {
            value = u64::from_le_bytes(bytes.try_into().unwrap());
            Ok(())
        };
        self.session.read(&self.file, at, 8, take).unwrap();
        value
    }

    fn store(&mut self, at: u64, value: u64) {
        let operation = Operation::Write {
            source: Source::Bytes(value.to_le_bytes().into()),
            remote: self.file.at(at),
        };
        self.session
            .post(WorkRequest::new(WrId(0), operation))
            .unwrap();
        self.session.success("WRITE").unwrap();
        self.session.fence(&self.file).unwrap();
    }
}

/// A mapping, calls and remote peers see each other's stores at once, without `msync` and without anybody looking for
/// stores: in data, in a hole, and in what the file has grown by. `fsync` makes stores of mappings durable (I1).
#[test]
fn a_mapping_has_the_very_pages() {
    if !can_share() {
        return;
    }
    for rings in ["uring", "nouring"] {
        let image = Image::new("64MiB");
        let options = ["--share-pages", "--share-scan", NEVER, "-o", rings];
        let (target, dir) = serve(&image, &options);
        let path = dir.join("f");
        // Data, then a hole.
        fs::write(&path, [1; 2 * PAGE as usize]).unwrap();
        let file = open(&path);
        file.set_len(40 * PAGE).unwrap();
        let first = map(&file);
        let second = map(&open(&path));
        let mut peer = Peer::of(&target, "/f");
        for round in 1..=30_u64 {
            for page in [0, 1, 20, 39] {
                let at = page * PAGE + 8 * round;
                put(&first, at, round);
                assert_eq!(peer.load(at), round, "page {page}");
                peer.store(at, round << 32);
                assert_eq!(look(&first, at), round << 32);
                file.write_all_at(&round.to_le_bytes(), at).unwrap();
                assert_eq!(look(&second, at), round);
                put(&second, at, !round);
                let mut bytes = [0; 8];
                file.read_exact_at(&mut bytes, at).unwrap();
                assert_eq!(u64::from_le_bytes(bytes), !round);
            }
        }
        drop(peer);
        // The end moves under the mappings.
        file.set_len(80 * PAGE).unwrap();
        file.write_all_at(&7_u64.to_le_bytes(), 90 * PAGE).unwrap();
        let longer = map(&file);
        let mut peer = Peer::of(&target, "/f");
        for (page, old) in [(50, 0), (90, 7)] {
            assert_eq!(look(&longer, page * PAGE), old);
            put(&longer, page * PAGE, page);
            assert_eq!(peer.load(page * PAGE), page);
            peer.store(page * PAGE, !page);
            assert_eq!(look(&longer, page * PAGE), !page);
        }
        let expected: Vec<u8> = (0..40 * PAGE).map(|n| n as u8).collect();
        // SAFETY: inside of the mapping; nobody else uses it now.
        unsafe {
            std::ptr::copy_nonoverlapping(expected.as_ptr(), first.as_mut_ptr(), expected.len());
        }
        file.sync_all().unwrap();
        target.kill();
        drop((first, second, longer, file));
        let (target, _) = serve(&image, &[]);
        let found = fs::read(&path).unwrap();
        assert!(found[..expected.len()] == expected);
        assert_eq!(found.len() as u64, 90 * PAGE + 8);
        assert_eq!(found[50 * PAGE as usize..][..8], (!50_u64).to_le_bytes());
        assert!(target.stop().success());
    }
}

/// What a mapping stores is on the media within the time between two looks and the age of dirty pages, without anybody
/// asking for it; so is what it stores when the file is closed already. When it has gone, the file is as any other.
#[test]
fn stores_reach_the_media_in_time() {
    if !can_share() {
        return;
    }
    let image = Image::new("64MiB");
    let (target, dir) = serve(&image, &["--share-pages", "--share-scan", "0.2"]);
    let path = dir.join("f");
    let content = pattern(300_000, 3);
    fs::write(&path, &content).unwrap();
    let file = open(&path);
    let map = map(&file);
    file.sync_all().unwrap();
    drop(file);
    // The kernel has told of that by now.
    thread::sleep(Duration::from_millis(500));
    put(&map, 8192, 11);
    let mut peer = Peer::of(&target, "/f");
    assert_eq!(peer.load(8192), 11);
    peer.store(16, 12);
    assert_eq!(look(&map, 16), 12);
    // 0.2 s until it is found, 1 s until it is written; the rest is for a busy machine.
    thread::sleep(Duration::from_secs(4));
    target.kill();
    drop(map);
    let (target, _) = serve(&image, &["--share-pages", "--share-scan", "0.2"]);
    let mut expected = content;
    expected[8192..8200].copy_from_slice(&11_u64.to_le_bytes());
    expected[16..24].copy_from_slice(&12_u64.to_le_bytes());
    assert!(fs::read(&path).unwrap() == expected);
    // Whatever was shared has been given back: the end is in order, and nothing keeps the mount busy.
    let busy = Command::new("umount").arg(&dir).status().unwrap();
    assert!(busy.success());
    assert!(target.stop().success());
}

/// A file larger than what may be shared is mapped like one of a mount that shares nothing; one that would become larger
/// says EFBIG and stays as it is. A file that the attribute excludes is not shared, and others make no room for it.
#[test]
fn a_limit_and_exceptions() {
    if !can_share() {
        return;
    }
    let image = Image::new("64MiB");
    let options = [
        "--share-pages",
        "--share-scan",
        NEVER,
        "--share-limit",
        "1MiB",
    ];
    let (target, dir) = serve(&image, &options);
    let large = dir.join("large");
    fs::write(&large, vec![1; 2 << 20]).unwrap();
    let file = open(&large);
    let mapped = map(&file);
    put(&mapped, 8, 5);
    mapped.flush().unwrap();
    let mut peer = Peer::of(&target, "/large");
    assert_eq!(peer.load(8), 5);
    peer.store(1 << 20, 6);
    assert_eq!(look(&mapped, 1 << 20), 6);
    drop((peer, mapped));

    let small = open(&dir.join("small"));
    small.set_len(600 << 10).unwrap();
    let mapped = map(&small);
    let refused = small.set_len(2 << 20).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EFBIG));
    let refused = small.write_all_at(&[1; 8192], 3 << 20).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EFBIG));
    assert_eq!(small.metadata().unwrap().len(), 600 << 10);
    put(&mapped, 0, 9);
    assert_eq!(Peer::of(&target, "/small").load(0), 9);
    drop((mapped, small, file));
    assert!(target.stop().success());

    let (target, dir) = serve(&image, &["-o", "share_pages=marked,share_scan=3600"]);
    let (plain, marked) = (dir.join("plain"), dir.join("marked"));
    for path in [&plain, &marked] {
        fs::write(path, [0; 8192]).unwrap();
    }
    mark(&marked, b'1');
    let shared = |path: &Path, name: &str| {
        let map = map(&open(path));
        put(&map, 0, 77);
        Peer::of(&target, name).load(0) == 77
    };
    assert!(shared(&marked, "/marked"));
    assert!(!shared(&plain, "/plain"));
    assert!(target.stop().success());
}

/// A file that nobody has open or mapped any more is as large as its programs want at once, not after the next look: it may be
/// cut by its path to what is beyond its range or the limit, and who opens it for writing only writes as much as fits (docs/coherence.md).
#[test]
fn what_is_not_mapped_any_more_has_no_limit() {
    if !can_share() {
        return;
    }
    let image = Image::new("64MiB");
    let options = "share_pages,share_scan=3600,share_limit=1MiB";
    let (target, dir) = serve(&image, &["-o", options]);
    let path = dir.join("f");
    let cut = |bytes| nix::unistd::truncate(&path, bytes);
    // The mapping goes after it is known that the descriptor has gone, which tells nobody.
    let map_and_close = || {
        cut(4096).unwrap();
        let mapped = map(&open(&path));
        thread::sleep(Duration::from_millis(10));
        drop(mapped);
    };
    fs::write(&path, "").unwrap();
    for _ in 0..10 {
        map_and_close();
        cut(1 << 40).unwrap();
        map_and_close();
        cut(2 << 20).unwrap();
        map_and_close();
        fs::write(&path, vec![1; 2 << 20]).unwrap();
    }
    map_and_close();
    let file = open(&path);
    assert_eq!(cut(2 << 20), Err(nix::errno::Errno::EFBIG));
    drop(file);
    assert!(target.stop().success());
}

/// Of files that are not shared on a mount where others are, a peer sees what a mapping has stored when a descriptor of the file
/// is closed, as on any mount: a file that is too large, one that the attribute excludes, and one that has no attribute where
/// it takes one.
#[test]
fn close_delivers_stores_to_files_that_are_not_shared() {
    if !can_share() {
        return;
    }
    let all = "share_pages,share_scan=3600,share_limit=1MiB";
    let marked = "share_pages=marked,share_scan=3600";
    for (options, value, size) in [
        (all, None, 2 << 20),
        (all, Some(b'0'), 2 * PAGE),
        (marked, None, 2 * PAGE),
    ] {
        let image = Image::new("64MiB");
        let (target, dir) = serve(&image, &["-o", options]);
        let path = dir.join("f");
        fs::write(&path, vec![0; size as usize]).unwrap();
        if let Some(value) = value {
            mark(&path, value);
        }
        let file = open(&path);
        let mapped = map(&file);
        put(&mapped, PAGE + 8, 5);
        drop(file);
        let mut peer = Peer::of(&target, "/f");
        assert_eq!(peer.load(PAGE + 8), 5, "{options}, {value:?}");
        drop((peer, mapped));
        assert!(target.stop().success());
    }
}

/// What `sendfile` finds in the third word of a file.
fn sent(file: &File) -> u64 {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut at = 16;
    // SAFETY: two open descriptors, and an offset that lives over the call.
    let n = unsafe { libc::sendfile(writer.as_raw_fd(), file.as_raw_fd(), &raw mut at, 8) };
    assert_eq!(n, 8, "{}", std::io::Error::last_os_error());
    let mut bytes = [0; 8];
    reader.read_exact(&mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// Programs on a mount that shares pages: they run from it, and what truncates, removes or replaces a mapped file does to
/// mappings what it does elsewhere.
#[test]
fn programs_go_on() {
    if !can_share() {
        return;
    }
    let image = Image::new("64MiB");
    let (target, dir) = serve(&image, &["--share-pages", "--share-scan", "0.1"]);
    let program = dir.join("true");
    // Not by this process: what it has open for writing a child of another test has for a moment, too, and no system runs a
    // program that somebody may write to (ETXTBSY).
    let copied = Command::new("cp").arg("/bin/true").arg(&program).status();
    assert!(copied.unwrap().success());
    for _ in 0..3 {
        assert!(Command::new(&program).status().unwrap().success());
    }
    let path = dir.join("f");
    let file = open(&path);
    file.set_len(8 * PAGE).unwrap();
    let mapped = map(&file);
    put(&mapped, PAGE - 8, 1);
    put(&mapped, 5 * PAGE, 2);
    file.set_len(PAGE / 2).unwrap();
    // In the last page, behind the end.
    put(&mapped, PAGE - 16, 3);
    file.set_len(8 * PAGE).unwrap();
    assert!(fs::read(&path).unwrap() == vec![0; 8 * PAGE as usize]);
    assert_eq!(look(&mapped, 5 * PAGE), 0);
    // Without a name it goes on until the mapping has gone.
    fs::remove_file(&path).unwrap();
    drop(file);
    put(&mapped, 8, 4);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(look(&mapped, 8), 4);
    drop(mapped);
    // `sendfile` goes through the cache of the kernel, which must not keep what it got.
    let path = dir.join("s");
    let file = open(&path);
    file.set_len(PAGE).unwrap();
    let mapped = map(&file);
    for value in 1..=20 {
        put(&mapped, 16, value);
        let start = Instant::now();
        while sent(&file) != value {
            assert!(start.elapsed() < Duration::from_secs(60), "old bytes stay");
        }
    }
    drop((mapped, file));
    // The same file, opened and closed by several at once.
    let path = &dir.join("g");
    fs::write(path, [0; 3 * PAGE as usize]).unwrap();
    thread::scope(|scope| {
        for n in 0..4_u64 {
            scope.spawn(move || {
                for round in 1..=40 {
                    let mapped = map(&open(path));
                    put(&mapped, PAGE + 8 * n, round);
                    drop(mapped);
                    let mut bytes = [0; 8];
                    open(path).read_exact_at(&mut bytes, PAGE + 8 * n).unwrap();
                    assert_eq!(u64::from_le_bytes(bytes), round);
                }
            });
        }
    });
    assert!(target.stop().success());
    common::good(&["fsck", "-n", image.path().to_str().unwrap()]);
}

/// Whenever the target is killed, of every word that a mapping stores to the value is there that the last `fsync` covered, or a
/// younger one (I1, I2), and the volume is in order.
#[test]
fn kills_take_nothing_that_was_synced() {
    const PAGES: u64 = 200;
    if !can_share() {
        return;
    }
    let image = Image::new("96MiB");
    let mut durable = vec![0; PAGES as usize];
    let mut stored = durable.clone();
    let (mut value, mut chance) = (0, 88_172_645_463_325_252_u64);
    let mut below = |bound: u64| {
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        chance % bound
    };
    for life in 0..4 {
        let (target, dir) = serve(
            &image,
            &["--pool", "2MiB", "-o", "share_pages,share_scan=0.01"],
        );
        let file = open(&dir.join("f"));
        file.set_len(PAGES * PAGE).unwrap();
        let mapped = map(&file);
        for page in 0..PAGES {
            let (n, found) = (page as usize, look(&mapped, page * PAGE + 8));
            assert!(
                durable[n] <= found && found <= stored[n],
                "page {page} in life {life}"
            );
            (durable[n], stored[n]) = (found, found);
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(400) {
            for _ in 0..200 {
                let page = below(PAGES);
                value += 1;
                put(&mapped, page * PAGE + 8, value);
                stored[page as usize] = value;
            }
            if below(10) == 0 {
                file.sync_data().unwrap();
                durable.clone_from(&stored);
            }
        }
        target.kill();
    }
    assert!(durable.iter().any(|&value| value > 0));
    common::good(&["fsck", "-n", image.path().to_str().unwrap()]);
}

/// I2, I9: a snapshot has what was synced before it, whatever a mapping stores to the very pages afterwards, synced or found by a
/// look; and it still has it behind a kill.
#[test]
fn a_snapshot_keeps_what_a_mapping_changes() {
    if !can_share() {
        return;
    }
    const PAGES: u64 = 64;
    let image = Image::new("64MiB");
    let options = ["--share-pages", "--share-scan", "0.1"];
    let (target, dir) = serve(&image, &options);
    let path = dir.join("f");
    fs::write(&path, vec![0; (PAGES * PAGE) as usize]).unwrap();
    let file = open(&path);
    let mapping = map(&file);
    let store = |round: u64| {
        for page in 0..PAGES {
            put(&mapping, page * PAGE + 8 * (page % 7), round * 1000 + page);
        }
    };
    let check = |dir: &Path, name: &str, round: u64| {
        let bytes = fs::read(dir.join(".snapshots").join(name).join("f")).unwrap();
        for page in 0..PAGES {
            let at = (page * PAGE + 8 * (page % 7)) as usize;
            let seen = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            assert_eq!(seen, round * 1000 + page, "page {page} of {name}");
        }
    };
    for round in 1..=3 {
        store(round);
        file.sync_all().unwrap();
        let name = format!("s{round}");
        good(&["snapshot", "create", dir.to_str().unwrap(), &name]);
        // Not synced: a look finds it, sooner or later.
        store(round + 100);
        for earlier in 1..=round {
            check(&dir, &format!("s{earlier}"), earlier);
        }
        thread::sleep(Duration::from_millis(300));
        for earlier in 1..=round {
            check(&dir, &format!("s{earlier}"), earlier);
        }
    }
    file.sync_all().unwrap();
    drop((mapping, file));
    target.kill();
    let (target, dir) = serve(&image, &options);
    for round in 1..=3 {
        check(&dir, &format!("s{round}"), round);
    }
    let now = fs::read(dir.join("f")).unwrap();
    assert_eq!(now[..8], 103_000u64.to_le_bytes());
    assert!(target.stop().success());
    good(&["fsck", image.path().to_str().unwrap()]);
}

/// Who runs the target has no CAP_SYS_ADMIN, as in a container: it says that pages are not shared, and why, and goes on as
/// without the option: mappings see remote stores when these are acknowledged, and are seen after `msync`; calls see everything.
#[test]
fn without_the_power_to_share() {
    const INSIDE: &str = "FLASHNET_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_none() {
        if !can_share() {
            return;
        }
        // In a user namespace of its own a program may mount, and has no power over anything else.
        let Some(unshare) = tool("unshare") else {
            return;
        };
        let own = ["--user", "--map-root-user", "--mount"];
        let trial = Command::new(&unshare).args(own).arg("true").output();
        if !trial.unwrap().status.success() {
            return skip("there are no user namespaces");
        }
        let inside = Command::new(&unshare)
            .args(own)
            .arg(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "sharing::without_the_power_to_share",
                "--nocapture",
            ])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&inside.stderr);
        assert!(inside.status.success(), "{said}");
        let out = String::from_utf8_lossy(&inside.stdout);
        assert!(out.contains("1 passed"), "{out}");
        assert!(
            said.contains("pages are not shared") && said.contains("CAP_SYS_ADMIN"),
            "{said}"
        );
        return;
    }
    let image = Image::new("64MiB");
    let (target, dir) = serve(&image, &["--share-pages=all"]);
    let path = dir.join("file");
    let file = open(&path);
    file.write_all_at(&[0; 3 * PAGE as usize], 0).unwrap();
    let map = map(&file);
    let mut peer = Peer::of(&target, "/file");
    for round in 1..100 {
        let at = round % 3 * PAGE + 8 * (round % 64);
        peer.store(at, round);
        assert_eq!(look(&map, at), round);
        put(&map, at + 1024, round);
        map.flush().unwrap();
        assert_eq!(peer.load(at + 1024), round);
        let mut found = [0; 8];
        file.read_exact_at(&mut found, at).unwrap();
        assert_eq!(u64::from_le_bytes(found), round);
    }
    drop((map, file, peer));
    assert!(target.stop().success());
    good(&["fsck", image.path().to_str().unwrap()]);
}
