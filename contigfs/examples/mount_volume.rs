//! Mounts a file system on a volume: `cargo run --release -p contigfs --example mount_volume -- IMAGE DIR`.
//!
//! The image is formatted: everything on it is lost. It is unmounted with `umount DIR` from another terminal.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use contigfs::fuse::{MountOptions, mount};
use contigfs::{FormatOptions, Fs};
use ftl::{FileDevice, Ftl, OpenOptions, Volume};

const POOL_FRAMES: usize = 16_384;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(image), Some(dir)) = (args.next(), args.next()) else {
        return Err("usage: mount_volume IMAGE DIR".into());
    };
    let options = OpenOptions {
        pool_frames: POOL_FRAMES,
        ..OpenOptions::default()
    };
    let mut device = FileDevice::open(Path::new(&image))?;
    let fresh = Ftl::format(&mut device, &ftl::FormatOptions::default())?;
    println!("formatted: {} grains", fresh.geometry.capacity_grains);
    let (volume, _) = Volume::open(device, options)?;
    let volume = Arc::new(volume);
    Fs::format(&volume, &FormatOptions::default())?;
    let fs = Arc::new(Fs::mount(Arc::clone(&volume))?);
    let mounted = mount(fs, Path::new(&dir), &MountOptions::default())?;
    while !mounted.is_finished() {
        std::thread::sleep(Duration::from_millis(50));
        volume.tick();
    }
    drop(mounted);
    let report = contigfs::check_with_data(&volume);
    for problem in &report.problems {
        println!("{problem}");
    }
    println!(
        "{} files, {} directories, {} problems",
        report.files,
        report.directories,
        report.problems.len()
    );
    volume.shutdown()?;
    Ok(())
}
