//! The volume of a target, opened and closed.

use std::fs::File;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use contigfs::fuse::SharePages;
use contigfs::{Fs, FsOptions};
use ftl::device::FileDevice;
use ftl::{
    ArrayDevice, Device, DeviceUse, Ftl, GRAIN_BYTES, MemberState, OpenOptions, OverlayDevice,
    Volume, VolumeError,
};
use tracing::{info, warn};

use super::job::{Job, waiter};
use super::lane::Lanes;
use super::settings::Settings;
use crate::devices::{self, Access};
use crate::reactor::Inbox;

/// Pages in memory while it is tried whether a volume can do without devices.
const TRIAL_FRAMES: usize = 4096;

/// Opens it; also tells whether it was closed in order.
pub(super) fn open(
    settings: &Settings,
    lanes: usize,
) -> Result<(Arc<Ftl>, ArrayDevice<FileDevice>, bool)> {
    let names = devices::names(&settings.devices);
    let access = match settings.degraded {
        true => Access::Degraded,
        false => Access::Write,
    };
    if settings.degraded {
        try_without_missing(settings, &names)?;
    }
    let mut device = devices::open(&settings.devices, access)?;
    let options = OpenOptions {
        pool_frames: (settings.pool_bytes / GRAIN_BYTES as u64) as usize,
        shared_frames: match settings.fuse.share {
            SharePages::Never => 0,
            _ => (settings.share_bytes / GRAIN_BYTES as u64) as usize,
        },
        ports: (settings.reactors + Lanes::ports(lanes)) as u16,
        gc_policy: settings.gc_policy,
        discard: settings.discard,
        write_out_apart: true,
        now: ftl::Time(0),
        wall_clock_ns: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |t| t.as_nanos() as u64),
        ..OpenOptions::default()
    };
    let (ftl, report) = Ftl::open(&mut device, options)
        .with_context(|| format!("cannot open the volume on {names}"))?;
    info!(device = names, ?report, "volume open");
    if report.devices_lost > 0 {
        let (lost, unknown) = (report.devices_lost, report.headers_lost);
        warn!(
            device = names,
            lost, unknown, "devices of the volume are missing: what is on them is lost"
        );
    } else if report.headers_lost > 0 {
        let lost = report.headers_lost;
        warn!(
            device = names,
            lost, "headers of the log are lost: what they held may be gone, or as it was before"
        );
    }
    Ok((ftl, device, report.clean))
}

/// If devices are missing: whether the file system can be read without them. This is tried before anything is written, because
/// from the first write on what is on them is out of date for good, and a volume that can not be used without them is lost.
fn try_without_missing(settings: &Settings, names: &str) -> Result<()> {
    let device = devices::open(&settings.devices, Access::Degraded)?;
    let gone = devices::missing(&device);
    if gone.is_empty() {
        return Ok(());
    }
    let options = OpenOptions {
        pool_frames: TRIAL_FRAMES,
        ..OpenOptions::default()
    };
    // What recovery writes stays in memory.
    let (volume, _) = Volume::open(OverlayDevice::new(device), options)
        .with_context(|| format!("cannot open the volume on {names}"))?;
    let options = FsOptions {
        read_only: true,
        ..FsOptions::default()
    };
    let tried = Fs::mount_with(volume, &options).map(drop);
    tried.with_context(|| {
        let gone = devices::names(&gone);
        format!(
            "cannot read the file system of the volume without {gone} (nothing was written: with that, all is as before, unless it is out of date; fsck -y --degraded may find more)"
        )
    })
}

/// The file or device of a volume that has only one, open once more.
pub(super) fn only_file(device: &ArrayDevice<FileDevice>) -> Result<Option<File>> {
    let files: Vec<_> = device.devices().flatten().collect();
    let again = match (device.members(), &files[..]) {
        (None, [file]) => Some(file.file().try_clone()),
        _ => None,
    };
    Ok(again.transpose()?)
}

/// How many devices something that was written may be gone with.
pub(super) fn lost_devices(ftl: &Ftl) -> usize {
    let devices = ftl.devices();
    let is_lost = |device: &&DeviceUse| device.state != MemberState::Live;
    devices.iter().filter(is_lost).count()
}

/// Whether there are any.
pub(super) fn has_lost_devices(ftl: &Ftl) -> bool {
    lost_devices(ftl) > 0
}

/// Has the first reactor close the volume. None: it has ended by itself.
pub(super) fn close(reactor: &Inbox<Job>) -> Option<Result<(), VolumeError>> {
    let (done, closed) = waiter();
    reactor.send(Job::Close(done)).ok()?;
    let closed = closed.recv().ok()?;
    Some(closed.map_err(VolumeError::from))
}

/// Closes the volume when there are no reactors.
pub(super) fn close_alone(
    ftl: Arc<Ftl>,
    mut device: ArrayDevice<FileDevice>,
    lanes: Option<&Lanes>,
) -> Result<()> {
    if let Some(lanes) = lanes {
        lanes.settle();
    }
    let measured = device.measure_again();
    let volume = Volume::new(ftl, device);
    volume.shutdown().context("cannot close the volume")?;
    measured.context("cannot find out how large the device is")
}
