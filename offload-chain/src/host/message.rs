//! What members say to each other, on connections of their own: each direction has one.
//!
//! | bytes | greeting |
//! |---|---|
//! | 0..16 | `FLASHNET-MEMBER` and the version, 1 |
//! | 16..32 | the group's token |
//! | 32..36 | number of the member that calls, little-endian |
//!
//! Then frames: length (4, little-endian), CRC-32 of what follows (4), a [`Said`] as postcard has it. TCP's checksum is weak, and
//! chunks of memory are in here.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::membership::{BATCH_CHUNKS, MemberId, Message, Seat};
use crate::memory::CHUNK_BYTES;

pub(super) const MAGIC: [u8; 16] = *b"FLASHNET-MEMBER\x01";
pub(super) const GREETING_BYTES: usize = 36;
/// Twice what a whole batch of chunks takes.
const FRAME_BYTES_MAX: usize = 2 * (BATCH_CHUNKS * CHUNK_BYTES) as usize;

/// What a member says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Said {
    /// It is alive.
    Beat(Seat),
    /// For its agent.
    Agent(Message),
}

pub(super) fn greeting(token: [u8; 16], from: MemberId) -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..16].copy_from_slice(&MAGIC);
    bytes[16..32].copy_from_slice(&token);
    bytes[32..].copy_from_slice(&from.0.to_le_bytes());
    bytes
}

/// Who calls, if it knows the token.
pub(super) fn judge(token: [u8; 16], bytes: &[u8; GREETING_BYTES]) -> Option<MemberId> {
    let [a, b, c, d] = *bytes.last_chunk::<4>()?;
    let known = bytes[..16] == MAGIC && bytes[16..32] == token;
    known.then(|| MemberId(u32::from_le_bytes([a, b, c, d])))
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
            header: vec![1; 96],
            chunks: vec![(4, vec![2; 4096]), (9, vec![3; 100])],
            next: 10,
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

    /// I12: a stranger is no member.
    #[test]
    fn greetings() {
        let said = greeting([5; 16], MemberId(2));
        assert_eq!(judge([5; 16], &said), Some(MemberId(2)));
        assert_eq!(judge([6; 16], &said), None);
        let mut other = said;
        other[15] = 2;
        assert_eq!(judge([5; 16], &other), None);
    }
}
