//! A client's end of a group in one epoch: of the model, or a real one.

use std::time::Duration;

use offload_chain::Epoch;
use offload_chain::group::{Client, Flight, Outcome, Primitive, PrimitiveError, Primitives};

use super::fabric::Handle;

#[derive(Debug)]
pub enum Group {
    Model(Handle),
    Engine(Joined),
}

/// A real client, and how its links are named here.
#[derive(Debug)]
pub struct Joined {
    pub object: u64,
    pub epoch: Epoch,
    /// Members by place.
    pub chain: Vec<usize>,
    pub client: Box<Client>,
    /// When its next time-out is expected.
    pub due: Option<Duration>,
    greeted: bool,
}

impl Joined {
    pub fn new(object: u64, epoch: Epoch, chain: Vec<usize>, client: Client) -> Self {
        Self {
            object,
            epoch,
            chain,
            client: Box::new(client),
            due: None,
            greeted: false,
        }
    }
}

impl Group {
    pub fn epoch(&self) -> Epoch {
        match self {
            Self::Model(handle) => handle.epoch,
            Self::Engine(joined) => joined.epoch,
        }
    }

    /// Whether primitives are taken from now on. True once.
    pub fn becomes_ready(&mut self) -> bool {
        match self {
            Self::Model(handle) => handle.becomes_ready(),
            Self::Engine(joined) => {
                let ready = joined.client.is_ready() && !joined.greeted;
                joined.greeted |= ready;
                ready
            }
        }
    }

    pub fn break_off(&mut self) {
        match self {
            Self::Model(handle) => handle.break_off(),
            Self::Engine(joined) => joined.client.stop(),
        }
    }

    pub fn is_broken(&self) -> bool {
        match self {
            Self::Model(handle) => handle.is_broken(),
            Self::Engine(joined) => joined.client.broken().is_some(),
        }
    }

    /// The model, if it is on this lane.
    pub fn model(&mut self, lane: usize) -> Option<&mut Handle> {
        match self {
            Self::Model(handle) => Some(handle).filter(|handle| handle.lane == lane),
            Self::Engine(_) => None,
        }
    }

    /// The real client, if it is this one.
    pub fn joined(&mut self, object: u64) -> Option<&mut Joined> {
        match self {
            Self::Model(_) => None,
            Self::Engine(joined) => Some(joined).filter(|joined| joined.object == object),
        }
    }
}

impl Primitives for Group {
    fn members(&self) -> usize {
        match self {
            Self::Model(handle) => handle.members(),
            Self::Engine(joined) => joined.client.members(),
        }
    }

    fn size(&self) -> u64 {
        match self {
            Self::Model(handle) => handle.size(),
            Self::Engine(joined) => joined.client.size(),
        }
    }

    fn longest_write(&self) -> u64 {
        match self {
            Self::Model(handle) => handle.longest_write(),
            Self::Engine(joined) => joined.client.longest_write(),
        }
    }

    fn persists(&self) -> bool {
        match self {
            Self::Model(handle) => handle.persists(),
            Self::Engine(joined) => joined.client.persists(),
        }
    }

    fn post(&mut self, primitive: Primitive) -> Result<Flight, PrimitiveError> {
        match self {
            Self::Model(handle) => handle.post(primitive),
            Self::Engine(joined) => joined.client.post(primitive),
        }
    }

    fn poll(&mut self) -> Option<(Flight, Result<Outcome, PrimitiveError>)> {
        match self {
            Self::Model(handle) => handle.poll(),
            Self::Engine(joined) => joined.client.poll(),
        }
    }
}
