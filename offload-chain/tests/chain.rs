//! Members as hosts, and clients over changes of epochs: everything real but the processes.

use std::path::Path;
use std::time::{Duration, Instant};

use offload_chain::client::{Client, ClientError, ClientSettings};
use offload_chain::config::{Event, Expect, FileStore, Request, Revision, Store};
use offload_chain::group::{Durability, Topology};
use offload_chain::host::{Host, HostSettings, Timing};
use offload_chain::lock::LockId;
use offload_chain::log::{Entry, Preset};
use offload_chain::membership::{Birth, CONFIG, Configuration, MemberId, SlowPolicy, encode};
use offload_chain::read::Object;
use tempfile::TempDir;

/// Nothing here is expected to take so long.
const LONG: Duration = Duration::from_secs(60);

struct Group {
    dir: TempDir,
}

impl Group {
    fn create(members: u32, executes: bool) -> Self {
        let group = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let birth = Birth {
            locks: 4,
            ring_bytes: 16 << 10,
            data_bytes: 64 << 10,
            salt: 77,
            token: [5; 16],
            topology: Topology::Chain,
            executes,
            durable: true,
        };
        let mut store = group.store();
        store.submit(Request::Put {
            key: CONFIG.to_owned(),
            value: encode(&Configuration::new(
                birth,
                (1..=members).map(MemberId).collect(),
            )),
            expect: Expect::Revision(Revision::ABSENT),
            lease: None,
        });
        assert!(matches!(store.poll(), Some(Event::Answer(_, Ok(_)))));
        group
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn store(&self) -> FileStore {
        FileStore::open(&self.path().join("store")).unwrap()
    }

    fn serve(&self, member: u32) -> Host {
        let settings = HostSettings {
            member: MemberId(member),
            listen: "127.0.0.1:0".parse().unwrap(),
            advertise: None,
            memory: Some(self.path().join(member.to_string())),
            timing: timing(),
            slow: SlowPolicy::default(),
            spin: Duration::ZERO,
            on_engine_thread: None,
        };
        Host::start(settings, Box::new(self.store())).unwrap()
    }

    fn client(&self, preset: Preset) -> Client {
        let settings = ClientSettings {
            preset,
            timing: timing(),
            timeout: LONG,
            ..ClientSettings::default()
        };
        Client::connect(Box::new(self.store()), settings).unwrap()
    }
}

/// Slower than the default: these tests run beside others.
fn timing() -> Timing {
    Timing {
        period: Duration::from_millis(100),
        misses: 20,
        patience: Duration::from_secs(1),
        read_lease: Duration::from_secs(1),
    }
}

fn entry(offset: u64, bytes: &[u8]) -> Vec<Entry> {
    let bytes = bytes.to_vec();
    vec![Entry { offset, bytes }]
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// I1, I13: what was appended stays over the end and return of members, takes effect once and in order, and is read back.
#[test]
fn a_client_outlives_members() {
    let group = Group::create(3, true);
    let mut hosts: Vec<Host> = (1..=3).map(|member| group.serve(member)).collect();
    let mut client = group.client(Preset::STRICT);
    client.lock(LockId::LOG, LONG).unwrap();
    let mut record = 0u64;
    for (member, host) in (1..).zip(&mut hosts) {
        for _ in 0..20 {
            record += 1;
            client
                .submit(entry(record % 8 * 8, &record.to_le_bytes()))
                .unwrap();
        }
        // With records under way.
        host.stop();
        client.wait_for(record).unwrap();
        *host = group.serve(member);
        wait_for("it joins again", || {
            client.turn(Duration::from_millis(5)).unwrap();
            host.state().position.is_some()
        });
    }
    assert!(client.epochs() > 3, "{}", client.epochs());
    client.drain().unwrap();
    client.unlock(LockId::LOG).unwrap();
    let data_at = client.layout().data_at();
    for place in 0..client.configuration().chain.len() {
        for slot in 0..8 {
            let last = (1..=record).rfind(|record| record % 8 == slot).unwrap();
            let found = client.read_memory(place, data_at + slot * 8, 8).unwrap();
            assert_eq!(found, last.to_le_bytes(), "member {place}");
        }
    }
    let object = Object {
        offset: 0,
        length: 8,
        lock: LockId(1),
        whole: |_| true,
    };
    let (bytes, _) = client.read(object, None).unwrap();
    assert_eq!(bytes, (record / 8 * 8).to_le_bytes());
    client.leave();
}

/// Locks exclude each other between clients: writers everywhere, readers at their member; and a token says who was first.
#[test]
fn locks_exclude() {
    let group = Group::create(2, true);
    let _hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    let (mut one, mut other) = (group.client(Preset::STRICT), group.client(Preset::STRICT));
    assert_ne!(one.slot(), other.slot());
    let lock = LockId(2);
    let first = one.lock(lock, LONG).unwrap();
    let soon = Duration::from_millis(50);
    assert!(matches!(
        other.lock(lock, soon),
        Err(ClientError::TimedOut(_))
    ));
    assert!(matches!(
        other.rd_lock(lock, 1, soon),
        Err(ClientError::TimedOut(_))
    ));
    one.unlock(lock).unwrap();
    assert!(other.lock(lock, LONG).unwrap() > first);
    other.unlock(lock).unwrap();
    one.rd_lock(lock, 1, LONG).unwrap();
    other.rd_lock(lock, 1, LONG).unwrap();
    assert!(matches!(
        other.lock(lock, soon),
        Err(ClientError::TimedOut(_))
    ));
    one.rd_unlock(lock).unwrap();
    other.rd_unlock(lock).unwrap();
    assert!(one.lock(lock, LONG).unwrap() > first);
    assert!(matches!(
        one.append(entry(0, b"x")),
        Err(ClientError::Lost(LockId::LOG))
    ));
    one.unlock(lock).unwrap();
    one.leave();
    other.leave();
}

/// A log that is not carried out keeps its records over holders of its lock, and over epochs, until they are truncated.
#[test]
fn records_stay_until_they_are_truncated() {
    let group = Group::create(2, false);
    let mut hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    let mut writer = group.client(Preset::REPLICATED);
    writer.lock(LockId::LOG, LONG).unwrap();
    for record in 1..=5u64 {
        writer.append(entry(0, &record.to_le_bytes())).unwrap();
    }
    hosts[1].stop();
    writer.append(entry(8, b"sixth")).unwrap();
    writer.unlock(LockId::LOG).unwrap();
    writer.leave();
    hosts[1] = group.serve(2);
    wait_for("it joins again", || hosts[1].state().position.is_some());

    let mut reader = group.client(Preset::REPLICATED);
    reader.lock(LockId::LOG, LONG).unwrap();
    let records = reader.records().unwrap();
    let numbers: Vec<u64> = records.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    assert_eq!(records[2].1, entry(0, &3u64.to_le_bytes()));
    assert_eq!(records[5].1, entry(8, b"sixth"));
    reader.truncate(4).unwrap();
    reader.append(entry(0, b"seventh")).unwrap();
    let records = reader.records().unwrap();
    let numbers: Vec<u64> = records.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [4, 5, 6, 7]);
    // Nothing was carried out.
    let data_at = reader.layout().data_at();
    for place in 0..2 {
        assert_eq!(reader.read_memory(place, data_at, 16).unwrap(), [0; 16]);
    }
    reader.unlock(LockId::LOG).unwrap();
    reader.leave();
}

/// I8: a member whose memory fails is left out, and the others go on; when its process starts again it is repaired.
#[test]
fn a_member_whose_memory_fails_is_left_out() {
    let group = Group::create(3, true);
    let mut hosts: Vec<Host> = (1..=3).map(|member| group.serve(member)).collect();
    let mut client = group.client(Preset::STRICT);
    client.lock(LockId::LOG, LONG).unwrap();
    client.append(entry(0, b"before")).unwrap();
    // What was there is gone: reads of it fail.
    let memory = group.path().join("2");
    let file = std::fs::File::options().write(true).open(&memory).unwrap();
    file.set_len(0).unwrap();
    client.append(entry(100, b"after")).unwrap();
    wait_for("it is left out", || {
        client.turn(Duration::from_millis(5)).unwrap();
        client.configuration().chain.len() == 2
    });
    wait_for("it ends", || hosts[1].ended().is_some());
    let why = hosts[1].ended().unwrap();
    assert!(why.contains("memory failed"), "{why}");
    hosts[1] = group.serve(2);
    wait_for("it joins again", || {
        client.turn(Duration::from_millis(5)).unwrap();
        hosts[1].state().position.is_some() && client.configuration().chain.len() == 3
    });
    client.unlock(LockId::LOG).unwrap();
    let data_at = client.layout().data_at();
    for place in 0..3 {
        let found = client.read_memory(place, data_at, 105).unwrap();
        assert_eq!(
            (&found[..6], &found[100..]),
            (&b"before"[..], &b"after"[..])
        );
    }
    client.leave();
}

/// K1, I13: a lock whose unlocking was under way when the epoch changed is no lock that was lost, whether the members had carried it out or not.
#[test]
fn an_unlock_on_its_way_is_no_lost_lock() {
    let group = Group::create(2, true);
    // The second is the tail, and again each time it comes back: the head has carried out what the tail has not answered.
    let mut hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    let mut client = group.client(Preset::STRICT);
    for _ in 0..6 {
        let tail = &mut hosts[1];
        std::thread::scope(|scope| {
            let stopped = scope.spawn(move || tail.stop());
            while !stopped.is_finished() {
                client.lock(LockId(1), LONG).unwrap();
                client.unlock(LockId(1)).unwrap();
            }
        });
        hosts[1] = group.serve(2);
        wait_for("it joins again", || {
            client.turn(Duration::from_millis(5)).unwrap();
            client.configuration().chain.len() == 2
        });
    }
    client.leave();
}

/// The log is read while records are under way, and their acknowledgements are not lost in between (I18).
#[test]
fn records_are_read_beside_those_under_way() {
    let group = Group::create(2, false);
    let _hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    let visible = Preset {
        durability: Durability::Visible,
        ..Preset::REPLICATED
    };
    let mut client = group.client(visible);
    client.lock(LockId::LOG, LONG).unwrap();
    let mut last = 0;
    for _ in 0..20 {
        for byte in 0..4 {
            last = client.submit(entry(0, &[byte])).unwrap();
        }
        client.records().unwrap();
    }
    client.wait_for(last).unwrap();
    assert_eq!(client.records().unwrap().len() as u64, last);
    client.unlock(LockId::LOG).unwrap();
    client.leave();
}
