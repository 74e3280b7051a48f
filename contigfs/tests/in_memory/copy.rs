//! Copying by clone: what is moved, what is durable, what is refused.

use std::sync::Arc;

use contigfs::{
    CopyRange, FileKind, FormatOptions, Fs, FsError, InodeNo, NewNode, SeekTo, SetAttr,
    WriteOptions,
};
use ftl::{MemDevice, OpenOptions, Volume};
use support::{assert_clean, content, fresh, name};

const ROOT: InodeNo = InodeNo::ROOT;
const GRAIN: u64 = 4096;

fn file<S: contigfs::BlockStore>(fs: &Fs<S>, label: &str, bytes: &[u8]) -> InodeNo {
    let ino = fs.create(ROOT, name(label), &NewNode::file()).unwrap().ino;
    fs.write(ino, 0, bytes, WriteOptions::default()).unwrap();
    ino
}

fn whole(from: InodeNo, to: InodeNo) -> CopyRange {
    CopyRange {
        from,
        from_offset: 0,
        to,
        to_offset: 0,
        len: u64::MAX >> 1,
    }
}

/// Whole grains, and the end of a file with them, are cloned: nothing is written, space is counted for both names, and
/// the copy is durable when the call returns, although the source was never synced. Then the two go their own ways.
#[test]
fn a_whole_file_is_cloned_and_durable() {
    let (store, fs) = fresh(1000);
    let bytes: Vec<u8> = (0..50_000u32).map(|n| (n % 251) as u8).collect();
    let (from, to) = (file(&fs, "from", &bytes), file(&fs, "to", b""));
    let free = fs.statfs().grains_free;
    let calls = store.calls();
    assert_eq!(fs.copy_range(&whole(from, to)), Ok(50_000));
    assert_eq!(store.calls() - calls, 2, "a batch and a sync, no write");
    assert_eq!(fs.statfs().grains_free, free - 13);
    let cut = Fs::mount(Arc::new(store.after_power_cut(|_| 0))).unwrap();
    assert!(content(&cut, to).unwrap() == bytes);
    assert_clean(cut.store());
    fs.write(from, 4096, &[0xee; 5000], WriteOptions::default())
        .unwrap();
    assert!(content(&fs, to).unwrap() == bytes);
    fs.unlink(ROOT, name("from")).unwrap();
    assert!(content(&fs, to).unwrap() == bytes);
    assert_clean(&store);
}

/// What is cloned inside of a file of which the media do not know yet how long it is is durable as well, with the size that
/// it takes.
#[test]
fn a_clone_below_an_end_that_is_not_durable() {
    const GRAIN: usize = 4096;
    let (store, fs) = fresh(1000);
    let bytes = [7; 4 * GRAIN];
    let (from, to) = (file(&fs, "from", &bytes), file(&fs, "to", b""));
    fs.write(to, 0, &[1; 20 * GRAIN], WriteOptions::default())
        .unwrap();
    let copy = CopyRange {
        to_offset: 8 * GRAIN as u64,
        len: bytes.len() as u64,
        ..whole(from, to)
    };
    assert_eq!(fs.copy_range(&copy), Ok(bytes.len() as u64));
    assert_eq!(fs.attr(to).unwrap().size, 20 * GRAIN as u64);
    let cut = Fs::mount(Arc::new(store.after_power_cut(|_| 0))).unwrap();
    let found = content(&cut, to).unwrap();
    assert_eq!(found.len(), 12 * GRAIN);
    assert!(found[8 * GRAIN..] == bytes && found[..8 * GRAIN] == [0; 8 * GRAIN]);
    assert_clean(cut.store());
    fs.fsync(to, contigfs::SyncScope::All).unwrap();
    let cut = Fs::mount(Arc::new(store.after_power_cut(|_| 0))).unwrap();
    assert_eq!(cut.attr(to).unwrap().size, 20 * GRAIN as u64);
}

/// A copy into the middle replaces just its bytes, holes stay holes, and what lies behind the end of the source is not
/// dragged along.
#[test]
fn edges_and_holes() {
    let (store, fs) = fresh(1000);
    let from = file(&fs, "from", &[1; 10_000]);
    fs.write(from, 40_960, &[2; 4096], WriteOptions::default())
        .unwrap();
    let to = file(&fs, "to", &[9; 60_000]);
    let copy = CopyRange {
        from,
        from_offset: 0,
        to,
        to_offset: 4096,
        len: 45_056,
    };
    assert_eq!(fs.copy_range(&copy), Ok(45_056));
    let mut expected = vec![9; 60_000];
    expected[4096..49_152].fill(0);
    expected[4096..14_096].fill(1);
    expected[45_056..49_152].fill(2);
    assert!(content(&fs, to).unwrap() == expected);
    assert_eq!(fs.seek(to, 4096, SeekTo::Hole), Ok(16_384));
    // Not a whole grain, and bytes of the target follow.
    let end = CopyRange {
        from_offset: 8192,
        len: 1808,
        ..copy
    };
    assert_eq!(fs.copy_range(&end), Ok(1808));
    expected[4096..5904].fill(1);
    assert!(content(&fs, to).unwrap() == expected);
    assert_clean(&store);
}

/// I9: what a crash has left behind the end of the source is not dragged along with its last grain.
#[test]
fn leftovers_behind_the_end_are_not_cloned() {
    let (store, fs) = fresh(1000);
    let from = file(&fs, "from", &[1; 5000]);
    fs.sync_all().unwrap();
    fs.write(from, 5000, &[0xee; 3000], WriteOptions::default())
        .unwrap();
    // The grain with the new bytes has reached the media, the new size has not.
    let fs = Fs::mount(Arc::new(store.after_power_cut(|n| n - 1))).unwrap();
    assert_eq!(fs.attr(from).unwrap().size, 5000);
    let to = file(&fs, "to", b"");
    assert_eq!(fs.copy_range(&whole(from, to)), Ok(5000));
    let longer = SetAttr {
        size: Some(8192),
        ..SetAttr::default()
    };
    fs.set_attr(to, &longer).unwrap();
    let bytes = content(&fs, to).unwrap();
    assert!(bytes[..5000] == [1; 5000] && bytes[5000..] == [0; 3192]);
}

/// What Linux refuses is refused; a source that ends before the range gives nothing.
#[test]
fn refusals() {
    let (_store, fs) = fresh(1000);
    let (a, b) = (file(&fs, "a", &[1; 20_000]), file(&fs, "b", b""));
    let copy = CopyRange {
        from: a,
        from_offset: 0,
        to: a,
        to_offset: 8192,
        len: 8193,
    };
    assert_eq!(fs.copy_range(&copy), Err(FsError::Invalid));
    assert_eq!(fs.copy_range(&CopyRange { len: 8192, ..copy }), Ok(8192));
    let behind = CopyRange {
        from_offset: 20_000,
        to: b,
        ..copy
    };
    assert_eq!(fs.copy_range(&behind), Ok(0));
    assert_eq!(fs.copy_range(&CopyRange { len: 0, ..behind }), Ok(0));
    let far = CopyRange {
        to: b,
        to_offset: 1 << 62,
        ..copy
    };
    assert_eq!(fs.copy_range(&far), Err(FsError::FileTooLarge));
    let overflow = CopyRange {
        to_offset: u64::MAX,
        ..far
    };
    assert_eq!(fs.copy_range(&overflow), Err(FsError::FileTooLarge));
    assert_eq!(fs.copy_range(&whole(ROOT, b)), Err(FsError::IsDirectory));
    let fifo = NewNode {
        kind: FileKind::Fifo,
        ..NewNode::file()
    };
    let fifo = fs.create(ROOT, name("fifo"), &fifo).unwrap().ino;
    assert_eq!(fs.copy_range(&whole(a, fifo)), Err(FsError::Invalid));
    let gone = fs.create(ROOT, name("gone"), &NewNode::file()).unwrap().ino;
    fs.unlink(ROOT, name("gone")).unwrap();
    assert_eq!(fs.copy_range(&whole(gone, a)), Err(FsError::NotFound));
}

/// A clone that does not fit changes nothing.
#[test]
fn a_full_volume_refuses_clones() {
    let (store, fs) = fresh(64);
    let (a, b) = (file(&fs, "a", &[1; 40 * 4096]), file(&fs, "b", &[2; 4096]));
    assert_eq!(fs.copy_range(&whole(a, b)), Err(FsError::NoSpace));
    assert_eq!(content(&fs, b).unwrap(), [2; 4096]);
    assert_clean(&store);
    fs.unlink(ROOT, name("a")).unwrap();
    assert_clean(&store);
}

/// Copying 600 MiB on a real volume moves none of it, in several batches, and both files survive a crash.
#[test]
fn large_copies_write_no_data() {
    const BYTES: u64 = 600 << 20;
    const CHUNK: usize = 1 << 20;
    let mut device = MemDevice::new(1600 << 20).unwrap();
    ftl::Ftl::format(&mut device, &ftl::FormatOptions::default()).unwrap();
    let open = |device| Volume::open(device, OpenOptions::default()).unwrap().0;
    let volume = Arc::new(open(device));
    Fs::format(&volume, &FormatOptions::default()).unwrap();
    let fs = Fs::mount(Arc::clone(&volume)).unwrap();
    let (from, to) = (file(&fs, "from", b""), file(&fs, "to", b""));
    let byte = |at: u64| (at / GRAIN % 253) as u8;
    let chunk = |at: u64| -> Vec<u8> {
        let grains = (0..CHUNK as u64 / GRAIN).map(|n| byte(at + n * GRAIN));
        grains.flat_map(|byte| [byte; GRAIN as usize]).collect()
    };
    for at in (0..BYTES).step_by(CHUNK) {
        fs.write(from, at, &chunk(at), WriteOptions::default())
            .unwrap();
    }
    fs.sync_all().unwrap();
    let written = || {
        let stats = volume.ftl().stats();
        let grains = stats.user_grains + stats.relocated_grains + stats.header_grains;
        (grains * GRAIN, stats.clones)
    };
    let before = written();
    assert_eq!(fs.copy_range(&whole(from, to)), Ok(BYTES));
    let after = written();
    println!(
        "copying 600 MiB: {} bytes written, {} clones",
        after.0 - before.0,
        after.1 - before.1
    );
    assert!(after.0 - before.0 < 1 << 20 && after.1 - before.1 == 3);
    let grow = SetAttr {
        size: Some(BYTES / 2),
        ..SetAttr::default()
    };
    fs.set_attr(from, &grow).unwrap();
    drop(fs);
    let volume = open(Arc::into_inner(volume).unwrap().into_device());
    let fs = Fs::mount(&volume).unwrap();
    let mut found = vec![0; CHUNK];
    for at in (0..BYTES).step_by(CHUNK) {
        fs.read(to, at, &mut found).unwrap();
        assert!(found == chunk(at), "at {at}");
    }
    assert_eq!(fs.attr(from).unwrap().grains, BYTES / 2 / GRAIN);
}
