//! What a user can call. Paths begin at the root of a tree; slots name the user's open files.

use std::fmt;

/// Files that a user has open at once.
pub const SLOTS: usize = 3;

/// Time for `utimensat`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Time {
    pub secs: i64,
    pub nanos: i64,
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nanos {
            libc::UTIME_NOW => f.write_str("UTIME_NOW"),
            libc::UTIME_OMIT => f.write_str("UTIME_OMIT"),
            nanos => write!(f, "{}.{nanos:09}", self.secs),
        }
    }
}

/// A kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Of a process.
    Posix { kind: i32, start: i64, len: i64 },
    /// Who would be in the way of it.
    PosixAsked { kind: i32, start: i64, len: i64 },
    /// Of an open file description.
    Ofd { kind: i32, start: i64, len: i64 },
    /// `flock`
    Whole(i32),
}

/// One call, or a few that belong together.
#[derive(Clone, PartialEq, Eq)]
pub enum Call {
    Open {
        slot: usize,
        path: String,
        flags: i32,
        mode: u32,
    },
    Close(usize),
    SetFlags {
        slot: usize,
        flags: i32,
    },
    Read {
        slot: usize,
        len: usize,
    },
    ReadAt {
        slot: usize,
        offset: i64,
        len: usize,
    },
    Write {
        slot: usize,
        len: usize,
        fill: u8,
    },
    WriteAt {
        slot: usize,
        offset: i64,
        len: usize,
        fill: u8,
    },
    Seek {
        slot: usize,
        offset: i64,
        whence: i32,
    },
    /// Walks over data and holes from here.
    Holes(usize),
    Truncate {
        path: String,
        size: i64,
    },
    Resize {
        slot: usize,
        size: i64,
    },
    Space {
        slot: usize,
        mode: i32,
        offset: i64,
        len: i64,
    },
    Copy {
        from: (usize, i64),
        to: (usize, i64),
        len: usize,
    },
    Sync {
        slot: usize,
        data: bool,
    },
    /// Maps the file, loads, or stores and calls `msync`.
    Load {
        slot: usize,
        offset: usize,
        len: usize,
    },
    Store {
        slot: usize,
        offset: usize,
        len: usize,
        fill: u8,
    },
    MakeDir {
        path: String,
        mode: u32,
    },
    MakeNode {
        path: String,
        mode: u32,
        device: u32,
    },
    Symlink {
        target: String,
        path: String,
    },
    Link {
        from: String,
        to: String,
        flags: i32,
    },
    /// Gives what is open a name.
    LinkOpen {
        slot: usize,
        to: String,
    },
    Unlink(String),
    RemoveDir(String),
    Rename {
        from: String,
        to: String,
        flags: u32,
    },
    ReadLink(String),
    List(String),
    Stat {
        path: String,
        flags: i32,
    },
    Access {
        path: String,
        mode: i32,
        flags: i32,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    ChmodOpen {
        slot: usize,
        mode: u32,
    },
    Chown {
        path: String,
        owner: (u32, u32),
        flags: i32,
    },
    ChownOpen {
        slot: usize,
        owner: (u32, u32),
    },
    SetTimes {
        path: String,
        times: Option<(Time, Time)>,
        flags: i32,
    },
    SetXattr {
        path: String,
        name: String,
        value: Vec<u8>,
        flags: i32,
    },
    GetXattr {
        path: String,
        name: String,
        size: usize,
    },
    ListXattrs(String),
    RemoveXattr {
        path: String,
        name: String,
    },
    Umask(u32),
    Lock {
        slot: usize,
        lock: Lock,
    },
    /// With `RLIMIT_FSIZE`.
    Limited {
        bytes: u64,
        call: Box<Self>,
    },
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = |slot: &usize| format!("#{slot}");
        match self {
            Self::Open {
                slot,
                path,
                flags,
                mode,
            } => {
                write!(
                    f,
                    "#{slot} = open({}, {}, {mode:#o})",
                    shown(path),
                    Flags(*flags)
                )
            }
            Self::Close(slot) => write!(f, "close(#{slot})"),
            Self::SetFlags { slot, flags } => {
                write!(f, "fcntl(#{slot}, F_SETFL, {})", Flags(*flags))
            }
            Self::Read { slot, len } => write!(f, "read(#{slot}, {len})"),
            Self::ReadAt { slot, offset, len } => write!(f, "pread(#{slot}, {len}, {offset})"),
            Self::Write { slot, len, .. } => write!(f, "write(#{slot}, {len})"),
            Self::WriteAt {
                slot, offset, len, ..
            } => write!(f, "pwrite(#{slot}, {len}, {offset})"),
            Self::Seek {
                slot,
                offset,
                whence,
            } => write!(f, "lseek(#{slot}, {offset}, {whence})"),
            Self::Holes(slot) => write!(f, "lseek(#{slot}, SEEK_DATA and SEEK_HOLE)"),
            Self::Truncate { path, size } => write!(f, "truncate({}, {size})", shown(path)),
            Self::Resize { slot, size } => write!(f, "ftruncate(#{slot}, {size})"),
            Self::Space {
                slot,
                mode,
                offset,
                len,
            } => {
                write!(f, "fallocate(#{slot}, {mode:#x}, {offset}, {len})")
            }
            Self::Copy { from, to, len } => {
                let (from_open, to_open) = (open(&from.0), open(&to.0));
                write!(
                    f,
                    "copy_file_range({from_open}, {}, {to_open}, {}, {len})",
                    from.1, to.1
                )
            }
            Self::Sync { slot, data: false } => write!(f, "fsync(#{slot})"),
            Self::Sync { slot, data: true } => write!(f, "fdatasync(#{slot})"),
            Self::Load { slot, offset, len } => write!(f, "load(#{slot}, {offset}, {len})"),
            Self::Store {
                slot, offset, len, ..
            } => write!(f, "store and msync(#{slot}, {offset}, {len})"),
            Self::MakeDir { path, mode } => write!(f, "mkdir({}, {mode:#o})", shown(path)),
            Self::MakeNode { path, mode, device } => {
                write!(f, "mknod({}, {mode:#o}, {device:#x})", shown(path))
            }
            Self::Symlink { target, path } => {
                write!(f, "symlink({}, {})", shown(target), shown(path))
            }
            Self::Link { from, to, flags } => {
                write!(f, "linkat({}, {}, {flags:#x})", shown(from), shown(to))
            }
            Self::LinkOpen { slot, to } => write!(f, "linkat(#{slot}, {})", shown(to)),
            Self::Unlink(path) => write!(f, "unlink({})", shown(path)),
            Self::RemoveDir(path) => write!(f, "rmdir({})", shown(path)),
            Self::Rename { from, to, flags } => {
                write!(f, "renameat2({}, {}, {flags})", shown(from), shown(to))
            }
            Self::ReadLink(path) => write!(f, "readlink({})", shown(path)),
            Self::List(path) => write!(f, "getdents({})", shown(path)),
            Self::Stat { path, flags } => write!(f, "statx({}, {flags:#x})", shown(path)),
            Self::Access { path, mode, flags } => {
                write!(f, "faccessat2({}, {mode}, {flags:#x})", shown(path))
            }
            Self::Chmod { path, mode } => write!(f, "chmod({}, {mode:#o})", shown(path)),
            Self::ChmodOpen { slot, mode } => write!(f, "fchmod(#{slot}, {mode:#o})"),
            Self::Chown { path, owner, flags } => {
                let (uid, gid) = (owner.0 as i32, owner.1 as i32);
                write!(f, "fchownat({}, {uid}, {gid}, {flags:#x})", shown(path))
            }
            Self::ChownOpen { slot, owner } => {
                write!(f, "fchown(#{slot}, {}, {})", owner.0 as i32, owner.1 as i32)
            }
            Self::SetTimes { path, times, flags } => {
                write!(f, "utimensat({}, {times:?}, {flags:#x})", shown(path))
            }
            Self::SetXattr {
                path,
                name,
                value,
                flags,
            } => {
                write!(f, "setxattr({}, {name}, {value:?}, {flags})", shown(path))
            }
            Self::GetXattr { path, name, size } => {
                write!(f, "getxattr({}, {name}, {size})", shown(path))
            }
            Self::ListXattrs(path) => write!(f, "listxattr({})", shown(path)),
            Self::RemoveXattr { path, name } => write!(f, "removexattr({}, {name})", shown(path)),
            Self::Umask(mask) => write!(f, "umask({mask:#o})"),
            Self::Lock { slot, lock } => write!(f, "lock(#{slot}, {lock:?})"),
            Self::Limited { bytes, call } => write!(f, "RLIMIT_FSIZE = {bytes}: {call:?}"),
        }
    }
}

/// A path as it is printed; of long names, the length.
fn shown(path: &str) -> String {
    let short = |name: &str| match name.len() {
        0..20 => name.to_owned(),
        long => format!("<{long} bytes>"),
    };
    let names: Vec<String> = path.split('/').map(short).collect();
    format!("{:?}", names.join("/"))
}

/// Flags of `open`, by name.
struct Flags(i32);

const FLAGS: [(i32, &str); 16] = [
    (libc::O_TMPFILE, "O_TMPFILE"),
    (libc::O_SYNC, "O_SYNC"),
    (libc::O_WRONLY, "O_WRONLY"),
    (libc::O_RDWR, "O_RDWR"),
    (libc::O_CREAT, "O_CREAT"),
    (libc::O_EXCL, "O_EXCL"),
    (libc::O_TRUNC, "O_TRUNC"),
    (libc::O_APPEND, "O_APPEND"),
    (libc::O_DSYNC, "O_DSYNC"),
    (libc::O_DIRECTORY, "O_DIRECTORY"),
    (libc::O_NOFOLLOW, "O_NOFOLLOW"),
    (libc::O_NOATIME, "O_NOATIME"),
    (libc::O_PATH, "O_PATH"),
    (libc::O_NONBLOCK, "O_NONBLOCK"),
    (libc::O_CLOEXEC, "O_CLOEXEC"),
    (libc::O_NOCTTY, "O_NOCTTY"),
];

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut names = Vec::new();
        for (bits, name) in FLAGS {
            if rest & bits == bits {
                rest &= !bits;
                names.push(name);
            }
        }
        if self.0 & libc::O_ACCMODE == libc::O_RDONLY {
            names.insert(0, "O_RDONLY");
        }
        f.write_str(&names.join("|"))
    }
}
