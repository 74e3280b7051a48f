//! `rm`, `mkdir` and `mv`, and the requests behind them: durable when they are answered, within the exports, beside regions and a mount.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use crate::common::client::wait;
use crate::common::world::World;
use crate::common::{Image, Target, bad, can_serve, good, pattern};
use tools::client::{Client, ClientError, Session, aio};
use tools::control::{
    FLAG_CREATE, FLAG_EXCLUSIVE, FLAG_PERSISTENT, FLAG_TRUNCATE, FLAG_WRITE, Op, Request,
};

/// The names in a remote directory.
fn names(target: &Target, path: &str) -> Vec<String> {
    let list = target.session().list(path).unwrap();
    let mut names: Vec<String> = list
        .into_iter()
        .map(|entry| String::from_utf8(entry.name).unwrap())
        .collect();
    names.sort();
    names
}

/// Of a request that is refused.
fn errno(session: &mut Session, request: Request) -> i32 {
    match session.call(request.clone()) {
        Err(ClientError::Refused { status, .. }) => status,
        other => panic!("{request:?} is not refused: {other:?}"),
    }
}

fn mkdir(path: &str) -> Request {
    Request {
        flags: FLAG_EXCLUSIVE,
        ..Request::new(Op::Mkdir, path)
    }
}

fn create(path: &str, length: u64) -> Request {
    Request {
        flags: FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE,
        length,
        ..Request::new(Op::Open, path)
    }
}

/// As people know them; what has been answered is there after a kill (I1).
#[test]
fn as_people_know_them() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let source = image.beside("source");
    fs::write(&source, "content").unwrap();
    let put = |path: &str| good(&["put", source.to_str().unwrap(), &target.url(path)]);

    good(&["mkdir", &target.url("/a"), &target.url("/b/")]);
    let said = bad(&["mkdir", &target.url("/a")]);
    assert!(said.contains("/a"), "{said}");
    let said = bad(&["mkdir", &target.url("/c/d/e")]);
    assert!(said.contains("/c"), "{said}");
    for _ in 0..2 {
        good(&["mkdir", "-p", &target.url("/c/d/e")]);
    }
    good(&["mkdir", "-p", &target.url("/")]);
    let said = bad(&["mkdir", &target.url("/")]);
    assert!(said.contains("root"), "{said}");
    put("/a/one");
    let said = bad(&["mkdir", "-p", &target.url("/a/one")]);
    assert!(said.contains("/a/one"), "{said}");

    // Who writes a slash behind it wants no file removed.
    let said = bad(&["rm", "-rf", &target.url("/a/one/")]);
    assert!(said.contains("not a directory"), "{said}");
    good(&["rm", "-f", &target.url("/a/none/")]);

    good(&["mv", &target.url("/a/one"), &target.url("/a/two")]);
    good(&["mv", &target.url("/a/two"), &target.url("/b")]);
    put("/a/three");
    let said = bad(&["mv", "-n", &target.url("/a/three"), &target.url("/b/two")]);
    assert!(said.contains("/b/two"), "{said}");
    good(&["mv", &target.url("/a/three"), &target.url("/b/two")]);
    good(&["mv", &target.url("/b"), &target.url("/c/d/")]);
    let said = bad(&["mv", &target.url("/c"), &target.url("/c/d")]);
    assert!(said.contains("/c to /c/d/c"), "{said}");
    assert_eq!(names(&target, "/"), ["a", "c"]);
    assert_eq!(names(&target, "/c/d"), ["b", "e"]);
    assert_eq!(names(&target, "/c/d/b"), ["two"]);

    let said = bad(&["rm", &target.url("/a")]);
    assert!(said.contains("-r"), "{said}");
    let said = bad(&["rm", "-d", &target.url("/c")]);
    assert!(said.contains("/c"), "{said}");
    good(&["rm", "-d", &target.url("/a")]);
    // The others go, too.
    put("/there");
    let both = [target.url("/missing"), target.url("/there")];
    let said = bad(&["rm", &both[0], &both[1]]);
    assert!(said.contains("/missing"), "{said}");
    good(&["rm", "-f", &both[0]]);
    let said = bad(&["rm", "-rf", &target.url("/")]);
    assert!(said.contains("root"), "{said}");
    assert_eq!(names(&target, "/"), ["c"]);
    target.kill();

    let target = image.serve(&[]);
    assert_eq!(names(&target, "/"), ["c"]);
    assert_eq!(names(&target, "/c/d/b"), ["two"]);
    let removed = good(&["--json", "rm", "-r", &target.url("/c")]);
    assert!(removed.contains("{\"removed\":5}"), "{removed}");
    let client = Client::connect(target.address).unwrap();
    client.create_dir("/by").unwrap();
    client.create_dir("/by/program").unwrap();
    client.rename("/by/program", "/by/it").unwrap();
    client.remove_dir("/by/it").unwrap();
    let tasks = aio::Client::from(client.clone());
    wait(tasks.create_dir("/by/task")).unwrap();
    wait(tasks.rename("/by/task", "/by/it")).unwrap();
    assert!(wait(tasks.remove_file("/by/it")).is_err());
    wait(tasks.remove_dir("/by/it")).unwrap();
    assert!(client.remove_file("/by").is_err());
    target.kill();

    let target = image.serve(&[]);
    assert_eq!(names(&target, "/"), ["by"]);
    assert!(target.stop().success());
    let report = good(&["fsck", image.path().to_str().unwrap()]);
    assert!(report.contains("0 problems"), "{report}");
}

/// Who may not change a directory takes no name from it and gives it none; what is exported keeps its name, and what leads there
/// (RELIABILITY §8).
#[test]
fn exports_decide() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let mut session = target.session();
    for path in ["/a", "/a/d", "/a/d/kept", "/b", "/c"] {
        session.call(mkdir(path)).unwrap();
    }
    for path in ["/a/x", "/a/d/kept/x", "/b/x", "/c/x"] {
        session.call(create(path, 0)).unwrap();
    }
    session.close();
    assert!(target.stop().success());

    let exports = [
        "--export",
        "/a",
        "--export",
        "/a/d/kept:ro",
        "--export",
        "/b:ro",
    ];
    let target = image.serve(&exports);
    let mut session = target.session();
    let unlink = |path: &str| Request::new(Op::Unlink, path);
    let rmdir = |path: &str| Request::new(Op::Rmdir, path);
    let rename = Request::rename;
    for (request, why) in [
        (unlink("/b/x"), libc::EROFS),
        (unlink("/a/d/kept/x"), libc::EROFS),
        (unlink("/c/x"), libc::EACCES),
        (unlink("/a/nothing"), libc::ENOENT),
        (unlink("/a/../b/x"), libc::EINVAL),
        (unlink("/a/d"), libc::EBUSY),
        (rmdir("/a/x"), libc::ENOTDIR),
        (rmdir("/a"), libc::EBUSY),
        (rmdir("/a/d/kept"), libc::EROFS),
        (rmdir("/"), libc::EACCES),
        (mkdir("/b/y"), libc::EROFS),
        (mkdir("/e"), libc::EACCES),
        (mkdir("/a/x"), libc::EEXIST),
        (mkdir("/a/x/y"), libc::ENOTDIR),
        (mkdir("/.flashnet/x"), libc::EACCES),
        (rename("/a/x", "/b/y"), libc::EROFS),
        (rename("/b/x", "/a/y"), libc::EROFS),
        (rename("/c/x", "/a/y"), libc::EACCES),
        (rename("/a/x", "/c/y"), libc::EACCES),
        // What lies in it would be read-only no more.
        (rename("/a/d", "/a/e"), libc::EBUSY),
        (rename("/a", "/a/e"), libc::EBUSY),
        (
            Request {
                length: 1000,
                ..rename("/a/x", "/a/y")
            },
            libc::EINVAL,
        ),
    ] {
        assert_eq!(errno(&mut session, request.clone()), why, "{request:?}");
    }
    session.call(rename("/a/x", "/a/d/x")).unwrap();
    session.call(unlink("/a/d/x")).unwrap();
    // It is there, which is as good as making it, whose name that is.
    for there in ["/a", "/a/d"] {
        session.call(Request::new(Op::Mkdir, there)).unwrap();
        assert_eq!(errno(&mut session, mkdir(there)), libc::EEXIST);
    }
    good(&["mkdir", "-p", &target.url("/a")]);
    session.close();
    assert!(target.stop().success());

    // Of the whole volume there is no more to keep than its root, and what the target keeps for itself.
    let target = image.serve(&[]);
    let mut session = target.session();
    assert_eq!(errno(&mut session, rmdir("/")), libc::EBUSY);
    assert_eq!(errno(&mut session, mkdir("/.flashnet")), libc::EACCES);
    let onto = rename("/b", "/.flashnet");
    assert_eq!(errno(&mut session, onto), libc::EACCES);
    assert!(target.stop().success());
}

/// Who has a file open goes on with it, whatever becomes of its name; a region that is only stored ends with its file (I9, I11).
#[test]
fn regions_of_what_goes() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let mut session = target.session();
    let content = pattern(100_000, 4);
    let stored = Request {
        flags: FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE | FLAG_PERSISTENT,
        ..create("/stored", 4096)
    };
    let stored = session.open(stored).unwrap();
    let file = session.open(create("/file", content.len() as u64)).unwrap();
    let fill = |at: u64, bytes: &mut [u8]| {
        bytes.copy_from_slice(&content[at as usize..][..bytes.len()]);
        Ok(())
    };
    session.write(&file, 0, file.length, false, fill).unwrap();
    let mut other = target.session();
    other.call(Request::rename("/file", "/moved")).unwrap();
    other.call(Request::new(Op::Unlink, "/moved")).unwrap();
    let mut read = Vec::new();
    let take = |_, bytes: &[u8]| {
        read.extend_from_slice(bytes);
        Ok(())
    };
    session.read(&file, 0, file.length, take).unwrap();
    assert!(read == content);
    assert_eq!(names(&target, "/"), ["stored"]);
    session.close();

    let attach = Request {
        handle: stored.stag.0,
        ..Request::new(Op::Attach, "")
    };
    other.call(attach.clone()).unwrap();
    other.close();
    let mut other = target.session();
    other.call(Request::new(Op::Unlink, "/stored")).unwrap();
    // When the connection has gone that had it open.
    let start = Instant::now();
    let refused = |session: &mut Session| match session.call(attach.clone()) {
        Err(ClientError::Refused { status, .. }) => Some(status),
        answered => {
            let handle = answered.unwrap().handle;
            let close = Request {
                handle,
                ..Request::new(Op::Close, "")
            };
            session.call(close).unwrap();
            None
        }
    };
    let why = loop {
        match refused(&mut other) {
            Some(why) => break why,
            None => assert!(start.elapsed() < Duration::from_secs(10)),
        }
    };
    assert_eq!(why, libc::ESTALE);
    other.close();
    assert!(target.stop().success());
    let report = good(&["fsck", image.path().to_str().unwrap()]);
    // That of the regions themselves.
    assert!(report.contains("1 files"), "{report}");
    assert!(report.contains("0 problems"), "{report}");
}

/// Local programs see what has been changed remotely when that has been answered, and never one file in place of another (I10).
#[test]
fn beside_a_mount() {
    let Some(world) = World::new("64MiB", &[]) else {
        return;
    };
    let mut session = world.target.session();
    let local = |name: &str| world.dir.join(name);
    fs::write(local("known"), "known").unwrap();
    fs::create_dir(local("dir")).unwrap();
    fs::write(local("dir/inner"), "inner").unwrap();
    fs::write(local("open"), "open").unwrap();
    let open = world.file("open");
    for n in 0..20 {
        let name = format!("known-{n}");
        fs::write(local(&name), &name).unwrap();
        fs::hard_link(local(&name), local("link")).unwrap();
        assert_eq!(fs::metadata(local("link")).unwrap().nlink(), 2);
        session
            .call(Request::new(Op::Unlink, format!("/{name}")))
            .unwrap();
        assert!(!local(&name).exists());
        assert_eq!(fs::metadata(local("link")).unwrap().nlink(), 1);
        let other = format!("other-{n}");
        fs::write(local(&other), &other).unwrap();
        session.call(Request::rename("/link", "/known")).unwrap();
        assert!(!local("link").exists());
        assert_eq!(fs::read(local("known")).unwrap(), name.as_bytes());
        assert_eq!(fs::read(local(&other)).unwrap(), other.as_bytes());
    }
    let links = || fs::metadata(&world.dir).unwrap().nlink();
    let before = links();
    session.call(mkdir("/made")).unwrap();
    assert_eq!(links(), before + 1);
    session.call(Request::new(Op::Unlink, "/open")).unwrap();
    session.call(Request::rename("/dir", "/elsewhere")).unwrap();
    assert!(!local("open").exists() && !local("dir").exists());
    assert_eq!(fs::read(local("elsewhere/inner")).unwrap(), b"inner");
    fs::write(local("made/new"), "new").unwrap();
    let said = session.call(Request::new(Op::Rmdir, "/made")).unwrap_err();
    assert!(said.to_string().contains("/made"), "{said}");
    let mut bytes = String::new();
    std::io::Read::read_to_string(&mut &open, &mut bytes).unwrap();
    assert_eq!(bytes, "open");
    drop(open);
    session.close();
    world.end();
}
