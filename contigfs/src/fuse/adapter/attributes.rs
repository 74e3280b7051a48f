//! Requests about attributes, also extended ones, and about the file system as a whole.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use super::super::attr::set_attr;
use super::super::caller::Caller;
use super::super::message::Message;
use super::super::mount::TARGET_XATTR;
use super::super::reply::Reply;
use super::super::wire::{
    Getxattr, SETXATTR_ACL_KILL_SGID, SetattrIn, SetxattrExt, SetxattrIn, StatfsOut, set,
};
use super::{Adapter, Served};
use crate::error::FsError;
use crate::inode::{Attr, InodeNo};
use crate::store::BlockStore;
use crate::xattr::XattrMode;

impl<S: BlockStore + 'static> Adapter<S> {
    pub(super) fn getattr(&self, message: Message<'_>, reply: Reply) -> Served {
        let attr = self.told(message.ino());
        reply.with(attr, |attr| self.shown.attr_reply(&attr));
        Ok(())
    }

    pub(super) fn statx(&self, message: Message<'_>, reply: Reply) -> Served {
        let attr = self.told(message.ino());
        reply.with(attr, |attr| self.shown.statx_reply(&attr));
        Ok(())
    }

    /// Attributes for the kernel.
    fn told(&self, ino: InodeNo) -> Result<Attr, FsError> {
        let attr = self.fs.attr(ino)?;
        self.appends.told(ino, attr.size);
        Ok(attr)
    }

    pub(super) fn setattr(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let wanted: SetattrIn = message.take()?;
        let mut set = set_attr(&wanted);
        let ino = message.ino();
        let ended = match set.size {
            Some(_) => self.end_setgid(&message.header, ino),
            None => Ok(false),
        };
        if let (Ok(true), Some(perm)) = (&ended, &mut set.perm) {
            // The kernel says which permissions are left, and goes by what it knows.
            *perm &= !(libc::S_ISGID as u16);
        }
        let by_path = wanted.valid & set::FH == 0;
        let attr = ended.and_then(|_| match (self.fs.set_attr(ino, &set), &self.passthrough) {
            // A size that it can not have as long as its pages are shared: perhaps they need not be any more.
            (Err(FsError::Busy | FsError::FileTooLarge), Some(shared)) if by_path => {
                shared.end_if_closed(ino);
                self.fs.set_attr(ino, &set)
            }
            (attr, _) => attr,
        });
        if let (Ok(attr), Some(_)) = (&attr, set.size) {
            self.appends.resized(attr.ino, attr.size);
        }
        reply.with(attr, |attr| self.shown.attr_reply(&attr));
        Ok(())
    }

    pub(super) fn statfs(&self, message: &Message<'_>, reply: Reply) -> Served {
        let stat = self.fs.statfs_at(message.ino());
        let grain = ftl::GRAIN_BYTES as u32;
        reply.message(&StatfsOut {
            blocks: stat.grains,
            bfree: stat.grains_free,
            bavail: stat.grains_available,
            files: stat.inodes.saturating_add(stat.inodes_free),
            ffree: stat.inodes_free,
            bsize: grain,
            namelen: stat.name_max,
            frsize: grain,
            ..StatfsOut::default()
        });
        Ok(())
    }

    pub(super) fn setxattr(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: SetxattrIn = message.take()?;
        let more: SetxattrExt = message.take()?;
        let name = message.name()?;
        let value = message.bytes(what.size)?;
        let mode = match what.flags as i32 {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => {
                reply.errno(libc::EINVAL);
                return Ok(());
            }
        };
        // An access control list set by somebody outside of the file's group.
        let keeps_setgid = more.setxattr_flags & SETXATTR_ACL_KILL_SGID == 0;
        let set = self
            .fs
            .set_xattr_as(message.ino(), name, value, mode, keeps_setgid);
        reply.done(set);
        Ok(())
    }

    pub(super) fn getxattr(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: Getxattr = message.take()?;
        let name = message.name()?;
        if name.as_bytes() == TARGET_XATTR.as_bytes()
            && let Some(target) = &self.target
        {
            sized(reply, what.size, target.as_bytes());
            return Ok(());
        }
        match self.fs.xattr(message.ino(), name) {
            Ok(value) => sized(reply, what.size, &value),
            Err(error) => reply.error(error),
        }
        Ok(())
    }

    pub(super) fn listxattr(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: Getxattr = message.take()?;
        match self.fs.xattrs(message.ino()) {
            Ok(names) => {
                let is_trusted = |name: &OsString| name.as_bytes().starts_with(b"trusted.");
                let caller = || Caller::of(message.header.pid);
                let hides = names.iter().any(is_trusted) && !caller().sees_trusted();
                let mut list = Vec::new();
                for name in names.iter().filter(|name| !(hides && is_trusted(name))) {
                    list.extend(name.as_bytes());
                    list.push(0);
                }
                sized(reply, what.size, &list);
            }
            Err(error) => reply.error(error),
        }
        Ok(())
    }

    pub(super) fn removexattr(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let name = message.name()?;
        reply.done(self.fs.remove_xattr(message.ino(), name));
        Ok(())
    }
}

/// Answers a query of a size, or with bytes that must fit.
fn sized(reply: Reply, size: u32, bytes: &[u8]) {
    match size as usize {
        0 => reply.message(&Getxattr {
            size: bytes.len() as u32,
            padding: 0,
        }),
        size if size < bytes.len() => reply.errno(libc::ERANGE),
        _ => reply.parts(&[bytes]),
    }
}
