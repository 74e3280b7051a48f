//! The target that is looked at, and the one that follows it.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::devices;
use crate::target::status::Status;
use crate::target::{self, SHORT, ask_status};

/// How long another target is waited for when one has ended.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks whether there is one.
const TURN: Duration = Duration::from_millis(100);

/// Asks the target of a volume.
#[derive(Debug)]
pub(super) struct Watched {
    devices: Vec<PathBuf>,
    was_seen: bool,
}

impl Watched {
    /// The one that serves these devices.
    pub(super) fn on(devices: Vec<PathBuf>) -> Self {
        Self {
            devices,
            was_seen: false,
        }
    }

    /// Looks at it. If it has ended since the last time, whoever takes its place is looked at.
    ///
    /// # Errors
    /// Nobody serves the volume, or nobody does any more; or the one who does is not to be asked.
    pub(super) fn look(&mut self) -> Result<Status> {
        let mut missed: Option<Instant> = None;
        loop {
            // Who looks on sees for how long it has been silent.
            let patience = if self.was_seen {
                target::PATIENCE
            } else {
                SHORT
            };
            let answer = ask_status(&self.devices, patience);
            match answer {
                Ok(Some(status)) => {
                    self.was_seen = true;
                    return Ok(status);
                }
                Ok(None) if !self.was_seen => {
                    let names = devices::names(&self.devices);
                    bail!("nobody serves {names}: `flashnet serve` does");
                }
                Err(error) if !self.was_seen => return Err(error),
                _ => {}
            }
            // One that is being replaced answers when it has ended, by that. Only then this counts.
            if missed.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return match answer {
                    Err(error) => Err(error),
                    _ => bail!("the target has ended"),
                };
            }
            sleep(TURN);
        }
    }
}
