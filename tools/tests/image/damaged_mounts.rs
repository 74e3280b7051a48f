//! Damage and the mount (RELIABILITY I7, M5, M9): any byte of any structure is damaged, under a checksum that fits and
//! under one that does not, and real programs read the mount. What the damage belongs to answers `EIO`; everything else
//! reads as it was written, byte for byte; and the target goes on, and ends in order.
//!
//! `DAMAGED_MOUNTS` and `DAMAGED_SEED` choose more or others.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use crate::common::{FLASHNET, Target, can_mount, can_serve, chosen, pattern};
use ftl::{FileDevice, OpenOptions, Volume};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const GRAIN: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(60);
/// First grains of the parts of the space.
const HOT: u64 = 1 << 26;
const COLD: u64 = 1 << 28;
const ROOT_DIR: u64 = 1 << 32;
const XATTRS: u64 = (1 << 52) - (1 << 39);

/// What is damaged, and who may suffer from that.
#[derive(Clone, Debug)]
struct Damage {
    lba: u64,
    /// First byte, and how many.
    at: usize,
    len: usize,
    /// Numbers of inodes, of which nothing may be readable.
    victims: Vec<u64>,
    /// Only attributes of theirs.
    only_xattrs: bool,
}

/// Every path, with what it is.
#[derive(Clone, Debug)]
struct Entry {
    ino: u64,
    /// Numbers of the directories above it.
    above: Vec<u64>,
    is_dir: bool,
    content: Vec<u8>,
    xattr: Option<Vec<u8>>,
}

/// A volume with files in directories, written by a mount, and what is on it.
fn prepare(image: &Path, dir: &Path) -> BTreeMap<PathBuf, Entry> {
    let made = Command::new(FLASHNET)
        .args(["mkfs", "--size", "16MiB", "--segment-size", "64KiB"])
        .arg(image)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success(), "{said}");
    let target = serve(image, dir).expect("a new volume");
    for (n, sub) in ["", "d", "d/e"].iter().enumerate() {
        let sub = dir.join(sub);
        fs::create_dir_all(&sub).unwrap();
        for (m, label) in ["a", "b-with-a-longer-name-than-others"].iter().enumerate() {
            let content = pattern(GRAIN * (1 + m * 2) + 100, (n * 10 + m) as u64);
            fs::write(sub.join(label), content).unwrap();
        }
        let value = pattern(100 + n * 3000, n as u64);
        set_xattr(&sub.join("a"), &value).unwrap();
        symlink("d/a", sub.join("link")).unwrap();
    }
    // SAFETY: no arguments.
    unsafe { libc::sync() };
    let mut all = BTreeMap::new();
    walk(dir, dir, &[], &mut all);
    assert!(target.stop().success());
    all
}

fn walk(top: &Path, dir: &Path, above: &[u64], all: &mut BTreeMap<PathBuf, Entry>) {
    use std::os::unix::fs::MetadataExt;
    let ino = fs::metadata(dir).unwrap().ino();
    let above = [above, &[ino]].concat();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let known = fs::symlink_metadata(&path).unwrap();
        let content = match (known.is_dir(), known.is_symlink()) {
            (true, _) => Vec::new(),
            (_, true) => fs::read_link(&path)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes(),
            _ => fs::read(&path).unwrap(),
        };
        let xattr = match known.is_file() {
            true => get_xattr(&path).ok(),
            false => None,
        };
        let entry = Entry {
            ino: known.ino(),
            above: above.clone(),
            is_dir: known.is_dir(),
            content,
            xattr,
        };
        all.insert(path.strip_prefix(top).unwrap().to_owned(), entry);
        if known.is_dir() {
            walk(top, &path, &above, all);
        }
    }
}

fn serve(image: &Path, dir: &Path) -> Option<Target> {
    Target::try_start(&[image.to_str().unwrap(), "--mount", dir.to_str().unwrap()])
}

fn c_path(path: &Path) -> std::ffi::CString {
    std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap()
}

fn set_xattr(path: &Path, value: &[u8]) -> io::Result<()> {
    let path = c_path(path);
    let data = value.as_ptr().cast();
    // SAFETY: strings that end with zero, and bytes that outlive the call.
    let done = unsafe { libc::setxattr(path.as_ptr(), c"user.a".as_ptr(), data, value.len(), 0) };
    if done < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn get_xattr(path: &Path) -> io::Result<Vec<u8>> {
    let path = c_path(path);
    let mut value = vec![0; 1 << 16];
    let data = value.as_mut_ptr().cast();
    // SAFETY: strings that end with zero, and room for as many bytes as it says.
    let len = unsafe { libc::getxattr(path.as_ptr(), c"user.a".as_ptr(), data, value.len()) };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    value.truncate(len as usize);
    Ok(value)
}

/// Chooses something to damage.
fn choose(dice: &mut SmallRng, all: &BTreeMap<PathBuf, Entry>) -> Damage {
    let inos: Vec<u64> = all.values().map(|entry| entry.ino).collect();
    let ino = inos[dice.random_range(0..inos.len())];
    let (lba, at, len, victims) = match dice.random_range(0..6) {
        // One of two, or found again from the rest: nobody.
        0 => (dice.random_range(0..2), dice.random_range(0..64), 1, vec![]),
        1 => (HOT, dice.random_range(0..32), 1, vec![]),
        2 => {
            let at = (ino % 128) as usize * 32 + dice.random_range(0..32);
            (HOT + ino / 128, at, 1, vec![ino])
        }
        3 => {
            let at = (ino % 32) as usize * 128 + dice.random_range(0..128);
            (COLD + ino / 32, at, 1, vec![ino])
        }
        4 => {
            // Whatever is in the root directory.
            (ROOT_DIR, dice.random_range(0..64), 4, vec![1])
        }
        _ => {
            let with: Vec<u64> = all
                .values()
                .filter(|e| e.xattr.is_some())
                .map(|e| e.ino)
                .collect();
            let ino = with[dice.random_range(0..with.len())];
            (XATTRS + ino, dice.random_range(0..100), 1, vec![ino])
        }
    };
    Damage {
        lba,
        at,
        len,
        victims,
        only_xattrs: lba >= XATTRS,
    }
}

/// Under a log whose checksums fit: the structure itself has to notice.
fn under_the_checksum(image: &Path, damage: &Damage) {
    let device = FileDevice::open(image).unwrap();
    let name = image.display().to_string();
    let device = ftl::ArrayDevice::assemble(vec![(name, device)], false).unwrap();
    let (volume, _) = Volume::open(device, OpenOptions::default()).unwrap();
    let at = damage.lba * GRAIN as u64 + damage.at as u64;
    let mut bytes = vec![0; damage.len];
    volume.read(at, &mut bytes).unwrap();
    bytes.iter_mut().for_each(|byte| *byte ^= 0x21);
    volume.write(at, &bytes).unwrap();
    volume.shutdown().unwrap();
}

/// On the media: the whole grain is lost. Answers whether it is on the media at all.
fn on_the_media(image: &Path, lba: u64, at: usize) -> bool {
    let mut device = FileDevice::open(image).unwrap();
    let map = ftl::check(&mut device).unwrap().map;
    drop(device);
    let Some(ftl::Checked::Data { pba, .. }) = map.get(&ftl::Lba(lba)) else {
        return false;
    };
    let place = pba.0 * GRAIN as u64 + at as u64;
    let file = File::options().read(true).write(true).open(image).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, place).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], place).unwrap();
    true
}

/// Reads everything. What a victim is concerned with may fail with `EIO`; nothing else may, and no byte may be another.
fn read_all(dir: &Path, all: &BTreeMap<PathBuf, Entry>, damage: &Damage) -> Result<(), String> {
    let suffers = |entry: &Entry| {
        let of_it = |ino: &u64| damage.victims.contains(ino);
        !damage.only_xattrs && (of_it(&entry.ino) || entry.above.iter().any(of_it))
    };
    let judge = |path: &Path, entry: &Entry, error: io::Error, xattr: bool| {
        let may_fail = suffers(entry) || xattr && damage.victims.contains(&entry.ino);
        match may_fail && error.raw_os_error() == Some(libc::EIO) {
            true => Ok(()),
            false => Err(format!("{}: {error}", path.display())),
        }
    };
    for (path, entry) in all {
        let at = dir.join(path);
        let read = if entry.is_dir {
            fs::read_dir(&at).and_then(|mut names| names.try_for_each(|name| name.map(drop)))
        } else {
            content(&at).and_then(|bytes| match bytes == entry.content {
                true => Ok(()),
                false => Err(io::Error::other("other bytes")),
            })
        };
        if let Err(error) = read {
            judge(path, entry, error, false)?;
        }
        let Some(wanted) = &entry.xattr else {
            continue;
        };
        match get_xattr(&at) {
            Ok(value) if value == *wanted => {}
            Ok(_) => return Err(format!("{}: another attribute", path.display())),
            Err(error) => judge(path, entry, error, true)?,
        }
    }
    Ok(())
}

fn content(path: &Path) -> io::Result<Vec<u8>> {
    if fs::symlink_metadata(path)?.is_symlink() {
        return Ok(fs::read_link(path)?.into_os_string().into_encoded_bytes());
    }
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Does something with the mount, which may hang.
fn in_time<R: Send + 'static>(act: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    let (tell, hear) = mpsc::channel();
    std::thread::spawn(move || tell.send(act()));
    hear.recv_timeout(PATIENCE).ok()
}

#[test]
fn damage_stays_where_it_is() {
    if !can_serve() || !can_mount() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (whole, image) = (place.path().join("whole"), place.path().join("image"));
    let dir = place.path().join("mnt");
    fs::create_dir(&dir).unwrap();
    let all = prepare(&whole, &dir);
    let first = chosen("DAMAGED_SEED", 1);
    for seed in first..first + chosen("DAMAGED_MOUNTS", 16) {
        let mut dice = SmallRng::seed_from_u64(seed);
        fs::copy(&whole, &image).unwrap();
        let mut damage = choose(&mut dice, &all);
        if dice.random_range(0..3) == 0 {
            // All inodes whose records are in the grain; the root directory is made up again.
            let (first, count) = match damage.lba {
                lba if (HOT..HOT + 4).contains(&lba) => ((lba - HOT) * 128, 128),
                lba if (COLD..COLD + 16).contains(&lba) => ((lba - COLD) * 32, 32),
                _ => (0, 0),
            };
            damage.victims.extend(first..first + count);
            damage
                .victims
                .retain(|&ino| ino != 1 || damage.lba == ROOT_DIR);
            if !on_the_media(&image, damage.lba, damage.at) {
                continue;
            }
        } else {
            under_the_checksum(&image, &damage);
        }
        let target = serve(&image, &dir);
        let target = target.unwrap_or_else(|| panic!("seed {seed}: {damage:?}: refused"));
        let (top, everything, what) = (dir.clone(), all.clone(), damage.clone());
        let read = in_time(move || read_all(&top, &everything, &what));
        match read {
            Some(Ok(())) => {}
            Some(Err(wrong)) => panic!("seed {seed}: {damage:?}: {wrong}"),
            None => {
                target.kill();
                panic!("seed {seed}: {damage:?}: it hangs");
            }
        }
        assert!(target.stop().success(), "seed {seed}: {damage:?}");
        // And a repair leaves nothing to complain about.
        let fsck = |options: &str| {
            let mut command = Command::new(FLASHNET);
            let output = command
                .args(["fsck", options])
                .arg(&image)
                .output()
                .unwrap();
            let said = [&output.stdout[..], &output.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(
                output.status.success(),
                "seed {seed}: {damage:?}: {options}: {said}"
            );
        };
        fsck("-y");
        fsck("-n");
    }
}
