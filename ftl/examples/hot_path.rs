//! Measures the engine without a device in the way: resident gets and puts, writes, random reads from memory.
//! Prints operations per second; run it in release.

use ftl::{
    Event, FormatOptions, Ftl, GRAIN_BYTES, Get, Intent, Lba, LbaRange, MemDevice, OpenOptions,
    Port, Time, Token, Volume,
};
use std::time::Instant;

use ftl::Device;

fn report(what: &str, operations: u64, since: Instant) {
    let rate = operations as f64 / since.elapsed().as_secs_f64();
    println!("{what:<44} {rate:>12.0} per second");
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut device = MemDevice::new(1 << 30)?;
    Ftl::format(&mut device, &FormatOptions::default())?;
    let options = OpenOptions {
        pool_frames: 16384,
        ..OpenOptions::default()
    };
    let (volume, _) = Volume::open(device, options.clone())?;
    let grains = 150_000u64;
    let page = vec![7; GRAIN_BYTES];

    let start = Instant::now();
    for lba in 0..grains {
        volume.write(lba * GRAIN_BYTES as u64, &page)?;
    }
    volume.sync(LbaRange::ALL)?;
    report("sequential 4 KiB writes, synced at the end", grains, start);

    let mut seed = 1u64;
    let mut random = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % bound
    };
    let start = Instant::now();
    for _ in 0..grains {
        volume.write(random(grains) * GRAIN_BYTES as u64, &page)?;
    }
    volume.sync(LbaRange::ALL)?;
    report("random 4 KiB overwrites, synced at the end", grains, start);
    println!(
        "write amplification {:.3}",
        volume.ftl().stats().write_amplification()
    );

    let start = Instant::now();
    let syncs = 20_000;
    for _ in 0..syncs {
        let lba = random(grains);
        volume.write(lba * GRAIN_BYTES as u64, &page[..64])?;
        volume.sync(LbaRange::new(Lba(lba), 1))?;
    }
    report("64-byte writes, each synced", syncs, start);
    volume.shutdown()?;

    let mut device = volume.into_device();
    let start = Instant::now();
    let (ftl, recovered) = Ftl::open(&mut device, options)?;
    println!(
        "recovery of {} headers: {:?}",
        recovered.headers,
        start.elapsed()
    );
    let port = Port(0);
    let mut buf = vec![0; GRAIN_BYTES];

    // Random reads, 128 in flight, most of them misses.
    let (reads, depth) = (1_000_000u64, 128);
    let start = Instant::now();
    let (mut asked, mut answered) = (0, 0);
    while answered < reads {
        while asked < reads && asked - answered < depth {
            asked += 1;
            match ftl.get(port, Lba(random(grains)), Intent::Read, Token(asked)) {
                Get::Ready(page) => {
                    page.copy_out(0, &mut buf);
                    answered += 1;
                }
                Get::Pending => {}
                Get::Failed(error) => return Err(error.into()),
            }
        }
        while let Some(action) = ftl.poll_action(port) {
            device.submit(action);
        }
        while let Some((id, result)) = device.poll(false) {
            ftl.handle_done(port, Time(1), id, result);
        }
        while let Some(event) = ftl.poll_event(port) {
            if let Event::Page { result, .. } = event {
                result?.copy_out(0, &mut buf);
                answered += 1;
            }
        }
    }
    report("random 4 KiB reads, depth 128 (~89 % misses)", reads, start);

    let hot = 8192;
    for lba in 0..hot {
        if let Get::Pending = ftl.get(port, Lba(lba), Intent::Read, Token(0)) {
            while let Some(action) = ftl.poll_action(port) {
                device.submit(action);
            }
            while let Some((id, result)) = device.poll(false) {
                ftl.handle_done(port, Time(1), id, result);
            }
            while ftl.poll_event(port).is_some() {}
        }
    }
    let operations = 10_000_000;
    let start = Instant::now();
    for _ in 0..operations {
        drop(
            ftl.try_get(Lba(random(hot)), Intent::Read)
                .ok_or("not resident")?,
        );
    }
    report("resident get and put", operations, start);
    let start = Instant::now();
    for _ in 0..operations / 4 {
        let page = ftl
            .try_get(Lba(random(hot)), Intent::Read)
            .ok_or("not resident")?;
        page.copy_out(0, &mut buf);
    }
    report("the same with copying 4 KiB out", operations / 4, start);
    let start = Instant::now();
    for _ in 0..operations {
        let page = ftl
            .try_get(Lba(random(64)), Intent::Write)
            .ok_or("not resident")?;
        page.copy_in(64, &buf[..64]);
    }
    report("resident 64-byte write and put", operations, start);
    Ok(())
}
