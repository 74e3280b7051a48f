//! `quota`: limits what may lie below a directory of a mounted volume.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use contigfs::fuse::{QUOTA, QuotaAction, QuotaRefusal, QuotaRequest};
use contigfs::{NewLimits, ProjectId, Quota};
use ftl::GRAIN_BYTES;
use serde_json::{Value, json};

use super::{mounted, show};
use crate::cli::quota::{QuotaCommand, QuotaSet, QuotaShow};
use crate::control::printable;

/// Runs the command.
pub(super) fn run(command: &QuotaCommand, json: bool) -> Result<()> {
    match command {
        QuotaCommand::Set(options) => set(options, json),
        QuotaCommand::Show(options) => show(options, json),
        QuotaCommand::Remove(options) => {
            let done = ask(&options.dir, QuotaAction::Remove)?;
            if let Err(QuotaRefusal::NoProject) = done {
                bail!(
                    "{} is not the directory of a project: `flashnet quota show --all` lists those",
                    options.dir.display()
                );
            }
            done.with_context(|| refused(&options.dir))?;
            if json {
                println!("{}", json!({ "removed": true }));
            }
            Ok(())
        }
    }
}

fn refused(dir: &Path) -> String {
    format!("cannot change the limits of {}", dir.display())
}

fn set(options: &QuotaSet, json: bool) -> Result<()> {
    let limits = NewLimits {
        bytes: options.bytes.map(|limit| limit.0.map(|size| size.as_u64())),
        inodes: options.inodes.map(|limit| limit.0),
    };
    let project = options.project.and_then(ProjectId::new);
    let done = ask(&options.dir, QuotaAction::Set(limits, project))?;
    let quota = done.with_context(|| refused(&options.dir))?;
    let quota = quota.context("the target did not say what it has done")?;
    tell(&[quota], json);
    Ok(())
}

fn show(options: &QuotaShow, json: bool) -> Result<()> {
    let dir = options.dir.as_deref().unwrap_or(Path::new("."));
    let mut quotas = Vec::new();
    let mut next = match options.all {
        true => QuotaAction::Next(None),
        false => QuotaAction::Show,
    };
    loop {
        match ask(dir, next)? {
            Ok(Some(quota)) => {
                next = QuotaAction::Next(Some(quota.project));
                quotas.push(quota);
            }
            Ok(None) | Err(QuotaRefusal::NoProject) => break,
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("cannot ask the target of {}", dir.display()));
            }
        }
        if !options.all {
            break;
        }
    }
    if quotas.is_empty() && !options.all && !json {
        println!("{} belongs to no project", dir.display());
        return Ok(());
    }
    match json {
        true => println!("{}", quotas.iter().map(object).collect::<Value>()),
        false => tell(&quotas, false),
    }
    Ok(())
}

/// Asks the target that serves the directory.
fn ask(dir: &Path, action: QuotaAction) -> Result<Result<Option<Quota>, QuotaRefusal>> {
    let file = mounted::open(dir)?;
    let mut request = QuotaRequest::new(action);
    // SAFETY: the request has the length that the number says, and lives over the call.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), QUOTA as libc::c_ulong, &raw mut request) };
    if done != 0 {
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EPERM) => bail!(
                "{}: only root, and the user who mounted the volume, may do that",
                dir.display()
            ),
            Some(libc::ENOTTY) => bail!(
                "{} is not on a mounted flashnet volume, or its target is older than this program",
                dir.display()
            ),
            _ => return Err(mounted::unasked(dir, error)),
        }
    }
    Ok(request.outcome())
}

fn object(quota: &Quota) -> Value {
    json!({
        "project": quota.project.get(),
        "path": quota.path.as_ref().map(|path| path.to_string_lossy()),
        "bytes": quota.grains * GRAIN_BYTES as u64,
        "bytes_limit": quota.limits.bytes,
        "inodes": quota.inodes,
        "inodes_limit": quota.limits.inodes,
    })
}

fn tell(quotas: &[Quota], json: bool) {
    if json {
        quotas
            .iter()
            .for_each(|quota| println!("{}", object(quota)));
        return;
    }
    let mut table = show::table(&["project", "bytes", "limit", "inodes", "limit", "directory"]);
    for quota in quotas {
        let none = || "none".to_owned();
        let path = quota.path.as_ref();
        let path = path.map(|path| printable(path.as_os_str().as_bytes()));
        table.add_row([
            quota.project.to_string(),
            show::bytes(quota.grains * GRAIN_BYTES as u64),
            quota.limits.bytes.map_or_else(none, show::bytes),
            quota.inodes.to_string(),
            quota
                .limits
                .inodes
                .map_or_else(none, |limit| limit.to_string()),
            path.unwrap_or_default(),
        ]);
    }
    println!("{table}");
}
