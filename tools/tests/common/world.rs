//! A served volume that is mounted too, regions of its files, and what makes files move.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use softrdma::CloseReason;
use softrdma::wire::terminate::{Terminate, TerminateCode};
use tools::client::{ClientError, RemoteFile, Session};
use tools::control::{Op, Request};

use super::{Image, Target, can_mount, can_serve, good};

/// 2^30.
pub const GIB: u64 = 1 << 30;

/// A served volume that is mounted too.
pub struct World {
    /// The volume.
    pub image: Image,
    /// Who serves it.
    pub target: Target,
    /// Where it is mounted.
    pub dir: PathBuf,
}

impl World {
    /// A fresh one; none when the test has been skipped.
    pub fn new(size: &str, more: &[&str]) -> Option<Self> {
        if !can_serve() || !can_mount() {
            return None;
        }
        let image = Image::new(size);
        let dir = image.beside("mnt");
        fs::create_dir(&dir).unwrap();
        let target = serve(&image, &dir, more);
        Some(Self { image, target, dir })
    }

    /// The same volume, served anew after the target has been killed.
    pub fn killed(self, more: &[&str]) -> Self {
        let Self { image, target, dir } = self;
        target.kill();
        let target = serve(&image, &dir, more);
        Self { image, target, dir }
    }

    /// A file on the mount, made if there is none.
    pub fn file(&self, name: &str) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        options.open(self.dir.join(name)).unwrap()
    }

    /// Ends everything; the volume must be sound, and nothing on it without an owner.
    pub fn end(self) {
        assert!(self.target.stop().success());
        let path = self.image.path();
        let report = good(&["fsck", "-v", path.to_str().unwrap()]);
        let sound = ["0 half relocated, 0 grains of nobody", " 0 problems"];
        assert!(sound.iter().all(|text| report.contains(text)), "{report}");
    }
}

fn serve(image: &Image, dir: &Path, more: &[&str]) -> Target {
    let mut options = vec!["--mount", dir.to_str().unwrap()];
    options.extend(more);
    image.serve(&options)
}

/// Opens a region.
pub fn open(session: &mut Session, path: &str, flags: u16, length: u64) -> RemoteFile {
    let request = Request {
        flags,
        length,
        ..Request::new(Op::Open, path)
    };
    session.open(request).unwrap()
}

/// What is read there.
pub fn get(
    session: &mut Session,
    file: &RemoteFile,
    at: u64,
    len: u64,
) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::new();
    session.read(file, at, len, |_, some| {
        bytes.extend_from_slice(some);
        Ok(())
    })?;
    Ok(bytes)
}

/// Writes; seen by everybody on return, and durable if `sync`.
pub fn put(session: &mut Session, file: &RemoteFile, at: u64, bytes: &[u8], sync: bool) {
    try_put(session, file, at, bytes, sync).unwrap();
}

/// The same by one who may be refused.
pub fn try_put(
    session: &mut Session,
    file: &RemoteFile,
    at: u64,
    bytes: &[u8],
    sync: bool,
) -> Result<(), ClientError> {
    session.write(file, at, bytes.len() as u64, sync, |from, to| {
        to.copy_from_slice(&bytes[(from - at) as usize..][..to.len()]);
        Ok(())
    })
}

/// Why the target ended a connection.
pub fn terminated<T: std::fmt::Debug>(result: Result<T, ClientError>) -> TerminateCode {
    match result {
        Err(ClientError::Closed {
            reason: CloseReason::TerminateReceived(terminate),
            ..
        }) => Terminate::code(terminate).expect("a code of the table"),
        other => panic!("not a Terminate: {other:?}"),
    }
}

/// Bytes that a file needs so that its range is the `n`th doubling of the first one.
pub fn outgrown(n: u32) -> u64 {
    (64 * GIB) << n
}

/// Lets a file outgrow its range, which is the `n`th doubling of the first one, with the place behind it taken.
pub fn relocate(dir: &Path, file: &File, n: u32) {
    try_relocate(dir, file, n).unwrap();
}

/// The same where the target may go.
pub fn try_relocate(dir: &Path, file: &File, n: u32) -> io::Result<()> {
    let blocker = File::create(dir.join(format!("blocker-{n}")))?;
    blocker.set_len(outgrown(n))?;
    file.set_len(outgrown(n + 1))
}
