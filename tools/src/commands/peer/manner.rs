//! How a connection is set up: what the rows and columns of the matrix differ in.

use std::time::Duration;

use softrdma::config::{ULPDU_FLOOR, ULPDU_LIMIT};
use softrdma::wire::start::{NextStart, RtrKinds, StartFrame, StartKind};
use softrdma::{Config, Revision};

use crate::cli::peer::{Fpdu, PeerOptions, Rtr};

/// ULPDU that fits a TCP segment of an ordinary Ethernet.
const ULPDU_MSS: u16 = softrdma::config::mulpdu(1448, false);

/// What a side asks for. A listening side takes revision and ready-to-receive frame as they come.
#[derive(Clone, Debug)]
pub(super) struct Manner {
    pub(super) crc: bool,
    pub(super) revision: Revision,
    pub(super) rtr: Rtr,
    pub(super) fpdu: Fpdu,
    /// READs held for the peer, and outstanding at the peer.
    pub(super) reads: u16,
    /// A listening side sends without having heard from the peer, as some programs do.
    pub(super) sends_first: bool,
    /// Longest wait for anything.
    pub(super) patience: Duration,
}

impl Manner {
    pub(super) fn of(options: &PeerOptions) -> Self {
        Self {
            crc: options.crc,
            revision: match options.revision {
                1 => Revision::One,
                _ => Revision::Two,
            },
            rtr: options.rtr,
            fpdu: options.fpdu,
            reads: 16,
            sends_first: false,
            patience: *options.timeout,
        }
    }

    /// For the endpoint. These programs' private data must be exact, so no hello.
    pub(super) fn config(&self) -> Config {
        Config {
            crc: self.crc,
            revision: self.revision,
            peer_to_peer: self.rtr != Rtr::None,
            passive_sends_first: self.sends_first,
            hello: false,
            ird_max: self.reads,
            ord_max: self.reads,
            ulpdu_foreign: match self.fpdu {
                Fpdu::Small => ULPDU_FLOOR,
                Fpdu::Mss => ULPDU_MSS,
                Fpdu::Large => ULPDU_LIMIT,
            },
            start_timeout: self.patience,
            ..Config::default()
        }
    }

    /// The Request as the endpoint made it, offering only the ready-to-receive frame wanted.
    pub(super) fn offer(&self, request: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match StartFrame::parse(StartKind::Request, request) {
            Ok(NextStart::Frame(mut frame, _)) => {
                if let Some(block) = &mut frame.enhanced {
                    block.peer_to_peer = kinds(self.rtr);
                }
                frame.emit(&mut out);
            }
            _ => out.extend_from_slice(request),
        }
        out
    }
}

fn kinds(rtr: Rtr) -> Option<RtrKinds> {
    let (write, read) = match rtr {
        Rtr::None => return None,
        Rtr::Write => (true, false),
        Rtr::Read => (false, true),
        Rtr::Any => (true, true),
    };
    let send = false;
    Some(RtrKinds { send, write, read })
}

/// What went over the wire at the start of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    /// Revision of the Request.
    pub(super) revision: u8,
    /// Kinds of ready-to-receive frames offered in the Request.
    pub(super) offered: Option<RtrKinds>,
    pub(super) crc: bool,
}

impl Agreed {
    /// Is it what the matrix wants to try?
    pub(super) fn fits(&self, manner: &Manner) -> bool {
        let revision = match manner.revision {
            Revision::One => 1,
            Revision::Two => 2,
        };
        let rtr = match manner.revision {
            Revision::One => None,
            Revision::Two => kinds(manner.rtr),
        };
        (self.revision, self.offered, self.crc) == (revision, rtr, manner.crc)
    }
}

/// Revision and offer of a Request, once all of it is there.
pub(super) fn parse_request(bytes: &[u8]) -> Option<(u8, Option<RtrKinds>)> {
    match StartFrame::parse(StartKind::Request, bytes) {
        Ok(NextStart::Frame(frame, _)) => Some((
            frame.revision,
            frame.enhanced.and_then(|block| block.peer_to_peer),
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use softrdma::wire::start::Enhanced;

    use super::*;

    /// Only the offer of a Request is changed; the private data of the program is untouched.
    #[test]
    fn an_offer_changes_nothing_else() {
        let mut manner = Manner {
            crc: true,
            revision: Revision::Two,
            rtr: Rtr::Read,
            fpdu: Fpdu::Mss,
            reads: 16,
            sends_first: false,
            patience: Duration::from_secs(1),
        };
        let made = |peer_to_peer| {
            let mut out = Vec::new();
            StartFrame {
                kind: StartKind::Request,
                markers: false,
                crc: true,
                rejected: false,
                revision: 2,
                enhanced: Some(Enhanced {
                    ird: 3,
                    ord: 4,
                    peer_to_peer,
                }),
                private_data: b"exactly this",
            }
            .emit(&mut out);
            out
        };
        for rtr in [Rtr::None, Rtr::Write, Rtr::Read, Rtr::Any] {
            manner.rtr = rtr;
            let offered = manner.offer(&made(kinds(Rtr::Any)));
            assert_eq!(offered, made(kinds(rtr)));
            assert_eq!(parse_request(&offered), Some((2, kinds(rtr))));
        }
        assert_eq!(parse_request(&made(None)[..20]), None);
    }
}
