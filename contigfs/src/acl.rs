//! POSIX access control lists (POSIX 1003.1e draft 17, acl(5)): entries, their legal orders, and how they and the
//! permission bits of a mode follow each other. The bytes are those of the attributes `system.posix_acl_*` of Linux.
//!
//! Who may do what is judged by the kernel; here an ACL is kept, inherited, and kept in step with the mode.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the byte form.
const VERSION: u32 = 2;
/// Id of entries that have none.
const NO_ID: u32 = u32::MAX;
const RWX: u16 = 0o7;

/// The byte form: a header, then the entries.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    version: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    tag: U16,
    perm: U16,
    id: U32,
}
const _: () = assert!(size_of::<RawHeader>() == 4 && size_of::<RawEntry>() == 8);

/// Whom an entry is about. The order is that of entries in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    /// The owner.
    Owner,
    /// The user of this id.
    User(u32),
    /// The owning group.
    OwningGroup,
    /// The group of this id.
    Group(u32),
    /// The most that the three kinds before give, owner apart.
    Mask,
    /// Everybody else.
    Others,
}

impl Tag {
    fn parse(raw: &RawEntry) -> Option<Self> {
        let id = raw.id.get();
        match raw.tag.get() {
            0x01 => Some(Self::Owner),
            0x02 => (id != NO_ID).then_some(Self::User(id)),
            0x04 => Some(Self::OwningGroup),
            0x08 => (id != NO_ID).then_some(Self::Group(id)),
            0x10 => Some(Self::Mask),
            0x20 => Some(Self::Others),
            _ => None,
        }
    }

    fn emit(self) -> (u16, u32) {
        match self {
            Self::Owner => (0x01, NO_ID),
            Self::User(id) => (0x02, id),
            Self::OwningGroup => (0x04, NO_ID),
            Self::Group(id) => (0x08, id),
            Self::Mask => (0x10, NO_ID),
            Self::Others => (0x20, NO_ID),
        }
    }

    /// Place in the order of a list; users and groups among themselves have none.
    fn rank(self) -> u8 {
        match self {
            Self::Owner => 0,
            Self::User(_) => 1,
            Self::OwningGroup => 2,
            Self::Group(_) => 3,
            Self::Mask => 4,
            Self::Others => 5,
        }
    }

    fn has_id(self) -> bool {
        matches!(self, Self::User(_) | Self::Group(_))
    }
}

/// A legal list: owner, users, owning group, groups, mask (always, if there are users or groups), others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    entries: Vec<(Tag, u16)>,
}

/// What a new inode gets from the default list of its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inherited {
    /// Its lower nine permission bits.
    pub(crate) perm: u16,
    /// Its access list, unless the permission bits say it all.
    pub(crate) access: Option<Acl>,
}

impl Acl {
    /// Judges the value of an attribute; `Ok(None)` for a list without entries, which stands for no list.
    pub(crate) fn parse(value: &[u8]) -> Result<Option<Self>, InvalidAcl> {
        let (header, rest) = RawHeader::ref_from_prefix(value).map_err(|_| InvalidAcl)?;
        let raw = <[RawEntry]>::ref_from_bytes(rest).map_err(|_| InvalidAcl)?;
        if header.version.get() != VERSION {
            return Err(InvalidAcl);
        }
        if raw.is_empty() {
            return Ok(None);
        }
        let mut entries = Vec::with_capacity(raw.len());
        for entry in raw {
            let tag = Tag::parse(entry).ok_or(InvalidAcl)?;
            if entry.perm.get() & !RWX != 0 {
                return Err(InvalidAcl);
            }
            entries.push((tag, entry.perm.get()));
        }
        let in_order =
            entries
                .windows(2)
                .all(|pair| match pair[0].0.rank().cmp(&pair[1].0.rank()) {
                    std::cmp::Ordering::Less => true,
                    std::cmp::Ordering::Equal => pair[0].0.has_id(),
                    std::cmp::Ordering::Greater => false,
                });
        let acl = Self { entries };
        let needs_mask = acl.entries.iter().any(|(tag, _)| tag.has_id());
        let complete = [Tag::Owner, Tag::OwningGroup, Tag::Others]
            .into_iter()
            .all(|tag| acl.find(tag).is_some())
            && (!needs_mask || acl.find(Tag::Mask).is_some());
        if in_order && complete {
            Ok(Some(acl))
        } else {
            Err(InvalidAcl)
        }
    }

    /// The value of the attribute.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for &(tag, perm) in &self.entries {
            let (tag, id) = tag.emit();
            let raw = RawEntry {
                tag: U16::new(tag),
                perm: U16::new(perm),
                id: U32::new(id),
            };
            bytes.extend(raw.as_bytes());
        }
        bytes
    }

    fn find(&self, tag: Tag) -> Option<usize> {
        self.entries.iter().position(|&(other, _)| other == tag)
    }

    fn perm(&self, tag: Tag) -> Option<u16> {
        self.find(tag).map(|at| self.entries[at].1)
    }

    fn set(&mut self, tag: Tag, perm: u16) {
        if let Some(at) = self.find(tag) {
            self.entries[at].1 = perm;
        }
    }

    /// The entry that the group bits of the mode stand for.
    fn group_class(&self) -> Tag {
        match self.find(Tag::Mask) {
            Some(_) => Tag::Mask,
            None => Tag::OwningGroup,
        }
    }

    /// The nine permission bits that a mode shows for this list.
    pub(crate) fn perm_bits(&self) -> u16 {
        let of = |tag| self.perm(tag).expect("a legal list has these entries");
        of(Tag::Owner) << 6 | of(self.group_class()) << 3 | of(Tag::Others)
    }

    /// Whether the permission bits say all that the list says.
    pub(crate) fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// The list after a `chmod` to these permission bits.
    #[must_use]
    pub(crate) fn with_perm_bits(&self, perm: u16) -> Self {
        let mut acl = self.clone();
        acl.set(Tag::Owner, perm >> 6 & RWX);
        acl.set(acl.group_class(), perm >> 3 & RWX);
        acl.set(Tag::Others, perm & RWX);
        acl
    }

    /// What a new inode gets from this default list, when it is made with these permission bits; the umask does not
    /// count then.
    pub(crate) fn inherit(&self, perm: u16) -> Inherited {
        let bits = self.perm_bits() & perm & 0o777;
        let access = self.with_perm_bits(bits);
        Inherited {
            perm: bits,
            access: (!access.is_minimal()).then_some(access),
        }
    }
}

/// Bytes that are no legal access control list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidAcl;

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0];
        for (tag, perm, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(perm.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl::parse(&list(entries)).unwrap().unwrap()
    }

    /// `u::rwx,u:7:rw-,g::r-x,m::rw-,o::r--`
    fn extended() -> Acl {
        acl(&[
            (1, 7, NO_ID),
            (2, 6, 7),
            (4, 5, NO_ID),
            (0x10, 6, NO_ID),
            (0x20, 4, NO_ID),
        ])
    }

    #[test]
    fn golden_and_round_trip() {
        let bytes = extended().emit();
        assert_eq!(
            &bytes[..20],
            b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x06\0\x07\0\0\0"
        );
        assert_eq!(Acl::parse(&bytes), Ok(Some(extended())));
        assert_eq!(Acl::parse(&list(&[])), Ok(None));
    }

    /// What a user may send, and what a crafted image may hold.
    #[test]
    fn illegal_lists_are_refused() {
        let refused = |bytes: &[u8]| assert_eq!(Acl::parse(bytes), Err(InvalidAcl), "{bytes:?}");
        refused(b"");
        refused(b"\x01\0\0\0");
        refused(&list(&[(1, 7, 0)]));
        refused(&list(&[(1, 7, 0), (4, 7, 0)]));
        refused(&list(&[(1, 8, 0), (4, 7, 0), (0x20, 0, 0)]));
        refused(&list(&[(4, 7, 0), (1, 7, 0), (0x20, 0, 0)]));
        refused(&list(&[(1, 7, 0), (1, 7, 0), (4, 7, 0), (0x20, 0, 0)]));
        refused(&list(&[(1, 7, 0), (2, 7, 5), (4, 7, 0), (0x20, 0, 0)]));
        refused(&list(&[
            (1, 7, 0),
            (2, 7, NO_ID),
            (4, 7, 0),
            (0x10, 7, 0),
            (0x20, 0, 0),
        ]));
        refused(&list(&[(1, 7, 0), (4, 7, 0), (0x20, 0, 0), (0x40, 0, 0)]));
        let mut cut = extended().emit();
        cut.pop();
        refused(&cut);
    }

    /// The group bits of the mode are the mask where there is one, the owning group where not.
    #[test]
    fn list_and_mode_follow_each_other() {
        let minimal = acl(&[(1, 6, NO_ID), (4, 5, NO_ID), (0x20, 4, NO_ID)]);
        assert!(minimal.is_minimal() && !extended().is_minimal());
        assert_eq!(
            (minimal.perm_bits(), extended().perm_bits()),
            (0o654, 0o764)
        );
        let changed = extended().with_perm_bits(0o4640);
        assert_eq!(changed.perm_bits(), 0o640);
        assert_eq!(changed.perm(Tag::OwningGroup), Some(5));
        assert_eq!(changed.perm(Tag::User(7)), Some(6));
        assert_eq!(
            minimal.with_perm_bits(0o070).perm(Tag::OwningGroup),
            Some(7)
        );
    }

    /// acl(5), "object creation and default ACLs": the mode asked for masks owner, group class and others.
    #[test]
    fn inheritance() {
        let inherited = extended().inherit(0o640);
        assert_eq!(inherited.perm, 0o640);
        let access = inherited.access.unwrap();
        assert_eq!(access.perm(Tag::Owner), Some(6));
        assert_eq!(access.perm(Tag::Mask), Some(4));
        assert_eq!(access.perm(Tag::OwningGroup), Some(5));
        assert_eq!(access.perm(Tag::User(7)), Some(6));
        let minimal = acl(&[(1, 6, NO_ID), (4, 5, NO_ID), (0x20, 4, NO_ID)]).inherit(0o777);
        assert_eq!(
            minimal,
            Inherited {
                perm: 0o654,
                access: None
            }
        );
    }
}
