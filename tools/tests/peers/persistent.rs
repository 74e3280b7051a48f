//! Persistent regions, as peers use them who remember nothing but STag, offset and length, while their files move, shrink and go,
//! and the target is killed (I9, I11, D11).

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::world::{
    Greedy, PIECE, World, get, open, relocate, terminated, try_put, try_relocate,
};
use crate::common::{Target, good, pattern};
use softrdma::wire::terminate::TerminateCode;
use tools::client::{ClientError, RemoteFile, Session};
use tools::control::{
    FLAG_CREATE, FLAG_GROW, FLAG_PERSISTENT, FLAG_TRUNCATE, FLAG_WRITE, Op, Request,
};

const PAGE: u64 = 4096;
const MAKE: u16 = FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE | FLAG_PERSISTENT;
const SMALL_POOL: [&str; 4] = ["--pool", "1MiB", "--reactors", "2"];

fn attach(target: &Target, file: &RemoteFile) -> Result<RemoteFile, ClientError> {
    target.session().open(Request {
        handle: file.stag.0,
        ..Request::new(Op::Attach, "")
    })
}

/// Makes a region and closes it again: nobody has it open when this returns.
fn stored(target: &Target, path: &str, flags: u16, length: u64) -> RemoteFile {
    let mut session = target.session();
    let file = open(&mut session, path, flags, length);
    let close = Request {
        handle: file.handle,
        ..Request::new(Op::Close, "")
    };
    session.call(close).unwrap();
    file
}

/// A file with `content`, which a kill does not take away.
fn write_synced(path: &Path, content: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(content).unwrap();
    file.sync_all().unwrap();
}

/// It is refused on a connection that asks for it, and on one that just uses it.
fn is_refused(target: &Target, file: &RemoteFile) {
    match attach(target, file) {
        Err(ClientError::Refused { status, .. }) => assert_eq!(status, libc::ESTALE),
        other => panic!("not refused: {other:?}"),
    }
    let read = terminated(get(&mut target.session(), file, 0, 1));
    assert_eq!(read, TerminateCode::ProtectionInvalidStag);
    let write = terminated(try_put(&mut target.session(), file, 0, b"x", true));
    assert_eq!(write, TerminateCode::TaggedInvalidStag);
}

/// Pages of a file that one peer writes to, and what it knows of each of them.
struct Words {
    /// Durable.
    acknowledged: Vec<u64>,
    /// Asked for, and not acknowledged.
    doubtful: Option<(u64, u64)>,
}

/// Where a word of a peer lies in the file: so far apart that one batch can not remap all pages.
const PAGES: u64 = 60;
const APART: u64 = 3001;
fn word_at(peer: u64, page: u64) -> u64 {
    page * APART * PAGE + 8 * peer
}

/// Writes and reads words of its own until the target is gone.
fn hammer(
    mut session: Session,
    file: &RemoteFile,
    peer: u64,
    words: &mut Words,
    rounds: &AtomicU64,
) {
    for round in 0.. {
        let page = (round * 7 + peer * 13) % PAGES;
        let word = words.acknowledged[page as usize] + 1;
        words.doubtful = Some((page, word));
        let written = try_put(
            &mut session,
            file,
            word_at(peer, page),
            &word.to_le_bytes(),
            true,
        );
        if written.is_err() {
            return;
        }
        words.acknowledged[page as usize] = word;
        words.doubtful = None;
        let other = (round * 11 + peer) % PAGES;
        let Ok(found) = get(&mut session, file, word_at(peer, other), 8) else {
            return;
        };
        let found = u64::from_le_bytes(found.try_into().unwrap());
        assert_eq!(found, words.acknowledged[other as usize], "page {other}");
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// A file moves from place to place under peers that hammer it through its STag, which one of them has open and the other just
/// knows, and the target is killed amid it, again and again. The STag is good all the time; what was acknowledged is there, locally
/// and remotely, before and after each kill; and nothing is left at old places (I1, I4, I9, D11).
#[test]
fn a_persistent_region_follows_its_file() {
    const LIVES: u32 = 3;
    const MOVES: u32 = 4;
    let Some(mut world) = World::new("128MiB", &SMALL_POOL) else {
        return;
    };
    let file = world.file("file");
    for page in 0..PAGES {
        file.write_all_at(&[0; 4096], word_at(0, page)).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    // The file is longer in a moment, which is nothing to the region.
    let region = stored(&world.target, "/file", FLAG_WRITE | FLAG_PERSISTENT, 0);
    let mut words = [0, 1].map(|_| Words {
        acknowledged: vec![0; PAGES as usize],
        doubtful: None,
    });
    for life in 0..LIVES {
        let (dir, target) = (world.dir.clone(), &mut world.target);
        let mut sessions = [target.session(), target.session()];
        let again = sessions[0].open(Request {
            handle: region.stag.0,
            ..Request::new(Op::Attach, "")
        });
        assert_eq!(again.unwrap().stag, region.stag);
        let file = File::options().write(true).open(dir.join("file")).unwrap();
        let rounds = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let peers: Vec<_> = sessions
                .into_iter()
                .zip(&mut words)
                .zip(0..)
                .map(|((session, words), peer)| {
                    let (region, rounds) = (&region, &rounds);
                    scope.spawn(move || hammer(session, region, peer, words, rounds))
                })
                .collect();
            let progress = |by: u64| {
                let before = rounds.load(Ordering::Relaxed);
                while rounds.load(Ordering::Relaxed) < before + by
                    && !peers.iter().any(|peer| peer.is_finished())
                {
                    std::thread::yield_now();
                }
            };
            for n in 0..MOVES - 1 {
                relocate(&dir, &file, life * MOVES + n);
                progress(10);
            }
            // The last of its moves may find its end anywhere.
            let mover = scope.spawn(|| {
                let _ = try_relocate(&dir, &file, life * MOVES + MOVES - 1);
            });
            progress(u64::from(life));
            target.halt();
            mover.join().unwrap();
            for peer in peers {
                peer.join().unwrap();
            }
        });
        drop(file);
        world = world.killed(&SMALL_POOL);
        let mut session = world.target.session();
        let file = world.file("file");
        for (words, peer) in words.iter_mut().zip(0..) {
            for page in 0..PAGES {
                let mut local = [0; 8];
                file.read_exact_at(&mut local, word_at(peer, page)).unwrap();
                let remote = get(&mut session, &region, word_at(peer, page), 8).unwrap();
                assert_eq!(remote, local);
                let found = u64::from_le_bytes(local);
                let known = words.acknowledged[page as usize];
                let doubtful = words.doubtful == Some((page, found));
                assert!(found == known || doubtful, "page {page}: {found}, {known}");
                words.acknowledged[page as usize] = found;
            }
            words.doubtful = None;
        }
        println!("life {life}: {} rounds", rounds.into_inner());
    }
    world.end();
}

/// How a file ends, or loses what a region has of it, while nobody has that open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Deleted,
    Truncated,
    /// By another file that gets its name.
    Replaced,
    /// Cut in the middle; a region of what stays goes on.
    Cut,
}

/// The place of a file that has only stored registrations becomes another file's while peers hammer their STags: they read old
/// bytes, then they are refused, for ever, also after a kill, and neither see the other file nor write to it. What is left of a file
/// that was cut is as it was (I3, I9, I11, C2).
#[test]
fn a_persistent_region_never_shows_another_file() {
    const LEN: u64 = 256 << 10;
    let Some(mut world) = World::new("128MiB", &SMALL_POOL) else {
        return;
    };
    let mut ended = Vec::new();
    let mut kept = Vec::new();
    let mut others = Vec::new();
    for round in 0..8 {
        let how = [End::Deleted, End::Truncated, End::Replaced, End::Cut][round % 4];
        let (target, dir) = (&world.target, &world.dir);
        let name = format!("victim-{round}");
        write_synced(&dir.join(&name), &[1; LEN as usize]);
        let flags = FLAG_WRITE | FLAG_PERSISTENT;
        let victim = stored(target, &format!("/{name}"), flags, 0);
        let below = stored(target, &format!("/{name}"), flags, LEN / 2);
        let hammered = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let peers: Vec<_> = (0..2)
                .map(|n| {
                    let (victim, hammered) = (&victim, &hammered);
                    scope.spawn(move || {
                        let mut session = target.session();
                        for turn in 0.. {
                            let at = (turn * 7919 + n * 4001) % (LEN - 70_000);
                            let written = match n {
                                0 => try_put(&mut session, victim, at, &[1; 9000], turn % 8 == 0),
                                _ => Ok(()),
                            };
                            match written.and_then(|()| get(&mut session, victim, at, 70_000)) {
                                Ok(bytes) => assert!(bytes.iter().all(|&byte| byte == 1)),
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
            let path = dir.join(&name);
            match how {
                End::Deleted => fs::remove_file(&path).unwrap(),
                End::Truncated => drop(File::create(&path).unwrap()),
                End::Replaced => {
                    fs::write(dir.join("new"), b"new").unwrap();
                    fs::rename(dir.join("new"), &path).unwrap();
                }
                End::Cut => {
                    let file = File::options().write(true).open(&path).unwrap();
                    file.set_len(LEN / 2).unwrap();
                    // Too late.
                    file.set_len(LEN).unwrap();
                }
            }
            let other = format!("other-{round}");
            write_synced(&dir.join(&other), &[99; LEN as usize]);
            others.push(other);
            for peer in peers {
                let code = peer.join().unwrap();
                use TerminateCode::{ProtectionInvalidStag, TaggedInvalidStag};
                assert!(
                    matches!(code, ProtectionInvalidStag | TaggedInvalidStag),
                    "{how:?}: {code}"
                );
            }
        });
        ended.push(victim);
        match how {
            End::Cut => kept.push((name, below)),
            _ => ended.push(below),
        }
    }
    let check = |world: &World| {
        for file in &ended {
            is_refused(&world.target, file);
        }
        for name in &others {
            let found = fs::read(world.dir.join(name)).unwrap();
            assert!(found.iter().all(|&byte| byte == 99), "{name}");
        }
        for (name, below) in &kept {
            let found = get(&mut world.target.session(), below, 0, LEN / 2).unwrap();
            assert!(found.iter().all(|&byte| byte == 1), "{name}");
            let whole = fs::read(world.dir.join(name)).unwrap();
            assert!(whole[..found.len()] == found, "{name}");
            assert!(whole[found.len()..].iter().all(|&byte| byte == 0), "{name}");
        }
    };
    check(&world);
    world = world.killed(&SMALL_POOL);
    check(&world);
    world.end();
}

/// Pages that wait for a peer who takes nothing hold up nobody who deletes, cuts or moves their files; the peer gets the bytes that
/// are still the file's, or is refused, and never another's (I9, I11, I16).
#[test]
fn a_peer_that_takes_nothing_keeps_no_file() {
    const PIECES: usize = 64;
    let Some(world) = World::new("256MiB", &["--pool", "16MiB"]) else {
        return;
    };
    let len = PIECE * PIECES;
    let content = pattern(len, 11);
    let greedy = |name: &str| {
        fs::write(world.dir.join(name), &content).unwrap();
        let region = stored(&world.target, &format!("/{name}"), FLAG_PERSISTENT, 0);
        (Greedy::new(&world.target, &region, PIECES), region)
    };
    let (mut moves, _) = greedy("moves");
    // Each of these returns, with the peer as it is.
    let file = world.file("moves");
    for n in 0..4 {
        relocate(&world.dir, &file, n);
    }
    file.set_len(len as u64).unwrap();
    assert!(moves.take() == (content.clone(), true));
    drop(file);

    let (mut goes, region) = greedy("goes");
    fs::remove_file(world.dir.join("goes")).unwrap();
    fs::write(world.dir.join("next"), vec![0x99; len]).unwrap();
    is_refused(&world.target, &region);
    let (found, _) = goes.take();
    assert!(found == content[..found.len()]);
    let next = fs::read(world.dir.join("next")).unwrap();
    assert!(next.iter().all(|&byte| byte == 0x99));
    drop((moves, goes));
    world.end();
}

/// A region is plain, persistent, or grows; not both of the last. Refusing that changes nothing.
#[test]
fn a_persistent_region_does_not_grow() {
    let Some(world) = World::new("64MiB", &[]) else {
        return;
    };
    let request = Request {
        flags: MAKE | FLAG_GROW,
        length: 1000,
        ..Request::new(Op::Open, "/file")
    };
    match world.target.session().open(request) {
        Err(ClientError::Refused { status, .. }) => assert_eq!(status, libc::EINVAL),
        other => panic!("not refused: {other:?}"),
    }
    assert!(!world.dir.join("file").exists());
    world.end();
}

/// Pages that wait for a peer who takes nothing hold up neither who makes a snapshot nor, then, who writes to them; the snapshot has
/// them as they were, and the peer what its READs find (I16).
#[test]
fn a_peer_that_takes_nothing_holds_up_no_snapshot() {
    const PIECES: usize = 64;
    let Some(world) = World::new("128MiB", &["--pool", "32MiB"]) else {
        return;
    };
    let len = PIECE * PIECES;
    let content = pattern(len, 11);
    let file = world.file("file");
    file.write_all_at(&content, 0).unwrap();
    let region = stored(&world.target, "/file", FLAG_PERSISTENT, 0);
    // Two of them have the same pages.
    let mut greedy = [0, 1].map(|_| Greedy::new(&world.target, &region, PIECES));
    let dir = world.dir.to_str().unwrap();
    good(&["snapshot", "create", dir, "before"]);
    file.write_all_at(&vec![0x99; len], 0).unwrap();
    let kept = fs::read(world.dir.join(".snapshots/before/file")).unwrap();
    assert!(kept == content);
    for greedy in &mut greedy {
        let (found, all) = greedy.take();
        assert!(all);
        let pairs = found.iter().zip(&content);
        assert!(
            pairs
                .into_iter()
                .all(|(found, old)| found == old || *found == 0x99)
        );
    }
    drop((greedy, file));
    world.end();
}
