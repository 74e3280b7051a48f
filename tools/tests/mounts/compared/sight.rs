//! What root sees of both sides after a call, without leaving traces.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::call::{Call, SLOTS};
use super::exceptions;
use super::raw::{self, Place, c, call};
use super::user::User;

/// Bytes that are compared of each file, from its beginning.
const COMPARED: usize = 400 << 10;
const TIMES: [&str; 3] = ["atime", "mtime", "ctime"];

/// A file, by what leads to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spot {
    Named(String),
    Open { user: usize, slot: usize },
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(path) => write!(f, "{path}"),
            Self::Open { user, slot } => write!(f, "#{slot} of user {user}"),
        }
    }
}

/// What statx(2) says, as far as it can be compared: not where a file lies, and not how large a directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Attributes {
    mode: u32,
    links: u32,
    owner: (u32, u32),
    device: (u32, u32),
    size: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Seen {
    ino: u64,
    attributes: Attributes,
    times: [i128; 3],
}

impl Seen {
    fn of(stat: &libc::statx) -> Self {
        let mode = u32::from(stat.stx_mode);
        let is_dir = mode & libc::S_IFMT == libc::S_IFDIR;
        let time = |time: libc::statx_timestamp| {
            i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
        };
        Self {
            ino: stat.stx_ino,
            attributes: Attributes {
                mode,
                links: stat.stx_nlink,
                owner: (stat.stx_uid, stat.stx_gid),
                device: (stat.stx_rdev_major, stat.stx_rdev_minor),
                size: (!is_dir).then_some(stat.stx_size),
            },
            times: [stat.stx_atime, stat.stx_mtime, stat.stx_ctime].map(time),
        }
    }

    fn is_file(&self) -> bool {
        self.attributes.mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// One side.
#[derive(Clone, Debug, Default)]
pub struct Sight(BTreeMap<Spot, Result<Seen, i32>>);

impl Sight {
    /// What is at these paths below `root`, and what the users have open on this side.
    pub fn of(root: i32, paths: &BTreeSet<String>, users: &[User], side: usize) -> Self {
        let mut all = BTreeMap::new();
        for path in paths {
            let seen = raw::statx(root, path, libc::AT_SYMLINK_NOFOLLOW);
            all.insert(Spot::Named(path.clone()), seen.map(|stat| Seen::of(&stat)));
        }
        for (n, user) in users.iter().enumerate() {
            for slot in 0..SLOTS {
                if user.open[side][slot].is_some() {
                    let seen = raw::statx(libc::AT_FDCWD, &way_to(user, side, slot), 0);
                    let place = Spot::Open { user: n, slot };
                    all.insert(place, seen.map(|stat| Seen::of(&stat)));
                }
            }
        }
        Self(all)
    }

    /// Files whose content may be another one than `before`.
    fn changed_files<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a Spot> {
        let is_new = |place: &Spot, now: &Seen| match before.0.get(place) {
            Some(Ok(then)) => then.ino != now.ino || then.times[1..] != now.times[1..],
            _ => true,
        };
        self.0.iter().filter_map(move |(place, seen)| match seen {
            Ok(now) if now.is_file() && is_new(place, now) => Some(place),
            _ => None,
        })
    }

    fn times_of_inodes(&self) -> BTreeMap<u64, [i128; 3]> {
        let all = self.0.values().flatten();
        all.map(|seen| (seen.ino, seen.times)).collect()
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.0.iter().filter_map(|(place, seen)| match place {
            Spot::Named(name) if seen.is_ok() => Some(name),
            _ => None,
        })
    }
}

/// What a user has open, through his table.
fn way_to(user: &User, side: usize, slot: usize) -> String {
    let fd = user.open[side][slot].expect("it is open");
    format!("/proc/self/task/{}/fd/{fd}", user.task)
}

/// What differs between the sides, of which ours is the first, if anything does. `started` is the time of now before the call.
pub fn difference(
    before: [&Sight; 2],
    after: [&Sight; 2],
    started: i128,
    call: &Call,
) -> Option<String> {
    let [ours, theirs] = after;
    let then = before.map(Sight::times_of_inodes);
    let mut inodes: BTreeMap<u64, u64> = BTreeMap::new();
    let mut back: BTreeMap<u64, u64> = BTreeMap::new();
    for (place, their) in &theirs.0 {
        let (our, their) = match (ours.0.get(place), their) {
            (Some(Ok(our)), Ok(their)) => (our, their),
            (Some(Err(our)), Err(their)) if our == their => continue,
            (our, their) => {
                let number = |seen: Option<&Result<Seen, i32>>| match seen {
                    Some(Ok(_)) => "is there".to_owned(),
                    Some(Err(error)) => format!("errno {error}"),
                    None => "is not open".to_owned(),
                };
                return Some(format!(
                    "{place}: {}, not {}",
                    number(our),
                    number(Some(their))
                ));
            }
        };
        if our.attributes != their.attributes {
            let (our, their) = (&our.attributes, &their.attributes);
            return Some(format!("{place}:\n  {our:?}, not\n  {their:?}"));
        }
        if *inodes.entry(our.ino).or_insert(their.ino) != their.ino
            || *back.entry(their.ino).or_insert(our.ino) != our.ino
        {
            return Some(format!("{place}: hard links differ"));
        }
        let old = (then[0].get(&our.ino), then[1].get(&their.ino));
        let free = exceptions::free_times(call, our.attributes.mode);
        for (n, what) in TIMES.iter().enumerate() {
            let (our_time, their_time) = (our.times[n], their.times[n]);
            // What was set, and not the time of some call.
            let is_set = their_time < started - 1_000_000_000_000
                || their_time > started + 1_000_000_000_000;
            if is_set && our_time != their_time && !free[n] {
                return Some(format!("{place}: {what} is {our_time}, not {their_time}"));
            }
            if let (Some(our_old), Some(their_old)) = old
                && !free[n]
            {
                let changed = [our_time != our_old[n], their_time != their_old[n]];
                if changed[0] != changed[1] {
                    let renewed = if changed[0] {
                        "is renewed"
                    } else {
                        "is not renewed"
                    };
                    let ages = |times: &[i128; 3]| times.map(|time| (time - started) / 1_000_000);
                    return Some(format!(
                        "{place}: {what} {renewed}; times before, in ms from now: ours {:?}, theirs {:?}",
                        ages(our_old),
                        ages(their_old)
                    ));
                }
                if changed[0] && !is_set && our_time < started - 20_000_000 {
                    return Some(format!("{place}: {what} is not the time of now"));
                }
            }
        }
    }
    let more = ours.0.keys().find(|place| !theirs.0.contains_key(place));
    more.map(|place| format!("{place}: is open"))
}

/// Whether it was opened with `O_PATH`. Of such descriptors FUSE does not tell, so they keep nothing of a file that is unlinked.
fn is_path_alone(user: &User, side: usize, slot: usize) -> bool {
    let fd = user.open[side][slot].expect("it is open");
    let info = format!("/proc/self/task/{}/fdinfo/{fd}", user.task);
    let info = std::fs::read_to_string(info).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_PATH != 0)
}

/// Where a call has renewed a time on one side only, as it may: sets the times of both to now, so that from then on they are renewed
/// on the same occasions again. True if there was something of that.
pub fn settle(before: [&Sight; 2], after: [&Sight; 2], roots: [i32; 2], users: &[User]) -> bool {
    let then = before.map(Sight::times_of_inodes);
    let changed = |side: usize, place: &Spot| {
        let seen = after[side].0.get(place)?.as_ref().ok()?;
        let old = then[side].get(&seen.ino)?;
        Some([0, 1, 2].map(|n| seen.times[n] != old[n]))
    };
    let differs = |place: &&Spot| changed(0, place) != changed(1, place);
    let places: Vec<&Spot> = after[1].0.keys().filter(differs).collect();
    for place in &places {
        for side in [0, 1] {
            let (dir, path, flags) = match place {
                Spot::Named(path) => (roots[side], path.clone(), libc::AT_SYMLINK_NOFOLLOW),
                Spot::Open { user, slot } => {
                    (libc::AT_FDCWD, way_to(&users[*user], side, *slot), 0)
                }
            };
            let set = call(
                libc::SYS_utimensat,
                &[&dir, &c(&path), &Place::NONE, &flags],
            );
            assert_eq!(set, Ok(0), "{place}");
        }
    }
    !places.is_empty()
}

/// What differs in the content of files that may have been changed, or of all.
pub fn content_difference(
    before: [&Sight; 2],
    after: [&Sight; 2],
    roots: [i32; 2],
    users: &[User],
    all: bool,
) -> Option<String> {
    let nothing = Sight::default();
    let before = if all { [&nothing; 2] } else { before };
    let places: BTreeSet<&Spot> = [0, 1]
        .into_iter()
        .flat_map(|side| after[side].changed_files(before[side]))
        .collect();
    let mut looked_at = BTreeSet::new();
    for place in places {
        let Some(Ok(seen)) = after[0].0.get(place) else {
            continue;
        };
        if looked_at.contains(&seen.ino) {
            continue;
        }
        if let Spot::Open { user, slot } = place
            && is_path_alone(&users[*user], 0, *slot)
        {
            continue;
        }
        looked_at.insert(seen.ino);
        let size = seen.attributes.size.unwrap_or(0) as usize;
        let contents = [0, 1].map(|side| match place {
            Spot::Named(path) => content(roots[side], path, libc::O_NOFOLLOW, size),
            Spot::Open { user, slot } => {
                content(libc::AT_FDCWD, &way_to(&users[*user], side, *slot), 0, size)
            }
        });
        match contents {
            [Ok(our), Ok(their)] => {
                let first = our.iter().zip(&their).position(|(our, their)| our != their);
                if let Some(at) = first {
                    let (our, their) = (our[at], their[at]);
                    return Some(format!(
                        "{place}: byte {at} of {size} is {our}, not {their}"
                    ));
                }
                if our.len() != their.len() {
                    let (our, their) = (our.len(), their.len());
                    return Some(format!("{place}: {our} bytes can be read, not {their}"));
                }
            }
            [our, their] if our.as_ref().err() == their.as_ref().err() => {}
            [our, their] => {
                let (our, their) = (our.map(|_| ()), their.map(|_| ()));
                return Some(format!("{place}: reading it is {our:?}, not {their:?}"));
            }
        }
    }
    None
}

fn content(dir: i32, path: &str, flags: i32, size: usize) -> Result<Vec<u8>, i32> {
    let flags = flags | libc::O_RDONLY | libc::O_NOATIME | libc::O_NONBLOCK;
    let fd = call(libc::SYS_openat, &[&dir, &c(path), &flags, &0])?;
    let mut bytes = vec![0; COMPARED + 4096];
    // Its beginning, and its end.
    let mut read = |from: usize, room: std::ops::Range<usize>| {
        let place = Place::of_mut(&mut bytes[room.clone()]);
        call(libc::SYS_pread64, &[&fd, &place, &room.len(), &from])
    };
    let first = read(0, 0..COMPARED);
    let last = match size > COMPARED {
        true => read(size - 4096, COMPARED..COMPARED + 4096),
        false => Ok(0),
    };
    raw::close(fd as i32)?;
    let (first, last) = (first?, last?);
    bytes.copy_within(COMPARED..COMPARED + last, first);
    bytes.truncate(first + last);
    Ok(bytes)
}

/// What differs in names, extended attributes and targets of links, of everything that is there.
pub fn deep_difference(
    roots: [i32; 2],
    below: &str,
    found: &mut BTreeSet<String>,
) -> Option<String> {
    let listed = roots.map(|root| {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOATIME | libc::O_NOFOLLOW;
        let fd = call(libc::SYS_openat, &[&root, &c(below), &flags, &0])?;
        let entries = raw::entries(fd as i32);
        raw::close(fd as i32)?;
        entries
    });
    let [Ok(ours), Ok(theirs)] = &listed else {
        return Some(format!(
            "{below}: the list is {:?}, not {:?}",
            listed[0], listed[1]
        ));
    };
    if ours != theirs {
        return Some(format!("{below}: the list is {ours:?}, not {theirs:?}"));
    }
    for (name, kind) in ours.clone() {
        if name == "." || name == ".." {
            continue;
        }
        let path = match below {
            "." => name,
            below => format!("{below}/{name}"),
        };
        let [our, their] = roots.map(|root| attributes_of(root, &path, kind));
        if our != their {
            return Some(format!("{path}: {our:?}, not {their:?}"));
        }
        let is_dir = kind == libc::DT_DIR;
        found.insert(path.clone());
        if is_dir && let Some(difference) = deep_difference(roots, &path, found) {
            return Some(difference);
        }
    }
    None
}

/// Extended attributes with their values, and the target of a link.
fn attributes_of(root: i32, path: &str, kind: u8) -> BTreeMap<String, Result<Vec<u8>, i32>> {
    let mut all = BTreeMap::new();
    let way = format!("/proc/self/fd/{root}/{path}");
    let mut bytes = vec![0; 65_536];
    let room = bytes.len();
    let place = |bytes: &mut Vec<u8>| Place::of_mut(&mut bytes[..]);
    let list = call(libc::SYS_llistxattr, &[&c(&way), &place(&mut bytes), &room]);
    let names: Vec<String> = match list {
        Ok(len) => bytes[..len]
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect(),
        Err(error) => {
            all.insert("the list of them".to_owned(), Err(error));
            Vec::new()
        }
    };
    for name in names {
        let arguments: [&dyn raw::Argument; 4] = [&c(&way), &c(&name), &place(&mut bytes), &room];
        let len = call(libc::SYS_lgetxattr, &arguments);
        all.insert(name, len.map(|len| bytes[..len].to_vec()));
    }
    if kind == libc::DT_LNK {
        let target = call(
            libc::SYS_readlinkat,
            &[&root, &c(path), &place(&mut bytes), &room],
        );
        all.insert(
            "its target".to_owned(),
            target.map(|len| bytes[..len].to_vec()),
        );
    }
    all
}
