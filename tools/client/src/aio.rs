//! The same client for tasks of any runtime: nothing here needs one, the bytes move on a thread of the client's own.
//!
//! An operation begins when its method is called, whether or not the future is polled; dropping the future forgets its result
//! and does not take it back. While more operations wait than the client takes, calls wait for room (some thousands).

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use softrdma::{Atomic, Buffer};

use crate::client::{self, Attributes, ClientBuilder, mkdir_request};
use crate::control::{Entry, Op, Request};
use crate::error::ClientError;
use crate::file;
use crate::listing::Listing;
use crate::promise::Pending;

/// An asynchronous [`client::Client`](crate::Client).
#[derive(Clone, Debug)]
pub struct Client(client::Client);

impl From<client::Client> for Client {
    fn from(client: client::Client) -> Self {
        Self(client)
    }
}

impl ClientBuilder {
    /// As [`connect`](Self::connect), for tasks. The name is looked up before this returns.
    pub fn connect_async(
        self,
        address: impl fmt::Display,
    ) -> impl Future<Output = Result<Client, ClientError>> + Send {
        let started = self.start(&address);
        async move {
            let (client, connected) = started?;
            connected.await?;
            Ok(Client(client))
        }
    }
}

impl Client {
    /// Connects to `HOST[:PORT]`, as nobody in particular. The name is looked up before this returns.
    pub fn connect(
        address: impl fmt::Display,
    ) -> impl Future<Output = Result<Self, ClientError>> + Send {
        ClientBuilder::default().connect_async(address)
    }

    /// Opens a file for reading.
    pub fn open(
        &self,
        path: impl AsRef<str>,
    ) -> impl Future<Output = Result<File, ClientError>> + Send {
        self.open_with(&self.options(), path)
    }

    /// How to open a file in another way, with [`open_with`](Self::open_with).
    #[must_use]
    pub fn options(&self) -> file::OpenOptions {
        self.0.options()
    }

    /// Opens a file.
    pub fn open_with<P: AsRef<str>>(
        &self,
        options: &file::OpenOptions,
        path: P,
    ) -> impl Future<Output = Result<File, ClientError>> + Send + use<P> {
        let (asked, options) = (options.ask(path.as_ref()), options.clone());
        async move { Ok(File(options.opened(asked.await?))) }
    }

    /// Attributes of a path.
    pub fn stat(
        &self,
        path: impl AsRef<str>,
    ) -> impl Future<Output = Result<Attributes, ClientError>> + Send {
        let asked = self.0.call(Request::new(Op::Stat, path.as_ref()));
        async move { asked.await.map(Attributes::from) }
    }

    /// Entries of a directory, in the order of the target.
    pub fn list(
        &self,
        path: impl AsRef<str>,
    ) -> impl Future<Output = Result<Vec<Entry>, ClientError>> + Send {
        let (client, path) = (self.0.clone(), path.as_ref().to_owned());
        let mut listing = Listing::default();
        let mut asked = client.call(listing.request(&path));
        async move {
            loop {
                if let Some(entries) = listing.take(asked.await?)? {
                    return Ok(entries);
                }
                asked = client.call(listing.request(&path));
            }
        }
    }
}

impl Client {
    /// Makes a directory; see [`client::Client::create_dir`](crate::Client::create_dir).
    pub fn create_dir(
        &self,
        path: impl AsRef<str>,
    ) -> impl Future<Output = Result<(), ClientError>> + Send {
        self.change(mkdir_request(path.as_ref()))
    }

    /// Removes an empty directory.
    pub fn remove_dir(
        &self,
        path: impl AsRef<str>,
    ) -> impl Future<Output = Result<(), ClientError>> + Send {
        self.change(Request::new(Op::Rmdir, path.as_ref()))
    }

    /// Removes the name of a file.
    pub fn remove_file(
        &self,
        path: impl AsRef<str>,
    ) -> impl Future<Output = Result<(), ClientError>> + Send {
        self.change(Request::new(Op::Unlink, path.as_ref()))
    }

    /// Gives what has the path `from` the path `to`, in place of what has that, in one step.
    pub fn rename(
        &self,
        from: impl AsRef<str>,
        to: impl AsRef<str>,
    ) -> impl Future<Output = Result<(), ClientError>> + Send {
        self.change(Request::rename(from.as_ref(), to.as_ref()))
    }

    fn change(
        &self,
        request: Request,
    ) -> impl Future<Output = Result<(), ClientError>> + Send + use<> {
        let asked = self.0.call(request);
        async move { asked.await.map(drop) }
    }
}

/// An asynchronous [`file::File`](crate::File), with the same guarantees.
#[derive(Clone, Debug)]
pub struct File(file::File);

impl From<file::File> for File {
    fn from(file: file::File) -> Self {
        Self(file)
    }
}

impl File {
    /// The same file, for threads: its length, its credentials.
    #[must_use]
    pub fn blocking(&self) -> &file::File {
        &self.0
    }

    /// Reads `len` bytes from `offset` on; fewer at the end of the file only.
    pub fn read_at(
        &self,
        offset: u64,
        len: usize,
    ) -> impl Future<Output = Result<Vec<u8>, ClientError>> + Send + use<> {
        let len = self.0.clip(offset, len);
        gather(self.0.start_read(offset, len), len)
    }

    /// Reads several ranges, each as offset and length, all under way together; each has to be inside the file.
    pub fn read_at_many(
        &self,
        ranges: &[(u64, usize)],
    ) -> impl Future<Output = Result<Vec<Vec<u8>>, ClientError>> + Send + use<> {
        let checked: Result<(), ClientError> = ranges
            .iter()
            .try_for_each(|&(offset, len)| self.0.check(offset, len));
        let reads: Vec<_> = match checked {
            Ok(()) => ranges
                .iter()
                .map(|&(offset, len)| (self.0.start_read(offset, len), len))
                .collect(),
            Err(_) => Vec::new(),
        };
        async move {
            checked?;
            let mut all = Vec::with_capacity(reads.len());
            for (read, len) in reads {
                all.push(gather(read, len).await?);
            }
            Ok(all)
        }
    }

    /// Writes all of `bytes` at `offset`; they are copied before this returns.
    pub fn write_at(
        &self,
        bytes: &[u8],
        offset: u64,
    ) -> impl Future<Output = Result<(), ClientError>> + Send + use<> {
        let started = self.0.start_write(bytes, offset);
        async move {
            for chunk in started? {
                chunk.await?;
            }
            Ok(())
        }
    }

    /// Makes durable what has been written; see [`file::File::flush`](crate::File::flush).
    pub fn flush(&self) -> impl Future<Output = Result<(), ClientError>> + Send + use<> {
        let flush = self.0.start_flush();
        async move {
            match flush {
                Some(flush) => flush.await,
                None => Ok(()),
            }
        }
    }

    /// An atomic operation; see [`file::File::atomic`](crate::File::atomic).
    pub fn atomic(
        &self,
        offset: u64,
        op: Atomic,
    ) -> impl Future<Output = Result<u64, ClientError>> + Send + use<> {
        let started = self.0.start_atomic(offset, op);
        async move { started?.await }
    }
}

async fn gather(chunks: Vec<Pending<Arc<Buffer>>>, len: usize) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::with_capacity(len);
    for chunk in chunks {
        let chunk = chunk.await?;
        chunk.append_to(0, chunk.len(), &mut bytes);
    }
    Ok(bytes)
}
