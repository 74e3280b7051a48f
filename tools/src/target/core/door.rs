//! Connections that come: which are adopted, and with what.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use flashnet_tls::Records;
use socket2::{Socket, TcpKeepalive};
use softrdma::config::mulpdu;
use softrdma::{Config, Connection, Time};
use tracing::{debug, warn};

use super::Core;
use crate::reactor::{Done, LinkTag};
use crate::target::job::Job;

/// How long a peer may be silent, once connected, while others wait for its place.
const GRACE: Duration = Duration::from_secs(1);
/// See [`inbound_buffer`]: 256 connections have as much as is of use.
const INBOUND_BYTES: usize = 256 << 20;
/// Wait after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Why a connection is not adopted when too much waits.
const BEHIND: &str = "this target is behind with others";

impl Core {
    pub(super) fn accepted(&mut self, now: Time, done: Done) {
        if done.result >= 0 {
            self.accept_trouble = false;
            // SAFETY: the kernel just made this descriptor for us, and nobody else has it.
            let socket = unsafe { Socket::from_raw_fd(done.result) };
            let target = self.next % self.parts.peers.len();
            self.next += 1;
            if target == self.parts.index {
                self.adopt(now, socket, None);
            } else if self.is_crowded() {
                self.tell_of_refused(&socket, BEHIND);
            } else {
                let _ = self.parts.peers[target].push(Job::Adopt(socket, None));
            }
        } else if self.hanging_up.is_none() && !std::mem::replace(&mut self.accept_trouble, true) {
            let error = io::Error::from_raw_os_error(-done.result);
            warn!(%error, "cannot accept connections at the moment");
        }
        if !done.more {
            // Out of descriptors, most likely: trying again at once would keep the processor busy with failing.
            let pause = if self.accept_trouble {
                ACCEPT_PAUSE
            } else {
                Duration::ZERO
            };
            self.accept_at = Some(now + pause);
        }
    }

    /// Goes on accepting, if that has ended and its pause is over.
    pub(super) fn accept_again(&mut self, now: Time) {
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            if let Some(listener) = &self.listener {
                self.net.ring.accept(listener.as_raw_fd(), 0);
            }
        }
    }

    /// Whether connections have given reason for so many messages to reactors or control threads that there should not be more of
    /// them.
    fn is_crowded(&self) -> bool {
        self.parts.reception.control.is_crowded()
            || self.parts.peers.iter().any(|inbox| inbox.is_crowded())
    }

    pub(super) fn adopt(&mut self, now: Time, socket: Socket, tls: Option<Box<Records>>) {
        if self.hanging_up.is_some() {
            return;
        }
        if self.is_crowded() {
            return self.tell_of_refused(&socket, BEHIND);
        }
        let peer = socket.peer_addr().ok().and_then(|a| a.as_socket());
        let before = self.parts.connections.fetch_add(1, Ordering::Relaxed);
        if before >= self.parts.reception.connections_max && !self.send_one_away(now) {
            self.parts.connections.fetch_sub(1, Ordering::Relaxed);
            return self.tell_of_refused(&socket, "too many");
        }
        if let Err(error) = tune(&socket) {
            debug!(%error, ?peer, "socket options");
        }
        let mut config = self.parts.config.clone();
        config.inbound_buffer_max = inbound_buffer(before);
        // TLS has better checksums; who asks gets both.
        config.crc &= tls.is_none();
        let table = &self.parts.table;
        let mss = socket.tcp_mss().unwrap_or(1448).min(u32::from(u16::MAX)) as u16;
        let added = self.net.add_over(socket, tls, |tag| {
            let config = Config {
                tag: tag.0,
                ulpdu_foreign: mulpdu(mss, false),
                ..config
            };
            Connection::responder(config, table, now)
        });
        match added {
            Some(tag) => {
                debug!(?peer, ?tag, "connected");
                self.silent.push_back((tag, now));
                self.forget_those_who_spoke();
            }
            None => {
                self.parts.connections.fetch_sub(1, Ordering::Relaxed);
                self.parts.reception.arrivals.refuse();
                warn!(?peer, "connection refused: no slot is free");
            }
        }
    }

    /// Tells people of a connection that is not adopted, if they have not just been told of another: strangers come in numbers.
    fn tell_of_refused(&self, socket: &Socket, why: &str) {
        self.parts.reception.arrivals.refuse();
        let peer = socket.peer_addr().ok().and_then(|a| a.as_socket());
        if self.parts.reception.is_news() {
            let max = self.parts.reception.connections_max;
            warn!(?peer, max, "connection refused: {why}");
        } else {
            debug!(?peer, "connection refused: {why}");
        }
    }

    /// Makes room for a peer that comes by sending away the one that has been silent for longest, if one has for [`GRACE`]: who
    /// connects and says nothing keeps others out for no longer.
    fn send_one_away(&mut self, now: Time) -> bool {
        self.forget_those_who_spoke();
        let has_had_its_time = |&mut (_, since): &mut (LinkTag, Time)| since + GRACE <= now;
        let Some((tag, _)) = self.silent.pop_front_if(has_had_its_time) else {
            return false;
        };
        let peer = self.net.peer(tag);
        debug!(?peer, ?tag, "sent away: silent, and others come");
        self.net.connection(tag).map(Connection::abort).is_some()
    }

    fn forget_those_who_spoke(&mut self) {
        let net = &mut self.net;
        let mut is_silent = |tag| net.connection(tag).is_some_and(|c| c.awaits_request());
        while self.silent.front().is_some_and(|&(tag, _)| !is_silent(tag)) {
            self.silent.pop_front();
        }
        // Behind one that is silent there may be many that have come and gone.
        if self.silent.len() > 2 * self.parts.reception.connections_max {
            self.silent.retain(|&(tag, _)| is_silent(tag));
        }
    }
}

/// What one more connection beside so many others may have of the memory for what peers send before it can be taken: as much as
/// is of use, while there are few. So the largest of those that are there has no more than all of it, the second largest no more
/// than half, and so on, whoever comes and goes.
fn inbound_buffer(others: usize) -> usize {
    (INBOUND_BYTES / (others + 1)).min(Config::default().inbound_buffer_max)
}

/// Small answers leave at once, and a peer that has vanished is noticed within a minute.
fn tune(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    // For bytes that are never acknowledged, which keepalive does not watch.
    socket.set_tcp_user_timeout(Some(Duration::from_secs(60)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I16: few connections have all that is of use, and of any number of them none has more than its part.
    #[test]
    fn inbound_buffers_are_shares() {
        let most = Config::default().inbound_buffer_max;
        assert!((0..256).all(|others| inbound_buffer(others) == most));
        assert!((0..16_384).all(|others| inbound_buffer(others) * (others + 1) <= INBOUND_BYTES));
    }
}
