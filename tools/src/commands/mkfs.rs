//! `mkfs`: a volume and an empty file system on a device, or on several.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use contigfs::Fs;
use ftl::device::{Allocation, DeviceOpenError};
use ftl::{
    ArrayDevice, DEVICES_MAX, FileDevice, Ftl, GRAIN_BYTES, MediaError, OpenError, OpenOptions,
    Volume,
};
use serde_json::json;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::{interrupt, show};
use crate::cli;
use crate::devices;

/// Pages in memory while formatting.
const POOL_FRAMES: usize = 1024;

/// Runs the command.
pub(super) fn run(options: &cli::Mkfs, json: bool) -> Result<()> {
    let images = Made::default();
    images.go_with_signals()?;
    let made = format_as(options, &images)?;
    options.devices.iter().for_each(|path| warn_of_holes(path));
    if json {
        println!("{made}");
    } else {
        println!(
            "{}: {} for files on {} of {}, segments of {}",
            devices::names(&options.devices),
            show::bytes(made["capacity_bytes"].as_u64().unwrap_or(0)),
            match options.devices.len() {
                1 => "a device".to_owned(),
                several => format!("{several} devices"),
            },
            show::bytes(made["device_bytes"].as_u64().unwrap_or(0)),
            show::bytes(made["segment_bytes"].as_u64().unwrap_or(0)),
        );
    }
    Ok(())
}

/// An image file with holes needs space that others may have taken by then.
fn warn_of_holes(path: &Path) {
    let Ok(known) = std::fs::metadata(path) else {
        return;
    };
    let held = known.blocks() * 512;
    if known.is_file() && held < known.len() {
        let path = path.display();
        eprintln!(
            "{path}: only {} of its {} are reserved: writes fail when the file system below it is full (`fallocate -l {} {path}` reserves the rest)",
            show::bytes(held),
            show::bytes(known.len()),
            known.len()
        );
    }
}

/// The path to look for a device at when it is missing.
fn absolute(path: &Path) -> String {
    let found = std::path::absolute(path);
    found.as_deref().unwrap_or(path).display().to_string()
}

/// Whether the beginning of a device, where other file systems and programs leave their marks, is nothing but zeros.
fn is_blank(path: &Path) -> Result<bool> {
    let mut start = Vec::new();
    let file =
        std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    file.take(1 << 20).read_to_end(&mut start)?;
    Ok(start.iter().all(|&byte| byte == 0))
}

/// Image files that were made, and go again unless all goes well.
#[derive(Debug, Default)]
struct Made(Arc<Mutex<Vec<PathBuf>>>);

impl Made {
    /// They go also if a signal ends the process: to fill a large one takes long.
    fn go_with_signals(&self) -> Result<()> {
        let made = Self(Arc::clone(&self.0));
        let mut signals = Signals::new(interrupt::ending())?;
        std::thread::Builder::new().spawn(move || {
            for signal in &mut signals {
                made.remove();
                let _ = emulate_default_handler(signal);
            }
        })?;
        Ok(())
    }

    fn images(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self) {
        for path in self.images().drain(..) {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Opens a device to be formatted, or makes it.
fn open(path: &Path, options: &cli::Mkfs, made: &Made) -> Result<FileDevice> {
    let mut device = match (path.exists(), options.size) {
        (false, Some(size)) => {
            let allocation = match options.prefill {
                true => Allocation::Written,
                false => Allocation::Reserve,
            };
            made.images().push(path.to_owned());
            let created = FileDevice::create(path, size.as_u64(), allocation);
            if created.is_err() {
                // There is none, or somebody else's.
                made.images().pop();
            }
            return created.map_err(|error| match error {
                DeviceOpenError::NotFound { .. } => {
                    anyhow!("cannot make {}: there is no such directory", path.display())
                }
                other => other.into(),
            });
        }
        (false, None) => bail!(
            "{} does not exist: --size makes an image file",
            path.display()
        ),
        (true, Some(_)) if options.devices.iter().all(|path| path.exists()) => {
            bail!("{} exists: --size is for new image files", path.display())
        }
        (true, _) => FileDevice::open(path)?,
    };
    if !options.force {
        match Ftl::probe(&mut device) {
            Err(OpenError::NotFormatted) if is_blank(path)? => {}
            Err(OpenError::NotFormatted) => bail!(
                "{} holds something: --force formats it and loses that",
                path.display()
            ),
            // It does not even reach to where the mark of a volume is; the format says what it takes.
            Err(OpenError::Media(MediaError::Invalid)) if is_blank(path)? => {}
            Err(OpenError::Media(error)) => bail!("cannot read {}: {error}", path.display()),
            _ => bail!(
                "{} holds a volume already: --force formats it again and loses what is on it",
                path.display()
            ),
        }
    }
    Ok(device)
}

/// Formats the devices as one volume and says what it made.
pub(super) fn format(options: &cli::Mkfs) -> Result<serde_json::Value> {
    format_as(options, &Made::default())
}

fn format_as(options: &cli::Mkfs, made: &Made) -> Result<serde_json::Value> {
    let paths = &options.devices;
    if paths.len() > DEVICES_MAX {
        bail!(
            "{} devices given: a volume has at most {DEVICES_MAX}",
            paths.len()
        );
    }
    devices::refuse_twice(paths)?;
    let mut opened = Vec::new();
    for path in paths {
        opened.push((absolute(path), open(path, options, made)?));
    }
    let mut device = ArrayDevice::blank(opened);
    let names = devices::names(paths);
    let format = ftl::FormatOptions {
        overprovision_percent: options.op,
        segment_bytes: options.segment_size.map(|size| size.as_u64()),
        created_ns: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64),
        ..ftl::FormatOptions::default()
    };
    Ftl::format(&mut device, &format).with_context(|| format!("cannot format {names}"))?;
    let open = OpenOptions {
        pool_frames: POOL_FRAMES,
        ..OpenOptions::default()
    };
    let (volume, _) =
        Volume::open(device, open).with_context(|| format!("cannot open the volume on {names}"))?;
    let info = volume.ftl().info();
    let root = contigfs::FormatOptions {
        // SAFETY: neither call has arguments or can fail.
        uid: unsafe { libc::geteuid() },
        // SAFETY: as above.
        gid: unsafe { libc::getegid() },
        ..contigfs::FormatOptions::default()
    };
    Fs::format(&volume, &root).with_context(|| format!("cannot make a file system on {names}"))?;
    volume
        .shutdown()
        .with_context(|| format!("cannot close the volume on {names}"))?;
    made.images().clear();
    let grain = GRAIN_BYTES as u64;
    let geometry = info.geometry;
    Ok(json!({
        "device": devices::names_json(paths),
        "uuid": uuid::Uuid::from_bytes(info.uuid).to_string(),
        "device_bytes": geometry.device_grains * grain,
        "capacity_bytes": geometry.capacity_grains * grain,
        "segment_bytes": u64::from(geometry.segment_grains) * grain,
        "segments": geometry.segment_count,
    }))
}
