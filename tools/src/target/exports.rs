//! Which directories of the volume remote clients may use, and how.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A directory offered to remote clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Export {
    /// Absolute path in the volume.
    pub path: String,
    /// Refuse everything that changes something.
    #[serde(default)]
    pub read_only: bool,
}

/// Why a path cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ExportError {
    /// Not below any export.
    #[error("{0} is not exported")]
    NotExported(String),
    /// Below a read-only one.
    #[error("{0} is exported read-only")]
    ReadOnly(String),
    /// Not a path as clients have to write it.
    #[error("{0:?} is not an absolute path without empty parts, . and ..")]
    Malformed(String),
}

impl ExportError {
    /// The errno that says it best.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotExported(_) => libc::EACCES,
            Self::ReadOnly(_) => libc::EROFS,
            Self::Malformed(_) => libc::EINVAL,
        }
    }
}

impl FromStr for Export {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, read_only) = match text.strip_suffix(":ro") {
            Some(path) => (path, true),
            None => (text.strip_suffix(":rw").unwrap_or(text), false),
        };
        check_path(path).map_err(|e| e.to_string())?;
        Ok(Self {
            path: path.to_owned(),
            read_only,
        })
    }
}

impl Export {
    /// Checks its path, which has not been if it comes from a file.
    pub(super) fn check(&self) -> Result<(), ExportError> {
        check_path(&self.path)
    }
}

impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}{}",
            self.path,
            if self.read_only { ":ro" } else { "" }
        )
    }
}

/// All exports of a target.
#[derive(Clone, Debug)]
pub struct Exports(Vec<Export>);

impl Exports {
    /// These exports; the whole volume, writable, if there are none.
    pub fn new(exports: Vec<Export>) -> Self {
        if exports.is_empty() {
            return Self(vec![Export {
                path: "/".to_owned(),
                read_only: false,
            }]);
        }
        Self(exports)
    }

    /// The same, none of them writable.
    pub(super) fn read_only(self) -> Vec<Export> {
        let read_only = |export| Export {
            read_only: true,
            ..export
        };
        self.0.into_iter().map(read_only).collect()
    }

    /// The exports.
    pub fn iter(&self) -> impl Iterator<Item = &Export> {
        self.0.iter()
    }

    /// Checks that `path` may be read, or written if `write`. The innermost export that contains it decides; of a directory that
    /// is named twice, the one that is read-only.
    pub fn check(&self, path: &str, write: bool) -> Result<(), ExportError> {
        check_path(path)?;
        let inside = |export: &&Export| {
            let root = export.path.trim_end_matches('/');
            path.strip_prefix(root)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let export = self
            .0
            .iter()
            .filter(inside)
            .max_by_key(|export| (export.path.trim_end_matches('/').len(), export.read_only))
            .ok_or_else(|| ExportError::NotExported(path.to_owned()))?;
        if write && export.read_only {
            return Err(ExportError::ReadOnly(path.to_owned()));
        }
        Ok(())
    }
}

/// One path has one spelling, so that comparing paths is comparing what they lead to. A slash may end it.
fn check_path(path: &str) -> Result<(), ExportError> {
    let malformed = || ExportError::Malformed(path.to_owned());
    let inner = path.strip_prefix('/').ok_or_else(malformed)?;
    if inner.is_empty() {
        return Ok(());
    }
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    let legal = |part| !matches!(part, "" | "." | "..");
    if inner.split('/').all(legal) {
        Ok(())
    } else {
        Err(malformed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The innermost export decides, prefixes of names are not directories, and `..` leads nowhere.
    #[test]
    fn innermost_export_decides() {
        let exports = Exports::new(
            ["/a", "/a/b:ro"]
                .iter()
                .map(|text| text.parse().unwrap())
                .collect(),
        );
        assert_eq!(exports.check("/a/x", true), Ok(()));
        assert_eq!(exports.check("/a/b/x", false), Ok(()));
        assert!(matches!(
            exports.check("/a/b/x", true),
            Err(ExportError::ReadOnly(_))
        ));
        for outside in ["/", "/ab", "/b"] {
            assert!(matches!(
                exports.check(outside, false),
                Err(ExportError::NotExported(_))
            ));
        }
        for malformed in ["a", "", "//", "//a", "/a//b", "/a/b//", "/a/../c", "/a/./b"] {
            assert!(matches!(
                exports.check(malformed, false),
                Err(ExportError::Malformed(_))
            ));
        }
        assert_eq!(Exports::new(Vec::new()).check("/any", true), Ok(()));
        for twice in [["/c:ro", "/c"], ["/c", "/c:ro"], ["/c:ro", "/c/"]] {
            let twice = twice.iter().map(|text| text.parse().unwrap());
            let checked = Exports::new(twice.collect()).check("/c/x", true);
            assert_eq!(checked, Err(ExportError::ReadOnly("/c/x".to_owned())));
        }
    }
}
