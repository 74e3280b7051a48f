//! Loads that bring a target to its limits, and ends that are not orderly: nobody else is disturbed, nothing hangs.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{FileExt, symlink};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    self, FLASHNET, Image, bad, can_mount, can_serve, flashnet, good, pattern, served,
};
use tools::client::{ClientError, Session, SessionOptions};
use tools::control::{FLAG_CREATE, FLAG_EXCLUSIVE, FLAG_TRUNCATE, FLAG_WRITE, Op, Request};

fn refused(session: &mut Session, request: Request, errno: i32) {
    match session.open(request) {
        Err(ClientError::Refused { status, .. }) => assert_eq!(status, errno),
        other => panic!("not refused: {other:?}"),
    }
}

/// One path has one spelling, and links do not lead out of an export.
#[test]
fn exports_have_no_back_door() {
    if !can_serve() {
        return;
    }
    if !can_mount() {
        return;
    }
    let image = Image::new("64MiB");
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let mount = dir.to_str().unwrap();
    let target = image.serve(&["--mount", mount]);
    fs::create_dir_all(dir.join("open/closed")).unwrap();
    fs::create_dir(dir.join("secret")).unwrap();
    fs::write(dir.join("secret/s"), "secret").unwrap();
    fs::write(dir.join("open/closed/q"), "kept").unwrap();
    symlink("/secret/s", dir.join("open/absolute")).unwrap();
    symlink("../secret", dir.join("open/relative")).unwrap();
    assert!(target.stop().success());

    let target = image.serve(&["--export", "/open", "--export", "/open/closed:ro"]);
    let mut session = target.session();
    let open = |path: &str, flags| Request {
        flags,
        length: 4,
        ..Request::new(Op::Open, path)
    };
    let write = FLAG_WRITE | FLAG_TRUNCATE;
    for path in ["/open//closed/q", "//open/closed/q", "/open/closed//q"] {
        refused(&mut session, open(path, write), libc::EINVAL);
    }
    refused(&mut session, open("/open/closed/q", write), libc::EROFS);
    refused(&mut session, open("/open/absolute", 0), libc::EOPNOTSUPP);
    refused(&mut session, open("/open/relative/s", 0), libc::ELOOP);
    let make = FLAG_WRITE | FLAG_CREATE;
    refused(&mut session, open("/open/relative/new", make), libc::ELOOP);
    refused(&mut session, open("/secret/s", 0), libc::EACCES);
    session
        .open(Request::new(Op::Open, "/open/closed/q"))
        .unwrap();
    assert!(target.stop().success());
}

/// EXCLUSIVE means that exactly one of many creators succeeds.
#[test]
fn one_creator_wins() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let address = target.address;
    for round in 0..20 {
        let wins: usize = thread::scope(|scope| {
            let tries: Vec<_> = (0..6)
                .map(|_| {
                    scope.spawn(move || {
                        let mut session =
                            Session::connect(address, SessionOptions::default()).unwrap();
                        let request = Request {
                            flags: FLAG_CREATE | FLAG_EXCLUSIVE,
                            ..Request::new(Op::Open, format!("/one-{round}"))
                        };
                        usize::from(session.open(request).is_ok())
                    })
                })
                .collect();
            tries.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(wins, 1);
    }
    assert!(target.stop().success());
}

/// What does not fit is refused, says so, and leaves the file that was there as it was.
#[test]
fn a_put_that_does_not_fit_loses_nothing() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let small = image.beside("small");
    let large = image.beside("large");
    let back = image.beside("back");
    fs::write(&small, pattern(1_000_000, 1)).unwrap();
    fs::write(&large, pattern(100 << 20, 2)).unwrap();
    let target = image.serve(&[]);
    good(&["put", small.to_str().unwrap(), &target.url("/file")]);
    let error = bad(&["put", large.to_str().unwrap(), &target.url("/file")]);
    assert!(error.contains("room"), "{error}");
    let mut session = target.session();
    refused(
        &mut session,
        Request {
            flags: FLAG_WRITE | FLAG_TRUNCATE,
            length: 1 << 60,
            ..Request::new(Op::Open, "/file")
        },
        libc::ENOSPC,
    );
    good(&["get", &target.url("/file"), back.to_str().unwrap()]);
    assert!(fs::read(&back).unwrap() == pattern(1_000_000, 1));
    assert!(target.stop().success());
}

/// Connections that are cut off in the middle of their requests leave no region, no hold and no space behind.
#[test]
fn connections_cut_off_leave_nothing() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&["--reactors", "2"]);
    let source = image.beside("source");
    fs::write(&source, pattern(8 << 20, 3)).unwrap();
    good(&["put", source.to_str().unwrap(), &target.url("/file")]);
    let address = target.address;
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                for n in 0..150 {
                    let mut stream = TcpStream::connect(address).unwrap();
                    let mut bytes = b"MPA ID Req Frame".to_vec();
                    bytes.extend([0x40, 1, 0, 0]);
                    stream.write_all(&bytes).unwrap();
                    let mut reply = [0; 20];
                    std::io::Read::read_exact(&mut stream, &mut reply).unwrap();
                    for msn in 1..=4_u32 {
                        let request = Request::new(Op::Open, "/file").emit();
                        let _ = stream.write_all(&send_fpdu(msn, &request));
                    }
                    if n % 3 == 0 {
                        thread::sleep(Duration::from_micros(300));
                    }
                    let socket = socket2::Socket::from(stream);
                    // A reset, not a FIN.
                    socket.set_linger(Some(Duration::ZERO)).unwrap();
                }
            });
        }
    });
    // The file is free to go, and its space with it: what needs most of the volume fits again.
    let large = image.beside("large");
    fs::write(&large, pattern(30 << 20, 4)).unwrap();
    let start = Instant::now();
    loop {
        let put = common::flashnet(&["put", large.to_str().unwrap(), &target.url("/file")]);
        if put.status.success() {
            break;
        }
        let late = start.elapsed() > Duration::from_secs(60);
        assert!(!late, "{}", String::from_utf8_lossy(&put.stderr));
        thread::sleep(Duration::from_millis(100));
    }
    assert!(target.stop().success());
    let report = good(&["fsck", image.path().to_str().unwrap()]);
    assert!(report.contains("0 problems"), "{report}");
}

/// An FPDU with a SEND of `payload`: DDP untagged, last, queue 0; RDMAP version 1, SEND.
fn send_fpdu(msn: u32, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0x41, 0x43, 0, 0, 0, 0];
    ulpdu.extend(0_u32.to_be_bytes());
    ulpdu.extend(msn.to_be_bytes());
    ulpdu.extend(0_u32.to_be_bytes());
    ulpdu.extend(payload);
    let mut fpdu = (ulpdu.len() as u16).to_be_bytes().to_vec();
    fpdu.extend(ulpdu);
    fpdu.resize(fpdu.len().next_multiple_of(4), 0);
    fpdu.extend(crc32c::crc32c(&fpdu).to_le_bytes());
    fpdu
}

/// SIGTERM in the middle of everything, with the least pool there is: the target ends, clean, every time.
#[test]
fn sigterm_under_load() {
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    for _ in 0..5 {
        let target = image.serve(&["--pool", "1MiB"]);
        let address = target.address;
        let end = AtomicBool::new(false);
        thread::scope(|scope| {
            for n in 0..24 {
                let end = &end;
                scope.spawn(move || {
                    while !end.load(Ordering::Relaxed) {
                        let Ok(mut session) = Session::connect(address, SessionOptions::default())
                        else {
                            continue;
                        };
                        for k in 0..20 {
                            let request = Request {
                                flags: FLAG_CREATE | FLAG_WRITE | FLAG_TRUNCATE,
                                length: 50_000,
                                ..Request::new(Op::Open, format!("/f{n}-{k}"))
                            };
                            if session.open(request).is_err() {
                                break;
                            }
                        }
                    }
                });
            }
            // Also if the target does not end: the others would go on for ever.
            let _ends = Ends(&end);
            thread::sleep(Duration::from_millis(300));
            assert!(target.stop().success());
        });
    }
    let report = good(&["fsck", image.path().to_str().unwrap()]);
    assert!(report.contains("0 problems"), "{report}");
}

/// More threads than the pool has room for make progress together (I16).
#[test]
fn large_requests_with_a_tiny_pool() {
    if !can_serve() {
        return;
    }
    if !can_mount() {
        return;
    }
    let image = Image::new("128MiB");
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let target = image.serve(&["--mount", dir.to_str().unwrap(), "--pool", "1MiB"]);
    let files: Vec<File> = (0..4)
        .map(|n| {
            let path = dir.join(format!("f{n}"));
            fs::write(&path, pattern(8 << 20, n)).unwrap();
            File::options().read(true).write(true).open(path).unwrap()
        })
        .collect();
    thread::scope(|scope| {
        for n in 0..24_u64 {
            let file = &files[n as usize % 4];
            scope.spawn(move || {
                let mut buffer = vec![n as u8; 1 << 20];
                for k in 0..6 {
                    let at = ((n * 5 + k * 3) % 8) << 20;
                    if (n + k) % 2 == 0 {
                        file.write_all_at(&buffer, at).unwrap();
                    } else {
                        file.read_exact_at(&mut buffer, at).unwrap();
                    }
                }
            });
        }
    });
    drop(files);
    let listing = good(&["ls", &target.url("/")]);
    assert!(listing.contains("f3"), "{listing}");
    assert!(target.stop().success());
}

/// Many who write the same bytes at once wait for each other's pages, and none for ever (I16).
#[test]
fn overlapping_writes() {
    if !can_serve() {
        return;
    }
    if !can_mount() {
        return;
    }
    let image = Image::new("128MiB");
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let target = image.serve(&["--mount", dir.to_str().unwrap(), "--pool", "1MiB"]);
    let path = dir.join("f");
    fs::write(&path, vec![0; 8 << 20]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let turns = std::sync::Barrier::new(8);
    let (file, turns) = (&file, &turns);
    thread::scope(|scope| {
        for n in 1..9 {
            scope.spawn(move || {
                let data = vec![n; 256 << 10];
                for k in 0..120 {
                    turns.wait();
                    file.write_all_at(&data, (k * 7 % 32) << 18).unwrap();
                }
            });
        }
    });
    let mut found = vec![0; 8 << 20];
    file.read_exact_at(&mut found, 0).unwrap();
    // Whose bytes they are is undefined, as for any direct writes at once.
    assert!(found.iter().all(|byte| (1..9).contains(byte)));
    assert!(target.stop().success());
}

/// A mount that somebody works in is taken away at the end, not left behind dead.
#[test]
fn busy_mount_at_the_end() {
    if !can_serve() {
        return;
    }
    if !can_mount() {
        return;
    }
    let image = Image::new("64MiB");
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let target = image.serve(&["--mount", dir.to_str().unwrap()]);
    fs::write(dir.join("file"), "content").unwrap();
    let mut squatter = Command::new("sleep")
        .arg("60")
        .current_dir(&dir)
        .spawn()
        .unwrap();
    let status = target.stop();
    squatter.kill().unwrap();
    squatter.wait().unwrap();
    assert!(status.success());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(dir.to_str().unwrap()));
    let target = image.serve(&["--mount", dir.to_str().unwrap()]);
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"content");
    assert!(target.stop().success());
}

/// Programs that write all the time, and from which the mount is taken away, do not keep the target from ending in order: what
/// they set going while the volume is closed is carried out (I18). What was synced before is there.
#[test]
fn writers_at_the_end() {
    if !can_serve() {
        return;
    }
    if !can_mount() {
        return;
    }
    const FILE_BYTES: u64 = 4 << 20;
    let image = Image::new("256MiB");
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    for round in 0..4 {
        let target = image.serve(&["--mount", dir.to_str().unwrap(), "--pool", "2MiB"]);
        let begun = std::sync::Barrier::new(5);
        let (begun, dir) = (&begun, &dir);
        thread::scope(|scope| {
            for n in 0..4 {
                scope.spawn(move || {
                    let file = File::create(dir.join(format!("file-{n}"))).unwrap();
                    file.set_len(FILE_BYTES).unwrap();
                    file.write_all_at(&[round + 1; 512], 0).unwrap();
                    file.sync_all().unwrap();
                    let data = vec![round + 1; 80 << 10];
                    begun.wait();
                    // Until the target has gone.
                    for k in 1.. {
                        let at = 4096 + k * 0x9_e379 % (FILE_BYTES - (90 << 10));
                        if file.write_all_at(&data, at).is_err() {
                            break;
                        }
                    }
                });
            }
            begun.wait();
            thread::sleep(Duration::from_millis(300));
            assert!(target.stop().success());
        });
    }
    let target = image.serve(&["--mount", dir.to_str().unwrap()]);
    for n in 0..4 {
        let content = fs::read(dir.join(format!("file-{n}"))).unwrap();
        assert!(content[..512] == [4; 512]);
        assert!(content.iter().all(|byte| *byte == 0 || *byte == 4));
    }
    assert!(target.stop().success());
}

/// Whoever works in a mount that is taken away is told so from some moment on, and everything that was answered before is kept: what
/// was appended and never synced, and what was stored to a mapping.
#[test]
fn what_was_written_before_the_end_is_kept() {
    if !can_serve() {
        return;
    }
    if !can_mount() {
        return;
    }
    let image = Image::new("256MiB");
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let mount = ["--mount", dir.to_str().unwrap()];
    // More than the kernel writes back in a moment.
    const MAPPED: u64 = 8 << 20;
    for round in 0..3 {
        let target = image.serve(&mount);
        let path = |what: &str, n: u32| dir.join(format!("{what}-{round}-{n}"));
        let open = |path| {
            let mut options = File::options();
            options.read(true).write(true).create_new(true).open(path)
        };
        let mapped = open(path("mapped", 0)).unwrap();
        mapped.set_len(MAPPED).unwrap();
        // SAFETY: nobody else uses the file.
        let mut mapping = unsafe { memmap2::MmapMut::map_mut(&mapped) }.unwrap();
        mapping.fill(b'm');

        let begun = std::sync::Barrier::new(4);
        let append = |n: u32| {
            let file = open(path("appended", n)).unwrap();
            begun.wait();
            let mut answered = 0_u32;
            let error = loop {
                // Each makes the file longer, so without the size of the file it is lost.
                let at = u64::from(answered) * 100;
                match file.write_all_at(&answered.to_le_bytes(), at) {
                    Ok(()) => answered += 1,
                    Err(error) => break error,
                }
            };
            // The second from the kernel, if the target has gone meanwhile.
            let is_told = [libc::ENOTCONN, libc::ECONNABORTED]
                .contains(&error.raw_os_error().unwrap_or_default());
            assert!(is_told, "{error}");
            answered
        };
        let answered: Vec<u32> = thread::scope(|scope| {
            let append = &append;
            let appending: Vec<_> = (0..3).map(|n| scope.spawn(move || append(n))).collect();
            begun.wait();
            thread::sleep(Duration::from_millis(200));
            assert!(target.stop().success());
            let ended = appending.into_iter().map(|thread| thread.join());
            ended.map(|answered| answered.unwrap()).collect()
        });

        let target = image.serve(&mount);
        for (n, answered) in (0..).zip(answered) {
            let content = fs::read(path("appended", n)).unwrap();
            assert!(answered > 0);
            for k in 0..answered {
                let at = k as usize * 100;
                let found = content.get(at..at + 4);
                assert_eq!(found, Some(&k.to_le_bytes()[..]), "{k} of {answered}");
            }
        }
        let content = fs::read(path("mapped", 0)).unwrap();
        assert_eq!(content.len() as u64, MAPPED);
        assert!(content.iter().all(|&byte| byte == b'm'));
        assert!(target.stop().success());
        drop(mapping);
    }
}

/// Out of descriptors a target waits for some, without spinning, and serves those it has.
#[test]
fn out_of_descriptors() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let (child, address) = serve_after("ulimit -n 40", &image);
    let session = || Session::connect(address, SessionOptions::default()).unwrap();
    let mut first = session();
    let crowd: Vec<_> = (0..60)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let used = || tools::perf::cpu::used(Some(child.0.id())).unwrap();
    thread::sleep(Duration::from_millis(500));
    let before = used();
    thread::sleep(Duration::from_secs(2));
    let spent = used() - before;
    assert!(
        spent < Duration::from_millis(500),
        "spins: {spent:?} in 2 s"
    );
    first.call(Request::new(Op::Stat, "/")).unwrap();
    drop(crowd);
    thread::sleep(Duration::from_millis(300));
    session().call(Request::new(Op::Stat, "/")).unwrap();
}

/// Where a limit of this process ends the image (`ulimit -f`), writes fail and the target does not: what was acknowledged is read as
/// before, it ends in order, and another one that has more room goes on (I1).
#[test]
fn out_of_file_size() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let local = image.beside("local");
    fs::write(&local, pattern(1 << 20, 1)).unwrap();
    let local = local.to_str().unwrap();
    // In blocks of 512 bytes: 16 MiB.
    let (mut child, address) = serve_after("ulimit -f 32768", &image);
    let put = |n: usize| flashnet(&["put", local, &format!("{address}/file{n}")]);
    let stored = (0..64).take_while(|&n| put(n).status.success()).count();
    assert!((1..64).contains(&stored), "{stored}");
    let back = image.beside("back");
    let back = back.to_str().unwrap();
    good(&["get", &format!("{address}/file0"), back]);
    // SAFETY: sends a signal to a child that has not been waited for.
    unsafe { libc::kill(child.0.id() as i32, libc::SIGTERM) };
    assert_eq!(child.0.wait().unwrap().code(), Some(1));
    let target = image.serve(&[]);
    for n in 0..stored {
        good(&["get", &target.url(&format!("/file{n}")), back]);
        assert!(fs::read(back).unwrap() == pattern(1 << 20, 1), "file {n}");
    }
    assert!(target.stop().success());
}

/// A target whose log nobody takes, on a full disk or in a pipe to nowhere, serves, and answers operators, whatever there is to log.
#[test]
fn a_log_that_can_not_be_written() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let serve = |log: Stdio| {
        let mut command = Command::new(FLASHNET);
        command.args(["--json", "serve", "--listen", "127.0.0.1:0"]);
        command.arg(image.path()).env("FLASHNET_LOG", "info");
        let child = command.stdout(Stdio::piped()).stderr(log).spawn();
        let mut child = Mortal(child.unwrap());
        let address = served(&mut child.0);
        (child, address)
    };
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (reader, pipe) = std::io::pipe().unwrap();
    drop(reader);
    for log in [Stdio::from(full), Stdio::from(pipe)] {
        let (mut child, address) = serve(log);
        let mut session = Session::connect(address, SessionOptions::default()).unwrap();
        session.call(Request::new(Op::Stat, "/")).unwrap();
        good(&["region", "list", image.path().to_str().unwrap()]);
        // SAFETY: sends a signal to a child that has not been waited for.
        unsafe { libc::kill(child.0.id() as i32, libc::SIGTERM) };
        assert!(child.0.wait().unwrap().success());
    }
}

/// A terminal that is closed ends a target in order; under nohup(1) it is none of its business.
#[test]
fn hangups() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    // SAFETY: sends a signal to a child that has not been waited for.
    unsafe { libc::kill(target.pid() as i32, libc::SIGHUP) };
    assert!(target.ended().success());
    let (child, _) = serve_after("trap '' HUP", &image);
    let status = fs::read_to_string(format!("/proc/{}/status", child.0.id())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap();
    assert_ne!(ignored & 1 << (libc::SIGHUP - 1), 0);
}

/// Peers that connect and say nothing keep nobody out, however many there are: who has been silent for longest gives way to who
/// comes (RELIABILITY §8). Who has been let in stays.
#[test]
fn silence_keeps_nobody_out() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    // 128 connections: one for every 16 KiB.
    let target = image.serve(&["--pool", "2MiB"]);
    let mut first = target.session();
    let silent: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(target.address).unwrap())
        .collect();
    // As long as a peer may take before it must give way to others.
    thread::sleep(Duration::from_millis(1100));
    let mut let_in: Vec<Session> = (0..20).map(|_| target.session()).collect();
    for session in std::iter::once(&mut first).chain(&mut let_in) {
        session.call(Request::new(Op::Stat, "/")).unwrap();
    }
    // 127 were let in and 20 of them had to give way, the first; who came then, before anybody had to, was refused.
    let has_ended = |mut stream: &TcpStream, patience| {
        stream.set_read_timeout(Some(patience)).unwrap();
        match stream.read(&mut [0]) {
            Ok(len) => len == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    };
    let patience = Duration::from_millis(1);
    let left: Vec<bool> = silent.iter().map(|s| !has_ended(s, patience)).collect();
    assert!(left[20..127].iter().all(|&left| left), "{left:?}");
    for stream in silent[..20].iter().chain(&silent[127..]) {
        assert!(has_ended(stream, Duration::from_secs(5)));
    }
    drop((first, let_in));
    assert!(target.stop().success());
}

/// A child that does not outlive its test, also if that fails: it has the standard error of the test program, and who reads that
/// waits for its end.
struct Mortal(Child);

impl Drop for Mortal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A target of a shell that has done something first, and where it listens.
fn serve_after(first: &str, image: &Image) -> (Mortal, SocketAddr) {
    let script = format!("{first}; exec \"$0\" \"$@\"");
    let child = Command::new("sh")
        .args(["-c", &script, FLASHNET])
        .args(["--json", "serve", "--listen", "127.0.0.1:0"])
        .arg(image.path())
        .env("FLASHNET_LOG", "error")
        .stdout(Stdio::piped())
        .spawn();
    let mut child = Mortal(child.unwrap());
    let address = served(&mut child.0);
    (child, address)
}

/// A reader that has seen enough ends a command quietly.
#[test]
fn output_into_a_closed_pipe() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let mut ls = Command::new(FLASHNET)
        .args(["ls", &target.url("/")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(ls.stdout.take());
    let output = ls.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    assert!(target.stop().success());
}
