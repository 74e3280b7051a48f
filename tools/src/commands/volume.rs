//! The volume that a command is about, as the operator names it.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::umount;
use crate::devices;

/// The devices of a volume that may be named by where it is mounted.
pub(super) fn devices_of(volume: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let [dir] = volume else {
        return Ok(volume.to_vec());
    };
    if !dir.is_dir() {
        return Ok(devices::from_spec(dir));
    }
    let dir = dir.canonicalize()?;
    match umount::source(&dir)? {
        Some(source) => Ok(devices::from_spec(&source)),
        None => bail!("no volume is mounted on {}", dir.display()),
    }
}
