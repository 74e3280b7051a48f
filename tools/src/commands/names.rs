//! `rm`, `mkdir`, `mv`: names on a target.

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::remote::{connect, way};
use crate::cli::Patience;
use crate::cli::names::{Mkdir, Mv, Rm};
use crate::cli::tls::TlsConnect;
use crate::cli::token::TokenFile;
use crate::client::{ClientError, RemotePath, Session};
use crate::control::{FLAG_EXCLUSIVE, Op, Reply, Request, printable};
use crate::unsaid;

/// The target of the path before, and how that is asked.
struct Asked<'a> {
    patience: Patience,
    identity: &'a TokenFile,
    tls: &'a TlsConnect,
    session: Option<((String, u16), Session)>,
}

impl<'a> Asked<'a> {
    fn new(patience: Patience, identity: &'a TokenFile, tls: &'a TlsConnect) -> Self {
        Self {
            patience,
            identity,
            tls,
            session: None,
        }
    }

    /// A path, and a session with its target.
    fn target(&mut self, text: &str) -> Result<(RemotePath, &mut Session)> {
        let (remote, how) = way(text, self.patience, self.identity, self.tls)?;
        let place = (remote.host.clone(), remote.port);
        let session = match self.session.take() {
            Some((same, session)) if same == place => session,
            other => {
                if let Some((_, session)) = other {
                    session.close();
                }
                connect(&remote, &how)?
            }
        };
        let (_, session) = self.session.insert((place, session));
        Ok((remote, session))
    }

    /// Does it for each, and goes on behind those with which it fails.
    fn each(
        mut self,
        targets: &[String],
        mut what: impl FnMut(&mut Session, &RemotePath) -> Result<()>,
    ) -> Result<()> {
        let mut failed = Vec::new();
        for text in targets {
            let done = self.target(text);
            let done = done.and_then(|(remote, session)| what(session, &remote));
            if let Err(error) = done {
                if error.downcast_ref().is_some_and(is_lost) {
                    // The next one is asked anew.
                    self.session = None;
                }
                failed.push(error);
            }
        }
        if let Some((_, session)) = self.session {
            session.close();
        }
        let Some(last) = failed.pop() else {
            return Ok(());
        };
        for error in failed {
            unsaid::complain(&format!("{error:#}"));
        }
        Err(last)
    }
}

/// The name that a path ends with, which the root of a volume has none of.
fn name_of(remote: &RemotePath) -> Result<&str> {
    let name = remote.file_name();
    name.with_context(|| format!("{remote} is the root of the volume, which stays"))
}

fn is_lost(error: &ClientError) -> bool {
    !matches!(error, ClientError::Refused { .. })
}

/// `rm`: names that go.
pub(super) fn rm(options: &Rm, json: bool) -> Result<()> {
    let mut removed = 0u64;
    let asked = Asked::new(options.patience, &options.identity, &options.tls);
    let done = asked.each(&options.targets, |session, remote| {
        name_of(remote)?;
        let path = remote.path.trim_end_matches('/');
        // Who writes a slash behind it means a directory, and nothing else of this name.
        if remote.path.ends_with('/') {
            ensure!(!is_file(session, path), "{remote} is not a directory");
        }
        match remove(session, path, options, &mut removed) {
            Err(error) if options.force && errno(&error) == Some(libc::ENOENT) => Ok(()),
            done => done,
        }
    });
    if json {
        println!("{}", json!({ "removed": removed }));
    }
    done
}

/// Removes what has this path.
fn remove(session: &mut Session, path: &str, options: &Rm, removed: &mut u64) -> Result<()> {
    match ask(session, Request::new(Op::Unlink, path)) {
        Err(error) if errno(&error) == Some(libc::EISDIR) => {
            if !options.recursive && !options.dir {
                return Err(error.context("-r removes it with everything in it, -d if it is empty"));
            }
        }
        done => {
            *removed += u64::from(done.is_ok());
            return done.map(drop);
        }
    }
    if options.recursive {
        for entry in session.list(path)? {
            let Ok(name) = str::from_utf8(&entry.name) else {
                let name = printable(&entry.name);
                bail!("{path}/{name} can not be named: remote paths are UTF-8");
            };
            let gone = remove(session, &format!("{path}/{name}"), options, removed);
            match gone {
                // Somebody else was faster.
                Err(error) if errno(&error) == Some(libc::ENOENT) => {}
                gone => gone?,
            }
        }
    }
    ask(session, Request::new(Op::Rmdir, path))?;
    *removed += 1;
    Ok(())
}

/// `mkdir`: directories.
pub(super) fn mkdir(options: &Mkdir, json: bool) -> Result<()> {
    let asked = Asked::new(options.patience, &options.identity, &options.tls);
    let mut made = Vec::new();
    let done = asked.each(&options.targets, |session, remote| {
        let path = remote.path.trim_end_matches('/');
        match options.parents {
            // There is always a root.
            true if path.is_empty() => {}
            true => make_all(session, path)?,
            false => {
                name_of(remote)?;
                make(session, path, FLAG_EXCLUSIVE)?;
            }
        }
        made.push(remote.to_string());
        Ok(())
    });
    if json {
        println!("{}", json!({ "directories": made }));
    }
    done
}

fn make(session: &mut Session, path: &str, flags: u16) -> Result<()> {
    let request = Request {
        flags,
        ..Request::new(Op::Mkdir, path)
    };
    ask(session, request).map(drop)
}

/// Those above it first, as far as they are missing: who may not change the upper ones has to be let.
fn make_all(session: &mut Session, path: &str) -> Result<()> {
    match make(session, path, 0) {
        Err(error) if errno(&error) == Some(libc::ENOENT) => {}
        done => return done,
    }
    match path.rsplit_once('/') {
        Some((above, _)) if !above.is_empty() => make_all(session, above)?,
        _ => {}
    }
    make(session, path, 0)
}

/// `mv`: another name.
pub(super) fn mv(options: &Mv, json: bool) -> Result<()> {
    let mut asked = Asked::new(options.patience, &options.identity, &options.tls);
    let mut to = RemotePath::with_port(&options.to, options.tls.port())?;
    let (from, session) = asked.target(&options.from)?;
    let name = name_of(&from)?;
    ensure!(
        (&from.host, from.port) == (&to.host, to.port),
        "{from} and {to} are on different targets (get and put copy from one to another)"
    );
    if to.path.ends_with('/') || is_directory(session, &to.path)? {
        to.path = format!("{}/{name}", to.path.trim_end_matches('/'));
    }
    let request = Request {
        flags: if options.no_clobber {
            FLAG_EXCLUSIVE
        } else {
            0
        },
        ..Request::rename(from.path.trim_end_matches('/'), &to.path)
    };
    ask(session, request)?;
    if json {
        println!(
            "{}",
            json!({ "from": from.to_string(), "to": to.to_string() })
        );
    }
    if let Some((_, session)) = asked.session {
        session.close();
    }
    Ok(())
}

/// Whether there is a directory at a path.
pub(super) fn is_directory(session: &mut Session, path: &str) -> Result<bool, ClientError> {
    match session.call(Request::new(Op::Stat, path)) {
        Ok(reply) => Ok(reply.mode & libc::S_IFMT == libc::S_IFDIR),
        Err(ClientError::Refused { status, .. }) if status == libc::ENOENT => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether there is anything but a directory at a path.
fn is_file(session: &mut Session, path: &str) -> bool {
    let found = session.call(Request::new(Op::Stat, path));
    found.is_ok_and(|reply| reply.mode & libc::S_IFMT != libc::S_IFDIR)
}

/// Makes a directory; one that is there is as good.
pub(super) fn make_directory(session: &mut Session, path: &str) -> Result<Reply, ClientError> {
    session.call(Request::new(Op::Mkdir, path))
}

/// Asks a target, which may be older than this program.
fn ask(session: &mut Session, request: Request) -> Result<Reply> {
    let asked = session.call(request);
    let is_unknown =
        matches!(&asked, Err(ClientError::Refused { status, .. }) if *status == libc::EBADMSG);
    match is_unknown {
        true => Ok(asked.context("the target is older than this command")?),
        false => Ok(asked?),
    }
}

/// Of an answer that says no.
fn errno(error: &anyhow::Error) -> Option<i32> {
    match error.downcast_ref()? {
        ClientError::Refused { status, .. } => Some(*status),
        _ => None,
    }
}
