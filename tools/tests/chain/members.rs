//! Replication groups as an operator has them: members, clients and commands are processes of one machine, configured in a file.
//!
//! Members and clients are killed, frozen, taken out and wiped while records are appended (I12-I15, I18). Whatever happens, the bench goes
//! on, in the end finds everything that was acknowledged at every member, and all members are alike. Pauses are printed, not judged.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

use crate::common::fault_disk::FaultDisk;
use crate::common::{self, can_mount};
use crate::replicas::{self, Group, Load, signal, until};
use serde_json::Value;

/// Says how long nothing was acknowledged.
fn tell(what: &str, report: &Value) {
    println!(
        "{what}: {} records, longest pause {:.0} ms, pauses (ms): {:?}",
        report["records"],
        report["longest_pause_ms"].as_f64().unwrap(),
        report["pauses"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pause| pause["ms"].as_f64().unwrap() as u64)
            .collect::<Vec<_>>()
    );
}

/// Ends the load, and looks at everything.
fn judge(group: &Group, load: Load, members: usize, what: &str) {
    let report = load.finish();
    tell(what, &report);
    group.verify(members);
}

/// What can not be is refused, with its cause; nothing is changed by it.
#[test]
fn wrong_usage() {
    let mut group = Group::local();
    let says = |said: &str, words: &str| assert!(said.contains(words), "{said}");
    says(&group.bad(&["status"]), "there is no group");
    says(&group.bad(&["add", "4"]), "there is no group");
    says(&group.bad(&["bench"]), "there is no group");
    says(&group.bad(&["verify"]), "there is no group");
    says(&group.bad(&["serve", "--member", "1"]), "create one first");
    let twice = ["create", "--members", "1,2,1", "--data", "1MiB"];
    says(&group.bad(&twice), "twice");
    let big = ["create", "--members", "1", "--data", "1MiB", "--ring", "1B"];
    says(&group.bad(&big), "such a group can not be");
    group.create("1,2", &[]);
    let nowhere = ["serve", "--member", "1", "--memory", "x"];
    let nowhere = [&nowhere[..], &["--advertise", "host-without-port"]].concat();
    says(&group.bad(&nowhere), "HOST:PORT");
    let again = ["create", "--members", "1", "--data", "1MiB"];
    says(&group.bad(&again), "there is a group");
    says(
        &group.bad(&["serve", "--member", "3", "--memory", "x"]),
        "does not belong to the group",
    );
    says(
        &group.bad(&["serve", "--member", "1"]),
        "need memory in a file",
    );
    let mut letter = tempfile::NamedTempFile::new().unwrap();
    letter.write_all(b"Dear all,").unwrap();
    let path = letter.path().to_str().unwrap();
    says(
        &group.bad(&["serve", "--member", "1", "--memory", path]),
        "something else in it",
    );
    assert_eq!(fs::read(path).unwrap(), b"Dear all,");
    let lease = ["serve", "--member", "1", "--memory", "x"];
    let lease = [&lease[..], &["--read-lease", "400000000000years"]].concat();
    says(&group.bad(&lease), "--read-lease");
    says(&group.bad(&["add", "2"]), "belongs to the group already");
    says(
        &group.bad(&["add", "3", "3"]),
        "belongs to the group already",
    );
    says(&group.bad(&["remove", "7"]), "does not belong to the group");
    says(&group.bad(&["remove", "1", "2"]), "one member at least");
    // Nobody serves.
    says(
        &group.bad(&["verify", "--timeout", "300ms"]),
        "the group to be active",
    );
    let text = group.run(&["status"]);
    assert!(text.status.success());
    let status = group.status();
    assert_eq!((status.epoch(), status.is_active()), (0, false));
    assert_eq!(status.0["phase"], "waiting");

    for id in 1..=2 {
        group.start(id);
    }
    group.serves(&[1, 2], "the start");
    says(&group.bad(&["bench", "--size", "1MiB"]), "of data");
    says(&group.bad(&["bench", "--seconds", "0"]), "are possible");
    says(&group.bad(&["remove", "1", "2"]), "nobody would be left");
    group.store = "http://127.0.0.1:1/x".to_owned();
    says(&group.bad(&["status"]), "names no kind of store");
    // Nobody listens there: that is what is said, and not that members are missing.
    group.store = "etcd://127.0.0.1:1/x".to_owned();
    for command in ["status", "verify", "bench"] {
        says(&group.bad(&[command]), "the store did not answer");
    }
    let file = group.memory(9);
    fs::write(&file, "something else").unwrap();
    group.store = file.to_str().unwrap().to_owned();
    says(&group.bad(&["status"]), "is not a store");
    group.store = file.parent().unwrap().to_str().unwrap().to_owned();
    says(&group.bad(&["status"]), "cannot");
}

/// A person can read what a group does.
#[test]
fn status_is_for_people() {
    let mut group = Group::local();
    group.create("1,2,3", &["--volatile"]);
    let told = |group: &Group| common::good(&["chain", "status", "--store", &group.store]);
    let before = told(&group);
    assert!(
        before.contains("waiting for all members to serve"),
        "{before}"
    );
    assert!(before.contains("not serving"), "{before}");
    for id in 1..=3 {
        group.start(id);
    }
    group.serves(&[1, 2, 3], "the start");
    let after = told(&group);
    let words = [
        "epoch", "active", "volatile", "chain", "head", "tail", "serving", "lag",
    ];
    for word in words {
        assert!(after.contains(word), "{word}: {after}");
    }
    // Nobody comes back with the memory of a volatile group.
    for id in 1..=3 {
        group.kill(id);
    }
    group.wait("the end of all", |status| {
        (1..=3).all(|id| status.state(id) == "gone")
    });
    let lost = told(&group);
    assert!(lost.contains("has to be made again"), "{lost}");
}

/// I13-I15: each member in turn is killed under load, and comes back; one is told to end.
#[test]
fn members_die_and_return() {
    let mut group = Group::local();
    group.up(&[]);
    let mut load = group.load(&[]);
    for round in 0..3 {
        // Head, middle and tail.
        let chain = group.serves(&[1, 2, 3], "the round before").chain();
        let victim = chain[round];
        let what = format!("the death of member {victim} at place {round}");
        group.kill(victim);
        load.goes_on(&what);
        let others: Vec<u32> = chain.into_iter().filter(|id| *id != victim).collect();
        group.serves(&others, &what);
        group.start(victim);
        let chain = group.serves(&[1, 2, 3], "its return").chain();
        assert_eq!(chain.last(), Some(&victim), "who returns is at the end");
        load.goes_on("its return");
    }
    let head = group.status().chain()[0];
    assert!(group.stop(head).success(), "told to end, it ends in order");
    load.goes_on("the end of the head");
    group.start(head);
    group.serves(&[1, 2, 3], "its return");
    judge(
        &group,
        load,
        3,
        "kills of head, middle, tail; end of the head",
    );
}

/// I12, I14: the head sleeps beyond its lease and wakes up; a member loses its memory.
#[test]
fn frozen_and_wiped() {
    let mut group = Group::local();
    group.up(&[]);
    let mut load = group.load(&[]);
    let chain = group.serves(&[1, 2, 3], "the start of the load").chain();
    let (head, others) = (chain[0], &chain[1..]);
    group.freeze(head);
    group.serves(others, "the head was frozen");
    load.goes_on("the head was frozen");
    group.lease_ends(head);
    group.thaw(head);
    group.serves(&[1, 2, 3], "the head was thawed");
    load.goes_on("the head was thawed");

    let wiped = group.serves(&[1, 2, 3], "the head was thawed").chain()[1];
    group.kill(wiped);
    fs::remove_file(group.memory(wiped)).unwrap();
    group.start(wiped);
    group.serves(&[1, 2, 3], "a member was wiped");
    load.goes_on("a member was wiped");
    judge(&group, load, 3, "freeze of the head, wiped member");
}

/// I15: all members stand still beyond their leases, as when their machine does: nobody goes on without the others.
#[test]
fn all_stand_still() {
    let mut group = Group::local();
    group.up(&[]);
    let mut load = group.load(&[]);
    let before = group.serves(&[1, 2, 3], "the start of the load");
    for id in [1, 2, 3] {
        group.freeze(id);
    }
    let gone = |status: &replicas::Status| (1..=3).all(|id| status.state(id) == "gone");
    group.wait("all leases to end", gone);
    for id in [1, 2, 3] {
        group.thaw(id);
    }
    load.goes_on("all were thawed");
    let after = group.serves(&[1, 2, 3], "all were thawed");
    let smaller = |id: u32| {
        let log = fs::read_to_string(group.log_of(id)).unwrap();
        log.lines()
            .any(|line| line.contains("open epoch=") && !line.contains("members=3"))
    };
    assert!(
        ![1, 2, 3].into_iter().any(smaller),
        "an epoch with less than three: {before:?} {after:?}"
    );
    judge(&group, load, 3, "all stood still");
}

/// I15: members are added and removed under load.
#[test]
fn members_come_and_go() {
    let mut group = Group::local();
    group.up(&[]);
    let mut load = group.load(&[]);
    group.good(&["add", "4"]);
    group.start(4);
    group.serves(&[1, 2, 3, 4], "member 4 was added");
    load.goes_on("member 4 was added");
    let head = group.status().chain()[0];
    group.good(&["remove", &head.to_string()]);
    let left: Vec<u32> = (1..=4).filter(|id| *id != head).collect();
    group.serves(&left, "the head was removed");
    load.goes_on("the head was removed");
    assert!(group.stop(head).success());
    // Back, with what it had.
    group.good(&["add", &head.to_string()]);
    group.start(head);
    // Down to one, and up again.
    let chain = group
        .serves(&[1, 2, 3, 4], "the head was added again")
        .chain();
    let three: Vec<String> = chain[..3].iter().map(u32::to_string).collect();
    group.good(&["remove", &three[0], &three[1], &three[2]]);
    group.serves(&chain[3..], "three were removed");
    load.goes_on("three were removed");
    group.good(&["add", &three[0], &three[1]]);
    group.serves(&[chain[0], chain[1], chain[3]], "two were added again");
    judge(&group, load, 3, "added and removed");
}

/// I12, I18: a client dies with the lock of the log, and records under way; the next gets the lock.
#[test]
fn a_dead_client_keeps_no_lock() {
    let mut group = Group::local();
    group.up(&[]);
    for round in 0..2 {
        let mut load = group.load(&[]);
        load.goes_on(&format!("death {round} of a client"));
        load.kill();
    }
    let load = group.load(&[]);
    judge(&group, load, 3, "clients killed");
    let gone = |status: &replicas::Status| status.0["clients"] == Value::Array(Vec::new());
    group.wait("no client to be left", gone);
}

/// I12: a client sleeps beyond its lease with the lock of the log and records under way. Another gets the lock, and when the
/// first wakes up it is told so: nothing that it writes late is found among what the other wrote.
#[test]
fn a_frozen_client_writes_no_more() {
    let mut group = Group::local();
    group.up(&[]);
    let mut sleeper = group.load(&[]);
    sleeper.goes_on("before it sleeps");
    group.freeze_client(&sleeper);
    let mut load = group.load(&[]);
    load.goes_on("a client sleeps");
    sleeper.thaw();
    let told = sleeper.fails();
    assert!(told.contains("taken for dead"), "{told}");
    load.goes_on("a client woke up");
    judge(&group, load, 3, "a client that slept");
}

/// A member on a disk whose flushes take long is reported and taken out of the chain; it is back when the disk is well again.
#[test]
fn a_slow_member_is_removed() {
    if !can_mount() {
        return;
    }
    // The others have disks in memory: one of this machine, which others use, may be slow as well.
    let disks = [(); 3].map(|()| FaultDisk::new(8 << 20, 1).unwrap());
    let mut group = Group::local();
    group.create("1,2,3", &[]);
    let policy = [
        "--remove-slow",
        "--slow-floor",
        "200ms",
        "--slow-factor",
        "4",
    ];
    for (id, disk) in (1..).zip(&disks) {
        group.start_with(id, Some(&disk.path()), &policy);
    }
    let disk = &disks[1];
    group.serves(&[1, 2, 3], "the start");
    let mut load = group.load(&[]);
    // Not as much as makes clients doubt the group.
    disk.slow(Duration::from_millis(350));
    group.serves(&[1, 3], "the disk of member 2 got slow");
    let told = |id: u32| {
        let log = fs::read_to_string(group.log_of(id)).unwrap();
        log.contains("a member holds the others up") && log.contains("member=2")
    };
    // By whoever was first, maybe itself, when its disk lets it.
    let told = until(|| [1, 2, 3].into_iter().any(told).then_some(()));
    assert!(told.is_some(), "it is reported");
    load.goes_on("without the slow member");
    disk.slow(Duration::ZERO);
    group.serves(&[1, 2, 3], "the disk is well again");
    load.goes_on("with the member that was slow");
    judge(&group, load, 3, "a slow member");
}

/// Disks that take longer than a lease for what an epoch needs of them: their members go on saying that they live, and are waited for.
#[test]
fn slow_disks_are_waited_for() {
    if !can_mount() {
        return;
    }
    let disks: Vec<FaultDisk> = (0..3)
        .map(|_| FaultDisk::new(8 << 20, 1).unwrap())
        .collect();
    let mut group = Group::local();
    group.create("1,2,3", &[]);
    for (id, disk) in (1..).zip(&disks) {
        group.start_with(id, Some(&disk.path()), &[]);
    }
    group.serves(&[1, 2, 3], "the start");
    let mut load = group.load(&[]);
    load.goes_on("before the disks got slow");
    for disk in &disks {
        disk.slow(Duration::from_millis(150));
    }
    let before = group.status().epoch();
    // Its slot is fenced with a new epoch.
    load.kill();
    let next = |status: &replicas::Status| status.epoch() > before;
    group.wait("an epoch without the client", next);
    group.serves(&[1, 2, 3], "the disks got slow");
    for id in [1, 2, 3] {
        let log = fs::read_to_string(group.log_of(id)).unwrap();
        let late = ["no answer from", "is gone", "joins"];
        let said = log
            .lines()
            .find(|line| late.iter().any(|late| line.contains(late)));
        assert_eq!(said, None, "somebody was left out");
    }
    for disk in &disks {
        disk.slow(Duration::ZERO);
    }
    let load = group.load(&[]);
    judge(&group, load, 3, "slow disks");
}

/// A member that says that it is where nothing is: that is reported, and no process stops for it.
#[test]
fn a_name_that_nobody_knows() {
    let mut group = Group::local();
    group.create("1,2", &[]);
    let memory = group.memory(2);
    group.start(1);
    group.start_with(2, Some(&memory), &["--advertise", "nowhere.invalid:7000"]);
    let said = |id: u32| {
        let log = fs::read_to_string(group.log_of(id)).unwrap();
        log.contains("cannot find member 2 at nowhere.invalid:7000")
    };
    let told = until(|| (said(1) || said(2)).then_some(()));
    assert!(told.is_some(), "it is reported");
    assert!(group.stop(1).success());
    assert!(group.stop(2).success());
}

/// The same with the other topology: the head dies, and a member.
#[test]
fn star() {
    let mut group = Group::local();
    group.up(&["--topology", "star"]);
    let mut load = group.load(&[]);
    for place in 0..2 {
        let chain = group.serves(&[1, 2, 3], "the round before").chain();
        group.kill(chain[place]);
        load.goes_on(&format!("the death of place {place}"));
        group.start(chain[place]);
        group.serves(&[1, 2, 3], "its return");
    }
    judge(&group, load, 3, "star");
}

/// A bench writes over what a bench of the same size has left, and over nothing else unless that is insisted on.
#[test]
fn a_bench_spares_what_others_wrote() {
    let mut group = Group::local();
    group.up(&[]);
    let bench = ["bench", "--seconds", "0.2", "--size"];
    let bench = |more: &[&'static str]| [&bench[..], more].concat();
    group.good(&bench(&["512B"]));
    group.good(&bench(&["512B"]));
    let refused = group.bad(&bench(&["4KiB"]));
    assert!(refused.contains("--overwrite"), "{refused}");
    // It has changed nothing, and holds nobody up.
    group.good(&bench(&["512B"]));
    group.good(&bench(&["4KiB", "--overwrite"]));
    group.verify(3);
}

/// A bench has no more under way than the ring has room for, so that it hears of what is acknowledged when it is, and says so.
#[test]
fn a_bench_has_as_much_under_way_as_there_is_room_for() {
    let mut group = Group::local();
    group.up(&[]);
    let bench = ["bench", "--seconds", "0.2", "--size", "32KiB"];
    for (depth, under_way) in [("64", 3), ("2", 2)] {
        let report = group.good(&[&bench[..], &["--depth", depth]].concat());
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["depth"], under_way, "{report}");
    }
}

/// A bench that is told to end while it waits for another one has measured nothing, and does not say that it has.
#[test]
fn a_bench_that_waits_can_be_told_to_end() {
    let mut group = Group::local();
    group.up(&[]);
    let load = group.load(&[]);
    let waits = group.command(&["bench"]).stdout(Stdio::piped()).spawn();
    let waits = waits.unwrap();
    group.wait("a second client", |status| {
        status.0["clients"].as_array().unwrap().len() == 2
    });
    // It has the slot, and may not have heard of it.
    std::thread::sleep(Duration::from_millis(300));
    signal(waits.id(), libc::SIGINT);
    let output = waits.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    load.finish();
}

/// A process that is stopped with the lock of the store holds up everybody who asks it; they can go: who serves, by a second signal.
#[test]
fn who_waits_for_the_store_can_be_told_to_end() {
    let mut group = Group::local();
    group.create("1", &[]);
    let memory = group.memory(1);
    let serve = [
        "serve",
        "--member",
        "1",
        "--memory",
        memory.to_str().unwrap(),
    ];
    let mut member = group
        .command(&serve)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(member.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let lock = fs::File::open(format!("{}.lock", group.store)).unwrap();
    lock.lock().unwrap();
    for who in [&["status"][..], &["status", "--watch"], &serve] {
        let mut waits = group.command(who).spawn().unwrap();
        // Until it waits, or for long enough.
        std::thread::sleep(Duration::from_millis(200));
        signal(waits.id(), libc::SIGTERM);
        assert!(until(|| waits.try_wait().unwrap()).is_some(), "{who:?}");
    }
    // Signals of the same number that come at once are one.
    let ended = until(|| {
        let ended = member.try_wait().unwrap();
        if ended.is_none() {
            signal(member.id(), libc::SIGTERM);
            std::thread::sleep(Duration::from_millis(200));
        }
        ended
    });
    assert!(ended.is_some(), "the member");
}

/// What is no place for a store is none, and gets no files beside it.
#[test]
fn stores_without_a_name() {
    let dir = tempfile::tempdir().unwrap();
    for store in ["", ".", "./"] {
        let create = ["chain", "create", "--members", "1", "--data", "1MiB"];
        let output = std::process::Command::new(common::FLASHNET)
            .args(create)
            .args(["--store", store])
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{store:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{store:?}");
    }
}

/// I14: memory that ends with its process vouches for nothing; what is left of the group does.
#[test]
fn volatile() {
    let mut group = Group::local();
    group.up(&["--volatile"]);
    let refused = group.bad(&["bench"]);
    assert!(refused.contains("--visible"), "{refused}");
    let mut load = group.load(&["--visible"]);
    for place in [2, 0] {
        let chain = group.serves(&[1, 2, 3], "the round before").chain();
        group.kill(chain[place]);
        load.goes_on(&format!("the death of place {place}"));
        group.start(chain[place]);
        group.serves(&[1, 2, 3], "its return");
    }
    judge(&group, load, 3, "volatile");
}

/// I13, I14: records of a log that is not carried out are there once and in order until they are given up, over deaths of members;
/// what a bench that died has left the next one of the same size gives up, and another one only if that is insisted on.
#[test]
fn log_only() {
    let mut group = Group::local();
    group.up(&["--log-only"]);
    let mut load = group.load(&[]);
    for place in [0, 2] {
        let chain = group.status().chain();
        group.kill(chain[place]);
        load.goes_on(&format!("the death of place {place}"));
        group.start(chain[place]);
        group.serves(&[1, 2, 3], "its return");
    }
    judge(&group, load, 3, "a log that is not carried out");
    // It may have given up everything just before it dies: then it leaves nothing, and the next one is let in.
    let refused = (0..8).find_map(|_| {
        group.load(&[]).kill();
        let next = group.run(&["bench", "--size", "1KiB", "--seconds", "0.1"]);
        let said = String::from_utf8_lossy(&next.stderr).into_owned();
        (!next.status.success()).then_some(said)
    });
    let refused = refused.expect("one of eight leaves records");
    assert!(refused.contains("nobody has given up"), "{refused}");
    group.good(&["bench", "--size", "512B", "--seconds", "0.1"]);
    group.load(&[]).kill();
    group.good(&["bench", "--size", "1KiB", "--seconds", "0.1", "--overwrite"]);
}
