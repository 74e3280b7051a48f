//! Members whose memory is damaged, fails, or has lost its end: nobody takes it for the group's.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use crate::hosted::{Group, LONG, entry, wait_for};
use offload_chain::host::{Host, HostError};
use offload_chain::lock::LockId;
use offload_chain::log::{HEADER_BYTES, Header, Layout, Preset};

/// Damages what media have of a member.
fn damage(memory: &Path, at: u64) {
    let mut options = std::fs::File::options();
    let file = options.read(true).write(true).open(memory).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// I14: a log that is damaged at one member goes on where it ends at the others. Whoever took the damage for its end would write over
/// what was acknowledged, at all of them.
#[test]
fn damage_at_one_member_is_no_end() {
    let group = Group::create(2, false);
    let _hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    let mut writer = group.client(Preset::REPLICATED);
    writer.lock(LockId::LOG, LONG).unwrap();
    for record in 1..=3u64 {
        writer.append(entry(0, &record.to_le_bytes())).unwrap();
    }
    let ring_at = writer.layout().ring_at();
    let before = writer.read_memory(0, ring_at, 192).unwrap();
    writer.unlock(LockId::LOG).unwrap();
    writer.leave();
    damage(&group.path().join("2"), ring_at + 64 + 50);
    for _ in 0..8 {
        let mut writer = group.client(Preset::REPLICATED);
        writer.lock(LockId::LOG, LONG).unwrap();
        writer.append(entry(0, b"more")).unwrap();
        assert_eq!(writer.read_memory(0, ring_at, 192).unwrap(), before);
        writer.unlock(LockId::LOG).unwrap();
        writer.leave();
    }
}

/// I14: a header that is damaged at one member is not the log's because the one before it is left there: its numbers have been used.
#[test]
fn damage_at_one_member_is_no_way_back() {
    let group = Group::create(2, true);
    let _hosts: Vec<Host> = (1..=2).map(|member| group.serve(member)).collect();
    let mut writer = group.client(Preset::STRICT);
    for record in 1..=8u64 {
        writer.lock(LockId::LOG, LONG).unwrap();
        writer.append(entry(0, &record.to_le_bytes())).unwrap();
        writer.unlock(LockId::LOG).unwrap();
        let slots = [0, 1].map(|slot| {
            let at = Layout::header_at(slot);
            writer.read_memory(0, at, HEADER_BYTES).unwrap()
        });
        let newest = Header::newest([&slots[0], &slots[1]]).unwrap();
        assert_eq!(newest.sequence, record + 1);
        damage(&group.path().join("2"), newest.at() + 20);
        writer.leave();
        writer = group.client(Preset::STRICT);
    }
    writer.leave();
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

/// I14: a file that has lost its end is no memory to vouch by, though its header is whole: it is refused, and left as it is.
#[test]
fn memory_that_has_lost_its_end_is_refused() {
    let group = Group::create(1, true);
    let host = group.serve(1);
    let mut client = group.client(Preset::STRICT);
    let last = client.layout().data_bytes() - 4;
    client.lock(LockId::LOG, LONG).unwrap();
    client.append(entry(last, b"kept")).unwrap();
    client.unlock(LockId::LOG).unwrap();
    client.leave();
    drop(host);
    let path = group.path().join("1");
    let whole = std::fs::read(&path).unwrap();
    for length in [whole.len() - 1, whole.len() / 2, 4096, HEADER_BYTES] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = Host::start(group.settings(1), Box::new(group.store())).unwrap_err();
        let HostError::Memory { source, .. } = error else {
            panic!("{error}");
        };
        let said = format!("{length} bytes of the {}", whole.len());
        assert!(source.to_string().contains(&said), "{source}");
        assert_eq!(std::fs::read(&path).unwrap(), whole[..length]);
    }
    std::fs::write(&path, &whole).unwrap();
    let _host = group.serve(1);
    let mut client = group.client(Preset::STRICT);
    let at = client.layout().data_at() + last;
    assert_eq!(client.read_memory(0, at, 4).unwrap(), b"kept");
    client.leave();
}
