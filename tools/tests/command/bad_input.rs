//! Bad input of every kind: its own clear error, a status that is not 0 or a Terminate, and nothing else disturbed.
//!
//! Defends I10 and I18 of the fault model where a peer is involved, and the rule that an error names the thing and the
//! cause everywhere.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::{
    self, FLASHNET, Image, Target, bad, can_mount, can_serve, drain, flashnet, good, pattern, wrong,
};
use serde_json::Value;
use softrdma::{
    Buffer, CloseReason, LocalSlice, Operation, Source, Stag, TaggedOffset, WorkRequest, WrId,
};
use tools::client::{ClientError, RemoteFile, Session};
use tools::control::{FLAG_CREATE, FLAG_TRUNCATE, FLAG_WRITE, Op, Request};

const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

fn serve_fails(image: &std::path::Path, more: &[&str]) -> String {
    let mut arguments = vec!["serve", image.to_str().unwrap()];
    arguments.extend(LISTEN);
    arguments.extend(more);
    bad(&arguments)
}

fn assert_says(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "{message:?} does not say {word:?}");
    }
}

#[test]
fn wrong_magic() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let mut file = fs::OpenOptions::new()
        .write(true)
        .open(image.path())
        .unwrap();
    file.write_all(&vec![0x55; 2 * 4096]).unwrap();
    drop(file);
    let name = image.path();
    assert_says(&serve_fails(&name, &[]), &["volume.img"]);
    assert_says(&bad(&["fsck", name.to_str().unwrap()]), &["volume.img"]);
}

#[test]
fn not_a_volume_and_no_file() {
    if !can_serve() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.img");
    fs::write(&empty, []).unwrap();
    assert_says(&serve_fails(&empty, &[]), &["empty.img"]);
    let missing = dir.path().join("missing.img");
    assert_says(
        &serve_fails(&missing, &[]),
        &["missing.img", "no such file"],
    );
    assert_says(
        &bad(&["mkfs", missing.to_str().unwrap()]),
        &["missing.img", "--size"],
    );
}

/// Commas alone name no device, as they may be left over in an entry of fstab: that is said, and is no bug of the program.
#[test]
fn commas_without_a_device() {
    if !can_serve() {
        return;
    }
    for care in ["-n", "-p", "-y"] {
        assert_says(&bad(&["fsck", care, ","]), &["no device"]);
    }
}

/// Ready files of the same stem are those of different targets, and the file that shares it is somebody else's; what a target
/// cannot make it leaves no part of.
#[test]
fn a_ready_file_is_made_beside_no_other() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let other = image.beside("volume.tmp");
    fs::write(&other, b"not yours").unwrap();
    let ready = image.beside("volume.ready");
    fs::create_dir(&ready).unwrap();
    let before = fs::read_dir(image.beside("")).unwrap().count();
    let message = serve_fails(&image.path(), &["--ready-file", ready.to_str().unwrap()]);
    assert_says(&message, &["ready file", "volume.ready"]);
    assert_eq!(fs::read(&other).unwrap(), b"not yours");
    assert_eq!(fs::read_dir(image.beside("")).unwrap().count(), before);
}

#[test]
fn truncated_image() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    fs::OpenOptions::new()
        .write(true)
        .open(image.path())
        .unwrap()
        .set_len(32 << 20)
        .unwrap();
    assert_says(&serve_fails(&image.path(), &[]), &["volume.img"]);
}

#[test]
fn formatting_twice_needs_force() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let name = image.path();
    let name = name.to_str().unwrap();
    assert_says(&bad(&["mkfs", name]), &["volume.img", "--force"]);
    good(&["mkfs", "--force", name]);
}

/// A format that fails takes the images away that it has made, and no others.
#[test]
fn a_format_that_fails_leaves_no_images() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (new, far, old) = (path("new.img"), path("no/far.img"), path("old.img"));
    fs::write(&old, vec![0; 4096]).unwrap();
    let mkfs = |more: &[&str]| bad(&[&["mkfs"], more].concat());
    let said = mkfs(&["--size=64MiB", &new, &far]);
    assert_says(&said, &["far.img", "no such directory"]);
    assert_says(&mkfs(&["--size=4KiB", &new]), &["new.img", "too small"]);
    assert_says(&mkfs(&["--size=1", &new]), &["new.img", "1 bytes", "4096"]);
    let odd = ["--size=64MiB", "--segment-size=1000", &new];
    assert_says(&mkfs(&odd), &["new.img", "segment size"]);
    assert_says(&mkfs(&[&old]), &["old.img", "too small"]);
    let left = fs::read_dir(dir.path()).unwrap().flatten();
    assert_eq!(
        left.map(|left| left.file_name()).collect::<Vec<_>>(),
        ["old.img"]
    );
}

/// So does one that is interrupted: to fill a large one takes long.
#[test]
fn a_format_that_is_interrupted_leaves_no_images() {
    let dir = tempfile::tempdir().unwrap();
    let new = dir.path().join("new.img");
    let mut mkfs = Command::new(FLASHNET)
        .args(["mkfs", "--prefill", "--size=2GiB"])
        .arg(&new)
        .spawn()
        .unwrap();
    while !new.exists() {
        assert!(mkfs.try_wait().unwrap().is_none());
        thread::sleep(Duration::from_millis(2));
    }
    // SAFETY: sends a signal to a child that has not been waited for.
    unsafe { libc::kill(mkfs.id() as i32, libc::SIGTERM) };
    let ended = mkfs.wait().unwrap();
    assert_eq!(ended.signal(), Some(libc::SIGTERM));
    assert!(!new.exists());
}

/// An image file with holes is a volume that others can take the space from: that is said.
#[test]
fn a_sparse_image_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sparse.img");
    fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let path = path.to_str().unwrap();
    let warned = |arguments: &[&str]| {
        let output = flashnet(arguments);
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert_says(&warned(&["mkfs", path]), &["sparse.img", "reserved"]);
    let whole = dir.path().join("whole.img");
    let whole = ["mkfs", "--size=64MiB", whole.to_str().unwrap()];
    assert_eq!(warned(&whole), "");
}

/// Who asks for a group that is not there makes no files.
#[test]
fn a_store_that_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("log.store");
    let store = store.to_str().unwrap();
    let url = format!("file:{store}");
    for arguments in [
        &["status", "--store", store][..],
        &["status", "--store", &url],
        &["add", "--store", store, "4"],
        &["remove", "--store", store, "4"],
        &["serve", "--store", store, "--member", "1"],
        &["bench", "--store", store],
        &["verify", "--store", store],
    ] {
        let says = bad(&[&["chain"], arguments].concat());
        assert_says(&says, &["log.store", "chain create"]);
        assert!(
            fs::read_dir(dir.path()).unwrap().next().is_none(),
            "{arguments:?}"
        );
    }
}

#[test]
fn image_in_use() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let message = serve_fails(&image.path(), &[]);
    assert_says(&message, &["volume.img", "in use", "--replace"]);
    let message = bad(&["mkfs", "--force", image.path().to_str().unwrap()]);
    assert_says(&message, &["in use"]);
    // The one that was there first has not noticed.
    good(&["ls", &target.url("/")]);
    assert!(target.stop().success());
}

#[test]
fn unreadable_file() {
    if !can_serve() {
        return;
    }
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } == 0 {
        // Root reads everything: a directory in the place of the file is refused all the same.
        let dir = tempfile::tempdir().unwrap();
        assert_says(
            &serve_fails(dir.path(), &[]),
            &[dir.path().to_str().unwrap()],
        );
        return;
    }
    let image = Image::new("64MiB");
    fs::set_permissions(image.path(), fs::Permissions::from_mode(0o000)).unwrap();
    assert_says(
        &serve_fails(&image.path(), &[]),
        &["volume.img", "permission denied"],
    );
}

#[test]
fn port_taken() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let message = bad(&[
        "serve",
        image.path().to_str().unwrap(),
        "--listen",
        &address,
    ]);
    assert_says(&message, &[&address, "Address already in use"]);
    // The volume was not left locked.
    assert!(image.serve(&[]).stop().success());
}

#[test]
fn beyond_loopback_needs_a_word() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let message = wrong(&[
        "serve",
        image.path().to_str().unwrap(),
        "--listen",
        "0.0.0.0:0",
    ]);
    assert_says(&message, &["0.0.0.0:0", "--insecure"]);
}

#[test]
fn mount_point_missing_or_busy() {
    if !can_serve() {
        return;
    }
    if !can_mount() {
        return;
    }
    let image = Image::new("64MiB");
    let missing = image.beside("nowhere");
    let message = serve_fails(&image.path(), &["--mount", missing.to_str().unwrap()]);
    assert_says(&message, &["nowhere"]);

    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let target = image.serve(&["--mount", dir.to_str().unwrap()]);
    let second = Image::new("64MiB");
    let message = serve_fails(&second.path(), &["--mount", dir.to_str().unwrap()]);
    assert_says(&message, &["mnt"]);
    // The first mount is whole.
    fs::write(dir.join("file"), b"still there").unwrap();
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"still there");
    assert!(target.stop().success());
    assert!(second.serve(&[]).stop().success());
}

/// A replacement that can not have what it needs beside the volume replaces nobody: who is served stays served.
#[test]
fn a_replacement_that_can_not_start() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let mut session = target.session();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let volume = image.path();
    let message = bad(&[
        "serve",
        volume.to_str().unwrap(),
        "--replace",
        "--listen",
        &at,
    ]);
    assert_says(&message, &[&at, "--listen"]);
    let missing = image.beside("nowhere");
    let missing = missing.to_str().unwrap();
    let message = serve_fails(&volume, &["--replace", "--mount", missing]);
    assert_says(&message, &["nowhere"]);
    let ready = image.beside("nowhere/ready");
    let message = serve_fails(
        &volume,
        &["--replace", "--ready-file", ready.to_str().unwrap()],
    );
    assert_says(&message, &["ready file", "nowhere"]);
    let key = image.beside("key");
    good(&["token", "key", key.to_str().unwrap()]);
    let tenant = |n| format!("[[tenant]]\nname = \"t{n}\"\nkey_file = {key:?}\n");
    let config = image.beside("crowd.toml");
    fs::write(&config, (0..65).map(tenant).collect::<String>()).unwrap();
    let config = config.to_str().unwrap();
    let message = serve_fails(&volume, &["--replace", "--config", config]);
    assert_says(&message, &["65 tenants"]);
    let few = Command::new("sh")
        .args(["-c", "ulimit -n 12; exec \"$0\" \"$@\"", FLASHNET])
        .args(["serve", volume.to_str().unwrap(), "--replace"])
        .args(LISTEN)
        .output()
        .unwrap();
    assert_eq!(few.status.code(), Some(1));
    assert_says(&String::from_utf8_lossy(&few.stderr), &["ulimit -n"]);
    session.call(Request::new(Op::Stat, "/")).unwrap();
    // And others still can, also those that listen on its port in another way.
    let second = image.serve(&["--replace"]);
    assert!(target.ended().success());
    assert_eq!(second.address, session.address());
    let everywhere = format!("0.0.0.0:{}", second.address.port());
    let third = image.serve(&["--replace", "--insecure", "--listen", &everywhere]);
    assert!(second.ended().success());
    assert_eq!(third.address.to_string(), everywhere);
    // A volume does not go back to an epoch that is over.
    let epoch = |epoch| {
        let path = image.beside(&format!("epoch-{epoch}.toml"));
        fs::write(&path, format!("{}epoch = {epoch}\n", tenant(0))).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let fourth = image.serve(&["--replace", "--config", &epoch(7)]);
    assert!(third.ended().success());
    let message = serve_fails(&volume, &["--replace", "--config", &epoch(6)]);
    assert_says(&message, &["tenant t0", "epoch 6", "epoch 7"]);
    let fifth = image.serve(&["--replace", "--config", &epoch(8)]);
    assert!(fourth.ended().success());
    assert!(fifth.stop().success());
}

/// A running target may take as long as it needs to close its volume: whoever replaces it waits, and can be told to end meanwhile.
#[test]
fn a_target_that_takes_long_to_make_room() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let meta = fs::metadata(image.path()).unwrap();
    let name = format!("flashnet-target-{:x}-{:x}", meta.dev(), meta.ino());
    let name = SocketAddr::from_abstract_name(name).unwrap();
    let listener = UnixListener::bind_addr(&name).unwrap();
    let terminate = |child: &Child| {
        // SAFETY: a signal to a child that has not been waited for.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    };
    let replace = || {
        let command = Command::new(FLASHNET)
            .args([
                "--json",
                "serve",
                image.path().to_str().unwrap(),
                "--replace",
            ])
            .args(["--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        // A target that answers no questions and hands over no sockets, up to where it is told to end.
        let mut said = [0; 6];
        let mut old = loop {
            let (mut old, _) = listener.accept().unwrap();
            old.read_exact(&mut said[..4]).unwrap();
            if &said[..4] != b"FNO1" {
                break old;
            }
        };
        old.write_all(b"FNH1").unwrap();
        old.read_exact(&mut said[4..]).unwrap();
        assert_eq!(&said, b"FNH1go");
        (command.unwrap(), old)
    };

    let (mut new, old) = replace();
    thread::sleep(Duration::from_secs(1));
    assert!(new.try_wait().unwrap().is_none(), "it waits");
    drop(old);
    common::served(&mut new);
    terminate(&new);
    assert!(new.wait().unwrap().success());

    let (new, old) = replace();
    terminate(&new);
    let output = new.wait_with_output().unwrap();
    drop(old);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_says(&message, &["nobody serves the volume"]);
}

#[test]
fn bad_configuration() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let config = image.beside("target.toml");
    let serve = || bad(&["serve", "--config", config.to_str().unwrap()]);
    assert_says(&serve(), &["target.toml", "No such file"]);
    fs::write(&config, "devises = []").unwrap();
    assert_says(&serve(), &["target.toml", "devises"]);
    fs::write(&config, "pool = \"a lot\"").unwrap();
    assert_says(&serve(), &["target.toml"]);
    fs::write(&config, "spin = \"a while\"").unwrap();
    assert_says(&serve(), &["target.toml"]);
    // Longer than any, as /dev/zero is.
    fs::write(&config, "#".repeat(20 << 20)).unwrap();
    assert_says(&serve(), &["target.toml", "too large"]);
    fs::write(&config, "").unwrap();
    let message = wrong(&["serve", "--config", config.to_str().unwrap()]);
    assert_says(&message, &["no device"]);
}

#[test]
fn wrong_usage_is_status_2() {
    if !can_serve() {
        return;
    }
    for arguments in [
        &["serve", "--nonsense"] as &[&str],
        &["nonsense"],
        &["mkfs", "--op", "99%", "x"],
        &["serve", "x", "--export", "no/slash"],
        &["token", "make", "--tenant", "A!", "--key-file", "x"],
        &["perf"],
        // Wrong only together, and with what a configuration file says.
        &["serve"],
        &["serve", "x", "--listen", "none"],
        &["serve", "x", "--listen", "0.0.0.0:0"],
        &[
            "serve",
            "x",
            "--listen",
            "127.0.0.1:9",
            "--metrics",
            "127.0.0.1:9",
        ],
        &["serve", "x", "--tls-listen", "127.0.0.1:0"],
        &["serve", "x", "--pool", "1KiB"],
        &["serve", "x", "--dram", "1PiB"],
        &["serve", "x", "--reactors", "65"],
        &["serve", "x", "--spin", "1h"],
        &["serve", "x", "-o", "sync,metadata_sync=relaxed"],
    ] {
        wrong(arguments);
    }
}

/// What can not be said is a failure of the command like any other, with the status of the name that it is called by.
#[test]
fn words_that_nobody_takes() {
    let image = Image::new("64MiB");
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let link = image.beside("fsck.contigfs");
    std::os::unix::fs::symlink(FLASHNET, &link).unwrap();
    for (program, command, status) in [
        (Path::new(FLASHNET), Some("inspect"), 1),
        (Path::new(FLASHNET), Some("fsck"), 1),
        (Path::new(FLASHNET), Some("--help"), 1),
        (&link, None, 8),
        (&link, Some("--help"), 8),
    ] {
        let mut run = Command::new(program);
        run.args(command).arg(image.path()).stdout(full());
        let ended = run.stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(status), "{said}");
        assert_says(&said, &["cannot write to stdout", "No space left"]);
        assert!(!said.contains("panicked"), "{said}");
        assert_eq!(run.stderr(full()).status().unwrap().code(), Some(status));
    }
}

/// Names of images are bytes, also where they are only repeated.
#[test]
fn an_image_whose_name_is_no_text() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join(OsStr::from_bytes(b"lat\xe9.img"));
    let image = image.as_os_str();
    good(&["mkfs".as_ref(), "--size".as_ref(), "8MiB".as_ref(), image]);
    for command in ["inspect", "fsck", "scrub"] {
        let said = good(&["--json".as_ref(), command.as_ref(), image]);
        let said: Value = serde_json::from_str(&said).unwrap();
        let name = said["device"].as_str().unwrap();
        assert!(name.ends_with("lat\u{fffd}.img"), "{name}");
    }
}

#[test]
fn unknown_host_and_nobody_there() {
    if !can_serve() {
        return;
    }
    assert_says(
        &bad(&["ls", "no.such.host.invalid/"]),
        &["no.such.host.invalid", "unknown host"],
    );
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    assert_says(
        &bad(&["ls", &format!("{address}/")]),
        &[&address, "refused"],
    );
    assert_says(&bad(&["ls", "host:port/"]), &["HOST[:PORT]/PATH"]);
}

#[test]
fn paths_that_are_not_to_be_had() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let source = image.beside("source");
    fs::write(&source, b"x").unwrap();
    let source = source.to_str().unwrap();
    let target = image.serve(&[]);
    good(&["put", source, &target.url("/in-the-root")]);
    let said = bad(&["ls", &target.url("/in-the-root")]);
    assert_says(&said, &["/in-the-root", "not a directory"]);
    let said = bad(&["get", &target.url("/in-the-root"), "/dev/full"]);
    assert_says(&said, &["/dev/full", "No space left"]);
    // A name that remote paths can not have is not made another one, which might be that of a file.
    let odd = image
        .beside("odd")
        .with_file_name(OsStr::from_bytes(b"odd\xe9"));
    fs::write(&odd, b"x").unwrap();
    let root = target.url("/");
    let said = bad(&["put".as_ref(), odd.as_os_str(), root.as_ref()]);
    assert_says(&said, &["remote paths are UTF-8"]);
    // A pipe that nobody writes to is not waited for.
    let pipe = image.beside("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let said = bad(&["put", pipe.to_str().unwrap(), &root]);
    assert_says(&said, &["pipe", "is not a regular file"]);
    // Ends before its length; the kernel has such files.
    let short = Path::new("/sys/kernel/uevent_seqnum");
    if short.exists() {
        let said = bad(&["put", short.to_str().unwrap(), &target.url("/in-the-root")]);
        assert_says(&said, &["uevent_seqnum", "it has become shorter"]);
        good(&["put", source, &target.url("/in-the-root")]);
    }
    // What does not fit leaves nothing, and takes nothing away.
    let large = image.beside("large");
    fs::File::create(&large).unwrap().set_len(1 << 30).unwrap();
    let large = large.to_str().unwrap();
    for path in ["/large", "/in-the-root"] {
        let said = bad(&["put", large, &target.url(path)]);
        assert_says(&said, &[path, "there is room for"]);
    }
    let listed = good(&["--json", "ls", &target.url("/")]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let names = listed["entries"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|entry| &entry["name"]).collect();
    assert_eq!(names, ["in-the-root"], "{listed}");
    assert!(target.stop().success());

    let target = image.serve(&["--export", "/open", "--export", "/in-the-root:ro"]);
    assert_says(&bad(&["ls", &target.url("/")]), &["/", "not exported"]);
    assert_says(
        &bad(&["get", &target.url("/elsewhere/x"), "-"]),
        &["/elsewhere/x", "not exported"],
    );
    assert_says(
        &bad(&["get", &target.url("/open/../in-the-root"), "-"]),
        &["/open/../in-the-root"],
    );
    assert_says(
        &bad(&["put", source, &target.url("/in-the-root")]),
        &["/in-the-root", "read-only"],
    );
    assert_says(
        &bad(&["get", &target.url("/open/missing"), "-"]),
        &["/open/missing"],
    );
    assert_eq!(good(&["get", &target.url("/in-the-root"), "-"]), "x");
    assert!(target.stop().success());
}

fn file_of(session: &mut Session, length: u64) -> RemoteFile {
    let request = Request {
        flags: FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE,
        length,
        ..Request::new(Op::Open, "/file")
    };
    session.open(request).unwrap()
}

/// What a READ at `stag` and `to` ends with, on a session of its own.
fn read_ends(target: &Target, at: impl Fn(&RemoteFile) -> (Stag, u64), len: usize) -> String {
    let mut session = target.session();
    let request = Request {
        flags: FLAG_WRITE,
        ..Request::new(Op::Open, "/file")
    };
    let file = session.open(request).unwrap();
    let (stag, to) = at(&file);
    let remote = softrdma::RemoteAddr {
        stag,
        to: TaggedOffset(to),
    };
    let sink = LocalSlice::whole(&Buffer::zeroed(len));
    session
        .post(WorkRequest::new(WrId(1), Operation::Read { sink, remote }))
        .unwrap();
    closed_with(session.success("READ").unwrap_err())
}

fn write_ends(target: &Target, at: impl Fn(&RemoteFile) -> (Stag, u64)) -> String {
    let mut session = target.session();
    let request = Request {
        flags: FLAG_WRITE,
        ..Request::new(Op::Open, "/file")
    };
    let file = session.open(request).unwrap();
    let (stag, to) = at(&file);
    let remote = softrdma::RemoteAddr {
        stag,
        to: TaggedOffset(to),
    };
    let source = Source::Bytes(vec![0xee; 64]);
    session
        .post(WorkRequest::new(
            WrId(1),
            Operation::Write { source, remote },
        ))
        .unwrap();
    // The WRITE itself may complete: the transport took it. What follows it does not.
    let error = (0..1000)
        .find_map(|_| session.fence(&file).err())
        .expect("the connection ends");
    closed_with(error)
}

fn closed_with(error: ClientError) -> String {
    match error {
        ClientError::Closed {
            reason: CloseReason::TerminateReceived(terminate),
            ..
        } => terminate.to_string(),
        other => panic!("not a Terminate: {other}"),
    }
}

/// Reads past the end and altered STags end their own connection with a Terminate, change nothing, and disturb nobody
/// (I10).
#[test]
fn remote_accesses_that_are_not_allowed() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let mut bystander = target.session();
    let file = file_of(&mut bystander, 10_000);
    let content = pattern(10_000, 1);
    bystander
        .write(&file, 0, 10_000, false, |at, bytes| {
            bytes.copy_from_slice(&content[at as usize..][..bytes.len()]);
            Ok(())
        })
        .unwrap();

    for (offset, len) in [(0, 10_001), (9_999, 2), (10_000, 1), (1 << 40, 1)] {
        let said = read_ends(&target, |file| (file.stag, file.to + offset), len);
        assert_says(&said, &["bounds"]);
    }
    let said = read_ends(&target, |file| (file.stag, u64::MAX - 3), 8);
    assert!(said.contains("wrap") || said.contains("bounds"), "{said}");
    for bit in 0..32 {
        let said = read_ends(&target, |file| (Stag(file.stag.0 ^ 1 << bit), file.to), 16);
        assert_says(&said, &["STag"]);
        let said = write_ends(&target, |file| (Stag(file.stag_sync.0 ^ 1 << bit), file.to));
        assert_says(&said, &["STag"]);
    }
    assert_says(
        &write_ends(&target, |file| (file.stag, file.to + 9_990)),
        &["bounds"],
    );

    let mut read = Vec::new();
    bystander
        .read(&file, 0, 10_000, |_, bytes| {
            read.extend_from_slice(bytes);
            Ok(())
        })
        .unwrap();
    assert!(read == content, "the file has changed");
    assert!(target.stop().success());
}

/// A region opened for reading cannot be written.
#[test]
fn writing_through_a_region_for_reading() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let mut session = target.session();
    file_of(&mut session, 4096);
    let file = session.open(Request::new(Op::Open, "/file")).unwrap();
    let source = Source::Bytes(vec![1; 16]);
    let remote = file.at(0);
    session
        .post(WorkRequest::new(
            WrId(1),
            Operation::Write { source, remote },
        ))
        .unwrap();
    let error = (0..1000)
        .find_map(|_| session.fence(&file).err())
        .expect("the connection ends");
    // DDP has no code for access rights; the STag is not valid for this.
    assert_says(&closed_with(error), &["STag"]);
    assert!(target.stop().success());
}

/// Garbage on the port ends that connection, whatever it is, and nothing else.
#[test]
fn garbage_on_the_port() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let mut bystander = target.session();
    let file = file_of(&mut bystander, 4096);

    let start_frame = {
        let mut frame = b"MPA ID Req Frame".to_vec();
        frame.extend([0x40, 1, 0, 0]);
        frame
    };
    let mut start_then_garbage = start_frame.clone();
    start_then_garbage.extend(pattern(100_000, 3));
    for garbage in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 64],
        pattern(100_000, 2),
        start_then_garbage,
    ] {
        let mut stream = TcpStream::connect(target.address).unwrap();
        // The target may close in the middle of it.
        let _ = stream.write_all(&garbage);
        drain(&mut stream);
    }
    // Valid set-up, then a whole FPDU with garbage in it: a Terminate comes back before the end. (None may come before
    // the first whole FPDU of the initiator, RFC 5044 section 7.1.2.)
    let mut stream = TcpStream::connect(target.address).unwrap();
    stream.write_all(&start_frame).unwrap();
    let mut reply = [0; 20];
    std::io::Read::read_exact(&mut stream, &mut reply).unwrap();
    assert_eq!(&reply[..16], b"MPA ID Rep Frame");
    let mut fpdu = vec![0, 42];
    fpdu.extend(pattern(42, 4));
    fpdu.extend(crc32c::crc32c(&fpdu).to_le_bytes());
    stream.write_all(&fpdu).unwrap();
    let terminate = drain(&mut stream);
    assert!(terminate.len() > 4, "no Terminate came");
    assert_eq!(terminate[3] & 0x0f, 7, "opcode of a Terminate");

    bystander.fence(&file).unwrap();
    assert!(target.stop().success());
}

/// A request that is none gets a reply that says so, and the connection lives.
#[test]
fn malformed_control_request() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let mut session = target.session();
    file_of(&mut session, 4096);
    for (offset, length) in [(4097, 0), (0, 5000), (u64::MAX, 1), (1, u64::MAX)] {
        let request = Request {
            offset,
            length,
            ..Request::new(Op::Open, "/file")
        };
        let error = session.open(request).unwrap_err();
        assert!(
            matches!(
                error,
                ClientError::Refused {
                    status: libc::EINVAL,
                    ..
                }
            ),
            "{error}"
        );
    }
    let mut request = Request::new(Op::Close, "");
    request.handle = 999;
    assert!(matches!(
        session.call(request).unwrap_err(),
        ClientError::Refused {
            status: libc::EBADF,
            ..
        }
    ));
    session.call(Request::new(Op::Stat, "/")).unwrap();
    assert!(target.stop().success());
}

/// An image whose superblock copies are both damaged is refused; with one damaged it opens (I7 for the superblock).
#[test]
fn damaged_superblock() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let damage = |at: u64| {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .open(image.path())
            .unwrap();
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&[0xff; 64]).unwrap();
    };
    damage(40);
    assert!(image.serve(&[]).stop().success());
    damage(40);
    damage(4096 + 40);
    assert_says(&serve_fails(&image.path(), &[]), &["volume.img"]);
}
