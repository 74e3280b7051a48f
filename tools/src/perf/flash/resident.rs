//! Pages in memory: how often one core gets and puts one.

use std::io;
use std::time::{Duration, Instant};

use ftl::{FormatOptions, Ftl, Intent, Lba, LbaRange, MemDevice, OpenOptions, Volume};

use super::BLOCK;

/// Pages that are gone through, all of them in memory.
const PAGES: u64 = 8192;
/// Pairs between two looks at the clock.
const PAIRS: u64 = 4096;

/// Get-put pairs per second on one thread over a memory device, reading eight bytes of each page.
pub fn pairs_per_second(time: Duration) -> io::Result<f64> {
    let mut device = MemDevice::new(256 << 20).map_err(io::Error::other)?;
    Ftl::format(&mut device, &FormatOptions::default()).map_err(io::Error::other)?;
    let options = OpenOptions {
        pool_frames: PAGES as usize * 2,
        ..OpenOptions::default()
    };
    let (volume, _) = Volume::open(device, options).map_err(io::Error::other)?;
    for n in 0..PAGES {
        let written = volume.write(n * BLOCK as u64, &[n as u8 | 1; BLOCK]);
        written.map_err(io::Error::other)?;
    }
    volume.sync(LbaRange::ALL).map_err(io::Error::other)?;
    let ftl = volume.ftl();
    let (mut pairs, mut lba, mut sum) = (0u64, 0u64, 0u64);
    let start = Instant::now();
    while start.elapsed() < time {
        for _ in 0..PAIRS {
            // A stride coprime to the number of pages: every page in turn, no two neighbours.
            lba = (lba + 4001) % PAGES;
            let page = ftl.try_get(Lba(lba), Intent::Read);
            let page = page.ok_or_else(|| io::Error::other("a page left the memory"))?;
            let mut word = [0; 8];
            page.copy_out(0, &mut word);
            sum = sum.wrapping_add(u64::from_le_bytes(word));
        }
        pairs += PAIRS;
    }
    let elapsed = start.elapsed();
    if std::hint::black_box(sum) == 0 {
        return Err(io::Error::other("pages read as zeros"));
    }
    Ok(pairs as f64 / elapsed.as_secs_f64())
}
