//! What agents want done with their memory takes time, and is cut off anywhere when their process ends (I6).

use offload_chain::Epoch;
use offload_chain::log::RecoverError;
use offload_chain::membership::Work;
use offload_chain::memory::{Memory, MemoryError};

use super::super::device::Device;
use super::{Node, What, World};

/// Longest work, of a member that is not slow.
const WORK_US: u64 = 4000;
/// However slow it is.
const SLOW_US: u64 = 1_500_000;
/// More accesses than most work makes.
const ACCESSES: u64 = 24;

#[derive(Debug)]
pub(super) enum UnderWay {
    /// Nothing of it is there yet.
    Ahead(Work),
    /// All of it is, and nobody has been told.
    Over(Result<Option<(Epoch, u64)>, RecoverError>),
}

impl World {
    pub(super) fn work(&mut self, at: usize, work: Work) {
        let longest = (WORK_US * self.members[at].slow).min(SLOW_US);
        let delay = self.rng.range(100, longest);
        let over = self.rng.permille(500);
        let host = &mut self.members[at];
        let life = host.life;
        let before = host.work.replace(match over {
            true => UnderWay::Over(work.run(&mut host.memory)),
            false => UnderWay::Ahead(work),
        });
        if before.is_some() {
            self.wrong = Some(format!("member {at} wants two things done at once"));
        }
        self.after(delay, What::Worked(at, life));
    }

    pub(super) fn worked(&mut self, at: usize, life: u64) {
        let node = Node::Member(at);
        if self.life(node) != Some(life) {
            return;
        }
        let (now, mut port) = (self.clock(node), self.port(node));
        let host = &mut self.members[at];
        let result = match host.work.take() {
            Some(UnderWay::Ahead(work)) => work.run(&mut host.memory),
            Some(UnderWay::Over(result)) => result,
            None => return,
        };
        host.agent.done(now, &mut port, &mut host.memory, result);
        self.after_member(at, port);
    }

    /// The process ends in the middle of it.
    pub(super) fn interrupt_work(&mut self, at: usize) {
        let left = self.rng.below(ACCESSES);
        let host = &mut self.members[at];
        if let Some(UnderWay::Ahead(work)) = host.work.take() {
            let memory = host.memory.clone();
            // It fails when its accesses are used up, and nobody is there to be told.
            let _ = work.run(&mut Interrupted { memory, left });
        }
    }
}

/// Memory of a process that ends after so many changes.
struct Interrupted {
    memory: Device,
    left: u64,
}

impl Interrupted {
    fn goes_on(&mut self) -> Result<(), MemoryError> {
        self.left = (self.left.checked_sub(1))
            .ok_or_else(|| MemoryError::Device("the process has ended".into()))?;
        Ok(())
    }
}

impl Memory for Interrupted {
    fn size(&self) -> u64 {
        self.memory.size()
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(offset, to)
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), MemoryError> {
        self.goes_on()?;
        self.memory.write(offset, from)
    }

    fn flush(&mut self) -> Result<(), MemoryError> {
        self.goes_on()?;
        self.memory.flush()
    }

    fn generation(&self) -> u64 {
        self.memory.generation()
    }

    fn changed_since(&self, generation: u64) -> Vec<u64> {
        self.memory.changed_since(generation)
    }
}
