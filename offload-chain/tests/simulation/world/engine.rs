//! Members with real engines: opened and stopped as their agents say, driven by what arrives, in virtual time.
//!
//! The thread of an engine takes what came and, a little later, sends; in between it may be paused. It looks at its read lease
//! before and after it takes bytes of memory; the first of these looks is as old as the time since it last took something.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use offload_chain::Epoch;
use offload_chain::group::{
    BrokenGroup, GroupMemory, GroupShape, Member, MemberConfig, MemberEvent, Node as _, ReadLease,
};
use offload_chain::membership::{MemberId, Seat};
use softrdma::{BackingId, Config, ProtectionDomain, Time};

use super::super::device::{Pages, Work};
use super::{EngineBug, MemberHost, Node, Planted, What, World};

/// Links that are not set up by then are given up.
const START_TIMEOUT: Duration = Duration::from_millis(400);
/// No look is left over from before.
const NONE: u64 = u64::MAX;

/// The clock of a member, as its engine sees it.
#[derive(Debug)]
pub(super) struct EngineClock {
    now: AtomicU64,
    /// What the next look finds: the thread looked then, and was paused.
    looked: AtomicU64,
}

impl EngineClock {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            now: AtomicU64::new(0),
            looked: AtomicU64::new(NONE),
        })
    }

    pub(super) fn set(&self, now: Duration) {
        self.now.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    fn look(&self) -> Duration {
        let looked = self.looked.swap(NONE, Ordering::Relaxed);
        let now = self.now.load(Ordering::Relaxed);
        Duration::from_nanos(if looked == NONE { now } else { looked })
    }
}

/// A real member in one epoch.
#[derive(Debug)]
pub(super) struct Hosted {
    pub(super) object: u64,
    pub(super) epoch: Epoch,
    /// Members by place.
    pub(super) chain: Vec<usize>,
    pub(super) member: Member<Pages>,
    lease: Option<Arc<ReadLease>>,
    /// It is going to send.
    turns: bool,
    pub(super) due: Option<Duration>,
    /// Places that it tries to reach.
    pub(super) reaching: BTreeSet<usize>,
}

impl MemberHost {
    /// An engine that still runs.
    pub(super) fn hosted(&mut self, object: u64) -> Option<&mut Hosted> {
        let all = self.engine.iter_mut().chain(&mut self.old);
        all.into_iter().find(|hosted| hosted.object == object)
    }
}

/// Settings of all links.
pub(super) fn link() -> Config {
    Config {
        private_profile: true,
        start_timeout: START_TIMEOUT,
        ..Config::default()
    }
}

impl World {
    /// What members and clients of an epoch agree on.
    pub(super) fn shape(&self, epoch: Epoch, members: usize, size: u64) -> GroupShape {
        GroupShape {
            topology: self.topology,
            depth: self.depth,
            lanes: self.clients.len() as u16,
            slots: 32,
            lane_bytes: 16 << 10,
            ..GroupShape::new(*b"of the cluster's", epoch.0, members, size)
        }
    }

    pub(super) fn time(&self, node: Node) -> Time {
        Time(self.clock(node).as_nanos() as u64)
    }

    /// When a time-out of a node is due. Never at this very moment: its clock may not be there yet.
    pub(super) fn when_due(&self, node: Node, due: Time) -> Duration {
        let due = self.when(node, Duration::from_nanos(due.0));
        due.max(self.now + Duration::from_micros(50))
    }

    pub(super) fn next_object(&mut self) -> u64 {
        self.objects += 1;
        self.objects
    }

    pub(super) fn open_engine(&mut self, at: usize, epoch: Epoch, chain: &[Seat]) {
        let chain: Vec<usize> = chain.iter().map(|seat| seat.id.0 as usize).collect();
        let Some(place) = chain.iter().position(|member| *member == at) else {
            return;
        };
        let object = self.next_object();
        let size = self.members[at].memory.with(|mem| mem.bytes().len() as u64);
        let flaw = match self.planted {
            Some(Planted::Flaw(flaw)) => Some(flaw),
            _ => None,
        };
        let clock = Arc::clone(&self.members[at].clock);
        let lease = ReadLease::with_bug(move || clock.look(), self.product_bug());
        let lease = Some(Arc::new(lease)).filter(|_| !self.engine_bug(EngineBug::NoLease));
        let domains = [2 * epoch.0, 2 * epoch.0 + 1];
        let config = MemberConfig {
            shape: self.shape(epoch, chain.len(), size),
            member: place,
            memory: GroupMemory::Pages {
                backing: BackingId(1),
                offset: 0,
            },
            domains: domains.map(|domain| ProtectionDomain(domain as u32)),
            link: link(),
            reads: lease.clone(),
            planted: flaw,
        };
        let (late, rng) = (self.late, self.rng.fork());
        let now = self.time(Node::Member(at));
        let host = &mut self.members[at];
        let pages = Pages::new(&host.memory, late, rng);
        let member = Member::new(config, pages, &host.table, now).expect("such a member can be");
        host.engine = Some(Hosted {
            object,
            epoch,
            chain,
            member,
            lease,
            turns: false,
            due: None,
            reaching: BTreeSet::new(),
        });
        self.after_engine(at, object, true);
    }

    /// Stops the engine, if it is of an epoch before this one (I12).
    pub(super) fn close_engine(&mut self, at: usize, before: Epoch) {
        let is_over = |hosted: &mut Hosted| hosted.epoch < before;
        let Some(hosted) = self.members[at].engine.take_if(is_over) else {
            return;
        };
        if self.engine_bug(EngineBug::NotStopped) {
            self.members[at].old.push(hosted);
            return;
        }
        let object = hosted.object;
        hosted.member.stop();
        let ways = self.wires.close(object);
        self.schedule(&ways);
    }

    pub(super) fn withdraw_lease(&mut self, at: usize, before: Epoch) {
        let engine = self.members[at].engine.as_ref();
        let engine = engine.filter(|hosted| hosted.epoch < before);
        if let Some(lease) = engine.and_then(|hosted| hosted.lease.as_ref()) {
            lease.withdraw();
        }
    }

    pub(super) fn extend_lease(&mut self, at: usize, epoch: Epoch, until: Duration) {
        let engine = self.members[at].engine.as_ref();
        let engine = engine.filter(|hosted| hosted.epoch == epoch);
        if let Some(lease) = engine.and_then(|hosted| hosted.lease.as_ref()) {
            lease.extend(until);
        }
    }

    /// An engine was called: what it wants is taken note of.
    pub(super) fn after_engine(&mut self, at: usize, object: u64, sends: bool) {
        let Some(hosted) = self.members[at].hosted(object) else {
            return;
        };
        let new = hosted.member.store().take_new();
        let mut events = Vec::new();
        while let Some(event) = hosted.member.poll_event() {
            events.push(event);
        }
        let (epoch, chain) = (hosted.epoch, hosted.chain.clone());
        let mut missing = hosted.member.missing();
        missing.retain(|place| hosted.reaching.insert(*place));
        let sends = sends && !std::mem::replace(&mut hosted.turns, true);
        let due = hosted.member.poll_timeout();
        let slow = self.members[at].slow;
        for (number, work) in new {
            let delay = match work {
                Work::Page => self.rng.range(5, 60),
                Work::Flush => self.rng.range(20, self.flush_us),
            };
            self.after(delay * slow, What::Device(at, object, number));
        }
        let node = Node::Member(at);
        for place in missing {
            let since = self.now;
            self.after(20, What::Reach(node, object, place, since));
        }
        if sends {
            let looked = self.clock(node);
            let delay = self.rng.range(1, 8);
            self.after(delay, What::Turn(at, object, looked));
        }
        if let Some(due) = due {
            let due = self.when_due(node, due);
            let hosted = self.members[at].hosted(object);
            if let Some(hosted) = hosted.filter(|hosted| hosted.due.is_none_or(|at| due < at)) {
                hosted.due = Some(due);
                self.at(due, What::Due(node, object));
            }
        }
        for event in events {
            self.note(&format!("member {at} in {epoch}: {event:?}"));
            let MemberEvent::Broken(why) = event else {
                continue;
            };
            let suspect = match why {
                BrokenGroup::Link { member, .. } => chain.get(member),
                BrokenGroup::Engine(_) => None,
            };
            let suspect = suspect.map(|member| MemberId(*member as u32));
            let mut port = self.port(node);
            self.members[at].agent.doubt(&mut port, epoch, suspect);
            self.return_port(node, port);
        }
    }

    /// The thread of an engine sends.
    pub(super) fn turn(&mut self, at: usize, object: u64, looked: Duration) {
        let now = self.time(Node::Member(at));
        let first = self.rng.below(64);
        let host = &mut self.members[at];
        let clock = Arc::clone(&host.clock);
        let Some(hosted) = host.hosted(object) else {
            return;
        };
        hosted.turns = false;
        let looked = looked.as_nanos() as u64;
        clock.looked.store(looked, Ordering::Relaxed);
        let links = &mut hosted.member;
        let ways = self.wires.transmit(object, links, now, first);
        clock.looked.store(NONE, Ordering::Relaxed);
        self.schedule(&ways);
        self.after_engine(at, object, false);
    }

    /// The device has done something.
    pub(super) fn device_done(&mut self, at: usize, object: u64, number: u64) {
        let now = self.time(Node::Member(at));
        let Some(hosted) = self.members[at].hosted(object) else {
            return;
        };
        hosted.member.store().done(number);
        hosted.member.service(now);
        self.after_engine(at, object, true);
    }
}
