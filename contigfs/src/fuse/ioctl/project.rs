//! Project ids and the flag of inheriting them, as `chattr` and `lsattr` of e2fsprogs and `xfs_quota` ask for them.
//!
//! What is made in a directory of a project always belongs to the project, so directories of one show the flag, and those
//! of none do not.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{FSGETXATTR, FSSETXATTR, GETFLAGS};
use crate::fs::Fs;
use crate::inode::{FileKind, InodeNo, ProjectId};
use crate::store::BlockStore;

/// `FS_PROJINHERIT_FL`
const INHERIT_FLAG: u32 = 0x2000_0000;
/// `FS_XFLAG_PROJINHERIT`
const INHERIT_XFLAG: u32 = 0x200;

/// `struct fsxattr` of `linux/fs.h`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy, Debug, Default)]
#[repr(C)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    padding: [u8; 8],
}
const _: () = assert!(size_of::<FsXattr>() == 28);

/// Answers a request.
///
/// # Errors
/// Errno: `EPERM` for whoever does not own the inode; `EOPNOTSUPP` for flags that there are none of; `EDQUOT` when the
/// project has no room; `EBUSY` for the top of a project with limits.
pub(in crate::fuse) fn serve<S: BlockStore>(
    fs: &Fs<S>,
    ino: InodeNo,
    uid: u32,
    command: u32,
    argument: &[u8],
) -> Result<Vec<u8>, i32> {
    let attr = fs.attr(ino).map_err(|error| error.errno())?;
    let project = fs.project(ino).map_err(|error| error.errno())?;
    let inherits = project.is_some() && attr.kind == FileKind::Directory;
    let flags = if inherits { INHERIT_FLAG } else { 0 };
    let shown = FsXattr {
        xflags: if inherits { INHERIT_XFLAG } else { 0 },
        projid: project.map_or(0, ProjectId::get),
        ..FsXattr::default()
    };
    match command {
        GETFLAGS => return Ok(flags.as_bytes().to_vec()),
        FSGETXATTR => return Ok(shown.as_bytes().to_vec()),
        _ => {}
    }
    // The kernel has seen to that, and who asks past it is no better.
    if uid != 0 && uid != attr.uid {
        return Err(libc::EPERM);
    }
    if command != FSSETXATTR {
        let (wanted, _) = u32::read_from_prefix(argument).map_err(|_| libc::EINVAL)?;
        // The project decides, so the flag alone changes nothing.
        return match wanted & !INHERIT_FLAG {
            0 => Ok(Vec::new()),
            _ => Err(libc::EOPNOTSUPP),
        };
    }
    let wanted = FsXattr::read_from_bytes(argument).map_err(|_| libc::EINVAL)?;
    if wanted.xflags & !INHERIT_XFLAG != 0 || wanted.extsize != 0 || wanted.cowextsize != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    fs.set_project(ino, ProjectId::new(wanted.projid))
        .map_err(|error| error.errno())?;
    Ok(Vec::new())
}
