//! Names: the walk through the directories, and what it says of the inodes.

use std::collections::HashSet;

use ftl::{GRAIN_BYTES, LbaRange};

use super::{Checker, Problem};
use crate::error::FsError;
use crate::format::{InodeRecord, parse_grain};
use crate::inode::{FileKind, InodeNo};
use crate::store::{BlockStore, ByteAddr};

/// What the walk through the directories counts for an inode.
#[derive(Default)]
pub(super) struct Links {
    pub(super) names: u64,
    /// What the last entry says it is.
    pub(super) kind: Option<FileKind>,
    subdirectories: u64,
    /// Directories that hold the names of a directory, one for each name.
    pub(super) holders: Vec<InodeNo>,
}

impl<S: BlockStore> Checker<'_, S> {
    pub(super) fn walk_directories(&mut self) {
        let mut dirs: Vec<InodeNo> = self
            .inodes
            .iter()
            .filter(|(_, record)| record.kind == FileKind::Directory)
            .map(|(&ino, _)| ino)
            .collect();
        dirs.sort_unstable();
        for dir in dirs {
            if let Err(error) = self.walk_directory(dir) {
                self.problem(Problem::Directory { ino: dir, error });
            }
        }
    }

    fn walk_directory(&mut self, dir: InodeNo) -> Result<(), FsError> {
        let record = self.inodes[&dir];
        let range = record.range.ok_or(FsError::NotDirectory)?.lbas();
        let grains = record.size.div_ceil(GRAIN_BYTES as u64);
        let behind = LbaRange::new(range.start.offset(grains), range.count - grains);
        let last_is_mapped = grains == 0
            || self
                .store
                .next_mapped(LbaRange::new(range.start.offset(grains - 1), 1))
                .is_some();
        if !record.size.is_multiple_of(GRAIN_BYTES as u64)
            || self.store.next_mapped(behind).is_some()
            || !last_is_mapped
        {
            self.problem(Problem::DirectorySize { ino: dir });
        }
        let mut names: HashSet<Vec<u8>> = HashSet::new();
        let mut has_empty = false;
        let mut next = range.start;
        let end = range.start.offset(grains);
        while next < end {
            let Some(lba) = self.store.next_mapped(LbaRange::new(next, end.0 - next.0)) else {
                break;
            };
            next = lba.offset(1);
            let mut grain = [0; GRAIN_BYTES];
            self.store.read(ByteAddr::new(lba, 0), &mut grain)?;
            let mut entries = Vec::new();
            parse_grain(dir, 0, &grain, |_, entry| {
                entries.push((entry.ino, entry.kind, entry.name.to_vec()));
            })?;
            // One that loses its last entry is unmapped.
            has_empty |= entries.is_empty();
            for (ino, kind, name) in entries {
                if !names.insert(name) {
                    self.problem(Problem::NameTwice { dir, ino });
                }
                self.note_entry(dir, ino, kind);
            }
        }
        if has_empty {
            self.problem(Problem::DirectorySize { ino: dir });
        }
        Ok(())
    }

    fn note_entry(&mut self, dir: InodeNo, ino: InodeNo, kind: FileKind) {
        match self.inodes.get(&ino) {
            Some(record) if record.kind != kind => self.problem(Problem::KindDiffers { dir, ino }),
            None if !self.unreadable.contains(&ino) => self.problem(Problem::Dangling { dir, ino }),
            _ => {}
        }
        let links = self.links.entry(ino).or_default();
        links.names += 1;
        links.kind = Some(kind);
        if kind == FileKind::Directory {
            links.holders.push(dir);
            self.links.entry(dir).or_default().subdirectories += 1;
        }
    }

    pub(super) fn check_links(&mut self) {
        let mut inodes: Vec<_> = self
            .inodes
            .iter()
            .map(|(&ino, &record)| (ino, record))
            .collect();
        inodes.sort_unstable_by_key(|(ino, _)| *ino);
        let root = self.inodes.get(&InodeNo::ROOT);
        if !root.is_some_and(InodeRecord::is_of_root) {
            self.problem(Problem::Record {
                ino: InodeNo::ROOT,
                error: FsError::NotDirectory,
            });
        }
        for (ino, record) in inodes {
            self.count_kind(record.kind);
            let (names, subdirectories, holder) = match self.links.get(&ino) {
                Some(links) => (
                    links.names,
                    links.subdirectories,
                    links.holders.last().copied(),
                ),
                None => (0, 0, None),
            };
            let is_root = ino == InodeNo::ROOT;
            if record.orphan && (names > 0 || is_root) {
                self.problem(Problem::NamedOrphan { ino });
            } else if record.orphan {
                self.report.orphans += 1;
            }
            if record.relocation.is_some() {
                self.report.relocating += 1;
            }
            if names == 0 && !record.orphan && !is_root {
                self.problem(Problem::Unreachable { ino });
                continue;
            }
            let counted = match record.kind {
                FileKind::Directory => 2 + subdirectories,
                _ => names,
            };
            if u64::from(record.nlink) != counted {
                self.problem(Problem::LinkCount {
                    ino,
                    recorded: record.nlink,
                    counted,
                });
            }
            if record.kind == FileKind::Directory {
                let good = match (is_root, names) {
                    (true, names) => names == 0 && record.parent == Some(ino),
                    (false, names) => {
                        names == 1 && record.parent == holder && self.reaches_root(ino)
                    }
                };
                if !good {
                    self.problem(Problem::Parent { ino });
                }
            }
        }
    }

    /// Whether the parents lead to the root rather than in a circle.
    fn reaches_root(&self, mut ino: InodeNo) -> bool {
        for _ in 0..=self.inodes.len() {
            if ino == InodeNo::ROOT {
                return true;
            }
            match self.inodes.get(&ino).and_then(|record| record.parent) {
                Some(parent) => ino = parent,
                None => return false,
            }
        }
        false
    }
}
