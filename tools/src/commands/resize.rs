//! `resize`: makes a volume larger while it is mounted or not, and smaller while nobody uses it.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use contigfs::Grown;
use contigfs::fuse::{GROW, GrowRequest};
use ftl::device::file::{EnlargeError, enlarge};
use ftl::{
    ArrayDevice, Device, FileDevice, GRAIN_BYTES, Geometry, LbaRange, OpenOptions, OverlayDevice,
    ResizeError, Volume, VolumeError,
};
use serde_json::json;

use super::{mounted, show, umount};
use crate::cli::Resize;
use crate::devices::{self, Access};

/// Pages in memory while a volume is resized that nobody uses.
const POOL_FRAMES: usize = 4096;
const GRAIN: u64 = GRAIN_BYTES as u64;

/// Runs the command.
pub(super) fn run(options: &Resize, json: bool) -> Result<()> {
    if let Some(dir) = mounted_on(&options.place)? {
        return grow_mounted(options, &dir, json);
    }
    if options.place.is_dir() {
        bail!("no volume is mounted on {}", options.place.display());
    }
    let paths = devices::from_spec(&options.place);
    if paths.len() > 1 {
        return Err(ResizeError::Array.into());
    }
    match options.dry_run || options.print_minimum {
        true => look(options, &paths, json),
        false => resize(options, &paths, json),
    }
}

/// The directory that this volume is mounted on, or that is named itself.
fn mounted_on(place: &Path) -> Result<Option<PathBuf>> {
    let absolute = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path));
    let place = absolute(place).with_context(|| format!("cannot find {}", place.display()))?;
    let mounts = umount::mounts()?.into_iter().rev();
    let is_here = |source: &Path| {
        let mut devices = devices::from_spec(source).into_iter();
        devices.any(|device| absolute(&device).is_ok_and(|device| device == place))
    };
    let mut here = mounts.filter(|mount| mount.dir == place || is_here(&mount.source));
    Ok(here.next().map(|mount| mount.dir))
}

/// Asks the target that serves the mount.
fn grow_mounted(options: &Resize, dir: &Path, json: bool) -> Result<()> {
    if options.minimum || options.print_minimum || options.dry_run || options.truncate {
        bail!(
            "{} is in use: a mounted volume can only grow; unmount it for everything else",
            options.place.display()
        );
    }
    if options.size.is_some_and(|size| size.as_u64() == 0) {
        bail!("0 bytes are no size of a volume");
    }
    let root = mounted::open(dir)?;
    let mut request = GrowRequest::new(options.size.map(|size| size.as_u64()));
    // SAFETY: the request has the length that the number says, and lives over the call.
    let done = unsafe { libc::ioctl(root.as_raw_fd(), GROW as libc::c_ulong, &raw mut request) };
    if done != 0 {
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EPERM) => bail!(
                "{}: only root, and the user who mounted the volume, may resize it",
                dir.display()
            ),
            Some(libc::ENOTTY) => bail!(
                "the target that serves {} does not know how to grow: it is older than this program",
                dir.display()
            ),
            _ => return Err(mounted::unasked(dir, error)),
        }
    }
    let grown = request.outcome();
    let grown = grown.map_err(|why| anyhow::anyhow!("cannot resize {}: {why}", dir.display()))?;
    tell(&options.place, &grown, json);
    Ok(())
}

fn open<D: Device>(device: D, path: &Path) -> Result<Volume<D>> {
    let open = OpenOptions {
        pool_frames: POOL_FRAMES,
        ..OpenOptions::default()
    };
    let (volume, recovery) = Volume::open(device, open)
        .with_context(|| format!("cannot open the volume on {}", path.display()))?;
    show::lost_headers(&path.display().to_string(), &recovery);
    // What is mapped, and where, is the question.
    volume.load(LbaRange::ALL)?;
    Ok(volume)
}

/// What would become of it; what recovery has to write stays in memory.
fn look(options: &Resize, paths: &[PathBuf], json: bool) -> Result<()> {
    let device = devices::open(paths, Access::Read)?;
    let has = device.len_bytes();
    let volume = open(OverlayDevice::new(device), &options.place)?;
    let minimum = volume.ftl().device_grains_min()? * GRAIN;
    if options.print_minimum {
        match json {
            true => println!("{}", json!({ "minimum_bytes": minimum })),
            false => println!("{minimum}"),
        }
        return Ok(());
    }
    let before = volume.ftl().info().geometry;
    let wanted = match (options.minimum, options.size) {
        (true, _) => minimum,
        (false, Some(size)) => size.as_u64(),
        (false, None) => has,
    };
    let after = layout(&volume, wanted)?;
    tell(&options.place, &difference(&before, &after), json);
    Ok(())
}

fn resize(options: &Resize, paths: &[PathBuf], json: bool) -> Result<()> {
    let path = &options.place;
    let mut device = devices::open(paths, Access::Write)?;
    let before = ftl::Ftl::probe(&mut device)
        .with_context(|| format!("cannot resize {}", path.display()))?
        .geometry;
    let wanted = options.size.map(|size| size.as_u64());
    if let Some(bytes) = wanted
        && bytes / GRAIN > before.device_grains
    {
        make_longer(&mut device, path, bytes)?;
    }
    let has = device.len_bytes();
    let volume = open(device, path)?;
    let wanted = match options.minimum {
        true => volume.ftl().device_grains_min()? * GRAIN,
        false => wanted.unwrap_or(has),
    };
    let result = layout(&volume, wanted).and_then(|_| match volume.resize(wanted / GRAIN) {
        Err(VolumeError::NoSpace) => bail!("what is on it could not be moved out of the way"),
        result => Ok(result?),
    });
    let after = volume.ftl().info().geometry;
    // Also when it has not been resized: it is as it was, and closed.
    let closed = volume.shutdown();
    result.with_context(|| format!("cannot resize {}", path.display()))?;
    closed.with_context(|| format!("cannot close {}", path.display()))?;
    let device = volume.into_device();
    let end = after.device_grains * GRAIN;
    if options.truncate {
        cut(&device, end).with_context(|| format!("cannot cut {}", path.display()))?;
    }
    tell(path, &difference(&before, &after), json);
    if !options.truncate && !json && after.device_grains < before.device_grains {
        println!("what is behind {end} bytes is not used any more, and may be cut off");
    }
    Ok(())
}

/// Makes an image file as long as the volume is to be.
fn make_longer(device: &mut ArrayDevice<FileDevice>, path: &Path, bytes: u64) -> Result<()> {
    let file = device.devices().flatten().next();
    let file = file.expect("a volume has a device").file();
    match enlarge(file, Some(bytes)) {
        Ok(_) => Ok(device.measure_again()?),
        Err(EnlargeError::Smaller { bytes: has }) => bail!(
            "{} has only {}: make the device larger first",
            path.display(),
            show::bytes(has)
        ),
        Err(error) => Err(error).with_context(|| format!("cannot resize {}", path.display())),
    }
}

/// Cuts an image file; devices are as large as they are.
fn cut(device: &ArrayDevice<FileDevice>, bytes: u64) -> io::Result<()> {
    let file = device.devices().flatten().next();
    let file = file.expect("a volume has a device").file();
    let meta = file.metadata()?;
    if meta.is_file() && meta.len() > bytes {
        file.set_len(bytes)?;
        file.sync_all()?;
    }
    Ok(())
}

/// The layout in which the volume has `wanted` bytes of its device.
///
/// # Errors
/// Says the minimum, if that is less.
fn layout<D: Device>(volume: &Volume<D>, wanted: u64) -> Result<Geometry> {
    let after = volume.ftl().info().geometry.resized(wanted / GRAIN);
    let is_too_small = match &after {
        Ok(after) => volume.space().mapped > after.capacity_grains,
        Err(ResizeError::TooSmall { .. }) => true,
        Err(_) => false,
    };
    if is_too_small {
        let minimum = volume.ftl().device_grains_min()? * GRAIN;
        bail!(
            "{} is too small: the minimum is {minimum} bytes ({}), with what is on it",
            show::bytes(wanted),
            show::bytes(minimum)
        );
    }
    Ok(after?)
}

fn difference(before: &Geometry, after: &Geometry) -> Grown {
    Grown {
        device_before: before.device_grains * GRAIN,
        device: after.device_grains * GRAIN,
        capacity_before: before.capacity_grains * GRAIN,
        capacity: after.capacity_grains * GRAIN,
    }
}

fn tell(place: &Path, done: &Grown, json: bool) {
    if json {
        println!(
            "{}",
            json!({
                "device": place.to_string_lossy(),
                "device_bytes_before": done.device_before,
                "device_bytes": done.device,
                "capacity_bytes_before": done.capacity_before,
                "capacity_bytes": done.capacity,
            })
        );
        return;
    }
    if done.device == done.device_before {
        let has = show::bytes(done.device);
        println!("{}: nothing to do, it has {has}", place.display());
        return;
    }
    println!(
        "{}: {} for files instead of {}, on {} instead of {}",
        place.display(),
        show::bytes(done.capacity),
        show::bytes(done.capacity_before),
        show::bytes(done.device),
        show::bytes(done.device_before),
    );
}
