//! `top`: what a running target is and does, live on a terminal, or look by look as text or JSON.
//!
//! ```text
//!   target ── Status ──► watched ──► rates ──► screen ──► text      appended
//!                        who takes   what is   lines      terminal  drawn anew, by `live`
//!                        its place   between
//!                                    two looks
//! ```

mod clients;
mod columns;
mod figure;
mod head;
mod line;
mod live;
mod media;
mod rates;
mod screen;
mod terminal;
mod text;
mod watched;

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use anyhow::{Result, bail};

use super::umount;
use super::volume::devices_of;
use crate::cli::top::Top;
use crate::devices;

/// Runs the command.
pub(super) fn run(options: &Top, json: bool) -> Result<()> {
    let devices = match options.volume.is_empty() {
        true => mounted()?,
        false => devices_of(&options.volume)?,
    };
    let is_appended = json || options.batch || options.once;
    if is_appended || !io::stdout().is_terminal() {
        text::run(options, devices, json)
    } else {
        live::run(options, devices)
    }
}

/// The devices of the only volume that is mounted.
fn mounted() -> Result<Vec<PathBuf>> {
    let mut sources: Vec<PathBuf> = umount::mounts()?
        .into_iter()
        .map(|mount| mount.source)
        .collect();
    sources.sort();
    sources.dedup();
    match &sources[..] {
        [source] => Ok(devices::from_spec(source)),
        [] => bail!("no volume is mounted: name the devices of one that is served"),
        several => bail!(
            "several volumes are mounted, name one of them: {}",
            devices::names(several)
        ),
    }
}
