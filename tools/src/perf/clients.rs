//! Blocking clients, a thread each, and the rules by which they are measured: the same for every rival that has such clients.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use super::cpu;
use super::figures::{Figures, Latencies, latencies};
use super::shape::Shape;

/// Time before measuring starts.
const WARM: Duration = Duration::from_millis(200);
/// Longest wait of a client for an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// What the clients are doing.
#[derive(Debug, Default)]
pub(super) struct Phase {
    pub(super) measuring: AtomicBool,
    pub(super) ending: AtomicBool,
}

impl Phase {
    /// Whether it is over.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Whether what ends now counts: what does in the measured time, whenever it began, as it does for those compared with.
    pub(super) fn counts(&self) -> bool {
        self.measuring.load(Ordering::Relaxed) && !self.is_ending()
    }
}

/// One of the clients.
pub(super) trait Client: Send + Sync + 'static {
    /// A connection that is ready to work.
    type Link: Send + 'static;

    /// Makes the connection; that is no part of what is measured.
    fn connect(&self) -> io::Result<Self::Link>;

    /// Works until the end; `n` is the number of the client, which its offsets are drawn by.
    fn run(&self, link: Self::Link, n: u64, phase: &Phase) -> io::Result<Latencies>;
}

/// What is measured, of whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load<'a> {
    pub(super) shape: &'a Shape,
    pub(super) clients: usize,
    pub(super) server_pid: Option<u32>,
}

/// Measures as long as the shape says.
pub(super) fn run<C: Client>(load: Load<'_>, client: C) -> io::Result<Figures> {
    let phase = Arc::new(Phase::default());
    let wait = |failures: &Receiver<io::Error>, time| match failures.recv_timeout(time) {
        Ok(error) => Err(error),
        Err(_) => Ok(()),
    };
    measure(load, client, &phase, wait)
}

/// The same with a clock: `wait` passes the time, or fails as soon as a client has.
pub(super) fn measure<C: Client>(
    load: Load<'_>,
    client: C,
    phase: &Arc<Phase>,
    mut wait: impl FnMut(&Receiver<io::Error>, Duration) -> io::Result<()>,
) -> io::Result<Figures> {
    // One after the other: a server whose queue of those who connect is full lets some of them wait for seconds.
    let links = (0..load.clients).map(|_| client.connect());
    let links = links.collect::<io::Result<Vec<_>>>()?;
    let client = Arc::new(client);
    let barrier = Arc::new(Barrier::new(load.clients + 1));
    let (failed, failures) = channel();
    let mut threads = Vec::new();
    for (n, link) in links.into_iter().enumerate() {
        let (barrier, phase, failed) = (Arc::clone(&barrier), Arc::clone(phase), failed.clone());
        let client = Arc::clone(&client);
        let work = move || {
            barrier.wait();
            client.run(link, n as u64, &phase).map_err(|error| {
                // Nobody listens any more when another has failed before.
                let _ = failed.send(error);
            })
        };
        threads.push(std::thread::Builder::new().spawn(work)?);
    }
    barrier.wait();
    wait(&failures, WARM)?;
    let client_before = cpu::used(None).unwrap_or_default();
    let server_before = load.server_pid.and_then(|pid| cpu::used(Some(pid)));
    let start = Instant::now();
    phase.measuring.store(true, Ordering::Relaxed);
    wait(&failures, load.shape.duration())?;
    phase.ending.store(true, Ordering::Relaxed);
    let elapsed = start.elapsed();
    let used = cpu::used(None).unwrap_or_default() - client_before;
    let server = server_before.and_then(|before| Some(cpu::used(load.server_pid)? - before));
    let mut all = latencies();
    for thread in threads {
        match thread.join().expect("client threads do not panic") {
            Ok(one) => all.add(one).expect("histograms have the same bounds"),
            Err(()) => return Err(failures.recv().expect("it was sent before the end")),
        }
    }
    Ok(Figures::new(all, load.shape.size, elapsed, used, server))
}

/// What a timeout of a socket is called.
pub(super) fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}
