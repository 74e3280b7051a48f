//! What a flush of the file client says: of writes that a target acknowledged and may have taken along, of those that it has not, and to whom.

use std::thread;
use std::time::Duration;

use crate::common::client::{Wire, add, create, wait};
use crate::common::{Image, Target, can_serve};
use tools::client::{Client, ClientError, File};

/// A target, and a client over a wire; none where no target can run.
fn start() -> Option<(Image, Target, Wire, Client)> {
    if !can_serve() {
        return None;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let wire = Wire::to(target.address);
    let client = Client::connect(wire.address).unwrap();
    Some((image, target, wire, client))
}

/// Kills the target, and leads its clients to the next one.
fn another(target: Target, image: &Image, wire: &Wire) -> Target {
    target.kill();
    let next = image.serve(&[]);
    wire.lead_to(next.address);
    wire.cut();
    next
}

/// A flush of this file says that writes may be lost.
fn is_told(file: &File) {
    let lost = file.flush();
    assert!(matches!(lost, Err(ClientError::WritesLost)), "{lost:?}");
}

/// The file has these bytes at these places.
fn assert_has(file: &File, places: &[(u64, &[u8])]) {
    for &(offset, written) in places {
        let mut found = vec![0; written.len()];
        file.read_at(&mut found, offset).unwrap();
        assert_eq!(found, written);
    }
}

/// I1, I8: a flush says nothing of writes that a target acknowledged that has been killed, because they may be gone with it; it says
/// so once. As long as the target lives, it speaks for them over lost connections, too. Writes of a file opened with *sync* are not
/// concerned. Reads and writes go on.
#[test]
fn a_flush_speaks_for_the_life_of_its_target() {
    let Some((image, target, wire, client)) = start() else {
        return;
    };
    let file = create(&client, "/file", 100_000);
    let sync = client
        .options()
        .write(true)
        .sync(true)
        .open("/file")
        .unwrap();

    file.write_at(b"one", 0).unwrap();
    file.flush().unwrap();
    let target = another(target, &image, &wire);
    // Nothing was written in between.
    file.flush().unwrap();

    file.write_at(b"two", 100).unwrap();
    let target = another(target, &image, &wire);
    is_told(&file);
    file.write_at(b"two", 100).unwrap();
    wire.cut();
    file.flush().unwrap();

    sync.write_at(b"three", 200).unwrap();
    let target = another(target, &image, &wire);
    sync.flush().unwrap();
    assert_has(&sync, &[(0, b"one"), (100, b"two"), (200, b"three")]);
    assert!(target.stop().success());
}

/// I1: a target that ends in order has made everything durable, so the next one speaks for what it acknowledged; not the one after a target
/// that was killed, whatever the one before that has left.
#[test]
fn a_target_speaks_for_one_that_ended_in_order() {
    let Some((image, target, wire, client)) = start() else {
        return;
    };
    let file = create(&client, "/file", 100_000);
    let leads_to = |next: &Target| {
        wire.lead_to(next.address);
        wire.cut();
    };

    file.write_at(b"one", 0).unwrap();
    assert!(target.stop().success());
    let target = image.serve(&[]);
    leads_to(&target);
    file.write_at(b"two", 100).unwrap();
    let next = image.serve(&["--replace"]);
    assert!(target.ended().success());
    leads_to(&next);
    file.flush().unwrap();

    file.write_at(b"three", 200).unwrap();
    let target = another(next, &image, &wire);
    is_told(&file);
    assert_has(&file, &[(0, b"one"), (100, b"two")]);
    assert!(target.stop().success());
}

/// I1, I8: two flushes that were asked for together are both told that writes may be lost: each may have been asked for by who made one of
/// them.
#[test]
fn all_flushes_under_way_tell_of_writes_that_may_be_lost() {
    let Some((image, target, wire, client)) = start() else {
        return;
    };
    let file = tools::client::aio::File::from(create(&client, "/file", 100_000));

    wait(file.write_at(b"one", 0)).unwrap();
    wait(file.write_at(b"two", 100)).unwrap();
    wire.deafen();
    let (one, between, two) = (file.flush(), file.write_at(b"three", 200), file.flush());
    let target = another(target, &image, &wire);
    for lost in [wait(one), wait(two)] {
        assert!(matches!(lost, Err(ClientError::WritesLost)), "{lost:?}");
    }
    wait(between).unwrap();
    wait(file.flush()).unwrap();
    assert!(target.stop().success());
}

/// I1, I8: a flush speaks for all writes of its client to the region, through whichever file that is open, or was; who has made those that
/// may be lost is told as well.
#[test]
fn a_flush_speaks_for_other_files_of_the_region() {
    let Some((image, target, wire, client)) = start() else {
        return;
    };
    create(&client, "/file", 100_000).flush().unwrap();
    let open = || client.options().write(true).open("/file").unwrap();
    let (one, two) = (open(), open());
    let may_be_lost = |file: &File| {
        is_told(file);
        file.flush().unwrap();
    };

    one.write_at(b"one", 0).unwrap();
    two.flush().unwrap();
    let target = another(target, &image, &wire);
    one.flush().unwrap();

    one.write_at(b"one", 0).unwrap();
    let target = another(target, &image, &wire);
    may_be_lost(&two);
    may_be_lost(&one);

    one.write_at(b"one", 0).unwrap();
    drop((one, two));
    let target = another(target, &image, &wire);
    may_be_lost(&open());
    open().flush().unwrap();
    assert!(target.stop().success());
}

/// I8, I18: a file has nothing to do with the one that was closed before it, whatever became of the writes to that.
#[test]
fn a_flush_says_nothing_of_a_file_that_was_closed() {
    let Some((image, target, wire, client)) = start() else {
        return;
    };
    let file = tools::client::aio::File::from(create(&client, "/one", 4096));
    wire.deafen();
    drop(file.write_at(b"forgotten", 0));
    drop(file);
    // Handed over behind the end of the file.
    let stat = thread::spawn({
        let client = client.clone();
        move || client.stat("/one")
    });
    thread::sleep(Duration::from_millis(50));
    wire.cut();
    stat.join().unwrap().unwrap();
    let other = create(&client, "/two", 4096);
    let target = another(target, &image, &wire);
    other.flush().unwrap();
    assert!(target.stop().success());
}

/// I1, I8: a flush does not speak for atomic operations of an earlier connection either, whose words a target that was killed may have
/// lost.
#[test]
fn a_flush_tells_of_words_that_may_be_lost() {
    let Some((image, target, wire, client)) = start() else {
        return;
    };
    let file = create(&client, "/word", 4096);
    assert_eq!(file.atomic(0, add(1)).unwrap(), 0);
    file.flush().unwrap();
    assert_eq!(file.atomic(0, add(1)).unwrap(), 1);
    let target = another(target, &image, &wire);
    is_told(&file);
    // It has been said. What is there now can be relied upon.
    let now = file.atomic(0, add(1)).unwrap();
    assert!(now == 1 || now == 2, "{now}");
    file.flush().unwrap();
    assert!(target.stop().success());
}
