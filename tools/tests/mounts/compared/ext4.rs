//! An ext4 in a file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::common::skip;

const BYTES: u64 = 1 << 30;

/// A mounted ext4, which goes with it.
pub struct Ext4 {
    _file: TempDir,
    dir: PathBuf,
}

impl Ext4 {
    /// None if there is none to be had here; the test has been skipped.
    pub fn new() -> Option<Self> {
        let files = TempDir::with_prefix("flashnet-ext4-").unwrap();
        let (file, dir) = (files.path().join("ext4.img"), files.path().join("mnt"));
        File::create(&file).unwrap().set_len(BYTES).unwrap();
        fs::create_dir(&dir).unwrap();
        let run = |program: &str, arguments: &[&str], path: &[&Path]| {
            let output = Command::new(program).args(arguments).args(path).output();
            match output {
                Err(error) => Err(format!("{program}: {error}")),
                Ok(output) if !output.status.success() => {
                    let said = String::from_utf8_lossy(&output.stderr);
                    Err(format!("{program}: {said}"))
                }
                Ok(_) => Ok(()),
            }
        };
        let made = run(
            "mkfs.ext4",
            &["-q", "-F", "-b", "4096", "-I", "256"],
            &[&file],
        )
        .and_then(|()| run("mount", &["-o", "loop,relatime"], &[&file, &dir]));
        match made {
            Ok(()) => Some(Self { _file: files, dir }),
            Err(why) => {
                skip(&format!("no ext4 to compare with: {why}"));
                None
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        // Its loop device goes with the mount.
        let _ = tools::target::detach(&self.dir);
    }
}
