//! Mounting and unmounting, with errors that say what is missing.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::adapter::{Adapter, FEATURES, WithSnapshots};
use super::attr::ShownOwner;
use super::cache::{PageCache, Recaller, Unheard};
use super::gate::Gate;
use super::passthrough::{Looker, Passthrough, SharePages};
use super::requests::Requests;
use super::session::{Attached, Notifier, Serve, Session};
use super::table::MountEntry;
use super::wire::feature;
use super::{device, direct, helper, ring};
use crate::error::FsError;
use crate::fs::{AtimePolicy, Fs};
use crate::inode::InodeNo;
use crate::snapshot::Sweeper;
use crate::store::BlockStore;

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Source shown in the mount table.
    pub name: String,
    /// Users other than the one who mounts may enter; `None`: if it is root who mounts.
    pub allow_other: Option<bool>,
    /// Nothing can be changed through the mount, and reading leaves no trace. What a crash left half done was ended when
    /// the volume was opened.
    pub read_only: bool,
    /// When reading renews access times.
    pub atime: AtimePolicy,
    /// Reading directories renews theirs, too.
    pub directory_atimes: bool,
    /// Honour setuid bits and capabilities of files; `None`: if it is root who mounts.
    pub suid: Option<bool>,
    /// Honour device files; `None`: if it is root who mounts.
    pub dev: Option<bool>,
    /// Symbolic links on it are followed.
    pub follow_links: bool,
    /// Programs can be run from it.
    pub exec: bool,
    /// Every write is durable when it returns, as with `O_SYNC`.
    pub sync: bool,
    /// All files appear to be owned by this user. What is on media stays as it is, and so does who owns new files.
    pub uid: Option<u32>,
    /// The same for the group.
    pub gid: Option<u32>,
    /// Threads that serve the kernel; each waits for the media when its request does. Fewer do less at once; more are
    /// slower one by one, because the kernel wakes the one that has slept longest.
    pub threads: usize,
    /// Which files share their pages with those who map them, if the kernel lets this process do so (it takes
    /// `CAP_SYS_ADMIN`) and there is something to be changed; how often it is looked for what mappings have stored.
    pub share: SharePages,
    /// Time between two looks.
    pub share_scan: Duration,
    /// Requests come through io_uring if the kernel offers it; see [`threads_max`](Self::threads_max).
    pub rings: bool,
    /// Device or image of the volume, if the kernel is to tell of `sync` and `syncfs`: the mount is then on a loop device, which
    /// is its source in the mount table, and takes root.
    pub syncfs: Option<PathBuf>,
    /// Where remote programs can use the same files: the extended attribute [`TARGET_XATTR`] of all of them.
    pub target: Option<SocketAddr>,
}

/// Says where the target of a mount listens, to programs that want to tell their peers. Not stored on the volume.
pub const TARGET_XATTR: &str = "user.contigfs.target";

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            name: "contigfs".into(),
            allow_other: None,
            read_only: false,
            atime: AtimePolicy::default(),
            directory_atimes: true,
            suid: None,
            dev: None,
            follow_links: true,
            exec: true,
            sync: false,
            uid: None,
            gid: None,
            threads: 8,
            share: SharePages::default(),
            share_scan: Duration::from_secs(1),
            rings: true,
            syncfs: None,
            target: None,
        }
    }
}

impl MountOptions {
    /// Threads that may call the file system at once. Through io_uring there are some for each processor.
    pub fn threads_max(&self) -> usize {
        match self.has_rings() {
            // And the one that takes from `/dev/fuse` what does not come through rings.
            true => self.threads.max(1 + ring::threads(self.threads.max(1))),
            false => self.threads.max(1),
        }
    }

    fn has_rings(&self) -> bool {
        self.rings && ring::is_offered()
    }
}

/// Why mounting failed; each names what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point does not exist.
    #[error("mount point {0} does not exist: create the directory first")]
    NoMountPoint(PathBuf),
    /// The mount point is no directory.
    #[error("mount point {0} is not a directory")]
    NotDirectory(PathBuf),
    /// Something is mounted there already.
    #[error("{0} is in use: something is mounted there already; unmount it first (umount {0})")]
    Busy(PathBuf),
    /// A FUSE server died and left its mount behind.
    #[error("{0} is a mount whose server is gone: remove it with `umount -l {0}`")]
    DeadMount(PathBuf),
    /// The kernel has no FUSE.
    #[error("/dev/fuse does not exist: the kernel has no FUSE, or the container hides it")]
    NoDevice,
    /// It may not be opened.
    #[error(
        "/dev/fuse can not be opened: nobody mounts without that, also not with the help of fusermount3"
    )]
    ClosedDevice(#[source] io::Error),
    /// An ordinary user needs the set-user-id helper.
    #[error(
        "mounting as an ordinary user needs fusermount3: install the package fuse3, or mount as root"
    )]
    NoHelper,
    /// Not allowed.
    #[error("not allowed to mount on {path}")]
    Denied {
        /// The mount point.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Anything else.
    #[error("can not mount on {path}")]
    Other {
        /// The mount point.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why unmounting failed.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// Some process has a file open there, or its working directory.
    #[error("{0} is in use: a process has a file open there or works in it")]
    Busy(PathBuf),
    /// Something else was mounted over it, which is not this mount's to take away.
    #[error("{0} is covered by what was mounted over it: unmount that first")]
    Covered(PathBuf),
    /// Unmounted here, but not everywhere: another mount namespace, as containers have one, has a copy of the mount of its own. It
    /// is served there until it goes, or the process ends.
    #[error("{0} is unmounted, but still mounted in another mount namespace (of a container, say)")]
    Elsewhere(PathBuf),
    /// Unmounted, but not everything could be written.
    #[error("unmounted, but not everything is on media: {0}")]
    Flush(FsError),
    /// Anything else.
    #[error("can not unmount {path}: {source}")]
    Other {
        /// The mount point.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A mounted file system. Dropping it unmounts; [`unmount`](Self::unmount) does so with an answer.
pub struct Mounted {
    /// Makes everything durable, after the last request.
    sync: Box<dyn Fn() -> Result<(), FsError> + Send + Sync>,
    path: PathBuf,
    /// As the mount table has it when it is seen, if that could be read: the directory, and the file system's number.
    listed: Option<MountEntry>,
    /// Gone once unmounted.
    session: Option<Session>,
    /// What all requests go through.
    gate: Arc<Gate>,
    notifier: Notifier,
    /// Looks for what mappings have stored to shared pages; ends with the mount.
    looker: Option<Looker>,
    /// Ends with the mount.
    recaller: Option<Recaller>,
    /// Gives back what deleted snapshots hold; ends with the mount.
    sweeper: Option<Sweeper>,
}

impl fmt::Debug for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mounted")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Whether this process could mount something: says what is missing if not.
pub fn available() -> Result<(), MountError> {
    check_means(effective_uid() == 0)
}

/// Mounts a file system. Requests are served by threads of their own from now on.
pub fn mount<S: BlockStore + 'static>(
    fs: Arc<Fs<S>>,
    dir: &Path,
    options: &MountOptions,
) -> Result<Mounted, MountError> {
    mount_with_cache(fs, dir, options, PageCache::new(Box::new(Unheard)))
}

/// As [`mount`], for those who store past the mount into the files of `fs`: they ask `cache`, which serves one mount.
pub fn mount_with_cache<S: BlockStore + 'static>(
    fs: Arc<Fs<S>>,
    dir: &Path,
    options: &MountOptions,
    cache: Arc<PageCache>,
) -> Result<Mounted, MountError> {
    let root = effective_uid() == 0;
    check_mount_point(dir)?;
    check_means(root)?;
    let atime = match options.read_only {
        true => AtimePolicy::Never,
        false => options.atime,
    };
    fs.set_atime_policy(atime);
    fs.set_directory_atimes(options.directory_atimes);
    let shown = ShownOwner {
        uid: options.uid,
        gid: options.gid,
        ..ShownOwner::default()
    };
    let shares = options.share != SharePages::Never && !options.read_only;
    let features = FEATURES | if shares { feature::PASSTHROUGH } else { 0 };
    let serve = |device, features| {
        let served = Attached::negotiate(device, features).and_then(|attached| {
            let features = attached.features;
            let passthrough = match shares {
                true => share(&fs, &attached, options.share),
                false => None,
            };
            let adapter = Adapter::new(
                Arc::clone(&fs),
                shown,
                Arc::clone(&cache),
                passthrough.clone(),
                features,
                options.target,
                options.read_only,
            );
            let adapter = adapter.on_block_device(options.syncfs.is_some());
            let adapter = WithSnapshots::new(adapter, Arc::clone(&fs), shown, options.read_only);
            let gate = Arc::new(Gate::new(Arc::new(adapter)));
            let server = Arc::clone(&gate) as Arc<dyn Serve>;
            let session = attached.serve(server, options.threads.max(1))?;
            let looker =
                passthrough.map(|passthrough| Looker::start(passthrough, options.share_scan));
            Ok((session, gate, looker.transpose()?))
        });
        served.inspect_err(|_nobody_serves_it| drop(try_unmount(dir)))
    };
    let spot = dir.canonicalize();
    let device = attach(dir, options, atime).map_err(|error| explain(dir, error))?;
    let served = match options.has_rings() {
        true => serve(device, features | feature::OVER_IO_URING).or_else(|error| {
            tracing::info!(%error, "requests do not come through io_uring");
            serve(attach(dir, options, atime)?, features)
        }),
        false => serve(device, features),
    };
    let (session, gate, looker) = served.map_err(|error| explain(dir, error))?;
    let (notifier, kernel) = (session.notifier(), session.notifier());
    let names = session.notifier();
    let forget_name = Arc::new(move |parent, name: &_| names.inval_entry(parent, name));
    let recaller = Recaller::start(cache, forget_name, move |ino, bytes| {
        kernel.inval_inode(ino, bytes.start, bytes.end - bytes.start)
    });
    let sweeper = match fs.has_snapshots() && !options.read_only {
        true => Some(Sweeper::start(Arc::clone(&fs)).map_err(|error| explain(dir, error))?),
        false => None,
    };
    let mut mounted = Mounted {
        listed: spot.ok().and_then(|dir| MountEntry::on(&dir).ok()?),
        sweeper,
        sync: Box::new(move || fs.sync_all()),
        path: dir.to_owned(),
        session: Some(session),
        gate,
        notifier,
        looker,
        recaller: None,
    };
    mounted.recaller = Some(recaller.map_err(|error| explain(dir, error))?);
    Ok(mounted)
}

/// What lets files share their pages with mappings; says why not, if it is not to be.
fn share<S: BlockStore + 'static>(
    fs: &Arc<Fs<S>>,
    attached: &Attached,
    which: SharePages,
) -> Option<Arc<Passthrough<S>>> {
    let needed = feature::PASSTHROUGH | feature::DIRECT_IO_ALLOW_MMAP;
    if attached.features & needed != needed {
        tracing::warn!(
            "pages are not shared with mappings: the kernel cannot (it takes Linux 6.9, with FUSE_PASSTHROUGH); \
             mappings are coherent as they are without"
        );
        return None;
    }
    let device = Arc::clone(&attached.device);
    match Passthrough::new(Arc::clone(fs), device, which) {
        Ok(passthrough) => Some(Arc::new(passthrough)),
        Err(error) => {
            tracing::warn!(
                %error,
                "pages are not shared with mappings, which takes CAP_SYS_ADMIN; mappings are coherent as they are without"
            );
            None
        }
    }
}

/// Mounts on `dir`; whoever gets the answer serves it.
fn attach(dir: &Path, options: &MountOptions, atime: AtimePolicy) -> io::Result<OwnedFd> {
    match direct::attach(dir, options, atime) {
        // Also root, where it has lost its powers.
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied
                && options.syncfs.is_none()
                && helper::is_installed() =>
        {
            helper::attach(dir, options, atime)
        }
        attached => attached,
    }
}

impl Mounted {
    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The requests of the kernel.
    pub fn requests(&self) -> Requests {
        self.gate.requests()
    }

    /// Tells the kernel that bytes of a file were changed behind its back: mapped pages are fetched anew. Dirty pages
    /// of the range are written back first. Does nothing for files the kernel does not know.
    ///
    /// The write-back comes in as requests of its own, so this must not be called while holding anything they need.
    pub fn invalidate(&self, ino: InodeNo, offset: u64, len: u64) -> io::Result<()> {
        self.notifier.inval_inode(ino, offset, len)
    }

    /// Whether somebody has unmounted it from outside (`umount`).
    pub fn is_finished(&self) -> bool {
        self.session.as_ref().is_none_or(Session::is_finished)
    }

    /// Whether something else was mounted over this: unmounting by the directory's name would take that away.
    fn is_covered(&self) -> bool {
        let Some(own) = &self.listed else {
            return false;
        };
        let seen = MountEntry::on(&own.dir);
        seen.is_ok_and(|seen| seen.is_some_and(|seen| seen.device != own.device))
    }

    /// Unmounts and makes everything durable. Does nothing when that was done before.
    ///
    /// # Errors
    /// When the mount is busy, or covered, it stays, and this may be called again.
    pub fn unmount(&mut self) -> Result<(), UnmountError> {
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        let other = |path: &Path, source| UnmountError::Other {
            path: path.to_owned(),
            source,
        };
        if !session.is_finished() && self.is_covered() {
            self.session = Some(session);
            return Err(UnmountError::Covered(self.path.clone()));
        }
        if !session.is_finished()
            && let Err(error) = try_unmount(&self.path)
            // Somebody else may just have done it.
            && !session.is_finished()
        {
            self.session = Some(session);
            return Err(match error.kind() {
                io::ErrorKind::ResourceBusy => UnmountError::Busy(self.path.clone()),
                _ => other(&self.path, error),
            });
        }
        if !session.ends_within(ELSEWHERE) {
            self.session = Some(session);
            return Err(UnmountError::Elsewhere(self.path.clone()));
        }
        let joined = session.join();
        self.recaller = None;
        self.looker = None;
        self.sweeper = None;
        // Whatever became of the threads.
        let synced = (self.sync)().map_err(UnmountError::Flush);
        joined.map_err(|source| other(&self.path, source))?;
        synced
    }

    /// Takes a mount that is in use away from its users: `detach` takes it out of sight, what they have stored to mappings is
    /// written back, and from then on they are told that there is nobody (`ENOTCONN`). Everything that they were answered before
    /// is in the file system when this returns, to be made durable.
    ///
    /// # Errors
    /// Those of `detach`; it is done all the same.
    pub fn take_away(self, detach: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        let detached = detach(&self.path);
        self.refuse();
        detached
    }

    /// As [`take_away`](Self::take_away), of a mount that is where nobody can detach it.
    pub fn refuse(mut self) {
        let recaller = self.recaller.as_ref();
        if recaller.is_some_and(|recaller| !recaller.take_all_back(WRITE_BACK)) {
            tracing::warn!("what was stored to mappings may not have been written back");
        }
        if !self.gate.close() {
            tracing::warn!("requests of a mount that was taken away are still under way");
        }
        // These change things by themselves.
        self.sweeper = None;
        self.looker = None;
        // Its threads tell those who still hold something of it for as long as this process lives.
        std::mem::forget(self);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            tracing::warn!(%error, "left mounted");
        }
    }
}

/// Nobody has a file open when a mount has been taken away, so there is little left to serve, and then the kernel says that there is
/// nobody any more: at once, unless the mount is elsewhere as well.
const ELSEWHERE: std::time::Duration = std::time::Duration::from_secs(5);
/// How long what was stored to mappings may take to be written back.
const WRITE_BACK: Duration = Duration::from_secs(10);
/// A process that just closed its last file may still count for a moment.
const BUSY_RETRIES: u32 = 20;
const BUSY_PAUSE: std::time::Duration = std::time::Duration::from_millis(25);

fn try_unmount(path: &Path) -> io::Result<()> {
    let mut tries = 0;
    loop {
        let result = match nix::mount::umount(path) {
            // An ordinary user.
            Err(nix::Error::EPERM) => helper::unmount_by_helper(path, false),
            result => result.map_err(io::Error::from),
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < BUSY_RETRIES => {
                tries += 1;
                std::thread::sleep(BUSY_PAUSE);
            }
            // Unmounted from outside in the meantime.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => {
                return Ok(());
            }
            result => return result,
        }
    }
}

fn effective_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

fn check_mount_point(dir: &Path) -> Result<(), MountError> {
    let path = || dir.to_owned();
    let metadata = std::fs::metadata(dir).map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT) => MountError::NoMountPoint(path()),
        Some(libc::ENOTCONN | libc::ECONNABORTED) => MountError::DeadMount(path()),
        Some(libc::EACCES | libc::EPERM) => MountError::Denied {
            path: path(),
            source,
        },
        _ => MountError::Other {
            path: path(),
            source,
        },
    })?;
    if !metadata.is_dir() {
        return Err(MountError::NotDirectory(path()));
    }
    if is_mount_point(dir) {
        Err(MountError::Busy(path()))
    } else {
        Ok(())
    }
}

/// Whether the mount table lists the directory.
fn is_mount_point(dir: &Path) -> bool {
    let listed = dir.canonicalize().and_then(|dir| MountEntry::on(&dir));
    listed.is_ok_and(|listed| listed.is_some())
}

fn check_means(root: bool) -> Result<(), MountError> {
    if !Path::new(device::PATH).exists() {
        return Err(MountError::NoDevice);
    }
    // The helper opens it as who has called it.
    device::Device::open().map_err(MountError::ClosedDevice)?;
    match root || helper::is_installed() {
        true => Ok(()),
        false => Err(MountError::NoHelper),
    }
}

fn explain(dir: &Path, source: io::Error) -> MountError {
    let path = dir.to_owned();
    match source.kind() {
        io::ErrorKind::PermissionDenied => MountError::Denied { path, source },
        io::ErrorKind::ResourceBusy => MountError::Busy(path),
        _ => MountError::Other { path, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_impossible_mount_points_are_named() {
        let missing = check_mount_point(Path::new("/nonexistent/mount/point"));
        assert!(
            matches!(missing, Err(MountError::NoMountPoint(_))),
            "{missing:?}"
        );
        let file = check_mount_point(Path::new("/proc/version"));
        assert!(matches!(file, Err(MountError::NotDirectory(_))), "{file:?}");
        let busy = check_mount_point(Path::new("/proc"));
        assert!(matches!(busy, Err(MountError::Busy(_))), "{busy:?}");
    }
}
