//! The sides of `bench fs`: a target on an image with its mount, ext4 on the same disk, one that passes everything on to that, and a
//! file system of zeros.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;

use crate::cli;
use crate::commands::interrupt::Interrupt;
use crate::commands::mkfs;
use crate::commands::spawn::Server;
use crate::perf::null;
use crate::target::detach;

/// Bytes of a disk for files of so many `bytes` together, with names, logs and journals beside them: of what users have of an image
/// of ours, these files take up to 94 %, but at any time the large one is most of it.
fn room(bytes: u64) -> u64 {
    (bytes * 5 / 4 + (bytes / 4).clamp(64 << 20, 256 << 20)).next_multiple_of(1 << 20)
}

/// ContigFS: a target of its own with its mount.
pub(super) struct Ours {
    server: Server,
    /// Where its files are.
    pub(super) root: PathBuf,
}

impl Ours {
    /// Formats an image for files of `bytes` together under `directory`, serves it with the options `serve` and mounts it as
    /// `name` there.
    pub(super) fn start(
        directory: &Path,
        name: &str,
        bytes: u64,
        serve: &[&str],
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let image = directory.join(format!("{name}.img"));
        let format = cli::Mkfs {
            devices: vec![image.clone()],
            size: Some(ByteSize::b(room(bytes))),
            op: 15,
            // Like the blocks of the other side, which have been written before too.
            prefill: true,
            segment_size: None,
            force: false,
        };
        interrupt.wait_for(move || mkfs::format(&format))?;
        let root = directory.join(name);
        fs::create_dir(&root)?;
        let server = Server::target(&image, Some(&root), serve)?;
        Ok(Self { server, root })
    }

    /// Process of the target.
    pub(super) fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Ends the target in order.
    pub(super) fn stop(self) -> Result<()> {
        self.server.stop()
    }
}

/// ext4 on the same disk.
pub(super) struct Ext4 {
    /// Where its files are.
    pub(super) root: PathBuf,
    /// What it is, for people.
    pub(super) what: String,
    /// It is an image mounted for this run.
    mounted: bool,
}

impl Ext4 {
    /// A directory of the disk of `directory` if that has ext4, else an image with it, for files of `bytes` together.
    pub(super) fn start(directory: &Path, bytes: u64, interrupt: &Interrupt) -> Result<Self> {
        let (file_system, source) = file_system_of(directory)?;
        let root = directory.join("ext4");
        fs::create_dir(&root)?;
        if file_system == "ext4" {
            let what = format!("ext4 of {source}, which has the image of the target too");
            return Ok(Self {
                root,
                what,
                mounted: false,
            });
        }
        // SAFETY: has no arguments and can not fail.
        if unsafe { libc::geteuid() } != 0 {
            bail!(
                "{} is {file_system}: comparing with ext4 there needs root, for a loop device; or choose a directory of an \
                 ext4 file system (--directory)",
                directory.display()
            );
        }
        let image = directory.join("ext4.img");
        // Written, so that its blocks are as good as those of the target's image.
        let made = image.clone();
        interrupt.wait_for(move || {
            let written = ftl::device::Allocation::Written;
            let allocated = ftl::FileDevice::create(&made, room(bytes), written);
            allocated
                .map(drop)
                .context("cannot make the image for ext4")
        })?;
        run("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), image.as_ref()])?;
        let show = ["--find", "--show", "--direct-io=on"].map(OsStr::new);
        let device = run("losetup", &[show.as_slice(), &[image.as_ref()]].concat())?;
        let mounted = run("mount", &[device.as_ref(), root.as_ref()]);
        // In use, it goes with the mount; else it goes now.
        run("losetup", &["--detach".as_ref(), device.as_ref()])?;
        mounted?;
        Ok(Self {
            root,
            what: format!("ext4 in an image on {source} ({file_system}) behind {device}"),
            mounted: true,
        })
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        if self.mounted && detach(&self.root).is_err() {
            eprintln!("flashnet: {} is left mounted", self.root.display());
        }
    }
}

/// A file of zeros behind the same way through the kernel.
pub(super) struct Null {
    _server: Server,
    /// The file.
    pub(super) file: PathBuf,
}

impl Null {
    /// Mounts it under `directory`, served by a process of its own.
    pub(super) fn start(directory: &Path) -> Result<Self> {
        let root = directory.join("null");
        fs::create_dir(&root)?;
        let server = Server::null(&root)?;
        Ok(Self {
            _server: server,
            file: root.join(null::NAME),
        })
    }
}

/// The files of ext4 behind the same way through the kernel, served by a process that adds next to nothing.
pub(super) struct Passing {
    _server: Server,
    /// Where the files are.
    pub(super) root: PathBuf,
}

impl Passing {
    /// Mounts what is in `files` under `directory`, served by a process of its own.
    pub(super) fn start(directory: &Path, files: &Path) -> Result<Self> {
        let root = directory.join("passing");
        fs::create_dir(&root)?;
        let server = Server::passing(files, &root)?;
        Ok(Self {
            _server: server,
            root,
        })
    }
}

/// Type and source of the file system of `directory`, from the table of mounts.
fn file_system_of(directory: &Path) -> Result<(String, String)> {
    let device = fs::metadata(directory)?.dev();
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let found = table.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut source = source.split(' ');
        let is_it = mount.split(' ').nth(2) == Some(number.as_str());
        is_it.then(|| Some((source.next()?.to_owned(), source.next()?.to_owned())))?
    });
    found.with_context(|| {
        format!(
            "cannot find the file system of {} among the mounts",
            directory.display()
        )
    })
}

/// Runs a program that must succeed; its output.
fn run(program: &str, arguments: &[&OsStr]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{program} failed: {}", errors.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
