//! `snapshot`: read-only images of a volume that is served. On a mount all is done through `.snapshots`, as anybody may without this
//! program; a volume that is named by its devices has its target asked.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use contigfs::SNAPSHOTS;
use serde_json::{Value, json};
use thiserror::Error;

use super::{mounted, show};
use crate::cli::snapshot::{Named, SnapshotCommand};
use crate::control::printable;
use crate::devices;
use crate::target::{self, ListedSnapshot, SnapshotQuestion};

/// Runs the command.
pub(super) fn run(command: &SnapshotCommand, json: bool) -> Result<()> {
    match command {
        SnapshotCommand::Create(named) => {
            let place = place(named)?;
            place
                .make(&named.name)
                .map_err(|error| refused("make", named, error))?;
            let path = place.directory().join(&named.name);
            match json {
                true => println!("{}", json!({ "path": path.to_string_lossy() })),
                false => println!("{}", path.display()),
            }
            Ok(())
        }
        SnapshotCommand::Delete(named) => {
            place(named)?
                .delete(&named.name)
                .map_err(|error| refused("delete", named, error))?;
            if json {
                println!("{}", json!({ "deleted": true }));
            }
            Ok(())
        }
        SnapshotCommand::List(of) => list(&Place::of(&of.volume)?, json),
    }
}

/// Where snapshots are made and found.
enum Place {
    /// In this directory of a mount.
    Mounted(PathBuf),
    /// At the target that serves these devices.
    Served(Vec<PathBuf>),
}

/// What whoever makes and deletes snapshots has answered. Other errors are of asking.
#[derive(Debug, Error)]
#[error(transparent)]
struct Refused(io::Error);

/// A snapshot: its name, and when it was made.
type Made = (OsString, Option<SystemTime>);

impl Place {
    fn of(volume: &Path) -> Result<Self> {
        match fs::metadata(volume) {
            Ok(found) if found.is_dir() => {}
            // Of several devices that are named there is no file.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(mounted::unasked(volume, error));
            }
            _ => return Ok(Self::Served(devices::from_spec(volume))),
        }
        let dir = volume.join(SNAPSHOTS);
        match fs::metadata(&dir) {
            Ok(_) => Ok(Self::Mounted(dir)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(anyhow!(
                "{} is not the root of a mounted flashnet volume, or its target is older than this program",
                volume.display()
            )),
            Err(error) => Err(mounted::unasked(volume, error)),
        }
    }

    /// On the mount, or from the root of the volume.
    fn directory(&self) -> PathBuf {
        match self {
            Self::Mounted(dir) => dir.clone(),
            Self::Served(_) => Path::new("/").join(SNAPSHOTS),
        }
    }

    fn make(&self, name: &OsString) -> Result<()> {
        match self {
            Self::Mounted(dir) => Ok(fs::create_dir(dir.join(name)).map_err(Refused)?),
            Self::Served(devices) => {
                let name = name.as_bytes().to_vec();
                ask(devices, SnapshotQuestion::MakeSnapshot(name)).map(drop)
            }
        }
    }

    fn delete(&self, name: &OsString) -> Result<()> {
        match self {
            Self::Mounted(dir) => Ok(fs::remove_dir(dir.join(name)).map_err(Refused)?),
            Self::Served(devices) => {
                let name = name.as_bytes().to_vec();
                ask(devices, SnapshotQuestion::DeleteSnapshot(name)).map(drop)
            }
        }
    }

    fn list(&self) -> Result<Vec<Made>> {
        let dir = match self {
            Self::Mounted(dir) => dir,
            Self::Served(devices) => {
                let all = ask(devices, SnapshotQuestion::ListSnapshots)?.into_iter();
                let made = |one: ListedSnapshot| {
                    let at = UNIX_EPOCH + Duration::from_nanos(one.created_ns);
                    (OsString::from_vec(one.name), Some(at))
                };
                return Ok(all.map(made).collect());
            }
        };
        let asked = || format!("cannot list {}", dir.display());
        let mut all = Vec::new();
        for entry in fs::read_dir(dir).with_context(asked)? {
            let entry = entry.with_context(asked)?;
            // One that is deleted in between is not there.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            all.push((entry.file_name(), metadata.created().ok()));
        }
        Ok(all)
    }
}

fn ask(devices: &[PathBuf], question: SnapshotQuestion) -> Result<Vec<ListedSnapshot>> {
    let names = devices::names(devices);
    match target::ask_snapshots(devices, question)? {
        Some(answer) => Ok(answer.map_err(|errno| Refused(io::Error::from_raw_os_error(errno)))?),
        None => Err(anyhow!(
            "nobody serves {names}: snapshots are made, shown and deleted by a running target"
        )),
    }
}

/// Where the snapshot of this name is.
fn place(named: &Named) -> Result<Place> {
    let name = named.name.as_os_str();
    if Path::new(name).file_name() != Some(name) {
        return Err(anyhow!(
            "{name:?} is no name of a snapshot: that has no / and is not . or .."
        ));
    }
    Place::of(&named.of.volume)
}

/// What an error number means here; any other error says it itself.
fn refused(what: &str, named: &Named, error: anyhow::Error) -> anyhow::Error {
    let failed = format!("cannot {what} the snapshot {}", named.name.display());
    let errno = error
        .downcast_ref()
        .and_then(|Refused(why)| why.raw_os_error());
    let way_out = match errno {
        Some(libc::EEXIST) => "there is one of this name",
        Some(libc::ENOENT) => "there is none of this name",
        Some(libc::EMLINK) => {
            "there are as many as there may be: delete one, and wait until its space is given back"
        }
        Some(libc::EINVAL) => "a name has 96 bytes at most",
        Some(libc::EACCES | libc::EPERM) => "only the owner of the root directory may do that",
        Some(libc::EROFS) => "the volume is served read-only",
        Some(libc::ENOSPC) => "the volume is full: delete files, or a snapshot",
        _ => return error.context(failed),
    };
    anyhow!("{failed}: {way_out}")
}

fn list(place: &Place, json: bool) -> Result<()> {
    let all = place.list()?;
    let time =
        |at: &Option<SystemTime>| at.map(|at| humantime::format_rfc3339_seconds(at).to_string());
    if json {
        let dir = place.directory();
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
