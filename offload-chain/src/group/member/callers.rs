//! Who comes, what it is lent, and who goes.

use softrdma::offload::{Alike, Check, Destination, LinkId, LinkSpec};
use softrdma::{CloseReason, RegionSpec, Rights, Stag, TaggedOffset};

use super::{BrokenGroup, Lane, Member, MemberEvent, Peer, WAITING_MAX};
use crate::group::Topology;
use crate::group::block::{BLOCK_BYTES, RESULT_BYTES, UNLIKE};
use crate::group::node::Store;
use crate::group::program::{ANSWER, HAND_ON};
use crate::group::shape::{Caller, Denied, Welcome, judge};

impl<S: Store> Member<S> {
    fn deny(&mut self, link: LinkId, denied: Denied) {
        self.note(MemberEvent::Denied(denied));
        if self.engine.reject(link, &denied.encode()).is_err() {
            self.engine.abort(link);
        }
    }

    pub(super) fn asked(&mut self, link: LinkId, private_data: &[u8]) {
        match judge(&self.config.shape, self.config.member, private_data) {
            Err(denied) => self.deny(link, denied),
            Ok(_) if self.waiting.len() >= WAITING_MAX => self.deny(link, Denied::Closed),
            Ok(caller) if self.ready => self.welcome(link, caller),
            Ok(caller) => self.waiting.push_back((link, caller)),
        }
    }

    fn welcome(&mut self, link: LinkId, caller: Caller) {
        let welcomed = match caller {
            Caller::Member(_) => self.welcome_member(link),
            Caller::Client {
                number,
                result_stag,
            } => self.welcome_client(link, number, Stag(result_stag)),
        };
        if let Err(denied) = welcomed {
            self.deny(link, denied);
        }
    }

    /// Registers a part of the staging memory for the peer of one link.
    fn lend(&self, link: LinkId, offset: usize, len: usize) -> Result<Stag, Denied> {
        let spec = RegionSpec {
            offset: offset as u64,
            len: len as u64,
            base: TaggedOffset(offset as u64),
            stream: Some(self.engine.stream(link).ok_or(Denied::Closed)?),
            ..RegionSpec::memory(self.config.domains[0], Rights::REMOTE_WRITE, &self.staging)
        };
        let region = self.table.register(spec).map_err(|_| Denied::Closed)?;
        Ok(region.stag)
    }

    fn accept(&mut self, link: LinkId, staging: u32, spec: LinkSpec) -> Result<(), Denied> {
        let welcome = Welcome {
            memory: self.readable.stag.0,
            staging,
        };
        let accepted = self.engine.accept(link, &welcome.encode(), spec);
        accepted.map_err(|_| Denied::Closed)
    }

    fn welcome_member(&mut self, link: LinkId) -> Result<(), Denied> {
        let has = |peer: &Peer| matches!(peer, Peer::Before { .. });
        if self.peers.values().any(has) {
            return Err(Denied::Place);
        }
        let shape = self.config.shape;
        let staging = self.lend(link, 0, shape.staging_bytes())?;
        self.peers.insert(link, Peer::Before { staging });
        let fence = Check {
            at: self.config.member * BLOCK_BYTES + 4,
            bytes: shape.fence().to_le_bytes().to_vec(),
        };
        let spec = LinkSpec {
            receive: Some(0),
            checks: vec![fence],
            alike: None,
        };
        self.accept(link, staging.0, spec)?;
        if shape.topology == Topology::Star {
            self.lead(HAND_ON, 0, link, Stag(0), 0, false);
        }
        Ok(())
    }

    fn welcome_client(&mut self, link: LinkId, number: u16, result: Stag) -> Result<(), Denied> {
        let shape = self.config.shape;
        let lane = usize::from(number % shape.lanes);
        if let Some(last) = self.lanes.get(&lane) {
            // The engine still counts what it began.
            let busy = !last.gone || self.engine.operations_of(last.link) > 0;
            if busy || number <= last.number {
                let after = u32::from(last.number) + u32::from(shape.lanes);
                let next = after.max(u32::from(number));
                return Err(Denied::Client { next });
            }
            self.engine.remove(last.link);
        }
        let is_head = self.config.member == 0;
        let staging = if is_head {
            let bytes = shape.lane_bytes as usize;
            Some(self.lend(link, lane * bytes, bytes)?)
        } else {
            None
        };
        let peer = Peer::Client {
            number,
            lane,
            staging,
        };
        self.peers.insert(link, peer);
        let gone = false;
        self.lanes.insert(lane, Lane { number, link, gone });
        let spec = if is_head {
            let identity = [&number.to_le_bytes()[..], &shape.fence().to_le_bytes()].concat();
            LinkSpec {
                receive: Some(0),
                checks: vec![Check {
                    at: 2,
                    bytes: identity,
                }],
                alike: Some(Alike {
                    piece: BLOCK_BYTES,
                    except: UNLIKE.0,
                    len: UNLIKE.1,
                }),
            }
        } else {
            LinkSpec::default()
        };
        self.accept(link, staging.map_or(0, |stag| stag.0), spec)?;
        if self.config.member == shape.answerer() {
            let len = usize::from(shape.slots) * RESULT_BYTES;
            self.lead(ANSWER, number, link, result, len, true);
        }
        self.note(MemberEvent::ClientJoined(number));
        Ok(())
    }

    fn lead(
        &mut self,
        queue: usize,
        number: u16,
        link: LinkId,
        stag: Stag,
        len: usize,
        detached: bool,
    ) {
        let destination = Destination {
            link,
            stag,
            base: TaggedOffset(0),
            len: len as u64,
            detached,
        };
        self.engine.set_destination(queue, number, destination);
    }

    pub(super) fn established(&mut self, link: LinkId, private_data: &[u8]) {
        let Some(Peer::Next { place, ready }) = self.peers.get_mut(&link) else {
            return;
        };
        let place = *place;
        let Some(welcome) = Welcome::parse(private_data) else {
            return self.engine.abort(link);
        };
        *ready = true;
        let len = self.config.shape.staging_bytes();
        self.lead(
            HAND_ON,
            place as u16,
            link,
            Stag(welcome.staging),
            len,
            false,
        );
        let is_ready = |peer: &&Peer| matches!(peer, Peer::Next { ready: true, .. });
        let count = self.peers.values().filter(is_ready).count();
        if count == self.config.shape.next(self.config.member).len() {
            self.ready = true;
            self.note(MemberEvent::Ready);
            for (link, caller) in std::mem::take(&mut self.waiting) {
                self.welcome(link, caller);
            }
        }
    }

    pub(super) fn closed(&mut self, link: LinkId, reason: CloseReason) {
        self.waiting.retain(|(waiting, _)| *waiting != link);
        let peer = self.peers.remove(&link).unwrap_or(Peer::Unknown);
        match peer {
            Peer::Unknown => self.engine.remove(link),
            Peer::Client {
                number,
                lane,
                staging,
            } => {
                if let Some(stag) = staging {
                    self.table.deregister(stag);
                }
                self.engine.remove_destination(ANSWER, number);
                if let Some(lane) = self.lanes.get_mut(&lane) {
                    lane.gone = true;
                }
                self.note(MemberEvent::ClientLeft(number));
            }
            // It was not there yet, and may be tried again.
            Peer::Next { ready: false, .. } => {
                if let CloseReason::Rejected(why) = &reason
                    && let Some(denied) = Denied::parse(why)
                {
                    self.note(MemberEvent::Denied(denied));
                }
                self.engine.remove(link);
            }
            Peer::Next { place, .. } => {
                let member = self.config.shape.next(self.config.member).start + place;
                self.fail(BrokenGroup::Link { member, reason });
            }
            Peer::Before { staging } => {
                self.table.deregister(staging);
                let member = self.config.shape.previous(self.config.member).unwrap_or(0);
                self.fail(BrokenGroup::Link { member, reason });
            }
        }
    }
}
