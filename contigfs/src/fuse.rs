//! The FUSE adapter: translates requests of the kernel into calls of [`Fs`](crate::Fs), and nothing else.
//!
//! Files are opened for direct I/O, so every `read` and `write` reaches the store and is coherent with remote access.
//! Mappings go through the kernel's page cache: the kernel writes dirty pages back before direct reads and on `msync`, and
//! [`PageCache`] keeps them coherent with what is stored past it (`docs/coherence.md`). Permissions are checked by the kernel, with the
//! access control lists that it asks for (`FUSE_POSIX_ACL`, which implies `default_permissions`); what new files inherit
//! is decided here, so the kernel hands the umask on (`FUSE_DONT_MASK`).
//!
//! # What the library below can not carry
//! The kernel offers requests that `fuser` does not know and refuses, so the kernel tells programs that there is no such
//! thing: `FUSE_TMPFILE` (`O_TMPFILE` answers `EOPNOTSUPP`; [`Fs::create_unnamed`](crate::Fs::create_unnamed) is what it
//! would call) and `FUSE_STATX` (`statx` shows no birth time; [`Attr::btime`](crate::Attr::btime) has it). A time of
//! -2^63 seconds (`utimensat`) overflows in it, which ends the thread that serves the request.
//!
//! # Locks
//! Record locks, open-file-description locks and `flock` are the kernel's own: nobody but programs on this mount takes
//! any, so none is announced (`FUSE_POSIX_LOCKS`, `FUSE_FLOCK_LOCKS`).
//!
//! # Handles and numbers
//! The handle of an open file is its inode number: all state of an open file is the inode's. Each number told to the
//! kernel (lookup, create, ...) is counted in [`Fs`](crate::Fs) and kept from reuse until the kernel has forgotten it.

mod cache;
mod caller;
mod direct;
mod errno;
mod ioctl;
mod mount;
mod request;

pub use cache::{CacheListener, PageCache, Stale, Unheard, Window};
pub use mount::{
    MountError, MountOptions, Mounted, UnmountError, available, mount, mount_with_cache,
};
