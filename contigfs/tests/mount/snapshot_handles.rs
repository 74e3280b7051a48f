//! Handles (name_to_handle_at(2)) of what is in snapshots: they outlast mounts, lead to the place that they are of and up from there,
//! and to nothing when their snapshot has gone.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use contigfs::fuse::{MountOptions, Mounted, mount};
use contigfs::{FormatOptions, Fs};
use ftl::{Ftl, MemDevice, OpenOptions, Volume};
use support::mounted::skip;
use support::syscalls::{errno, handle, open_handle};

type Files = Arc<Fs<Arc<Volume<MemDevice>>>>;

fn open(device: MemDevice) -> Files {
    let options = OpenOptions {
        pool_frames: 1024,
        ..OpenOptions::default()
    };
    let volume = Volume::open(device, options).unwrap().0;
    Arc::new(Fs::mount(Arc::new(volume)).unwrap())
}

fn formatted() -> Files {
    let mut device = MemDevice::new(64 << 20).unwrap();
    Ftl::format(&mut device, &ftl::FormatOptions::default()).unwrap();
    let volume = Volume::open(device, OpenOptions::default()).unwrap().0;
    Fs::format(&volume, &FormatOptions::default()).unwrap();
    open(volume.into_device())
}

/// None if nothing can be mounted here, or no handle be opened; the test has been skipped.
fn mounted(files: &Files, dir: &Path) -> Option<Mounted> {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        skip("opening handles needs root");
        return None;
    }
    match mount(Arc::clone(files), dir, &MountOptions::default()) {
        Ok(mounted) => Some(mounted),
        Err(error) => {
            skip(&error.to_string());
            None
        }
    }
}

/// In another mount, in which nobody has looked up anything but `.snapshots`, the kernel goes up from a directory to that, by way of
/// the snapshot's root. (Above it goes by the names that are listed in a directory, and `.snapshots` is not.)
#[test]
fn lead_up() {
    let files = formatted();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut first) = mounted(&files, dir.path()) else {
        return;
    };
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    let snapshots = dir.path().join(".snapshots");
    fs::create_dir(snapshots.join("one")).unwrap();
    let places = ["one/a/b", "one/a", "one", ""].map(|name| snapshots.join(name));
    let handles = places.each_ref().map(|place| handle(place).unwrap());
    first.unmount().unwrap();
    for (handle, place) in handles.iter().zip(&places) {
        let Some(mut again) = mounted(&files, dir.path()) else {
            return;
        };
        assert!(fs::metadata(&snapshots).is_ok());
        let found = open_handle(dir.path(), handle, libc::O_RDONLY).unwrap();
        let path = fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).unwrap();
        assert_eq!(path.components().as_path(), place.components().as_path());
        drop(found);
        again.unmount().unwrap();
    }
}

/// Numbers of snapshots come again when the volume has been opened anew: what a handle is of that was made before is not found in
/// the other snapshot.
#[test]
fn end_with_their_snapshot() {
    let files = formatted();
    let dir = tempfile::tempdir().unwrap();
    let Some(mut first) = mounted(&files, dir.path()) else {
        return;
    };
    let (file, snapshots) = (dir.path().join("file"), dir.path().join(".snapshots"));
    fs::write(&file, "then").unwrap();
    fs::create_dir(snapshots.join("one")).unwrap();
    let then = handle(&snapshots.join("one/file")).unwrap();
    assert!(open_handle(dir.path(), &then, libc::O_RDONLY).is_ok());
    let number = files.find_snapshot(b"one").unwrap().number;
    fs::remove_dir(snapshots.join("one")).unwrap();
    while files.sweep_snapshots().unwrap() {}
    first.unmount().unwrap();
    drop(first);
    let volume = Arc::clone(files.store());
    drop(files);
    let device = Arc::into_inner(volume).expect("nobody else has it");

    let files = open(device.into_device());
    let Some(mut second) = mounted(&files, dir.path()) else {
        return;
    };
    fs::write(&file, "now!").unwrap();
    fs::create_dir(snapshots.join("two")).unwrap();
    assert_eq!(files.find_snapshot(b"two").unwrap().number, number);
    let stale = open_handle(dir.path(), &then, libc::O_RDONLY);
    assert_eq!(errno(stale), libc::ESTALE);
    let now = handle(&snapshots.join("two/file")).unwrap();
    assert!(open_handle(dir.path(), &now, libc::O_RDONLY).is_ok());
    second.unmount().unwrap();
}
