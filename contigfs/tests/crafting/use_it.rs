//! What people do with a volume: look at it, mount it, repair it.

use std::sync::Arc;

use contigfs::{
    BlockStore, Care, FallocMode, FileKind, Fs, InodeNo, MemStore, NewNode, RenameMode, SetAttr,
    SyncScope, WriteOptions, XattrMode, check, check_volume, repair, repair_volume,
};
use ftl::inspect::Inspector;
use ftl::{LbaRange, OpenOptions, SegmentId, Volume};

use super::image::{ImageDevice, options, without_rebuild};
use support::{Dice, name};

const ROOT: InodeNo = InodeNo::ROOT;
/// Entries that a walk looks at; a crafted directory may have as many as it has room for.
const ENTRIES_MAX: usize = 400;

/// What is wrong with a volume, or why it can not be opened.
pub type Found = Result<Vec<String>, String>;

/// `fsck`, which must not write; and what opening it for use does, in memory.
pub fn look(image: &Arc<Vec<u8>>, options: OpenOptions) -> Found {
    let device = ImageDevice::new(image, true);
    let looked = check_volume(device, &options, &mut |_, _, _| {});
    let (report, mut device) = looked.map_err(|error| error.to_string())?;
    if let Ok(mut inspector) = Inspector::new(&mut device) {
        inspector.superblocks();
        inspector.checkpoints();
        for segment in 0..inspector.superblock().geometry.segment_count {
            inspector.headers(SegmentId(segment));
        }
    }
    Ok(report.problems())
}

/// `fsck -y`: what is left, and the image afterwards; none when it could not come to an end.
pub fn fsck(image: &Arc<Vec<u8>>, dice: &mut Dice) -> (Found, Option<Arc<Vec<u8>>>) {
    let device = ImageDevice::new(image, false);
    let done = repair_volume(device, &options(dice), Care::Full, true, &mut |_, _, _| {});
    match done {
        Ok((done, device)) => {
            let after = done.after.expect("asked for");
            (Ok(after.problems()), Some(device.into_image()))
        }
        Err(error) => (Err(error.to_string()), None),
    }
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
        0 => support::tight(),
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

pub fn names_of(fs: &Fs<impl BlockStore>, dir: InodeNo) -> Result<Vec<(String, InodeNo)>, ()> {
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

/// Everything that can be done with an image. Of a log that contradicts itself, with checksums that fit, nobody promises
/// that it says the same for ever; of files in a whole one, `honest`, this is promised.
pub fn everything(image: &Arc<Vec<u8>>, dice: &mut Dice, honest: bool) {
    let _ = look(image, options(dice));
    let (repaired, after) = fsck(image, dice);
    let is_well = repaired.is_ok_and(|problems| problems.is_empty());
    let after = after.unwrap_or_else(|| Arc::clone(image));
    if is_well {
        let found = look(&after, without_rebuild(dice));
        assert_eq!(found, Ok(Vec::new()), "a second look");
    }
    // In order: what is repaired is used in any case, what is not in some.
    let used = match is_well || dice.below(2) == 0 {
        true => use_volume(&after, dice),
        false => use_volume(image, dice),
    };
    if let Some(used) = used {
        let found = look(&used, without_rebuild(dice));
        let is_still = !(is_well && honest) || found == Ok(Vec::new());
        assert!(is_still, "use has damaged it: {found:?}");
    }
}

/// Everything that can be done with a file system.
pub fn everything_with_files(store: &Arc<MemStore>, dice: &mut Dice) {
    if dice.below(2) == 0 {
        use_files(store, dice);
    }
    let copy = store.duplicate();
    contigfs::check_with_data(&copy);
    if let Some(left) = repair_files(&copy) {
        assert_eq!(left, [] as [String; 0]);
        let copy = Arc::new(copy);
        let mounted = Fs::mount(Arc::clone(&copy));
        assert!(mounted.is_ok(), "what is well can be mounted");
        drop(mounted);
        use_files(&copy, dice);
        support::assert_clean(&copy);
    }
}
