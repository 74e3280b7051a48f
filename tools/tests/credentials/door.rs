//! Who is let in, and that these tests would notice if somebody else were.

use proptest::prelude::*;
use softrdma::ProtectionDomain;
use tools::credentials::planted::Bug;
use tools::credentials::{Claims, Denial, Door, Greeting, Key, Tenant};

use super::{ALPHA, BETA, NOW};

fn door(bug: Option<Bug>) -> (Door, Key) {
    let key = Key::derive(b"a secret of alpha").unwrap();
    let tenants = vec![
        Tenant::new("alpha".parse().unwrap(), key.clone(), 3, ALPHA, 0),
        Tenant::new(
            "beta".parse().unwrap(),
            Key::derive(b"a secret of beta.").unwrap(),
            3,
            BETA,
            0,
        ),
    ];
    let door = Door::new(tenants, false);
    match bug {
        Some(bug) => (door.with_bug(bug), key),
        None => (door, key),
    }
}

fn claims() -> Claims {
    Claims {
        tenant: "alpha".parse().unwrap(),
        epoch: 3,
        expires: NOW + 100,
        once: false,
        nonce: [1; 16],
    }
}

/// Who is let in, and what others are told (RELIABILITY §8).
fn door_holds(bug: Option<Bug>) -> bool {
    let (door, key) = door(bug);
    let try_at = |token: &[u8], now| door.admit(token, now).map(|a| a.domain);
    let sign = |change: fn(&mut Claims)| {
        let mut claims = claims();
        change(&mut claims);
        key.sign(&claims)
    };
    let good = sign(|_| {});
    let once = sign(|c| c.once = true);
    let mut forged = good.clone();
    *forged.last_mut().unwrap() ^= 1;
    let truncated = &good[..good.len() - 1];
    let oversized = [&good[..], b"x"].concat();
    let cases: [(&[u8], u64, Result<ProtectionDomain, Denial>); 17] = [
        (b"", NOW, Err(Denial::NoToken)),
        (b"rping", NOW, Err(Denial::NoToken)),
        (&good, NOW, Ok(ALPHA)),
        (&good, NOW, Ok(ALPHA)),
        (&forged, NOW, Err(Denial::Refused)),
        (truncated, NOW, Err(Denial::Malformed)),
        (&oversized, NOW, Err(Denial::Malformed)),
        // Beta's name with alpha's key; nobody's name.
        (
            &sign(|c| c.tenant = "beta".parse().unwrap()),
            NOW,
            Err(Denial::Refused),
        ),
        (
            &sign(|c| c.tenant = "gamma".parse().unwrap()),
            NOW,
            Err(Denial::Refused),
        ),
        (&sign(|c| c.epoch = 2), NOW, Err(Denial::Epoch)),
        (&sign(|c| c.epoch = 4), NOW, Err(Denial::Epoch)),
        (&once, NOW, Ok(ALPHA)),
        (&once, NOW, Err(Denial::Used)),
        (
            &sign(|c| (c.once, c.expires) = (true, NOW + 301)),
            NOW,
            Err(Denial::TooLong),
        ),
        (&good, NOW + 99, Ok(ALPHA)),
        (&good, NOW + 100, Err(Denial::Expired)),
        // The clock is set back: it stays over.
        (&good, NOW, Err(Denial::Expired)),
    ];
    cases
        .iter()
        .all(|(token, now, expected)| try_at(token, *now) == *expected)
}

#[test]
fn the_door() {
    assert!(door_holds(None));
}

/// I16: of a tenant so many tokens are remembered as can be; one more waits until some of them have expired, and none is forgotten before.
#[test]
fn remembered_tokens_are_bounded() {
    const MOST: u128 = 16_384;
    let (door, key) = door(None);
    let admit = |n: u128, expires, now| {
        let token = key.sign(&Claims {
            once: true,
            nonce: n.to_be_bytes(),
            expires,
            ..claims()
        });
        door.admit(&token, now).map(|admission| admission.domain)
    };
    for n in 0..MOST {
        assert_eq!(admit(n, NOW + 100, NOW), Ok(ALPHA));
    }
    assert_eq!(admit(MOST, NOW + 200, NOW), Err(Denial::Busy));
    assert_eq!(admit(0, NOW + 100, NOW), Err(Denial::Used));
    assert_eq!(admit(MOST, NOW + 200, NOW + 100), Ok(ALPHA));
    assert_eq!(admit(MOST, NOW + 200, NOW + 100), Err(Denial::Used));
}

/// M12: a door that is wrong in one way is found out.
#[test]
fn planted_bugs_of_the_door_are_found() {
    for bug in Bug::DOOR {
        assert!(!door_holds(Some(bug)), "nobody has noticed {bug:?}");
    }
}

proptest! {
    /// M9: private data of strangers, also when it begins like ours, is parsed without harm, and lets nobody in.
    #[test]
    fn strange_private_data(mut bytes in prop::collection::vec(any::<u8>(), 0..600), like in 0..3_usize) {
        let magic: &[u8] = [&b""[..], b"FNT1", b"FNS1"][like];
        bytes.splice(..0, magic.iter().copied());
        let _ = Greeting::parse(&bytes);
        prop_assert!(door(None).0.admit(&bytes, NOW).is_err());
    }

    /// M9: so are tokens with a field changed.
    #[test]
    fn hostile_fields(at in 0..77_usize, byte: u8) {
        let (door, key) = door(None);
        let mut token = key.sign(&claims());
        let changed = token[at] != byte;
        token[at] = byte;
        prop_assert_eq!(door.admit(&token, NOW).is_err(), changed);
    }
}
