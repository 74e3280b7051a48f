//! `scrub`: reads everything that a volume holds, and names what does not fit its checksum.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use contigfs::Owner;
use ftl::inspect::Inspector;
use ftl::{
    Device, GRAIN_BYTES, Intent, Lba, LbaRange, MediaFault, OpenOptions, OverlayDevice,
    RecoveryReport, Volume, VolumeError,
};
use indicatif::ProgressBar;
use serde_json::json;

use super::show;
use crate::cli::device::Scrub;
use crate::control::printable;
use crate::devices::{self, Access, MediaPlaces};

/// Reads in flight.
const READERS: usize = 16;
/// Pages in memory: what is being read, with room to breathe.
const POOL_FRAMES: usize = 1024;
/// Grains that a reader takes at a time. The engine remembers 256 faults: all that the readers can meet between two
/// looks at them.
const PORTION: u64 = 16;
const _: () = assert!(READERS as u64 * PORTION <= 256);

/// Runs the command: exit 0 when everything fits.
pub(super) fn run(options: &Scrub, json: bool) -> Result<()> {
    let names = devices::names(&options.devices);
    let rate = options.rate.map(|rate| rate.as_u64());
    ensure!(
        rate.is_none_or(|rate| rate >= GRAIN_BYTES as u64),
        "--rate: at least 4KiB"
    );
    let access = match options.degraded {
        true => Access::Degraded,
        false => Access::Write,
    };
    let mut device = devices::open(&options.devices, access)?;
    let copies = Inspector::new(&mut device)
        .with_context(|| format!("cannot scrub {names}"))?
        .superblocks();
    let superblocks_damaged = copies.iter().filter(|copy| copy.is_err()).count();
    let start = Instant::now();
    // From the first write on what is on a missing device is out of date for good, which nobody wants of a look.
    let scrubbed = match options.degraded {
        true => scrub(OverlayDevice::new(device), options, rate)?,
        false => scrub(device, options, rate)?,
    };
    print(json, &scrubbed, start.elapsed(), superblocks_damaged);
    let lost = contigfs::lost_headers(&scrubbed.recovery);
    if let Some(lost) = &lost {
        eprintln!("{names}: {lost}");
    }
    if scrubbed.faults.is_empty() && superblocks_damaged == 0 && lost.is_none() {
        Ok(())
    } else {
        bail!("{names} is damaged")
    }
}

/// What was found.
struct Scrubbed {
    /// Grains.
    read: u64,
    faults: Vec<MediaFault>,
    /// Whose each of them is.
    owners: Vec<Option<Owner>>,
    /// What recovery has found. Nothing of it is seen afterwards.
    recovery: RecoveryReport,
    places: MediaPlaces,
}

fn scrub<D: Device + Send + 'static>(
    device: D,
    options: &Scrub,
    rate: Option<u64>,
) -> Result<Scrubbed> {
    let names = devices::names(&options.devices);
    let open = OpenOptions {
        pool_frames: POOL_FRAMES,
        ..OpenOptions::default()
    };
    let (volume, recovery) =
        Volume::open(device, open).with_context(|| format!("cannot open the volume on {names}"))?;
    let (read, faults) =
        read_all(&volume, rate).with_context(|| format!("cannot scrub {names}"))?;
    let damaged: Vec<Lba> = faults.iter().map(|fault| fault.lba).collect();
    let owners = contigfs::owners(&volume, &damaged);
    volume
        .shutdown()
        .with_context(|| format!("cannot close the volume on {names}"))?;
    let places = MediaPlaces::of(volume.ftl(), &options.devices);
    Ok(Scrubbed {
        read,
        faults,
        owners,
        recovery,
        places,
    })
}

/// Reads every mapped grain; returns how many, and those that could not be read.
///
/// # Errors
/// When the volume itself fails.
fn read_all<D: Device + Send + 'static>(
    volume: &Volume<D>,
    rate: Option<u64>,
) -> Result<(u64, Vec<MediaFault>), VolumeError> {
    volume.load(LbaRange::ALL)?;
    let total = volume.mapped_count(LbaRange::SPACE);
    let bar = show::progress(total * GRAIN_BYTES as u64, "scrub");
    let pace = Pace::new(rate);
    let cursor = Mutex::new(Lba(0));
    let faults = Mutex::new(Vec::new());
    let reader = || {
        let mut read = 0;
        while let Some(portion) = next_portion(volume, &cursor) {
            read += read_portion(volume, portion, &pace, &bar)?;
            let found = volume.ftl().take_media_faults();
            let mut faults = faults.lock().expect("no reader panics");
            for fault in found {
                bar.suspend(|| eprintln!("{fault}"));
                faults.push(fault);
            }
        }
        Ok(read)
    };
    let read: Result<u64, VolumeError> = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(reader)).collect();
        let reads = readers.into_iter();
        reads
            .map(|reader| reader.join().expect("no reader panics"))
            .sum()
    });
    bar.finish_and_clear();
    Ok((read?, faults.into_inner().expect("no reader panics")))
}

/// The next run of addresses in which something is mapped.
fn next_portion<D: Device + Send + 'static>(
    volume: &Volume<D>,
    cursor: &Mutex<Lba>,
) -> Option<LbaRange> {
    let mut cursor = cursor.lock().expect("no reader panics");
    let end = LbaRange::SPACE.end();
    let rest = LbaRange::new(*cursor, end.0 - cursor.0);
    let first = volume.next_mapped(rest)?;
    let count = PORTION.min(end.0 - first.0);
    *cursor = first.offset(count);
    Some(LbaRange::new(first, count))
}

fn read_portion<D: Device + Send + 'static>(
    volume: &Volume<D>,
    portion: LbaRange,
    pace: &Pace,
    bar: &ProgressBar,
) -> Result<u64, VolumeError> {
    let mut grains = 0;
    let mut next = portion.start;
    while next < portion.end() {
        let rest = LbaRange::new(next, portion.end().0 - next.0);
        let Some(lba) = volume.next_mapped(rest) else {
            break;
        };
        pace.wait(GRAIN_BYTES as u64);
        match volume.page(lba, Intent::Read) {
            // What is wrong with a grain is remembered by the engine, with its place.
            Ok(_) | Err(VolumeError::Damaged { .. } | VolumeError::Media { .. }) => {}
            Err(error) => return Err(error),
        }
        grains += 1;
        bar.inc(GRAIN_BYTES as u64);
        next = lba.offset(1);
    }
    Ok(grains)
}

/// Keeps readers to a rate, all of them together.
struct Pace {
    start: Instant,
    bytes: AtomicU64,
    rate: Option<u64>,
}

impl Pace {
    fn new(rate: Option<u64>) -> Self {
        Self {
            start: Instant::now(),
            bytes: AtomicU64::new(0),
            rate,
        }
    }

    /// Waits until `bytes` more are due.
    fn wait(&self, bytes: u64) {
        let Some(rate) = self.rate else {
            return;
        };
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let due = Duration::from_secs_f64(before as f64 / rate as f64);
        std::thread::sleep(due.saturating_sub(self.start.elapsed()));
    }
}

fn print(json: bool, scrubbed: &Scrubbed, took: Duration, superblocks_damaged: usize) {
    let Scrubbed {
        read,
        faults,
        owners,
        recovery,
        places,
    } = scrubbed;
    let bytes = read * GRAIN_BYTES as u64;
    if json {
        let faults = faults.iter().zip(owners).map(|(fault, owner)| {
            let (device, grain) = places.find(fault.place);
            let owner = owner.as_ref();
            let path = owner.and_then(|owner| owner.path.as_ref());
            json!({
                "device": device,
                "lba": fault.lba.0,
                "grain": grain,
                "segment": fault.segment.0,
                "error": fault.error.map(|error| error.to_string()),
                "inode": owner.map(|owner| owner.ino.0),
                "offset": owner.map(|owner| owner.offset),
                "path": path.map(|path| path.to_string_lossy()),
            })
        });
        println!(
            "{}",
            json!({
                "device": devices::names_json(&places.paths),
                "grains": read,
                "bytes": bytes,
                "seconds": took.as_secs_f64(),
                "superblocks_damaged": superblocks_damaged,
                "headers_lost": recovery.headers_lost,
                "damaged": faults.collect::<Vec<_>>(),
            })
        );
        return;
    }
    if superblocks_damaged > 0 {
        println!("one of the two superblocks was damaged; opening the volume restored it");
    }
    for (fault, owner) in faults.iter().zip(owners) {
        if let Some(owner) = owner {
            let owner = printable(owner.to_string().as_bytes());
            println!("{}: {owner}", fault.lba);
        }
    }
    println!(
        "{}: {} read, {}, {} grains damaged",
        devices::names(&places.paths),
        show::bytes(bytes),
        show::rate(bytes, took),
        faults.len()
    );
}
