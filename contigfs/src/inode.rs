//! Inodes as the rest of the world sees them: numbers, kinds, attributes.

use std::fmt;
use std::num::NonZeroU32;

use crate::time::Timestamp;

/// Number of an inode, unique while the inode exists; reused later with another [`Attr::generation`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeNo(pub u64);

impl InodeNo {
    /// The inode table itself: record 0 describes the table. Not reachable by name.
    pub const TABLE: Self = Self(0);
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

/// Who is charged for an inode and what it holds; as in other Linux file systems, 0 is nobody.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProjectId(NonZeroU32);

impl ProjectId {
    /// The project of this number; none for 0.
    pub const fn new(id: u32) -> Option<Self> {
        match NonZeroU32::new(id) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }

    /// Its number.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for ProjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for ProjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "project {}", self.0)
    }
}

/// What a project may have at most; none: as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes mapped: whole grains count, of data, directories, links and extended attributes.
    pub bytes: Option<u64>,
    /// Inodes.
    pub inodes: Option<u64>,
}

impl fmt::Display for InodeNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for InodeNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inode {}", self.0)
    }
}

/// Kind of a file. The numbers are those of the upper four bits of `st_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// Named pipe.
    Fifo = 1,
    /// Character device.
    CharDevice = 2,
    /// Directory.
    Directory = 4,
    /// Block device.
    BlockDevice = 6,
    /// Regular file.
    File = 8,
    /// Symbolic link.
    Symlink = 10,
    /// Unix socket.
    Socket = 12,
}

impl FileKind {
    /// The kind whose number this is.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Fifo,
            2 => Self::CharDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::File,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => return None,
        })
    }

    /// Number of the kind, as in `st_mode >> 12`.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The kind in an `st_mode`; a mode without kind bits means a regular file, as for `mknod`.
    pub const fn from_mode(mode: u32) -> Option<Self> {
        match (mode >> 12) & 0xf {
            0 => Some(Self::File),
            code => Self::from_code(code as u8),
        }
    }
}

/// Attributes of an inode, as `stat` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Number.
    pub ino: InodeNo,
    /// Differs between two inodes that had the same number.
    pub generation: u64,
    /// Kind.
    pub kind: FileKind,
    /// As `st_mode`: kind and permissions.
    pub mode: u32,
    /// Number of names; directories count their `.` and the `..` of their children.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Mapped grains: data, reservations, extended attributes.
    pub grains: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
}

impl Attr {
    /// Permissions with setuid, setgid and sticky bit.
    pub const fn perm(&self) -> u16 {
        (self.mode & 0o7777) as u16
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the operation.
    Now,
    /// This time.
    At(Timestamp),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// New permissions (twelve bits).
    pub perm: Option<u16>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size; regular files only.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
}
