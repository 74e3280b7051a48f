//! Wires: what TCP makes of a connection between two processes.
//!
//! Bytes arrive in order, in pieces. An end whose process has closed its socket, or died, is followed by the end of the stream,
//! and refuses what comes. A wire that is lost takes with it what is on it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use offload_chain::group::Node as Links;
use softrdma::offload::LinkId;
use softrdma::{SocketState, Time};

use super::Node;

/// Bytes on a wire in one direction.
const WINDOW: usize = 64 << 10;

/// One end: a link of an engine or client.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) node: Node,
    /// Which engine or client of it.
    pub(super) object: u64,
    pub(super) link: LinkId,
}

#[derive(Debug, Default)]
pub(super) struct Way {
    pub(super) bytes: VecDeque<u8>,
    /// The socket was closed, or its half: the end of the stream is behind the bytes.
    pub(super) end: Option<SocketState>,
    pub(super) ended: bool,
    /// Something of it is under way.
    pub(super) scheduled: bool,
    pub(super) stalled_since: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Wire {
    pub(super) ends: [End; 2],
    /// From the first end to the second, and back.
    pub(super) ways: [Way; 2],
    pub(super) lost: bool,
}

/// All wires there have ever been.
#[derive(Debug, Default)]
pub(super) struct Wires {
    pub(super) all: Vec<Wire>,
    of: BTreeMap<u64, Vec<usize>>,
}

impl Wires {
    pub(super) fn join(&mut self, a: End, b: End) {
        for end in [a, b] {
            self.of.entry(end.object).or_default().push(self.all.len());
        }
        self.all.push(Wire {
            ends: [a, b],
            ways: Default::default(),
            lost: false,
        });
    }

    /// The ways from an object, that are not lost: wire, way.
    fn ways_from(&self, object: u64) -> Vec<(usize, usize)> {
        let of = self.of.get(&object).into_iter().flatten();
        let of = of.filter(|&&wire| !self.all[wire].lost);
        of.map(|&wire| (wire, usize::from(self.all[wire].ends[0].object != object)))
            .collect()
    }

    /// Takes what an object has to send; the ways on which something is to be moved.
    pub(super) fn transmit(
        &mut self,
        object: u64,
        links: &mut dyn Links,
        now: Time,
        first: u64,
    ) -> Vec<(usize, usize)> {
        let mut ways = self.ways_from(object);
        if !ways.is_empty() {
            let first = first as usize % ways.len();
            ways.rotate_left(first);
        }
        let mut scratch = Vec::new();
        loop {
            let mut moved = false;
            for &(wire, way) in &ways {
                let link = self.all[wire].ends[way].link;
                let path = &mut self.all[wire].ways[way];
                if path.end.is_some() || path.bytes.len() >= WINDOW {
                    continue;
                }
                scratch.clear();
                links.poll_transmit(link, now, &mut scratch, WINDOW);
                moved |= !scratch.is_empty();
                path.bytes.extend(&scratch);
                let state = links.socket_state(link);
                path.end = (state != SocketState::Open).then_some(state);
            }
            // What one link has sent may let another one go on.
            if !moved {
                break;
            }
        }
        self.waiting(&ways)
    }

    /// An object is gone, and its sockets are closed.
    pub(super) fn close(&mut self, object: u64) -> Vec<(usize, usize)> {
        let ways = self.ways_from(object);
        for &(wire, way) in &ways {
            self.all[wire].ways[way].end = Some(SocketState::Close);
        }
        self.waiting(&ways)
    }

    /// Those of the ways on which something waits and nothing is scheduled; now it is.
    fn waiting(&mut self, ways: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let waits = |&(wire, way): &(usize, usize)| {
            let path = &mut self.all[wire].ways[way];
            let waits = !path.bytes.is_empty() || (path.end.is_some() && !path.ended);
            waits && !std::mem::replace(&mut path.scheduled, true)
        };
        ways.iter().copied().filter(waits).collect()
    }

    /// Wires of an object that are not lost.
    pub(super) fn wires_of(&self, object: u64) -> Vec<usize> {
        let ways = self.ways_from(object);
        ways.into_iter().map(|(wire, _)| wire).collect()
    }
}
