//! A sequence of calls on both sides, compared after each; and the shortest one that still differs.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::call::Call;
use super::draw::Draw;
use super::exceptions;
use super::sight::{Sight, content_difference, deep_difference, difference, settle};
use super::user::{USERS, User};

/// Calls after which everything is looked at.
const DEEP: usize = 40;
/// How long a shorter sequence is looked for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Who calls what.
#[derive(Clone)]
pub struct Step {
    pub who: usize,
    pub call: Call,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (uid, ..) = USERS[self.who];
        write!(f, "{uid:>4}: {:?}", self.call)
    }
}

/// So many calls of a seed, behind those that make the directories in which most of it happens.
pub fn steps(seed: u64, count: usize) -> Vec<Step> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut draw = Draw(&mut rng);
    let dir = |path: &str, mode: u32| {
        let path = path.to_owned();
        let make = Call::MakeDir {
            path: path.clone(),
            mode: 0o777,
        };
        [make, Call::Chmod { path, mode }]
    };
    let first = [dir("p", 0o1777), dir("q", 0o2777)].concat();
    let group = Call::Chown {
        path: "q".to_owned(),
        owner: (u32::MAX, 2001),
        flags: 0,
    };
    let first = first
        .into_iter()
        .chain([group])
        .map(|call| Step { who: 0, call });
    first
        .chain((0..count).map(|_| Step {
            who: draw.who(),
            call: draw.call(),
        }))
        .collect()
}

/// Where a sequence ends, and why.
#[derive(Debug)]
pub struct Difference {
    pub after: usize,
    pub what: String,
}

/// Two file systems: ours, and one that is right.
pub struct Stage {
    mounts: [PathBuf; 2],
    runs: usize,
}

impl Stage {
    pub fn new(ours: &Path, theirs: &Path) -> Self {
        Self {
            mounts: [ours.to_owned(), theirs.to_owned()],
            runs: 0,
        }
    }

    /// A new directory on each side that everybody may use. Above it are more, for `..`.
    fn trees(&mut self) -> [OwnedFd; 2] {
        self.runs += 1;
        let name = format!("run{}", self.runs);
        self.mounts.each_ref().map(|mount| {
            let dir = mount.join(&name).join("above").join("tree");
            fs::create_dir_all(&dir).unwrap();
            let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
            fs::set_permissions(&dir, everybody).unwrap();
            let mut open = fs::OpenOptions::new();
            open.read(true)
                .custom_flags(libc::O_PATH | libc::O_DIRECTORY);
            OwnedFd::from(open.open(dir).unwrap())
        })
    }

    /// Where the sides first differ.
    pub fn run(&mut self, steps: &[Step]) -> Option<Difference> {
        let trees = self.trees();
        let difference = run(steps, trees.each_ref().map(AsRawFd::as_raw_fd));
        drop(trees);
        for mount in &self.mounts {
            fs::remove_dir_all(mount.join(format!("run{}", self.runs))).unwrap();
        }
        difference
    }

    /// Leaves out what can be left out, as long as the sides differ, whatever in.
    pub fn shorten(&mut self, mut steps: Vec<Step>, found: Difference) -> (Vec<Step>, Difference) {
        let begun = Instant::now();
        let mut found = found;
        steps.truncate(found.after + 1);
        let mut piece = steps.len() / 2;
        while piece > 0 {
            let mut at = 0;
            while at < steps.len() && begun.elapsed() < PATIENCE {
                let mut fewer = steps.clone();
                fewer.drain(at..(at + piece).min(steps.len()));
                match self.run(&fewer) {
                    Some(difference) => {
                        fewer.truncate(difference.after + 1);
                        (steps, found) = (fewer, difference);
                    }
                    None => at += piece,
                }
            }
            piece /= 2;
        }
        (steps, found)
    }
}

fn now(clock: i32) -> i128 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the place is there.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

/// Waits for the next tick, so that what is changed then has another time on ext4 too.
fn tick() -> i128 {
    let coarse = || now(libc::CLOCK_REALTIME_COARSE);
    let begun = coarse();
    loop {
        let now = coarse();
        if now != begun {
            return now;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn run(steps: &[Step], roots: [i32; 2]) -> Option<Difference> {
    let mut users: Vec<User> = USERS.map(|who| User::new(who, roots)).into_iter().collect();
    let mut paths = BTreeSet::from([".".to_owned()]);
    let look = |paths: &BTreeSet<String>, users: &[User]| {
        [0, 1].map(|side| Sight::of(roots[side], paths, users, side))
    };
    let mut before = look(&paths, &users);
    for (after, step) in steps.iter().enumerate() {
        let found = |what: String| Some(Difference { after, what });
        let started = tick();
        let user = &mut users[step.who];
        let [ours, theirs] = [0, 1].map(|side| user.does(side, &step.call));
        if ours != theirs && !exceptions::may_differ(&step.call) {
            let shown = |outcome: &super::user::Outcome| match &outcome.data[..] {
                data if data.len() > 300 => format!("{:?}, {} bytes", outcome.returned, data.len()),
                data => format!(
                    "{:?}, {:?}",
                    outcome.returned,
                    String::from_utf8_lossy(data)
                ),
            };
            return found(format!("{}, not {}", shown(&ours), shown(&theirs)));
        }
        if ours.returned.is_ok() {
            remember(&mut paths, &step.call);
        }
        let seen = look(&paths, &users);
        let (then, now) = (before.each_ref(), seen.each_ref());
        if let Some(what) = difference(then, now, started, &step.call) {
            return found(what);
        }
        let is_deep = after % DEEP == DEEP - 1 || after + 1 == steps.len();
        if let Some(what) = content_difference(then, now, roots, &users, is_deep) {
            return found(what);
        }
        if is_deep || matches!(step.call, Call::SetXattr { .. } | Call::Chmod { .. }) {
            let mut names = BTreeSet::from([".".to_owned()]);
            if let Some(what) = deep_difference(roots, ".", &mut names) {
                return found(what);
            }
            // Looking leaves no traces.
            let again = look(&paths, &users);
            if let Some(what) = difference(now, again.each_ref(), started, &step.call) {
                return found(format!("looked at: {what}"));
            }
            paths = seen[1].names().cloned().chain(names).collect();
        }
        before = match settle(then, now, roots, &users) {
            true => look(&paths, &users),
            false => seen,
        };
    }
    None
}

/// Names that a call may have made.
fn remember(paths: &mut BTreeSet<String>, call: &Call) {
    let trimmed = |path: &str| path.trim_end_matches('/').to_owned();
    match call {
        Call::Open { path, .. }
        | Call::MakeDir { path, .. }
        | Call::MakeNode { path, .. }
        | Call::Symlink { path, .. } => {
            paths.insert(trimmed(path));
        }
        Call::Link { to, .. } | Call::LinkOpen { to, .. } => {
            paths.insert(trimmed(to));
        }
        Call::Rename { from, to, .. } => {
            let (from, to) = (trimmed(from), trimmed(to));
            let moved = |path: &String, from: &str, to: &str| {
                let rest = path.strip_prefix(from)?;
                rest.starts_with('/').then(|| format!("{to}{rest}"))
            };
            let more: Vec<String> = paths
                .iter()
                .filter_map(|path| moved(path, &from, &to).or_else(|| moved(path, &to, &from)))
                .collect();
            paths.extend(more);
            paths.extend([from, to]);
        }
        _ => {}
    }
}
