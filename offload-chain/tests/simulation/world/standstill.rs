//! A directed run: everybody stands still beyond all leases, as when their machine does, and goes on. Nobody has died, so the group is as large
//! as before (I15: each copy that is left out has to be made again).

use std::time::Duration;

use super::{Node, Stats, Under, World};

/// Several leases.
const STILL: Duration = Duration::from_millis(700);
/// More than one lease: by then somebody who is missed would have been left out.
const AFTER: Duration = Duration::from_millis(500);

impl World {
    /// Three members, and no faults by chance.
    pub fn standstill(seed: u64) -> Self {
        let under = match seed % 2 {
            0 => Under::Model,
            _ => Under::Engine,
        };
        let mut world = Self::with_members(seed, under, None, Some(3));
        world.faults_until = Duration::ZERO;
        world
    }

    /// Runs it.
    pub fn run_standstill(&mut self) -> Result<Stats, String> {
        let up = |world: &Self| {
            let mut clients = world.clients.iter();
            world.healthy() && clients.all(|host| host.work.completed() >= 5)
        };
        self.run_while(|world| !up(world), "the group does not start")?;
        self.note("all stand still");
        let resumes = self.now + STILL;
        let nodes = self.nodes().into_iter();
        let nodes = nodes.filter(|node| *node != Node::Store);
        self.paused.extend(nodes.map(|node| (node, resumes)));
        while self.now < resumes + AFTER {
            self.run_until(self.now + Duration::from_millis(1))?;
            let chain = self.configuration().chain;
            if chain.len() < 3 {
                return Err(format!("left with {chain:?}"));
            }
        }
        self.run()
    }
}
