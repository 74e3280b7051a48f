//! Answers of the file system in the words of the FUSE library.

use std::time::{SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};

use crate::error::FsError;
use crate::inode::{Attr, FileKind, InodeNo, SetTime};
use crate::time::Timestamp;

/// `st_blocks` counts sectors.
const SECTORS_PER_GRAIN: u64 = ftl::GRAIN_BYTES as u64 / 512;

pub(super) fn errno(error: FsError) -> Errno {
    if matches!(error, FsError::Corrupt(_) | FsError::Store(_)) {
        tracing::error!(%error, "request failed");
    }
    Errno::from_i32(error.errno())
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::Directory => FileType::Directory,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::File => FileType::RegularFile,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Socket => FileType::Socket,
    }
}

pub(super) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.grains.saturating_mul(SECTORS_PER_GRAIN),
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.kind),
        perm: attr.perm(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: ftl::GRAIN_BYTES as u32,
        flags: 0,
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    time.into()
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(received_time(time)),
    }
}

/// A time as the kernel sent it. For negative seconds the FUSE library (0.18) subtracts the nanoseconds, which always
/// count forward; this takes the two apart again.
fn received_time(time: SystemTime) -> Timestamp {
    match UNIX_EPOCH.duration_since(time) {
        Ok(before) if !before.is_zero() => Timestamp {
            secs: 0i64.saturating_sub_unsigned(before.as_secs()),
            nanos: before.subsec_nanos(),
        },
        _ => time.into(),
    }
}

pub(super) fn inode_no(ino: INodeNo) -> InodeNo {
    InodeNo(ino.0)
}
