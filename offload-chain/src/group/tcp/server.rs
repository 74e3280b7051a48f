//! A member with its sockets.

use std::io::{self, ErrorKind};
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Waker};

use super::connected::{Connected, Place, Refusal};
use super::event_loop::{LISTENER, Loop, RETRY, SLEEP, WAKER};
use crate::group::member::Member;
use crate::group::node::{Node, Store};

/// Serves a member.
#[derive(Debug)]
pub struct MemberServer<S: Store> {
    inner: Loop<Member<S>>,
    /// None: somebody else accepts connections.
    listener: Option<TcpListener>,
    /// Where all members are, in order: the addresses of each are tried in turn.
    places: Vec<Place>,
    /// How often each member was tried to be reached.
    tries: Vec<usize>,
    tried: Instant,
    /// Not before: it will hardly be otherwise so soon, and each attempt costs signatures.
    rests: Option<Instant>,
    refusal: Option<Refusal>,
    progress: Progress,
}

/// Since when the oldest operation of a member waits for something.
#[derive(Debug, Default)]
struct Progress {
    finished: u64,
    since: Option<Instant>,
    worst: Duration,
}

impl Progress {
    fn look(&mut self, now: Instant, begun: u64, finished: u64) {
        if let Some(since) = self.since {
            self.worst = self.worst.max(now - since);
        }
        let moved = self.finished != finished;
        self.finished = finished;
        if begun == finished {
            self.since = None;
        } else if moved || self.since.is_none() {
            self.since = Some(now);
        }
    }
}

impl<S: Store> MemberServer<S> {
    /// A server on a listening socket. `places` are those of all members, in order: of one that has several addresses, all are tried.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(
        member: Member<S>,
        listener: std::net::TcpListener,
        places: &[impl ToSocketAddrs],
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        let places = places.iter().map(Place::plain).collect::<io::Result<_>>()?;
        let mut server = Self::without_listener(member, places)?;
        let registry = server.inner.poll.registry();
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        server.listener = Some(listener);
        Ok(server)
    }

    /// A server whose connections somebody else accepts, and hands over by [`admit`](Self::admit).
    ///
    /// # Errors
    /// What the system says.
    pub fn without_listener(member: Member<S>, places: Vec<Place>) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            tried: now.checked_sub(RETRY).unwrap_or(now),
            inner: Loop::new(member)?,
            listener: None,
            tries: vec![0; places.len()],
            places,
            rests: None,
            refusal: None,
            progress: Progress::default(),
        })
    }

    /// Takes a connection that somebody made. With too many of them, it is closed.
    pub fn admit(&mut self, connected: impl Into<Connected>) {
        let now = self.inner.now();
        let Ok(link) = self.inner.node.listen(now) else {
            return;
        };
        if self.inner.add(connected, link).is_err() {
            self.inner.node.handle_transport_error(link);
        }
    }

    /// Why somebody has no TLS connection, the last of those that there are to tell of.
    pub(crate) fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusal.take()
    }

    /// The longest that the oldest operation had to wait here, for memory or for the next member's socket, since this was
    /// last asked.
    pub fn take_lag(&mut self) -> Duration {
        self.look_at_progress();
        std::mem::take(&mut self.progress.worst)
    }

    /// For how long the oldest operation has waited already, if there is one.
    pub(crate) fn waiting(&self) -> Option<Duration> {
        self.progress.since.map(|since| since.elapsed())
    }

    fn look_at_progress(&mut self) {
        let (begun, finished) = self.inner.node.engine().operations();
        self.progress.look(Instant::now(), begun, finished);
    }

    /// The member.
    pub fn member(&mut self) -> &mut Member<S> {
        &mut self.inner.node
    }

    /// Something that makes [`turn`](Self::turn) return, from another thread: for a store that has done something. One
    /// at most for a server.
    ///
    /// # Errors
    /// What the system says.
    pub fn waker(&self) -> io::Result<Arc<Waker>> {
        Ok(Arc::new(Waker::new(self.inner.poll.registry(), WAKER)?))
    }

    /// Looks at the sockets without sleeping for so long after the last message (DESIGN D4).
    pub fn spin(&mut self, spin: Duration) {
        self.inner.spin = spin;
    }

    /// One turn of the loop; sleeps at most a tenth of a second.
    ///
    /// # Errors
    /// If polling fails: the loop can not go on.
    pub fn turn(&mut self) -> io::Result<()> {
        self.connect();
        let missing = !self.inner.node.missing().is_empty();
        self.inner.turn(if missing { RETRY } else { SLEEP })?;
        if std::mem::take(&mut self.inner.calls) {
            self.accept();
        }
        if let Some(refusal) = self.inner.take_refusal() {
            if refusal.called && !refusal.cause.passes() {
                self.rests = Some(Instant::now() + SLEEP);
            }
            self.refusal = Some(refusal);
        }
        let now = self.inner.now();
        self.inner.node.service(now);
        self.look_at_progress();
        Ok(())
    }

    /// Runs until told to end, or until the group is broken at this member.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub fn run(&mut self, end: &AtomicBool) -> io::Result<()> {
        while !end.load(Ordering::Acquire) && !self.inner.node.is_broken() {
            self.turn()?;
        }
        self.last_words();
        Ok(())
    }

    /// Sends what a member that is broken has to say still: why.
    pub(crate) fn last_words(&mut self) {
        self.inner.transmit();
        while self.inner.unsent {
            self.inner.transmit();
        }
    }

    /// Ends the member (I12) and gives back its store.
    pub fn stop(self) -> S {
        self.inner.node.stop()
    }

    fn connect(&mut self) {
        if self.tried.elapsed() < RETRY {
            return;
        }
        self.tried = Instant::now();
        if self.rests.is_some_and(|until| self.tried < until) {
            return;
        }
        for number in self.inner.node.missing() {
            let Some(place) = self.places.get(number) else {
                continue;
            };
            let addresses = &place.addresses;
            if addresses.is_empty() {
                continue;
            }
            let tries = &mut self.tries[number];
            let address = addresses[*tries % addresses.len()];
            *tries = tries.wrapping_add(1);
            let Ok(stream) = TcpStream::connect(address) else {
                continue;
            };
            let Ok(connected) = place.connected(stream, address) else {
                continue;
            };
            let now = self.inner.now();
            let Ok(link) = self.inner.node.connect(now, number) else {
                continue;
            };
            if self.inner.add(connected, link).is_err() {
                self.inner.node.handle_transport_error(link);
            }
        }
    }

    fn accept(&mut self) {
        while let Some(listener) = &self.listener {
            match listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Nobody more; or out of descriptors, and the next event tries again.
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member that has nothing to do is not slow; one that waits is, as long as its oldest operation waits.
    #[test]
    fn waiting_is_what_counts() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut progress = Progress::default();
        progress.look(at(0), 0, 0);
        progress.look(at(500), 5, 5);
        assert_eq!(progress.worst, Duration::ZERO);
        progress.look(at(600), 7, 5);
        progress.look(at(620), 7, 6);
        assert_eq!(progress.worst, Duration::from_millis(20));
        progress.look(at(650), 8, 6);
        progress.look(at(670), 8, 8);
        assert_eq!(progress.worst, Duration::from_millis(50));
        progress.look(at(900), 9, 9);
        assert_eq!(progress.worst, Duration::from_millis(50));
    }
}
