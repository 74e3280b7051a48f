//! What can go wrong, and the one place where it becomes an `errno`.

use ftl::snapshot::SnapshotError;

use crate::inode::InodeNo;
use crate::store::StoreError;

/// Why an operation of the file system failed. Unless said otherwise nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FsError {
    /// No such name, or the inode is gone.
    #[error("no such file or directory")]
    NotFound,
    /// The name exists already.
    #[error("the name exists already")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// Anything but a directory was needed.
    #[error("is a directory")]
    IsDirectory,
    /// The directory still has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// A name of more than 255 bytes or a link target of more than 4095.
    #[error("name too long")]
    NameTooLong,
    /// An argument makes no sense: empty name, `/` in a name, a directory moved below itself, ...
    #[error("invalid argument")]
    Invalid,
    /// The volume is full, or a directory or the inode table has reached its limit.
    #[error("no space left on the volume")]
    NoSpace,
    /// The limit of a project is reached: something of it has to go first.
    #[error("limit of the project reached")]
    Quota,
    /// A name can not lead from a directory of a project to what belongs to another one.
    #[error("the directory belongs to another project")]
    OtherProject,
    /// The size exceeds what a file may have.
    #[error("file too large")]
    FileTooLarge,
    /// The inode has the most links it may have.
    #[error("too many links")]
    TooManyLinks,
    /// A path leads through too many symbolic links, or through one that leads to itself.
    #[error("too many levels of symbolic links")]
    LinkLoop,
    /// The operation does not exist for this kind of file, or not in this file system.
    #[error("operation not supported")]
    NotSupported,
    /// The operation is not allowed for this kind of file.
    #[error("operation not permitted")]
    NotPermitted,
    /// The extent of the file is held (registered for remote access), so the file can not move to a larger range.
    #[error("the file's extent is held")]
    Busy,
    /// No data or hole at or behind the offset.
    #[error("no data or hole behind the offset")]
    BehindEnd,
    /// A snapshot, or what is in it, can not be changed.
    #[error("read-only: part of a snapshot")]
    ReadOnly,
    /// There are as many snapshots as there may be.
    #[error("as many snapshots as there may be: delete one, and wait until it is gone")]
    TooManySnapshots,
    /// There is no extended attribute of this name.
    #[error("no such extended attribute")]
    NoXattr,
    /// The name of an extended attribute is empty or longer than 255 bytes.
    #[error("empty or overlong name of an extended attribute")]
    XattrName,
    /// The value of an extended attribute is longer than 64 KiB.
    #[error("value of an extended attribute too long")]
    XattrTooLong,
    /// Metadata on media make no sense.
    #[error("corrupt metadata: {0}")]
    Corrupt(Corruption),
    /// The store below failed.
    #[error("storage: {0}")]
    Store(StoreError),
}

/// What was found corrupt, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corruption {
    /// The volume has no file system.
    #[error("there is no file system on the volume")]
    NoFileSystem,
    /// The file system was made by a version that this one does not know.
    #[error("file system version {0} is unknown")]
    Version(u32),
    /// The file system uses something that this version does not know.
    #[error("file system features {0:#x} are unknown")]
    Features(u64),
    /// The root record.
    #[error("root record: {0}")]
    Root(&'static str),
    /// A record of the inode table.
    #[error("inode {ino}: {what}")]
    Inode {
        /// The inode.
        ino: InodeNo,
        /// What is wrong.
        what: &'static str,
    },
    /// The extended attributes of an inode.
    #[error("extended attributes of inode {ino}: {what}")]
    Xattrs {
        /// The inode.
        ino: InodeNo,
        /// What is wrong.
        what: &'static str,
    },
    /// A record of the table of projects.
    #[error("record {slot} of the table of projects: {what}")]
    Project {
        /// Its place in the table.
        slot: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// An entry of a directory.
    #[error("directory {dir}, entry at unit {unit}: {what}")]
    Entry {
        /// The directory.
        dir: InodeNo,
        /// Position of the entry.
        unit: u32,
        /// What is wrong.
        what: &'static str,
    },
}

impl Corruption {
    /// Whether it may be none, but the work of a later version.
    pub(crate) const fn is_newer(self) -> bool {
        matches!(self, Self::Version(_) | Self::Features(_))
    }
}

impl FsError {
    /// The error number that POSIX programs see.
    pub const fn errno(self) -> i32 {
        match self {
            Self::NotFound => libc::ENOENT,
            Self::Exists => libc::EEXIST,
            Self::NotDirectory => libc::ENOTDIR,
            Self::IsDirectory => libc::EISDIR,
            Self::NotEmpty => libc::ENOTEMPTY,
            Self::NameTooLong => libc::ENAMETOOLONG,
            Self::Invalid => libc::EINVAL,
            Self::NoSpace | Self::Store(StoreError::NoSpace) => libc::ENOSPC,
            Self::Quota | Self::Store(StoreError::Quota) => libc::EDQUOT,
            Self::OtherProject => libc::EXDEV,
            Self::FileTooLarge => libc::EFBIG,
            Self::TooManyLinks => libc::EMLINK,
            Self::LinkLoop => libc::ELOOP,
            Self::NotSupported => libc::EOPNOTSUPP,
            Self::NotPermitted => libc::EPERM,
            Self::Busy => libc::EBUSY,
            Self::BehindEnd => libc::ENXIO,
            Self::ReadOnly => libc::EROFS,
            Self::TooManySnapshots => libc::EMLINK,
            Self::NoXattr => libc::ENODATA,
            Self::XattrName => libc::ERANGE,
            Self::XattrTooLong => libc::E2BIG,
            Self::Corrupt(_)
            | Self::Store(
                StoreError::Damaged { .. }
                | StoreError::Unreadable { .. }
                | StoreError::Failed
                | StoreError::BatchTooLarge
                | StoreError::ManyAlong,
            ) => libc::EIO,
        }
    }
}

impl From<StoreError> for FsError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NoSpace => Self::NoSpace,
            StoreError::Quota => Self::Quota,
            other => Self::Store(other),
        }
    }
}

impl From<SnapshotError> for FsError {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::Exists => Self::Exists,
            SnapshotError::NotFound => Self::NotFound,
            SnapshotError::TooMany => Self::TooManySnapshots,
            SnapshotError::BadName => Self::Invalid,
            SnapshotError::NoSpace => Self::NoSpace,
            SnapshotError::Damaged { lba } => Self::Store(StoreError::Damaged { lba }),
            SnapshotError::Unreadable { lba } => Self::Store(StoreError::Unreadable { lba }),
            SnapshotError::Failed => Self::Store(StoreError::Failed),
        }
    }
}

impl From<Corruption> for FsError {
    fn from(corruption: Corruption) -> Self {
        Self::Corrupt(corruption)
    }
}
