//! What a process that serves tells monitoring systems, by HTTP: an address of its own, for operators.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | what is [`Told`], as metrics ([`families`]) |
//! | `/status` | the same as JSON |
//! | `/healthz` | whether all is well |
//!
//! It is control plane (D3): one thread with a runtime of its own. Of the data path it has a [`Teller`], which is called no more often
//! than every [`FRESH`], whoever asks how often.
//! Nobody is authenticated here, so there is an address for it only if the operator names one, and nothing can be changed by it.
//!
//! # Invariants
//! - What a connection costs is bounded (I16): there are [`GUESTS_MAX`] at most, each with one request of at most [`REQUEST_BYTES`]
//!   and one answer in memory, and each for [`FIRST`] until its first request is complete and for [`NEXT`] after each. Who does not
//!   take its answer is sent away then, too.
//! - Who holds connections without asking anything keeps nobody out: when there are too many, the one that has asked nothing for
//!   longest goes, once that is [`GRACE`]. Others wait in the queue of the socket until then.
//! - When the exporter is dropped its thread has ended, and nobody listens there any more; but a thread that hears nothing because it
//!   is still being told how the target is, for longer than [`LEAVE`], is left to the end of the process.

pub(crate) mod families;
mod guests;
mod page;

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use serde::Serialize;
use socket2::Socket;
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tracing::warn;

use crate::measured::Process;
use families::Families;
use guests::{Guest, Guests};
use page::Pages;

/// What is told.
pub(crate) trait Told: Clone + fmt::Debug + Serialize + Send + Sync + 'static {
    /// Of the program.
    fn version(&self) -> &str;

    /// Which process tells it.
    fn process(&self) -> &Process;

    /// Nothing is wrong; else what is, as load balancers and probes want to know it.
    fn health(&self) -> Result<(), String>;

    /// As metrics, beside those of the process.
    fn tell(&self, families: &mut Families<'_>) -> fmt::Result;
}

/// Tells how things are. It is called on the thread of the exporter, and should not wait for what is served: a disk that hangs is when
/// somebody looks.
pub(crate) type Teller<T> = Arc<dyn Fn() -> T + Send + Sync>;

/// Connections at once.
const GUESTS_MAX: usize = 64;
/// How long a connection has at least, whoever else comes.
const GRACE: Duration = Duration::from_millis(200);
/// How long a connection may take for its first request.
const FIRST: Duration = Duration::from_secs(10);
/// How long a connection may take for its answer and the next request: monitoring systems ask every minute, or more often.
const NEXT: Duration = Duration::from_secs(90);
/// Longest request; the least that hyper can be told.
const REQUEST_BYTES: usize = 8192;
/// Header fields of a request.
const FIELDS_MAX: usize = 64;
/// How long a status is good for who asks again.
const FRESH: Duration = Duration::from_millis(100);
/// How long the end of the thread is waited for.
const LEAVE: Duration = Duration::from_secs(3);
/// Pause after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The server and its thread. Both end when it is dropped, whatever is under way.
pub(crate) struct Exporter {
    stop: Option<oneshot::Sender<()>>,
    /// Nothing comes, until the thread has ended.
    ended: Receiver<Infallible>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").finish_non_exhaustive()
    }
}

impl Exporter {
    /// Answers on this socket, which listens, from now on.
    pub(crate) fn start<T: Told>(listener: Socket, teller: Teller<T>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let runtime = runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener.into())?
        };
        let (stop, stopped) = oneshot::channel();
        let (ends, ended) = channel();
        let thread = Builder::new().name("exporter".into()).spawn(move || {
            // The last to go.
            let _ends = ends;
            let runtime = runtime;
            let tasks = LocalSet::new();
            tasks.spawn_local(receive(listener, Rc::new(Pages::new(teller))));
            // The tasks end with the set: connections are cut, and the socket is closed.
            let _ = tasks.block_on(&runtime, stopped);
        })?;
        Ok(Self {
            stop: Some(stop),
            ended,
            thread: Some(thread),
        })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        drop(self.stop.take());
        match self.ended.recv_timeout(LEAVE) {
            Err(RecvTimeoutError::Timeout) => {
                warn!("the thread that answers monitoring systems hangs")
            }
            _ => drop(self.thread.take().map(JoinHandle::join)),
        }
    }
}

/// Lets everybody in who connects.
async fn receive<T: Told>(listener: TcpListener, pages: Rc<Pages<T>>) {
    let mut guests = Guests::new(GUESTS_MAX, GRACE);
    let mut is_in_trouble = false;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Out of descriptors, most likely, which passes: whoever connects meanwhile waits.
            Err(error) => {
                if !std::mem::replace(&mut is_in_trouble, true) {
                    warn!(%error, "cannot hear monitoring systems at the moment");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        is_in_trouble = false;
        while let Err(room) = guests.make_room(Instant::now()) {
            tokio::time::sleep_until(room.into()).await;
        }
        let guest = Rc::new(Guest::new(Instant::now() + FIRST));
        let visit = page::converse(stream, Rc::clone(&guest), Rc::clone(&pages));
        guests.admit(guest, tokio::task::spawn_local(visit).abort_handle());
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream as Stream};

    use super::*;
    use crate::target::listening;
    use crate::target::status::Status;

    fn exporter(teller: impl Fn() -> Status + Send + Sync + 'static) -> (Exporter, SocketAddr) {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = listening::listen_on(Some(address), None, "--metrics");
        let listener = listener.unwrap().unwrap();
        let at = listener.local_addr().unwrap().as_socket().unwrap();
        (Exporter::start(listener, Arc::new(teller)).unwrap(), at)
    }

    /// All that is answered to these bytes, until the exporter closes the connection.
    fn ask(at: SocketAddr, request: &str) -> String {
        let mut stream = Stream::connect(at).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // It may be cut.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn get(at: SocketAddr, path: &str) -> String {
        ask(
            at,
            &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
        )
    }

    fn suspect() -> Status {
        let mut status = Status::default();
        status.volume.suspect = true;
        status
    }

    #[test]
    fn paths_and_methods() {
        let (_exporter, at) = exporter(Status::default);
        let metrics = get(at, "/metrics?name=x");
        assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
        assert!(metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"));
        assert!(metrics.contains("\nflashnet_build_info{"), "{metrics}");
        let status = get(at, "/status");
        assert!(status.contains("content-type: application/json\r\n"));
        let (_, body) = status.split_once("\r\n\r\n").unwrap();
        let told: Status = serde_json::from_str(body).unwrap();
        assert_eq!(told, Status::default());
        assert!(get(at, "/healthz").ends_with("\r\n\r\nok\n"));
        assert!(get(at, "/").starts_with("HTTP/1.1 404 "));
        assert!(get(at, "/metrics/").starts_with("HTTP/1.1 404 "));
        let posted =
            "POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx";
        let posted = ask(at, posted);
        assert!(posted.starts_with("HTTP/1.1 405 "), "{posted}");
        assert!(posted.contains("allow: GET, HEAD\r\n"), "{posted}");
        let head = ask(
            at,
            "HEAD /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        );
        assert!(
            head.contains(&format!("content-length: {}\r\n", body.len())),
            "{head}"
        );
        assert!(head.ends_with("\r\n\r\n"), "{head}");
    }

    #[test]
    fn open_metrics_for_who_wants_them() {
        let (_exporter, at) = exporter(Status::default);
        let asked = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept: \
                     application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2\r\n\r\n";
        let answer = ask(at, asked);
        let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
        assert!(answer.contains(kind), "{answer}");
        assert!(answer.ends_with("\n# EOF\n"), "{answer}");
        let refused = asked.replace("q=0.5", "q=0.0");
        let answer = ask(at, &refused);
        assert!(
            answer.contains("content-type: text/plain; version=0.0.4"),
            "{answer}"
        );
    }

    /// An answer may be longer than a request.
    #[test]
    fn long_answers() {
        let mut status = Status::default();
        let tenants = (0..5000).map(|n| (format!("tenant-{n:05}"), n));
        status.remote.tenants = tenants.collect();
        let (_exporter, at) = exporter(move || status.clone());
        let metrics = get(at, "/metrics");
        let (head, text) = metrics.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", text.len())));
        assert!(text.len() > 16 * REQUEST_BYTES);
        let last = "\nflashnet_tenant_connections{tenant=\"tenant-04999\"} 4999\n";
        assert!(text.contains(last));
    }

    #[test]
    fn what_is_wrong_is_no_health() {
        let (_exporter, at) = exporter(suspect);
        let answer = get(at, "/healthz");
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains("fsck"), "{answer}");
    }

    /// Connections are kept, requests that are no HTTP or too long are not; and a `teller` that panics ends one connection
    /// and no more.
    #[test]
    fn conversations() {
        let (_exporter, at) = exporter(Status::default);
        let mut stream = Stream::connect(at).unwrap();
        for _ in 0..3 {
            let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
            stream.write_all(request).unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\nok\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                answer.push(byte[0]);
            }
        }
        assert!(ask(at, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(2 * REQUEST_BYTES));
        assert!(!ask(at, &long).contains(" 200 "));
        let many = format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "a: b\r\n".repeat(2 * FIELDS_MAX)
        );
        assert!(ask(at, &many).starts_with("HTTP/1.1 431 "));

        let (_exporter, at) = exporter(|| panic!("a bug"));
        assert_eq!(get(at, "/status"), "");
        assert!(get(at, "/").starts_with("HTTP/1.1 404 "));
    }

    /// However often somebody asks, the target is not.
    #[test]
    fn the_target_is_not_asked_without_end() {
        let (asked, hears) = channel();
        let (_exporter, at) = exporter(move || {
            let _ = asked.send(());
            Status::default()
        });
        let begun = Instant::now();
        for _ in 0..50 {
            assert!(get(at, "/healthz").ends_with("ok\n"));
        }
        let most = 1 + begun.elapsed().as_millis() / FRESH.as_millis();
        assert!(hears.try_iter().count() as u128 <= most);
        std::thread::sleep(FRESH);
        get(at, "/healthz");
        assert_eq!(hears.try_iter().count(), 1);
    }

    /// A target whose state can not be told can be ended all the same.
    #[test]
    fn a_teller_that_hangs() {
        let (asked, hears) = channel();
        let (exporter, at) = exporter(move || {
            let _ = asked.send(());
            std::thread::sleep(3 * LEAVE);
            Status::default()
        });
        let mut stream = Stream::connect(at).unwrap();
        stream.write_all(b"GET /status HTTP/1.0\r\n\r\n").unwrap();
        hears.recv().unwrap();
        let begun = Instant::now();
        drop(exporter);
        assert!(begun.elapsed() < 2 * LEAVE);
    }

    /// Connections that say nothing, or only the beginning, more than there may be at once, keep nobody out for long (I16).
    #[test]
    fn silence_keeps_nobody_out() {
        let (exporter, at) = exporter(Status::default);
        let silent: Vec<Stream> = (0..3 * GUESTS_MAX)
            .map(|n| {
                let mut stream = Stream::connect(at).unwrap();
                if n % 2 == 0 {
                    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost:").unwrap();
                }
                stream
            })
            .collect();
        let begun = Instant::now();
        assert!(get(at, "/healthz").ends_with("ok\n"));
        assert!(begun.elapsed() < FIRST / 2, "{:?}", begun.elapsed());
        // The first have been sent away.
        silent[0]
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        assert!(!matches!((&silent[0]).read(&mut [0; 1]), Ok(1..)));
        // And they do not keep it from ending, after which others can have the port.
        let begun = Instant::now();
        drop(exporter);
        assert!(begun.elapsed() < Duration::from_secs(1));
        let again = listening::listen_unless_taken(at, "--metrics");
        assert!(again.unwrap().is_some());
    }
}
