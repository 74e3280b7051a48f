//! What the root records said when both are lost, as far as the rest of the file system tells.
//!
//! They are written together, so on an array both are mostly lost with one device. Where everything is they do not say: that
//! is the same in all versions. They announce what a reader must know, and of that more is announced here than may be there,
//! which costs nothing but that older programs refuse it.

use ftl::{GRAIN_BYTES, LbaRange};

use crate::error::{Corruption, FsError};
use crate::format::{
    COLD_BYTES, Features, HOT_BYTES, HOT_RANGE, InodeRecord, PROJECT_RANGE, ROOT_COPY_LBA,
    ROOT_DIR_RANGE, ROOT_LBA, RootRecord, XATTR_SPACE, parse_grain,
};
use crate::fs::{cold_place, hot_grains, hot_place, hot_records};
use crate::inode::InodeNo;
use crate::store::{BlockStore, ByteAddr, StoreError};
use crate::time::Timestamp;

/// A root record for a file system that has neither. None: one of them can be read, may be whole, or is of a later version,
/// or nothing says that there is a file system.
pub(crate) fn made_up(store: &impl BlockStore) -> Option<RootRecord> {
    let is_lost = |lba| {
        let mut bytes = [0; RootRecord::BYTES];
        match store.read(ByteAddr::new(lba, 0), &mut bytes) {
            Ok(()) => RootRecord::parse(&bytes).is_err_and(|corruption| !corruption.is_newer()),
            Err(error) => matches!(error, StoreError::Damaged { .. }),
        }
    };
    if !is_lost(ROOT_LBA) || !is_lost(ROOT_COPY_LBA) {
        return None;
    }
    if !has_inodes(store) && !has_names(store) {
        return None;
    }
    let mut features = Features::RELOCATIONS.with(Features::SNAPSHOTS);
    let is_there = |range: LbaRange| store.next_mapped(range).is_some();
    if is_there(XATTR_SPACE.lbas()) {
        features = features.with(Features::XATTRS);
    }
    if is_there(PROJECT_RANGE.lbas()) {
        features = features.with(Features::PROJECTS);
    }
    Some(RootRecord {
        created: root_directory(store).map_or_else(|_| Timestamp::now(), |root| root.btime),
        features,
    })
}

/// Whether any inode can be read: its checksum includes its number, so it is no chance.
fn has_inodes(store: &impl BlockStore) -> bool {
    let grains = HOT_RANGE.lbas().count;
    let mut found = hot_grains(store, grains).flat_map(|number| hot_records(store, number));
    found.next().is_some()
}

/// The same of an entry of the root directory, which is always at the same place.
fn has_names(store: &impl BlockStore) -> bool {
    let all = ROOT_DIR_RANGE.lbas();
    let mut next = all.start;
    let mut is_found = false;
    while let Some(lba) = store.next_mapped(LbaRange::new(next, all.end().0 - next.0)) {
        next = lba.offset(1);
        let mut grain = [0; GRAIN_BYTES];
        if store.read(ByteAddr::new(lba, 0), &mut grain).is_ok() {
            // What is damaged of it says nothing either way.
            let _ = parse_grain(InodeNo::ROOT, 0, &grain, |_, _| is_found = true);
        }
        if is_found || next == all.end() {
            break;
        }
    }
    is_found
}

fn root_directory(store: &impl BlockStore) -> Result<InodeRecord, FsError> {
    let (mut hot, mut cold) = ([0; HOT_BYTES], [0; COLD_BYTES]);
    let (lba, offset) = hot_place(InodeNo::ROOT);
    store.read(ByteAddr::new(lba, u64::from(offset)), &mut hot)?;
    let (lba, offset) = cold_place(InodeNo::ROOT);
    store.read(ByteAddr::new(lba, u64::from(offset)), &mut cold)?;
    let record = InodeRecord::parse(InodeNo::ROOT, &hot, &cold)?;
    record.ok_or(FsError::Corrupt(Corruption::NoFileSystem))
}
