//! The file that says where a target listens, once it does.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Its place.
#[derive(Debug, Clone)]
pub(super) struct ReadyFile(PathBuf);

impl ReadyFile {
    /// At this path, if it can be made there later.
    pub(super) fn at(path: &Path) -> Result<Self> {
        let this = Self(path.to_owned());
        this.check().with_context(|| this.cannot())?;
        Ok(this)
    }

    fn check(&self) -> io::Result<()> {
        if self.0.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let aside = self.aside();
        File::create_new(&aside)?;
        fs::remove_file(&aside)
    }

    /// Makes it, with all of `text` from the beginning. Until then it lies beside its place.
    pub(super) fn write(&self, text: &str) -> Result<()> {
        let aside = self.aside();
        let written = fs::write(&aside, text).and_then(|()| fs::rename(&aside, &self.0));
        if written.is_err() {
            // If it was never made there is none.
            let _ = fs::remove_file(&aside);
        }
        written.with_context(|| self.cannot())
    }

    /// Nobody listens any more.
    pub(super) fn remove(&self) {
        let _ = fs::remove_file(&self.0);
    }

    /// A place beside it, under a name that no other target and nobody else has.
    fn aside(&self) -> PathBuf {
        let mut name = self.0.as_os_str().to_owned();
        name.push(format!(".{:08x}.tmp", rand::random::<u32>()));
        PathBuf::from(name)
    }

    fn cannot(&self) -> String {
        format!("cannot write the ready file {}", self.0.display())
    }
}
