//! A remote peer: what it can ask for, how it does, and what it must be answered.

use std::net::SocketAddr;

use libc::{EEXIST, EINVAL, EISDIR, ENOENT, S_IFDIR, S_IFMT};
use tools::client::{ClientError, RemoteFile, Session, SessionOptions};
use tools::control::{FLAG_CREATE, FLAG_EXCLUSIVE, FLAG_TRUNCATE, FLAG_WRITE, Op, Reply, Request};

use super::answer::{Answer, Attributes, Fill, Outcome};
use super::oracle::{Node, Oracle};

/// Regions that a peer has open at once.
pub const SLOTS: usize = 5;

/// Flags of an open.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    pub write: bool,
    pub create: bool,
    pub exclusive: bool,
    pub truncate: bool,
}

/// One request, or one-sided operation. Paths are those of the oracle; slots name regions.
#[derive(Clone, Debug)]
pub enum RemoteCall {
    Open {
        slot: usize,
        path: String,
        how: How,
        offset: usize,
        length: usize,
    },
    Close(usize),
    /// From `at` in the region on.
    Read {
        slot: usize,
        at: usize,
        len: usize,
    },
    Write {
        slot: usize,
        at: usize,
        fill: Fill,
        sync: bool,
    },
    Sync(usize),
    List(String),
    Stat(String),
    /// A new connection, without regions.
    Reconnect,
}

impl RemoteCall {
    /// The slot that it is about, or the path.
    pub fn about(&self) -> (Vec<usize>, Option<&str>) {
        match self {
            Self::Open { path, .. } | Self::List(path) | Self::Stat(path) => {
                (Vec::new(), Some(path))
            }
            Self::Close(slot) | Self::Sync(slot) => (vec![*slot], None),
            Self::Read { slot, .. } | Self::Write { slot, .. } => (vec![*slot], None),
            Self::Reconnect => (Vec::new(), None),
        }
    }
}

/// A region, as the driver knows it.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub node: Node,
    pub offset: usize,
    pub len: usize,
    pub how: How,
    /// The file has been shorter than its end.
    pub dead: bool,
    /// Opened by the last call, which may have made the file shorter before.
    fresh: bool,
}

impl Region {
    fn writable(&self) -> bool {
        self.how.write || self.how.create || self.how.truncate
    }
}

/// What the driver knows of a peer.
#[derive(Debug, Default)]
pub struct RemoteView {
    pub slots: [Option<Region>; SLOTS],
}

impl RemoteView {
    /// A call is over, and has made these files shorter.
    pub fn shrunk(&mut self, files: &[(Node, usize)]) {
        for region in self.slots.iter_mut().flatten() {
            let end = region.offset + region.len;
            let beyond = |&(node, size): &(Node, usize)| node == region.node && end > size;
            region.dead |= !std::mem::take(&mut region.fresh) && files.iter().any(beyond);
        }
    }

    fn region(&self, slot: usize) -> Region {
        self.slots[slot].expect("drawn from those that are open")
    }

    /// Carries the call out on the oracle, and answers what the peer must be answered.
    pub fn expect(&mut self, oracle: &mut Oracle, call: &RemoteCall) -> Outcome {
        match call {
            RemoteCall::Open {
                slot,
                path,
                how,
                offset,
                length,
            } => {
                let region = open(oracle, path, *how, *offset, *length)?;
                self.slots[*slot] = Some(region);
                let attributes = Attributes {
                    links: None,
                    number: None,
                    ..oracle.attributes(region.node)
                };
                return Ok(Answer::Attributes(attributes));
            }
            RemoteCall::Close(slot) => self.slots[*slot] = None,
            RemoteCall::Read { slot, at, len } => {
                let region = self.region(*slot);
                if region.dead || at + len > region.len {
                    return Ok(self.end());
                }
                let from = region.offset + at;
                let bytes = &oracle.content(region.node).bytes[from..from + len];
                return Ok(Answer::Bytes(bytes.to_vec()));
            }
            RemoteCall::Write {
                slot,
                at,
                fill,
                sync,
            } => {
                let region = self.region(*slot);
                if region.dead || !region.writable() || at + fill.len > region.len {
                    return Ok(self.end());
                }
                let from = region.offset + at;
                let content = oracle.content_mut(region.node);
                content.write(from, &fill.bytes());
                if *sync {
                    content.made_durable(from..from + fill.len, false);
                }
            }
            RemoteCall::Sync(slot) => {
                let node = self.region(*slot).node;
                oracle.content_mut(node).settle();
            }
            RemoteCall::List(path) => {
                let dir = oracle.find(path)?;
                let entries = oracle.dir(dir)?.iter();
                let told = |node| Attributes {
                    links: None,
                    number: None,
                    ..oracle.attributes(node)
                };
                let names = entries.map(|(name, &child)| (name.clone(), told(child)));
                return Ok(Answer::Names(names.collect()));
            }
            RemoteCall::Stat(path) => {
                let node = oracle.find(path)?;
                let attributes = Attributes {
                    links: None,
                    number: None,
                    ..oracle.attributes(node)
                };
                return Ok(Answer::Attributes(attributes));
            }
            RemoteCall::Reconnect => *self = Self::default(),
        }
        Ok(Answer::Done)
    }

    fn end(&mut self) -> Answer {
        *self = Self::default();
        Answer::Ended
    }
}

/// In the order in which the target looks: a file is neither made nor emptied for a region that it would not have.
fn open(
    oracle: &mut Oracle,
    path: &str,
    how: How,
    offset: usize,
    length: usize,
) -> Result<Region, i32> {
    let region = |size: usize| {
        let rest = size.checked_sub(offset).ok_or(EINVAL)?;
        match length {
            0 => Ok(rest),
            len if len <= rest => Ok(len),
            _ => Err(EINVAL),
        }
    };
    let node = match oracle.find(path) {
        Ok(_) if how.exclusive => return Err(EEXIST),
        Err(ENOENT) if how.create => {
            region(if how.truncate { length } else { 0 })?;
            oracle.create(path)?
        }
        found => found?,
    };
    if oracle.is_dir(node) {
        return Err(EISDIR);
    }
    if how.truncate {
        region(length)?;
        oracle.resize(node, 0);
        oracle.resize(node, length);
    }
    let len = region(oracle.size(node))?;
    Ok(Region {
        node,
        offset,
        len,
        how,
        dead: false,
        fresh: true,
    })
}

/// The peer itself.
pub struct Remote {
    address: SocketAddr,
    root: String,
    session: Option<Session>,
    slots: [Option<RemoteFile>; SLOTS],
}

impl Remote {
    /// Not connected yet. Paths of the oracle are below `root`.
    pub fn new(address: SocketAddr, root: String) -> Self {
        Self {
            address,
            root,
            session: None,
            slots: Default::default(),
        }
    }

    pub fn call(&mut self, call: RemoteCall) -> Outcome {
        match self.perform(call) {
            Ok(answer) => Ok(answer),
            Err(ClientError::Refused { status, .. }) => Err(status),
            Err(ClientError::Closed { .. } | ClientError::Operation { .. }) => {
                self.let_go();
                Ok(Answer::Ended)
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn let_go(&mut self) {
        self.session = None;
        self.slots = Default::default();
    }

    fn session(&mut self) -> Result<&mut Session, ClientError> {
        let session = match self.session.take() {
            Some(session) => session,
            None => Session::connect(self.address, SessionOptions::default())?,
        };
        Ok(self.session.insert(session))
    }

    fn path(&self, path: &str) -> String {
        match path {
            "" => format!("{}/", self.root),
            path => format!("{}/{path}", self.root),
        }
    }

    fn file(&self, slot: usize) -> RemoteFile {
        self.slots[slot].expect("open")
    }

    fn perform(&mut self, call: RemoteCall) -> Result<Answer, ClientError> {
        match call {
            RemoteCall::Open {
                slot,
                path,
                how,
                offset,
                length,
            } => {
                let request = Request {
                    flags: flags(how),
                    offset: offset as u64,
                    length: length as u64,
                    ..Request::new(Op::Open, self.path(&path))
                };
                let file = self.session()?.open(request)?;
                let size = file.size as usize;
                self.slots[slot] = Some(file);
                return Ok(Answer::Attributes(Attributes {
                    is_dir: false,
                    size: Some(size),
                    links: None,
                    number: None,
                }));
            }
            RemoteCall::Close(slot) => {
                let request = Request {
                    handle: self.file(slot).handle,
                    ..Request::new(Op::Close, "")
                };
                self.session()?.call(request)?;
                self.slots[slot] = None;
            }
            RemoteCall::Read { slot, at, len } => {
                let file = self.file(slot);
                let mut bytes = Vec::new();
                let take = |_, piece: &[u8]| {
                    bytes.extend_from_slice(piece);
                    Ok(())
                };
                (self.session()?).read(&file, at as u64, len as u64, take)?;
                return Ok(Answer::Bytes(bytes));
            }
            RemoteCall::Write {
                slot,
                at,
                fill,
                sync,
            } => {
                let file = self.file(slot);
                let bytes = fill.bytes();
                let from = |offset: u64, to: &mut [u8]| {
                    to.copy_from_slice(&bytes[offset as usize - at..][..to.len()]);
                    Ok(())
                };
                (self.session()?).write(&file, at as u64, fill.len as u64, sync, from)?;
            }
            RemoteCall::Sync(slot) => {
                let request = Request {
                    handle: self.file(slot).handle,
                    ..Request::new(Op::Sync, "")
                };
                self.session()?.call(request)?;
            }
            RemoteCall::List(path) => {
                let mut names = Vec::new();
                let mut request = Request::new(Op::List, self.path(&path));
                loop {
                    let reply = self.session()?.call(request.clone())?;
                    let entries = reply.entries.into_iter();
                    names.extend(entries.map(|entry| {
                        let name = String::from_utf8(entry.name).expect("ours");
                        (name, told(entry.mode, entry.size))
                    }));
                    if reply.cookie == 0 {
                        break;
                    }
                    request.offset = reply.cookie;
                }
                names.sort_by(|a, b| a.0.cmp(&b.0));
                return Ok(Answer::Names(names));
            }
            RemoteCall::Stat(path) => {
                let request = Request::new(Op::Stat, self.path(&path));
                let Reply { mode, size, .. } = self.session()?.call(request)?;
                return Ok(Answer::Attributes(told(mode, size)));
            }
            RemoteCall::Reconnect => {
                if let Some(session) = self.session.take() {
                    session.close();
                }
                self.let_go();
            }
        }
        Ok(Answer::Done)
    }
}

fn told(mode: u32, size: u64) -> Attributes {
    let is_dir = mode & S_IFMT == S_IFDIR;
    Attributes {
        is_dir,
        size: (!is_dir).then_some(size as usize),
        links: None,
        number: None,
    }
}

fn flags(how: How) -> u16 {
    let all = [
        (how.write, FLAG_WRITE),
        (how.create, FLAG_CREATE),
        (how.exclusive, FLAG_EXCLUSIVE),
        (how.truncate, FLAG_TRUNCATE),
    ];
    all.iter()
        .map(|&(wanted, flag)| if wanted { flag } else { 0 })
        .sum()
}
