//! The application of a member: carries out what arrives, and posts it for the next one.

use std::sync::Arc;

use softrdma::{Atomic, Buffer};

use super::exchange::{Exchange, To};
use super::message::{Message, Task};

/// How it learns of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// It sleeps until it is woken.
    Event,
    /// It looks all the time.
    Polling,
}

/// Of one member; runs in a thread of its own.
#[derive(Debug)]
pub struct Application {
    pub(super) exchange: Arc<Exchange>,
    pub(super) memory: Arc<Buffer>,
    pub(super) member: usize,
    pub(super) members: usize,
}

impl Application {
    /// Runs until the endpoint ends. Messages that make no sense are dropped: their client waits for ever.
    pub fn run(self, wait: Wait) {
        let mut taken = 0;
        loop {
            let message = match wait {
                Wait::Event => self.exchange.sleep_for(),
                Wait::Polling => self.exchange.look_for(taken),
            };
            let Some(message) = message else { return };
            taken += 1;
            if let Some(message) = Message::parse(message) {
                self.carry_out(message);
            }
        }
    }

    fn carry_out(&self, mut message: Message) {
        let reach = |at: u64| {
            let end = at.checked_add(message.length)?;
            (end <= self.memory.len() as u64).then_some(at as usize)
        };
        let Some(at) = reach(message.offset) else {
            return;
        };
        match message.task {
            Task::Write => self.memory.write(at, message.body()),
            Task::Memcpy { source } => {
                let Some(source) = reach(source) else { return };
                let bytes = self.memory.to_vec(source, message.length as usize);
                self.memory.write(at, &bytes);
            }
            Task::Cas { old, new, execute } => {
                if execute.contains(self.member) && at.is_multiple_of(8) {
                    let cas = Atomic::CompareSwap {
                        compare: old,
                        compare_mask: u64::MAX,
                        swap: new,
                        swap_mask: u64::MAX,
                    };
                    let had = self.memory.atomic(at, cas);
                    message.set_result(self.member, had);
                }
            }
        }
        let to = match self.member + 1 == self.members {
            true => To::Client(message.client),
            false => To::Next,
        };
        self.exchange.post(to, message.bytes);
    }
}
