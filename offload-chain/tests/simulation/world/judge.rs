//! A whole run, and whether it was right.

use std::fmt::Write as _;
use std::time::Duration;

use offload_chain::config::{Ledger, Request};
use offload_chain::group::Topology;
use offload_chain::lock::Word;
use offload_chain::log::find;
use offload_chain::membership::{CONFIG, Configuration, Phase};

use super::super::app::{self, OBJECT_BYTES, OBJECTS};
use super::super::check::{Kind, Operation, check};
use super::super::grants::{self, Grant};
use super::super::order::{Account, Reading};
use super::super::records::values_of;
use super::super::support::mem::Mem;
use super::{Stats, Work, World};

impl World {
    /// Faults, then none, and everything has to come to rest. What is wrong, if anything is.
    pub fn run(&mut self) -> Result<Stats, String> {
        self.run_until(self.faults_until)?;
        self.note("no faults any more");
        self.cut.clear();
        self.paused.clear();
        for at in 0..self.members.len() {
            self.members[at].slow = 1;
            self.mended(at);
        }
        let completed: Vec<u64> = self
            .clients
            .iter()
            .map(|host| host.work.completed())
            .collect();
        let goal = |world: &Self| {
            world.healthy()
                && world
                    .clients
                    .iter()
                    .zip(&completed)
                    .all(|(host, before)| host.work.completed() >= before + 5)
        };
        self.run_while(|world| !goal(world), "the group does not recover")?;
        for host in &mut self.clients {
            host.work.stop();
        }
        let idle = |world: &Self| world.clients.iter().all(|host| host.work.is_done());
        self.run_while(
            |world| !(idle(world) && world.healthy()),
            "clients do not come to rest",
        )?;
        self.judge()
    }

    pub(super) fn run_while(
        &mut self,
        on: impl Fn(&Self) -> bool,
        said: &str,
    ) -> Result<(), String> {
        let patience = self.now + Duration::from_secs(30);
        while on(self) {
            if self.now > patience {
                let mut said = said.to_owned();
                for host in &self.clients {
                    let _ = write!(
                        said,
                        "\n  client {} {}: {}",
                        host.up,
                        host.life,
                        host.work.describe()
                    );
                }
                let _ = write!(said, "\n  {:?}", self.configuration());
                for member in &self.members {
                    let _ = write!(said, "\n  {} {:?}", member.up, member.agent.report());
                }
                return Err(said);
            }
            self.run_until(self.now + Duration::from_millis(20))?;
        }
        Ok(())
    }

    pub(super) fn configuration(&mut self) -> Configuration {
        configuration(&mut self.ledger.clone(), self.now)
    }

    /// The group is active, with all its members.
    pub(super) fn healthy(&self) -> bool {
        let config = configuration(&mut self.ledger.clone(), self.now);
        config.phase == Phase::Active && config.chain.len() == self.members.len()
    }

    pub(super) fn judge(&mut self) -> Result<Stats, String> {
        // I15.
        let config = self.configuration();
        for seat in &config.chain {
            let (a, b) = (config.chain[0].id.0 as usize, seat.id.0 as usize);
            let bytes = |at: usize| {
                self.members[at]
                    .memory
                    .with(|memory| memory.bytes().to_vec())
            };
            let (one, other) = (bytes(a), bytes(b));
            if let Some(at) = (0..one.len()).find(|at| one[*at] != other[*at]) {
                return Err(format!("members {a} and {b} differ at {at}"));
            }
        }
        self.stats.stars = u64::from(self.topology == Topology::Star);
        self.stats.media = self.members.iter().map(|host| host.memory.failures()).sum();
        self.stats.completed = (self.clients.iter())
            .map(|host| host.work.completed())
            .sum();
        // I1: what the members have in the end is what everybody reads from now on.
        let memory = (self.members[config.chain[0].id.0 as usize].memory).with(|mem| mem.clone());
        self.judge_locks(&config, &memory)?;
        match config.birth.executes {
            true => self.judge_objects(&config, &memory)?,
            false => self.judge_records(&memory)?,
        }
        Ok(self.stats)
    }

    fn judge_locks(&self, config: &Configuration, memory: &Mem) -> Result<(), String> {
        let layout = config.birth.layout().unwrap();
        let clients = self.clients.iter();
        let grants: Vec<Grant> = clients
            .flat_map(|host| host.work.grants().iter().copied())
            .collect();
        let locks = &memory.bytes()[layout.lock_at(0) as usize..];
        let locks = locks.as_chunks::<8>().0.iter();
        let words: Vec<Word> = locks
            .take(layout.locks() as usize)
            .map(|word| Word(u64::from_le_bytes(*word)))
            .collect();
        grants::check(&grants, config.epoch, &words)
    }

    fn judge_objects(&mut self, config: &Configuration, memory: &Mem) -> Result<(), String> {
        let layout = config.birth.layout().unwrap();
        let mut history: Vec<Operation> = Vec::new();
        for host in &mut self.clients {
            let app = host.work.objects();
            app.end();
            history.append(&mut app.history);
        }
        let end = self.now + Duration::from_secs(1);
        for object in 0..OBJECTS as usize {
            let of = app::object(object as u32);
            let at = (layout.data_at() + of.offset) as usize;
            let bytes = &memory.bytes()[at..at + OBJECT_BYTES];
            if !(of.whole)(bytes) {
                return Err(format!("object {object} is torn"));
            }
            history.push(Operation {
                object,
                client: usize::MAX,
                kind: Kind::Read(app::value_of(bytes)),
                begin: end,
                end: Some(end),
            });
        }
        for object in 0..OBJECTS as usize {
            let of = |one: &&Operation| one.object == object;
            let history: Vec<Operation> = history.iter().filter(of).copied().collect();
            check(&history).map_err(|said| format!("object {object}: {said}"))?;
        }
        self.stats.unknown = history.iter().filter(|one| one.end.is_none()).count() as u64;
        Ok(())
    }

    fn judge_records(&mut self, memory: &Mem) -> Result<(), String> {
        let mut account = Account::default();
        for host in &mut self.clients {
            if let Work::Records(recorder) = &mut host.work {
                account.take(std::mem::take(&mut recorder.account));
            }
        }
        let end = self.now + Duration::from_secs(1);
        let found = find(memory, None).map_err(|error| error.to_string())?;
        account.readings.push(Reading {
            begin: end,
            end,
            exact: true,
            first: found.header.sequence,
            values: values_of(&found, memory)?,
        });
        account.check()?;
        self.stats.replicated = 1;
        self.stats.truncated = account.truncations.len() as u64;
        let unknown = account.appends.iter().filter(|one| one.end.is_none());
        self.stats.unknown = unknown.count() as u64;
        Ok(())
    }

    pub fn handled(&self) -> u64 {
        self.handled
    }
}

pub(super) fn configuration(ledger: &mut Ledger, now: Duration) -> Configuration {
    let prefix = CONFIG.to_owned();
    let Ok(offload_chain::config::Reply::Items(items, _)) =
        ledger.apply(now, &Request::List { prefix })
    else {
        panic!("a list is answered");
    };
    offload_chain::membership::decode(&items[0]).unwrap()
}
