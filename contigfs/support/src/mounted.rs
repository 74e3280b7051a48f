//! A file system in memory, mounted for a test; and the rule for skipping.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use contigfs::fuse::{MountOptions, Mounted, UnmountError, mount};
use contigfs::{Fs, FsOptions, MemStore};
use tempfile::TempDir;

use super::{assert_clean, fresh_with};

/// Prints why a test does not run; panics when `FLASHNET_REQUIRE` says that nothing may be skipped.
pub fn skip(reason: &str) {
    let require = std::env::var("FLASHNET_REQUIRE").unwrap_or_default();
    assert!(
        !require.split(',').any(|what| what == "all"),
        "must not be skipped: {reason}"
    );
    // Not by `println`, of which nobody hears when the test passes.
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

/// Waits until something is so: what the kernel says by itself, as that a file was closed, takes its time.
pub fn until(what: &str, is: impl Fn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < patience, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A program of `$FLASHNET_TOOLS` (or its `bin`), or of the path; says why the test is skipped when there is none.
pub fn tool(program: &str) -> Option<PathBuf> {
    let tools = std::env::var_os("FLASHNET_TOOLS").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = tools
        .into_iter()
        .flat_map(|dir| [dir.join("bin"), dir])
        .chain(std::env::split_paths(&path))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file());
    if found.is_none() {
        skip(&format!(
            "there is no {program}: cargo install {program} --root DIR, and set FLASHNET_TOOLS=DIR"
        ));
    }
    found
}

/// A mounted file system that can be unmounted and mounted again.
pub struct Mount {
    pub store: Arc<MemStore>,
    fs_options: FsOptions,
    dir: TempDir,
    options: MountOptions,
    fs: Option<Arc<Fs<Arc<MemStore>>>>,
    mounted: Option<Mounted>,
}

impl Mount {
    /// Mounts, or skips the test where that is impossible.
    pub fn new(grains: u64) -> Option<Self> {
        Self::with(grains, FsOptions::default())
    }

    /// As [`new`](Self::new), with a file system that is run with options.
    pub fn with(grains: u64, options: FsOptions) -> Option<Self> {
        let (store, fs) = fresh_with(grains, &options);
        drop(fs);
        let dir = TempDir::new().unwrap();
        let mut mount = Self {
            store,
            fs_options: options,
            dir,
            options: MountOptions::default(),
            fs: None,
            mounted: None,
        };
        match mount.mount() {
            Ok(()) => Some(mount),
            Err(reason) => {
                skip(&reason);
                None
            }
        }
    }

    /// As [`new`](Self::new), for what only root can do: act as others, make devices.
    pub fn new_as_root(grains: u64) -> Option<Self> {
        let user = std::fs::metadata("/proc/self").map(|process| process.uid());
        if user.is_ok_and(|uid| uid == 0) {
            Self::new(grains)
        } else {
            skip("it needs root");
            None
        }
    }

    fn mount(&mut self) -> Result<(), String> {
        let fs = Arc::new(Fs::mount_with(Arc::clone(&self.store), &self.fs_options).unwrap());
        let mounted = mount(Arc::clone(&fs), self.dir.path(), &self.options);
        self.mounted = Some(mounted.map_err(|error| error.to_string())?);
        self.fs = Some(fs);
        Ok(())
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn fs(&self) -> &Arc<Fs<Arc<MemStore>>> {
        self.fs.as_ref().unwrap()
    }

    pub fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().unwrap()
    }

    /// One try; the mount stays when it is busy.
    pub fn try_unmount(&mut self) -> Result<(), UnmountError> {
        self.mounted.as_mut().unwrap().unmount()
    }

    /// Unmounts; what was not made durable by that is lost.
    pub fn unmount(&mut self) {
        let mut mounted = self.mounted.take().unwrap();
        mounted.unmount().unwrap();
        drop(mounted);
        self.fs = None;
        self.store = Arc::new(self.store.after_power_cut(|_| 0));
        assert_clean(&self.store);
    }

    /// Unmounts and mounts again, from what is on media.
    pub fn remount(&mut self) {
        self.unmount();
        self.mount().unwrap();
    }

    /// The same with other options, from now on.
    pub fn remount_with(&mut self, options: MountOptions) {
        self.unmount();
        self.options = options;
        self.mount().unwrap();
    }
}
