//! Calls at random. What a call is about does not depend on the calls before, so that any of them can be left out.

use rand::Rng;
use rand::rngs::SmallRng;

use super::call::{Call, Lock, SLOTS, Time};
use super::user::USERS;

const KIB: i64 = 1024;
const MODES: [u32; 16] = [
    0o644, 0o600, 0o666, 0o777, 0o755, 0o4755, 0o2755, 0o6777, 0o2644, 0o1777, 0o2777, 0o3777,
    0o070, 0o007, 0o444, 0o000,
];
const IDS: [u32; 8] = [0, 1001, 1002, 2001, 2002, 2003, 1001, u32::MAX];

pub struct Draw<'a>(pub &'a mut SmallRng);

impl Draw<'_> {
    fn one_in(&mut self, n: u32) -> bool {
        self.0.random_range(0..n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.0.random_range(0..all.len())]
    }

    /// Who calls.
    pub fn who(&mut self) -> usize {
        self.0.random_range(0..USERS.len())
    }

    fn slot(&mut self) -> usize {
        self.0.random_range(0..SLOTS)
    }

    fn name(&mut self) -> String {
        match self.0.random_range(0..80) {
            0 => "n".repeat(255),
            1 => "m".repeat(256),
            2 => ".".to_owned(),
            3 => "..".to_owned(),
            _ => self.of(&["a", "b", "c", "d"]).to_owned(),
        }
    }

    fn path(&mut self) -> String {
        let name = self.name();
        let below = match self.0.random_range(0..20) {
            0..6 => String::new(),
            6..10 => "p/".to_owned(),
            10..14 => "q/".to_owned(),
            14 => "p/d/".to_owned(),
            15 => "q/d/".to_owned(),
            16 => "d/".to_owned(),
            17 => "./p//".to_owned(),
            18 => "q/../".to_owned(),
            _ => self
                .of(&["a/", "p/a/", "p/a/b/", "q/b/", "a/../"])
                .to_owned(),
        };
        // Nothing is called outside of the tree.
        let name = match below.as_str() {
            "" | "q/../" | "a/../" if name == ".." => "p/..".to_owned(),
            _ => name,
        };
        match self.0.random_range(0..40) {
            0 => format!("{below}{name}/"),
            1 => format!("{below}{name}/."),
            _ => format!("{below}{name}"),
        }
    }

    fn directory(&mut self) -> String {
        match self.one_in(3) {
            true => self.path(),
            false => self.of(&["p", "q", ".", "p/d", "q/d"]).to_owned(),
        }
    }

    fn offset(&mut self) -> i64 {
        match self.0.random_range(0..40) {
            0 => -1,
            1 => 1 << self.0.random_range(20..40),
            2..8 => self.0.random_range(0..300 * KIB),
            8..16 => 4 * KIB * self.0.random_range(0..20),
            16..20 => 0,
            _ => self.0.random_range(0..20_000),
        }
    }

    fn len(&mut self) -> i64 {
        match self.0.random_range(0..20) {
            0 => 0,
            1..3 => self.0.random_range(1..200 * KIB),
            3..8 => 4 * KIB * self.0.random_range(1..10),
            _ => self.0.random_range(1..9000),
        }
    }

    fn mode(&mut self) -> u32 {
        match self.one_in(5) {
            true => self.0.random_range(0..0o10000),
            false => self.of(&MODES),
        }
    }

    fn owner(&mut self) -> (u32, u32) {
        (self.of(&IDS), self.of(&IDS))
    }

    fn time(&mut self) -> Time {
        let (secs, nanos) = match self.0.random_range(0..8) {
            0 => (0, libc::UTIME_NOW),
            1 => (0, libc::UTIME_OMIT),
            2 => (4_000_000_000, 999_999_999),
            3 => (-1, 1),
            4 => (1_000_000_000, 0),
            5 => (0, 1_000_000_000),
            _ => (
                self.0.random_range(0..4_100_000_000),
                self.0.random_range(0..1_000_000_000),
            ),
        };
        Time { secs, nanos }
    }

    fn open_flags(&mut self) -> i32 {
        let mut flags = libc::O_NONBLOCK
            | self.of(&[libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR]);
        for (flag, rare) in [
            (libc::O_CREAT, 2),
            (libc::O_EXCL, 8),
            (libc::O_TRUNC, 6),
            (libc::O_APPEND, 6),
            (libc::O_DIRECTORY, 16),
            (libc::O_NOFOLLOW, 12),
            (libc::O_NOATIME, 12),
            (libc::O_DSYNC, 24),
            (libc::O_PATH, 24),
        ] {
            if self.one_in(rare) {
                flags |= flag;
            }
        }
        flags
    }

    fn xattr_name(&mut self) -> String {
        let names = [
            "user.a",
            "user.b",
            "user.a",
            "trusted.t",
            "security.s",
            "security.capability",
            "system.posix_acl_access",
            "system.posix_acl_access",
            "system.posix_acl_default",
            "system.posix_acl_default",
            "user.",
            "unknown.u",
            "nothing",
        ];
        self.of(&names).to_owned()
    }

    fn xattr_value(&mut self, name: &str) -> Vec<u8> {
        match name {
            _ if name.starts_with("system.") => self.acl(),
            "security.capability" => {
                // `cap_net_raw=ep`
                let mut value = vec![0; 20];
                value[..6].copy_from_slice(&[1, 0, 0, 2, 0, 0x20]);
                value
            }
            _ => vec![self.0.random(); self.0.random_range(0..100)],
        }
    }

    /// An access control list in the kernel's form, mostly one that makes sense.
    fn acl(&mut self) -> Vec<u8> {
        let mut entries: Vec<(u16, u32)> = vec![(0x01, u32::MAX)];
        let users: &[u32] = self.of(&[&[][..], &[1001], &[1002], &[1001, 1002]]);
        let groups: &[u32] = self.of(&[&[][..], &[2001], &[2002, 2003]]);
        entries.extend(users.iter().map(|&user| (0x02, user)));
        entries.push((0x04, u32::MAX));
        entries.extend(groups.iter().map(|&group| (0x08, group)));
        if !(users.is_empty() && groups.is_empty()) || self.one_in(4) {
            entries.push((0x10, u32::MAX));
        }
        entries.push((0x20, u32::MAX));
        if self.one_in(12) {
            let away = self.0.random_range(0..entries.len());
            entries.remove(away);
        }
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, id) in entries {
            list.extend(tag.to_le_bytes());
            list.extend(self.0.random_range(0..8_u16).to_le_bytes());
            list.extend(id.to_le_bytes());
        }
        list
    }

    fn lock(&mut self) -> Lock {
        let kind = self.of(&[libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK]);
        let (start, len) = (self.0.random_range(0..10), self.0.random_range(0..10));
        match self.0.random_range(0..4) {
            0 => Lock::Posix { kind, start, len },
            1 => Lock::PosixAsked {
                kind: kind.min(libc::F_WRLCK),
                start,
                len,
            },
            2 => Lock::Ofd { kind, start, len },
            _ => Lock::Whole(self.of(&[libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN])),
        }
    }

    /// A call.
    pub fn call(&mut self) -> Call {
        match self.0.random_range(0..9) {
            0 | 1 => self.open(),
            2..5 => self.of_open(),
            5 | 6 => self.of_names(),
            _ => self.of_attributes(),
        }
    }

    fn open(&mut self) -> Call {
        let slot = self.slot();
        if self.one_in(12) {
            let access = self.of(&[libc::O_RDWR, libc::O_WRONLY]);
            let exclusive = if self.one_in(4) { libc::O_EXCL } else { 0 };
            return Call::Open {
                slot,
                path: self.directory(),
                flags: libc::O_TMPFILE | access | exclusive,
                mode: self.mode(),
            };
        }
        Call::Open {
            slot,
            path: self.path(),
            flags: self.open_flags(),
            mode: self.mode(),
        }
    }

    fn of_open(&mut self) -> Call {
        let slot = self.slot();
        let fill = self.0.random();
        match self.0.random_range(0..36) {
            0..3 => Call::Read {
                slot,
                len: self.len() as usize,
            },
            3..6 => Call::ReadAt {
                slot,
                offset: self.offset(),
                len: self.len() as usize,
            },
            6..10 => Call::Write {
                slot,
                len: self.len() as usize,
                fill,
            },
            10..14 => Call::WriteAt {
                slot,
                offset: self.offset(),
                len: self.len() as usize,
                fill,
            },
            14 => Call::Seek {
                slot,
                offset: self.offset(),
                whence: self.of(&[libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END, 9]),
            },
            15 | 16 => Call::Holes(slot),
            17 | 18 => Call::Resize {
                slot,
                size: self.offset(),
            },
            19..22 => {
                let (keep, punch) = (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE);
                let zero = libc::FALLOC_FL_ZERO_RANGE;
                let mode = self.of(&[0, keep, punch | keep, zero, zero | keep, punch, 0x80]);
                Call::Space {
                    slot,
                    mode,
                    offset: self.offset(),
                    len: self.len(),
                }
            }
            22 | 23 => Call::Copy {
                from: (slot, self.offset()),
                to: (self.slot(), self.offset()),
                len: self.len() as usize,
            },
            24 => Call::Sync {
                slot,
                data: self.one_in(2),
            },
            25 => Call::Load {
                slot,
                offset: self.offset().clamp(0, 1 << 19) as usize,
                len: self.len() as usize,
            },
            26 | 27 => Call::Store {
                slot,
                offset: self.offset().clamp(0, 1 << 19) as usize,
                len: self.len() as usize,
                fill,
            },
            28 => Call::ChmodOpen {
                slot,
                mode: self.mode(),
            },
            29 => Call::ChownOpen {
                slot,
                owner: self.owner(),
            },
            30 => Call::LinkOpen {
                slot,
                to: self.path(),
            },
            31 => Call::SetFlags {
                slot,
                flags: libc::O_NONBLOCK | self.of(&[0, libc::O_APPEND, libc::O_NOATIME]),
            },
            32 | 33 => Call::Lock {
                slot,
                lock: self.lock(),
            },
            34 => {
                // Not `fallocate`: FUSE looks at the limit before the privileges of the file end, and ext4 afterwards.
                let call = match self.0.random_range(0..3) {
                    0 => Call::Resize {
                        slot,
                        size: self.offset(),
                    },
                    1 => Call::Write {
                        slot,
                        len: self.len() as usize,
                        fill,
                    },
                    _ => Call::WriteAt {
                        slot,
                        offset: self.offset(),
                        len: self.len() as usize,
                        fill,
                    },
                };
                let bytes = self.0.random_range(0..20_000);
                Call::Limited {
                    bytes,
                    call: Box::new(call),
                }
            }
            _ => Call::Close(slot),
        }
    }

    fn of_names(&mut self) -> Call {
        let path = self.path();
        match self.0.random_range(0..24) {
            0..3 => Call::MakeDir {
                path,
                mode: self.mode(),
            },
            3 => {
                let (kind, device) = self.of(&[
                    (libc::S_IFIFO, 0),
                    (libc::S_IFSOCK, 0),
                    (libc::S_IFREG, 0),
                    (libc::S_IFCHR, 0x103),
                    (libc::S_IFBLK, 0xf0_f001),
                    (0, 0),
                    (libc::S_IFDIR, 0),
                ]);
                Call::MakeNode {
                    path,
                    mode: kind | self.mode(),
                    device,
                }
            }
            4..6 => {
                let target = match self.0.random_range(0..12) {
                    0 => String::new(),
                    1 => "t".repeat(4095),
                    2 => "t".repeat(4096),
                    3 => ".".to_owned(),
                    _ => self.path(),
                };
                Call::Symlink { target, path }
            }
            6..9 => Call::Link {
                from: path,
                to: self.path(),
                flags: self.of(&[0, 0, libc::AT_SYMLINK_FOLLOW]),
            },
            9..12 => Call::Unlink(path),
            12..14 => Call::RemoveDir(path),
            14..19 => Call::Rename {
                from: path,
                to: self.path(),
                flags: self.of(&[0, 0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE, 3, 8]),
            },
            19 => Call::ReadLink(path),
            20 | 21 => Call::List(self.directory()),
            22 => Call::Truncate {
                path,
                size: self.offset(),
            },
            _ => Call::Stat {
                path,
                flags: self.of(&[0, libc::AT_SYMLINK_NOFOLLOW]),
            },
        }
    }

    fn of_attributes(&mut self) -> Call {
        let path = self.path();
        match self.0.random_range(0..20) {
            0..4 => Call::Chmod {
                path,
                mode: self.mode(),
            },
            4..7 => Call::Chown {
                path,
                owner: self.owner(),
                flags: self.of(&[0, libc::AT_SYMLINK_NOFOLLOW]),
            },
            7..9 => Call::SetTimes {
                path,
                times: match self.one_in(4) {
                    true => None,
                    false => Some((self.time(), self.time())),
                },
                flags: self.of(&[0, libc::AT_SYMLINK_NOFOLLOW]),
            },
            9 => Call::Access {
                path,
                mode: self.0.random_range(0..8),
                flags: self.of(&[0, libc::AT_EACCESS, libc::AT_SYMLINK_NOFOLLOW]),
            },
            10..14 => {
                let name = self.xattr_name();
                let value = self.xattr_value(&name);
                let flags = self.of(&[0, 0, libc::XATTR_CREATE, libc::XATTR_REPLACE]);
                Call::SetXattr {
                    path,
                    name,
                    value,
                    flags,
                }
            }
            14..16 => Call::GetXattr {
                path,
                name: self.xattr_name(),
                size: self.of(&[0, 4, 200]),
            },
            16 => Call::ListXattrs(path),
            17 => Call::RemoveXattr {
                path,
                name: self.xattr_name(),
            },
            18 => Call::Umask(self.of(&[0o022, 0, 0o077, 0o027])),
            _ => Call::List(path),
        }
    }
}
