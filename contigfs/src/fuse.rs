//! The FUSE adapter: translates requests of the kernel into calls of [`Fs`](crate::Fs), and nothing else.
//!
//! Files are opened for direct I/O, so every `read` and `write` reaches the store and is coherent with remote access.
//! Mappings go through the kernel's page cache: the kernel writes dirty pages back before direct reads and on `msync`, and
//! [`PageCache`] keeps them coherent with what is stored past it; or files share their pages with those who map them
//! ([`SharePages`]), and there is nothing to be kept (`docs/coherence.md`). Permissions are checked by the kernel, with the
//! access control lists that it asks for (`FUSE_POSIX_ACL`, which implies `default_permissions`); what new files inherit
//! is decided here, so the kernel hands the umask on (`FUSE_DONT_MASK`).
//!
//! # Layers
//! ```text
//!   mount ── direct | helper ──► Attached ── negotiate, serve ──► Session: threads, each with a Device
//!   Device ── Message ──► Adapter ── Fs ──► Reply ──► Device, also from other threads
//! ```
//! The protocol is spoken here (`wire`, `message`, `reply`, `session`) rather than by a library, because those that there
//! are lack requests that programs need: files without a name (`FUSE_TMPFILE`), times of birth (`FUSE_STATX`), and what the
//! kernel says of the setgid bit with an access control list.
//!
//! # Locks
//! Record locks, open-file-description locks and `flock` are the kernel's own: nobody but programs on this mount takes
//! any, so none is announced (`FUSE_POSIX_LOCKS`, `FUSE_FLOCK_LOCKS`).
//!
//! # Handles and numbers
//! The handle of an open file is its inode number: all state of an open file is the inode's. Each number told to the
//! kernel (lookup, create, ...) is counted in [`Fs`](crate::Fs) and kept from reuse until the kernel has forgotten it.

mod adapter;
mod appends;
mod attr;
mod block;
mod cache;
mod caller;
mod complaints;
mod device;
mod direct;
mod gate;
mod helper;
mod ioctl;
mod message;
mod mount;
mod passthrough;
mod reply;
mod requests;
mod ring;
mod session;
mod table;
mod wire;

pub use cache::{CacheListener, PageCache, Stale, Unheard, Window};
pub use direct::NOSYMFOLLOW;
pub use helper::unmount_by_helper;
pub use ioctl::quota::{QuotaAction, QuotaRefusal, QuotaRequest};
pub use ioctl::{GROW, GrowRequest, QUOTA};
pub use mount::{
    MountError, MountOptions, Mounted, TARGET_XATTR, UnmountError, available, mount,
    mount_with_cache,
};
pub use passthrough::{SHARE_ATTRIBUTE, SharePages};
pub use requests::Requests;
pub use table::MountEntry;
