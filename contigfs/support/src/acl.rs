//! Access control lists as bytes, handled as simply as acl(5) describes them.

const USER_OBJ: u16 = 0x01;
const GROUP_OBJ: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Entries are (tag, permissions, id).
pub fn bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// `u::rwx,u:7:rwx,g::r-x,m::rwx,o::---`
pub fn extended() -> Vec<u8> {
    bytes(&[
        (USER_OBJ, 7, !0),
        (0x02, 7, 7),
        (GROUP_OBJ, 5, !0),
        (MASK, 7, !0),
        (OTHER, 0, !0),
    ])
}

pub fn entries(bytes: &[u8]) -> Vec<(u16, u16, u32)> {
    let (entries, _) = bytes[4..].as_chunks::<8>();
    let entry = |e: &[u8; 8]| {
        (
            u16::from_le_bytes([e[0], e[1]]),
            u16::from_le_bytes([e[2], e[3]]),
            u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
        )
    };
    entries.iter().map(entry).collect()
}

fn of(list: &[u8], tag: u16) -> Option<u16> {
    entries(list).iter().find(|e| e.0 == tag).map(|e| e.1)
}

/// The mode that shows for a list.
pub fn perm(list: &[u8]) -> u16 {
    let group = of(list, MASK).or(of(list, GROUP_OBJ)).unwrap();
    of(list, USER_OBJ).unwrap() << 6 | group << 3 | of(list, OTHER).unwrap()
}

/// Whether the mode does not say it all.
pub fn says_more(list: &[u8]) -> bool {
    entries(list).len() > 3
}

/// The list after a change of the mode.
pub fn chmod(list: &[u8], perm: u16) -> Vec<u8> {
    let masked = of(list, MASK).is_some();
    let mut all = entries(list);
    for (tag, bits, _) in &mut all {
        match *tag {
            USER_OBJ => *bits = perm >> 6 & 7,
            OTHER => *bits = perm & 7,
            MASK => *bits = perm >> 3 & 7,
            GROUP_OBJ if !masked => *bits = perm >> 3 & 7,
            _ => {}
        }
    }
    bytes(&all)
}

/// The access list of something new below a default list.
pub fn inherit(list: &[u8], mode: u16) -> Vec<u8> {
    chmod(list, perm(list) & mode)
}
