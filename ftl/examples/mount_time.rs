//! Measures how long opening takes after a kill, over the size of the volume and its filling, and what checkpoints
//! cost while writing. The images are sparse (all data grains are zeros, and zeros are not stored), the maps are real.
//!
//! `mount_time DIRECTORY [GIB[:PERCENT] ...]`; run it in release. Without sizes: 1, 16 and 256 GiB, 10 and 95 % full.

use ftl::{
    Action, ActionId, Device, FileDevice, FormatOptions, Ftl, GRAIN_BYTES, Intent, Lba, LbaRange,
    MediaError, MediaOp, OpenOptions, Volume,
};
use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

/// A file that keeps only grains with something in them.
struct SparseFile {
    file: File,
    len_bytes: u64,
    done: VecDeque<(ActionId, Result<(), MediaError>)>,
}

impl SparseFile {
    fn carry_out(&self, op: MediaOp) -> std::io::Result<()> {
        match op {
            MediaOp::Read { offset, mut buf } => {
                // SAFETY: the completion is queued only after this function has returned.
                let bytes = unsafe { buf.bytes_mut() };
                self.file.read_exact_at(bytes, offset)
            }
            MediaOp::Write { offset, buf } => {
                // SAFETY: the completion is queued only after this function has returned.
                let bytes = unsafe { buf.bytes() };
                let grains = bytes.chunks_exact(GRAIN_BYTES).enumerate();
                for (index, grain) in grains {
                    let at = offset + (index * GRAIN_BYTES) as u64;
                    let words = grain.as_chunks::<8>().0;
                    let is_blank = words.iter().all(|word| *word == [0; 8]);
                    // What had been there before may have been a header: then it must go.
                    if is_blank {
                        let mut old = [0; 8];
                        self.file.read_exact_at(&mut old, at)?;
                        if old == [0; 8] {
                            continue;
                        }
                    }
                    self.file.write_all_at(grain, at)?;
                }
                Ok(())
            }
            MediaOp::Flush | MediaOp::Discard { .. } => Ok(()),
        }
    }
}

impl Device for SparseFile {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
    fn submit(&mut self, action: Action) {
        let result = self.carry_out(action.op).map_err(|_| MediaError::Io);
        self.done.push_back((action.id, result));
    }
    fn poll(&mut self, _wait: bool) -> Option<(ActionId, Result<(), MediaError>)> {
        self.done.pop_front()
    }
}

struct Image {
    gib: u64,
    percent: u64,
    grains: u64,
    /// Pages for checkpoints in percent of user grains, while overwriting at random.
    cost_percent: f64,
}

/// Fills a volume, overwrites it at random for some checkpoints, and kills it just before the next one.
fn build(path: &Path, gib: u64, percent: u64) -> Result<Image, Box<dyn Error>> {
    let capacity = (gib << 30) / GRAIN_BYTES as u64;
    let len_bytes = (gib << 30) / 100 * 127;
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    let len_bytes = len_bytes - len_bytes % GRAIN_BYTES as u64;
    file.set_len(len_bytes)?;
    let mut device = SparseFile {
        file,
        len_bytes,
        done: VecDeque::new(),
    };
    let format = FormatOptions {
        capacity_grains: Some(capacity),
        ..FormatOptions::default()
    };
    Ftl::format(&mut device, &format)?;
    let (volume, _) = Volume::open(device, OpenOptions::default())?;
    let page = vec![0; GRAIN_BYTES];
    let grains = capacity / 100 * percent;
    let write = |lba: u64| volume.write(lba * GRAIN_BYTES as u64, &page);
    for lba in 0..grains {
        write(lba)?;
    }
    let mut seed = 1u64;
    let mut overwrite = || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        write((seed >> 20) % grains)
    };
    // The cost is counted over whole checkpoints; the end comes shortly before one is due.
    let mut first: Option<ftl::Stats> = None;
    let mut last = volume.ftl().stats();
    let (mut counted, mut behind) = (last, last.header_grains);
    loop {
        for _ in 0..20_000 {
            overwrite()?;
        }
        let now = volume.ftl().stats();
        if now.checkpoints > last.checkpoints {
            first = first.or(Some(now));
            (counted, behind) = (now, now.header_grains);
        }
        last = now;
        let rounds = first.map_or(0, |f| counted.checkpoints - f.checkpoints);
        if rounds >= 3 && now.header_grains - behind > 3700 {
            break;
        }
    }
    let first = first.ok_or("no checkpoint was taken")?;
    volume.sync(LbaRange::ALL)?;
    let user = (counted.user_grains - first.user_grains) as f64;
    let cost = (counted.checkpoint_grains - first.checkpoint_grains) as f64;
    println!(
        "  built: {} checkpoints, {} skipped, {:.2} write amplification",
        last.checkpoints,
        last.checkpoints_skipped,
        last.write_amplification()
    );
    Ok(Image {
        gib,
        percent,
        grains,
        cost_percent: 100.0 * cost / user,
    })
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Opens the image as a kill has left it; returns how long that took, in milliseconds.
fn open(path: &Path, image: &Image) -> Result<f64, Box<dyn Error>> {
    let device = FileDevice::open(path)?;
    let start = Instant::now();
    let (volume, report) = Volume::open(device, OpenOptions::default())?;
    let opened = milliseconds(start);
    let start = Instant::now();
    drop(volume.page(Lba(image.grains / 3), Intent::Read)?);
    let first = milliseconds(start);
    let start = Instant::now();
    volume.load(LbaRange::ALL)?;
    let loaded = milliseconds(start);
    let mapped = volume.space().mapped;
    assert_eq!(mapped, image.grains, "the map is whole");
    println!(
        "{:>4} GiB {:>3} %: opened in {opened:7.1} ms ({} headers behind checkpoint {:?}), first read {first:6.2} ms, \
         whole map {loaded:8.1} ms; checkpoints cost {:.2} % of user writes",
        image.gib, image.percent, report.headers, report.checkpoint, image.cost_percent
    );
    Ok(opened)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let directory = args
        .next()
        .ok_or("usage: mount_time DIRECTORY [GIB[:PERCENT] ...]")?;
    let mut sizes: Vec<(u64, u64)> = Vec::new();
    for arg in args {
        let (gib, percent) = arg.split_once(':').unwrap_or((&arg, "95"));
        sizes.push((gib.parse()?, percent.parse()?));
    }
    if sizes.is_empty() {
        sizes = vec![(1, 10), (1, 95), (16, 10), (16, 95), (256, 10), (256, 95)];
    }
    let path = Path::new(&directory).join("mount_time.img");
    let (mut least, mut most) = (f64::MAX, 0f64);
    for (gib, percent) in sizes {
        let image = build(&path, gib, percent)?;
        File::open(&path)?.sync_all()?;
        let opened = open(&path, &image)?;
        (least, most) = (least.min(opened), most.max(opened));
        std::fs::remove_file(&path)?;
    }
    println!("slowest to fastest: {:.2}", most / least);
    Ok(())
}
