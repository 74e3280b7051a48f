//! The recipes' operations over a connection of `softrdma`.

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;

use softrdma::driver::tcp::{ClientError, TcpClient};
use softrdma::{
    Buffer, Completion, CompletionOpcode, Connection, Immediate, LocalSlice, MemoryRegion, NoPages,
    Operation, Placement, PostError, RecvBuffer, RemoteAddr, Selectivity, Source, Status,
    WorkRequest, WrId,
};

use super::message::HEADER_BYTES;
use super::peer::Offer;
use super::recipe::Tag;
use super::run::{Missing, Posted, Request, Transport, TransportError};

/// Acknowledgements that came and were not asked for, and those under way. A recipe has at most one; a responder that says more than
/// fits is disconnected (I16).
const RECEIVES: u64 = 4;
/// Numbers of the receives; operations count from 1.
const RECEIVE_IDS: u64 = 1 << 62;

/// An established connection, and whoever moves its bytes.
pub trait Channel {
    /// How that fails.
    type Error: Error + 'static;

    /// The connection, to post work on.
    fn connection(&mut self) -> &mut Connection<NoPages>;

    /// Moves bytes until something has completed.
    ///
    /// # Errors
    /// The connection ended, or nothing happens.
    fn wait(&mut self) -> Result<Completion, Self::Error>;
}

impl Channel for TcpClient {
    type Error = ClientError;

    fn connection(&mut self) -> &mut Connection<NoPages> {
        self.connection()
    }

    fn wait(&mut self) -> Result<Completion, ClientError> {
        self.wait()
    }
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError<E: Error> {
    /// The connection did.
    #[error(transparent)]
    Channel(E),
    /// The peer, or our own endpoint, refused it.
    #[error("request failed: {0}")]
    Failed(Status),
    /// It could not be queued.
    #[error(transparent)]
    Post(#[from] PostError),
}

/// A connection to a responder that has registered one region for us.
#[derive(Debug)]
pub struct Endpoint<C> {
    channel: C,
    region: MemoryRegion,
    sink: Arc<Buffer>,
    posted: u64,
    completed: u64,
    /// Each has the place of its receive, which is posted again when somebody takes it.
    messages: VecDeque<(WrId, Vec<u8>)>,
}

/// What [`plan`](super::plan) may count on with a region of our endpoint, over a connection with or without the private
/// profile. With it, the region has to be registered with the right to FLUSH up to persistence. Never a FLUSH of receive buffers, which are in
/// no region.
#[must_use]
pub fn offer(region: &MemoryRegion, private_profile: bool) -> Offer {
    let mut offer = Offer::IMMEDIATE;
    offer.set(Offer::SYNC_STAG, region.sync_stag.is_some());
    offer.set(Offer::PROFILE, private_profile);
    offer
}

impl<C: Channel> Endpoint<C> {
    /// Takes an established connection and the names of the responder's region.
    ///
    /// # Errors
    /// If the connection has ended meanwhile.
    pub fn new(mut channel: C, region: MemoryRegion) -> Result<Self, PostError> {
        for id in 0..RECEIVES {
            post_receive(channel.connection(), WrId(RECEIVE_IDS + id))?;
        }
        Ok(Self {
            channel,
            region,
            sink: Buffer::zeroed(1),
            posted: 0,
            completed: 0,
            messages: VecDeque::new(),
        })
    }

    /// The connection, to end it.
    #[must_use]
    pub fn into_channel(self) -> C {
        self.channel
    }

    fn remote(&self, at: u64, tag: Tag) -> Result<RemoteAddr, Missing> {
        match tag {
            Tag::Plain => Ok(self.region.remote(at)),
            Tag::Sync => self.region.remote_sync(at).ok_or(Missing::SyncStag),
        }
    }

    /// Takes the next completion. If there is none, not in time either, the connection has to end: an acknowledgement that
    /// comes later would be taken for that of a later update.
    fn take_one(&mut self) -> Result<(), EndpointError<C::Error>> {
        let taken = self.take();
        if taken.is_err() {
            self.channel.connection().abort();
        }
        taken
    }

    fn take(&mut self) -> Result<(), EndpointError<C::Error>> {
        let completion = self.channel.wait().map_err(EndpointError::Channel)?;
        if !completion.status.is_success() {
            return Err(EndpointError::Failed(completion.status));
        }
        let Completion {
            wr_id,
            opcode,
            message,
            ..
        } = completion;
        if opcode == CompletionOpcode::Recv {
            self.messages
                .push_back((wr_id, message.unwrap_or_default()));
        } else {
            self.completed = wr_id.0;
        }
        Ok(())
    }
}

fn post_receive(connection: &mut Connection<NoPages>, wr_id: WrId) -> Result<(), PostError> {
    connection.post_recv(wr_id, RecvBuffer::Vec(HEADER_BYTES))
}

impl<C: Channel> Transport for Endpoint<C> {
    type Error = EndpointError<C::Error>;

    fn post(&mut self, request: Request<'_>) -> Result<Posted, TransportError<Self::Error>> {
        let copy = |bytes: &[u8]| Source::Bytes(bytes.to_vec());
        let op = match request {
            Request::Write { at, bytes, tag } => Operation::Write {
                source: copy(bytes),
                remote: self.remote(at, tag)?,
            },
            Request::Send { message } => Operation::Send {
                source: copy(message),
                solicited: true,
                invalidate: None,
            },
            Request::Read { bytes } => Operation::Read {
                sink: LocalSlice::new(&self.sink, 0, bytes as usize),
                remote: self.region.remote(0),
            },
            Request::WriteImm {
                at,
                bytes,
                tag,
                immediate,
            } => Operation::WriteImmediate {
                source: copy(bytes),
                remote: self.remote(at, tag)?,
                immediate: Immediate(immediate.to_be_bytes()),
                solicited: true,
            },
            // The value is named as a number of the peer's memory, which is little-endian wherever we run.
            Request::AtomicWrite { at, bytes } => Operation::AtomicWrite {
                remote: self.region.remote(at),
                value: u64::from_le_bytes(bytes),
            },
            Request::Flush => Operation::Flush {
                remote: self.region.remote(0),
                selectivity: Selectivity::Region,
                placement: Placement::Persistent,
            },
        };
        let wr_id = self.posted + 1;
        self.channel
            .connection()
            .post_send(WorkRequest::new(WrId(wr_id), op))
            .map_err(|error| match (error, request) {
                (PostError::NoProfile, Request::AtomicWrite { .. }) => Missing::AtomicWrite.into(),
                (PostError::NoProfile, _) => Missing::Flush.into(),
                (error, _) => TransportError::Failed(error.into()),
            })?;
        self.posted = wr_id;
        Ok(Posted(wr_id))
    }

    /// Requests complete in posting order.
    fn wait(&mut self, posted: Posted) -> Result<(), Self::Error> {
        while self.completed < posted.0 {
            self.take_one()?;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Vec<u8>, Self::Error> {
        loop {
            if let Some((wr_id, message)) = self.messages.pop_front() {
                post_receive(self.channel.connection(), wr_id)?;
                return Ok(message);
            }
            self.take_one()?;
        }
    }
}
