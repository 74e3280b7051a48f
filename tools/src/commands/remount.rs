//! `mount -o remount`: other flags for a volume that is mounted, those that the kernel keeps.

use std::path::Path;

use anyhow::{Context, Result, bail};
use contigfs::AtimePolicy;
use contigfs::fuse::NOSYMFOLLOW;
use nix::mount::MsFlags;
use nix::sys::statvfs::{FsFlags, statvfs};

use super::umount::source;
use crate::cli::mount::MountOptions;

/// Gives the mount on `dir` the flags that `said` mentions; the others stay.
pub(super) fn run(dir: &Path, said: &MountOptions) -> Result<()> {
    if source(dir)?.is_none() {
        bail!("no volume is mounted on {}", dir.display());
    }
    let found = || format!("cannot look at {}", dir.display());
    let now = statvfs(dir).with_context(found)?.flags();
    // mount(8) repeats what the mount table says, so a policy is no mistake as long as it is the same.
    let directories = !now.contains(FsFlags::ST_NODIRATIME);
    if said.atime.is_some_and(|atime| atime != policy(now))
        || said
            .directory_atimes
            .is_some_and(|renewed| renewed != directories)
    {
        bail!(
            "when access times are renewed is up to the target: unmount {} and mount it again",
            dir.display()
        );
    }
    nix::mount::mount(
        None::<&str>,
        dir,
        None::<&str>,
        MsFlags::MS_REMOUNT | flags(now, said),
        None::<&str>,
    )
    .with_context(|| format!("cannot remount {}", dir.display()))
}

fn policy(now: FsFlags) -> AtimePolicy {
    if now.contains(FsFlags::ST_NOATIME) {
        AtimePolicy::Never
    } else if now.contains(FsFlags::ST_RELATIME) {
        AtimePolicy::Relative
    } else {
        AtimePolicy::Strict
    }
}

/// All flags of the mount: the kernel takes away those that are not repeated.
fn flags(now: FsFlags, said: &MountOptions) -> MsFlags {
    let not = |flag: Option<bool>| flag.map(|flag| !flag);
    let each = [
        (said.read_only, FsFlags::ST_RDONLY, MsFlags::MS_RDONLY),
        (not(said.suid), FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (not(said.dev), FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (not(said.exec), FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (None, FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
        (said.sync, FsFlags::ST_SYNCHRONOUS, MsFlags::MS_SYNCHRONOUS),
    ];
    let atime = match policy(now) {
        AtimePolicy::Relative => MsFlags::MS_RELATIME,
        AtimePolicy::Strict => MsFlags::MS_STRICTATIME,
        AtimePolicy::Never => MsFlags::MS_NOATIME,
    };
    // As far as the mount table goes, which mount(8) repeats.
    let links = match said.follow_links {
        Some(false) => NOSYMFOLLOW,
        _ => MsFlags::empty(),
    };
    each.into_iter()
        .filter(|(said, is_now, _)| said.unwrap_or(now.contains(*is_now)))
        .fold(atime | links, |all, (_, _, flag)| all | flag)
}
