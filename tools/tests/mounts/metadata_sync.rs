//! `metadata_sync=relaxed` on a real mount (I1, I9): what is lost with the target are the last changes and none before one
//! that is there; `fsync` of anything keeps all, and so do a few seconds.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use crate::common::{Image, Target, can_mount, can_serve, flashnet};

/// A volume with a directory for its mount.
struct Place {
    image: Image,
    dir: PathBuf,
}

impl Place {
    fn mount(&self, options: &str) -> Target {
        let dir = self.dir.to_str().unwrap();
        self.image.serve(&["--mount", dir, "-o", options])
    }

    /// The target dies, and the next one is strict.
    fn kill_and_mount(&self, target: Target) -> Target {
        target.kill();
        let output = flashnet(&["fsck", "-y", self.image.path().to_str().unwrap()]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        self.mount("metadata_sync=strict")
    }

    /// Makes `count` files one after the other.
    fn make(&self, prefix: &str, count: usize) {
        for n in 0..count {
            File::create(self.name(prefix, n)).unwrap();
        }
    }

    fn name(&self, prefix: &str, n: usize) -> PathBuf {
        self.dir.join(format!("{prefix}-{n}"))
    }

    /// How many of `count` files are there: the first of them, or more are missing than a crash may take.
    fn found(&self, prefix: &str, count: usize) -> usize {
        let is_there = |n: &usize| self.name(prefix, *n).exists();
        let there = (0..count).take_while(is_there).count();
        assert_eq!((0..count).filter(is_there).count(), there, "no prefix");
        there
    }
}

#[test]
fn a_crash_takes_the_last_changes() {
    if !can_serve() || !can_mount() {
        return;
    }
    let image = Image::new("64MiB");
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let place = Place { image, dir };

    let target = place.mount("metadata_sync=relaxed");
    place.make("directory", 100);
    File::open(&place.dir).unwrap().sync_all().unwrap();
    let target = place.kill_and_mount(target);
    assert_eq!(place.found("directory", 100), 100);
    assert!(target.stop().success());

    let target = place.mount("metadata_sync=relaxed");
    let other = File::create(place.dir.join("other")).unwrap();
    place.make("file", 100);
    other.sync_data().unwrap();
    drop(other);
    place.make("late", 100);
    std::thread::sleep(Duration::from_secs(4));
    place.make("lost", 300);
    let target = place.kill_and_mount(target);
    assert_eq!(place.found("file", 100), 100);
    assert_eq!(place.found("late", 100), 100);
    // A target that had written everything at once would be strict.
    assert!(place.found("lost", 300) < 300);
    place.make("strict", 20);
    let target = place.kill_and_mount(target);
    assert_eq!(place.found("strict", 20), 20);
    assert!(target.stop().success());

    let target = place.mount("metadata_sync=relaxed");
    place.make("end", 20);
    assert!(target.stop().success());
    let target = place.mount("");
    assert_eq!(place.found("end", 20), 20);
    assert!(target.stop().success());
}

#[test]
fn it_is_named_when_it_makes_no_sense() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |options: &str| {
        let dir = dir.path().to_str().unwrap();
        let output = flashnet(&["serve", "no-such-image", "--mount", dir, "-o", options]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), message)
    };
    let (status, message) = refused("metadata_sync=lax");
    assert!(status == Some(2) && message.contains("neither strict nor relaxed"));
    let (status, message) = refused("metadata_sync=relaxed,sync");
    assert!(status == Some(2) && message.contains("contradict"));
}
