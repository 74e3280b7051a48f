//! A peer that changes a program ends what it gives to whoever runs it (setuid, setgid, file capabilities), as a local writer
//! without privileges does: `tools/docs/regions.md`. Else who may write to a file over the network could run whatever he likes
//! as its owner (I9, I10).

use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::hint::spin_loop;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::world::{World, get, open, put, try_put};
use memmap2::{MmapOptions, MmapRaw};
use softrdma::{Atomic, Operation, WorkRequest, WrId};
use tools::client::{RemoteFile, Session};
use tools::control::{FLAG_PERSISTENT, FLAG_TRUNCATE, FLAG_WRITE, Op, Request};

const LEN: usize = 20_000;
/// Permissions before a write, and behind it: setgid without execution by the group is no privilege.
const BITS: [(u32, u32); 4] = [
    (0o4755, 0o755),
    (0o6711, 0o711),
    (0o2755, 0o755),
    (0o6644, 0o2644),
];

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

const CAPABILITY: &std::ffi::CStr = c"security.capability";

/// `cap_net_raw=ep`, as setcap(8) writes it.
fn set_capability(path: &Path) {
    let value: [u8; 20] = [
        1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: two strings that end, and bytes with their length.
    let done = unsafe {
        let value = (value.as_ptr().cast(), value.len());
        libc::setxattr(path.as_ptr(), CAPABILITY.as_ptr(), value.0, value.1, 0)
    };
    assert_eq!(done, 0, "{}", Error::last_os_error());
}

fn has_capability(path: &Path) -> bool {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: two strings that end; nothing is written.
    let len =
        unsafe { libc::getxattr(path.as_ptr(), CAPABILITY.as_ptr(), std::ptr::null_mut(), 0) };
    if len < 0 {
        assert_eq!(Error::last_os_error().raw_os_error(), Some(libc::ENODATA));
    }
    len >= 0
}

fn add(session: &mut Session, file: &RemoteFile) {
    let op = Operation::Atomic {
        remote: file.at(0),
        op: Atomic::FetchAdd { add: 1, mask: 0 },
    };
    session.post(WorkRequest::new(WrId(1), op)).unwrap();
    session.success("FetchAdd").unwrap();
}

/// Every way to change content over the network ends privileges before anything is changed, and no way to look at it does; nor
/// does opening for writing. What was ended is seen at once, and in the way the kernel looks before it runs a program.
#[test]
fn privileges_end_with_a_remote_change() {
    let Some(world) = World::new("64MiB", &[]) else {
        return;
    };
    let path = world.dir.join("program");
    fs::write(&path, vec![1; LEN]).unwrap();
    let mut session = world.target.session();
    type Change = fn(&mut Session, &RemoteFile);
    let changes: [(&str, Change); 4] = [
        ("WRITE", |session, file| {
            put(session, file, 5000, b"x", false)
        }),
        ("sync WRITE", |session, file| {
            put(session, file, 5000, b"y", true)
        }),
        ("WRITE of whole pages", |session, file| {
            put(session, file, 0, &[2; LEN], false)
        }),
        ("FetchAdd", add),
    ];
    for (what, change) in changes {
        for (before, after) in BITS {
            // What is there when the region is opened, and what comes later.
            chmod(&path, before);
            let file = open(&mut session, "/program", FLAG_WRITE, 0);
            for again in [false, true] {
                chmod(&path, before);
                set_capability(&path);
                get(&mut session, &file, 0, LEN as u64).unwrap();
                assert_eq!((mode(&path), has_capability(&path)), (before, true));
                change(&mut session, &file);
                let is = (mode(&path), has_capability(&path));
                assert_eq!(is, (after, false), "{what}, {again}");
            }
            let close = Request {
                handle: file.handle,
                ..Request::new(Op::Close, "")
            };
            session.call(close).unwrap();
        }
    }
    // A capability alone, and none of both.
    set_capability(&path);
    let file = open(&mut session, "/program", FLAG_WRITE, 0);
    chmod(&path, 0o1751);
    put(&mut session, &file, 0, b"z", false);
    assert_eq!((mode(&path), has_capability(&path)), (0o1751, false));
    // Replacing the content is a change as well.
    chmod(&path, 0o4755);
    set_capability(&path);
    open(&mut session, "/program", FLAG_WRITE | FLAG_TRUNCATE, 100);
    assert_eq!((mode(&path), has_capability(&path)), (0o755, false));
    session.close();
    world.end();
}

/// A program that has lost its name is still one to who has it open.
#[test]
fn privileges_of_an_unlinked_program_end() {
    let Some(world) = World::new("64MiB", &[]) else {
        return;
    };
    let path = world.dir.join("program");
    let local = world.file("program");
    local.write_all_at(&[1; LEN], 0).unwrap();
    let mut session = world.target.session();
    let file = open(&mut session, "/program", FLAG_WRITE, 0);
    fs::remove_file(&path).unwrap();
    // SAFETY: no memory is passed, and the descriptor is open.
    assert_eq!(unsafe { libc::fchmod(local.as_raw_fd(), 0o4755) }, 0);
    put(&mut session, &file, 0, b"x", false);
    assert_eq!(local.metadata().unwrap().mode() & 0o7777, 0o755);
    drop((local, session));
    world.end();
}

/// Privileges end on the volume before the first byte is seen, so a killed target does not bring them back beside new content,
/// whatever became of that; stored registrations that nobody has open count as any other, also after a restart (I1, I9).
#[test]
fn ended_privileges_stay_so_after_a_kill() {
    let Some(mut world) = World::new("64MiB", &[]) else {
        return;
    };
    let path = world.dir.join("program");
    fs::write(&path, vec![1; LEN]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let mut session = world.target.session();
    let file = open(&mut session, "/program", FLAG_WRITE | FLAG_PERSISTENT, 0);
    drop(session);
    for (before, after) in BITS {
        chmod(&path, before);
        set_capability(&path);
        world = world.killed(&[]);
        assert_eq!((mode(&path), has_capability(&path)), (before, true));
        // It just knows the STag.
        put(&mut world.target.session(), &file, 0, b"x", false);
        assert_eq!((mode(&path), has_capability(&path)), (after, false));
        world = world.killed(&[]);
        assert_eq!((mode(&path), has_capability(&path)), (after, false));
    }
    world.end();
}

/// Peers that write all the time, to pages of their own and common ones: whenever a program is given privileges, the next write
/// that begins afterwards ends them, and none of the writes is lost.
#[test]
fn privileges_never_survive_a_write() {
    const PEERS: u64 = 3;
    const ROUNDS: u32 = 60;
    let Some(world) = World::new("64MiB", &["--reactors", "2"]) else {
        return;
    };
    let path = world.dir.join("program");
    fs::write(&path, vec![0; 4 * 4096]).unwrap();
    let counts = [const { AtomicU64::new(0) }; PEERS as usize];
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (peer, count) in counts.iter().enumerate() {
            let (target, is_over) = (&world.target, &is_over);
            scope.spawn(move || {
                let mut session = target.session();
                let file = open(&mut session, "/program", FLAG_WRITE, 0);
                while !is_over.load(Ordering::Relaxed) {
                    let next = count.load(Ordering::Relaxed) + 1;
                    let at = peer as u64 * 8 + next % 2 * 8192;
                    try_put(&mut session, &file, at, &next.to_le_bytes(), false).unwrap();
                    count.store(next, Ordering::Release);
                }
            });
        }
        for _ in 0..ROUNDS {
            chmod(&path, 0o4755);
            let before: Vec<u64> = counts.iter().map(|c| c.load(Ordering::Acquire)).collect();
            // The first that is acknowledged may have begun before; the second has not.
            while !counts
                .iter()
                .zip(&before)
                .any(|(c, n)| c.load(Ordering::Acquire) >= n + 2)
            {
                thread::yield_now();
            }
            assert_eq!(mode(&path), 0o755);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let content = fs::read(&path).unwrap();
    for (peer, count) in counts.iter().enumerate() {
        let last = count.load(Ordering::Relaxed);
        let at = peer * 8 + (last % 2 * 8192) as usize;
        assert_eq!(content[at..at + 8], last.to_le_bytes());
    }
    world.end();
}

/// A program that a local one has mapped and stores to: a WRITE waits for the kernel to give its copies back, behind many others
/// that do, and if it is one of a part of a page, then for flash. However far it has come when privileges are given: if its
/// bytes were not there afterwards, the privileges have gone when they are.
#[test]
fn privileges_of_a_mapped_program_end() {
    const PAGE: usize = 4096;
    const PAGES: usize = 64;
    const ROUNDS: usize = 300;
    /// Peers that write to another mapped file all the time.
    const OTHERS: usize = 32;
    let Some(world) = World::new("64MiB", &["--reactors", "2", "--pool", "2MiB"]) else {
        return;
    };
    let [path, other] = ["program", "other"].map(|name| world.dir.join(name));
    let map = |path: &Path| {
        fs::write(path, vec![0; PAGES * PAGE]).unwrap();
        let file = File::options().read(true).write(true).open(path).unwrap();
        MmapOptions::new().map_raw(&file).unwrap()
    };
    let maps = [map(&path), map(&other)];
    let store = |map: &MmapRaw, page: usize| {
        // SAFETY: the first byte of a page of the mapping; who else changes it does so from outside.
        let byte = unsafe { AtomicU8::from_ptr(map.as_mut_ptr().add(page * PAGE)) };
        byte.fetch_add(1, Ordering::Relaxed);
    };
    // Behind the byte that is stored to: all of the page, or a part.
    let written = |round: usize| {
        let len = if round.is_multiple_of(2) { PAGE - 1 } else { 8 };
        let at = round % PAGES * PAGE + 1;
        (at as u64, vec![(round / PAGES + 1) as u8; len])
    };
    // Peer and owner come here at the beginning and at the end of a round.
    let meet = Barrier::new(2);
    let is_over = AtomicBool::new(false);
    let mut survived = Vec::new();
    thread::scope(|scope| {
        let (target, is_over) = (&world.target, &is_over);
        scope.spawn(|| {
            for page in (0..PAGES).cycle() {
                store(&maps[1], page);
                thread::yield_now();
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for n in 0..OTHERS {
            scope.spawn(move || {
                let mut session = target.session();
                let file = open(&mut session, "/other", FLAG_WRITE, 0);
                for page in (0..PAGES).cycle().skip(n * PAGES / OTHERS) {
                    put(&mut session, &file, (page * PAGE + 1) as u64, b"x", false);
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut session = target.session();
            let file = open(&mut session, "/program", FLAG_WRITE, 0);
            for round in 0..ROUNDS {
                meet.wait();
                let (at, bytes) = written(round);
                put(&mut session, &file, at, &bytes, false);
                meet.wait();
            }
        });
        let mut session = target.session();
        let file = open(&mut session, "/program", 0, 0);
        for round in 0..ROUNDS {
            store(&maps[0], round % PAGES);
            meet.wait();
            let start = Instant::now();
            // At another moment of the WRITE each time.
            while start.elapsed() < Duration::from_micros(round as u64 % 20 * 25) {
                spin_loop();
            }
            chmod(&path, 0o4755);
            let (at, bytes) = written(round);
            let was_there = get(&mut session, &file, at, bytes.len() as u64).unwrap() == bytes;
            meet.wait();
            if !was_there && mode(&path) != 0o755 {
                survived.push(round);
            }
            chmod(&path, 0o755);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(survived, [0; 0], "rounds in which privileges survived");
    drop(maps);
    world.end();
}
