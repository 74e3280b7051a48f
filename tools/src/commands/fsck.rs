//! `fsck`: reads a whole volume that is not in use, reports, and repairs if told to.

use std::path::PathBuf;

use anyhow::{Context, Result};
use contigfs::Care;
use ftl::inspect::Inspector;
use ftl::{OpenOptions, OverlayDevice, RecoveryReport, Volume};
use serde_json::json;

use super::Done;
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
    clean: bool,
}

/// Runs the command.
pub(super) fn run(options: &cli::Fsck, json: bool) -> Result<Done> {
    let paths: Vec<PathBuf> = options
        .devices
        .iter()
        .flat_map(|path| devices::from_spec(path))
        .collect();
    let names = devices::names(&paths);
    if options.preen && !options.force && !options.rebuild && is_clean(&paths)? {
        match json {
            true => println!(
                "{}",
                json!({ "device": devices::names_json(&paths), "clean": true, "problems": [] })
            ),
            false => println!("{names}: clean"),
        }
        return Ok(Done::AllWell);
    }
    let findings = match (options.preen, options.yes) {
        (true, _) => repair(options, &paths, Care::Safe)?,
        (_, true) => repair(options, &paths, Care::Full)?,
        _ if options.rebuild => rebuild(&paths)?,
        _ => look(&paths)?,
    };
    match json {
        true => println!("{}", findings.json(&paths)),
        false => findings.print(&names, options),
    }
    if !findings.problems.is_empty() {
        let way_out = match options.yes {
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
        })
    }

    fn print(&self, names: &str, options: &cli::Fsck) {
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
        let writes = options.preen || options.yes || options.rebuild;
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

/// Whether the volume was shut down in order.
fn is_clean(paths: &[PathBuf]) -> Result<bool> {
    let mut device = devices::open(paths, Access::Read)?;
    let inspector = Inspector::new(&mut device)
        .with_context(|| format!("cannot check {}", devices::names(paths)))?;
    Ok(inspector.superblock().clean)
}

fn open<D: ftl::Device>(
    device: D,
    paths: &[PathBuf],
    rebuild: bool,
) -> Result<(Volume<D>, RecoveryReport)> {
    let open = OpenOptions {
        pool_frames: POOL_FRAMES,
        rebuild,
        ..OpenOptions::default()
    };
    Volume::open(device, open)
        .with_context(|| format!("cannot open the volume on {}", devices::names(paths)))
}

/// Checks the log and the file system, and writes nothing: what recovery has to write stays in memory.
fn look(paths: &[PathBuf]) -> Result<Findings> {
    let mut device = devices::open(paths, Access::Read)?;
    let mut findings = Findings::default();
    findings.read_log(&mut device, paths)?;
    let (volume, recovery) = open(OverlayDevice::new(device), paths, false)?;
    findings.clean = recovery.clean;
    let files = findings.check_files(&volume);
    findings.set_files(files);
    Ok(findings)
}

/// Checks the same, and leaves the map that was found again from the log on the media.
fn rebuild(paths: &[PathBuf]) -> Result<Findings> {
    let mut device = devices::open(paths, Access::Write)?;
    let mut findings = Findings::default();
    findings.read_log(&mut device, paths)?;
    let (volume, recovery) = open(device, paths, true)?;
    findings.clean = recovery.clean;
    findings.set_files(contigfs::check(&volume));
    volume.shutdown()?;
    Ok(findings)
}

/// Recovers the volume and repairs its file system. The log is read, which takes as long as reading all data, when the
/// volume is looked at for more than being fit for use.
fn repair(options: &cli::Fsck, paths: &[PathBuf], care: Care) -> Result<Findings> {
    let device = devices::open(paths, Access::Write)?;
    let (volume, recovery) = open(device, paths, options.rebuild)?;
    let names = devices::names(paths);
    let done = contigfs::repair(&volume, care)
        .with_context(|| format!("cannot repair {names} (what has been repaired stays so)"));
    let mapped = volume.space().mapped as usize;
    let closed = volume.shutdown();
    let done = done?;
    closed?;
    let mut findings = Findings {
        clean: recovery.clean,
        repaired: done.repaired.iter().map(ToString::to_string).collect(),
        mapped_grains: mapped,
        ..Findings::default()
    };
    if care == Care::Full || options.force {
        // The same device: its lock outlives it for a moment.
        let mut device = volume.into_device();
        findings.read_log(&mut device, paths)?;
        if findings.mapped_grains != mapped {
            let (volume, _) = open(OverlayDevice::new(device), paths, false)?;
            let files = findings.check_files(&volume);
            findings.set_files(files);
            return Ok(findings);
        }
    }
    findings.set_files(done.after);
    Ok(findings)
}

impl Findings {
    /// Judges the files. Of a log whose headers are damaged more may be known than it says; what it does not speak of
    /// was not read with it.
    fn check_files<D: ftl::Device>(&self, volume: &Volume<D>) -> contigfs::CheckReport {
        match volume.space().mapped == self.mapped_grains as u64 {
            true => contigfs::check(volume),
            false => contigfs::check_with_data(volume),
        }
    }

    fn set_files(&mut self, files: contigfs::CheckReport) {
        self.problems
            .extend(files.problems.iter().map(ToString::to_string));
        self.files = files;
    }

    /// Judges the log.
    fn read_log(&mut self, device: &mut dyn ftl::Device, paths: &[PathBuf]) -> Result<()> {
        let log = ftl::check(device)
            .with_context(|| format!("cannot check {}", devices::names(paths)))?;
        let superblock = (log.superblocks < 2).then(|| {
            "one of the two superblocks is damaged; using the volume writes it anew".to_owned()
        });
        let grains = log
            .damaged
            .iter()
            .map(|lba| format!("{lba} does not fit its checksum or can not be read"));
        self.problems
            .extend(superblock.into_iter().chain(grains).chain(log.faults));
        self.mapped_grains = log.map.len();
        Ok(())
    }
}
