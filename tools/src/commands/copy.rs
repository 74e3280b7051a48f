//! `get`, `put`: a file from a target to here, and the other way.

use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use serde_json::json;

use super::part::Part;
use super::remote::{waits, way};
use super::{show, tree};
use crate::cli;
use crate::client::{ChannelOptions, ClientError, RemotePath, Transfer};
use crate::control::{FLAG_CREATE, FLAG_TRUNCATE, FLAG_WRITE, Op, Request};
use crate::unsaid;

/// What has been copied.
pub(super) struct Copied {
    /// Bytes.
    pub length: u64,
    elapsed: Duration,
    checksum: u32,
}

/// `get`: a remote file to here.
pub(super) fn get(options: &cli::Get, json: bool) -> Result<()> {
    let (remote, how) = way(
        &options.source,
        options.patience,
        &options.identity,
        &options.tls,
    )?;
    if options.recursive && remote.file_name().is_none() {
        // All of a volume has no name.
        let to = options.to.as_deref().unwrap_or(Path::new("."));
        return tree::get(&remote, &how, to, json);
    }
    let to = local_name(&remote, options.to.as_deref())?;
    if options.recursive {
        return tree::get(&remote, &how, &to, json);
    }
    let copied = get_file(&remote, &how, &to)?;
    if to != Path::new("-") {
        report(json, &to.display().to_string(), &copied);
    }
    Ok(())
}

/// Where a copy goes: into a directory, under its name.
fn local_name(remote: &RemotePath, to: Option<&Path>) -> Result<PathBuf> {
    let name = || remote.file_name().context("the path names no file");
    Ok(match to {
        Some(to) if to.is_dir() => to.join(name()?),
        Some(to) => to.to_owned(),
        None => PathBuf::from(name()?),
    })
}

/// Copies a file here; `-` is standard output.
pub(super) fn get_file(remote: &RemotePath, how: &ChannelOptions, to: &Path) -> Result<Copied> {
    let request = Request::new(Op::Open, remote.path.as_str());
    let mut transfer = transfer(remote, how, request)?;
    let length = transfer.file().length;
    let mut part = None;
    let mut out: Box<dyn Write> = if to == Path::new("-") {
        Box::new(io::stdout().lock())
    } else {
        let cannot = || format!("cannot write {}", to.display());
        match Part::beside(to).with_context(cannot)? {
            Some((begun, file)) => {
                part = Some(begun);
                Box::new(file)
            }
            None => Box::new(File::create(to).with_context(cannot)?),
        }
    };
    let progress = show::progress(length, "get");
    let mut checksum = crc32fast::Hasher::new();
    let start = Instant::now();
    let take = |_, bytes: &[u8]| {
        checksum.update(bytes);
        progress.inc(bytes.len() as u64);
        let written = out.write_all(bytes);
        written.map_err(|error| here("write", to, &error))
    };
    let done = transfer.read(take, |error, done| {
        lost(&progress, error, (done, length), how.patience);
    });
    whole(done, remote, (transfer.done(), length))?;
    out.flush()
        .with_context(|| format!("cannot write {}", to.display()))?;
    drop(out);
    if let Some(part) = part {
        part.finish()
            .with_context(|| format!("cannot write {}", to.display()))?;
    }
    let elapsed = start.elapsed();
    progress.finish_and_clear();
    transfer.close();
    Ok(Copied {
        length,
        elapsed,
        checksum: checksum.finalize(),
    })
}

/// `put`: a file from here to there.
pub(super) fn put(options: &cli::Put, json: bool) -> Result<()> {
    let from = &options.from;
    let (mut remote, how) = way(
        &options.target,
        options.patience,
        &options.identity,
        &options.tls,
    )?;
    if options.recursive {
        return tree::put(from, remote, &how, json);
    }
    if remote.path.ends_with('/') {
        remote.path.push_str(remote_name(from)?);
    }
    let copied = put_file(from, &remote, &how)?;
    report(json, &remote.to_string(), &copied);
    Ok(())
}

/// What a file is called there if it keeps its name.
pub(super) fn remote_name(from: &Path) -> Result<&str> {
    let name = from.file_name().context("the source has no name")?;
    name.to_str().with_context(|| {
        let from = from.display();
        format!("{from} can not keep its name: remote paths are UTF-8")
    })
}

/// Copies a file there.
pub(super) fn put_file(from: &Path, remote: &RemotePath, how: &ChannelOptions) -> Result<Copied> {
    // A pipe is not waited for until somebody writes to it.
    let input = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(from);
    let input = input.with_context(|| format!("cannot read {}", from.display()))?;
    let meta = input.metadata()?;
    if !meta.is_file() {
        bail!("{} is not a regular file", from.display());
    }
    let length = meta.len();
    let request = Request {
        flags: FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE,
        length,
        ..Request::new(Op::Open, remote.path.as_str())
    };
    let mut transfer = transfer(remote, how, request)?;
    let progress = show::progress(length, "put");
    let mut checksum = crc32fast::Hasher::new();
    let mut checked = 0;
    let start = Instant::now();
    let fill = |at: u64, bytes: &mut [u8]| {
        let read = input.read_exact_at(bytes, at);
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                let shorter = io::Error::new(error.kind(), "it has become shorter meanwhile");
                here("read", from, &shorter)
            }
            _ => here("read", from, &error),
        })?;
        let end = at + bytes.len() as u64;
        progress.set_position(end);
        // What is written again counts once.
        if end > checked {
            checksum.update(&bytes[(checked - at.min(checked)) as usize..]);
            checked = end;
        }
        Ok(())
    };
    let done = transfer.write(length, fill, |error, done| {
        lost(&progress, error, (done, length), how.patience);
    });
    whole(done, remote, (transfer.done(), length))?;
    let elapsed = start.elapsed();
    progress.finish_and_clear();
    transfer.close();
    unchanged(from, &meta, &input.metadata()?)?;
    Ok(Copied {
        length,
        elapsed,
        checksum: checksum.finalize(),
    })
}

/// Begins a copy.
fn transfer(remote: &RemotePath, how: &ChannelOptions, request: Request) -> Result<Transfer> {
    let waits = waits(how.patience);
    Ok(Transfer::open(
        &remote.resolve()?,
        how.clone(),
        request,
        waits,
    )?)
}

/// What is copied while somebody writes to it is of several moments, and what was added is not there. The time of change tells also
/// of who has set back that of the content, and of who has put another file in the place of this one.
fn unchanged(from: &Path, before: &Metadata, after: &Metadata) -> Result<()> {
    let from = from.display();
    let (length, now) = (before.len(), after.len());
    if now != length {
        bail!("{from} had {length} bytes, which were copied, and has {now} now: put it again");
    }
    let times = |of: &Metadata| (of.modified().ok(), of.ctime(), of.ctime_nsec());
    if times(before) != times(after) {
        bail!("{from} was changed while it was copied: put it again");
    }
    Ok(())
}

/// Tells that a copy waits for its target.
fn lost(
    progress: &ProgressBar,
    error: &ClientError,
    (done, length): (u64, u64),
    timeout: Duration,
) {
    let timeout = humantime::format_duration(timeout);
    let (done, length) = (show::bytes(done), show::bytes(length));
    progress.suspend(|| {
        unsaid::complain(&format!(
            "{error}: waits for the target, {timeout} at most, and goes on behind {done} of {length}"
        ));
    });
}

/// Why a copy has ended before its end. One that the target has ended is most often of a file that somebody has changed meanwhile.
fn whole(
    done: Result<(), ClientError>,
    remote: &RemotePath,
    (copied, length): (u64, u64),
) -> Result<()> {
    let Err(error) = done else { return Ok(()) };
    if matches!(error, ClientError::Local(_)) {
        return Err(error.into());
    }
    let why = match error.is_terminated() {
        true => " and may have been replaced or cut short meanwhile (try again)",
        false => "",
    };
    let (copied, length) = (show::bytes(copied), show::bytes(length));
    Err(error).with_context(|| format!("{remote}: {copied} of {length} were copied{why}"))
}

/// What failed with the file on this side.
fn here(step: &str, file: &Path, error: &io::Error) -> ClientError {
    let said = format!("cannot {step} {}: {error}", file.display());
    ClientError::Local(io::Error::new(error.kind(), said))
}

fn report(json: bool, name: &str, copied: &Copied) {
    let &Copied {
        length,
        elapsed,
        checksum,
    } = copied;
    if json {
        println!(
            "{}",
            json!({
                "name": name,
                "bytes": length,
                "seconds": elapsed.as_secs_f64(),
                "crc32": format!("{checksum:08x}"),
            })
        );
    } else {
        println!(
            "{name}: {} in {} ({}), CRC-32 {checksum:08x}",
            show::bytes(length),
            show::time(elapsed),
            show::rate(length, elapsed)
        );
    }
}
