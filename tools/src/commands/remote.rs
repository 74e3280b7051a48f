//! `ls`, `stat`: what there is on a target, and how commands connect to one.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde_json::json;

use super::show;
use crate::cli::tls::TlsConnect;
use crate::cli::token::TokenFile;
use crate::cli::{self, Patience};
use crate::client::{
    ChannelOptions, ClientError, Identity, RemotePath, Session, SessionOptions, until_answered,
};
use crate::control::{Entry, Op, Request, printable};
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
pub(super) fn asked<T>(
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
pub(super) fn waits(timeout: Duration) -> impl FnOnce(&ClientError) {
    move |error| {
        let timeout = humantime::format_duration(timeout);
        unsaid::complain(&format!("{error}: waits for the target, {timeout} at most"));
    }
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
