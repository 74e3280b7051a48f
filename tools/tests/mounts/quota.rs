//! Limits of directories as people meet them: on a mount, with local and remote writers, through kills and restarts, and
//! with the tools that show and change project ids.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Image, Target, bad, can_mount, can_serve, good, pattern, skip};
use contigfs::fuse::{QUOTA, QuotaAction, QuotaRefusal, QuotaRequest};
use contigfs::{NewLimits, Quota};
use serde_json::Value;
use tools::control::{FLAG_WRITE, Op, Request};

const GRAIN: u64 = 4096;
/// `FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR`
const FSGETXATTR: libc::c_ulong = 0x801c_581f;
const FSSETXATTR: libc::c_ulong = 0x401c_5820;
/// `FS_XFLAG_PROJINHERIT`
const INHERIT: u32 = 0x200;

fn json(arguments: &[&str]) -> Value {
    let arguments = [&["--json"], arguments].concat();
    serde_json::from_str(&good(&arguments)).expect("JSON")
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Bytes and inodes that are charged.
fn charged(dir: &Path) -> (u64, u64) {
    let shown = json(&["quota", "show", text(dir)]);
    let number = |key: &str| shown[0][key].as_u64().unwrap();
    (number("bytes"), number("inodes"))
}

/// The same, file by file, as `du` counts.
fn recount(dir: &Path) -> (u64, u64) {
    let mut seen = HashSet::new();
    let mut bytes = 0;
    let mut waiting = vec![dir.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        if seen.insert(meta.ino()) {
            bytes += meta.blocks() * 512;
        }
        if meta.is_dir() {
            waiting.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
    (bytes, seen.len() as u64)
}

/// Size and free space that `df` shows, in bytes.
fn df(dir: &Path) -> (u64, u64) {
    let path = std::ffi::CString::new(text(dir)).unwrap();
    // SAFETY: plain numbers.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a NUL-terminated path and a place for the answer.
    let done = unsafe { libc::statvfs(path.as_ptr(), &raw mut found) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    (
        found.f_blocks * found.f_frsize,
        found.f_bavail * found.f_frsize,
    )
}

fn errno(result: io::Result<impl Sized>) -> i32 {
    result
        .err()
        .and_then(|error| error.raw_os_error())
        .unwrap_or(0)
}

/// Writes grains until there is no room; how many it were.
fn fill(file: &File) -> u64 {
    for n in 0.. {
        match file.write_all_at(&pattern(GRAIN as usize, n), n * GRAIN) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EDQUOT), "{error}");
                return n;
            }
        }
    }
    unreachable!("there is a limit")
}

/// Writes grains remotely until that is refused; how many it were.
fn fill_remotely(target: &Target, path: &str) -> u64 {
    let mut session = target.session();
    let request = Request {
        flags: FLAG_WRITE,
        ..Request::new(Op::Open, path)
    };
    let file = session.open(request).unwrap();
    let mut count = 0;
    while count * GRAIN < file.length {
        let at = count * GRAIN;
        let mut write = || {
            session.write(&file, at, GRAIN, true, |_, bytes| {
                bytes.fill(7);
                Ok(())
            })?;
            // What a read after it returns was applied before.
            session.read(&file, at, 1, |_, _| Ok(()))
        };
        if write().is_err() {
            return count;
        }
        count += 1;
    }
    count
}

/// As `lsattr -p` and `chattr -p` do it: the project id and flags, and a change of the id.
fn project(path: &Path, change: Option<u32>) -> io::Result<(u32, u32)> {
    let file = File::open(path)?;
    let mut words = [0u32; 7];
    // SAFETY: the structure has the length that the number says, and lives over the call.
    let got = unsafe { libc::ioctl(file.as_raw_fd(), FSGETXATTR, words.as_mut_ptr()) };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    if let Some(id) = change {
        words[3] = id;
        // SAFETY: as above.
        let set = unsafe { libc::ioctl(file.as_raw_fd(), FSSETXATTR, words.as_ptr()) };
        if set != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok((words[3], words[0]))
}

/// Waits until something is so: that a file was closed is told behind the back of who closes it.
fn until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{what}: not in time"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn sync(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => sync(&entry.path()),
            false => File::open(entry.path()).unwrap().sync_all().unwrap(),
        }
    }
}

/// See the file.
#[test]
fn limits_on_a_mount() {
    if !can_serve() || !can_mount() {
        return;
    }
    let image = Image::new("128MiB");
    let mount = image.beside("mnt");
    fs::create_dir(&mount).unwrap();
    let options = ["--mount", text(&mount)];
    let mut target = image.serve(&options);
    let a = mount.join("a");
    let sub = a.join("sub");
    fs::create_dir_all(&sub).unwrap();
    fs::write(a.join("before"), pattern(10_000, 1)).unwrap();
    fs::write(sub.join("below"), b"").unwrap();
    fs::write(mount.join("outside"), pattern(5 * GRAIN as usize, 2)).unwrap();

    let limit = 64 * GRAIN;
    let set = json(&[
        "quota",
        "set",
        text(&a),
        "--bytes",
        "256KiB",
        "--inodes",
        "9",
    ]);
    assert_eq!((&set["project"], &set["path"]), (&1.into(), &"/a".into()));
    assert_eq!(
        (&set["bytes_limit"], &set["inodes_limit"]),
        (&limit.into(), &9.into())
    );
    assert_eq!(charged(&sub), recount(&a));
    assert_eq!(project(&sub, None).unwrap(), (1, INHERIT));
    assert_eq!(project(&sub.join("below"), None).unwrap(), (1, 0));
    assert_eq!(project(&mount, None).unwrap(), (0, 0));

    // Each way of writing, at the limit.
    let free = limit - recount(&a).0;
    let local = File::create(a.join("local")).unwrap();
    assert_eq!(fill(&local), free / GRAIN);
    assert_eq!(charged(&a), (limit, 5));
    assert_eq!((df(&sub), df(&mount).0 > limit), ((limit, 0), true));
    local.write_all_at(&pattern(4096, 3), 0).unwrap();
    let below = File::options().write(true).open(sub.join("below")).unwrap();
    assert_eq!(errno((&below).write(b"x")), libc::EDQUOT);
    // SAFETY: an open file.
    let reserved = unsafe { libc::fallocate(below.as_raw_fd(), 0, 0, 4096) };
    assert_eq!(
        (reserved, io::Error::last_os_error().raw_os_error()),
        (-1, Some(libc::EDQUOT))
    );
    let outside = File::open(mount.join("outside")).unwrap();
    // SAFETY: open files; null pointers mean their positions.
    let cloned = unsafe {
        let (from, to) = (outside.as_raw_fd(), below.as_raw_fd());
        libc::copy_file_range(
            from,
            std::ptr::null_mut(),
            to,
            std::ptr::null_mut(),
            8192,
            0,
        )
    };
    assert_eq!(
        (cloned, io::Error::last_os_error().raw_os_error()),
        (-1, Some(libc::EDQUOT))
    );
    below.set_len(1 << 20).unwrap();
    assert_eq!(
        fill_remotely(&target, "/a/sub/below"),
        0,
        "a remote write into a hole"
    );
    assert_eq!(charged(&a), recount(&a));

    // Deleting gives back at once, and a remote writer gets exactly that.
    fs::remove_file(a.join("local")).unwrap();
    assert_eq!(charged(&a).0, limit, "it is open");
    drop(local);
    until("what was open is gone", || charged(&a).0 != limit);
    assert_eq!(charged(&a).0, limit - free);
    assert_eq!(fill_remotely(&target, "/a/sub/below"), free / GRAIN);
    assert_eq!(charged(&a).0, limit);
    assert_eq!(fill_remotely(&target, "/outside"), 5, "not of the project");
    let put = bad(&["put", text(&image.path()), &target.url("/a/image")]);
    assert!(put.contains("room"), "{put}");
    assert!(!a.join("image").exists() || fs::metadata(a.join("image")).unwrap().len() == 0);
    let _ = fs::remove_file(a.join("image"));

    // The limit of inodes, and names from elsewhere.
    below.set_len(8192).unwrap();
    for n in recount(&a).1..9 {
        File::create(a.join(n.to_string())).unwrap();
    }
    assert_eq!(errno(File::create(a.join("one more"))), libc::EDQUOT);
    let empty = image.beside("empty");
    fs::write(&empty, b"").unwrap();
    let put = bad(&["put", text(&empty), &target.url("/a/one more")]);
    assert!(put.contains("/a/one more: limit"), "{put}");
    fs::remove_file(a.join("8")).unwrap();
    until("there is room for one", || charged(&a).1 == 8);
    let inside = a.join("moved");
    assert_eq!(
        errno(fs::rename(mount.join("outside"), &inside)),
        libc::EXDEV
    );
    assert_eq!(
        errno(fs::hard_link(mount.join("outside"), &inside)),
        libc::EXDEV
    );
    let moved = Command::new("mv")
        .arg(mount.join("outside"))
        .arg(&inside)
        .status();
    assert!(moved.unwrap().success(), "mv copies");
    assert_eq!(project(&inside, None).unwrap().0, 1);

    // A kill: what is counted afterwards is what is there.
    sync(&a);
    let before = charged(&a);
    target.halt();
    drop(target);
    let target = image.serve(&options);
    assert_eq!((charged(&a), recount(&a)), (before, before));
    let more = File::options().write(true).open(&inside).unwrap();
    more.write_all_at(b"x", 0).unwrap();
    assert_eq!(fill(&more), (limit - before.0) / GRAIN + 5);
    assert_eq!(charged(&a), (limit, recount(&a).1));
    assert_eq!(recount(&a).0, limit);

    // By hand.
    assert_eq!(errno(project(&a, Some(0))), libc::EBUSY);
    File::create(mount.join("loose"))
        .unwrap()
        .write_all(b"x")
        .unwrap();
    assert_eq!(errno(project(&mount.join("loose"), Some(1))), libc::EDQUOT);
    assert_eq!(project(&mount.join("loose"), Some(77)).unwrap().0, 77);
    let all = json(&["quota", "show", "--all", text(&mount)]);
    let ids: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|quota| &quota["project"])
        .collect();
    assert_eq!(ids, [1, 77]);
    assert!(good(&["quota", "show", text(&sub)]).contains("/a"));
    assert!(good(&["quota", "show", text(&mount)]).contains("no project"));
    assert!(bad(&["quota", "remove", text(&sub)]).contains("not the directory of a project"));
    assert!(bad(&["quota", "show", "/"]).contains("not on a mounted flashnet volume"));
    let taken = bad(&["quota", "set", text(&sub), "--project", "1"]);
    assert!(
        taken.contains("the directory is that of another project"),
        "{taken}"
    );

    good(&["quota", "remove", text(&a)]);
    assert_eq!(project(&inside, None).unwrap().0, 0);
    more.write_all_at(&pattern(1 << 20, 1), 0).unwrap();
    drop((more, below, outside));
    assert!(target.stop().success());
    let report = good(&["fsck", text(&image.path())]);
    assert!(report.contains("0 problems"), "{report}");
}

/// Asks as the command does, on a descriptor that somebody else may have opened.
fn ask(dir: &File, action: QuotaAction) -> io::Result<Result<Option<Quota>, QuotaRefusal>> {
    let mut request = QuotaRequest::new(action);
    // SAFETY: the request has the length that the number says, and lives over the call.
    let done = unsafe { libc::ioctl(dir.as_raw_fd(), QUOTA as libc::c_ulong, &raw mut request) };
    match done {
        0 => Ok(request.outcome()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What is to bind somebody is not his to change, nor the limits of others to see; he sees what he is in.
#[test]
fn whose_limits_are_to_change() {
    if !can_serve() || !can_mount() {
        return;
    }
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return skip("another user takes root");
    }
    let image = Image::new("64MiB");
    let mount = image.beside("mnt");
    fs::create_dir(&mount).unwrap();
    let target = image.serve(&["--mount", text(&mount)]);
    let dir = mount.join("dir");
    fs::create_dir(&dir).unwrap();
    good(&["quota", "set", text(&dir), "--bytes", "1MiB"]);
    let opened = File::open(&dir).unwrap();
    let nobody = || {
        // SAFETY: changes this thread alone, which ends with it.
        unsafe { libc::setfsuid(65534) };
        let more = NewLimits {
            bytes: Some(None),
            inodes: None,
        };
        for action in [
            QuotaAction::Set(more, None),
            QuotaAction::Remove,
            QuotaAction::Next(None),
        ] {
            assert_eq!(errno(ask(&opened, action)), libc::EPERM, "{action:?}");
        }
        let shown = ask(&opened, QuotaAction::Show).unwrap();
        assert_eq!(shown.unwrap().unwrap().limits.bytes, Some(1 << 20));
    };
    std::thread::scope(|scope| scope.spawn(nobody).join()).unwrap();
    let shown = json(&["quota", "show", text(&dir)]);
    assert_eq!(shown[0]["bytes_limit"], 1 << 20);
    assert!(target.stop().success());
}
