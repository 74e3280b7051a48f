//! I1, I9 with relaxed metadata: after a power cut the tree is as it was after one of the last operations, never older than
//! the last `fsync` of anything, and the checker is content.

use std::sync::Arc;

use contigfs::{
    FileKind, Fs, FsError, FsOptions, InodeNo, MemStore, MetadataSync, NewNode, RenameMode,
    SetAttr, SyncScope, WriteOptions, XattrMode,
};
use support::oracle::picture_of;
use support::{Dice, assert_clean, fresh_with, name};

type TestFs = Fs<Arc<MemStore>>;

const ROOT: InodeNo = InodeNo::ROOT;
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn relaxed() -> FsOptions {
    FsOptions {
        metadata_sync: MetadataSync::Relaxed,
        ..FsOptions::default()
    }
}

/// What an operation makes durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Covers {
    Nothing,
    Everything,
}

/// Something somewhere; it may be refused.
fn act(fs: &TestFs, dice: &mut Dice) -> Result<Covers, FsError> {
    let mut any = || name(NAMES[dice.below(NAMES.len() as u64) as usize]);
    let (this, that) = (any(), any());
    let new = |kind| NewNode {
        kind,
        ..NewNode::file()
    };
    match dice.below(12) {
        0..=2 => drop(fs.create(ROOT, this, &new(FileKind::File))?),
        3 => drop(fs.create(ROOT, this, &new(FileKind::Directory))?),
        4 => fs.unlink(ROOT, this)?,
        5 => fs.rmdir(ROOT, this)?,
        6 | 7 => fs.rename(ROOT, this, ROOT, that, RenameMode::Replace)?,
        8 => {
            let set = SetAttr {
                perm: Some(dice.below(0o1000) as u16),
                ..SetAttr::default()
            };
            fs.set_attr(fs.lookup_path(path(this))?, &set)?;
        }
        9 => {
            let value = vec![7; dice.below(5000) as usize];
            let ino = fs.lookup_path(path(this))?;
            fs.set_xattr(ino, name("user.x"), &value, XattrMode::Set)?;
        }
        10 => {
            let ino = fs.lookup_path(path(this))?;
            let bytes = vec![dice.below(256) as u8; 1 + dice.below(9000) as usize];
            fs.write(ino, 0, &bytes, WriteOptions::default())?;
            fs.fsync(ino, SyncScope::Data)?;
            return Ok(Covers::Everything);
        }
        _ => {
            fs.sync_metadata()?;
            return Ok(Covers::Everything);
        }
    }
    Ok(Covers::Nothing)
}

fn path(name: &std::ffi::OsStr) -> String {
    format!("/{}", name.to_str().expect("plain names"))
}

#[test]
fn a_power_cut_leaves_what_some_operation_left() {
    let mut lost = 0;
    for seed in 0..60 {
        let mut dice = Dice::new(seed);
        let (store, fs) = fresh_with(4000, &relaxed());
        let mut pictures = vec![picture_of(&fs).unwrap()];
        let mut synced = 0;
        for step in 0..30 {
            let covers = act(&fs, &mut dice);
            pictures.push(picture_of(&fs).unwrap());
            if covers == Ok(Covers::Everything) {
                synced = pictures.len() - 1;
            }
            for cut in 0..3 {
                let left = store.after_power_cut(|n| match cut {
                    0 => 0,
                    1 => n - 1,
                    _ => dice.below(n as u64) as usize,
                });
                let left = Arc::new(left);
                assert_clean(&left);
                let mounted = Fs::mount(Arc::clone(&left)).unwrap();
                assert!(!mounted.is_damaged(), "seed {seed}, step {step}, cut {cut}");
                let found = picture_of(&mounted).unwrap();
                drop(mounted);
                let at = pictures[synced..].iter().position(|p| *p == found);
                assert!(
                    at.is_some(),
                    "seed {seed}, step {step}, cut {cut}: {found:#?}"
                );
                lost += usize::from(pictures.last() != Some(&found));
                assert_clean(&left);
            }
        }
    }
    // Else nothing was relaxed.
    assert!(lost > 500, "{lost} cuts lost something");
}
