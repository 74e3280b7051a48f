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
use std::process::{Command, Stdio};
use std::time::Instant;

/// Openings of each image.
const OPENINGS: usize = 5;

/// A file that keeps only grains with something in them.
struct SparseFile {
    file: File,
    len_bytes: u64,
    /// Grains with something in them.
    stored: Vec<bool>,
    done: VecDeque<(ActionId, Result<(), MediaError>)>,
}

impl SparseFile {
    fn carry_out(&mut self, op: MediaOp) -> std::io::Result<()> {
        match op {
            MediaOp::Read { offset, mut buf } => {
                // SAFETY: the completion is queued only after this function has returned.
                let bytes = unsafe { buf.bytes_mut() };
                self.file.read_exact_at(bytes, offset)
            }
            MediaOp::Write { offset, buf, .. } => {
                // SAFETY: the completion is queued only after this function has returned.
                let bytes = unsafe { buf.bytes() };
                let grains = bytes.chunks_exact(GRAIN_BYTES).enumerate();
                for (index, grain) in grains {
                    let at = offset + (index * GRAIN_BYTES) as u64;
                    let words = grain.as_chunks::<8>().0;
                    let is_blank = words.iter().all(|word| *word == [0; 8]);
                    // What had been there before may have been a header: then it must go.
                    let stored = &mut self.stored[at as usize / GRAIN_BYTES];
                    if !is_blank || *stored {
                        self.file.write_all_at(grain, at)?;
                    }
                    *stored = !is_blank;
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
        stored: vec![false; len_bytes as usize / GRAIN_BYTES],
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
    let mut interval = u64::MAX;
    loop {
        for _ in 0..4_000 {
            overwrite()?;
        }
        let now = volume.ftl().stats();
        if now.checkpoints > last.checkpoints {
            first = first.or(Some(now));
            interval = now.header_grains - behind;
            (counted, behind) = (now, now.header_grains);
        }
        last = now;
        let rounds = first.map_or(0, |f| counted.checkpoints - f.checkpoints);
        if rounds >= 3 && now.header_grains - behind > interval / 10 * 9 {
            break;
        }
    }
    let first = first.ok_or("no checkpoint was taken")?;
    volume.sync(LbaRange::ALL)?;
    let user = (counted.user_grains - first.user_grains) as f64;
    let cost = (counted.checkpoint_grains - first.checkpoint_grains) as f64;
    println!(
        "  built: {} checkpoints, {} skipped, {:.2} write amplification, {:.1} bytes of headers per grain",
        last.checkpoints,
        last.checkpoints_skipped,
        last.write_amplification(),
        (last.header_grains * GRAIN_BYTES as u64) as f64
            / (last.user_grains + last.relocated_grains) as f64
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

/// Bytes of memory that this process really has, page cache not included.
fn resident_bytes() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kib.ok_or("no RssAnon")?.parse::<u64>()? << 10)
}

/// Gives back what only recovery needed and the allocator keeps.
fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no memory of ours.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Opens an image as a kill has left it, in a process of its own: prints how long that took, in milliseconds, and
/// says the rest on the error output.
fn open(path: &Path, grains: u64) -> Result<(), Box<dyn Error>> {
    let device = FileDevice::open(path)?;
    let before = resident_bytes()?;
    let start = Instant::now();
    let (volume, report) = Volume::open(device, OpenOptions::default())?;
    let opened = milliseconds(start);
    eprint!(
        "  opened in {opened:.1} ms ({} headers behind checkpoint {:?}), ",
        report.headers, report.checkpoint
    );
    let start = Instant::now();
    drop(volume.page(Lba(grains / 3), Intent::Read)?);
    let first = milliseconds(start);
    let start = Instant::now();
    volume.load(LbaRange::ALL)?;
    let loaded = milliseconds(start);
    let mapped = volume.space().mapped;
    assert_eq!(mapped, grains, "the map is whole");
    give_back();
    let memory = resident_bytes()?.saturating_sub(before) as f64 / mapped as f64;
    println!("{opened}");
    eprintln!(
        "first read {first:.2} ms, whole map {loaded:.1} ms, {memory:.2} bytes of memory per mapped grain"
    );
    Ok(())
}

/// The median of several openings: none of them shuts down, so each finds the same log.
fn open_elsewhere(path: &Path, image: &Image) -> Result<f64, Box<dyn Error>> {
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..OPENINGS {
        let output = Command::new(std::env::current_exe()?)
            .arg("--open")
            .arg(path)
            .arg(image.grains.to_string())
            .stderr(Stdio::inherit())
            .output()?;
        times.push(String::from_utf8(output.stdout)?.trim().parse()?);
    }
    times.sort_by(f64::total_cmp);
    let opened = times[OPENINGS / 2];
    println!(
        "{:>4} GiB {:>3} %: {opened:.1} ms; checkpoints cost {:.2} % of user writes",
        image.gib, image.percent, image.cost_percent
    );
    Ok(opened)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let directory = args
        .next()
        .ok_or("usage: mount_time DIRECTORY [GIB[:PERCENT] ...]")?;
    if directory == "--open" {
        let path = args.next().ok_or("no image")?;
        let grains = args.next().ok_or("no number of grains")?;
        return open(Path::new(&path), grains.parse()?);
    }
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
        let opened = open_elsewhere(&path, &image)?;
        (least, most) = (least.min(opened), most.max(opened));
        std::fs::remove_file(&path)?;
    }
    println!("slowest to fastest: {:.2}", most / least);
    Ok(())
}
