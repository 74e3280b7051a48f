//! Where a program of a test runs: an address, and maybe a network of its own.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Where a program runs.
#[derive(Clone, Debug)]
pub struct Place {
    pub host: Ipv4Addr,
    namespace: Option<Arc<File>>,
}

impl Place {
    /// An address of this machine that nobody else has: another one each time.
    pub fn local() -> Self {
        static COUNT: AtomicU8 = AtomicU8::new(1);
        let [low, high, ..] = (std::process::id() % 0xfe01 + 0x100).to_le_bytes();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self {
            host: Ipv4Addr::new(127, low.max(1), high, count),
            namespace: None,
        }
    }

    /// An address in the network of a namespace.
    pub fn within(host: Ipv4Addr, namespace: PathBuf) -> io::Result<Self> {
        let namespace = Some(Arc::new(File::open(namespace)?));
        Ok(Self { host, namespace })
    }

    /// A program to be started there, with pipes and files of whoever starts it.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        if let Some(namespace) = self.namespace.clone() {
            let enter = move || enter(&namespace);
            // SAFETY: between fork and exec it makes one system call, and allocates nothing.
            unsafe { command.pre_exec(enter) };
        }
        command
    }

    /// Moves the calling thread there.
    pub fn enter(&self) -> io::Result<()> {
        match &self.namespace {
            Some(namespace) => enter(namespace),
            None => Ok(()),
        }
    }
}

fn enter(namespace: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open; nothing of this process's memory is touched.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
