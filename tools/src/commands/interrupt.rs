//! A command that the user wants to end cleans up on its way out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use thiserror::Error;

/// The user wanted the command to end.
#[derive(Clone, Copy, Debug, Error)]
#[error("interrupted")]
pub(super) struct Interrupted;

/// Set when the user wants the command to end.
#[derive(Clone, Debug)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on signals only set the mark.
    pub(super) fn install() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Self(flag))
    }

    /// An error if the user wants to end: what was made is then cleaned up on the way out.
    pub(super) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
        Ok(())
    }
}
