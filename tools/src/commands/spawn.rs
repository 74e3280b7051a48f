//! Server processes that a command starts for itself, and that end with it whatever happens.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::interrupt;
use crate::target::detach;

/// Longest start of a server.
const START: Duration = Duration::from_secs(60);
/// Longest orderly end.
const STOP: Duration = Duration::from_secs(30);
/// Makes standard input the first socket that was handed over (sd_listen_fds(3)), and becomes the program.
const TAKE_OVER: &str =
    r#"exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$; export LISTEN_FDS LISTEN_PID; exec "$@""#;

/// The processes that there are.
static PROCESSES: Mutex<Vec<Weak<Mutex<Child>>>> = Mutex::new(Vec::new());

/// A server process. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Server {
    process: Process,
    // Dropped when the process has ended.
    _mount: MountPoint,
    /// Where it serves.
    pub address: SocketAddr,
    /// How long it took to start.
    pub started_in: Duration,
}

/// A process. Dropping it kills it.
#[derive(Debug)]
struct Process(Arc<Mutex<Child>>);

/// Where a server mounts, if it does. Dropping it takes away what the server has left there.
#[derive(Debug)]
struct MountPoint(Option<PathBuf>);

/// Kills all servers: whoever waits for an answer of one waits no longer.
pub(super) fn kill_all() {
    for process in lock(&PROCESSES).iter().filter_map(Weak::upgrade) {
        let _ = lock(&process).kill();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This program, called with `arguments`; it dies with the caller and hears nothing of its terminal.
pub(super) fn command(arguments: &[&std::ffi::OsStr]) -> Result<Command> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let mut command = dependent(&program);
    command.args(arguments);
    Ok(command)
}

/// A program that dies with the caller and hears nothing of its terminal.
fn dependent(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.process_group(0);
    // SAFETY: prctl and what changes the mask of signals are async-signal-safe and touch no memory of this process.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            interrupt::mask(libc::SIG_UNBLOCK)
        });
    }
    command
}

impl Server {
    /// Starts `flashnet serve` on `device` and waits until it serves. `more` are further options.
    pub(super) fn target(device: &Path, mount: Option<&Path>, more: &[&str]) -> Result<Self> {
        Self::target_listening(device, None, mount, more)
    }

    /// The same, at an address where it or another was before.
    pub(super) fn target_at(
        device: &Path,
        address: Option<SocketAddr>,
        more: &[&str],
    ) -> Result<Self> {
        Self::target_listening(device, address, None, more)
    }

    fn target_listening(
        device: &Path,
        address: Option<SocketAddr>,
        mount: Option<&Path>,
        more: &[&str],
    ) -> Result<Self> {
        let start = Instant::now();
        let mut command = command(&["--json".as_ref(), "serve".as_ref(), device.as_os_str()])?;
        let address = address.map_or("127.0.0.1:0".to_owned(), |at| at.to_string());
        command.args(["--listen", &address]).args(more);
        if let Some(dir) = mount {
            command.arg("--mount").arg(dir);
        }
        if std::env::var_os("FLASHNET_LOG").is_none() {
            command.env("FLASHNET_LOG", "error");
        }
        let mount = MountPoint(mount.map(Path::to_owned));
        let (process, line) = Process::spawn(command)?;
        let ready: serde_json::Value = serde_json::from_str(&line)?;
        let address = ready["address"].as_str().unwrap_or_default().parse()?;
        Ok(Self {
            process,
            _mount: mount,
            address,
            started_in: start.elapsed(),
        })
    }

    /// Starts the server side of a comparison.
    pub(super) fn comparison(arguments: &[&std::ffi::OsStr]) -> Result<Self> {
        Self::perf_server(arguments, None)
    }

    /// Starts a server that mounts the file system of zeros at `dir`.
    pub(super) fn null(dir: &Path) -> Result<Self> {
        Self::perf_server(&["--mount".as_ref(), dir.as_os_str()], Some(dir))
    }

    /// Starts a server that mounts a file system at `dir` which passes everything on to `directory`.
    pub(super) fn passing(directory: &Path, dir: &Path) -> Result<Self> {
        let arguments = [
            "--mount".as_ref(),
            dir.as_os_str(),
            "--file".as_ref(),
            directory.as_os_str(),
        ];
        Self::perf_server(&arguments, Some(dir))
    }

    fn perf_server(arguments: &[&std::ffi::OsStr], mount: Option<&Path>) -> Result<Self> {
        let start = Instant::now();
        let mut all: Vec<&std::ffi::OsStr> = vec!["perf-server".as_ref()];
        all.extend(arguments);
        let mount = MountPoint(mount.map(Path::to_owned));
        let (process, line) = Process::spawn(command(&all)?)?;
        Ok(Self {
            process,
            _mount: mount,
            address: line.trim().parse()?,
            started_in: start.elapsed(),
        })
    }

    /// Starts a program of others that takes over a socket that listens, as services of systemd do: nobody else can come to
    /// its port before it does. `greet` waits for its first words.
    pub(super) fn foreign(
        program: &Path,
        arguments: &[OsString],
        greet: impl FnOnce(SocketAddr) -> io::Result<()>,
    ) -> Result<Self> {
        let start = Instant::now();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let mut complaints = tempfile::tempfile()?;
        let mut command = dependent("/bin/sh".as_ref());
        command
            .args(["-c", TAKE_OVER, "sh"])
            .arg(program)
            .args(arguments)
            .stdin(OwnedFd::from(listener))
            .stdout(Stdio::null())
            .stderr(complaints.try_clone()?);
        let process = Process::start(&mut command)?;
        // The program alone has the socket now: when it ends, whoever waits at it hears so.
        drop(command);
        let Err(error) = greet(address) else {
            return Ok(Self {
                process,
                _mount: MountPoint(None),
                address,
                started_in: start.elapsed(),
            });
        };
        drop(process);
        let mut said = String::new();
        complaints.rewind()?;
        complaints.read_to_string(&mut said)?;
        Err(error).with_context(|| format!("{} does not serve: {}", program.display(), said.trim()))
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        lock(&self.process.0).id()
    }

    /// Kills it at whatever it is doing.
    pub(super) fn kill(&mut self) -> Result<()> {
        let status = self.process.kill()?;
        if status.signal() != Some(libc::SIGKILL) {
            bail!("the server had ended by itself: {status}");
        }
        Ok(())
    }

    /// Asks it to end, and waits until it has.
    pub(super) fn stop(self) -> Result<()> {
        self.process.terminate()?;
        self.ended()
    }

    /// Waits until it has ended, as it has been asked to.
    pub(super) fn ended(self) -> Result<()> {
        let start = Instant::now();
        loop {
            if let Some(status) = lock(&self.process.0).try_wait()? {
                if !status.success() {
                    bail!("the server ended with {status}");
                }
                return Ok(());
            }
            if start.elapsed() > STOP {
                bail!("the server does not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Process {
    fn start(command: &mut Command) -> Result<Self> {
        let child = command.spawn().context("cannot start a server process")?;
        let process = Self(Arc::new(Mutex::new(child)));
        let mut all = lock(&PROCESSES);
        all.retain(|process| process.strong_count() > 0);
        all.push(Arc::downgrade(&process.0));
        Ok(process)
    }

    /// Starts a server and reads its first line, which says that it is ready.
    fn spawn(mut command: Command) -> Result<(Self, String)> {
        let process = Self::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
        let output = lock(&process.0).stdout.take();
        let output = output.context("no pipe from the server")?;
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(output);
            let mut line = String::new();
            let read = reader.read_line(&mut line).map(|_| line);
            let _ = sender.send(read);
            // Whatever it prints later must not fill the pipe.
            let _ = std::io::copy(&mut reader, &mut std::io::sink());
        });
        let line = receiver.recv_timeout(START);
        match line {
            Ok(Ok(line)) if !line.is_empty() => Ok((process, line)),
            Ok(_) => {
                let status = lock(&process.0).wait()?;
                bail!("the server did not start ({status})")
            }
            Err(_) => bail!("the server did not start within {} s", START.as_secs()),
        }
    }

    fn kill(&self) -> Result<ExitStatus> {
        let mut child = lock(&self.0);
        child.kill()?;
        Ok(child.wait()?)
    }

    fn terminate(&self) -> Result<()> {
        let mut child = lock(&self.0);
        if child.try_wait()?.is_none() {
            // SAFETY: sends a signal to a child that has not been waited for, so the number is still its own.
            unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if let Some(dir) = &self.0 {
            // Fails when the server has unmounted by itself, as it should have.
            let _ = detach(dir);
        }
    }
}
