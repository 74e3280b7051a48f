//! What people do with a volume: look at it, mount it, repair it.

use std::sync::Arc;

use contigfs::{
    BlockStore, Care, FallocMode, FileKind, Fs, InodeNo, NewNode, RenameMode, SetAttr, SyncScope,
    WriteOptions, XattrMode, check, check_with_data, repair,
};
use ftl::inspect::Inspector;
use ftl::{Device, LbaRange, OpenOptions, SegmentId, Volume};

use super::image::{ImageDevice, options, without_rebuild};
use crate::support::{Dice, name};

const ROOT: InodeNo = InodeNo::ROOT;
/// Entries that a walk looks at; a crafted directory may have as many as it has room for.
const ENTRIES_MAX: usize = 400;

/// What is wrong with a volume, or why it can not be opened.
pub type Found = Result<Vec<String>, String>;

/// `fsck`, which must not write; and what opening it for use does, in memory.
pub fn look(image: &Arc<Vec<u8>>, options: OpenOptions) -> Found {
    let mut device = ImageDevice::new(image, true);
    let (mut problems, known) = log_problems(&mut device)?;
    if let Ok(mut inspector) = Inspector::new(&mut device) {
        inspector.superblocks();
        inspector.checkpoints();
        for segment in 0..inspector.superblock().geometry.segment_count {
            inspector.headers(SegmentId(segment));
        }
    }
    let overlay = ftl::OverlayDevice::new(device);
    let (volume, _) = Volume::open(overlay, options).map_err(|e| e.to_string())?;
    problems.extend(file_problems(&volume, known));
    Ok(problems)
}

/// As the command does it: data that the log does not speak of are read through the volume.
fn file_problems<D: Device>(volume: &Volume<D>, known: usize) -> Vec<String> {
    let report = match volume.space().mapped == known as u64 {
        true => check(volume),
        false => check_with_data(volume),
    };
    report.problems.iter().map(ToString::to_string).collect()
}

/// Of the log, and how many grains it says are mapped.
fn log_problems(device: &mut ImageDevice) -> Result<(Vec<String>, usize), String> {
    let log = ftl::check(device).map_err(|error| error.to_string())?;
    let mut problems = log.faults;
    problems.extend(log.damaged.iter().map(|lba| format!("{lba} is damaged")));
    if log.superblocks < 2 {
        problems.push("a superblock is damaged".into());
    }
    Ok((problems, log.map.len()))
}

/// `fsck -y`: what is left, and the image afterwards.
pub fn fsck(image: &Arc<Vec<u8>>, dice: &mut Dice) -> (Found, Arc<Vec<u8>>) {
    let device = ImageDevice::new(image, false);
    let (volume, _) = match Volume::open(device, options(dice)) {
        Ok(opened) => opened,
        Err(error) => return (Err(error.to_string()), Arc::clone(image)),
    };
    let repaired = repair(&volume, Care::Full);
    let mapped = volume.space().mapped as usize;
    let closed = volume.shutdown();
    let image = volume.into_device().into_image();
    let found = (|| {
        let report = repaired.map_err(|error| error.to_string())?;
        closed.map_err(|error| error.to_string())?;
        let mut device = ImageDevice::new(&image, true);
        let (mut problems, known) = log_problems(&mut device)?;
        if known == mapped {
            problems.extend(report.after.problems.iter().map(ToString::to_string));
            return Ok(problems);
        }
        let overlay = ftl::OverlayDevice::new(device);
        let opened = Volume::open(overlay, without_rebuild(dice));
        let (volume, _) = opened.map_err(|error| error.to_string())?;
        problems.extend(file_problems(&volume, known));
        Ok(problems)
    })();
    (found, image)
}

/// Mounts and tries everything; errors are fine. Answers what is on the device in the end.
pub fn use_volume(image: &Arc<Vec<u8>>, dice: &mut Dice) -> Option<Arc<Vec<u8>>> {
    let device = ImageDevice::new(image, false);
    let (volume, _) = Volume::open(device, options(dice)).ok()?;
    let volume = Arc::new(volume);
    use_files(&volume, dice);
    let _ = volume.load(LbaRange::ALL);
    let _ = volume.shutdown();
    Some(Arc::into_inner(volume)?.into_device().into_image())
}

/// The same with a file system on any store.
pub fn use_files<S: BlockStore + 'static>(store: &Arc<S>, dice: &mut Dice) {
    let options = match dice.below(2) {
        0 => crate::support::tight(),
        _ => contigfs::FsOptions::default(),
    };
    let Ok(fs) = Fs::mount_with(Arc::clone(store), &options) else {
        return;
    };
    let mut dirs = vec![ROOT];
    let mut left = ENTRIES_MAX;
    while let Some(dir) = dirs.pop() {
        let Ok(all) = names_of(&fs, dir) else {
            continue;
        };
        for (label, ino) in all {
            let Some(rest) = left.checked_sub(1) else {
                break;
            };
            left = rest;
            let Ok(attr) = fs.lookup(dir, name(&label)) else {
                continue;
            };
            match attr.kind {
                FileKind::Directory => dirs.push(ino),
                FileKind::Symlink => drop(fs.readlink(ino)),
                _ => {
                    let mut bytes = [0; 5000];
                    let _ = fs.read(ino, 0, &mut bytes);
                    let _ = fs.read(ino, attr.size.saturating_sub(100), &mut bytes);
                }
            }
            for key in fs.xattrs(ino).unwrap_or_default() {
                let _ = fs.xattr(ino, &key);
            }
            if dice.below(4) == 0 {
                change(&fs, dir, &label, ino, attr.size, dice);
            }
        }
    }
    let new = fs.create(ROOT, name("new"), &NewNode::file());
    if let Ok(new) = new {
        let _ = fs.write(new.ino, 5000, &[1; 9000], WriteOptions::default());
        let _ = fs.fsync(new.ino, SyncScope::All);
    }
    let _ = fs.create(ROOT, name("new-directory"), &NewNode::directory());
    let _ = fs.sync_all();
}

fn names_of(fs: &Fs<impl BlockStore>, dir: InodeNo) -> Result<Vec<(String, InodeNo)>, ()> {
    let mut all = Vec::new();
    let read = fs.readdir(dir, 0, |entry| {
        if let Some(name) = entry.name.to_str()
            && name != "."
            && name != ".."
        {
            all.push((name.to_owned(), entry.ino));
        }
        all.len() < ENTRIES_MAX
    });
    read.map_err(drop)?;
    Ok(all)
}

fn change<S: BlockStore>(
    fs: &Fs<Arc<S>>,
    dir: InodeNo,
    label: &str,
    ino: InodeNo,
    size: u64,
    dice: &mut Dice,
) {
    let plain = WriteOptions::default();
    let _ = match dice.below(10) {
        0 => fs.unlink(dir, name(label)),
        1 => fs.rmdir(dir, name(label)),
        2 => fs.rename(dir, name(label), ROOT, name("moved"), RenameMode::Replace),
        3 => {
            let size = SetAttr {
                size: Some(*dice.pick(&[0, 1, 5000, size / 2, size + 9000])),
                ..SetAttr::default()
            };
            fs.set_attr(ino, &size).map(drop)
        }
        4 => fs
            .write(ino, *dice.pick(&[0, 4000, size]), &[3; 6000], plain)
            .map(drop),
        5 => fs.link(ino, ROOT, name("linked")).map(drop),
        6 => {
            let hole = *dice.pick(&[FallocMode::PunchHole, FallocMode::CollapseRange]);
            fs.fallocate(ino, 4096, 4096, hole)
        }
        7 => fs.set_xattr(ino, name("user.b"), b"new", XattrMode::Set),
        8 => fs.create(ino, name("inherits"), &NewNode::file()).map(drop),
        _ => {
            let copy = contigfs::CopyRange {
                from: ino,
                from_offset: 0,
                to: ino,
                to_offset: size.saturating_add(8192) & !4095,
                len: 8192,
            };
            fs.copy_range(&copy).map(drop)
        }
    };
}

/// A file system on a store: looks, repairs, looks again. Answers what is left when the repair says that all is well.
pub fn repair_files<S: BlockStore>(store: &S) -> Option<Vec<String>> {
    let report = repair(store, Care::Full).ok()?;
    let again = check(store);
    assert_eq!(again, report.after, "what the repair says of the end");
    report.after.is_clean().then(|| {
        let problems = again.problems.iter();
        problems.map(ToString::to_string).collect()
    })
}
