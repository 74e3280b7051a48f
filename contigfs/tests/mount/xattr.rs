//! Extended attributes and access control lists through the kernel: the rules of xattr(7) and acl(5), against another
//! file system of this machine where there is one to compare with.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{
    DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink,
};
use std::path::Path;

use support::mounted::Mount;
use support::oracle::{ACCESS, CAPABILITY, DEFAULT};
use support::syscalls::{
    as_user, errno, get_xattr, get_xattr_sized, list_xattrs, list_xattrs_sized, mknod,
    remove_xattr, set_xattr, with_umask,
};
use support::{Dice, acl};

const GRAINS: u64 = 10_000;
const SOMEBODY: u32 = 1001;
const ELSE: u32 = 1002;
const GROUP: u32 = 2001;

/// xattr(7), setxattr(2), getxattr(2), listxattr(2): names, flags, sizes, errors; all there after a remount.
#[test]
fn attributes() {
    let Some(mut mount) = Mount::new_as_root(GRAINS) else {
        return;
    };
    let path = mount.path().join("f");
    fs::write(&path, "x").unwrap();
    let set = |name: &str, value: &[u8], flags| errno(set_xattr(&path, name, value, flags));
    assert_eq!(set("user.a", b"v", libc::XATTR_REPLACE), libc::ENODATA);
    assert_eq!(set("user.a", b"value", libc::XATTR_CREATE), 0);
    assert_eq!(set("user.a", b"v", libc::XATTR_CREATE), libc::EEXIST);
    assert_eq!(set("user.large", &[7; 65_536], 0), 0);
    assert_eq!(set("user.larger", &[7; 65_537], 0), libc::E2BIG);
    assert_eq!(set("security.s", b"", 0), 0);
    assert_eq!(set("trusted.t", b"t", 0), 0);
    assert_eq!(set("other.t", b"t", 0), libc::EOPNOTSUPP);
    assert_eq!(set("user.", b"t", 0), libc::EINVAL);
    assert_eq!(
        set(&format!("user.{}", "n".repeat(251)), b"", 0),
        libc::ERANGE
    );
    mount.remount();
    assert_eq!(get_xattr(&path, "user.a").unwrap(), b"value");
    assert_eq!(get_xattr(&path, "user.large").unwrap(), [7; 65_536]);
    assert_eq!(get_xattr_sized(&path, "user.a", 0).unwrap().len(), 5);
    assert_eq!(errno(get_xattr_sized(&path, "user.a", 4)), libc::ERANGE);
    assert_eq!(errno(get_xattr(&path, "user.b")), libc::ENODATA);
    let names = ["user.a", "user.large", "security.s", "trusted.t"];
    assert_eq!(list_xattrs(&path).unwrap(), names);
    let len = names.iter().map(|name| name.len() + 1).sum::<usize>();
    assert_eq!(list_xattrs_sized(&path, 0).unwrap().len(), len);
    assert_eq!(errno(list_xattrs_sized(&path, len - 1)), libc::ERANGE);
    // Whoever may not use `trusted.` does not see it either.
    let seen = as_user(SOMEBODY, SOMEBODY, &[], || list_xattrs(&path).unwrap());
    assert_eq!(seen, names[..3]);
    remove_xattr(&path, "user.a").unwrap();
    assert_eq!(errno(remove_xattr(&path, "user.a")), libc::ENODATA);
    assert_eq!(list_xattrs(&path).unwrap(), names[1..]);
    mount.unmount();
}

/// Special files and links have no `user.` attributes, but others.
#[test]
fn attributes_of_all_kinds() {
    let Some(mut mount) = Mount::new_as_root(GRAINS) else {
        return;
    };
    let (link, fifo, dir) = (
        mount.path().join("l"),
        mount.path().join("p"),
        mount.path().join("d"),
    );
    symlink("nowhere", &link).unwrap();
    mknod(&fifo, libc::S_IFIFO | 0o644, 0).unwrap();
    fs::create_dir(&dir).unwrap();
    for path in [&link, &fifo] {
        assert_eq!(errno(set_xattr(path, "user.a", b"", 0)), libc::EPERM);
    }
    set_xattr(&dir, "user.a", b"v", 0).unwrap();
    for path in [&link, &fifo, &dir] {
        set_xattr(path, "trusted.a", b"v", 0).unwrap();
        assert_eq!(get_xattr(path, "trusted.a").unwrap(), b"v");
    }
    mount.unmount();
}

/// capabilities(7): a write, also by root, takes the capabilities of a program file; so do truncate and chown.
#[test]
fn file_capabilities_end_with_a_change() {
    let Some(mut mount) = Mount::new_as_root(GRAINS) else {
        return;
    };
    let path = mount.path().join("program");
    // Revision 2, permitted CAP_NET_RAW.
    let capability = [
        0, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let changes: [fn(&Path); 4] = [
        |path| {
            let mut file = OpenOptions::new().append(true).open(path).unwrap();
            file.write_all(b"more").unwrap();
        },
        |path| drop(File::create(path).unwrap()),
        |path| {
            let file = OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(1).unwrap();
        },
        |path| chown(path, Some(SOMEBODY), None).unwrap(),
    ];
    for change in changes {
        fs::write(&path, "program").unwrap();
        set_xattr(&path, CAPABILITY, &capability, 0).unwrap();
        assert_eq!(list_xattrs(&path).unwrap(), [CAPABILITY]);
        change(&path);
        assert_eq!(list_xattrs(&path).unwrap(), [""; 0]);
    }
    mount.unmount();
}

/// `u::rwx,u:1001:PERM,g::---,m::rwx,o::---`
fn only_somebody(perm: u16) -> Vec<u8> {
    acl::bytes(&[
        (1, 7, !0),
        (2, perm, SOMEBODY),
        (4, 0, !0),
        (0x10, 7, !0),
        (0x20, 0, !0),
    ])
}

/// The kernel asks the list who may do what: a named user may, others may not, and the mask limits.
#[test]
fn lists_decide() {
    let Some(mut mount) = Mount::new_as_root(GRAINS) else {
        return;
    };
    let path = mount.path().join("f");
    fs::write(&path, "x").unwrap();
    let may = |uid, write: bool| {
        let open = || OpenOptions::new().read(true).write(write).open(&path);
        as_user(uid, uid, &[], || errno(open()) == 0)
    };
    set_xattr(&path, ACCESS, &only_somebody(4), 0).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o770);
    assert!(may(SOMEBODY, false) && !may(SOMEBODY, true) && !may(ELSE, false));
    set_xattr(&path, ACCESS, &only_somebody(6), 0).unwrap();
    assert!(may(SOMEBODY, true) && !may(ELSE, false));
    fs::set_permissions(&path, PermissionsExt::from_mode(0o740)).unwrap();
    assert!(may(SOMEBODY, false) && !may(SOMEBODY, true));
    remove_xattr(&path, ACCESS).unwrap();
    assert!(!may(SOMEBODY, false));
    let denied = as_user(ELSE, ELSE, &[], || {
        errno(set_xattr(&path, ACCESS, &only_somebody(7), 0))
    });
    assert_eq!(denied, libc::EPERM);
    mount.unmount();
}

/// A list set by the owner who is not in the file's group clears the setgid bit; set by a member, it stays.
#[test]
fn lists_and_setgid() {
    let Some(mut mount) = Mount::new_as_root(GRAINS) else {
        return;
    };
    let path = mount.path().join("f");
    fs::write(&path, "x").unwrap();
    let mode_after = |groups: &[u32]| {
        chown(&path, Some(SOMEBODY), Some(GROUP)).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o2755)).unwrap();
        as_user(SOMEBODY, SOMEBODY, groups, || {
            set_xattr(&path, ACCESS, &only_somebody(7), 0).unwrap();
        });
        fs::metadata(&path).unwrap().mode() & 0o7777
    };
    assert_eq!(mode_after(&[GROUP]), 0o2770);
    assert_eq!(mode_after(&[]), 0o770);
    mount.unmount();
}

/// What can be seen of a file: mode and lists.
fn picture(path: &Path) -> (u32, Option<Vec<u8>>, Option<Vec<u8>>) {
    let list = |name| get_xattr(path, name).ok();
    let mode = fs::symlink_metadata(path).unwrap().mode();
    (mode, list(ACCESS), list(DEFAULT))
}

fn any_list(dice: &mut Dice) -> Vec<u8> {
    let mut perm = || dice.below(8) as u16;
    let mut entries = vec![(1, perm(), !0)];
    entries.extend((0..perm() % 3).map(|id| (2, 5, id.into())));
    entries.push((4, perm(), !0));
    if entries.len() > 2 || perm() == 0 {
        entries.push((0x10, perm(), !0));
    }
    entries.push((0x20, perm(), !0));
    acl::bytes(&entries)
}

/// Random changes of lists and modes, and files, directories and pipes made with random modes and umasks, end as on the
/// file system of the temporary directory.
#[test]
fn as_another_file_system_does() {
    let Some(mut mount) = Mount::new_as_root(GRAINS) else {
        return;
    };
    let other = tempfile::TempDir::new().unwrap();
    let mut dice = Dice::new(4);
    if errno(set_xattr(other.path(), DEFAULT, &any_list(&mut dice), 0)) == libc::EOPNOTSUPP {
        return support::mounted::skip("the temporary directory has no access control lists");
    }
    remove_xattr(other.path(), DEFAULT).unwrap();
    fs::set_permissions(other.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let sides = [mount.path(), other.path()];
    let mut paths = vec![std::path::PathBuf::from(".")];
    for step in 0..600 {
        let at = dice.pick(&paths).clone();
        let (mode, mask) = (dice.below(0o1000) as u32, dice.below(0o100) as u32);
        let (what, list) = (dice.below(9), any_list(&mut dice));
        let new = at.join(format!("n{step}"));
        let answers = sides.map(|side| {
            let (at, new) = (side.join(&at), side.join(&new));
            with_umask(mask, || match what {
                0 => errno(set_xattr(&at, ACCESS, &list, 0)),
                1 => errno(set_xattr(&at, DEFAULT, &list, 0)),
                2 => errno(remove_xattr(
                    &at,
                    if mode & 1 == 0 { ACCESS } else { DEFAULT },
                )),
                3 => errno(fs::set_permissions(&at, PermissionsExt::from_mode(mode))),
                4 => errno(mknod(&new, libc::S_IFIFO | mode, 0)),
                5 | 6 => errno(fs::DirBuilder::new().mode(mode).create(&new)),
                _ => {
                    let mut options = OpenOptions::new();
                    errno(options.write(true).create(true).mode(mode).open(&new))
                }
            })
        });
        assert_eq!(answers[0], answers[1], "step {step}, {what} at {at:?}");
        if what >= 4 && answers[0] == 0 {
            paths.push(new.clone());
        }
        for path in [&at, &new] {
            if sides[0].join(path).exists() {
                let [found, expected] = sides.map(|side| picture(&side.join(path)));
                assert_eq!(found, expected, "step {step}, {what}: {path:?}");
            }
        }
    }
    assert!(paths.len() > 100, "{} files are too few", paths.len());
    mount.remount();
    for path in &paths {
        let [found, expected] = [mount.path(), other.path()].map(|side| picture(&side.join(path)));
        assert_eq!(found, expected, "after a remount: {path:?}");
    }
    mount.unmount();
}
