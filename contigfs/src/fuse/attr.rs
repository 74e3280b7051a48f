//! Attributes, times and errors in the words of the kernel.

use super::complaints::may_complain;
use super::wire::{AttrOut, AttrReply, EntryOut, SetattrIn, StatxOut, StatxTime, set};
use crate::error::FsError;
use crate::fs::gives_privileges;
use crate::inode::{Attr, FileKind, InodeNo, SetAttr, SetTime};
use crate::store::StoreError;
use crate::time::Timestamp;

/// How long, in seconds, the kernel may believe names and attributes. Only it changes them, unless the library is used
/// beside it.
const VALID: u64 = 1;

/// The same for the attributes of an inode. A program that gives privileges may lose them to a remote writer at any time, so
/// the kernel, which looks again before it runs it, must ask.
fn valid(attr: &Attr) -> u64 {
    let gives = attr.kind == FileKind::File && gives_privileges((attr.mode & 0o7777) as u16);
    if gives { 0 } else { VALID }
}
/// `st_blocks` counts sectors.
const SECTORS_PER_GRAIN: u64 = ftl::GRAIN_BYTES as u64 / 512;
/// What [`StatxOut`] says (`STATX_BASIC_STATS`, `STATX_BTIME`).
const STATX_MASK: u32 = libc::STATX_BASIC_STATS | libc::STATX_BTIME;

/// The errno of an error; damage is logged, as often as the log bears it.
pub(super) fn error_code(error: FsError) -> i32 {
    if matches!(error, FsError::Corrupt(_) | FsError::Store(_)) {
        match may_complain() {
            Some(0) => tracing::error!(%error, "request failed"),
            Some(untold) => tracing::error!(%error, untold, "request failed, as others before did"),
            None => tracing::debug!(%error, "request failed"),
        }
    }
    error.errno()
}

/// The same of a read. Whoever may read a file can ask for a damaged grain as often as he likes, and the engine remembers where
/// the media have failed (`ftl::Ftl::take_media_faults`), so that is no news here. (A sync says the same of a write that is lost.)
pub(super) fn read_error_code(error: FsError) -> i32 {
    match error {
        FsError::Store(StoreError::Damaged { .. } | StoreError::Unreadable { .. }) => {
            tracing::debug!(%error, "request failed");
            error.errno()
        }
        _ => error_code(error),
    }
}

/// Owner and group that every file appears to have; what is on media stays as it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShownOwner {
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    /// What is added to the numbers of inodes: those of snapshots are not those of the files of now.
    pub(super) base: u64,
    /// What is added to their generations: numbers of snapshots come again when a volume has been opened anew, and what somebody
    /// has a handle of must not be found in another one.
    pub(super) generation: u64,
    /// When the root directory seems to be born, if it is that of a snapshot.
    pub(super) root_born: Option<Timestamp>,
}

impl ShownOwner {
    /// Attributes as they are shown.
    pub(super) fn attr(&self, attr: &Attr) -> AttrOut {
        AttrOut {
            ino: self.base | attr.ino.0,
            size: attr.size,
            blocks: attr.grains.saturating_mul(SECTORS_PER_GRAIN),
            atime: attr.atime.secs,
            mtime: attr.mtime.secs,
            ctime: attr.ctime.secs,
            atime_nsec: attr.atime.nanos,
            mtime_nsec: attr.mtime.nanos,
            ctime_nsec: attr.ctime.nanos,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: self.uid.unwrap_or(attr.uid),
            gid: self.gid.unwrap_or(attr.gid),
            rdev: attr.rdev,
            blksize: ftl::GRAIN_BYTES as u32,
            flags: 0,
        }
    }

    /// The answer to who asks for attributes.
    pub(super) fn attr_reply(&self, attr: &Attr) -> AttrReply {
        AttrReply {
            valid: valid(attr),
            attr: self.attr(attr),
            ..AttrReply::default()
        }
    }

    /// The answer to who asks for attributes with statx(2).
    pub(super) fn statx_reply(&self, attr: &Attr) -> StatxOut {
        let shown = self.attr(attr);
        StatxOut {
            attr_valid: valid(attr),
            mask: STATX_MASK,
            blksize: shown.blksize,
            nlink: shown.nlink,
            uid: shown.uid,
            gid: shown.gid,
            mode: attr.mode as u16,
            ino: shown.ino,
            size: shown.size,
            blocks: shown.blocks,
            atime: statx_time(attr.atime),
            btime: statx_time(match self.root_born {
                Some(born) if attr.ino == InodeNo::ROOT => born,
                _ => attr.btime,
            }),
            ctime: statx_time(attr.ctime),
            mtime: statx_time(attr.mtime),
            // The kernel's encoding of device numbers in 32 bits (`new_decode_dev`).
            rdev_major: attr.rdev >> 8 & 0xfff,
            rdev_minor: attr.rdev & 0xff | attr.rdev >> 12 & 0xf_ff00,
            ..StatxOut::default()
        }
    }

    /// The answer to who finds or makes a name.
    pub(super) fn entry(&self, attr: &Attr) -> EntryOut {
        EntryOut {
            nodeid: self.base | attr.ino.0,
            generation: attr.generation.wrapping_add(self.generation),
            entry_valid: VALID,
            attr_valid: valid(attr),
            attr: self.attr(attr),
            ..EntryOut::default()
        }
    }
}

fn statx_time(time: Timestamp) -> StatxTime {
    StatxTime {
        secs: time.secs,
        nanos: time.nanos,
        reserved: 0,
    }
}

/// What a `SETATTR` wants changed.
pub(super) fn set_attr(wanted: &SetattrIn) -> SetAttr {
    let has = |field: u32| wanted.valid & field != 0;
    let time = |field, now, secs, nanos| {
        let at = SetTime::At(Timestamp { secs, nanos });
        has(field).then_some(if has(now) { SetTime::Now } else { at })
    };
    SetAttr {
        perm: has(set::MODE).then_some((wanted.mode & 0o7777) as u16),
        uid: has(set::UID).then_some(wanted.uid),
        gid: has(set::GID).then_some(wanted.gid),
        size: has(set::SIZE).then_some(wanted.size),
        atime: time(set::ATIME, set::ATIME_NOW, wanted.atime, wanted.atime_nsec),
        mtime: time(set::MTIME, set::MTIME_NOW, wanted.mtime, wanted.mtime_nsec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only what the kernel names is changed; a time is the clock's only if it says so.
    #[test]
    fn named_fields_are_set() {
        let wanted = SetattrIn {
            valid: set::MODE | set::ATIME | set::ATIME_NOW | set::MTIME,
            mode: 0o100_644,
            size: 5,
            mtime: i64::MIN,
            mtime_nsec: 999_999_999,
            ..SetattrIn::default()
        };
        let earliest = Timestamp {
            secs: i64::MIN,
            nanos: 999_999_999,
        };
        let expected = SetAttr {
            perm: Some(0o644),
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::At(earliest)),
            ..SetAttr::default()
        };
        assert_eq!(set_attr(&wanted), expected);
    }
}
