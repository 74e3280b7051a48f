//! Checking and repairing a whole volume, log and files together: what `fsck` does with a device.
//!
//! The log is read by its judge, which knows nothing of the checkpoints, and the volume is opened as for use. Where the
//! two do not say the same, headers of the log are damaged: what they said is only known from a checkpoint, if at all.
//! Then all data are read through the volume as well, because the judge can not have read them; and a full repair writes
//! what is only known from a checkpoint anew.
//!
//! # Failure
//! As of [`repair()`]: a crash leaves the volume no worse, and the next repair goes on.

use ftl::{
    Device, Lba, OpenError, OpenOptions, OverlayDevice, RecoveryReport, Volume, VolumeError,
};

use crate::check::{CheckReport, Progress, check_telling};
use crate::error::FsError;
use crate::owner::owners;
use crate::repair::{Care, RepairReport, repair};

/// Rounds of writing anew; what is written in one may be damaged in the next only by the media.
const ROUNDS_MAX: usize = 3;

/// Part of a check, for those who show how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The log is read, and the data that it speaks of.
    Log,
    /// The inode table, names, attributes.
    Files,
    /// Data that the log does not speak of.
    Data,
}

/// Why a volume could not be checked or repaired.
#[derive(Debug, thiserror::Error)]
pub enum VolumeCheckError {
    /// There is no log to judge.
    #[error(transparent)]
    Judge(OpenError),
    /// The volume can not be opened.
    #[error(transparent)]
    Open(OpenError),
    /// A part of the map can not be read, or the volume takes no changes any more.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The file system takes no changes any more.
    #[error(transparent)]
    Files(#[from] FsError),
}

/// What is wrong with a volume.
#[derive(Clone, Debug, Default)]
pub struct VolumeReport {
    /// Superblock, log, grains whose data are damaged: in words.
    pub log_problems: Vec<String>,
    /// The file system.
    pub files: CheckReport,
    /// Grains of which the log does not say what the map says.
    pub unsaid: Vec<Lba>,
    /// Grains in use, as the log says.
    pub mapped_grains: usize,
    /// The volume had been shut down.
    pub clean: bool,
}

impl VolumeReport {
    /// Everything that is wrong, in words.
    pub fn problems(&self) -> Vec<String> {
        let unsaid = (!self.unsaid.is_empty()).then(|| {
            format!(
                "headers of the log are damaged: of {} grains (first {}) only a checkpoint knows",
                self.unsaid.len(),
                self.unsaid[0]
            )
        });
        let files = self.files.problems.iter().map(ToString::to_string);
        let log = self.log_problems.iter().cloned();
        log.chain(unsaid).chain(files).collect()
    }
}

/// What was repaired of a volume.
#[derive(Clone, Debug, Default)]
pub struct VolumeRepair {
    /// The volume had been shut down.
    pub clean: bool,
    /// Problems of the file system that were ended, and its state.
    pub files: RepairReport,
    /// Grains that were written anew because the log did not speak of them.
    pub written_anew: usize,
    /// Grains in use.
    pub mapped_grains: usize,
    /// What a look at all of it says afterwards; nothing if there was none.
    pub after: Option<VolumeReport>,
}

/// Checks a volume, and gives the device back. What recovery has to write stays in memory.
///
/// # Errors
/// [`VolumeCheckError`], if it can not be opened.
pub fn check_volume<D: Device>(
    mut device: D,
    open: &OpenOptions,
    progress: Progress<'_>,
) -> Result<(VolumeReport, D), VolumeCheckError> {
    let mut tell = |done, all| progress(Stage::Log, done, all);
    let log = ftl::check_telling(&mut device, &mut tell).map_err(VolumeCheckError::Judge)?;
    let (volume, recovery) = opened(OverlayDevice::new(device), open)?;
    let unsaid = volume.differing(&log)?;
    // What the log does not speak of was not read with it.
    let files = check_telling(&volume, !unsaid.is_empty(), progress);
    let superblock = (log.superblocks < 2).then(|| {
        "one of the two superblocks is damaged; using the volume writes it anew".to_owned()
    });
    let damaged = log.damaged.iter().zip(owners(&volume, &log.damaged));
    let damaged = damaged.map(|(lba, owner)| {
        let whose = owner.map_or(String::new(), |owner| format!(": {owner}"));
        format!("{lba} does not fit its checksum or can not be read{whose}")
    });
    let lost = lost_headers(&recovery);
    let log_problems = superblock.into_iter().chain(lost).chain(damaged);
    let log_problems = log_problems.chain(log.faults);
    let report = VolumeReport {
        log_problems: log_problems.collect(),
        files,
        unsaid,
        mapped_grains: log.map.len(),
        clean: recovery.clean,
    };
    Ok((report, volume.into_device().into_below()))
}

/// Recovers a volume and repairs it; with `look`, all of it is looked at afterwards. What is left is remembered on the
/// media, so that whoever asks only whether the volume was shut down in order is told to look.
///
/// # Errors
/// [`VolumeCheckError`]; what has been repaired stays so.
pub fn repair_volume<D: Device>(
    device: D,
    open: &OpenOptions,
    care: Care,
    look: bool,
    progress: Progress<'_>,
) -> Result<(VolumeRepair, D), VolumeCheckError> {
    let (volume, recovery) = opened(device, open)?;
    let repaired = repair(&volume, care);
    let mapped_grains = volume.space().mapped as usize;
    let is_clean = |report: &RepairReport| report.after.is_clean();
    let suspect = !repaired.as_ref().is_ok_and(is_clean);
    volume.ftl().set_suspect(suspect);
    let closed = volume.shutdown();
    let mut done = VolumeRepair {
        clean: recovery.clean,
        files: repaired?,
        mapped_grains,
        ..VolumeRepair::default()
    };
    closed?;
    let device = volume.into_device();
    let lost = lost_headers(&recovery);
    if !look && lost.is_none() {
        return Ok((done, device));
    }
    let again = OpenOptions {
        rebuild: false,
        ..open.clone()
    };
    let (mut after, mut device) = check_volume(device, &again, progress)?;
    for _ in 0..ROUNDS_MAX {
        if care != Care::Full || after.unsaid.is_empty() {
            break;
        }
        let (volume, _) = opened(device, &again)?;
        let unreadable = volume.write_anew(&after.unsaid)?;
        volume.shutdown()?;
        let written = after.unsaid.len() - unreadable.len();
        done.written_anew += written;
        (after, device) = check_volume(volume.into_device(), &again, progress)?;
        if written == 0 {
            break;
        }
    }
    // Nobody can mend that, and from now on nobody sees it.
    after.log_problems.extend(lost);
    let is_left = !after.problems().is_empty();
    if is_left != suspect {
        let (volume, _) = opened(device, &again)?;
        volume.ftl().set_suspect(is_left);
        volume.shutdown()?;
        device = volume.into_device();
    }
    done.mapped_grains = after.mapped_grains;
    done.after = Some(after);
    Ok((done, device))
}

/// What recovery knows to be lost, in words; later looks at the volume do not see it.
pub fn lost_headers(recovery: &RecoveryReport) -> Option<String> {
    let lost = recovery.headers_lost;
    (lost > 0).then(|| {
        format!(
            "headers of the log are lost: {lost}; what they held may be gone, or as it was before"
        )
    })
}

fn opened<D: Device>(
    device: D,
    open: &OpenOptions,
) -> Result<(Volume<D>, RecoveryReport), VolumeCheckError> {
    Volume::open(device, open.clone()).map_err(VolumeCheckError::Open)
}
