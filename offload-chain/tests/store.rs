//! One suite for all stores (S1 to S3), and what is special of each. The one over etcd starts its own, on loopback.

use std::collections::VecDeque;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use offload_chain::config::{
    Event, Expect, FileStore, FileStoreError, Item, LeaseId, Ledger, Reply, Request, Revision,
    Store, StoreError, Ticket,
};

#[path = "store/etcd.rs"]
mod etcd;
#[path = "support/etcd.rs"]
mod etcd_process;
#[path = "store/gateway.rs"]
mod gateway;

const PATIENCE: Duration = Duration::from_secs(60);

/// Two users of one store, and time.
struct Bench {
    stores: [Box<dyn Store>; 2],
    pass: Box<dyn Fn(Duration)>,
    /// A lease that this store keeps exactly.
    ttl: Duration,
    events: [VecDeque<Event>; 2],
}

impl Bench {
    fn ask(&mut self, user: usize, request: Request) -> Result<Reply, StoreError> {
        let ticket = self.stores[user].submit(request);
        self.wait(user, |event| match event {
            Event::Answer(of, answer) if *of == ticket => Some(answer.clone()),
            _ => None,
        })
    }

    fn wait<T>(&mut self, user: usize, is: impl Fn(&Event) -> Option<T>) -> T {
        let patience = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.events[user]
                .iter()
                .position(|event| is(event).is_some())
            {
                return self.events[user]
                    .remove(at)
                    .and_then(|event| is(&event))
                    .unwrap();
            }
            match self.stores[user].poll() {
                Some(event) => self.events[user].push_back(event),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(Instant::now() < patience, "the store does not answer");
        }
    }

    fn put(&mut self, key: &str, value: &str, expect: Expect, lease: Option<LeaseId>) -> Reply {
        let (key, value) = (key.to_owned(), value.as_bytes().to_vec());
        let put = Request::Put {
            key,
            value,
            expect,
            lease,
        };
        self.ask(0, put).unwrap()
    }

    fn list(&mut self, prefix: &str) -> Vec<Item> {
        let prefix = prefix.to_owned();
        match self.ask(1, Request::List { prefix }).unwrap() {
            Reply::Items(items, _) => items,
            other => panic!("{other:?}"),
        }
    }

    fn keys(&mut self, prefix: &str) -> Vec<String> {
        self.list(prefix).into_iter().map(|item| item.key).collect()
    }

    fn grant(&mut self) -> LeaseId {
        match self.ask(0, Request::Grant { ttl: self.ttl }).unwrap() {
            Reply::Granted(lease) => lease,
            other => panic!("{other:?}"),
        }
    }
}

/// Asks, and waits for that answer; drops what else is said.
fn answer(store: &mut impl Store, request: Request) -> Result<Reply, StoreError> {
    let asked = store.submit(request);
    wait(store, |event| match event {
        Event::Answer(ticket, answer) if ticket == asked => Some(answer),
        _ => None,
    })
}

fn wait<T>(store: &mut impl Store, is: impl Fn(Event) -> Option<T>) -> T {
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        match store.poll() {
            Some(event) => {
                if let Some(found) = is(event) {
                    return found;
                }
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(Instant::now() < patience, "the store does not answer");
    }
}

fn list(prefix: &str) -> Request {
    let prefix = prefix.to_owned();
    Request::List { prefix }
}

fn put(key: &str, value: &[u8], expect: Expect) -> Request {
    Request::Put {
        key: key.to_owned(),
        value: value.to_vec(),
        expect,
        lease: None,
    }
}

fn suite(bench: &mut Bench) {
    puts_compare(bench);
    keys_are_listed_by_prefix(bench);
    nonsense_is_refused(bench);
    watches_tell(bench);
    leases_end(bench);
}

/// S1, S2.
fn puts_compare(bench: &mut Bench) {
    let absent = Expect::Revision(Revision::ABSENT);
    let Reply::Done(first) = bench.put("a", "1", absent, None) else {
        panic!("a new key")
    };
    assert!(matches!(
        bench.put("a", "2", absent, None),
        Reply::Conflict(Some(_))
    ));
    let item = Item {
        key: "a".into(),
        value: b"1".to_vec(),
        revision: first,
    };
    assert_eq!(bench.list("a"), [item]);
    let Reply::Done(second) = bench.put("a", "2", Expect::Revision(first), None) else {
        panic!("as expected")
    };
    assert!(second > first);
    let stale = Request::Delete {
        key: "a".into(),
        expect: Expect::Revision(first),
    };
    assert!(matches!(bench.ask(1, stale), Ok(Reply::Conflict(Some(item))) if item.value == b"2"));
    let delete = |expect| Request::Delete {
        key: "a".into(),
        expect,
    };
    assert!(matches!(
        bench.ask(1, delete(Expect::Revision(second))),
        Ok(Reply::Done(_))
    ));
    let gone = bench.put("a", "3", Expect::Revision(second), None);
    assert_eq!(gone, Reply::Conflict(None));
    assert!(matches!(
        bench.ask(1, delete(Expect::Anything)),
        Ok(Reply::Done(_))
    ));
    assert!(matches!(
        bench.put("a", "4", Expect::Anything, None),
        Reply::Done(_)
    ));
    assert!(
        bench.list("a")[0].revision > second,
        "revisions do not come back"
    );
}

fn keys_are_listed_by_prefix(bench: &mut Bench) {
    for key in ["member/2", "member/1", "members", "lember", "nember"] {
        bench.put(key, "", Expect::Anything, None);
    }
    assert_eq!(bench.keys("member/"), ["member/1", "member/2"]);
    assert_eq!(bench.keys("member"), ["member/1", "member/2", "members"]);
    assert_eq!(bench.keys("x"), [""; 0]);
}

fn nonsense_is_refused(bench: &mut Bench) {
    let invalid = |answer| matches!(answer, Err(StoreError::Invalid(_)));
    let long = "k".repeat(257);
    for key in [String::new(), long] {
        let expect = Expect::Anything;
        assert!(invalid(bench.ask(0, Request::Delete { key, expect })));
    }
    let put = Request::Put {
        key: "big".into(),
        value: vec![0; (64 << 10) + 1],
        expect: Expect::Anything,
        lease: None,
    };
    assert!(invalid(bench.ask(0, put)));
    for ttl in [Duration::ZERO, Duration::from_secs(100_000)] {
        assert!(invalid(bench.ask(0, Request::Grant { ttl })));
    }
}

fn watches_tell(bench: &mut Bench) {
    let prefix = "w/".to_owned();
    let watch = Request::Watch { prefix };
    // Whoever has the store now may not know what was asked before; it is told once.
    for _ in 0..100 {
        assert_eq!(bench.ask(1, watch.clone()), Ok(Reply::Watching));
    }
    bench.put("w/1", "", Expect::Anything, None);
    let changed = |event: &Event| match event {
        Event::Changed { prefix } if prefix == "w/" => Some(()),
        _ => None,
    };
    bench.wait(1, changed);
    let (key, expect) = ("w/1".to_owned(), Expect::Anything);
    bench.ask(0, Request::Delete { key, expect }).unwrap();
    bench.wait(1, changed);
}

/// S3.
/// Who waits is woken, without having looked: by what others change, and by answers.
fn wakes(bench: &mut Bench) {
    let prefix = "w/".to_owned();
    bench.ask(1, Request::Watch { prefix }).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    assert!(bench.stores[1].wake_by(Arc::new(move || {
        // It fails when the test is over.
        let _ = tell.send(());
    })));
    let woken = |what| told.recv_timeout(PATIENCE).expect(what);
    let quiet = Duration::from_millis(100);
    while bench.stores[1].poll().is_some() || told.recv_timeout(quiet).is_ok() {}
    bench.put("w/1", "1", Expect::Anything, None);
    woken("woken by a change");
    bench.wait(1, |event| match event {
        Event::Changed { prefix } if prefix == "w/" => Some(()),
        _ => None,
    });
    while told.recv_timeout(quiet).is_ok() {}
    let ticket = bench.stores[1].submit(list("w/"));
    woken("woken by an answer");
    bench.wait(1, |event| {
        matches!(event, Event::Answer(of, _) if *of == ticket).then_some(())
    });
}

fn leases_end(bench: &mut Bench) {
    let (kept, left, ended) = (bench.grant(), bench.grant(), bench.grant());
    for (key, lease) in [("l/kept", kept), ("l/left", left), ("l/ended", ended)] {
        assert!(matches!(
            bench.put(key, "", Expect::Anything, Some(lease)),
            Reply::Done(_)
        ));
    }
    assert_eq!(
        bench.ask(1, Request::Revoke { lease: ended }),
        Ok(Reply::Alive)
    );
    assert_eq!(
        bench.ask(1, Request::Revoke { lease: ended }),
        Ok(Reply::NoLease)
    );
    assert_eq!(
        bench.put("l/ended", "", Expect::Anything, Some(ended)),
        Reply::NoLease
    );
    assert_eq!(bench.keys("l/"), ["l/kept", "l/left"]);
    // Put again without the lease, a key does not end with it.
    bench.put("l/freed", "", Expect::Anything, Some(left));
    bench.put("l/freed", "", Expect::Anything, None);
    for _ in 0..8 {
        (bench.pass)(bench.ttl / 4);
        assert_eq!(
            bench.ask(0, Request::KeepAlive { lease: kept }),
            Ok(Reply::Alive)
        );
    }
    while bench.keys("l/left") == ["l/left"] {
        (bench.pass)(bench.ttl / 8);
        assert_eq!(
            bench.ask(0, Request::KeepAlive { lease: kept }),
            Ok(Reply::Alive)
        );
    }
    assert_eq!(bench.keys("l/"), ["l/freed", "l/kept"]);
    assert_eq!(
        bench.ask(0, Request::KeepAlive { lease: left }),
        Ok(Reply::NoLease)
    );
}

/// Time that passes when it is told to.
fn clock() -> (Arc<AtomicU64>, Box<dyn Fn(Duration)>) {
    let now = Arc::new(AtomicU64::new(0));
    let clock = now.clone();
    let pass = move |time: Duration| {
        clock.fetch_add(time.as_micros() as u64, Ordering::SeqCst);
    };
    (now, Box::new(pass))
}

fn read(now: &Arc<AtomicU64>) -> Duration {
    Duration::from_micros(now.load(Ordering::SeqCst))
}

/// The ledger behind the interface of a store.
struct InMemory {
    ledger: Arc<std::sync::Mutex<Ledger>>,
    now: Arc<AtomicU64>,
    tickets: u64,
    events: VecDeque<Event>,
    watches: Vec<(String, (Revision, usize))>,
}

impl Store for InMemory {
    fn submit(&mut self, request: Request) -> Ticket {
        self.tickets += 1;
        let mut ledger = self.ledger.lock().unwrap();
        let answer = ledger.apply(read(&self.now), &request);
        if let Request::Watch { prefix } = request {
            let digest = ledger.digest(&prefix);
            self.watches.push((prefix, digest));
        }
        self.events
            .push_back(Event::Answer(Ticket(self.tickets), answer));
        Ticket(self.tickets)
    }

    fn poll(&mut self) -> Option<Event> {
        let ledger = self.ledger.lock().unwrap();
        for (prefix, seen) in &mut self.watches {
            let digest = ledger.digest(prefix);
            if std::mem::replace(seen, digest) != digest {
                let prefix = prefix.clone();
                self.events.push_back(Event::Changed { prefix });
            }
        }
        self.events.pop_front()
    }
}

#[test]
fn the_ledger() {
    let (now, pass) = clock();
    let ledger = Arc::default();
    let stores = [0, 1].map(|_| {
        Box::new(InMemory {
            ledger: Arc::clone(&ledger),
            now: now.clone(),
            tickets: 0,
            events: VecDeque::new(),
            watches: Vec::new(),
        }) as Box<dyn Store>
    });
    suite(&mut Bench {
        stores,
        pass,
        ttl: Duration::from_millis(300),
        events: Default::default(),
    });
}

fn open(path: &Path, boot: &str, now: &Arc<AtomicU64>) -> Result<FileStore, FileStoreError> {
    let now = now.clone();
    FileStore::open_with(path, boot, Box::new(move || read(&now)))
}

/// What is no regular file is not read, which may take for ever, and gets no files beside it.
#[test]
fn no_regular_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    let opened = open(&path, "boot", &clock().0);
    assert!(matches!(opened, Err(FileStoreError::Io { .. })));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let (now, pass) = clock();
    let stores = [0, 1].map(|_| Box::new(open(&path, "boot", &now).unwrap()) as Box<dyn Store>);
    let mut bench = Bench {
        stores,
        pass,
        ttl: Duration::from_millis(300),
        events: Default::default(),
    };
    suite(&mut bench);
    wakes(&mut bench);
    // The system's clock and boot.
    let mut store = FileStore::open(&path).unwrap();
    store.submit(Request::List {
        prefix: "l/".into(),
    });
    let Some(Event::Answer(_, Ok(Reply::Items(items, _)))) = store.poll() else {
        panic!("it answers at once")
    };
    let keys: Vec<&str> = items.iter().map(|item| item.key.as_str()).collect();
    assert_eq!(
        keys,
        ["l/freed"],
        "leases of another boot are over, what has none stays"
    );
}

/// I16: while somebody's change is made durable, others wait with their heartbeats, and lose nothing by it.
#[test]
fn leases_outlast_slow_media() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let (now, pass) = clock();
    let mut own = open(&path, "boot", &now).unwrap();
    let ttl = Duration::from_millis(300);
    let Ok(Reply::Granted(lease)) = answer(&mut own, Request::Grant { ttl }) else {
        panic!("no lease")
    };
    // Of one change, the clock is looked at: when it begins, for leases that are over, and before and after it is durable.
    let looks = AtomicU64::new(0);
    let slow = {
        let (now, pass) = (now.clone(), Duration::from_millis(350));
        move || {
            if looks.fetch_add(1, Ordering::SeqCst) == 4 {
                now.fetch_add(pass.as_micros() as u64, Ordering::SeqCst);
            }
            read(&now)
        }
    };
    let mut other = FileStore::open_with(&path, "boot", Box::new(slow)).unwrap();
    answer(&mut other, put("config", b"x", Expect::Anything)).unwrap();
    assert_eq!(read(&now), Duration::from_millis(350), "it was slow");
    let keep = Request::KeepAlive { lease };
    assert_eq!(answer(&mut own, keep.clone()), Ok(Reply::Alive));
    pass(ttl);
    assert_eq!(answer(&mut own, keep), Ok(Reply::NoLease), "no longer");
}

/// E1: a store is one, whether its users name the file or a link to it: of two that expect the same, one wins.
#[test]
fn a_link_leads_to_the_same_store() {
    let directories = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let [path, link] = [0, 1].map(|at| directories[at].path().join("store"));
    let now = Arc::default();
    let mut store = open(&path, "boot", &now).unwrap();
    answer(&mut store, put("config", b"x", Expect::Anything)).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let mut linked = open(&link, "boot", &now).unwrap();
    let expect = Expect::Revision(Revision(1));
    let first = answer(&mut linked, put("config", b"y", expect));
    assert!(matches!(first, Ok(Reply::Done(_))), "{first:?}");
    let second = answer(&mut store, put("config", b"z", expect));
    assert!(matches!(second, Ok(Reply::Conflict(_))), "{second:?}");
    assert!(link.is_symlink());
}

/// The token of a group is in its store: it is its owner's only, and stays whosever an operator makes it.
#[test]
fn nobody_else_reads_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let now = Arc::default();
    let mut store = open(&path, "boot", &now).unwrap();
    let ttl = Duration::from_secs(1);
    let beside = |end: &str| directory.path().join(format!("store.{end}"));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for wanted in [0o600, 0o640] {
        if path.exists() {
            std::fs::set_permissions(&path, Permissions::from_mode(wanted)).unwrap();
        }
        answer(&mut store, put("config", b"x", Expect::Anything)).unwrap();
        answer(&mut store, Request::Grant { ttl }).unwrap();
        assert_eq!((mode(&path), mode(&beside("leases"))), (wanted, wanted));
    }
    assert_eq!(mode(&beside("lock")), 0o600);
}

/// I14: what is not a store is refused by name, and left as it was.
#[test]
fn bad_files_are_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let (now, _) = clock();
    let mut store = open(&path, "boot", &now).unwrap();
    store.submit(Request::Put {
        key: "config".into(),
        value: vec![1],
        expect: Expect::Anything,
        lease: None,
    });
    assert!(matches!(
        store.poll(),
        Some(Event::Answer(_, Ok(Reply::Done(_))))
    ));
    let good = std::fs::read(&path).unwrap();
    let mut cases = vec![
        b"no store".to_vec(),
        vec![0xff; 100],
        good[..good.len() - 1].to_vec(),
    ];
    for at in (0..good.len()).step_by(7) {
        let mut flipped = good.clone();
        flipped[at] ^= 4;
        cases.push(flipped);
    }
    cases.push([&good[..], b" "].concat());
    for case in cases {
        std::fs::write(&path, &case).unwrap();
        let refused = open(&path, "boot", &now).unwrap_err();
        assert!(
            matches!(refused, FileStoreError::Damaged { .. }),
            "{refused}"
        );
        let said = refused.to_string();
        assert!(
            said.contains("store") && said.contains("move it away"),
            "{said}"
        );
        store.submit(Request::List { prefix: "c".into() });
        let answer = store.poll();
        assert!(matches!(
            answer,
            Some(Event::Answer(_, Err(StoreError::Unavailable(_))))
        ));
        assert_eq!(std::fs::read(&path).unwrap(), case);
    }
    std::fs::write(&path, &good).unwrap();
    open(&path, "boot", &now).unwrap();
    let nowhere = directory.path().join("nowhere/store");
    let refused = open(&nowhere, "boot", &now).unwrap_err();
    assert!(refused.to_string().contains("nowhere/store"), "{refused}");
}

/// I14: leases are not on media; what is left of them after a crash of the machine, even damaged, is over. What has no lease stays.
#[test]
fn damaged_leases_are_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let leases = directory.path().join("store.leases");
    let (now, pass) = clock();
    let mut store = open(&path, "boot", &now).unwrap();
    let mut ask = |request| {
        store.submit(request);
        match store.poll() {
            Some(Event::Answer(_, Ok(reply))) => reply,
            other => panic!("{other:?}"),
        }
    };
    let put = |key: &str, lease| Request::Put {
        key: key.into(),
        value: vec![1],
        expect: Expect::Anything,
        lease,
    };
    let ttl = Duration::from_secs(10);
    let Reply::Granted(lease) = ask(Request::Grant { ttl }) else {
        panic!("it grants")
    };
    ask(put("free", None));
    ask(put("leased", Some(lease)));
    // From one file to the other, and back.
    ask(put("to-leased", None));
    ask(put("to-leased", Some(lease)));
    ask(put("to-free", Some(lease)));
    ask(put("to-free", None));
    let kept = std::fs::read(&path).unwrap();
    ask(Request::KeepAlive { lease });
    assert_eq!(
        std::fs::read(&path).unwrap(),
        kept,
        "heartbeats wait for media"
    );
    let all = Request::List {
        prefix: String::new(),
    };
    let mut keys = || match ask(all.clone()) {
        Reply::Items(items, _) => items.into_iter().map(|item| item.key).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(keys(), ["free", "leased", "to-free", "to-leased"]);
    let mut bytes = std::fs::read(&leases).unwrap();
    bytes[20] ^= 4;
    std::fs::write(&leases, bytes).unwrap();
    assert_eq!(keys(), ["free", "to-free"]);
    std::fs::remove_file(&leases).unwrap();
    assert_eq!(keys(), ["free", "to-free"]);
    // S3: nor does a lease come back as another's, whose holder goes on.
    pass(Duration::from_millis(1));
    assert!(matches!(ask(Request::Grant { ttl }), Reply::Granted(_)));
    assert_eq!(ask(Request::KeepAlive { lease }), Reply::NoLease);
}

/// I14: a machine that has booted anew counts its time from the beginning, so leases of before would last for as long as it had run.
#[test]
fn leases_of_another_boot_are_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let (now, pass) = clock();
    pass(Duration::from_secs(3600));
    let mut before = open(&path, "boot", &now).unwrap();
    let ttl = Duration::from_millis(300);
    let Ok(Reply::Granted(lease)) = answer(&mut before, Request::Grant { ttl }) else {
        panic!("no lease")
    };
    let leased = Request::Put {
        key: "leased".into(),
        value: vec![1],
        expect: Expect::Anything,
        lease: Some(lease),
    };
    answer(&mut before, leased).unwrap();
    let (now, _) = clock();
    let mut after = open(&path, "another boot", &now).unwrap();
    let Ok(Reply::Items(items, _)) = answer(&mut after, list("leased")) else {
        panic!("no list")
    };
    assert!(items.is_empty(), "{items:?}");
    let keep = Request::KeepAlive { lease };
    assert_eq!(answer(&mut after, keep), Ok(Reply::NoLease));
}

/// S1: of two processes' worth of users on one file, one wins each revision.
#[test]
fn users_of_one_file_take_turns() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let (now, _) = clock();
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let mut store = open(&path, "boot", &now).unwrap();
            std::thread::spawn(move || {
                let mut wins = 0u64;
                while wins < 20 {
                    store.submit(Request::List { prefix: "n".into() });
                    let Some(Event::Answer(_, Ok(Reply::Items(items, _)))) = store.poll() else {
                        panic!("it answers")
                    };
                    let (value, revision) = match items.first() {
                        Some(item) => (item.value[0], item.revision),
                        None => (0, Revision::ABSENT),
                    };
                    store.submit(Request::Put {
                        key: "n".into(),
                        value: vec![value + 1],
                        expect: Expect::Revision(revision),
                        lease: None,
                    });
                    if matches!(store.poll(), Some(Event::Answer(_, Ok(Reply::Done(_))))) {
                        wins += 1;
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    let mut store = open(&path, "boot", &now).unwrap();
    store.submit(Request::List { prefix: "n".into() });
    let Some(Event::Answer(_, Ok(Reply::Items(items, _)))) = store.poll() else {
        panic!("it answers")
    };
    assert_eq!(items[0].value, [60]);
}
