//! A user, who does the same on both sides: a thread with credentials, a umask, a working directory and a table of descriptors of its
//! own, which for locks makes it a process of its own too.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use super::call::{Call, Lock, SLOTS, Time};
use super::raw::{self, Place, Returned, c, call};

/// Who a user is: number, group, and further groups.
pub type Who = (u32, u32, &'static [u32]);

/// The users; the first may do everything.
pub const USERS: [Who; 3] = [
    (0, 0, &[]),
    (1001, 1001, &[2001, 2003]),
    (1002, 1002, &[2001, 2002]),
];

/// What a call came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub returned: Returned,
    /// What it gave.
    pub data: Vec<u8>,
}

impl From<Returned> for Outcome {
    fn from(returned: Returned) -> Self {
        let data = Vec::new();
        Self { returned, data }
    }
}

/// Descriptors, by side and slot.
pub type Descriptors = [[Option<i32>; SLOTS]; 2];

type Answered = (Outcome, Descriptors);

pub struct User {
    asked: Option<Sender<(usize, Call)>>,
    answers: Receiver<Answered>,
    thread: Option<JoinHandle<()>>,
    pub task: i32,
    pub open: Descriptors,
}

impl User {
    /// Works below these directories.
    pub fn new(who: Who, roots: [i32; 2]) -> Self {
        let (asked, calls) = channel::<(usize, Call)>();
        let (answer, answers) = channel();
        let (tell, told) = channel();
        let thread = thread::spawn(move || {
            become_user(who);
            tell.send(call(libc::SYS_gettid, &[]).unwrap() as i32)
                .unwrap();
            let mut program = Program {
                open: Descriptors::default(),
                side: 0,
            };
            for (side, what) in calls {
                program.side = side;
                let outcome = match call(libc::SYS_fchdir, &[&roots[side]]) {
                    Ok(_) => program.does(&what),
                    refused => refused.into(),
                };
                answer.send((outcome, program.open)).unwrap();
            }
            // With the table go the files.
        });
        Self {
            asked: Some(asked),
            answers,
            thread: Some(thread),
            task: told.recv().expect("it has begun"),
            open: Descriptors::default(),
        }
    }

    /// Does this on a side.
    pub fn does(&mut self, side: usize, what: &Call) -> Outcome {
        let asked = self.asked.as_ref().expect("it works");
        asked.send((side, what.clone())).expect("it works");
        let (outcome, open) = self.answers.recv().expect("it answers");
        self.open = open;
        outcome
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.asked = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn become_user((uid, gid, groups): Who) {
    let apart = libc::CLONE_FS | libc::CLONE_FILES;
    let list = Place::of(groups);
    call(libc::SYS_unshare, &[&apart]).unwrap();
    call(libc::SYS_umask, &[&0o022]).unwrap();
    call(libc::SYS_setgroups, &[&groups.len(), &list]).unwrap();
    call(libc::SYS_setresgid, &[&gid, &gid, &gid]).unwrap();
    call(libc::SYS_setresuid, &[&uid, &uid, &uid]).unwrap();
}

/// Bytes that tell where they were written, and by which call.
fn bytes(fill: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| fill.wrapping_add((at / 7) as u8))
        .collect()
}

struct Program {
    open: Descriptors,
    side: usize,
}

const HERE: i32 = libc::AT_FDCWD;
/// What can not be open.
const NOTHING: i32 = -1;

impl Program {
    fn fd(&self, slot: usize) -> i32 {
        self.open[self.side][slot].unwrap_or(NOTHING)
    }

    fn does(&mut self, what: &Call) -> Outcome {
        match what {
            Call::Open {
                slot,
                path,
                flags,
                mode,
            } => {
                let opened = call(libc::SYS_openat, &[&HERE, &c(path), flags, mode]);
                if let Ok(fd) = opened {
                    let _ = self.close(*slot);
                    self.open[self.side][*slot] = Some(fd as i32);
                }
                opened.map(|_| 0).into()
            }
            Call::Close(slot) => self.close(*slot).into(),
            Call::SetFlags { slot, flags } => {
                let fd = self.fd(*slot);
                let set = call(libc::SYS_fcntl, &[&fd, &libc::F_SETFL, flags]);
                set.and_then(|_| call(libc::SYS_fcntl, &[&fd, &libc::F_GETFL]))
                    .into()
            }
            Call::Read { slot, len } => filled(*len, |place| {
                call(libc::SYS_read, &[&self.fd(*slot), &place, len])
            }),
            Call::ReadAt { slot, offset, len } => filled(*len, |place| {
                call(libc::SYS_pread64, &[&self.fd(*slot), &place, len, offset])
            }),
            Call::Write { slot, len, fill } => {
                let data = bytes(*fill, *len);
                let place = Place::of(&data[..]);
                call(libc::SYS_write, &[&self.fd(*slot), &place, len]).into()
            }
            Call::WriteAt {
                slot,
                offset,
                len,
                fill,
            } => {
                let data = bytes(*fill, *len);
                let place = Place::of(&data[..]);
                call(libc::SYS_pwrite64, &[&self.fd(*slot), &place, len, offset]).into()
            }
            // Places in directories have no order that anybody may rely on.
            Call::Seek { slot, .. } | Call::Holes(slot) if self.is_directory(*slot) => {
                Err(libc::EISDIR).into()
            }
            Call::Seek {
                slot,
                offset,
                whence,
            } => call(libc::SYS_lseek, &[&self.fd(*slot), offset, whence]).into(),
            Call::Holes(slot) => self.holes(*slot),
            Call::Truncate { path, size } => call(libc::SYS_truncate, &[&c(path), size]).into(),
            Call::Resize { slot, size } => {
                call(libc::SYS_ftruncate, &[&self.fd(*slot), size]).into()
            }
            Call::Space {
                slot,
                mode,
                offset,
                len,
            } => call(libc::SYS_fallocate, &[&self.fd(*slot), mode, offset, len]).into(),
            Call::Copy { from, to, len } => self.copies(*from, *to, *len).into(),
            Call::Sync { slot, data } => {
                let number = if *data {
                    libc::SYS_fdatasync
                } else {
                    libc::SYS_fsync
                };
                call(number, &[&self.fd(*slot)]).into()
            }
            Call::Load { slot, offset, len } => self.loads(*slot, *offset, *len),
            Call::Store {
                slot,
                offset,
                len,
                fill,
            } => self.stores(*slot, *offset, &bytes(*fill, *len)).into(),
            Call::Lock { slot, lock } => self.locks(*slot, *lock),
            Call::LinkOpen { slot, to } => {
                let from = c(&format!("/proc/thread-self/fd/{}", self.fd(*slot)));
                let follow = libc::AT_SYMLINK_FOLLOW;
                call(libc::SYS_linkat, &[&HERE, &from, &HERE, &c(to), &follow]).into()
            }
            Call::ChmodOpen { slot, mode } => {
                call(libc::SYS_fchmod, &[&self.fd(*slot), mode]).into()
            }
            Call::ChownOpen {
                slot,
                owner: (uid, gid),
            } => call(libc::SYS_fchown, &[&self.fd(*slot), uid, gid]).into(),
            Call::Umask(mask) => call(libc::SYS_umask, &[mask]).map(|_| 0).into(),
            Call::Limited { bytes, call } => {
                limit(*bytes);
                let outcome = self.does(call);
                limit(libc::RLIM_INFINITY);
                outcome
            }
            named => by_name(named),
        }
    }

    fn is_directory(&self, slot: usize) -> bool {
        let stat = raw::statx(self.fd(slot), "", libc::AT_EMPTY_PATH);
        stat.is_ok_and(|stat| u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFDIR)
    }

    fn close(&mut self, slot: usize) -> Returned {
        match self.open[self.side][slot].take() {
            Some(fd) => raw::close(fd),
            None => Err(libc::EBADF),
        }
    }

    /// Whether what the file says of its holes makes sense; if not, says why. Where they are is its own affair.
    fn holes(&self, slot: usize) -> Outcome {
        let fd = self.fd(slot);
        let seek = |offset: usize, whence: i32| call(libc::SYS_lseek, &[&fd, &offset, &whence]);
        let here = match seek(0, libc::SEEK_CUR) {
            Ok(here) => here,
            error => return error.into(),
        };
        let size = seek(0, libc::SEEK_END);
        let walked = size.and_then(|size| {
            let mut at = 0;
            while at < size {
                let data = match seek(at, libc::SEEK_DATA) {
                    Err(libc::ENXIO) => size,
                    data => data?,
                };
                if data < at || data > size || !self.is_zero(fd, at, data) {
                    return Ok(format!("no hole: {at} to {data} of {size}"));
                }
                at = data;
                if at < size {
                    let hole = seek(at, libc::SEEK_HOLE)?;
                    if hole <= at || hole > size {
                        return Ok(format!("no data: {at} to {hole} of {size}"));
                    }
                    at = hole;
                }
            }
            match seek(size, libc::SEEK_DATA) {
                Err(libc::ENXIO) => Ok(String::new()),
                other => Ok(format!("behind the end: {other:?}")),
            }
        });
        let _ = seek(here, libc::SEEK_SET);
        match walked {
            Ok(complaint) => Outcome {
                returned: size,
                data: complaint.into_bytes(),
            },
            Err(error) => Err(error).into(),
        }
    }

    /// Whether a hole has nothing in it; looked at where that is quick. What can not be read is not judged.
    fn is_zero(&self, fd: i32, start: usize, end: usize) -> bool {
        let mut content = vec![0; (end - start).min(65_536)];
        let place = Place::of_mut(&mut content[..]);
        let _ = call(libc::SYS_pread64, &[&fd, &place, &content.len(), &start]);
        content.iter().all(|&byte| byte == 0)
    }

    fn copies(&self, from: (usize, i64), to: (usize, i64), len: usize) -> Returned {
        let (fd_from, fd_to) = (self.fd(from.0), self.fd(to.0));
        let (mut at_from, mut at_to) = (from.1, to.1);
        let (place_from, place_to) = (Place::of_mut(&mut at_from), Place::of_mut(&mut at_to));
        let mut copied = 0;
        // A call may copy less than it is asked for, as any does.
        loop {
            let rest = len - copied;
            let arguments: [&dyn raw::Argument; 6] =
                [&fd_from, &place_from, &fd_to, &place_to, &rest, &0];
            match call(libc::SYS_copy_file_range, &arguments) {
                Ok(more) if more > 0 && copied + more < len => copied += more,
                Ok(more) => return Ok(copied + more),
                Err(_) if copied > 0 => return Ok(copied),
                error => return error,
            }
        }
    }

    fn mapped<T>(
        &self,
        slot: usize,
        end: usize,
        rights: i32,
        act: impl FnOnce(usize) -> Result<T, i32>,
    ) -> Result<T, i32> {
        let (fd, shared, start) = (self.fd(slot), libc::MAP_SHARED, 0_usize);
        let at = call(
            libc::SYS_mmap,
            &[&start, &end, &rights, &shared, &fd, &start],
        )?;
        let done = act(at);
        call(libc::SYS_munmap, &[&at, &end])?;
        done
    }

    /// By way of a file in memory: where there is nothing mapped that is an error then, and no signal.
    fn loads(&self, slot: usize, offset: usize, len: usize) -> Outcome {
        let mut data = vec![0; len];
        let loaded = self.mapped(slot, offset + len, libc::PROT_READ, |at| {
            let memory = call(libc::SYS_memfd_create, &[&c("loaded"), &libc::MFD_CLOEXEC])?;
            let place = Place::at(at + offset);
            let loaded = call(libc::SYS_pwrite64, &[&memory, &place, &len, &0]);
            let place = Place::of_mut(&mut data[..]);
            let _ = call(libc::SYS_pread64, &[&memory, &place, &len, &0]);
            raw::close(memory as i32)?;
            loaded
        });
        data.truncate(loaded.unwrap_or(0));
        Outcome {
            returned: loaded,
            data,
        }
    }

    fn stores(&self, slot: usize, offset: usize, data: &[u8]) -> Returned {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let end = offset + data.len();
        self.mapped(slot, end, rights, |at| {
            let memory = call(libc::SYS_memfd_create, &[&c("stored"), &libc::MFD_CLOEXEC])?;
            call(
                libc::SYS_pwrite64,
                &[&memory, &Place::of(data), &data.len(), &0],
            )?;
            let place = Place::at(at + offset);
            let stored = call(libc::SYS_pread64, &[&memory, &place, &data.len(), &0]);
            raw::close(memory as i32)?;
            call(libc::SYS_msync, &[&at, &end, &libc::MS_SYNC])?;
            stored
        })
    }

    fn locks(&self, slot: usize, lock: Lock) -> Outcome {
        let fd = self.fd(slot);
        let region = |kind: i32, start: i64, len: i64| libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: start,
            l_len: len,
            l_pid: 0,
        };
        let of_region = |command: i32, mut region: libc::flock| {
            let place = Place::of_mut(&mut region);
            let done = call(libc::SYS_fcntl, &[&fd, &command, &place]);
            let found = (region.l_type, region.l_start, region.l_len);
            Outcome {
                returned: done,
                data: format!("{found:?}").into_bytes(),
            }
        };
        match lock {
            Lock::Posix { kind, start, len } => of_region(libc::F_SETLK, region(kind, start, len)),
            Lock::PosixAsked { kind, start, len } => {
                of_region(libc::F_GETLK, region(kind, start, len))
            }
            Lock::Ofd { kind, start, len } => {
                of_region(libc::F_OFD_SETLK, region(kind, start, len))
            }
            Lock::Whole(operation) => {
                let operation = operation | libc::LOCK_NB;
                call(libc::SYS_flock, &[&fd, &operation]).into()
            }
        }
    }
}

/// Bounds the files of this process.
fn limit(bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    let (me, none) = (0, Place::NONE);
    let place = Place::of(&limit);
    call(
        libc::SYS_prlimit64,
        &[&me, &libc::RLIMIT_FSIZE, &place, &none],
    )
    .expect("root may");
}

/// What a call puts into so many bytes.
fn filled(len: usize, act: impl FnOnce(Place) -> Returned) -> Outcome {
    let mut data = vec![0_u8; len];
    let returned = act(Place::of_mut(&mut data[..]));
    data.truncate(returned.unwrap_or(0));
    Outcome { returned, data }
}

/// Calls that name what they are about.
fn by_name(what: &Call) -> Outcome {
    match what {
        Call::MakeDir { path, mode } => call(libc::SYS_mkdirat, &[&HERE, &c(path), mode]).into(),
        Call::MakeNode { path, mode, device } => {
            call(libc::SYS_mknodat, &[&HERE, &c(path), mode, device]).into()
        }
        Call::Symlink { target, path } => {
            call(libc::SYS_symlinkat, &[&c(target), &HERE, &c(path)]).into()
        }
        Call::Link { from, to, flags } => {
            call(libc::SYS_linkat, &[&HERE, &c(from), &HERE, &c(to), flags]).into()
        }
        Call::Unlink(path) => call(libc::SYS_unlinkat, &[&HERE, &c(path), &0]).into(),
        Call::RemoveDir(path) => {
            call(libc::SYS_unlinkat, &[&HERE, &c(path), &libc::AT_REMOVEDIR]).into()
        }
        Call::Rename { from, to, flags } => call(
            libc::SYS_renameat2,
            &[&HERE, &c(from), &HERE, &c(to), flags],
        )
        .into(),
        Call::ReadLink(path) => filled(5000, |place| {
            call(libc::SYS_readlinkat, &[&HERE, &c(path), &place, &5000])
        }),
        Call::List(path) => lists(path),
        Call::Stat { path, flags } => match raw::statx(HERE, path, *flags) {
            Ok(stat) => Outcome {
                returned: Ok(0),
                data: format!("{:o} {}", stat.stx_mode, stat.stx_nlink).into_bytes(),
            },
            Err(error) => Err(error).into(),
        },
        Call::Access { path, mode, flags } => {
            call(libc::SYS_faccessat2, &[&HERE, &c(path), mode, flags]).into()
        }
        Call::Chmod { path, mode } => call(libc::SYS_fchmodat, &[&HERE, &c(path), mode]).into(),
        Call::Chown {
            path,
            owner: (uid, gid),
            flags,
        } => call(libc::SYS_fchownat, &[&HERE, &c(path), uid, gid, flags]).into(),
        Call::SetTimes { path, times, flags } => {
            let spec = |time: Time| libc::timespec {
                tv_sec: time.secs,
                tv_nsec: time.nanos,
            };
            let times = times.map(|(atime, mtime)| [spec(atime), spec(mtime)]);
            let place = times.as_ref().map_or(Place::NONE, Place::of);
            call(libc::SYS_utimensat, &[&HERE, &c(path), &place, flags]).into()
        }
        Call::SetXattr {
            path,
            name,
            value,
            flags,
        } => {
            let place = Place::of(&value[..]);
            let arguments: [&dyn raw::Argument; 5] =
                [&c(path), &c(name), &place, &value.len(), flags];
            call(libc::SYS_lsetxattr, &arguments).into()
        }
        Call::GetXattr { path, name, size } => filled(*size, |place| {
            call(libc::SYS_lgetxattr, &[&c(path), &c(name), &place, size])
        }),
        Call::ListXattrs(path) => {
            let mut list = filled(5000, |place| {
                call(libc::SYS_llistxattr, &[&c(path), &place, &5000])
            });
            // In any order.
            let mut names: Vec<&[u8]> = list.data.split(|&byte| byte == 0).collect();
            names.sort_unstable();
            list.data = names.join(&0);
            list
        }
        Call::RemoveXattr { path, name } => {
            call(libc::SYS_lremovexattr, &[&c(path), &c(name)]).into()
        }
        other => unreachable!("{other:?} names what is open"),
    }
}

fn lists(path: &str) -> Outcome {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let listed = call(libc::SYS_openat, &[&HERE, &c(path), &flags, &0]).and_then(|fd| {
        let entries = raw::entries(fd as i32);
        raw::close(fd as i32)?;
        entries
    });
    match listed {
        Ok(entries) => Outcome {
            returned: Ok(entries.len()),
            data: format!("{entries:?}").into_bytes(),
        },
        Err(error) => Err(error).into(),
    }
}
