//! Requests about directories as lists of names.

use std::os::unix::ffi::OsStrExt;

use zerocopy::IntoBytes;

use super::super::message::Message;
use super::super::reply::Reply;
use super::super::wire::{Dirent, EntryOut, OpenOut, ReadIn};
use super::{Adapter, Served};
use crate::error::FsError;
use crate::fs::{DirEntry, ReadOptions, Remember};
use crate::inode::InodeNo;
use crate::store::BlockStore;

/// The names of an answer, as many as fit.
pub(super) struct Names {
    pub(super) bytes: Vec<u8>,
    max: usize,
}

impl Names {
    pub(super) fn new(max: u32) -> Self {
        Self {
            bytes: Vec::with_capacity((max as usize).min(1 << 16)),
            max: max as usize,
        }
    }

    /// Adds a name, behind `before`; false if it does not fit any more.
    pub(super) fn add(&mut self, before: &[u8], entry: &DirEntry) -> bool {
        let name = entry.name.as_bytes();
        let header = Dirent {
            ino: entry.ino.0,
            off: entry.next_cookie,
            namelen: name.len() as u32,
            kind: u32::from(entry.kind.code()),
        };
        let len = before.len() + (size_of::<Dirent>() + name.len()).next_multiple_of(8);
        let end = self.bytes.len() + len;
        if end > self.max {
            return false;
        }
        self.bytes.extend_from_slice(before);
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

impl<S: BlockStore + 'static> Adapter<S> {
    /// An entry with the number that the kernel knows.
    fn numbered(&self, entry: DirEntry) -> DirEntry {
        DirEntry {
            ino: InodeNo(self.shown.base | entry.ino.0),
            ..entry
        }
    }

    pub(super) fn opendir(&self, message: Message<'_>, reply: Reply) -> Served {
        let fh = message.header.nodeid;
        reply.with(self.fs.open(message.ino()), |()| OpenOut {
            fh,
            ..OpenOut::default()
        });
        Ok(())
    }

    pub(super) fn releasedir(&self, message: Message<'_>, reply: Reply) -> Served {
        reply.done(self.fs.close(message.ino()));
        Ok(())
    }

    /// Names are durable already, unless that is relaxed, and so are times but that of the last access.
    pub(super) fn fsyncdir(&self, reply: Reply) -> Served {
        reply.done(self.fs.sync_metadata());
        Ok(())
    }

    pub(super) fn readdir(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: ReadIn = message.take()?;
        let mut names = Names::new(what.size);
        let add = |entry: DirEntry| names.add(&[], &self.numbered(entry));
        let options = options(&what);
        match (self.fs).readdir_with(message.ino(), what.offset, options, add) {
            Ok(()) => reply.parts(&[&names.bytes]),
            Err(error) => reply.error(error),
        }
        Ok(())
    }

    pub(super) fn readdirplus(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: ReadIn = message.take()?;
        let mut names = Names::new(what.size);
        let parent = message.ino();
        let add = |entry: DirEntry| {
            // The kernel does not count `.` and `..` as lookups. A name that is gone meanwhile is left out.
            let dots = entry.name == "." || entry.name == "..";
            let remember = if dots { Remember::No } else { Remember::Yes };
            let attr = match self.fs.lookup_remember(parent, &entry.name, remember) {
                Ok(attr) => attr,
                Err(FsError::NotFound) => return true,
                // The name is there, whatever is wrong with what it leads to: without a number the kernel asks for that by itself.
                Err(_) => return names.add(EntryOut::default().as_bytes(), &self.numbered(entry)),
            };
            let entry = self.numbered(DirEntry {
                ino: attr.ino,
                kind: attr.kind,
                ..entry
            });
            let fits = names.add(self.shown.entry(&attr).as_bytes(), &entry);
            match fits {
                true => self.appends.told(attr.ino, attr.size),
                false if !dots => self.fs.forget(attr.ino, 1),
                false => {}
            }
            fits
        };
        match (self.fs).readdir_with(parent, what.offset, options(&what), add) {
            Ok(()) => reply.parts(&[&names.bytes]),
            Err(error) => reply.error(error),
        }
        Ok(())
    }
}

fn options(what: &ReadIn) -> ReadOptions {
    ReadOptions {
        keep_atime: what.flags as i32 & libc::O_NOATIME != 0,
        ..ReadOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    use super::*;
    use crate::inode::FileKind;

    /// Entries are as `fuse_add_direntry` of the reference library makes them, and none is cut.
    #[test]
    fn names_are_padded_and_whole() {
        let entry = |name: &str| DirEntry {
            ino: InodeNo(5),
            kind: FileKind::File,
            name: name.into(),
            next_cookie: 9,
        };
        let mut names = Names::new(32 + 40 + 31);
        assert!(names.add(&[], &entry("12345678")));
        assert!(names.add(&[], &entry("123456789")));
        assert!(!names.add(&[], &entry("1")));
        assert_eq!(names.bytes.len(), 72);
        let (first, _) = Dirent::read_from_prefix(&names.bytes).unwrap();
        assert_eq!((first.ino, first.off, first.namelen), (5, 9, 8));
        assert_eq!(first.kind, u32::from(libc::DT_REG));
        assert_eq!(&names.bytes[24..32], b"12345678");
        assert_eq!(&names.bytes[56..], b"123456789\0\0\0\0\0\0\0");
    }
}
