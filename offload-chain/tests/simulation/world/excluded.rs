//! A directed run: a member and a client are cut off together, and left out; when all others are in a new epoch, the client reads at that
//! member. What it finds there is the past (I13), so it may find nothing.
//!
//! By chance this lines up seldom: a lease has to be over, with nobody telling the client, and somebody has to have written.

use std::time::Duration;

use super::{Node, Planted, Stats, Under, What, World};

/// Long enough for leases to run out, and for a new epoch, and for a write to each object in it.
const NAP: Duration = Duration::from_millis(700);

impl World {
    /// Three members; client 0 only reads, and at one of them.
    pub fn excluded(seed: u64, planted: Option<Planted>) -> Self {
        let mut world = Self::with_members(seed, Under::Engine, planted, Some(3));
        world.faults_until = Duration::ZERO;
        // Those that are cut off do not hear of it.
        world.connection_timeout = Duration::from_secs(20);
        world
    }

    /// Runs it.
    pub fn run_excluded(&mut self) -> Result<Stats, String> {
        let place = self.rng.below(3) as usize;
        let reader = self.clients[0].work.objects();
        reader.reader = true;
        reader.reads_at = Some(place);
        for host in &mut self.clients[1..] {
            host.work.objects().reader = false;
        }
        let up = |world: &Self| {
            let mut clients = world.clients.iter();
            world.healthy() && clients.all(|host| host.work.completed() >= 5)
        };
        self.run_while(|world| !up(world), "the group does not start")?;
        let chain = self.configuration().chain;
        let member = Node::Member(chain[place].id.0 as usize);
        let wakes = loop {
            self.run_until(self.now + Duration::from_micros(37))?;
            let wakes = self.now + NAP;
            if self.clients[0].work.objects().nap(wakes) {
                break wakes;
            }
        };
        let life = self.clients[0].life;
        self.at(wakes, What::App(0, life));
        let island = [member, Node::Client(0)];
        self.note(&format!("cut off together: {island:?}"));
        for a in self.nodes() {
            for b in self.nodes() {
                if island.contains(&a) != island.contains(&b) {
                    self.cut.push((a, b));
                }
            }
        }
        self.run_until(wakes + Duration::from_millis(300))?;
        self.clients[0].work.objects().reads_at = None;
        self.run()
    }
}
