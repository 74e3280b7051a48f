//! `ls`, `stat`, `get`, `put`: a remote client.

use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use serde_json::json;

use super::part::Part;
use super::show;
use crate::cli::tls::TlsConnect;
use crate::cli::token::TokenFile;
use crate::cli::{self, Patience};
use crate::client::{
    ChannelOptions, ClientError, Identity, RemotePath, Session, SessionOptions, Transfer,
    until_answered,
};
use crate::control::{Entry, FLAG_CREATE, FLAG_TRUNCATE, FLAG_WRITE, Op, Request, printable};
use crate::unsaid;

/// The path, and how to connect to its host.
pub(super) fn way(
    text: &str,
    patience: Patience,
    identity: &TokenFile,
    tls: &TlsConnect,
) -> Result<(RemotePath, ChannelOptions)> {
    let remote = RemotePath::with_port(text, tls.port())?;
    let timeout: Duration = patience.timeout.into();
    let options = ChannelOptions {
        identity: Identity::of_file(identity.token_file.as_deref())?,
        session: SessionOptions {
            tls: tls.to(&remote.host)?,
            // Who does not want to wait for a target that is away gives one that is there its time.
            patience: Some(timeout).filter(|timeout| !timeout.is_zero()),
            ..SessionOptions::default()
        },
        patience: timeout,
    };
    Ok((remote, options))
}

/// A session with a target, which is waited for.
pub(super) fn connect(remote: &RemotePath, how: &ChannelOptions) -> Result<Session> {
    asked(remote, how, |_| Ok(())).map(|(session, ())| session)
}

/// A session with a target, which is waited for, and what it answers to something that may be asked again.
fn asked<T>(
    remote: &RemotePath,
    how: &ChannelOptions,
    ask: impl Fn(&mut Session) -> Result<T, ClientError>,
) -> Result<(Session, T)> {
    let addresses = remote.resolve()?;
    let attempt = || -> Result<_, ClientError> {
        let token = how.identity.token();
        let mut session = Session::connect_as(&addresses, how.session.clone(), &token)?;
        let answer = ask(&mut session)?;
        Ok((session, answer))
    };
    Ok(until_answered(how.patience, attempt, waits(how.patience))?)
}

/// Tells that a command waits for its target.
fn waits(timeout: Duration) -> impl FnOnce(&ClientError) {
    move |error| {
        let timeout = humantime::format_duration(timeout);
        unsaid::complain(&format!("{error}: waits for the target, {timeout} at most"));
    }
}

/// Begins a copy.
fn transfer(remote: &RemotePath, how: ChannelOptions, request: Request) -> Result<Transfer> {
    let waits = waits(how.patience);
    Ok(Transfer::open(&remote.resolve()?, how, request, waits)?)
}

fn way_of(options: &cli::Remote) -> Result<(RemotePath, ChannelOptions)> {
    way(
        &options.target,
        options.patience,
        &options.identity,
        &options.tls,
    )
}

/// `ls`: names, with sizes and times.
pub(super) fn ls(options: &cli::Remote, json: bool) -> Result<()> {
    let (remote, how) = way_of(options)?;
    let (session, mut entries) = asked(&remote, &how, |session| session.list(&remote.path))?;
    session.close();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    if json {
        let list: Vec<_> = entries.iter().map(entry_json).collect();
        println!("{}", json!({ "path": remote.path, "entries": list }));
        return Ok(());
    }
    for entry in &entries {
        println!(
            "{} {:>10}  {}  {}",
            mode_text(entry.mode),
            show::bytes(entry.size),
            time_text(entry.mtime_ns),
            printable(&entry.name)
        );
    }
    Ok(())
}

/// `stat`: attributes of one path.
pub(super) fn stat(options: &cli::Remote, json: bool) -> Result<()> {
    let (remote, how) = way_of(options)?;
    let request = Request::new(Op::Stat, remote.path.as_str());
    let (session, reply) = asked(&remote, &how, |session| session.call(request.clone()))?;
    session.close();
    if json {
        println!(
            "{}",
            json!({
                "path": remote.path,
                "size": reply.size,
                "mode": format!("{:o}", reply.mode),
                "mtime_ns": reply.mtime_ns,
            })
        );
    } else {
        println!("  Path: {}", remote.path);
        println!("  Size: {} ({})", reply.size, show::bytes(reply.size));
        println!(
            "  Mode: {} ({:04o})",
            mode_text(reply.mode),
            reply.mode & 0o7777
        );
        println!("Modify: {}", time_text(reply.mtime_ns));
    }
    Ok(())
}

/// `get`: a remote file to here.
pub(super) fn get(options: &cli::Get, json: bool) -> Result<()> {
    let (remote, how) = way(
        &options.source,
        options.patience,
        &options.identity,
        &options.tls,
    )?;
    let to = match &options.to {
        Some(to) if to.is_dir() => to.join(remote.file_name().context("the path names no file")?),
        Some(to) => to.clone(),
        None => PathBuf::from(remote.file_name().context("the path names no file")?),
    };
    let request = Request::new(Op::Open, remote.path.as_str());
    let mut transfer = transfer(&remote, how, request)?;
    let length = transfer.file().length;
    let standard_output = to == Path::new("-");
    let mut part = None;
    let mut out: Box<dyn Write> = if standard_output {
        Box::new(io::stdout().lock())
    } else {
        let cannot = || format!("cannot write {}", to.display());
        match Part::beside(&to).with_context(cannot)? {
            Some((begun, file)) => {
                part = Some(begun);
                Box::new(file)
            }
            None => Box::new(File::create(&to).with_context(cannot)?),
        }
    };
    let progress = show::progress(length, "get");
    let mut checksum = crc32fast::Hasher::new();
    let start = Instant::now();
    let take = |_, bytes: &[u8]| {
        checksum.update(bytes);
        progress.inc(bytes.len() as u64);
        let written = out.write_all(bytes);
        written.map_err(|error| here("write", &to, &error))
    };
    let done = transfer.read(take, |error, done| {
        lost(&progress, error, (done, length), options.patience.timeout);
    });
    whole(done, &remote, (transfer.done(), length))?;
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
    if !standard_output {
        report(
            json,
            &to.display().to_string(),
            length,
            elapsed,
            checksum.finalize(),
        );
    }
    Ok(())
}

/// `put`: a file from here to there.
pub(super) fn put(options: &cli::Put, json: bool) -> Result<()> {
    let from = &options.from;
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
    let (mut remote, how) = way(
        &options.target,
        options.patience,
        &options.identity,
        &options.tls,
    )?;
    if remote.path.ends_with('/') {
        let name = from.file_name().context("the source has no name")?;
        let Some(name) = name.to_str() else {
            bail!(
                "{} can not keep its name: remote paths are UTF-8",
                from.display()
            );
        };
        remote.path.push_str(name);
    }
    let length = meta.len();
    let request = Request {
        flags: FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE,
        length,
        ..Request::new(Op::Open, remote.path.as_str())
    };
    let mut transfer = transfer(&remote, how, request)?;
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
        lost(&progress, error, (done, length), options.patience.timeout);
    });
    whole(done, &remote, (transfer.done(), length))?;
    let elapsed = start.elapsed();
    progress.finish_and_clear();
    transfer.close();
    unchanged(from, &meta, &input.metadata()?)?;
    report(
        json,
        &remote.to_string(),
        length,
        elapsed,
        checksum.finalize(),
    );
    Ok(())
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
    timeout: humantime::Duration,
) {
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

fn report(json: bool, name: &str, length: u64, elapsed: Duration, checksum: u32) {
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

fn entry_json(entry: &Entry) -> serde_json::Value {
    json!({
        "name": String::from_utf8_lossy(&entry.name),
        "size": entry.size,
        "mode": format!("{:o}", entry.mode),
        "mtime_ns": entry.mtime_ns,
    })
}

/// `drwxr-xr-x`, as ls(1) has it.
fn mode_text(mode: u32) -> String {
    let kind = match mode & libc::S_IFMT {
        libc::S_IFDIR => 'd',
        libc::S_IFLNK => 'l',
        libc::S_IFREG => '-',
        libc::S_IFIFO => 'p',
        libc::S_IFSOCK => 's',
        libc::S_IFCHR => 'c',
        libc::S_IFBLK => 'b',
        _ => '?',
    };
    let mut text = String::from(kind);
    for (shift, special, set) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => set.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

fn time_text(ns: u64) -> String {
    let at = SystemTime::UNIX_EPOCH + Duration::from_nanos(ns);
    humantime::format_rfc3339_seconds(at).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_read_as_ls_prints_them() {
        assert_eq!(mode_text(libc::S_IFDIR | 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text(libc::S_IFREG | 0o4644), "-rwSr--r--");
        assert_eq!(mode_text(libc::S_IFLNK | 0o777), "lrwxrwxrwx");
    }
}
