//! `resize` as people call it: a volume grows under its users, local and remote, survives the power cut that follows,
//! and shrinks again when nobody uses it; sizes are told truly by df, inspect and fsck, and nothing is lost.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{FLASHNET, Image, bad, can_mount, can_serve, flashnet, good, pattern};

const MIB: u64 = 1 << 20;

/// Bytes for files, as df has them.
fn capacity(dir: &Path) -> u64 {
    let path = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: plain numbers.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a NUL-terminated path and a place for the answer.
    let done = unsafe { libc::statvfs(path.as_ptr(), &raw mut found) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    found.f_blocks * found.f_frsize
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let arguments = [&["--json"], arguments].concat();
    serde_json::from_str(&good(&arguments)).expect("JSON")
}

/// What `mkfs` makes of so much.
fn fresh(size: &str) -> u64 {
    let image = Image::new("64MiB");
    let other = image.beside("fresh.img");
    let made = json(&[
        "mkfs",
        "--size",
        size,
        other.to_str().unwrap(),
        "--segment-size",
        "512KiB",
    ]);
    made["capacity_bytes"].as_u64().unwrap()
}

fn is_sound(image: &Path) {
    let output = flashnet(&["fsck", image.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
}

/// Files written and synced one after the other, `seed` apart from those of others, until told to end; counted.
fn write_files(dir: &Path, seed: u64, stop: &AtomicBool, written: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        let count = written.load(Ordering::Relaxed);
        let mut file = File::create(dir.join(format!("local-{}", count % 40))).unwrap();
        file.write_all(&pattern(50_000, seed + count)).unwrap();
        file.sync_all().unwrap();
        written.store(count + 1, Ordering::Relaxed);
    }
}

/// See the file.
#[test]
fn grows_in_use_and_shrinks() {
    if !can_serve() || !can_mount() {
        return;
    }
    let image = Image::new("64MiB");
    let path = image.path();
    let device = path.to_str().unwrap();
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let source = image.beside("source");
    fs::write(&source, pattern(300_000, 5)).unwrap();
    let target = image.serve(&["--mount", dir.to_str().unwrap()]);
    let small = capacity(&dir);
    let stop = AtomicBool::new(false);
    let [written, put] = [const { AtomicU64::new(0) }; 2];
    std::thread::scope(|scope| {
        let local = scope.spawn(|| write_files(&dir, 1000, &stop, &written));
        let remote = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let count = put.load(Ordering::Relaxed);
                let url = target.url(&format!("/remote-{}", count % 20));
                good(&["put", source.to_str().unwrap(), &url]);
                put.store(count + 1, Ordering::Relaxed);
            }
        });
        // Until each of them has begun and done something, unless one has failed.
        let progress = || {
            for done in [&written, &put] {
                let least = done.load(Ordering::Relaxed) + 2;
                while done.load(Ordering::Relaxed) < least
                    && !local.is_finished()
                    && !remote.is_finished()
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        };
        let mut sizes = Vec::new();
        for (place, size, mib) in [
            (dir.to_str().unwrap(), "96MiB", 96),
            // By its device, and without a size once the file is longer.
            (device, "160MiB", 160),
            (device, "", 192),
        ] {
            let arguments = ["resize", place, size];
            if size.is_empty() {
                let file = File::options().write(true).open(&path).unwrap();
                file.set_len(mib * MIB).unwrap();
            }
            let given = if size.is_empty() { 2 } else { 3 };
            progress();
            let grown = json(&arguments[..given]);
            assert_eq!(grown["device_bytes"], mib * MIB, "{grown}");
            assert_eq!(grown["capacity_bytes"], capacity(&dir), "{grown}");
            sizes.push(capacity(&dir));
        }
        assert!(sizes.is_sorted() && sizes[0] > small, "{small} {sizes:?}");
        assert_eq!(sizes[1], fresh("160MiB"), "as mkfs does it");
        // More than would have fit before.
        fs::write(dir.join("large"), pattern(2 * small as usize, 9)).unwrap();
        progress();
        stop.store(true, Ordering::Relaxed);
    });
    File::open(dir.join("large")).unwrap().sync_all().unwrap();
    let refused = bad(&["resize", dir.to_str().unwrap(), "64MiB"]);
    assert!(
        refused.contains("only be made smaller when it is not in use"),
        "{refused}"
    );
    for option in ["-P", "-M", "-n"] {
        assert!(
            bad(&["resize", option, device]).contains("unmount"),
            "{option}"
        );
    }
    let grown = capacity(&dir);
    // What was acknowledged survives the target.
    target.kill();
    let target = image.serve(&["--mount", dir.to_str().unwrap()]);
    assert_eq!(capacity(&dir), grown);
    let check = |dir: &Path| {
        assert!(fs::read(dir.join("large")).unwrap() == pattern(2 * small as usize, 9));
        assert!(fs::read(dir.join("remote-0")).unwrap() == pattern(300_000, 5));
        let last = written.load(Ordering::Relaxed) - 1;
        let file = dir.join(format!("local-{}", last % 40));
        assert!(fs::read(file).unwrap() == pattern(50_000, 1000 + last));
    };
    check(&dir);
    assert!(target.stop().success());
    is_sound(&path);

    // In use by nobody: as small as it may be, and not smaller.
    let minimum: u64 = good(&["resize", "-P", device]).trim().parse().unwrap();
    assert!(minimum > 2 * small && minimum < 192 * MIB, "{minimum}");
    let before = fs::read(&path).unwrap();
    let planned = json(&["resize", "-n", device, "160MiB"]);
    assert_eq!(planned["device_bytes"], 160 * MIB);
    let too_small = bad(&["resize", "-n", device, &(minimum - 4096).to_string()]);
    assert!(too_small.contains(&minimum.to_string()), "{too_small}");
    assert!(
        before == fs::read(&path).unwrap(),
        "a dry run has changed something"
    );
    drop(before);
    let too_small = bad(&["resize", device, &(minimum - 4096).to_string()]);
    assert!(too_small.contains(&minimum.to_string()), "{too_small}");
    let link = image.beside("resize.contigfs");
    symlink(FLASHNET, &link).unwrap();
    let called = Command::new(link)
        .args([device, "160MiB"])
        .output()
        .unwrap();
    assert!(called.status.success(), "{called:?}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 192 * MIB);
    is_sound(&path);
    let minimum: u64 = good(&["resize", "-P", device]).trim().parse().unwrap();
    let shrunk = json(&["resize", "-M", "--truncate", device]);
    assert_eq!(shrunk["device_bytes"], minimum);
    assert_eq!(fs::metadata(&path).unwrap().len(), minimum);
    is_sound(&path);
    let shown = json(&["inspect", device]);
    assert_eq!(shown["device_grains"], minimum / 4096);
    let nothing = good(&["resize", device]);
    assert!(nothing.contains("nothing to do"), "{nothing}");
    let target = image.serve(&["--mount", dir.to_str().unwrap()]);
    assert_eq!(shrunk["capacity_bytes"], capacity(&dir));
    check(&dir);
    fs::remove_file(dir.join("large")).unwrap();
    assert!(target.stop().success());
    is_sound(&path);
}

/// What can not be done is refused with the reason, and changes nothing.
#[test]
fn refusals() {
    let image = Image::new("64MiB");
    let device = image.path();
    let device = device.to_str().unwrap();
    let (a, b) = (image.beside("a.img"), image.beside("b.img"));
    good(&[
        "mkfs",
        "--size",
        "32MiB",
        a.to_str().unwrap(),
        b.to_str().unwrap(),
    ]);
    let both = format!("{},{}", a.display(), b.display());
    assert!(bad(&["resize", &both]).contains("several devices"));
    assert!(bad(&["resize", a.to_str().unwrap()]).contains("missing"));
    let nothing = image.beside("nothing.img");
    fs::write(&nothing, vec![0; 1 << 20]).unwrap();
    assert!(bad(&["resize", nothing.to_str().unwrap()]).contains("not a flashnet volume"));
    let dir = nothing.parent().unwrap().to_str().unwrap();
    assert!(bad(&["resize", dir]).contains("no volume is mounted"));
    assert!(bad(&["resize", device, "1MiB"]).contains("minimum"));
    assert!(bad(&["resize", device, "0"]).contains("minimum"));
    if can_serve() {
        let target = image.serve(&[]);
        assert!(bad(&["resize", device, "128MiB"]).contains("in use"));
        assert!(target.stop().success());
    }
    if can_serve() && can_mount() {
        let dir = image.beside("mnt");
        fs::create_dir(&dir).unwrap();
        let dir = dir.to_str().unwrap();
        let target = image.serve(&["--mount", dir]);
        assert!(bad(&["resize", dir, "0"]).contains("no size"));
        // More than any disk has: nothing of it is taken, and the target goes on.
        assert!(bad(&["resize", dir, "1PiB"]).contains("can not be made larger"));
        assert!(target.stop().success());
    }
    let length = fs::metadata(image.path()).unwrap().len();
    assert_eq!(length, 64 * MIB);
    is_sound(&image.path());
}

/// JSON has no names that are no text: it has what comes closest.
#[test]
fn a_name_that_is_no_text() {
    let image = Image::new("64MiB");
    let path = image.path();
    let path = path.with_file_name(OsStr::from_bytes(b"volume\xff.img"));
    fs::rename(image.path(), &path).unwrap();
    let arguments = ["--json", "resize", "--dry-run"];
    let output = Command::new(FLASHNET).args(arguments).arg(&path).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let device = said["device"].as_str().unwrap();
    assert!(device.ends_with("volume\u{fffd}.img"), "{device}");
}
