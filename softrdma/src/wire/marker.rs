//! Markers in what we send, for peers that ask for them (RFC 5044 §4.3). We never ask, so none are received.
//!
//! A marker is four bytes: 16 zero bits and the distance back to the length field of the FPDU it lies in. One stands
//! every 512 bytes of the stream in full operation, counted from the first FPDU, beginning at 0.

use super::fpdu::{CRC_BYTES, close, crc, open};

/// Distance from marker to marker.
pub const MARKER_SPACING: u64 = 512;
const MARKER_BYTES: u64 = 4;

/// Writes FPDUs to a stream, with or without CRCs and markers.
#[derive(Clone, Debug, Default)]
pub struct Framer {
    /// Compute CRCs.
    pub crc: bool,
    /// Position in the stream of full operation, if markers are wanted.
    position: Option<u64>,
    scratch: Vec<u8>,
}

impl Framer {
    /// A framer at the start of full operation.
    #[must_use]
    pub fn new(crc: bool, markers: bool) -> Self {
        Self {
            crc,
            position: markers.then_some(0),
            scratch: Vec::new(),
        }
    }

    /// Are markers sent?
    #[must_use]
    pub fn markers(&self) -> bool {
        self.position.is_some()
    }

    /// Starts an FPDU at the end of `out`; append the ULPDU, then [`seal`](Self::seal).
    pub fn open(&self, out: &mut Vec<u8>) -> usize {
        open(out)
    }

    /// Ends the FPDU opened at `at`.
    pub fn seal(&mut self, out: &mut Vec<u8>, at: usize) {
        match self.position {
            None => super::fpdu::seal(out, at, self.crc),
            Some(position) => self.position = Some(self.seal_marked(out, at, position)),
        }
    }

    /// Rewrites the FPDU with markers; returns the new position. Fields and markers are all multiples of four bytes
    /// from the start of the stream, so a marker never falls inside a word.
    fn seal_marked(&mut self, out: &mut Vec<u8>, at: usize, mut position: u64) -> u64 {
        close(out, at);
        self.scratch.clear();
        self.scratch.extend_from_slice(&out[at..]);
        out.truncate(at);
        // Where the length field will be: behind a marker that stands between two FPDUs.
        let mut length_at = position;
        if position.is_multiple_of(MARKER_SPACING) {
            push_marker(out, 0);
            position += MARKER_BYTES;
            length_at = position;
        }
        for word in self.scratch.chunks(4) {
            if position.is_multiple_of(MARKER_SPACING) && position != length_at {
                push_marker(out, position - length_at);
                position += MARKER_BYTES;
            }
            out.extend_from_slice(word);
            position += word.len() as u64;
        }
        if position.is_multiple_of(MARKER_SPACING) {
            push_marker(out, position - length_at);
            position += MARKER_BYTES;
        }
        let crc = if self.crc {
            crc(&out[at..])
        } else {
            [0; CRC_BYTES]
        };
        out.extend_from_slice(&crc);
        position + CRC_BYTES as u64
    }
}

/// An FPDU has at most 65,535 + 2 + 3 bytes and 129 markers; the pointer field has 16 bits. Our ULPDUs stop at 64,768
/// bytes, so that the largest distance, 65,288, fits.
fn push_marker(out: &mut Vec<u8>, distance: u64) {
    let distance = u16::try_from(distance).expect("ULPDU limit keeps the marker in range");
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(&distance.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(framer: &mut Framer, msn: u8, payload: &[u8], out: &mut Vec<u8>) {
        let at = framer.open(out);
        out.extend_from_slice(&[0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, msn, 0, 0, 0, 0]);
        out.extend_from_slice(payload);
        framer.seal(out, at);
    }

    /// RFC 5044 figure 5: the marker comes first.
    #[test]
    fn figure_5() {
        let mut out = Vec::new();
        send(&mut Framer::new(true, true), 1, &[0; 24], &mut out);
        let head = [
            0, 0, 0, 0, 0, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
        ];
        assert_eq!(out[..24], head);
        assert_eq!(out[24..48], [0; 24]);
        assert_eq!(out[48..], [0x52, 0x23, 0x99, 0x83]);
    }

    /// RFC 5044 figure 6: the marker lies inside, 20 bytes behind the length field.
    #[test]
    fn figure_6() {
        let mut framer = Framer {
            crc: true,
            position: Some(512 - 20),
            scratch: Vec::new(),
        };
        let mut out = Vec::new();
        send(&mut framer, 2, &[0; 24], &mut out);
        let head = [
            0, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0x14,
        ];
        assert_eq!(out[..24], head);
        assert_eq!(out[24..48], [0; 24]);
        assert_eq!(out[48..], [0x84, 0x92, 0x58, 0x98]);
    }

    /// Taking every 512th word out again gives the plain FPDUs, at any length, and each marker points back to its FPDU.
    #[test]
    fn markers_every_512_bytes() {
        let mut framer = Framer::new(true, true);
        let mut marked = Vec::new();
        let mut plain_framer = Framer::new(false, false);
        let mut plain = Vec::new();
        let mut markers_inside = 0;
        for n in 0..300_usize {
            let payload = vec![n as u8; n * 7 % 1500];
            let start = marked.len();
            send(&mut framer, n as u8, &payload, &mut marked);
            // Behind a marker between two FPDUs, which points at nothing.
            let is_between = start.is_multiple_of(512);
            let length_at = if is_between { start + 4 } else { start };
            for at in (start..marked.len()).filter(|at| at.is_multiple_of(512)) {
                let distance = at.saturating_sub(length_at) as u32;
                assert_eq!(marked[at..at + 4], distance.to_be_bytes());
                markers_inside += usize::from(at > start);
            }
            let (covered, found) = marked[start..].split_at(marked.len() - start - CRC_BYTES);
            assert_eq!(found, crc(covered), "the CRC covers the markers");
            send(&mut plain_framer, n as u8, &payload, &mut plain);
        }
        assert!(markers_inside > 300);
        let mut stripped = Vec::new();
        for chunk in marked.chunks(512) {
            assert_eq!(chunk[..2], [0, 0]);
            stripped.extend_from_slice(&chunk[4..]);
        }
        // Only the CRCs differ: they are off in the plain stream.
        let (mut a, mut b) = (&stripped[..], &plain[..]);
        while !b.is_empty() {
            let Ok(crate::wire::fpdu::NextFpdu::Fpdu(left, total)) =
                crate::wire::fpdu::next(a, false)
            else {
                panic!("an FPDU")
            };
            let Ok(crate::wire::fpdu::NextFpdu::Fpdu(right, _)) = crate::wire::fpdu::next(b, false)
            else {
                panic!("an FPDU")
            };
            assert_eq!(left, right);
            (a, b) = (&a[total..], &b[total..]);
        }
        assert!(a.is_empty());
    }
}
