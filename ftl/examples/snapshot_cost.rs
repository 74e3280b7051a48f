//! What snapshots cost: making one, by what is mapped; and writing, without one, for the first time since one, and again.
//!
//! ```text
//! cargo run --release -p ftl --example snapshot_cost
//! ```

use std::time::{Duration, Instant};

use ftl::snapshot::Snapshots;
use ftl::{
    AtomicBatch, FormatOptions, Ftl, GRAIN_BYTES, Lba, LbaRange, MemDevice, OpenOptions, Volume,
};

type Failure = Box<dyn std::error::Error>;

fn volume(bytes: usize) -> Result<Volume<MemDevice>, Failure> {
    let mut device = MemDevice::new(bytes)?;
    Ftl::format(&mut device, &FormatOptions::default())?;
    let options = OpenOptions {
        pool_frames: 16_384,
        ..OpenOptions::default()
    };
    Ok(Volume::open(device, options)?.0)
}

/// The median time of making a snapshot of so many mapped grains.
fn making(grains: u64) -> Result<Duration, Failure> {
    let volume = volume(6 << 30)?;
    let mut batch = AtomicBatch::new();
    batch.zero(LbaRange::new(Lba(1000), grains));
    volume.commit(batch)?;
    let snapshots = Snapshots::open(&volume)?;
    snapshots.make(&volume, b"the first one raises the format", 0)?;
    let mut times = Vec::new();
    for n in 0..21_u64 {
        volume.write(n * GRAIN_BYTES as u64, &[n as u8; GRAIN_BYTES])?;
        let start = Instant::now();
        snapshots.make(&volume, format!("{n}").as_bytes(), n)?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Overwrites `grains` grains, in order or all over the place, and syncs; grains a second.
fn writing(volume: &Volume<MemDevice>, grains: u64, step: u64) -> Result<u64, Failure> {
    let start = Instant::now();
    let mut lba = 0;
    for n in 0..grains {
        volume.write(lba * GRAIN_BYTES as u64, &[n as u8 | 1; GRAIN_BYTES])?;
        lba = (lba + step) % grains;
    }
    volume.sync(LbaRange::ALL)?;
    Ok((grains as f64 / start.elapsed().as_secs_f64()) as u64)
}

fn main() -> Result<(), Failure> {
    for grains in [1_000, 1_000_000] {
        println!("made in {:?} with {grains} grains mapped", making(grains)?);
    }
    /// Has nothing in common with the steps.
    const GRAINS: u64 = 40_009;
    for (what, step) in [("in order", 1), ("scattered", 17_977)] {
        let volume = volume(1 << 30)?;
        let snapshots = Snapshots::open(&volume)?;
        writing(&volume, GRAINS, step)?;
        let none = writing(&volume, GRAINS, step)?;
        snapshots.make(&volume, b"one", 1)?;
        let first = writing(&volume, GRAINS, step)?;
        let again = writing(&volume, GRAINS, step)?;
        let tombstones = volume.ftl().stats().tombstones;
        println!(
            "{what}: {none} grains/s without, {first} first after, {again} again; {tombstones} tombstones"
        );
        let start = Instant::now();
        snapshots.delete(&volume, b"one")?;
        let deleted = start.elapsed();
        let mut pieces = 0;
        let (mut longest, begin) = (Duration::ZERO, Instant::now());
        loop {
            let start = Instant::now();
            if !snapshots.sweep(&volume)? {
                break;
            }
            longest = longest.max(start.elapsed());
            pieces += 1;
        }
        println!(
            "    deleted in {deleted:?}; given back in {pieces} pieces, {:?}, the longest {longest:?}",
            begin.elapsed()
        );
    }
    Ok(())
}
