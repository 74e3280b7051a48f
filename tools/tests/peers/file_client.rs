//! The file client against a target: what it promises, over connections that are lost at the worst moments.

use std::fs;
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::client::{Wire, add, create, wait};
use crate::common::{FLASHNET, Image, can_serve, pattern, skip};
use tools::client::{Channel, ChannelOptions, Client, ClientError, File, RemoteFile, WINDOW_MAX};
use tools::control::{FLAG_WRITE, Op, Request};

/// Bytes arrive where they belong, whatever the size; what cannot be done is said, and ends nothing.
#[test]
fn files_as_one_expects() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let client = Client::connect(target.address).unwrap();
    let file = create(&client, "/file", 5_000_003);
    let content = pattern(5_000_003, 1);
    file.write_at(&content, 0).unwrap();
    file.flush().unwrap();

    let reader = client.open("/file").unwrap();
    assert_eq!(reader.len(), 5_000_003);
    let mut found = vec![0; 6_000_000];
    assert_eq!(reader.read_at(&mut found, 0).unwrap(), 5_000_003);
    assert!(found[..5_000_003] == content);
    assert_eq!(reader.read_at(&mut found, 5_000_000).unwrap(), 3);
    assert_eq!(reader.read_at(&mut found, u64::MAX).unwrap(), 0);
    let mut parts = vec![vec![0; 1000]; 200];
    let places: Vec<u64> = (0..200).map(|n| n * 24_001 + 7).collect();
    let mut ranges: Vec<(u64, &mut [u8])> = places
        .iter()
        .copied()
        .zip(parts.iter_mut().map(Vec::as_mut_slice))
        .collect();
    reader.read_at_many(&mut ranges).unwrap();
    for (place, part) in places.iter().zip(&parts) {
        let place = *place as usize;
        assert!(part[..] == content[place..place + 1000]);
    }

    let refused = |error: ClientError| match error {
        ClientError::Refused { status, .. } => status,
        other => panic!("{other}"),
    };
    assert_eq!(refused(client.open("/nothing").unwrap_err()), libc::ENOENT);
    let exclusive = client.options().create_new(true).open("/file");
    assert_eq!(refused(exclusive.unwrap_err()), libc::EEXIST);
    let outside = file.write_at(&[0; 4], 5_000_000).unwrap_err();
    assert!(matches!(outside, ClientError::OutOfBounds { .. }));
    let outside = file.write_at(&[0; 4], u64::MAX - 1).unwrap_err();
    assert!(matches!(outside, ClientError::OutOfBounds { .. }));
    let read_only = reader.write_at(&[0], 0).unwrap_err();
    assert!(matches!(read_only, ClientError::ReadOnly));
    let read_only = reader.atomic(0, add(1)).unwrap_err();
    assert!(matches!(read_only, ClientError::ReadOnly));
    let misaligned = file.atomic(12, add(1)).unwrap_err();
    assert!(matches!(misaligned, ClientError::Misaligned(12)));
    reader.flush().unwrap();

    let counter = create(&client, "/counter", 8);
    for before in 0..10 {
        assert_eq!(counter.atomic(0, add(1)).unwrap(), before);
    }
    let part = client.options().range(4096, 8192).open("/file").unwrap();
    let mut found = [0; 8192];
    part.read_at(&mut found, 0).unwrap();
    assert!(found[..] == content[4096..4096 + 8192]);

    assert_eq!(client.stat("/file").unwrap().size, 5_000_003);
    let mut names: Vec<_> = client
        .list("/")
        .unwrap()
        .into_iter()
        .map(|e| e.name)
        .collect();
    names.sort();
    assert_eq!(names, [b"counter".to_vec(), b"file".to_vec()]);
    assert!(target.stop().success());
}

/// I8, I9: a region that the target has ended is an error for the operations of its file, under way and later. The client goes on with
/// its other files, in order, and with that file when it has opened it anew.
#[test]
fn a_region_that_ends_is_the_end_of_its_file_alone() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let client = Client::connect(target.address).unwrap();
    let (ending, other) = (
        create(&client, "/ending", 100_000),
        create(&client, "/other", 100_000),
    );
    ending.write_at(b"one", 0).unwrap();
    other.write_at(b"one", 0).unwrap();
    // Somebody else replaces it, and nobody tells.
    let somebody = Client::connect(target.address).unwrap();
    create(&somebody, "/ending", 50_000)
        .write_at(b"two", 0)
        .unwrap();

    let is_refused = |result: Result<(), ClientError>| match result {
        Err(ClientError::Refused { status, .. }) => assert_eq!(status, libc::ESTALE),
        other => panic!("not refused: {other:?}"),
    };
    thread::scope(|scope| {
        for n in 0..8 {
            let (ending, other) = (&ending, &other);
            scope.spawn(move || is_refused(ending.write_at(b"three", 1000 * n)));
            scope.spawn(move || other.write_at(b"three", 1000 * n).unwrap());
        }
    });
    is_refused(ending.flush());
    is_refused(ending.read_at(&mut [0; 3], 0).map(drop));
    is_refused(ending.atomic(0, add(1)).map(drop));
    other.flush().unwrap();
    let mut found = [0; 5];
    for n in 0..8 {
        other.read_at(&mut found, 1000 * n).unwrap();
        assert_eq!(&found, b"three");
    }
    drop(ending);
    let again = client.options().write(true).open("/ending").unwrap();
    let mut found = [0; 3];
    again.read_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"two");
    again.write_at(b"four", 0).unwrap();
    again.flush().unwrap();
    assert!(target.stop().success());
}

/// I7, I18: an operation that the target can not carry out fails, and those before and behind it, under way on the same connection, do not.
#[test]
fn an_operation_that_fails_fails_alone() {
    if !can_serve() {
        return;
    }
    const GRAIN: usize = 4096;
    let image = Image::new("128MiB");
    let content = pattern(16 * GRAIN, 7);
    let target = image.serve(&[]);
    let client = Client::connect(target.address).unwrap();
    let file = create(&client, "/file", content.len() as u64);
    file.write_at(&content, 0).unwrap();
    file.flush().unwrap();
    drop((file, client));
    assert!(target.stop().success());
    let damaged = &content[5 * GRAIN..6 * GRAIN];
    let mut media = fs::read(image.path()).unwrap();
    let mut places = 0;
    for grain in media.chunks_mut(GRAIN).filter(|grain| *grain == damaged) {
        grain[100] ^= 1;
        places += 1;
    }
    assert!(places > 0, "it is on the media");
    fs::write(image.path(), media).unwrap();

    let target = image.serve(&[]);
    let client = Client::connect(target.address).unwrap();
    let file = client.options().write(true).open("/file").unwrap();
    thread::scope(|scope| {
        for n in 0..16 {
            let (file, content) = (&file, &content);
            scope.spawn(move || {
                let mut found = vec![0; GRAIN];
                let read = file.read_at(&mut found, (n * GRAIN) as u64);
                match n {
                    5 => assert!(
                        matches!(read, Err(ClientError::Terminated { .. })),
                        "{read:?}"
                    ),
                    _ => assert!(
                        read.is_ok() && found == content[n * GRAIN..][..GRAIN],
                        "{read:?}"
                    ),
                }
            });
        }
    });
    // It can be written.
    file.write_at(damaged, 5 * GRAIN as u64).unwrap();
    file.flush().unwrap();
    let mut found = vec![0; content.len()];
    file.read_at(&mut found, 0).unwrap();
    assert!(found == content);
    assert!(target.stop().success());
}

/// A file whose opening nobody waits for any more is closed: it costs the target nothing, and its end is not the client's (I16).
#[test]
fn a_file_that_nobody_has_waited_for_is_closed() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let wire = Wire::to(target.address);
    let witness = Client::connect(target.address).unwrap();
    create(&witness, "/file", 100_000);
    let client = Client::connect(wire.address).unwrap();
    let tasks = tools::client::aio::Client::from(client.clone());
    wire.deafen();
    let mut opening = Box::pin(tasks.open("/file"));
    let waker = std::task::Waker::noop();
    let polled = opening
        .as_mut()
        .poll(&mut std::task::Context::from_waker(waker));
    assert!(polled.is_pending());
    drop(opening);
    wire.cut();
    // The second is asked for behind the end of the file.
    client.stat("/file").unwrap();
    client.stat("/file").unwrap();
    // Its region is not any more, and can not be attached to.
    create(&witness, "/file", 1000);
    wire.cut();
    client.stat("/file").unwrap();
    assert!(target.stop().success());
}

/// A task whose last trace is its waker ends where it is woken, on the thread that moves the bytes, and its file and client with it. Others
/// go on (I18).
#[test]
fn a_task_that_ends_when_it_is_woken() {
    struct Last {
        _kept: Mutex<(Client, tools::client::aio::File)>,
    }
    impl std::task::Wake for Last {
        fn wake(self: Arc<Self>) {}
    }
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let wire = Wire::to(target.address);
    let client = Client::connect(wire.address).unwrap();
    let kept = create(&client, "/kept", 4096);
    let file = tools::client::aio::File::from(create(&client, "/file", 4096));
    wire.deafen();
    let mut write = Box::pin(file.write_at(b"last", 0));
    let last = Last {
        _kept: Mutex::new((client.clone(), file)),
    };
    let waker = Arc::new(last).into();
    let polled = write
        .as_mut()
        .poll(&mut std::task::Context::from_waker(&waker));
    assert!(polled.is_pending());
    drop(waker);
    wire.cut();
    kept.write_at(b"behind it", 0).unwrap();
    wait(write).unwrap();
    assert!(client.stat("/file").is_ok());
    assert!(target.stop().success());
}

type Asked = Pin<Box<dyn Future<Output = Result<Vec<u8>, ClientError>> + Send>>;

/// Reads on the thread that moves the bytes, as a task does that goes on where it is woken.
struct Ask(tools::client::aio::File, Mutex<Sender<Asked>>);

impl Ask {
    /// A waker that reads this file, and what it has asked.
    fn reading(file: &File) -> (Waker, Receiver<Asked>) {
        let (asks, asked) = channel();
        let ask = Self(file.clone().into(), Mutex::new(asks));
        (Arc::new(ask).into(), asked)
    }
}

impl Wake for Ask {
    fn wake(self: Arc<Self>) {
        let asked = Box::pin(self.0.read_at(0, 4));
        self.1.lock().unwrap().send(asked).unwrap();
    }
}

/// What is asked for while a file waits to be closed behind a full window is done behind that, though nothing else happens any more
/// (I18).
#[test]
fn a_request_that_comes_before_a_close() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let wire = Wire::to(target.address);
    let client = Client::connect(wire.address).unwrap();
    let kept = create(&client, "/kept", 4096);
    let file = tools::client::aio::File::from(create(&client, "/file", 4096));
    // Nothing is acknowledged until all has been asked for: more than is under way at once, and the end of the file.
    wire.deafen();
    let mut writes: Vec<_> = (0..3 * WINDOW_MAX)
        .map(|n| Box::pin(file.write_at(&[n as u8; 8], 8 * n as u64)))
        .collect();
    drop(file);
    let (waker, asked) = Ask::reading(&kept);
    // The last is under way by then, or almost.
    let polled = writes[2 * WINDOW_MAX - 8]
        .as_mut()
        .poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    drop(waker);
    wire.cut();
    let asked = asked.recv().unwrap();
    let since = Instant::now();
    assert_eq!(wait(asked).unwrap(), [0; 4]);
    // Who waits for nothing looks again after half a minute.
    assert!(since.elapsed() < Duration::from_secs(20));
    assert!(target.stop().success());
}

/// A task that goes on where it is woken asks another client on the thread of the first one: neither ends of it (I18).
#[test]
fn a_task_that_asks_another_client() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let wire = Wire::to(target.address);
    let (one, other) = (
        Client::connect(wire.address).unwrap(),
        Client::connect(target.address).unwrap(),
    );
    let file = create(&one, "/file", 4096);
    let task = tools::client::aio::File::from(file.clone());
    let (waker, asked) = Ask::reading(&create(&other, "/other", 4096));
    wire.deafen();
    let mut write = Box::pin(task.write_at(b"one", 0));
    let polled = write.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    drop(waker);
    wire.cut();
    assert_eq!(wait(asked.recv().unwrap()).unwrap(), [0; 4]);
    wait(write).unwrap();
    file.write_at(b"two", 0).unwrap();
    assert!(target.stop().success());
}

/// How long a target may be away does not depend on when it was away before.
#[test]
fn patience_begins_anew_when_the_target_has_answered() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let wire = Wire::to(target.address);
    let patience = Duration::from_secs(2);
    let client = Client::builder()
        .patience(patience)
        .connect(wire.address)
        .unwrap();
    client.list("/").unwrap();
    // What is lost while it is asked for something is lost to somebody.
    let lose = |refused: usize| {
        wire.deafen();
        let asked = thread::spawn({
            let client = client.clone();
            move || client.list("/")
        });
        thread::sleep(Duration::from_millis(50));
        wire.refuse(refused);
        wire.cut();
        asked.join().unwrap().unwrap();
    };
    lose(0);
    thread::sleep(patience + patience / 10);
    lose(3);
    assert!(target.stop().success());
}

/// I1, I8: of a lost connection the target tells on the next what became of things; they are acknowledged as of that one, also
/// when it is lost too, with the target, before anybody takes note.
#[test]
fn what_a_target_has_told_of_is_not_vouched_for_by_the_next() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let wire = Wire::to(target.address);
    let witness = Client::connect(target.address).unwrap();
    let seen = create(&witness, "/word", 4096);
    let mut channel = Channel::connect(&[wire.address], ChannelOptions::default()).unwrap();
    let open = Request {
        flags: FLAG_WRITE,
        ..Request::new(Op::Open, "/word")
    };
    let file = channel.open(open).unwrap();
    let stat = Request::new(Op::Stat, "/word");
    wire.deafen();
    channel.write(file, 64, b"plain", false).unwrap();
    channel.atomic(file, 0, add(1)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut word = [0; 8];
            while word != 1_u64.to_le_bytes() {
                thread::yield_now();
                seen.read_at(&mut word, 0).unwrap();
            }
            wire.cut();
        });
        // Answered on the second connection, on which the target has been asked about the first.
        channel.call(&stat).unwrap();
    });
    assert_eq!(channel.connections(), 2);
    drop(witness);
    target.kill();
    let target = image.serve(&[]);
    wire.lead_to(target.address);
    channel.call(&stat).unwrap();
    channel.flush(file).unwrap();
    let mut next = || channel.acknowledged().unwrap().unwrap();
    let (written, counted, flushed) = (next(), next(), next());
    assert_eq!(counted.original, Some(0), "the first target has told");
    assert!(written.life < flushed.life);
    assert!(counted.life < flushed.life);
    assert!(target.stop().success());
}

/// A read sees what was there when it was asked for, and nothing that its client writes after it, also when it has to be repeated.
#[test]
fn a_read_that_is_repeated_does_not_see_later_writes() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let wire = Wire::to(target.address);
    let client = Client::connect(wire.address).unwrap();
    let file = create(&client, "/file", 8192);
    file.write_at(b"before", 4000).unwrap();
    let other = client.options().write(true).open("/file").unwrap();
    let whole = tools::client::aio::File::from(file);
    let part = tools::client::aio::File::from(other);
    let witness = Client::connect(target.address).unwrap();
    let seen = witness.open("/file").unwrap();

    wire.deafen();
    let read = whole.read_at(0, 8192);
    let written = part.write_at(b"behind", 4000);
    // Where it is carried out, that takes no longer.
    for _ in 0..50 {
        let mut found = [0; 6];
        seen.read_at(&mut found, 4000).unwrap();
        if &found == b"behind" {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    wire.cut();
    assert_eq!(&wait(read).unwrap()[4000..4006], b"before");
    wait(written).unwrap();
    let mut found = [0; 6];
    seen.read_at(&mut found, 4000).unwrap();
    assert_eq!(&found, b"behind");
    assert!(target.stop().success());
}

/// A request comes behind what was asked for before it, also where that waits for something.
#[test]
fn a_request_comes_behind_earlier_operations() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let client = Client::connect(target.address).unwrap();
    let length = 32 << 20;
    let file = tools::client::aio::File::from(create(&client, "/file", length));
    for _ in 0..5 {
        // The write waits for the reads.
        let read = file.read_at(0, length as usize);
        let written = file.write_at(b"behind", length - 6);
        let asked = client.stat("/file").unwrap();
        assert_eq!(asked.size, length);
        let mut found = [0; 6];
        let witness = Client::connect(target.address).unwrap();
        let seen = witness.open("/file").unwrap();
        seen.read_at(&mut found, length - 6).unwrap();
        assert_eq!(&found, b"behind");
        wait(read).unwrap();
        wait(written).unwrap();
        file.blocking().write_at(b"before", length - 6).unwrap();
    }
    assert!(target.stop().success());
}

/// I13: an atomic operation whose answer is lost has taken effect once, is not repeated, and its answer is told on the next
/// connection; what was asked for before and after it is carried out as if nothing had happened.
#[test]
fn an_atomic_operation_is_not_repeated() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let wire = Wire::to(target.address);
    let client = Client::connect(wire.address).unwrap();
    let file = create(&client, "/word", 4096);
    assert_eq!(file.atomic(0, add(1)).unwrap(), 0);
    let witness = Client::connect(target.address).unwrap();
    let seen = witness.open("/word").unwrap();
    let word = |at: u64| {
        let mut bytes = [0; 8];
        seen.read_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    };

    wire.deafen();
    let working = file.clone();
    let worker = thread::spawn(move || {
        let written = working.write_at(&7_u64.to_le_bytes(), 64);
        (written, working.atomic(0, add(1)))
    });
    // The answer to the write is lost too: only then can the atomic operation be under way.
    while word(64) != 7 {
        thread::yield_now();
    }
    wire.cut();
    let (written, counted) = worker.join().unwrap();
    written.unwrap();
    assert_eq!(
        counted.unwrap(),
        1,
        "it was asked for on the next connection"
    );

    let tasks = tools::client::aio::File::from(file.clone());
    wire.deafen();
    let (before, atomic) = (tasks.write_at(b"before", 128), tasks.atomic(0, add(1)));
    let after = tasks.write_at(b"after", 256);
    while word(0) != 3 {
        thread::yield_now();
    }
    wire.cut();
    wait(before).unwrap();
    assert_eq!(wait(atomic).unwrap(), 2);
    wait(after).unwrap();
    assert_eq!(word(0), 3);

    // A write before one that was executed is not repeated: it would undo it.
    wire.deafen();
    let (set, atomic) = (tasks.write_at(&[9; 8], 512), tasks.atomic(512, add(1)));
    let nine = u64::from_le_bytes([9; 8]);
    while word(512) != nine + 1 {
        thread::yield_now();
    }
    wire.cut();
    wait(set).unwrap();
    assert_eq!(wait(atomic).unwrap(), nine);
    assert_eq!(word(512), nine + 1);

    assert_eq!(file.atomic(0, add(1)).unwrap(), 3);
    let mut found = [0; 6];
    file.read_at(&mut found, 128).unwrap();
    assert_eq!(&found, b"before");
    assert!(target.stop().success());
}

/// I13: counters of several clients that lose their connections again and again, some of them with answers, and once the target.
/// While the target lives each addition takes effect once, and its answer is right, whatever was lost: the answers are all
/// numbers, each once. Over a kill nothing is added twice; what may not have been added is said to be unknown.
#[test]
fn atomic_operations_take_effect_once() {
    const CLIENTS: usize = 3;
    const ADDED: u64 = 120;
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&["--reactors", "2"]);
    let witness = Client::connect(target.address).unwrap();
    create(&witness, "/word", 4096);
    let word = |client: &Client| {
        let mut bytes = [0; 8];
        client
            .open("/word")
            .unwrap()
            .read_at(&mut bytes, 0)
            .unwrap();
        u64::from_le_bytes(bytes)
    };
    let mut answers: Vec<u64> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| {
                let address = target.address;
                scope.spawn(move || {
                    let wire = Wire::to(address);
                    let client = Client::connect(wire.address).unwrap();
                    let file = client.options().write(true).open("/word").unwrap();
                    let tasks = tools::client::aio::File::from(file);
                    let mut answers = Vec::new();
                    for round in 0..ADDED / 6 {
                        let some: Vec<_> = (0..6).map(|_| tasks.atomic(0, add(1))).collect();
                        match (round + n as u64) % 3 {
                            0 => wire.cut(),
                            1 => {
                                wire.deafen();
                                thread::yield_now();
                                wire.cut();
                            }
                            _ => {}
                        }
                        answers.extend(some.into_iter().map(|one| wait(one).unwrap()));
                    }
                    answers
                })
            })
            .collect();
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    });
    answers.sort_unstable();
    let all = CLIENTS as u64 * ADDED;
    assert_eq!(answers, (0..all).collect::<Vec<_>>());
    assert_eq!(word(&witness), all);

    let wire = Wire::to(target.address);
    let client = Client::connect(wire.address).unwrap();
    let file = client.options().write(true).open("/word").unwrap();
    file.flush().unwrap();
    let tasks = tools::client::aio::File::from(file.clone());
    wire.deafen();
    let lost = tasks.atomic(0, add(1));
    while word(&witness) != all + 1 {
        thread::yield_now();
    }
    drop(witness);
    target.kill();
    let target = image.serve(&[]);
    wire.lead_to(target.address);
    let unknown = wait(lost);
    assert!(matches!(unknown, Err(ClientError::Unknown)), "{unknown:?}");
    let now = file.atomic(0, add(1)).unwrap();
    assert!(now == all || now == all + 1, "{now}");
    assert!(target.stop().success());
}

/// A client of a target that has ended for good says so, to everybody who waits and to who comes later (I18).
#[test]
fn a_target_that_does_not_come_back() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let patience = Duration::from_millis(10);
    let client = Client::builder()
        .patience(patience)
        .connect(target.address)
        .unwrap();
    let file = create(&client, "/file", 4096);
    target.kill();
    // Who comes later hears no less than who was there.
    for _ in 0..3 {
        let error = file.write_at(b"x", 0).unwrap_err().to_string();
        assert!(error.contains("flashnet serve"), "{error}");
    }
    let error = client.stat("/file").unwrap_err().to_string();
    assert!(error.contains("flashnet serve"), "{error}");
    assert!(Client::connect("localhost:x").is_err());
}

/// A target that lets its client in again and again, and ends each connection before it has answered, is away (I18).
#[test]
fn a_target_that_never_answers_is_away() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let wire = Wire::to(target.address);
    let client = Client::builder()
        .patience(Duration::from_millis(300))
        .connect(wire.address)
        .unwrap();
    let file = create(&client, "/file", 1 << 20);
    // Enough for the answers that make a connection, and not for the bytes.
    wire.choke(100_000);
    wire.cut();
    let lost = file.read_at(&mut vec![0; 1 << 20], 0).unwrap_err();
    assert!(lost.to_string().contains("cannot be made again"), "{lost}");
    assert!(target.stop().success());
}

/// A task that panics when it is woken takes the thread that moves the bytes along. Nobody waits for that thread then (I18).
#[test]
fn a_task_that_panics_when_it_is_woken() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a task of the test");
        }
    }
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let client = Client::connect(target.address).unwrap();
    let file = create(&client, "/file", 4096);
    let task = tools::client::aio::File::from(file.clone());
    let mut write = Box::pin(task.write_at(b"last", 0));
    let waker = Arc::new(Panics).into();
    let mut context = std::task::Context::from_waker(&waker);
    // It may have been written before anybody asks.
    while write.as_mut().poll(&mut context).is_ready() {
        write = Box::pin(task.write_at(b"last", 0));
    }
    while file.write_at(b"behind it", 0).is_ok() {}
    assert!(client.stat("/file").is_err());
    assert!(target.stop().success());
}

/// What a task asks for begins when it is asked for, and not when somebody waits for it.
#[test]
fn what_is_asked_for_begins_at_once() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let client = Client::connect(target.address).unwrap();
    let tasks = tools::client::aio::Client::from(client.clone());
    let before = (tasks.stat("/made"), tasks.open("/made"), tasks.list("/"));
    let options = client.options().create_new(true);
    let made = tasks.open_with(&options, "/made");
    assert!(client.stat("/made").is_ok());
    assert!(wait(before.0).is_err());
    assert!(wait(before.1).is_err());
    assert!(wait(before.2).unwrap().is_empty());
    wait(made).unwrap();
    assert!(target.stop().success());
}

/// A file that a channel has attached to is closed under the name that it has there: the target lets go of it, and of no other.
#[test]
fn an_attached_file_is_closed() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let client = Client::connect(target.address).unwrap();
    let file = create(&client, "/file", 4096);
    let mut channel = Channel::connect(&[target.address], ChannelOptions::default()).unwrap();
    let attached = channel.attach(file.credentials()).unwrap();
    channel.close_file(attached).unwrap();
    assert!(target.stop().success());
}

/// I10: what begins or ends behind the last address is an error of the operation.
#[test]
fn beyond_the_last_address() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let client = Client::connect(target.address).unwrap();
    let file = create(&client, "/file", 4096).credentials();
    let mut channel = Channel::connect(&[target.address], ChannelOptions::default()).unwrap();
    // Where it begins is what somebody else has said of it.
    let attached = channel.attach(RemoteFile { to: 8, ..file }).unwrap();
    channel.read(attached, u64::MAX, 8).unwrap();
    let refused = channel.acknowledged();
    assert!(
        matches!(refused, Err(ClientError::Terminated { .. })),
        "{refused:?}"
    );
    let attached = channel.attach(file).unwrap();
    channel.read(attached, 0, 8).unwrap();
    channel.acknowledged().unwrap();
    assert!(target.stop().success());
}

/// The examples do what they say.
#[test]
fn the_examples_run() {
    if !can_serve() {
        return;
    }
    let examples = Path::new(FLASHNET).with_file_name("examples");
    if !examples.join("remote_tasks").is_file() {
        skip("the examples are not built: cargo build -p tools --examples");
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let run = |name: &str| {
        let output = Command::new(examples.join(name))
            .arg(target.address.to_string())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run("remote_file"), "example 1048576\n");
    assert_eq!(run("remote_tasks"), "100 tasks, 100000 bytes\n");
    assert!(target.stop().success());
}
