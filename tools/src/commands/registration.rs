//! `perf reg`: what registering costs.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use contigfs::{Fs, InodeNo, NewNode, SetAttr};
use ftl::{OpenOptions, Volume};
use serde_json::json;

use super::mkfs;
use super::perf::clean_up_when_ended;
use super::scratch;
use super::show;
use super::spawn::Server;
use crate::cli;
use crate::client::{Session, SessionOptions};
use crate::devices::{self, Access};
use crate::perf::registration::{self, Micros};

const GIB: u64 = 1 << 30;
/// Sparse files of these sizes are registered.
const SIZES: [u64; 3] = [16 * GIB, 1024 * GIB, 16 * 1024 * GIB];
/// As often as this, after a few that do not count.
const ROUNDS: usize = 1000;
const WARM: usize = 50;
/// Memory that is pinned for comparison.
const PINNED_BYTES: usize = GIB as usize;

/// Runs the measurement.
pub(super) fn run(options: &cli::Perf, json: bool) -> Result<()> {
    if options.target.is_some() {
        bail!("reg makes its own files: it takes no target");
    }
    if options.baseline.is_some() {
        bail!("reg has a rival of its own: it takes no --baseline");
    }
    let directory = scratch::directory("perf", options.directory.as_deref())?;
    clean_up_when_ended(directory.path())?;
    let image = directory.path().join("reg.img");
    mkfs::format(&cli::Mkfs {
        devices: vec![image.clone()],
        size: Some(ByteSize::mib(64)),
        op: 15,
        prefill: false,
        segment_size: None,
        force: false,
    })?;
    let files = sparse_files(&image)?;
    let server = Server::target(&image, None, &[])?;
    let mut session = Session::connect(server.address, SessionOptions::default())?;
    registration::run(&mut session, &files, WARM)?;
    let costs = registration::run(&mut session, &files, ROUNDS)?;
    session.close();
    server.stop()?;
    // An ordinary user may lock little memory; what registering costs is worth knowing all the same.
    let pinned = registration::pin(PINNED_BYTES);
    if json {
        let refused = pinned.as_ref().err().map(|error| format!("{error:#}"));
        let pinned = pinned.ok();
        println!(
            "{}",
            json!({ "regions": costs, "pinned": pinned, "pinning_refused": refused })
        );
        return Ok(());
    }
    let mut table = show::table(&[
        "",
        "register p50 µs",
        "p99 µs",
        "resolve p50 µs",
        "open p50 µs",
        "close p50 µs",
    ]);
    let us = |of: &Micros| format!("{:.1}", of.p50_us);
    for of in &costs {
        table.add_row([
            format!("file of {}", show::bytes(of.bytes)),
            us(&of.register),
            format!("{:.1}", of.register.p99_us),
            us(&of.resolve),
            us(&of.open),
            us(&of.close),
        ]);
    }
    let pinning = match &pinned {
        Ok(pinned) => format!("{:.1}", pinned.populate_us + pinned.lock_us),
        Err(_) => "refused".to_owned(),
    };
    let what = format!("{} of memory", show::bytes(PINNED_BYTES as u64));
    table.add_row([what.as_str(), &pinning, "-", "-", "-", "-"]);
    println!("{table}");
    println!(
        "register: in the target, from the inode to both STags; of memory: mmap(MAP_POPULATE) and mlock, once"
    );
    println!(
        "resolve: stat of the path; open: resolve, open and register; close: end the region; all over the wire"
    );
    Ok(())
}

/// Makes a sparse file of each size on a volume that nobody serves; answers their paths.
fn sparse_files(image: &Path) -> Result<Vec<(String, u64)>> {
    let device = devices::open(&[image.to_owned()], Access::Write)?;
    let (volume, _) = Volume::open(device, OpenOptions::default())?;
    let fs = Fs::mount(&volume)?;
    let mut files = Vec::new();
    for bytes in SIZES {
        let name = format!("{}GiB", bytes / GIB);
        let made = fs.create(InodeNo::ROOT, OsStr::new(&name), &NewNode::file())?;
        let size = SetAttr {
            size: Some(bytes),
            ..SetAttr::default()
        };
        fs.set_attr(made.ino, &size)?;
        files.push((format!("/{name}"), bytes));
    }
    fs.sync_all()?;
    drop(fs);
    volume.shutdown()?;
    Ok(files)
}
