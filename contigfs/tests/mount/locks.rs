//! Locks through the kernel: record locks between processes, open-file-description locks, and `flock`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use support::mounted::Mount;
use support::syscalls::{answer, errno};

const GRAINS: u64 = 1000;
const READ: i32 = libc::F_RDLCK;
const WRITE: i32 = libc::F_WRLCK;
const UNLOCK: i32 = libc::F_UNLCK;
/// Long enough to tell that somebody waits.
const WAITS: Duration = Duration::from_millis(200);
const SOON: Duration = Duration::from_secs(60);

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).unwrap()
}

fn region(kind: i32, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// `fcntl` with a lock: `F_SETLK` and its relatives.
fn lock(file: &File, command: i32, kind: i32, (start, len): (i64, i64)) -> io::Result<()> {
    let region = region(kind, start, len);
    // SAFETY: the structure lives through the call.
    answer(unsafe { libc::fcntl(file.as_raw_fd(), command, &region) }).map(drop)
}

/// Who holds what is in the way of a lock; `None` if nobody.
fn in_the_way(file: &File, command: i32, kind: i32) -> Option<libc::flock> {
    let mut region = region(kind, 0, 0);
    // SAFETY: the structure lives through the call.
    answer(unsafe { libc::fcntl(file.as_raw_fd(), command, &mut region) }).unwrap();
    (i32::from(region.l_type) != UNLOCK).then_some(region)
}

fn flock(file: &File, operation: i32) -> i32 {
    // SAFETY: no memory is involved.
    errno(answer(unsafe {
        libc::flock(file.as_raw_fd(), operation | libc::LOCK_NB)
    }))
}

/// One test at a time: a child has what all of them have open, and as long as it lives neither a lock ends with its file nor a
/// mount is free to go.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answer of `act` in a process of its own: record locks belong to processes.
fn in_child(act: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child makes system calls only, and ends without a return to the test.
    match unsafe { libc::fork() } {
        0 => {
            let result = act();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(result) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the status lives through the call.
            answer(unsafe { libc::waitpid(child, &mut status, 0) }).unwrap();
            assert!(libc::WIFEXITED(status));
            libc::WEXITSTATUS(status)
        }
    }
}

/// fcntl(2): ranges conflict between processes by overlap and kind, `F_GETLK` names the holder, and the first close of
/// the file in the holder gives all up.
#[test]
fn record_locks() {
    let _turn = turn();
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let path = mount.path().join("f");
    let (file, other) = (open(&path), open(&path));
    lock(&file, libc::F_SETLK, WRITE, (0, 10)).unwrap();
    lock(&file, libc::F_SETLK, READ, (20, 10)).unwrap();
    let try_lock = |kind, range| in_child(|| errno(lock(&file, libc::F_SETLK, kind, range)));
    assert_eq!(try_lock(WRITE, (5, 10)), libc::EAGAIN);
    assert_eq!(try_lock(READ, (9, 1)), libc::EAGAIN);
    assert_eq!(try_lock(WRITE, (10, 10)), 0);
    assert_eq!(try_lock(READ, (20, 0)), 0);
    assert_eq!(try_lock(WRITE, (29, 1)), libc::EAGAIN);
    let pid = std::process::id() as i32;
    let named = in_child(|| match in_the_way(&file, libc::F_GETLK, READ) {
        Some(held) => i32::from((held.l_pid, held.l_start, held.l_len) == (pid, 0, 10)),
        None => 2,
    });
    assert_eq!(named, 1);
    lock(&file, libc::F_SETLK, UNLOCK, (0, 5)).unwrap();
    assert_eq!(try_lock(WRITE, (0, 5)), 0);
    assert_eq!(try_lock(WRITE, (0, 6)), libc::EAGAIN);
    drop(other);
    assert_eq!(try_lock(WRITE, (0, 0)), 0);
    drop(file);
    mount.unmount();
}

/// Open-file-description locks belong to the open file: they conflict inside a process, `dup` shares them, the last
/// close ends them, and who waits gets his turn.
#[test]
fn open_file_description_locks() {
    let _turn = turn();
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let path = mount.path().join("f");
    let (first, second) = (open(&path), open(&path));
    let shared = first.try_clone().unwrap();
    let try_lock = |file: &File, range| errno(lock(file, libc::F_OFD_SETLK, WRITE, range));
    assert_eq!(try_lock(&first, (0, 100)), 0);
    assert_eq!(try_lock(&shared, (50, 100)), 0);
    assert_eq!(try_lock(&second, (149, 1)), libc::EAGAIN);
    assert_eq!(try_lock(&second, (150, 1)), 0);
    assert_eq!(
        in_the_way(&second, libc::F_OFD_GETLK, READ).unwrap().l_pid,
        -1
    );
    // A record lock of the same process is in the way too.
    assert_eq!(
        errno(lock(&second, libc::F_SETLK, READ, (0, 1))),
        libc::EAGAIN
    );
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            lock(&second, libc::F_OFD_SETLKW, WRITE, (0, 0)).unwrap();
            tell.send(()).unwrap();
        });
        assert!(told.recv_timeout(WAITS).is_err(), "it waits");
        drop(first);
        assert!(
            told.recv_timeout(WAITS).is_err(),
            "the other descriptor holds"
        );
        drop(shared);
        told.recv_timeout(SOON).unwrap();
    });
    drop(second);
    mount.unmount();
}

/// flock(2): shared and exclusive, by open file, apart from record locks; kept when the file is renamed or removed.
#[test]
fn whole_file_locks() {
    let _turn = turn();
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let path = mount.path().join("f");
    let (first, second) = (open(&path), open(&path));
    assert_eq!(flock(&first, libc::LOCK_SH), 0);
    assert_eq!(flock(&second, libc::LOCK_SH), 0);
    assert_eq!(flock(&first, libc::LOCK_EX), libc::EWOULDBLOCK);
    assert_eq!(flock(&second, libc::LOCK_UN), 0);
    assert_eq!(flock(&first, libc::LOCK_EX), 0);
    let renamed = mount.path().join("g");
    fs::rename(&path, &renamed).unwrap();
    assert_eq!(flock(&second, libc::LOCK_SH), libc::EWOULDBLOCK);
    assert_eq!(flock(&open(&renamed), libc::LOCK_SH), libc::EWOULDBLOCK);
    fs::remove_file(&renamed).unwrap();
    assert_eq!(flock(&second, libc::LOCK_SH), libc::EWOULDBLOCK);
    assert_eq!(
        flock(&open(&path), libc::LOCK_EX),
        0,
        "a new file of the name"
    );
    let child = in_child(|| flock(&second, libc::LOCK_EX));
    assert_eq!(child, libc::EWOULDBLOCK);
    drop(first);
    assert_eq!(flock(&second, libc::LOCK_EX), 0);
    lock(&open(&path), libc::F_SETLK, WRITE, (0, 0)).unwrap();
    drop(second);
    mount.unmount();
}
