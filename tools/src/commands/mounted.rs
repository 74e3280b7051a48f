//! What is asked of the target that serves a mount, beneath it.

use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::{Error, Result, anyhow};

/// Opens a directory of a mount, to ask its target.
///
/// # Errors
/// Why there is nobody to be asked, and the way out.
pub(super) fn open(dir: &Path) -> Result<File> {
    let opened = File::open(dir).and_then(|file| {
        let is_dir = file.metadata()?.is_dir();
        Ok((file, is_dir))
    });
    match opened {
        Ok((file, true)) => Ok(file),
        Ok((_, false)) => Err(anyhow!("{} is not a directory", dir.display())),
        Err(error) => Err(unasked(dir, error)),
    }
}

/// What went wrong when the target was to be asked.
pub(super) fn unasked(dir: &Path, error: io::Error) -> Error {
    let dir = dir.display();
    match error.raw_os_error() {
        Some(libc::ENOENT) => anyhow!("{dir} does not exist"),
        Some(libc::ENOTCONN | libc::ECONNABORTED) => anyhow!(
            "the target that served {dir} has ended without unmounting: mount the volume again, or umount what is left"
        ),
        Some(libc::EROFS) => anyhow!("{dir}: the volume is mounted read-only"),
        _ => Error::new(error).context(format!("cannot ask the target of {dir}")),
    }
}
