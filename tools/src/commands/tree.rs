//! `get -r`, `put -r`: a directory with everything in it, from a target to here, and the other way.
//!
//! What is neither directory nor regular file is left out. Who is lost in the middle ends it; a file that can not be copied does not keep
//! others from being copied.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Error, Result, bail, ensure};
use serde_json::json;

use super::copy::{get_file, put_file, remote_name};
use super::names::{is_directory, make_directory};
use super::remote::asked;
use super::show;
use crate::client::{ChannelOptions, ClientError, RemotePath};
use crate::control::{Entry, Op, Request, printable};
use crate::unsaid;

/// What has been copied.
struct Tally {
    since: Instant,
    files: u64,
    directories: u64,
    bytes: u64,
    left_out: u64,
}

impl Tally {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            files: 0,
            directories: 0,
            bytes: 0,
            left_out: 0,
        }
    }

    /// Something is not copied, and the next thing is, unless the target has gone.
    fn leave_out(&mut self, why: Error) -> Result<()> {
        let is_of_one = match why.downcast_ref::<ClientError>() {
            Some(ClientError::Refused { .. } | ClientError::Local(_)) | None => true,
            // A file that was cut short meanwhile.
            Some(error) => error.is_terminated(),
        };
        if !is_of_one {
            return Err(why);
        }
        unsaid::complain(&format!("{why:#}"));
        self.left_out += 1;
        Ok(())
    }

    fn file(&mut self, copied: Result<u64>) -> Result<()> {
        match copied {
            Ok(bytes) => {
                self.files += 1;
                self.bytes += bytes;
                Ok(())
            }
            Err(error) => self.leave_out(error),
        }
    }

    fn report(&self, name: &str, json: bool) -> Result<()> {
        let elapsed = self.since.elapsed();
        let &Self {
            files,
            directories,
            bytes,
            left_out,
            ..
        } = self;
        if json {
            println!(
                "{}",
                json!({
                    "name": name,
                    "files": files,
                    "directories": directories,
                    "bytes": bytes,
                    "left_out": left_out,
                    "seconds": elapsed.as_secs_f64(),
                })
            );
        } else {
            println!(
                "{name}: {files} files, {} in {} ({})",
                show::bytes(bytes),
                show::time(elapsed),
                show::rate(bytes, elapsed)
            );
        }
        match left_out {
            0 => Ok(()),
            _ => bail!("{left_out} of what there is were not copied (named above)"),
        }
    }
}

/// A path on the same target.
fn at(remote: &RemotePath, path: String) -> RemotePath {
    RemotePath {
        path,
        ..remote.clone()
    }
}

fn below(path: &str, name: &str) -> String {
    format!("{}/{name}", path.trim_end_matches('/'))
}

/// Copies what is at a remote path to a place here.
pub(super) fn get(remote: &RemotePath, how: &ChannelOptions, to: &Path, json: bool) -> Result<()> {
    ensure!(
        to != Path::new("-"),
        "a directory can not be written to standard output"
    );
    let mut tally = Tally::new();
    let stat = Request::new(Op::Stat, remote.path.as_str());
    let (session, found) = asked(remote, how, |session| session.call(stat.clone()))?;
    session.close();
    if kind(found.mode) != libc::S_IFDIR {
        let copied = get_file(remote, how, to)?;
        tally.file(Ok(copied.length))?;
        return tally.report(&to.display().to_string(), json);
    }
    let mut waiting = vec![(remote.path.clone(), to.to_owned())];
    while let Some((path, to)) = waiting.pop() {
        let listed = make_local(&to).and_then(|()| list(&at(remote, path.clone()), how));
        let entries = match listed {
            Ok(entries) => entries,
            Err(error) => {
                tally.leave_out(error)?;
                continue;
            }
        };
        tally.directories += 1;
        for entry in entries {
            let Some(name) = local_name(&entry.name) else {
                let name = printable(&entry.name);
                let why = Error::msg(format!(
                    "{path}/{name}: a file can not be asked for by this name"
                ));
                tally.leave_out(why)?;
                continue;
            };
            let (from, to) = (below(&path, name), to.join(name));
            match kind(entry.mode) {
                libc::S_IFDIR => waiting.push((from, to)),
                libc::S_IFREG => {
                    let copied = get_file(&at(remote, from), how, &to);
                    tally.file(copied.map(|copied| copied.length))?;
                }
                _ => tally.leave_out(irregular(&from))?,
            }
        }
    }
    tally.report(&to.display().to_string(), json)
}

/// The name of a file in a directory here. The target may say what it likes: no copy leaves the directory that it is for.
fn local_name(name: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(name).ok()?;
    let mut parts = Path::new(name).components();
    let is_one = parts.next() == Some(Component::Normal(name.as_ref())) && parts.next().is_none();
    (is_one && !name.contains('\0')).then_some(name)
}

fn kind(mode: u32) -> u32 {
    mode & libc::S_IFMT
}

fn irregular(name: &str) -> Error {
    let name = printable(name.as_bytes());
    Error::msg(format!("{name} is neither directory nor regular file"))
}

fn list(remote: &RemotePath, how: &ChannelOptions) -> Result<Vec<Entry>> {
    let (session, mut entries) = asked(remote, how, |session| session.list(&remote.path))?;
    session.close();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Makes a directory here; one that is there is as good.
fn make_local(dir: &Path) -> Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        made => made.with_context(|| format!("cannot make {}", dir.display())),
    }
}

/// Copies what is at a path here to a remote one.
pub(super) fn put(
    from: &Path,
    mut remote: RemotePath,
    how: &ChannelOptions,
    json: bool,
) -> Result<()> {
    let mut tally = Tally::new();
    let cannot = |path: &Path| format!("cannot read {}", path.display());
    let found = fs::metadata(from).with_context(|| cannot(from))?;
    let path = remote.path.clone();
    let (session, is_there) = asked(&remote, how, |session| is_directory(session, &path))?;
    session.close();
    // As cp and mv have it: into a directory that is there, under its own name, if it has one.
    let has_name = from.file_name().is_some();
    if has_name && (is_there || path.ends_with('/')) {
        remote.path = below(&path, remote_name(from)?);
    }
    if !found.is_dir() {
        let copied = put_file(from, &remote, how)?;
        tally.file(Ok(copied.length))?;
        return tally.report(&remote.to_string(), json);
    }
    let mut waiting = vec![(from.to_owned(), remote.path.clone())];
    while let Some((from, path)) = waiting.pop() {
        let to = at(&remote, path.clone());
        let made = match path.trim_end_matches('/') {
            // There is always a root.
            "" => Ok(()),
            path => asked(&to, how, |session| make_directory(session, path))
                .map(|(session, _)| session.close()),
        };
        let read = made.and_then(|()| sorted(&from).with_context(|| cannot(&from)));
        let names = match read {
            Ok(names) => names,
            Err(error) => {
                tally.leave_out(error)?;
                continue;
            }
        };
        tally.directories += 1;
        for (from, kind) in names {
            let name = match remote_name(&from) {
                Ok(name) => name,
                Err(error) => {
                    tally.leave_out(error)?;
                    continue;
                }
            };
            let path = below(&path, name);
            if kind.is_dir() {
                waiting.push((from, path));
            } else if kind.is_file() {
                let copied = put_file(&from, &at(&remote, path), how);
                tally.file(copied.map(|copied| copied.length))?;
            } else {
                tally.leave_out(irregular(&from.display().to_string()))?;
            }
        }
    }
    tally.report(&remote.to_string(), json)
}

/// What is in a directory here. Links are not followed.
fn sorted(dir: &Path) -> io::Result<Vec<(PathBuf, fs::FileType)>> {
    let entries = fs::read_dir(dir)?.map(|entry| {
        let entry = entry?;
        Ok((entry.path(), entry.file_type()?))
    });
    let mut entries: Vec<_> = entries.collect::<io::Result<_>>()?;
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a target calls its files, no copy of one lands outside of the directory that it is for.
    #[test]
    fn no_name_leads_out_of_its_directory() {
        for bad in [
            "",
            ".",
            "..",
            "/",
            "/etc/passwd",
            "../x",
            "a/b",
            "a/",
            "./a",
            "a\0b",
        ] {
            assert_eq!(local_name(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(local_name(b"\xff"), None);
        for good in ["a", "...", "-r", "a b", "\u{e4}"] {
            assert_eq!(local_name(good.as_bytes()), Some(good));
        }
    }
}
