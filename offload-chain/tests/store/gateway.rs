//! What an etcd that is none, or is gone, does to a store: a server of the test, which says what it is told to. I16: an answer
//! has a bounded size and time; I18: each request is answered once, in the order of asking.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use offload_chain::config::{EtcdStore, EtcdTls, REQUESTS_MAX};

use super::*;

const RANGE: &str =
    r#"{"header":{"revision":"7"},"kvs":[{"key":"aw==","mod_revision":"6","value":"dg=="}]}"#;
const CREATED: &str = "{\"result\":{\"header\":{\"revision\":\"7\"},\"created\":true}}\n";
const EVENT: &str =
    "{\"result\":{\"header\":{\"revision\":\"8\"},\"events\":[{\"kv\":{\"key\":\"aw==\"}}]}}\n";

/// Serves every connection by this, in a thread each, as long as the test runs. Counts them.
fn serve(each: impl Fn(usize, Asked) + Send + Sync + 'static) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("http://{}", listener.local_addr().unwrap());
    let (count, each) = (Arc::new(AtomicUsize::new(0)), Arc::new(each));
    let counted = count.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            let number = counted.fetch_add(1, Ordering::SeqCst);
            let each = each.clone();
            std::thread::spawn(move || each(number, Asked(BufReader::new(stream))));
        }
    });
    (place, count)
}

struct Asked(BufReader<TcpStream>);

impl Asked {
    /// Path and body of the next request; `None` at the end.
    fn next(&mut self) -> Option<(String, Vec<u8>)> {
        let (mut first, mut length) = (String::new(), 0);
        self.0.read_line(&mut first).ok().filter(|read| *read > 0)?;
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).ok().filter(|read| *read > 0)?;
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).ok()?;
        Some((first.split(' ').nth(1)?.to_owned(), body))
    }

    /// Whoever closed the connection does not want it any more.
    fn say(&self, bytes: impl AsRef<[u8]>) -> bool {
        let mut stream = self.0.get_ref();
        stream.write_all(bytes.as_ref()).is_ok()
    }

    fn chunk(&self, bytes: &[u8]) -> bool {
        self.say([format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat())
    }

    /// Until the other side closes.
    fn hang(&mut self) {
        let _ = self.0.read_to_end(&mut Vec::new());
    }
}

fn json(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}")
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

fn unavailable(store: &mut EtcdStore, request: Request) -> String {
    match answer(store, request) {
        Err(StoreError::Unavailable(why)) => why,
        other => panic!("{other:?}"),
    }
}

/// An address where nobody listens.
fn nowhere() -> String {
    let listener = TcpListener::bind("127.77.7.7:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn what_is_not_etcd_is_an_error_that_names_it() {
    for (said, expected) in [
        (String::new(), ""),
        ("SSH-2.0-OpenSSH_9.2\r\n".into(), ""),
        ("\u{0}\u{ff}".repeat(5000), ""),
        ("HTTP/1.1 200 OK\r\n".into(), ""),
        (format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(1 << 20)), ""),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{".into(), ""),
        (format!("{CHUNKED}zz\r\n"), ""),
        (format!("{CHUNKED}5\r\n{{\"hea"), ""),
        (json(""), "check the endpoint"),
        (json("{}"), "check the endpoint"),
        (json("[1]"), "check the endpoint"),
        (json(&RANGE[..40]), "check the endpoint"),
        (json(&RANGE.replace("\"6\"", "\"x\"")), "check the endpoint"),
        (json(&RANGE.replace("dg==", "dg=")), "check the endpoint"),
        (json(&"[".repeat(100_000)), "check the endpoint"),
        (
            "HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nNot Found".into(),
            "3.4 or later",
        ),
        (
            "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
                .into(),
            "3.4 or later",
        ),
        (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 50\r\n\r\n{\"message\":\"etcdserver: leader changed\",\"code\":14}".into(),
            "etcdserver: leader changed",
        ),
        (
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1u64 << 40),
            "more than 67108864 bytes",
        ),
    ] {
        let (place, _) = serve(move |_, mut asked| {
            while asked.next().is_some() && asked.say(&said) && said.contains("\r\n\r\n") {}
        });
        let mut store = EtcdStore::open(std::slice::from_ref(&place), "", &EtcdTls::default()).unwrap();
        let why = unavailable(&mut store, list(""));
        assert!(why.contains(expected), "{why}");
        assert!(
            why.contains(&place) || why.starts_with("etcd says"),
            "{why}"
        );
        unavailable(&mut store, put("k", b"v", Expect::Anything));
        let prefix = String::new();
        unavailable(&mut store, Request::Watch { prefix });
    }
}

/// Endless answers end at their bound in bytes or time; whoever hangs is given up; the store answers on.
#[test]
fn who_does_not_come_to_an_end_is_given_up() {
    let (place, _) = serve(|number, mut asked| {
        while asked.next().is_some() {
            match number {
                0 => asked.hang(),
                1 => {
                    asked.say(CHUNKED);
                    while asked.chunk(&[b' '; 1 << 16]) {}
                }
                _ => {
                    asked.say(json(RANGE));
                }
            }
        }
    });
    let mut store = EtcdStore::open(&[place], "", &EtcdTls::default()).unwrap();
    let why = unavailable(&mut store, list(""));
    assert!(why.contains("within 2s"), "{why}");
    unavailable(&mut store, list(""));
    assert!(matches!(answer(&mut store, list("")), Ok(Reply::Items(..))));
}

/// A heartbeat is no new connection, watch or not.
#[test]
fn requests_share_a_connection() {
    let (place, count) = serve(|_, mut asked| {
        while let Some((path, _)) = asked.next() {
            if path == "/v3/watch" {
                asked.say(CHUNKED);
                asked.chunk(CREATED.as_bytes());
                return asked.hang();
            }
            asked.say(json(RANGE));
        }
    });
    let mut store = EtcdStore::open(&[place], "", &EtcdTls::default()).unwrap();
    let item =
        |reply| matches!(reply, Ok(Reply::Items(items, Revision(7))) if items[0].value == b"v");
    assert!(item(answer(&mut store, list(""))));
    let prefix = String::new();
    assert_eq!(
        answer(&mut store, Request::Watch { prefix }),
        Ok(Reply::Watching)
    );
    for _ in 0..50 {
        assert!(item(answer(&mut store, list(""))));
    }
    // And the watch has one, or another if it is quiet for long.
    let connections = count.load(Ordering::SeqCst);
    assert!((2..10).contains(&connections), "{connections}");
}

/// One that cannot be asked is passed over within the request; one that failed, from the next request on.
#[test]
fn endpoints_are_tried_in_turn() {
    let (good, _) = serve(|_, mut asked| while asked.next().is_some() && asked.say(json(RANGE)) {});
    let (bad, _) = serve(|_, mut asked| drop(asked.next()));
    let mut store = EtcdStore::open(&[nowhere(), good.clone()], "", &EtcdTls::default()).unwrap();
    assert!(answer(&mut store, list("")).is_ok());
    let mut store = EtcdStore::open(&[bad.clone(), good], "", &EtcdTls::default()).unwrap();
    assert!(unavailable(&mut store, list("")).contains(&bad));
    assert!(answer(&mut store, list("")).is_ok());
    // A watch, likewise.
    let (good, _) = serve(|_, mut asked| {
        asked.next();
        asked.say(CHUNKED);
        asked.chunk(CREATED.as_bytes());
        asked.hang();
    });
    let mut store = EtcdStore::open(&[nowhere(), bad, good], "", &EtcdTls::default()).unwrap();
    let prefix = String::new();
    assert_eq!(
        answer(&mut store, Request::Watch { prefix }),
        Ok(Reply::Watching)
    );
    // Nor is one asked again first that says that it cannot do anything.
    let (stopped, _) = serve(|_, mut asked| {
        let said = r#"{"error":"etcdserver: server stopped","message":"etcdserver: server stopped","code":14}"#;
        let length = said.len();
        let said =
            format!("HTTP/1.1 503 Service Unavailable\r\nContent-Length: {length}\r\n\r\n{said}");
        while asked.next().is_some() && asked.say(&said) {}
    });
    let (good, _) = serve(|_, mut asked| while asked.next().is_some() && asked.say(json(RANGE)) {});
    let mut store = EtcdStore::open(&[stopped, good], "", &EtcdTls::default()).unwrap();
    assert!(unavailable(&mut store, list("")).contains("server stopped"));
    assert!(answer(&mut store, list("")).is_ok());
    // Nobody there: said so, by name, and again when asked again.
    let places = [nowhere(), nowhere()];
    let mut store = EtcdStore::open(&places, "", &EtcdTls::default()).unwrap();
    for _ in 0..2 {
        let why = unavailable(&mut store, list(""));
        assert!(places.iter().all(|place| why.contains(place)), "{why}");
    }
}

/// I18, also for what is refused without asking.
#[test]
fn answers_have_the_order_of_asking() {
    let (place, _) =
        serve(|_, mut asked| while asked.next().is_some() && asked.say(json(RANGE)) {});
    let mut store = EtcdStore::open(&[place], "", &EtcdTls::default()).unwrap();
    let asked: Vec<_> = (0..REQUESTS_MAX + 2)
        .map(|number| match number % 3 {
            0 => (store.submit(put("", b"", Expect::Anything)), number),
            _ => (store.submit(list("")), number),
        })
        .collect();
    for (asked, number) in asked {
        let (ticket, answer) = wait(&mut store, |event| match event {
            Event::Answer(ticket, answer) => Some((ticket, answer)),
            Event::Changed { .. } => None,
        });
        assert_eq!(ticket, asked);
        match number {
            _ if number % 3 == 0 => assert!(matches!(answer, Err(StoreError::Invalid(_)))),
            REQUESTS_MAX.. => assert_eq!(answer, Err(StoreError::Busy)),
            _ => assert!(answer.is_ok(), "{answer:?}"),
        }
    }
}

/// However the stream is cut: events are told; what ends a watch sets it up again, which is told, too.
#[test]
fn watches_take_any_chunking_and_any_end() {
    let (go, when) = mpsc::channel::<()>();
    let when = std::sync::Mutex::new(when);
    let (place, _) = serve(move |number, mut asked| {
        asked.next();
        asked.say(CHUNKED);
        // A byte at a time, then two lines and a half at once.
        CREATED.bytes().all(|byte| asked.chunk(&[byte]));
        let told = || when.lock().unwrap().recv().is_ok();
        if !told() {
            return;
        }
        match number {
            0 => {
                asked.chunk(format!("\n{CREATED}{EVENT}{}", &EVENT[..9]).as_bytes());
                told();
                asked.chunk(&EVENT.as_bytes()[9..]);
                told();
                asked.chunk(b"{\"result\":{\"canceled\":true,\"compact_revision\":\"3\"}}\n");
                asked.hang();
            }
            1 => _ = asked.chunk(b"{\"error\":{\"grpc_code\":14,\"message\":\"no leader\"}}\n"),
            2 => _ = asked.chunk(b"no JSON\n"),
            3 => _ = asked.say("no chunk\r\n"),
            _ => asked.hang(),
        }
    });
    let mut store = EtcdStore::open(&[place], "", &EtcdTls::default()).unwrap();
    let prefix = "w".to_owned();
    assert_eq!(
        answer(&mut store, Request::Watch { prefix }),
        Ok(Reply::Watching)
    );
    // Two events, a cancellation, an error, two kinds of nonsense.
    for _ in 0..6 {
        go.send(()).unwrap();
        wait(&mut store, |event| match event {
            Event::Changed { prefix } => (prefix == "w").then_some(()),
            Event::Answer(..) => None,
        });
    }
}

/// A store ends, though a watch and a request are read that would never end by themselves.
#[test]
fn dropping_a_store_ends_what_it_reads() {
    let (say, heard) = mpsc::channel();
    let say = std::sync::Mutex::new(say);
    let (place, _) = serve(move |_, mut asked| {
        let Some((path, _)) = asked.next() else {
            return;
        };
        asked.say(CHUNKED);
        if path == "/v3/watch" {
            asked.chunk(CREATED.as_bytes());
        } else {
            say.lock().unwrap().send(()).unwrap();
        }
        // Always in time for the next read.
        while asked.chunk(b" ") {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let mut store = EtcdStore::open(&[place], "", &EtcdTls::default()).unwrap();
    for prefix in ["v".to_owned(), "w".to_owned()] {
        assert_eq!(
            answer(&mut store, Request::Watch { prefix }),
            Ok(Reply::Watching)
        );
    }
    for _ in 0..REQUESTS_MAX {
        store.submit(list(""));
    }
    heard.recv().unwrap();
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        drop(store);
        ended.send(()).unwrap();
    });
    end.recv_timeout(Duration::from_secs(60)).expect("it ends");
}
