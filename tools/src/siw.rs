//! A throw-away guest whose Linux kernel is an iWARP peer (`siw`), with rdma-core and perftest on top.
//!
//! The rig is `softrdma/interop/siw-guest`; this is the end of its serial line. Commands run at the same time if the
//! caller wants that, and are told apart by number. The guest reaches this host's loopback as [`HOST_IN_GUEST`]; its own
//! ports are reached through forwarded ones.
//!
//! A guest ends with its [`Guest`], however that ends.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

/// This host's loopback, as programs in the guest see it.
pub const HOST_IN_GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// Longest start of a guest, without KVM and on a busy machine.
const BOOT: Duration = Duration::from_secs(120);
/// Longest wait for the guest to take notice of a command.
const NOTICE: Duration = Duration::from_secs(60);
/// Starts tried when somebody else took a forwarded port meanwhile.
const STARTS: u32 = 5;
/// Lines kept to tell why a guest ended.
const LAST_WORDS: usize = 30;
/// Lines kept of one command.
const LINES_MAX: usize = 10_000;

/// Why a guest, or a command in it, came to nothing.
#[derive(Debug, Error)]
pub enum GuestError {
    /// Nothing is built, or a program is missing.
    #[error("no siw guest can be started here: {0}")]
    Missing(String),
    /// The rig could not be run.
    #[error("{rig}: {source}")]
    Rig {
        /// The program.
        rig: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It did not start, or ended before its time.
    #[error("the siw guest ended; its last words: {0}")]
    Ended(String),
    /// A command, or the start, took too long.
    #[error("the siw guest is not done within {0:?} with: {1}")]
    TimedOut(Duration, String),
}

/// How a command in the guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Its exit status.
    pub status: i32,
    /// What it printed on both outputs.
    pub output: String,
}

/// What the guest said so far.
#[derive(Debug, Default)]
struct Board {
    ready: bool,
    over: bool,
    jobs: HashMap<u32, Job>,
    /// Lines that belong to no command.
    stray: Vec<String>,
}

#[derive(Debug, Default)]
struct Job {
    begun: bool,
    lines: Vec<String>,
    status: Option<i32>,
}

#[derive(Debug, Default)]
struct Shared {
    board: Mutex<Board>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `look` finds something.
    fn wait_for<T>(
        &self,
        patience: Duration,
        what: &str,
        mut look: impl FnMut(&mut Board) -> Option<T>,
    ) -> Result<T, GuestError> {
        let deadline = Instant::now() + patience;
        let mut board = self.lock();
        loop {
            if let Some(found) = look(&mut board) {
                return Ok(found);
            }
            if board.over {
                return Err(GuestError::Ended(board.stray.join(" | ")));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(GuestError::TimedOut(patience, what.to_owned()));
            }
            board = self
                .changed
                .wait_timeout(board, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn hear(&self, line: &str) {
        let mut board = self.lock();
        match Said::parse(line) {
            Said::Ready => board.ready = true,
            Said::Begun(number) => board.jobs.entry(number).or_default().begun = true,
            Said::Line(number, text) => {
                let job = board.jobs.entry(number).or_default();
                if job.lines.len() < LINES_MAX {
                    job.lines.push(text.to_owned());
                }
            }
            Said::Ended(number, status) => {
                board.jobs.entry(number).or_default().status = Some(status);
            }
            Said::Stray("") => return,
            Said::Stray(text) => {
                if board.stray.len() == LAST_WORDS {
                    board.stray.remove(0);
                }
                board.stray.push(text.to_owned());
            }
        }
        self.changed.notify_all();
    }
}

/// A line of the guest, as `guest-init` describes them.
#[derive(Debug, PartialEq, Eq)]
enum Said<'a> {
    Ready,
    Begun(u32),
    Line(u32, &'a str),
    Ended(u32, i32),
    Stray(&'a str),
}

impl<'a> Said<'a> {
    fn parse(line: &'a str) -> Self {
        let stray = Self::Stray(line);
        let Some(rest) = line.strip_prefix('@') else {
            return stray;
        };
        if rest.starts_with("ready ") {
            return Self::Ready;
        }
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (Ok(number), Some(mark)) = (rest[..digits].parse(), rest[digits..].chars().next())
        else {
            return stray;
        };
        let text = &rest[digits + mark.len_utf8()..];
        match mark {
            '+' => Self::Begun(number),
            ':' => Self::Line(number, text),
            '!' => text
                .parse()
                .map_or(stray, |status| Self::Ended(number, status)),
            _ => stray,
        }
    }
}

/// What a guest is started with.
#[derive(Clone, Debug, Default)]
pub struct GuestOptions {
    /// Ports of the guest to be reached from here.
    pub ports: Vec<u16>,
    /// Record the guest's Ethernet frames in this file.
    pub pcap: Option<PathBuf>,
}

/// A running guest.
#[derive(Debug)]
pub struct Guest {
    child: Child,
    input: Mutex<(ChildStdin, u32)>,
    shared: Arc<Shared>,
    forwarded: HashMap<u16, SocketAddr>,
}

/// The rig of the working copy that this program was built from.
#[must_use]
pub fn rig() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../softrdma/interop/siw-guest")
}

/// Whether a guest can be started.
///
/// # Errors
/// Why not.
pub fn available(rig: &Path) -> Result<(), GuestError> {
    let checked = Command::new(rig).arg("check").output();
    let output =
        checked.map_err(|error| GuestError::Missing(format!("{}: {error}", rig.display())))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(GuestError::Missing(why.trim().to_owned()))
}

impl Guest {
    /// Starts a guest and waits until commands can be given.
    ///
    /// # Errors
    /// If none can be started here, or it does not start.
    pub fn start(rig: &Path, options: &GuestOptions) -> Result<Self, GuestError> {
        available(rig)?;
        let mut tries = 1;
        loop {
            match Self::start_once(rig, options) {
                Err(GuestError::Ended(words))
                    if words.contains("host forwarding") && tries < STARTS =>
                {
                    tries += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn start_once(rig: &Path, options: &GuestOptions) -> Result<Self, GuestError> {
        let failed = |source| GuestError::Rig {
            rig: rig.to_owned(),
            source,
        };
        let forwarded = free_ports(&options.ports).map_err(failed)?;
        let mut command = Command::new(rig);
        command.arg("session");
        for (port, host) in &forwarded {
            command.arg("--fwd").arg(format!("{}:{port}", host.port()));
        }
        if let Some(pcap) = &options.pcap {
            command.arg("--pcap").arg(pcap);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (Some(input), Some(output), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        let shared = Arc::new(Shared::default());
        let of_errors = Arc::clone(&shared);
        let errors = thread::spawn(move || listen(errors, &of_errors));
        let of_output = Arc::clone(&shared);
        thread::spawn(move || {
            listen(output, &of_output);
            let _ = errors.join();
            of_output.lock().over = true;
            of_output.changed.notify_all();
        });
        let guest = Self {
            child,
            input: Mutex::new((input, 0)),
            shared,
            forwarded,
        };
        guest
            .shared
            .wait_for(BOOT, "starting", |board| board.ready.then_some(()))?;
        match guest
            .shared
            .lock()
            .stray
            .iter()
            .find(|line| line.starts_with("@fail"))
        {
            Some(line) => Err(GuestError::Ended(line.clone())),
            None => Ok(()),
        }?;
        Ok(guest)
    }

    /// Where a port of the guest, one of those in its options, is reached from here.
    #[must_use]
    pub fn address(&self, port: u16) -> Option<SocketAddr> {
        self.forwarded.get(&port).copied()
    }

    /// Starts a command, one line of shell, beside those that run already.
    ///
    /// # Errors
    /// If the guest has ended.
    pub fn spawn(&self, command: &str) -> Result<Running<'_>, GuestError> {
        // One at a time: the guest's terminal takes only so much before somebody reads it.
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        input.1 += 1;
        let number = input.1;
        writeln!(input.0, "{number} {command}")
            .and_then(|()| input.0.flush())
            .map_err(|_| GuestError::Ended(self.shared.lock().stray.join(" | ")))?;
        self.shared.wait_for(NOTICE, command, |board| {
            board.jobs.get(&number).filter(|job| job.begun).map(drop)
        })?;
        Ok(Running {
            guest: self,
            number,
            command: command.to_owned(),
        })
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// If it takes longer than `patience`, or the guest has ended.
    pub fn run(&self, command: &str, patience: Duration) -> Result<Ran, GuestError> {
        self.spawn(command)?.wait(patience)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It has nothing to lose.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command in the guest.
#[derive(Debug)]
pub struct Running<'a> {
    guest: &'a Guest,
    number: u32,
    command: String,
}

impl Running<'_> {
    /// Waits for its end.
    ///
    /// # Errors
    /// If it takes longer than `patience`, or the guest has ended.
    pub fn wait(self, patience: Duration) -> Result<Ran, GuestError> {
        self.guest
            .shared
            .wait_for(patience, &self.command, |board| {
                let job = board.jobs.get_mut(&self.number)?;
                let status = job.status?;
                let output = std::mem::take(&mut job.lines).join("\n");
                board.jobs.remove(&self.number);
                Some(Ran { status, output })
            })
    }

    /// Waits until it has printed a line that begins with `start`, and gives the rest of that line.
    ///
    /// # Errors
    /// If it takes longer than `patience`, or the command or the guest has ended without.
    pub fn wait_for_line(&self, start: &str, patience: Duration) -> Result<String, GuestError> {
        let found = self
            .guest
            .shared
            .wait_for(patience, &self.command, |board| {
                let job = board.jobs.get(&self.number)?;
                let rest = job.lines.iter().find_map(|line| line.strip_prefix(start));
                match (rest, job.status) {
                    (Some(rest), _) => Some(Ok(rest.to_owned())),
                    (None, Some(status)) => Some(Err(format!(
                        "{} ended with {status} and without {start:?}: {}",
                        self.command,
                        job.lines.join(" | ")
                    ))),
                    (None, None) => None,
                }
            })?;
        found.map_err(GuestError::Ended)
    }
}

fn listen(from: impl io::Read, shared: &Shared) {
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    while matches!(reader.read_until(b'\n', &mut line), Ok(count) if count > 0) {
        shared.hear(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']));
        line.clear();
    }
}

/// As many ports of loopback that nobody uses. They are free again when this returns, so another may be faster.
fn free_ports(guest_ports: &[u16]) -> io::Result<HashMap<u16, SocketAddr>> {
    let mut held = Vec::new();
    let mut found = HashMap::new();
    for &port in guest_ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        found.insert(port, listener.local_addr()?);
        held.push(listener);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_guest() {
        assert_eq!(Said::parse("@ready 2.55"), Said::Ready);
        assert_eq!(Said::parse("@12+"), Said::Begun(12));
        assert_eq!(Said::parse("@12:"), Said::Line(12, ""));
        assert_eq!(Said::parse("@1:a: @2!3"), Said::Line(1, "a: @2!3"));
        assert_eq!(Said::parse("@7!255"), Said::Ended(7, 255));
        for stray in [
            "",
            "@",
            "@7",
            "@7!",
            "@7!x",
            "@+",
            "@fail siw",
            "@99999999999+",
            "@1\u{e9}",
        ] {
            assert_eq!(Said::parse(stray), Said::Stray(stray));
        }
    }
}
