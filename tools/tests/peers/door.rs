//! Tenants, tokens, persistent regions and replacement, against the real program.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::common::fault_disk::FaultDisk;
use crate::common::{self, Image, Target, bad, can_mount, can_serve, good, pattern};
use softrdma::{CloseReason, Operation, Source, WorkRequest, WrId};
use tools::client::{
    Channel, ChannelOptions, ClientError, FileNo, Identity, RemoteFile, Session, SessionOptions,
};
use tools::control::{
    FLAG_CREATE, FLAG_EXCLUSIVE, FLAG_PERSISTENT, FLAG_TRUNCATE, FLAG_WRITE, Op, Request,
};
use tools::credentials::token::from_text;
use tools::credentials::{Claims, Denial, Key, SessionBlock, unix_now};
use tools::target::Predecessor;

/// What the configuration file of a target says of a tenant.
fn tenant(image: &Image, name: &str, more: &str) -> String {
    let key = image.beside(&format!("{name}.key"));
    if !key.exists() {
        good(&["token", "key", key.to_str().unwrap()]);
    }
    format!("[[tenant]]\nname = \"{name}\"\nkey_file = {key:?}\n{more}\n")
}

fn config(image: &Image, text: &str) -> String {
    let path = image.beside("target.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn key_of(image: &Image, name: &str) -> Key {
    Key::read(&image.beside(&format!("{name}.key"))).unwrap()
}

fn claims(name: &str, epoch: u64, expires: u64) -> Claims {
    Claims {
        tenant: name.parse().unwrap(),
        epoch,
        expires,
        once: false,
        nonce: rand::random(),
    }
}

fn later() -> u64 {
    unix_now() + 3600
}

fn connect(target: &Target, private_data: &[u8]) -> Result<Session, ClientError> {
    let at = [target.address];
    Session::connect_as(&at, SessionOptions::default(), private_data)
}

fn denied(target: &Target, private_data: &[u8]) -> Denial {
    match connect(target, private_data) {
        Err(ClientError::Denied { denial, .. }) => denial,
        other => panic!("not denied: {other:?}"),
    }
}

fn make(session: &mut Session, path: &str, length: u64, flags: u16) -> RemoteFile {
    let request = Request {
        flags: FLAG_WRITE | FLAG_CREATE | flags,
        length,
        ..Request::new(Op::Open, path)
    };
    session.open(request).unwrap()
}

fn write(session: &mut Session, file: &RemoteFile, bytes: &[u8]) {
    let length = bytes.len() as u64;
    session
        .write(file, 0, length, true, |at, to| {
            to.copy_from_slice(&bytes[at as usize..][..to.len()]);
            Ok(())
        })
        .unwrap();
}

fn read(session: &mut Session, file: &RemoteFile) -> Result<Vec<u8>, ClientError> {
    let mut found = Vec::new();
    session.read(file, 0, file.length, |_, bytes| {
        found.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok(found)
}

fn errno(result: Result<RemoteFile, ClientError>) -> i32 {
    match result {
        Err(ClientError::Refused { status, .. }) => status,
        other => panic!("not refused: {other:?}"),
    }
}

/// The end that the target gave a connection, in its own words.
fn end(result: Result<Vec<u8>, ClientError>) -> String {
    match result {
        Err(ClientError::Closed {
            reason: CloseReason::TerminateReceived(why),
            ..
        }) => why.to_string(),
        other => panic!("not ended by the target: {other:?}"),
    }
}

/// (STag, offset, length) that a client remembers are honoured after a kill, without asking for anything (D11); those of
/// plain opens are not; and the same open answers the same STags.
#[test]
fn remembered_after_a_kill() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let content = pattern(50_000, 3);
    let target = image.serve(&[]);
    let mut session = target.session();
    let file = make(&mut session, "/a", 50_000, FLAG_TRUNCATE | FLAG_PERSISTENT);
    let plain = make(&mut session, "/b", 100, FLAG_TRUNCATE);
    write(&mut session, &file, &content);
    target.kill();
    let target = image.serve(&[]);
    let mut session = target.session();
    assert!(read(&mut session, &file).unwrap() == content);
    write(&mut session, &file, &content[..10]);
    let again = make(&mut session, "/a", 0, FLAG_PERSISTENT);
    assert_eq!((again.stag, again.stag_sync), (file.stag, file.stag_sync));
    let why = end(read(&mut session, &plain));
    assert!(why.contains("STag"), "{why}");
    // The end of the connection ends nothing else.
    assert!(read(&mut target.session(), &file).unwrap() == content);
    assert!(target.stop().success());
    good(&["fsck", image.path().to_str().unwrap()]);
}

/// Revoked, shrunk, removed and made again: refused, before and after a kill, and only that (I9, I11).
#[test]
fn refused_for_ever() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let mut session = target.session();
    let flags = FLAG_TRUNCATE | FLAG_PERSISTENT;
    let names = ["/kept", "/revoked", "/shrunk", "/emptied"];
    let files = names.map(|name| make(&mut session, name, 20_000, flags));
    let revoke = Request {
        handle: files[1].handle,
        ..Request::new(Op::Revoke, "")
    };
    session.call(revoke).unwrap();
    make(&mut session, "/shrunk", 10_000, FLAG_TRUNCATE);
    make(&mut session, "/shrunk", 20_000, FLAG_TRUNCATE);
    // Nobody has it open any more when it goes.
    session.close();
    let mut shrinker = target.session();
    make(&mut shrinker, "/emptied", 0, FLAG_TRUNCATE);
    let refused = |target: &Target| {
        for (name, file) in names.iter().zip(&files) {
            let mut session = target.session();
            let attach = Request {
                handle: file.stag.0,
                ..Request::new(Op::Attach, "")
            };
            let attached = session.open(attach);
            let read = read(&mut session, file);
            if *name == "/kept" {
                assert_eq!(attached.unwrap().stag, file.stag);
                assert_eq!(read.unwrap(), vec![0; 20_000]);
            } else {
                assert_eq!(errno(attached), libc::ESTALE, "{name}");
                let why = end(read);
                assert!(why.contains("STag"), "{name}: {why}");
            }
        }
    };
    refused(&target);
    target.kill();
    let target = image.serve(&[]);
    refused(&target);
    assert!(target.stop().success());
}

/// C2: beside a snapshot a full volume has no room for data that change; what has to be written to end registrations, and to start
/// with tenants, is written all the same: revoked and cut off is for ever, and the target starts.
#[test]
fn a_full_volume_beside_a_snapshot() {
    if !can_serve() || !can_mount() {
        return;
    }
    let image = Image::new("64MiB");
    let config = config(&image, &tenant(&image, "alpha", ""));
    let mount = image.beside("mnt");
    fs::create_dir(&mount).unwrap();
    let options = ["--config", &config, "--mount", mount.to_str().unwrap()];
    let target = image.serve(&options);
    let alpha = key_of(&image, "alpha");
    let token = alpha.sign(&claims("alpha", 0, later()));
    let mut session = connect(&target, &token).unwrap();
    let flags = FLAG_TRUNCATE | FLAG_PERSISTENT;
    let names = ["/kept", "/revoked", "/shrunk"];
    let files = names.map(|name| make(&mut session, name, 20_000, flags));
    good(&["snapshot", "create", mount.to_str().unwrap(), "one"]);
    let mut filler = fs::File::create(mount.join("filler")).unwrap();
    let mut fill = || {
        for len in [1 << 20, 4096] {
            while filler.write_all(&pattern(len, 1)).is_ok() {}
        }
        filler.sync_all().unwrap();
    };
    fill();

    let revoke = Request {
        handle: files[1].handle,
        ..Request::new(Op::Revoke, "")
    };
    session.call(revoke).unwrap();
    let shrunk = fs::File::options().write(true).open(mount.join("shrunk"));
    let shrunk = shrunk.unwrap();
    shrunk.set_len(10_000).unwrap();
    shrunk.set_len(20_000).unwrap();
    session.close();
    fill();
    drop(filler);
    target.kill();
    let target = image.serve(&options);
    for (name, file) in names.iter().zip(&files) {
        let mut session = connect(&target, &token).unwrap();
        match *name {
            "/kept" => assert!(read(&mut session, file).unwrap() == [0; 20_000]),
            _ => {
                let found = read(&mut session, file).map(|_| Vec::new());
                assert!(end(found).contains("STag"), "{name}");
            }
        }
    }
    assert!(target.stop().success());
}

/// A tenant reaches only its own: exports, regions, and nothing at all with a token that is not good; strangers are not let in
/// (RELIABILITY §8). Another tenant's use of an STag ends that stream.
#[test]
fn tenants_are_apart() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let text = tenant(&image, "alpha", "epoch = 2\nexports = [\"/a\"]")
        + &tenant(&image, "beta", "exports = [\"/b\", \"/a/shared:ro\"]");
    let target = image.serve(&[]);
    make(&mut target.session(), "/x", 1, FLAG_TRUNCATE);
    assert!(target.stop().success());
    let config = config(&image, &text);
    let target = image.serve(&["--config", &config, "--dram", "1MiB"]);
    let (alpha, beta) = (key_of(&image, "alpha"), key_of(&image, "beta"));
    let of_alpha = alpha.sign(&claims("alpha", 2, later()));
    let of_beta = beta.sign(&claims("beta", 0, later()));

    assert_eq!(denied(&target, b""), Denial::NoToken);
    assert_eq!(denied(&target, &[7; 200]), Denial::NoToken);
    assert_eq!(denied(&target, &of_alpha[..50]), Denial::Malformed);
    let oversized = [&of_alpha[..], &[0; 100]].concat();
    assert_eq!(denied(&target, &oversized), Denial::Malformed);
    let mut forged = of_alpha.clone();
    forged[60] ^= 1;
    assert_eq!(denied(&target, &forged), Denial::Refused);
    let wrong_key = beta.sign(&claims("alpha", 2, later()));
    assert_eq!(denied(&target, &wrong_key), Denial::Refused);
    let previous = alpha.sign(&claims("alpha", 1, later()));
    assert_eq!(denied(&target, &previous), Denial::Epoch);
    let expired = alpha.sign(&claims("alpha", 2, unix_now() - 1));
    assert_eq!(denied(&target, &expired), Denial::Expired);
    let once = alpha.sign(&Claims {
        once: true,
        ..claims("alpha", 2, unix_now() + 100)
    });
    connect(&target, &once).unwrap().close();
    assert_eq!(denied(&target, &once), Denial::Used);

    let mut a = connect(&target, &of_alpha).unwrap();
    let outside = Request {
        flags: FLAG_CREATE,
        ..Request::new(Op::Open, "/b")
    };
    assert_eq!(errno(a.open(outside)), libc::EACCES);
    let dram = Request::new(Op::Open, "/.dram");
    assert_eq!(errno(a.open(dram)), libc::EACCES);
    let flags = FLAG_TRUNCATE | FLAG_PERSISTENT | FLAG_EXCLUSIVE;
    let file = make(&mut a, "/a", 5000, flags);
    let mut b = connect(&target, &of_beta).unwrap();
    make(&mut b, "/b", 5000, FLAG_TRUNCATE);
    let attach = Request {
        handle: file.stag.0,
        ..Request::new(Op::Attach, "")
    };
    assert_eq!(errno(b.open(attach)), libc::ESTALE);
    let why = end(read(&mut b, &file));
    assert!(why.contains("STag"), "{why}");
    assert_eq!(read(&mut a, &file).unwrap(), vec![0; 5000]);
    target.kill();

    // After a restart just the same; and a higher epoch ends tokens and registrations, for ever.
    let target = image.serve(&["--config", &config]);
    let mut a = connect(&target, &of_alpha).unwrap();
    assert_eq!(read(&mut a, &file).unwrap(), vec![0; 5000]);
    let mut b = connect(&target, &of_beta).unwrap();
    end(read(&mut b, &file));
    assert!(target.stop().success());
    fs::write(&config, text.replace("epoch = 2", "epoch = 3")).unwrap();
    let target = image.serve(&["--config", &config]);
    assert_eq!(denied(&target, &of_alpha), Denial::Epoch);
    let token = alpha.sign(&claims("alpha", 3, later()));
    end(read(&mut connect(&target, &token).unwrap(), &file));
    assert!(target.stop().success());
    fs::write(&config, &text).unwrap();
    let message = bad(&[
        "serve",
        image.path().to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
        "--config",
        &config,
    ]);
    assert!(message.contains("epoch 3"), "{message}");
}

/// Plain memory is for whom the exports let write to a file of its name, tenant or not.
#[test]
fn plain_memory_is_exported_like_a_file() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    for (exports, status) in [
        (&["/"][..], 0),
        (&["/a"], libc::EACCES),
        (&["/:ro"], libc::EROFS),
        (&["/:ro", "/.dram"], 0),
    ] {
        let mut more = vec!["--dram", "1MiB"];
        more.extend(exports.iter().flat_map(|export| ["--export", export]));
        let target = image.serve(&more);
        let opened = target.session().open(Request::new(Op::Open, "/.dram"));
        match status {
            0 => assert_eq!(opened.unwrap().length, 1 << 20, "{exports:?}"),
            status => assert_eq!(errno(opened), status, "{exports:?}"),
        }
        assert!(target.stop().success());
    }
}

/// The target's own files are not for clients.
#[test]
fn own_files_are_out_of_reach() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let mut session = target.session();
    make(&mut session, "/a", 100, FLAG_TRUNCATE | FLAG_PERSISTENT);
    for path in ["/.flashnet", "/.flashnet/credentials", "/.flashnet/new"] {
        let request = Request {
            flags: FLAG_WRITE | FLAG_CREATE,
            ..Request::new(Op::Open, path)
        };
        assert_eq!(errno(session.open(request)), libc::EACCES, "{path}");
    }
    let list = good(&["ls", &target.url("/")]);
    assert!(!list.contains("flashnet"), "{list}");
    assert!(target.stop().success());
}

/// Tokens by the command line: made, shown, presented; a secret or a token that everybody can read is refused.
#[test]
fn tokens_by_command() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let config = config(&image, &tenant(&image, "alpha", ""));
    let target = image.serve(&["--config", &config]);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (key, token) = (
        text(&image.beside("alpha.key")),
        text(&image.beside("token")),
    );
    let make = ["token", "make", "--tenant", "alpha", "--key-file", &key];
    good(&[&make[..], &["-o", &token]].concat());
    let shown = good(&["token", "show", &token]);
    assert!(shown.contains("alpha"), "{shown}");
    from_text(&good(&make)).unwrap();
    let message = bad(&["put", &config, &target.url("/x")]);
    assert!(message.contains("--token-file"), "{message}");
    good(&["put", &config, &target.url("/x"), "--token-file", &token]);
    let list = good(&["ls", &target.url("/"), "--token-file", &token]);
    assert!(list.contains('x'), "{list}");
    // Measuring is one more use of a target: each of its connections says whose it is.
    let url = target.url("/x");
    for measure in ["read", "write", "lat"] {
        let perf = ["--json", "perf", measure, &url, "--seconds", "0.1"];
        let small = ["--size", "8B", "--file-size", "64B", "--idle", "0"];
        let perf = [&perf[..], &small].concat();
        let message = bad(&perf);
        assert!(message.contains("--token-file"), "{measure}: {message}");
        let said = good(&[&perf[..], &["--token-file", &token]].concat());
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert!(said["operations"].is_u64(), "{said}");
    }
    let idle = ["perf", "read", &url, "--seconds", "0.1", "--size", "8B"];
    let idle = [&idle[..], &["--file-size", "64B", "--idle", "3"]].concat();
    let command = std::process::Command::new(env!("CARGO_BIN_EXE_flashnet"))
        .args(&idle)
        .env("FLASHNET_TOKEN_FILE", &token)
        .output()
        .unwrap();
    assert!(command.status.success(), "{command:?}");
    for file in [&key, &token] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o640)).unwrap();
    }
    good(&["ls", &target.url("/"), "--token-file", &token]);
    good(&make);
    let key_dir = tempfile::tempdir().unwrap();
    fs::set_permissions(&key_dir, fs::Permissions::from_mode(0o755)).unwrap();
    // Who may change it may put his own in its place.
    for (mode, shown) in [(0o644, "0644"), (0o602, "0602")] {
        for (command, file) in [
            (&make[..], &key),
            (&["ls", &target.url("/"), "--token-file", &token], &token),
        ] {
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
            let message = bad(command);
            for part in [file, shown, "chmod"] {
                assert_eq!(message.matches(part).count(), 1, "{message}");
            }
        }
    }
    // Nobody is told to shut others out of what is no secret.
    for other in [text(key_dir.path()), "/dev/null".to_owned()] {
        let make = ["token", "make", "--tenant", "alpha", "--key-file", &other];
        let list = ["ls", &target.url("/"), "--token-file", &other];
        for command in [&make[..], &list] {
            let message = bad(command);
            assert!(message.contains(&other), "{message}");
            assert!(!message.contains("chmod"), "{message}");
        }
    }
    // What can not be written is not left there, in the way of the next try.
    let cut = key_dir.path().join("cut");
    let mut limited = std::process::Command::new("sh");
    limited.args([
        "-c",
        "trap '' XFSZ; ulimit -f 0; exec \"$0\" token key \"$1\"",
    ]);
    let output = limited.arg(env!("CARGO_BIN_EXE_flashnet")).arg(&cut);
    let output = output.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!cut.exists());
    // What has no end is not read to its end.
    for command in [
        &["token", "show", "/dev/zero"][..],
        &["ls", &target.url("/"), "--token-file", "/dev/zero"],
    ] {
        let message = bad(command);
        assert!(message.contains("malformed"), "{message}");
    }
    assert!(target.stop().success());
}

/// A connection that has been refused, and that nobody closes on this side.
fn refused(target: &Target, private_data: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(target.address).unwrap();
    let length = private_data.len() as u16;
    let mut frame = b"MPA ID Req Frame\x40\x01".to_vec();
    frame.extend(length.to_be_bytes());
    frame.extend(private_data);
    stream.write_all(&frame).unwrap();
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[16] & 0x20, 0x20, "rejected");
    stream
}

/// However many connections a tenant keeps, and asks nothing on them, another has its share (I16); who has lost one comes back,
/// and a place that is free is there for the next.
#[test]
fn a_tenant_does_not_lock_others_out() {
    /// Of 64 connections that such a pool allows, for two.
    const SHARE: usize = 32;
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let text = tenant(&image, "alpha", "") + &tenant(&image, "beta", "");
    let target = image.serve(&["--config", &config(&image, &text), "--pool", "1MiB"]);
    let token = |name| key_of(&image, name).sign(&claims(name, 0, later()));
    let (alpha, beta) = (token("alpha"), token("beta"));
    let block = |connection| {
        let block = SessionBlock {
            id: [5; 16],
            connection,
        };
        [alpha.clone(), block.emit().to_vec()].concat()
    };
    let lost = connect(&target, &block(1)).unwrap();
    let mut idle: Vec<Session> = (1..SHARE)
        .map(|_| connect(&target, &alpha).unwrap())
        .collect();
    assert_eq!(denied(&target, &alpha), Denial::Crowded);
    // Who is refused and does not go takes nobody's place, nor more than some places of its own.
    let stay: Vec<TcpStream> = (0..300).map(|_| refused(&target, &alpha)).collect();
    let others: Vec<Session> = (0..SHARE - 1)
        .map(|_| connect(&target, &beta).unwrap())
        .collect();
    let mut again = connect(&target, &block(2)).unwrap();
    make(&mut again, "/a", 1, FLAG_TRUNCATE);
    assert_eq!(denied(&target, &alpha), Denial::Crowded);
    idle.pop().unwrap().close();
    idle.push(connect(&target, &alpha).unwrap());
    drop((lost, again, idle, others, stay));
    assert!(target.stop().success());
}

/// A connection of a session ends the one before, and one that comes late is refused: bytes of a lost connection cannot be
/// placed after newer ones (I12).
#[test]
fn an_old_connection_is_fenced() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&["--reactors", "2"]);
    let block = |connection| {
        let block = SessionBlock {
            id: [5; 16],
            connection,
        };
        block.emit()
    };
    let mut old = connect(&target, &block(1)).unwrap();
    let file = make(&mut old, "/a", 5000, FLAG_TRUNCATE | FLAG_PERSISTENT);
    let mut new = connect(&target, &block(3)).unwrap();
    assert!(read(&mut old, &file).is_err());
    assert_eq!(read(&mut new, &file).unwrap(), vec![0; 5000]);
    assert_eq!(denied(&target, &block(2)), Denial::Superseded);
    // Sessions of others are others.
    target.session().close();
    assert_eq!(read(&mut new, &file).unwrap(), vec![0; 5000]);
    assert!(target.stop().success());
}

/// A request that was sent over an earlier connection of a session, and had to wait for its turn, is not carried out behind what
/// came over the next: it could undo what has been acknowledged there (I12, I13).
#[test]
fn requests_of_an_old_connection_are_fenced() {
    /// Requests before the last of them, as many as may be outstanding.
    const OLD: usize = 15;
    const LENGTH: usize = 50_000;
    if !can_serve() || !can_mount() {
        return;
    }
    // Whatever changes files takes long on it.
    let disk = FaultDisk::new(128 << 20, 1).unwrap();
    good(&["mkfs", disk.path().to_str().unwrap()]);
    let target = Target::start_on(&[disk.path()], &["--reactors", "1"]);
    let block = |connection| {
        let block = SessionBlock {
            id: [7; 16],
            connection,
        };
        block.emit()
    };
    let name = |n| match n {
        OLD => "/file".to_owned(),
        n => format!("/old-{n}"),
    };
    let size = |session: &mut Session, n| {
        let stat = session.call(Request::new(Op::Stat, name(n)));
        stat.unwrap().size
    };
    // The last first: it is changed last.
    let sizes = |session: &mut Session| {
        let sizes = (0..OLD).rev().map(|n| size(session, n));
        sizes.collect::<Vec<_>>()
    };
    let mut witness = target.session();
    let mut old = connect(&target, &block(1)).unwrap();
    let truncates = FLAG_TRUNCATE | FLAG_PERSISTENT;
    let old_file = make(&mut old, "/file", LENGTH as u64, truncates);
    for n in 0..OLD {
        make(&mut witness, &name(n), 1, FLAG_TRUNCATE);
    }
    disk.slow(Duration::from_millis(50));
    for n in 0..=OLD {
        let request = Request {
            flags: FLAG_WRITE | truncates,
            length: LENGTH as u64,
            ..Request::new(Op::Open, name(n))
        };
        let send = Operation::Send {
            source: Source::Bytes(request.emit()),
            solicited: false,
            invalidate: None,
        };
        old.post(WorkRequest {
            signaled: false,
            ..WorkRequest::new(WrId(0), send)
        })
        .unwrap();
    }
    // They have arrived, and the first is being carried out or was.
    old.fence(&old_file).unwrap();
    while size(&mut witness, 0) == 1 {
        thread::yield_now();
    }
    let mut new = connect(&target, &block(2)).unwrap();
    let found = sizes(&mut new);
    let file = make(&mut new, "/file", LENGTH as u64, truncates);
    let content = pattern(LENGTH, 3);
    write(&mut new, &file, &content);
    disk.slow(Duration::ZERO);
    // All threads that carry out requests have gone through what was queued: each of these is heard by another.
    let mut others: Vec<_> = (0..8).map(|_| target.session()).collect();
    for other in &mut others {
        size(other, OLD);
    }
    assert!(read(&mut new, &file).unwrap() == content);
    assert_eq!(sizes(&mut new), found);
    drop((witness, old, new, others));
    assert!(target.stop().success());
}

fn channel(target: &Target) -> (Channel, FileNo) {
    let options = ChannelOptions {
        identity: Identity::Stranger,
        patience: Duration::from_secs(60),
        ..ChannelOptions::default()
    };
    let mut channel = Channel::connect(&[target.address], options).unwrap();
    let file = channel
        .open(Request {
            flags: FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE,
            length: 100_000,
            ..Request::new(Op::Open, "/channel")
        })
        .unwrap();
    (channel, file)
}

/// A target that takes over has the address, the volume with everything in it, and the clients (also what was not durable); the
/// other has ended in order.
#[test]
fn a_target_is_replaced() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let first = image.serve(&[]);
    let (mut channel, file) = channel(&first);
    let content = pattern(100_000, 5);
    channel.write(file, 0, &content, false).unwrap();
    channel.acknowledged().unwrap().unwrap();
    let second = image.serve(&["--replace"]);
    assert_eq!(second.address, first.address);
    assert!(first.ended().success());
    channel.read(file, 0, content.len()).unwrap();
    let found = channel.acknowledged().unwrap().unwrap().bytes.unwrap();
    assert!(found.to_vec(0, content.len()) == content);
    assert_eq!(channel.connections(), 2);
    // And once more; one that finds nobody just starts.
    let third = image.serve(&["--replace"]);
    assert!(second.ended().success());
    assert!(third.stop().success());
    let fourth = image.serve(&["--replace"]);
    assert!(fourth.stop().success());
    good(&["fsck", image.path().to_str().unwrap()]);
}

/// Who is about to take over when the target is told to end hears that the volume is closed when it is, not before: else it would
/// find the device in use and give up, and nobody would serve.
#[test]
fn an_end_and_a_replacement_at_once() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    // Nobody moves this end of it, so the target takes its time to end.
    let session = target.session();
    let devices = [image.path()];
    let predecessor = Predecessor::find(&devices).unwrap().unwrap();
    // SAFETY: a signal to a child that has not been waited for.
    unsafe { libc::kill(target.pid() as i32, libc::SIGTERM) };
    // It has been heard by then.
    thread::sleep(Duration::from_millis(500));
    predecessor.replace(|_| true).unwrap();
    let image = fs::File::open(&devices[0]).unwrap();
    // SAFETY: the descriptor is open.
    let locked = unsafe { libc::flock(image.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) };
    assert_eq!(locked, 0, "the device is in use");
    assert!(target.ended().success());
    drop(session);
}

/// A region that is revoked is an error for its channel, not a reason to try for ever (I18).
#[test]
fn a_channel_hears_of_the_end_of_its_region() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let (mut channel, file) = channel(&target);
    let mut session = target.session();
    make(&mut session, "/channel", 10, FLAG_TRUNCATE);
    channel.read(file, 0, 100).unwrap();
    match channel.acknowledged() {
        Err(ClientError::Refused { status, .. }) => assert_eq!(status, libc::ESTALE),
        other => panic!("not refused: {other:?}"),
    }
    assert!(target.stop().success());
}

/// A persistent region alone holds nothing: its file can be deleted on the mount, which ends it, also when the number of the
/// inode is used again; and can be moved to another place, which it follows (I9, I11).
#[test]
fn files_of_persistent_regions_change_on_the_mount() {
    if !can_serve() || !common::can_mount() {
        return;
    }
    let image = Image::new("128MiB");
    let mount = image.beside("mnt");
    fs::create_dir(&mount).unwrap();
    let with_mount = ["--mount", mount.to_str().unwrap()];
    let target = image.serve(&with_mount);
    let mut session = target.session();
    let flags = FLAG_TRUNCATE | FLAG_PERSISTENT;
    let gone = make(&mut session, "/gone", 20_000, flags);
    let moved = make(&mut session, "/moved", 20_000, flags);
    make(&mut session, "/behind", 1, FLAG_TRUNCATE);
    let content = pattern(20_000, 9);
    write(&mut session, &moved, &content);
    let file = fs::OpenOptions::new().write(true).open(mount.join("moved"));
    file.unwrap().set_len(65 << 30).unwrap();
    // Not only the connection: the control threads hear of its end after the client.
    for handle in [gone.handle, moved.handle] {
        let close = Request {
            handle,
            ..Request::new(Op::Close, "")
        };
        session.call(close).unwrap();
    }
    session.close();
    fs::remove_file(mount.join("gone")).unwrap();
    fs::write(mount.join("new"), vec![1; 20_000]).unwrap();
    let attach = |target: &Target, file: &RemoteFile| {
        target.session().open(Request {
            handle: file.stag.0,
            ..Request::new(Op::Attach, "")
        })
    };
    let check = |target: &Target| {
        assert_eq!(errno(attach(target, &gone)), libc::ESTALE);
        end(read(&mut target.session(), &gone));
        assert_eq!(attach(target, &moved).unwrap().stag, moved.stag);
        assert!(read(&mut target.session(), &moved).unwrap() == content);
    };
    check(&target);
    target.kill();
    let target = image.serve(&with_mount);
    check(&target);
    assert!(target.stop().success());
    good(&["fsck", image.path().to_str().unwrap()]);
}
