//! Who calls at a member's door and does not prove that it knows the group's token keeps nobody out who does (I16).

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::hosted::{Group, entry, timing};
use offload_chain::client::{Client, ClientSettings};
use offload_chain::lock::LockId;
use offload_chain::membership::{CONFIG, Configuration, decode};

/// More than a member has places for strangers.
const STRANGERS: usize = 300;

/// A member says that it is one, and nothing else.
const MEMBER: &[u8] = b"FLASHNET-MEMBER\x03";
const SET_UP: &[u8] = b"MPA ID Req Frame";

/// What strangers say first, and whether they go on, a byte at a time.
const SAID: [(&[u8], bool); 8] = [
    (b"", false),
    (b"", true),
    (b"GET / HTTP/1.1\r\n\r\n", false),
    (MEMBER, false),
    (MEMBER, true),
    (SET_UP, false),
    // 512 bytes are to follow.
    (b"MPA ID Req Frame\x50\x02\x02\x00", true),
    // All that there is to be said, of another group.
    (
        b"MPA ID Req Frame\x50\x02\x00\x08\x80\x10\xc0\x10FNgs",
        false,
    ),
];

/// Longest that somebody who knows the token may take beside them. Each stranger that is waited for takes as long alone.
const SOON: Duration = Duration::from_secs(4);

fn configuration(group: &Group) -> Configuration {
    let items = offload_chain::config::list(&mut group.store(), CONFIG).unwrap();
    decode(&items[0]).unwrap()
}

/// Strangers who call again whenever they were sent away.
struct Crowd {
    ends: Arc<AtomicBool>,
    called: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Crowd {
    fn call(at: SocketAddr, says: &'static [u8], goes_on: bool) -> Self {
        let (ends, called) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (until, count) = (Arc::clone(&ends), Arc::clone(&called));
        let thread = std::thread::spawn(move || {
            let mut streams: Vec<Option<TcpStream>> = (0..STRANGERS).map(|_| None).collect();
            while !until.load(Ordering::Relaxed) {
                for place in &mut streams {
                    let stays = place.take().filter(|stream| stays(stream, goes_on));
                    *place = stays.or_else(|| {
                        let mut stream = TcpStream::connect(at).ok()?;
                        count.fetch_add(1, Ordering::Relaxed);
                        stream.write_all(says).ok()?;
                        stream.set_nonblocking(true).ok()?;
                        Some(stream)
                    });
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let crowd = Self {
            ends,
            called,
            thread: Some(thread),
        };
        while crowd.called.load(Ordering::Relaxed) < STRANGERS as u64 {
            std::thread::sleep(Duration::from_millis(1));
        }
        crowd
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Whether a stranger was not sent away; it says another byte.
fn stays(mut stream: &TcpStream, goes_on: bool) -> bool {
    let said = !goes_on || stream.write(b"M").is_ok();
    let heard = stream.read(&mut [0; 64]);
    let waits = |error: std::io::Error| error.kind() == ErrorKind::WouldBlock;
    said && heard.map_or_else(waits, |count| count > 0)
}

/// A client comes in, whatever strangers say.
#[test]
fn strangers_keep_no_client_out() {
    let group = Group::create(1, true);
    let host = group.serve(1);
    for (says, goes_on) in SAID {
        let crowd = Crowd::call(host.address(), says, goes_on);
        let start = Instant::now();
        let settings = ClientSettings {
            timing: timing(),
            timeout: SOON,
            ..ClientSettings::default()
        };
        let what = says.escape_ascii();
        let client = Client::connect(Box::new(group.store()), settings);
        let mut client = client.unwrap_or_else(|error| panic!("beside {what}: {error}"));
        client.lock(LockId::LOG, SOON).unwrap();
        client.append(entry(0, &[1; 8])).unwrap();
        client.unlock(LockId::LOG).unwrap();
        client.leave();
        let took = start.elapsed();
        assert!(took < SOON, "{took:?} beside {what}");
        drop(crowd);
    }
}

/// Members hear each other, and make themselves like each other, whatever strangers say.
#[test]
fn strangers_keep_no_member_out() {
    for (says, goes_on) in SAID {
        let group = Group::create(2, true);
        let first = group.serve(1);
        let _crowd = Crowd::call(first.address(), says, goes_on);
        let start = Instant::now();
        let second = group.serve(2);
        let what = says.escape_ascii();
        while first.state().open.0 == 0 || second.state().open.0 == 0 {
            let took = start.elapsed();
            assert!(took < SOON, "the group is not active beside {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
        if says.starts_with(SET_UP) {
            continue;
        }
        // Nor do they miss each other.
        let epoch = configuration(&group).epoch;
        std::thread::sleep(timing().period * (timing().misses + 2));
        assert_eq!(configuration(&group).epoch, epoch, "beside {what}");
    }
}
