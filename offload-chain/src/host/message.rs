//! What members say to each other, on connections of their own: each direction has one.
//!
//! | from | bytes | |
//! |---|---|---|
//! | who calls | 16 | `FLASHNET-MEMBER` and the version, 3 |
//! | | 16 | its nonce: random |
//! | who is called | 16 | its nonce |
//! | | 16 | proof that it knows the group's token, of both nonces |
//! | who calls | 4 | number of the member that it is, little-endian |
//! | | 16 | proof of both nonces and that number |
//!
//! So each knows that the other is of the group before it says or hears anything, and what was said once is of no use to who listened. Then
//! frames: length (4, little-endian), CRC-32 of what follows (4), a [`Said`] as postcard has it. TCP's checksum is weak, and
//! chunks of memory are in here.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::membership::{BATCH_CHUNKS, MemberId, Message, Seat};
use crate::memory::CHUNK_BYTES;
use crate::proof::{PROOF_BYTES, is_proven, prove};

pub(super) const MAGIC: [u8; 16] = *b"FLASHNET-MEMBER\x03";
const NONCE_BYTES: usize = 16;
/// Twice what a whole batch of chunks takes.
const FRAME_BYTES_MAX: usize = 2 * (BATCH_CHUNKS * CHUNK_BYTES) as usize;
/// What is proven.
const CALLS: &[u8; 8] = b"FN calls";
const CALLED: &[u8; 8] = b"FNcalled";

/// What a member says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Said {
    /// It is alive.
    Beat(Seat),
    /// For its agent.
    Agent(Message),
}

/// The member that was called has TLS.
#[derive(Debug, thiserror::Error)]
#[error("it wants TLS, and this member serves without (--tls-cert)")]
pub(super) struct NeedsTls;

/// Greets who is called.
pub(super) fn greet(
    stream: &mut (impl Read + Write),
    token: [u8; 16],
    from: MemberId,
) -> io::Result<()> {
    let own: [u8; NONCE_BYTES] = rand::random();
    stream.write_all(&[MAGIC, own].concat())?;
    let (other, proof): ([u8; NONCE_BYTES], [u8; PROOF_BYTES]) = (array(stream)?, array(stream)?);
    if [other, proof].concat() == NEEDS_TLS {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, NeedsTls));
    }
    if !is_proven(token, CALLED, &[&own, &other], proof) {
        return Err(stranger());
    }
    let from = from.0.to_le_bytes();
    let proof = prove(token, CALLS, &[&own, &other, &from]);
    stream.write_all(&[&from[..], &proof].concat())
}

/// What a member says first.
pub(super) const FIRST_BYTES: usize = MAGIC.len() + NONCE_BYTES;
/// What it is answered.
pub(super) const ANSWER_BYTES: usize = NONCE_BYTES + PROOF_BYTES;
/// What it says then.
pub(super) const NAME_BYTES: usize = 4 + PROOF_BYTES;

/// The answer to a member that should have come by TLS.
pub(super) const NEEDS_TLS: [u8; ANSWER_BYTES] = *b"FLASHNET-MEMBER: it needs TLS\r\n\0";

/// The greeting of somebody who has said that it is a member, and was answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Greeted {
    other: [u8; NONCE_BYTES],
    own: [u8; NONCE_BYTES],
}

impl Greeted {
    /// Somebody begins so; what to answer.
    pub(super) fn answer(
        token: [u8; 16],
        first: &[u8; FIRST_BYTES],
    ) -> io::Result<(Self, [u8; ANSWER_BYTES])> {
        let mut first = &first[..];
        let (magic, other): ([u8; MAGIC.len()], _) = (array(&mut first)?, array(&mut first)?);
        if magic != MAGIC {
            return Err(stranger());
        }
        let own: [u8; NONCE_BYTES] = rand::random();
        let mut answer = [0; ANSWER_BYTES];
        let (nonce, proof) = answer.split_at_mut(NONCE_BYTES);
        nonce.copy_from_slice(&own);
        proof.copy_from_slice(&prove(token, CALLED, &[&other, &own]));
        Ok((Self { other, own }, answer))
    }

    /// It goes on so: which member it is.
    pub(super) fn member(&self, token: [u8; 16], name: &[u8; NAME_BYTES]) -> io::Result<MemberId> {
        let mut name = &name[..];
        let (from, proof): ([u8; 4], _) = (array(&mut name)?, array(&mut name)?);
        match is_proven(token, CALLS, &[&self.other, &self.own, &from], proof) {
            true => Ok(MemberId(u32::from_le_bytes(from))),
            false => Err(stranger()),
        }
    }
}

fn array<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Somebody who does not know the group's token.
fn stranger() -> io::Error {
    let kind = io::ErrorKind::PermissionDenied;
    io::Error::new(kind, "it does not know the group's token")
}

pub(super) fn write(to: &mut impl Write, said: &Said) -> io::Result<()> {
    let body = postcard::to_stdvec(said).map_err(io::Error::other)?;
    let mut frame = Vec::with_capacity(body.len() + 8);
    frame.extend((body.len() as u32).to_le_bytes());
    frame.extend(crc32fast::hash(&body).to_le_bytes());
    frame.extend(body);
    to.write_all(&frame)
}

pub(super) fn read(from: &mut impl Read) -> io::Result<Said> {
    let mut head = [0; 8];
    from.read_exact(&mut head)?;
    let [a, b, c, d, crc @ ..] = head;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other("a frame that no member sends"));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    if crc32fast::hash(&body) != u32::from_le_bytes(crc) {
        return Err(io::Error::other("damaged on the way"));
    }
    postcard::from_bytes(&body).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;
    use crate::epoch::Epoch;
    use crate::membership::{Ask, Boot, Give};

    fn seat() -> Seat {
        Seat {
            id: MemberId(3),
            boot: Boot(77),
        }
    }

    /// I10: what arrives is what was said, or refused; at no length, and with no bit, does it panic.
    #[test]
    fn frames() {
        let give = Give {
            number: 9,
            from: seat(),
            generation: 5,
            first: 4,
            header: vec![1; 96],
            chunks: vec![(4, vec![2; 4096].into()), (9, vec![3; 100].into())],
            next: 10,
            more: true,
        };
        let ask = Ask {
            epoch: Epoch(4),
            number: 8,
            since: Some((Boot(1), 2)),
            first: 2,
            end: 100,
            digests: vec![7; 32],
        };
        for said in [
            Said::Beat(seat()),
            Said::Agent(Message::Ask(ask)),
            Said::Agent(Message::Give(give)),
        ] {
            let mut bytes = Vec::new();
            write(&mut bytes, &said).unwrap();
            assert_eq!(read(&mut &bytes[..]).unwrap(), said);
            for end in 0..bytes.len() {
                assert!(read(&mut &bytes[..end]).is_err());
            }
            for at in (0..bytes.len()).step_by(7) {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << (at % 8);
                assert!(read(&mut &flipped[..]).is_err(), "bit of byte {at}");
            }
        }
        let long = [0xff; 64];
        assert!(read(&mut &long[..]).is_err());
    }

    fn hear_greeting(stream: &mut UnixStream, token: [u8; 16]) -> io::Result<MemberId> {
        let (greeted, answer) = Greeted::answer(token, &array(stream)?)?;
        stream.write_all(&answer)?;
        greeted.member(token, &array(stream)?)
    }

    /// I12: a stranger is no member.
    #[test]
    fn greetings() {
        let meet = |knows: [u8; 16]| {
            let (mut here, mut there) = UnixStream::pair().unwrap();
            let called = thread::spawn(move || hear_greeting(&mut there, [5; 16]));
            let calls = greet(&mut here, knows, MemberId(2));
            drop(here);
            (calls.is_ok(), called.join().unwrap().ok())
        };
        assert_eq!(meet([5; 16]), (true, Some(MemberId(2))));
        assert_eq!(meet([6; 16]), (false, None));
    }

    /// What a member said is of no use to who says it again, and who does not know the token is told nothing.
    #[test]
    fn greetings_again() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let called = thread::spawn(move || hear_greeting(&mut there, [5; 16]));
        let mut wire = Tapped(&mut here, Vec::new());
        greet(&mut wire, [5; 16], MemberId(2)).unwrap();
        let said = wire.1;
        assert!(called.join().unwrap().is_ok());
        assert!(said.windows(16).all(|bytes| bytes != [5; 16]));
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let called = thread::spawn(move || hear_greeting(&mut there, [5; 16]));
        here.write_all(&said).unwrap();
        let error = called.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    /// Keeps what is written.
    struct Tapped<'a>(&'a mut UnixStream, Vec<u8>);

    impl Read for Tapped<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.0.read(to)
        }
    }

    impl Write for Tapped<'_> {
        fn write(&mut self, from: &[u8]) -> io::Result<usize> {
            let count = self.0.write(from)?;
            self.1.extend(&from[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }
}
