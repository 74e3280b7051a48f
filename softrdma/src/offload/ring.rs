//! One work queue: a ring of descriptors in memory that peers may write, and beside it what they may not.
//!
//! # Invariants
//! - W1. `next <= granted` for requests that need a grant; both count requests of all laps, WAITs included.
//! - W2. `completed` is the longest prefix of requests that are done; `counted` are those of it that are no WAITs.
//! - W3. A slot is armed again only when all of its requests have completed.

use std::sync::Arc;

use zerocopy::FromBytes;

use super::command::Refusal;
use super::descriptor::{DESCRIPTOR_BYTES, Opcode, RawDescriptor, field};
use super::planted::Flaw;
use super::program::{Carrier, Count, QueueSpec};
use super::template::{Post, Template};
use crate::mem::Buffer;

/// What is at the front of a queue.
#[derive(Debug)]
pub(super) enum Front {
    /// Nothing that may run.
    Idle,
    /// A WAIT: for how many completions of what, and what it grants.
    Wait {
        on: Count,
        needed: u64,
        queue: usize,
        releases: u32,
    },
    /// A descriptor, copied once.
    Run(Opcode, RawDescriptor),
    /// One that must not run.
    Bad(Refusal),
}

/// A work queue.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) carrier: Carrier,
    memory: Arc<Buffer>,
    requests: Vec<Template>,
    depth: u64,
    /// Operations armed.
    armed: u64,
    granted: u64,
    next: u64,
    done: Vec<bool>,
    completed: u64,
    counted: u64,
    /// How often each request ran as what.
    executed: Vec<[u64; 8]>,
    flaw: Option<Flaw>,
}

impl Ring {
    pub(super) fn new(spec: QueueSpec, depth: u64, flaw: Option<Flaw>) -> Self {
        let count = spec.requests.len() * depth as usize;
        Self {
            carrier: spec.carrier,
            memory: Buffer::zeroed(count * DESCRIPTOR_BYTES),
            executed: vec![[0; 8]; spec.requests.len()],
            requests: spec.requests,
            depth,
            armed: 0,
            granted: 0,
            next: 0,
            done: vec![false; count],
            completed: 0,
            counted: 0,
            flaw,
        }
    }

    pub(super) fn memory(&self) -> &Arc<Buffer> {
        &self.memory
    }

    pub(super) fn counted(&self) -> u64 {
        self.counted
    }

    pub(super) fn executed(&self, request: usize) -> [u64; 8] {
        self.executed[request]
    }

    /// Operations of which every request has completed.
    pub(super) fn finished(&self) -> u64 {
        match self.requests.len() as u64 {
            0 => u64::MAX,
            per_operation => self.completed / per_operation,
        }
    }

    fn per_operation(&self) -> u64 {
        self.requests.len() as u64
    }

    /// Where descriptor `request` of an operation lies.
    fn place(&self, operation: u64, request: usize) -> usize {
        let slot = (operation % self.depth) as usize;
        (slot * self.requests.len() + request) * DESCRIPTOR_BYTES
    }

    fn post(&self, request: usize) -> Option<&Post> {
        match &self.requests[request] {
            Template::Post(post) => Some(post),
            Template::Wait { .. } => None,
        }
    }

    /// Puts the templates of an operation into its slot, unowned.
    pub(super) fn arm(&mut self, operation: u64) {
        let slot = operation % self.depth;
        for (request, template) in self.requests.iter().enumerate() {
            let at = self.place(operation, request);
            self.memory.write(at, &template.raw(slot, operation));
            self.done[at / DESCRIPTOR_BYTES] = false;
        }
        self.armed = self.armed.max(operation + 1);
    }

    /// Bytes of a message. The program was checked: they lie in a field that may be written.
    pub(super) fn patch(&self, operation: u64, request: usize, at: usize, bytes: &[u8]) {
        self.memory
            .write(self.place(operation, request) + at, bytes);
    }

    /// Appends what [`patch`](Self::patch) would write over.
    pub(super) fn append_to(
        &self,
        operation: u64,
        request: usize,
        at: usize,
        len: usize,
        to: &mut Vec<u8>,
    ) {
        let at = self.place(operation, request) + at;
        self.memory.append_to(at, len, to);
    }

    /// Marks the next `count` requests, WAITs left out, as owned by the engine.
    pub(super) fn grant(&mut self, count: u32) {
        let mut left = count;
        while left > 0 {
            let (operation, request) = self.split(self.granted);
            self.granted += 1;
            if self.post(request).is_some() {
                let owner = self.lap(operation).to_le_bytes();
                self.patch(operation, request, field::OWNER, &owner);
                left -= 1;
            }
        }
    }

    fn split(&self, index: u64) -> (u64, usize) {
        let per_operation = self.per_operation();
        (index / per_operation, (index % per_operation) as usize)
    }

    /// What the owner field holds in this lap; never 0.
    fn lap(&self, operation: u64) -> u32 {
        (operation / self.depth % u64::from(u32::MAX)) as u32 + 1
    }

    fn snapshot(&self, operation: u64, request: usize) -> RawDescriptor {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        self.memory.read(self.place(operation, request), &mut bytes);
        RawDescriptor::read_from_bytes(&bytes).unwrap_or_default()
    }

    /// What a request of an operation would be if it ran now.
    pub(super) fn look(
        &self,
        operation: u64,
        request: usize,
    ) -> Result<(Opcode, RawDescriptor), Refusal> {
        let found = self.snapshot(operation, request);
        self.judge(operation, request, &found)
    }

    fn judge(
        &self,
        operation: u64,
        request: usize,
        found: &RawDescriptor,
    ) -> Result<(Opcode, RawDescriptor), Refusal> {
        let post = self.post(request).ok_or(Refusal::Opcode)?;
        post.effective(operation % self.depth, found, self.flaw)
            .ok_or(Refusal::Opcode)
    }

    /// What may run next.
    pub(super) fn front(&self) -> Front {
        if self.requests.is_empty() {
            return Front::Idle;
        }
        let (operation, request) = self.split(self.next);
        if operation >= self.armed {
            return Front::Idle;
        }
        if let Template::Wait {
            on,
            per_operation,
            queue,
            releases,
        } = self.requests[request]
        {
            return Front::Wait {
                on,
                needed: (operation + 1) * per_operation,
                queue,
                releases,
            };
        }
        let forced = self.flaw == Some(Flaw::UnownedRuns);
        if self.next >= self.granted && !forced {
            return Front::Idle;
        }
        let found = self.snapshot(operation, request);
        if found.owner.get() != self.lap(operation) && !forced {
            return Front::Bad(Refusal::Owner);
        }
        match self.judge(operation, request, &found) {
            Ok((opcode, raw)) => Front::Run(opcode, raw),
            Err(refusal) => Front::Bad(refusal),
        }
    }

    /// Number of the front, in all laps.
    pub(super) fn next_index(&self) -> u64 {
        self.next
    }

    /// The front has been handed on; returns its number, to complete it.
    pub(super) fn advance(&mut self, opcode: Opcode) -> u64 {
        let index = self.next;
        let (_, request) = self.split(index);
        self.executed[request][opcode as usize] += 1;
        self.next += 1;
        self.granted = self.granted.max(self.next);
        index
    }

    /// A request is done.
    pub(super) fn complete(&mut self, index: u64) {
        let slots = self.done.len() as u64;
        self.done[(index % slots) as usize] = true;
        if self.flaw == Some(Flaw::CountedEarly) {
            self.counted += u64::from(self.post(self.split(index).1).is_some());
        }
        while self.completed < self.next && self.done[(self.completed % slots) as usize] {
            // Only once in each lap.
            self.done[(self.completed % slots) as usize] = false;
            if self.flaw != Some(Flaw::CountedEarly) {
                self.counted += u64::from(self.post(self.split(self.completed).1).is_some());
            }
            self.completed += 1;
        }
    }
}
