//! `snapshot`: read-only images of a mounted volume. All is done through `.snapshots`, as anybody may without this program.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, anyhow};
use contigfs::SNAPSHOTS;
use serde_json::{Value, json};

use super::{mounted, show};
use crate::cli::snapshot::{Named, SnapshotCommand};
use crate::control::printable;

/// Runs the command.
pub(super) fn run(command: &SnapshotCommand, json: bool) -> Result<()> {
    match command {
        SnapshotCommand::Create(named) => {
            let path = path(named)?;
            fs::create_dir(&path).map_err(|error| refused("make", named, &error))?;
            match json {
                true => println!("{}", json!({ "path": path.to_string_lossy() })),
                false => println!("{}", path.display()),
            }
            Ok(())
        }
        SnapshotCommand::Delete(named) => {
            let path = path(named)?;
            fs::remove_dir(path).map_err(|error| refused("delete", named, &error))?;
            if json {
                println!("{}", json!({ "deleted": true }));
            }
            Ok(())
        }
        SnapshotCommand::List(mount) => list(&mount.dir, json),
    }
}

/// Where a snapshot is to be found.
fn path(named: &Named) -> Result<PathBuf> {
    let name = named.name.as_os_str();
    if Path::new(name).file_name() != Some(name) {
        return Err(anyhow!(
            "{name:?} is no name of a snapshot: that has no / and is not . or .."
        ));
    }
    Ok(directory(&named.dir)?.join(name))
}

fn directory(mount: &Path) -> Result<PathBuf> {
    let dir = mount.join(SNAPSHOTS);
    match fs::metadata(&dir) {
        Ok(_) => Ok(dir),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(anyhow!(
            "{} is not the root of a mounted flashnet volume, or its target is older than this program",
            mount.display()
        )),
        Err(error) => Err(mounted::unasked(mount, error)),
    }
}

fn refused(what: &str, named: &Named, error: &io::Error) -> anyhow::Error {
    let way_out = match error.raw_os_error() {
        Some(libc::EEXIST) => "there is one of this name",
        Some(libc::ENOENT) => "there is none of this name",
        Some(libc::EMLINK) => {
            "there are as many as there may be: delete one, and wait until its space is given back"
        }
        Some(libc::EINVAL) => "a name has 96 bytes at most",
        Some(libc::EACCES | libc::EPERM) => "only the owner of the root directory may do that",
        Some(libc::EROFS) => "the volume is mounted read-only",
        Some(libc::ENOSPC) => "the volume is full: delete files, or a snapshot",
        _ => {
            return anyhow!(
                "cannot {what} the snapshot {}: {error}",
                named.name.display()
            );
        }
    };
    anyhow!(
        "cannot {what} the snapshot {}: {way_out}",
        named.name.display()
    )
}

fn list(mount: &Path, json: bool) -> Result<()> {
    let dir = directory(mount)?;
    let asked = || format!("cannot list {}", dir.display());
    let mut all = Vec::new();
    for entry in fs::read_dir(&dir).with_context(asked)? {
        let entry = entry.with_context(asked)?;
        // One that is deleted in between is not there.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        all.push((entry.file_name(), metadata.created().ok()));
    }
    let time =
        |at: &Option<SystemTime>| at.map(|at| humantime::format_rfc3339_seconds(at).to_string());
    if json {
        let objects = all.iter().map(|(name, at)| {
            json!({
                "name": name.to_string_lossy(),
                "created": time(at),
                "path": dir.join(name).to_string_lossy(),
            })
        });
        println!("{}", objects.collect::<Value>());
        return Ok(());
    }
    let mut table = show::table(&["name", "created"]);
    for (name, at) in &all {
        // Whoever may make snapshots has chosen it.
        let name = printable(name.as_bytes());
        table.add_row([name, time(at).unwrap_or_default()]);
    }
    println!("{table}");
    Ok(())
}
