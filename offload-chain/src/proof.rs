//! Proof that somebody knows a group's token, without saying it: HMAC-SHA-256, the first half of it (RFC 2104 section 5).

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

pub(crate) const PROOF_BYTES: usize = 16;

fn mac(token: [u8; 16], what: &[u8], said: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(&token).expect("HMAC takes keys of any length");
    // Of fixed length each, so that nothing can be moved from one to the next.
    mac.update(what);
    for said in said {
        mac.update(said);
    }
    mac
}

/// Proves it for what is said, in a place of its own: `what`.
pub(crate) fn prove(token: [u8; 16], what: &[u8; 8], said: &[&[u8]]) -> [u8; PROOF_BYTES] {
    let whole = mac(token, what, said).finalize().into_bytes();
    let mut proof = [0; PROOF_BYTES];
    proof.copy_from_slice(&whole[..PROOF_BYTES]);
    proof
}

/// Whether that proves it. Takes the same time for each wrong one.
pub(crate) fn is_proven(
    token: [u8; 16],
    what: &[u8; 8],
    said: &[&[u8]],
    proof: [u8; PROOF_BYTES],
) -> bool {
    mac(token, what, said).verify_truncated_left(&proof).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_knows_the_token_proves_it() {
        let said: [&[u8]; 2] = [b"abc", b"d"];
        let proof = prove([7; 16], b"greeting", &said);
        assert!(is_proven([7; 16], b"greeting", &said, proof));
        assert!(!is_proven([8; 16], b"greeting", &said, proof));
        assert!(!is_proven([7; 16], b"elsewhat", &said, proof));
        assert!(!is_proven([7; 16], b"greeting", &[b"abd", b"d"], proof));
        for bit in 0..8 * PROOF_BYTES {
            let mut other = proof;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_proven([7; 16], b"greeting", &said, other), "bit {bit}");
        }
    }
}
