//! Requests about names: finding, making, and removing them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::super::message::Message;
use super::super::reply::Reply;
use super::super::wire::{
    BatchForgetIn, CreateIn, EntryOut, ForgetIn, ForgetOne, LinkIn, MkdirIn, MknodIn, Rename2In,
    RenameIn,
};
use super::{Adapter, Served, node};
use crate::error::FsError;
use crate::fs::{Remember, RenameMode};
use crate::inode::{Attr, FileKind, InodeNo};
use crate::store::BlockStore;
use zerocopy::IntoBytes;

impl<S: BlockStore + 'static> Adapter<S> {
    fn entry(&self, reply: Reply, result: Result<Attr, FsError>) -> Served {
        reply.with(result, |attr| self.entry_out(&attr));
        Ok(())
    }

    /// What the kernel is told of a name. It takes the size from there, too.
    fn entry_out(&self, attr: &Attr) -> EntryOut {
        self.appends.told(attr.ino, attr.size);
        self.shown.entry(attr)
    }

    pub(super) fn lookup(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let name = message.name()?;
        let found = match name.as_bytes() {
            // Of a file, too: somebody has its number from a handle.
            b"." => self.fs.remember(message.ino()),
            _ => self.fs.lookup_remember(message.ino(), name, Remember::Yes),
        };
        self.entry(reply, found)
    }

    pub(super) fn forget(&self, mut message: Message<'_>, reply: Reply) -> Served {
        reply.none();
        let forget: ForgetIn = message.take()?;
        self.fs.forget(message.ino(), forget.lookups);
        Ok(())
    }

    pub(super) fn batch_forget(&self, mut message: Message<'_>, reply: Reply) -> Served {
        reply.none();
        let batch: BatchForgetIn = message.take()?;
        for _ in 0..batch.count {
            let one: ForgetOne = message.take()?;
            self.fs.forget(InodeNo(one.nodeid), one.lookups);
        }
        Ok(())
    }

    pub(super) fn mknod(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: MknodIn = message.take()?;
        let name = message.name()?;
        let Some(kind) = FileKind::from_mode(what.mode) else {
            reply.errno(libc::EINVAL);
            return Ok(());
        };
        let node = node(&message, kind, (what.mode, what.umask), what.rdev);
        let (parent, remember) = (message.ino(), Remember::Yes);
        let made = self
            .fs
            .create_remember(parent, name, &node, remember, false);
        self.entry(reply, made)
    }

    pub(super) fn mkdir(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: MkdirIn = message.take()?;
        let name = message.name()?;
        let node = node(&message, FileKind::Directory, (what.mode, what.umask), 0);
        let (parent, remember) = (message.ino(), Remember::Yes);
        let made = self
            .fs
            .create_remember(parent, name, &node, remember, false);
        self.entry(reply, made)
    }

    pub(super) fn symlink(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let (name, target) = (message.name()?, message.name()?);
        let owner = (message.header.uid, message.header.gid);
        let (parent, remember) = (message.ino(), Remember::Yes);
        let made = self
            .fs
            .symlink_remember(parent, name, target, owner, remember);
        self.entry(reply, made)
    }

    pub(super) fn readlink(&self, message: Message<'_>, reply: Reply) -> Served {
        match self.fs.readlink(message.ino()) {
            Ok(target) => reply.parts(&[&target]),
            Err(error) => reply.error(error),
        }
        Ok(())
    }

    pub(super) fn link(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let from: LinkIn = message.take()?;
        let name = message.name()?;
        let (ino, parent) = (InodeNo(from.oldnodeid), message.ino());
        let linked = self.fs.link_remember(ino, parent, name, Remember::Yes);
        self.entry(reply, linked)
    }

    pub(super) fn unlink(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let name = message.name()?;
        reply.done(self.fs.unlink(message.ino(), name));
        Ok(())
    }

    pub(super) fn rmdir(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let name = message.name()?;
        reply.done(self.fs.rmdir(message.ino(), name));
        Ok(())
    }

    pub(super) fn rename(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let to: RenameIn = message.take()?;
        let names = (message.name()?, message.name()?);
        self.rename_with(&message, to.newdir, names, 0, reply)
    }

    pub(super) fn rename2(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let to: Rename2In = message.take()?;
        let names = (message.name()?, message.name()?);
        self.rename_with(&message, to.newdir, names, to.flags, reply)
    }

    fn rename_with(
        &self,
        message: &Message<'_>,
        newdir: u64,
        (name, new_name): (&OsStr, &OsStr),
        flags: u32,
        reply: Reply,
    ) -> Served {
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => {
                reply.errno(libc::EINVAL);
                return Ok(());
            }
        };
        let newdir = InodeNo(newdir);
        reply.done(self.fs.rename(message.ino(), name, newdir, new_name, mode));
        Ok(())
    }

    pub(super) fn create(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: CreateIn = message.take()?;
        let name = message.name()?;
        let node = node(&message, FileKind::File, (what.mode, what.umask), 0);
        let (parent, remember) = (message.ino(), Remember::Yes);
        let made = self.fs.create_remember(parent, name, &node, remember, true);
        if made == Err(FsError::Exists) && what.flags & libc::O_EXCL as u32 == 0 {
            // Somebody else, not through this mount, was faster: the kernel looks again, and who may open it.
            reply.errno(libc::ESTALE);
            return Ok(());
        }
        self.opened(made, what.flags, reply);
        Ok(())
    }

    /// `O_TMPFILE`. The kernel sends a name that means nothing.
    pub(super) fn tmpfile(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: CreateIn = message.take()?;
        let node = node(&message, FileKind::File, (what.mode, what.umask), 0);
        // open(2): with O_EXCL it can not be given a name later.
        let linkable = what.flags & libc::O_EXCL as u32 == 0;
        let (dir, remember) = (message.ino(), Remember::Yes);
        let made = self
            .fs
            .create_unnamed_remember(dir, &node, linkable, remember);
        self.opened(made, what.flags, reply);
        Ok(())
    }

    /// Answers who has made a file and opened it.
    fn opened(&self, made: Result<Attr, FsError>, flags: u32, reply: Reply) {
        match made {
            Ok(attr) => {
                let entry: EntryOut = self.shown.entry(&attr);
                let open = self.open_out(attr.ino, flags);
                reply.parts(&[entry.as_bytes(), open.as_bytes()]);
            }
            Err(error) => reply.error(error),
        }
    }
}
