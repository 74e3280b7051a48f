//! What a check tells.

use std::fmt;

use ftl::Lba;
use ftl::snapshot::SnapshotError;

use crate::error::FsError;
use crate::inode::InodeNo;
use crate::store::StoreError;

/// What the checker found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Everything that is wrong; empty for a healthy volume.
    pub problems: Vec<Problem>,
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Links, devices, pipes, sockets.
    pub others: u64,
    /// Inodes with extended attributes.
    pub with_xattrs: u64,
    /// Files without names, to be freed by the next mount. They are no problem.
    pub orphans: u64,
    /// Files on their way to another range, to be carried on by the next mount. They are no problem.
    pub relocating: u64,
    /// Mapped grains outside all ranges, to be freed by the next mount. They are no problem but as [`Problem::Strays`].
    pub ownerless_grains: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Something that is wrong with a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A root record can not be read; `copy` tells which. One of the two is enough to mount.
    Root {
        /// The second one.
        copy: bool,
        /// Why.
        error: FsError,
    },
    /// A record of the inode table can not be read.
    Record {
        /// The inode.
        ino: InodeNo,
        /// Why.
        error: FsError,
    },
    /// A record exists behind the end of the inode table.
    BehindTable {
        /// The grain.
        lba: Lba,
    },
    /// The range of a file overlaps that of another one.
    Overlap {
        /// The inode.
        ino: InodeNo,
        /// The other one.
        other: InodeNo,
    },
    /// Grains outside of all ranges, which a file may miss: a record of the past does not name them.
    Strays {
        /// The first.
        lba: Lba,
        /// How many.
        grains: u64,
    },
    /// A directory can not be read to its end.
    Directory {
        /// The directory.
        ino: InodeNo,
        /// Why.
        error: FsError,
    },
    /// A name occurs twice in a directory.
    NameTwice {
        /// The directory.
        dir: InodeNo,
        /// Where the name leads.
        ino: InodeNo,
    },
    /// A name leads to an inode that does not exist.
    Dangling {
        /// The directory.
        dir: InodeNo,
        /// Where the name leads.
        ino: InodeNo,
    },
    /// The kind in the directory entry differs from that of the inode.
    KindDiffers {
        /// The directory.
        dir: InodeNo,
        /// The inode.
        ino: InodeNo,
    },
    /// The number of names or subdirectories differs from the link count.
    LinkCount {
        /// The inode.
        ino: InodeNo,
        /// What the record says.
        recorded: u32,
        /// What was counted.
        counted: u64,
    },
    /// A directory has several names, or a parent other than the directory that holds its name.
    Parent {
        /// The directory.
        ino: InodeNo,
    },
    /// An inode is to be freed by the next mount, and has names, or is the root directory.
    NamedOrphan {
        /// The inode.
        ino: InodeNo,
    },
    /// An inode has no name and is no orphan.
    Unreachable {
        /// The inode.
        ino: InodeNo,
    },
    /// A directory has mapped grains behind its size, or a grain that is empty.
    DirectorySize {
        /// The directory.
        ino: InodeNo,
    },
    /// The extended attributes of an inode can not be read.
    Xattrs {
        /// The inode.
        ino: InodeNo,
        /// Why.
        error: FsError,
    },
    /// An access control list is illegal, belongs to a kind of file that has none, or does not agree with the mode.
    AccessList {
        /// The inode.
        ino: InodeNo,
    },
    /// There are extended attributes of an inode that does not exist, or grains behind the end of some.
    XattrsLeft {
        /// The inode.
        ino: InodeNo,
        /// The first grain that nobody needs.
        lba: Lba,
    },
    /// There are projects or attributes, which the root record or its copy does not announce.
    Unannounced,
    /// The limits of a project can not be read, or belong to nobody.
    Limits {
        /// Place of the record in the table.
        slot: u32,
        /// Why.
        error: FsError,
    },
    /// What says which snapshots there are, or what was nothing at one, can not be read. Mounting the volume, and repairing
    /// it, gives up those that it is about.
    Snapshots {
        /// Why, if it is not damaged.
        error: Option<SnapshotError>,
    },
    /// A grain of data can not be read.
    Data {
        /// The inode.
        ino: InodeNo,
        /// Why.
        error: StoreError,
    },
}

impl Problem {
    /// The device gives an error instead of metadata, which may be whole.
    pub fn is_unreadable(&self) -> bool {
        match *self {
            Self::Root { error, .. }
            | Self::Record { error, .. }
            | Self::Directory { error, .. }
            | Self::Xattrs { error, .. }
            | Self::Limits { error, .. } => {
                matches!(error, FsError::Store(StoreError::Unreadable { .. }))
            }
            Self::Snapshots { error } => error.is_some(),
            _ => false,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root { copy, error } => {
                write!(
                    f,
                    "root record{}: {error}",
                    if *copy { " (copy)" } else { "" }
                )
            }
            Self::Record { ino, error } => write!(f, "inode {ino}: {error}"),
            Self::BehindTable { lba } => {
                write!(f, "{lba}: inode records behind the end of the table")
            }
            Self::Overlap { ino, other } => {
                write!(f, "inode {ino}: its range overlaps that of inode {other}")
            }
            Self::Strays { lba, grains } => write!(
                f,
                "{lba}: {grains} grains belong to no file, but one may miss them"
            ),
            Self::Directory { ino, error } => write!(f, "directory {ino}: {error}"),
            Self::NameTwice { dir, ino } => {
                write!(
                    f,
                    "directory {dir}: a name occurs twice, once for inode {ino}"
                )
            }
            Self::Dangling { dir, ino } => {
                write!(
                    f,
                    "directory {dir}: a name leads to inode {ino}, which does not exist"
                )
            }
            Self::KindDiffers { dir, ino } => {
                write!(
                    f,
                    "directory {dir}: the entry of inode {ino} has another kind"
                )
            }
            Self::LinkCount {
                ino,
                recorded,
                counted,
            } => {
                write!(
                    f,
                    "inode {ino}: link count {recorded}, but {counted} links were found"
                )
            }
            Self::Parent { ino } => write!(f, "directory {ino}: wrong parent, or several names"),
            Self::NamedOrphan { ino } => {
                write!(f, "inode {ino}: marked to be freed, but it has a name")
            }
            Self::Unreachable { ino } => write!(f, "inode {ino}: without a name"),
            Self::DirectorySize { ino } => {
                write!(f, "directory {ino}: size does not fit its content")
            }
            Self::Xattrs { ino, error } => write!(f, "inode {ino}: {error}"),
            Self::AccessList { ino } => write!(
                f,
                "inode {ino}: its access control list is illegal or does not fit its mode"
            ),
            Self::XattrsLeft { ino, lba } => write!(
                f,
                "{lba}: left over from extended attributes of inode {ino}"
            ),
            Self::Unannounced => f.write_str(
                "there are projects or attributes, which a root record does not announce",
            ),
            Self::Limits { slot, error } => {
                write!(f, "limits of a project, record {slot}: {error}")
            }
            Self::Snapshots { error: None } => {
                f.write_str("snapshots: damaged; those that it is about are lost")
            }
            Self::Snapshots { error: Some(error) } => write!(f, "snapshots: {error}"),
            Self::Data { ino, error } => write!(f, "inode {ino}: data: {error}"),
        }
    }
}
