//! Mounts a file system that lives in memory: `cargo run -p contigfs --example mount_in_memory -- DIR [MiB]`.
//!
//! It is unmounted with `umount DIR` from another terminal; then its content is gone.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use contigfs::fuse::{MountOptions, mount};
use contigfs::{FormatOptions, Fs, MemStore};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: mount_in_memory DIR [MiB]")?;
    let mebibytes: u64 = args.next().map_or(Ok(1024), |size| size.parse())?;
    let store = Arc::new(MemStore::new(mebibytes * 256));
    Fs::format(&store, &FormatOptions::default())?;
    let fs = Arc::new(Fs::mount(Arc::clone(&store))?);
    let mounted = mount(fs, Path::new(&dir), &MountOptions::default())?;
    while !mounted.is_finished() {
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(mounted);
    let report = contigfs::check(&store);
    for problem in &report.problems {
        println!("{problem}");
    }
    println!(
        "{} files, {} directories, {} problems",
        report.files,
        report.directories,
        report.problems.len()
    );
    Ok(())
}
