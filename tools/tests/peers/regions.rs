//! Regions of files, as remote peers have them while the files grow, shrink, move and go (I9, I10, I11).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::world::{
    GIB, Greedy, PIECE, World, get, open, outgrown, put, relocate, terminated,
};
use crate::common::{Image, Target, can_serve, good, pattern};
use contigfs::{FormatOptions, Fs, InodeNo, MemStore, NewNode, SetAttr};
use softrdma::driver::tcp::TcpClient;
use softrdma::wire::terminate::TerminateCode;
use softrdma::{
    Atomic, Buffer, Config, LocalSlice, Operation, Placement, RegionTable, RemoteAddr, Source,
    Stag, TaggedOffset, WorkRequest, WrId,
};
use tools::client::{RemoteFile, Session};
use tools::control::{
    FLAG_CREATE, FLAG_GROW, FLAG_TRUNCATE, FLAG_WRITE, MESSAGE_BYTES_MAX, Op, Reply, Request,
};

const PAGE: u64 = 4096;
const TIB: u64 = 1 << 40;

/// How often a file of a file system in memory moves when it is treated by [`relocate`] so many times.
fn moves_in(times: u32) -> usize {
    let store = Arc::new(MemStore::new(1000));
    Fs::format(&store, &FormatOptions::default()).unwrap();
    let fs = Fs::mount(store).unwrap();
    let make = |name: &str| {
        let made = fs.create(InodeNo::ROOT, OsStr::new(name), &NewNode::file());
        made.unwrap().ino
    };
    let resize = |ino, bytes| {
        let size = SetAttr {
            size: Some(bytes),
            ..SetAttr::default()
        };
        fs.set_attr(ino, &size).unwrap();
    };
    let file = make("file");
    let start = || fs.file_extent(file).unwrap().range.start;
    let mut starts = vec![start()];
    for n in 0..times {
        resize(make(&format!("blocker-{n}")), outgrown(n));
        resize(file, outgrown(n + 1));
        starts.push(start());
    }
    starts.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

/// Makes a sparse file on a volume that nobody serves.
fn sparse(image: &Path, name: &str, bytes: u64) {
    let device = tools::devices::open(&[image.to_owned()], tools::devices::Access::Write).unwrap();
    let (volume, _) = ftl::Volume::open(device, ftl::OpenOptions::default()).unwrap();
    let fs = Fs::mount(&volume).unwrap();
    let made = fs.create(InodeNo::ROOT, OsStr::new(name), &NewNode::file());
    let size = SetAttr {
        size: Some(bytes),
        ..SetAttr::default()
    };
    fs.set_attr(made.unwrap().ino, &size).unwrap();
    fs.sync_all().unwrap();
    drop(fs);
    volume.shutdown().unwrap();
}

fn fallocate(file: &File, mode: i32, at: u64, len: u64) {
    // SAFETY: an open file; no memory is involved.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, at as i64, len as i64) };
    let error = std::io::Error::last_os_error();
    assert_eq!(done, 0, "{error}");
}

/// A region of 16 TiB over a pool of 1 MiB: bytes scattered all over it are what was written, and everything else is
/// zeros, before and after a restart (I2).
#[test]
fn scattered_bytes_of_a_region_far_larger_than_memory() {
    if !can_serve() {
        return;
    }
    const PIECES: u64 = 300;
    let bytes = 16 * TIB;
    let image = Image::new("64MiB");
    sparse(&image.path(), "huge", bytes);
    let piece = |n: u64| {
        let at = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (bytes - 9000);
        (at, pattern(1 + (n * 131 % 9000) as usize, n))
    };
    let target = image.serve(&["--pool", "1MiB"]);
    let mut session = target.session();
    let huge = open(&mut session, "/huge", FLAG_WRITE, 0);
    assert_eq!((huge.length, huge.size), (bytes, bytes));
    for n in 1..PIECES {
        let (at, content) = piece(n);
        put(&mut session, &huge, at, &content, n % 7 == 0);
    }
    // First and last byte.
    put(&mut session, &huge, 0, b"a", false);
    put(&mut session, &huge, bytes - 1, b"z", true);
    let check = |session: &mut Session, huge: &RemoteFile| {
        for n in 1..PIECES {
            let (at, content) = piece(n);
            assert!(get(session, huge, at, content.len() as u64).unwrap() == content);
            let hole = n.wrapping_mul(0xd1b5_4a32_d192_ed03) % (bytes - 5000);
            let found = get(session, huge, hole, 5000).unwrap();
            let near = (1..PIECES).any(|n| {
                let (at, content) = piece(n);
                at < hole + 5000 && hole < at + content.len() as u64
            });
            assert!(near || hole == 0 || found.iter().all(|&byte| byte == 0));
        }
        assert_eq!(get(session, huge, 0, 1).unwrap(), b"a");
        assert_eq!(get(session, huge, bytes - 1, 1).unwrap(), b"z");
    };
    check(&mut session, &huge);
    session.close();
    assert!(target.stop().success());
    let target = image.serve(&["--pool", "1MiB"]);
    let mut session = target.session();
    let huge = open(&mut session, "/huge", 0, 0);
    check(&mut session, &huge);
    let beyond = get(&mut session, &huge, bytes, 1);
    assert_eq!(terminated(beyond), TerminateCode::ProtectionBounds);
    assert!(target.stop().success());
}

/// DRAM and flash side by side on one connection, in one protection domain: bytes go where their STag says.
#[test]
fn dram_and_flash_side_by_side() {
    if !can_serve() {
        return;
    }
    const LEN: u64 = 1 << 20;
    let image = Image::new("64MiB");
    let target = image.serve(&["--dram", "1MiB", "--pool", "1MiB"]);
    let mut session = target.session();
    let dram = open(&mut session, tools::target::DRAM_PATH, FLAG_WRITE, 0);
    let flags = FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE;
    let flash = open(&mut session, "/flash", flags, LEN);
    assert_eq!((dram.length, flash.length), (LEN, LEN));
    let mut expected = [vec![0; LEN as usize], vec![0; LEN as usize]];
    let sinks = Buffer::zeroed(200 * 1000);
    let mut wanted = Vec::new();
    // All of it in flight at once: each READ sees the WRITE before it, and neither sees the other place.
    for n in 0..200_u64 {
        let (of, at) = ((n % 2) as usize, n * 5003 % (LEN - 3000));
        let file = [&dram, &flash][of];
        let bytes = pattern(3000, n);
        expected[of][at as usize..][..3000].copy_from_slice(&bytes);
        let sync = n % 5 == 0;
        let write = Operation::Write {
            source: Source::Bytes(bytes),
            remote: if sync { file.at_sync(at) } else { file.at(at) },
        };
        let read = Operation::Read {
            sink: LocalSlice::new(&sinks, n as usize * 1000, 1000),
            remote: file.at(at),
        };
        session.post(WorkRequest::new(WrId(n), write)).unwrap();
        session.post(WorkRequest::new(WrId(n), read)).unwrap();
        session.success("WRITE").unwrap();
        session.success("READ").unwrap();
        wanted.extend_from_slice(&expected[of][at as usize..][..1000]);
    }
    assert!(sinks.to_vec(0, wanted.len()) == wanted);
    for (file, expected) in [(&dram, &expected[0]), (&flash, &expected[1])] {
        assert!(get(&mut session, file, 0, LEN).unwrap() == *expected);
    }
    assert!(target.stop().success());
}

/// A peer that writes and reads its own words of each page of a file, and knows what it finds there.
fn hammer(
    target: &Target,
    path: &str,
    (me, peers): (u64, u64),
    (pages, apart): (u64, u64),
    (stop, rounds): (&AtomicBool, &AtomicU64),
) -> Vec<u64> {
    let mut session = target.session();
    // The file gets longer.
    let file = open(&mut session, path, FLAG_WRITE, pages * apart * PAGE);
    let mut words = vec![0_u64; pages as usize];
    let at = |page: u64| page * apart * PAGE + 8 * me;
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        let page = (round * 7 + me * 13) % pages;
        let word = 1 + round * peers + me;
        put(
            &mut session,
            &file,
            at(page),
            &word.to_le_bytes(),
            round % 16 == 0,
        );
        words[page as usize] = word;
        let other = (round * 11 + me) % pages;
        let found = get(&mut session, &file, at(other), 8).unwrap();
        let found = u64::from_le_bytes(found.try_into().unwrap());
        assert_eq!(found, words[other as usize], "page {other} of peer {me}");
        round += 1;
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    session.close();
    words
}

/// Two peers hammer a file that a local program moves from place to place, in many batches each time: nobody notices. No
/// acknowledged word is lost, none comes twice, the connections live, and nothing is left at the old places (I4, I9).
#[test]
fn a_file_moves_under_its_regions() {
    const PAGES: u64 = 60;
    /// So far that one batch can not remap all of them.
    const APART: u64 = 3001;
    const MOVES: u32 = 16;
    assert_eq!(moves_in(MOVES), MOVES as usize);
    let Some(world) = World::new("128MiB", &["--pool", "1MiB", "--reactors", "2"]) else {
        return;
    };
    let file = world.file("file");
    let end = PAGES * APART * PAGE;
    for page in 0..PAGES {
        file.write_all_at(&[0; 4096], page * APART * PAGE).unwrap();
    }
    file.set_len(end).unwrap();
    // More than the pool, and read all the time: what is hammered has to be read from the device again and again.
    const SCANNED: u64 = 8 << 20;
    let scanned = pattern(SCANNED as usize, 5);
    world.file("scanned").write_all_at(&scanned, 0).unwrap();
    let shape = (PAGES, APART);
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let words: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let peers: Vec<_> = (0..2)
            .map(|me| {
                let (target, control) = (&world.target, (&stop, &rounds));
                scope.spawn(move || hammer(target, "/file", (me, 2), shape, control))
            })
            .collect();
        let scanner = scope.spawn(|| {
            let mut session = world.target.session();
            let file = open(&mut session, "/scanned", 0, 0);
            while !stop.load(Ordering::Relaxed) {
                assert!(get(&mut session, &file, 0, SCANNED).unwrap() == scanned);
            }
        });
        let moved = std::panic::catch_unwind(AssertUnwindSafe(|| {
            for n in 0..MOVES {
                let before = rounds.load(Ordering::Relaxed);
                relocate(&world.dir, &file, n);
                while rounds.load(Ordering::Relaxed) < before + 20
                    && !peers.iter().any(|peer| peer.is_finished())
                {
                    std::thread::yield_now();
                }
            }
        }));
        stop.store(true, Ordering::Relaxed);
        let words = peers.into_iter().map(|peer| peer.join().unwrap()).collect();
        scanner.join().unwrap();
        moved.unwrap();
        words
    });
    let check = |file: &File| {
        for page in 0..PAGES {
            let mut found = [0; 16];
            file.read_exact_at(&mut found, page * APART * PAGE).unwrap();
            let found = [0, 8].map(|at| u64::from_le_bytes(found[at..at + 8].try_into().unwrap()));
            let expected = [words[0][page as usize], words[1][page as usize]];
            assert_eq!(found, expected, "page {page}");
        }
    };
    check(&file);
    drop(file);
    println!("{} rounds during {MOVES} moves", rounds.into_inner());
    world.end();
}

/// A peer counts in a file that moves, and flushes what it has counted: each addition happens once, and where the file is
/// (I4, I9).
#[test]
fn a_counter_in_a_file_that_moves() {
    const MOVES: u32 = 8;
    let Some(world) = World::new("128MiB", &["--pool", "1MiB", "--reactors", "2"]) else {
        return;
    };
    let file = world.file("file");
    file.write_all_at(&[0; 4096], 0).unwrap();
    let config = Config {
        private_profile: true,
        ..Config::default()
    };
    let table = RegionTable::new([1; 32]);
    let patience = Duration::from_secs(60);
    let address = world.target.address.to_string();
    let mut client = TcpClient::connect(&address, config, &table, &[], patience).unwrap();
    let request = Request {
        flags: FLAG_WRITE,
        ..Request::new(Op::Open, "/file")
    };
    client.send(&request.emit(), None).unwrap();
    let reply = Reply::parse(&client.recv(MESSAGE_BYTES_MAX).unwrap()).unwrap();
    assert_eq!(reply.length, PAGE, "{}", reply.message);
    let remote = RemoteAddr {
        stag: Stag(reply.stag),
        to: TaggedOffset(reply.to + 8),
    };
    let add = Atomic::FetchAdd { add: 1, mask: 0 };
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let counted = std::thread::scope(|scope| {
        let (stop, rounds) = (&stop, &rounds);
        let counter = scope.spawn(move || {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(client.atomic(remote, add).unwrap(), count);
                count += 1;
                if count % 4 == 0 {
                    client.flush(remote, 8, Placement::Persistent).unwrap();
                }
                rounds.store(count, Ordering::Relaxed);
            }
            client.disconnect().unwrap();
            count
        });
        let moved = std::panic::catch_unwind(AssertUnwindSafe(|| {
            for n in 0..MOVES {
                let before = rounds.load(Ordering::Relaxed);
                relocate(&world.dir, &file, n);
                while rounds.load(Ordering::Relaxed) < before + 20 && !counter.is_finished() {
                    std::thread::yield_now();
                }
            }
        }));
        stop.store(true, Ordering::Relaxed);
        let counted = counter.join().unwrap();
        moved.unwrap();
        counted
    });
    let mut found = [0; 8];
    file.read_exact_at(&mut found, 8).unwrap();
    assert_eq!(u64::from_le_bytes(found), counted);
    drop(file);
    world.end();
}

/// A file that peers have regions of outgrows its range, with a neighbour behind it: it moves, nothing answers EBUSY, and
/// the regions go on. What is written beyond the old range through a region is there.
#[test]
fn a_registered_file_outgrows_its_range() {
    let Some(world) = World::new("128MiB", &["--pool", "1MiB"]) else {
        return;
    };
    let file = world.file("file");
    file.write_all_at(b"first", 0).unwrap();
    let neighbour = world.file("neighbour");
    neighbour.write_all_at(b"neighbour", 0).unwrap();
    let mut session = world.target.session();
    let flags = FLAG_WRITE | FLAG_GROW;
    let region = open(&mut session, "/file", flags, 0);
    assert_eq!(region.size, 5);
    for n in 0..4 {
        relocate(&world.dir, &file, n);
        let at = outgrown(n + 1) - 4;
        put(&mut session, &region, at, b"last", n % 2 == 0);
        assert_eq!(get(&mut session, &region, 0, 5).unwrap(), b"first");
        let mut last = [0; 4];
        file.read_exact_at(&mut last, at).unwrap();
        assert_eq!(&last, b"last");
    }
    let mut found = [0; 9];
    neighbour.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"neighbour");
    session.close();
    drop((file, neighbour));
    world.end();
}

/// A growing region reaches as far as its file, whatever happens to that, and not one byte farther: what is behind the end,
/// also in the last page, ends the connection (I10). A region that does not grow ends when its file is too short.
#[test]
fn growing_regions_follow_the_end_of_the_file() {
    let Some(world) = World::new("64MiB", &["--pool", "1MiB"]) else {
        return;
    };
    let file = world.file("log");
    file.write_all_at(&pattern(5000, 1), 0).unwrap();
    let grow = |flags| {
        let mut session = world.target.session();
        let region = open(&mut session, "/log", FLAG_GROW | flags, TIB);
        assert_eq!(region.length, TIB);
        (session, region)
    };
    let beyond = |at, len| {
        let (mut session, region) = grow(0);
        terminated(get(&mut session, &region, at, len))
    };
    let (mut reader, region) = grow(0);
    assert!(get(&mut reader, &region, 0, 5000).unwrap() == pattern(5000, 1));
    assert_eq!(beyond(4999, 2), TerminateCode::ProtectionBounds);
    // Every way to grow, through the same region all the time.
    let mut end = 5000;
    let reserve = |to: u64| fallocate(&file, 0, 0, to);
    let extend = |to: u64| file.set_len(to).unwrap();
    let append = |to: u64| file.write_all_at(b"!", to - 1).unwrap();
    for (n, grow_to) in [&reserve as &dyn Fn(u64), &extend, &append]
        .into_iter()
        .enumerate()
    {
        let to = end + 10_000;
        grow_to(to);
        let mut expected = vec![0; 10_000];
        expected[9_999] = if n == 2 { b'!' } else { 0 };
        assert!(get(&mut reader, &region, end, 10_000).unwrap() == expected);
        assert_eq!(beyond(to - 1, 2), TerminateCode::ProtectionBounds);
        end = to;
    }
    // A region beyond the end is one of nothing, as yet.
    let mut early = world.target.session();
    let request = Request {
        flags: FLAG_GROW,
        offset: end + 100,
        length: 1000,
        ..Request::new(Op::Open, "/log")
    };
    let behind = early.open(request).unwrap();
    file.write_all_at(b"later", end + 100).unwrap();
    assert_eq!(get(&mut early, &behind, 0, 5).unwrap(), b"later");

    // Shrinking cuts growing regions and ends the others.
    let mut other = world.target.session();
    let fixed = open(&mut other, "/log", 0, 5000);
    file.set_len(4000).unwrap();
    assert!(get(&mut reader, &region, 0, 4000).unwrap() == pattern(5000, 1)[..4000]);
    let ended = terminated(get(&mut other, &fixed, 0, 1));
    assert_eq!(ended, TerminateCode::ProtectionInvalidStag);
    let cut = terminated(get(&mut early, &behind, 0, 1));
    assert_eq!(cut, TerminateCode::ProtectionBounds);
    file.set_len(6000).unwrap();
    let again = get(&mut reader, &region, 0, 6000).unwrap();
    assert!(again[..4000] == pattern(5000, 1)[..4000] && again[4000..] == [0; 2000]);
    // A WRITE behind the end makes no file longer.
    let (mut writer, region) = grow(FLAG_WRITE);
    put(&mut writer, &region, 5990, &[7; 10], true);
    let write = writer.write(&region, 5995, 10, false, |_, bytes| {
        bytes.fill(9);
        Ok(())
    });
    assert_eq!(terminated(write), TerminateCode::TaggedBounds);
    assert_eq!(file.metadata().unwrap().len(), 6000);
    let mut found = [0; 10];
    file.read_exact_at(&mut found, 5990).unwrap();
    assert_eq!(found, [7; 10], "nothing of it was placed");
    reader.close();
    drop(file);
    world.end();
}

/// The place of a file that is removed becomes another file's while a peer hammers the old STag from connections of its own:
/// it gets the old bytes, then a Terminate, and never a byte of the other file (I9, I11). So for a file that is cut.
#[test]
fn an_old_stag_never_shows_another_file() {
    const ROUNDS: u64 = 12;
    const LEN: u64 = 256 << 10;
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&["--pool", "1MiB", "--reactors", "2"]);
    let flags = FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE;
    let mut secret = target.session();
    for round in 0..ROUNDS {
        let mut owner = target.session();
        let path = format!("/victim-{round}");
        let victim = open(&mut owner, &path, flags, LEN);
        put(&mut owner, &victim, 0, &vec![1; LEN as usize], false);
        let hammered = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let peers: Vec<_> = (0..2)
                .map(|n| {
                    let (target, hammered) = (&target, &hammered);
                    scope.spawn(move || {
                        let mut session = target.session();
                        for turn in 0.. {
                            let at = (turn * 7919 + n * 4001) % (LEN - 70_000);
                            // Writes too: they must not get into the other file either.
                            let written = if n == 0 {
                                session.write(&victim, at, 9000, false, |_, bytes| {
                                    bytes.fill(1);
                                    Ok(())
                                })
                            } else {
                                Ok(())
                            };
                            let read =
                                written.and_then(|()| get(&mut session, &victim, at, 70_000));
                            match read {
                                Ok(bytes) => assert!(bytes.iter().all(|&byte| byte <= 1)),
                                refused => return terminated(refused),
                            }
                            hammered.fetch_add(1, Ordering::Relaxed);
                        }
                        unreachable!("it is refused in the end");
                    })
                })
                .collect();
            while hammered.load(Ordering::Relaxed) < 4 && !peers.iter().any(|p| p.is_finished()) {
                std::thread::yield_now();
            }
            if round % 2 == 0 {
                // Cut to nothing; what it had is free at once.
                open(&mut secret, &path, flags, 0);
            } else {
                // The last region ends with its connection. (There is no remote unlink; the file is replaced.)
                let close = Request {
                    handle: victim.handle,
                    ..Request::new(Op::Close, "")
                };
                owner.call(close).unwrap();
                open(&mut secret, &path, flags, 0);
            }
            let other = open(&mut secret, &format!("/other-{round}"), flags, LEN);
            put(&mut secret, &other, 0, &vec![99; LEN as usize], true);
            for peer in peers {
                let code = peer.join().unwrap();
                use TerminateCode::{ProtectionInvalidStag, TaggedInvalidStag};
                assert!(
                    matches!(code, ProtectionInvalidStag | TaggedInvalidStag),
                    "{code}"
                );
            }
            let found = get(&mut secret, &other, 0, LEN).unwrap();
            assert!(found.iter().all(|&byte| byte == 99));
        });
    }
    assert!(target.stop().success());
}

/// The same with a file that is removed on the mount, and whose very range the next file gets: as long as a region is open
/// the file lives on without a name, then it is gone, and so are its STags.
#[test]
fn a_removed_file_lives_until_its_last_region_is_closed() {
    const LEN: u64 = 100_000;
    let Some(world) = World::new("64MiB", &["--pool", "1MiB"]) else {
        return;
    };
    for round in 0..8 {
        let name = format!("victim-{round}");
        fs::write(world.dir.join(&name), vec![1; LEN as usize]).unwrap();
        let mut owner = world.target.session();
        let victim = open(&mut owner, &format!("/{name}"), FLAG_WRITE, 0);
        let mut peer = world.target.session();
        assert!(get(&mut peer, &victim, 0, LEN).is_ok());
        fs::remove_file(world.dir.join(&name)).unwrap();
        // Without a name, and nobody gets its place.
        fs::write(world.dir.join(format!("between-{round}")), vec![2; 1000]).unwrap();
        put(&mut peer, &victim, 10, &[3; 10], true);
        let found = get(&mut peer, &victim, 0, LEN).unwrap();
        assert!(found[10..20] == [3; 10] && found[20..].iter().all(|&byte| byte == 1));
        let reading = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let hammering = scope.spawn(|| {
                let mut session = world.target.session();
                loop {
                    match get(&mut session, &victim, 0, LEN) {
                        Ok(bytes) => assert!(bytes.iter().all(|&byte| byte == 1 || byte == 3)),
                        refused => return terminated(refused),
                    }
                    reading.store(false, Ordering::Relaxed);
                }
            });
            while reading.load(Ordering::Relaxed) && !hammering.is_finished() {
                std::thread::yield_now();
            }
            let close = Request {
                handle: victim.handle,
                ..Request::new(Op::Close, "")
            };
            owner.call(close).unwrap();
            // Takes the lowest range that is free.
            fs::write(
                world.dir.join(format!("next-{round}")),
                vec![99; LEN as usize],
            )
            .unwrap();
            let code = hammering.join().unwrap();
            assert_eq!(code, TerminateCode::ProtectionInvalidStag);
        });
        let next = fs::read(world.dir.join(format!("next-{round}"))).unwrap();
        assert!(next.iter().all(|&byte| byte == 99));
    }
    world.end();
}

/// A peer that asks for much and takes nothing can not hold up a file that moves or is cloned, though pages wait for it; and
/// it gets every byte when it reads on (I16).
#[test]
fn a_peer_that_takes_nothing_holds_up_nothing() {
    const PIECES: usize = 64;
    let Some(world) = World::new("128MiB", &["--pool", "16MiB"]) else {
        return;
    };
    let len = PIECE * PIECES;
    let content = pattern(len, 11);
    let file = world.file("file");
    file.write_all_at(&content, 0).unwrap();
    let mut other = world.target.session();
    let region = open(&mut other, "/file", FLAG_WRITE, 0);
    assert_eq!(region.length, len as u64);
    let mut greedy = Greedy::new(&world.target, &region, PIECES);
    // Each of these returns, with the peer as it is.
    for n in 0..4 {
        relocate(&world.dir, &file, n);
    }
    file.set_len(len as u64).unwrap();
    fs::copy(world.dir.join("file"), world.dir.join("copy")).unwrap();
    assert!(get(&mut other, &region, 0, len as u64).unwrap() == content);
    let copy = fs::read(world.dir.join("copy")).unwrap();
    assert!(copy == content);
    assert!(greedy.take() == (content, true));
    drop(greedy);
    other.close();
    drop(file);
    world.end();
}

/// `perf reg` measures what it says, of regions that were there: three sizes, each registered, resolved, opened and closed.
#[test]
fn perf_reg_measures_each_size() {
    if !can_serve() {
        return;
    }
    let report = good(&["--json", "perf", "reg"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let regions = report["regions"].as_array().unwrap();
    let bytes: Vec<_> = regions.iter().map(|r| r["bytes"].as_u64()).collect();
    assert_eq!(bytes, [16 * GIB, TIB, 16 * TIB].map(Some));
    for region in regions {
        for step in ["register", "resolve", "open", "close"] {
            let [half, most] = ["p50_us", "p99_us"].map(|p| region[step][p].as_f64().unwrap());
            assert!(half > 0.0 && half <= most, "{region}");
        }
    }
    // Either it was measured, or it is said why not.
    assert_ne!(
        report["pinned"].is_null(),
        report["pinning_refused"].is_null()
    );
}
