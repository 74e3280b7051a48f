//! Listing directories.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use ftl::{GRAIN_BYTES, LbaRange};

use super::data::ReadOptions;
use super::{Fs, shared};
use crate::dir::directory_grains;
use crate::error::FsError;
use crate::format::{GRAIN_UNITS, parse_grain};
use crate::inode::{FileKind, InodeNo};
use crate::store::{BlockStore, ByteAddr};

/// Cookies below are those of `.` and `..`.
const COOKIE_ENTRIES: u64 = 2;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Where it leads.
    pub ino: InodeNo,
    /// What is there.
    pub kind: FileKind,
    /// The name.
    pub name: OsString,
    /// Pass it to [`Fs::readdir`] to go on behind this entry. It stays right whatever happens to the directory.
    pub next_cookie: u64,
}

impl<S: BlockStore> Fs<S> {
    /// Calls `visit` for each name behind `cookie` (0: from the start), until it answers false.
    ///
    /// Names that exist during the whole listing are visited exactly once; those that come or go meanwhile, at most
    /// once.
    pub fn readdir(
        &self,
        ino: InodeNo,
        cookie: u64,
        visit: impl FnMut(DirEntry) -> bool,
    ) -> Result<(), FsError> {
        self.readdir_with(ino, cookie, ReadOptions::default(), visit)
    }

    /// As [`readdir`](Self::readdir), with options.
    pub(crate) fn readdir_with(
        &self,
        ino: InodeNo,
        cookie: u64,
        options: ReadOptions,
        mut visit: impl FnMut(DirEntry) -> bool,
    ) -> Result<(), FsError> {
        let dir = self.inode(ino)?;
        if dir.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        if !options.keep_atime {
            self.note_read(&dir);
        }
        let parent = dir.state().record.parent.unwrap_or(ino);
        for (next, name, ino) in [(1, ".", ino), (2, "..", parent)] {
            let entry = DirEntry {
                ino,
                kind: FileKind::Directory,
                name: name.into(),
                next_cookie: next,
            };
            if cookie < next && !visit(entry) {
                return Ok(());
            }
        }
        let mut unit = cookie.saturating_sub(COOKIE_ENTRIES);
        loop {
            let mut entries = Vec::new();
            {
                let content = shared(&dir.content);
                let state = *dir.state();
                let from = unit / GRAIN_UNITS as u64;
                let grains = directory_grains(dir.ino, state.size)?;
                if state.dead || from >= grains {
                    return Ok(());
                }
                let range = dir.range()?;
                let rest = LbaRange::new(range.start.offset(from), grains - from);
                let Some(lba) = self.store.next_mapped(rest) else {
                    return Ok(());
                };
                let mut bytes = [0; GRAIN_BYTES];
                self.store.read(ByteAddr::new(lba, 0), &mut bytes)?;
                drop(content);
                let first = (lba.0 - range.start.0) * GRAIN_UNITS as u64;
                parse_grain(ino, first as u32, &bytes, |in_grain, entry| {
                    let at = first + in_grain as u64;
                    if at >= unit {
                        entries.push(DirEntry {
                            ino: entry.ino,
                            kind: entry.kind,
                            name: OsString::from_vec(entry.name.to_vec()),
                            next_cookie: at + 1 + COOKIE_ENTRIES,
                        });
                    }
                })?;
                unit = first + GRAIN_UNITS as u64;
            }
            if !entries.into_iter().all(&mut visit) {
                return Ok(());
            }
        }
    }
}
