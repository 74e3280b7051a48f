//! Checking and repairing a whole volume, log and files together: what `fsck` does with a device.
//!
//! The log is read by its judge, which knows nothing of the checkpoints, and the volume is opened as for use. Where the
//! two do not say the same, headers of the log are damaged: what they said is only known from a checkpoint, if at all.
//! Then all data are read through the volume as well, because the judge can not have read them; and a full repair writes
//! what is only known from a checkpoint anew.
//!
//! Of an array that lacks devices there is no judging the log: what it said there is not known, and the volume stands on its
//! checkpoints. It is opened as for use, and everything that it knows of is read through it. What lies on the devices that are
//! missing is lost, and named by whom it belongs to; a repair ends what that leaves of the file system, and is tried in memory
//! before anything is written, because from the first write on what the devices hold is out of date for good.
//!
//! # Failure
//! As of [`repair()`]: a crash leaves the volume no worse, and the next repair goes on.

use ftl::device::MediaError;
use ftl::inspect::Inspector;
use ftl::{
    Device, Intent, Lba, LbaRange, OpenError, OpenOptions, OverlayDevice, RecoveryReport, Volume,
    VolumeError,
};

use crate::check::{CheckReport, Progress, check_telling};
use crate::error::FsError;
use crate::fs::{Fs, FsOptions};
use crate::owner::{Share, owners, shares};
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
    /// Devices are missing, and without them there is no file system, repaired or not. Nothing was written.
    #[error("without the devices that are missing the file system can not be read: {0}")]
    Without(FsError),
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
    /// Those of them that lie on devices that are missing, and are lost.
    pub missing_grains: usize,
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
    if lacks_devices(&device) {
        return check_without(device, open, progress);
    }
    let mut tell = |done, all| progress(Stage::Log, done, all);
    let log = ftl::check_telling(&mut device, &mut tell).map_err(VolumeCheckError::Judge)?;
    let (volume, recovery) = opened(OverlayDevice::new(device), open)?;
    let unsaid = volume.differing(&log)?;
    // What the log does not speak of was not read with it.
    let files = check_telling(&volume, !unsaid.is_empty(), progress);
    let superblock = superblock_problem(log.superblocks == 2);
    let damaged = damaged_problems(&volume, &log.damaged);
    let lost = lost_headers(&recovery);
    let log_problems = superblock.into_iter().chain(lost).chain(damaged);
    let log_problems = log_problems.chain(log.faults);
    let report = VolumeReport {
        log_problems: log_problems.collect(),
        files,
        unsaid,
        mapped_grains: log.map.len(),
        missing_grains: 0,
        clean: recovery.clean,
    };
    Ok((report, volume.into_device().into_below()))
}

/// The same of a volume that lacks devices.
fn check_without<D: Device>(
    mut device: D,
    open: &OpenOptions,
    progress: Progress<'_>,
) -> Result<(VolumeReport, D), VolumeCheckError> {
    let mut inspector = Inspector::new(&mut device).map_err(VolumeCheckError::Judge)?;
    let superblock = superblock_problem(inspector.superblocks().iter().all(Result::is_ok));
    let (volume, recovery) = opened(OverlayDevice::new(device), open)?;
    let unread = read_all(&volume, progress)?;
    let files = check_telling(&volume, false, progress);
    let missing = shares(&volume, &unread.missing);
    let missing = missing.iter().map(missing_problem);
    let lost = lost_headers(&recovery);
    let log_problems = superblock.into_iter().chain(lost);
    let log_problems = log_problems.chain(damaged_problems(&volume, &unread.damaged));
    let report = VolumeReport {
        log_problems: log_problems.chain(missing).collect(),
        files,
        unsaid: Vec::new(),
        mapped_grains: volume.mapped_count(LbaRange::SPACE) as usize,
        missing_grains: unread.missing.len(),
        clean: recovery.clean,
    };
    Ok((report, volume.into_device().into_below()))
}

/// Grains that can not be read.
#[derive(Default)]
struct Unread {
    /// On devices that are missing.
    missing: Vec<Lba>,
    /// For any other reason.
    damaged: Vec<Lba>,
}

/// Reads everything that the map knows of.
fn read_all<D: Device>(
    volume: &Volume<D>,
    progress: Progress<'_>,
) -> Result<Unread, VolumeCheckError> {
    let mut unread = Unread::default();
    let all = volume.mapped_count(LbaRange::SPACE);
    let (mut next, end) = (Lba(0), LbaRange::SPACE.end());
    let mut done = 0;
    while let Some(lba) = volume.next_mapped(LbaRange::new(next, end.0 - next.0)) {
        next = lba.offset(1);
        match volume.page(lba, Intent::Read) {
            Ok(_) => {}
            Err(VolumeError::Media {
                error: MediaError::Missing,
                ..
            }) => unread.missing.push(lba),
            Err(VolumeError::Damaged { .. } | VolumeError::Media { .. }) => {
                unread.damaged.push(lba);
            }
            Err(error) => return Err(error.into()),
        }
        done += 1;
        progress(Stage::Log, done, all);
    }
    Ok(unread)
}

fn missing_problem(share: &Share) -> String {
    let Share {
        owner,
        first,
        grains,
    } = share;
    match owner {
        Some(owner) => format!("{owner}: {grains} grains are lost with a device that is missing"),
        None => format!(
            "{first}: {grains} grains from there on that are no content, or of nobody who is known, are lost with a device that is missing"
        ),
    }
}

fn superblock_problem(are_whole: bool) -> Option<String> {
    (!are_whole).then(|| {
        "one of the two superblocks is damaged; using the volume writes it anew".to_owned()
    })
}

fn damaged_problems<D: Device>(volume: &Volume<D>, damaged: &[Lba]) -> Vec<String> {
    let owners = damaged.iter().zip(owners(volume, damaged));
    let problems = owners.map(|(lba, owner)| {
        let whose = owner.map_or(String::new(), |owner| format!(": {owner}"));
        format!("{lba} does not fit its checksum or can not be read{whose}")
    });
    problems.collect()
}

/// Whether the volume is to go on without some of its devices.
fn lacks_devices(device: &impl Device) -> bool {
    let members = device.members();
    members.is_some_and(|members| members.list().iter().any(|member| !member.is_live()))
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
    let is_less = lacks_devices(&device);
    let device = match is_less {
        true => try_without(device, open, care)?,
        false => device,
    };
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
    // What is missing is told in any case.
    if !look && lost.is_none() && !is_less {
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

/// Whether there is a file system without devices that are missing, once it is repaired: in memory. Gives the device back as it
/// was.
fn try_without<D: Device>(
    device: D,
    open: &OpenOptions,
    care: Care,
) -> Result<D, VolumeCheckError> {
    let (volume, _) = opened(OverlayDevice::new(device), open)?;
    repair(&volume, care)?;
    let options = FsOptions {
        read_only: true,
        ..FsOptions::default()
    };
    Fs::mount_with(&volume, &options)
        .map(drop)
        .map_err(VolumeCheckError::Without)?;
    Ok(volume.into_device().into_below())
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
