//! A directed run: the last of five members is killed and comes back, again and again. Links end one after the other then, and each member doubts
//! the one in front of it, which lives. Nobody is left out but who died (I15: each copy that is left out has to be made again).

use std::time::Duration;

use super::{Stats, Under, World};

/// More often than a member may be doubted until it is left out.
const KILLS: usize = 6;

impl World {
    /// Five members, and no faults by chance.
    pub fn cascade(seed: u64) -> Self {
        let under = match seed % 2 {
            0 => Under::Model,
            _ => Under::Engine,
        };
        let mut world = Self::with_members(seed, under, None, Some(5));
        world.faults_until = Duration::ZERO;
        world
    }

    /// Runs it.
    pub fn run_cascade(&mut self) -> Result<Stats, String> {
        let up = |world: &Self| {
            let mut clients = world.clients.iter();
            world.healthy() && clients.all(|host| host.work.completed() >= 5)
        };
        self.run_while(|world| !up(world), "the group does not start")?;
        for _ in 0..KILLS {
            let mut others = self.configuration().chain;
            let last = others.pop().expect("an active group has members");
            self.kill(last.id.0 as usize);
            let until = self.now + Duration::from_secs(10);
            loop {
                self.run_until(self.now + Duration::from_millis(1))?;
                let config = self.configuration();
                if let Some(left_out) = others.iter().find(|seat| !config.chain.contains(seat)) {
                    let epoch = config.epoch;
                    return Err(format!(
                        "member {} lives, and {epoch} is without it",
                        left_out.id
                    ));
                }
                if self.healthy() && !config.chain.contains(&last) {
                    break;
                }
                if self.now > until {
                    return Err(format!("member {} does not come back", last.id));
                }
            }
        }
        self.run()
    }
}
