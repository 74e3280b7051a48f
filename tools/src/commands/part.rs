//! A local file on its way: under another name beside its own until all of it has come.
//!
//! What is cut off leaves nothing behind, and what was there before stays.

use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::interrupt;

/// So much of the name is in that of the part: whole, the longest names would not leave room for the rest.
const NAME_CHARS: usize = 48;
/// All parts that there are.
static PARTS: Mutex<Option<HashSet<PathBuf>>> = Mutex::new(None);

fn parts() -> MutexGuard<'static, Option<HashSet<PathBuf>>> {
    PARTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn know(part: &Path) {
    if let Some(known) = parts().as_mut() {
        known.insert(part.to_owned());
    }
}

fn forget(part: &Path) {
    if let Some(known) = parts().as_mut() {
        known.remove(part);
    }
}

/// From now on a signal that ends the process removes all parts.
fn heed_signals() -> io::Result<()> {
    let mut known = parts();
    if known.is_some() {
        return Ok(());
    }
    let mut signals = Signals::new(interrupt::ending())?;
    Builder::new().spawn(move || {
        for signal in &mut signals {
            // Not to be let go: nobody begins another one.
            let known = parts();
            for path in known.iter().flatten() {
                let _ = fs::remove_file(path);
            }
            let _ = emulate_default_handler(signal);
        }
    })?;
    *known = Some(HashSet::new());
    Ok(())
}

/// A part of a file. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Part {
    path: PathBuf,
    to: PathBuf,
}

impl Part {
    /// Begins what becomes the file `to`; none if that is something to be written to as it is, a device or a pipe. From now on
    /// a signal that ends the process removes the part.
    ///
    /// # Errors
    /// If no file can be made beside it.
    pub(super) fn beside(to: &Path) -> io::Result<Option<(Self, File)>> {
        let before = match fs::metadata(to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            other => Some(other?),
        };
        if before.as_ref().is_some_and(|before| !before.is_file()) {
            return Ok(None);
        }
        // All of it would come, and then not get this name.
        if before.is_none() && to.as_os_str().as_bytes().ends_with(b"/") {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        // A symbolic link stays one.
        let to = match before {
            Some(_) => to.canonicalize()?,
            None => to.to_owned(),
        };
        let name = to.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let begins: String = name.to_string_lossy().chars().take(NAME_CHARS).collect();
        let name = format!(".{begins}.{:08x}.part", rand::random::<u32>());
        let path = to.with_file_name(name);
        heed_signals()?;
        know(&path);
        let file = File::create_new(&path).inspect_err(|_| forget(&path))?;
        let this = Self { path, to };
        if let Some(before) = before {
            file.set_permissions(Permissions::from_mode(before.permissions().mode() & 0o777))?;
        }
        Ok(Some((this, file)))
    }

    /// All of it has come.
    ///
    /// # Errors
    /// If it cannot be given its name.
    pub(super) fn finish(self) -> io::Result<()> {
        fs::rename(&self.path, &self.to)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Fails when it has become the file.
        let _ = fs::remove_file(&self.path);
        forget(&self.path);
    }
}
