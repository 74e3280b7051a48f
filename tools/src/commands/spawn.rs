//! Server processes that a command starts for itself, and that end with it whatever happens.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::target::detach;

/// Longest start of a server.
const START: Duration = Duration::from_secs(60);
/// Longest orderly end.
const STOP: Duration = Duration::from_secs(30);

/// A server process. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// Where it serves.
    pub address: SocketAddr,
    /// How long it took to start.
    pub started_in: Duration,
    mount: Option<std::path::PathBuf>,
}

/// This program, called with `arguments`; it dies with the caller and hears nothing of its terminal.
pub(super) fn command(arguments: &[&std::ffi::OsStr]) -> Result<Command> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let mut command = Command::new(program);
    command.args(arguments).process_group(0);
    // SAFETY: prctl is async-signal-safe and touches no memory of this process.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    Ok(command)
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
        let (child, line) = spawn(command)?;
        let ready: serde_json::Value = serde_json::from_str(&line)?;
        let address = ready["address"].as_str().unwrap_or_default().parse()?;
        Ok(Self {
            child,
            address,
            started_in: start.elapsed(),
            mount: mount.map(Path::to_owned),
        })
    }

    /// Starts the server side of a comparison.
    pub(super) fn comparison(arguments: &[&std::ffi::OsStr]) -> Result<Self> {
        let start = Instant::now();
        let mut all: Vec<&std::ffi::OsStr> = vec!["perf-server".as_ref()];
        all.extend(arguments);
        let (child, line) = spawn(command(&all)?)?;
        Ok(Self {
            child,
            address: line.trim().parse()?,
            started_in: start.elapsed(),
            mount: None,
        })
    }

    /// Starts a server that mounts the file system of zeros at `dir`.
    pub(super) fn null(dir: &Path) -> Result<Self> {
        let arguments = [
            "perf-server".as_ref(),
            "--null-mount".as_ref(),
            dir.as_os_str(),
        ];
        let start = Instant::now();
        let (child, line) = spawn(command(&arguments)?)?;
        Ok(Self {
            child,
            address: line.trim().parse()?,
            started_in: start.elapsed(),
            mount: Some(dir.to_owned()),
        })
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it at whatever it is doing.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        let status = self.child.wait()?;
        if status.signal() != Some(libc::SIGKILL) {
            bail!("the server had ended by itself: {status}");
        }
        Ok(())
    }

    /// Asks it to end, and waits until it has.
    pub(super) fn stop(self) -> Result<()> {
        // SAFETY: sends a signal to a child that has not been waited for, so the number is still its own.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        self.ended()
    }

    /// Waits until it has ended, as it has been asked to.
    pub(super) fn ended(mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
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

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if let Some(dir) = &self.mount {
            // Fails when the server has unmounted by itself, as it should have.
            let _ = detach(dir);
        }
    }
}

/// Starts a server and reads its first line, which says that it is ready.
fn spawn(mut command: Command) -> Result<(Child, String)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a server process")?;
    let output = child.stdout.take().context("no pipe from the server")?;
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
        Ok(Ok(line)) if !line.is_empty() => Ok((child, line)),
        Ok(_) => {
            let status = child.wait()?;
            bail!("the server did not start ({status})")
        }
        Err(_) => {
            let _ = child.kill();
            let _ = child.wait();
            bail!("the server did not start within {} s", START.as_secs())
        }
    }
}
