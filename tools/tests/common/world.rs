//! A served volume that is mounted too, regions of its files, and what makes files move.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use softrdma::driver::tcp::TcpClient;
use softrdma::wire::terminate::{Terminate, TerminateCode};
use softrdma::{
    Buffer, CloseReason, Config, LocalSlice, Operation, RegionTable, WorkRequest, WrId,
};
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

/// Bytes that [`Greedy`] asks for in one READ.
pub const PIECE: usize = 256 << 10;

/// A peer that has asked for much, and takes nothing until it is told to: pages wait for it in the target.
pub struct Greedy {
    client: TcpClient,
    buffer: Arc<Buffer>,
    pieces: usize,
    done: usize,
}

impl Greedy {
    /// Asks for the first `pieces` of a region. Its socket is full when this returns, most likely, because another client has been
    /// served in the meantime; if it is not, less is shown.
    pub fn new(target: &Target, region: &RemoteFile, pieces: usize) -> Self {
        let table = RegionTable::new([1; 32]);
        let patience = Duration::from_secs(60);
        let address = target.address.to_string();
        let config = Config::default();
        let mut client = TcpClient::connect(&address, config, &table, &[], patience).unwrap();
        let buffer = Buffer::zeroed(pieces * PIECE);
        for n in 0..pieces {
            let read = Operation::Read {
                sink: LocalSlice::new(&buffer, n * PIECE, PIECE),
                remote: region.at((n * PIECE) as u64),
            };
            let request = WorkRequest::new(WrId(n as u64), read);
            client.connection().post_send(request).unwrap();
        }
        let done = client.poll().unwrap().into_iter().count();
        let mut other = target.session();
        for _ in 0..50 {
            other.call(Request::new(Op::Stat, "/")).unwrap();
        }
        Self {
            client,
            buffer,
            pieces,
            done,
        }
    }

    /// Takes all that it gets: these bytes, and whether they are all.
    pub fn take(&mut self) -> (Vec<u8>, bool) {
        while self.done < self.pieces {
            match self.client.wait() {
                Ok(completion) if completion.status.is_success() => self.done += 1,
                _ => break,
            }
        }
        let bytes = self.buffer.to_vec(0, self.done * PIECE);
        (bytes, self.done == self.pieces)
    }
}
