//! I1, I2, I4, I9 of the whole: real targets on a disk that loses its power, used through a real mount and by a remote peer
//! at once. After every cut the volume has no problem, and everything that was acknowledged is there.
//!
//! `POWER_CUTS` and `POWER_SEED` choose more or others.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::fault_disk::FaultDisk;
use crate::common::{Target, can_mount, can_serve, good, pattern};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tools::client::{Session, SessionOptions};
use tools::control::{FLAG_WRITE, Op, Request};

const DISK_BYTES: usize = 64 << 20;
const LOCAL_WORKERS: usize = 3;
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const FILE_MAX: u64 = 60_000;
const SLOT: usize = 4096;
const SLOTS: usize = 64;

/// Files and their content: what has been acknowledged.
type Tree = BTreeMap<&'static str, Vec<u8>>;

/// One operation on the mount; durable when it returns.
#[derive(Clone, Debug)]
enum Step {
    Create(&'static str),
    /// And `fsync`, or with `O_DSYNC`.
    Write {
        name: &'static str,
        offset: u64,
        len: usize,
        byte: u8,
        dsync: bool,
    },
    Rename(&'static str, &'static str),
    Remove(&'static str),
    Truncate(&'static str, u64),
    /// By the kernel, hence by clone; and `fsync`.
    Copy(&'static str, &'static str),
}

impl Step {
    fn draw(rng: &mut SmallRng, tree: &Tree) -> Self {
        let any = NAMES[rng.random_range(0..NAMES.len())];
        let there: Vec<_> = tree.keys().copied().collect();
        if there.is_empty() || !tree.contains_key(any) && rng.random_range(0..3) == 0 {
            return Self::Create(any);
        }
        let name = there[rng.random_range(0..there.len())];
        match rng.random_range(0..20) {
            0..2 if name != any => Self::Rename(name, any),
            2 if there.len() > 2 => Self::Remove(name),
            3..5 => Self::Truncate(name, rng.random_range(0..FILE_MAX)),
            5..7 if name != any => Self::Copy(name, any),
            _ => Self::Write {
                name,
                offset: rng.random_range(0..FILE_MAX / 2),
                len: rng.random_range(1..FILE_MAX as usize / 2),
                byte: rng.random_range(1..=255),
                dsync: rng.random_range(0..2) == 0,
            },
        }
    }

    fn perform(&self, dir: &Path) -> io::Result<()> {
        match *self {
            Self::Create(name) => File::create_new(dir.join(name)).map(drop),
            Self::Write {
                name,
                offset,
                len,
                byte,
                dsync,
            } => {
                let flags = if dsync { libc::O_DSYNC } else { 0 };
                let file = OpenOptions::new()
                    .write(true)
                    .custom_flags(flags)
                    .open(dir.join(name))?;
                file.write_all_at(&vec![byte; len], offset)?;
                if dsync { Ok(()) } else { file.sync_data() }
            }
            Self::Rename(from, to) => fs::rename(dir.join(from), dir.join(to)),
            Self::Remove(name) => fs::remove_file(dir.join(name)),
            Self::Truncate(name, size) => OpenOptions::new()
                .write(true)
                .open(dir.join(name))?
                .set_len(size),
            Self::Copy(from, to) => {
                fs::copy(dir.join(from), dir.join(to))?;
                File::open(dir.join(to))?.sync_all()
            }
        }
    }

    fn apply(&self, tree: &mut Tree) {
        match *self {
            Self::Create(name) => drop(tree.insert(name, Vec::new())),
            Self::Write {
                name,
                offset,
                len,
                byte,
                ..
            } => {
                let file = tree.get_mut(name).expect("drawn from those that are there");
                let (start, end) = (offset as usize, offset as usize + len);
                file.resize(file.len().max(end), 0);
                file[start..end].fill(byte);
            }
            Self::Rename(from, to) => {
                let file = tree.remove(from).expect("drawn from those that are there");
                tree.insert(to, file);
            }
            Self::Remove(name) => drop(tree.remove(name)),
            Self::Truncate(name, size) => {
                let file = tree.get_mut(name).expect("drawn from those that are there");
                file.resize(size as usize, 0);
            }
            Self::Copy(from, to) => {
                let file = tree[from].clone();
                tree.insert(to, file);
            }
        }
    }

    /// The file of which a cut may leave a mixture of before and after.
    fn piecemeal(&self) -> Option<&'static str> {
        match *self {
            Self::Write { name, .. } | Self::Copy(_, name) => Some(name),
            _ => None,
        }
    }
}

/// A program that works in a directory of its own, one operation after the other.
struct Local {
    name: String,
    rng: SmallRng,
    tree: Tree,
    /// Begun and never answered.
    open: Option<Step>,
    done: usize,
}

impl Local {
    fn new(n: usize, seed: u64) -> Self {
        Self {
            name: format!("worker{n}"),
            rng: SmallRng::seed_from_u64(seed.wrapping_mul(31) + n as u64),
            tree: Tree::new(),
            open: None,
            done: 0,
        }
    }

    /// Works until it is told to stop, or something fails, as it does when the power is off.
    fn work(&mut self, mount: &Path, stop: &AtomicBool) {
        let dir = mount.join(&self.name);
        while !stop.load(Ordering::Relaxed) {
            let step = Step::draw(&mut self.rng, &self.tree);
            if let Err(error) = step.perform(&dir) {
                assert!(is_cut(&error), "{step:?}: {error}");
                self.open = Some(step);
                return;
            }
            step.apply(&mut self.tree);
            self.done += 1;
        }
    }

    /// What is there must be what was acknowledged, or that with what was under way; from now on it is what counts.
    fn judge(&mut self, mount: &Path) {
        let dir = mount.join(&self.name);
        let mut found = Tree::new();
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let label = path.file_name().unwrap().to_str().unwrap();
            let name = *NAMES.iter().find(|&&name| name == label).expect("ours");
            found.insert(name, fs::read(path).unwrap());
        }
        let open = self.open.take();
        let mut after = self.tree.clone();
        if let Some(step) = &open {
            step.apply(&mut after);
        }
        let piecemeal = open.as_ref().and_then(Step::piecemeal);
        let at = format!("{} with {open:?} under way", self.name);
        let names = |tree: &Tree| tree.keys().copied().collect::<Vec<_>>();
        assert!(
            [&self.tree, &after]
                .iter()
                .any(|tree| names(tree) == names(&found)),
            "{at}: {:?} were acknowledged, {:?} are there",
            names(&self.tree),
            names(&found)
        );
        let same = |tree: &Tree| {
            let others = |tree: &Tree| {
                let others = tree.iter().filter(|(name, _)| Some(**name) != piecemeal);
                others
                    .map(|(name, file)| (*name, file.clone()))
                    .collect::<Tree>()
            };
            others(tree) == others(&found)
        };
        assert!(
            same(&self.tree) || same(&after),
            "{at}: another content than was acknowledged: {}",
            differences(&self.tree, &found)
        );
        if let Some(file) = piecemeal.and_then(|name| found.get(name)) {
            let name = piecemeal.expect("just looked up");
            let before = self.tree.get(name).cloned().unwrap_or_default();
            let after = &after[name];
            assert!(
                file.len() <= before.len().max(after.len()),
                "{at}: too long"
            );
            let cleared = matches!(open, Some(Step::Copy(..)));
            assert!(cleared || file.len() >= before.len(), "{at}: too short");
            for (n, byte) in file.iter().enumerate() {
                // Copying empties its target first; growing brings zeros.
                let zero = *byte == 0 && (cleared || n >= before.len());
                let known = [before.get(n), after.get(n)].contains(&Some(byte));
                assert!(zero || known, "{at}: byte {n} of {name} is {byte}");
            }
        }
        self.tree = found;
    }
}

/// Where two trees differ.
fn differences(expected: &Tree, found: &Tree) -> String {
    let mut all = String::new();
    for (name, expected) in expected {
        let Some(found) = found.get(name) else {
            continue;
        };
        let unequal = |n: &usize| expected.get(*n) != found.get(*n);
        let longest = expected.len().max(found.len());
        let unequal: Vec<_> = (0..longest).filter(unequal).collect();
        if let (Some(first), Some(last)) = (unequal.first(), unequal.last()) {
            all += &format!(
                "{name}: {} bytes of {first}..={last} ({:?}.. instead of {:?}..; {} bytes long, not {}) ",
                unequal.len(),
                found.get(*first),
                expected.get(*first),
                found.len(),
                expected.len()
            );
        }
    }
    all
}

/// Errors of a mount whose target or disk is gone.
fn is_cut(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::ENOTCONN | libc::ECONNABORTED | libc::EROFS | libc::ENODEV)
    )
}

/// A peer that writes slots of one file through the sync STag.
struct Remote {
    rng: SmallRng,
    /// Version of each slot that was acknowledged, and the one under way.
    slots: Vec<u64>,
    open: Option<(usize, u64)>,
    done: usize,
}

impl Remote {
    const PATH: &str = "/slots";

    fn new(seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(!seed),
            slots: vec![0; SLOTS],
            open: None,
            done: 0,
        }
    }

    fn content(slot: usize, version: u64) -> Vec<u8> {
        match version {
            0 => vec![0; SLOT],
            version => pattern(SLOT, (slot as u64) << 32 | version),
        }
    }

    fn make(&self, mount: &Path) {
        let file = File::create(mount.join(&Self::PATH[1..])).unwrap();
        file.set_len((SLOT * SLOTS) as u64).unwrap();
    }

    fn work(&mut self, address: SocketAddr, stop: &AtomicBool) {
        let Ok(mut session) = Session::connect(address, SessionOptions::default()) else {
            return;
        };
        let request = Request {
            flags: FLAG_WRITE,
            length: (SLOT * SLOTS) as u64,
            ..Request::new(Op::Open, Self::PATH)
        };
        let Ok(file) = session.open(request) else {
            return;
        };
        while !stop.load(Ordering::Relaxed) {
            let slot = self.rng.random_range(0..SLOTS);
            let version = self.slots[slot] + 1;
            let bytes = Self::content(slot, version);
            self.open = Some((slot, version));
            let at = (slot * SLOT) as u64;
            let fill = |_, to: &mut [u8]| {
                to.copy_from_slice(&bytes);
                Ok(())
            };
            if session.write(&file, at, SLOT as u64, true, fill).is_err() {
                return;
            }
            self.slots[slot] = version;
            self.open = None;
            self.done += 1;
        }
    }

    fn judge(&mut self, mount: &Path) {
        let file = fs::read(mount.join(&Self::PATH[1..])).unwrap();
        assert_eq!(file.len(), SLOT * SLOTS, "size of the remote file");
        let open = self.open.take();
        for (slot, found) in file.chunks(SLOT).enumerate() {
            let version = self.slots[slot];
            if found == Self::content(slot, version) {
                continue;
            }
            let next = open.filter(|open| open.0 == slot).map(|open| open.1);
            let is_next = next.is_some_and(|next| found == Self::content(slot, next));
            assert!(
                is_next,
                "slot {slot} does not hold version {version}, {next:?} under way"
            );
            self.slots[slot] = version + 1;
        }
    }
}

/// A program that never syncs: nothing it wrote is promised, but none of it may turn up where it does not belong.
struct Loose {
    rng: SmallRng,
    done: u64,
}

impl Loose {
    const SLOTS: u64 = 2048;

    fn make(&self, mount: &Path) {
        let file = File::create(mount.join("loose")).unwrap();
        file.set_len(Self::SLOTS * SLOT as u64).unwrap();
    }

    fn work(&mut self, mount: &Path) {
        let Ok(file) = OpenOptions::new().write(true).open(mount.join("loose")) else {
            return;
        };
        loop {
            let slot = self.rng.random_range(0..Self::SLOTS - 16);
            let version: u32 = self.rng.random();
            let slots = slot..slot + 16;
            let bytes: Vec<u8> = slots
                .flat_map(|slot| Self::content(slot, version))
                .collect();
            if file.write_all_at(&bytes, slot * SLOT as u64).is_err() {
                return;
            }
            self.done += 1;
        }
    }

    fn content(slot: u64, version: u32) -> Vec<u8> {
        (slot << 32 | u64::from(version))
            .to_le_bytes()
            .repeat(SLOT / 8)
    }

    fn judge(&self, mount: &Path) {
        let file = fs::read(mount.join("loose")).unwrap();
        assert_eq!(file.len() as u64, Self::SLOTS * SLOT as u64);
        for (slot, found) in (0..).zip(file.chunks(SLOT)) {
            let version = u32::from_le_bytes(found[..4].try_into().unwrap());
            let is_blank = found.iter().all(|byte| *byte == 0);
            assert!(
                is_blank || found == Self::content(slot, version),
                "slot {slot} of the loose file"
            );
        }
    }
}

fn number(key: &str, default: u64) -> u64 {
    let chosen = std::env::var(key).ok();
    chosen.and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Lives of a volume that each end with a cut. A disk that lies does so from the first of them on.
fn cut_and_judge(mut disk: FaultDisk, lies: bool, cuts: u64, seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let beside = tempfile::tempdir().unwrap();
    let device = disk.path();
    let device = device.to_str().unwrap();
    let mount = beside.path();
    good(&["mkfs", device]);
    let arguments = [device, "--mount", mount.to_str().unwrap(), "--pool", "2MiB"];
    let start = || Target::try_start(&arguments);
    let mut locals: Vec<_> = (0..LOCAL_WORKERS).map(|n| Local::new(n, seed)).collect();
    let mut remote = Remote::new(seed);
    let mut loose = Loose {
        rng: SmallRng::seed_from_u64(seed),
        done: 0,
    };
    let target = start().expect("a fresh volume");
    for local in &locals {
        fs::create_dir(mount.join(&local.name)).unwrap();
    }
    remote.make(mount);
    loose.make(mount);
    assert!(target.stop().success());
    if lies {
        disk.lie();
    }
    let (mut torn, mut lost, mut cut_in_recovery) = (0, 0, 0);
    for cut in 0..cuts {
        let at = format!("cut {cut}, seed {seed}");
        // Some cuts hit recovery itself (I6).
        let early = rng.random_range(0..5) == 0;
        let delay = Duration::from_millis(rng.random_range(if early { 1..60 } else { 10..120 }));
        let (loose_end, stop) = (rng.random_range(0..2) == 0, AtomicBool::new(false));
        let disk_now = &disk;
        let target = thread::scope(|scope| {
            if early {
                scope.spawn(move || {
                    thread::sleep(delay);
                    disk_now.cut();
                });
            }
            start()
        });
        cut_in_recovery += usize::from(target.is_none());
        assert!(early || target.is_some(), "{at}: the target does not start");
        if let Some(mut target) = target {
            thread::scope(|scope| {
                // A target that got up before the disk was cut off can not be judged: it reads from a dead disk.
                if !early {
                    locals.iter_mut().for_each(|local| local.judge(mount));
                    remote.judge(mount);
                    loose.judge(mount);
                    let (stop, remote) = (&stop, &mut remote);
                    for local in &mut locals {
                        scope.spawn(move || local.work(mount, stop));
                    }
                    let address = target.address;
                    scope.spawn(move || remote.work(address, stop));
                    scope.spawn(|| loose.work(mount));
                    thread::sleep(delay);
                    // Nobody syncs any more, so more and more is not flushed.
                    stop.store(loose_end, Ordering::Relaxed);
                    thread::sleep(if loose_end { delay / 2 } else { Duration::ZERO });
                    disk_now.cut();
                }
                // Who waits for an answer gets none.
                target.halt();
            });
        }
        let damage = disk.restore();
        torn += damage.torn;
        lost += damage.lost;
        let report = good(&["fsck", device]);
        assert!(report.contains("0 problems"), "{at}: {report}");
    }
    let target = start().expect("the target starts");
    locals.iter_mut().for_each(|local| local.judge(mount));
    remote.judge(mount);
    loose.judge(mount);
    assert!(target.stop().success());
    let report = good(&["fsck", device]);
    assert!(report.contains("0 problems"), "at the end: {report}");
    let done: usize = locals.iter().map(|local| local.done).sum();
    println!(
        "{cuts} cuts, {cut_in_recovery} of them during recovery; {done} operations on the mount and {} remote writes \
         acknowledged; {lost} writes of the disk lost, {torn} torn, {} flushes",
        remote.done,
        disk.flushes()
    );
    // Cuts that damage nothing, or work that does nothing, would prove nothing.
    assert!(done > cuts as usize && remote.done > cuts as usize);
    assert!(lost + torn > 0);
}

#[test]
fn acknowledged_work_survives_power_cuts() {
    if !can_serve() || !can_mount() {
        return;
    }
    let (cuts, seed) = (number("POWER_CUTS", 100), number("POWER_SEED", 1));
    let disk = FaultDisk::new(DISK_BYTES, seed).unwrap();
    cut_and_judge(disk, false, cuts, seed);
}

/// The test above must be able to fail: a disk that does not keep what it has flushed is found out.
#[test]
fn a_disk_that_lies_is_found_out() {
    if !can_serve() || !can_mount() {
        return;
    }
    let disk = FaultDisk::new(DISK_BYTES, 1).unwrap();
    let judged = catch_unwind(AssertUnwindSafe(|| cut_and_judge(disk, true, 50, 1)));
    assert!(judged.is_err(), "nothing was missed");
}
