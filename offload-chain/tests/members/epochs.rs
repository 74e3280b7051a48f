//! Members as hosts, and clients over changes of epochs: everything real but the processes.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::hosted::{Group, LONG, birth, entry, timing, wait_for};
use offload_chain::client::{Client, ClientError, ClientSettings};
use offload_chain::config::{Event, FileStore, Reply, Request, Store, Ticket};
use offload_chain::group::{Durability, Topology, Watcher};
use offload_chain::host::{Host, HostSettings, Timing};
use offload_chain::lock::LockId;
use offload_chain::log::Preset;
use offload_chain::membership::{Birth, MEMBER, MemberId, Report, SLOT, decode, encode};
use offload_chain::read::{Object, Source};
use softrdma::Served;

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

/// I12, I14: members and clients of a group that was deleted end when another group is made in its place: members would go on with the other's
/// epochs, and clients wait for these to come up to theirs.
#[test]
fn a_member_of_a_deleted_group_ends() {
    let group = Group::create(2, true);
    let mut hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    wait_for("the group is active", || {
        hosts.iter().all(|host| host.state().position.is_some())
    });
    let mut old = group.client(Preset::STRICT);
    for beside in ["store", "store.leases"] {
        std::fs::remove_file(group.path().join(beside)).unwrap();
    }
    group.make(
        2,
        Birth {
            salt: 78,
            ..birth()
        },
    );
    for host in &hosts {
        wait_for("it ends", || host.ended().is_some());
        let why = host.ended().unwrap();
        assert!(why.contains("deleted"), "{why}");
    }
    hosts.clear();
    let mut told = Ok(());
    wait_for("the client is told", || {
        told = old.turn(Duration::from_millis(5));
        told.is_err()
    });
    assert!(matches!(told, Err(ClientError::Fenced)), "{told:?}");
    // Started again they make up the new group.
    let hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    let mut client = group.client(Preset::STRICT);
    client.lock(LockId::LOG, LONG).unwrap();
    client.append(entry(0, b"new")).unwrap();
    client.unlock(LockId::LOG).unwrap();
    client.leave();
    wait_for("both are in its chain", || {
        hosts.iter().all(|host| host.state().position.is_some())
    });
}

/// I16, I18: records that the log has no room for wait, so many and no more; who gives up others makes room for them.
#[test]
fn what_waits_for_room_is_bounded() {
    let group = Group::create(2, false);
    let _hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    let settings = ClientSettings {
        preset: Preset::REPLICATED,
        timing: timing(),
        timeout: Duration::from_secs(2),
        ..ClientSettings::default()
    };
    let mut client = Client::connect(Box::new(group.store()), settings).unwrap();
    client.lock(LockId::LOG, LONG).unwrap();
    let ring = client.layout().ring_bytes();
    let mut submitted = 0;
    let why = loop {
        match client.submit(entry(0, &[submitted as u8; 1000])) {
            Ok(number) => submitted = number,
            Err(why) => break why,
        }
        assert!(submitted * 1000 <= 2 * ring, "{submitted} records are kept");
    };
    assert!(matches!(why, ClientError::TimedOut(_)), "{why}");
    // In the ring, and waiting.
    assert!(submitted * 1000 > ring, "{submitted} records");
    assert!(client.acknowledged() < submitted);
    let mut given_up = 0;
    while given_up < submitted {
        for (number, entries) in client.records().unwrap() {
            assert_eq!(entries, entry(0, &[given_up as u8; 1000]));
            client.truncate(number + 1).unwrap();
            given_up += 1;
        }
        client.turn(Duration::from_millis(1)).unwrap();
    }
    assert_eq!(client.acknowledged(), submitted);
    client.unlock(LockId::LOG).unwrap();
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

/// I13: while a writer has the lock of an object the tail answers for it, unless the preset lets any member answer.
#[test]
fn eventual_reads_ask_nobody_else() {
    let group = Group::create(3, true);
    let _hosts: Vec<Host> = (1..=3).map(|member| group.serve(member)).collect();
    let [mut writer, mut strict, mut eventual] =
        [Preset::STRICT, Preset::STRICT, Preset::EVENTUAL].map(|preset| group.client(preset));
    writer.lock(LockId::LOG, LONG).unwrap();
    writer.append(entry(512, b"object")).unwrap();
    writer.drain().unwrap();
    let object = Object {
        offset: 512,
        length: 6,
        lock: LockId(2),
        whole: |bytes| bytes == b"object",
    };
    let read = |reader: &mut Client, place| {
        let (bytes, source) = reader.read(object, Some(place)).unwrap();
        assert_eq!(bytes, b"object");
        source
    };
    assert_eq!(read(&mut strict, 1), Source::Clean(1));
    assert_eq!(read(&mut eventual, 1), Source::Eventual(1));
    writer.lock(object.lock, LONG).unwrap();
    for place in 0..3 {
        assert_eq!(read(&mut strict, place), Source::Tail);
        assert_eq!(read(&mut eventual, place), Source::Eventual(place));
    }
    writer.unlock(object.lock).unwrap();
    assert_eq!(read(&mut strict, 0), Source::Clean(0));
    for client in [writer, strict, eventual] {
        client.leave();
    }
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

/// Of a log that is not carried out a client reads what there is, around the end of the ring and beside what is there of the lap before.
#[test]
fn a_long_log_is_read_from_its_mark() {
    const LENGTH: usize = 60 << 10;
    let birth = Birth {
        locks: 1,
        ring_bytes: 8 << 20,
        data_bytes: 64 << 10,
        salt: 77,
        token: [5; 16],
        topology: Topology::Chain,
        executes: false,
        durable: false,
    };
    let group = Group::born(1, birth);
    let _host = group.serve(1);
    let preset = Preset {
        durability: Durability::Visible,
        ..Preset::REPLICATED
    };
    let content = |number: u64| number.to_le_bytes().repeat(LENGTH / 8);
    let mut mark = 1;
    let mut written = 0;
    for (more, before) in [(120, 116), (60, 150), (100, 270), (5, 280)] {
        // Each finds out what there is.
        let mut client = group.client(preset);
        client.lock(LockId::LOG, LONG).unwrap();
        for _ in 0..more {
            written += 1;
            client.append(entry(0, &content(written))).unwrap();
        }
        let records = client.records().unwrap();
        let numbers = records.iter().map(|(number, _)| *number);
        assert!(numbers.eq(mark..=written), "{mark} to {written}");
        for (number, entries) in records {
            assert_eq!(entries, entry(0, &content(number)));
        }
        client.truncate(before).unwrap();
        mark = before;
        client.unlock(LockId::LOG).unwrap();
        client.leave();
    }
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

/// Connections to a member that go through here, and can be cut.
#[derive(Clone, Default)]
struct Wires(Arc<Mutex<Vec<TcpStream>>>);

impl Wires {
    fn lead(&self, from: TcpListener, to: SocketAddr) {
        let wires = self.clone();
        std::thread::spawn(move || {
            for here in from.incoming() {
                let (here, there) = (here.unwrap(), TcpStream::connect(to).unwrap());
                for (mut from, mut to) in [(&here, &there), (&there, &here)]
                    .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
                {
                    std::thread::spawn(move || {
                        // However it ends.
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                wires.0.lock().unwrap().extend([here, there]);
            }
        });
    }

    fn cut(&self) {
        for stream in self.0.lock().unwrap().drain(..) {
            // It may have ended.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// I18, K1: a client whose connection ends while nothing is under way finds that out, and goes on in the next epoch: no outcome tells, and
/// nobody else has anything to tell.
#[test]
fn a_group_that_breaks_while_nothing_is_under_way_is_found_broken() {
    let group = Group::create(1, true);
    let (wires, listener) = (Wires::default(), TcpListener::bind("127.0.0.1:0").unwrap());
    let host = group.serve_at(1, Some(listener.local_addr().unwrap()));
    wires.lead(listener, host.address());
    let mut client = group.client(Preset::STRICT);
    client.lock(LockId::LOG, LONG).unwrap();
    client.append(entry(0, b"before")).unwrap();
    client.drain().unwrap();
    let epochs = client.epochs();
    wires.cut();
    wait_for("it connects again", || {
        client.turn(Duration::from_millis(5)).unwrap();
        client.epochs() > epochs
    });
    client.append(entry(0, b"after")).unwrap();
    client.unlock(LockId::LOG).unwrap();
    client.leave();
}

/// K2: a lock that was not to be had in time is not had, whether the members had given it by then or not.
#[test]
fn a_lock_that_came_too_late_is_given_back() {
    let group = Group::create(2, true);
    let _hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    let (mut one, mut other) = (group.client(Preset::STRICT), group.client(Preset::STRICT));
    let lock = LockId(2);
    for _ in 0..10 {
        match one.rd_lock(lock, 1, Duration::ZERO) {
            Ok(_) => one.rd_unlock(lock).unwrap(),
            Err(ClientError::TimedOut(_)) => {}
            Err(error) => panic!("{error}"),
        }
        wait_for("nothing is left of it", || {
            one.turn(Duration::from_millis(5)).unwrap();
            one.rd_lock(lock, 1, LONG).is_ok()
        });
        one.rd_unlock(lock).unwrap();
        other.lock(lock, LONG).unwrap();
        other.unlock(lock).unwrap();
    }
    one.leave();
    other.leave();
}

/// I16, I18: a call that finds only while it waits that its epoch has been over for long, and the next one is there already, goes on in that,
/// and does not wait for what the old one will never answer.
#[test]
fn a_call_goes_on_in_an_epoch_that_came_before_it() {
    let group = Group::create(2, true);
    let mut hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    let mut client = group.client(Preset::STRICT);
    let (lock, other) = (LockId(1), LockId(2));
    let calls: [fn(&mut Client, LockId, LockId); 4] = [
        |client, lock, _| _ = client.lock(lock, LONG).unwrap(),
        |client, lock, _| client.unlock(lock).unwrap(),
        |client, _, other| _ = client.rd_lock(other, 0, LONG).unwrap(),
        |client, _, _| _ = client.read_memory(0, 0, 8).unwrap(),
    ];
    for call in calls {
        let before = hosts[0].state().open;
        match hosts[1].ended() {
            Some(_) => hosts[1] = group.serve(2),
            None => hosts[1].stop(),
        }
        wait_for("the next epoch", || hosts[0].state().open > before);
        // Its session hears of both.
        std::thread::sleep(timing().period * 3);
        let (epochs, begun) = (client.epochs(), Instant::now());
        call(&mut client, lock, other);
        assert!(begun.elapsed() < LONG / 4, "{:?}", begun.elapsed());
        assert_eq!(client.epochs(), epochs + 1);
    }
    client.leave();
}

/// K1, K2: who asks for a lock while an earlier attempt is on its way, which was not waited for, gets it when that has come; of whichever kind
/// the two are, and at whichever member. Nothing is left of the first.
#[test]
fn who_asks_again_waits_for_what_is_on_its_way() {
    let group = Group::create(2, true);
    let _hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    let (mut one, mut other) = (group.client(Preset::STRICT), group.client(Preset::STRICT));
    let lock = LockId(2);
    one.lock(LockId::LOG, LONG).unwrap();
    let mut late = [0; 4];
    for round in 0..40 {
        // Their outcomes come first.
        for byte in 0..8 {
            one.submit(entry(0, &[byte; 100])).unwrap();
        }
        let kind = round % 4;
        let (reads, writes) = (kind < 2, kind % 2 == 1);
        let soon = match reads {
            true => one.rd_lock(lock, 1, Duration::ZERO).map(drop),
            false => one.lock(lock, Duration::ZERO).map(drop),
        };
        match soon {
            Ok(()) if reads => one.rd_unlock(lock).unwrap(),
            Ok(()) => one.unlock(lock).unwrap(),
            Err(ClientError::TimedOut(_)) => late[kind] += 1,
            Err(error) => panic!("{error}"),
        }
        if writes {
            one.lock(lock, LONG).unwrap();
            one.unlock(lock).unwrap();
        } else {
            one.rd_lock(lock, 0, LONG).unwrap();
            one.rd_unlock(lock).unwrap();
        }
        other.lock(lock, LONG).unwrap();
        other.unlock(lock).unwrap();
    }
    assert!(late.iter().sum::<u32>() > 0, "{late:?}");
    one.unlock(LockId::LOG).unwrap();
    one.leave();
    other.leave();
}

/// K1: who leaves leaves no lock behind: neither one that it has, nor one that it has asked for and not heard of.
#[test]
fn who_leaves_leaves_no_lock_behind() {
    let group = Group::create(2, true);
    let _hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    let mut other = group.client(Preset::STRICT);
    let lock = LockId(2);
    for _ in 0..5 {
        let mut one = group.client(Preset::STRICT);
        match one.lock(lock, Duration::ZERO) {
            Ok(_) => one.unlock(lock).unwrap(),
            Err(ClientError::TimedOut(_)) => {}
            Err(error) => panic!("{error}"),
        }
        one.leave();
        other.lock(lock, LONG).unwrap();
        other.unlock(lock).unwrap();
    }
    let missed_soon = Timing {
        misses: 5,
        ..timing()
    };
    let mut one = group.client_of(Preset::STRICT, missed_soon);
    one.rd_lock(lock, 1, LONG).unwrap();
    one.leave();
    other.lock(lock, LONG).unwrap();
    other.unlock(lock).unwrap();
    other.leave();
}

/// K1, I13: where a lock is free, all members have what was done under it.
#[test]
fn what_was_done_under_a_lock_is_done_when_it_is_free() {
    let group = Group::create(3, true);
    let _hosts: Vec<Host> = (1..=3).map(|member| group.serve(member)).collect();
    let mut client = group.client(Preset::STRICT);
    let lock = LockId(2);
    client.lock(LockId::LOG, LONG).unwrap();
    let data_at = client.layout().data_at();
    let mut record = 0u64;
    for _ in 0..3 {
        client.lock(lock, LONG).unwrap();
        for _ in 0..200 {
            record += 1;
            client.submit(entry(0, &record.to_le_bytes())).unwrap();
        }
        client.unlock(lock).unwrap();
        for place in 0..3 {
            let found = client.read_memory(place, data_at, 8).unwrap();
            assert_eq!(found, record.to_le_bytes(), "member {place}");
        }
    }
    client.unlock(LockId::LOG).unwrap();
    client.leave();
}

/// I18: the longest record that the ring takes is appended, though no gWRITE is so long.
#[test]
fn the_longest_record_is_appended() {
    let (ring, data) = (4 << 20, 3 << 20);
    let birth = Birth {
        locks: 2,
        ring_bytes: ring,
        data_bytes: data,
        salt: 78,
        token: [6; 16],
        topology: Topology::Chain,
        executes: true,
        durable: true,
    };
    let group = Group::born(2, birth);
    let _hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    let mut client = group.client(Preset::STRICT);
    client.lock(LockId::LOG, LONG).unwrap();
    let longest = (ring / 2) as usize - 64;
    for byte in 1..=4u8 {
        client.append(entry(3, &vec![byte; longest])).unwrap();
        client.append(entry(2, &[byte; 2])).unwrap();
    }
    client.unlock(LockId::LOG).unwrap();
    let data_at = client.layout().data_at();
    for place in 0..2 {
        let found = client.read_memory(place, data_at, longest + 4).unwrap();
        assert_eq!(found[..2], [0; 2], "member {place}");
        assert!(found[2..longest + 3].iter().all(|byte| *byte == 4));
        assert_eq!(found[longest + 3], 0);
    }
    client.leave();
}

/// I18: a record that the members cannot make durable is refused.
#[test]
fn what_cannot_be_durable_is_refused() {
    let birth = Birth {
        locks: 2,
        ring_bytes: 16 << 10,
        data_bytes: 4096,
        salt: 79,
        token: [7; 16],
        topology: Topology::Chain,
        executes: true,
        durable: false,
    };
    let group = Group::born(1, birth);
    let _host = group.serve(1);
    let mut client = group.client(Preset::STRICT);
    client.lock(LockId::LOG, LONG).unwrap();
    let refused = client.append(entry(0, b"x"));
    assert!(matches!(refused, Err(ClientError::Group(_))), "{refused:?}");
    client.unlock(LockId::LOG).unwrap();
    client.leave();
    let mut client = group.client(Preset::VOLATILE);
    client.lock(LockId::LOG, LONG).unwrap();
    client.append(entry(0, b"x")).unwrap();
    client.unlock(LockId::LOG).unwrap();
    client.leave();
}

/// A store that says of a member that it is where nobody is.
struct Misled(FileStore, MemberId);

impl Store for Misled {
    fn submit(&mut self, request: Request) -> Ticket {
        self.0.submit(request)
    }

    fn poll(&mut self) -> Option<Event> {
        let mut event = self.0.poll()?;
        if let Event::Answer(_, Ok(Reply::Items(items, _))) = &mut event {
            for item in items.iter_mut().filter(|item| item.key.starts_with(MEMBER)) {
                let mut report: Report = decode(item).unwrap();
                if report.seat.id == self.1 {
                    report.address = "127.0.0.1:1".to_owned();
                    item.value = encode(&report);
                }
            }
        }
        Some(event)
    }
}

/// I16: a client that cannot reach a member which everybody else reaches does not hold them up by one epoch after the other.
#[test]
fn a_client_that_is_cut_off_leaves_others_alone() {
    let group = Group::create(2, true);
    let _hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    let mut client = group.client(Preset::STRICT);
    client.lock(LockId::LOG, LONG).unwrap();
    let before = client.configuration().epoch.0;
    let cut_off = std::thread::spawn({
        let store = Misled(group.store(), MemberId(2));
        let settings = ClientSettings {
            timing: timing(),
            timeout: Duration::from_secs(3),
            ..ClientSettings::default()
        };
        move || Client::connect(Box::new(store), settings).map(drop)
    });
    let mut record = 0;
    while !cut_off.is_finished() {
        record += 1;
        client.append(entry(0, &u64::to_le_bytes(record))).unwrap();
    }
    let error = cut_off.join().unwrap().unwrap_err();
    assert!(matches!(error, ClientError::TimedOut(_)), "{error}");
    // It has given back its slot: nobody has to miss and to fence it.
    let mut store = group.store();
    let prefix = SLOT.to_owned();
    store.submit(Request::List { prefix });
    let Some(Event::Answer(_, Ok(Reply::Items(slots, _)))) = store.poll() else {
        panic!("a list is answered");
    };
    assert_eq!(slots.len(), 1, "{slots:?}");
    client.unlock(LockId::LOG).unwrap();
    let epochs = client.configuration().epoch.0 - before;
    assert!(epochs <= 8, "{epochs} epochs in 3 s, {record} records");
    client.leave();
}

/// A store that neither hears nor says anything while it is away.
struct Away(FileStore, Arc<AtomicBool>);

impl Store for Away {
    fn submit(&mut self, request: Request) -> Ticket {
        match self.1.load(Ordering::Acquire) {
            true => Ticket(u64::MAX),
            false => self.0.submit(request),
        }
    }

    fn poll(&mut self) -> Option<Event> {
        let event = self.0.poll()?;
        (!self.1.load(Ordering::Acquire)).then_some(event)
    }
}

/// Media that hold each flush up for as long as this is locked.
#[derive(Debug)]
struct Held(Arc<Mutex<()>>);

impl Watcher for Held {
    fn served(&self, _: Served, _: u64, _: Duration) {}

    fn flushed(&self, _: Duration, _: bool) {
        drop(self.0.lock().unwrap());
    }
}

/// I18: while the store is away writes go on, also after one that took so long that the client told of it: in the epoch that it is in, as there
/// can be no other.
#[test]
fn a_client_does_not_leave_what_it_can_not_come_back_to() {
    let group = Group::create(2, true);
    let (away, media) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(())));
    let store = || Box::new(Away(group.store(), Arc::clone(&away)));
    let _hosts = [1, 2].map(|member| {
        let settings = HostSettings {
            watcher: Some(Arc::new(Held(Arc::clone(&media)))),
            ..group.settings(member)
        };
        Host::start(settings, store()).unwrap()
    });
    let settings = ClientSettings {
        timing: Timing {
            period: Duration::from_millis(25),
            ..timing()
        },
        timeout: Duration::from_secs(20),
        ..ClientSettings::default()
    };
    let silence = settings.timing.silence();
    let mut client = Client::connect(store(), settings).unwrap();
    client.lock(LockId::LOG, LONG).unwrap();
    client.append(entry(0, b"before")).unwrap();
    client.drain().unwrap();
    away.store(true, Ordering::Release);
    let epochs = client.epochs();
    for record in 0..2u8 {
        let held = media.lock().unwrap();
        let own = client.submit(entry(0, &[record; 6])).unwrap();
        let start = Instant::now();
        while start.elapsed() < silence * 3 {
            client.turn(Duration::from_millis(5)).unwrap();
        }
        assert!(client.acknowledged() < own);
        drop(held);
        client.wait_for(own).unwrap();
    }
    client.drain().unwrap();
    assert_eq!(client.epochs(), epochs);
}

/// I18: a member whose engine is no more ends. As long as it said that it lives, each epoch would have it in its chain, and nobody could
/// connect in any.
#[test]
fn a_member_ends_with_its_engine() {
    let group = Group::create(1, true);
    let settings = HostSettings {
        on_engine_thread: Some(Box::new(|| panic!("as an engine with a bug would"))),
        ..group.settings(1)
    };
    let host = Host::start(settings, Box::new(group.store())).unwrap();
    wait_for("it ends", || host.ended().is_some());
    let why = host.ended().unwrap();
    assert!(why.contains("engine"), "{why}");
}
