//! FPDUs: length, ULPDU, padding, CRC (RFC 5044 §4).

/// Bytes of the length field.
pub const LENGTH_BYTES: usize = 2;
/// Bytes of the CRC.
pub const CRC_BYTES: usize = 4;

/// The FPDU's CRC does not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("FPDU with a wrong CRC")]
pub struct CrcMismatch;

/// Result of looking at the start of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextFpdu<'a> {
    /// At least this many bytes are needed.
    Need(usize),
    /// The ULPDU, and the length of the whole FPDU.
    Fpdu(&'a [u8], usize),
}

/// CRC-32C over `bytes`, as it lies on the wire.
#[must_use]
pub fn crc(bytes: &[u8]) -> [u8; CRC_BYTES] {
    crc32c::crc32c(bytes).to_le_bytes()
}

/// Padding behind a ULPDU of this length.
#[must_use]
pub const fn pad(ulpdu: usize) -> usize {
    (LENGTH_BYTES + ulpdu).wrapping_neg() % 4
}

/// Reads the FPDU at the start of `bytes`, which holds no markers.
///
/// # Errors
/// If `check` is on and the CRC is wrong.
pub fn next(bytes: &[u8], check: bool) -> Result<NextFpdu<'_>, CrcMismatch> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Ok(NextFpdu::Need(LENGTH_BYTES));
    };
    let ulpdu = usize::from(u16::from_be_bytes(*length));
    let covered = LENGTH_BYTES + ulpdu + pad(ulpdu);
    let total = covered + CRC_BYTES;
    let Some(fpdu) = bytes.get(..total) else {
        return Ok(NextFpdu::Need(total));
    };
    if check && fpdu[covered..] != crc(&fpdu[..covered]) {
        return Err(CrcMismatch);
    }
    Ok(NextFpdu::Fpdu(&rest[..ulpdu], total))
}

/// Starts an FPDU at the end of `out`: room for the length. The caller appends the ULPDU and calls [`seal`].
pub fn open(out: &mut Vec<u8>) -> usize {
    let at = out.len();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    at
}

/// Ends the FPDU opened at `at`: length, padding, CRC (zeros when off).
///
/// # Panics
/// If more than 65535 bytes were appended; senders cut at the ULPDU limit, which is lower.
pub fn seal(out: &mut Vec<u8>, at: usize, with_crc: bool) {
    close(out, at);
    let crc = if with_crc {
        crc(&out[at..])
    } else {
        [0; CRC_BYTES]
    };
    out.extend_from_slice(&crc);
}

/// Fills in length and padding only.
pub(super) fn close(out: &mut Vec<u8>, at: usize) {
    let ulpdu = out.len() - at - LENGTH_BYTES;
    let length = u16::try_from(ulpdu).expect("ULPDU cut at its limit");
    out[at..at + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
    out.resize(out.len() + pad(ulpdu), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FPDUs without markers of protocol note §4: (ULPDU, whole FPDU).
    pub(crate) fn golden() -> Vec<Vec<u8>> {
        let rows: [&[&str]; 6] = [
            &["000e", "c140", "00000000", "0000000000000000", "a30572ab"],
            &[
                "002e",
                "4141",
                "00000000",
                "00000001",
                "00000001",
                "00000000",
                &"00".repeat(28),
                "f2c6dd3d",
            ],
            &[
                "0012", "4143", "00000000", "00000000", "00000001", "00000000", "587be8c4",
            ],
            &[
                "001a",
                "4148",
                "00000000",
                "00000000",
                "00000001",
                "00000000",
                "0102030405060708",
                "06c22805",
            ],
            &[
                "001e",
                "414b",
                "00000000",
                "00000003",
                "00000001",
                "00000000",
                "00000001",
                "0000000000000029",
                "ebf3f1db",
            ],
            &[
                "0012", "4143", "00000000", "00000000", "00000001", "00000000", "587be8c4",
            ],
        ];
        rows.iter().map(|row| unhex(&row.concat())).collect()
    }

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
            .collect()
    }

    /// Golden bytes, both ways, and every prefix asks for more.
    #[test]
    fn golden_fpdus() {
        for bytes in golden() {
            let Ok(NextFpdu::Fpdu(ulpdu, total)) = next(&bytes, true) else {
                panic!("an FPDU: {bytes:02x?}")
            };
            assert_eq!(total, bytes.len());
            let mut out = vec![7];
            let at = open(&mut out);
            out.extend_from_slice(ulpdu);
            seal(&mut out, at, true);
            assert_eq!(out[1..], bytes);
            for n in 0..bytes.len() {
                assert_eq!(
                    next(&bytes[..n], true),
                    Ok(NextFpdu::Need(if n < 2 { 2 } else { total }))
                );
            }
        }
    }

    #[test]
    fn check_value() {
        assert_eq!(crc(b"123456789"), 0xE306_9283_u32.to_le_bytes());
    }

    /// Each single-bit damage is found; with CRC off none is looked for.
    #[test]
    fn damage() {
        let bytes = &golden()[1];
        for bit in 16..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(next(&bad, true), Err(CrcMismatch));
            assert!(next(&bad, false).is_ok());
        }
    }

    #[test]
    fn padding() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(pad), [2, 1, 0, 3, 2, 1]);
    }
}
