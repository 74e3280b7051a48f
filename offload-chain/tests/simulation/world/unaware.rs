//! A directed run: a client that writes is cut off from the store, and a new epoch is made without it. Its connections are of the
//! old one, which nobody may execute for any more (I12).

use std::time::Duration;

use offload_chain::config::{Expect, Request};
use offload_chain::membership::{DOUBT, Doubt, encode};

use super::{Node, Planted, Stats, Under, World};

impl World {
    /// Three members, and no faults by chance.
    pub fn unaware(seed: u64, planted: Option<Planted>) -> Self {
        let mut world = Self::with_members(seed, Under::Engine, planted, Some(3));
        world.faults_until = Duration::ZERO;
        world
    }

    /// Runs it.
    pub fn run_unaware(&mut self) -> Result<Stats, String> {
        for host in &mut self.clients {
            host.work.objects().reader = false;
        }
        let up = |world: &Self| {
            let mut clients = world.clients.iter();
            world.healthy() && clients.all(|host| host.work.completed() >= 5)
        };
        self.run_while(|world| !up(world), "the group does not start")?;
        let client = Node::Client(0);
        self.note("client 0 is cut off from the store");
        self.cut.push((client, Node::Store));
        self.cut.push((Node::Store, client));
        let epoch = self.configuration().epoch;
        let doubt = Request::Put {
            key: format!("{DOUBT}{epoch}"),
            value: encode(&Doubt { suspect: None }),
            expect: Expect::Anything,
            lease: None,
        };
        self.ledger.apply(self.now, &doubt).unwrap();
        self.run_until(self.now + Duration::from_millis(600))?;
        self.run()
    }
}
