//! A store that is put back to an older state, as etcd is when it is restored from a snapshot.

use std::fs;
use std::time::{Duration, Instant};

use crate::hosted::{Group, LONG, entry, wait_for};
use offload_chain::Epoch;
use offload_chain::config::{Event, Expect, Reply, Request, Store};
use offload_chain::host::Host;
use offload_chain::lock::LockId;
use offload_chain::log::Preset;
use offload_chain::membership::{CONFIG, Configuration, View, encode};

fn look(group: &Group) -> View {
    let mut store = group.store();
    let prefix = String::new();
    store.submit(Request::List { prefix });
    match store.poll() {
        Some(Event::Answer(_, Ok(Reply::Items(items, _)))) => View::of(&items),
        other => panic!("{other:?}"),
    }
}

/// As an operator corrects it (docs/chain.md).
fn correct(group: &Group, config: &Configuration) {
    let mut store = group.store();
    store.submit(Request::Put {
        key: CONFIG.to_owned(),
        value: encode(config),
        expect: Expect::Anything,
        lease: None,
    });
    let put = store.poll();
    assert!(matches!(put, Some(Event::Answer(_, Ok(Reply::Done(_))))));
}

/// I1, I14: a member that was left out, and vouches by what an old store says, is no source for those that have acknowledged more since. The group
/// waits, and goes on with all of it when the store is corrected.
#[test]
fn nobody_vouches_by_an_old_store() {
    let group = Group::create(2, true);
    let serve = |member| group.serve(member);
    let (mut first, mut second) = (serve(1), serve(2));
    wait_for("the group is active", || first.state().position.is_some());
    let mut client = group.client(Preset::STRICT);
    let store = group.path().join("store");
    let old = fs::read(&store).unwrap();
    second.stop();
    client.lock(LockId::LOG, LONG).unwrap();
    client.append(entry(8, b"acknowledged")).unwrap();
    client.unlock(LockId::LOG).unwrap();
    client.leave();
    let been = look(&group).configuration.unwrap().epoch;
    first.stop();
    fs::write(&store, old).unwrap();

    first = serve(1);
    wait_for("the first says where it has been", || {
        look(&group)
            .put_back()
            .is_some_and(|found| found.been == been)
    });
    second = serve(2);
    wait_for("the second is there", || look(&group).reports.len() == 2);
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(5) {
        assert_eq!(second.state().position, None, "it serves what is old");
        std::thread::sleep(Duration::from_millis(50));
    }
    let view = look(&group);
    let told = view.put_back().unwrap().to_string();
    assert!(told.contains("put back to an older state"), "{told}");

    let mut config = view.configuration.unwrap();
    config.epoch = Epoch(been.0 + 100);
    config.active_epoch = been;
    correct(&group, &config);
    let serves = |host: &Host| host.state().position.is_some() && host.state().chain == 2;
    wait_for("both are in the chain", || {
        serves(&first) && serves(&second)
    });
    let mut client = group.client(Preset::STRICT);
    client.lock(LockId::LOG, LONG).unwrap();
    let at = client.layout().data_at() + 8;
    for place in 0..2 {
        assert_eq!(client.read_memory(place, at, 12).unwrap(), b"acknowledged");
    }
    client.unlock(LockId::LOG).unwrap();
    client.leave();
}
