//! What is in snapshots, by the paths that it has on a mount: `/.snapshots/NAME/...`. It can be read.
//!
//! A path into a snapshot may be used by whoever may use what is behind the name of the snapshot now.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use contigfs::{Attr, InodeNo, SNAPSHOT_NUMBER_SHIFT, SNAPSHOTS, Timestamp};
use ftl::snapshot::{NAME_MAX, SNAPSHOTS_MAX, Snapshot};
use softrdma::RegionSpec;

use super::names::{allowed, entry, list, resolve, shown};
use super::{Refusal, Service, is_directory, length_of, opened, regular};
use crate::control::{FLAG_GROW, FLAG_PERSISTENT, Reply, Request};
use crate::credentials::file_rights;
use crate::target::regions::{OpenRegion, Owner};
use crate::target::snapshots::View;
use crate::target::tenancy::Member;

const _: () = assert!(
    SNAPSHOTS_MAX * Reply::entry_bytes(NAME_MAX) <= Reply::PAYLOAD_BYTES_MAX,
    "all snapshots fit into one reply"
);

/// A path that leads to snapshots.
#[derive(Debug)]
pub(super) struct Inside<'r> {
    text: &'r str,
    /// Of the snapshot; none for the directory that they are in.
    name: Option<&'r str>,
    /// The rest of it, an absolute path.
    below: &'r str,
}

impl Inside<'_> {
    /// What who wants to change something here is told.
    pub(super) fn stays(&self) -> Refusal {
        let text = self.text;
        match self.name {
            None => Refusal(
                libc::EBUSY,
                format!("{text} is the directory of the snapshots"),
            ),
            Some(_) => Refusal(
                libc::EROFS,
                format!("{text} is part of a snapshot, which can not be changed"),
            ),
        }
    }
}

impl Service {
    /// What a path leads to among the snapshots, if it leads there.
    pub(super) fn in_snapshots<'r>(&self, path: &'r [u8]) -> Option<Inside<'r>> {
        let text = std::str::from_utf8(path).ok()?;
        let rest = text.strip_prefix('/')?.strip_prefix(SNAPSHOTS)?;
        let is_there = rest.is_empty() || rest.starts_with('/');
        // What an older version may have made under this name is what is found.
        if !is_there
            || !self.fs.has_snapshots()
            || self.fs.lookup(InodeNo::ROOT, OsStr::new(SNAPSHOTS)).is_ok()
        {
            return None;
        }
        let rest = rest.strip_prefix('/').unwrap_or(rest);
        let (name, below) = match rest.find('/') {
            _ if rest.is_empty() => (None, "/"),
            None => (Some(rest), "/"),
            Some(at) => (Some(&rest[..at]), &rest[at..]),
        };
        Some(Inside { text, name, below })
    }

    /// The snapshot that a path leads into, open; none for the directory that they are in.
    fn look_into(
        &self,
        member: &Member,
        inside: &Inside<'_>,
    ) -> Result<Option<(Snapshot, Arc<View>)>, Refusal> {
        allowed(member, inside.below, false)?;
        let Some(name) = inside.name else {
            return Ok(None);
        };
        let found = self.fs.find_snapshot(name.as_bytes());
        let snapshot = found.ok_or_else(|| {
            let text = format!("{}: there is no snapshot {name}", inside.text);
            Refusal(libc::ENOENT, text)
        })?;
        let view = self.snapshots.view(&self.fs, &snapshot)?;
        Ok(Some((snapshot, view)))
    }

    pub(super) fn stat_in_snapshot(
        &self,
        member: &Member,
        inside: &Inside<'_>,
    ) -> Result<Reply, Refusal> {
        Ok(match self.look_into(member, inside)? {
            None => shown(&self.of_snapshots(None)?),
            Some((_, view)) => shown(&resolve(&view, Path::new(inside.below))?.attr),
        })
    }

    pub(super) fn list_in_snapshot(
        &self,
        member: &Member,
        inside: &Inside<'_>,
        from: u64,
    ) -> Result<Reply, Refusal> {
        if let Some((_, view)) = self.look_into(member, inside)? {
            return list(&view, Path::new(inside.below), from);
        }
        let all = self.fs.snapshots();
        let entries = all.iter().map(|snapshot| {
            let attr = self.of_snapshots(Some(snapshot))?;
            Ok(entry(&snapshot.name, &attr))
        });
        Ok(Reply {
            entries: entries.collect::<Result<_, Refusal>>()?,
            ..Reply::default()
        })
    }

    /// The directory of the snapshots, or one of them as it is shown there.
    fn of_snapshots(&self, snapshot: Option<&Snapshot>) -> Result<Attr, Refusal> {
        let root = self.fs.attr(InodeNo::ROOT)?;
        let mtime = snapshot.map(|snapshot| Timestamp::from_unix_ns(snapshot.created_ns));
        Ok(Attr {
            mode: libc::S_IFDIR | 0o755,
            size: 0,
            mtime: mtime.unwrap_or(root.mtime),
            ..root
        })
    }

    /// Registers a range of a file in a snapshot, for reading.
    pub(super) fn open_in_snapshot(
        &self,
        (owner, member): (Owner, &Member),
        inside: &Inside<'_>,
        write: bool,
        request: &Request,
    ) -> Result<Reply, Refusal> {
        let text = inside.text;
        let Some((snapshot, view)) = self.look_into(member, inside)? else {
            return Err(is_directory(text));
        };
        if write {
            return Err(inside.stays());
        }
        if request.flags & FLAG_PERSISTENT != 0 {
            let text = format!("{text} is part of a snapshot: a region of it is not persistent");
            return Err(Refusal(libc::EOPNOTSUPP, text));
        }
        // It is there as long as the snapshot is.
        let attr = resolve(&view, Path::new(inside.below))?.attr;
        regular(text, attr.kind)?;
        let length = length_of(request, text, attr.size)?;
        let domain = member.standing.domain;
        let file = (attr.ino, attr.size);
        let backing = self.snapshots.open(&self.fs, snapshot.number, view, file);
        let register = || -> Result<_, Refusal> {
            let offset = request.offset;
            let spec = RegionSpec::pages(domain, file_rights(false), backing, offset, length);
            let region = self
                .stags
                .register(spec)
                .map_err(|error| Refusal(libc::ENOMEM, error.to_string()))?;
            let grows = request.flags & FLAG_GROW != 0;
            if grows {
                let reach = attr.size.saturating_sub(offset);
                self.stags.set_reach(region.stag, reach);
            }
            let open = OpenRegion {
                domain,
                inode: None,
                of_snapshot: Some(backing),
                stag: region.stag,
                offset,
                end: offset + length,
                grows,
                writable: false,
                persistent: false,
            };
            Ok((self.add(owner, open)?, region))
        };
        let (handle, region) = register().inspect_err(|_| self.snapshots.close(backing))?;
        let number = snapshot.number << SNAPSHOT_NUMBER_SHIFT;
        let attr = Attr {
            ino: InodeNo(number | attr.ino.0),
            ..attr
        };
        Ok(opened(handle, &region, &attr))
    }
}
