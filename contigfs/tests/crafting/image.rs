//! Images of small volumes with everything in them, and devices on them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use contigfs::{
    BlockStore, CopyRange, FallocMode, Fs, InodeNo, MemStore, NewNode, SetAttr, WriteOptions,
    XattrMode,
};
use ftl::{
    Action, ActionId, Device, Ftl, GRAIN_BYTES, LbaRange, MediaError, MediaOp, MemDevice,
    OpenOptions, Volume,
};

use support::oracle::DEFAULT;
use support::{Dice, acl, name};

const ROOT: InodeNo = InodeNo::ROOT;
pub const DEVICE_BYTES: usize = 6 << 20;

/// Operations that one look at an image may need.
const OPERATIONS_MAX: usize = 200_000;

/// A device on an image that others use, too. What is written stays here; on one that is read only, nothing may be.
#[derive(Debug)]
pub struct ImageDevice {
    image: Arc<Vec<u8>>,
    changed: HashMap<u64, Box<[u8; GRAIN_BYTES]>>,
    read_only: bool,
    operations: usize,
    done: VecDeque<(ActionId, Result<(), MediaError>)>,
}

impl ImageDevice {
    pub fn new(image: &Arc<Vec<u8>>, read_only: bool) -> Self {
        Self {
            image: Arc::clone(image),
            changed: HashMap::new(),
            read_only,
            operations: 0,
            done: VecDeque::new(),
        }
    }

    /// What it holds now.
    pub fn into_image(self) -> Arc<Vec<u8>> {
        let mut image = Vec::clone(&self.image);
        for (grain, bytes) in self.changed {
            let at = grain as usize * GRAIN_BYTES;
            image[at..at + GRAIN_BYTES].copy_from_slice(&bytes[..]);
        }
        Arc::new(image)
    }

    fn carry_out(&mut self, op: MediaOp) {
        self.operations += 1;
        assert!(self.operations < OPERATIONS_MAX, "it works and works");
        match op {
            MediaOp::Read { offset, mut buf } => {
                // SAFETY: the completion is queued only after this function has returned.
                let bytes = unsafe { buf.bytes_mut() };
                let first = offset / GRAIN_BYTES as u64;
                for (no, to) in (first..).zip(bytes.chunks_exact_mut(GRAIN_BYTES)) {
                    let old = &self.image[no as usize * GRAIN_BYTES..][..GRAIN_BYTES];
                    to.copy_from_slice(self.changed.get(&no).map_or(old, |bytes| &bytes[..]));
                }
            }
            MediaOp::Write { offset, buf, .. } => {
                assert!(!self.read_only, "a look has written");
                // SAFETY: as above.
                let bytes = unsafe { buf.bytes() };
                let first = offset / GRAIN_BYTES as u64;
                for (no, from) in (first..).zip(bytes.chunks_exact(GRAIN_BYTES)) {
                    let from: [u8; GRAIN_BYTES] = from.try_into().expect("a grain");
                    self.changed.insert(no, Box::new(from));
                }
            }
            MediaOp::Flush => {}
            MediaOp::Discard { .. } => assert!(!self.read_only, "a look has discarded"),
        }
    }
}

impl Device for ImageDevice {
    fn len_bytes(&self) -> u64 {
        self.image.len() as u64
    }

    fn submit(&mut self, action: Action) {
        let end = |offset: u64, len: usize| offset + len as u64 <= self.len_bytes();
        let inside = match &action.op {
            MediaOp::Read { offset, buf } => end(*offset, buf.len()),
            MediaOp::Write { offset, buf, .. } => end(*offset, buf.len()),
            MediaOp::Flush | MediaOp::Discard { .. } => true,
        };
        assert!(inside, "behind the end of the device");
        self.carry_out(action.op);
        self.done.push_back((action.id, Ok(())));
    }

    fn poll(&mut self, _wait: bool) -> Option<(ActionId, Result<(), MediaError>)> {
        self.done.pop_front()
    }
}

/// Ways to open a volume.
pub fn options(dice: &mut Dice) -> OpenOptions {
    OpenOptions {
        rebuild: dice.below(8) == 0,
        ..without_rebuild(dice)
    }
}

/// Those that believe what is saved of the map.
pub fn without_rebuild(dice: &mut Dice) -> OpenOptions {
    OpenOptions {
        pool_frames: 64,
        checkpoint_headers: 40,
        map_pages_eager: *dice.pick(&[64, 0]),
        ..OpenOptions::default()
    }
}

/// Images at several moments of a volume's life, shut down and killed; each with directories, links, attributes, clones,
/// holes, reservations, files half freed, several sessions, checkpoints and a log behind them.
pub fn lives() -> Vec<Vec<u8>> {
    let mut device = MemDevice::new(DEVICE_BYTES).expect("memory");
    let format = ftl::FormatOptions {
        uuid: Some(*b"crafted-image-no"),
        segment_bytes: Some(16 * GRAIN_BYTES as u64),
        checkpoint_grains: Some(96),
        ..ftl::FormatOptions::default()
    };
    Ftl::format(&mut device, &format).expect("format");
    let mut lives = Vec::new();
    for life in 0..5u64 {
        let options = OpenOptions {
            pool_frames: 128,
            checkpoint_headers: 40,
            ..OpenOptions::default()
        };
        let (volume, _) = Volume::open(device, options).expect("open");
        let volume = Arc::new(volume);
        if life == 0 {
            Fs::format(&volume, &contigfs::FormatOptions::default()).expect("format");
        }
        let fs = Fs::mount_with(Arc::clone(&volume), &support::tight()).expect("mount");
        live(&fs, life);
        drop(fs);
        if life % 2 == 0 {
            volume.shutdown().expect("shutdown");
        } else {
            volume.sync(LbaRange::ALL).expect("sync");
        }
        device = Arc::into_inner(volume).expect("the last").into_device();
        lives.push(device.image().to_vec());
    }
    lives
}

/// Three lives of a file system on a store that is nothing but a map, without the last unmount, so that there are files
/// to be freed and things left to end.
pub fn files() -> MemStore {
    let (store, fs) = support::fresh_with(20_000, &support::tight());
    for life in 0..3 {
        live(&fs, life);
    }
    drop(fs);
    store.duplicate()
}

/// One life of the file system.
pub fn live(fs: &Fs<impl BlockStore>, life: u64) {
    let plain = WriteOptions::default();
    let dir_name = format!("d{life}");
    let dir = fs.create(ROOT, name(&dir_name), &NewNode::directory());
    let dir = dir.expect("mkdir").ino;
    let mut files = Vec::new();
    for (n, label) in ["a", "b", "a-name-of-more-than-sixteen-bytes"]
        .iter()
        .enumerate()
    {
        let ino = fs
            .create(dir, name(label), &NewNode::file())
            .expect("create")
            .ino;
        for grain in [0, 1, 5 + n as u64, 9] {
            let bytes = vec![(life * 16 + grain) as u8 + 1; 4096];
            fs.write(ino, grain * 4096, &bytes, plain).expect("write");
        }
        files.push(ino);
    }
    let copy = CopyRange {
        from: files[0],
        from_offset: 0,
        to: files[1],
        to_offset: 16 * 4096,
        len: 8 * 4096,
    };
    fs.copy_range(&copy).expect("clone");
    fs.fallocate(files[2], 4096, 4096, FallocMode::PunchHole)
        .expect("punch");
    let reserve = FallocMode::Allocate { keep_size: true };
    fs.fallocate(files[2], 20 * 4096, 5 * 4096, reserve)
        .expect("reserve");
    fs.set_xattr(files[0], name("user.a"), &[7; 4200], XattrMode::Set)
        .expect("attribute");
    fs.set_xattr(dir, name(DEFAULT), &acl::extended(), XattrMode::Set)
        .expect("list");
    fs.symlink(ROOT, name(&format!("l{life}")), name("d0/a"), 0, 0)
        .expect("symlink");
    fs.link(files[1], ROOT, name(&format!("hard{life}")))
        .expect("link");
    let inner = fs
        .create(dir, name("inner"), &NewNode::directory())
        .expect("mkdir")
        .ino;
    for n in 0..20 {
        let label = format!("{n}-some-name-to-fill-a-directory");
        fs.create(inner, name(&label), &NewNode::file())
            .expect("create");
    }
    let open = fs.lookup(dir, name("inner")).expect("there").ino;
    let gone = fs
        .create(open, name("gone"), &NewNode::file())
        .expect("create")
        .ino;
    fs.write(gone, 0, &[1; 100], plain).expect("write");
    fs.open(gone).expect("open");
    fs.unlink(open, name("gone")).expect("unlink");
    if life > 1 {
        let old = fs.lookup_path(format!("/d{}/a", life - 2)).expect("there");
        let size = SetAttr {
            size: Some(3 * 4096 + 5),
            ..SetAttr::default()
        };
        fs.set_attr(old, &size).expect("truncate");
        fs.write(old, 100, &[9; 5000], plain).expect("write");
    }
    fs.sync_all().expect("sync");
    for round in 0..12 {
        fs.write(files[0], 100 * round, &[round as u8; 3000], plain)
            .expect("write");
        fs.sync_all().expect("sync");
    }
}
