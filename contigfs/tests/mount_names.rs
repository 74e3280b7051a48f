//! Names through the kernel: what they may be, how they are exchanged, and what they lead to.

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use support::mounted::Mount;
use support::syscalls::{errno, rename};

const GRAINS: u64 = 10_000;

fn ino(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

fn links(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().nlink()
}

/// renameat2(2) with `RENAME_NOREPLACE`: an existing name stays, whatever it is, also within a directory.
#[test]
fn rename_without_replacing() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let at = |name: &str| mount.path().join(name);
    fs::create_dir_all(at("d/deep")).unwrap();
    for name in ["a", "b", "d/c"] {
        fs::write(at(name), name).unwrap();
    }
    let no_replace =
        |from: &str, to: &str| errno(rename(&at(from), &at(to), libc::RENAME_NOREPLACE));
    assert_eq!(no_replace("a", "b"), libc::EEXIST);
    assert_eq!(no_replace("a", "d/c"), libc::EEXIST);
    assert_eq!(no_replace("a", "d"), libc::EEXIST);
    assert_eq!(no_replace("a", "a"), libc::EEXIST);
    assert_eq!(no_replace("none", "n"), libc::ENOENT);
    assert_eq!(no_replace("a", "n"), 0);
    assert_eq!(no_replace("d/c", "c"), 0);
    assert_eq!(no_replace("d", "d/deep/d"), libc::EINVAL);
    assert_eq!(fs::read(at("n")).unwrap(), b"a");
    assert_eq!(fs::read(at("c")).unwrap(), b"d/c");
    assert_eq!(fs::read(at("b")).unwrap(), b"b");
    mount.unmount();
}

/// renameat2(2) with `RENAME_EXCHANGE`: any two kinds, across directories, but no directory with one below it; the
/// parents of directories follow. Other flags are refused.
#[test]
fn rename_exchanging() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let root = mount.path().to_owned();
    let at = |name: &str| root.join(name);
    fs::create_dir_all(at("d/sub/deep")).unwrap();
    fs::create_dir_all(at("e/other")).unwrap();
    fs::write(at("f"), "f").unwrap();
    fs::write(at("e/g"), "g").unwrap();
    let exchange = |from: &str, to: &str| errno(rename(&at(from), &at(to), libc::RENAME_EXCHANGE));
    let before = ["f", "e/g", "d/sub", "e"].map(|name| ino(&at(name)));
    assert_eq!(exchange("f", "none"), libc::ENOENT);
    assert_eq!(exchange("d", "d/sub/deep"), libc::EINVAL);
    assert_eq!(exchange("d/sub/deep", "d"), libc::EINVAL);
    for flags in [
        libc::RENAME_WHITEOUT,
        libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE,
        1 << 10,
    ] {
        assert_eq!(errno(rename(&at("f"), &at("x"), flags)), libc::EINVAL);
    }
    assert_eq!(
        before,
        ["f", "e/g", "d/sub", "e"].map(|name| ino(&at(name)))
    );
    // Two files, a file and a directory, two directories of different parents.
    assert_eq!(exchange("f", "e/g"), 0);
    assert_eq!([ino(&at("e/g")), ino(&at("f"))], [before[0], before[1]]);
    assert_eq!((links(&at("d")), links(&root)), (3, 4));
    assert_eq!(exchange("f", "d/sub"), 0);
    assert_eq!([ino(&at("d/sub")), ino(&at("f"))], [before[1], before[2]]);
    assert_eq!((links(&at("d")), links(&root)), (2, 5));
    assert_eq!(ino(&at("f/..")), ino(&root));
    assert_eq!(exchange("f/deep", "e"), 0);
    assert_eq!(ino(&at("f/deep")), before[3]);
    assert_eq!(ino(&at("f/deep/..")), ino(&at("f")));
    assert!(at("f/deep/other").is_dir());
    // Two names of one file.
    fs::hard_link(at("f/deep/g"), at("h")).unwrap();
    assert_eq!(exchange("h", "f/deep/g"), 0);
    mount.remount();
    assert_eq!(fs::read(at("h")).unwrap(), b"f");
    assert_eq!(fs::read(at("d/sub")).unwrap(), b"g");
    assert!(at("e").is_dir() && at("f/deep/other").is_dir());
    mount.unmount();
}
