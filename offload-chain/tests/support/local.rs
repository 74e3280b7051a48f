//! A group in one process: primitives go from member to member when told to, and power can go at each step.

use std::collections::VecDeque;

use offload_chain::group::{Flight, Outcome, Primitive, PrimitiveError, Primitives};

use super::mem::{Mem, execute, flush, flushes};
use super::rng::Rng;

/// The members, and what is under way for one client.
#[derive(Debug)]
pub struct Local {
    pub members: Vec<Mem>,
    /// Most bytes of a gWRITE.
    pub longest: u64,
    under_way: VecDeque<UnderWay>,
    next: u64,
    depth: usize,
    broken: bool,
}

#[derive(Debug)]
struct UnderWay {
    flight: Flight,
    primitive: Primitive,
    /// The next member to execute it; all have, when it is the number of members.
    member: usize,
    /// It has executed it, but it is not durable yet.
    executed: bool,
    found: Vec<Option<u64>>,
    bytes: Vec<u8>,
}

impl Local {
    pub fn new(members: usize, size: u64, depth: usize) -> Self {
        Self {
            members: (0..members).map(|_| Mem::new(size)).collect(),
            longest: u64::MAX,
            under_way: VecDeque::new(),
            next: 0,
            depth,
            broken: false,
        }
    }

    /// One member executes one primitive, or makes one durable and forwards it, some that may. Primitives execute in order;
    /// flushes end in any. Returns whether there was any.
    pub fn step(&mut self, rng: &mut Rng) -> bool {
        let members = self.members.len();
        let may = |at: &usize| {
            let one = &self.under_way[*at];
            let reached = |before: &UnderWay| {
                before.member > one.member || (before.member == one.member && before.executed)
            };
            one.member < members && (one.executed || self.under_way.range(..*at).all(reached))
        };
        let able: Vec<usize> = (0..self.under_way.len()).filter(may).collect();
        if able.is_empty() {
            return false;
        }
        self.step_one(*rng.pick(&able));
        true
    }

    /// The oldest goes on, until it is through.
    pub fn run_oldest(&mut self) {
        while self.under_way[0].member < self.members.len() {
            self.step_one(0);
        }
    }

    fn step_one(&mut self, at: usize) {
        let one = &mut self.under_way[at];
        let member = one.member;
        let memory = &mut self.members[member];
        if one.executed {
            flush(memory, &one.primitive);
        } else if let Primitive::Read { member: only, .. } = &one.primitive {
            if *only == member {
                one.bytes = execute(memory, member, &one.primitive).1;
            }
        } else {
            one.found.push(execute(memory, member, &one.primitive).0);
            if flushes(&one.primitive) {
                one.executed = true;
                return;
            }
        }
        one.executed = false;
        one.member += 1;
    }

    /// Until nothing is under way.
    pub fn run(&mut self) {
        let mut rng = Rng::new(1);
        while self.step(&mut rng) {}
    }

    /// Everything under way fails.
    pub fn break_off(&mut self) {
        self.broken = true;
    }

    /// A new epoch: nothing of the old one is executed any more.
    pub fn reopen(&mut self) {
        self.broken = false;
        self.under_way.clear();
    }
}

impl Primitives for Local {
    fn members(&self) -> usize {
        self.members.len()
    }

    fn size(&self) -> u64 {
        self.members[0].bytes().len() as u64
    }

    fn longest_write(&self) -> u64 {
        self.longest
    }

    fn persists(&self) -> bool {
        true
    }

    fn post(&mut self, primitive: Primitive) -> Result<Flight, PrimitiveError> {
        if self.broken {
            return Err(PrimitiveError::Broken("cut".into()));
        }
        if let Primitive::Write { bytes, .. } = &primitive
            && bytes.len() as u64 > self.longest
        {
            return Err(PrimitiveError::Invalid("it is too long"));
        }
        if self.under_way.len() == self.depth {
            return Err(PrimitiveError::Full);
        }
        let flight = Flight(self.next);
        self.next += 1;
        self.under_way.push_back(UnderWay {
            flight,
            primitive,
            member: 0,
            executed: false,
            found: Vec::new(),
            bytes: Vec::new(),
        });
        Ok(flight)
    }

    fn poll(&mut self) -> Option<(Flight, Result<Outcome, PrimitiveError>)> {
        if self.broken {
            let one = self.under_way.pop_front()?;
            return Some((one.flight, Err(PrimitiveError::Broken("cut".into()))));
        }
        if self.under_way.front()?.member < self.members.len() {
            return None;
        }
        let one = self.under_way.pop_front()?;
        let outcome = match one.primitive {
            Primitive::Cas { .. } => Outcome::Cas(one.found),
            Primitive::Read { .. } => Outcome::Read(one.bytes),
            _ => Outcome::Done,
        };
        Some((one.flight, Ok(outcome)))
    }
}
