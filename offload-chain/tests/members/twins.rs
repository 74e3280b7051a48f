//! Two processes that say that they are the same member, with a memory each.

use crate::hosted::{Group, wait_for};
use offload_chain::config::{Event, FileStore, Request, Store, Ticket};
use offload_chain::host::{Host, HostSettings};
use offload_chain::membership::MEMBER;

/// A second process of a member that serves, with a memory of its own, is refused: it would take the other's place, and that one take it again.
#[test]
fn a_member_is_served_once() {
    let group = Group::create(2, true);
    let mut hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    wait_for("the group is active", || {
        hosts.iter().all(|host| host.state().position.is_some())
    });
    let again = || {
        let memory = Some(group.path().join("another"));
        let settings = HostSettings {
            memory,
            ..group.settings(2)
        };
        Host::start(settings, Box::new(group.store()))
    };
    let refused = again().unwrap_err().to_string();
    assert!(refused.contains("served by another process"), "{refused}");
    // Its report is there for a while still.
    hosts[1].stop();
    again().unwrap();
}

/// A store that knows of no member when it is first asked for them.
struct Blind {
    store: FileStore,
    asked: bool,
}

impl Store for Blind {
    fn submit(&mut self, request: Request) -> Ticket {
        let request = match request {
            Request::List { prefix } if prefix == MEMBER && !self.asked => {
                self.asked = true;
                let prefix = "nobody/".to_owned();
                Request::List { prefix }
            }
            other => other,
        };
        self.store.submit(request)
    }

    fn poll(&mut self) -> Option<Event> {
        self.store.poll()
    }
}

/// I15: of two that did not see each other when they started one ends, and the group comes to rest with the other, whichever it is.
#[test]
fn one_of_two_that_started_together_ends() {
    let group = Group::create(2, true);
    let mut hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    wait_for("the group is active", || {
        hosts.iter().all(|host| host.state().position.is_some())
    });
    let settings = HostSettings {
        memory: Some(group.path().join("another")),
        ..group.settings(2)
    };
    let store = Blind {
        store: group.store(),
        asked: false,
    };
    hosts.push(Host::start(settings, Box::new(store)).unwrap());
    wait_for("one of them ends", || {
        hosts[1..].iter().any(|host| host.ended().is_some())
    });
    let at = 1 + usize::from(hosts[1].ended().is_none());
    let ended = hosts.remove(at);
    let why = ended.ended().unwrap();
    assert!(why.contains("served by another process"), "{why}");
    drop(ended);
    wait_for("the group is active with the other", || {
        let both = |host: &Host| host.state().position.is_some() && host.state().chain == 2;
        hosts.iter().all(both)
    });
    assert!(hosts.iter().all(|host| host.ended().is_none()));
}
