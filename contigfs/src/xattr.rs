//! Extended attributes in memory: names, and the set that an inode has.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::error::FsError;

/// Longest name with its prefix, in bytes: Linux' `XATTR_NAME_MAX`.
const NAME_MAX: usize = 255;

/// How to set an attribute that may exist already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Make it or replace it.
    Set,
    /// Make it; it must not exist (`XATTR_CREATE`).
    Create,
    /// Replace it; it must exist (`XATTR_REPLACE`).
    Replace,
}

/// What a name begins with, which says who may use it and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum NameSpace {
    /// `user.`: anybody who may write the file.
    User = 1,
    /// `trusted.`: the administrator.
    Trusted = 2,
    /// `security.`: security modules and file capabilities.
    Security = 3,
    /// The whole name `system.posix_acl_access`.
    AccessAcl = 4,
    /// The whole name `system.posix_acl_default`.
    DefaultAcl = 5,
}

impl NameSpace {
    const ALL: [Self; 5] = [
        Self::User,
        Self::Trusted,
        Self::Security,
        Self::AccessAcl,
        Self::DefaultAcl,
    ];

    /// The namespace of this number.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|space| space.code() == code)
    }

    /// Its number on media.
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }

    /// What names in it begin with; an ACL's name is no longer than this.
    const fn prefix(self) -> &'static str {
        match self {
            Self::User => "user.",
            Self::Trusted => "trusted.",
            Self::Security => "security.",
            Self::AccessAcl => "system.posix_acl_access",
            Self::DefaultAcl => "system.posix_acl_default",
        }
    }

    const fn is_acl(self) -> bool {
        matches!(self, Self::AccessAcl | Self::DefaultAcl)
    }
}

/// A legal name of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct XattrName {
    space: NameSpace,
    /// Empty for an ACL, and only there.
    suffix: Box<[u8]>,
}

impl XattrName {
    /// `system.posix_acl_access`: who may do what beside owner, group and others.
    pub(crate) fn access_acl() -> Self {
        Self {
            space: NameSpace::AccessAcl,
            suffix: Box::default(),
        }
    }

    /// `system.posix_acl_default`: what new entries of a directory begin with.
    pub(crate) fn default_acl() -> Self {
        Self {
            space: NameSpace::DefaultAcl,
            suffix: Box::default(),
        }
    }

    /// `security.capability`: privileges that a program file gives; ends when the file is changed.
    pub(crate) fn capability() -> Self {
        Self {
            space: NameSpace::Security,
            suffix: b"capability"[..].into(),
        }
    }

    /// The name with this prefix and rest, if there can be one.
    pub(crate) fn new(space: NameSpace, suffix: &[u8]) -> Option<Self> {
        let fits = suffix.len() + space.prefix().len() <= NAME_MAX;
        let legal = suffix.is_empty() == space.is_acl() && fits && !suffix.contains(&0);
        legal.then(|| Self {
            space,
            suffix: suffix.into(),
        })
    }

    /// Reads a whole name.
    ///
    /// # Errors
    /// [`FsError::XattrName`] for an empty or overlong one, [`FsError::NotSupported`] for one of an unknown kind,
    /// [`FsError::Invalid`] for a prefix alone.
    pub(crate) fn parse(name: &[u8]) -> Result<Self, FsError> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(FsError::XattrName);
        }
        for space in NameSpace::ALL {
            match name.strip_prefix(space.prefix().as_bytes()) {
                Some(suffix) if space.is_acl() && !suffix.is_empty() => {}
                Some(suffix) => return Self::new(space, suffix).ok_or(FsError::Invalid),
                None => {}
            }
        }
        Err(FsError::NotSupported)
    }

    pub(crate) fn space(&self) -> NameSpace {
        self.space
    }

    /// The name without its prefix.
    pub(crate) fn suffix(&self) -> &[u8] {
        &self.suffix
    }

    /// The whole name.
    pub(crate) fn whole(&self) -> OsString {
        let prefix = OsStr::new(self.space.prefix()).as_bytes();
        OsString::from_vec([prefix, &self.suffix].concat())
    }

    fn len(&self) -> usize {
        self.space.prefix().len() + self.suffix.len()
    }
}

/// The attributes of an inode, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct XattrSet {
    entries: Vec<(XattrName, Vec<u8>)>,
}

impl XattrSet {
    /// Longest value, in bytes: Linux' `XATTR_SIZE_MAX`.
    pub(crate) const VALUE_MAX: usize = 65_536;
    /// Longest list of names, each with a byte behind it: Linux' `XATTR_LIST_MAX`.
    pub(crate) const NAMES_MAX: usize = 65_536;

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&XattrName, &[u8])> {
        self.entries.iter().map(|(name, value)| (name, &value[..]))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A set of these; `None` when a name occurs twice.
    pub(crate) fn from_entries(entries: Vec<(XattrName, Vec<u8>)>) -> Option<Self> {
        let mut names: Vec<_> = entries.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        let twice = names.windows(2).any(|pair| pair[0] == pair[1]);
        (!twice).then_some(Self { entries })
    }

    fn position(&self, name: &XattrName) -> Option<usize> {
        self.entries.iter().position(|(other, _)| other == name)
    }

    /// The value of a name.
    pub(crate) fn get(&self, name: &XattrName) -> Option<&[u8]> {
        self.position(name).map(|at| &self.entries[at].1[..])
    }

    /// Sets a value; answers the old one.
    pub(crate) fn put(&mut self, name: XattrName, value: &[u8]) -> Option<Vec<u8>> {
        match self.position(&name) {
            Some(at) => Some(std::mem::replace(&mut self.entries[at].1, value.into())),
            None => {
                self.entries.push((name, value.into()));
                None
            }
        }
    }

    /// Takes a name away; answers its value.
    pub(crate) fn remove(&mut self, name: &XattrName) -> Option<Vec<u8>> {
        self.position(name).map(|at| self.entries.remove(at).1)
    }

    /// Bytes of the list of all names, each with a byte behind it.
    pub(crate) fn names_bytes(&self) -> usize {
        self.entries.iter().map(|(name, _)| name.len() + 1).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let parse = |name: &str| XattrName::parse(name.as_bytes());
        for good in [
            "user.a",
            "trusted.\u{1}",
            "security.capability",
            "system.posix_acl_access",
            "system.posix_acl_default",
        ] {
            assert_eq!(parse(good).unwrap().whole(), good);
        }
        assert_eq!(
            parse("security.capability").unwrap(),
            XattrName::capability()
        );
        assert_eq!(parse(""), Err(FsError::XattrName));
        assert_eq!(parse("user."), Err(FsError::Invalid));
        assert_eq!(parse("user.a\0b"), Err(FsError::Invalid));
        for unknown in ["user", "other.a", "system.a", "system.posix_acl_accessx"] {
            assert_eq!(parse(unknown), Err(FsError::NotSupported), "{unknown}");
        }
        assert!(parse(&format!("user.{}", "n".repeat(250))).is_ok());
        assert_eq!(
            parse(&format!("user.{}", "n".repeat(251))),
            Err(FsError::XattrName)
        );
    }
}
