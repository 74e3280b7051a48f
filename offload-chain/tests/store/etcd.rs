//! Over a real etcd, which each test starts for itself.

use std::error::Error;
use std::iter::successors;

use offload_chain::config::{self, EtcdStore, EtcdTls};

use super::etcd_process::{Etcd, Timing, Tls};
use super::*;

fn open(etcd: &Etcd, prefix: &str) -> EtcdStore {
    let place = format!("http://{}", etcd.place());
    EtcdStore::open(&[place], prefix, &EtcdTls::default()).unwrap()
}

fn bench(stores: [Box<dyn Store>; 2]) -> Bench {
    Bench {
        stores,
        pass: Box::new(std::thread::sleep),
        ttl: Duration::from_secs(3),
        events: Default::default(),
    }
}

#[test]
fn the_same_suite_over_etcd() {
    let Some(etcd) = Etcd::start(Timing::default()) else {
        return;
    };
    let stores = [0, 1].map(|_| Box::new(open(&etcd, "group/7/")) as Box<dyn Store>);
    let mut both = bench(stores);
    suite(&mut both);
    wakes(&mut both);
    drop(both);
    // Another prefix is another store, and none is all.
    let found = answer(&mut open(&etcd, "group/8/"), list("l/"));
    assert!(matches!(found, Ok(Reply::Items(items, _)) if items.is_empty()));
    let found = answer(&mut open(&etcd, ""), list(""));
    assert!(matches!(found, Ok(Reply::Items(items, _)) if items[0].key == "group/7/a"));
    // The URL means the same.
    let url = format!("etcd://{}/group/7", etcd.place());
    let Ok(Reply::Items(items, _)) = answer(&mut config::open(&url).unwrap(), list("l/freed"))
    else {
        panic!("it lists")
    };
    assert_eq!(items[0].key, "l/freed");
}

/// S1: of two users, one wins each revision.
#[test]
fn users_of_one_etcd_take_turns() {
    let Some(etcd) = Etcd::start(Timing::default()) else {
        return;
    };
    let count = |mut store: EtcdStore| {
        let mut wins = 0;
        while wins < 20 {
            let Ok(Reply::Items(items, _)) = answer(&mut store, list("n")) else {
                panic!("it answers")
            };
            let (value, revision) = match items.first() {
                Some(item) => (item.value[0], item.revision),
                None => (0, Revision::ABSENT),
            };
            match answer(
                &mut store,
                put("n", &[value + 1], Expect::Revision(revision)),
            ) {
                Ok(Reply::Done(_)) => wins += 1,
                other => assert!(matches!(other, Ok(Reply::Conflict(_))), "{other:?}"),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let store = open(&etcd, "race/");
            scope.spawn(move || count(store));
        }
    });
    let found = answer(&mut open(&etcd, "race/"), list("n"));
    assert!(matches!(found, Ok(Reply::Items(items, _)) if items[0].value == [40]));
}

/// S2, and that no change is missed: a killed etcd is said to be unavailable; when it is back, what was answered is there, and
/// the watch tells.
#[test]
fn etcd_may_be_killed_and_come_back() {
    let Some(mut etcd) = Etcd::start(Timing::default()) else {
        return;
    };
    let (mut store, mut other) = (open(&etcd, "g/"), open(&etcd, "g/"));
    let changed = |event| matches!(event, Event::Changed { .. }).then_some(());
    let prefix = "k".to_owned();
    assert_eq!(
        answer(&mut store, Request::Watch { prefix }),
        Ok(Reply::Watching)
    );
    let Ok(Reply::Done(first)) = answer(&mut store, put("k", b"1", Expect::Anything)) else {
        panic!("it puts")
    };
    wait(&mut store, changed);
    etcd.kill();
    for _ in 0..3 {
        let said = answer(&mut store, put("k", b"2", Expect::Revision(first)));
        assert!(matches!(&said, Err(StoreError::Unavailable(_))), "{said:?}");
        let said = said.unwrap_err().to_string();
        assert!(said.contains(&etcd.place()), "{said}");
    }
    etcd.restart();
    // By somebody else, and maybe before the watch is back.
    let done = loop {
        match answer(&mut other, put("k", b"3", Expect::Revision(first))) {
            Err(StoreError::Unavailable(_)) => {}
            done => break done,
        }
    };
    assert!(matches!(done, Ok(Reply::Done(second)) if second > first));
    wait(&mut store, changed);
    let found = answer(&mut store, list("k"));
    assert!(matches!(found, Ok(Reply::Items(items, _)) if items[0].value == b"3"));
    // It goes on telling, and ends while it watches.
    while store.poll().is_some() {}
    assert!(answer(&mut other, put("k", b"4", Expect::Anything)).is_ok());
    wait(&mut store, changed);
}

/// I16: a member of etcd that is cut off from its majority holds nobody up: the next one is asked, whatever it is that is asked.
#[test]
fn who_has_no_leader_is_passed_over() {
    let Some([alone, mut gone]) = Etcd::start_two(Timing::default()) else {
        return;
    };
    let Some(other) = Etcd::start(Timing::default()) else {
        return;
    };
    gone.kill();
    alone.wait_until_leaderless();
    let places = [&alone, &other].map(|etcd| format!("http://{}", etcd.place()));
    let lease = LeaseId(7);
    for (request, reply) in [
        (list("k"), None),
        (put("k", b"1", Expect::Anything), None),
        (
            Request::Grant {
                ttl: Duration::from_secs(9),
            },
            None,
        ),
        (Request::KeepAlive { lease }, Some(Reply::NoLease)),
        (Request::Revoke { lease }, Some(Reply::NoLease)),
        (Request::Watch { prefix: "k".into() }, Some(Reply::Watching)),
    ] {
        // One that has asked nobody yet.
        let mut store = EtcdStore::open(&places, "g/", &EtcdTls::default()).unwrap();
        let answer = answer(&mut store, request.clone());
        assert!(answer.is_ok(), "{request:?}: {answer:?}");
        assert!(reply.is_none() || answer.ok() == reply, "{request:?}");
    }
    // Nobody else there: it is said what is wrong, and where.
    let mut store = EtcdStore::open(&places[..1], "g/", &EtcdTls::default()).unwrap();
    // On a machine that is busy it may take longer to say so than it is waited for.
    let mut says = || answer(&mut store, list("k")).unwrap_err().to_string();
    let said = (0..10)
        .map(|_| says())
        .find(|said| !said.contains("no answer"));
    let said = said.expect("it says something");
    assert!(
        said.contains(&places[0]) && said.contains("no leader"),
        "{said}"
    );
}

/// A user and a password get a token; one that is over is renewed.
#[test]
fn etcd_may_want_to_know_who_asks() {
    let Some(mut etcd) = Etcd::start(Timing::default()) else {
        return;
    };
    for (path, body) in [
        ("user/add", r#"{"name":"root","password":"p@ss:word"}"#),
        ("role/add", r#"{"name":"root"}"#),
        ("user/grant", r#"{"user":"root","role":"root"}"#),
        ("enable", "{}"),
    ] {
        let url = format!("http://{}/v3/auth/{path}", etcd.place());
        ureq::post(url).send(body).unwrap();
    }
    let anybody = answer(&mut open(&etcd, ""), list("k"));
    assert!(
        matches!(anybody, Err(StoreError::Unavailable(_))),
        "{anybody:?}"
    );
    let wrong = format!("etcd://root:wrong@{}/g", etcd.place());
    let refused = answer(&mut config::open(&wrong).unwrap(), list("k")).unwrap_err();
    assert!(refused.to_string().contains("password"), "{refused}");

    let url = format!("etcd://root:p@ss:word@{}/g", etcd.place());
    let mut store = config::open(&url).unwrap();
    let prefix = "k".to_owned();
    assert_eq!(
        answer(&mut store, Request::Watch { prefix }),
        Ok(Reply::Watching)
    );
    assert!(answer(&mut store, put("k", b"1", Expect::Anything)).is_ok());
    // Its tokens are in memory only.
    etcd.restart();
    loop {
        match answer(&mut store, list("k")) {
            Ok(Reply::Items(items, _)) => {
                assert_eq!(items[0].value, b"1");
                break;
            }
            // Only the connection that was lost.
            Err(StoreError::Unavailable(why)) => assert!(!why.contains("token"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}

/// A CA, and who it vouches for.
struct Authority(rcgen::Issuer<'static, rcgen::KeyPair>, String);

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self(rcgen::Issuer::new(params, key), pem)
    }

    /// Certificate and key of who is found there.
    fn vouches(&self, place: &str) -> [String; 2] {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new([place.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        [certificate.pem(), key.serialize_pem()]
    }
}

/// Whom etcd does not trust gets nothing from it, and an etcd that is not to be trusted is told nothing.
#[test]
fn etcd_may_speak_tls() {
    let host = Etcd::host();
    let (authority, other) = (Authority::new(), Authority::new());
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, pem: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, pem).unwrap();
        path
    };
    let ca = file("ca", &authority.1);
    let wrong_ca = file("other-ca", &other.1);
    let [certificate, key] = authority.vouches(&host.to_string());
    let [certificate, key] = [file("etcd", &certificate), file("etcd.key", &key)];
    let [own, own_key] = authority.vouches("member");
    let [own, own_key] = [file("own", &own), file("own.key", &own_key)];
    let server = Tls {
        certificate,
        key: key.clone(),
        authority: ca.clone(),
    };
    let Some(etcd) = Etcd::start_tls(host, server) else {
        return;
    };
    let url = |ca: &Path, more: String| {
        format!("etcds://{}/g?cacert={}{more}", etcd.place(), ca.display())
    };
    let pair = |own: &Path, key: &Path| format!("&cert={}&key={}", own.display(), key.display());
    let [mut store, mut watcher] =
        [0, 1].map(|_| config::open(&url(&ca, pair(&own, &own_key))).unwrap());
    let prefix = "k".to_owned();
    let watching = answer(&mut watcher, Request::Watch { prefix });
    assert_eq!(watching, Ok(Reply::Watching));
    let put_once = answer(
        &mut store,
        put("k", b"1", Expect::Revision(Revision::ABSENT)),
    );
    assert!(matches!(put_once, Ok(Reply::Done(_))), "{put_once:?}");
    let changed = |event| matches!(event, Event::Changed { .. }).then_some(());
    wait(&mut watcher, changed);

    for (why, url) in [
        (
            "invalid peer certificate",
            url(&wrong_ca, pair(&own, &own_key)),
        ),
        // etcd hangs up on those who have no certificate.
        ("https://", url(&ca, String::new())),
        ("http://", format!("etcd://{}/g", etcd.place())),
    ] {
        let refused = answer(&mut config::open(&url).unwrap(), list("k"));
        let Err(StoreError::Unavailable(said)) = &refused else {
            panic!("{url}: {refused:?}")
        };
        assert!(said.contains(why), "{said}");
    }
    let nowhere = directory.path().join("nowhere");
    for (why, url) in [
        ("nowhere", url(&nowhere, String::new())),
        ("own.key", url(&own_key, String::new())),
        ("etcd.key", url(&ca, pair(&own, &key))),
        ("nowhere", url(&ca, pair(&own, &nowhere))),
    ] {
        let Err(error) = config::open(&url) else {
            panic!("{url} opens")
        };
        let causes = successors(Some(&error as &dyn Error), |&error| error.source());
        let said: Vec<String> = causes.map(ToString::to_string).collect();
        assert!(said.join(": ").contains(why), "{said:?}");
    }
}
