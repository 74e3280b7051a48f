//! Mounting by mount(2) itself, which root can do without the helper of ordinary users.
//!
//! umount(8) finds the helper of a file system by the type that is set here.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::mount::MsFlags;

use super::block::{self, BlockDevice};
use super::device::Device;
use super::mount::MountOptions;
use crate::fs::AtimePolicy;

/// Type in the mount table.
const TYPE: &str = "fuse.contigfs";
/// Type of a mount on a block device.
const BLOCK_TYPE: &str = "fuseblk.contigfs";

/// `MS_NOSYMFOLLOW` of mount(2), which `nix` does not know.
pub const NOSYMFOLLOW: MsFlags = MsFlags::from_bits_retain(256);

/// Mounts on `dir`; whoever gets the answer serves it.
pub(super) fn attach(
    dir: &Path,
    options: &MountOptions,
    atime: AtimePolicy,
) -> io::Result<OwnedFd> {
    let root_mode = File::open(dir)?.metadata()?.permissions().mode();
    let device = Device::open()?;
    let mut data = format!(
        "fd={},rootmode={root_mode:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        nix::unistd::getuid(),
        nix::unistd::getgid()
    );
    if options.allow_other.unwrap_or(true) {
        data.push_str(",allow_other");
    }
    let block = options.syncfs.as_deref().map(BlockDevice::over);
    let block = block.transpose()?;
    let (source, kind) = match &block {
        Some(block) => (block.path(), BLOCK_TYPE),
        None => (Path::new(&options.name), TYPE),
    };
    if block.is_some() {
        data.push_str(&format!(",blksize={}", block::BYTES));
    }
    nix::mount::mount(
        Some(source),
        dir,
        Some(kind),
        flags(options, atime),
        Some(data.as_str()),
    )?;
    Ok(device.into())
}

fn flags(options: &MountOptions, atime: AtimePolicy) -> MsFlags {
    let atime = match atime {
        AtimePolicy::Relative => MsFlags::MS_RELATIME,
        AtimePolicy::Strict => MsFlags::MS_STRICTATIME,
        AtimePolicy::Never => MsFlags::MS_NOATIME,
    };
    let others = [
        (options.read_only, MsFlags::MS_RDONLY),
        (!options.suid.unwrap_or(true), MsFlags::MS_NOSUID),
        (!options.dev.unwrap_or(true), MsFlags::MS_NODEV),
        (!options.exec, MsFlags::MS_NOEXEC),
        (options.sync, MsFlags::MS_SYNCHRONOUS),
        (!options.directory_atimes, MsFlags::MS_NODIRATIME),
        (!options.follow_links, NOSYMFOLLOW),
    ];
    let others = others.into_iter().filter(|(wanted, _)| *wanted);
    others.fold(atime, |flags, (_, flag)| flags | flag)
}
