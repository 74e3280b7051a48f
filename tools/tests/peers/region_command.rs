//! `flashnet region`: an operator sees the persistent regions of a volume, and ends those of his choice, on a target that runs
//! and on a volume that nobody serves; for ever (C2, I11, I12).

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::world::{World, get, open, terminated};
use crate::common::{FLASHNET, Image, Target, bad, can_serve, good, skip};
use serde_json::Value;
use softrdma::wire::terminate::TerminateCode;
use tools::client::{ClientError, Identity, RemoteFile, Session, SessionOptions};
use tools::control::{FLAG_CREATE, FLAG_PERSISTENT, FLAG_TRUNCATE, FLAG_WRITE, Op, Request};
use tools::credentials::Key;

const MAKE: u16 = FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE | FLAG_PERSISTENT;
const KEEP: u16 = FLAG_WRITE | FLAG_PERSISTENT;

fn list(volume: &str, which: &[&str]) -> Vec<Value> {
    let said = good(&[&["--json", "region", "list", volume], which].concat());
    let said: Value = serde_json::from_str(&said).unwrap();
    said["regions"].as_array().unwrap().clone()
}

/// Revokes, and answers the STags of those that it was about.
fn revoke(volume: &str, which: &[&str]) -> Vec<String> {
    let said = good(&[&["--json", "region", "revoke", volume], which].concat());
    let said: Value = serde_json::from_str(&said).unwrap();
    let revoked = said["revoked"].as_array().unwrap().iter();
    revoked
        .map(|one| one["stag"].as_str().unwrap().to_owned())
        .collect()
}

fn name(file: &RemoteFile) -> String {
    format!("{:#010x}", file.stag.0)
}

/// Those of the list, as they are called.
fn stags(listed: &[Value]) -> Vec<&str> {
    let mut stags: Vec<_> = listed
        .iter()
        .map(|one| one["stag"].as_str().unwrap())
        .collect();
    stags.sort_unstable();
    stags
}

/// Whether a client of this identity may use a region by attaching to it, and by just using its STags.
fn is_honoured(target: &Target, identity: &Identity, file: &RemoteFile) -> bool {
    let session = || {
        let (at, how) = ([target.address], SessionOptions::default());
        Session::connect_as(&at, how, &identity.token()).unwrap()
    };
    let attached = session().open(Request {
        handle: file.stag.0,
        ..Request::new(Op::Attach, "")
    });
    let found = get(&mut session(), file, 0, 1);
    match attached {
        Ok(attached) => {
            assert_eq!((attached.stag, found.unwrap().len()), (file.stag, 1));
            true
        }
        Err(ClientError::Refused { status, .. }) => {
            assert_eq!(status, libc::ESTALE);
            assert_eq!(terminated(found), TerminateCode::ProtectionInvalidStag);
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// Regions of two tenants on several files: the list says whose and of what they are, running and not; one, those of a file, and
/// those of a tenant are revoked, each by a target that runs, and by nobody but the command; the others are honoured.
#[test]
fn regions_are_listed_and_revoked() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let volume = image.path().to_str().unwrap().to_owned();
    let mut config = String::new();
    for name in ["alpha", "beta"] {
        let key = image.beside(&format!("{name}.key"));
        good(&["token", "key", key.to_str().unwrap()]);
        config += &format!("[[tenant]]\nname = \"{name}\"\nkey_file = {key:?}\n");
    }
    let path = image.beside("target.toml");
    fs::write(&path, config).unwrap();
    let options = ["--config", path.to_str().unwrap()];
    let identity = |name: &str| Identity::Key {
        tenant: name.parse().unwrap(),
        epoch: 0,
        key: Key::read(&image.beside(&format!("{name}.key"))).unwrap(),
    };
    let identities = ["alpha", "beta"].map(|name| (name, identity(name)));
    let connect = |target: &Target, identity: &Identity| {
        let (at, how) = ([target.address], SessionOptions::default());
        Session::connect_as(&at, how, &identity.token()).unwrap()
    };
    assert!(list(&volume, &[]).is_empty());

    let target = image.serve(&options);
    let mut files: BTreeMap<(&str, &str, u64), RemoteFile> = BTreeMap::new();
    let mut sessions = Vec::new();
    for (tenant, identity) in &identities {
        let mut session = connect(&target, identity);
        for file in ["/one", "/two", "/three", "/four"] {
            if *tenant == "alpha" {
                open(&mut session, file, MAKE & !FLAG_PERSISTENT, 20_000);
            }
            for length in [0, 5000] {
                let region = open(&mut session, file, KEEP, length);
                files.insert((tenant, file, length), region);
            }
        }
        sessions.push(session);
    }
    let listed = list(&volume, &[]);
    assert_eq!(listed.len(), files.len());
    for ((tenant, path, length), file) in &files {
        let one = listed.iter().find(|one| one["stag"] == name(file)).unwrap();
        assert_eq!(
            (&one["tenant"], &one["path"]),
            (&(*tenant).into(), &(*path).into())
        );
        let length = if *length == 0 { 20_000 } else { *length };
        assert_eq!(
            (&one["offset"], &one["length"]),
            (&0.into(), &length.into())
        );
        assert_eq!(
            (&one["writable"], &one["connections"]),
            (&true.into(), &1.into())
        );
        assert_eq!(one["inode"].as_u64().unwrap(), file.inode);
    }
    let text = good(&["region", "list", &volume]);
    assert!(text.contains("alpha") && text.contains("/three"), "{text}");

    let mut gone: Vec<(&str, &str, u64)> = Vec::new();
    let all_but = |gone: &[(&str, &str, u64)], files: &BTreeMap<_, RemoteFile>| {
        let mut kept: Vec<String> = files
            .iter()
            .filter(|(key, _)| !gone.contains(key))
            .map(|(_, file)| name(file))
            .collect();
        kept.sort();
        kept
    };
    let check = |target: &Target, gone: &[(&str, &str, u64)]| {
        for (key, file) in &files {
            let (_, identity) = identities.iter().find(|(name, _)| *name == key.0).unwrap();
            assert_eq!(
                is_honoured(target, identity, file),
                !gone.contains(key),
                "{key:?}"
            );
        }
    };
    // By the sync STag, on a target that runs.
    let one = ("alpha", "/one", 5000);
    let sync = format!("{:#010x}", files[&one].stag_sync.0);
    assert_eq!(revoke(&volume, &["--stag", &sync]), [name(&files[&one])]);
    gone.push(one);
    // Who has it open just now is ended.
    let (_, identity) = &identities[0];
    let mut user = connect(&target, identity);
    let ended = terminated(get(&mut user, &files[&one], 0, 100));
    assert_eq!(ended, TerminateCode::ProtectionInvalidStag);
    let again = bad(&["region", "revoke", &volume, "--stag", &sync]);
    assert!(again.contains(&sync), "{again}");
    assert_eq!(revoke(&volume, &["--path", "/two"]).len(), 4);
    gone.extend(files.keys().filter(|(_, file, _)| *file == "/two"));
    check(&target, &gone);
    assert_eq!(stags(&list(&volume, &[])), all_but(&gone, &files));
    target.kill();

    // The same of a volume that nobody serves, and that was not closed.
    let listed = list(&volume, &[]);
    assert_eq!(stags(&listed), all_but(&gone, &files));
    assert!(listed.iter().all(|one| one["connections"] == 0));
    let of_alpha = list(&volume, &["--tenant", "alpha"]);
    assert!(of_alpha.iter().all(|one| one["tenant"] == "alpha"));
    assert_eq!(revoke(&volume, &["--path", "/three"]).len(), 4);
    gone.extend(files.keys().filter(|(_, file, _)| *file == "/three"));
    assert_eq!(stags(&list(&volume, &[])), all_but(&gone, &files));
    let nobody = bad(&["region", "revoke", &volume, "--tenant", "gamma"]);
    assert!(nobody.contains("gamma"), "{nobody}");
    let nothing = bad(&["region", "revoke", &volume, "--path", "/nothing"]);
    assert!(nothing.contains("/nothing"), "{nothing}");
    assert!(revoke(&volume, &["--strangers"]).is_empty());

    let target = image.serve(&options);
    check(&target, &gone);
    assert_eq!(revoke(&volume, &["--tenant", "beta"]).len(), 4);
    gone.extend(files.keys().filter(|(tenant, ..)| *tenant == "beta"));
    check(&target, &gone);
    target.kill();
    let target = image.serve(&options);
    check(&target, &gone);
    assert_eq!(revoke(&volume, &["--all"]).len(), 3);
    assert!(list(&volume, &[]).is_empty());
    assert!(target.stop().success());
    let target = image.serve(&options);
    check(&target, &files.keys().copied().collect::<Vec<_>>());
    // The same range again is another region.
    let mut session = connect(&target, &identities[0].1);
    let new = open(&mut session, "/one", KEEP, 0);
    assert!(files.values().all(|old| old.stag != new.stag));
    assert!(target.stop().success());
    good(&["fsck", &volume]);
}

/// Named by where it is mounted; names with other bytes than letters and names in directories are found; a range of a file that has
/// lost its names is listed by its number. A target can be replaced while operators come and go.
#[test]
fn regions_of_a_mounted_volume() {
    let Some(world) = World::new("64MiB", &[]) else {
        return;
    };
    let dir = world.dir.join("a directory/deeper");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("ü"), "some bytes").unwrap();
    fs::hard_link(dir.join("ü"), dir.join("zweiter Name")).unwrap();
    fs::write(world.dir.join("lost"), "others").unwrap();
    let mut session = world.target.session();
    let file = open(&mut session, "/a directory/deeper/ü", FLAG_PERSISTENT, 0);
    let lost = open(&mut session, "/lost", FLAG_PERSISTENT, 0);
    fs::remove_file(world.dir.join("lost")).unwrap();
    let mount = world.dir.to_str().unwrap();
    let listed = list(mount, &["--strangers"]);
    assert_eq!(listed.len(), 2);
    let of = |file: &RemoteFile| listed.iter().find(|one| one["stag"] == name(file)).unwrap();
    let path = of(&file)["path"].as_str().unwrap();
    let names = ["ü", "zweiter Name"].map(|name| format!("/a directory/deeper/{name}"));
    assert!(names.iter().any(|name| name == path), "{path}");
    assert_eq!(
        (&of(&lost)["path"], &of(&file)["writable"]),
        (&Value::Null, &false.into())
    );
    let text = good(&["region", "list", mount]);
    assert!(text.contains(&format!("inode {}", lost.inode)), "{text}");
    assert_eq!(revoke(mount, &["--path", &names[1]]), [name(&file)]);
    let ended = terminated(get(&mut session, &file, 0, 1));
    assert_eq!(ended, TerminateCode::ProtectionInvalidStag);
    let said = bad(&["region", "list", dir.to_str().unwrap()]);
    assert!(said.contains("no volume is mounted"), "{said}");
    drop(session);
    world.end();
}

/// Descriptors that a process may have from now on.
fn limit(process: u32, descriptors: u64) -> u64 {
    let mut limits = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: one structure that is written to, then read.
    let done = unsafe {
        let (process, what) = (process as i32, libc::RLIMIT_NOFILE);
        let got = libc::prlimit(process, what, std::ptr::null(), &raw mut limits);
        let before = std::mem::replace(&mut limits.rlim_cur, descriptors);
        let set = libc::prlimit(process, what, &raw const limits, std::ptr::null_mut());
        (got, set, before)
    };
    assert_eq!(
        (done.0, done.1),
        (0, 0),
        "{}",
        std::io::Error::last_os_error()
    );
    done.2
}

/// A target that was out of descriptors for a while is asked and replaced afterwards as ever; who asked meanwhile is answered,
/// too (I18).
#[test]
fn operators_are_heard_after_a_lack_of_descriptors() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let volume = image.path().to_str().unwrap().to_owned();
    let target = image.serve(&[]);
    let before = limit(target.pid(), 3);
    let mut meanwhile = Command::new(FLASHNET)
        .args(["region", "list", &volume])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // It may be answered: with a descriptor that was taken when the target began to wait. Then the next wait fails.
    let start = Instant::now();
    while meanwhile.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_secs(1) {
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(10));
    limit(target.pid(), before);
    assert!(meanwhile.wait().unwrap().success());
    assert!(list(&volume, &[]).is_empty());
    let other = image.serve(&["--replace"]);
    assert!(target.ended().success());
    assert!(other.stop().success());
}

/// A user who has taken the name of root's target before that was started keeps nobody from asking it, or from taking its place: not
/// one who answers, nor one who lets nobody through (I10, I18).
#[test]
fn a_taken_name_is_in_nobodys_way() {
    // No account has it.
    const USER: u32 = 61_234;
    if !can_serve() {
        return;
    }
    // SAFETY: no arguments, cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return skip("only root can be several users");
    }
    let image = Image::new("64MiB");
    let volume = image.path().to_str().unwrap().to_owned();
    let meta = fs::metadata(&volume).unwrap();
    let name = format!("flashnet-target-{:x}-{:x}", meta.dev(), meta.ino());
    let squatters = [name.clone(), format!("{name}-1")].map(|name| {
        let at = SocketAddr::from_abstract_name(name).unwrap();
        let mut command = Command::new("sleep");
        command.arg("1000").uid(USER).gid(USER);
        let listen = move || {
            let listener = UnixListener::bind_addr(&at)?;
            // SAFETY: the descriptor is open; from here on it stays so in the program.
            let kept = unsafe {
                libc::listen(listener.as_raw_fd(), 0);
                libc::fcntl(listener.as_raw_fd(), libc::F_SETFD, 0)
            };
            std::mem::forget(listener);
            if kept < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        };
        // SAFETY: it makes system calls, and touches nothing that another thread may hold.
        unsafe { command.pre_exec(listen) };
        Squatter(command.spawn().unwrap())
    });
    // Its queue is full.
    let at = SocketAddr::from_abstract_name(format!("{name}-1")).unwrap();
    let _waits = UnixStream::connect_addr(&at).unwrap();
    assert!(list(&volume, &[]).is_empty(), "nobody serves it");
    let target = image.serve(&["--replace"]);
    let mut session = target.session();
    open(&mut session, "/file", MAKE, 4096);
    assert_eq!(list(&volume, &[]).len(), 1);
    let other = image.serve(&["--replace"]);
    assert!(target.ended().success());
    assert_eq!(revoke(&volume, &["--all"]).len(), 1);
    drop(squatters);
    let third = image.serve(&["--replace"]);
    assert!(other.ended().success());
    assert!(third.stop().success());
}

/// A process of somebody who has taken a name.
struct Squatter(Child);

impl Drop for Squatter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Root asks a target of the user who owns the volume, and takes its place only as that user; a user who does not own the volume
/// may be anybody who has taken the name (I10). Nobody asks root's target but root.
#[test]
fn root_asks_the_owner_of_a_volume() {
    // No account has it.
    const USER: u32 = 61_234;
    if !can_serve() {
        return;
    }
    // SAFETY: no arguments, cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return skip("only root can be several users");
    }
    let image = Image::new("64MiB");
    let path = image.path();
    let volume = path.to_str().unwrap();
    let own = |user: u32| {
        for path in [path.parent().unwrap(), &path] {
            chown(path, Some(user), Some(user)).unwrap();
        }
    };
    own(USER);
    let target = Target::start_as(USER, &[volume], &[]);
    let mut session = target.session();
    open(&mut session, "/file", MAKE, 4096);
    assert_eq!(list(volume, &[]).len(), 1);
    let replace = ["serve", volume, "--replace", "--listen", "127.0.0.1:0"];
    let said = bad(&replace);
    assert!(said.contains("belongs to user 61234"), "{said}");
    let revoke_all = ["region", "revoke", volume, "--all"];
    own(0);
    let said = bad(&revoke_all);
    assert!(said.contains("belongs to user 61234"), "{said}");
    own(USER);
    assert_eq!(revoke(volume, &["--all"]).len(), 1);
    drop(session);
    assert!(target.stop().success());

    let target = image.serve(&[]);
    let asked = Command::new(FLASHNET)
        .args(revoke_all)
        .uid(USER)
        .gid(USER)
        .output()
        .unwrap();
    assert_eq!(asked.status.code(), Some(1), "{asked:?}");
    assert!(target.stop().success());
}

/// A name that somebody has chosen for a file commands no terminal of whoever lists or revokes its regions.
#[test]
fn names_are_only_names() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let path = "/\u{1b}]0;owned\u{7}";
    open(&mut target.session(), path, MAKE, 4096);
    let volume = image.path();
    let volume = volume.to_str().unwrap();
    for said in [
        good(&["region", "list", volume]),
        good(&["region", "revoke", volume, "--strangers"]),
    ] {
        assert!(said.contains("owned"), "{said}");
        assert!(!said.contains('\u{1b}'), "{said:?}");
    }
    assert!(target.stop().success());
}
