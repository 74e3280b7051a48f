//! A directed run: as many clients as M7 says, all of which write, and faults until the history of each object has about as
//! many operations as it says, if it ever has.

use std::time::Duration;

use super::{Stats, Under, World};

const CLIENTS: usize = 8;
/// With all objects together. A few more come when there are no faults any more.
const OPERATIONS: u64 = 2_800;
const FAULTS_MAX: Duration = Duration::from_secs(60);

impl World {
    /// Three members.
    pub fn crowd(seed: u64, under: Under) -> Self {
        let mut world = Self::with_sizes(seed, under, None, Some(3), Some(CLIENTS));
        world.faults_until = FAULTS_MAX;
        world
    }

    /// Runs it.
    pub fn run_crowd(&mut self) -> Result<Stats, String> {
        for host in &mut self.clients {
            host.work.objects().reader = false;
        }
        let completed = |world: &Self| -> u64 {
            let clients = world.clients.iter();
            clients.map(|host| host.work.completed()).sum()
        };
        while self.now < FAULTS_MAX && completed(self) < OPERATIONS {
            self.run_until(self.now + Duration::from_millis(1))?;
        }
        self.faults_until = self.now;
        self.run()
    }
}
