//! A target and its clients, as a user runs them.

use std::fs;
use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use crate::common::world::put;
use crate::common::{self, Image, bad, can_serve, good, pattern};
use softrdma::driver::tcp::TcpClient;
use softrdma::{
    Atomic, Buffer, Config, LocalSlice, Operation, Placement, RegionTable, RemoteAddr, Stag,
    TaggedOffset, WorkRequest, WrId,
};
use tools::client::Session;
use tools::control::{
    FLAG_CREATE, FLAG_PERSISTENT, FLAG_TRUNCATE, FLAG_WRITE, MESSAGE_BYTES_MAX, Op, Reply, Request,
};

/// Unix time of the last change of a file, in nanoseconds.
fn changed(session: &mut Session, path: &str) -> u64 {
    session.call(Request::new(Op::Stat, path)).unwrap().mtime_ns
}

/// A target that ends in order, or for another one, does so with the times of what clients have written who are still there,
/// with files open (I1: an orderly end is a sync point).
#[test]
fn an_orderly_end_keeps_the_times_of_writes() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let mut target = image.serve(&[]);
    for is_replaced in [true, false] {
        let mut session = target.session();
        let region = session
            .open(Request {
                flags: FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE,
                length: 4096,
                ..Request::new(Op::Open, "/written")
            })
            .unwrap();
        let created = changed(&mut session, "/written");
        let start = Instant::now();
        // For longer than a step of any clock, and once more behind that.
        let mut is_late = false;
        while !is_late {
            is_late = start.elapsed() > Duration::from_millis(50);
            put(&mut session, &region, 0, b"new", false);
        }
        target = match is_replaced {
            true => {
                let other = image.serve(&["--replace"]);
                assert!(target.ended().success());
                other
            }
            false => {
                assert!(target.stop().success());
                image.serve(&[])
            }
        };
        let written = changed(&mut target.session(), "/written");
        assert!(written > created, "{is_replaced}: {written}, {created}");
    }
    assert!(target.stop().success());
}

/// What is put can be listed, looked at and got back, also after an orderly restart and after a kill (I1).
#[test]
fn put_ls_stat_get_survive_restarts() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let source = image.beside("source");
    let back = image.beside("back");
    let content = pattern(5_000_001, 7);
    fs::write(&source, &content).unwrap();

    let target = image.serve(&[]);
    let put = good(&["put", source.to_str().unwrap(), &target.url("/name")]);
    assert!(put.contains("4.8 MiB"), "{put}");
    let list: serde_json::Value =
        serde_json::from_str(&good(&["--json", "ls", &target.url("/")])).unwrap();
    assert_eq!(list["entries"][0]["name"], "name");
    assert_eq!(list["entries"][0]["size"], 5_000_001);
    let stat: serde_json::Value =
        serde_json::from_str(&good(&["stat", "--json", &target.url("/name")])).unwrap();
    assert_eq!(stat["mode"], "100644");
    let get = |url: &str| {
        good(&["get", url, back.to_str().unwrap()]);
        fs::read(&back).unwrap()
    };
    assert!(get(&target.url("/name")) == content);
    assert!(target.stop().success());

    let target = image.serve(&[]);
    assert!(get(&target.url("/name")) == content);
    // Durable when `put` returned: a kill right behind it takes nothing.
    fs::write(&source, &content[..1_234_567]).unwrap();
    good(&["put", source.to_str().unwrap(), &target.url("/name")]);
    target.kill();
    let target = image.serve(&["--reactors", "2"]);
    assert!(get(&target.url("/name")) == content[..1_234_567]);
    assert!(target.stop().success());
    let report = good(&["fsck", image.path().to_str().unwrap()]);
    assert!(
        report.contains("1 files") && report.contains("0 problems"),
        "{report}"
    );
}

/// Hands on what comes from a target, up to so many bytes, and then nothing until `end` is dropped.
fn stall(target: SocketAddr, bytes: u64, end: Receiver<()>) -> SocketAddr {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = door.local_addr().unwrap();
    std::thread::spawn(move || {
        let (client, _) = door.accept().unwrap();
        let server = TcpStream::connect(target).unwrap();
        let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        let _ = std::io::copy(&mut (&server).take(bytes), &mut &client);
        let _ = end.recv();
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    });
    address
}

/// What is cut off, by its end or by a signal, leaves what was there before, and nothing else.
#[test]
fn get_is_all_or_nothing() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let dir = image.beside("here");
    fs::create_dir(&dir).unwrap();
    let (from, to) = (image.beside("from"), dir.join("to"));
    let content = common::pattern(8 << 20, 3);
    fs::write(&from, &content).unwrap();
    good(&["put", from.to_str().unwrap(), &target.url("/file")]);
    let here = || {
        let names = fs::read_dir(&dir).unwrap().flatten();
        names.map(|name| name.file_name()).collect::<Vec<_>>()
    };
    fs::write(&to, "before").unwrap();
    fs::set_permissions(&to, fs::Permissions::from_mode(0o640)).unwrap();
    for signal in [None, Some(libc::SIGINT), Some(libc::SIGTERM)] {
        let (stop, end) = std::sync::mpsc::channel();
        let door = stall(target.address, 1 << 20, end);
        let mut get = std::process::Command::new(common::FLASHNET)
            .args(["get", "--timeout", "0s"])
            .args([&format!("{door}/file"), to.to_str().unwrap()])
            .spawn()
            .unwrap();
        while here().len() < 2 {
            assert!(get.try_wait().unwrap().is_none(), "it has ended");
            std::thread::sleep(Duration::from_millis(5));
        }
        match signal {
            None => drop(stop),
            // SAFETY: a signal to a child that has not been waited for.
            Some(signal) => drop(unsafe { libc::kill(get.id() as i32, signal) }),
        }
        let status = get.wait().unwrap();
        assert_eq!(
            (status.code(), status.signal()),
            (signal.is_none().then_some(1), signal)
        );
        assert_eq!(here(), ["to"]);
        assert_eq!(fs::read(&to).unwrap(), b"before");
    }
    let link = image.beside("link");
    std::os::unix::fs::symlink(&to, &link).unwrap();
    good(&["get", &target.url("/file"), link.to_str().unwrap()]);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::read(&to).unwrap() == content);
    assert_eq!(
        fs::metadata(&to).unwrap().permissions().mode() & 0o777,
        0o640
    );
    good(&["get", &target.url("/file"), "/dev/null"]);
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    assert_eq!(here(), ["to"]);
    // As long as a name can be.
    let long = dir.join("n".repeat(255));
    good(&["get", &target.url("/file"), long.to_str().unwrap()]);
    assert!(fs::read(&long).unwrap() == content);
    assert_eq!(here().len(), 2);
    // What is no name of a file is refused before all of it has come: here it never does.
    let (stop, end) = std::sync::mpsc::channel();
    let door = stall(target.address, 1 << 20, end);
    let none = format!("{}/none/", dir.display());
    let said = bad(&["get", &format!("{door}/file"), &none]);
    assert!(said.contains("none/: not a directory"), "{said}");
    assert_eq!(here().len(), 2);
    drop(stop);
}

/// Who gets a file that is replaced meanwhile hears that it may have been.
#[test]
fn a_file_that_is_replaced_while_it_is_read() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let (from, pipe) = (image.beside("from"), image.beside("pipe"));
    fs::write(&from, common::pattern(8 << 20, 3)).unwrap();
    let replace = || good(&["put", from.to_str().unwrap(), &target.url("/file")]);
    replace();
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let get = std::process::Command::new(common::FLASHNET)
        .args(["get", &target.url("/file"), pipe.to_str().unwrap()])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // More is asked for when somebody has taken what there is.
    let mut reader = fs::File::open(&pipe).unwrap();
    reader.read_exact(&mut [0]).unwrap();
    replace();
    std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
    let output = get.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("replaced"), "{said}");
    assert!(target.stop().success());
}

/// There is as much room for a new file as is said; what has none leaves no name.
#[test]
fn as_much_room_as_is_said() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let mut session = target.session();
    let create = |session: &mut Session, length| {
        let flags = FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE;
        let request = Request::new(Op::Open, "/file");
        session.open(Request {
            flags,
            length,
            ..request
        })
    };
    // What somebody is told who wants more.
    let said = create(&mut session, 1 << 30).unwrap_err().to_string();
    let room: u64 = said.rsplit(' ').next().unwrap().parse().unwrap();
    // A byte more is refused before there is a name.
    assert!(create(&mut session, room + 1).is_err());
    assert!(session.list("/").unwrap().is_empty());
    assert_eq!(create(&mut session, room).unwrap().length, room);
    session.close();
    assert!(target.stop().success());
}

/// I9: an open that is refused has made no file, and a file that it would have emptied holds what it held: if the region would not
/// be inside of it, and if the connection has as many as it may.
#[test]
fn an_open_that_is_refused_changes_nothing() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let mut session = target.session();
    let open = |session: &mut Session, path: &str, flags, offset, length| {
        let request = Request::new(Op::Open, path);
        session.open(Request {
            flags,
            offset,
            length,
            ..request
        })
    };
    let replace = FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE;
    let content = pattern(8192, 7);
    let full = content.len() as u64;
    let file = open(&mut session, "/kept", replace, 0, full).unwrap();
    let fill = |at: u64, bytes: &mut [u8]| {
        bytes.copy_from_slice(&content[at as usize..][..bytes.len()]);
        Ok(())
    };
    session.write(&file, 0, full, true, fill).unwrap();
    let is_kept = || {
        let mut other = target.session();
        let names = other.list("/").unwrap().into_iter();
        let names: Vec<Vec<u8>> = names.map(|entry| entry.name).collect();
        assert_eq!(names, [b"kept"]);
        let mut read = Vec::new();
        let kept = other.open(Request::new(Op::Open, "/kept")).unwrap();
        assert_eq!(kept.length, full);
        let take = |_, bytes: &[u8]| {
            read.extend_from_slice(bytes);
            Ok(())
        };
        other.read(&kept, 0, full, take).unwrap();
        assert!(read == content, "the bytes have changed");
        other.close();
    };
    for flags in [replace, replace | FLAG_PERSISTENT] {
        for path in ["/kept", "/new"] {
            assert!(open(&mut session, path, flags, 50, 60).is_err());
        }
    }
    assert!(open(&mut session, "/new", FLAG_WRITE | FLAG_CREATE, 1, 0).is_err());
    is_kept();
    while open(&mut session, "/kept", 0, 0, 0).is_ok() {}
    for path in ["/kept", "/new"] {
        let refused = open(&mut session, path, replace, 0, 60).unwrap_err();
        assert!(refused.to_string().contains("too many regions"));
    }
    is_kept();
    session.close();
    assert!(target.stop().success());
}

/// Bytes at any offset and of any length, through both flavours of the STag, read back as written.
#[test]
fn bytes_at_any_offset() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&["--pool", "1MiB"]);
    let mut session = target.session();
    let length = 3_000_000;
    let request = Request {
        flags: FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE,
        length,
        ..Request::new(Op::Open, "/file")
    };
    let file = session.open(request).unwrap();
    let mut expected = vec![0; length as usize];
    let random = pattern(4000, 11);
    for (n, bytes) in random.chunks(8).enumerate() {
        let word = u64::from_le_bytes(bytes.try_into().unwrap());
        let offset = word % length;
        let len = (word >> 32) % 20_000;
        let len = len.min(length - offset) as usize;
        let data = pattern(len, word);
        expected[offset as usize..][..len].copy_from_slice(&data);
        session
            .write(&file, offset, len as u64, n % 5 == 0, |at, bytes| {
                bytes.copy_from_slice(&data[(at - offset) as usize..][..bytes.len()]);
                Ok(())
            })
            .unwrap();
    }
    let mut read = Vec::new();
    session
        .read(&file, 0, length, |_, bytes| {
            read.extend_from_slice(bytes);
            Ok(())
        })
        .unwrap();
    let first = read.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!(first, None, "first wrong byte");
    assert!(target.stop().success());
}

/// The configuration file does what the options do, and options win.
#[test]
fn configuration_file() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let config = image.beside("target.toml");
    let text = format!(
        "devices = [{:?}]\npool = \"4MiB\"\nspin = \"20us\"\n[[export]]\npath = \"/\"\nread_only = true\n",
        image.path()
    );
    fs::write(&config, text).unwrap();
    let target = image.serve(&["--config", config.to_str().unwrap()]);
    let message = common::bad(&["put", config.to_str().unwrap(), &target.url("/x")]);
    assert!(message.contains("read-only"), "{message}");
    assert!(target.stop().success());
}

/// A region ends when its file shrinks below it, before the shrinking is visible (I9, I11); regions of other files stay.
#[test]
fn shrinking_a_file_ends_its_regions() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let make = |session: &mut tools::client::Session, path: &str, length| {
        let request = Request {
            flags: FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE,
            length,
            ..Request::new(Op::Open, path)
        };
        session.open(request).unwrap()
    };
    let mut shrinker = target.session();
    let mut victim = target.session();
    make(&mut shrinker, "/a", 100_000);
    let other = make(&mut shrinker, "/b", 100_000);
    let region = victim.open(Request::new(Op::Open, "/a")).unwrap();
    victim.read(&region, 0, 100_000, |_, _| Ok(())).unwrap();
    make(&mut shrinker, "/a", 10);
    assert!(victim.read(&region, 50_000, 100, |_, _| Ok(())).is_err());
    shrinker.read(&other, 0, 100_000, |_, _| Ok(())).unwrap();
    assert!(target.stop().success());
}

/// A hundred idle connections cost next to no processor time: less than one part in a hundred of a core.
#[test]
fn idle_connections_cost_nothing() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let sessions: Vec<_> = (0..100).map(|_| target.session()).collect();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let used = || tools::perf::cpu::used(Some(target.pid())).unwrap();
    let before = used();
    std::thread::sleep(std::time::Duration::from_secs(3));
    let spent = used() - before;
    assert!(
        spent.as_millis() <= 30,
        "{spent:?} of processor time in 3 s"
    );
    drop(sessions);
    assert!(target.stop().success());
}

/// Names of a large directory arrive complete, over many replies.
#[test]
fn large_directory() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let mut session = target.session();
    for n in 0..500 {
        let request = Request {
            flags: FLAG_CREATE,
            ..Request::new(Op::Open, format!("/a-file-with-a-long-name-{n:04}"))
        };
        let file = session.open(request).unwrap();
        let close = Request {
            handle: file.handle,
            ..Request::new(Op::Close, "")
        };
        session.call(close).unwrap();
    }
    let list: serde_json::Value =
        serde_json::from_str(&good(&["--json", "ls", &target.url("/")])).unwrap();
    let names: Vec<_> = list["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["name"].as_str().unwrap().to_owned())
        .collect();
    let expected: Vec<_> = (0..500)
        .map(|n| format!("a-file-with-a-long-name-{n:04}"))
        .collect();
    assert_eq!(names, expected);
    assert!(target.stop().success());
}

/// A client that asks for much and reads nothing for a while holds up nobody else, and then gets every byte in order
/// (the socket fills up in the middle of a send).
#[test]
fn a_client_that_stops_reading() {
    if !can_serve() {
        return;
    }
    const PIECE: usize = 256 << 10;
    const PIECES: usize = 64;
    let image = Image::new("64MiB");
    let content = pattern(PIECE * PIECES, 11);
    let source = image.beside("source");
    fs::write(&source, &content).unwrap();
    let target = image.serve(&["--pool", "4MiB"]);
    good(&["put", source.to_str().unwrap(), &target.url("/file")]);

    let table = RegionTable::new([1; 32]);
    let patience = Duration::from_secs(60);
    let config = Config::default();
    let address = target.address.to_string();
    let mut client = TcpClient::connect(&address, config, &table, &[], patience).unwrap();
    let open = Request::new(Op::Open, "/file");
    client.send(&open.emit(), None).unwrap();
    let reply = Reply::parse(&client.recv(MESSAGE_BYTES_MAX).unwrap()).unwrap();
    assert_eq!(reply.length, content.len() as u64, "{}", reply.message);
    let buffer = Buffer::zeroed(content.len());
    for n in 0..PIECES {
        let at = n * PIECE;
        let read = Operation::Read {
            sink: LocalSlice::new(&buffer, at, PIECE),
            remote: RemoteAddr {
                stag: Stag(reply.stag),
                to: TaggedOffset(reply.to + at as u64),
            },
        };
        let request = WorkRequest::new(WrId(n as u64), read);
        client.connection().post_send(request).unwrap();
    }
    let mut done = client.poll().unwrap().into_iter().count();
    std::thread::sleep(Duration::from_millis(500));
    let back = image.beside("back");
    good(&["get", &target.url("/file"), back.to_str().unwrap()]);
    assert!(fs::read(&back).unwrap() == content);
    while done < PIECES {
        assert!(client.wait().unwrap().status.is_success());
        done += 1;
    }
    assert!(buffer.to_vec(0, content.len()) == content);
    client.disconnect().unwrap();
    assert!(target.stop().success());
}

/// Atomic operations on a file, from two clients of two reactors at once: none is lost, each answer is another one, and
/// behind a FLUSH the sum survives a kill. A file opened for reading refuses them.
#[test]
fn atomic_operations_on_a_file() {
    if !can_serve() {
        return;
    }
    const ROUNDS: u64 = 300;
    let image = Image::new("64MiB");
    let source = image.beside("source");
    fs::write(&source, vec![0; 8192]).unwrap();
    let target = image.serve(&["--reactors", "2"]);
    good(&["put", source.to_str().unwrap(), &target.url("/file")]);
    let address = target.address.to_string();
    let open = |flags| {
        let config = Config {
            private_profile: true,
            ..Config::default()
        };
        let table = RegionTable::new([1; 32]);
        let patience = Duration::from_secs(60);
        let mut client = TcpClient::connect(&address, config, &table, &[], patience).unwrap();
        let request = Request {
            flags,
            ..Request::new(Op::Open, "/file")
        };
        client.send(&request.emit(), None).unwrap();
        let reply = Reply::parse(&client.recv(MESSAGE_BYTES_MAX).unwrap()).unwrap();
        assert_eq!(reply.length, 8192, "{}", reply.message);
        let remote = RemoteAddr {
            stag: Stag(reply.stag),
            to: TaggedOffset(reply.to + 4096),
        };
        (client, remote)
    };
    let add = Atomic::FetchAdd { add: 1, mask: 0 };
    let mut seen: Vec<u64> = std::thread::scope(|scope| {
        let adders = [(); 2].map(|()| {
            scope.spawn(|| {
                let (mut client, remote) = open(FLAG_WRITE);
                let seen: Vec<u64> = (0..ROUNDS)
                    .map(|_| client.atomic(remote, add).unwrap())
                    .collect();
                client.disconnect().unwrap();
                seen
            })
        });
        let seen = adders.map(|adder| adder.join().unwrap());
        seen.concat()
    });
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..2 * ROUNDS));

    let (mut reader, remote) = open(0);
    let refused = reader.atomic(remote, add).unwrap_err();
    assert!(
        refused.to_string().contains("remote access error"),
        "{refused}"
    );

    let (mut client, remote) = open(FLAG_WRITE);
    client.flush(remote, 8, Placement::Persistent).unwrap();
    target.kill();
    let target = image.serve(&[]);
    let back = image.beside("back");
    good(&["get", &target.url("/file"), back.to_str().unwrap()]);
    let sum = (2 * ROUNDS).to_le_bytes();
    assert_eq!(fs::read(&back).unwrap()[4096..4104], sum);
    assert!(target.stop().success());
}
