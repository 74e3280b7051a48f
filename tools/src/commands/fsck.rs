//! `fsck`: reads a whole volume that is not in use, reports, and repairs if told to.

use std::path::PathBuf;

use anyhow::{Context, Result};
use contigfs::{Care, VolumeCheckError, VolumeReport};
use ftl::inspect::Inspector;
use ftl::{OpenOptions, Volume};
use serde_json::json;

use super::Done;
use super::fsck_meter::Meter;
use crate::cli;
use crate::devices::{self, Access};

/// Pages in memory while checking.
const POOL_FRAMES: usize = 4096;

/// Something is wrong with the volume, and still is.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{names} is damaged{way_out}")]
pub struct Damaged {
    names: String,
    way_out: &'static str,
}

/// What was found.
#[derive(Debug, Default)]
struct Findings {
    /// Of the file system, after repairs.
    files: contigfs::CheckReport,
    /// What was wrong and is not any more.
    repaired: Vec<String>,
    /// What is wrong.
    problems: Vec<String>,
    mapped_grains: usize,
    missing_grains: usize,
    clean: bool,
    /// Devices that the volume lacks.
    missing: Vec<PathBuf>,
}

/// Runs the command.
pub(super) fn run(options: &cli::Fsck, json: bool) -> Result<Done> {
    let paths: Vec<PathBuf> = options
        .devices
        .iter()
        .flat_map(|path| devices::from_spec(path))
        .collect();
    let names = devices::names(&paths);
    if options.preen && !options.force && !options.rebuild && is_clean(options, &paths)? {
        match json {
            true => println!(
                "{}",
                json!({ "device": devices::names_json(&paths), "clean": true, "problems": [] })
            ),
            false => println!("{names}: clean"),
        }
        return Ok(Done::AllWell);
    }
    let mut meter = Meter::new(options.progress, &names, json)?;
    let findings = match (options.preen, options.yes) {
        (true, _) => repair(options, &paths, Care::Safe, &mut meter)?,
        (_, true) => repair(options, &paths, Care::Full, &mut meter)?,
        _ if options.rebuild => rebuild(&paths, &mut meter)?,
        _ => look(options, &paths, &mut meter)?,
    };
    meter.end();
    match json {
        true => println!("{}", findings.json(&paths)),
        false => findings.print(&names, options),
    }
    if !findings.problems.is_empty() {
        let is_unreadable = contigfs::Problem::is_unreadable;
        let way_out = match options.yes {
            _ if findings.files.problems.iter().any(is_unreadable) => {
                "; while the device gives errors nothing is given up: try again, or copy it to another device and \
                 repair the copy"
            }
            // The rest needs somebody who knows what the files should be.
            true => "",
            false => "; fsck -y repairs what can be repaired",
        };
        return Err(Damaged { names, way_out }.into());
    }
    Ok(match findings.repaired.is_empty() {
        true => Done::AllWell,
        false => Done::Repaired,
    })
}

impl Findings {
    fn json(&self, paths: &[PathBuf]) -> serde_json::Value {
        json!({
            "device": devices::names_json(paths),
            "clean": self.clean,
            "mapped_grains": self.mapped_grains,
            "files": self.files.files,
            "directories": self.files.directories,
            "repaired": self.repaired,
            "problems": self.problems,
            "missing": names_of(&self.missing),
            "missing_grains": self.missing_grains,
        })
    }

    fn print(&self, names: &str, options: &cli::Fsck) {
        let writes = options.preen || options.yes || options.rebuild;
        if !self.missing.is_empty() {
            println!(
                "without {}: {} of {} grains in use are lost{}",
                devices::names(&self.missing),
                self.missing_grains,
                self.mapped_grains,
                match writes {
                    true => "; what is there is out of date from now on",
                    false => "; nothing was written",
                }
            );
        }
        for problem in &self.repaired {
            println!("repaired: {problem}");
        }
        for problem in &self.problems {
            println!("{problem}");
        }
        if options.verbose {
            let files = &self.files;
            println!(
                "{} links, devices, pipes and sockets, {} inodes with extended attributes",
                files.others, files.with_xattrs
            );
            println!(
                "for the next mount to end: {} files without names, {} half relocated, {} grains of nobody",
                files.orphans, files.relocating, files.ownerless_grains
            );
        }
        println!(
            "{names}: {} files, {} directories, {} grains in use, {}{} problems{}",
            self.files.files,
            self.files.directories,
            self.mapped_grains,
            match self.repaired.len() {
                0 => String::new(),
                repaired => format!("{repaired} problems repaired, "),
            },
            self.problems.len(),
            match (self.clean, writes) {
                (true, _) => "",
                (false, true) => "; it had not been shut down, and was recovered",
                (false, false) => "; it had not been shut down, and is recovered when it is used",
            }
        );
    }
}

fn names_of(paths: &[PathBuf]) -> Vec<String> {
    let name = |path: &PathBuf| path.display().to_string();
    paths.iter().map(name).collect()
}

/// How a volume is opened that nothing is written to.
fn reading(options: &cli::Fsck) -> Access {
    match options.degraded {
        true => Access::ReadDegraded,
        false => Access::Read,
    }
}

fn writing(options: &cli::Fsck) -> Access {
    match options.degraded {
        true => Access::Degraded,
        false => Access::Write,
    }
}

/// Whether the volume was shut down in order, and nothing is known to be wrong with it. One that goes on without another device is
/// to be looked at first.
fn is_clean(options: &cli::Fsck, paths: &[PathBuf]) -> Result<bool> {
    let mut device = devices::open(paths, reading(options))?;
    let missing = devices::missing(&device).len();
    let inspector = Inspector::new(&mut device)
        .with_context(|| format!("cannot check {}", devices::names(paths)))?;
    let superblock = inspector.superblock();
    let is_known = superblock.failed.count_ones() as usize == missing;
    Ok(superblock.clean && !superblock.suspect && is_known)
}

fn opening(rebuild: bool) -> OpenOptions {
    OpenOptions {
        pool_frames: POOL_FRAMES,
        rebuild,
        unreadable_max: u64::MAX,
        ..OpenOptions::default()
    }
}

/// Says which volume an error is about, and what could not be done with it.
fn about(error: VolumeCheckError, paths: &[PathBuf]) -> anyhow::Error {
    let names = devices::names(paths);
    let what = match error {
        VolumeCheckError::Judge(_) => format!("cannot check {names}"),
        VolumeCheckError::Without(_) => {
            format!("cannot repair {names} (nothing was written)")
        }
        VolumeCheckError::Open(_) => format!("cannot open the volume on {names}"),
        VolumeCheckError::Volume(_) | VolumeCheckError::Files(_) => {
            format!("cannot repair {names} (what has been repaired stays so)")
        }
    };
    anyhow::Error::new(error).context(what)
}

/// Checks the log and the file system, and writes nothing: what recovery has to write stays in memory.
fn look(options: &cli::Fsck, paths: &[PathBuf], meter: &mut Meter) -> Result<Findings> {
    let device = devices::open(paths, reading(options))?;
    let missing = devices::missing(&device);
    let told = &mut |stage, done, all| meter.tell(stage, done, all);
    let looked = contigfs::check_volume(device, &opening(false), told);
    let (report, _) = looked.map_err(|error| about(error, paths))?;
    Ok(Findings {
        missing,
        ..Findings::of(report)
    })
}

/// Leaves the map that is found again from the log on the media, and checks the same.
fn rebuild(paths: &[PathBuf], meter: &mut Meter) -> Result<Findings> {
    let device = devices::open(paths, Access::Write)?;
    let opened = Volume::open(device, opening(true));
    let (volume, recovery) = opened.map_err(|error| about(VolumeCheckError::Open(error), paths))?;
    volume.shutdown()?;
    let told = &mut |stage, done, all| meter.tell(stage, done, all);
    let looked = contigfs::check_volume(volume.into_device(), &opening(false), told);
    let (report, _) = looked.map_err(|error| about(error, paths))?;
    let mut findings = Findings::of(report);
    findings.clean = recovery.clean;
    findings.problems.extend(contigfs::lost_headers(&recovery));
    Ok(findings)
}

/// Recovers the volume and repairs its file system. The log is read, which takes as long as reading all data, when the
/// volume is looked at for more than being fit for use.
fn repair(
    options: &cli::Fsck,
    paths: &[PathBuf],
    care: Care,
    meter: &mut Meter,
) -> Result<Findings> {
    let device = devices::open(paths, writing(options))?;
    let missing = devices::missing(&device);
    let look = care == Care::Full || options.force;
    let told = &mut |stage, done, all| meter.tell(stage, done, all);
    let mut open = opening(options.rebuild);
    if care == Care::Safe {
        // Nobody has been asked, and what can not be read now may be later.
        open.unreadable_max = OpenOptions::default().unreadable_max;
    }
    let done = contigfs::repair_volume(device, &open, care, look, told);
    let (done, _) = done.map_err(|error| about(error, paths))?;
    let of_files = done.files.repaired.iter().map(ToString::to_string);
    let of_log = (done.written_anew > 0).then(|| {
        format!(
            "headers of the log were damaged: {} grains that only a checkpoint knew of are written anew",
            done.written_anew
        )
    });
    let repaired = of_files.chain(of_log).collect();
    let mapped_grains = done.mapped_grains;
    let after = done.after.unwrap_or_else(|| VolumeReport {
        files: done.files.after,
        ..VolumeReport::default()
    });
    Ok(Findings {
        clean: done.clean,
        repaired,
        mapped_grains,
        missing,
        ..Findings::of(after)
    })
}

impl Findings {
    fn of(report: VolumeReport) -> Self {
        Self {
            problems: report.problems(),
            repaired: Vec::new(),
            mapped_grains: report.mapped_grains,
            missing_grains: report.missing_grains,
            missing: Vec::new(),
            clean: report.clean,
            files: report.files,
        }
    }
}
