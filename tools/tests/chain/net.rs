//! A replication group over a network that is cut, with its configuration in etcd.
//!
//! Three members, etcd and a client, each on a host of its own (namespaces of one machine, a bridge between them). Each of them is killed
//! under load, the head is frozen beyond its lease, links are cut in one direction or both, and healed (I12-I15, I18). Where the group
//! can go on without whom the fault hits it does so while the fault lasts; in the end everything that was acknowledged is at every
//! member, and all are alike. Pauses are printed, not judged.

use crate::common;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::etcd::{Etcd, Timing};
use crate::replicas::{self, Group, Load, Network};

const ETCD: u8 = 10;
const CLIENT: u8 = 20;

struct World {
    group: Group,
    etcd: Etcd,
    network: Network,
}

/// A group that serves; none, if this system has no such networks.
fn world() -> Option<World> {
    let network = match Network::new(&[1, 2, 3, ETCD, CLIENT]) {
        Ok(network) => network,
        Err(why) => {
            common::skip(&format!("no network to be cut: {why}"));
            return None;
        }
    };
    let place = network.place(ETCD);
    let host = place.host;
    // Its shortest lease is one and a half of its elections: a second.
    let timing = Timing {
        heartbeat_ms: 100,
        election_ms: 600,
    };
    let etcd = Etcd::start_at(host, timing, Arc::new(move || place.enter()))?;
    let store = format!("etcd://{}/group", etcd.place());
    let members: BTreeMap<u32, _> = (1..=3).map(|id| (id, network.place(id as u8))).collect();
    let mut group = Group::at(store, members, network.place(CLIENT));
    group.up(&[]);
    Some(World {
        group,
        etcd,
        network,
    })
}

impl World {
    /// Who serves, head first, as soon as all do: on a busy machine somebody may just be missed in error.
    fn chain(&self) -> Vec<u32> {
        self.group.serves(&[1, 2, 3], "a fault is to come").chain()
    }

    /// All are back.
    fn whole(&self, load: &mut Load, after: &str) {
        self.group.serves(&[1, 2, 3], after);
        load.goes_on(after);
    }

    /// A fault of the network that leaves enough members: writes go on while it lasts, and all come back when it is over.
    fn cut(&self, load: &mut Load, what: &str, cut: impl FnOnce(&Network)) {
        println!("{what}");
        // Looked at first: on a busy machine the cut may be noticed before anybody is told of an epoch.
        let before = self.group.status().epoch();
        cut(&self.network);
        // It is noticed, and then the group goes on without somebody.
        let smaller = |status: &replicas::Status| {
            status.epoch() > before && status.is_active() && status.chain().len() < 3
        };
        self.group
            .wait(&format!("a chain without somebody: {what}"), smaller);
        load.goes_on(what);
        self.network.heal();
        self.whole(load, &format!("healed: {what}"));
    }

    fn judge(&self, load: Load, what: &str) {
        let report = load.finish();
        let pauses = report["pauses"].as_array().unwrap().iter();
        let pauses: Vec<u64> = pauses
            .map(|pause| pause["ms"].as_f64().unwrap() as u64)
            .collect();
        println!(
            "{what}: {} records, pauses (ms): {pauses:?}",
            report["records"]
        );
        self.group.verify(3);
    }
}

/// Each role is killed in turn: head, middle, tail, client, etcd. The head is frozen, and thawed.
#[test]
fn everybody_is_killed_once() {
    let Some(mut world) = world() else { return };
    let mut load = world.group.load(&[]);
    for place in 0..3 {
        let victim = world.chain()[place];
        let what = format!("the death of place {place}");
        world.group.kill(victim);
        load.goes_on(&what);
        world.group.start(victim);
        world.whole(&mut load, &what);
    }
    world.judge(load, "kills of members");

    // The death of the client. What another writes and finds is not in the way of what it left.
    let mut load = world.group.load(&[]);
    load.goes_on("before the death of the client");
    load.kill();
    let mut load = world.group.load(&[]);
    load.goes_on("the death of the client");

    world.etcd.kill();
    load.goes_on("the death of etcd");
    world.etcd.restart();
    world.whole(&mut load, "the return of etcd");

    let head = world.chain()[0];
    world.group.freeze(head);
    let others: Vec<u32> = (1..=3).filter(|id| *id != head).collect();
    world.group.serves(&others, "the head was frozen");
    load.goes_on("the head was frozen");
    world.group.lease_ends(head);
    world.group.thaw(head);
    world.whole(&mut load, "the head was thawed");
    world.judge(load, "kills and a freeze");
}

/// Links are cut and healed: of one direction and of both, between members, to etcd, and to everybody.
#[test]
fn links_are_cut() {
    let Some(mut world) = world() else { return };
    let mut load = world.group.load(&[]);
    // Of one look: the next may find another order.
    let hosts = |world: &World| {
        let chain = world.chain();
        [chain[0], chain[1], chain[2]].map(|id| id as u8)
    };

    let [head, middle, _] = hosts(&world);
    world.cut(&mut load, "head to middle, one direction", |network| {
        network.cut_way(head, middle);
    });
    let [head, middle, _] = hosts(&world);
    world.cut(&mut load, "middle to head, one direction", |network| {
        network.cut_way(middle, head);
    });
    let [_, middle, tail] = hosts(&world);
    world.cut(&mut load, "middle and tail", |network| {
        network.cut(middle, tail);
    });
    let [head, ..] = hosts(&world);
    world.cut(&mut load, "head and etcd", |network| {
        network.cut(head, ETCD)
    });
    let [.., tail] = hosts(&world);
    world.cut(&mut load, "tail to etcd, one direction", |network| {
        network.cut_way(tail, ETCD);
    });
    let [head, ..] = hosts(&world);
    world.cut(&mut load, "head and everybody", |network| {
        network.isolate(head);
    });
    // Nobody can go on without the client.
    let [head, ..] = hosts(&world);
    world.network.cut(CLIENT, head);
    std::thread::sleep(std::time::Duration::from_millis(500));
    world.network.heal();
    world.whole(&mut load, "healed: client and head");
    world.judge(load, "cuts");
}
