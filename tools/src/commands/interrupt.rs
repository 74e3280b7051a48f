//! A command that the user wants to end cleans up on its way out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use thiserror::Error;

use super::spawn;

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];
/// Between looks at the mark.
const LOOK: Duration = Duration::from_millis(50);
/// How long a command may take for its way out.
const PATIENCE: Duration = Duration::from_secs(10);

/// The user wanted the command to end.
#[derive(Clone, Copy, Debug, Error)]
#[error("interrupted")]
pub(super) struct Interrupted;

/// Whether the user wants the command to end.
#[derive(Clone, Debug, Default)]
pub(super) struct Interrupt {
    wanted: Arc<AtomicBool>,
    /// The servers have been killed for it.
    forced: Arc<AtomicBool>,
}

impl Interrupt {
    /// From now on signals only set the mark; to be called before other threads are started. Whoever does not see it for long waits for a server that does not
    /// answer: then the servers that the command has started are killed.
    pub(super) fn install() -> Result<Self> {
        let this = Self::default();
        for signal in ending() {
            signal_hook::flag::register(signal, Arc::clone(&this.wanted))?;
        }
        // A thread that waits for an answer of a mount may be chosen for a signal, and gets it when the answer has come.
        mask(libc::SIG_BLOCK)?;
        let forced = Arc::clone(&this.forced);
        let mut signals = Signals::new(ending())?;
        std::thread::Builder::new().spawn(move || {
            let _ = mask(libc::SIG_UNBLOCK);
            signals.forever().next();
            loop {
                std::thread::sleep(PATIENCE);
                forced.store(true, Ordering::SeqCst);
                spawn::kill_all();
            }
        })?;
        Ok(this)
    }

    /// An error if the user wants to end: what was made is then cleaned up on the way out.
    pub(super) fn check(&self) -> Result<()> {
        if self.wanted.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
        Ok(())
    }

    /// The mark, for loops that know nothing else of commands.
    pub(super) fn mark(&self) -> &AtomicBool {
        &self.wanted
    }

    /// Waits for work that cannot be asked to end. If the user wants the command to end it is left alone, and ends with the process.
    pub(super) fn wait_for<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (done, result) = channel();
        let work = move || {
            // Nobody listens any more if it was left alone.
            let _ = done.send(work());
        };
        std::thread::Builder::new().spawn(work)?;
        loop {
            match result.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) => self.check()?,
                result => return result.context("a thread panicked")?,
            }
        }
    }

    /// What a command has come to: one whose servers were killed under it has found nothing.
    pub(super) fn settle<T>(&self, result: Result<T>) -> Result<T> {
        match self.forced.load(Ordering::SeqCst) {
            true => result.map_err(|_| Interrupted.into()),
            false => result,
        }
    }
}

/// Signals that end a command. Who ignores hangups when it is started, as under nohup(1), shall outlive its terminal.
pub(super) fn ending() -> impl Iterator<Item = i32> {
    let outlives = is_ignored(SIGHUP);
    SIGNALS
        .into_iter()
        .filter(move |&signal| signal != SIGHUP || !outlives)
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: an action is plain data.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the action is valid for writing, and none is set.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Blocks the signals in this thread and in those threads and processes that it starts, or unblocks them.
pub(super) fn mask(how: libc::c_int) -> io::Result<()> {
    // SAFETY: a set of signals is plain data, and is emptied before it is used.
    let mut set = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid for writing.
    unsafe { libc::sigemptyset(&raw mut set) };
    for signal in SIGNALS {
        // SAFETY: the set is valid for writing, and the signals exist.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    // SAFETY: the set is valid for reading; nobody asks for the mask before.
    match unsafe { libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
