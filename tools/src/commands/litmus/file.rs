//! The file that all parties share, on a target of its own.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::cli;
use crate::commands::interrupt::Interrupt;
use crate::commands::mkfs;
use crate::commands::scratch;
use crate::commands::spawn::Server;

const NAME: &str = "litmus";
/// Bytes that a test has for itself.
pub(super) const PLACE_BYTES: u64 = 1 << 16;
const PLACES: u64 = 64;
const IMAGE_BYTES: u64 = 64 << 20;

/// A file on a mounted target.
#[derive(Debug)]
pub(super) struct SharedFile {
    server: Server,
    scratch: TempDir,
    /// Mappings have the pages of the target.
    pub(super) shares_pages: bool,
    /// Ends a test before its time.
    pub(super) interrupt: Interrupt,
}

impl SharedFile {
    /// Starts a target on a temporary image, with a file of zeros.
    pub(super) fn serve(options: &cli::Litmus, interrupt: &Interrupt) -> Result<Self> {
        let scratch = scratch::directory("litmus", options.directory.as_deref())?;
        let image = scratch.path().join("volume.img");
        mkfs::format(&cli::Mkfs {
            devices: vec![image.clone()],
            size: Some(bytesize::ByteSize::b(IMAGE_BYTES)),
            op: 20,
            prefill: false,
            segment_size: None,
            force: false,
        })?;
        let mount = scratch.path().join("mnt");
        fs::create_dir(&mount)?;
        let reactors = options.reactors.to_string();
        let mut more = vec!["--reactors", &reactors];
        if options.share_pages {
            more.push("--share-pages");
        }
        let server = Server::target(&image, Some(&mount), &more)?;
        let file = Self {
            server,
            scratch,
            shares_pages: options.share_pages,
            interrupt: interrupt.clone(),
        };
        fs::write(file.path(), vec![0; (PLACE_BYTES * PLACES) as usize])
            .context("cannot make the file")?;
        Ok(file)
    }

    /// Where it is on the mount.
    pub(super) fn path(&self) -> PathBuf {
        self.scratch.path().join("mnt").join(NAME)
    }

    /// Where it is for remote peers.
    pub(super) fn remote_path(&self) -> String {
        format!("/{NAME}")
    }

    /// Whom remote peers connect to.
    pub(super) fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Ends the target in order.
    pub(super) fn end(self) -> Result<()> {
        self.server.stop()
    }
}
