//! What a connection is told before it starts, with its limits (RELIABILITY I16).

use std::sync::Arc;
use std::time::Duration;

use crate::addr::ProtectionDomain;
use crate::page::PAGE_BYTES;
use crate::planted::Bug;
use crate::srq::SharedReceives;
use crate::wire::start::RtrKinds;

/// Largest ULPDU that any MPA sender may build (RFC 5044 §5.1, upper clamp of MULPDU).
pub const ULPDU_LIMIT: u16 = 64_768;
/// Smallest ULPDU limit we accept (RFC 5044 §5.1, lower clamp of MULPDU).
pub const ULPDU_FLOOR: u16 = 128;
/// Largest IRD or ORD on the wire; 0x3fff means "not negotiated" (RFC 6581 §4).
pub const READS_LIMIT: u16 = 0x3ffe;
/// Private data we can send: what `rdma_cm` and `siw` peers can take beside the enhanced block.
pub const PRIVATE_DATA_MAX: usize = 251;

/// MPA revision an initiator asks for. A responder answers either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Revision {
    /// RFC 5044: IRD and ORD are taken from the configuration.
    One,
    /// RFC 6581, enhanced set-up.
    Two,
}

/// Settings of one connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whose regions the peer may touch. A responder may still change it before it accepts.
    pub protection_domain: ProtectionDomain,
    /// Upper half of all tickets of this connection.
    pub tag: u32,
    /// Ask for CRCs. They are used if either side asks.
    pub crc: bool,
    /// Initiator: revision of the Request.
    pub revision: Revision,
    /// Initiator, revision 2: peer-to-peer set-up with a ready-to-receive frame.
    pub peer_to_peer: bool,
    /// Initiator, peer-to-peer set-up: kinds of ready-to-receive frames that are offered.
    pub rtr: RtrKinds,
    /// Responder without peer-to-peer set-up: send without having heard from the initiator, which RFC 5044 §7.1.2 forbids.
    /// Programs whose passive side speaks first rely on it where both ends are Linux `siw`. The initiator may break the
    /// connection if something follows the Reply before it has read it.
    pub passive_sends_first: bool,
    /// Announce ourselves in front of the private data, so that two of our own endpoints agree on large FPDUs.
    pub hello: bool,
    /// Announce the [private profile](crate::wire::profile), which is on if both sides do. Needs the hello.
    pub private_profile: bool,
    /// READs of the peer that we hold at once.
    pub ird_max: u16,
    /// Our own READs outstanding at once.
    pub ord_max: u16,
    /// ULPDU limit towards a peer that announced itself with a hello (the smaller of both is used).
    pub ulpdu_max: u16,
    /// ULPDU limit towards any other peer: what fits TCP's segments, see [`mulpdu`].
    pub ulpdu_foreign: u16,
    /// Work requests in the send queue.
    pub send_queue_max: usize,
    /// Buffers in the receive queue.
    pub recv_queue_max: usize,
    /// Takes buffers for the peer's messages from here instead of a receive queue of its own; then `recv_queue_max`
    /// bounds the unread completions alone.
    pub shared_receives: Option<Arc<SharedReceives>>,
    /// Immediate data of the peer are of no interest: they are checked and counted, take no buffer, and nobody is told. So a
    /// peer may send any number of them, however they arrive.
    pub immediates_ignored: bool,
    /// Pages pinned or asked for at once on behalf of the peer's READs. The store must be able to pin this many for
    /// each connection at the same time.
    pub read_window_pages: usize,
    /// Answers to atomic operations that are remembered after they were given, for a peer that may have lost them.
    pub atomics_kept: usize,
    /// Received bytes kept while the inbound side is parked.
    pub inbound_buffer_max: usize,
    /// Longest set-up.
    pub start_timeout: Duration,
    /// Longest wait for the peer's FIN after our own, and before, for a peer that does not read to take our last words, or any
    /// more of the work that goes out before an orderly end, or for one that does to answer it.
    pub close_timeout: Duration,
    /// Tests only: a bug to plant.
    pub planted: Option<Bug>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            protection_domain: ProtectionDomain(0),
            tag: 0,
            crc: true,
            revision: Revision::Two,
            peer_to_peer: true,
            rtr: RtrKinds {
                send: false,
                write: true,
                read: true,
            },
            passive_sends_first: false,
            hello: true,
            private_profile: false,
            ird_max: 64,
            ord_max: 64,
            // Header and 15 pages: whole pages per FPDU let the receiver overwrite without reading.
            ulpdu_max: (14 + 15 * PAGE_BYTES) as u16,
            ulpdu_foreign: mulpdu(1448, false),
            send_queue_max: 1024,
            recv_queue_max: 1024,
            shared_receives: None,
            immediates_ignored: false,
            read_window_pages: 128,
            atomics_kept: 0,
            inbound_buffer_max: 1 << 20,
            start_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(5),
            planted: None,
        }
    }
}

/// ULPDU limit for TCP segments of `emss` bytes (RFC 5044 §5.1): one FPDU fills one segment.
#[must_use]
pub const fn mulpdu(emss: u16, markers: bool) -> u16 {
    let marker_bytes = if markers { 4 * emss.div_ceil(512) } else { 0 };
    let mulpdu = emss.saturating_sub(6 + marker_bytes + emss % 4);
    if mulpdu < ULPDU_FLOOR {
        ULPDU_FLOOR
    } else if mulpdu > ULPDU_LIMIT {
        ULPDU_LIMIT
    } else {
        mulpdu
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of protocol note §6.
    #[test]
    fn mulpdu_table() {
        let rows = [
            (1448, 1442, 1430),
            (1460, 1454, 1442),
            (8948, 8942, 8870),
            (8960, 8954, 8882),
        ];
        for (emss, plain, markers) in rows {
            assert_eq!(mulpdu(emss, false), plain);
            assert_eq!(mulpdu(emss, true), markers);
        }
        assert_eq!(mulpdu(0, true), ULPDU_FLOOR);
        assert_eq!(mulpdu(u16::MAX, false), ULPDU_LIMIT);
    }
}
