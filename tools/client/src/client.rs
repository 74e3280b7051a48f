//! Clients: the way to the files of a target.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use flashnet_tls::ClientTls;

use crate::channel::ChannelOptions;
use crate::control::{Entry, FLAG_EXCLUSIVE, Op, PORT, Reply, Request, TLS_PORT};
use crate::engine::{Command, Engine};
use crate::error::ClientError;
use crate::file::{File, OpenOptions};
use crate::identity::Identity;
use crate::listing::Listing;
use crate::promise::Pending;
use crate::remote_path::RemotePath;

/// A client of one target. It outlives its connections; a handle: copies are the same client.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) engine: Arc<Engine>,
}

/// How a client is made.
#[derive(Clone, Debug, Default)]
pub struct ClientBuilder {
    options: ChannelOptions,
}

impl ClientBuilder {
    /// Says who the client is; nobody in particular, unless set.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.options.identity = identity;
        self
    }

    /// How long the target may be away before operations fail [default: a minute]. One that has a connection and has answered nothing on it
    /// for half a minute is away.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.options.patience = patience;
        self
    }

    /// Asks for CRCs on the wire also on loopback. Beyond it they are always on.
    #[must_use]
    pub fn crc(mut self, crc: bool) -> Self {
        self.options.session.crc = crc;
        self
    }

    /// Connects by TLS, and expects the certificate of the host that is connected to, unless `tls` says whose. The port is
    /// [`TLS_PORT`] then, unless the address says another.
    #[must_use]
    pub fn tls(mut self, tls: ClientTls) -> Self {
        self.options.session.tls = Some(tls);
        self
    }

    /// Connects to `HOST[:PORT]`.
    pub fn connect(self, address: impl fmt::Display) -> Result<Client, ClientError> {
        let (client, connected) = self.start(&address)?;
        connected.wait()?;
        Ok(client)
    }

    /// The same, for a task. The name is looked up before this returns.
    pub(crate) fn start(
        mut self,
        address: &dyn fmt::Display,
    ) -> Result<(Client, Pending<()>), ClientError> {
        let tls = self.options.session.tls.take();
        let port = if tls.is_some() { TLS_PORT } else { PORT };
        let remote = RemotePath::with_port(&address.to_string(), port)?;
        let tls = tls.map(|tls| tls.for_host(&remote.host));
        self.options.session.tls = tls.transpose()?;
        let (engine, connected) = Engine::start(remote.resolve()?, self.options)?;
        let engine = Arc::new(engine);
        Ok((Client { engine }, connected))
    }
}

/// Attributes of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Bytes.
    pub size: u64,
    /// `st_mode`.
    pub mode: u32,
    /// Last modification, Unix time in nanoseconds.
    pub mtime_ns: u64,
}

impl From<Reply> for Attributes {
    fn from(reply: Reply) -> Self {
        Self {
            size: reply.size,
            mode: reply.mode,
            mtime_ns: reply.mtime_ns,
        }
    }
}

impl Client {
    /// Connects to `HOST[:PORT]`, as nobody in particular.
    pub fn connect(address: impl fmt::Display) -> Result<Self, ClientError> {
        Self::builder().connect(address)
    }

    /// Says more about how it is to connect.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Opens a file for reading.
    pub fn open(&self, path: impl AsRef<str>) -> Result<File, ClientError> {
        self.options().open(path)
    }

    /// Opens a file in another way.
    #[must_use]
    pub fn options(&self) -> OpenOptions {
        OpenOptions::new(self)
    }

    /// Attributes of a path.
    pub fn stat(&self, path: impl AsRef<str>) -> Result<Attributes, ClientError> {
        let request = Request::new(Op::Stat, path.as_ref());
        self.call(request).wait().map(Attributes::from)
    }

    /// Entries of a directory, in the order of the target.
    pub fn list(&self, path: impl AsRef<str>) -> Result<Vec<Entry>, ClientError> {
        let mut listing = Listing::default();
        loop {
            let reply = self.call(listing.request(path.as_ref())).wait()?;
            if let Some(entries) = listing.take(reply)? {
                return Ok(entries);
            }
        }
    }

    /// Makes a directory. Done once, it is durable, and so are the others of these; after a lost connection they are asked for again, and
    /// may find that they have been done.
    pub fn create_dir(&self, path: impl AsRef<str>) -> Result<(), ClientError> {
        self.call(mkdir_request(path.as_ref())).wait().map(drop)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<str>) -> Result<(), ClientError> {
        let request = Request::new(Op::Rmdir, path.as_ref());
        self.call(request).wait().map(drop)
    }

    /// Removes the name of a file; its bytes stay as long as it has another one, or somebody has it open.
    pub fn remove_file(&self, path: impl AsRef<str>) -> Result<(), ClientError> {
        let request = Request::new(Op::Unlink, path.as_ref());
        self.call(request).wait().map(drop)
    }

    /// Gives what has the path `from` the path `to`, in place of what has that, in one step.
    pub fn rename(&self, from: impl AsRef<str>, to: impl AsRef<str>) -> Result<(), ClientError> {
        let request = Request::rename(from.as_ref(), to.as_ref());
        self.call(request).wait().map(drop)
    }

    pub(crate) fn call(&self, request: Request) -> Pending<Reply> {
        let (promise, pending) = Pending::new();
        self.engine.ask(Command::Call(request, promise));
        pending
    }
}

/// For a directory that is not there yet.
pub(crate) fn mkdir_request(path: &str) -> Request {
    Request {
        flags: FLAG_EXCLUSIVE,
        ..Request::new(Op::Mkdir, path)
    }
}
