//! `fsck`: reads a whole volume that is not in use, and reports.

use anyhow::{Context, Result, bail};
use ftl::{CheckReport, OpenOptions, Volume};
use serde_json::json;

use crate::cli;
use crate::devices::{self, Access};

/// Pages in memory while checking.
const POOL_FRAMES: usize = 4096;

/// Runs the command: exit 0 when everything is in order.
pub(super) fn run(options: &cli::Fsck, json: bool) -> Result<()> {
    let names = devices::names(&options.devices);
    let mut device = devices::open(&options.devices, Access::Write)?;
    let log = ftl::check(&mut device).with_context(|| format!("cannot check {names}"))?;
    let open = OpenOptions {
        pool_frames: POOL_FRAMES,
        rebuild: options.rebuild,
        ..OpenOptions::default()
    };
    let (volume, recovery) =
        Volume::open(device, open).with_context(|| format!("cannot open the volume on {names}"))?;
    let files = contigfs::check(&volume);
    volume.shutdown()?;
    let problems: Vec<String> = log_problems(&log)
        .into_iter()
        .chain(files.problems.iter().map(ToString::to_string))
        .collect();
    if json {
        println!(
            "{}",
            json!({
                "device": devices::names_json(&options.devices),
                "clean": recovery.clean,
                "mapped_grains": log.map.len(),
                "files": files.files,
                "directories": files.directories,
                "problems": problems,
            })
        );
    } else {
        for problem in &problems {
            println!("{problem}");
        }
        println!(
            "{names}: {} files, {} directories, {} grains in use, {} problems{}",
            files.files,
            files.directories,
            log.map.len(),
            problems.len(),
            if recovery.clean {
                ""
            } else {
                "; it had not been shut down, and was recovered"
            }
        );
    }
    if problems.is_empty() {
        Ok(())
    } else {
        bail!("{names} is damaged")
    }
}

fn log_problems(log: &CheckReport) -> Vec<String> {
    let superblock = (log.superblocks < 2)
        .then(|| "one of the two superblocks was damaged; opening the volume restored it".into());
    let grains = log
        .damaged
        .iter()
        .map(|lba| format!("{lba} does not fit its checksum or can not be read"));
    superblock
        .into_iter()
        .chain(grains)
        .chain(log.faults.iter().cloned())
        .collect()
}
