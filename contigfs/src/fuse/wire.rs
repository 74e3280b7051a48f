//! The messages of `linux/fuse.h`, protocol 7.37 to 7.45: what ContigFS takes and answers. Fields are in the byte order of
//! the machine.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol.
pub(super) const MAJOR: u32 = 7;
/// Minor version that this speaks; the kernel falls back to it if it speaks a newer one.
pub(super) const MINOR: u32 = 45;
/// Oldest minor version of the kernel (Linux 6.1): all since have the long form of `SETXATTR`.
pub(super) const MINOR_MIN: u32 = 37;

macro_rules! opcodes {
    ($($name:ident = $code:literal,)*) => {
        /// What the kernel asks for (`enum fuse_opcode`).
        pub(super) mod opcode {
            $(pub(in crate::fuse) const $name: u32 = $code;)*

            /// All of them, with their names.
            pub(in crate::fuse) const ALL: &[(u32, &str)] = &[$(($code, stringify!($name)),)*];
        }
    };
}

opcodes! {
    LOOKUP = 1,
    FORGET = 2,
    GETATTR = 3,
    SETATTR = 4,
    READLINK = 5,
    SYMLINK = 6,
    MKNOD = 8,
    MKDIR = 9,
    UNLINK = 10,
    RMDIR = 11,
    RENAME = 12,
    LINK = 13,
    OPEN = 14,
    READ = 15,
    WRITE = 16,
    STATFS = 17,
    RELEASE = 18,
    FSYNC = 20,
    SETXATTR = 21,
    GETXATTR = 22,
    LISTXATTR = 23,
    REMOVEXATTR = 24,
    FLUSH = 25,
    INIT = 26,
    OPENDIR = 27,
    READDIR = 28,
    RELEASEDIR = 29,
    FSYNCDIR = 30,
    CREATE = 35,
    DESTROY = 38,
    IOCTL = 39,
    BATCH_FORGET = 42,
    FALLOCATE = 43,
    READDIRPLUS = 44,
    RENAME2 = 45,
    LSEEK = 46,
    COPY_FILE_RANGE = 47,
    SYNCFS = 50,
    TMPFILE = 51,
    STATX = 52,
}

/// What the two sides can do (`FUSE_*` flags of `INIT`); the upper half is `flags2`.
pub(super) mod feature {
    pub(in crate::fuse) const ASYNC_READ: u64 = 1;
    pub(in crate::fuse) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(in crate::fuse) const BIG_WRITES: u64 = 1 << 5;
    pub(in crate::fuse) const DONT_MASK: u64 = 1 << 6;
    pub(in crate::fuse) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(in crate::fuse) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(in crate::fuse) const ASYNC_DIO: u64 = 1 << 15;
    pub(in crate::fuse) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(in crate::fuse) const POSIX_ACL: u64 = 1 << 20;
    pub(in crate::fuse) const MAX_PAGES: u64 = 1 << 22;
    pub(in crate::fuse) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(in crate::fuse) const SETXATTR_EXT: u64 = 1 << 29;
    pub(in crate::fuse) const INIT_EXT: u64 = 1 << 30;
    pub(in crate::fuse) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(in crate::fuse) const PASSTHROUGH: u64 = 1 << 37;
    pub(in crate::fuse) const OVER_IO_URING: u64 = 1 << 41;
}

/// `FOPEN_DIRECT_IO`.
pub(super) const OPEN_DIRECT_IO: u32 = 1;
/// `FOPEN_NOFLUSH`: nothing is asked when a descriptor is closed.
pub(super) const OPEN_NO_FLUSH: u32 = 1 << 5;
/// `FOPEN_PASSTHROUGH`: what is mapped is the file that `OpenOut::backing_id` names.
pub(super) const OPEN_PASSTHROUGH: u32 = 1 << 7;
/// `FOPEN_PARALLEL_DIRECT_WRITES`.
pub(super) const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
/// `FUSE_READ_LOCKOWNER`: a program reads; without it, the page cache.
pub(super) const READ_LOCKOWNER: u32 = 1 << 1;
/// `FUSE_WRITE_CACHE`: the page cache writes back.
pub(super) const WRITE_CACHE: u32 = 1;
/// `FUSE_WRITE_KILL_SUIDGID`.
pub(super) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `FUSE_FSYNC_FDATASYNC`.
pub(super) const FSYNC_DATA: u32 = 1;
/// `FUSE_SETXATTR_ACL_KILL_SGID`.
pub(super) const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// Code of the notification `FUSE_NOTIFY_INVAL_INODE`.
pub(super) const NOTIFY_INVAL_INODE: i32 = 2;
/// Code of the notification `FUSE_NOTIFY_INVAL_ENTRY`.
pub(super) const NOTIFY_INVAL_ENTRY: i32 = 3;

/// `FUSE_IO_URING_CMD_REGISTER`.
pub(super) const RING_REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
pub(super) const RING_COMMIT_AND_FETCH: u32 = 2;

/// Which fields of a [`SetattrIn`] count (`FATTR_*`).
pub(super) mod set {
    pub(in crate::fuse) const MODE: u32 = 1;
    pub(in crate::fuse) const UID: u32 = 1 << 1;
    pub(in crate::fuse) const GID: u32 = 1 << 2;
    pub(in crate::fuse) const SIZE: u32 = 1 << 3;
    pub(in crate::fuse) const ATIME: u32 = 1 << 4;
    pub(in crate::fuse) const MTIME: u32 = 1 << 5;
    /// Asked by way of an open file.
    pub(in crate::fuse) const FH: u32 = 1 << 6;
    pub(in crate::fuse) const ATIME_NOW: u32 = 1 << 7;
    pub(in crate::fuse) const MTIME_NOW: u32 = 1 << 8;
}

/// Defines messages, and asserts their sizes.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident: $size:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
            #[repr(C)]
            pub(super) struct $name {
                $(pub(super) $field: $type,)*
            }
            const _: () = assert!(size_of::<$name>() == $size);
        )*
    };
}

messages! {
    /// Begins every request.
    InHeader: 40 {
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        total_extlen: u16,
        padding: u16,
    }
    /// Begins every answer and notification.
    OutHeader: 16 {
        len: u32,
        error: i32,
        unique: u64,
    }
    /// The first 16 bytes of `INIT`, which every kernel sends.
    InitIn: 16 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
    }
    /// Its answer.
    InitOut: 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }
    /// `fuse_attr`.
    AttrOut: 88 {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atime_nsec: u32,
        mtime_nsec: u32,
        ctime_nsec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }
    /// Answers what asks for attributes (`fuse_attr_out`).
    AttrReply: 104 {
        valid: u64,
        valid_nsec: u32,
        dummy: u32,
        attr: AttrOut,
    }
    /// Answers what finds or makes a name (`fuse_entry_out`).
    EntryOut: 128 {
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: AttrOut,
    }
    /// `FORGET`.
    ForgetIn: 8 {
        lookups: u64,
    }
    /// `BATCH_FORGET`; so many `ForgetOne` follow.
    BatchForgetIn: 8 {
        count: u32,
        dummy: u32,
    }
    /// `fuse_forget_one`.
    ForgetOne: 16 {
        nodeid: u64,
        lookups: u64,
    }
    /// `SETATTR`.
    SetattrIn: 88 {
        valid: u32,
        padding: u32,
        fh: u64,
        size: u64,
        lock_owner: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atime_nsec: u32,
        mtime_nsec: u32,
        ctime_nsec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }
    /// `STATX`.
    StatxIn: 24 {
        getattr_flags: u32,
        reserved: u32,
        fh: u64,
        sx_flags: u32,
        sx_mask: u32,
    }
    /// `fuse_sx_time`.
    StatxTime: 16 {
        secs: i64,
        nanos: u32,
        reserved: i32,
    }
    /// `fuse_statx_out`.
    StatxOut: 288 {
        attr_valid: u64,
        attr_valid_nsec: u32,
        flags: u32,
        spare: [u64; 2],
        mask: u32,
        blksize: u32,
        attributes: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        spare0: u16,
        ino: u64,
        size: u64,
        blocks: u64,
        attributes_mask: u64,
        atime: StatxTime,
        btime: StatxTime,
        ctime: StatxTime,
        mtime: StatxTime,
        rdev_major: u32,
        rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        spare2: [u64; 14],
    }
    /// `MKNOD`; the name follows.
    MknodIn: 16 {
        mode: u32,
        rdev: u32,
        umask: u32,
        padding: u32,
    }
    /// `MKDIR`; the name follows.
    MkdirIn: 8 {
        mode: u32,
        umask: u32,
    }
    /// `RENAME`; both names follow.
    RenameIn: 8 {
        newdir: u64,
    }
    /// `RENAME2`; both names follow.
    Rename2In: 16 {
        newdir: u64,
        flags: u32,
        padding: u32,
    }
    /// `LINK`; the name follows.
    LinkIn: 8 {
        oldnodeid: u64,
    }
    /// `OPEN`, `OPENDIR`.
    OpenIn: 8 {
        flags: u32,
        open_flags: u32,
    }
    /// Their answer.
    OpenOut: 16 {
        fh: u64,
        open_flags: u32,
        backing_id: i32,
    }
    /// `RELEASE`, `RELEASEDIR`.
    ReleaseIn: 24 {
        fh: u64,
        flags: u32,
        release_flags: u32,
        lock_owner: u64,
    }
    /// `CREATE`, `TMPFILE`; the name follows. Answered with `EntryOut` and `OpenOut`.
    CreateIn: 16 {
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    }
    /// `READ`, `READDIR`, `READDIRPLUS`.
    ReadIn: 40 {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    /// `WRITE`; the data follow.
    WriteIn: 40 {
        fh: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    /// Answers `WRITE` and `COPY_FILE_RANGE`.
    WriteOut: 8 {
        size: u32,
        padding: u32,
    }
    /// Answers `STATFS` (`fuse_kstatfs`).
    StatfsOut: 80 {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }
    /// `FSYNC`, `FSYNCDIR`.
    FsyncIn: 16 {
        fh: u64,
        fsync_flags: u32,
        padding: u32,
    }
    /// `SETXATTR`; name and value follow.
    SetxattrIn: 8 {
        size: u32,
        flags: u32,
    }
    /// What comes between if `SETXATTR_EXT` was agreed on.
    SetxattrExt: 8 {
        setxattr_flags: u32,
        padding: u32,
    }
    /// `GETXATTR` (the name follows), `LISTXATTR`; their answer if the size is 0.
    Getxattr: 8 {
        size: u32,
        padding: u32,
    }
    /// `IOCTL`; its data follow.
    IoctlIn: 32 {
        fh: u64,
        flags: u32,
        cmd: u32,
        arg: u64,
        in_size: u32,
        out_size: u32,
    }
    /// Its answer; data follow.
    IoctlOut: 16 {
        result: i32,
        flags: u32,
        in_iovs: u32,
        out_iovs: u32,
    }
    /// `fuse_backing_map`: a file to be mapped in place of others.
    BackingMap: 16 {
        fd: i32,
        flags: u32,
        padding: u64,
    }
    /// `FALLOCATE`.
    FallocateIn: 32 {
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
        padding: u32,
    }
    /// `LSEEK`.
    LseekIn: 24 {
        fh: u64,
        offset: u64,
        whence: u32,
        padding: u32,
    }
    /// Its answer.
    LseekOut: 8 {
        offset: u64,
    }
    /// `COPY_FILE_RANGE`.
    CopyIn: 56 {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        flags: u64,
    }
    /// A name in a directory; the name follows, then zeros up to a multiple of eight bytes.
    Dirent: 24 {
        ino: u64,
        off: u64,
        namelen: u32,
        kind: u32,
    }
    /// `fuse_notify_inval_inode_out`.
    InvalInode: 24 {
        ino: u64,
        off: i64,
        len: i64,
    }
    /// `fuse_notify_inval_entry_out`; the name and a zero follow.
    InvalEntry: 16 {
        parent: u64,
        namelen: u32,
        flags: u32,
    }
    /// `fuse_uring_ent_in_out`.
    RingInOut: 32 {
        flags: u64,
        commit_id: u64,
        payload_size: u32,
        padding: u32,
        reserved: u64,
    }
    /// `fuse_uring_cmd_req`.
    RingCommand: 24 {
        flags: u64,
        commit_id: u64,
        queue: u16,
        padding: [u8; 6],
    }
}

/// `fuse_uring_req_header`: how a request, and its answer, lie in memory beside their payload.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct RingHeaders {
    /// Begins with an [`InHeader`], or an [`OutHeader`].
    pub(super) in_out: [u8; 128],
    /// Fixed parts of the operation.
    pub(super) operation: [u8; 128],
    pub(super) ring: RingInOut,
}
const _: () = assert!(size_of::<RingHeaders>() == 288);
